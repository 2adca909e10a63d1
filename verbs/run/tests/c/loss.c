/* Records of messages of which half is lost: DGIWARP_FAULT and DGIWARP_MTU see to that. Argument: a GID index. */
#include "pair.h"
#include <infiniband/dgiwarpdv.h>

enum { LENGTH = 30000, A_MINUTE = 60000 };

static struct ibv_cq *cq, *sends;

static struct ibv_qp *make(const struct dgiwarpdv_qp_init_attr *dv)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sends, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = dgiwarpdv_create_qp(context, &init, dv);
	CHECK(qp);
	connect_to(qp, qp);
	return qp;
}

static void write_to(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_qp *to)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + HALF);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, LENGTH);
	ibv_wr_set_ud_addr(ex, ah, to->qp_num, 0);
	CHECK(ibv_wr_complete(ex) == 0);
	CHECK(dgiwarpdv_wait_cq(sends, 30000, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Segments carry their offset, and the record stays open until it is completed. */
static void completed_on_demand(struct ibv_qp *source, struct ibv_ah *ah)
{
	static unsigned char valid[LENGTH];
	struct dgiwarpdv_qp_init_attr dv = {
		.size = sizeof dv, .flags = DGIWARPDV_QP_RECORDS | DGIWARPDV_QP_SEGMENT_COMPLETIONS, .record_timeout_ms = A_MINUTE,
	};
	struct ibv_qp *target = make(&dv);
	struct dgiwarpdv_record_info info = { .size = sizeof info };
	struct dgiwarpdv_range ranges[DGIWARPDV_MAX_RANGES];
	uint64_t record = 0;
	uint32_t bytes = 0;
	struct ibv_wc wc;

	write_to(source, ah, target);
	/* Half of more than twenty segments: at least one comes, and not all. */
	while (dgiwarpdv_wait_cq(cq, bytes ? 300 : 30000, 1, &wc) == 1) {
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == DGIWARPDV_WC_RECORD_SEGMENT && (!bytes || wc.wr_id == record));
		CHECK(wc.byte_len > 0 && wc.vendor_err + wc.byte_len <= LENGTH);
		for (uint32_t i = 0; i < wc.byte_len; i++)
			CHECK(!valid[wc.vendor_err + i]++);
		record = wc.wr_id;
		bytes += wc.byte_len;
	}
	CHECK(dgiwarpdv_record_info(target, record, &info) == 0 && info.valid >= bytes && info.valid < LENGTH);
	errno = 0;
	CHECK(dgiwarpdv_record_release(target, record) == -1 && errno == ENOENT);
	CHECK(dgiwarpdv_record_complete_now(target) == 0);
	do {
		CHECK(dgiwarpdv_wait_cq(cq, 30000, 1, &wc) == 1 && wc.wr_id == record);
	} while (wc.opcode == DGIWARPDV_WC_RECORD_SEGMENT);
	CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD && wc.byte_len >= bytes && wc.byte_len < LENGTH);
	uint32_t sum = 0;
	int count = dgiwarpdv_record_ranges(target, record, ranges, DGIWARPDV_MAX_RANGES);
	for (int i = 0; i < count; i++) {
		for (uint32_t at = ranges[i].start; at < ranges[i].end; at++)
			CHECK(memory[HALF + at] == memory[at]);
		sum += ranges[i].end - ranges[i].start;
	}
	CHECK(count >= 1 && sum == wc.byte_len && dgiwarpdv_record_release(target, record) == 0 && ibv_destroy_qp(target) == 0);
}

/* With a window of one message, a record is complete when the second next message comes. */
static void completed_by_newer_ones(struct ibv_qp *source, struct ibv_ah *ah)
{
	struct dgiwarpdv_qp_init_attr dv = {
		.size = sizeof dv, .flags = DGIWARPDV_QP_RECORDS, .record_timeout_ms = A_MINUTE, .reorder_window = 1,
	};
	struct ibv_qp *target = make(&dv);
	struct ibv_wc wc;
	int found = 0;

	for (int i = 0; i < 20 && !found; i++) {
		write_to(source, ah, target);
		found = dgiwarpdv_wait_cq(cq, 1000, 1, &wc);
	}
	CHECK(found == 1 && wc.opcode == DGIWARPDV_WC_WRITE_RECORD && wc.byte_len > 0 && wc.byte_len < LENGTH);
	CHECK(ibv_destroy_qp(target) == 0);
}

/* The time for a record is short, and nothing else completes it. */
static void completed_in_time(struct ibv_qp *source, struct ibv_ah *ah)
{
	struct dgiwarpdv_qp_init_attr dv = { .size = sizeof dv, .flags = DGIWARPDV_QP_RECORDS, .record_timeout_ms = 10 };
	struct ibv_qp *target = make(&dv);
	struct ibv_wc wc;

	write_to(source, ah, target);
	CHECK(dgiwarpdv_wait_cq(cq, 30000, 1, &wc) == 1);
	CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD && wc.byte_len > 0 && wc.byte_len < LENGTH);
	CHECK(ibv_destroy_qp(target) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (sends = ibv_create_cq(context, 64, NULL, NULL, 0)));
	struct ibv_qp *source = make(NULL);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	for (int i = 0; i < LENGTH; i++)
		memory[i] = i % 251 + 1;
	completed_on_demand(source, ah);
	completed_by_newer_ones(source, ah);
	completed_in_time(source, ah);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(source) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(sends) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
