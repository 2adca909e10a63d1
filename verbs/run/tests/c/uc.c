/* Two unreliable connected queue pairs of one process, whose receives come from one shared receive queue, through the C API
 * as Debian's headers have it. The program ends at the first surprise and prints its line. Argument: a GID index. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>
#include "test.h"

enum { ROOM = 400000, HALF = ROOM / 2, LONG = 150000 };

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static unsigned char memory[ROOM];

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_UC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->srq == srq && qp->qp_type == IBV_QPT_UC);
	return qp;
}

static void connect_qp(struct ibv_qp *qp, struct ibv_qp *to, const union ibv_gid *gid, int index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .rq_psn = 7,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = *gid, .sgid_index = index, .hop_limit = 1 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	CHECK(ibv_modify_qp(qp, &attr, mask & ~IBV_QP_AV) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 8;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);

	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == to->qp_num && attr.path_mtu == IBV_MTU_1024);
	CHECK(attr.rq_psn == 7 && attr.sq_psn == 8 && memcmp(&attr.ah_attr.grh.dgid, gid, 16) == 0);
	CHECK(init.srq == srq);
}

static void post_recv(uint64_t id, unsigned char *at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)at, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length, unsigned char *remote)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 99, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(0xcafef00d),
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = mr->rkey },
	}, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Takes completions until there is one of a receive. */
static struct ibv_wc received(void)
{
	time_t end = time(NULL) + 5;
	for (;;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0 && time(NULL) < end);
		CHECK(n == 0 || wc.status == IBV_WC_SUCCESS);
		if (n == 1 && wc.opcode & IBV_WC_RECV)
			return wc;
		CHECK(n == 0 || wc.wr_id == 99);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int index = atoi(argv[1]);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context && (pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, index, &gid) == 0);

	struct ibv_srq_init_attr srq_init = { .srq_context = memory, .attr = { .max_wr = 1 << 30, .max_sge = 1 } };
	CHECK(!ibv_create_srq(pd, &srq_init) && errno == EINVAL);
	srq_init.attr.max_wr = 8;
	CHECK((srq = ibv_create_srq(pd, &srq_init)) && srq->srq_context == memory && srq_init.attr.max_wr >= 8);
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &limit) == 0 && limit.srq_limit == 2 && limit.max_wr >= 8);

	struct ibv_qp *one = make_qp(), *two = make_qp();
	struct ibv_recv_wr wr = { 0 }, *bad;
	CHECK(ibv_post_recv(one, &wr, &bad) == EINVAL && bad == &wr);
	connect_qp(one, two, &gid, index);
	connect_qp(two, one, &gid, index);

	for (int i = 0; i < HALF; i++)
		memory[i] = i * 31 + 7;
	post_recv(1, memory + HALF, LONG);
	post(one, IBV_WR_SEND_WITH_IMM, LONG, NULL);
	struct ibv_wc wc = received();
	CHECK(wc.wr_id == 1 && wc.qp_num == two->qp_num && wc.byte_len == LONG && !(wc.wc_flags & IBV_WC_GRH));
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0xcafef00d);
	CHECK(memcmp(memory, memory + HALF, LONG) == 0);

	memset(memory + HALF, 0, HALF);
	post_recv(2, memory + HALF, 1);
	post(two, IBV_WR_RDMA_WRITE, 1000, memory + HALF + 1);
	post(two, IBV_WR_RDMA_WRITE_WITH_IMM, LONG, memory + HALF + 2000);
	wc = received();
	CHECK(wc.wr_id == 2 && wc.qp_num == one->qp_num && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == LONG);
	CHECK(ntohl(wc.imm_data) == 0xcafef00d);
	CHECK(memory[HALF] == 0 && memcmp(memory, memory + HALF + 1, 1000) == 0);
	CHECK(memcmp(memory, memory + HALF + 2000, LONG) == 0);

	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	puts("ok");
	return 0;
}
