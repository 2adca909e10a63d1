/* Every function that destroys: called twice, with memory that is not ours, and with objects of all other kinds. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "test.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static unsigned char memory[4096] __attribute__((aligned(4096)));

/* The conventions of rdma-core, all as 0 or an errno value. */
static int of_minus_one(int result)
{
	return result ? errno : 0;
}

#define OF_VOID(call) (errno = 0, (call), errno)

static int close_device(void *it) { return ibv_close_device(it); }
static int dealloc_pd(void *it) { return ibv_dealloc_pd(it); }
static int dereg_mr(void *it) { return ibv_dereg_mr(it); }
static int dealloc_mw(void *it) { return ibv_dealloc_mw(it); }
static int dealloc_td(void *it) { return ibv_dealloc_td(it); }
static int free_dm(void *it) { return ibv_free_dm(it); }
static int destroy_channel(void *it) { return ibv_destroy_comp_channel(it); }
static int destroy_cq(void *it) { return ibv_destroy_cq(it); }
static int destroy_srq(void *it) { return ibv_destroy_srq(it); }
static int destroy_qp(void *it) { return ibv_destroy_qp(it); }
static int destroy_ah(void *it) { return ibv_destroy_ah(it); }
static int free_device_list(void *it) { return OF_VOID(ibv_free_device_list(it)); }
static int destroy_id(void *it) { return of_minus_one(rdma_destroy_id(it)); }
static int destroy_ep(void *it) { return OF_VOID(rdma_destroy_ep(it)); }
static int destroy_event_channel(void *it) { return OF_VOID(rdma_destroy_event_channel(it)); }
static int ack_cm_event(void *it) { return of_minus_one(rdma_ack_cm_event(it)); }
static int free_devices(void *it) { return OF_VOID(rdma_free_devices(it)); }
static int free_addrinfo(void *it) { return OF_VOID(rdma_freeaddrinfo(it)); }

static void *a_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *opened = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	return opened;
}

static void *a_pd(void) { return ibv_alloc_pd(context); }
static void *an_mr(void) { return ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE); }
static void *an_mw(void) { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }
static void *a_channel(void) { return ibv_create_comp_channel(context); }
static void *a_cq(void) { return ibv_create_cq(context, 4, NULL, NULL, 0); }
static void *a_device_list(void) { return ibv_get_device_list(NULL); }
static void *an_event_channel(void) { return rdma_create_event_channel(); }
static void *the_devices(void) { return rdma_get_devices(NULL); }

static void *a_td(void)
{
	struct ibv_td_init_attr attr = {};
	return ibv_alloc_td(context, &attr);
}

static void *a_dm(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	return ibv_alloc_dm(context, &attr);
}

static void *a_null_mr(void) { return ibv_alloc_null_mr(pd); }

static void *a_parent(void)
{
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	return ibv_alloc_parent_domain(context, &attr);
}

static void *an_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	return ibv_create_srq(pd, &init);
}

static struct ibv_cq *cq;

static void *a_qp_of(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return ibv_create_qp(pd, &init);
}

static void *an_rc_qp(void) { return a_qp_of(IBV_QPT_RC); }
static void *a_uc_qp(void) { return a_qp_of(IBV_QPT_UC); }
static void *a_ud_qp(void) { return a_qp_of(IBV_QPT_UD); }

static void *an_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	CHECK(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0);
	return ibv_create_ah(pd, &attr);
}

static void *an_id(void)
{
	struct rdma_cm_id *id = NULL;
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}

static struct rdma_event_channel *channel;
static struct rdma_cm_id *binder;

static void *a_cm_event(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	struct rdma_cm_event *event = NULL;
	if (binder)
		CHECK(rdma_destroy_id(binder) == 0);
	CHECK(rdma_create_id(channel, &binder, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(binder, NULL, (struct sockaddr *)&to, 2000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	return event;
}

static void *an_addrinfo(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found = NULL;
	CHECK(rdma_getaddrinfo("127.0.0.1", "9", &hints, &found) == 0);
	return found;
}

/* A function that destroys, and objects for it. The inline ones of verbs.h read the context in front of an object. */
static const struct kind {
	const char *name;
	void *(*make)(void);
	int (*destroy)(void *);
	int is_inline, has_context;
} kinds[] = {
	{ "ibv_close_device", a_device, close_device },
	{ "ibv_dealloc_pd", a_pd, dealloc_pd, 0, 1 },
	{ "ibv_dealloc_pd of a parent domain", a_parent, dealloc_pd, 0, 1 },
	{ "ibv_dereg_mr", an_mr, dereg_mr, 0, 1 },
	{ "ibv_dereg_mr of a null region", a_null_mr, dereg_mr, 0, 1 },
	{ "ibv_free_dm", a_dm, free_dm, 1, 1 },
	{ "ibv_dealloc_mw", an_mw, dealloc_mw, 1, 1 },
	{ "ibv_dealloc_td", a_td, dealloc_td, 1, 1 },
	{ "ibv_destroy_comp_channel", a_channel, destroy_channel, 0, 1 },
	{ "ibv_destroy_cq", a_cq, destroy_cq, 0, 1 },
	{ "ibv_destroy_srq", an_srq, destroy_srq, 0, 1 },
	{ "ibv_destroy_qp, RC", an_rc_qp, destroy_qp, 0, 1 },
	{ "ibv_destroy_qp, UC", a_uc_qp, destroy_qp, 0, 1 },
	{ "ibv_destroy_qp, UD", a_ud_qp, destroy_qp, 0, 1 },
	{ "ibv_destroy_ah", an_ah, destroy_ah, 0, 1 },
	{ "ibv_free_device_list", a_device_list, free_device_list },
	{ "rdma_destroy_id", an_id, destroy_id },
	{ "rdma_destroy_ep", an_id, destroy_ep },
	{ "rdma_destroy_event_channel", an_event_channel, destroy_event_channel },
	{ "rdma_ack_cm_event", a_cm_event, ack_cm_event },
	{ "rdma_free_devices", the_devices, free_devices },
	{ "rdma_freeaddrinfo", an_addrinfo, free_addrinfo },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void refuses(const struct kind *kind, void *it, const char *why)
{
	int error = kind->destroy(it);
	if (error != EINVAL) {
		printf("%s of %s: %d\n", kind->name, why, error);
		exit(1);
	}
}

int main(void)
{
	CHECK((context = a_device()) && (pd = a_pd()) && (cq = a_cq()) && (channel = an_event_channel()));

	/* Memory that is none of ours: of the stack and of the heap, zero and not, aligned and not. */
	for (int i = 0; i < KINDS; i++) {
		for (int filler = 0; filler < 256; filler += 85) {
			void *stack[256], **heap = malloc(sizeof stack);
			CHECK(heap);
			memset(stack, filler, sizeof stack);
			memset(heap, filler, sizeof stack);
			if (kinds[i].is_inline)
				stack[64] = heap[64] = context;
			refuses(&kinds[i], stack + 64, "the stack's memory");
			refuses(&kinds[i], heap + 64, "the heap's memory");
			if (!kinds[i].is_inline) {
				refuses(&kinds[i], (char *)heap + 511, "a crooked pointer");
				refuses(&kinds[i], (void *)(sizeof stack), "a number");
			}
			free(heap);
		}
	}

	/* Objects of every other kind. They stay as they are. */
	for (int i = 0; i < KINDS; i++) {
		void *it = kinds[i].make();
		CHECK(it);
		for (int k = 0; k < KINDS; k++)
			if (kinds[k].destroy != kinds[i].destroy && kinds[k].destroy != destroy_ep && kinds[i].destroy != destroy_ep &&
			    (!kinds[k].is_inline || kinds[i].has_context))
				refuses(&kinds[k], it, kinds[i].name);
		CHECK(kinds[i].destroy(it) == 0);
		refuses(&kinds[i], it, "what it destroyed");
	}

	/* Destroyed with others in between. */
	for (int i = 0; i < KINDS; i++) {
		void *old[8];
		for (int n = 0; n < 8; n++) {
			CHECK((old[n] = kinds[i].make()));
			/* The event before is acknowledged, else its identifier cannot be destroyed. */
			if (kinds[i].make == a_cm_event)
				CHECK(kinds[i].destroy(old[n]) == 0);
		}
		for (int n = 0; n < 8 && kinds[i].make != a_cm_event; n++)
			CHECK(kinds[i].destroy(old[n]) == 0);
		for (int n = 0; n < 8; n++)
			refuses(&kinds[i], old[n], "what it destroyed before");
	}

	/* Parts of an identifier that the program destroyed itself. */
	struct rdma_cm_id *id = binder;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && id->qp);
	struct ibv_qp *qp = id->qp;
	rdma_destroy_qp(id);
	CHECK(!id->qp && ibv_destroy_qp(qp) == EINVAL);
	rdma_destroy_qp(id);
	/* It names the completion queues that were made with the first one. */
	CHECK(rdma_create_qp(id, NULL, &init) == -1 && errno == EINVAL);
	init.send_cq = init.recv_cq = NULL;
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && ibv_destroy_qp(id->qp) == 0);
	rdma_destroy_qp(id);
	CHECK(!id->qp && rdma_destroy_id(id) == 0);
	CHECK(OF_VOID(rdma_destroy_qp(id)) == EINVAL && OF_VOID(rdma_destroy_srq(id)) == EINVAL);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)memory) == -1 && errno == EINVAL);

	rdma_destroy_event_channel(channel);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	CHECK(ibv_close_device(context) == EINVAL);
	puts("ok");
	return 0;
}
