/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A Write-Record over a network with loss. The data sink gets a map of the valid bytes and uses those.
 *
 *	DGIWARP_FAULT=drop=0.1,seed=1 ./write_record 18515
 *	DGIWARP_MTU=1500 ./write_record 18515 127.0.0.1
 */
#include "example.h"

enum { LENGTH = 100000, GRANULE = 2048 };

static unsigned char memory[LENGTH];

static void show(struct ibv_qp *qp, uint64_t record)
{
	struct dgiwarpdv_record_info info = { .size = sizeof info };
	struct dgiwarpdv_range ranges[DGIWARPDV_MAX_RANGES];
	unsigned char bitmap[(LENGTH / GRANULE + 1 + 7) / 8];

	CHECK(dgiwarpdv_record_info(qp, record, &info) == 0);
	printf("target: %u of %u bytes are valid, immediate %u, from QPN %u\n", info.valid, info.length, ntohl(info.imm_data),
	       info.qpn);

	/* The ranges are exact. */
	int count = dgiwarpdv_record_ranges(qp, record, ranges, DGIWARPDV_MAX_RANGES);
	CHECK(count == (int)info.num_ranges);
	for (int i = 0; i < count; i++) {
		printf("  %6u to %u\n", ranges[i].start, ranges[i].end);
		for (uint32_t at = ranges[i].start; at < ranges[i].end; at++)
			CHECK(memory[at] == at % 251);
	}

	/* A set bit is a complete piece, of a size of the program's choice. */
	CHECK(dgiwarpdv_record_bitmap(qp, record, GRANULE, bitmap, sizeof bitmap) == (int)sizeof bitmap);
	printf("  ");
	for (int i = 0; i * GRANULE < LENGTH; i++)
		putchar(bitmap[i / 8] >> i % 8 & 1 ? '#' : '.');
	putchar('\n');
}

static void target(struct end *end)
{
	struct dgiwarpdv_qp_init_attr records = { .size = sizeof records, .flags = DGIWARPDV_QP_RECORDS, .record_slots = 16 };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &records));
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	CHECK(mr);
	tell(end, qp, mr->rkey, (uintptr_t)memory);

	/* The record completes when every byte is valid or, as here, 200 ms after the last segment. */
	struct ibv_wc wc = next_wc(end->cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == DGIWARPDV_WC_WRITE_RECORD && wc.qp_num == qp->qp_num);
	show(qp, wc.wr_id);
	CHECK(dgiwarpdv_record_release(qp, wc.wr_id) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
}

static void source(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(ibv_create_qp_ex(end->context, &attr));
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, LENGTH, 0);
	struct place there = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr);
	for (int i = 0; i < LENGTH; i++)
		memory[i] = i % 251;
	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(qpx, there.rkey, there.addr, htonl(2024));
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, LENGTH);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, 0);
	CHECK(ibv_wr_complete(qpx) == 0);

	/* A completion means that the network has taken the message: datagrams are not acknowledged. */
	struct ibv_wc wc = next_wc(end->cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
	printf("source: written\n");
	await(end);
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
