/* Work requests prepared call by call, on all kinds of queue pairs. Argument: a GID index. */
#include "pair.h"

enum {
	SENDS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
		IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	RELIABLE = SENDS | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV |
		   IBV_QP_EX_WITH_BIND_MW,
};

static struct ibv_cq *send_cq, *recv_cq;

static struct ibv_qp_init_attr_ex attributes(enum ibv_qp_type type, uint64_t operations)
{
	return (struct ibv_qp_init_attr_ex) {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type, .pd = pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations,
	};
}

static struct ibv_qp_ex *make(enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = attributes(type, operations);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp && init.cap.max_inline_data >= 64 && init.cap.max_send_wr == 4);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex && &ex->qp_base == qp);
	return ex;
}

static void creation(void)
{
	struct ibv_qp_init_attr_ex init = attributes(IBV_QPT_UC, RELIABLE);
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init = attributes(IBV_QPT_UD, SENDS | IBV_QP_EX_WITH_TSO);
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init = attributes(IBV_QPT_RC, SENDS);
	init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	init.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	REFUSED(ibv_create_qp_ex(context, &init), EINVAL);
	init = attributes(IBV_QPT_DRIVER, SENDS);
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);

	/* Without send operations it is a plain queue pair. */
	init = attributes(IBV_QPT_RC, 0);
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	struct ibv_qp *plain = ibv_create_qp_ex(context, &init);
	CHECK(plain && !ibv_qp_to_qp_ex(plain) && ibv_destroy_qp(plain) == 0);
}

static void begin(struct ibv_qp_ex *qp, uint64_t id)
{
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

/* One after the other, so that the contents show what was sent. */
static void reliable(void)
{
	struct ibv_qp_ex *from = make(IBV_QPT_RC, RELIABLE), *to = make(IBV_QPT_RC, SENDS);
	connect_to(&from->qp_base, &to->qp_base);
	connect_to(&to->qp_base, &from->qp_base);
	unsigned char *there = memory + HALF;
	uint64_t *number = (uint64_t *)(there + 4096);
	for (int id = 1; id <= 4; id++)
		post_recv(&to->qp_base, id, there + 256 * id, 256);

	strcpy((char *)memory, "first ");
	strcpy((char *)memory + 100, "second");
	struct ibv_sge parts[2] = { { (uintptr_t)memory, 6, mr->lkey }, { (uintptr_t)memory + 100, 7, mr->lkey } };
	char own[] = "inline";
	ibv_wr_start(from);
	begin(from, 11);
	ibv_wr_send(from);
	ibv_wr_set_sge_list(from, 2, parts);
	begin(from, 12);
	ibv_wr_send_imm(from, htonl(77));
	ibv_wr_set_inline_data(from, own, sizeof own);
	begin(from, 13);
	ibv_wr_rdma_write(from, mr->rkey, (uintptr_t)there + 8192);
	struct ibv_data_buf buffers[2] = { { own, 2 }, { own + 4, 3 } };
	ibv_wr_set_inline_data_list(from, 2, buffers);
	from->wr_id = 14;
	from->wr_flags = 0;
	ibv_wr_rdma_write_imm(from, mr->rkey, (uintptr_t)there + 8200, htonl(78));
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory, 6);
	memset(own, 'x', sizeof own);
	quiet(recv_cq);
	CHECK(ibv_wr_complete(from) == 0);
	success(send_cq, 11, IBV_WC_SEND);
	success(send_cq, 12, IBV_WC_SEND);
	success(send_cq, 13, IBV_WC_RDMA_WRITE);
	struct ibv_wc wc = success(recv_cq, 1, IBV_WC_RECV);
	CHECK(wc.byte_len == 13 && !strcmp((char *)there + 256, "first second"));
	wc = success(recv_cq, 2, IBV_WC_RECV);
	CHECK(wc.byte_len == 7 && wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == htonl(77));
	CHECK(!strcmp((char *)there + 512, "inline"));
	wc = success(recv_cq, 3, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(wc.byte_len == 6 && wc.imm_data == htonl(78));
	CHECK(!strcmp((char *)there + 8192, "inne") && !memcmp(there + 8200, "first ", 6));
	quiet(send_cq);

	*number = 40;
	ibv_wr_start(from);
	begin(from, 21);
	ibv_wr_atomic_fetch_add(from, mr->rkey, (uintptr_t)number, 2);
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory, 8);
	begin(from, 22);
	ibv_wr_atomic_cmp_swp(from, mr->rkey, (uintptr_t)number, 42, 99);
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory + 8, 8);
	begin(from, 23);
	ibv_wr_rdma_read(from, mr->rkey, (uintptr_t)there + 256);
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory + 16, 13);
	CHECK(ibv_wr_complete(from) == 0);
	success(send_cq, 21, IBV_WC_FETCH_ADD);
	success(send_cq, 22, IBV_WC_COMP_SWAP);
	success(send_cq, 23, IBV_WC_RDMA_READ);
	CHECK(((uint64_t *)memory)[0] == 40 && ((uint64_t *)memory)[1] == 42 && *number == 99);
	CHECK(!strcmp((char *)memory + 16, "first second"));

	/* All or nothing, and nothing of what was given up. */
	ibv_wr_start(from);
	for (int i = 0; i < 5; i++) {
		begin(from, 31 + i);
		ibv_wr_send(from);
	}
	CHECK(ibv_wr_complete(from) == ENOMEM);
	struct ibv_sge many[3] = { parts[0], parts[0], parts[0] };
	ibv_wr_start(from);
	begin(from, 41);
	ibv_wr_send(from);
	begin(from, 42);
	ibv_wr_send(from);
	ibv_wr_set_sge_list(from, 3, many);
	CHECK(ibv_wr_complete(from) == EINVAL);
	ibv_wr_start(from);
	begin(from, 51);
	ibv_wr_send(from);
	ibv_wr_abort(from);
	ibv_wr_start(from);
	ibv_wr_set_sge(from, mr->lkey, 0, 0);
	CHECK(ibv_wr_complete(from) == EINVAL);
	static unsigned char long_data[4096];
	ibv_wr_start(from);
	begin(from, 61);
	ibv_wr_send(from);
	ibv_wr_set_inline_data(from, long_data, sizeof long_data);
	CHECK(ibv_wr_complete(from) == EINVAL);
	ibv_wr_start(to);
	begin(to, 71);
	ibv_wr_rdma_read(to, mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(to, mr->lkey, (uintptr_t)memory, 8);
	CHECK(ibv_wr_complete(to) == EINVAL);
	ibv_wr_start(to);
	CHECK(ibv_wr_complete(to) == 0);
	quiet(send_cq);
	quiet(recv_cq);
	ibv_wr_start(from);
	begin(from, 81);
	ibv_wr_send(from);
	CHECK(ibv_wr_complete(from) == 0);
	success(send_cq, 81, IBV_WC_SEND);
	CHECK(success(recv_cq, 4, IBV_WC_RECV).byte_len == 0);
	CHECK(ibv_destroy_qp(&from->qp_base) == 0 && ibv_destroy_qp(&to->qp_base) == 0);
}

static void connected(void)
{
	struct ibv_qp_ex *from = make(IBV_QPT_UC, SENDS), *to = make(IBV_QPT_UC, SENDS);
	connect_to(&from->qp_base, &to->qp_base);
	connect_to(&to->qp_base, &from->qp_base);
	unsigned char *there = memory + HALF;
	post_recv(&to->qp_base, 1, there, 256);
	post_recv(&to->qp_base, 2, there + 256, 256);
	strcpy((char *)memory, "connected");
	ibv_wr_start(from);
	begin(from, 1);
	ibv_wr_send_imm(from, htonl(5));
	ibv_wr_set_inline_data(from, memory, 10);
	begin(from, 2);
	ibv_wr_rdma_write_imm(from, mr->rkey, (uintptr_t)there + 1024, htonl(6));
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory, 10);
	CHECK(ibv_wr_complete(from) == 0);
	success(send_cq, 1, IBV_WC_SEND);
	success(send_cq, 2, IBV_WC_RDMA_WRITE);
	CHECK(success(recv_cq, 1, IBV_WC_RECV).imm_data == htonl(5) && !strcmp((char *)there, "connected"));
	CHECK(success(recv_cq, 2, IBV_WC_RECV_RDMA_WITH_IMM).imm_data == htonl(6));
	CHECK(!strcmp((char *)there + 1024, "connected"));
	CHECK(ibv_destroy_qp(&from->qp_base) == 0 && ibv_destroy_qp(&to->qp_base) == 0);
}

static void datagrams(void)
{
	struct ibv_qp_ex *from = make(IBV_QPT_UD, SENDS | IBV_QP_EX_WITH_RDMA_READ), *to = make(IBV_QPT_UD, SENDS);
	connect_to(&from->qp_base, &to->qp_base);
	connect_to(&to->qp_base, &from->qp_base);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	unsigned char *there = memory + HALF;
	for (int id = 0; id < 12; id++)
		post_recv(&to->qp_base, id, there + 256 * id, 256);

	/* More inline sends than the queue has places, one batch after the other: each keeps what it was given. */
	for (int id = 0; id < 12; id += 4) {
		ibv_wr_start(from);
		for (int i = id; i < id + 4; i++) {
			char text[16];
			snprintf(text, sizeof text, "number %d", i);
			begin(from, i);
			ibv_wr_send(from);
			ibv_wr_set_inline_data(from, text, sizeof text);
			ibv_wr_set_ud_addr(from, ah, to->qp_base.qp_num, QKEY);
		}
		CHECK(ibv_wr_complete(from) == 0);
		for (int i = id; i < id + 4; i++)
			success(send_cq, i, IBV_WC_SEND);
	}
	for (int id = 0; id < 12; id++) {
		char text[16];
		snprintf(text, sizeof text, "number %d", id);
		struct ibv_wc wc = success(recv_cq, id, IBV_WC_RECV);
		CHECK(wc.byte_len == 56 && wc.src_qp == from->qp_base.qp_num);
		CHECK(!strcmp((char *)there + 256 * id + 40, text));
	}

	/* A Read: no connection, the address comes with it. */
	ibv_wr_start(from);
	begin(from, 2);
	ibv_wr_rdma_read(from, mr->rkey, (uintptr_t)there + 256 + 40);
	ibv_wr_set_sge(from, mr->lkey, (uintptr_t)memory + 64, 9);
	ibv_wr_set_ud_addr(from, ah, to->qp_base.qp_num, 0);
	CHECK(ibv_wr_complete(from) == 0);
	success(send_cq, 2, IBV_WC_RDMA_READ);
	CHECK(!strcmp((char *)memory + 64, "number 1"));

	/* Without an address nothing leaves. */
	ibv_wr_start(from);
	begin(from, 3);
	ibv_wr_send(from);
	CHECK(ibv_wr_complete(from) == EINVAL);
	quiet(send_cq);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(&from->qp_base) == 0 && ibv_destroy_qp(&to->qp_base) == 0);
}

static struct ibv_qp_ex *shared_qp;

/* Batches of two: the other thread's must not come between. */
static void *pairs(void *name)
{
	for (int i = 0; i < 100;) {
		uint64_t id = (uintptr_t)name + 2 * i;
		ibv_wr_start(shared_qp);
		for (int part = 0; part < 2; part++) {
			begin(shared_qp, id + part);
			ibv_wr_rdma_write(shared_qp, mr->rkey, (uintptr_t)memory + HALF);
			ibv_wr_set_sge(shared_qp, mr->lkey, (uintptr_t)memory, 8);
		}
		int status = ibv_wr_complete(shared_qp);
		CHECK(status == 0 || status == ENOMEM);
		i += status == 0;
		if (status)
			sched_yield();
	}
	return NULL;
}

static void threads(void)
{
	struct ibv_qp_ex *to = make(IBV_QPT_RC, SENDS);
	shared_qp = make(IBV_QPT_RC, SENDS);
	connect_to(&shared_qp->qp_base, &to->qp_base);
	connect_to(&to->qp_base, &shared_qp->qp_base);
	pthread_t thread[2];
	for (uintptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, pairs, (void *)(i * 1000)) == 0);
	for (int i = 0; i < 200; i++) {
		uint64_t id = next_of(send_cq).wr_id;
		CHECK(id % 2 == 0);
		success(send_cq, id + 1, IBV_WC_RDMA_WRITE);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	quiet(send_cq);
	CHECK(ibv_destroy_qp(&shared_qp->qp_base) == 0 && ibv_destroy_qp(&to->qp_base) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((send_cq = ibv_create_cq(context, 512, NULL, NULL, 0)));
	CHECK((recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	creation();
	reliable();
	connected();
	datagrams();
	threads();
	CHECK(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
