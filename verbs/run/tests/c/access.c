/* Access flags of a reliable queue pair, which bind its peer, and a queue pair that is its own peer. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + HALF;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + HALF;
		wr.wr.rdma.rkey = mr->rkey;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void try(unsigned flags, enum ibv_wr_opcode opcode, unsigned needed)
{
	struct ibv_qp *one = make(), *two = make();
	connect_to(one, two);
	connect_to(two, one);
	struct ibv_qp_attr attr = { .qp_access_flags = flags };
	CHECK(ibv_modify_qp(two, &attr, IBV_QP_ACCESS_FLAGS) == 0);
	memset(memory, 7, 8);
	memset(memory + HALF, 0, 8);
	post(one, opcode);
	struct ibv_wc wc = next_of(cq);
	if (flags & needed) {
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == opcode);
	} else {
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == opcode && memory[HALF] == 0);
	}
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 32, NULL, NULL, 0)));
	unsigned each[] = { IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC };
	enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (int i = 0; i < 3; i++) {
		try(each[i], opcodes[i], each[i]);
		try(ALL_REMOTE & ~each[i], opcodes[i], each[i]);
	}
	struct ibv_qp *self = make();
	connect_to(self, self);
	memcpy(memory, "myself!!", 8);
	post(self, IBV_WR_RDMA_WRITE);
	success(cq, IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE);
	CHECK(memcmp(memory + HALF, "myself!!", 8) == 0);
	post(self, IBV_WR_ATOMIC_FETCH_AND_ADD);
	success(cq, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD);
	CHECK(memcmp(memory, "myself!!", 8) == 0);
	CHECK(ibv_destroy_qp(self) == 0);
	puts("ok");
	return 0;
}
