/* Common parts of the C tests: a device, memory, and queue pairs of this process that are connected to each other. Every surprise ends the
 * program with the line that it happened in. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include "test.h"

/* A call that fails with NULL and this errno. */
#define REFUSED(call, number)                                                                                          \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK(!(call) && errno == (number));                                                                   \
	} while (0)

#define ALL_REMOTE                                                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

enum { ROOM = 65536, HALF = ROOM / 2, QKEY = 0x11223344 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid own_gid;
static int gid_index;
static _Alignas(4096) unsigned char memory[ROOM];

static inline void open_device(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && argc == 2);
	gid_index = atoi(argv[1]);
	CHECK((context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK(ibv_query_gid(context, 1, gid_index, &own_gid) == 0);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, ROOM, ALL_REMOTE | IBV_ACCESS_MW_BIND)));
}

static inline struct ibv_ah_attr own_address(void)
{
	return (struct ibv_ah_attr) {
		.is_global = 1, .port_num = 1, .grh = { .dgid = own_gid, .sgid_index = gid_index, .hop_limit = 1 },
	};
}

/* Added to the PSNs of queue pairs that are connected again: those of two lives differ, so that nothing of one comes in the other. */
static __thread uint32_t psn_shift;

/* Steps number `first` up to `end` of the way to INIT, RTR and RTS, with a peer in this process. */
static inline void steps_to(struct ibv_qp *qp, struct ibv_qp *peer, int first, int end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_REMOTE, .qkey = QKEY, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num, .rq_psn = (peer->qp_num + psn_shift) & 0xffffff, .sq_psn = (qp->qp_num + psn_shift) & 0xffffff,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
		.ah_attr = own_address(),
	};
	int of[] = { IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, IBV_QP_STATE, IBV_QP_STATE | IBV_QP_SQ_PSN };
	if (qp->qp_type == IBV_QPT_UD) {
		of[0] |= IBV_QP_QKEY;
	} else {
		of[0] |= IBV_QP_ACCESS_FLAGS;
		of[1] |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (qp->qp_type == IBV_QPT_RC) {
		of[1] |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		of[2] |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	for (int i = first; i < end; i++) {
		attr.qp_state = IBV_QPS_INIT + i;
		CHECK(ibv_modify_qp(qp, &attr, of[i]) == 0);
	}
}

static inline void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	steps_to(qp, peer, 0, 3);
}

static inline void post_recv(struct ibv_qp *qp, uint64_t id, void *at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)at, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static inline struct ibv_wc next_of(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 8;
	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0 && time(NULL) < end);
		if (n)
			return wc;
	}
}

static inline struct ibv_wc success(struct ibv_cq *cq, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next_of(cq);
	if (wc.wr_id != id || wc.status != IBV_WC_SUCCESS || wc.opcode != opcode)
		fprintf(stderr, "id %llu status %d opcode %d\n", (unsigned long long)wc.wr_id, wc.status, wc.opcode);
	CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
	return wc;
}

/* A message without octets from the peer. Later ones complete as the peer has them: until its first octets came, completions wait for a
 * tenth of a second only, which is short on a busy machine. Both ends complete at this queue. */
static inline void hear_from(struct ibv_qp *qp, struct ibv_qp *peer, struct ibv_cq *cq)
{
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0 && ibv_post_send(peer, &send, &bad_send) == 0);
	for (int seen = 0; seen != 3;) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		seen |= wc.wr_id;
	}
}

/* Nothing more comes. */
static inline void quiet(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	struct timespec pause = { .tv_nsec = 2000000 };
	for (int i = 0; i < 10; i++) {
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
		nanosleep(&pause, NULL);
	}
}
