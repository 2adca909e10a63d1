/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program for hardware too: it starts with rdma-core's libraries, and uses the extensions of dgiwarp where it runs on dgiwarp.
 *
 *	cc -Iverbs/include -o standard_api standard_api.c -libverbs
 *	./standard_api 18515			on hardware: a Send into a posted receive
 *	dgiwarp-run ./standard_api 18515	a Write-Record, without a receive
 *
 * The data source needs no function of dgiwarpdv.h: a UD queue pair created for Writes sends them to an address handle.
 */
#define DGIWARPDV_WEAK
#include "example.h"

enum { GRH = 40, LENGTH = 1024 };

static char memory[GRH + LENGTH];

/* The next completion, by the standard calls alone. */
static struct ibv_wc poll_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void target(struct end *end)
{
	/* NULL where the library does not have it. */
	bool direct = dgiwarpdv_is_supported && dgiwarpdv_is_supported(end->context->device);
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *qp;

	CHECK(mr);
	if (direct) {
		struct dgiwarpdv_qp_init_attr records = { .size = sizeof records, .flags = DGIWARPDV_QP_RECORDS };
		qp = ready(dgiwarpdv_create_qp(end->context, &attr, &records));
	} else {
		struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
		qp = ready(ibv_create_qp_ex(end->context, &attr));
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	tell(end, qp, direct ? mr->rkey : 0, (uintptr_t)memory + GRH);
	struct ibv_wc wc = poll_wc(end->cq);
	printf("target: \"%s\" by %s\n", memory + GRH, direct ? "Write-Record" : "Send");
	if (direct)
		CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD && dgiwarpdv_record_release(qp, wc.wr_id) == 0);
	say(end);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
}

static void source(struct end *end)
{
	struct place there = hear(end);
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	attr.send_ops_flags = there.rkey ? IBV_QP_EX_WITH_RDMA_WRITE : IBV_QP_EX_WITH_SEND;
	struct ibv_qp *qp = ready(ibv_create_qp_ex(end->context, &attr));
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, sizeof memory, 0);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr);
	strcpy(memory, "hello");
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	if (there.rkey)
		ibv_wr_rdma_write(qpx, there.rkey, there.addr);
	else
		ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, strlen(memory) + 1);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	poll_wc(end->cq);
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
