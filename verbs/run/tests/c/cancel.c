#define _GNU_SOURCE
/* Threads that wait for an event end by pthread_cancel, as rping's do, and by signals. Argument: a GID index. */
#include <signal.h>
#include <rdma/rdma_cma.h>
#include "pair.h"

static struct ibv_comp_channel *completions;
static struct rdma_event_channel *events;

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;
	void *cq_context;
	return (void *)(intptr_t)ibv_get_cq_event(completions, &cq, &cq_context);
}

static void *wait_for_event(void *unused)
{
	struct rdma_cm_event *event;
	return (void *)(intptr_t)rdma_get_cm_event(events, &event);
}

static void *poll_for_ever(void *cq)
{
	struct ibv_wc wc;
	for (;;) {
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
		pthread_testcancel();
	}
}

static void cancelled(void *(*what)(void *), void *argument)
{
	struct timespec pause = { .tv_nsec = 30000000 };
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, what, argument) == 0);
	nanosleep(&pause, NULL);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void ignore(int signal)
{
}

/* A handler without SA_RESTART ends the wait. */
static void interrupted(void *(*what)(void *))
{
	struct timespec pause = { .tv_nsec = 30000000 }, end;
	struct sigaction action = { .sa_handler = ignore };
	pthread_t thread;
	void *result;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0);
	do {
		nanosleep(&pause, NULL);
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_sec += 1;
	} while (pthread_timedjoin_np(thread, &result, &end));
	CHECK((intptr_t)result == -1);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	CHECK((completions = ibv_create_comp_channel(context)) && (events = rdma_create_event_channel()));
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, completions, 0);
	CHECK(cq && ibv_req_notify_cq(cq, 0) == 0);
	cancelled(wait_for_completion, NULL);
	cancelled(wait_for_event, NULL);
	cancelled(poll_for_ever, cq);
	interrupted(wait_for_completion);
	interrupted(wait_for_event);

	/* Nothing was left locked. */
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && ibv_req_notify_cq(cq, 0) == 0);
	CHECK(fcntl(completions->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(events->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK((intptr_t)wait_for_completion(NULL) == -1 && errno == EAGAIN);
	CHECK((intptr_t)wait_for_event(NULL) == -1 && errno == EAGAIN);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(completions) == 0);
	rdma_destroy_event_channel(events);
	puts("ok");
	return 0;
}
