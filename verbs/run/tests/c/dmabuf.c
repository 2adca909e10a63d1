/* Regions of memfds and, where the kernel has them, of DMA buffers made of memfds (ibv_reg_dmabuf_mr). Argument: a GID index. */
#define _GNU_SOURCE
#include "pair.h"
#include <linux/udmabuf.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

enum { PAGE = 4096, LONG = 64 * PAGE };
/* A range that begins and ends inside of pages; the IOVA has its offset in a page. */
enum { OFFSET = 3 * PAGE + 104, LENGTH = 40 * PAGE + 50 };
static const uint64_t IOVA = 0x700000000000 + 104;

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
static struct ibv_ah *ah;
/* The file of the present round, and the program's own mapping of it. */
static int file;
static unsigned char *contents;

static void make_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((from = ibv_create_qp(pd, &init)) && (to = ibv_create_qp(pd, &init)));
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

static void post(enum ibv_wr_opcode opcode, uint64_t local, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { local, length, lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.rkey = rkey;
	} else if (from->qp_type == IBV_QPT_UD) {
		wr.wr.ud = (typeof(wr.wr.ud)) { ah, to->qp_num, QKEY };
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

/* The status of work request 1, whose effect is in the peer's memory, or of the error that ended it: as an RNIC, a Write completes before. */
static enum ibv_wc_status finish(void)
{
	enum ibv_wc_status status = next_of(cq).status;
	if (status == IBV_WC_SUCCESS) {
		struct ibv_recv_wr receive = { .wr_id = 4 }, *bad_receive;
		struct ibv_send_wr send = { .wr_id = 3, .opcode = IBV_WR_SEND }, *bad;
		/* The connection may have ended already. */
		if (ibv_post_recv(to, &receive, &bad_receive) || ibv_post_send(from, &send, &bad))
			return IBV_WC_GENERAL_ERR;
		for (int seen = 0; seen != 7;) {
			struct ibv_wc wc = next_of(cq);
			if (wc.status != IBV_WC_SUCCESS)
				return wc.status;
			seen |= wc.wr_id;
		}
	}
	return status;
}

/* Whether one operation on a connection of its own has its effect. */
static int works(enum ibv_wr_opcode opcode, uint64_t local, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
	make_pair(IBV_QPT_RC);
	post(opcode, local, length, lkey, remote, rkey);
	int is_well = finish() == IBV_WC_SUCCESS;
	drop_pair();
	return is_well;
}

/* A Send; `sent` and `received` are its statuses. */
static void send_once(enum ibv_qp_type type, struct ibv_sge source, struct ibv_sge sink, int *sent, int *received)
{
	make_pair(type);
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &sink, .num_sge = 1 }, *bad_receive;
	CHECK(ibv_post_recv(to, &receive, &bad_receive) == 0);
	post(IBV_WR_SEND, source.addr, source.length, source.lkey, 0, 0);
	*sent = *received = -1;
	while (*sent < 0 || *received < 0) {
		struct ibv_wc wc = next_of(cq);
		*(wc.wr_id == 1 ? sent : received) = wc.status;
	}
	drop_pair();
}

static int both_well(enum ibv_qp_type type, struct ibv_sge source, struct ibv_sge sink)
{
	int sent, received;
	send_once(type, source, sink, &sent, &received);
	return sent == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS;
}

static int new_file(int seals)
{
	int fd = memfd_create("dgiwarp-test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	CHECK(fd >= 0 && ftruncate(fd, LONG) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static void map_contents(int fd)
{
	contents = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(contents != MAP_FAILED);
	for (int i = 0; i < LONG; i++)
		contents[i] = i % 251;
}

/* Mappings of such files in this process. */
static int mappings(void)
{
	char line[512];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "dgiwarp-test") != NULL;
	fclose(maps);
	return count;
}

static struct ibv_mr *region(int access)
{
	return ibv_reg_dmabuf_mr(pd, OFFSET, LENGTH, IOVA, file, access);
}

static void refused(void)
{
	enum { WRITE = IBV_ACCESS_LOCAL_WRITE };
	file = new_file(0);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, WRITE), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, 1 << 20, WRITE), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 0, 0, file, WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, LONG + 1, 0, file, WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, LONG, 1, 0, file, WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, UINT64_MAX - PAGE + 1, PAGE, 0, file, WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, UINT64_MAX - PAGE + 1, SIZE_MAX, 0, file, WRITE), EINVAL);
	/* Offset and IOVA differ in their page. */
	REFUSED(ibv_reg_dmabuf_mr(pd, 104, PAGE, 96, file, WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, WRITE | IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, WRITE | IBV_ACCESS_ZERO_BASED), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, WRITE | IBV_ACCESS_MW_BIND), EINVAL);
	int events = eventfd(0, EFD_CLOEXEC);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, events, WRITE), EOPNOTSUPP);
	CHECK(close(events) == 0);

	/* A descriptor for reading makes a region for reading. */
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", file);
	int writer = file;
	CHECK((file = open(name, O_RDONLY | O_CLOEXEC)) >= 0);
	map_contents(writer);
	REFUSED(region(WRITE), EACCES);
	struct ibv_mr *readable = region(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(readable && works(IBV_WR_RDMA_READ, (uintptr_t)memory, ROOM, mr->lkey, IOVA, readable->rkey));
	CHECK(!memcmp(memory, contents + OFFSET, ROOM));
	CHECK(ibv_dereg_mr(readable) == 0 && munmap(contents, LONG) == 0);
	CHECK(close(file) == 0 && close(writer) == 0 && mappings() == 0);
}

/* Every operation, in both directions, short and long. */
static void traffic(void)
{
	struct ibv_mr *all = region(ALL_REMOTE);
	CHECK(all && all->pd == pd && all->context == context && all->length == LENGTH && all->lkey == all->rkey);
	CHECK(all->addr == (void *)OFFSET);
	unsigned char *at = contents + OFFSET;
	uint32_t l = mr->lkey, f = all->lkey;
	static const uint32_t LENGTHS[] = { 1, 64, 5000, HALF };
	for (int i = 0; i < 4; i++) {
		uint32_t n = LENGTHS[i];
		uint64_t last = IOVA + LENGTH - n;
		unsigned char *tail = at + LENGTH - n;
		for (uint32_t k = 0; k < n; k++)
			memory[k] = (k + i) % 241;
		CHECK(works(IBV_WR_RDMA_WRITE, (uintptr_t)memory, n, l, last, f) && !memcmp(memory, tail, n));
		memset(memory, 0, ROOM);
		CHECK(works(IBV_WR_RDMA_READ, (uintptr_t)memory, n, l, last, f) && !memcmp(memory, tail, n));
		/* The region's own side. */
		CHECK(works(IBV_WR_RDMA_WRITE, IOVA, n, f, (uintptr_t)memory + HALF, l) && !memcmp(memory + HALF, at, n));
		memset(at, 0, n);
		CHECK(works(IBV_WR_RDMA_READ, IOVA, n, f, (uintptr_t)memory + HALF, l) && !memcmp(memory + HALF, at, n));
		struct ibv_sge own = { (uintptr_t)memory, n, l }, files = { last, n, f };
		memset(memory, 9, n);
		CHECK(both_well(IBV_QPT_RC, own, files) && !memcmp(memory, tail, n));
		memset(tail, 8, n);
		CHECK(both_well(IBV_QPT_RC, files, own) && !memcmp(memory, tail, n));
	}
	struct ibv_sge own = { (uintptr_t)memory, 2000, l }, files = { IOVA, 2000, f }, room = { IOVA + 8000, 2040, f };
	memset(memory, 7, 2000);
	CHECK(both_well(IBV_QPT_UD, own, room) && !memcmp(memory, at + 8040, 2000));
	room = (struct ibv_sge) { (uintptr_t)memory, 2040, l };
	CHECK(both_well(IBV_QPT_UD, files, room) && !memcmp(memory + 40, at, 2000));
	uint64_t number = 37;
	memcpy(at + 4096, &number, 8);
	CHECK(works(IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)memory, 8, l, IOVA + 4096, f));
	CHECK(!memcmp(memory, &number, 8));
	memcpy(&number, at + 4096, 8);
	CHECK(number == 42);
	/* Nothing beside it is written or read. */
	CHECK(!works(IBV_WR_RDMA_WRITE, (uintptr_t)memory, 64, l, IOVA - 1, f));
	CHECK(!works(IBV_WR_RDMA_READ, (uintptr_t)memory, 64, l, IOVA + LENGTH - 63, f));
	for (int i = 0; i < OFFSET; i++)
		CHECK(contents[i] == i % 251);
	for (int i = OFFSET + LENGTH; i < LONG; i++)
		CHECK(contents[i] == i % 251);
	CHECK(ibv_rereg_mr(all, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_REMOTE) != 0);
	CHECK(ibv_dereg_mr(all) == 0);
}

static void rights(void)
{
	int sent, received;
	struct ibv_mr *own = region(IBV_ACCESS_LOCAL_WRITE), *readable = region(IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *writable = region(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(own && readable && writable);
	uint64_t local = (uintptr_t)memory;
	CHECK(!works(IBV_WR_RDMA_WRITE, local, 64, mr->lkey, IOVA, readable->rkey));
	CHECK(works(IBV_WR_RDMA_READ, local, 64, mr->lkey, IOVA, readable->rkey));
	CHECK(works(IBV_WR_RDMA_WRITE, local, 64, mr->lkey, IOVA, writable->rkey));
	CHECK(!works(IBV_WR_RDMA_READ, local, 64, mr->lkey, IOVA, writable->rkey));
	CHECK(!works(IBV_WR_ATOMIC_FETCH_AND_ADD, local, 8, mr->lkey, IOVA, writable->rkey));
	struct ibv_sge source = { local, 64, mr->lkey };
	CHECK(both_well(IBV_QPT_RC, source, (struct ibv_sge) { IOVA, 64, own->lkey }));
	send_once(IBV_QPT_RC, source, (struct ibv_sge) { IOVA, 64, readable->lkey }, &sent, &received);
	CHECK(received == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(own) == 0 && ibv_dereg_mr(readable) == 0 && ibv_dereg_mr(writable) == 0);
}

/* A file that somebody cuts ends operations, not the process, and serves again when it is long again. */
static void cut(void)
{
	struct ibv_mr *all = region(ALL_REMOTE);
	CHECK(all);
	uint64_t local = (uintptr_t)memory, last = IOVA + LENGTH - 64 - 50;
	uint32_t l = mr->lkey, f = all->lkey;
	static const enum ibv_wr_opcode ALL[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	int sent, received;
	for (int is_long = 0; is_long < 2; is_long++) {
		CHECK(ftruncate(file, is_long ? LONG : OFFSET + 5000) == 0);
		for (int i = 0; i < 3; i++)
			CHECK(works(ALL[i], local, 8, l, last, f) == is_long && works(ALL[i], local, 8, l, IOVA, f));
		CHECK(works(IBV_WR_RDMA_WRITE, last, 64, f, local, l) == is_long);
		CHECK(works(IBV_WR_RDMA_READ, last, 64, f, local, l) == is_long);
		send_once(IBV_QPT_RC, (struct ibv_sge) { local, 64, l }, (struct ibv_sge) { last, 64, f }, &sent, &received);
		CHECK(received == (is_long ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
		send_once(IBV_QPT_RC, (struct ibv_sge) { last, 64, f }, (struct ibv_sge) { local, 64, l }, &sent, &received);
		CHECK(sent == (is_long ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
	}
	CHECK(ibv_dereg_mr(all) == 0);
}

static volatile int stop;

static void *cut_and_stretch(void *unused)
{
	while (!stop)
		CHECK(ftruncate(file, OFFSET + 5000) == 0 && ftruncate(file, LONG) == 0);
	return unused;
}

static void cut_amid_operations(void)
{
	pthread_t thread;
	struct ibv_mr *all = region(ALL_REMOTE);
	CHECK(all && pthread_create(&thread, NULL, cut_and_stretch, NULL) == 0);
	for (int i = 0; i < 60; i++) {
		make_pair(IBV_QPT_RC);
		if (i % 3 == 0)
			post(IBV_WR_RDMA_WRITE, (uintptr_t)memory, ROOM, mr->lkey, IOVA, all->rkey);
		else if (i % 3 == 1)
			post(IBV_WR_RDMA_READ, (uintptr_t)memory, ROOM, mr->lkey, IOVA, all->rkey);
		else
			post(IBV_WR_RDMA_WRITE, IOVA, ROOM, all->lkey, (uintptr_t)memory, mr->rkey);
		next_of(cq);
		drop_pair();
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0 && ibv_dereg_mr(all) == 0);
	stop = 0;
}

/* The descriptor may go before the region, which keeps the memory until it is deregistered. */
static void lifetime(void)
{
	CHECK(mappings() == 1);
	struct ibv_mr *all = region(ALL_REMOTE);
	CHECK(all && mappings() == 2 && close(file) == 0);
	strcpy((char *)memory, "after close");
	CHECK(works(IBV_WR_RDMA_WRITE, (uintptr_t)memory, 16, mr->lkey, IOVA, all->rkey));
	CHECK(!strcmp((char *)contents + OFFSET, "after close"));
	CHECK(munmap(contents, LONG) == 0 && mappings() == 1);
	CHECK(ibv_dereg_mr(all) == 0 && mappings() == 0);
}

/* The same with a DMA buffer, where the kernel makes such of memfds. */
static void dma_buffer(void)
{
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return;
	int memfd = new_file(F_SEAL_SHRINK);
	struct udmabuf_create create = { .memfd = memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = LONG };
	CHECK((file = ioctl(device, UDMABUF_CREATE, &create)) >= 0);
	map_contents(memfd);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, LONG + PAGE, 0, file, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	traffic();
	rights();
	CHECK(munmap(contents, LONG) == 0 && close(file) == 0 && close(memfd) == 0 && close(device) == 0);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	struct ibv_ah_attr address = own_address();
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (ah = ibv_create_ah(pd, &address)));
	refused();
	for (int sealed = 0; sealed < 2; sealed++) {
		file = new_file(sealed ? F_SEAL_SHRINK : 0);
		map_contents(file);
		traffic();
		rights();
		if (!sealed) {
			cut();
			cut_amid_operations();
		}
		lifetime();
	}
	dma_buffer();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
