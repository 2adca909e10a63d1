/* XRC through the C API: domains, shared receive queues with numbers, initiators and targets, and what is refused. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;

static struct ibv_xrcd *open_domain(int fd, int flags)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags,
	};
	return ibv_open_xrcd(context, &init);
}

static void domains(void)
{
	struct ibv_xrcd_init_attr none = {};
	REFUSED(ibv_open_xrcd(context, &none), EINVAL);
	int fd = open("/proc/self/exe", O_RDONLY), again = open("/proc/self/exe", O_RDONLY);
	CHECK(fd >= 0 && again >= 0);
	REFUSED(open_domain(fd, 0), EAGAIN);
	REFUSED(open_domain(9999, O_CREAT), EBADF);
	REFUSED(open_domain(fd, O_CREAT | O_TRUNC), EINVAL);
	struct ibv_xrcd *one = open_domain(fd, O_CREAT | O_EXCL), *same = open_domain(again, 0);
	CHECK(one && same && one != same && one->context == context);
	REFUSED(open_domain(again, O_CREAT | O_EXCL), EINVAL);
	CHECK(ibv_close_xrcd(one) == 0 && ibv_close_xrcd(one) == EINVAL && ibv_close_xrcd(same) == 0);
	REFUSED(open_domain(fd, 0), EAGAIN);
	close(fd);
	close(again);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq, .xrcd = xrcd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
	};
	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
	CHECK(srq);
	return srq;
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	struct ibv_device_attr device;
	CHECK(ibv_query_device(context, &device) == 0);
	if (!(device.device_cap_flags & IBV_DEVICE_XRC)) {
		/* As an RNIC, and without the hello. */
		REFUSED(open_domain(-1, O_CREAT), EOPNOTSUPP);
		puts("ok");
		return 0;
	}
	domains();
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	CHECK(xrcd);
	struct ibv_srq *srqs[] = { make_srq(xrcd), make_srq(xrcd) };
	uint32_t numbers[2];
	CHECK(ibv_get_srq_num(srqs[0], &numbers[0]) == 0 && ibv_get_srq_num(srqs[1], &numbers[1]) == 0);
	CHECK(numbers[0] != numbers[1] && ibv_close_xrcd(xrcd) == EBUSY);

	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	REFUSED(ibv_create_qp_ex(context, &init), EINVAL);
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	init.xrcd = xrcd;
	struct ibv_qp *target = ibv_create_qp_ex(context, &init);
	CHECK(target && target->qp_type == IBV_QPT_XRC_RECV && !target->send_cq);
	struct ibv_qp_init_attr_ex send = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
		.send_cq = cq, .cap = { .max_send_wr = 8, .max_send_sge = 1, .max_inline_data = 16 },
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *initiator = ibv_create_qp_ex(context, &send);
	CHECK(initiator && initiator->qp_type == IBV_QPT_XRC_SEND);

	/* Another handle of the target, which moves with the first. */
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = target->qp_num, .xrcd = xrcd, .qp_context = &cq, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *handle = ibv_open_qp(context, &open);
	CHECK(handle && handle != target && handle->qp_num == target->qp_num && handle->qp_context == &cq);
	open.qp_num = initiator->qp_num;
	REFUSED(ibv_open_qp(context, &open), EINVAL);
	connect_to(target, initiator);
	connect_to(initiator, target);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr was;
	CHECK(ibv_query_qp(handle, &attr, IBV_QP_STATE, &was) == 0 && attr.qp_state == IBV_QPS_RTS);
	/* The queue pair stays as long as a handle does. */
	CHECK(ibv_destroy_qp(target) == 0);

	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { (uintptr_t)memory + HALF + i * 100, 100, mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 50 + i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_srq_recv(srqs[i], &recv, &bad) == 0);
	}
	memcpy(memory, "first", 6);
	memcpy(memory + 100, "second", 7);
	struct ibv_sge sge = { (uintptr_t)memory, 6, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = numbers[1] }, *bad;
	CHECK(ibv_post_send(handle, &wr, &bad) == EINVAL && ibv_post_send(initiator, &wr, &bad) == 0);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(initiator);
	ibv_wr_start(ex);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, numbers[0]);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 100, 7);
	CHECK(ibv_wr_complete(ex) == 0);
	int sent = 0, received = 0;
	while (sent + received < 4) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(wc.wr_id == (uint64_t)++sent);
		} else {
			CHECK(wc.opcode == IBV_WC_RECV && wc.qp_num == handle->qp_num && wc.wr_id == (received++ ? 50 : 51));
		}
	}
	CHECK(!strcmp((char *)memory + HALF + 100, "first") && !strcmp((char *)memory + HALF, "second"));

	/* A queue that is gone. */
	CHECK(ibv_destroy_srq(srqs[1]) == 0 && ibv_post_send(initiator, &wr, &bad) == 0);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(ibv_destroy_qp(initiator) == 0 && ibv_close_xrcd(xrcd) == EBUSY && ibv_destroy_qp(handle) == 0);
	CHECK(ibv_destroy_srq(srqs[0]) == 0 && ibv_close_xrcd(xrcd) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
