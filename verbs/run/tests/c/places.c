/* Places of the send queue: the completion of a signaled work request, once polled, frees its place and those of all before it
 * (ibv_post_send(3)). A program that counts so may post as many again at once. Argument: a GID index. */
#include "pair.h"

enum { DEPTH = 8, ROUNDS = 400 };

static struct ibv_cq *cq, *receives;

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = receives, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 4 * DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && init.cap.max_send_wr >= DEPTH);
	return qp;
}

static int post(struct ibv_qp *qp, struct ibv_qp *to, struct ibv_ah *ah, uint64_t id, int flags)
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
	return ibv_post_send(qp, &wr, &bad);
}

static void rounds(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make_qp(type), *peer = make_qp(type);
	connect_to(qp, peer);
	connect_to(peer, qp);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	for (int round = 0; round < ROUNDS; round++) {
		/* The signaled one is the last, or in the middle: then the rest is free with the next round's. */
		int signaled = round % 2 ? DEPTH - 1 : DEPTH / 2 - 1;
		int first = round % 2 ? DEPTH / 2 : 0;
		/* Datagrams need none. */
		for (int i = first; i < DEPTH && type == IBV_QPT_RC; i++)
			post_recv(peer, 1, memory + HALF, 2048);
		for (int i = first; i < DEPTH; i++)
			CHECK(post(qp, peer, ah, i, i == signaled ? IBV_SEND_SIGNALED : 0) == 0);
		success(cq, signaled, IBV_WC_SEND);
		struct ibv_wc wc;
		while (ibv_poll_cq(receives, 1, &wc) > 0)
			;
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && (!ah || ibv_destroy_ah(ah) == 0));
	struct ibv_wc wc;
	while (ibv_poll_cq(receives, 1, &wc) > 0)
		;
}

/* Nothing completes while the peer has no receive: no more than the queue holds may be posted. */
static void full(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC), *peer = make_qp(IBV_QPT_RC);
	connect_to(qp, peer);
	connect_to(peer, qp);
	post_recv(qp, 1, memory + HALF, 64);
	CHECK(post(peer, qp, NULL, 2, IBV_SEND_SIGNALED) == 0);
	success(cq, 2, IBV_WC_SEND);
	success(receives, 1, IBV_WC_RECV);
	int posted = 0;
	while (posted < 1000 && post(qp, peer, NULL, posted, posted % 2 ? IBV_SEND_SIGNALED : 0) == 0)
		posted++;
	CHECK(posted >= DEPTH && posted < 1000 && post(qp, peer, NULL, 0, 0) == ENOMEM);
	/* The first two places are free once the second one's completion is polled, and no others. */
	post_recv(peer, 3, memory + HALF, 2048);
	post_recv(peer, 4, memory + HALF, 2048);
	success(cq, 1, IBV_WC_SEND);
	CHECK(post(qp, peer, NULL, 5, 0) == 0 && post(qp, peer, NULL, 6, 0) == 0 && post(qp, peer, NULL, 7, 0) == ENOMEM);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (receives = ibv_create_cq(context, 1024, NULL, NULL, 0)));
	rounds(IBV_QPT_RC);
	rounds(IBV_QPT_UC);
	rounds(IBV_QPT_UD);
	full();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(receives) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
