/* Chains of work requests: all before the first refused one are posted, in order, and none behind it; `bad_wr` names that one. Queue pairs of three types, chains longer
 * and shorter than what the library posts at a time. Argument: a GID index. */
#include "pair.h"

enum { MOST = 40, LENGTH = 64, SLOT = 128 };

enum reason { NONE, OPCODE, FLAGS, SGES, INLINE, REASONS };

static enum ibv_qp_type type;
static struct ibv_ah *ah;
static struct ibv_sge sges[MOST][17];
static struct ibv_send_wr sends[MOST];
static struct ibv_recv_wr receives[MOST];

/* Work request `i` has its payload in one element, two, or inline in one or two. */
static void make_send(int i, uint32_t qpn)
{
	unsigned char *at = memory + i * LENGTH;
	int parts = 1 + i / 2 % 2;
	memset(at, i + 1, LENGTH);
	for (int part = 0; part < parts; part++)
		sges[i][part] = (struct ibv_sge) { (uintptr_t)at + part * (LENGTH / parts), LENGTH / parts, mr->lkey };
	sends[i] = (struct ibv_send_wr) {
		.wr_id = i, .sg_list = sges[i], .num_sge = parts, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | (i % 2 ? IBV_SEND_INLINE : 0), .next = i + 1 < MOST ? &sends[i + 1] : NULL,
	};
	if (type == IBV_QPT_UD) {
		sends[i].wr.ud.ah = ah;
		sends[i].wr.ud.remote_qpn = qpn;
		sends[i].wr.ud.remote_qkey = QKEY;
	}
}

static void spoil(int i, enum reason reason)
{
	switch (reason) {
	case OPCODE:
		sends[i].opcode = 99;
		break;
	case FLAGS:
		sends[i].send_flags |= 1 << 20;
		break;
	case SGES:
		sends[i].num_sge = 17;
		break;
	case INLINE:
		sends[i].num_sge = 1;
		sends[i].send_flags |= IBV_SEND_INLINE;
		sges[i][0].length = 257;
		break;
	default:
		break;
	}
}

/* Both ends of one work request for the next receive, whose number is `id`: the place in the send queue is free again. */
static void complete_one(struct ibv_cq *cq, uint64_t id)
{
	for (int sent = 0, received = 0; sent + received < 2;) {
		struct ibv_wc wc = next_of(cq);
		int is_send = wc.opcode == IBV_WC_SEND;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (is_send ? 0 : id));
		sent += is_send;
		received += !is_send;
		CHECK(sent < 2 && received < 2);
	}
}

/* A message for the next receive, whose number is `id`. */
static void send_one(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, uint64_t id)
{
	struct ibv_send_wr *bad;
	make_send(0, to->qp_num);
	sends[0].next = NULL;
	CHECK(ibv_post_send(from, sends, &bad) == 0);
	complete_one(cq, id);
}

/* A chain of `length`, of which number `refused` is refused, if there is one. */
static void send_chain(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, int length, int refused, enum reason reason)
{
	struct ibv_send_wr *bad = NULL;
	int left = reason == NONE ? length : refused, sent = 0, received = 0;
	memset(memory + HALF, 0, HALF);
	for (int i = 0; i < length; i++) {
		make_send(i, to->qp_num);
		post_recv(to, 100 + i, memory + HALF + i * SLOT, SLOT);
	}
	sends[length - 1].next = NULL;
	spoil(refused, reason);
	CHECK(ibv_post_send(from, sends, &bad) == (reason == NONE ? 0 : EINVAL));
	CHECK(bad == (reason == NONE ? NULL : &sends[refused]));
	while (sent < left || received < left) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(wc.wr_id == (uint64_t)sent++);
			continue;
		}
		unsigned char *payload = memory + HALF + received * SLOT + (type == IBV_QPT_UD ? 40 : 0);
		CHECK(wc.wr_id == (uint64_t)100 + received);
		for (int octet = 0; octet < LENGTH; octet++)
			CHECK(payload[octet] == received + 1);
		received++;
	}
	if (reason != NONE)
		quiet(cq);
	/* The receives that are left are taken by messages of one each. */
	for (int i = left; i < length; i++)
		send_one(from, to, cq, 100 + i);
}

/* A chain of receives, of which number `refused` is refused if it is below `length`. */
static void receive_chain(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, int length, int refused)
{
	struct ibv_recv_wr *bad = NULL;
	int left = refused < length ? refused : length;
	for (int i = 0; i < length; i++) {
		sges[i][0] = (struct ibv_sge) { (uintptr_t)memory + HALF + i * SLOT, SLOT, mr->lkey };
		receives[i] = (struct ibv_recv_wr) {
			.wr_id = 200 + i, .sg_list = sges[i], .num_sge = i == refused ? 17 : 1, .next = i + 1 < length ? &receives[i + 1] : NULL,
		};
	}
	CHECK(ibv_post_recv(to, receives, &bad) == (refused < length ? EINVAL : 0));
	CHECK(bad == (refused < length ? &receives[refused] : NULL));
	for (int i = 0; i < left; i++)
		send_one(from, to, cq, 200 + i);
}

/* A message of no octets in no element, inline or not. */
static void send_empty(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, unsigned flags)
{
	struct ibv_send_wr *bad;
	post_recv(to, 100, memory + HALF, SLOT);
	make_send(0, to->qp_num);
	sends[0].next = NULL;
	sends[0].num_sge = 0;
	sends[0].sg_list = NULL;
	sends[0].send_flags = flags;
	CHECK(ibv_post_send(from, sends, &bad) == 0);
	CHECK(success(cq, 100, IBV_WC_RECV).byte_len == (type == IBV_QPT_UD ? 40 : 0));
}

/* A connection that has no peer yet sends nothing: a queue of 48 takes eight of a second chain. */
static void fill(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 48, .max_recv_wr = 48, .max_send_sge = 16, .max_recv_sge = 16, .max_inline_data = LENGTH } };
	struct ibv_qp *alone = ibv_create_qp(pd, &init), *never = ibv_create_qp(pd, &init);
	struct ibv_send_wr *bad = NULL;
	CHECK(alone && never);
	connect_to(alone, never);
	for (int i = 0; i < MOST; i++)
		make_send(i, never->qp_num);
	CHECK(ibv_post_send(alone, sends, &bad) == 0);
	CHECK(ibv_post_send(alone, sends, &bad) == ENOMEM && bad == &sends[48 - MOST]);
	CHECK(ibv_destroy_qp(alone) == 0 && ibv_destroy_qp(never) == 0);
}

/* The queues take what there is room for, and the next one is refused. */
static void overfill(struct ibv_qp *from, uint32_t qpn)
{
	struct ibv_send_wr *bad = NULL;
	struct ibv_recv_wr *bad_receive = NULL;
	for (int i = 0; i < MOST; i++) {
		make_send(i, qpn);
		receives[i] = (struct ibv_recv_wr) { .wr_id = i, .next = i + 1 < MOST ? &receives[i + 1] : NULL };
	}
	CHECK(ibv_post_recv(from, receives, &bad_receive) == 0);
	CHECK(ibv_post_recv(from, receives, &bad_receive) == ENOMEM && bad_receive == &receives[48 - MOST]);
	/* Sends complete while others are posted: some of the chains are refused somewhere. */
	for (int i = 0; i < 100; i++) {
		int result = ibv_post_send(from, sends, &bad);
		CHECK(result == 0 || (result == ENOMEM && bad >= sends && bad < sends + MOST));
	}
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(from, &error, IBV_QP_STATE) == 0);
}

static void try(enum ibv_qp_type of)
{
	static const int places[] = { 0, 5, 15, 16, 18, 39 };
	struct ibv_qp_init_attr init = { .qp_type = of, .cap = { .max_send_wr = 48, .max_recv_wr = 48, .max_send_sge = 16, .max_recv_sge = 16, .max_inline_data = LENGTH } };
	struct ibv_qp *one, *other;
	struct ibv_cq *cq;
	type = of;
	CHECK((cq = ibv_create_cq(context, 1024, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((one = ibv_create_qp(pd, &init)) && (other = ibv_create_qp(pd, &init)));
	steps_to(one, other, 0, 2);
	connect_to(other, one);
	steps_to(one, other, 2, 3);
	if (of == IBV_QPT_RC)
		hear_from(one, other, cq);
	for (int length = 1; length <= MOST; length += length < 18 && length > 13 ? 1 : 6)
		send_chain(one, other, cq, length, 0, NONE);
	send_chain(one, other, cq, MOST, 0, NONE);
	for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
		for (enum reason reason = OPCODE; reason < REASONS; reason++)
			send_chain(one, other, cq, MOST, places[i], reason);
		receive_chain(one, other, cq, MOST, places[i]);
	}
	receive_chain(one, other, cq, MOST, MOST);
	send_empty(one, other, cq, 0);
	send_empty(one, other, cq, IBV_SEND_INLINE);
	overfill(one, other->qp_num);
	if (of == IBV_QPT_RC)
		fill(cq);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	struct ibv_ah_attr address = own_address();
	CHECK((ah = ibv_create_ah(pd, &address)));
	try(IBV_QPT_UD);
	try(IBV_QPT_UC);
	try(IBV_QPT_RC);
	CHECK(ibv_destroy_ah(ah) == 0);
	puts("ok");
	return 0;
}
