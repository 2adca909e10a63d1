/* Queue pairs of all kinds back to RESET and up again, and completions of those that are destroyed. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void post_send(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, int expected)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	}, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == expected);
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr init;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(qp->state == IBV_QPS_RESET);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RESET && attr.dest_qp_num == 0 && attr.qkey == 0);
}

static void lives(enum ibv_qp_type type)
{
	struct ibv_qp *one = make(type), *two = make(type);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	uint32_t number = one->qp_num;
	for (int life = 0; life < 6; life++) {
		connect_to(one, two);
		connect_to(two, one);
		for (int i = 0; i < 4; i++)
			post_recv(two, 10 + i, memory + HALF, 64);
		post_recv(one, 20, memory + HALF, 64);
		post_send(one, ah, two->qp_num, 0);
		int sent = 0, received = 0;
		while (!sent || !received) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			sent |= wc.wr_id == 1;
			received |= wc.wr_id == 10;
		}
		/* The queue is full again, of what is forgotten. */
		post_recv(two, 14, memory + HALF, 64);
		post_send(one, ah, two->qp_num, 0);
		struct ibv_qp *first = life & 1 ? one : two, *second = life & 1 ? two : one;
		if (life == 4) {
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
			CHECK(ibv_modify_qp(two, &attr, IBV_QP_STATE) == 0);
		}
		reset(first);
		reset(second);
		quiet(cq);
		CHECK(one->qp_num == number);
		post_send(one, ah, two->qp_num, EINVAL);
	}
	/* Nothing of a queue pair is left in the completion queue when it is gone. */
	connect_to(one, two);
	post_recv(one, 30, memory, 64);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(one, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0);
	quiet(cq);
	CHECK(!ah || ibv_destroy_ah(ah) == 0);
}

/* A datagram that comes before the queue pair is ready to receive is lost, although there is a receive: it may be of an earlier life. */
static void too_early(enum ibv_qp_type type)
{
	struct ibv_qp *one = make(type), *two = make(type);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ah ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	connect_to(one, two);
	for (int life = 0; life < 3; life++) {
		CHECK(ibv_modify_qp(two, &init, mask) == 0);
		post_recv(two, 10, memory + HALF, 64);
		post_send(one, ah, two->qp_num, 0);
		success(cq, 1, IBV_WC_SEND);
		/* Both those that were polled meanwhile and those that wait. */
		if (life & 1)
			quiet(cq);
		connect_to(two, one);
		quiet(cq);
		post_send(one, ah, two->qp_num, 0);
		int seen = 0;
		while (seen != 11) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			seen += wc.wr_id;
		}
		quiet(cq);
		reset(two);
	}
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0 && (!ah || ibv_destroy_ah(ah) == 0));
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 32, NULL, NULL, 0)));
	lives(IBV_QPT_RC);
	lives(IBV_QPT_UC);
	lives(IBV_QPT_UD);
	too_early(IBV_QPT_UC);
	too_early(IBV_QPT_UD);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
