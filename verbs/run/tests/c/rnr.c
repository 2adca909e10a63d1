/* rnr_retry and min_rnr_timer of ibv_modify_qp(3), between queue pairs of this process. Arguments: a GID index, and whether they have their meaning (1) or
 * messages wait for a receive whatever they say (0). */
#include "pair.h"

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static int sleeping;

/* The next completion, polled for or slept for. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	if (!sleeping)
		return next_of(cq);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	while (ibv_poll_cq(cq, 1, &wc) == 0) {
		struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
		void *context_of;
		struct ibv_cq *raised;
		CHECK(poll(&entry, 1, 8000) == 1 && ibv_get_cq_event(channel, &raised, &context_of) == 0);
		ibv_ack_cq_events(raised, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	return wc;
}

static struct ibv_qp *make_qp(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .srq = srq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* A queue pair is reset, and connected with these attributes. */
static void connect_with(struct ibv_qp *qp, struct ibv_qp *peer, int rnr_retry, int timer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_REMOTE, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.rq_psn = (peer->qp_num + psn_shift) & 0xffffff, .sq_psn = (qp->qp_num + psn_shift) & 0xffffff, .max_dest_rd_atomic = 4,
		.min_rnr_timer = timer, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = 4, .ah_attr = own_address(),
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static int state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static void post(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_to(struct ibv_qp *qp, struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory + HALF, 2048, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK((srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0);
}

/* The completions of a message, in either order. */
static void arrives(uint64_t id, uint64_t receive)
{
	for (int seen = 0; seen != 3;) {
		struct ibv_wc wc = completion();
		CHECK(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.wr_id == (wc.opcode == IBV_WC_SEND ? id : receive));
		seen |= wc.opcode == IBV_WC_SEND ? 1 : 2;
	}
}

static int64_t milliseconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void limited(struct ibv_srq *srq, int retry, int timer, int64_t least)
{
	struct ibv_qp *qp = make_qp(NULL), *peer = make_qp(srq);
	/* A second life of both has limits of its own. */
	for (int life = 0; life < 2; life++) {
		psn_shift += 7919;
		connect_with(qp, peer, retry, 12);
		connect_with(peer, qp, 7, timer);
		post_to(peer, srq, 1);
		post(qp, 2);
		arrives(2, 1);
		int64_t began = milliseconds();
		post(qp, 3);
		post(qp, 4);
		struct ibv_wc wc = completion();
		CHECK(wc.wr_id == 3 && wc.status == IBV_WC_RNR_RETRY_EXC_ERR && milliseconds() - began >= least);
		wc = completion();
		CHECK(wc.wr_id == 4 && wc.status == IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(qp) == IBV_QPS_ERR);
		/* The responder stays ready, and no message that failed comes, of which datagrams may be on the way for a moment. */
		CHECK(state_of(peer) == IBV_QPS_RTS);
		quiet(cq);
		post_to(peer, srq, 5);
		quiet(cq);
		CHECK(state_of(peer) == IBV_QPS_RTS);
		/* Its own message has no peer any more. */
		if (life) {
			post(peer, 6);
			wc = completion();
			CHECK(wc.wr_id == 6 && wc.status == IBV_WC_RETRY_EXC_ERR);
		}
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		CHECK(ibv_modify_qp(peer, &reset, IBV_QP_STATE) == 0);
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			;
		/* Shared receives stay. */
		for (int i = srq ? 1 : 2; i < 2; i++) {
			connect_with(qp, peer, 7, 12);
			connect_with(peer, qp, 7, 12);
			post(qp, 7);
			arrives(7, 5);
		}
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

/* A receive that comes in time takes the message. */
static void waits(int retry, int timer)
{
	struct timespec pause = { .tv_nsec = 150000000 };
	struct ibv_qp *qp = make_qp(NULL), *peer = make_qp(NULL);
	psn_shift += 7919;
	connect_with(qp, peer, retry, 12);
	connect_with(peer, qp, 7, timer);
	for (int i = 0; i < 2; i++) {
		post(qp, 3);
		CHECK(nanosleep(&pause, NULL) == 0);
		CHECK(state_of(qp) == IBV_QPS_RTS);
		post_to(peer, NULL, 5);
		arrives(3, 5);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int meant = atoi(argv[2]);
	open_device(2, argv);
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	for (sleeping = 0; sleeping < 2; sleeping++) {
		waits(7, 1);
		if (meant) {
			struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
			struct ibv_srq *srq = ibv_create_srq(pd, &attr);
			CHECK(srq);
			/* The timer is 655.36 ms. */
			waits(6, 0);
			limited(NULL, 0, 1, 0);
			limited(NULL, 1, 1, 90);
			limited(srq, 2, 27, 240);
			CHECK(ibv_destroy_srq(srq) == 0);
		} else {
			waits(0, 1);
			waits(1, 1);
		}
	}
	puts("ok");
	return 0;
}
