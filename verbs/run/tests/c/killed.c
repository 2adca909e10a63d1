/* A peer that is killed: before a message was sent, between messages, and in a stream of them. This end learns it whether it sends or only waits for a receive, polls or
 * sleeps, connected by rdma_cm or by numbers. Arguments: an address of this host, a GID index of it, and a limit in milliseconds for
 * ends that are connected by numbers, 12000 without one. */
#include "pair.h"
#include <rdma/rdma_cma.h>
#include <signal.h>

enum when { BEFORE, BETWEEN, WITHIN, WHENS };
enum { LENGTH = 20000, STREAM = 12, LIMIT_MS = 12000 };

/* One way: all of them at a time, each in a process of its own. */
static int by_cm, sends, sleeps;
static enum when when;

static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static int to_peer[2], from_peer[2];

static int64_t milliseconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void rest(int ms)
{
	struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
	nanosleep(&pause, NULL);
}

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr) {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int64_t end = milliseconds() + LIMIT_MS;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	while (ibv_poll_cq(cq, 1, &wc) == 0) {
		struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
		CHECK(milliseconds() < end);
		if (!sleeps) {
			rest(1);
			continue;
		}
		void *of;
		struct ibv_cq *raised;
		CHECK(poll(&entry, 1, LIMIT_MS) == 1 && ibv_get_cq_event(channel, &raised, &of) == 0);
		ibv_ack_cq_events(raised, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	return wc;
}

static void post_send(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static struct rdma_cm_id *take(struct rdma_event_channel *events, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct pollfd entry = { .fd = events->fd, .events = POLLIN };
	CHECK(poll(&entry, 1, LIMIT_MS) == 1 && rdma_get_cm_event(events, &event) == 0 && event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static void make_cq(void)
{
	CHECK((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 128, NULL, channel, 0)));
}

/* A queue pair of the identifier, whose device is one that rdma_cm has opened. */
static struct ibv_qp *qp_of(struct rdma_cm_id *id)
{
	context = id->verbs;
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, ROOM, ALL_REMOTE)));
	make_cq();
	struct ibv_qp_init_attr init = attributes();
	CHECK(rdma_create_qp(id, pd, &init) == 0);
	post_recv(id->qp, 1, memory + HALF, HALF);
	return id->qp;
}

/* A queue pair that is connected by rdma_cm; the peer's process listens. */
static struct ibv_qp *by_rdma_cm(int is_peer, const char *address, struct rdma_event_channel *events)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1);
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	if (is_peer) {
		CHECK(rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && rdma_listen(id, 1) == 0);
		in_port_t port = rdma_get_src_port(id);
		CHECK(write(from_peer[1], &port, sizeof port) == sizeof port);
		id = take(events, RDMA_CM_EVENT_CONNECT_REQUEST);
		qp_of(id);
		CHECK(rdma_accept(id, &param) == 0);
	} else {
		CHECK(read(from_peer[0], &at.sin_port, sizeof at.sin_port) == sizeof at.sin_port);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 5000) == 0);
		take(events, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rdma_resolve_route(id, 5000) == 0);
		take(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
		qp_of(id);
		CHECK(rdma_connect(id, &param) == 0);
	}
	take(events, RDMA_CM_EVENT_ESTABLISHED);
	return id->qp;
}

static struct ibv_qp *by_numbers(int is_peer)
{
	struct ibv_qp_init_attr init = attributes();
	struct ibv_qp *qp = ibv_create_qp(pd, &init), peer;
	int out = is_peer ? from_peer[1] : to_peer[1], in = is_peer ? to_peer[0] : from_peer[0];
	CHECK(qp && write(out, &qp->qp_num, sizeof qp->qp_num) == sizeof qp->qp_num);
	CHECK(read(in, &peer.qp_num, sizeof peer.qp_num) == sizeof peer.qp_num);
	connect_to(qp, &peer);
	post_recv(qp, 1, memory + HALF, HALF);
	return qp;
}

static struct ibv_qp *connected(int is_peer, char **argv, struct rdma_event_channel **events)
{
	char *arguments[] = { argv[0], argv[2], NULL };
	CHECK((*events = rdma_create_event_channel()));
	if (by_cm)
		return by_rdma_cm(is_peer, argv[1], *events);
	open_device(2, arguments);
	make_cq();
	return by_numbers(is_peer);
}

/* A message of each end. */
static void talk(struct ibv_qp *qp)
{
	post_send(qp, 2);
	for (int seen = 0; seen != 3;) {
		struct ibv_wc wc = completion();
		CHECK(wc.status == IBV_WC_SUCCESS);
		seen |= wc.wr_id;
	}
}

/* Receives for as long as it lives. */
static void be_peer(char **argv)
{
	struct rdma_event_channel *events;
	char word = 'r';
	struct ibv_qp *qp = connected(1, argv, &events);
	if (when != BEFORE)
		talk(qp);
	for (int i = 0; i < 8; i++)
		post_recv(qp, 1, memory + HALF, HALF);
	CHECK(write(from_peer[1], &word, 1) == 1);
	for (;;) {
		struct ibv_wc wc = completion();
		if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV)
			post_recv(qp, 1, memory + HALF, HALF);
	}
}

static void survive(pid_t peer, char **argv)
{
	struct rdma_event_channel *events;
	char word;
	int status, posted = 0;
	struct ibv_qp *qp = connected(0, argv, &events);
	if (when != BEFORE) {
		talk(qp);
		post_recv(qp, 1, memory + HALF, HALF);
	}
	CHECK(read(from_peer[0], &word, 1) == 1);
	/* A peer that has its queue pair ready is one that both ends have heard of. */
	rest(300);
	if (when == WITHIN && sends) {
		for (; posted < STREAM; posted++)
			post_send(qp, 10 + posted);
		CHECK(completion().status == IBV_WC_SUCCESS);
	}
	CHECK(kill(peer, SIGKILL) == 0 && waitpid(peer, &status, 0) == peer);
	int64_t began = milliseconds();
	if (sends && !posted)
		post_send(qp, 10);
	struct ibv_wc wc;
	do
		wc = completion();
	while (wc.status == IBV_WC_SUCCESS);
	CHECK(milliseconds() - began < (argv[3] && !by_cm ? atoi(argv[3]) : LIMIT_MS));
	if (getenv("VERBOSE"))
		fprintf(stderr, "cm %d, sends %d, sleeps %d, when %d: status %d after %lld ms\n", by_cm, sends, sleeps, when, wc.status,
			(long long)(milliseconds() - began));
	/* All else is flushed, and by rdma_cm there is an event. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	if (by_cm)
		take(events, RDMA_CM_EVENT_DISCONNECTED);
}

int main(int argc, char **argv)
{
	int status, ways = 0;
	CHECK(argc == 3 || argc == 4);
	for (int way = 0; way < 8 * WHENS; way++) {
		by_cm = way & 1, sends = way >> 1 & 1, sleeps = way >> 2 & 1, when = way >> 3;
		/* An end that only waits has no stream. */
		if (when == WITHIN && !sends)
			continue;
		ways++;
		if (fork())
			continue;
		CHECK(pipe(to_peer) == 0 && pipe(from_peer) == 0);
		pid_t peer = fork();
		CHECK(peer >= 0);
		if (peer)
			survive(peer, argv);
		else
			be_peer(argv);
		return 0;
	}
	while (ways--)
		CHECK(wait(&status) > 0 && status == 0);
	puts("ok");
	return 0;
}
