/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMA Read without a connection and with a deadline: each Read completes in time, with a map of the octets that arrived. With so much delay and loss the second
 * Read is incomplete at its deadline:
 *
 *	./read_deadline 18515
 *	DGIWARP_FAULT=delay=50ms,drop=0.05,seed=1 ./read_deadline 18515 127.0.0.1
 */
#include "example.h"

enum { LENGTH = 16 << 20, SHORT = 1000, DEADLINE_MS = 300 };

static unsigned char memory[LENGTH];

static void target(struct end *end)
{
	/* Every UD queue pair answers Reads, without its program. */
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
	/* The map is taken. Late segments of this Read are dropped before placement. */
	CHECK(dgiwarpdv_take_read_map(qp, wr_id, NULL, NULL, 0) == -1 && errno == ENOENT);
}

static void requester(struct end *end)
{
	/* Time limit of Reads without one of their own. */
	struct dgiwarpdv_qp_init_attr patient = { .size = sizeof patient, .read_timeout_ms = 30000 };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &patient));
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct place there = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr);
	/* Lost segments of a Read are requested again until its time limit. */
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
