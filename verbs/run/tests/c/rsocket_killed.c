/* A peer that is killed ends every call that waits for it, within five seconds. */

#define _GNU_SOURCE
#include "rsockets.h"
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 5000 };

static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int epfd, int op, int fd, struct epoll_event *event);
static int (*repoll_wait)(int epfd, struct epoll_event *events, int maxevents, int timeout);

static int milliseconds(void)
{
	struct timespec time;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
	return time.tv_sec % 100000 * 1000 + time.tv_nsec / 1000000;
}

/* The peer: another process, which connects and neither sends nor receives. */
static void be_peer(int port)
{
	int fd = rsocket(family, SOCK_STREAM, 0);

	any.v4.sin_port = port;
	CHECK(rconnect(fd, &any.sa, any_len) == 0);
	for (;;)
		pause();
}

static pid_t peer;
static int killed_at;

static void *kill_peer(void *unused)
{
	(void)unused;
	/* Time for the call to wait. */
	usleep(300000);
	killed_at = milliseconds();
	CHECK(kill(peer, SIGKILL) == 0);
	return NULL;
}

static void receives(int fd)
{
	char octet;

	FAILS(rrecv(fd, &octet, 1, 0), ECONNRESET);
}

static void sends(int fd)
{
	static char octets[1 << 20];
	ssize_t sent = rsend(fd, octets, sizeof(octets), 0);

	/* Octets that there was room for count. */
	CHECK(sent == -1 ? errno == ECONNRESET : sent < (ssize_t)sizeof(octets));
}

static void polls(int fd)
{
	CHECK(events(fd, POLLIN, -1) & POLLERR);
}

static void polls_for_room(int fd)
{
	static char octets[4096];

	while (rsend(fd, octets, sizeof(octets), MSG_DONTWAIT) > 0)
		;
	CHECK(errno == EAGAIN);
	while (!(events(fd, POLLOUT, -1) & POLLERR))
		CHECK(rsend(fd, octets, sizeof(octets), MSG_DONTWAIT) > 0);
}

static void selects(int fd)
{
	fd_set reads;

	FD_ZERO(&reads);
	FD_SET(fd, &reads);
	CHECK(rselect(fd + 1, &reads, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &reads));
}

static void waits_in_a_set(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = repoll_create(0);

	CHECK(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(repoll_wait(set, &event, 1, -1) == 1 && event.events & EPOLLERR);
	CHECK(rclose(set) == 0);
}

static void loses_peer(char **words, void (*call)(int fd))
{
	int fd = listener(0), accepted, status;
	pthread_t killer;
	char port[8], octet;

	snprintf(port, sizeof(port), "%d", any.v4.sin_port);
	peer = fork();
	CHECK(peer >= 0);
	if (peer == 0) {
		execl("/proc/self/exe", words[0], words[1], port, NULL);
		_exit(1);
	}
	accepted = raccept(fd, NULL, NULL);
	CHECK(accepted >= 0);
	CHECK(pthread_create(&killer, NULL, kill_peer, NULL) == 0);
	call(accepted);
	CHECK(pthread_join(killer, NULL) == 0);
	CHECK(milliseconds() - killed_at < LIMIT);
	FAILS(rsend(accepted, "x", 1, 0), ECONNRESET);
	FAILS(rrecv(accepted, &octet, 1, 0), ECONNRESET);
	CHECK(rclose(accepted) == 0 && rclose(fd) == 0);
	CHECK(waitpid(peer, &status, 0) == peer && WIFSIGNALED(status));
	CHECK(milliseconds() - killed_at < LIMIT);
}

int main(int count, char **words)
{
	CHECK(count >= 2);
	set_family(atoi(words[1]) == 6 ? AF_INET6 : AF_INET);
	if (count == 3)
		be_peer(atoi(words[2]));
	repoll_create = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	repoll_ctl = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	repoll_wait = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	CHECK(repoll_create && repoll_ctl && repoll_wait);
	loses_peer(words, receives);
	loses_peer(words, sends);
	loses_peer(words, polls);
	loses_peer(words, polls_for_room);
	loses_peer(words, selects);
	loses_peer(words, waits_in_a_set);
	puts("ok");
	return 0;
}
