/* Scripts of random.c: operations of both ends, drawn from one seed, and the contents of memory that they make. */
#include "pair.h"

enum { PAIRS = 3, OPS = 48, AREA = 1 << 18, SLOTS = 64, ELEMENTS = 3 };
enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ADD, SWAP, KINDS };

struct op {
	enum kind kind;
	uint32_t length, from, at, landing, imm;
	uint32_t parts[ELEMENTS];
	int count, flags;
	uint64_t compare, value;
};

/* Operations of one end on one pair, in order. */
struct script {
	struct op ops[OPS];
	int count, takes;
};

static struct {
	int pairs, sq, rq, sges, inlined, signal_all, srq, one_cq, channel, ord, longest, ops, iwarp;
	enum ibv_mtu mtu;
} config;

/* How a pair fails in a round, at which end, and the place of the work request that does. */
enum failure { NONE, WRITE_KEY, WRITE_BOUNDS, READ_KEY, READ_BOUNDS, LOCAL_KEY, LANDING_KEY, TOO_LONG, MISALIGNED, FAILURES, CUT };
static struct { enum failure kind; int who, place; } failing;
static int failing_pair;

static uint64_t seed;
/* Random states of both ends, which draw the same, and of this end. */
static uint64_t joint, own;
static int end;
static int slot_len;
static struct script scripts[2][PAIRS];
/* Contents of the own target and of the peer's, and of the own landing area. */
static unsigned char *model[2][PAIRS], *landed[PAIRS];

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static uint64_t draw(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15); }
/* From 0 up to `n`, which is left out. */
static uint32_t below(uint64_t *state, uint32_t n) { return n ? draw(state) % n : 0; }
static int one_in(uint64_t *state, uint32_t n) { return below(state, n) == 0; }

static unsigned char octet_of(int of, uint32_t place) { return mix(seed * 31 + of * 7919 + place / 8) >> (place % 8 * 8); }

static void draw_config(void)
{
	static const int depths[] = { 1, 2, 3, 8, 16, 64 }, longest[] = { 100, 600, 5000, 20000, 150000 }, inlined[] = { 0, 16, 64, 200 };
	joint = mix(seed);
	config.pairs = 1 + below(&joint, PAIRS);
	config.sq = depths[below(&joint, 6)];
	config.rq = depths[below(&joint, 6)];
	config.sges = 1 + below(&joint, ELEMENTS);
	config.inlined = inlined[below(&joint, 4)];
	config.signal_all = one_in(&joint, 4);
	config.srq = one_in(&joint, 3);
	config.one_cq = one_in(&joint, 2);
	config.channel = one_in(&joint, 2);
	config.ord = 1 + below(&joint, 8);
	config.longest = longest[below(&joint, 5)];
	config.mtu = 1 + below(&joint, 5);
	config.ops = 1 + below(&joint, OPS);
	slot_len = config.longest + 16;
	struct ibv_device_attr device;
	CHECK(ibv_query_device(context, &device) == 0);
	config.iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;
}

static enum failure fails(int p) { return p == failing_pair ? failing.kind : NONE; }

static uint32_t draw_length(void)
{
	if (one_in(&joint, 12))
		return 0;
	return 1 + below(&joint, one_in(&joint, 2) ? (config.longest < 300 ? config.longest : 300) : config.longest);
}

/* Draws one end's operations on a pair, and does them on the models. */
static void draw_script(int of, int p)
{
	struct script *it = &scripts[of][p];
	unsigned char *to = model[of == end][p];
	memset(it, 0, sizeof *it);
	it->count = below(&joint, config.ops + 1);
	uint32_t landing_at = 0, read_first = AREA, read_end = 0;
	int unsignaled = 0, bad = fails(p) && fails(p) != CUT ? failing.place : OPS;
	if (bad < OPS)
		it->count = failing.who == of ? bad + 1 + (fails(p) == LANDING_KEY ? 0 : below(&joint, 4)) : 0;
	for (int i = 0; i < it->count; i++) {
		struct op *op = &it->ops[i];
		static const enum kind kinds[] = { SEND, WRITE, WRITE, READ, READ, WRITE, READ, SEND, ADD };
		op->kind = i == bad ? kinds[fails(p)] : config.iwarp ? kinds[below(&joint, 4)] : below(&joint, KINDS);
		op->length = op->kind >= ADD ? 8 : i == bad ? 1 + below(&joint, config.longest) : draw_length();
		if (i == bad && failing.kind == TOO_LONG)
			op->length = config.longest + 1 + below(&joint, 3000);
		op->from = below(&joint, AREA - op->length);
		op->at = below(&joint, AREA - op->length);
		if (op->kind >= ADD)
			op->at &= ~7u;
		if (op->kind >= READ && landing_at + op->length > AREA) {
			op->kind = WRITE;
			op->length = 8;
		}
		op->imm = draw(&joint);
		op->count = op->kind >= ADD ? 1 : below(&joint, config.sges + 1);
		if (op->count == 0 && op->length)
			op->count = 1;
		uint32_t left = op->length;
		for (int e = 0; e < op->count; e++) {
			op->parts[e] = e + 1 == op->count ? left : below(&joint, left + 1);
			left -= op->parts[e];
		}
		if (one_in(&joint, 3))
			op->flags |= IBV_SEND_SOLICITED;
		if (one_in(&joint, 10))
			op->flags |= IBV_SEND_FENCE;
		if (i != bad && op->kind < READ && (int)op->length <= config.inlined && one_in(&joint, 2))
			op->flags |= IBV_SEND_INLINE;
		if (op->kind >= READ) {
			op->landing = landing_at;
			landing_at += op->length;
		}
		/* Reads and atomics may be overtaken by later ones that change their memory, unless those are fenced. */
		int changes = op->kind == WRITE || op->kind == WRITE_IMM || op->kind >= ADD;
		if (changes && op->at < read_end && op->at + op->length > read_first)
			op->flags |= IBV_SEND_FENCE;
		if (i == bad && failing.kind == WRITE_BOUNDS)
			op->flags |= IBV_SEND_FENCE;
		if (op->flags & IBV_SEND_FENCE)
			read_first = AREA, read_end = 0;
		if (op->kind >= READ) {
			read_first = op->at < read_first ? op->at : read_first;
			read_end = op->at + op->length > read_end ? op->at + op->length : read_end;
		}
		unsignaled++;
		if (one_in(&joint, 2) || unsignaled == config.sq || i + 1 == it->count || config.signal_all) {
			op->flags |= IBV_SEND_SIGNALED;
			unsignaled = 0;
		}
		op->compare = draw(&joint);
		op->value = draw(&joint);
		uint64_t word;
		memcpy(&word, to + (op->at & ~7u), 8);
		if (op->kind == SWAP && one_in(&joint, 2))
			op->compare = word;
		if (i >= bad)
			continue;
		switch (op->kind) {
		case WRITE: case WRITE_IMM:
			for (uint32_t n = 0; n < op->length; n++)
				to[op->at + n] = octet_of(of, op->from + n);
			break;
		case READ:
			if (of == end)
				memcpy(landed[p] + op->landing, to + op->at, op->length);
			break;
		case ADD: case SWAP:
			if (of == end)
				memcpy(landed[p] + op->landing, &word, 8);
			if (op->kind == ADD)
				word += op->value;
			else if (word == op->compare)
				word = op->value;
			memcpy(to + op->at, &word, 8);
			break;
		default:
			break;
		}
		it->takes += op->kind == SEND || op->kind == SEND_IMM || op->kind == WRITE_IMM;
	}
}
