/* SRD queue pairs through Debian's efadv.h: one target and two sources in this process, and a peer that is killed in a child. Prints "ok". */
#include <errno.h>
#include <infiniband/efadv.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); exit(1); } } while (0)

enum { QKEY = 0x11223344, SIZE = 65536 };
static int sleeps;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_ah *ah;
static union ibv_gid gid;
static struct ibv_mr *mr;
static char *memory;

static struct ibv_cq_ex *completion_queue(void)
{
	struct efadv_cq_init_attr efa = {.wc_flags = EFADV_WC_EX_WITH_SGID};
	struct ibv_cq_init_attr_ex attr = {.cqe = 64, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_ex *cq = efadv_create_cq(context, &attr, &efa, sizeof efa);
	CHECK(cq);
	return cq;
}

static struct ibv_qp *queue_pair(struct ibv_cq_ex *cq, int driver, int rnr_retry)
{
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	struct ibv_qp_cap cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 32};
	struct ibv_qp *qp;
	if (driver) {
		struct ibv_qp_init_attr attr = {.send_cq = plain, .recv_cq = plain, .cap = cap, .qp_type = IBV_QPT_DRIVER, .sq_sig_all = 1};
		qp = efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD);
	} else {
		struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
		struct ibv_qp_init_attr_ex attr = {.send_cq = plain, .recv_cq = plain, .cap = cap, .qp_type = IBV_QPT_DRIVER,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
			.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM};
		efa.comp_mask = 1;
		CHECK(!efadv_create_qp_ex(context, &attr, &efa, sizeof efa) && errno == EINVAL);
		efa.comp_mask = 0;
		CHECK(!efadv_create_qp_ex(context, &attr, &efa, 8) && errno == EINVAL);
		attr.qp_type = IBV_QPT_UD;
		CHECK(!efadv_create_qp_ex(context, &attr, &efa, sizeof efa) && errno == EINVAL);
		attr.qp_type = IBV_QPT_DRIVER;
		qp = efadv_create_qp_ex(context, &attr, &efa, sizeof efa);
	}
	CHECK(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .rnr_retry = rnr_retry};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (rnr_retry < 7 ? IBV_QP_RNR_RETRY : 0)));
	return qp;
}

static void post_receive(struct ibv_qp *qp, uint64_t id, char *to, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)to, length, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_qp *qp, uint64_t id, uint32_t qpn, const char *from, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)from, length, lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* One completion. */
static struct ibv_wc next(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {0};
	struct ibv_cq *ready;
	void *of;
	struct ibv_wc wc = {0};
	while (ibv_start_poll(cq, &attr) == ENOENT) {
		if (!sleeps)
			continue;
		CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		if (!ibv_start_poll(cq, &attr))
			break;
		do {
			CHECK(!ibv_get_cq_event(channel, &ready, &of));
			ibv_ack_cq_events(ready, 1);
		} while (ready != ibv_cq_ex_to_cq(cq));
	}
	wc.wr_id = cq->wr_id;
	wc.status = cq->status;
	wc.vendor_err = ibv_wc_read_vendor_err(cq);
	if (!wc.status) {
		wc.opcode = ibv_wc_read_opcode(cq);
		wc.wc_flags = ibv_wc_read_wc_flags(cq);
		wc.imm_data = ibv_wc_read_imm_data(cq);
		wc.byte_len = ibv_wc_read_byte_len(cq);
		wc.src_qp = ibv_wc_read_src_qp(cq);
		wc.slid = ibv_wc_read_slid(cq);
		union ibv_gid from;
		int got = efadv_wc_read_sgid(efadv_cq_from_ibv_cq_ex(cq), &from);
		if (wc.opcode & IBV_WC_RECV)
			CHECK(!got && !memcmp(&from, &gid, sizeof gid));
		else
			CHECK(got < 0);
	}
	ibv_end_poll(cq);
	return wc;
}

static void succeeds(struct ibv_cq_ex *cq, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next(cq);
	if (wc.status || wc.wr_id != id || wc.opcode != opcode) {
		fprintf(stderr, "%lu, not %lu: status %d, opcode %d\n", (unsigned long)wc.wr_id, (unsigned long)id, wc.status, wc.opcode);
		exit(1);
	}
}

static void fails(struct ibv_cq_ex *cq, uint64_t id, enum ibv_wc_status status, uint32_t vendor_err)
{
	struct ibv_wc wc = next(cq);
	if (wc.status != status || wc.wr_id != id || wc.vendor_err != vendor_err) {
		fprintf(stderr, "%lu, not %lu: status %d, not %d, vendor %u\n", (unsigned long)wc.wr_id, (unsigned long)id, wc.status, status, wc.vendor_err);
		exit(1);
	}
}

static void device_attributes(void)
{
	struct efadv_device_attr attr;
	struct { struct efadv_device_attr known; uint64_t later; } newer;
	struct efadv_ah_attr number;
	memset(&attr, 0xff, sizeof attr);
	CHECK(efadv_query_device(context, &attr, 20) == EINVAL);
	CHECK(!efadv_query_device(context, &attr, 24));
	CHECK(attr.max_sq_sge == 2 && attr.inline_buf_size == 32 && !attr.comp_mask && attr.device_caps == 0xffffffff);
	CHECK(!efadv_query_device(context, &attr, sizeof attr));
	CHECK(attr.device_caps & EFADV_DEVICE_ATTR_CAPS_RDMA_READ && attr.max_rdma_size == 1 << 30);
	newer.later = 1;
	CHECK(!efadv_query_device(context, &newer.known, sizeof newer) && newer.later == 0);
	CHECK(efadv_query_ah(ah, &number, 8) == EINVAL);
	CHECK(!efadv_query_ah(ah, &number, sizeof number));
	CHECK(number.ahn == ((gid.raw[14] << 8) | gid.raw[15]));
}

static void traffic(int old)
{
	struct ibv_cq_ex *at = completion_queue(), *from[2] = {completion_queue(), completion_queue()};
	struct ibv_qp *target = queue_pair(at, 0, 7), *source[2] = {queue_pair(from[0], old, 7), queue_pair(from[1], old, 7)};
	struct efadv_ah_attr number;
	CHECK(!efadv_query_ah(ah, &number, sizeof number));
	for (int i = 0; i < 2; i++) {
		char text[] = {'a' + i, 'b', 'c', 0};
		memset(memory, 0, SIZE);
		post_receive(target, 1, memory, 100);
		post_receive(target, 2, memory + 100, 100);
		strcpy(memory + 1000, text);
		if (old) {
			post_send(source[i], 10, target->qp_num, memory + 1000, 4, mr->lkey);
			succeeds(from[i], 10, IBV_WC_SEND);
			post_send(source[i], 11, target->qp_num, memory + 1000, 4, mr->lkey);
			succeeds(from[i], 11, IBV_WC_SEND);
		} else {
			struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(source[i]);
			ibv_wr_start(qp);
			qp->wr_id = 10;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(qp);
			ibv_wr_set_inline_data(qp, text, 4);
			ibv_wr_set_ud_addr(qp, ah, target->qp_num, QKEY);
			qp->wr_id = 11;
			ibv_wr_send_imm(qp, htobe32(77));
			ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 1000, 4);
			ibv_wr_set_ud_addr(qp, ah, target->qp_num, QKEY);
			CHECK(!ibv_wr_complete(qp));
			succeeds(from[i], 10, IBV_WC_SEND);
			succeeds(from[i], 11, IBV_WC_SEND);
		}
		struct ibv_wc wc = next(at);
		CHECK(!wc.status && wc.wr_id == 1 && wc.byte_len == 4 && wc.src_qp == source[i]->qp_num && wc.slid == number.ahn);
		CHECK(!strcmp(memory, text));
		wc = next(at);
		CHECK(!wc.status && wc.wr_id == 2 && !strcmp(memory + 100, text));
		CHECK(old || (wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 77));
		if (old)
			continue;
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(source[i]);
		memset(memory + 2000, 'w', 9000);
		post_receive(target, 3, memory, 0);
		ibv_wr_start(qp);
		qp->wr_id = 12;
		ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + 20000);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 2000, 9000);
		ibv_wr_set_ud_addr(qp, ah, target->qp_num, QKEY);
		qp->wr_id = 13;
		ibv_wr_rdma_write_imm(qp, mr->rkey, (uintptr_t)memory + 29000, htobe32(78));
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 2000, 10);
		ibv_wr_set_ud_addr(qp, ah, target->qp_num, QKEY);
		qp->wr_id = 14;
		ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)memory + 20000);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 40000, 9010);
		ibv_wr_set_ud_addr(qp, ah, target->qp_num, QKEY);
		CHECK(!ibv_wr_complete(qp));
		succeeds(from[i], 12, IBV_WC_RDMA_WRITE);
		succeeds(from[i], 13, IBV_WC_RDMA_WRITE);
		/* As EFA devices report Reads. */
		succeeds(from[i], 14, IBV_WC_SEND);
		wc = next(at);
		CHECK(!wc.status && wc.wr_id == 3 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && be32toh(wc.imm_data) == 78);
		CHECK(!memcmp(memory + 40000, memory + 2000, 9000) && memory[49009] == 'w');
	}
	CHECK(!ibv_destroy_qp(source[0]) && !ibv_destroy_qp(source[1]) && !ibv_destroy_qp(target));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(at)) && !ibv_destroy_cq(ibv_cq_ex_to_cq(from[0])) && !ibv_destroy_cq(ibv_cq_ex_to_cq(from[1])));
}

static void errors(void)
{
	struct ibv_cq_ex *at = completion_queue(), *from = completion_queue();
	struct ibv_qp *target = queue_pair(at, 0, 7), *source = queue_pair(from, 0, 1);
	post_send(source, 20, target->qp_num, memory, 4, mr->lkey);
	fails(from, 20, IBV_WC_RNR_RETRY_EXC_ERR, 10);
	post_receive(target, 4, memory, 100);
	post_send(source, 21, target->qp_num, memory, 4, mr->lkey + 1000);
	fails(from, 21, IBV_WC_LOC_PROT_ERR, 5);
	post_send(source, 22, target->qp_num, memory, 101, mr->lkey);
	fails(from, 22, IBV_WC_REM_INV_REQ_ERR, 11);
	fails(at, 4, IBV_WC_LOC_LEN_ERR, 6);
	/* The queue pair is none the worse. */
	post_receive(target, 5, memory, 100);
	post_send(source, 23, target->qp_num, memory, 100, mr->lkey);
	succeeds(from, 23, IBV_WC_SEND);
	succeeds(at, 5, IBV_WC_RECV);
	CHECK(!ibv_destroy_qp(source) && !ibv_destroy_qp(target));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(at)) && !ibv_destroy_cq(ibv_cq_ex_to_cq(from)));
}

static void device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	memory = calloc(1, SIZE);
	CHECK(pd && channel && memory && !ibv_query_gid(context, 1, 0, &gid));
	mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_ah_attr attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid}};
	ah = ibv_create_ah(pd, &attr);
	CHECK(mr && ah);
}

/* As another adapter. */
static void none(void)
{
	struct efadv_device_attr attr;
	struct ibv_cq_init_attr_ex cq = {.cqe = 1};
	struct efadv_cq_init_attr efa = {0};
	struct efadv_ah_attr number;
	CHECK(efadv_query_device(context, &attr, sizeof attr) == EOPNOTSUPP);
	CHECK(efadv_query_ah(ah, &number, sizeof number) == EOPNOTSUPP);
	CHECK(!efadv_create_cq(context, &cq, &efa, sizeof efa) && errno == EOPNOTSUPP);
	struct ibv_cq_ex *plain = ibv_create_cq_ex(context, &cq);
	CHECK(plain && !efadv_cq_from_ibv_cq_ex(plain) && errno == EOPNOTSUPP);
	queue_pair(plain, 0, 7);
	queue_pair(plain, 1, 7);
}

int main(int argc, char **argv)
{
	uint32_t qpn = 0;
	int ends[2];
	pid_t child;
	sleeps = argc > 1 && !strcmp(argv[1], "sleeps");
	if (argc > 1 && !strcmp(argv[1], "none")) {
		device();
		none();
		puts("ok");
		return 0;
	}
	CHECK(!pipe(ends));
	child = fork();
	if (!child) {
		device();
		struct ibv_cq_ex *cq = completion_queue();
		qpn = queue_pair(cq, 0, 7)->qp_num;
		CHECK(write(ends[1], &qpn, sizeof qpn) == sizeof qpn);
		pause();
	}
	device();
	CHECK(read(ends[0], &qpn, sizeof qpn) == sizeof qpn);
	device_attributes();
	traffic(0);
	traffic(1);
	errors();
	/* A peer that is gone. */
	struct ibv_cq_ex *from = completion_queue();
	struct ibv_qp *source = queue_pair(from, 0, 7);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	post_send(source, 30, qpn, memory, 4, mr->lkey);
	fails(from, 30, IBV_WC_RETRY_EXC_ERR, 13);
	puts("ok");
	return 0;
}
