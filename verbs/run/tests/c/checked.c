/* Work for a sanitizer: two threads post to a connection and poll its queue, and datagrams arrive. A work request belongs to whichever
 * thread polls its completion. Arguments: a GID index, and a mistake to make: overflow, registered, leak, undefined, race, or
 * none. */
#include <limits.h>
#include <sched.h>
#include "pair.h"

enum { DEPTH = 16, ALL = 100, DATAGRAMS = 16, LENGTH = 64, GRH = 40, SLOT = 128, SECONDS = 100 };

struct request {
	int number;
	char text[LENGTH];
};

static struct ibv_cq *cq, *datagram_cq;
static struct ibv_qp *from, *to, *datagrams_from, *datagrams_to;
static int racy;
static time_t end;

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_cq *queue)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue, .recv_cq = queue, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Takes what is complete, whoever posted it. */
static int poll_requests(void)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(cq, 4, wc);
	CHECK(n >= 0 && time(NULL) < end);
	for (int i = 0; i < n; i++) {
		struct request *request = (struct request *)(uintptr_t)wc[i].wr_id;
		CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RDMA_WRITE);
		CHECK(request->number >= 0 && strcmp(request->text, "request") == 0);
		free(request);
	}
	return n;
}

/* The number of requests that the thread took. */
static int post_requests(int thread)
{
	int taken = 0;
	for (int i = 0; i < ALL; i++) {
		struct request *request = malloc(sizeof *request);
		CHECK(request);
		request->number = i;
		strcpy(request->text, "request");
		struct ibv_sge sge = { (uintptr_t)memory + 1024 * thread, LENGTH, mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = (uintptr_t)request, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { (uintptr_t)memory + HALF + 1024 * thread, mr->rkey },
		}, *bad;
		int error;
		while ((error = ibv_post_send(from, &wr, &bad)) == ENOMEM) {
			taken += poll_requests();
			sched_yield();
		}
		CHECK(error == 0);
		taken += poll_requests();
	}
	return taken;
}

static void *second_thread(void *races)
{
	intptr_t taken = post_requests(1);
	/* Nothing orders this and the same of the first thread. */
	if (races)
		racy++;
	return (void *)taken;
}

static void receive_datagram(void)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(datagram_cq, 1, &wc)) == 0)
		CHECK(time(NULL) < end);
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_RECV)
		return;
	unsigned char *slot = memory + wc.wr_id * SLOT;
	CHECK(wc.byte_len == GRH + LENGTH);
	for (int i = 0; i < LENGTH; i++)
		CHECK(slot[GRH + i] == 'd');
}

static void exchange_datagrams(void)
{
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	memset(memory + HALF, 'd', LENGTH);
	for (int i = 0; i < DATAGRAMS; i++)
		post_recv(datagrams_to, i, memory + i * SLOT, SLOT);
	struct ibv_sge sge = { (uintptr_t)memory + HALF, LENGTH, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, datagrams_to->qp_num, QKEY },
	}, *bad;
	for (int i = 0; i < DATAGRAMS; i++) {
		CHECK(ibv_post_send(datagrams_from, &wr, &bad) == 0);
		receive_datagram();
		receive_datagram();
	}
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void overflow(void)
{
	volatile char *bytes = malloc(10);
	CHECK(bytes);
	bytes[10] = 'x';
	free((void *)bytes);
}

/* More memory is registered than there is, and a Write of the peer reaches it, which is complete when its octets are there. */
static void registered(void)
{
	hear_from(from, to, cq);
	char *bytes = malloc(LENGTH / 2);
	struct ibv_mr *longer = bytes ? ibv_reg_mr(pd, bytes, LENGTH, ALL_REMOTE) : NULL;
	CHECK(longer);
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)bytes, longer->rkey },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(time(NULL) < end);
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && ibv_dereg_mr(longer) == 0);
	free(bytes);
}

static void leak(void)
{
	for (int i = 0; i < 100; i++) {
		char *volatile bytes = malloc(4321);
		CHECK(bytes);
		bytes = NULL;
	}
}

static int undefined(int number)
{
	return number + INT_MAX;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	const char *mistake = argv[2];
	open_device(2, argv);
	end = time(NULL) + SECONDS;
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	CHECK((datagram_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	from = make_qp(IBV_QPT_RC, cq);
	to = make_qp(IBV_QPT_RC, cq);
	connect_to(from, to);
	connect_to(to, from);
	datagrams_from = make_qp(IBV_QPT_UD, datagram_cq);
	datagrams_to = make_qp(IBV_QPT_UD, datagram_cq);
	connect_to(datagrams_from, datagrams_to);
	connect_to(datagrams_to, datagrams_from);
	exchange_datagrams();

	void *races = strcmp(mistake, "race") == 0 ? &racy : NULL, *taken_by_second;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, second_thread, races) == 0);
	int taken = post_requests(0);
	if (races)
		racy++;
	CHECK(pthread_join(thread, &taken_by_second) == 0);
	taken += (intptr_t)taken_by_second;
	while (taken < 2 * ALL)
		taken += poll_requests();
	if (strcmp(mistake, "overflow") == 0)
		overflow();
	if (strcmp(mistake, "registered") == 0)
		registered();
	if (strcmp(mistake, "leak") == 0)
		leak();
	if (strcmp(mistake, "undefined") == 0)
		CHECK(undefined(argc) != 0);

	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_destroy_qp(datagrams_from) == 0 && ibv_destroy_qp(datagrams_to) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(datagram_cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
