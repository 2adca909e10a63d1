/* Eight threads post to one queue pair and poll its queues, each uses a queue pair of its own beside, and another thread makes and destroys queue
 * pairs on the same completion queues. Nothing is lost, comes twice, or overtakes. Argument: a GID index. */
#include <sched.h>
#include "pair.h"

enum { THREADS = 8, EACH = 250, ALL = THREADS * EACH, OWN_SLOTS = 8, LIVES = 10, SECONDS = 50 };

/* Numbers of work requests that are nobody's business. */
#define STRANGER UINT64_MAX

static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *from, *to;
static unsigned char sent[ALL], received[ALL];
static int all_sent, all_received, running = THREADS;
static time_t end;

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_cq *sends, struct ibv_cq *receives, uint32_t max_recv)
{
	struct ibv_qp_init_attr init = {
		.send_cq = sends, .recv_cq = receives, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = max_recv, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Posts a number as a message; whether there was room for it. */
static int post_number(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)&id, sizeof id, 0 };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
	}, *bad;
	int error = ibv_post_send(qp, &wr, &bad);
	CHECK(error == 0 || error == ENOMEM);
	return error == 0;
}

static void once(unsigned char *seen, int *count, uint64_t id)
{
	CHECK(id < ALL && __atomic_exchange_n(&seen[id], 1, __ATOMIC_SEQ_CST) == 0);
	__atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
}

static void poll_shared(void)
{
	struct ibv_wc wcs[3];
	int n = ibv_poll_cq(send_cq, 3, wcs);
	CHECK(n >= 0 && time(NULL) < end);
	for (int i = 0; i < n; i++) {
		if (wcs[i].wr_id == STRANGER)
			continue;
		CHECK(wcs[i].status == IBV_WC_SUCCESS && wcs[i].opcode == IBV_WC_SEND && wcs[i].qp_num == from->qp_num);
		once(sent, &all_sent, wcs[i].wr_id);
	}
	n = ibv_poll_cq(recv_cq, 3, wcs);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		if (wcs[i].wr_id == STRANGER)
			continue;
		CHECK(wcs[i].status == IBV_WC_SUCCESS && wcs[i].byte_len == 8 && wcs[i].qp_num == to->qp_num);
		once(received, &all_received, wcs[i].wr_id);
	}
}

/* State of one thread. */
struct own {
	struct ibv_cq *cq;
	struct ibv_qp *from, *to;
	uint64_t *slots, next_sent, next_received;
};

static void poll_own(struct own *own)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(own->cq, 1, &wc);
	CHECK(n >= 0 && time(NULL) < end);
	if (n == 0)
		return;
	CHECK(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode == IBV_WC_SEND) {
		CHECK(wc.wr_id == own->next_sent++);
		return;
	}
	CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == own->next_received % OWN_SLOTS);
	CHECK(own->slots[wc.wr_id] == own->next_received++);
	post_recv(own->to, wc.wr_id, &own->slots[wc.wr_id], 8);
}

static void *worker(void *argument)
{
	uint64_t number = (uintptr_t)argument;
	struct own own = { .slots = (uint64_t *)(memory + HALF) + number * OWN_SLOTS };
	CHECK((own.cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	own.from = make_qp(IBV_QPT_RC, own.cq, own.cq, 1);
	own.to = make_qp(IBV_QPT_RC, own.cq, own.cq, OWN_SLOTS);
	connect_to(own.from, own.to);
	connect_to(own.to, own.from);
	for (uint64_t slot = 0; slot < OWN_SLOTS; slot++)
		post_recv(own.to, slot, &own.slots[slot], 8);
	for (uint64_t i = 0; i < EACH; i++) {
		while (!post_number(from, number * EACH + i))
			poll_shared();
		while (!post_number(own.from, i))
			poll_own(&own);
		poll_shared();
		poll_own(&own);
	}
	while (own.next_sent < EACH || own.next_received < EACH)
		poll_own(&own);
	while (__atomic_load_n(&all_sent, __ATOMIC_SEQ_CST) < ALL || __atomic_load_n(&all_received, __ATOMIC_SEQ_CST) < ALL)
		poll_shared();
	CHECK(ibv_destroy_qp(own.from) == 0 && ibv_destroy_qp(own.to) == 0 && ibv_destroy_cq(own.cq) == 0);
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Queue pairs come and go, with work of theirs under way. */
static void *others(void *unused)
{
	for (int life = 0; life < LIVES || __atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0; life++) {
		struct ibv_qp *one = make_qp(IBV_QPT_RC, send_cq, recv_cq, 4), *two = make_qp(IBV_QPT_RC, recv_cq, send_cq, 4);
		connect_to(one, two);
		connect_to(two, one);
		post_recv(two, STRANGER, memory + ROOM - 8, 8);
		for (int i = 0; i < 3; i++)
			CHECK(post_number(one, STRANGER));
		sched_yield();
		CHECK(ibv_destroy_qp(life % 2 ? one : two) == 0 && ibv_destroy_qp(life % 2 ? two : one) == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS + 1];
	open_device(argc, argv);
	end = time(NULL) + SECONDS;
	CHECK((send_cq = ibv_create_cq(context, 2 * ALL, NULL, NULL, 0)));
	CHECK((recv_cq = ibv_create_cq(context, 2 * ALL, NULL, NULL, 0)));
	from = make_qp(IBV_QPT_RC, send_cq, recv_cq, 1);
	to = make_qp(IBV_QPT_RC, send_cq, recv_cq, ALL);
	connect_to(from, to);
	connect_to(to, from);
	uint64_t *slots = (uint64_t *)memory;
	for (uint64_t slot = 0; slot < ALL; slot++)
		post_recv(to, slot, &slots[slot], 8);
	for (uintptr_t i = 0; i <= THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, i < THREADS ? worker : others, (void *)i) == 0);
	for (int i = 0; i <= THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	/* Receives are taken in order, so the slots show the order in which the messages came. */
	uint64_t next[THREADS] = {};
	for (int slot = 0; slot < ALL; slot++) {
		uint64_t thread = slots[slot] / EACH;
		CHECK(thread < THREADS && slots[slot] % EACH == next[thread]++);
	}
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
