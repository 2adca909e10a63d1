/* A region without memory, as source and as destination of everything that the queue pairs do. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
static struct ibv_mr *null;
static struct ibv_ah *ah;

static void make_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4 },
	};
	CHECK((from = ibv_create_qp(pd, &init)) && (to = ibv_create_qp(pd, &init)));
	connect_to(from, to);
	connect_to(to, from);
}

static void drop_pair(void)
{
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
}

/* Memory at both ends, and nothing of any address in between. */
static struct ibv_sge *around(struct ibv_sge *list, unsigned char *at, uint64_t nowhere, uint32_t length)
{
	list[0] = (struct ibv_sge) { (uintptr_t)at, 8, mr->lkey };
	list[1] = (struct ibv_sge) { nowhere, length, null->lkey };
	list[2] = (struct ibv_sge) { (uintptr_t)at + 8, 8, mr->lkey };
	return list;
}

static void post(enum ibv_wr_opcode opcode, struct ibv_sge *list, int count, void *remote)
{
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = list, .num_sge = count, .opcode = opcode }, *bad;
	if (from->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = mr->rkey;
	}
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

static void expect(struct ibv_sge *list, int count)
{
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = list, .num_sge = count }, *bad;
	CHECK(ibv_post_recv(to, &wr, &bad) == 0);
}

/* The send's and the receive's completion, in whatever order. */
static void both(enum ibv_wc_opcode first, uint32_t length)
{
	for (int seen = 0; seen != 3;) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 1 || wc.wr_id == 2) && !(seen & wc.wr_id));
		CHECK(wc.wr_id == 1 ? wc.opcode == first : wc.opcode == IBV_WC_RECV && wc.byte_len == length);
		seen |= wc.wr_id;
	}
}

/* A message whose middle is of nothing, received whole, and one whose middle goes nowhere. */
static void send_around(uint32_t length, uint64_t nowhere)
{
	unsigned char *source = memory, *sink = memory + HALF;
	uint32_t header = from->qp_type == IBV_QPT_UD ? 40 : 0;
	struct ibv_sge list[3], whole = { (uintptr_t)sink, header + length + 16, mr->lkey };

	memcpy(source, "beginendof", 11);
	memset(sink, 0xee, HALF);
	expect(&whole, 1);
	post(IBV_WR_SEND, around(list, source, nowhere, length), 3, NULL);
	both(IBV_WC_SEND, header + length + 16);
	CHECK(!memcmp(sink + header, source, 8) && !memcmp(sink + header + 8 + length, source + 8, 8));
	for (uint32_t i = 0; i < length; i++)
		CHECK(sink[header + 8 + i] == 0);
	CHECK(sink[header + length + 16] == 0xee);

	/* The first 8 octets and the last 8. */
	memset(sink, 0xee, HALF);
	for (uint32_t i = 0; i < length + 16; i++)
		source[i] = i % 251;
	struct ibv_sge all = { (uintptr_t)source, length + 16, mr->lkey };
	around(list, sink, nowhere, header + length);
	expect(list, 3);
	post(IBV_WR_SEND, &all, 1, NULL);
	both(IBV_WC_SEND, header + length + 16);
	CHECK((header || !memcmp(sink, source, 8)) && !memcmp(sink + 8, source + 8 + length, 8) && sink[16] == 0xee);
}

static void one_sided(uint32_t length, uint64_t nowhere)
{
	unsigned char *source = memory, *sink = memory + HALF;
	struct ibv_sge list[3];
	memcpy(source, "beginendof", 11);
	memset(sink, 0xee, HALF);
	post(IBV_WR_RDMA_WRITE, around(list, source, nowhere, length), 3, sink);
	success(cq, 1, IBV_WC_RDMA_WRITE);
	/* UC reports no arrival. */
	for (time_t end = time(NULL) + 8; memcmp(sink + 8 + length, source + 8, 8); )
		CHECK(time(NULL) < end && ibv_poll_cq(cq, 1, &(struct ibv_wc) {}) == 0);
	CHECK(!memcmp(sink, source, 8));
	for (uint32_t i = 0; i < length; i++)
		CHECK(sink[8 + i] == 0);
	CHECK(sink[length + 16] == 0xee);
	if (from->qp_type != IBV_QPT_RC)
		return;

	for (uint32_t i = 0; i < length + 16; i++)
		sink[i] = i % 249;
	memset(source, 0xee, HALF);
	post(IBV_WR_RDMA_READ, around(list, source, nowhere, length), 3, sink);
	success(cq, 1, IBV_WC_RDMA_READ);
	CHECK(!memcmp(source, sink, 8) && !memcmp(source + 8, sink + 8 + length, 8) && source[16] == 0xee);

	/* The old value goes nowhere, the operation is done. */
	uint64_t *counter = (uint64_t *)sink;
	*counter = 7;
	struct ibv_sge nothing = { nowhere, 8, null->lkey };
	post(IBV_WR_ATOMIC_FETCH_AND_ADD, &nothing, 1, counter);
	success(cq, 1, IBV_WC_FETCH_ADD);
	CHECK(*counter == 12);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (null = ibv_alloc_null_mr(pd)));
	CHECK(null->pd == pd && null->context == context && !null->addr && null->length == SIZE_MAX && null->lkey != mr->lkey);
	struct ibv_ah_attr to_self = own_address();
	CHECK((ah = ibv_create_ah(pd, &to_self)));
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) != 0);

	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	static const uint32_t lengths[] = { 1, 24, 1500, 4000, 20000 };
	static const uint64_t addresses[] = { 0, 4711, UINT64_MAX, UINT64_MAX - 100 };
	for (int t = 0; t < 3; t++) {
		make_pair(types[t]);
		for (int l = 0; l < 5; l++)
			for (int a = 0; a < 4; a++) {
				send_around(lengths[l], addresses[a]);
				if (types[t] != IBV_QPT_UD)
					one_sided(lengths[l], addresses[a]);
			}
		drop_pair();
	}

	/* Far more than any memory of ours, from nowhere to nowhere. */
	make_pair(IBV_QPT_RC);
	struct ibv_sge big = { 0, 64 << 20, null->lkey };
	expect(&big, 1);
	post(IBV_WR_SEND, &big, 1, NULL);
	both(IBV_WC_SEND, 64 << 20);

	/* Peers cannot name it. */
	hear_from(from, to, cq);
	struct ibv_sge source = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &source, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 0, null->rkey },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_wc wc = next_of(cq);
	/* Writes of the other persona complete when TCP has them. */
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || !strcmp(getenv("DGIWARP_PERSONA"), "iwarp"));
	drop_pair();

	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(null) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
