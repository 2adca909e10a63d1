/* Registering anew, windows, domains and advice. Argument: a GID index. */
#include "pair.h"
#include <infiniband/dgiwarpdv.h>

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void connect_pair(void)
{
	from = make_qp();
	to = make_qp();
	connect_to(from, to);
	connect_to(to, from);
	hear_from(from, to, cq);
}

static void drop_pair(void)
{
	struct ibv_wc wc;
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

/* How it ends when the first sixteen bytes of memory are written to an address of the peer, which may end the connection. */
static enum ibv_wc_status write_to(uint64_t address, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { address, rkey },
	}, *bad;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 5);
	return wc.status;
}

/* The same on a connection of its own. */
static enum ibv_wc_status write_once(uint64_t address, uint32_t rkey)
{
	connect_pair();
	enum ibv_wc_status status = write_to(address, rkey);
	drop_pair();
	return status;
}

static void registration(void)
{
	unsigned char *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	REFUSED(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	REFUSED(ibv_reg_mr(pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_import_device(context->cmd_fd), EOPNOTSUPP);
	REFUSED(ibv_import_pd(context, 0), EOPNOTSUPP);
	REFUSED(ibv_import_mr(pd, 0), EOPNOTSUPP);
	struct ibv_counters_init_attr counters = {};
	REFUSED(ibv_create_counters(context, &counters), EOPNOTSUPP);

	/* Read-only memory may be read, and only that. */
	struct ibv_mr *readable = ibv_reg_mr(pd, page, 8192, IBV_ACCESS_REMOTE_READ);
	CHECK(readable);
	CHECK(ibv_rereg_mr(readable, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EFAULT);

	/* Advice: elements of the domain, inside of their regions. */
	struct ibv_sge sge = { (uintptr_t)page + 100, 5000, readable->lkey };
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
	unsigned char present[2];
	CHECK(mincore(page, 8192, present) == 0 && present[0] & present[1] & 1);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1) == EPERM);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, &sge, 1) == 0);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 8, &sge, 1) == EINVAL);
	sge.length = 8192;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EFAULT);
	CHECK(ibv_dereg_mr(readable) == 0 && munmap(page, 8192) == 0);
}

static void anew(void)
{
	enum { TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION, PD = IBV_REREG_MR_CHANGE_PD, ACCESS = IBV_REREG_MR_CHANGE_ACCESS };
	unsigned char *first = memory + HALF, *second = memory + HALF + 4096;
	struct ibv_mr *target = ibv_reg_mr(pd, first, 64, ALL_REMOTE);
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(target && other);
	strcpy((char *)memory, "written");

	CHECK(ibv_rereg_mr(target, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(target, TRANSLATION, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(target, PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(target, TRANSLATION, NULL, second, 64, ALL_REMOTE) == IBV_REREG_MR_ERR_INPUT);
	CHECK(write_once((uintptr_t)first, target->rkey) == IBV_WC_SUCCESS);

	CHECK(ibv_rereg_mr(target, TRANSLATION, NULL, second, 128, 0) == 0);
	CHECK(target->addr == second && target->length == 128 && target->pd == pd);
	CHECK(write_once((uintptr_t)second, target->rkey) == IBV_WC_SUCCESS && !strcmp((char *)second, "written"));
	CHECK(write_once((uintptr_t)first, target->rkey) == IBV_WC_REM_ACCESS_ERR);

	CHECK(ibv_rereg_mr(target, ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ) == 0);
	CHECK(write_once((uintptr_t)second, target->rkey) == IBV_WC_REM_ACCESS_ERR);

	CHECK(ibv_rereg_mr(target, PD | ACCESS, other, NULL, 0, ALL_REMOTE) == 0 && target->pd == other);
	CHECK(write_once((uintptr_t)second, target->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(ibv_rereg_mr(target, PD, pd, NULL, 0, 0) == 0);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(write_once((uintptr_t)second, target->rkey) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(target) == 0);

	/* Opened to peers, a private region has its key still, which the program may have sent them before. */
	target = ibv_reg_mr(pd, second, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(target);
	uint32_t before = target->rkey;
	CHECK(ibv_rereg_mr(target, ACCESS, NULL, NULL, 0, ALL_REMOTE) == 0 && target->lkey == target->rkey && target->rkey == before);
	memset(second, 0, 64);
	CHECK(write_once((uintptr_t)second, target->lkey) == IBV_WC_SUCCESS && !strcmp((char *)second, "written"));
	CHECK(ibv_dereg_mr(target) == 0);
}

static void bind_second(struct ibv_mw *mw, uint32_t rkey, unsigned char *at, uint64_t length, unsigned access)
{
	struct ibv_send_wr wr = {
		.wr_id = 6, .opcode = IBV_WR_BIND_MW,
		.bind_mw = { mw, rkey, { mr, (uintptr_t)at, length, access } },
	}, *bad;
	CHECK(ibv_post_send(to, &wr, &bad) == 0);
}

static void windows(void)
{
	struct ibv_device_attr device;
	CHECK(ibv_query_device(context, &device) == 0 && device.max_mw > 0);
	CHECK(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW && device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	unsigned char *at = memory + HALF + 8192;

	/* Type 1: bound and bound again by calls, open to every queue pair of the domain. */
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->pd == pd && mw->type == IBV_MW_TYPE_1);
	connect_pair();
	struct ibv_mr *region = ibv_reg_mr(pd, at, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw_bind bind = {
		.wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = { region, (uintptr_t)at + 64, 64, IBV_ACCESS_REMOTE_WRITE },
	};
	uint32_t first = mw->rkey;
	CHECK(region && ibv_bind_mw(to, mw, &bind) == 0 && mw->rkey != first);
	success(cq, 7, IBV_WC_BIND_MW);
	CHECK(write_to((uintptr_t)at + 64, mw->rkey) == IBV_WC_SUCCESS && !strcmp((char *)at + 64, "written"));
	CHECK(ibv_dereg_mr(region) == EBUSY);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EBUSY);
	first = mw->rkey;
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	CHECK(ibv_bind_mw(to, mw, &bind) == 0);
	success(cq, 7, IBV_WC_BIND_MW);
	CHECK(write_to(16, mw->rkey) == IBV_WC_SUCCESS && !strcmp((char *)at + 80, "written"));
	bind.bind_info = (struct ibv_mw_bind_info) {};
	CHECK(ibv_bind_mw(to, mw, &bind) == 0);
	success(cq, 7, IBV_WC_BIND_MW);
	CHECK(write_to(16, mw->rkey) == IBV_WC_REM_ACCESS_ERR);
	drop_pair();
	CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_mw(mw) == 0);

	/* Type 2: bound by a work request, with a key of the program's. */
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	connect_pair();
	CHECK(ibv_bind_mw(to, mw, &bind) == EINVAL);
	bind_second(mw, key, at, 64, IBV_ACCESS_REMOTE_WRITE);
	success(cq, 6, IBV_WC_BIND_MW);
	CHECK(write_to((uintptr_t)at, key) == IBV_WC_SUCCESS);

	/* Taken back by this end, bound again, taken back by the other end. */
	struct ibv_send_wr inv = { .wr_id = 8, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key }, *bad;
	CHECK(ibv_post_send(to, &inv, &bad) == 0);
	success(cq, 8, IBV_WC_LOCAL_INV);
	key = ibv_inc_rkey(key);
	bind_second(mw, key, at, 64, IBV_ACCESS_REMOTE_WRITE);
	success(cq, 6, IBV_WC_BIND_MW);
	CHECK(write_to((uintptr_t)at, key) == IBV_WC_SUCCESS);
	post_recv(to, 20, at, 64);
	inv = (struct ibv_send_wr) { .wr_id = 9, .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key };
	CHECK(ibv_post_send(from, &inv, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 9 || wc.wr_id == 20));
		if (wc.wr_id == 20)
			CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == key);
	}
	CHECK(write_to((uintptr_t)at, key) == IBV_WC_REM_ACCESS_ERR);
	drop_pair();

	/* Bindings that are refused: another window's key, rights that windows do not have, octets outside of the region. */
	connect_pair();
	struct ibv_send_wr wrong = {
		.opcode = IBV_WR_BIND_MW, .bind_mw = { mw, key ^ 0x100, { mr, (uintptr_t)at, 64, IBV_ACCESS_REMOTE_WRITE } },
	};
	CHECK(ibv_post_send(to, &wrong, &bad) == EINVAL && bad == &wrong);
	wrong.bind_mw.rkey = key;
	wrong.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_MW_BIND;
	CHECK(ibv_post_send(to, &wrong, &bad) == EINVAL);
	bind_second(mw, key, memory + ROOM - 32, 64, IBV_ACCESS_REMOTE_WRITE);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 6 && wc.status == IBV_WC_MW_BIND_ERR);
	drop_pair();
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* Everything that is made in a domain is made in a parent domain too, which is in use as long. */
static void every_object_of(struct ibv_pd *parent, struct ibv_pd *plain)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	CHECK(dm);
	struct ibv_mr *regions[] = {
		ibv_reg_mr(parent, memory, 64, IBV_ACCESS_LOCAL_WRITE), ibv_reg_mr_iova(parent, memory, 64, 0, IBV_ACCESS_LOCAL_WRITE),
		ibv_alloc_null_mr(parent), ibv_reg_dm_mr(parent, dm, 0, 64, IBV_ACCESS_ZERO_BASED),
	};
	for (int i = 0; i < 4; i++) {
		CHECK(regions[i] && regions[i]->pd == parent && ibv_dealloc_pd(parent) == EBUSY);
		struct ibv_sge sge = { 0, 8, regions[i]->lkey };
		CHECK(i != 1 || ibv_advise_mr(parent, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == 0);
	}
	CHECK(ibv_rereg_mr(regions[0], IBV_REREG_MR_CHANGE_PD, plain, NULL, 0, 0) == 0 && regions[0]->pd == plain);
	CHECK(ibv_rereg_mr(regions[0], IBV_REREG_MR_CHANGE_PD, parent, NULL, 0, 0) == 0 && regions[0]->pd == parent);
	for (int i = 0; i < 4; i++)
		CHECK(ibv_dereg_mr(regions[i]) == 0);
	CHECK(ibv_free_dm(dm) == 0);
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_mw *mw = ibv_alloc_mw(parent, type);
		CHECK(mw && mw->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_mw(mw) == 0);
	}
	struct ibv_ah_attr to_self = own_address();
	struct ibv_ah *ah = ibv_create_ah(parent, &to_self);
	CHECK(ah && ah->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_destroy_ah(ah) == 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(parent, &srq_init);
	CHECK(srq && srq->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_destroy_srq(srq) == 0);
	struct ibv_srq_init_attr_ex srq_ex = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = parent,
	};
	CHECK((srq = ibv_create_srq_ex(context, &srq_ex)) && srq->pd == parent && ibv_destroy_srq(srq) == 0);
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr_ex init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = types[i], .cap = { 4, 4, 1, 1, 0 },
			.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = parent,
		};
		struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
		CHECK(qp && qp->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_destroy_qp(qp) == 0);
	}
}

static void domains(void)
{
	struct ibv_td_init_attr td_attr = {}, unknown = { .comp_mask = 1 };
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	CHECK(td && td->context == context);
	REFUSED(ibv_alloc_td(context, &unknown), EOPNOTSUPP);
	struct ibv_pd *plain = ibv_alloc_pd(context);
	struct ibv_parent_domain_init_attr attr = { .pd = plain, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(plain && parent && parent->context == context);
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 8;
	REFUSED(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
	attr = (struct ibv_parent_domain_init_attr) {};
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	CHECK(ibv_dealloc_pd(plain) == EBUSY && ibv_dealloc_td(td) == EBUSY);

	/* It is as good as the domain that it was made of: memory of one serves queue pairs of the other. */
	struct ibv_pd *usual = pd;
	struct ibv_mr *usual_mr = mr;
	CHECK((mr = ibv_reg_mr(plain, memory, ROOM, ALL_REMOTE)));
	pd = parent;
	CHECK(write_once((uintptr_t)memory + HALF, mr->rkey) == IBV_WC_SUCCESS);
	every_object_of(parent, plain);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(context, &cq_attr);
	CHECK(cq_ex && ibv_dealloc_pd(parent) == EBUSY && ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);
	cq_attr.parent_domain = plain;
	REFUSED(ibv_create_cq_ex(context, &cq_attr), EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0);
	pd = usual;
	mr = usual_mr;
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(plain) == 0);
}

/* Buffers that the program allocates, with a context: where from, how many are out. */
static struct pool {
	enum { OURS, DEFAULT, NONE } answer;
	unsigned char *last;
	size_t size;
	int out;
	struct ibv_pd *pd;
} pool;

static void *allocate(struct ibv_pd *of, void *pd_context, size_t size, size_t alignment, uint64_t resource_type)
{
	struct pool *it = pd_context;
	CHECK(it == &pool && of == it->pd && size > 0 && resource_type == DGIWARPDV_RES_TYPE_QP);
	if (it->answer != OURS)
		return it->answer == NONE ? NULL : IBV_ALLOCATOR_USE_DEFAULT;
	it->out++;
	it->size = size;
	CHECK((it->last = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)));
	return memset(it->last, 0, size);
}

static void release(struct ibv_pd *of, void *pd_context, void *at, uint64_t resource_type)
{
	struct pool *it = pd_context;
	CHECK(it == &pool && of == it->pd && at && resource_type == DGIWARPDV_RES_TYPE_QP && it->out-- > 0);
	free(at);
}

static int holds(const unsigned char *at, size_t size, const char *text)
{
	for (size_t i = 0; i + strlen(text) <= size; i++)
		if (!memcmp(at + i, text, strlen(text)))
			return 1;
	return 0;
}

/* Inline data of unreliable queue pairs goes by way of the program's memory; reliable ones have none. */
static void allocators(void)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = allocate, .free = release, .pd_context = &pool,
	};
	struct ibv_pd *usual = pd, *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(parent);
	pool.pd = pd = parent;
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC };
	for (int i = 0; i < 4; i++) {
		pool.answer = i < 2 ? OURS : DEFAULT;
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = types[i % 2], .sq_sig_all = 1,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 32 },
		};
		CHECK((from = ibv_create_qp(parent, &init)) && (to = ibv_create_qp(parent, &init)));
		CHECK(pool.out == (i == 1 ? 2 : 0));
		connect_to(from, to);
		connect_to(to, from);
		/* The later one is the receiver's. */
		char text[] = "through the program's memory";
		struct ibv_sge sge = { (uintptr_t)text, sizeof text };
		struct ibv_send_wr wr = {
			.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
		}, *bad;
		memset(memory + HALF, 0, 64);
		post_recv(from, 2, memory + HALF, 64);
		CHECK(ibv_post_send(to, &wr, &bad) == 0);
		memset(text, 0, sizeof text);
		for (int seen = 0; seen != 3;) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			seen |= wc.wr_id;
		}
		CHECK(!strcmp((char *)memory + HALF, "through the program's memory"));
		CHECK(i != 1 || holds(pool.last, pool.size, "through the program's memory"));
		drop_pair();
		CHECK(pool.out == 0);
	}
	pool.answer = NONE;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
	REFUSED(ibv_create_qp(parent, &init), ENOMEM);
	/* A queue pair that cannot be made gives its memory back. */
	pool.answer = OURS;
	init.recv_cq = NULL;
	CHECK(!ibv_create_qp(parent, &init) && pool.out == 0);
	pd = usual;
	CHECK(ibv_dealloc_pd(parent) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	registration();
	anew();
	windows();
	domains();
	allocators();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
