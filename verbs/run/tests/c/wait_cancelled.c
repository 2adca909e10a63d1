/* Threads that are cancelled in calls that wait for a UDP socket or, in readiness calls, for a connection too: each ends there, and the socket goes on. A child of this program connects. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "test.h"

/* The first READINESS kinds are for sockets of any sort. */
enum { POLL, PPOLL, SELECT, PSELECT, EPOLL, READINESS, READ = READINESS, RECV, RECVFROM, RECVMSG, RECVMMSG, READV, KINDS };

static int fd, set, kind, entered[2];

static void *wait_for_octets(void *disabled)
{
	char octet;
	struct iovec vector = { &octet, 1 };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &vector, .msg_iovlen = 1 } };
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	struct timespec time = { .tv_sec = 100 }, second = { .tv_sec = 1 };
	struct epoll_event event;
	fd_set reads;
	FD_ZERO(&reads);
	FD_SET(fd, &reads);
	if (disabled)
		CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	CHECK(write(entered[1], "e", 1) == 1);
	if (disabled) {
		CHECK(ppoll(&readable, 1, &second, NULL) == 0);
		return &fd;
	}
	switch (kind) {
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
	}
	return NULL;
}

/* Cancels a thread as it waits. Returns its result. */
static void *cancelled(void *disabled)
{
	pthread_t thread;
	struct timespec deadline;
	void *result;
	char octet;
	CHECK(pthread_create(&thread, NULL, wait_for_octets, disabled) == 0);
	CHECK(read(entered[0], &octet, 1) == 1);
	usleep(kind % 2 ? 0 : 50000);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(clock_gettime(CLOCK_REALTIME, &deadline) == 0);
	deadline.tv_sec += 20;
	CHECK(pthread_timedjoin_np(thread, &result, &deadline) == 0);
	return result;
}

static void cancel_in(int kinds)
{
	struct epoll_event event = { .events = EPOLLIN };
	CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	for (kind = 0; kind < kinds; kind++)
		CHECK(cancelled(NULL) == PTHREAD_CANCELED);
	CHECK(cancelled(&fd) == &fd);
	CHECK(close(set) == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	char octet, port[8];
	int status, listener, sender;
	if (argc > 1) {
		address.sin_port = htons(atoi(argv[1]));
		fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
		CHECK(read(fd, &octet, 1) == 1 && octet == 'a' && write(fd, "b", 1) == 1);
		CHECK(read(fd, &octet, 1) == 0);
		return 0;
	}
	CHECK(pipe(entered) == 0);

	CHECK((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
	cancel_in(KINDS);
	CHECK((sender = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	CHECK(sendto(sender, "u", 1, 0, (struct sockaddr *)&address, length) == 1);
	CHECK(recv(fd, &octet, 1, 0) == 1 && octet == 'u');
	CHECK(close(fd) == 0 && close(sender) == 0);

	address.sin_port = 0;
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
		execl(argv[0], argv[0], port, NULL);
		_exit(1);
	}
	CHECK((fd = accept(listener, NULL, NULL)) >= 0);
	cancel_in(READINESS);
	CHECK(write(fd, "a", 1) == 1 && read(fd, &octet, 1) == 1 && octet == 'b');
	CHECK(close(fd) == 0 && waitpid(child, &status, 0) == child && status == 0);
	puts("ok");
	return 0;
}
