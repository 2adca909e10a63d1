/* Two threads send each other a message to and fro, and sleep on their completion channels for it. Each message costs one sleep, of the thread that it
 * is for: no other thread stands between. Arguments: a GID index, DGIWARP_SAME_HOST, and the sleeps allowed for ten messages. */
#include <sys/resource.h>
#include "pair.h"

enum { MESSAGES = 2000, WARM_UP = 200 };

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char *memory;
	int begins;
};

static pthread_barrier_t warm;

static void make_end(struct end *end, int number)
{
	end->memory = memory + number * HALF;
	end->begins = number == 0;
	CHECK((end->channel = ibv_create_comp_channel(context)));
	CHECK((end->cq = ibv_create_cq(context, 16, NULL, end->channel, 0)));
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((end->qp = ibv_create_qp(pd, &init)) && ibv_req_notify_cq(end->cq, 0) == 0);
}

static void send_message(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(end->qp, &wr, &bad) == 0);
}

/* Sleeps until a message has come. */
static void await_message(struct end *end)
{
	for (;;) {
		struct ibv_wc wc;
		int came = 0, n;
		while ((n = ibv_poll_cq(end->cq, 1, &wc)) > 0) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			came |= wc.opcode == IBV_WC_RECV;
		}
		CHECK(n == 0);
		if (came)
			return;
		struct ibv_cq *cq;
		void *unused;
		CHECK(ibv_get_cq_event(end->channel, &cq, &unused) == 0 && cq == end->cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
}

static void *to_and_fro(void *argument)
{
	struct end *end = argument;
	for (int i = 0; i < WARM_UP + MESSAGES; i++) {
		if (i == WARM_UP) {
			pthread_barrier_wait(&warm);
			pthread_barrier_wait(&warm);
		}
		if (end->begins)
			send_message(end);
		await_message(end);
		post_recv(end->qp, 2, end->memory + 64, 64);
		if (!end->begins)
			send_message(end);
	}
	return NULL;
}

/* Sleeps of the whole process, and the time in milliseconds. */
static long sleeps(long *milliseconds)
{
	struct rusage usage;
	struct timespec now;
	CHECK(getrusage(RUSAGE_SELF, &usage) == 0 && clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	*milliseconds = now.tv_sec * 1000 + now.tv_nsec / 1000000;
	return usage.ru_nvcsw;
}

int main(int argc, char **argv)
{
	struct end ends[2];
	pthread_t threads[2];
	long start, now;
	CHECK(argc == 4 && setenv("DGIWARP_SAME_HOST", argv[2], 1) == 0);
	open_device(2, argv);
	for (int i = 0; i < 2; i++)
		make_end(&ends[i], i);
	for (int i = 0; i < 2; i++) {
		connect_to(ends[i].qp, ends[1 - i].qp);
		post_recv(ends[i].qp, 2, ends[i].memory + 64, 64);
	}
	CHECK(pthread_barrier_init(&warm, NULL, 3) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, to_and_fro, &ends[i]) == 0);
	pthread_barrier_wait(&warm);
	long before = sleeps(&start);
	pthread_barrier_wait(&warm);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	long after = sleeps(&now);
	/* The background thread polls every millisecond at most. A message that another thread handed on would cost two. */
	long allowed = 2L * MESSAGES * atol(argv[3]) / 10 + (now - start) + 100;
	if (after - before > allowed)
		fprintf(stderr, "%ld sleeps for %d messages in %ld ms\n", after - before, 2 * MESSAGES, now - start);
	CHECK(after - before <= allowed);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(ends[i].qp) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_cq(ends[i].cq) == 0 && ibv_destroy_comp_channel(ends[i].channel) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
