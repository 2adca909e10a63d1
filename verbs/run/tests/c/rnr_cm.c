/* rnr_retry_count of rdma_connect(3) and rdma_accept(3): it is about messages of the peer. Arguments: the count of the server, and whether it is a limit. */
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include "test.h"

static struct rdma_cm_id *listener;
static struct rdma_conn_param of_server = { .responder_resources = 1, .initiator_depth = 1 };

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

static void *accept_one(void *unused)
{
	struct rdma_cm_id *id;
	(void)unused;
	CHECK(rdma_get_request(listener, &id) == 0);
	make_qp(id);
	CHECK(rdma_accept(id, &of_server) == 0);
	return id;
}

static int64_t milliseconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct ibv_wc completion(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(id, &wc) == 1);
	return wc;
}

int main(int argc, char **argv)
{
	static char memory[256];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(argc == 3);
	of_server.rnr_retry_count = atoi(argv[1]);
	int limits = atoi(argv[2]);
	CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 4) == 0);
	address.sin_port = rdma_get_src_port(listener);
	/* A second connection is like the first. */
	for (int connection = 0; connection < 2; connection++) {
		pthread_t thread;
		void *accepted;
		struct rdma_cm_id *client;
		CHECK(pthread_create(&thread, NULL, accept_one, NULL) == 0);
		CHECK(rdma_create_id(NULL, &client, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 5000) == 0 && rdma_resolve_route(client, 5000) == 0);
		/* That of the client is about the server's messages. */
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
		make_qp(client);
		CHECK(rdma_connect(client, &param) == 0);
		CHECK(pthread_join(thread, &accepted) == 0);
		struct rdma_cm_id *server = accepted;
		struct ibv_mr *own = rdma_reg_msgs(client, memory, 64), *theirs = rdma_reg_msgs(server, memory + 64, 64);
		CHECK(own && theirs);
		/* The first message has a receive. */
		struct ibv_wc wc;
		CHECK(rdma_post_recv(server, NULL, memory + 64, 64, theirs) == 0 && rdma_post_send(client, NULL, memory, 64, own, 0) == 0);
		CHECK(completion(client).status == IBV_WC_SUCCESS && rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		int64_t began = milliseconds();
		CHECK(rdma_post_send(client, (void *)1, memory, 64, own, 0) == 0);
		if (limits) {
			wc = completion(client);
			CHECK(wc.wr_id == 1 && wc.status == IBV_WC_RNR_RETRY_EXC_ERR && milliseconds() - began >= 600);
		} else {
			struct timespec pause = { .tv_nsec = 900000000 };
			CHECK(nanosleep(&pause, NULL) == 0);
			CHECK(rdma_post_recv(server, NULL, memory + 64, 64, theirs) == 0);
			CHECK(completion(client).status == IBV_WC_SUCCESS && rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		}
		rdma_disconnect(client);
		rdma_disconnect(server);
		rdma_destroy_qp(client);
		rdma_destroy_qp(server);
		CHECK(rdma_dereg_mr(own) == 0 && rdma_dereg_mr(theirs) == 0);
		CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);
	}
	CHECK(rdma_destroy_id(listener) == 0);
	puts("ok");
	return 0;
}
