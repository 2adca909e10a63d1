/*
 * siw-echo: one Send each way over rdma_cm, with contents that both ends check.
 *
 *   siw-echo server PORT             accept one connection, receive a message, print its
 *                                    length and FNV-1a hash, send back every byte inverted,
 *                                    print "answered", wait for the other end to leave
 *   siw-echo client ADDR PORT LEN    connect, send LEN bytes (byte i is 31 i + 7), expect
 *                                    every byte inverted back, print "echoed LEN"
 *
 * Exit status 0 if all went well. The private data that the other end gave is printed too.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define MAX_LEN (1 << 20)

static uint8_t received[MAX_LEN], sent[MAX_LEN];

static void die(const char *what)
{
	fprintf(stderr, "siw-echo: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint32_t fnv1a(const uint8_t *bytes, uint32_t len)
{
	uint32_t hash = 0x811c9dc5;
	for (uint32_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * 0x01000193;
	return hash;
}

static struct rdma_cm_id *endpoint(const char *addr, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	if (!addr)
		hints.ai_flags = RAI_PASSIVE;
	if (rdma_getaddrinfo((char *)addr, (char *)port, &hints, &info))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&id, info, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(info);
	return id;
}

static void print_private_data(const struct rdma_cm_id *id)
{
	const struct rdma_conn_param *param = &id->event->param.conn;
	printf("private data %.*s\n", param->private_data_len, (const char *)param->private_data);
}

static struct ibv_mr *register_both(struct rdma_cm_id *id, struct ibv_mr **recv_mr)
{
	struct ibv_mr *send_mr = rdma_reg_msgs(id, sent, sizeof(sent));
	*recv_mr = rdma_reg_msgs(id, received, sizeof(received));
	if (!send_mr || !*recv_mr)
		die("rdma_reg_msgs");
	if (rdma_post_recv(id, NULL, received, sizeof(received), *recv_mr))
		die("rdma_post_recv");
	return send_mr;
}

static uint32_t wait_received(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	if (rdma_get_recv_comp(id, &wc) <= 0)
		die("rdma_get_recv_comp");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "siw-echo: receive: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc.byte_len;
}

static void send_now(struct rdma_cm_id *id, struct ibv_mr *mr, uint32_t len)
{
	struct ibv_wc wc;
	if (rdma_post_send(id, NULL, sent, len, mr, 0))
		die("rdma_post_send");
	if (rdma_get_send_comp(id, &wc) <= 0)
		die("rdma_get_send_comp");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "siw-echo: send: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static int server(const char *port)
{
	struct rdma_cm_id *listener = endpoint(NULL, port), *id;
	struct rdma_conn_param accept = {
		.private_data = "hello from siw", .private_data_len = 14,
		.responder_resources = 4, .initiator_depth = 4,
	};
	struct ibv_mr *send_mr, *recv_mr;
	uint32_t len;

	if (rdma_listen(listener, 1))
		die("rdma_listen");
	if (rdma_get_request(listener, &id))
		die("rdma_get_request");
	print_private_data(id);
	send_mr = register_both(id, &recv_mr);
	if (rdma_accept(id, &accept))
		die("rdma_accept");
	len = wait_received(id);
	printf("received %u %08x\n", len, fnv1a(received, len));
	for (uint32_t i = 0; i < len; i++)
		sent[i] = ~received[i];
	send_now(id, send_mr, len);
	/* Once this is said the client may leave. It leaves first: what it has not read would be lost. */
	printf("answered\n");
	while (rdma_get_cm_event(id->channel, &id->event) == 0 &&
	       id->event->event != RDMA_CM_EVENT_DISCONNECTED)
		rdma_ack_cm_event(id->event);
	printf("disconnected\n");
	return 0;
}

static int client(const char *addr, const char *port, uint32_t len)
{
	struct rdma_cm_id *id = endpoint(addr, port);
	struct rdma_conn_param connect = {
		.private_data = "hello from siw", .private_data_len = 14,
		.responder_resources = 4, .initiator_depth = 4,
	};
	struct ibv_mr *recv_mr, *send_mr = register_both(id, &recv_mr);

	if (rdma_connect(id, &connect))
		die("rdma_connect");
	print_private_data(id);
	for (uint32_t i = 0; i < len; i++)
		sent[i] = 31 * i + 7;
	send_now(id, send_mr, len);
	if (wait_received(id) != len) {
		fprintf(stderr, "siw-echo: the echo has another length\n");
		return 1;
	}
	for (uint32_t i = 0; i < len; i++)
		if (received[i] != (uint8_t)~sent[i]) {
			fprintf(stderr, "siw-echo: byte %u of the echo is wrong\n", i);
			return 1;
		}
	printf("echoed %u\n", len);
	rdma_disconnect(id);
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(argv[1], "server"))
		return server(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "client") && strtoul(argv[4], NULL, 0) <= MAX_LEN)
		return client(argv[2], argv[3], strtoul(argv[4], NULL, 0));
	fprintf(stderr, "usage: siw-echo server PORT | client ADDR PORT LEN\n");
	return 2;
}
