/* Device memory: copies, zero-based regions as source and destination, and its limits. Argument: a GID index. */
#include "pair.h"

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;

static struct ibv_dm *allocate(size_t length)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = 6 };
	return ibv_alloc_dm(context, &attr);
}

static void limits(void)
{
	struct ibv_device_attr_ex device;
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.max_dm_size >= 1 << 20);
	size_t most = device.max_dm_size;
	REFUSED(allocate(0), EINVAL);
	REFUSED(allocate(most + 1), EINVAL);
	struct ibv_alloc_dm_attr unknown = { .length = 64, .comp_mask = 1 }, crooked = { .length = 64, .log_align_req = 40 };
	REFUSED(ibv_alloc_dm(context, &unknown), EINVAL);
	REFUSED(ibv_alloc_dm(context, &crooked), EINVAL);
	struct ibv_dm *all = allocate(most);
	CHECK(all && all->context == context);
	REFUSED(allocate(4), ENOMEM);
	CHECK(ibv_free_dm(all) == 0);
	CHECK(ibv_free_dm(all) == EINVAL);
	for (int i = 0; i < 3; i++) {
		CHECK((all = allocate(most)));
		/* New memory is empty. */
		unsigned char octets[8], zero[8] = {};
		CHECK(ibv_memcpy_from_dm(octets, all, most - 8, 8) == 0 && !memcmp(octets, zero, 8));
		CHECK(ibv_memcpy_to_dm(all, most - 8, "not zero", 8) == 0 && ibv_free_dm(all) == 0);
	}

	struct ibv_dm *dm = allocate(100);
	enum { ZERO = IBV_ACCESS_ZERO_BASED };
	REFUSED(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_reg_dm_mr(pd, dm, 0, 104, ZERO | IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_reg_dm_mr(pd, dm, 4, 100, ZERO | IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_reg_dm_mr(pd, dm, UINT64_MAX, 4, ZERO | IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_reg_dm_mr(pd, dm, 0, 100, ZERO | IBV_ACCESS_REMOTE_WRITE), EINVAL);
	struct ibv_mr *all_of_it = ibv_reg_dm_mr(pd, dm, 0, 100, ZERO | IBV_ACCESS_LOCAL_WRITE);
	CHECK(all_of_it && all_of_it->pd == pd && all_of_it->length == 100);
	CHECK(ibv_rereg_mr(all_of_it, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_REMOTE) != 0);
	CHECK(ibv_free_dm(dm) == EBUSY && ibv_dereg_mr(all_of_it) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 2, "octets", 4) == EINVAL && ibv_memcpy_to_dm(dm, 4, "octets", 6) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 100, "octets", 4) == EFAULT && ibv_memcpy_from_dm(memory, dm, 0, 104) == EFAULT);
	CHECK(ibv_memcpy_from_dm(memory, dm, UINT64_MAX - 3, 8) == EFAULT);
	CHECK(ibv_free_dm(dm) == 0);
}

static void post(enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

/* From one buffer to the other, in every way. Regions of parts begin at zero too. */
static void traffic(void)
{
	enum { LENGTH = 20000, SKIP = 400, PART = 12000 };
	struct ibv_dm *near = allocate(LENGTH), *far = allocate(LENGTH);
	CHECK(near && far);
	struct ibv_mr *near_mr = ibv_reg_dm_mr(pd, near, SKIP, PART, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *far_mr = ibv_reg_dm_mr(pd, far, SKIP, PART, IBV_ACCESS_ZERO_BASED | ALL_REMOTE);
	CHECK(near_mr && far_mr && far_mr->lkey == far_mr->rkey);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((from = ibv_create_qp(pd, &init)) && (to = ibv_create_qp(pd, &init)));
	connect_to(from, to);
	connect_to(to, from);

	unsigned char *expected = memory, *found = memory + HALF;
	for (int i = 0; i < PART; i++)
		expected[i] = i % 253;
	CHECK(ibv_memcpy_to_dm(near, SKIP, expected, PART) == 0);
	struct ibv_sge all = { 0, PART, near_mr->lkey };
	post(IBV_WR_RDMA_WRITE, all, 0, far_mr->rkey);
	success(cq, 1, IBV_WC_RDMA_WRITE);
	CHECK(ibv_memcpy_from_dm(found, far, 0, LENGTH) == 0);
	CHECK(!memcmp(found + SKIP, expected, PART) && found[SKIP - 1] == 0 && found[SKIP + PART] == 0);

	unsigned char zeroes[PART] = {};
	CHECK(ibv_memcpy_to_dm(near, SKIP, zeroes, PART) == 0);
	post(IBV_WR_RDMA_READ, (struct ibv_sge) { 4, PART - 8, near_mr->lkey }, 8, far_mr->rkey);
	success(cq, 1, IBV_WC_RDMA_READ);
	CHECK(ibv_memcpy_from_dm(found, near, SKIP, PART) == 0 && !memcmp(found + 4, expected + 8, PART - 8) && !found[0]);

	uint64_t counter = 37;
	CHECK(ibv_memcpy_to_dm(far, SKIP + 16, &counter, 8) == 0);
	post(IBV_WR_ATOMIC_FETCH_AND_ADD, (struct ibv_sge) { 0, 8, near_mr->lkey }, 16, far_mr->rkey);
	success(cq, 1, IBV_WC_FETCH_ADD);
	CHECK(ibv_memcpy_from_dm(&counter, near, SKIP, 8) == 0 && counter == 37);
	CHECK(ibv_memcpy_from_dm(&counter, far, SKIP + 16, 8) == 0 && counter == 42);

	struct ibv_sge into = { 100, PART - 100, far_mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &into, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(to, &receive, &bad) == 0 && ibv_memcpy_to_dm(near, SKIP, "a message in device memory..", 28) == 0);
	post(IBV_WR_SEND, (struct ibv_sge) { 0, 28, near_mr->lkey }, 0, 0);
	for (int seen = 0; seen != 3;) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		seen |= wc.wr_id;
	}
	CHECK(ibv_memcpy_from_dm(found, far, SKIP + 100, 28) == 0 && !memcmp(found, "a message in device memory..", 28));

	/* One octet beyond the region, inside the buffer. */
	post(IBV_WR_RDMA_WRITE, (struct ibv_sge) { 0, 4, near_mr->lkey }, PART - 3, far_mr->rkey);
	CHECK(next_of(cq).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_dereg_mr(near_mr) == 0 && ibv_dereg_mr(far_mr) == 0 && ibv_free_dm(near) == 0 && ibv_free_dm(far) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	limits();
	traffic();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
