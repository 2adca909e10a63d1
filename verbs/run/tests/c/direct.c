/* The direct verbs, within one process: what they answer where the examples do not go. Argument: a GID index. */
#include "pair.h"
#include <infiniband/dgiwarpdv.h>
#include <signal.h>
#include <sys/time.h>

#define FAILS(call, number)                                                                                            \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == (number));                                                              \
	} while (0)

/* Arrivals; and sends, which may complete before or after them. */
static struct ibv_cq *cq, *sends;

static struct ibv_qp *make(enum ibv_qp_type type, const struct dgiwarpdv_qp_init_attr *dv)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sends, .recv_cq = cq, .qp_type = type, .pd = pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  (type == IBV_QPT_UC ? 0 : IBV_QP_EX_WITH_RDMA_READ),
	};
	return dgiwarpdv_create_qp(context, &init, dv);
}

static struct dgiwarpdv_qp_init_attr with_records(uint32_t slots)
{
	return (struct dgiwarpdv_qp_init_attr){
		.size = sizeof(struct dgiwarpdv_qp_init_attr), .flags = DGIWARPDV_QP_RECORDS, .record_slots = slots,
	};
}

static struct ibv_wc wait_wc(struct ibv_cq *on)
{
	struct ibv_wc wc;
	CHECK(dgiwarpdv_wait_cq(on, 30000, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void creation(void)
{
	struct dgiwarpdv_qp_init_attr dv = with_records(4);
	CHECK(dgiwarpdv_version() == DGIWARPDV_VERSION);
	CHECK(dgiwarpdv_is_supported(context->device) && !dgiwarpdv_is_supported(NULL));
	REFUSED(make(IBV_QPT_RC, &dv), EOPNOTSUPP);
	dv.flags = 1 << 30;
	REFUSED(make(IBV_QPT_UD, &dv), EOPNOTSUPP);
	dv = with_records(70000);
	REFUSED(make(IBV_QPT_UD, &dv), EINVAL);
	dv = with_records(4);
	dv.reorder_window = 1024;
	REFUSED(make(IBV_QPT_UD, &dv), EINVAL);
	dv = with_records(4);
	dv.size = 0;
	REFUSED(make(IBV_QPT_UD, &dv), EINVAL);

	/* A program of a later version, which asks for nothing that this one lacks, or for something. */
	struct { struct dgiwarpdv_qp_init_attr known; uint64_t later; } longer = { with_records(4), 0 };
	longer.known.size = sizeof longer;
	struct ibv_qp *qp = make(IBV_QPT_UD, &longer.known);
	CHECK(qp && ibv_destroy_qp(qp) == 0);
	longer.later = 1;
	REFUSED(make(IBV_QPT_UD, &longer.known), EOPNOTSUPP);

	/* Plain queue pairs, and ones that have nothing to do with records. */
	CHECK((qp = make(IBV_QPT_RC, NULL)));
	uint64_t values[DGIWARPDV_COUNTERS + 1] = { [DGIWARPDV_COUNTERS] = 7 };
	CHECK(dgiwarpdv_query_counters(qp, values, DGIWARPDV_COUNTERS + 1) == DGIWARPDV_COUNTERS && !values[DGIWARPDV_COUNTERS]);
	CHECK(dgiwarpdv_query_device_counters(context, values, 0) == DGIWARPDV_COUNTERS);
	FAILS(dgiwarpdv_query_counters(qp, NULL, 1), EINVAL);
	FAILS(dgiwarpdv_record_complete_now(qp), EOPNOTSUPP);
	FAILS(dgiwarpdv_set_max_rate(qp, 1), EOPNOTSUPP);
	FAILS(dgiwarpdv_take_read_map(qp, 0, NULL, NULL, 0), EOPNOTSUPP);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	connect_to(qp, qp);
	ibv_wr_start(ex);
	dgiwarpdv_wr_write_record(ex, mr->rkey, (uintptr_t)memory);
	CHECK(ibv_wr_complete(ex) == EOPNOTSUPP && ibv_destroy_qp(qp) == 0);
}

/* The QPN of the one is taken for the other. */
static void bound(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct dgiwarpdv_qp_init_attr dv = with_records(4);
	dv.bind_addr = (struct sockaddr *)&address;
	dv.bind_addr_len = sizeof address;
	struct ibv_qp *qp = make(IBV_QPT_UD, &dv);
	CHECK(qp);
	address.sin_port = htons(qp->qp_num);
	REFUSED(make(IBV_QPT_UD, &dv), EADDRINUSE);
	dv.bind_addr_len = 3;
	REFUSED(make(IBV_QPT_UD, &dv), EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void write_record(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_qp *to, uint32_t length)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = 77;
	ex->wr_flags = IBV_SEND_SIGNALED;
	dgiwarpdv_wr_write_record_imm(ex, mr->rkey, (uintptr_t)memory + HALF, htonl(length));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, length);
	if (ah)
		ibv_wr_set_ud_addr(ex, ah, to->qp_num, 0);
	CHECK(ibv_wr_complete(ex) == 0);
	struct ibv_wc wc = wait_wc(sends);
	CHECK(wc.wr_id == 77 && wc.opcode == IBV_WC_RDMA_WRITE);
}

/* A record and all that can be asked of it. */
static void look_at(struct ibv_qp *qp, struct ibv_qp *from, uint32_t length)
{
	struct ibv_wc wc = wait_wc(cq);
	CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD && (wc.opcode & IBV_WC_RECV) && wc.byte_len == length);
	CHECK(wc.qp_num == qp->qp_num && wc.src_qp == from->qp_num);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == htonl(length));

	struct dgiwarpdv_record_info info = { .size = sizeof info };
	CHECK(dgiwarpdv_record_info(qp, wc.wr_id, &info) == 0 && info.size == sizeof info);
	CHECK(info.remote_addr == (uintptr_t)memory + HALF && info.rkey == mr->rkey);
	CHECK(info.length == length && info.valid == length && info.num_ranges == 1);
	CHECK(info.flags == DGIWARPDV_RECORD_WITH_IMM && info.imm_data == htonl(length));
	CHECK(info.qpn == from->qp_num && !memcmp(&info.gid, &own_gid, 16));

	/* An older program gets the fields of its header, and a later one zeros. */
	memset(&info, 0xff, sizeof info);
	info.size = offsetof(struct dgiwarpdv_record_info, length);
	CHECK(dgiwarpdv_record_info(qp, wc.wr_id, &info) == 0 && info.rkey == mr->rkey && info.length == UINT32_MAX);
	struct { struct dgiwarpdv_record_info known; uint64_t later; } longer = { .known.size = sizeof longer, .later = 9 };
	CHECK(dgiwarpdv_record_info(qp, wc.wr_id, &longer.known) == 0 && longer.known.length == length && !longer.later);
	info.size = 0;
	FAILS(dgiwarpdv_record_info(qp, wc.wr_id, &info), EINVAL);

	struct dgiwarpdv_range range = { 9, 9 };
	CHECK(dgiwarpdv_record_ranges(qp, wc.wr_id, &range, 0) == 1 && range.end == 9);
	CHECK(dgiwarpdv_record_ranges(qp, wc.wr_id, &range, 1) == 1 && range.start == 0 && range.end == length);
	FAILS(dgiwarpdv_record_ranges(qp, wc.wr_id, NULL, 1), EINVAL);
	FAILS(dgiwarpdv_record_ranges(qp, wc.wr_id, &range, -1), EINVAL);
	unsigned char bits[3] = { 0, 0xff, 0xff };
	CHECK(dgiwarpdv_record_bitmap(qp, wc.wr_id, (length + 2) / 3, bits, 3) == 1 && bits[0] == 7 && !bits[1] && !bits[2]);
	FAILS(dgiwarpdv_record_bitmap(qp, wc.wr_id, 0, bits, 3), EINVAL);

	FAILS(dgiwarpdv_record_release(qp, wc.wr_id + 1), ENOENT);
	CHECK(dgiwarpdv_record_release(qp, wc.wr_id) == 0);
	FAILS(dgiwarpdv_record_release(qp, wc.wr_id), ENOENT);
	FAILS(dgiwarpdv_record_info(qp, wc.wr_id, &longer.known), ENOENT);
}

static void bitmaps(void)
{
	struct dgiwarpdv_range ranges[] = { { 0, 250 }, { 300, 1000 } };
	unsigned char bits[2];
	CHECK(dgiwarpdv_bitmap(1000, ranges, 2, 100, bits, 2) == 2 && bits[0] == 0xfb && bits[1] == 3);
	CHECK(dgiwarpdv_bitmap(1000, NULL, 0, 100, bits, 2) == 2 && !bits[0] && !bits[1]);
	FAILS(dgiwarpdv_bitmap(999, ranges, 2, 100, bits, 2), EINVAL);
	FAILS(dgiwarpdv_bitmap(1000, ranges, 2, 0, bits, 2), EINVAL);
}

static void datagrams(void)
{
	struct dgiwarpdv_qp_init_attr dv = with_records(1);
	struct ibv_qp *target = make(IBV_QPT_UD, &dv), *source = make(IBV_QPT_UD, NULL);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(target && source && ah);
	connect_to(target, target);
	connect_to(source, source);
	memset(memory, 'd', HALF);
	write_record(source, ah, target, 3000);
	look_at(target, source, 3000);
	CHECK(!memcmp(memory, memory + HALF, 3000));

	/* There is room for one record; the event reports that there was another. */
	CHECK(dgiwarpdv_enable_events(context) == 0);
	write_record(source, ah, target, 100);
	struct ibv_wc first = wait_wc(cq);
	write_record(source, ah, target, 200);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == DGIWARPDV_EVENT_RECORD_RING_FULL && event.element.qp == target);
	ibv_ack_async_event(&event);
	uint64_t values[DGIWARPDV_COUNTERS];
	CHECK(dgiwarpdv_query_counters(target, values, DGIWARPDV_COUNTERS) == DGIWARPDV_COUNTERS);
	CHECK(values[DGIWARPDV_DROPPED_RECORD_DROPPED] == 1 && values[DGIWARPDV_SEGMENTS_RECEIVED] >= 3);
	CHECK(first.byte_len == 100 && dgiwarpdv_record_release(target, first.wr_id) == 0);

	/* Nothing that this queue pair was not made for: without the flag it takes no records. */
	write_record(source, ah, source, 300);
	do {
		struct ibv_wc wc;
		CHECK(dgiwarpdv_wait_cq(cq, 1, 1, &wc) == 0);
		CHECK(dgiwarpdv_query_counters(source, values, DGIWARPDV_COUNTERS) > 0);
	} while (values[DGIWARPDV_DROPPED_WRITE_RECORD_OFF] == 0);

	/* A plain work request has room for one of the two addresses. */
	struct ibv_sge sge = { (uintptr_t)memory, 10, mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr.ud = { .ah = ah, .remote_qpn = target->qp_num },
	}, *bad;
	CHECK(ibv_post_send(source, &wr, &bad) == EINVAL && bad == &wr);

	/* A time limit is for Reads. */
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(source);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
	dgiwarpdv_wr_set_read_timeout(ex, 5);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	FAILS(dgiwarpdv_take_read_map(source, 5, NULL, NULL, 0), ENOENT);
	CHECK(dgiwarpdv_record_complete_now(target) == 0 && dgiwarpdv_set_max_rate(source, 1000000) == 0);
	struct dgiwarpdv_error error = { .size = sizeof error };
	CHECK(dgiwarpdv_poll_error(source, &error) == 0);
	errno = 0;
	CHECK(!dgiwarpdv_prove_address(source, ah, 9, 50) && errno == ETIMEDOUT);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(source) == 0 && ibv_destroy_qp(target) == 0);
}

static void connected(void)
{
	struct dgiwarpdv_qp_init_attr dv = with_records(2);
	struct ibv_qp *one = make(IBV_QPT_UC, &dv), *other = make(IBV_QPT_UC, &dv);
	CHECK(one && other);
	connect_to(one, other);
	connect_to(other, one);
	memset(memory, 'c', HALF);
	write_record(one, NULL, other, 5000);
	look_at(other, one, 5000);
	CHECK(!memcmp(memory, memory + HALF, 5000));
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

static void regions(void)
{
	struct dgiwarpdv_mr_init_attr attr = {
		.size = sizeof attr, .addr = memory, .length = ROOM, .access = ALL_REMOTE, .flags = DGIWARPDV_MR_WELL_KNOWN,
		.well_known = 0x5511,
	};
	struct ibv_mr *known = dgiwarpdv_reg_mr(pd, &attr);
	CHECK(known && known->rkey == 0x5511 && known->addr == memory && known->length == ROOM);
	REFUSED(dgiwarpdv_reg_mr(pd, &attr), EADDRINUSE);
	CHECK(ibv_dereg_mr(known) == 0);
	attr.well_known = 0;
	REFUSED(dgiwarpdv_reg_mr(pd, &attr), EADDRINUSE);
	attr.flags = DGIWARPDV_MR_ONLY_FROM;
	REFUSED(dgiwarpdv_reg_mr(pd, &attr), EINVAL);
	attr.flags = 1 << 20;
	REFUSED(dgiwarpdv_reg_mr(pd, &attr), EOPNOTSUPP);
	attr.flags = 0;
	attr.addr = NULL;
	REFUSED(dgiwarpdv_reg_mr(pd, &attr), EINVAL);
}

static void on_signal(int number)
{
	(void)number;
}

static void *wait_for_ever(void *unused)
{
	struct ibv_wc wc;
	dgiwarpdv_wait_cq(cq, -1, 1, &wc);
	return unused;
}

static void waiting(void)
{
	struct ibv_wc wc;
	CHECK(dgiwarpdv_wait_cq(cq, 0, 1, &wc) == 0 && dgiwarpdv_wait_cq(cq, 5, 1, &wc) == 0);
	FAILS(dgiwarpdv_wait_cq(cq, 5, 0, &wc), EINVAL);
	FAILS(dgiwarpdv_wait_cq(NULL, 5, 1, &wc), EINVAL);

	/* A signal ends the wait; it comes again and again, for it may come before the thread sleeps. */
	struct sigaction action = { .sa_handler = on_signal };
	struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	FAILS(dgiwarpdv_wait_cq(cq, -1, 1, &wc), EINTR);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);

	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (sends = ibv_create_cq(context, 64, NULL, NULL, 0)));
	creation();
	bound();
	bitmaps();
	datagrams();
	connected();
	regions();
	waiting();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(sends) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
