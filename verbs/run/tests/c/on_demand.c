/* Regions whose pages come and go (IBV_ACCESS_ON_DEMAND). Arguments: a GID index; then "denied", if system calls that copy memory of processes are
 * denied. */
#include "pair.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { PAGE = 4096, PAGES = 512, LONG = PAGES * PAGE };
enum { DEMAND = ALL_REMOTE | IBV_ACCESS_ON_DEMAND };

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
/* PAGES pages of address space, and their region. */
static unsigned char *pages;
static struct ibv_mr *demand;

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void make_pair(enum ibv_qp_type type)
{
	from = make_qp(type);
	to = make_qp(type);
	connect_to(from, to);
	connect_to(to, from);
	if (type == IBV_QPT_RC)
		hear_from(from, to, cq);
}

static void drop_pair(void)
{
	struct ibv_wc wc;
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static void map(int first, int count)
{
	void *at = mmap(pages + first * PAGE, (size_t)count * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(at == pages + first * PAGE);
}

static void unmap(int first, int count)
{
	/* Reserved, so that nothing else gets the addresses; no access is possible. */
	void *at = mmap(pages + first * PAGE, (size_t)count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(at == pages + first * PAGE);
}

/* The next completion with this identifier. */
static struct ibv_wc wait_for(uint64_t id)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 60;
	for (;;) {
		CHECK(time(NULL) < end);
		if (ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == id)
			return wc;
	}
}

static void post(enum ibv_wr_opcode opcode, void *local, uint32_t length, uint32_t lkey, void *remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)local, length, lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

/* The end of one operation on a connection of its own. */
static enum ibv_wc_status once(enum ibv_wr_opcode opcode, void *local, uint32_t length, uint32_t lkey, void *remote, uint32_t rkey)
{
	make_pair(IBV_QPT_RC);
	post(opcode, local, length, lkey, remote, rkey);
	enum ibv_wc_status status = wait_for(1).status;
	drop_pair();
	return status;
}

/* The end of a Send, and in `received` that of its receive. */
static enum ibv_wc_status send_once(void *source, uint32_t length, uint32_t source_key, void *sink, uint32_t sink_key,
				    enum ibv_wc_status *received)
{
	make_pair(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)sink, length, sink_key };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(to, &wr, &bad) == 0);
	post(IBV_WR_SEND, source, length, source_key, NULL, 0);
	struct ibv_wc wc;
	int sent = -1, got = -1;
	time_t end = time(NULL) + 60;
	while (sent < 0 || got < 0) {
		CHECK(time(NULL) < end);
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			*(wc.wr_id == 1 ? &sent : &got) = wc.status;
	}
	drop_pair();
	*received = got;
	return sent;
}

static void registration(void)
{
	struct ibv_device_attr_ex attr;
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_RECV);

	/* Nothing has to be there yet. */
	REFUSED(ibv_reg_mr(pd, pages, LONG, ALL_REMOTE), EFAULT);
	CHECK((demand = ibv_reg_mr(pd, pages, LONG, DEMAND)));
	CHECK(demand->addr == pages && demand->length == LONG && demand->lkey == demand->rkey);
	REFUSED(ibv_reg_mr(pd, NULL, LONG, DEMAND), EINVAL);
	REFUSED(ibv_reg_mr(pd, pages, 0, DEMAND), EINVAL);
	REFUSED(ibv_reg_mr(pd, pages, SIZE_MAX, DEMAND), EINVAL);
	REFUSED(ibv_reg_mr(pd, NULL, SIZE_MAX, ALL_REMOTE), EINVAL);
	REFUSED(ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 64, DEMAND), EINVAL);
}

/* Pages of a peer's target and source. */
static void remote_pages(void)
{
	uint32_t l = mr->lkey, r = demand->rkey;
	static const enum ibv_wr_opcode ALL[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (int i = 0; i < 3; i++) {
		unmap(0, PAGES);
		CHECK(once(ALL[i], memory, 8, l, pages + 64, r) == IBV_WC_REM_ACCESS_ERR);
		map(0, 1);
		memset(pages, 7, PAGE);
		CHECK(once(ALL[i], memory, 8, l, pages + 64, r) == IBV_WC_SUCCESS);
		/* Behind the last page that is there. */
		if (ALL[i] != IBV_WR_ATOMIC_FETCH_AND_ADD)
			CHECK(once(ALL[i], memory, 64, l, pages + PAGE - 32, r) == IBV_WC_REM_ACCESS_ERR);
		CHECK(mprotect(pages, PAGE, PROT_READ) == 0);
		enum ibv_wc_status on_read_only = ALL[i] == IBV_WR_RDMA_READ ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
		CHECK(once(ALL[i], memory, 8, l, pages + 64, r) == on_read_only);
	}
	map(0, 16);
	for (int i = 0; i < HALF; i++)
		memory[i] = i % 251;
	CHECK(once(IBV_WR_RDMA_WRITE, memory, HALF, l, pages + 3, r) == IBV_WC_SUCCESS && !memcmp(memory, pages + 3, HALF));
	CHECK(once(IBV_WR_RDMA_READ, memory + HALF, HALF, l, pages + 3, r) == IBV_WC_SUCCESS && !memcmp(memory, memory + HALF, HALF));
}

/* Pages of own elements: those of short messages, which are copied, and of long ones, which are not. */
static void local_pages(void)
{
	enum ibv_wc_status received;
	uint32_t d = demand->lkey;
	static unsigned char sink[LONG];
	struct ibv_mr *plain = ibv_reg_mr(pd, sink, LONG, ALL_REMOTE);
	CHECK(plain);
	static const uint32_t LENGTHS[] = { 1, 64, 5000, 60000, LONG };
	for (int i = 0; i < 5; i++) {
		uint32_t length = LENGTHS[i];
		map(0, PAGES);
		for (uint32_t at = 0; at < length; at++)
			pages[at] = at % 253;
		CHECK(send_once(pages, length, d, sink, plain->lkey, &received) == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS);
		CHECK(!memcmp(pages, sink, length));
		memset(pages, 0, length);
		CHECK(send_once(sink, length, plain->lkey, pages, d, &received) == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS);
		CHECK(!memcmp(pages, sink, length));
		CHECK(once(IBV_WR_RDMA_WRITE, pages, length, d, sink, plain->rkey) == IBV_WC_SUCCESS);

		/* The last page is missing. */
		unmap((length - 1) / PAGE, 1);
		CHECK(once(IBV_WR_RDMA_WRITE, pages, length, d, sink, plain->rkey) == IBV_WC_LOC_PROT_ERR);
		CHECK(send_once(pages, length, d, sink, plain->lkey, &received) == IBV_WC_LOC_PROT_ERR);
		CHECK(send_once(sink, length, plain->lkey, pages, d, &received) != IBV_WC_SUCCESS && received == IBV_WC_LOC_PROT_ERR);
		CHECK(once(IBV_WR_RDMA_READ, pages, length, d, sink, plain->rkey) == IBV_WC_LOC_PROT_ERR);
	}
	CHECK(ibv_dereg_mr(plain) == 0);

	/* Datagrams. */
	map(0, PAGES);
	make_pair(IBV_QPT_UD);
	struct ibv_ah_attr address = own_address();
	struct ibv_ah *ah = ibv_create_ah(pd, &address);
	CHECK(ah);
	for (int there = 1; there >= 0; there--) {
		post_recv(to, 2, memory, 4096);
		struct ibv_sge sge = { (uintptr_t)pages + 9 * PAGE, 2000, d };
		struct ibv_send_wr wr = {
			.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, to->qp_num, QKEY },
		}, *bad;
		if (!there)
			unmap(9, 1);
		CHECK(ibv_post_send(from, &wr, &bad) == 0);
		/* In either order. */
		for (int seen = 0; seen != (there ? 3 : 1);) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == (there ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
			CHECK(wc.wr_id == 1 || wc.byte_len == 2040);
			seen |= wc.wr_id;
		}
	}
	drop_pair();
	CHECK(ibv_destroy_ah(ah) == 0);
}

/* All that the process has, now and later. */
static void implicit(void)
{
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, DEMAND);
	CHECK(all && all->addr == NULL && all->length == SIZE_MAX);
	char on_stack[32] = "";
	char *allocated = malloc(1 << 20);
	strcpy((char *)memory, "anywhere");
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, all->lkey, on_stack, all->rkey) == IBV_WC_SUCCESS && !strcmp(on_stack, "anywhere"));
	CHECK(once(IBV_WR_RDMA_READ, allocated + 99, 16, all->lkey, memory, all->rkey) == IBV_WC_SUCCESS);
	CHECK(!strcmp(allocated + 99, "anywhere"));
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, all->lkey, (void *)8, all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, all->lkey, (void *)65536, all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, all->lkey, (void *)"constant", all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(once(IBV_WR_RDMA_WRITE, NULL, 16, all->lkey, on_stack, all->rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_rereg_mr(all, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND) == 0);
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, all->lkey, on_stack, all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(all) == 0);
	free(allocated);
}

/* Made anew, with and without pages on demand. */
static void anew(void)
{
	map(0, 2);
	unmap(2, PAGES - 2);
	struct ibv_mr *plain = ibv_reg_mr(pd, pages, 2 * PAGE, ALL_REMOTE);
	CHECK(plain);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, pages, LONG, ALL_REMOTE) != 0);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, pages, LONG, DEMAND) == 0);
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, mr->lkey, pages + 2 * PAGE, plain->rkey) == IBV_WC_REM_ACCESS_ERR);
	map(2, 1);
	CHECK(once(IBV_WR_RDMA_WRITE, memory, 16, mr->lkey, pages + 2 * PAGE, plain->rkey) == IBV_WC_SUCCESS);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_REMOTE) != 0 && errno == EFAULT);
	CHECK(ibv_dereg_mr(plain) == 0);
}

static volatile int stop;

static void *come_and_go(void *unused)
{
	while (!stop) {
		unmap(8, 8);
		map(8, 8);
	}
	return unused;
}

/* Pages that go in the middle of operations end operations, not the process. */
static void amid_operations(void)
{
	pthread_t thread;
	int done[2] = { 0, 0 };
	map(0, PAGES);
	CHECK(pthread_create(&thread, NULL, come_and_go, NULL) == 0);
	for (int i = 0; i < 120; i++) {
		enum ibv_wc_status status;
		if (i % 3 == 0)
			status = once(IBV_WR_RDMA_WRITE, memory, ROOM, mr->lkey, pages, demand->rkey);
		else if (i % 3 == 1)
			status = once(IBV_WR_RDMA_READ, memory, ROOM, mr->lkey, pages, demand->rkey);
		else
			status = once(IBV_WR_RDMA_WRITE, pages, ROOM, demand->lkey, memory, mr->rkey);
		done[status == IBV_WC_SUCCESS]++;
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(done[0] + done[1] == 120);
}

static void deny_copies(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

int main(int argc, char **argv)
{
	int denied = argc == 3 && !strcmp(argv[2], "denied");
	if (denied)
		deny_copies();
	open_device(argc - denied, argv);
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	pages = mmap(NULL, LONG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	registration();
	remote_pages();
	local_pages();
	implicit();
	anew();
	/* Copies are plain then, and the pages have to stay for as long as one takes. */
	if (!denied)
		amid_operations();
	CHECK(ibv_dereg_mr(demand) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
