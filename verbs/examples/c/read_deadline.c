/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The other end's memory is read without a connection and with a deadline: whatever the network does, a Read ends, and says what it brought. On a network that is so
 * slow and loses so much that the second Read cannot end in time:
 *
 *	./read_deadline 18515
 *	DGIWARP_FAULT=delay=50ms,drop=0.05,seed=1 ./read_deadline 18515 127.0.0.1
 */
#include "example.h"

enum { LENGTH = 16 << 20, SHORT = 1000, DEADLINE_MS = 300 };

static unsigned char memory[LENGTH];

static void target(struct end *end)
{
	/* Any UD queue pair answers Reads, and its program has no part in it. */
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(ibv_create_qp_ex(end->context, &attr));
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, IBV_ACCESS_REMOTE_READ);

	CHECK(mr);
	for (int i = 0; i < LENGTH; i++)
		memory[i] = i % 251;
	tell(end, qp, mr->rkey, (uintptr_t)memory);
	await(end);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
}

static void read_from(struct ibv_qp_ex *qpx, struct ibv_mr *mr, struct ibv_ah *ah, struct place there, uint32_t length,
		      uint32_t timeout_ms)
{
	ibv_wr_start(qpx);
	qpx->wr_id = length;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_read(qpx, there.rkey, there.addr);
	if (timeout_ms > 0)
		dgiwarpdv_wr_set_read_timeout(qpx, timeout_ms);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, length);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, 0);
	CHECK(ibv_wr_complete(qpx) == 0);
}

static void show_map(struct ibv_qp *qp, uint64_t wr_id)
{
	struct dgiwarpdv_range ranges[DGIWARPDV_MAX_RANGES];
	uint32_t length;
	int count = dgiwarpdv_take_read_map(qp, wr_id, &length, ranges, DGIWARPDV_MAX_RANGES);

	CHECK(count >= 0 && length == LENGTH);
	printf("requester: not all of %u bytes came in %d ms, but these:\n", length, DEADLINE_MS);
	for (int i = 0; i < count; i++) {
		printf("  %8u to %u\n", ranges[i].start, ranges[i].end);
		for (uint32_t at = ranges[i].start; at < ranges[i].end; at++)
			CHECK(memory[at] == at % 251);
	}
	/* The map was taken. What still comes for this Read touches no memory. */
	CHECK(dgiwarpdv_take_read_map(qp, wr_id, NULL, NULL, 0) == -1 && errno == ENOENT);
}

static void requester(struct end *end)
{
	/* The time of Reads that name none. */
	struct dgiwarpdv_qp_init_attr patient = { .size = sizeof patient, .read_timeout_ms = 30000 };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &patient));
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct place there = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr);
	/* What is lost of a Read is asked for again, so that in time it is whole. */
	read_from(qpx, mr, ah, there, SHORT, 0);
	struct ibv_wc wc = next_wc(end->cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == SHORT);
	printf("requester: %u bytes read\n", wc.byte_len);

	read_from(qpx, mr, ah, there, LENGTH, DEADLINE_MS);
	wc = next_wc(end->cq);
	if (wc.status == IBV_WC_SUCCESS) {
		printf("requester: %u bytes read\n", wc.byte_len);
	} else {
		CHECK(wc.status == IBV_WC_RESP_TIMEOUT_ERR && wc.wr_id == LENGTH);
		show_map(qp, wc.wr_id);
	}
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
	say(end);
}

int main(int argc, char **argv)
{
	struct end end = open_end(argc, argv);

	if (argc == 2)
		target(&end);
	else
		requester(&end);
	close_end(&end);
	return 0;
}
