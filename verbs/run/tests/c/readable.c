/* Programs that poll their descriptors, as the example of ibv_get_cq_event(3) does: each is readable exactly while there is something to take, although data
 * arrives that is no event. Eight threads at a time, each with a queue pair and a channel of its own. Argument: a GID index. */
#include <sys/epoll.h>
#include "pair.h"

enum { PAIRS = 4, MESSAGES = 500, NOISE = 3 };

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp, *peer;
	struct ibv_ah *ah;
	unsigned char *memory;
	int epoll, begins;
};

static const enum ibv_qp_type types[PAIRS] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_UC };

static int readable(int fd, int milliseconds)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

static void make_end(struct end *end, int number)
{
	int pair = number / 2;
	end->memory = memory + number * 4096;
	end->begins = number % 2;
	CHECK((end->channel = ibv_create_comp_channel(context)));
	/* The first pair does not change the descriptor: a call for an event that is not there would wait for ever. */
	if (pair > 0)
		CHECK(fcntl(end->channel->fd, F_SETFL, fcntl(end->channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK((end->recv_cq = ibv_create_cq(context, 64, NULL, end->channel, 0)));
	/* Where they differ, completions of sends come of what the other one's sockets receive. */
	end->send_cq = pair == 0 || pair == 2 ? end->recv_cq : ibv_create_cq(context, 64, NULL, end->channel, 0);
	CHECK(end->send_cq && ibv_req_notify_cq(end->recv_cq, 0) == 0 && ibv_req_notify_cq(end->send_cq, 0) == 0);
	struct ibv_qp_init_attr init = {
		.send_cq = end->send_cq, .recv_cq = end->recv_cq, .qp_type = types[pair],
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((end->qp = ibv_create_qp(pd, &init)));
	struct epoll_event event = { .events = EPOLLIN };
	CHECK((end->epoll = epoll_create1(0)) >= 0 && epoll_ctl(end->epoll, EPOLL_CTL_ADD, end->channel->fd, &event) == 0);
}

/* Segments of which the peer's program gets nothing, and one message. */
static void send_message(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, 64, mr->lkey };
	for (int i = 0; i <= NOISE; i++) {
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		wr.send_flags = i == NOISE ? IBV_SEND_SIGNALED : 0;
		if (end->qp->qp_type == IBV_QPT_UD) {
			wr.wr.ud.ah = end->ah;
			wr.wr.ud.remote_qpn = end->peer->qp_num;
			wr.wr.ud.remote_qkey = i < NOISE ? QKEY + 1 : QKEY;
		} else if (i < NOISE) {
			wr.opcode = IBV_WR_RDMA_WRITE;
			wr.wr.rdma.remote_addr = (uintptr_t)memory + HALF;
			wr.wr.rdma.rkey = mr->rkey;
		}
		CHECK(ibv_post_send(end->qp, &wr, &bad) == 0);
		struct timespec pause = { .tv_nsec = 20000 };
		if (i < NOISE)
			nanosleep(&pause, NULL);
	}
}

static int drain(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int came = 0, n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) > 0) {
		CHECK(wc.status == IBV_WC_SUCCESS);
		came |= wc.opcode & IBV_WC_RECV;
	}
	CHECK(n == 0);
	return came != 0;
}

/* Sleeps until a message has come, with nothing but the descriptor to wake it. */
static void await_message(struct end *end, int use_epoll)
{
	int came = drain(end->recv_cq) | drain(end->send_cq);
	while (!came) {
		struct epoll_event unused_event;
		CHECK((use_epoll ? epoll_wait(end->epoll, &unused_event, 1, 20000) : readable(end->channel->fd, 20000)) == 1);
		struct ibv_cq *cq;
		void *unused;
		CHECK(ibv_get_cq_event(end->channel, &cq, &unused) == 0);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		came = drain(cq);
	}
}

static void *to_and_fro(void *argument)
{
	struct end *end = argument;
	for (int i = 0; i < MESSAGES; i++) {
		if (end->begins)
			send_message(end);
		await_message(end, i % 2);
		post_recv(end->qp, 2, end->memory + 64, 256);
		if (!end->begins)
			send_message(end);
	}
	return NULL;
}

/* Waits until nothing is under way any more, and takes all events; then no descriptor is readable. */
static void settle(struct end *end)
{
	struct ibv_cq *cq;
	void *unused;
	while (readable(end->channel->fd, 100)) {
		CHECK(ibv_get_cq_event(end->channel, &cq, &unused) == 0);
		ibv_ack_cq_events(cq, 1);
	}
	drain(end->recv_cq);
	drain(end->send_cq);
}

/* Events of objects that the program destroyed are not there to take any more. */
static void events_of_destroyed_objects(struct end *end)
{
	struct ibv_cq *cqs[] = { end->send_cq, end->recv_cq };
	for (int i = 0; i < 2; i++)
		CHECK(ibv_req_notify_cq(cqs[i], 0) == 0);
	CHECK(!readable(end->channel->fd, 0));
	post_recv(end->qp, 2, end->memory, 64);
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(end->qp, &failed, IBV_QP_STATE) == 0);
	CHECK(readable(end->channel->fd, 8000) == 1);
	CHECK(ibv_destroy_qp(end->qp) == 0);
	CHECK(ibv_destroy_cq(end->recv_cq) == 0);
	CHECK(!readable(end->channel->fd, 0));
	if (end->send_cq != end->recv_cq)
		CHECK(ibv_destroy_cq(end->send_cq) == 0);
	CHECK(!readable(end->channel->fd, 0) && ibv_destroy_comp_channel(end->channel) == 0 && close(end->epoll) == 0);
}

/* A queue pair that ends with an asynchronous event, and is destroyed before the program has taken it. */
static void asynchronous_event_of_a_destroyed_queue_pair(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	CHECK(cq && srq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	for (int i = 0; i < 50; i++) {
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		CHECK(qp);
		connect_to(qp, qp);
		CHECK(!readable(context->async_fd, 0));
		struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
		CHECK(ibv_modify_qp(qp, &failed, IBV_QP_STATE) == 0);
		CHECK(readable(context->async_fd, 8000) == 1);
		CHECK(ibv_destroy_qp(qp) == 0 && !readable(context->async_fd, 0));
	}
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	static struct end ends[2 * PAIRS];
	pthread_t threads[2 * PAIRS];
	open_device(argc, argv);
	asynchronous_event_of_a_destroyed_queue_pair();
	for (int i = 0; i < 2 * PAIRS; i++)
		make_end(&ends[i], i);
	for (int i = 0; i < 2 * PAIRS; i++) {
		ends[i].peer = ends[i ^ 1].qp;
		connect_to(ends[i].qp, ends[i].peer);
		struct ibv_ah_attr attr = own_address();
		CHECK((ends[i].ah = ibv_create_ah(pd, &attr)));
		post_recv(ends[i].qp, 2, ends[i].memory + 64, 256);
	}
	for (int i = 0; i < 2 * PAIRS; i++)
		CHECK(pthread_create(&threads[i], NULL, to_and_fro, &ends[i]) == 0);
	for (int i = 0; i < 2 * PAIRS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < 2 * PAIRS; i++)
		settle(&ends[i]);
	for (int i = 0; i < 2 * PAIRS; i++) {
		CHECK(ibv_destroy_ah(ends[i].ah) == 0);
		events_of_destroyed_objects(&ends[i]);
	}
	CHECK(!readable(context->async_fd, 0));
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
