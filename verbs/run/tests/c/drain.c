/* Drained send queues: to SQD and back, as ibv_modify_qp(3) and the InfiniBand specification have them. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static int move(struct ibv_qp *qp, enum ibv_qp_state state, int notify)
{
	struct ibv_qp_attr attr = { .qp_state = state, .en_sqd_async_notify = notify > 0 };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | (notify >= 0 ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr;
}

static int readable(int milliseconds)
{
	struct pollfd entry = { .fd = context->async_fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

static void drained(struct ibv_qp *qp)
{
	struct ibv_async_event event;
	CHECK(readable(8000) == 1 && ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	CHECK(readable(0) == 0);
	struct ibv_qp_attr now = query(qp);
	CHECK(now.qp_state == IBV_QPS_SQD && now.sq_draining == 0);
}

static void post(struct ibv_qp *qp, struct ibv_qp *to, struct ibv_ah *ah, uint64_t id, int flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags,
	}, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Both completions of a message, in either order. */
static void arrives(uint64_t id, uint64_t receive)
{
	int seen = 0;
	while (seen != 3) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.wr_id == (wc.opcode == IBV_WC_SEND ? id : receive));
		seen |= wc.opcode == IBV_WC_SEND ? 1 : 2;
	}
}

static void states(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make_qp(type), *peer = make_qp(type);
	CHECK(move(qp, IBV_QPS_SQD, 1) == EINVAL);
	connect_to(qp, peer);
	connect_to(peer, qp);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	for (int id = 0; id < 40; id++)
		post_recv(peer, id, memory + HALF, 2048);
	post(qp, peer, ah, 1, IBV_SEND_SIGNALED);
	arrives(1, 0);

	/* Nothing is under way: the event comes at once, if it was asked for. */
	CHECK(move(qp, IBV_QPS_SQD, -1) == 0 && readable(20) == 0 && query(qp).qp_state == IBV_QPS_SQD);
	CHECK(qp->state == IBV_QPS_SQD && move(qp, IBV_QPS_RTR, -1) == EINVAL && move(qp, IBV_QPS_INIT, -1) == EINVAL);
	CHECK(move(qp, IBV_QPS_RTS, -1) == 0);
	CHECK(move(qp, IBV_QPS_SQD, 0) == 0 && readable(20) == 0 && move(qp, IBV_QPS_RTS, -1) == 0);
	for (int round = 0; round < 3; round++) {
		CHECK(move(qp, IBV_QPS_SQD, 1) == 0);
		drained(qp);
		/* New ones wait, and this end receives. */
		post(qp, peer, ah, 2, IBV_SEND_SIGNALED);
		post(qp, peer, ah, 3, IBV_SEND_SIGNALED);
		quiet(cq);
		post_recv(qp, 100, memory + HALF, 2048);
		post(peer, qp, ah, 4, IBV_SEND_SIGNALED);
		arrives(4, 100);
		CHECK(move(qp, IBV_QPS_SQD, -1) == 0 && readable(0) == 0);
		CHECK(move(qp, IBV_QPS_RTS, -1) == 0 && query(qp).qp_state == IBV_QPS_RTS);
		int sends = 0, receives = 0;
		while (sends + receives < 4) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			if (wc.opcode == IBV_WC_SEND)
				CHECK(wc.wr_id == (uint64_t)(2 + sends++));
			else
				receives++;
		}
	}
	quiet(cq);
	/* What is posted while it drains is flushed by the error state. */
	CHECK(move(qp, IBV_QPS_SQD, 1) == 0);
	drained(qp);
	post(qp, peer, ah, 5, 0);
	CHECK(move(qp, IBV_QPS_ERR, -1) == 0);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR && readable(20) == 0);
	CHECK(query(qp).qp_state == IBV_QPS_ERR && move(qp, IBV_QPS_SQD, 1) == EINVAL && move(qp, IBV_QPS_RTS, -1) == EINVAL);
	/* A reset ends the drain. */
	CHECK(move(qp, IBV_QPS_RESET, -1) == 0 && move(peer, IBV_QPS_RESET, -1) == 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	connect_to(qp, peer);
	connect_to(peer, qp);
	post_recv(peer, 7, memory + HALF, 2048);
	post(qp, peer, ah, 6, IBV_SEND_SIGNALED);
	arrives(6, 7);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && (!ah || ibv_destroy_ah(ah) == 0));
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

/* A message that waits for a receive is under way until it has one. */
static void under_way(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC), *peer = make_qp(IBV_QPT_RC);
	connect_to(qp, peer);
	connect_to(peer, qp);
	hear_from(qp, peer, cq);
	for (int signaled = 0; signaled < 2; signaled++) {
		post(qp, peer, NULL, 1, signaled ? IBV_SEND_SIGNALED : 0);
		quiet(cq);
		CHECK(move(qp, IBV_QPS_SQD, 1) == 0 && query(qp).sq_draining == 1);
		CHECK(readable(50) == 0);
		post(qp, peer, NULL, 2, IBV_SEND_SIGNALED);
		post_recv(peer, 3, memory + HALF, 2048);
		post_recv(peer, 4, memory + HALF, 2048);
		for (int left = 1 + signaled; left; left--) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (wc.opcode == IBV_WC_SEND ? 1 : 3));
		}
		drained(qp);
		quiet(cq);
		/* Another address would be another peer. */
		struct ibv_qp_attr attr = { .ah_attr = own_address(), .timeout = 15, .retry_cnt = 6 };
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT) == 0 && query(qp).timeout == 15);
		attr.ah_attr.grh.dgid.raw[15] ^= 7;
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_AV) == EINVAL);
		CHECK(move(qp, IBV_QPS_RTS, -1) == 0);
		arrives(2, 4);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

/* Without a connection: work requests wait, and do not fail, as long as the queue is drained. */
static void before_the_connection(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC), *peer = make_qp(IBV_QPT_RC);
	connect_to(qp, peer);
	CHECK(move(qp, IBV_QPS_SQD, 1) == 0);
	drained(qp);
	post(qp, peer, NULL, 1, IBV_SEND_SIGNALED);
	struct timespec pause = { .tv_sec = 3, .tv_nsec = 500000000 };
	nanosleep(&pause, NULL);
	quiet(cq);
	connect_to(peer, qp);
	hear_from(qp, peer, cq);
	post_recv(peer, 2, memory + HALF, 2048);
	quiet(cq);
	CHECK(move(qp, IBV_QPS_RTS, -1) == 0);
	arrives(1, 2);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

/* In the error state nothing leaves: what is posted there is flushed. */
static void in_error(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make_qp(type), *peer = make_qp(type);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	connect_to(qp, peer);
	connect_to(peer, qp);
	post_recv(peer, 9, memory + HALF, 2048);
	CHECK(move(qp, IBV_QPS_ERR, -1) == 0);
	for (int flags = 0; flags <= IBV_SEND_SIGNALED; flags += IBV_SEND_SIGNALED) {
		post(qp, peer, ah, 8, flags);
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.wr_id == 8 && wc.status == IBV_WC_WR_FLUSH_ERR);
		quiet(cq);
	}
	/* The next life begins with nothing of it. */
	CHECK(move(qp, IBV_QPS_RESET, -1) == 0);
	if (type != IBV_QPT_RC) {
		connect_to(qp, peer);
		post(qp, peer, ah, 7, IBV_SEND_SIGNALED);
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && (!ah || ibv_destroy_ah(ah) == 0));
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	states(IBV_QPT_RC);
	states(IBV_QPT_UC);
	states(IBV_QPT_UD);
	in_error(IBV_QPT_RC);
	in_error(IBV_QPT_UC);
	in_error(IBV_QPT_UD);
	under_way();
	/* It takes seconds: with one address. */
	if (gid_index == 0)
		before_the_connection();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
