/* Poll sets of rsockets and of other descriptors. */

#define _GNU_SOURCE
#include "rsockets.h"
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Headers and libraries of rdma-core before 65 have none of them. */
static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int epfd, int op, int fd, struct epoll_event *event);
static int (*repoll_wait)(int epfd, struct epoll_event *events, int maxevents, int timeout);

static void *function(const char *name)
{
	void *found = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.5");

	CHECK(found != NULL);
	return found;
}

static int control(int set, int operation, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = 0x100000000 + fd };

	return repoll_ctl(set, operation, fd, &event);
}

static void add(int set, int fd, uint32_t events)
{
	CHECK(control(set, EPOLL_CTL_ADD, fd, events) == 0);
}

/* Idle connections, which are in each set besides: one of many is found in another way than one of few. */
enum { CROWD = 12 };

static int many, crowd[CROWD][2];

/* Checks by a poll set, after which a connection of many has its lasting place. */
static void check_often(int fd)
{
	struct epoll_event event;
	int set = repoll_create(0), i;

	add(set, fd, 0);
	for (i = 0; i < 100; i++)
		CHECK(repoll_wait(set, &event, 1, 0) == 0);
	CHECK(rclose(set) == 0);
}

static void pair(int ends[2])
{
	connect_pair(ends, 0);
	if (many) {
		check_often(ends[0]);
		check_often(ends[1]);
	}
}

static int create(void)
{
	int set = repoll_create(0), i;

	CHECK(set >= 0);
	for (i = 0; many && i < CROWD; i++)
		add(set, crowd[i][0], EPOLLIN);
	return set;
}

/* The events of the only member that has any, 0 for none. */
static uint32_t only(int set, int fd, int timeout)
{
	struct epoll_event found[4];
	int count = repoll_wait(set, found, 4, timeout);

	CHECK(count == 0 || (count == 1 && found[0].data.u64 == 0x100000000 + (uint64_t)fd));
	return count ? found[0].events : 0;
}

static int milliseconds(void)
{
	struct timespec time;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
	return time.tv_sec % 100000 * 1000 + time.tv_nsec / 1000000;
}

static void close_set(int set)
{
	CHECK(rclose(set) == 0);
	FAILS(rclose(set), EBADF);
}

static void refuses_what_it_cannot(void)
{
	int set = create(), other = repoll_create(O_CLOEXEC), pipes[2], start;
	int socket = rsocket(family, SOCK_STREAM, 0), members[2], i;
	struct epoll_event event = { .events = EPOLLIN };

	CHECK(set >= 0 && other >= 0 && socket >= 0 && pipe(pipes) == 0);
	CHECK(rfcntl(set, F_GETFD, 0) == 0 && rfcntl(other, F_GETFD, 0) == FD_CLOEXEC);
	FAILS(control(set, EPOLL_CTL_ADD, -1, EPOLLIN), EBADF);
	FAILS(control(set, EPOLL_CTL_ADD, 12345, EPOLLIN), EBADF);
	FAILS(control(set, EPOLL_CTL_ADD, set, EPOLLIN), EINVAL);
	FAILS(control(set, EPOLL_CTL_ADD, other, EPOLLIN), EINVAL);
	FAILS(control(12345, EPOLL_CTL_ADD, socket, EPOLLIN), EINVAL);
	FAILS(control(pipes[0], EPOLL_CTL_ADD, socket, EPOLLIN), EINVAL);
	FAILS(control(socket, EPOLL_CTL_ADD, pipes[0], EPOLLIN), EINVAL);
	members[0] = socket;
	members[1] = pipes[0];
	for (i = 0; i < 2; i++) {
		FAILS(control(set, EPOLL_CTL_MOD, members[i], EPOLLIN), ENOENT);
		FAILS(repoll_ctl(set, EPOLL_CTL_DEL, members[i], NULL), ENOENT);
		FAILS(repoll_ctl(set, EPOLL_CTL_ADD, members[i], NULL), EFAULT);
		FAILS(control(set, 7, members[i], EPOLLIN), EINVAL);
		add(set, members[i], 0);
		FAILS(control(set, EPOLL_CTL_ADD, members[i], EPOLLIN), EEXIST);
		CHECK(control(set, EPOLL_CTL_MOD, members[i], 0) == 0);
		CHECK(repoll_ctl(set, EPOLL_CTL_DEL, members[i], NULL) == 0);
		FAILS(repoll_ctl(set, EPOLL_CTL_DEL, members[i], &event), ENOENT);
	}
	FAILS(repoll_wait(12345, &event, 1, 0), EINVAL);
	FAILS(repoll_wait(socket, &event, 1, 0), EINVAL);
	FAILS(repoll_wait(set, &event, 0, 0), EINVAL);
	FAILS(repoll_wait(set, &event, -1, 0), EINVAL);
	FAILS(repoll_wait(set, NULL, 1, 0), EFAULT);
	CHECK(repoll_wait(set, &event, 1, 0) == 0);
	start = milliseconds();
	CHECK(repoll_wait(set, &event, 1, 60) == 0);
	CHECK(milliseconds() - start >= 60);
	FAILS(rsend(set, "x", 1, 0), EBADF);
	CHECK(rclose(socket) == 0);
	close_set(set);
	close_set(other);
	FAILS(repoll_wait(set, &event, 1, 0), EINVAL);
	close(pipes[0]);
	close(pipes[1]);
}

/* An event is reported for as long as it is there. */
static void reports_levels(void)
{
	int set = create(), ends[2], start;
	char octets[4];

	pair(ends);
	add(set, ends[1], EPOLLIN);
	start = milliseconds();
	CHECK(only(set, ends[1], 60) == 0);
	CHECK(milliseconds() - start >= 60);
	CHECK(rsend(ends[0], "abc", 3, 0) == 3);
	CHECK(only(set, ends[1], -1) == EPOLLIN);
	CHECK(rrecv(ends[1], octets, 1, 0) == 1);
	CHECK(only(set, ends[1], 0) == EPOLLIN);
	CHECK(control(set, EPOLL_CTL_MOD, ends[1], EPOLLIN | EPOLLOUT) == 0);
	CHECK(only(set, ends[1], -1) == (EPOLLIN | EPOLLOUT));
	CHECK(rrecv(ends[1], octets, 4, 0) == 2);
	CHECK(only(set, ends[1], -1) == EPOLLOUT);
	/* Once, and then not before the member is changed. */
	CHECK(control(set, EPOLL_CTL_MOD, ends[1], EPOLLOUT | EPOLLONESHOT) == 0);
	CHECK(only(set, ends[1], 0) == EPOLLOUT);
	CHECK(only(set, ends[1], 30) == 0);
	CHECK(control(set, EPOLL_CTL_MOD, ends[1], EPOLLIN) == 0);
	CHECK(rclose(ends[0]) == 0);
	CHECK(only(set, ends[1], -1) == (EPOLLIN | EPOLLHUP));
	CHECK(repoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL) == 0);
	CHECK(only(set, ends[1], 0) == 0);
	CHECK(rclose(ends[1]) == 0);
	close_set(set);
}

/* From a listener to a connection, and a datagram. */
static void reports_each_kind_of_socket(void)
{
	int set = create(), other = create(), fd = listener(0), accepted;
	int client = rsocket(family, SOCK_STREAM, 0), datagrams = rsocket(family, SOCK_DGRAM, 0);

	add(set, fd, EPOLLIN);
	CHECK(only(set, fd, 0) == 0);
	CHECK(rfcntl(client, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rconnect(client, &any.sa, any_len), EINPROGRESS);
	add(other, client, EPOLLOUT);
	CHECK(only(set, fd, -1) == EPOLLIN);
	accepted = raccept(fd, NULL, NULL);
	CHECK(accepted >= 0 && only(set, fd, 0) == 0);
	CHECK(only(other, client, -1) == EPOLLOUT);
	CHECK(rclose(client) == 0 && rclose(accepted) == 0 && rclose(fd) == 0);
	set_family(family);
	CHECK(rbind(datagrams, &any.sa, any_len) == 0);
	CHECK(rgetsockname(datagrams, &any.sa, &any_len) == 0);
	add(set, datagrams, EPOLLIN);
	CHECK(only(set, datagrams, 0) == 0);
	CHECK(rsendto(datagrams, "x", 1, 0, &any.sa, any_len) == 1);
	CHECK(only(set, datagrams, -1) == EPOLLIN);
	CHECK(rclose(datagrams) == 0);
	/* A refused connection. */
	client = rsocket(family, SOCK_STREAM, 0);
	CHECK(rfcntl(client, F_SETFL, O_NONBLOCK) == 0);
	fd = listener(0);
	CHECK(rclose(fd) == 0);
	FAILS(rconnect(client, &any.sa, any_len), EINPROGRESS);
	add(other, client, EPOLLOUT);
	CHECK(only(other, client, -1) & EPOLLERR);
	CHECK(option(client, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
	CHECK(rclose(client) == 0);
	close_set(set);
	close_set(other);
}

/* Rsockets and other descriptors take turns where there is room for one event. */
static void mixes_descriptors(void)
{
	int set = create(), ends[2], more[2], pipes[2], i, seen[3] = { 0 };
	struct epoll_event found[4];
	char octet = 1;

	CHECK(pipe(pipes) == 0);
	add(set, pipes[0], EPOLLIN);
	CHECK(only(set, pipes[0], 0) == 0);
	CHECK(write(pipes[1], &octet, 1) == 1);
	CHECK(only(set, pipes[0], -1) == EPOLLIN);
	pair(ends);
	pair(more);
	add(set, ends[0], EPOLLOUT);
	add(set, more[0], EPOLLOUT);
	CHECK(repoll_wait(set, found, 4, -1) == 3);
	for (i = 0; i < 12; i++) {
		CHECK(repoll_wait(set, found, 1, -1) == 1);
		if (found[0].data.u64 == 0x100000000 + (uint64_t)pipes[0])
			seen[0]++;
		else
			seen[found[0].data.u64 == 0x100000000 + (uint64_t)ends[0] ? 1 : 2]++;
	}
	CHECK(seen[0] == 6 && seen[1] == 3 && seen[2] == 3);
	CHECK(read(pipes[0], &octet, 1) == 1);
	CHECK(control(set, EPOLL_CTL_MOD, ends[0], EPOLLIN) == 0);
	CHECK(control(set, EPOLL_CTL_MOD, more[0], EPOLLIN) == 0);
	CHECK(repoll_wait(set, found, 4, 30) == 0);
	/* Flags that are the kernel's hold for its descriptors. */
	CHECK(control(set, EPOLL_CTL_MOD, pipes[0], EPOLLIN | EPOLLET) == 0);
	CHECK(write(pipes[1], &octet, 1) == 1);
	CHECK(only(set, pipes[0], -1) == EPOLLIN);
	CHECK(only(set, pipes[0], 0) == 0);
	close_pair(ends);
	close_pair(more);
	close(pipes[0]);
	close(pipes[1]);
	close_set(set);
}

/* A descriptor that is closed is in no set, nor is the next one with its number. */
static void forgets_closed_descriptors(void)
{
	int set = create(), ends[2], pipes[2], again;

	pair(ends);
	CHECK(pipe(pipes) == 0);
	add(set, ends[0], EPOLLOUT);
	add(set, pipes[1], EPOLLOUT);
	CHECK(rclose(ends[0]) == 0);
	CHECK(only(set, pipes[1], 0) == EPOLLOUT);
	close(pipes[1]);
	CHECK(only(set, pipes[1], 30) == 0);
	again = rsocket(family, SOCK_STREAM, 0);
	while (again < ends[0])
		again = rsocket(family, SOCK_STREAM, 0);
	FAILS(control(set, EPOLL_CTL_MOD, again, EPOLLOUT), ENOENT);
	add(set, again, EPOLLOUT);
	CHECK(only(set, again, 0) == (EPOLLOUT | EPOLLHUP));
	CHECK(rclose(again) == 0);
	CHECK(only(set, again, 0) == 0);
	CHECK(rclose(ends[1]) == 0);
	close(pipes[0]);
	close_set(set);
}

/* One thread that waits, without a limit. */
struct wait {
	int set;
	int thread;
	int result;
	struct epoll_event event;
};

static void *wait_in(void *of)
{
	struct wait *wait = of;

	__atomic_store_n(&wait->thread, gettid(), __ATOMIC_SEQ_CST);
	wait->result = repoll_wait(wait->set, &wait->event, 1, -1);
	if (wait->result < 0)
		wait->result = -errno;
	return NULL;
}

/* Whether a thread sleeps in poll(2), where the kernel shows that. */
static int polls(int thread)
{
	char path[64], octets[64] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
	file = fopen(path, "r");
	if (!file)
		return 1;
	CHECK(fgets(octets, sizeof(octets), file) != NULL);
	fclose(file);
	return atoi(octets) == SYS_poll;
}

static pthread_t begin(struct wait *wait, int set)
{
	pthread_t thread;
	int i;

	*wait = (struct wait){ .set = set };
	CHECK(pthread_create(&thread, NULL, wait_in, wait) == 0);
	for (i = 0; i < 1000; i++) {
		int known = __atomic_load_n(&wait->thread, __ATOMIC_SEQ_CST);

		/* Time to sleep, without which the test would pass for less. */
		usleep(20000);
		if (known && polls(known))
			break;
	}
	return thread;
}

/* A thread that waits learns of events at once, not when it looks again after half a second. */
static void wakes_threads_at_once(void)
{
	enum { TIMES = 20 };
	int set = create(), ends[2], pipes[2], start, i;
	struct wait wait;
	pthread_t thread;
	char octet = 1;

	pair(ends);
	CHECK(pipe(pipes) == 0);
	start = milliseconds();
	for (i = 0; i < TIMES; i++) {
		thread = begin(&wait, set);
		add(set, ends[0], EPOLLOUT);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(wait.result == 1 && repoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL) == 0);
	}
	CHECK(milliseconds() - start < TIMES * 250);
	add(set, pipes[0], EPOLLIN);
	start = milliseconds();
	for (i = 0; i < TIMES; i++) {
		thread = begin(&wait, set);
		CHECK(write(pipes[1], &octet, 1) == 1);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(wait.result == 1 && read(pipes[0], &octet, 1) == 1);
	}
	CHECK(milliseconds() - start < TIMES * 250);
	close_pair(ends);
	close(pipes[0]);
	close(pipes[1]);
	close_set(set);
}

static void on_signal(int number)
{
	(void)number;
}

/* Changes of a set, the end of a member and of the set itself reach threads that wait. */
static void wakes_threads(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	int set = create(), ends[2], pipes[2];
	struct wait wait;
	pthread_t thread;
	char octet = 1;

	pair(ends);
	CHECK(pipe(pipes) == 0 && write(pipes[1], &octet, 1) == 1);
	thread = begin(&wait, set);
	add(set, ends[0], EPOLLIN);
	usleep(30000);
	CHECK(control(set, EPOLL_CTL_MOD, ends[0], EPOLLOUT) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 1 && wait.event.events == EPOLLOUT);
	CHECK(control(set, EPOLL_CTL_MOD, ends[0], EPOLLIN) == 0);
	thread = begin(&wait, set);
	add(set, pipes[0], EPOLLIN);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 1 && wait.event.data.u64 == 0x100000000 + (uint64_t)pipes[0]);
	CHECK(read(pipes[0], &octet, 1) == 1);
	thread = begin(&wait, set);
	CHECK(rsend(ends[1], "x", 1, 0) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 1 && wait.event.events == EPOLLIN);
	CHECK(rrecv(ends[0], &octet, 1, 0) == 1);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	thread = begin(&wait, set);
	/* More than one, should a signal come while the thread looks. */
	do {
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		usleep(20000);
	} while (pthread_tryjoin_np(thread, NULL) == EBUSY);
	CHECK(wait.result == -EINTR);
	thread = begin(&wait, set);
	CHECK(rclose(ends[0]) == 0);
	CHECK(write(pipes[1], &octet, 1) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 1 && wait.event.data.u64 == 0x100000000 + (uint64_t)pipes[0]);
	CHECK(read(pipes[0], &octet, 1) == 1);
	thread = begin(&wait, set);
	close_set(set);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 0);
	CHECK(rclose(ends[1]) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

/* Octets that another call has received are an event, also between waits that do not sleep. */
static void learns_of_other_calls(void)
{
	int set = create(), ends[2], i;
	char octet;

	pair(ends);
	add(set, ends[0], EPOLLIN);
	for (i = 0; i < 3; i++) {
		CHECK(rsend(ends[1], "x", 1, 0) == 1);
		CHECK(events(ends[0], POLLIN, -1) == POLLIN);
		CHECK(only(set, ends[0], 0) == EPOLLIN);
		CHECK(rrecv(ends[0], &octet, 1, 0) == 1);
		CHECK(only(set, ends[0], i == 0 ? 20 : 0) == 0);
		CHECK(rsend(ends[1], "y", 1, 0) == 1);
		CHECK(only(set, ends[0], -1) == EPOLLIN);
		CHECK(rrecv(ends[0], &octet, 1, 0) == 1);
		CHECK(only(set, ends[0], 0) == 0);
	}
	close_set(set);
	close_pair(ends);
}

/* So is an end that another thread makes, at once. */
static void learns_of_ends(void)
{
	enum { TIMES = 8 };
	int set = create(), ends[TIMES][2], start, i;
	struct wait wait;
	pthread_t thread;

	for (i = 0; i < TIMES; i++)
		pair(ends[i]);
	start = milliseconds();
	for (i = 0; i < TIMES; i++) {
		add(set, ends[i][0], EPOLLIN);
		CHECK(only(set, ends[i][0], 5) == 0);
		thread = begin(&wait, set);
		CHECK(rshutdown(ends[i][0], SHUT_RD) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(wait.result == 1 && wait.event.events & EPOLLIN);
		CHECK(repoll_ctl(set, EPOLL_CTL_DEL, ends[i][0], NULL) == 0);
	}
	CHECK(milliseconds() - start < TIMES * 400);
	close_set(set);
	for (i = 0; i < TIMES; i++)
		close_pair(ends[i]);
}

/* With EPOLLET a connection is reported once for what has come, and not again before more comes. */
static void reports_edges(void)
{
	const uint32_t both = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
	int set = create(), ends[2];
	struct wait wait;
	pthread_t thread;
	char room[1 << 16] = { 0 };
	ssize_t count, sent = 0;

	pair(ends);
	add(set, ends[0], EPOLLIN | EPOLLET);
	CHECK(only(set, ends[0], 20) == 0);
	CHECK(rsend(ends[1], "ab", 2, 0) == 2);
	CHECK(only(set, ends[0], 5000) == EPOLLIN && only(set, ends[0], 20) == 0);
	CHECK(rrecv(ends[0], room, 1, 0) == 1 && only(set, ends[0], 20) == 0);
	thread = begin(&wait, set);
	CHECK(rsend(ends[1], "c", 1, 0) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(wait.result == 1 && wait.event.events == EPOLLIN);
	CHECK(rrecv(ends[0], room, 2, MSG_WAITALL) == 2);
	/* A change of the member reports what there is. */
	CHECK(control(set, EPOLL_CTL_MOD, ends[0], both) == 0);
	CHECK(only(set, ends[0], 0) == EPOLLOUT && only(set, ends[0], 20) == 0);
	while ((count = rsend(ends[0], room, sizeof(room), MSG_DONTWAIT)) > 0)
		sent += count;
	CHECK(count == -1 && errno == EAGAIN);
	CHECK(only(set, ends[0], 20) == 0);
	while (sent > 0) {
		CHECK((count = rrecv(ends[1], room, sizeof(room), 0)) > 0);
		sent -= count;
	}
	CHECK(only(set, ends[0], 5000) == EPOLLOUT);
	CHECK(rshutdown(ends[1], SHUT_WR) == 0);
	CHECK(only(set, ends[0], 5000) == (EPOLLIN | EPOLLOUT | EPOLLRDHUP));
	CHECK(only(set, ends[0], 20) == 0);
	close_set(set);
	close_pair(ends);
}

enum { CLIENTS = 6, WORKERS = 3, ROUNDS = 200 };

static int served;

/* Accepts and echoes whatever the set reports, beside other threads that do the same. */
static void *work(void *of)
{
	int set = *(int *)of;

	for (;;) {
		struct epoll_event event;
		char octets[64];
		ssize_t count;
		int fd;

		if (repoll_wait(set, &event, 1, 20000) != 1)
			return NULL;
		fd = event.data.u64 & 0xffffffff;
		if (event.data.u64 >> 32 == 2) {
			int accepted = raccept(fd, NULL, NULL);

			CHECK(accepted >= 0);
			add(set, accepted, EPOLLIN | EPOLLONESHOT);
			event.events = EPOLLIN | EPOLLONESHOT;
			CHECK(repoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
			continue;
		}
		if (event.data.u64 >> 32 == 3)
			return NULL;
		count = rrecv(fd, octets, sizeof(octets), MSG_DONTWAIT);
		CHECK(count >= 0);
		if (count == 0) {
			__atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
			CHECK(rclose(fd) == 0);
			continue;
		}
		CHECK(rsend(fd, octets, count, 0) == count);
		CHECK(control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT) == 0);
	}
}

static void *ask(void *of)
{
	int client = rsocket(family, SOCK_STREAM, 0), i;

	(void)of;
	CHECK(rconnect(client, &any.sa, any_len) == 0);
	for (i = 0; i < ROUNDS; i++) {
		int got = -1;

		CHECK(rsend(client, &i, sizeof(i), 0) == sizeof(i));
		CHECK(rrecv(client, &got, sizeof(got), MSG_WAITALL) == sizeof(got) && got == i);
	}
	CHECK(rclose(client) == 0);
	return NULL;
}

static void serves_from_several_threads(void)
{
	int set = create(), fd = listener(0), pipes[2], i;
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 0x200000000 + fd };
	pthread_t threads[WORKERS + CLIENTS];

	CHECK(pipe(pipes) == 0);
	CHECK(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 0x300000000 };
	CHECK(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	served = 0;
	for (i = 0; i < WORKERS + CLIENTS; i++)
		CHECK(pthread_create(&threads[i], NULL, i < WORKERS ? work : ask, &set) == 0);
	for (i = WORKERS; i < WORKERS + CLIENTS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (i = 0; i < 1000 && __atomic_load_n(&served, __ATOMIC_SEQ_CST) < CLIENTS; i++)
		usleep(20000);
	CHECK(__atomic_load_n(&served, __ATOMIC_SEQ_CST) == CLIENTS);
	/* The last event ends the threads, all of them. */
	CHECK(write(pipes[1], "e", 1) == 1);
	for (i = 0; i < WORKERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(rclose(fd) == 0);
	close(pipes[0]);
	close(pipes[1]);
	close_set(set);
}

/* Epoll sets of the kernel that the process has. */
static int kernel_sets(void)
{
	char path[64], name[64];
	int fd, count = 0;

	for (fd = 0; fd < 4096; fd++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, name, sizeof(name) - 1);
		if (length > 0) {
			name[length] = 0;
			count += strstr(name, "eventpoll") != NULL;
		}
	}
	return count;
}

/* Without memory between the ends, a set of many has one of the kernel for each connection. */
static void makes_a_crowd(void)
{
	struct epoll_event event;
	int before, set, i;

	for (i = 0; i < CROWD; i++)
		pair(crowd[i]);
	before = kernel_sets();
	set = create();
	CHECK(repoll_wait(set, &event, 1, 20) == 0);
	if (strcmp(getenv("DGIWARP_SAME_HOST"), "off") == 0)
		CHECK(kernel_sets() >= before + CROWD);
	close_set(set);
}

int main(int count, char **words)
{
	CHECK(count == 2 || count == 3);
	set_family(atoi(words[1]) == 6 ? AF_INET6 : AF_INET);
	repoll_create = function("repoll_create");
	repoll_ctl = function("repoll_ctl");
	repoll_wait = function("repoll_wait");
	many = count == 3;
	if (many)
		makes_a_crowd();
	refuses_what_it_cannot();
	reports_levels();
	reports_each_kind_of_socket();
	mixes_descriptors();
	forgets_closed_descriptors();
	learns_of_other_calls();
	learns_of_ends();
	reports_edges();
	wakes_threads();
	wakes_threads_at_once();
	serves_from_several_threads();
	puts("ok");
	return 0;
}
