/* Random work requests on RC queue pairs of two processes. Both ends draw the scripts of both from one seed, so each knows the completions, the received
 * messages and the contents of its memory that the verbs demand (ibv_post_send(3), RFC 5040 §5.5), whatever the interleaving.
 * Arguments: a GID index, the first seed, and the number of seeds. */
#include <stdarg.h>
#include <sys/socket.h>
#include "random.h"

static int link_fd;
static const char *phase = "start";

static unsigned char *source, *target[PAIRS], *landing[PAIRS], *slots;
static struct ibv_mr *source_mr, *target_mr[PAIRS], *landing_mr[PAIRS], *slots_mr;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_comp_channel *channel;
static struct ibv_srq *srq;
static struct ibv_qp *qps[PAIRS];
static struct peer { uint32_t qpn, rkey; uint64_t addr; } peers[PAIRS];
static uint32_t life;

static struct progress { int posted, done, received, given, failed, flushed, stopped; } at[PAIRS];
static int slot_pair[SLOTS];

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "seed %llu, end %d, %s: ", (unsigned long long)seed, end, phase);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	for (int p = 0; p < config.pairs; p++)
		fprintf(stderr, "  pair %d: qp %u state %d posted %d/%d done %d received %d/%d given %d\n", p, qps[p] ? qps[p]->qp_num : 0,
			qps[p] ? (int)qps[p]->state : -1, at[p].posted, scripts[end][p].count, at[p].done, at[p].received, scripts[!end][p].takes, at[p].given);
	fprintf(stderr, "  pairs %d sq %d rq %d sges %d inlined %d signal_all %d srq %d one_cq %d channel %d ord %d longest %d mtu %d\n", config.pairs,
		config.sq, config.rq, config.sges, config.inlined, config.signal_all, config.srq, config.one_cq, config.channel, config.ord,
		config.longest, config.mtu);
	fprintf(stderr, "  pair %d fails: %d at %d of end %d\n", failing_pair, failing.kind, failing.place, failing.who);
	for (int i = 0; i < 2 && failing.kind; i++)
		for (int n = 0; n < scripts[i][failing_pair].count; n++) {
			struct op *op = &scripts[i][failing_pair].ops[n];
			fprintf(stderr, "    end %d op %d: kind %d, %u octets, at %u, flags %x, elements %d\n", i, n, op->kind, op->length, op->at, op->flags, op->count);
		}
	/* The other end, if it goes on, fails for reasons of its own. */
	sleep(3);
	exit(1);
}

#define MUST(what) do { if (!(what)) fail("line %d: %s (errno %d)", __LINE__, #what, errno); } while (0)

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static void exchange(const void *mine, void *theirs, size_t size)
{
	MUST(write(link_fd, mine, size) == (ssize_t)size);
	for (size_t got = 0; got < size;) {
		ssize_t n = read(link_fd, (char *)theirs + got, size - got);
		if (n <= 0)
			fail("the peer has failed");
		got += n;
	}
}

static void barrier(void)
{
	char mine = 'b', theirs;
	exchange(&mine, &theirs, 1);
}

static struct ibv_mr *area(unsigned char **memory_of, size_t size)
{
	*memory_of = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(*memory_of != MAP_FAILED);
	struct ibv_mr *it = ibv_reg_mr(pd, *memory_of, size, ALL_REMOTE);
	MUST(it);
	return it;
}

static void make_qp(int p)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = config.signal_all,
		.cap = { .max_send_wr = config.sq, .max_recv_wr = config.rq, .max_send_sge = config.sges, .max_recv_sge = config.sges,
			.max_inline_data = config.inlined },
	};
	qps[p] = ibv_create_qp(pd, &init);
	MUST(qps[p]);
}

static void meet(int p)
{
	struct peer mine = { qps[p]->qp_num, target_mr[p]->rkey, (uintptr_t)target[p] };
	exchange(&mine, &peers[p], sizeof mine);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_REMOTE, .path_mtu = config.mtu, .dest_qp_num = peers[p].qpn,
		.rq_psn = (peers[p].qpn + life * 977) & 0xffffff, .sq_psn = (qps[p]->qp_num + life * 977) & 0xffffff,
		.max_dest_rd_atomic = config.ord, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = config.ord, .ah_attr = own_address(),
	};
	MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR;
	MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	/* Completions wait for the peer once its first octets have come. */
	struct ibv_recv_wr receive = { .wr_id = 1ull << 48 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	MUST((srq ? ibv_post_srq_recv(srq, &receive, &bad_receive) : ibv_post_recv(qps[p], &receive, &bad_receive)) == 0);
	MUST(ibv_post_send(qps[p], &send, &bad_send) == 0);
	struct ibv_wc wc;
	uint64_t limit = now_ms() + 10000;
	for (int seen = 0; seen < 2;) {
		if (ibv_poll_cq(send_cq, 1, &wc) == 1 || ibv_poll_cq(recv_cq, 1, &wc) == 1) {
			MUST(wc.status == 0 && wc.qp_num == qps[p]->qp_num);
			seen++;
		}
		MUST(now_ms() < limit);
	}
}

/* Posts the next `count` operations of a pair in one call. */
static void post(int p, int count)
{
	static unsigned char copies[OPS][256];
	struct ibv_send_wr wrs[OPS], *bad = NULL;
	struct ibv_sge sges[OPS][ELEMENTS];
	memset(wrs, 0, sizeof wrs);
	for (int i = 0; i < count; i++) {
		int number = at[p].posted + i;
		struct op *op = &scripts[end][p].ops[number];
		struct ibv_send_wr *wr = &wrs[i];
		uint32_t done = 0;
		int is_bad = fails(p) && fails(p) != CUT && number == failing.place;
		int lands = op->kind >= READ, is_inline = op->flags & IBV_SEND_INLINE;
		if (is_inline)
			memcpy(copies[i], source + op->from, op->length);
		for (int e = 0; e < op->count; e++) {
			unsigned char *from = is_inline ? copies[i] : lands ? landing[p] + op->landing : source + op->from;
			uint32_t lkey = is_inline ? 77 : lands ? landing_mr[p]->lkey : source_mr->lkey;
			if (is_bad && (failing.kind == LOCAL_KEY || failing.kind == LANDING_KEY))
				lkey ^= 0x55000;
			sges[i][e] = (struct ibv_sge) { (uintptr_t)(from + done), op->parts[e], lkey };
			done += op->parts[e];
		}
		static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
			IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
		wr->wr_id = (uint64_t)p << 32 | number;
		wr->next = i + 1 < count ? &wrs[i + 1] : NULL;
		wr->sg_list = sges[i];
		wr->num_sge = op->count;
		wr->opcode = opcodes[op->kind];
		wr->send_flags = op->flags;
		wr->imm_data = op->imm;
		uint32_t rkey = peers[p].rkey ^ (is_bad && (failing.kind == WRITE_KEY || failing.kind == READ_KEY) ? 0x55000 : 0);
		uint64_t to = peers[p].addr + op->at;
		if (is_bad && (failing.kind == WRITE_BOUNDS || failing.kind == READ_BOUNDS))
			to = peers[p].addr + AREA - op->length + 1;
		if (is_bad && failing.kind == MISALIGNED)
			to += 1 + op->imm % 7;
		if (op->kind >= ADD) {
			wr->wr.atomic.remote_addr = to;
			wr->wr.atomic.rkey = rkey;
			wr->wr.atomic.compare_add = op->kind == ADD ? op->value : op->compare;
			wr->wr.atomic.swap = op->value;
		} else if (op->kind >= WRITE) {
			wr->wr.rdma.remote_addr = to;
			wr->wr.rdma.rkey = rkey;
		}
	}
	int result = ibv_post_send(qps[p], wrs, &bad);
	if (result)
		fail("post of %d behind %d: %d, the first refused is %lld (kind %d, %u octets)", count, at[p].posted, result,
			bad ? (long long)bad->wr_id : -1, bad ? (int)scripts[end][p].ops[bad->wr_id & 0xffff].kind : -1,
			bad ? scripts[end][p].ops[bad->wr_id & 0xffff].length : 0);
	memset(copies, 0xee, sizeof copies);
	at[p].posted += count;
}

static int receives_left(int p);

/* Nothing more is posted to a pair that is cut. */
static int has_stopped(int p) { return fails(p) == CUT && (at[p].failed || at[p].flushed || at[p].stopped); }

static int is_over(int p)
{
	if (fails(p) == CUT)
		return at[p].stopped && at[p].done == at[p].posted && at[p].received + at[p].flushed == at[p].given;
	if (fails(p) && failing.who != end && (srq ? failing.kind == TOO_LONG && !at[p].flushed : !at[p].given || receives_left(p)))
		return 0;
	return at[p].done == scripts[end][p].count && at[p].received == scripts[!end][p].takes && (srq || at[p].received + at[p].flushed == at[p].given);
}

/* Receives that may be posted now: for a pair, or for the shared queue. */
static int receives_left(int p)
{
	int needed = 0, given = 0, got = 0;
	for (int q = 0; q < config.pairs; q++)
		if (srq || q == p) {
			needed += scripts[!end][q].takes;
			if (fails(q) && failing.who != end)
				needed += srq ? failing.kind == TOO_LONG : 1 + (failing.place & 1);
			given += at[q].given;
			got += at[q].received + at[q].flushed;
		}
	if (has_stopped(p))
		return 0;
	int room = config.rq - (given - got);
	return room < needed - given ? room : needed - given;
}

static void give(int p, int count)
{
	struct ibv_recv_wr wrs[SLOTS], *bad;
	struct ibv_sge sges[SLOTS][ELEMENTS];
	int made = 0;
	for (int s = 0; s < SLOTS && made < count; s++) {
		if (slot_pair[s] >= 0)
			continue;
		slot_pair[s] = p;
		unsigned char *to = slots + (size_t)s * slot_len;
		memset(to, 0xa5, slot_len);
		int elements = 1 + below(&own, config.sges);
		uint32_t left = config.longest;
		for (int e = 0; e < elements; e++) {
			uint32_t part = e + 1 == elements ? left : below(&own, left + 1);
			sges[made][e] = (struct ibv_sge) { (uintptr_t)(to + config.longest - left), part, slots_mr->lkey };
			left -= part;
		}
		wrs[made] = (struct ibv_recv_wr) { .wr_id = 1ull << 48 | s, .sg_list = sges[made], .num_sge = elements };
		if (made)
			wrs[made - 1].next = &wrs[made];
		made++;
	}
	if (!made)
		return;
	int result = srq ? ibv_post_srq_recv(srq, wrs, &bad) : ibv_post_recv(qps[p], wrs, &bad);
	if (result)
		fail("post of %d receives: %d", made, result);
	at[p].given += made;
}

static void check_receive(const struct ibv_wc *wc)
{
	int p = 0;
	while (p < config.pairs && qps[p]->qp_num != wc->qp_num)
		p++;
	MUST(p < config.pairs);
	int s = wc->wr_id & 0xffff;
	MUST(s < SLOTS && slot_pair[s] >= 0 && (srq || slot_pair[s] == p));
	if (wc->status) {
		int is_longer = fails(p) == TOO_LONG && !at[p].flushed && at[p].received == scripts[!end][p].takes;
		if (!fails(p) || wc->status != (is_longer ? IBV_WC_LOC_LEN_ERR : IBV_WC_WR_FLUSH_ERR))
			fail("receive of pair %d: status %d", p, wc->status);
		if (fails(p) != CUT && at[p].received != scripts[!end][p].takes)
			fail("receive of pair %d ends before all messages have come", p);
		slot_pair[s] = -1;
		at[p].flushed++;
		return;
	}
	if (at[p].flushed)
		fail("receive of pair %d is complete behind one that is not", p);
	struct script *peer = &scripts[!end][p];
	int number = 0;
	struct op *op = NULL;
	for (int i = 0, n = at[p].received; i < peer->count; i++) {
		op = &peer->ops[i];
		int takes = op->kind == SEND || op->kind == SEND_IMM || op->kind == WRITE_IMM;
		if (takes && n-- == 0) {
			number = i;
			break;
		}
		op = NULL;
	}
	if (!op)
		fail("a receive of pair %d more than messages", p);
	int is_write = op->kind == WRITE_IMM, has_imm = op->kind != SEND;
	int expected = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	if ((int)wc->opcode != expected || wc->byte_len != op->length || !!(wc->wc_flags & IBV_WC_WITH_IMM) != has_imm ||
		(has_imm && wc->imm_data != op->imm))
		fail("message %d of pair %d: opcode %d for %d, %u octets for %u, flags %x, immediate %x for %x", number, p, wc->opcode, expected,
			wc->byte_len, op->length, wc->wc_flags, wc->imm_data, op->imm);
	unsigned char *to = slots + (size_t)s * slot_len;
	uint32_t sent = is_write ? 0 : op->length;
	for (int n = 0; n < slot_len; n++) {
		unsigned char right = (uint32_t)n < sent ? octet_of(!end, op->from + n) : 0xa5;
		if (to[n] != right)
			fail("message %d of pair %d (%u octets): octet %d is %x for %x", number, p, op->length, n, to[n], right);
	}
	slot_pair[s] = -1;
	at[p].received++;
}

static void check_sent(const struct ibv_wc *wc)
{
	int p = wc->wr_id >> 32, number = wc->wr_id & 0xffff;
	MUST(p < config.pairs && wc->qp_num == qps[p]->qp_num);
	struct script *it = &scripts[end][p];
	int next = at[p].done;
	if (wc->status) {
		static const enum ibv_wc_status statuses[] = { 0, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
			IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR };
		int first = !at[p].failed;
		for (; first && next < number; next++)
			if (it->ops[next].flags & IBV_SEND_SIGNALED)
				break;
		int right = !fails(p) ? -1 : first && fails(p) != CUT ? (int)statuses[fails(p)] : IBV_WC_WR_FLUSH_ERR;
		if (fails(p) == CUT && first)
			right = wc->status;
		if (number != next || number >= at[p].posted || (int)wc->status != right || (first && fails(p) != CUT && number != failing.place))
			fail("completion %d of pair %d with status %d for %d where %d is next (failure %d at %d)", number, p, wc->status, right, next,
				failing.kind, failing.place);
		at[p].failed = 1;
		at[p].done = number + 1;
		return;
	}
	if (at[p].failed)
		fail("completion %d of pair %d behind one with an error", number, p);
	while (next < it->count && !(it->ops[next].flags & IBV_SEND_SIGNALED))
		next++;
	if (number != next || number >= at[p].posted || wc->status)
		fail("completion %d of pair %d with status %d (kind %d) where %d is next", number, p, wc->status, it->ops[number].kind, next);
	static const enum ibv_wc_opcode opcodes[] = { IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
		IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP };
	struct op *op = &it->ops[number];
	if (wc->opcode != opcodes[op->kind])
		fail("completion %d of pair %d: opcode %d", number, p, wc->opcode);
	/* Answers are there with the completion. */
	for (int i = at[p].done; i <= number; i++) {
		op = &it->ops[i];
		if (op->kind >= READ && memcmp(landing[p] + op->landing, landed[p] + op->landing, op->length))
			fail("answer %d of pair %d (kind %d, %u octets at %u) is another one", i, p, op->kind, op->length, op->at);
	}
	at[p].done = number + 1;
}

static int poll_some(struct ibv_cq *cq, int most)
{
	struct ibv_wc wcs[16];
	int count = ibv_poll_cq(cq, most, wcs);
	MUST(count >= 0 && count <= most);
	for (int i = 0; i < count; i++) {
		if (wcs[i].wr_id >> 48)
			check_receive(&wcs[i]);
		else
			check_sent(&wcs[i]);
	}
	return count;
}

static int poll_all(void)
{
	int count = poll_some(send_cq, 1 + below(&own, 16));
	if (recv_cq != send_cq)
		count += poll_some(recv_cq, 1 + below(&own, 16));
	return count;
}

static void wait_event(int must_come)
{
	MUST(ibv_req_notify_cq(send_cq, 0) == 0 && ibv_req_notify_cq(recv_cq, 0) == 0);
	if (poll_all())
		return;
	if (one_in(&own, 4))
		usleep(below(&own, 3000));
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	int ready = poll(&fd, 1, must_come ? 15000 : (int)below(&own, 5));
	MUST(ready >= 0);
	if (!ready && must_come)
		fail("no event in 15 s, then %d completions", poll_all());
	struct ibv_cq *cq;
	void *of;
	if (ready) {
		MUST(ibv_get_cq_event(channel, &cq, &of) == 0);
		ibv_ack_cq_events(cq, 1);
	}
}

static void run(int lateness, int naps)
{
	memset(at, 0, sizeof at);
	uint64_t limit = now_ms() + 30000;
	for (;;) {
		int over = 1, may_post = 0;
		for (int p = 0; p < config.pairs; p++) {
			over &= is_over(p);
			may_post |= !has_stopped(p) && at[p].posted < scripts[end][p].count && at[p].posted - at[p].done < config.sq;
			may_post |= receives_left(p) > 0 || (fails(p) == CUT && !at[p].stopped);
		}
		if (over)
			return;
		if (now_ms() > limit)
			fail("not over in 30 s");
		int p = below(&own, config.pairs);
		int room = config.sq - (at[p].posted - at[p].done), left = scripts[end][p].count - at[p].posted;
		room = room < left ? room : left;
		if (fails(p) == CUT && !at[p].stopped && (room > 0 || at[p].posted == scripts[end][p].count || at[p].failed) &&
			(has_stopped(p) || one_in(&own, 30) || (at[p].posted == scripts[end][p].count && one_in(&own, 3)))) {
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
			MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE) == 0);
			/* Work requests behind the state change are flushed, and those before them complete before. */
			if (room > 0)
				post(p, 1);
			at[p].stopped = 1;
		}
		if (has_stopped(p))
			room = 0;
		switch (below(&own, 8)) {
		case 0: case 1:
			if (room > 0)
				post(p, 1 + below(&own, room));
			break;
		case 2: case 3:
			if (receives_left(p) > 0 && one_in(&own, lateness))
				give(p, 1 + below(&own, receives_left(p)));
			break;
		case 4:
			if (channel)
				wait_event(!may_post);
			break;
		case 5:
			if (one_in(&own, naps))
				usleep(below(&own, one_in(&own, 20) ? 30000 : 500));
			break;
		default:
			poll_all();
		}
	}
}

/* The contents of a pair's memory are not known. */
static void forget(int p)
{
	memset(target[p], 0, AREA);
	memset(landing[p], 0, AREA);
	memset(landed[p], 0, AREA);
	memset(model[0][p], 0, AREA);
	memset(model[1][p], 0, AREA);
}

static void check_memory(void)
{
	for (int p = 0; p < config.pairs; p++) {
		if (fails(p) == CUT)
			forget(p);
		for (uint32_t n = 0; n < AREA; n++)
			/* Segments of a Write that are within the bounds are placed before the one that is not. */
			if (target[p][n] != model[0][p][n] && !(fails(p) == WRITE_BOUNDS && failing.who != end && n > AREA - scripts[!end][p].ops[failing.place].length))
				fail("target of pair %d: octet %u is %x for %x", p, n, target[p][n], model[0][p][n]);
		for (uint32_t n = 0; n < AREA; n++)
			if (landing[p][n] != landed[p][n])
				fail("landing area of pair %d: octet %u is %x for %x", p, n, landing[p][n], landed[p][n]);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		for (uint64_t limit = now_ms() + 10000;;) {
			MUST(ibv_query_qp(qps[p], &attr, IBV_QP_STATE, &init) == 0);
			if (!fails(p) || attr.qp_state == IBV_QPS_ERR || now_ms() > limit)
				break;
			usleep(1000);
		}
		if (attr.qp_state != (fails(p) ? IBV_QPS_ERR : IBV_QPS_RTS))
			fail("state %d of pair %d", attr.qp_state, p);
		if (fails(p) == WRITE_BOUNDS)
			forget(p);
	}
	struct ibv_wc wc;
	MUST(ibv_poll_cq(send_cq, 1, &wc) == 0 && ibv_poll_cq(recv_cq, 1, &wc) == 0);
}

static void again(int p)
{
	struct ibv_qp_attr attr = { .qp_state = one_in(&joint, 2) ? IBV_QPS_ERR : IBV_QPS_RESET };
	if (attr.qp_state == IBV_QPS_ERR)
		MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RESET;
	MUST(ibv_modify_qp(qps[p], &attr, IBV_QP_STATE) == 0);
	if (one_in(&joint, 4)) {
		MUST(ibv_destroy_qp(qps[p]) == 0);
		make_qp(p);
	}
	life++;
	meet(p);
}

static void run_seed(void)
{
	draw_config();
	own = mix(seed ^ 0x1234567 ^ (uint64_t)end << 40);
	phase = "start";
	int entries = PAIRS * (config.sq + config.rq) + 16;
	channel = config.channel ? ibv_create_comp_channel(context) : NULL;
	send_cq = ibv_create_cq(context, entries, NULL, channel, 0);
	recv_cq = config.one_cq ? send_cq : ibv_create_cq(context, entries, NULL, channel, 0);
	MUST(send_cq && recv_cq);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = config.rq, .max_sge = config.sges } };
	srq = config.srq ? ibv_create_srq(pd, &shared) : NULL;
	source_mr = area(&source, AREA);
	slots_mr = area(&slots, (size_t)SLOTS * slot_len);
	for (int n = 0; n < SLOTS; n++)
		slot_pair[n] = -1;
	for (uint32_t n = 0; n < AREA; n++)
		source[n] = octet_of(end, n);
	for (int p = 0; p < config.pairs; p++) {
		target_mr[p] = area(&target[p], AREA);
		landing_mr[p] = area(&landing[p], AREA);
		for (int i = 0; i < 2; i++)
			model[i][p] = calloc(1, AREA);
		landed[p] = calloc(1, AREA);
		make_qp(p);
		meet(p);
	}
	barrier();
	int rounds = 1 + below(&joint, 6);
	for (int round = 0; round < rounds; round++) {
		static char name[64];
		failing.kind = NONE;
		failing_pair = below(&joint, config.pairs);
		if (one_in(&joint, 2)) {
			failing.kind = 1 + below(&joint, config.iwarp ? MISALIGNED - 1 : FAILURES - 1);
			failing.place = below(&joint, config.sq < 12 ? config.sq : 12);
			failing.who = below(&joint, 2);
			if (!srq && one_in(&joint, 3))
				failing.kind = CUT;
		}
		snprintf(name, sizeof name, "round %d", round);
		phase = name;
		for (int p = 0; p < config.pairs; p++) {
			draw_script(0, p);
			draw_script(1, p);
		}
		int lateness = one_in(&joint, 2) ? 1 : 1 + below(&joint, 40), naps = one_in(&joint, 3) ? 1 : 30;
		barrier();
		run(lateness, naps);
		barrier();
		check_memory();
		barrier();
		for (int p = 0; p < config.pairs; p++)
			if (one_in(&joint, 4) || fails(p))
				again(p);
		barrier();
	}
	for (int p = 0; p < config.pairs; p++) {
		MUST(ibv_destroy_qp(qps[p]) == 0 && ibv_dereg_mr(target_mr[p]) == 0 && ibv_dereg_mr(landing_mr[p]) == 0);
		munmap(target[p], AREA);
		munmap(landing[p], AREA);
		free(model[0][p]);
		free(model[1][p]);
		free(landed[p]);
		qps[p] = NULL;
	}
	MUST(ibv_dereg_mr(source_mr) == 0 && ibv_dereg_mr(slots_mr) == 0 && (!srq || ibv_destroy_srq(srq) == 0));
	munmap(source, AREA);
	munmap(slots, (size_t)SLOTS * slot_len);
	MUST(ibv_destroy_cq(send_cq) == 0 && (recv_cq == send_cq || ibv_destroy_cq(recv_cq) == 0));
	MUST(!channel || ibv_destroy_comp_channel(channel) == 0);
	barrier();
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	uint64_t first = strtoull(argv[2], NULL, 0), count = strtoull(argv[3], NULL, 0);
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	end = child == 0;
	link_fd = ends[end];
	close(ends[!end]);
	char *device[] = { argv[0], argv[1], NULL };
	open_device(2, device);
	for (seed = first; seed < first + count; seed++)
		run_seed();
	if (end)
		return 0;
	int status;
	CHECK(wait(&status) == child && status == 0);
	printf("ok\n");
	return 0;
}
