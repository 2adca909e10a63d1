/* System calls that a seccomp filter denies: the first argument names them, the second one what is tried then. Every call ends soon, with the errno that is
 * printed, or with "made". */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static const struct {
	const char *name;
	long number;
} calls[] = {
	{ "openat", SYS_openat }, { "mincore", SYS_mincore }, { "madvise", SYS_madvise },
	{ "accept4", SYS_accept4 }, { "clone", SYS_clone }, { "clone3", SYS_clone3 },
};

static void deny(const char *name)
{
	for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
		if (strcmp(calls[at].name, name))
			continue;
		struct sock_filter filter[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[at].number, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
			perror("seccomp");
			exit(3);
		}
		return;
	}
	exit(2);
}

static void deny_all(char *names)
{
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ","))
		deny(name);
}

static void say(const char *what, int made)
{
	printf("%s: %s\n", what, made ? "made" : strerror(errno));
}

static struct ibv_context *opened(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	if (!context)
		exit(4);
	return context;
}

static void memory(char *names)
{
	static const char constant[4096] = "constant";
	struct ibv_pd *pd = ibv_alloc_pd(opened());
	char *mapped = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(mapped + 4096, 4096);
	deny_all(names);
	say("good", ibv_reg_mr(pd, mapped, 4096, IBV_ACCESS_LOCAL_WRITE) != NULL);
	say("read-only", ibv_reg_mr(pd, (char *)constant, sizeof constant, IBV_ACCESS_REMOTE_READ) != NULL);
	say("constant", ibv_reg_mr(pd, (char *)constant, sizeof constant, IBV_ACCESS_LOCAL_WRITE) != NULL);
	say("hole", ibv_reg_mr(pd, mapped, 3 * 4096, IBV_ACCESS_LOCAL_WRITE) != NULL);
}

static void connections(char *names)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct rdma_cm_id *id;
	deny_all(names);
	struct ibv_context *context = opened();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	say("connected queue pair", ibv_create_qp(pd, &attr) != NULL);
	attr.qp_type = IBV_QPT_UD;
	say("datagram queue pair", ibv_create_qp(pd, &attr) != NULL);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int listens = channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)
		&& !rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 1);
	say("listener", listens);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	alarm(60);
	if (!strcmp(argv[2], "memory"))
		memory(argv[1]);
	else
		connections(argv[1]);
	return 0;
}
