/* A peer of reliable datagrams whose process ends: by exit(3), by the end of main, or killed, without destroying anything. Its last messages arrive, and a message
 * that waits there for a receive fails soon, whether this end polls or sleeps. Argument: a GID index. */
#include "pair.h"
#include <infiniband/dgiwarpdv.h>
#include <signal.h>

enum how { EXITS, RETURNS, IS_KILLED, HOWS };
enum { LAST = 40, LIMIT_MS = 3000 };

static enum how how;
static int sleeps;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp;
static struct ibv_ah *ah;

static int64_t milliseconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	for (time_t end = time(NULL) + 20; ibv_poll_cq(cq, 1, &wc) == 0;) {
		struct pollfd entry = { .fd = channel->fd, .events = POLLIN };
		CHECK(time(NULL) < end);
		if (!sleeps)
			continue;
		void *of;
		struct ibv_cq *raised;
		CHECK(poll(&entry, 1, 20000) == 1 && ibv_get_cq_event(channel, &raised, &of) == 0);
		ibv_ack_cq_events(raised, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	return wc;
}

static void make(char **argv)
{
	char *arguments[] = { argv[0], argv[1], NULL };
	open_device(2, arguments);
	CHECK((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 256, NULL, channel, 0)));
	struct dgiwarpdv_qp_init_attr dv = { .size = sizeof dv, .driver_qp_type = DGIWARPDV_QP_DRIVER_TYPE_RD };
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	CHECK((qp = dgiwarpdv_create_qp(context, &init, &dv)));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .rnr_retry = 7 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY) == 0);
	struct ibv_ah_attr own = own_address();
	CHECK((ah = ibv_create_ah(pd, &own)));
}

static void send_to(uint32_t qpn, uint64_t id)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 512);
	ibv_wr_set_ud_addr(ex, ah, qpn, QKEY);
	CHECK(ibv_wr_complete(ex) == 0);
}

/* Takes one message, sends its last ones, and is at its end. */
static int be_peer(int from, int to, char **argv)
{
	uint32_t qpn;
	make(argv);
	post_recv(qp, 1, memory + HALF, HALF);
	CHECK(write(to, &qp->qp_num, sizeof qpn) == sizeof qpn && read(from, &qpn, sizeof qpn) == sizeof qpn);
	CHECK(completion().opcode == IBV_WC_RECV);
	if (how == IS_KILLED) {
		CHECK(write(to, &qpn, sizeof qpn) == sizeof qpn);
		for (;;)
			pause();
	}
	/* The other end has posted what waits. */
	CHECK(read(from, &qpn, sizeof qpn) == sizeof qpn);
	for (int i = 0; i < LAST; i++)
		send_to(qpn, i);
	if (how == EXITS)
		exit(0);
	return 0;
}

static int survive(pid_t peer, int from, int to, char **argv)
{
	uint32_t qpn, word;
	int status;
	make(argv);
	for (int i = 0; i < LAST; i++)
		post_recv(qp, 100 + i, memory + HALF, HALF);
	CHECK(read(from, &qpn, sizeof qpn) == sizeof qpn);
	send_to(qpn, 1);
	CHECK(write(to, &qp->qp_num, sizeof qpn) == sizeof qpn);
	struct ibv_wc wc = completion();
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	send_to(qpn, 2);
	if (how == IS_KILLED) {
		CHECK(read(from, &word, sizeof word) == sizeof word);
		CHECK(kill(peer, SIGKILL) == 0);
	} else {
		CHECK(write(to, &qp->qp_num, sizeof qpn) == sizeof qpn);
		for (int i = 0; i < LAST; i++) {
			wc = completion();
			/* One that comes early takes the next receive. */
			CHECK(wc.wr_id >= 100 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 512);
		}
	}
	int64_t began = milliseconds();
	wc = completion();
	if (getenv("VERBOSE"))
		fprintf(stderr, "how %d, sleeps %d: status %d after %lld ms\n", how, sleeps, wc.status, (long long)(milliseconds() - began));
	/* A network with losses may lose all of an end, too, and the peer has its time to repeat. */
	int loses = getenv("DGIWARP_FAULT") != NULL;
	CHECK(wc.wr_id == 2 && (wc.status == (how == IS_KILLED ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_ABORT_ERR) || (loses && wc.status == IBV_WC_RETRY_EXC_ERR)));
	CHECK(milliseconds() - began < (loses ? 4 : 1) * LIMIT_MS);
	CHECK(waitpid(peer, &status, 0) == peer && (how == IS_KILLED || status == 0));
	CHECK(ibv_destroy_qp(qp) == 0);
	return 0;
}

int main(int argc, char **argv)
{
	int status, ways = 0;
	CHECK(argc == 2);
	for (; ways < 2 * HOWS; ways++) {
		how = ways >> 1, sleeps = ways & 1;
		if (fork())
			continue;
		int there[2], back[2];
		CHECK(pipe(there) == 0 && pipe(back) == 0);
		pid_t peer = fork();
		CHECK(peer >= 0);
		/* The end of either is read by the other. */
		close(peer ? there[0] : there[1]);
		close(peer ? back[1] : back[0]);
		return peer ? survive(peer, back[0], there[1], argv) : be_peer(there[0], back[1], argv);
	}
	while (ways--)
		CHECK(wait(&status) > 0 && status == 0);
	puts("ok");
	return 0;
}
