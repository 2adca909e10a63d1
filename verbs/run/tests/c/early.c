/* Messages that are posted before the connection is up leave although the program takes their queue pair out of service at once: a NIC needs no connection before
 * the first message. Argument: a GID index. */
#include "pair.h"

enum end { ERROR, DESTROY, EXIT };
enum { LENGTH = 3000 };

static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void make_cq(void)
{
	CHECK((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 64, NULL, channel, 0)));
}

/* Two messages, of which one is inline and none is signaled. */
static void post_two(struct ibv_qp *qp)
{
	struct ibv_sge sges[] = { { (uintptr_t)memory, 64, mr->lkey }, { (uintptr_t)memory, LENGTH, mr->lkey } };
	struct ibv_send_wr second = { .wr_id = 2, .sg_list = &sges[1], .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_send_wr first = {
		.wr_id = 1, .next = &second, .sg_list = &sges[0], .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
	};
	CHECK(ibv_post_send(qp, &first, &bad) == 0);
}

static void end_in_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
}

/* The next completion, after which the program has polled or slept. */
static struct ibv_wc next(int sleeps)
{
	struct ibv_wc wc;
	void *of;
	while (sleeps) {
		struct ibv_cq *at;
		struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
		CHECK(poll(&entry, 1, 8000) == 1 && ibv_get_cq_event(channel, &at, &of) == 0);
		ibv_ack_cq_events(at, 1);
	}
	return next_of(cq);
}

static void two_came(void)
{
	for (int i = 1; i <= 2; i++) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.wr_id == (uint64_t)i && wc.status == IBV_WC_SUCCESS && wc.byte_len == (i == 1 ? 64 : LENGTH));
	}
	CHECK(memcmp(memory, memory + HALF, LENGTH) == 0);
	memset(memory + HALF, 0, LENGTH);
}

/* In one process: either of two queue pairs, whose numbers decide which end connects, in two lives. */
static void in_one_process(enum end end, int higher, int sleeps)
{
	struct ibv_qp *one = make_qp(), *other = make_qp();
	int swap = (one->qp_num > other->qp_num) != higher;
	struct ibv_qp *qp = swap ? other : one, *peer = swap ? one : other;
	for (int life = 0; life < 2; life++) {
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		psn_shift += 1000;
		CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0 && ibv_modify_qp(peer, &reset, IBV_QP_STATE) == 0);
		connect_to(peer, qp);
		for (int i = 1; i <= 3; i++)
			post_recv(peer, i, memory + HALF, HALF);
		connect_to(qp, peer);
		post_two(qp);
		if (end == DESTROY && life == 1) {
			CHECK(ibv_destroy_qp(qp) == 0);
			qp = NULL;
		} else {
			end_in_error(qp);
		}
		/* Those that have left are flushed, as they were not acknowledged, or are silent. */
		for (int left = 2; left;) {
			struct ibv_wc wc = next(sleeps);
			if (wc.status == IBV_WC_WR_FLUSH_ERR && qp && wc.qp_num == qp->qp_num)
				continue;
			CHECK(wc.wr_id == (uint64_t)(3 - left--) && wc.status == IBV_WC_SUCCESS);
		}
		CHECK(memcmp(memory, memory + HALF, LENGTH) == 0);
		memset(memory + HALF, 0, LENGTH);
	}
	CHECK((!qp || ibv_destroy_qp(qp) == 0) && ibv_destroy_qp(peer) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

/* From another process, which ends. */
static void from_a_process(int argc, char **argv, enum end end)
{
	int there[2], back[2], status;
	struct ibv_qp peer;
	CHECK(pipe(there) == 0 && pipe(back) == 0);
	pid_t child = fork();
	CHECK(child >= 0 && close(child ? there[0] : there[1]) == 0 && close(child ? back[1] : back[0]) == 0);
	open_device(argc, argv);
	make_cq();
	memset(memory, 0x5a, LENGTH);
	struct ibv_qp *qp = make_qp();
	int out = child ? there[1] : back[1], in = child ? back[0] : there[0];
	CHECK(write(out, &qp->qp_num, sizeof qp->qp_num) == sizeof qp->qp_num);
	CHECK(read(in, &peer.qp_num, sizeof peer.qp_num) == sizeof peer.qp_num);
	if (child == 0) {
		char ready;
		CHECK(read(in, &ready, 1) == 1);
		connect_to(qp, &peer);
		post_two(qp);
		if (end == ERROR)
			end_in_error(qp);
		if (end == DESTROY)
			CHECK(ibv_destroy_qp(qp) == 0);
		exit(0);
	}
	connect_to(qp, &peer);
	for (int i = 1; i <= 2; i++)
		post_recv(qp, i, memory + HALF, HALF);
	CHECK(write(out, "r", 1) == 1);
	two_came();
	CHECK(waitpid(child, &status, 0) == child && status == 0 && close(in) == 0 && close(out) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

int main(int argc, char **argv)
{
	for (enum end end = ERROR; end <= EXIT; end++)
		from_a_process(argc, argv, end);
	open_device(argc, argv);
	make_cq();
	memset(memory, 0x5a, LENGTH);
	for (enum end end = ERROR; end <= DESTROY; end++)
		for (int way = 0; way < 4; way++)
			in_one_process(end, way & 1, way >> 1);
	/* A peer that does not come keeps nobody for long. */
	struct ibv_qp *qp = make_qp(), *nobody = make_qp();
	connect_to(qp, nobody);
	post_two(qp);
	time_t began = time(NULL);
	CHECK(ibv_destroy_qp(qp) == 0 && time(NULL) - began <= 4);
	puts("ok");
	return 0;
}
