/* Rounds: some queue pairs in this process, connected to each other, with lives between RESET and RESET. */
#include "posting.h"

enum ending { DRAINED, ERRED, RESETTED, DESTROYED, REFUSED_KEY, ENDINGS };
enum { PATIENCE = 60 };

struct round {
	int count, events, threads_cq;
	struct end ends[2 * PEERS];
	struct pool shared[2];
	struct ibv_cq *cqs[2];
	struct ibv_comp_channel *channel;
};

static void make_pool(struct pool *pool, int with_srq)
{
	size_t length = (size_t)RECEIVES * (slot + GRH + CANARY);
	SURE((pool->memory = malloc(length)));
	SURE((pool->mr = ibv_reg_mr(pd, pool->memory, length, IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = RECEIVES, .max_sge = 3 } };
	SURE(!with_srq || (pool->srq = ibv_create_srq(pd, &attr)));
}

static void drop_pool(struct pool *pool)
{
	SURE(!pool->srq || ibv_destroy_srq(pool->srq) == 0);
	SURE(ibv_dereg_mr(pool->mr) == 0);
	free(pool->memory);
	*pool = (struct pool) {};
}

static void make_end(struct round *round, int index, enum ibv_qp_type type, struct pool *shared)
{
	struct end *end = &round->ends[index];
	*end = (struct end) { .index = index, .type = type, .peer = &round->ends[index ^ 1] };
	end->pool = shared ? shared : &end->own;
	if (!shared)
		make_pool(end->pool, 0);
	end->send_cq = round->cqs[below(2)];
	end->recv_cq = round->cqs[below(2)];
	end->target_length = slot * 8;
	size_t length = (size_t)slot * DEPTH;
	SURE((end->staging = malloc(length)) && (end->expected = malloc(length)));
	SURE((end->target = malloc(end->target_length)) && (end->shadow = malloc(end->target_length)));
	SURE((end->staging_mr = ibv_reg_mr(pd, end->staging, length, IBV_ACCESS_LOCAL_WRITE)));
	SURE((end->target_mr = ibv_reg_mr(pd, end->target, end->target_length, ALL_REMOTE | IBV_ACCESS_MW_BIND)));
	struct ibv_qp_init_attr init = {
		.send_cq = end->send_cq, .recv_cq = end->recv_cq, .srq = end->pool->srq, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = end->pool->srq ? 0 : RECEIVES, .max_send_sge = 3, .max_recv_sge = 3, .max_inline_data = INLINE },
	};
	SURE((end->qp = ibv_create_qp(pd, &init)));
	struct ibv_ah_attr address = own_address();
	SURE(type != IBV_QPT_UD || (end->ah = ibv_create_ah(pd, &address)));
}

static void drop_end(struct end *end, int keep_pool)
{
	SURE(ibv_destroy_qp(end->qp) == 0);
	SURE(!end->ah || ibv_destroy_ah(end->ah) == 0);
	SURE(!end->mw || ibv_dealloc_mw(end->mw) == 0);
	SURE(ibv_dereg_mr(end->staging_mr) == 0 && ibv_dereg_mr(end->target_mr) == 0);
	if (!keep_pool)
		drop_pool(&end->own);
	free(end->staging);
	free(end->expected);
	free(end->target);
	free(end->shadow);
	end->qp = NULL;
}

/* A life begins: nothing is posted, and the memory is new. */
static void begin(struct end *end)
{
	end->life++;
	end->posted = end->done = end->successes = end->sent_count = end->received = end->slots_used = 0;
	end->failing = end->greeted = end->is_over = 0;
	end->quota = 20 + below(200);
	memset(end->target, UNTOUCHED, end->target_length);
	memset(end->shadow, UNTOUCHED, end->target_length);
	if (!end->pool->srq) {
		memset(end->pool->posted, 0, sizeof end->pool->posted);
		end->pool->count = end->pool->posted_in_all = end->pool->taken_in_all = 0;
	}
	end->pool->promised = 0;
	SURE(!end->mw || ibv_dealloc_mw(end->mw) == 0);
	end->mw = NULL;
	end->window = UNBOUND;
	if (end->type == IBV_QPT_RC) {
		SURE((end->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
		end->key = end->mw->rkey;
	} else {
		end->window = CLOSING;
	}
}

static void handle(struct round *round, const struct ibv_wc *wc)
{
	unsigned index = wc->wr_id >> 32 & 0xff, life = wc->wr_id >> 40 & 0xff;
	int is_receive = wc->wr_id >> 63;
	struct end *end = NULL;
	for (int i = 0; i < 2 * round->count; i++)
		if (round->ends[i].qp && round->ends[i].qp->qp_num == wc->qp_num)
			end = &round->ends[i];
	if (!end || (end->index != (int)index && !(is_receive && end->pool->srq)) || ((end->life & 0xff) != (int)life && !(is_receive && end->pool->srq)))
		FAIL("stray completion %llx of queue pair %x, status %d", (unsigned long long)wc->wr_id, wc->qp_num, wc->status);
	struct ibv_wc copy = *wc;
	copy.wr_id &= 0xffffffff;
	if (is_receive)
		on_receive(end, &copy);
	else
		on_send(end, &copy);
}

static int poll_queues(struct round *round)
{
	struct ibv_wc wc[7];
	int all = 0;
	for (int i = 0; i < 2; i++) {
		int n = ibv_poll_cq(round->cqs[i], 1 + below(7), wc);
		SURE(n >= 0);
		for (int k = 0; k < n; k++)
			handle(round, &wc[k]);
		all += n;
	}
	return all;
}

/* Sleeps until there is a completion, as the man page of `ibv_get_cq_event` has it. */
static void sleep_for_event(struct round *round)
{
	for (int i = 0; i < 2; i++)
		SURE(ibv_req_notify_cq(round->cqs[i], 0) == 0);
	if (poll_queues(round))
		return;
	struct pollfd fd = { round->channel->fd, POLLIN, 0 };
	if (poll(&fd, 1, 1000) == 1) {
		struct ibv_cq *cq;
		void *of;
		SURE(ibv_get_cq_event(round->channel, &cq, &of) == 0);
		ibv_ack_cq_events(cq, 1);
	}
}

static void stuck(struct round *round)
{
	for (int i = 0; i < 2 * round->count; i++) {
		struct end *end = &round->ends[i];
		if (!end->qp)
			continue;
		fprintf(stderr, "end %d type %d life %d: posted %u, done %u, sent %u, peer received %u, quota %d, receives %d, window %d, over %d\n", i,
			end->type, end->life, end->posted, end->done, end->sent_count, end->peer->received, end->quota, end->pool->count, end->window,
			end->is_over);
	}
	FAIL("no progress");
}

/* All requests are complete and, on connections, all messages received. */
static int is_quiet(struct end *end)
{
	return end->done == end->posted && (end->type != IBV_QPT_RC || end->is_over || end->peer->received == end->sent_count);
}

/* Posts and polls until `goal` requests were posted in all, or the ends' quotas are; and if `drains` until all of that is complete. */
static void work(struct round *round, int goal, int drains)
{
	double end_by = seconds() + PATIENCE;
	int posted = 0;
	for (;;) {
		int busy = 0, left = 0;
		for (int i = 0; i < 2 * round->count; i++) {
			struct end *end = &round->ends[i];
			busy += post_receives(end, below(6));
			for (int n = below(6); n > 0 && end->quota > 0 && posted < goal; n--) {
				enum kind kind = some_kind(end);
				uint32_t most = end->type == IBV_QPT_UD && slot > 4096 ? 4096 : slot;
				int last = end->quota == 1;
				if (last && end->type == IBV_QPT_RC)
					kind = SEND;
				if (!post(end, kind, some_length(most), last))
					break;
				end->quota--;
				posted++;
				busy++;
			}
			left += end->quota > 0 || !is_quiet(end);
		}
		int polled = poll_queues(round);
		if (polled)
			end_by = seconds() + PATIENCE;
		if (!left || (!drains && posted >= goal))
			return;
		if (!busy && !polled && round->events)
			sleep_for_event(round);
		if (seconds() > end_by)
			stuck(round);
	}
}

/* Polls for a time, and expects that nothing comes of queue pairs that were reset or destroyed. */
static void hear(struct round *round, int ms)
{
	double until = seconds() + ms / 1000.0;
	do
		poll_queues(round);
	while (seconds() < until);
}

static void to_state(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	SURE(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == 0);
}

/* A request with a completion behind those that have none. */
static void post_last(struct round *round, struct end *end)
{
	double end_by = seconds() + PATIENCE;
	while (!post(end, end->type == IBV_QPT_RC ? SEND : SEND_IMM, 1, 1)) {
		poll_queues(round);
		if (seconds() > end_by)
			stuck(round);
	}
}

/* Everything that was posted completes: requests once each, receives of own queues too. */
static void flushed(struct round *round)
{
	double end_by = seconds() + PATIENCE;
	for (int left = 1; left;) {
		left = 0;
		poll_queues(round);
		for (int i = 0; i < 2 * round->count; i++) {
			struct end *end = &round->ends[i];
			left += end->done != end->posted || (!end->pool->srq && end->pool->count > 0);
		}
		if (left && seconds() > end_by)
			stuck(round);
	}
	for (int i = 0; i < 2 * round->count; i++) {
		struct end *end = &round->ends[i];
		uint32_t successes = 0;
		for (uint32_t k = 0; k < end->sent_count; k++)
			successes += end->sent[k].seen;
		if (successes < end->peer->received && end->type == IBV_QPT_RC)
			FAIL("end %d received %u messages, %u are marked", end->peer->index, end->peer->received, successes);
	}
}

/* Memory is as the shadow on connections. For UC each slot was written once, or not, or in part. */
static void check_memory(struct end *end)
{
	for (uint32_t i = 0; i < end->target_length; i++)
		if (end->target[i] != end->shadow[i] && !(end->type == IBV_QPT_UC && end->target[i] == UNTOUCHED))
			FAIL("end %d: octet %u of the memory is %02x, not %02x", end->index, i, end->target[i], end->shadow[i]);
}

/* With receives, before a message of the peer can come. */
static void connect_with_receives(struct end *end, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_REMOTE, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	SURE(ibv_modify_qp(end->qp, &attr, mask | (end->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	post_receives(end, 1 + below(RECEIVES));
	connect_to(end->qp, peer);
}

static void connect_all(struct round *round)
{
	for (int i = 0; i < round->count; i++) {
		struct end *one = &round->ends[2 * i], *two = &round->ends[2 * i + 1];
		begin(one);
		begin(two);
		psn_shift = one->life;
		struct end *first = one_in(2) ? one : two;
		connect_with_receives(first, first->peer->qp);
		connect_with_receives(first->peer, first->qp);
	}
}

/* A message each way: the ends of connections have heard of each other then. */
static void greet(struct round *round)
{
	int quotas[2 * PEERS];
	for (int i = 0; i < 2 * round->count; i++) {
		quotas[i] = round->ends[i].quota;
		round->ends[i].quota = 1;
	}
	work(round, 2 * PEERS, 1);
	for (int i = 0; i < 2 * round->count; i++) {
		round->ends[i].quota = quotas[i];
		round->ends[i].greeted = 1;
	}
}

static void read_with_a_wrong_key(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)staging_of(end, end->posted), 8, end->staging_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id(end, 0, end->posted), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)end->peer->target, end->peer->target_mr->rkey ^ 0x5a5a00 },
	}, *bad;
	if (end->type != IBV_QPT_RC || end->posted - end->done == DEPTH)
		return;
	*op_of(end, end->posted++) = (struct op) { .kind = READ, .signaled = 1, .length = 8 };
	SURE(ibv_post_send(end->qp, &wr, &bad) == 0);
}

static void end_life(struct round *round, enum ending ending)
{
	int all = 2 * round->count, first = below(2);
	for (int i = 0; i < all; i++) {
		round->ends[i].quota = 0;
		round->ends[i].is_over = 1;
	}
	if (ending == REFUSED_KEY)
		for (int i = 0; i < all; i += 2)
			read_with_a_wrong_key(&round->ends[i + below(2)]);
	if (ending == REFUSED_KEY && one_in(2))
		hear(round, below(20));
	if (ending == ERRED || ending == REFUSED_KEY) {
		for (int i = 0; i < all; i++) {
			to_state(&round->ends[i ^ first], IBV_QPS_ERR);
			if (one_in(2))
				hear(round, below(10));
		}
		for (int i = 0; i < all; i++)
			post_last(round, &round->ends[i]);
		flushed(round);
	}
	if (ending == DRAINED)
		for (int i = 0; i < all; i++)
			check_memory(&round->ends[i]);
}

static void reset_all(struct round *round)
{
	int first = below(2);
	for (int i = 0; i < 2 * round->count; i++) {
		struct end *end = &round->ends[i ^ first];
		to_state(end, IBV_QPS_RESET);
		end->life++;
		if (one_in(2))
			hear(round, below(3));
	}
}

static void run_round(uint64_t seed)
{
	round_seed = random_state = seed;
	static const uint32_t slots[] = { 256, 4096, 16384, 65536 };
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	slot = slots[below(4)];
	struct round *round = calloc(1, sizeof *round);
	SURE(round);
	round->count = 1 + below(PEERS);
	round->events = one_in(2);
	int with_srq = one_in(3), same_cq = one_in(3);
	SURE(!round->events || (round->channel = ibv_create_comp_channel(context)));
	for (int i = 0; i < 2; i++) {
		int size = 2 * PEERS * (DEPTH + RECEIVES) + RECEIVES;
		round->cqs[i] = i && same_cq ? round->cqs[0] : ibv_create_cq(context, size, NULL, round->channel, 0);
		SURE(round->cqs[i]);
		if (with_srq)
			make_pool(&round->shared[i], 1);
	}
	for (int i = 0; i < round->count; i++) {
		/* Datagrams take receives of a shared queue that are promised to nobody. */
		enum ibv_qp_type type = with_srq && terminates ? IBV_QPT_RC : types[below(4)];
		make_end(round, 2 * i, type, with_srq ? &round->shared[0] : NULL);
		make_end(round, 2 * i + 1, type, with_srq ? &round->shared[1] : NULL);
	}
	/* Of a shared queue nothing shows which receives a queue pair took that is reset. */
	for (int lives = with_srq ? 1 : 1 + below(3); lives > 0; lives--) {
		enum ending ending = below(ENDINGS);
		if (lives > 1 && ending == DESTROYED)
			ending = RESETTED;
		connect_all(round);
		if (!one_in(8))
			greet(round);
		work(round, ending == DRAINED ? 1 << 30 : (int)below(300), ending == DRAINED);
		end_life(round, ending);
		if (lives > 1)
			reset_all(round);
	}
	for (int i = 0; i < 2 * round->count; i++)
		drop_end(&round->ends[i], with_srq);
	hear(round, 1);
	for (int i = 0; i < 2; i++) {
		SURE((i && same_cq) || ibv_destroy_cq(round->cqs[i]) == 0);
		if (with_srq)
			drop_pool(&round->shared[i]);
	}
	SURE(!round->channel || ibv_destroy_comp_channel(round->channel) == 0);
	free(round);
}
