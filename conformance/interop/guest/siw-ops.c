/*
 * siw-ops: the guest's end of connections, told what to do by the other end.
 *
 *   siw-ops server PORT                accept one connection after another, until killed
 *   siw-ops client ADDR PORT [LEN]     connect with LEN octets of private data (octet i is 31 i + 7), and say hello with an empty Send
 *
 * The first octet of a request's private data tells the server: R to reject it, I to ignore it, else to accept; private data is answered
 * with its octets, at most 251, inverted. Then both obey one Send at a time, a struct command, and answer each with a struct answer, until the
 * connection is over. What cannot be answered is printed, a line each:
 *
 *   request LEN HASH, reply LEN HASH   private data that came (FNV-1a)
 *   rejected, ignored                  what the server did
 *   cannot WHAT: ERRNO                 a call failed
 *   OPERATION: STATUS                  how an operation ended that did not succeed, and receives that were flushed
 *   event NAME                         what the connection manager said
 *   over                               the connection is
 *
 * The exit status of the client is 0 if it was connected.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define BUFFER_LEN (65u << 20)
/* What is registered until HELLO asks for more: all of it takes its time. */
#define LEAST_LEN (1u << 20)
#define MAX_PRIVATE 255
/* siw counts its own four octets in the same octet. */
#define MAX_REPLY 251

enum { HELLO, DIGEST, WRITE, READ, SEND, RECEIVE, SEND_INVALIDATE, LEAVE, READ_AND_ABORT };

/* Little-endian, as both ends are. `offset` and `len` are octets of our buffer, `addr` and `rkey` the other end's. */
struct command {
	uint32_t operation, rkey;
	uint64_t addr;
	uint32_t offset, len;
};

/* To HELLO our buffer, of which `len` octets at least are registered, else value and what was asked for. The value is the FNV-1a hash of octets of our buffer, error the errno of a
 * request that was not taken. */
struct answer {
	uint32_t operation, rkey;
	uint64_t addr;
	uint32_t len, value, error, reserved;
};

static uint8_t *buffer;
static struct ibv_mr *buffer_mr, *command_mr, *answer_mr;
static struct command command;
static struct answer answer;
/* The connection is over, and nothing more comes from the connection manager. */
static int gone;

static void die(const char *what)
{
	fprintf(stderr, "siw-ops: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void cannot(const char *what)
{
	printf("cannot %s: %s\n", what, strerror(errno));
}

static uint8_t pattern(uint32_t i)
{
	return 31 * i + 7;
}

static uint32_t fnv1a(const uint8_t *bytes, uint32_t len)
{
	uint32_t hash = 0x811c9dc5;
	for (uint32_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * 0x01000193;
	return hash;
}

/* Prints the private data of the event that `id` has, and copies it. Returns its length. */
static uint8_t private_data(const struct rdma_cm_id *id, const char *what, uint8_t *copy)
{
	const struct rdma_conn_param *param = &id->event->param.conn;
	uint8_t len = param->private_data_len;

	memcpy(copy, param->private_data, len);
	printf("%s %u %08x\n", what, len, fnv1a(copy, len));
	return len;
}

static void post_command_receive(struct rdma_cm_id *id)
{
	if (rdma_post_recv(id, NULL, &command, sizeof(command), command_mr))
		cannot("rdma_post_recv");
}

static void register_buffer(struct rdma_cm_id *id, uint32_t len)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	buffer_mr = ibv_reg_mr(id->pd, buffer, len, all);
	if (!buffer_mr)
		die("register the buffer");
}

static void prepare(struct rdma_cm_id *id)
{
	gone = 0;
	register_buffer(id, LEAST_LEN);
	command_mr = rdma_reg_msgs(id, &command, sizeof(command));
	answer_mr = rdma_reg_msgs(id, &answer, sizeof(answer));
	if (!command_mr || !answer_mr)
		die("register");
	post_command_receive(id);
}

static void release(struct rdma_cm_id *id)
{
	ibv_dereg_mr(buffer_mr);
	ibv_dereg_mr(command_mr);
	ibv_dereg_mr(answer_mr);
	rdma_destroy_ep(id);
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

static void abort_connection(struct rdma_cm_id *id)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	ibv_modify_qp(id->qp, &error, IBV_QP_STATE);
	gone = 1;
}

/* Hears what the connection manager says. siw flushes some work only when the queue pair is told to end. */
static void hear(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	int disconnected;

	if (rdma_get_cm_event(id->channel, &event))
		die("rdma_get_cm_event");
	printf("event %s\n", rdma_event_str(event->event));
	disconnected = event->event == RDMA_CM_EVENT_DISCONNECTED;
	rdma_ack_cm_event(event);
	if (disconnected)
		abort_connection(id);
}

/* How long completions may take once the connection is gone, in milliseconds: siw loses some. */
#define FLUSH_TIME 1000

/* Waits for a completion, and prints it if it is not a success. Returns whether it is. */
static int completes(struct rdma_cm_id *id, const char *what, struct ibv_cq *cq,
		     struct ibv_comp_channel *channel)
{
	struct ibv_wc wc;

	for (;;) {
		struct pollfd fds[] = { { channel->fd, POLLIN }, { id->channel->fd, POLLIN } };
		struct ibv_cq *of;
		void *context;

		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
		if (ibv_poll_cq(cq, 1, &wc) > 0)
			break;
		int ready = poll(fds, gone ? 1 : 2, gone ? FLUSH_TIME : -1);

		if (ready < 0)
			die("poll");
		if (ready == 0) {
			printf("%s: lost\n", what);
			return 0;
		}
		if (fds[0].revents) {
			if (ibv_get_cq_event(channel, &of, &context))
				die("ibv_get_cq_event");
			ibv_ack_cq_events(of, 1);
		} else {
			hear(id);
		}
	}
	if (wc.status != IBV_WC_SUCCESS)
		printf("%s: %s\n", what, ibv_wc_status_str(wc.status));
	return wc.status == IBV_WC_SUCCESS;
}

static int sent(struct rdma_cm_id *id, const char *what)
{
	return completes(id, what, id->send_cq, id->send_cq_channel);
}

static int received(struct rdma_cm_id *id)
{
	return completes(id, "receive", id->recv_cq, id->recv_cq_channel);
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

	if (ibv_post_send(id->qp, &wr, &bad)) {
		cannot("answer");
		return 0;
	}
	return sent(id, "answer");
}

static int read_theirs(struct rdma_cm_id *id, struct command now)
{
	return rdma_post_read(id, NULL, buffer + now.offset, now.len, buffer_mr, 0, now.addr, now.rkey);
}

/* Returns whether the connection goes on. */
static int obey(struct rdma_cm_id *id, struct command now)
{
	uint8_t *at = buffer + now.offset;

	answer = (struct answer){ .operation = now.operation };
	switch (now.operation) {
	case HELLO:
		if (now.len > buffer_mr->length && now.len <= BUFFER_LEN) {
			ibv_dereg_mr(buffer_mr);
			register_buffer(id, now.len);
		}
		answer.rkey = buffer_mr->rkey;
		answer.addr = (uintptr_t)buffer;
		answer.len = buffer_mr->length;
		return reply(id, 0);
	case DIGEST:
		answer.value = fnv1a(at, now.len);
		return reply(id, 0);
	case WRITE:
		for (uint32_t i = 0; i < now.len; i++)
			at[i] = pattern(i);
		if (rdma_post_write(id, NULL, at, now.len, buffer_mr, 0, now.addr, now.rkey))
			answer.error = errno;
		return (answer.error || sent(id, "write")) && reply(id, 0);
	case READ:
		if (read_theirs(id, now))
			answer.error = errno;
		else if (!sent(id, "read"))
			return 0;
		answer.value = fnv1a(at, now.len);
		return reply(id, 0);
	case SEND:
		for (uint32_t i = 0; i < now.len; i++)
			at[i] = pattern(i);
		if (rdma_post_send(id, NULL, at, now.len, buffer_mr, 0))
			answer.error = errno;
		return (answer.error || sent(id, "send")) && reply(id, 0);
	case SEND_INVALIDATE:
		return reply(id, now.rkey);
	case LEAVE:
		if (rdma_disconnect(id))
			cannot("rdma_disconnect");
		return 0;
	case READ_AND_ABORT:
		if (read_theirs(id, now))
			cannot("read");
		abort_connection(id);
		sent(id, "read");
		return 0;
	}
	fprintf(stderr, "siw-ops: no operation %u\n", now.operation);
	exit(1);
}

/* The next message goes to our buffer; the answers tell that it may come, and what came. */
static int obey_receive(struct rdma_cm_id *id, struct command now)
{
	if (rdma_post_recv(id, NULL, buffer + now.offset, now.len, buffer_mr))
		cannot("rdma_post_recv");
	answer = (struct answer){ .operation = now.operation };
	if (!reply(id, 0) || !received(id))
		return 0;
	answer.value = fnv1a(buffer + now.offset, now.len);
	post_command_receive(id);
	return reply(id, 0);
}

static void serve(struct rdma_cm_id *id)
{
	int goes_on = 1;

	while (goes_on && received(id)) {
		struct command now = command;

		if (now.operation == RECEIVE) {
			goes_on = obey_receive(id, now);
		} else {
			post_command_receive(id);
			goes_on = obey(id, now);
		}
	}
	printf("over\n");
}

static void serve_request(struct rdma_cm_id *id)
{
	uint8_t data[MAX_PRIVATE];
	uint8_t len = private_data(id, "request", data);
	char what = len ? data[0] : 0;
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = len < MAX_REPLY ? len : MAX_REPLY,
		.responder_resources = 4, .initiator_depth = 4,
	};

	for (int i = 0; i < len; i++)
		data[i] = ~data[i];
	if (what == 'R') {
		if (rdma_reject(id, data, param.private_data_len))
			cannot("rdma_reject");
		printf("rejected\n");
		rdma_destroy_ep(id);
		return;
	}
	if (what == 'I') {
		printf("ignored\n");
		return;
	}
	prepare(id);
	if (rdma_accept(id, &param)) {
		cannot("rdma_accept");
		if (id->event)
			printf("event %s\n", rdma_event_str(id->event->event));
		printf("over\n");
	} else {
		serve(id);
	}
	release(id);
}

static void serve_all(const char *port)
{
	struct rdma_cm_id *listener = endpoint(NULL, port), *id;

	if (rdma_listen(listener, 8))
		die("rdma_listen");
	for (;;) {
		if (rdma_get_request(listener, &id))
			cannot("rdma_get_request");
		else
			serve_request(id);
	}
}

static int client(const char *addr, const char *port, uint8_t len)
{
	uint8_t data[MAX_PRIVATE];
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = len,
		.responder_resources = 4, .initiator_depth = 4,
	};
	struct rdma_cm_id *id = endpoint(addr, port);

	for (int i = 0; i < len; i++)
		data[i] = pattern(i);
	prepare(id);
	if (rdma_connect(id, &param)) {
		cannot("rdma_connect");
		if (id->event) {
			printf("event %s\n", rdma_event_str(id->event->event));
			private_data(id, "reply", data);
		}
		return 1;
	}
	private_data(id, "reply", data);
	if (rdma_post_sendv(id, NULL, NULL, 0, 0))
		die("hello");
	if (sent(id, "hello"))
		serve(id);
	return 0;
}

int main(int argc, char **argv)
{
	/* siw looks at the limit even of those who may exceed it. */
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (setrlimit(RLIMIT_MEMLOCK, &none))
		die("setrlimit");
	buffer = calloc(1, BUFFER_LEN);
	if (!buffer)
		die("calloc");
	if (argc == 3 && !strcmp(argv[1], "server"))
		serve_all(argv[2]);
	if ((argc == 4 || argc == 5) && !strcmp(argv[1], "client"))
		return client(argv[2], argv[3], argc == 5 ? strtoul(argv[4], NULL, 0) : 0);
	fprintf(stderr, "usage: siw-ops server PORT | client ADDR PORT [LEN]\n");
	return 2;
}
