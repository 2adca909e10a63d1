/* Makes objects of one kind, each as large as can be had or larger than the one before, under a limit of the address space until one is refused: with ENOMEM
 * and without an abort. Then the same with all other kinds, and again after everything was destroyed. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define MOST 2000000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *used_qp;
static struct ibv_srq *used_srq;
static struct rdma_event_channel *events;
static char memory[4096];
static void *made[MOST];

#define DIE(...) do { printf(__VA_ARGS__); exit(1); } while (0)

static int grown(int count, int first, int most)
{
	return count > 30 || first > most >> count ? most : first << count;
}

static void *make_cq(int n)
{
	return ibv_create_cq(context, grown(n, 64, 1 << 20), NULL, NULL, 0);
}

static void *make_qp(int n, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = grown(n, 64, 16384), .max_recv_wr = grown(n, 64, 16384), .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return ibv_create_qp(pd, &attr);
}

static void *make_rc(int n) { return make_qp(n, IBV_QPT_RC); }
static void *make_uc(int n) { return make_qp(n, IBV_QPT_UC); }
static void *make_ud(int n) { return make_qp(n, IBV_QPT_UD); }

static void *make_srq(int n)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = grown(n, 64, 16384), .max_sge = 1 } };
	return ibv_create_srq(pd, &attr);
}

static void *make_ah(int n)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
	attr.grh.dgid.raw[12] = 127;
	attr.grh.dgid.raw[15] = 1 + n % 100;
	return ibv_create_ah(pd, &attr);
}

static void *make_pd(int n) { (void)n; return ibv_alloc_pd(context); }
static void *make_mr(int n) { return ibv_reg_mr(pd, memory, 1 + n % sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ); }
static void *make_mw(int n) { return ibv_alloc_mw(pd, n % 2 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2); }
static void *make_channel(int n) { (void)n; return ibv_create_comp_channel(context); }

static void *make_id(int n)
{
	struct rdma_cm_id *id;
	(void)n;
	return rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

/* A posted receive is no object; what is posted stays. */
static void *make_recv(int n)
{
	struct ibv_sge sges[3] = { { .addr = (uintptr_t)memory, .length = 1 } };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = sges, .num_sge = 3 }, *bad;
	int error = ibv_post_recv(used_qp, &wr, &bad);
	errno = error;
	return error ? NULL : &memory;
}

static void *make_srq_recv(int n)
{
	struct ibv_sge sges[3] = { { .addr = (uintptr_t)memory, .length = 1 } };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = sges, .num_sge = 3 }, *bad;
	int error = ibv_post_srq_recv(used_srq, &wr, &bad);
	errno = error;
	return error ? NULL : &memory;
}

static int keep(void *object) { (void)object; return 0; }

#define KIND(name, destroy) { #name, make_##name, (int (*)(void *))destroy }
static const struct kind {
	const char *name;
	void *(*make)(int n);
	int (*destroy)(void *);
} kinds[] = {
	KIND(cq, ibv_destroy_cq), KIND(rc, ibv_destroy_qp), KIND(uc, ibv_destroy_qp), KIND(ud, ibv_destroy_qp),
	KIND(srq, ibv_destroy_srq), KIND(ah, ibv_destroy_ah), KIND(pd, ibv_dealloc_pd), KIND(mr, ibv_dereg_mr),
	KIND(mw, ibv_dealloc_mw), KIND(channel, ibv_destroy_comp_channel), KIND(id, rdma_destroy_id),
	KIND(recv, keep), KIND(srq_recv, keep),
};
#define KINDS (int)(sizeof kinds / sizeof *kinds)

/* Returns how many were made before one was refused. */
static int make_all(const struct kind *kind)
{
	for (int n = 0; n < MOST; n++) {
		errno = 0;
		made[n] = kind->make(n);
		if (!made[n]) {
			if (errno != ENOMEM && errno != EMFILE)
				DIE("%s %d: %s\n", kind->name, n, strerror(errno));
			printf("%s: %d, then %s\n", kind->name, n, strerror(errno));
			return n;
		}
	}
	DIE("%s: without end\n", kind->name);
}

static void destroy_all(const struct kind *kind, int count)
{
	while (count-- > 0)
		if (kind->destroy(made[count]))
			DIE("%s %d: not destroyed: %s\n", kind->name, count, strerror(errno));
}

static uint64_t address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1)
		DIE("no statm\n");
	fclose(file);
	return (uint64_t)pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
	const struct kind *kind = kinds;
	struct rlimit limit = { 0, RLIM_INFINITY };
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (argc != 3)
		return 2;
	while (strcmp(kind->name, argv[1]))
		if (++kind == kinds + KINDS)
			return 2;
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	events = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 16384, .max_send_sge = 1, .max_recv_sge = 3 },
	};
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16384, .max_sge = 3 } };
	used_qp = ibv_create_qp(pd, &attr);
	used_srq = ibv_create_srq(pd, &srq_attr);
	if (!pd || !cq || !events || !used_qp || !used_srq)
		DIE("not begun\n");
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(used_qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		DIE("not INIT\n");

	limit.rlim_cur = address_space() + ((uint64_t)atoi(argv[2]) << 10);
	if (setrlimit(RLIMIT_AS, &limit))
		DIE("no limit\n");
	int count = make_all(kind);
	int error = errno;
	/* The largest step that still fits has left room for other objects: fill it up with small ones of all kinds. */
	for (int other = 0; other < KINDS; other++)
		for (int n = 0; n < 3; n++) {
			void *one;
			errno = 0;
			one = kinds[other].make(0);
			if (!one && errno != ENOMEM && errno != EMFILE)
				DIE("%s beside %s: %s\n", kinds[other].name, kind->name, strerror(errno));
			if (one && kinds[other].destroy(one))
				DIE("%s beside %s: not destroyed\n", kinds[other].name, kind->name);
		}
	destroy_all(kind, count);
	int again = make_all(kind);
	/* Small objects leave the allocator in pieces that need not be one large enough for the check of what is left. */
	int has_rings = kind <= kinds + 4;
	if (has_rings && again < count / 4)
		DIE("%s: %d, and after all were destroyed %d\n", kind->name, count, again);
	destroy_all(kind, again);
	printf("%s\n", error == ENOMEM ? "ENOMEM" : "EMFILE");
	return 0;
}
