/* A process that sends more than TCP takes and ends at once, without destroying anything: its peer, which is stopped meanwhile, gets all of it.
 * Argument: a GID index. */
#include "pair.h"
#include <signal.h>

enum { COUNT = 160, LENGTH = HALF };

static struct ibv_cq *cq;

static struct ibv_qp *make(void)
{
	CHECK((cq = ibv_create_cq(context, 2 * COUNT + 8, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = COUNT + 1, .max_recv_wr = COUNT + 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Messages there and back again, until connections within one host have moved to shared memory where they do at all. */
static void talk(struct ibv_qp *qp, int first)
{
	enum { MESSAGES = 200, TALK = 5000 };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = TALK, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (int i = 0; i < MESSAGES; i++) {
		post_recv(qp, i, memory + HALF, LENGTH);
		if (first)
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		int sent = 0, received = 0;
		while (!sent || !received) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			if (wc.opcode == IBV_WC_RECV && !first)
				CHECK(ibv_post_send(qp, &wr, &bad) == 0);
			*(wc.opcode == IBV_WC_RECV ? &received : &sent) = 1;
		}
	}
}

static void meet(struct ibv_qp *qp, int from, int to, int first)
{
	struct ibv_qp peer;
	CHECK(write(to, &qp->qp_num, sizeof qp->qp_num) == sizeof qp->qp_num);
	CHECK(read(from, &peer.qp_num, sizeof peer.qp_num) == sizeof peer.qp_num);
	connect_to(qp, &peer);
	talk(qp, first);
	for (int i = 0; i <= COUNT; i++)
		post_recv(qp, i, memory + HALF, LENGTH);
}

static void post_send(struct ibv_qp *qp, int number)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH - number, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1000 + number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

int main(int argc, char **argv)
{
	int there[2], back[2], status;
	CHECK(pipe(there) == 0 && pipe(back) == 0);
	pid_t peer_process = getpid(), sender = fork();
	CHECK(sender >= 0);
	open_device(argc, argv);
	struct ibv_qp *qp = make();
	if (sender == 0) {
		meet(qp, there[0], back[1], 1);
		success(cq, 0, IBV_WC_RECV);
		CHECK(kill(getppid(), SIGSTOP) == 0);
		for (int i = 0; i < COUNT; i++)
			post_send(qp, i);
		/* Another process lets the peer go on when this one is at its end. */
		if (fork() == 0) {
			struct timespec pause = { .tv_nsec = 20000000 };
			nanosleep(&pause, NULL);
			kill(peer_process, SIGCONT);
			_exit(0);
		}
		exit(0);
	}
	meet(qp, back[0], there[1], 0);
	post_send(qp, 0);
	CHECK(waitpid(sender, &status, 0) == sender && status == 0);
	for (int i = 0; i < COUNT; i++) {
		struct ibv_wc wc = success(cq, i, IBV_WC_RECV);
		CHECK(wc.byte_len == (unsigned)(LENGTH - i));
	}
	/* Then the end is reported, by flushed work requests. */
	CHECK(next_of(cq).status != IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0);
	puts("ok");
	return 0;
}
