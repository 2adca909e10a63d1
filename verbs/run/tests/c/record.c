/* Write-Records to a queue pair of another process. Arguments: a GID index; the queue pair's number, key and address of its memory. */
#include "pair.h"

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	open_device(2, argv);
	uint32_t qpn = strtoul(argv[2], NULL, 0), rkey = strtoul(argv[3], NULL, 0);
	uint64_t to = strtoull(argv[4], NULL, 0);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.cap = { .max_send_wr = 4, .max_send_sge = 1, .max_inline_data = 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	connect_to(qp, qp);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ex && ah);

	memset(memory, 'r', 5000);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, rkey, to, htonl(4711));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 5000);
	ibv_wr_set_ud_addr(ex, ah, qpn, 0);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, rkey, to + 5000);
	ibv_wr_set_inline_data(ex, "inline", 6);
	ibv_wr_set_ud_addr(ex, ah, qpn, 0);
	CHECK(ibv_wr_complete(ex) == 0);
	success(cq, 1, IBV_WC_RDMA_WRITE);
	success(cq, 2, IBV_WC_RDMA_WRITE);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0);
	puts("ok");
	return 0;
}
