/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counters of queue pairs, and a data sink that processes a message while it arrives: each placed segment has a completion.
 */
#include "example.h"

enum { LENGTH = 65536, MESSAGES = 10 };

static char memory[LENGTH];

static void show(const char *who, struct ibv_qp *qp)
{
	uint64_t values[DGIWARPDV_COUNTERS];
	/* A newer library has more counters than this header. */
	int known = dgiwarpdv_query_counters(qp, values, DGIWARPDV_COUNTERS);

	CHECK(known >= DGIWARPDV_COUNTERS);
	for (int i = 0; i < DGIWARPDV_COUNTERS; i++)
		if (values[i] > 0)
			printf("%s: %s %" PRIu64 "\n", who, dgiwarpdv_counter_name(i), values[i]);
}

static void target(struct end *end)
{
	struct dgiwarpdv_qp_init_attr records = {
		.size = sizeof records,
		.flags = DGIWARPDV_QP_RECORDS | DGIWARPDV_QP_SEGMENT_COMPLETIONS,
		.record_slots = MESSAGES,
		.record_timeout_ms = 500,
	};
	struct dgiwarpdv_qp_attr granted = { .size = sizeof granted };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &records));
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	uint64_t segments = 0, bytes = 0, valid = 0;

	CHECK(mr && dgiwarpdv_query_qp(qp, &granted) == 0);
	printf("target: a receive buffer of %" PRIu64 " bytes\n", granted.receive_buffer);
	tell(end, qp, mr->rkey, (uintptr_t)memory);
	for (int done = 0; done < MESSAGES;) {
		struct ibv_wc wc = next_wc(end->cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == DGIWARPDV_WC_RECORD_SEGMENT) {
			/* wc.byte_len bytes from memory + vendor_err on are valid now. */
			CHECK(wc.vendor_err + wc.byte_len <= LENGTH);
			segments++;
			bytes += wc.byte_len;
		} else {
			CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD);
			valid += wc.byte_len;
			CHECK(dgiwarpdv_record_release(qp, wc.wr_id) == 0);
			done++;
			say(end);
		}
	}
	printf("target: %" PRIu64 " segments with %" PRIu64 " bytes, of which records have %" PRIu64 "\n", segments, bytes, valid);
	CHECK(bytes == valid);
	show("target", qp);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
}

static void source(struct end *end)
{
	/* A limited rate keeps the receive buffer from overflowing. */
	struct dgiwarpdv_qp_init_attr paced = { .size = sizeof paced, .max_rate = 50000000 };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &paced));
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, 0);
	struct place there = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr);
	for (int i = 0; i < MESSAGES; i++) {
		ibv_wr_start(qpx);
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qpx, there.rkey, there.addr);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, LENGTH);
		ibv_wr_set_ud_addr(qpx, ah, there.qpn, 0);
		CHECK(ibv_wr_complete(qpx) == 0);
		CHECK(next_wc(end->cq).status == IBV_WC_SUCCESS);
		await(end);
	}
	show("source", qp);
	CHECK(dgiwarpdv_set_max_rate(qp, 0) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
}

int main(int argc, char **argv)
{
	struct end end = open_end(argc, argv);

	if (argc == 2)
		target(&end);
	else
		source(&end);
	close_end(&end);
	return 0;
}
