/*
 * siw-ops: the guest's end of RDMA operations, told what to do by the other end.
 *
 *   siw-ops server PORT           accept one connection
 *   siw-ops client ADDR PORT      connect, and say hello with an empty Send
 *
 * Then obeys one Send at a time, a struct command, and answers each with a struct answer, until the other end leaves. Prints
 * what it cannot answer: "failed STATUS" when an operation fails, "disconnected" at the end. Exit status 0 unless it had trouble of
 * its own.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define BUFFER_LEN (65u << 20)

enum { HELLO, DIGEST, WRITE, READ, SEND_INVALIDATE };

/* Little-endian, as both ends are. `offset` and `len` are octets of our buffer, `addr` and `rkey` the other end's. */
struct command {
	uint32_t operation, rkey;
	uint64_t addr;
	uint32_t offset, len;
};

/* To HELLO our buffer, else value and what was asked for; the value is the FNV-1a hash of octets of our buffer. */
struct answer {
	uint32_t operation, rkey;
	uint64_t addr;
	uint32_t len, value;
};

static uint8_t *buffer;
static struct ibv_mr *buffer_mr, *command_mr, *answer_mr;
static struct command command;
static struct answer answer;

static void die(const char *what)
{
	fprintf(stderr, "siw-ops: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint32_t fnv1a(const uint8_t *bytes, uint32_t len)
{
	uint32_t hash = 0x811c9dc5;
	for (uint32_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * 0x01000193;
	return hash;
}

static void prepare(struct rdma_cm_id *id)
{
	/* siw looks at the limit even of those who may exceed it. */
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (setrlimit(RLIMIT_MEMLOCK, &none))
		die("setrlimit");
	buffer = calloc(1, BUFFER_LEN);
	if (!buffer)
		die("calloc");
	buffer_mr = ibv_reg_mr(id->pd, buffer, BUFFER_LEN, all);
	command_mr = rdma_reg_msgs(id, &command, sizeof(command));
	answer_mr = rdma_reg_msgs(id, &answer, sizeof(answer));
	if (!buffer_mr || !command_mr || !answer_mr)
		die("register");
	if (rdma_post_recv(id, NULL, &command, sizeof(command), command_mr))
		die("rdma_post_recv");
}

static struct rdma_cm_id *endpoint(const char *addr, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
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

/* Waits for the completion of the operation under way. Returns whether it succeeded. */
static int done(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	if (rdma_get_send_comp(id, &wc) <= 0)
		die("rdma_get_send_comp");
	if (wc.status != IBV_WC_SUCCESS)
		printf("failed %s\n", ibv_wc_status_str(wc.status));
	return wc.status == IBV_WC_SUCCESS;
}

/* Answers, and on request invalidates a key of the other end's with that. Returns whether it succeeded. */
static int reply(struct rdma_cm_id *id, uint32_t invalidate)
{
	struct ibv_sge sge = { (uintptr_t)&answer, sizeof(answer), answer_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.invalidate_rkey = invalidate,
		/* Where siw's library looks for it. */
		.wr.rdma.rkey = invalidate,
	}, *bad;

	if (ibv_post_send(id->qp, &wr, &bad))
		die("ibv_post_send");
	return done(id);
}

static int obey(struct rdma_cm_id *id, struct command now)
{
	uint8_t *at = buffer + now.offset;

	answer = (struct answer){ .operation = now.operation };
	switch (now.operation) {
	case HELLO:
		answer.rkey = buffer_mr->rkey;
		answer.addr = (uintptr_t)buffer;
		answer.len = BUFFER_LEN;
		return reply(id, 0);
	case DIGEST:
		answer.value = fnv1a(at, now.len);
		return reply(id, 0);
	case WRITE:
		for (uint32_t i = 0; i < now.len; i++)
			at[i] = 31 * i + 7;
		if (rdma_post_write(id, NULL, at, now.len, buffer_mr, 0, now.addr, now.rkey))
			die("rdma_post_write");
		return done(id) && reply(id, 0);
	case READ:
		if (rdma_post_read(id, NULL, at, now.len, buffer_mr, 0, now.addr, now.rkey))
			die("rdma_post_read");
		if (!done(id))
			return 0;
		answer.value = fnv1a(at, now.len);
		return reply(id, 0);
	case SEND_INVALIDATE:
		return reply(id, now.rkey);
	}
	fprintf(stderr, "siw-ops: no operation %u\n", now.operation);
	exit(1);
}

static void serve(struct rdma_cm_id *id)
{
	for (;;) {
		struct ibv_wc wc;
		struct command now;

		if (rdma_get_recv_comp(id, &wc) <= 0)
			die("rdma_get_recv_comp");
		if (wc.status != IBV_WC_SUCCESS)
			break;
		now = command;
		if (rdma_post_recv(id, NULL, &command, sizeof(command), command_mr))
			die("rdma_post_recv");
		if (!obey(id, now))
			break;
	}
	printf("disconnected\n");
}

int main(int argc, char **argv)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_id *listener, *id;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(argv[1], "server")) {
		listener = endpoint(NULL, argv[2]);
		if (rdma_listen(listener, 1))
			die("rdma_listen");
		if (rdma_get_request(listener, &id))
			die("rdma_get_request");
		prepare(id);
		if (rdma_accept(id, &param))
			die("rdma_accept");
	} else if (argc == 4 && !strcmp(argv[1], "client")) {
		id = endpoint(argv[2], argv[3]);
		prepare(id);
		if (rdma_connect(id, &param))
			die("rdma_connect");
		if (rdma_post_sendv(id, NULL, NULL, 0, 0) || !done(id))
			die("hello");
	} else {
		fprintf(stderr, "usage: siw-ops server PORT | client ADDR PORT\n");
		return 2;
	}
	serve(id);
	return 0;
}
