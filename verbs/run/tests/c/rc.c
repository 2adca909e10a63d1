/* Two reliable connected queue pairs of one process, through the C API as Debian's headers have it. The program ends at the first
 * surprise and prints its line. Argument: a GID index. */
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
enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC,
};

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static _Alignas(8) unsigned char memory[ROOM];

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->qp_type == IBV_QPT_RC && init.cap.max_inline_data >= 64);

	/* No options of vendors: those of a peer that has some are refused, its identifier alone is not. */
	struct ibv_ece ece = { 1, 2, 3 }, vendor = { .vendor_id = 0x15b3 }, options = { .vendor_id = 0x15b3, .options = 4 };
	CHECK(ibv_query_ece(qp, &ece) == 0 && !ece.vendor_id && !ece.options && !ece.comp_mask);
	CHECK(ibv_set_ece(qp, &ece) == 0 && ibv_set_ece(qp, &vendor) == 0 && !vendor.vendor_id);
	CHECK(ibv_set_ece(qp, &options) == EINVAL && ibv_set_ece(qp, NULL) == EINVAL);
	return qp;
}

static void initialize(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE };
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT & ~IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT) == 0);
}

static void ready(struct ibv_qp *qp, uint32_t peer, uint32_t rq_psn, uint32_t sq_psn, const union ibv_gid *gid, int index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = rq_psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = *gid, .sgid_index = index, .hop_limit = 1 } },
	};
	CHECK(ibv_modify_qp(qp, &attr, TO_RTR & ~IBV_QP_MAX_DEST_RD_ATOMIC) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, TO_RTR) == 0);
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .sq_psn = sq_psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
	};
	CHECK(ibv_modify_qp(qp, &attr, TO_RTS & ~IBV_QP_TIMEOUT) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, TO_RTS) == 0);
}

static void post_recv(struct ibv_qp *qp, uint64_t id, unsigned char *at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)at, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, unsigned char *local, uint32_t length, unsigned char *remote,
		 uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)local, length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 99, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(0xcafef00d),
	}, *bad;
	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.swap = 77;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* The next completion of a work request, or of a receive; those of the other kind wait. */
static struct ibv_wc next(int of_receive)
{
	static struct ibv_wc waiting[64];
	static int count;
	time_t end = time(NULL) + 8;
	for (;;) {
		for (int i = 0; i < count; i++)
			if ((waiting[i].wr_id != 99) == of_receive) {
				struct ibv_wc wc = waiting[i];
				memmove(waiting + i, waiting + i + 1, --count * sizeof wc - i * sizeof wc);
				return wc;
			}
		int n = ibv_poll_cq(cq, 1, waiting + count);
		CHECK(n >= 0 && time(NULL) < end);
		count += n;
	}
}

static struct ibv_wc done(struct ibv_qp *qp, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next(0);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode && wc.qp_num == qp->qp_num);
	return wc;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int index = atoi(argv[1]);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context && (pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
							 IBV_ACCESS_REMOTE_ATOMIC)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, index, &gid) == 0);
	struct ibv_device_attr device;
	CHECK(ibv_query_device(context, &device) == 0 && device.max_qp_rd_atom >= 16 && device.atomic_cap != IBV_ATOMIC_NONE);

	struct ibv_qp *one = make_qp(), *two = make_qp();
	struct ibv_send_wr early = { .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(one, &early, &bad) == EINVAL && bad == &early);
	initialize(one);
	initialize(two);
	ready(one, two->qp_num, 7, 8, &gid, index);
	post_recv(two, 1, memory + HALF, LONG);
	/* The peer is not there yet, and no event comes. */
	memset(memory, 'a', LONG);
	post(one, IBV_WR_SEND, memory, LONG, NULL, 0);
	ready(two, one->qp_num, 8, 7, &gid, index);
	struct ibv_wc wc = next(1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.byte_len == LONG);
	CHECK(wc.qp_num == two->qp_num && memcmp(memory, memory + HALF, LONG) == 0);
	done(one, IBV_WC_SEND);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(one, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	CHECK(attr.dest_qp_num == two->qp_num && attr.timeout == 14 && attr.retry_cnt == 7 && attr.max_rd_atomic == 4);

	/* An RDMA Write, seen without a call into the library. */
	memset(memory, 'w', 100);
	post(one, IBV_WR_RDMA_WRITE, memory, 100, memory + HALF, mr->rkey);
	time_t end = time(NULL) + 5;
	while (*(volatile unsigned char *)(memory + HALF + 99) != 'w')
		CHECK(time(NULL) < end);
	CHECK(memcmp(memory, memory + HALF, 100) == 0 && memory[HALF + 100] == 'a');
	done(one, IBV_WC_RDMA_WRITE);

	post_recv(two, 2, memory + HALF, 1);
	post(one, IBV_WR_RDMA_WRITE_WITH_IMM, memory, 50, memory + HALF + 200, mr->rkey);
	wc = next(1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 2 && wc.byte_len == 50);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == htonl(0xcafef00d) && memory[HALF + 249] == 'w');
	done(one, IBV_WC_RDMA_WRITE);

	memset(memory + HALF, 'r', LONG);
	post(one, IBV_WR_RDMA_READ, memory, LONG, memory + HALF, mr->rkey);
	CHECK(done(one, IBV_WC_RDMA_READ).byte_len == LONG && memcmp(memory, memory + HALF, LONG) == 0);

	uint64_t five = 5;
	memcpy(memory + HALF, &five, 8);
	post(one, IBV_WR_ATOMIC_FETCH_AND_ADD, memory, 8, memory + HALF, mr->rkey);
	done(one, IBV_WC_FETCH_ADD);
	CHECK(*(uint64_t *)memory == 5 && *(uint64_t *)(memory + HALF) == 10);
	post(one, IBV_WR_ATOMIC_CMP_AND_SWP, memory, 8, memory + HALF, mr->rkey);
	done(one, IBV_WC_COMP_SWAP);
	CHECK(*(uint64_t *)memory == 10 && *(uint64_t *)(memory + HALF) == 10);
	*(uint64_t *)(memory + HALF) = 5;
	post(one, IBV_WR_ATOMIC_CMP_AND_SWP, memory, 8, memory + HALF, mr->rkey);
	done(one, IBV_WC_COMP_SWAP);
	CHECK(*(uint64_t *)memory == 5 && *(uint64_t *)(memory + HALF) == 77);

	post_recv(two, 8, memory + HALF, 64);
	post(one, IBV_WR_SEND_WITH_IMM, memory, 32, NULL, 0);
	wc = next(1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 8 && wc.byte_len == 32);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == htonl(0xcafef00d));
	done(one, IBV_WC_SEND);

	/* Inline data need no key, and may change at once. */
	post_recv(one, 3, memory, 64);
	char text[64] = "inline";
	struct ibv_sge sge = { (uintptr_t)text, sizeof text, 0 };
	struct ibv_send_wr wr = {
		.wr_id = 99, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE | IBV_SEND_SOLICITED | IBV_SEND_FENCE,
	};
	CHECK(ibv_post_send(two, &wr, &bad) == 0);
	memset(text, 'x', sizeof text);
	wc = next(1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof text && strcmp((char *)memory, "inline") == 0);
	done(two, IBV_WC_SEND);

	/* A key that is none: the peer reports it, and both queue pairs are in error. */
	post_recv(one, 4, memory, 64);
	post_recv(two, 5, memory, 64);
	post(one, IBV_WR_RDMA_WRITE, memory, 8, memory + HALF, mr->rkey ^ 0x100);
	CHECK(next(0).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(next(1).status == IBV_WC_WR_FLUSH_ERR && next(1).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_query_qp(one, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(ibv_query_qp(two, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	post(one, IBV_WR_SEND, memory, 8, NULL, 0);
	CHECK(next(0).status == IBV_WC_WR_FLUSH_ERR);
	post_recv(two, 6, memory, 64);
	wc = next(1);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 6);

	/* Nobody has this number: the time-out is the program's. */
	struct ibv_qp *lonely = make_qp();
	initialize(lonely);
	/* On datagrams the numbers are UDP ports. */
	ready(lonely, lonely->qp_num < 65536 ? 1025 : 0x00fffe01, 1, 2, &gid, index);
	post(lonely, IBV_WR_SEND, memory, 8, NULL, 0);
	CHECK(next(0).status == IBV_WC_RETRY_EXC_ERR);

	/* And an error that the program asks for flushes without a connection too. */
	struct ibv_qp *unused = make_qp();
	initialize(unused);
	post_recv(unused, 7, memory, 64);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(unused, &attr, IBV_QP_STATE) == 0);
	wc = next(1);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 7);

	CHECK(ibv_destroy_qp(unused) == 0 && ibv_destroy_qp(lonely) == 0 && ibv_destroy_qp(two) == 0 && ibv_destroy_qp(one) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	puts("ok");
	return 0;
}
