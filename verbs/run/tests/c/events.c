/* Asynchronous events and shared receive queues. Argument: a GID index. */
#include <rdma/rdma_cma.h>
#include "pair.h"

static struct ibv_cq *cq;
static struct ibv_srq *srq;

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *shared)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = shared, .qp_type = type, .sq_sig_all = 1,
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

/* The next event, which comes by itself: nobody polls. */
static struct ibv_async_event next_event(enum ibv_event_type type)
{
	struct ibv_async_event event;
	CHECK(readable(8000) == 1);
	CHECK(ibv_get_async_event(context, &event) == 0);
	if (event.event_type != type)
		fprintf(stderr, "%s\n", ibv_event_type_str(event.event_type));
	CHECK(event.event_type == type);
	return event;
}

static void drain(void)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static void creation(void)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 16, .max_sge = 1 }, .pd = pd, .srq_context = &cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_XRC,
	};
	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	init.srq_type = IBV_SRQT_TM;
	REFUSED(ibv_create_srq_ex(context, &init), EOPNOTSUPP);
	init.srq_type = IBV_SRQT_BASIC;
	init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
	REFUSED(ibv_create_srq_ex(context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	struct ibv_srq *other = ibv_create_srq_ex(context, &init);
	init.comp_mask = IBV_SRQ_INIT_ATTR_PD;
	CHECK(other && (srq = ibv_create_srq_ex(context, &init)) && srq->srq_context == &cq);
	uint32_t number, other_number;
	CHECK(ibv_get_srq_num(srq, &number) == 0 && ibv_get_srq_num(other, &other_number) == 0 && number != other_number);
	CHECK(ibv_destroy_srq(other) == 0);
	struct ibv_xrcd_init_attr xrcd = {};
	REFUSED(ibv_open_xrcd(context, &xrcd), EINVAL);
	struct ibv_qp_open_attr open = {};
	REFUSED(ibv_open_qp(context, &open), EINVAL);
}

static void post_shared(uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory + HALF, 1024, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static struct ibv_async_event unacknowledged;
static int acknowledged;

static void *acknowledge_later(void *unused)
{
	struct timespec pause = { .tv_nsec = 50000000 };
	nanosleep(&pause, NULL);
	__atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
	ibv_ack_async_event(&unacknowledged);
	return NULL;
}

/* Destroying waits for the acknowledgement. */
static void destroyed_late(int (*destroy)(void *), void *object, struct ibv_async_event event)
{
	pthread_t thread;
	unacknowledged = event;
	acknowledged = 0;
	CHECK(pthread_create(&thread, NULL, acknowledge_later, NULL) == 0);
	CHECK(destroy(object) == 0 && __atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
	CHECK(pthread_join(thread, NULL) == 0);
}

static void limits(void)
{
	struct ibv_qp *from = make_qp(IBV_QPT_UD, NULL), *to = make_qp(IBV_QPT_UD, srq);
	connect_to(from, from);
	connect_to(to, to);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	for (int id = 0; id < 4; id++)
		post_shared(id);
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(readable(0) == 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr.ud = { ah, to->qp_num, QKEY } }, *bad;
	for (int i = 0; i < 2; i++) {
		CHECK(readable(20) == 0);
		CHECK(ibv_post_send(from, &wr, &bad) == 0);
	}
	struct ibv_async_event event = next_event(IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(readable(0) == 0);
	/* Too few already. */
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	event = next_event(IBV_EVENT_SRQ_LIMIT_REACHED);
	ibv_ack_async_event(&event);

	/* Nobody listens there, which a datagram queue pair does not make an event of. */
	wr.wr.ud.remote_qpn = 9;
	CHECK(ibv_post_send(from, &wr, &bad) == 0 && readable(50) == 0);

	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(to, &failed, IBV_QP_STATE) == 0);
	event = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == to);
	destroyed_late((int (*)(void *))ibv_destroy_qp, to, event);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_ah(ah) == 0);
	drain();
}

static void access_errors(void)
{
	struct ibv_qp *from = make_qp(IBV_QPT_RC, NULL), *to = make_qp(IBV_QPT_RC, srq);
	connect_to(from, to);
	connect_to(to, from);
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)memory + HALF, mr->rkey ^ 0x5555 },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_async_event event = next_event(IBV_EVENT_QP_ACCESS_ERR), last;
	CHECK(event.element.qp == to);
	ibv_ack_async_event(&event);
	last = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(last.element.qp == to);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == from->qp_num);
	/* The error is reported already. */
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(to, &failed, IBV_QP_STATE) == 0 && readable(20) == 0);
	destroyed_late((int (*)(void *))ibv_destroy_qp, to, last);
	CHECK(ibv_destroy_qp(from) == 0);
	drain();
}

/* The peer leaves, then this end does: one event, whichever of them raises it. */
static void last_receives(void)
{
	for (int told = 0; told < 2; told++) {
		struct ibv_qp *from = make_qp(IBV_QPT_RC, NULL), *to = make_qp(IBV_QPT_RC, srq);
		connect_to(from, to);
		connect_to(to, from);
		struct ibv_send_wr wr = { .wr_id = 6, .opcode = IBV_WR_RDMA_WRITE }, *bad;
		CHECK(ibv_post_send(from, &wr, &bad) == 0 && next_of(cq).wr_id == 6);
		CHECK(ibv_destroy_qp(from) == 0);
		if (told)
			CHECK(readable(50) == 0);
		struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
		CHECK(ibv_modify_qp(to, &failed, IBV_QP_STATE) == 0);
		struct ibv_async_event event = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
		CHECK(event.element.qp == to);
		ibv_ack_async_event(&event);
		CHECK(readable(50) == 0);
		CHECK(ibv_modify_qp(to, &failed, IBV_QP_STATE) == 0 && readable(20) == 0);
		CHECK(ibv_destroy_qp(to) == 0);
	}
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static void overrun(void)
{
	struct ibv_cq *usual = cq, *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *other = make_qp(IBV_QPT_UD, NULL);
	cq = small;
	struct ibv_qp *qp = make_qp(IBV_QPT_UD, NULL);
	cq = usual;
	connect_to(qp, qp);
	connect_to(other, other);
	struct ibv_ah_attr attr = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_send_wr wr = { .wr_id = 3, .opcode = IBV_WR_SEND, .wr.ud = { ah, 9, QKEY } }, *bad;
	for (int i = 0; i < 3; i++)
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	struct ibv_async_event event = next_event(IBV_EVENT_CQ_ERR), fatal = next_event(IBV_EVENT_QP_FATAL);
	CHECK(event.element.cq == small && fatal.element.qp == qp && state_of(qp) == IBV_QPS_ERR);
	ibv_ack_async_event(&fatal);
	/* The others do not suffer. */
	CHECK(state_of(other) == IBV_QPS_RTS && ibv_post_send(other, &wr, &bad) == 0);
	success(cq, 3, IBV_WC_SEND);
	CHECK(readable(0) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_ah(ah) == 0);
	destroyed_late((int (*)(void *))ibv_destroy_cq, small, event);
	drain();
}

/* Completions of sends are lost, and the queue pair receives elsewhere. Another one of the same queue for receives goes on. */
static void overrun_of_sends(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = small, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init), *peer = make_qp(IBV_QPT_RC, NULL);
	struct ibv_qp *one = make_qp(IBV_QPT_RC, NULL), *two = make_qp(IBV_QPT_RC, NULL);
	CHECK(qp);
	connect_to(qp, peer);
	connect_to(peer, qp);
	connect_to(one, two);
	connect_to(two, one);
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)memory + HALF, mr->rkey },
	}, *bad;
	for (int i = 0; i < 3; i++)
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	struct ibv_async_event event = next_event(IBV_EVENT_CQ_ERR), fatal = next_event(IBV_EVENT_QP_FATAL);
	CHECK(event.element.cq == small && fatal.element.qp == qp && state_of(qp) == IBV_QPS_ERR);
	ibv_ack_async_event(&fatal);
	CHECK(ibv_post_send(one, &wr, &bad) == 0);
	success(cq, 7, IBV_WC_RDMA_WRITE);
	CHECK(state_of(one) == IBV_QPS_RTS && readable(0) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0);
	destroyed_late((int (*)(void *))ibv_destroy_cq, small, event);
	drain();
}

static void *get_event(void *unused)
{
	struct ibv_async_event event;
	return (void *)(intptr_t)ibv_get_async_event(context, &event);
}

static void waiting(void)
{
	struct timespec pause = { .tv_nsec = 30000000 };
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, get_event, NULL) == 0);
	nanosleep(&pause, NULL);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	int flags = fcntl(context->async_fd, F_GETFL);
	CHECK(flags >= 0 && !(flags & O_NONBLOCK) && fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) == 0);
	CHECK((intptr_t)get_event(NULL) == -1 && errno == EAGAIN);
}

/* Shared receive queues of an identifier of rdma_cm, which has a domain of its own. One without a channel would be at a loopback address without a device. */
static void through_identifiers(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_cm_id *id;
	CHECK(rdma_getaddrinfo("127.0.0.1", "0", &hints, &found) == 0);
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(id, found->ai_src_addr) == 0);
	rdma_freeaddrinfo(found);
	struct ibv_pd *domain = ibv_alloc_pd(id->verbs);
	CHECK(domain);
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	CHECK(rdma_create_srq_ex(id, &init) == -1 && errno == EINVAL);
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	init.srq_type = IBV_SRQT_XRC;
	init.pd = domain;
	CHECK(rdma_create_srq_ex(id, &init) == -1 && errno == EINVAL && !id->srq);
	init.srq_type = IBV_SRQT_BASIC;
	CHECK(rdma_create_srq_ex(id, &init) == 0 && id->srq && id->srq->pd == domain && id->pd == domain);
	CHECK(rdma_create_srq_ex(id, &init) == -1 && errno == EINVAL);
	rdma_destroy_srq(id);
	/* Now the identifier has a domain. */
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	init.pd = NULL;
	CHECK(rdma_create_srq_ex(id, &init) == 0 && init.pd == domain && init.comp_mask & IBV_SRQ_INIT_ATTR_PD);
	rdma_destroy_srq(id);
	CHECK(ibv_dealloc_pd(domain) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	through_identifiers();
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	creation();
	limits();
	access_errors();
	last_receives();
	CHECK(ibv_destroy_srq(srq) == 0);
	overrun();
	overrun_of_sends();
	waiting();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
