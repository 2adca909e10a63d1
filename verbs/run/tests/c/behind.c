/* rdma_cm identifiers without a queue pair, beside queue pairs whose numbers the programs exchange by private data, as UCX has them: the disconnect event comes behind
 * the messages that the peer sent before. Arguments: an address of this host, and a GID index of it. */
#include "pair.h"
#include <rdma/rdma_cma.h>
#include <signal.h>

enum { LENGTH = 3000 };

static struct ibv_cq *cq;
static struct rdma_event_channel *events;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static int has_event(int milliseconds)
{
	struct pollfd entry = { .fd = events->fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

/* The next event, and the number in its private data. */
static struct rdma_cm_id *take(enum rdma_cm_event_type type, uint32_t *number)
{
	struct rdma_cm_event *event;
	CHECK(has_event(8000) == 1 && rdma_get_cm_event(events, &event) == 0);
	if (event->event != type)
		fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
	CHECK(event->event == type);
	struct rdma_cm_id *id = event->id;
	if (number)
		memcpy(number, event->param.conn.private_data, sizeof *number);
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static struct rdma_conn_param with_number(const uint32_t *number)
{
	return (struct rdma_conn_param) {
		.private_data = number, .private_data_len = sizeof *number, .responder_resources = 1, .initiator_depth = 1,
	};
}

static void post(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void set_up(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (events = rdma_create_event_channel()));
}

/* Round 0: the server's process has no core while message and end come. Later rounds: the message is posted when nothing is connected yet. */
static void client(struct sockaddr *server, int round, pid_t server_process)
{
	struct rdma_cm_id *id;
	struct ibv_qp *qp = make_qp(), peer;
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0 && rdma_resolve_addr(id, NULL, server, 8000) == 0);
	take(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	CHECK(rdma_resolve_route(id, 8000) == 0);
	take(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	struct rdma_conn_param param = with_number(&qp->qp_num);
	CHECK(rdma_connect(id, &param) == 0);
	take(RDMA_CM_EVENT_CONNECT_RESPONSE, &peer.qp_num);
	connect_to(qp, &peer);
	CHECK(rdma_establish(id) == 0);
	if (round == 0) {
		post(qp, 1);
		success(cq, 1, IBV_WC_SEND);
		struct timespec pause = { .tv_nsec = 200000000 };
		nanosleep(&pause, NULL);
		CHECK(kill(server_process, SIGSTOP) == 0);
	}
	post(qp, 2);
	if (round % 2) {
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
	} else {
		CHECK(ibv_destroy_qp(qp) == 0);
		qp = NULL;
	}
	CHECK(rdma_disconnect(id) == 0 && rdma_destroy_id(id) == 0);
	if (round == 0) {
		struct timespec pause = { .tv_nsec = 100000000 };
		nanosleep(&pause, NULL);
		CHECK(kill(server_process, SIGCONT) == 0);
	}
	struct ibv_wc wc;
	CHECK(!qp || ibv_destroy_qp(qp) == 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static void serve(int round)
{
	struct ibv_qp *qp = make_qp(), peer;
	struct rdma_cm_id *id = take(RDMA_CM_EVENT_CONNECT_REQUEST, &peer.qp_num);
	connect_to(qp, &peer);
	for (int i = 1; i <= 3; i++)
		post_recv(qp, i, memory + HALF, HALF);
	struct rdma_conn_param param = with_number(&qp->qp_num);
	CHECK(rdma_accept(id, &param) == 0);
	take(RDMA_CM_EVENT_ESTABLISHED, NULL);
	uint64_t message = 1;
	if (round == 0)
		success(cq, message++, IBV_WC_RECV);
	/* The message is not taken: no event comes. */
	CHECK(has_event(200) == 0);
	success(cq, message, IBV_WC_RECV);
	CHECK(memcmp(memory, memory + HALF, LENGTH) == 0);
	memset(memory + HALF, 0, LENGTH);
	CHECK(take(RDMA_CM_EVENT_DISCONNECTED, NULL) == id);
	CHECK(rdma_disconnect(id) == 0 && rdma_destroy_id(id) == 0 && ibv_destroy_qp(qp) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

int main(int argc, char **argv)
{
	enum { ROUNDS = 3 };
	struct sockaddr_storage at = { 0 };
	struct sockaddr_in *v4 = (void *)&at;
	struct sockaddr_in6 *v6 = (void *)&at;
	CHECK(argc == 3);
	if (inet_pton(AF_INET, argv[1], &v4->sin_addr) == 1) {
		at.ss_family = AF_INET;
	} else {
		CHECK(inet_pton(AF_INET6, argv[1], &v6->sin6_addr) == 1);
		at.ss_family = AF_INET6;
	}
	int to_client[2], status;
	CHECK(pipe(to_client) == 0);
	pid_t server_process = getpid(), child = fork();
	CHECK(child >= 0);
	/* A client whose server has failed reads the end of the pipe. */
	CHECK(close(to_client[child == 0]) == 0);
	char *arguments[] = { argv[0], argv[2], NULL }, word;
	set_up(2, arguments);
	memset(memory, 0x5a, LENGTH);
	if (child == 0) {
		in_port_t port;
		CHECK(read(to_client[0], &port, sizeof port) == sizeof port);
		if (at.ss_family == AF_INET)
			v4->sin_port = port;
		else
			v6->sin6_port = port;
		for (int round = 0; round < ROUNDS; round++) {
			client((struct sockaddr *)&at, round, server_process);
			CHECK(read(to_client[0], &word, 1) == 1);
		}
		return 0;
	}
	struct rdma_cm_id *listener;
	CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 8) == 0);
	in_port_t port = rdma_get_src_port(listener);
	CHECK(write(to_client[1], &port, sizeof port) == sizeof port);
	for (int round = 0; round < ROUNDS; round++) {
		serve(round);
		CHECK(write(to_client[1], "n", 1) == 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	puts("ok");
	return 0;
}
