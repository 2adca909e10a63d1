/* Threads that are cancelled in calls that wait for a UDP socket or for a connection: each ends there, and the socket goes on. A child of this program connects. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "test.h"

enum { POLL, PPOLL, SELECT, PSELECT, EPOLL, READ, RECV, RECVFROM, RECVMSG, RECVMMSG, READV, RECEIVING, WAITALL = RECEIVING, PEEK, SPLICE, ALL_RECEIVING,
       WRITE = ALL_RECEIVING, SEND, SENDTO, SENDMSG, SENDMMSG, WRITEV, KINDS };

static int fd, set, entered[2], spliced[2];
static char many[1 << 20];

static void *wait_in(void *kind)
{
	char octet;
	struct iovec vector = { &octet, 1 };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &vector, .msg_iovlen = 1 } };
	struct iovec long_vector = { many, sizeof many };
	struct mmsghdr long_message = { .msg_hdr = { .msg_iov = &long_vector, .msg_iovlen = 1 } };
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	struct timespec time = { .tv_sec = 100 };
	struct epoll_event event;
	fd_set reads;
	FD_ZERO(&reads);
	FD_SET(fd, &reads);
	CHECK(write(entered[1], "e", 1) == 1);
	switch ((intptr_t)kind) {
	case POLL: poll(&readable, 1, -1); break;
	case PPOLL: ppoll(&readable, 1, &time, NULL); break;
	case SELECT: select(fd + 1, &reads, NULL, NULL, NULL); break;
	case PSELECT: pselect(fd + 1, &reads, NULL, NULL, &time, NULL); break;
	case EPOLL: epoll_wait(set, &event, 1, 100000); break;
	case READ: (void)!read(fd, &octet, 1); break;
	case RECV: recv(fd, &octet, 1, 0); break;
	case RECVFROM: recvfrom(fd, &octet, 1, 0, NULL, NULL); break;
	case RECVMSG: recvmsg(fd, &message.msg_hdr, 0); break;
	case RECVMMSG: recvmmsg(fd, &message, 1, 0, NULL); break;
	case READV: (void)!readv(fd, &vector, 1); break;
	case WAITALL: recv(fd, many, 2, MSG_WAITALL); break;
	case PEEK: recv(fd, many, 2, MSG_PEEK); break;
	case SPLICE: splice(fd, NULL, spliced[1], NULL, 1, 0); break;
	case WRITE: (void)!write(fd, many, sizeof many); break;
	case SEND: send(fd, many, sizeof many, 0); break;
	case SENDTO: sendto(fd, many, sizeof many, 0, NULL, 0); break;
	case SENDMSG: sendmsg(fd, &long_message.msg_hdr, 0); break;
	case SENDMMSG: sendmmsg(fd, &long_message, 1, 0); break;
	case WRITEV: (void)!writev(fd, &long_vector, 1); break;
	}
	return NULL;
}

static void *wait_uncancelled(void *unused)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	CHECK(write(entered[1], "e", 1) == 1);
	CHECK(poll(&readable, 1, 1000) == 0);
	return unused;
}

/* Threads of all these kinds wait at once, and are cancelled. */
static void cancel_in(int first, int end)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct timespec deadline;
	pthread_t threads[KINDS], other;
	void *result;
	char octet;
	CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	for (intptr_t kind = first; kind < end; kind++)
		CHECK(pthread_create(&threads[kind], NULL, wait_in, (void *)kind) == 0);
	CHECK(pthread_create(&other, NULL, wait_uncancelled, &fd) == 0);
	for (int kind = first; kind <= end; kind++)
		CHECK(read(entered[0], &octet, 1) == 1);
	CHECK(pthread_cancel(other) == 0);
	/* Some may not have come to their calls yet. */
	for (int kind = first; kind < end; kind += 2)
		CHECK(pthread_cancel(threads[kind]) == 0);
	usleep(50000);
	for (int kind = first + 1; kind < end; kind += 2)
		CHECK(pthread_cancel(threads[kind]) == 0);
	CHECK(clock_gettime(CLOCK_REALTIME, &deadline) == 0);
	deadline.tv_sec += 20;
	for (int kind = first; kind < end; kind++)
		CHECK(pthread_timedjoin_np(threads[kind], &result, &deadline) == 0 && result == PTHREAD_CANCELED);
	CHECK(pthread_timedjoin_np(other, &result, &deadline) == 0 && result == &fd);
	CHECK(close(set) == 0);
}

/* A thread that never waits is cancelled too. */
static void *never_wait(void *unused)
{
	char octet;
	CHECK(write(entered[1], "e", 1) == 1);
	for (;;)
		recv(fd, &octet, 1, MSG_PEEK);
	return unused;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	char octet, port[8];
	int status, listener, sender, hold[2];
	long got, all = 0;
	char last = 0;
	pthread_t thread;
	void *result;
	if (argc > 1) {
		address.sin_port = htons(atoi(argv[1]));
		fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
		CHECK(read(fd, &octet, 1) == 1 && octet == 'a' && write(fd, "b", 1) == 1);
		/* Receives nothing until the end of the standard input, then all. */
		CHECK(read(0, &octet, 1) == 0);
		while ((got = read(fd, many, sizeof many)) > 0) {
			all += got;
			last = many[got - 1];
		}
		CHECK(got == 0 && all > 1 << 16 && last == 'z');
		return 0;
	}
	CHECK(pipe(entered) == 0 && pipe(spliced) == 0);

	CHECK((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
	cancel_in(0, RECEIVING);
	CHECK((sender = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	CHECK(sendto(sender, "u", 1, 0, (struct sockaddr *)&address, length) == 1);
	CHECK(recv(fd, &octet, 1, 0) == 1 && octet == 'u');
	CHECK(close(fd) == 0 && close(sender) == 0);

	address.sin_port = 0;
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(pipe(hold) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(dup2(hold[0], 0) == 0 && close(hold[0]) == 0 && close(hold[1]) == 0);
		snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
		execl(argv[0], argv[0], port, NULL);
		_exit(1);
	}
	CHECK((fd = accept(listener, NULL, NULL)) >= 0);
	cancel_in(0, ALL_RECEIVING);
	CHECK(write(fd, "a", 1) == 1 && recv(fd, &octet, 1, MSG_PEEK) == 1);
	CHECK(pthread_create(&thread, NULL, never_wait, NULL) == 0);
	CHECK(read(entered[0], &octet, 1) == 1 && pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(read(fd, &octet, 1) == 1 && octet == 'b');
	/* The peer receives nothing, so there is no room in the end. */
	while (send(fd, many, sizeof many, MSG_DONTWAIT) > 0)
		;
	cancel_in(WRITE, KINDS);
	CHECK(close(hold[0]) == 0 && close(hold[1]) == 0);
	CHECK(write(fd, "z", 1) == 1);
	CHECK(close(fd) == 0 && waitpid(child, &status, 0) == child && status == 0);
	puts("ok");
	return 0;
}
