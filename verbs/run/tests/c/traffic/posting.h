/* Work requests at random. */
#include "ledger.h"

/* Life of the queue pair and number of the request; `on_send` takes the lower half. */
static uint64_t wr_id(struct end *end, int is_receive, uint32_t number)
{
	return (uint64_t)is_receive << 63 | (uint64_t)(end->life & 0xff) << 40 | (uint64_t)end->index << 32 | number;
}

/* Cuts a message into up to three pieces. */
static int cut(struct ibv_sge *sges, unsigned char *at, uint32_t length, uint32_t lkey)
{
	int count = 1 + below(3);
	for (int i = 0; i < count; i++) {
		uint32_t part = i == count - 1 ? length : below(length + 1);
		sges[i] = (struct ibv_sge) { (uintptr_t)at, part, lkey };
		at += part;
		length -= part;
	}
	return count;
}

static uint32_t some_length(uint32_t most)
{
	switch (below(8)) {
	case 0:
		return 0;
	case 1:
	case 2:
	case 3:
		return below(most < 64 ? most : 64) + 1;
	case 4:
	case 5:
		return below(most < 2048 ? most : 2048) + 1;
	default:
		return most - below(most / 2);
	}
}

static int post_receives(struct end *end, int most)
{
	struct pool *pool = end->pool;
	int n = 0;
	for (; n < most && pool->count < RECEIVES; n++) {
		uint32_t i = pool->posted_in_all % RECEIVES;
		while (pool->posted[i])
			i = (i + 1) % RECEIVES;
		unsigned char *at = receive_slot(pool, i);
		memset(at, UNTOUCHED, slot + GRH + CANARY);
		struct ibv_sge sges[3];
		struct ibv_recv_wr wr = { .wr_id = wr_id(end, 1, i), .sg_list = sges }, *bad;
		wr.num_sge = cut(sges, at, slot + GRH + CANARY, pool->mr->lkey);
		pool->posted[i] = 1;
		pool->count++;
		pool->posted_in_all++;
		SURE((pool->srq ? ibv_post_srq_recv(pool->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad)) == 0);
	}
	return n;
}

static enum kind some_kind(struct end *end)
{
	static const enum kind of_connections[] = { SEND, SEND, SEND_IMM, SEND_INV, WRITE, WRITE, WRITE_IMM, READ, READ, ADD, SWAP, BIND, INV };
	static const enum kind of_uc[] = { SEND_IMM, SEND_IMM, WRITE, WRITE_IMM };
	for (;;) {
		enum kind kind = end->type == IBV_QPT_UD ? SEND_IMM :
				 end->type == IBV_QPT_UC ? of_uc[below(4)] :
							   of_connections[below(13)];
		if (kind == SEND_IMM && end->type == IBV_QPT_RC && !immediates)
			continue;
		if (kind == SEND_INV && end->peer->window != BOUND)
			continue;
		if (kind == BIND && (end->window != UNBOUND || end->is_over))
			continue;
		if ((kind == WRITE || kind == WRITE_IMM) && end->type == IBV_QPT_UC && end->peer->slots_used == end->peer->target_length / slot)
			continue;
		if (kind == INV) {
			/* A Write of the peer that is complete has arrived only if completions wait for that. */
			int used = end->window != BOUND || !placed || !end->greeted;
			struct end *peer = end->peer;
			for (uint32_t seq = peer->done; seq != peer->posted; seq++)
				used |= op_of(peer, seq)->by_window;
			if (used)
				continue;
		}
		return kind;
	}
}

static int is_message(enum kind kind)
{
	return kind <= SEND_INV || kind == WRITE_IMM;
}

/* Posts a request of a kind. `length` is that of a message. Returns whether there was a place for it. */
static int post(struct end *end, enum kind kind, uint32_t length, int last)
{
	struct end *peer = end->peer;
	if (end->posted - end->done == DEPTH)
		return 0;
	if (is_message(kind) && terminates && !end->is_over) {
		if (peer->pool->promised >= peer->pool->count)
			return 0;
		if (end->type == IBV_QPT_RC)
			peer->pool->promised++;
	}
	uint32_t seq = end->posted;
	struct op *op = op_of(end, seq);
	unsigned char *at = staging_of(end, seq);
	uint64_t key = next_random();
	struct ibv_sge sges[3];
	struct ibv_send_wr wr = { .wr_id = wr_id(end, 0, seq), .sg_list = sges, .opcode = wr_opcodes[kind] }, *bad;
	*op = (struct op) { .kind = kind, .length = length };
	/* Every so many requests one has a completion, or the places would never come free. */
	op->signaled = last || kind >= READ || seq % (DEPTH / 2) == 0 || one_in(3);
	wr.send_flags = (op->signaled ? IBV_SEND_SIGNALED : 0) | (one_in(8) ? IBV_SEND_SOLICITED : 0) | (one_in(16) ? IBV_SEND_FENCE : 0);
	int to_target = writes_target(op) || reads_target(op);
	if (to_target) {
		if (kind == ADD || kind == SWAP) {
			op->length = 8;
			op->at = below(peer->target_length / 8) * 8;
		} else if (end->type == IBV_QPT_UC) {
			op->at = peer->slots_used++ * slot;
		} else {
			op->at = below(peer->target_length - op->length + 1);
		}
		for (uint32_t before = end->done; before != seq; before++)
			if (reads_target(op_of(end, before)) && overlap(op_of(end, before), op))
				wr.send_flags |= IBV_SEND_FENCE;
		op->by_window = end->type == IBV_QPT_RC && peer->window == BOUND && one_in(2);
		wr.wr.rdma.remote_addr = (uintptr_t)peer->target + op->at;
		wr.wr.rdma.rkey = op->by_window ? peer->key : peer->target_mr->rkey;
	}
	unsigned char *remote = to_target ? peer->shadow + op->at : NULL;
	if (kind <= WRITE_IMM) {
		fill(at, op->length, key);
		wr.num_sge = cut(sges, at, op->length, end->staging_mr->lkey);
		if (op->length <= INLINE && one_in(2))
			wr.send_flags |= IBV_SEND_INLINE;
		if (to_target)
			memcpy(remote, at, op->length);
	} else if (kind == READ) {
		wr.num_sge = cut(sges, at, op->length, end->staging_mr->lkey);
		memset(at, UNTOUCHED, op->length);
		memcpy(end->expected + (at - end->staging), remote, op->length);
	} else if (kind == ADD || kind == SWAP) {
		sges[0] = (struct ibv_sge) { (uintptr_t)at, 8, end->staging_mr->lkey };
		wr.num_sge = 1;
		memcpy(&op->old, remote, 8);
		uint64_t operand = next_random(), compare = one_in(2) ? op->old : next_random();
		uint64_t new = kind == ADD ? op->old + operand : compare == op->old ? operand : op->old;
		memcpy(remote, &new, 8);
		wr.wr.atomic.rkey = wr.wr.rdma.rkey;
		wr.wr.atomic.remote_addr = (uintptr_t)peer->target + op->at;
		wr.wr.atomic.compare_add = kind == ADD ? operand : compare;
		wr.wr.atomic.swap = operand;
	} else if (kind == BIND) {
		end->key = ibv_inc_rkey(end->key);
		wr.bind_mw.mw = end->mw;
		wr.bind_mw.rkey = end->key;
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info) { end->target_mr, (uintptr_t)end->target, end->target_length, ALL_REMOTE & ~IBV_ACCESS_LOCAL_WRITE };
		end->window = BINDING;
	} else {
		wr.invalidate_rkey = end->key;
		end->window = CLOSING;
	}
	if (kind == SEND_INV) {
		wr.invalidate_rkey = peer->key;
		wr.send_flags |= IBV_SEND_FENCE;
		peer->window = CLOSING;
	}
	if (is_message(kind)) {
		SURE(end->sent_count < MESSAGES);
		wr.imm_data = kind == SEND_INV ? wr.imm_data : htonl(end->sent_count);
		end->sent[end->sent_count++] = (struct message) { kind, op->length, op->at, key, 0 };
	}
	if (kind == SEND_INV)
		wr.invalidate_rkey = peer->key;
	if (end->type == IBV_QPT_UD) {
		wr.wr.ud.ah = end->ah;
		wr.wr.ud.remote_qpn = peer->qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	end->posted++;
	int error = ibv_post_send(end->qp, &wr, &bad);
	if (error)
		FAIL("end %d: request %u of kind %d is refused with %d, %u are not complete", end->index, seq, kind, error, end->posted - end->done);
	if (wr.send_flags & IBV_SEND_INLINE)
		memset(at, 0xdd, op->length);
	return 1;
}
