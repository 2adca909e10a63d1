/* Programs that poll, then post several messages at once and do something else: the messages arrive, whatever that is. Datagram queue pairs, and
 * connected ones of both kinds. Argument: a GID index. */
#include "pair.h"

enum { BURST = 8, WARM = 300, LENGTH = 64, DEPTH = 64, SLOT = 128, TO_US = 100 };

/* The end that sends, and its peer. Each has a completion queue of its own, so that nobody polls for the other. */
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq, *peer_cq;
static struct ibv_qp *qp, *peer;
static struct ibv_ah *ah;
static enum ibv_qp_type type;

static struct ibv_qp *make(struct ibv_cq *of)
{
	struct ibv_qp_init_attr init = {
		.send_cq = of, .recv_cq = of, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = LENGTH },
	};
	struct ibv_qp *made = ibv_create_qp(pd, &init);
	CHECK(made);
	return made;
}

static void send_to(struct ibv_qp *from, uint32_t qpn, int number, unsigned flags)
{
	unsigned char *at = memory + number * LENGTH;
	struct ibv_sge sge = { (uintptr_t)at, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags }, *bad;
	memset(at, number, LENGTH);
	if (type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	/* Inline data is copied at once. */
	if (flags & IBV_SEND_INLINE)
		memset(at, 0xee, LENGTH);
}

static void post_slot(struct ibv_qp *to, int slot)
{
	post_recv(to, slot, memory + HALF + slot * SLOT, SLOT);
}

/* Messages there and back, for which both ends poll: nobody else need watch their sockets. Either end may be in another process. */
static void warm_up(struct ibv_qp *ours, struct ibv_cq *our_cq, uint32_t qpn, int first)
{
	if (first)
		send_to(ours, qpn, 0, 0);
	success(our_cq, TO_US, IBV_WC_RECV);
	post_slot(ours, TO_US);
	if (!first)
		send_to(ours, qpn, 0, 0);
}

static void burst(uint32_t to, unsigned flags)
{
	for (int i = 0; i < BURST; i++)
		send_to(qp, to, i, flags | (i % 2 ? IBV_SEND_INLINE : 0));
}

static void arrives(void)
{
	for (int i = 0; i < BURST; i++) {
		success(peer_cq, i, IBV_WC_RECV);
		unsigned char *payload = memory + HALF + i * SLOT + (type == IBV_QPT_UD ? 40 : 0);
		CHECK(payload[0] == i && payload[LENGTH - 1] == i);
		post_slot(peer, i);
	}
}

static void nothing(void)
{
}

static void completions(void)
{
	for (int i = 0; i < BURST; i++)
		success(cq, i, IBV_WC_SEND);
}

static void arming(void)
{
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
}

static void query(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
}

static void destruction(void)
{
	CHECK(ibv_destroy_qp(qp) == 0);
	qp = NULL;
}

static void error(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void *wait_for_event(void *unused)
{
	struct ibv_cq *of;
	void *its_context;
	CHECK(ibv_get_cq_event(channel, &of, &its_context) == 0 && of == cq);
	ibv_ack_cq_events(of, 1);
	return unused;
}

static void try(enum ibv_qp_type of, void (*then)(void), unsigned flags)
{
	type = of;
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 2 * DEPTH, NULL, channel, 0)));
	CHECK((peer_cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0)));
	qp = make(cq);
	peer = make(peer_cq);
	steps_to(qp, peer, 0, 2);
	connect_to(peer, qp);
	steps_to(qp, peer, 2, 3);
	post_slot(peer, TO_US);
	post_slot(qp, TO_US);
	for (int i = 0; i < WARM; i++) {
		send_to(qp, peer->qp_num, 0, 0);
		warm_up(peer, peer_cq, qp->qp_num, 0);
		success(cq, TO_US, IBV_WC_RECV);
		post_slot(qp, TO_US);
	}
	/* The receive that is still posted at the peer takes the first message. */
	for (int i = 0; i < BURST; i++)
		post_slot(peer, i);
	send_to(qp, peer->qp_num, 0, IBV_SEND_SIGNALED);
	success(cq, 0, IBV_WC_SEND);
	success(peer_cq, TO_US, IBV_WC_RECV);

	for (int i = 0; i < 3; i++) {
		burst(peer->qp_num, flags);
		then();
		arrives();
		if (then == destruction || then == error)
			break;
	}
	/* Another thread waits for an event meanwhile, which only the peer's message brings. */
	if (then == arming) {
		pthread_t thread;
		struct timespec pause = { .tv_nsec = 5000000 };
		CHECK(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
		for (int i = 0; i < 3; i++) {
			nanosleep(&pause, NULL);
			burst(peer->qp_num, flags);
			arrives();
		}
		send_to(peer, qp->qp_num, 0, 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK((!qp || ibv_destroy_qp(qp) == 0) && ibv_destroy_qp(peer) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(peer_cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* A process that polls, posts a burst of datagrams and ends without destroying anything. */
static void end_behind_a_burst(int argc, char **argv)
{
	int there[2], back[2], status;
	uint32_t qpn;
	CHECK(pipe(there) == 0 && pipe(back) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	open_device(argc, argv);
	struct ibv_ah_attr address = own_address();
	CHECK((ah = ibv_create_ah(pd, &address)));
	type = IBV_QPT_UD;
	CHECK((cq = peer_cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0)));
	qp = peer = make(cq);
	connect_to(qp, qp);
	post_slot(qp, TO_US);
	int to = child ? there[1] : back[1];
	CHECK(write(to, &qp->qp_num, sizeof qpn) == sizeof qpn);
	CHECK(read(child ? back[0] : there[0], &qpn, sizeof qpn) == sizeof qpn);
	for (int i = 0; i < WARM; i++)
		warm_up(qp, cq, qpn, !child);
	if (!child) {
		CHECK(read(there[0], &status, 1) == 1);
		burst(qpn, 0);
		exit(0);
	}
	/* The receive that is still posted takes a message of its own. */
	for (int i = 0; i < BURST; i++)
		post_slot(qp, i);
	send_to(qp, qp->qp_num, 0, 0);
	success(cq, TO_US, IBV_WC_RECV);
	CHECK(write(to, "g", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	arrives();
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	end_behind_a_burst(argc, argv);
	enum ibv_qp_type types[] = { IBV_QPT_UD, IBV_QPT_UC, IBV_QPT_RC };
	void (*events[])(void) = { nothing, arming, query, destruction };
	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 4; j++)
			try(types[i], events[j], 0);
		try(types[i], completions, IBV_SEND_SIGNALED);
		/* The error state of a connection is its peer's, too. */
		if (types[i] != IBV_QPT_RC)
			try(types[i], error, 0);
	}
	puts("ok");
	return 0;
}
