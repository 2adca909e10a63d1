/* What was posted, and what completions and memory must show of it. */
#include "content.h"

enum { DEPTH = 16, RECEIVES = 24, MESSAGES = 1024, INLINE = 64, CANARY = 64, UNTOUCHED = 0xee, GRH = 40, PEERS = 3 };
enum kind { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, ADD, SWAP, BIND, INV, KINDS };

static const enum ibv_wr_opcode wr_opcodes[KINDS] = {
	IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
	IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
};
static const enum ibv_wc_opcode wc_opcodes[KINDS] = {
	IBV_WC_SEND, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
	IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP, IBV_WC_BIND_MW, IBV_WC_LOCAL_INV,
};

/* How the ends behave, by the settings of the run. */
static int immediates = 1;	/* Sends carry immediates between these ends. */
static int placed = 1;		/* A completed Send or Write is at the peer. */
static int terminates;		/* A Send needs a receive that is posted. */
static int duplicates;		/* The network may double a datagram. */

/* A work request of the send queue. */
struct op {
	enum kind kind;
	uint32_t at, length;
	uint64_t old;
	int signaled, by_window;
};

/* A message that the peer is to receive. */
struct message {
	enum kind kind;
	uint32_t length, at;
	uint64_t key;
	int seen;
};

/* Receives of a queue pair, or of a shared receive queue. */
struct pool {
	struct ibv_srq *srq;
	unsigned char *memory;
	struct ibv_mr *mr;
	int posted[RECEIVES], count, promised;
	uint64_t posted_in_all, taken_in_all;
};

struct end {
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct end *peer;
	struct pool *pool, own;
	struct ibv_cq *send_cq, *recv_cq;
	enum ibv_qp_type type;
	int index, life, failing, greeted, is_over;
	enum ibv_wc_status first_error;
	enum kind first_kind;
	int awaits_response;
	/* Send queue. */
	uint32_t posted, done, successes;
	struct op ops[DEPTH];
	unsigned char *staging, *expected;
	struct ibv_mr *staging_mr;
	/* Messages to the peer, and how many of the peer's were received. */
	struct message sent[MESSAGES];
	uint32_t sent_count, received;
	int quota;
	/* Memory that the peer writes, as it should be, and what of it was written for UC. */
	unsigned char *target, *shadow;
	struct ibv_mr *target_mr;
	uint32_t target_length, slots_used;
	/* The window of the memory. */
	struct ibv_mw *mw;
	uint32_t key;
	enum { UNBOUND, BINDING, BOUND, CLOSING } window;
};

static __thread uint32_t slot;

static unsigned char *staging_of(struct end *end, uint32_t seq)
{
	return end->staging + (size_t)(seq % DEPTH) * slot;
}

static unsigned char *receive_slot(struct pool *pool, int i)
{
	return pool->memory + (size_t)i * (slot + GRH + CANARY);
}

static struct op *op_of(struct end *end, uint32_t seq)
{
	return &end->ops[seq % DEPTH];
}

static int writes_target(const struct op *op)
{
	return op->kind == WRITE || op->kind == WRITE_IMM || op->kind == ADD || op->kind == SWAP;
}

static int reads_target(const struct op *op)
{
	return op->kind == READ || op->kind == ADD || op->kind == SWAP;
}

static int overlap(const struct op *a, const struct op *b)
{
	return a->at < b->at + b->length && b->at < a->at + a->length;
}

/* The target memory of a completed Write is as the shadow, unless a later request writes there. */
static void check_written(struct end *end, uint32_t seq)
{
	struct op *op = op_of(end, seq);
	for (uint32_t later = seq + 1; later != end->posted; later++)
		if (writes_target(op_of(end, later)) && overlap(op, op_of(end, later)))
			return;
	struct end *peer = end->peer;
	for (uint32_t i = 0; i < op->length; i++)
		if (peer->target[op->at + i] != peer->shadow[op->at + i])
			FAIL("end %d, request %u: octet %u of %u of a completed Write is not there", end->index, seq, i, op->length);
}

static void finish(struct end *end, uint32_t seq)
{
	struct op *op = op_of(end, seq);
	unsigned char *here = staging_of(end, seq), *expected = end->expected + (here - end->staging);
	if (op->kind == READ && memcmp(here, expected, op->length))
		FAIL("end %d, request %u: %u octets read are not those that were written", end->index, seq, op->length);
	if (op->kind == ADD || op->kind == SWAP) {
		uint64_t old;
		memcpy(&old, here, 8);
		if (old != op->old)
			FAIL("end %d, request %u: atomic operation found %llx, not %llx", end->index, seq, (unsigned long long)old,
			     (unsigned long long)op->old);
	}
	if ((op->kind == WRITE || op->kind == WRITE_IMM) && end->type == IBV_QPT_RC && placed && end->greeted && end->peer)
		check_written(end, seq);
	if (op->kind == BIND)
		end->window = BOUND;
	if (op->kind == INV)
		end->window = UNBOUND;
	end->successes++;
}

static void on_send(struct end *end, const struct ibv_wc *wc)
{
	uint32_t seq = wc->wr_id;
	if (seq - end->done >= end->posted - end->done)
		FAIL("end %d: completion of request %u, which is not posted (%u to %u are)", end->index, seq, end->done, end->posted);
	struct op *op = op_of(end, seq);
	/* A refused request ends a connection before the Reads in front of it are answered: these are flushed, and it has its error. */
	int refused = wc->status == IBV_WC_REM_ACCESS_ERR && end->first_error == IBV_WC_WR_FLUSH_ERR && end->awaits_response;
	if (end->failing && (seq != end->done || (wc->status != IBV_WC_WR_FLUSH_ERR && !refused)))
		FAIL("end %d: status %d of request %u of kind %d behind status %d of kind %d, %u is next", end->index, wc->status, seq, op->kind,
		     end->first_error, end->first_kind, end->done);
	for (; end->done != seq; end->done++) {
		if (op_of(end, end->done)->signaled)
			FAIL("end %d: completion of request %u is lost, that of %u came", end->index, end->done, seq);
		finish(end, end->done);
	}
	if (wc->status == IBV_WC_SUCCESS) {
		if (!op->signaled)
			FAIL("end %d: completion of request %u, which has none", end->index, seq);
		if (wc->opcode != wc_opcodes[op->kind])
			FAIL("end %d: opcode %d of request %u of kind %d", end->index, wc->opcode, seq, op->kind);
		if (op->kind == READ && wc->byte_len != op->length)
			FAIL("end %d: a Read of %u octets has %u", end->index, op->length, wc->byte_len);
		finish(end, seq);
	} else {
		if (!end->is_over && end->type == IBV_QPT_RC)
			FAIL("end %d: request %u of kind %d%s ends with status %d, the window of the peer is in state %d", end->index, seq, op->kind,
			     op->by_window ? " by a window" : "", wc->status, end->peer->window);
		if (!end->failing) {
			end->first_error = wc->status;
			end->first_kind = op->kind;
			end->awaits_response = reads_target(op);
		}
		end->failing = end->type == IBV_QPT_RC || wc->status == IBV_WC_WR_FLUSH_ERR;
	}
	end->done = seq + 1;
}

/* The message that a receive of `end` holds: the next one on a connection, a later one on datagrams. */
static struct message *message_of(struct end *end, const struct ibv_wc *wc)
{
	struct end *from = end->peer;
	uint32_t number = end->received;
	if (end->type != IBV_QPT_RC) {
		number = ntohl(wc->imm_data);
		if (!(wc->wc_flags & IBV_WC_WITH_IMM) || number >= from->sent_count)
			FAIL("end %d of type %d in life %d: a message that was not sent: %x", end->index, end->type, end->life, number);
	}
	if (number >= from->sent_count)
		FAIL("end %d: message %u was received and not sent", end->index, number);
	struct message *message = &from->sent[number];
	if (message->seen++ && !(duplicates && end->type == IBV_QPT_UD))
		FAIL("end %d of type %d in life %d: message %u of kind %d and %u octets comes twice", end->index, end->type, end->life, number, message->kind,
		     message->length);
	end->received = number + 1;
	return message;
}

static void check_received(struct end *end, const struct ibv_wc *wc, const unsigned char *at, struct message *message)
{
	int writes = message->kind == WRITE_IMM, grh = end->type == IBV_QPT_UD ? GRH : 0;
	if (wc->opcode != (writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || wc->byte_len != message->length + grh)
		FAIL("end %d of type %d in life %d: opcode %d and %u octets of message %td of kind %d and %u octets", end->index, end->type, end->life,
		     wc->opcode, wc->byte_len, message - end->peer->sent, message->kind, message->length);
	int flags = message->kind == SEND_INV ? IBV_WC_WITH_INV :
		    message->kind == SEND     ? 0 :
						IBV_WC_WITH_IMM;
	if ((wc->wc_flags & (IBV_WC_WITH_INV | IBV_WC_WITH_IMM)) != (unsigned)flags)
		FAIL("end %d: flags %x of a message of kind %d", end->index, wc->wc_flags, message->kind);
	if (flags == IBV_WC_WITH_IMM && wc->imm_data != htonl(message - end->peer->sent))
		FAIL("end %d: immediate %x", end->index, ntohl(wc->imm_data));
	if (flags == IBV_WC_WITH_INV) {
		if (wc->invalidated_rkey != end->key)
			FAIL("end %d: key %x in place of %x is invalid", end->index, wc->invalidated_rkey, end->key);
		end->window = UNBOUND;
	}
	uint32_t length = writes ? 0 : message->length;
	const unsigned char *written = writes && end->type == IBV_QPT_UC ? end->target + message->at : at + grh;
	uint32_t same = same_as(written, writes && end->type == IBV_QPT_RC ? 0 : message->length, message->key);
	if (same < message->length && !(writes && end->type == IBV_QPT_RC))
		FAIL("end %d: octet %u of %u of message %td", end->index, same, message->length, message - end->peer->sent);
	/* A receive of datagrams may have begun with a longer message, of which segments were lost. */
	for (int i = 0; i < CANARY && end->type == IBV_QPT_RC && !end->pool->srq; i++)
		if (at[grh + length + i] != UNTOUCHED)
			FAIL("end %d: octet %d behind a message of %u", end->index, i, length);
}

static void on_receive(struct end *end, const struct ibv_wc *wc)
{
	struct pool *pool = end->pool;
	uint32_t i = wc->wr_id & 0xffff;
	if (i >= RECEIVES || !pool->posted[i])
		FAIL("end %d: completion of receive %u, which is not posted", end->index, i);
	/* A datagram of several segments may be overtaken. */
	if (!pool->srq && end->type == IBV_QPT_RC && pool->taken_in_all % RECEIVES != i)
		FAIL("end %d: completion of receive %u, %llu is next", end->index, i, (unsigned long long)pool->taken_in_all % RECEIVES);
	pool->posted[i] = 0;
	pool->count--;
	pool->taken_in_all++;
	if (wc->status == IBV_WC_SUCCESS) {
		check_received(end, wc, receive_slot(pool, i), message_of(end, wc));
		if (pool->promised > 0 && end->type == IBV_QPT_RC)
			pool->promised--;
	} else if (!end->is_over || wc->status != IBV_WC_WR_FLUSH_ERR) {
		FAIL("end %d: receive %u ends with status %d", end->index, i, wc->status);
	}
}
