/* Extended completion queues, and what every completion queue can do since. Argument: a GID index. */
#include "pair.h"

static struct ibv_qp *from, *to;

static struct ibv_qp *make_qp(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, uint32_t depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	connect_to(qp, qp);
	return qp;
}

static struct ibv_ah *ah;

static void post_send(struct ibv_qp *qp, uint64_t id, uint32_t length, uint32_t remote)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(id + 100),
		.send_flags = IBV_SEND_SIGNALED, .wr.ud = { ah, remote, QKEY },
	}, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static uint64_t device_time(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
}

static uint64_t wall_time(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void creation(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_TM_INFO };
	REFUSED(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init.wc_flags = IBV_WC_EX_WITH_CVLAN;
	REFUSED(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init = (struct ibv_cq_init_attr_ex) { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 9 };
	REFUSED(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init = (struct ibv_cq_init_attr_ex) { .cqe = 0 };
	REFUSED(ibv_create_cq_ex(context, &init), EINVAL);
	init = (struct ibv_cq_init_attr_ex) { .cqe = 16, .comp_vector = 1 };
	REFUSED(ibv_create_cq_ex(context, &init), EINVAL);
	struct ibv_device_attr_ex device;
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.completion_timestamp_mask == UINT64_MAX && device.hca_core_clock == 1000000);
}

static void start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr none = {};
	time_t end = time(NULL) + 8;
	int status;
	while ((status = ibv_start_poll(cq, &none)) == ENOENT)
		CHECK(time(NULL) < end);
	CHECK(status == 0);
}

static void iteration(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex init = {
		.cqe = 32, .cq_context = &ah, .channel = channel,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	CHECK(channel && cq && cq->channel == channel && cq->cq_context == &ah && cq->cqe == 32);
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	from = make_qp(plain, plain, 8);
	to = make_qp(plain, plain, 8);
	struct ibv_poll_cq_attr none = {}, unknown = { .comp_mask = 1 };
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	CHECK(ibv_start_poll(cq, &unknown) == EINVAL);
	CHECK(ibv_req_notify_cq(plain, 0) == 0);

	for (int i = 0; i < 3; i++)
		post_recv(to, 50 + i, memory + HALF + 1024 * i, 1024);
	uint64_t before = device_time(), wall_before = wall_time();
	for (int i = 0; i < 3; i++)
		post_send(from, i, 10 + i, to->qp_num);
	void *cq_context;
	struct ibv_cq *told;
	CHECK(ibv_get_cq_event(channel, &told, &cq_context) == 0 && told == plain && cq_context == &ah);
	ibv_ack_cq_events(plain, 1);

	/* Some in one go, the rest in others; each once. */
	int sends = 0, receives = 0;
	uint64_t last = before;
	while (sends + receives < 6) {
		start(cq);
		do {
			CHECK(cq->status == IBV_WC_SUCCESS);
			uint64_t stamp = ibv_wc_read_completion_ts(cq), wall = ibv_wc_read_completion_wallclock_ns(cq);
			CHECK(stamp >= last && stamp <= device_time());
			/* The clocks are read one after the other, perhaps with other programs between. */
			CHECK(wall + 1000000000 >= wall_before && wall <= wall_time() + 1000000000);
			last = stamp;
			if (ibv_wc_read_opcode(cq) == IBV_WC_SEND) {
				CHECK(cq->wr_id == sends++ && ibv_wc_read_qp_num(cq) == from->qp_num);
			} else {
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && cq->wr_id == 50 + receives);
				CHECK(ibv_wc_read_byte_len(cq) == 40 + 10 + receives);
				CHECK(ibv_wc_read_imm_data(cq) == htonl(100 + receives));
				CHECK(ibv_wc_read_wc_flags(cq) == (IBV_WC_WITH_IMM | IBV_WC_GRH));
				CHECK(ibv_wc_read_src_qp(cq) == from->qp_num && ibv_wc_read_qp_num(cq) == to->qp_num);
				CHECK(ibv_wc_read_sl(cq) <= 15);
				CHECK(ibv_wc_read_vendor_err(cq) == 0);
				receives++;
			}
		} while (sends + receives < 4 && ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	CHECK(last > before && ibv_start_poll(cq, &none) == ENOENT);

	/* The same queue through the plain call. */
	post_recv(to, 60, memory + HALF, 1024);
	post_send(from, 9, 3, to->qp_num);
	int seen = 0;
	for (int i = 0; i < 2; i++)
		seen += next_of(plain).wr_id;
	CHECK(seen == 69);

	/* A bad completion: the local key is wrong. */
	struct ibv_sge sge = { (uintptr_t)memory, 10, mr->lkey ^ 0x5555 };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, to->qp_num, QKEY } }, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	start(cq);
	CHECK(cq->status == IBV_WC_LOC_PROT_ERR && cq->wr_id == 77);
	CHECK(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);

	CHECK(ibv_destroy_cq(plain) == EBUSY);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_destroy_cq(plain) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static struct ibv_cq_ex *shared_cq;
static int taken[2];

static void *taker(void *which)
{
	int *mine = which;
	struct ibv_poll_cq_attr none = {};
	while (__atomic_load_n(&taken[0], __ATOMIC_RELAXED) + __atomic_load_n(&taken[1], __ATOMIC_RELAXED) < 400) {
		if (ibv_start_poll(shared_cq, &none)) {
			sched_yield();
			continue;
		}
		do {
			uint64_t id = shared_cq->wr_id;
			sched_yield();
			CHECK(id == shared_cq->wr_id && ibv_wc_read_byte_len(shared_cq) >= 0);
			__atomic_fetch_add(mine, 1, __ATOMIC_RELAXED);
		} while (*mine % 5 && ibv_next_poll(shared_cq) == 0);
		ibv_end_poll(shared_cq);
	}
	return NULL;
}

static void threads(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 512, .wc_flags = IBV_WC_STANDARD_FLAGS };
	CHECK((shared_cq = ibv_create_cq_ex(context, &init)));
	struct ibv_qp *qp = make_qp(ibv_cq_ex_to_cq(shared_cq), ibv_cq_ex_to_cq(shared_cq), 512);
	pthread_t thread[2];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, taker, &taken[i]) == 0);
	for (int i = 0; i < 400; i++)
		post_send(qp, i, 1, 9);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(taken[0] + taken[1] == 400);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(shared_cq)) == 0);
}

/* Posts, perhaps by another thread, and returns when the completion is in the queue. */
static void post_and_wait(struct ibv_qp *qp, struct ibv_cq *cq, uint64_t id)
{
	struct ibv_cq *told;
	void *cq_context;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	post_send(qp, id, 1, 9);
	CHECK(ibv_get_cq_event(cq->channel, &told, &cq_context) == 0 && told == cq);
	ibv_ack_cq_events(cq, 1);
}

/* Waits for the next event. */
static void event(enum ibv_event_type type)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(context, &event) == 0 && event.event_type == type);
	ibv_ack_async_event(&event);
}

static void sizes(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(context, 2, NULL, channel, 0);
	struct ibv_qp *qp = make_qp(cq, cq, 16);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, 1 << 30) == EINVAL && cq->cqe == 2);
	CHECK(ibv_resize_cq(cq, 8) == 0 && cq->cqe == 8);
	for (int i = 0; i < 8; i++)
		post_and_wait(qp, cq, i);
	CHECK(ibv_resize_cq(cq, 7) == EINVAL && cq->cqe == 8);
	for (int i = 0; i < 8; i++)
		success(cq, i, IBV_WC_SEND);
	CHECK(ibv_resize_cq(cq, 2) == 0);
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	CHECK(ibv_modify_cq(cq, &moderation) == EOPNOTSUPP);

	/* One more than fits: those before it come, then an error, and other queues go on. */
	struct ibv_wc wc;
	for (int i = 0; i < 3; i++)
		post_send(qp, i, 1, 9);
	event(IBV_EVENT_CQ_ERR);
	success(cq, 0, IBV_WC_SEND);
	success(cq, 1, IBV_WC_SEND);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);

	/* One more than fits, and it is lost. It arrives, so it was sent while there was no room. */
	struct ibv_cq_init_attr_ex init = {
		.cqe = 2, .channel = channel, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &init));
	qp = make_qp(cq, cq, 16);
	struct ibv_cq *arrivals = ibv_create_cq(context, 2, NULL, NULL, 0);
	to = make_qp(arrivals, arrivals, 16);
	post_recv(to, 60, memory + HALF, 1024);
	for (int i = 0; i < 2; i++)
		post_and_wait(qp, cq, i);
	post_send(qp, 2, 1, to->qp_num);
	success(arrivals, 60, IBV_WC_RECV);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr qp_init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &qp_init) == 0 && attr.qp_state == IBV_QPS_RTS);
	success(cq, 0, IBV_WC_SEND);
	success(cq, 1, IBV_WC_SEND);
	quiet(cq);
	post_send(qp, 4, 1, 9);
	success(cq, 4, IBV_WC_SEND);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(arrivals) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	struct ibv_ah_attr attr = own_address();
	CHECK((ah = ibv_create_ah(pd, &attr)));
	creation();
	iteration();
	threads();
	sizes();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
