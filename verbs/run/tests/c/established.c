/* IBV_EVENT_COMM_EST: the peer's first message comes while a queue pair is ready to receive, and not yet to send. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static int readable(int milliseconds)
{
	struct pollfd entry = { .fd = context->async_fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

static void post(struct ibv_qp *qp, struct ibv_qp *to, struct ibv_ah *ah, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + HALF;
		wr.wr.rdma.rkey = mr->rkey;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* The message, which has one completion at the sender and, if it is a Send, one at the receiver. */
static void arrives(enum ibv_wr_opcode opcode)
{
	for (int left = opcode == IBV_WR_SEND ? 2 : 1; left; left--)
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
}

static void first_message(enum ibv_qp_type type, enum ibv_wr_opcode opcode)
{
	struct ibv_qp *qp = make_qp(type), *peer = make_qp(type);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &address) : NULL;
	for (int life = 0; life < 2; life++) {
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0 && ibv_modify_qp(peer, &reset, IBV_QP_STATE) == 0);
		steps_to(peer, qp, 0, 2);
		post_recv(peer, 2, memory + HALF, 2048);
		post_recv(peer, 2, memory + HALF, 2048);
		post_recv(peer, 2, memory + HALF, 2048);
		connect_to(qp, peer);
		/* The connection alone is none. */
		CHECK(readable(30) == 0);
		post(qp, peer, ah, opcode);
		arrives(opcode);
		if (type != IBV_QPT_UD) {
			struct ibv_async_event event;
			CHECK(readable(8000) == 1 && ibv_get_async_event(context, &event) == 0);
			CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == peer);
			ibv_ack_async_event(&event);
		}
		/* Once, and not in RTS. */
		post(qp, peer, ah, opcode);
		arrives(opcode);
		steps_to(peer, qp, 2, 3);
		post(qp, peer, ah, opcode);
		arrives(opcode);
		CHECK(readable(20) == 0);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && (!ah || ibv_destroy_ah(ah) == 0));
	/* Ready to send before the first message: no event. */
	qp = make_qp(type), peer = make_qp(type);
	connect_to(peer, qp);
	connect_to(qp, peer);
	if (type != IBV_QPT_UD) {
		post_recv(peer, 2, memory + HALF, 2048);
		post(qp, peer, NULL, opcode);
		arrives(opcode);
	}
	CHECK(readable(20) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	first_message(IBV_QPT_RC, IBV_WR_SEND);
	first_message(IBV_QPT_RC, IBV_WR_RDMA_WRITE);
	first_message(IBV_QPT_RC, IBV_WR_RDMA_READ);
	first_message(IBV_QPT_UC, IBV_WR_SEND);
	first_message(IBV_QPT_UC, IBV_WR_RDMA_WRITE);
	first_message(IBV_QPT_UD, IBV_WR_SEND);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
