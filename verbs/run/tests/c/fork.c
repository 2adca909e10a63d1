/* Processes that fork, before and after they open the device. Argument: a GID index. */
#include <dirent.h>
#include <sys/socket.h>
#include <rdma/rdma_cma.h>
#include "pair.h"

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;

/* A datagram queue pair that talks to itself. */
static void set_up(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((qp = ibv_create_qp(pd, &init)));
	connect_to(qp, qp);
	struct ibv_ah_attr attr = own_address();
	CHECK((ah = ibv_create_ah(pd, &attr)));
}

static void talk(const char *text)
{
	struct ibv_sge sge = { (uintptr_t)memory, strlen(text) + 1, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, QKEY } }, *bad;
	strcpy((char *)memory, text);
	memset(memory + HALF, 0, 64);
	post_recv(qp, 7, memory + HALF, 1024);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	next_of(cq);
	next_of(cq);
	CHECK(!strcmp((char *)memory + HALF + 40, text));
}

static int sockets(void)
{
	int count = 0;
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/fd");
	CHECK(directory);
	while ((entry = readdir(directory))) {
		char target[64] = "";
		if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0)
			count += !strncmp(target, "socket:", 7);
	}
	closedir(directory);
	return count;
}

static void reap(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A connection of this process with itself, so that there are TCP sockets too. */
static struct ibv_qp *ends[2];
static struct ibv_cq *reliable_cq;

static void make_connection(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((reliable_cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = reliable_cq;
	for (int i = 0; i < 2; i++)
		CHECK((ends[i] = ibv_create_qp(pd, &init)));
	connect_to(ends[0], ends[1]);
	connect_to(ends[1], ends[0]);
}

static void write_across(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + HALF, mr->rkey },
	}, *bad;
	CHECK(ibv_post_send(ends[0], &wr, &bad) == 0 && next_of(reliable_cq).status == IBV_WC_SUCCESS);
}

/* Objects of the parent are not the child's, and objects that the child makes are. */
static void child(int argc, char **argv)
{
	struct ibv_wc wc;
	struct ibv_device_attr attr;
	struct ibv_sge sge = { (uintptr_t)memory, 1, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, QKEY } }, *bad;
	CHECK(sockets() == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == EIO && bad == &wr);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && errno == EIO);
	CHECK(ibv_query_device(context, &attr) == 0 && attr.phys_port_cnt == 1);
	REFUSED(ibv_alloc_pd(context), EIO);
	CHECK(ibv_destroy_qp(qp) == EIO && ibv_dereg_mr(mr) == EIO && ibv_close_device(context) == EIO);
	struct ibv_context *parents = context;
	set_up(argc, argv);
	CHECK(context != parents);
	talk("from the child");
	make_connection();
	write_across();

	/* And so on. */
	pid_t grandchild = fork();
	if (grandchild == 0) {
		CHECK(ibv_post_send(qp, &wr, &bad) == EIO && ibv_query_device(parents, &attr) == 0);
		set_up(argc, argv);
		talk("from the grandchild");
		exit(0);
	}
	reap(grandchild);
	talk("from the child again");
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	exit(0);
}

int main(int argc, char **argv)
{
	pid_t first = fork();
	if (first == 0) {
		set_up(argc, argv);
		talk("opened after the fork");
		exit(0);
	}
	set_up(argc, argv);
	make_connection();
	write_across();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	int own = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(own >= 0 && sockets() > 3);
	CHECK(close(own) == 0);
	reap(first);
	for (int i = 0; i < 3; i++) {
		pid_t next = fork();
		if (next == 0)
			child(argc, argv);
		reap(next);
		/* The children's end has changed nothing. */
		talk("from the parent");
		write_across();
	}
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(ends[i]) == 0);
	CHECK(ibv_destroy_cq(reliable_cq) == 0 && ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
