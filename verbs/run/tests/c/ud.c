/* Two datagram queue pairs of one process talk to each other through the C API as Debian's headers have it. The program
 * ends at the first surprise and prints its line. Arguments: one GID index, or -1 for LIDs. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <infiniband/verbs.h>
#include "test.h"

enum { DEPTH = 16, ROOM = 8192, QKEY = 0x11111111 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static unsigned char *memory;

static struct ibv_qp *make_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .qp_context = memory,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 3, .max_recv_sge = 3 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	CHECK(qp->state == IBV_QPS_RESET && qp->qp_type == IBV_QPT_UD && qp->qp_context == memory);
	CHECK(qp->qp_num > 0 && qp->qp_num < 65536);
	CHECK(init.cap.max_send_wr >= DEPTH && init.cap.max_recv_wr >= DEPTH);
	CHECK(init.cap.max_send_sge >= 3 && init.cap.max_recv_sge >= 3);
	return qp;
}

static void post_recv(struct ibv_qp *qp, uint64_t id, unsigned char *at, uint32_t length)
{
	/* In two pieces, and the first ends inside the 40 bytes in front of the datagram. */
	struct ibv_sge sges[2] = {
		{ (uintptr_t)at, 30, mr->lkey },
		{ (uintptr_t)at + 30, length - 30, mr->lkey },
	};
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sges, .num_sge = 2 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
	CHECK(qp->state == IBV_QPS_RESET);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	CHECK(qp->state == IBV_QPS_INIT);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 4711;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	CHECK(qp->state == IBV_QPS_RTS);

	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &now, IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_CAP, &init) == 0);
	CHECK(now.qp_state == IBV_QPS_RTS && now.qkey == QKEY && now.port_num == 1 && now.sq_psn == 4711);
	CHECK(now.cap.max_send_wr >= DEPTH && init.cap.max_recv_wr >= DEPTH && init.qp_type == IBV_QPT_UD);
	CHECK(init.send_cq == qp->send_cq && init.recv_cq == qp->recv_cq);
}

static void wait_wc(struct ibv_cq *cq, struct ibv_wc *wc)
{
	time_t end = time(NULL) + 5;
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
		CHECK(time(NULL) < end);
	CHECK(n == 1);
}

static unsigned checksum(const unsigned char *header)
{
	unsigned sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += header[i] << 8 | header[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static void check_grh(const unsigned char *grh, const union ibv_gid *gid, int length)
{
	static const unsigned char mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };
	if (memcmp(gid, mapped, 12) == 0) {
		static const unsigned char zero[20];
		CHECK(memcmp(grh, zero, 20) == 0);
		CHECK(grh[20] == 0x45 && grh[29] == IPPROTO_UDP);
		CHECK(checksum(grh + 20) == 0xffff);
		CHECK((grh[22] << 8 | grh[23]) > length);
		CHECK(memcmp(grh + 32, gid->raw + 12, 4) == 0 && memcmp(grh + 36, gid->raw + 12, 4) == 0);
	} else {
		CHECK(grh[0] >> 4 == 6 && grh[6] == IPPROTO_UDP);
		CHECK((grh[4] << 8 | grh[5]) > length);
		CHECK(memcmp(grh + 8, gid, 16) == 0 && memcmp(grh + 24, gid, 16) == 0);
	}
}

static void send_one(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint64_t id, unsigned char *from, int length,
		     enum ibv_wr_opcode opcode, unsigned flags, int sges)
{
	struct ibv_sge list[3];
	int done = 0;
	for (int i = 0; i < sges; i++) {
		int part = i == sges - 1 ? length - done : length / sges;
		list[i] = (struct ibv_sge){ (uintptr_t)from + done, part, mr->lkey };
		done += part;
	}
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = list, .num_sge = sges, .opcode = opcode, .send_flags = flags,
		.imm_data = htonl(0x12345678), .wr.ud = { ah, qpn, QKEY },
	}, *bad = NULL;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

int main(int argc, char **argv)
{
	int index = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && !list[1]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
	CHECK(ibv_query_gid(context, 1, index < 0 ? 0 : index, &gid) == 0);

	/* Memory. */
	memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pd = ibv_alloc_pd(context);
	CHECK(memory != MAP_FAILED && pd);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, 1 << 20, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	unsigned char *hole = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(!ibv_reg_mr(pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	munmap(hole + 4096, 4096);
	CHECK(!ibv_reg_mr(pd, hole, 8192, 0) && errno == ENOMEM);
	mr = ibv_reg_mr(pd, memory, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == memory && mr->length == 1 << 20 && mr->pd == pd && mr->lkey == mr->rkey);

	/* Queues. */
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel && channel->fd >= 0);
	struct ibv_cq *cq_a = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_cq *cq_b = ibv_create_cq(context, 2 * DEPTH, (void *)0x77, channel, 0);
	CHECK(cq_a && cq_b && cq_a->cqe >= 2 * DEPTH && cq_b->channel == channel && cq_b->cq_context == (void *)0x77);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 8, NULL, NULL, 1) && errno == EINVAL);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	struct ibv_qp *a = make_qp(cq_a), *b = make_qp(cq_b);
	CHECK(a->qp_num != b->qp_num);
	struct ibv_recv_wr unready = { .num_sge = 0 }, *bad_recv = NULL;
	CHECK(ibv_post_recv(a, &unready, &bad_recv) == EINVAL && bad_recv == &unready);
	ready(a);
	ready(b);
	CHECK(ibv_destroy_cq(cq_a) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_qp_init_attr huge = { .send_cq = cq_a, .recv_cq = cq_a, .qp_type = IBV_QPT_UD,
					 .cap = { .max_send_wr = 1 << 30 } };
	CHECK(!ibv_create_qp(pd, &huge) && errno == EINVAL);

	/* Addresses. */
	struct ibv_ah_attr attr = { .port_num = 1, .dlid = port.lid };
	if (index >= 0)
		attr = (struct ibv_ah_attr){ .port_num = 1, .is_global = 1,
					     .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	attr.port_num = 2;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);

	/* One datagram without and one with immediate, in one to three pieces. */
	struct ibv_wc wc;
	for (int round = 0; round < 6; round++) {
		int with_imm = round % 2, length = 700 + round;
		unsigned char *from = memory, *to = memory + 65536;
		for (int i = 0; i < length; i++)
			from[i] = i * 7 + round;
		memset(to, 0xee, ROOM);
		post_recv(b, 100 + round, to, ROOM);
		send_one(a, ah, b->qp_num, 200 + round, from, length, with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
			 IBV_SEND_SIGNALED, 1 + round / 2);
		wait_wc(cq_a, &wc);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
		CHECK(wc.wr_id == 200 + round && wc.qp_num == a->qp_num);
		wait_wc(cq_b, &wc);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 100 + round);
		CHECK(wc.qp_num == b->qp_num && wc.src_qp == a->qp_num && wc.byte_len == length + 40);
		CHECK(wc.wc_flags == (IBV_WC_GRH | (with_imm ? IBV_WC_WITH_IMM : 0)));
		CHECK(!with_imm || wc.imm_data == htonl(0x12345678));
		CHECK(memcmp(to + 40, from, length) == 0 && to[40 + length] == 0xee);
		check_grh(to, &gid, length);
	}

	/* Back to the sender, by the completion's fields. */
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(memory + 65536), 1);
	CHECK(back);
	post_recv(a, 1, memory + 65536, ROOM);
	send_one(b, back, wc.src_qp, 2, memory, 10, IBV_WR_SEND, IBV_SEND_SIGNALED, 1);
	wait_wc(cq_a, &wc);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 50 && wc.src_qp == b->qp_num);
	wait_wc(cq_b, &wc);
	CHECK(wc.opcode == IBV_WC_SEND && ibv_destroy_ah(back) == 0);

	/* To a group: whoever attached gets it, the sender too, until it detaches. Loopback has no route for IPv6 groups. */
	static const unsigned char v4[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 77, [14] = 1, [15] = 9 } };
	CHECK(ibv_attach_mcast(a, &gid, 0) == EINVAL);
	if (index >= 0 && memcmp(gid.raw, v4, 12) == 0) {
		struct ibv_ah_attr to_group = { .port_num = 1, .is_global = 1,
						.grh = { .dgid = group, .sgid_index = index, .hop_limit = 1 } };
		struct ibv_ah *all = ibv_create_ah(pd, &to_group);
		CHECK(all && ibv_detach_mcast(a, &group, 0) == EINVAL);
		CHECK(ibv_attach_mcast(a, &group, 0) == 0 && ibv_attach_mcast(b, &group, 0) == 0);
		CHECK(ibv_attach_mcast(a, &group, 0) == 0);
		for (int members = 2; members > 0; members--) {
			post_recv(a, 21, memory + 65536, ROOM);
			post_recv(b, 22, memory + 2 * 65536, ROOM);
			send_one(b, all, 0xffffff, 20, memory, 300, IBV_WR_SEND, 0, 1);
			wait_wc(cq_a, &wc);
			CHECK(wc.wr_id == 21 && wc.byte_len == 340 && wc.src_qp == b->qp_num);
			if (members == 1)
				break;
			wait_wc(cq_b, &wc);
			CHECK(wc.wr_id == 22 && wc.byte_len == 340 && wc.src_qp == b->qp_num);
			CHECK(memcmp(memory, memory + 2 * 65536 + 40, 300) == 0);
			CHECK(ibv_detach_mcast(b, &group, 0) == 0);
		}
		CHECK(ibv_detach_mcast(a, &group, 0) == 0 && ibv_destroy_ah(all) == 0);
		/* The receive that found nothing takes the next message. */
		send_one(a, ah, b->qp_num, 23, memory, 1, IBV_WR_SEND, 0, 1);
		wait_wc(cq_b, &wc);
		CHECK(wc.wr_id == 22 && wc.byte_len == 41);
	}

	/* Inline data may be overwritten at once, and needs no key. */
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(a, &now, IBV_QP_CAP, &init) == 0);
	if (init.cap.max_inline_data >= 64) {
		unsigned char small[64];
		struct ibv_sge sge = { (uintptr_t)small, sizeof small, 0 };
		struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
					  .wr.ud = { ah, b->qp_num, QKEY } }, *bad;
		memset(small, 0x5a, sizeof small);
		post_recv(b, 6, memory + 65536, ROOM);
		CHECK(ibv_post_send(a, &wr, &bad) == 0);
		memset(small, 0, sizeof small);
		wait_wc(cq_a, &wc);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
		wait_wc(cq_b, &wc);
		CHECK(wc.byte_len == 104 && memory[65536 + 40] == 0x5a && memory[65536 + 103] == 0x5a);
	}

	/* Events: none while nothing comes, one when it does, and the descriptor obeys O_NONBLOCK. */
	struct pollfd poller = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *event_cq;
	void *event_context;
	CHECK(ibv_req_notify_cq(cq_b, 0) == 0 && poll(&poller, 1, 20) == 0);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == -1 && errno == EAGAIN);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
	post_recv(b, 7, memory + 65536, ROOM);
	send_one(a, ah, b->qp_num, 8, memory, 100, IBV_WR_SEND, IBV_SEND_SIGNALED, 1);
	CHECK(poll(&poller, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == 0);
	CHECK(event_cq == cq_b && event_context == (void *)0x77);
	ibv_ack_cq_events(cq_b, 1);
	wait_wc(cq_b, &wc);
	CHECK(wc.wr_id == 7);
	wait_wc(cq_a, &wc);
	CHECK(ibv_poll_cq(cq_b, 1, &wc) == 0);

	/* Work requests that cannot be. */
	struct ibv_sge sge = { (uintptr_t)memory, 100, mr->lkey };
	struct ibv_send_wr good = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .wr.ud = { ah, b->qp_num, QKEY + 1 } }; /* dropped by its receiver */
	struct ibv_send_wr bad = good, *bad_wr = NULL;
	bad.num_sge = 1000;
	good.next = &bad;
	CHECK(ibv_post_send(a, &good, &bad_wr) == EINVAL && bad_wr == &bad);
	bad.num_sge = 1;
	bad.opcode = IBV_WR_RDMA_READ;
	good.next = NULL;
	CHECK(ibv_post_send(a, &bad, &bad_wr) != 0 && bad_wr == &bad);
	int posted = 0;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 };
	while (ibv_post_recv(b, &recv, &bad_recv) == 0)
		CHECK(++posted < 100000);
	CHECK(posted >= DEPTH && bad_recv == &recv);

	/* Error state: what was posted comes back flushed. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(b, &error, IBV_QP_STATE) == 0 && b->state == IBV_QPS_ERR);
	for (int i = 0; i < posted; i++) {
		wait_wc(cq_b, &wc);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == b->qp_num);
	}

	/* Down again, in the order that frees everything. */
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(cq_a) == 0 && ibv_destroy_cq(cq_b) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
