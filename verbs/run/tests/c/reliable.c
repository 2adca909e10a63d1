/* Reliable datagram queue pairs through verbs, within one process: creation, states, every operation, failures of one peer. Argument: a GID index. */
#include "pair.h"
#include <infiniband/dgiwarpdv.h>

#define FAILS(call, number)                                                                                            \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == (number));                                                              \
	} while (0)

enum { SENDS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV,
       WRITES = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ,
       ATOMICS = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };

/* Arrivals, and sends. */
static struct ibv_cq_ex *arrivals;
static struct ibv_cq *cq, *sends;
static struct ibv_ah *ah;

static struct ibv_qp *make_with(enum ibv_qp_type type, uint64_t ops, const struct dgiwarpdv_qp_init_attr *dv)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sends, .recv_cq = cq, .qp_type = type, .pd = pd,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = ops,
	};
	return dgiwarpdv_create_qp(context, &init, dv);
}

static struct dgiwarpdv_qp_init_attr rd_attr(void)
{
	return (struct dgiwarpdv_qp_init_attr){
		.size = sizeof(struct dgiwarpdv_qp_init_attr), .driver_qp_type = DGIWARPDV_QP_DRIVER_TYPE_RD,
	};
}

static struct ibv_qp *make(void)
{
	struct dgiwarpdv_qp_init_attr dv = rd_attr();
	struct ibv_qp *qp = make_with(IBV_QPT_DRIVER, SENDS | WRITES | ATOMICS, &dv);
	CHECK(qp && qp->qp_type == IBV_QPT_DRIVER);
	return qp;
}

static int step(struct ibv_qp *qp, enum ibv_qp_state state, int more)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = QKEY, .rnr_retry = 7 };
	int mask = IBV_QP_STATE | more;
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS && !more)
		mask |= IBV_QP_SQ_PSN;
	return ibv_modify_qp(qp, &attr, mask);
}

static struct ibv_qp *up(struct ibv_qp *qp)
{
	CHECK(step(qp, IBV_QPS_INIT, 0) == 0 && step(qp, IBV_QPS_RTR, 0) == 0);
	CHECK(step(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY) == 0);
	return qp;
}

static struct ibv_qp_ex *begin(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex);
	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	return ex;
}

/* Ends a work request with the octets at `at`. */
static int post(struct ibv_qp_ex *ex, const void *at, uint32_t length, uint32_t qpn)
{
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)at, length);
	ibv_wr_set_ud_addr(ex, ah, qpn, QKEY);
	return ibv_wr_complete(ex);
}

static int send_to(struct ibv_qp *qp, uint64_t id, uint32_t qpn)
{
	struct ibv_qp_ex *ex = begin(qp, id);
	ibv_wr_send(ex);
	return post(ex, memory, 16, qpn);
}

static void status(uint64_t id, enum ibv_wc_status expected)
{
	struct ibv_wc wc;
	CHECK(dgiwarpdv_wait_cq(sends, 30000, 1, &wc) == 1);
	if (wc.wr_id != id || wc.status != expected)
		fprintf(stderr, "id %llu status %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.wr_id == id && wc.status == expected);
}

/* The next arrival: its sender is `from`, to whom a handle leads. */
static struct ibv_wc arrival(struct ibv_qp *from)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct dgiwarpdv_wc_source source = { .size = sizeof source };
	struct ibv_wc wc = { 0 };
	int start;
	time_t end = time(NULL) + 30;
	while ((start = ibv_start_poll(arrivals, &attr)) == ENOENT)
		CHECK(time(NULL) < end);
	CHECK(start == 0 && arrivals->status == IBV_WC_SUCCESS);
	wc.wr_id = arrivals->wr_id;
	wc.opcode = ibv_wc_read_opcode(arrivals);
	wc.byte_len = ibv_wc_read_byte_len(arrivals);
	wc.imm_data = ibv_wc_read_imm_data(arrivals);
	wc.wc_flags = ibv_wc_read_wc_flags(arrivals);
	CHECK(!(wc.wc_flags & IBV_WC_GRH) && ibv_wc_read_src_qp(arrivals) == from->qp_num);
	CHECK(dgiwarpdv_wc_source(arrivals, &source) == 0 && source.qpn == from->qp_num);
	CHECK(!memcmp(&source.gid, &own_gid, sizeof own_gid));
	source.size = 0;
	FAILS(dgiwarpdv_wc_source(arrivals, &source), EINVAL);
	struct ibv_ah *back = dgiwarpdv_wc_create_ah(arrivals, pd);
	CHECK(back && back->pd == pd && back->context == context && ibv_destroy_ah(back) == 0);
	REFUSED(dgiwarpdv_wc_create_ah(arrivals, NULL), EINVAL);
	ibv_end_poll(arrivals);
	return wc;
}

static void error_of(struct ibv_qp *qp, uint32_t reason, uint32_t qpn)
{
	struct dgiwarpdv_error error = { .size = sizeof error };
	CHECK(dgiwarpdv_poll_error(qp, &error) == 1);
	if (error.reason != reason)
		fprintf(stderr, "reason %u, not %u\n", error.reason, reason);
	CHECK(error.reason == reason && error.qpn == qpn && !memcmp(&error.gid, &own_gid, sizeof own_gid));
	CHECK(dgiwarpdv_poll_error(qp, &error) == 0);
}

static void creation(void)
{
	struct dgiwarpdv_qp_init_attr dv = rd_attr();
	REFUSED(make_with(IBV_QPT_DRIVER, SENDS, NULL), EOPNOTSUPP);
	for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_UD; type++)
		REFUSED(make_with(type, IBV_QP_EX_WITH_SEND, &dv), EOPNOTSUPP);
	REFUSED(make_with(IBV_QPT_DRIVER, IBV_QP_EX_WITH_LOCAL_INV, &dv), EOPNOTSUPP);
	REFUSED(make_with(IBV_QPT_DRIVER, IBV_QP_EX_WITH_BIND_MW, &dv), EOPNOTSUPP);
	dv.driver_qp_type = 2;
	REFUSED(make_with(IBV_QPT_DRIVER, SENDS, &dv), EOPNOTSUPP);
	dv = rd_attr();
	dv.max_rate = 1;
	REFUSED(make_with(IBV_QPT_DRIVER, SENDS, &dv), EOPNOTSUPP);
	dv = rd_attr();
	dv.reserved = 1;
	REFUSED(make_with(IBV_QPT_DRIVER, SENDS, &dv), EOPNOTSUPP);
	dv = rd_attr();
	dv.driver_qp_type = 0;
	dv.unreachable_ms = 1;
	REFUSED(make_with(IBV_QPT_UD, IBV_QP_EX_WITH_SEND, &dv), EOPNOTSUPP);
	struct ibv_qp_init_attr plain = { .send_cq = sends, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER };
	REFUSED(ibv_create_qp(pd, &plain), EOPNOTSUPP);

	/* Its port is its number. */
	struct ibv_qp *qp = make();
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(qp->qp_num) };
	dv = rd_attr();
	dv.bind_addr = (struct sockaddr *)&address;
	dv.bind_addr_len = sizeof address;
	REFUSED(make_with(IBV_QPT_DRIVER, SENDS, &dv), EADDRINUSE);

	struct dgiwarpdv_qp_attr buffer = { .size = sizeof buffer };
	CHECK(dgiwarpdv_query_qp(qp, &buffer) == 0 && buffer.receive_buffer > 0);
	FAILS(dgiwarpdv_set_max_rate(qp, 1), EOPNOTSUPP);
	FAILS(dgiwarpdv_record_complete_now(qp), EOPNOTSUPP);
	FAILS(dgiwarpdv_take_read_map(qp, 0, NULL, NULL, 0), EOPNOTSUPP);
	REFUSED(dgiwarpdv_prove_address(qp, ah, 9, 10), EOPNOTSUPP);
	CHECK(ibv_attach_mcast(qp, &own_gid, 0) == EINVAL);
	uint64_t values[DGIWARPDV_COUNTERS];
	CHECK(dgiwarpdv_query_counters(qp, values, DGIWARPDV_COUNTERS) == DGIWARPDV_COUNTERS);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void operations(void)
{
	struct ibv_qp *one = up(make()), *other = up(make());
	uint32_t to = other->qp_num;
	unsigned char *there = memory + HALF;
	uint64_t *counter = (uint64_t *)(memory + HALF + 16384);
	struct ibv_qp_ex *ex;
	struct ibv_wc wc;

	for (int i = 0; i < 16; i++)
		post_recv(other, i, there + 64 * i, 64);
	memcpy(memory, "octets of a Send", 16);
	CHECK(send_to(one, 1, to) == 0);
	status(1, IBV_WC_SUCCESS);
	wc = arrival(one);
	CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == 0 && wc.byte_len == 16 && !wc.wc_flags && !memcmp(there, memory, 16));

	/* All of a list, in order. */
	*counter = 40;
	memset(memory + 1024, 'w', 9000);
	ex = begin(one, 2);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)there + 2048);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 1024, 9000);
	ibv_wr_set_ud_addr(ex, ah, to, 0);
	ex->wr_id = 3;
	ibv_wr_rdma_write_imm(ex, mr->rkey, (uintptr_t)there + 1500, htonl(77));
	ibv_wr_set_inline_data(ex, "inline", 6);
	ibv_wr_set_ud_addr(ex, ah, to, 0);
	ex->wr_id = 4;
	ibv_wr_send_imm(ex, htonl(78));
	ibv_wr_set_inline_data(ex, "one more", 8);
	ibv_wr_set_ud_addr(ex, ah, to, QKEY);
	ex->wr_id = 5;
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)counter, 2);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 512, 8);
	ibv_wr_set_ud_addr(ex, ah, to, 0);
	ex->wr_id = 6;
	ibv_wr_atomic_cmp_swp(ex, mr->rkey, (uintptr_t)counter, 42, 1000);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory + 520, 8);
	ibv_wr_set_ud_addr(ex, ah, to, 0);
	ex->wr_id = 7;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)there + 2048);
	CHECK(post(ex, memory + 12288, 9000, to) == 0);
	for (uint64_t id = 2; id <= 7; id++)
		status(id, IBV_WC_SUCCESS);
	wc = arrival(one);
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(77) && wc.byte_len == 6);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && !memcmp(there + 1500, "inline", 6));
	wc = arrival(one);
	CHECK(wc.opcode == IBV_WC_RECV && wc.imm_data == htonl(78) && wc.byte_len == 8 && !memcmp(there + 64 * wc.wr_id, "one more", 8));
	CHECK(*(uint64_t *)(memory + 512) == 40 && *(uint64_t *)(memory + 520) == 42 && *counter == 1000);
	CHECK(!memcmp(memory + 12288, memory + 1024, 9000));

	/* ibv_post_send has the Sends. */
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 8, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.ud = { .ah = ah, .remote_qpn = to, .remote_qkey = QKEY },
	}, *bad;
	CHECK(mw && ibv_post_send(one, &wr, &bad) == 0);
	status(8, IBV_WC_SUCCESS);
	CHECK(arrival(one).byte_len == 16);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(one, &wr, &bad) == 0);
	status(8, IBV_WC_SUCCESS);
	CHECK(arrival(one).byte_len == 16);
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK(ibv_post_send(one, &wr, &bad) == EINVAL && bad == &wr);
	/* A key that the peer cannot invalidate: a failure of this message, and of no other peer. */
	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = mw->rkey + 0x100;
	CHECK(ibv_post_send(one, &wr, &bad) == 0);
	status(8, IBV_WC_REM_ACCESS_ERR);
	error_of(one, DGIWARPDV_ERROR_TERMINATE, to);
	CHECK(ibv_dealloc_mw(mw) == 0);

	/* A list without an address, or with an operation that the queue pair was not made for. */
	ex = begin(one, 9);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 1);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ex = begin(one, 9);
	ibv_wr_local_inv(ex, 7);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ex = begin(one, 9);
	dgiwarpdv_wr_write_record(ex, mr->rkey, (uintptr_t)there);
	CHECK(post(ex, memory, 1, to) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

static void states(void)
{
	struct ibv_qp *one = make(), *other = up(make());
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	uint32_t to = other->qp_num;

	CHECK(send_to(one, 1, to) == EINVAL);
	CHECK(step(one, IBV_QPS_INIT, 0) == 0 && step(one, IBV_QPS_RTS, 0) == EINVAL);
	CHECK(step(one, IBV_QPS_RTR, IBV_QP_DEST_QPN) == EINVAL && step(one, IBV_QPS_RTR, 0) == 0);
	CHECK(step(one, IBV_QPS_RTS, 0) == 0);
	post_recv(other, 1, memory + HALF, 64);
	CHECK(send_to(one, 1, to) == 0);
	status(1, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 1);

	/* SQD: nothing begins until RTS. */
	CHECK(step(one, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	CHECK(ibv_query_qp(one, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_SQD && !attr.sq_draining);
	CHECK(init.qp_type == IBV_QPT_DRIVER && attr.qkey == QKEY);
	post_recv(other, 2, memory + HALF, 64);
	CHECK(send_to(one, 2, to) == 0);
	quiet(sends);
	CHECK(step(one, IBV_QPS_RTS, IBV_QP_CUR_STATE) == EINVAL && step(one, IBV_QPS_RTS, IBV_QP_QKEY) == 0);
	status(2, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 2);

	/* Another Q_Key is refused, and takes no receive. */
	post_recv(other, 7, memory + HALF, 64);
	struct ibv_qp_ex *ex = begin(one, 3);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 16);
	ibv_wr_set_ud_addr(ex, ah, to, QKEY + 1);
	CHECK(ibv_wr_complete(ex) == 0);
	status(3, IBV_WC_REM_ACCESS_ERR);
	error_of(one, DGIWARPDV_ERROR_TERMINATE, to);

	/* In error everything posted is flushed, receives too; from there the way leads to RESET alone. */
	post_recv(one, 4, memory, 64);
	CHECK(step(one, IBV_QPS_SQD, 0) == 0 && send_to(one, 5, to) == 0 && step(one, IBV_QPS_ERR, 0) == 0);
	status(5, IBV_WC_WR_FLUSH_ERR);
	CHECK(send_to(one, 6, to) == 0);
	status(6, IBV_WC_WR_FLUSH_ERR);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(step(one, IBV_QPS_RTS, 0) == EINVAL && step(one, IBV_QPS_RESET, 0) == 0);
	up(one);
	CHECK(send_to(one, 7, to) == 0);
	status(7, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 7);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
}

/* Peers that go: each fails what was on its way to it, and nothing else. */
static void failures(void)
{
	struct dgiwarpdv_qp_init_attr dv = rd_attr();
	dv.unreachable_ms = 300;
	struct ibv_qp *one = up(make_with(IBV_QPT_DRIVER, SENDS | WRITES, &dv));
	struct ibv_qp *resets = up(make()), *deaf = make(), *good = up(make());

	/* Nobody answers: the queue pair is there, but not ready to receive. */
	CHECK(send_to(one, 1, deaf->qp_num) == 0 && send_to(one, 2, deaf->qp_num) == 0);
	/* No receive, until the peer is reset, and learns it as an abort. */
	CHECK(send_to(one, 3, resets->qp_num) == 0);
	post_recv(good, 4, memory + HALF, 64);
	CHECK(send_to(one, 4, good->qp_num) == 0);
	status(4, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 4);
	status(1, IBV_WC_RETRY_EXC_ERR);
	status(2, IBV_WC_RETRY_EXC_ERR);
	error_of(one, DGIWARPDV_ERROR_UNREACHABLE, deaf->qp_num);
	CHECK(step(resets, IBV_QPS_RESET, 0) == 0);
	status(3, IBV_WC_REM_ABORT_ERR);
	error_of(one, DGIWARPDV_ERROR_CLOSED, resets->qp_num);
	up(resets);
	post_recv(resets, 5, memory + HALF, 64);
	CHECK(send_to(one, 5, resets->qp_num) == 0);
	status(5, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 5);

	/* The others go on. */
	post_recv(good, 6, memory + HALF, 64);
	CHECK(send_to(one, 6, good->qp_num) == 0);
	status(6, IBV_WC_SUCCESS);
	CHECK(arrival(one).wr_id == 6);
	CHECK(ibv_destroy_qp(deaf) == 0 && ibv_destroy_qp(resets) == 0 && ibv_destroy_qp(good) == 0 && ibv_destroy_qp(one) == 0);

	/* RNR retries are an attribute of RTS. */
	one = make();
	CHECK(step(one, IBV_QPS_INIT, 0) == 0 && step(one, IBV_QPS_RTR, 0) == 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .rnr_retry = 2 };
	CHECK(ibv_modify_qp(one, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY) == 0);
	struct ibv_qp *empty = up(make());
	CHECK(send_to(one, 8, empty->qp_num) == 0);
	status(8, IBV_WC_RNR_RETRY_EXC_ERR);
	error_of(one, DGIWARPDV_ERROR_RNR_RETRIES, empty->qp_num);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(empty) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	CHECK((arrivals = ibv_create_cq_ex(context, &init)) && (sends = ibv_create_cq(context, 64, NULL, NULL, 0)));
	cq = ibv_cq_ex_to_cq(arrivals);
	struct ibv_ah_attr attr = own_address();
	CHECK((ah = ibv_create_ah(pd, &attr)));
	creation();
	operations();
	states();
	failures();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(sends) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
