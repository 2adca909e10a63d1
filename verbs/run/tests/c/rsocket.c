/* Rsockets: results and errno values of calls, between two ends in one process. */

#define _GNU_SOURCE
#include "rsockets.h"
#include <rdma/rsocket.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static void refuses_what_it_cannot(void)
{
	char octet;
	int fd = rsocket(family, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	FAILS(rsocket(family, SOCK_SEQPACKET, 0), ENOTSUP);
	FAILS(rsocket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), ENOTSUP);
	FAILS(rsocket(family, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
	FAILS(rbind(12345, &any.sa, any_len), EBADF);
	FAILS(rbind(STDIN_FILENO, &any.sa, any_len), EBADF);
	FAILS(rbind(fd, &any.sa, 3), EINVAL);
	FAILS(rclose(12345), EBADF);
	FAILS(rrecv(-1, &octet, 1, 0), EBADF);
	FAILS(rrecv(fd, &octet, 1, 0), ENOTCONN);
	FAILS(rsend(fd, &octet, 1, 0), ENOTCONN);
	FAILS(raccept(fd, NULL, NULL), EINVAL);
	FAILS(rshutdown(fd, SHUT_WR), ENOTCONN);
	FAILS(rgetpeername(fd, &any.sa, &any_len), ENOTCONN);
	FAILS(rfcntl(fd, F_GETOWN, 0), ENOTSUP);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &fd, sizeof(fd)), ENOTSUP);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &fd, 1), EINVAL);
	CHECK(rclose(fd) == 0);
	FAILS(rclose(fd), EBADF);
}

static void has_options(void)
{
	int fd = rsocket(family, SOCK_STREAM, 0);
	struct linger linger;
	socklen_t length = sizeof(linger);

	CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 131072);
	CHECK(option(fd, SOL_SOCKET, SO_SNDBUF) == 131072);
	CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 384);
	CHECK(option(fd, SOL_RDMA, RDMA_RQSIZE) == 384);
	CHECK(option(fd, SOL_RDMA, RDMA_INLINE) == 64);
	CHECK(option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
	set_option(fd, SOL_SOCKET, SO_RCVBUF, 10000);
	set_option(fd, SOL_SOCKET, SO_SNDBUF, 10);
	CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 20000);
	CHECK(option(fd, SOL_SOCKET, SO_SNDBUF) == 4096);
	set_option(fd, SOL_RDMA, RDMA_SQSIZE, 1 << 20);
	CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 0xfffe);
	set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, 300);
	CHECK(option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 256);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff == 1);
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
	CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 0);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
	CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
	CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 30);
	CHECK(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rfcntl(fd, F_GETFL, 0) == O_NONBLOCK);
	CHECK(rclose(fd) == 0);
}

static void reports_refusal(void)
{
	int fd = listener(0), client = rsocket(family, SOCK_STREAM, 0);

	CHECK(rclose(fd) == 0);
	FAILS(rconnect(client, &any.sa, any_len), ECONNREFUSED);
	CHECK(rclose(client) == 0);
	client = rsocket(family, SOCK_STREAM, 0);
	CHECK(rfcntl(client, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rconnect(client, &any.sa, any_len), EINPROGRESS);
	CHECK(events(client, POLLOUT, -1) & POLLERR);
	CHECK(option(client, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
	CHECK(rclose(client) == 0);
}

static void moves_octets(void)
{
	char octets[32] = "", text[] = "one two";
	struct iovec from[3] = { { text, 3 }, { text, 0 }, { text + 3, 4 } };
	struct iovec to[2] = { { octets, 2 }, { octets + 16, 10 } };
	struct msghdr message = { .msg_iov = to, .msg_iovlen = 2 };
	int ends[2], i;

	connect_pair(ends, 0);
	FAILS(rrecv(ends[0], octets, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rwritev(ends[0], from, 3) == 7);
	CHECK(events(ends[1], POLLIN, -1) == POLLIN);
	CHECK(events(ends[1], POLLIN | POLLOUT, -1) == (POLLIN | POLLOUT));
	CHECK(rrecv(ends[1], octets, sizeof(octets), MSG_PEEK) == 7);
	CHECK(memcmp(octets, "one two", 7) == 0);
	CHECK(rrecvmsg(ends[1], &message, 0) == 7);
	CHECK(memcmp(octets, "on", 2) == 0 && memcmp(octets + 16, "e two", 5) == 0);
	FAILS(rsendto(ends[0], text, 1, 0, &any.sa, any_len), EISCONN);
	FAILS(rread(ends[1], NULL, 1), EFAULT);
	CHECK(rread(ends[1], NULL, 0) == 0);
	/* More messages than receives. */
	for (i = 0; i < 2000; i++) {
		CHECK(rsend(ends[1], &i, sizeof(i), 0) == sizeof(i));
		if (i % 3 == 2) {
			int got[3];

			CHECK(rrecv(ends[0], got, sizeof(got), MSG_WAITALL) == sizeof(got));
			CHECK(got[0] == i - 2 && got[2] == i);
		}
	}
	close_pair(ends);
}

/* A sender fills what there is room for, and goes on when the other end reads. */
static void keeps_back(void)
{
	static char octets[1 << 20];
	size_t sent = 0, received = 0, i;
	int ends[2];

	connect_pair(ends, 0);
	for (i = 0; i < sizeof(octets); i++)
		octets[i] = i * 7 % 251;
	while (events(ends[0], POLLOUT, 300)) {
		ssize_t some = rsend(ends[0], octets + sent, sizeof(octets) - sent, MSG_DONTWAIT);

		CHECK(some > 0);
		sent += some;
		CHECK(sent < sizeof(octets));
	}
	FAILS(rsend(ends[0], octets, 1, MSG_DONTWAIT), EAGAIN);
	while (received < sent) {
		char got[3000];
		ssize_t some = rrecv(ends[1], got, sizeof(got), 0);

		CHECK(some > 0 && memcmp(got, octets + received, some) == 0);
		received += some;
	}
	CHECK(received == sent);
	CHECK(events(ends[0], POLLOUT, 5000) == POLLOUT);
	close_pair(ends);
}

struct flow {
	int fd;
	unsigned int seed;
};

enum { FLOW = 3000000 };

static void *write_flow(void *of)
{
	struct flow *flow = of;
	char octets[70000];
	int done = 0;

	while (done < FLOW) {
		int some = 1 + rand_r(&flow->seed) % (int)sizeof(octets), i;

		if (some > FLOW - done)
			some = FLOW - done;
		for (i = 0; i < some; i++)
			octets[i] = (done + i) % 251;
		CHECK(rsend(flow->fd, octets, some, 0) == some);
		done += some;
	}
	return NULL;
}

static void *read_flow(void *of)
{
	struct flow *flow = of;
	static __thread char octets[70000];
	int done = 0;

	while (done < FLOW) {
		int some, i;

		if (flow->seed % 2)
			CHECK(events(flow->fd, POLLIN, -1) & POLLIN);
		some = rrecv(flow->fd, octets, 1 + rand_r(&flow->seed) % sizeof(octets), 0);
		CHECK(some > 0);
		for (i = 0; i < some; i++)
			CHECK(octets[i] == (char)((done + i) % 251));
		done += some;
	}
	return NULL;
}

/* Two threads at each end, both ways at once. */
static void goes_both_ways(void)
{
	int ends[2], i;
	pthread_t threads[4];
	struct flow flows[4];

	connect_pair(ends, 0);
	for (i = 0; i < 4; i++) {
		flows[i] = (struct flow){ ends[i / 2], i + 1 };
		CHECK(pthread_create(&threads[i], NULL, i % 2 ? read_flow : write_flow, &flows[i]) == 0);
	}
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	close_pair(ends);
}

static void waits_beside_other_descriptors(void)
{
	int ends[2], pipes[2];
	struct pollfd fds[3];
	struct timeval time = { 0, 50000 };
	fd_set reads, writes;
	char octet = 1;

	CHECK(pipe(pipes) == 0);
	/* Without any socket. */
	fds[0] = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	CHECK(rpoll(fds, 1, 10) == 0);
	CHECK(rpoll(NULL, 0, 10) == 0);
	connect_pair(ends, 0);
	fds[1] = (struct pollfd){ .fd = ends[1], .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = -1, .events = POLLIN };
	CHECK(rpoll(fds, 3, 50) == 0);
	CHECK(write(pipes[1], &octet, 1) == 1);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[0].revents == POLLIN && fds[1].revents == 0);
	CHECK(read(pipes[0], &octet, 1) == 1);
	CHECK(rsend(ends[0], &octet, 1, 0) == 1);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[1].revents == POLLIN && fds[0].revents == 0);
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(pipes[0], &reads);
	FD_SET(ends[1], &reads);
	FD_SET(ends[1], &writes);
	CHECK(rselect(ends[1] + pipes[0] + 1, &reads, &writes, NULL, NULL) == 2);
	CHECK(FD_ISSET(ends[1], &reads) && FD_ISSET(ends[1], &writes) && !FD_ISSET(pipes[0], &reads));
	CHECK(rrecv(ends[1], &octet, 1, 0) == 1);
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	CHECK(rselect(ends[1] + 1, &reads, NULL, NULL, &time) == 0 && !FD_ISSET(ends[1], &reads));
	close_pair(ends);
	close(pipes[0]);
	close(pipes[1]);
}

static void closes_each_direction(void)
{
	char octets[8];
	int ends[2];

	connect_pair(ends, 0);
	CHECK(rsend(ends[0], "last", 4, 0) == 4);
	CHECK(rshutdown(ends[0], SHUT_WR) == 0);
	FAILS(rsend(ends[0], "x", 1, 0), ECONNRESET);
	CHECK(rrecv(ends[1], octets, 8, MSG_WAITALL) == 4);
	CHECK(events(ends[1], POLLIN, -1) == POLLIN);
	CHECK(rrecv(ends[1], octets, 8, 0) == 0);
	CHECK(rsend(ends[1], "still", 5, 0) == 5);
	CHECK(rrecv(ends[0], octets, 8, 0) == 5);
	CHECK(rshutdown(ends[1], SHUT_RDWR) == 0);
	CHECK(events(ends[0], POLLIN, -1) == (POLLIN | POLLHUP));
	CHECK(rrecv(ends[0], octets, 8, 0) == 0);
	close_pair(ends);

	connect_pair(ends, 0);
	CHECK(rsend(ends[0], "kept", 4, 0) == 4);
	CHECK(rclose(ends[0]) == 0);
	CHECK(rrecv(ends[1], octets, 8, MSG_WAITALL) == 4);
	CHECK(rrecv(ends[1], octets, 8, 0) == 0);
	FAILS(rsend(ends[1], "x", 1, 0), ECONNRESET);
	CHECK(rclose(ends[1]) == 0);
}

static void maps_memory(void)
{
	static char target[100000], source[100000];
	int ends[2], i;
	char octet;

	connect_pair(ends, 2);
	for (i = 0; i < (int)sizeof(source); i++)
		source[i] = i % 239;
	FAILS(riomap(ends[0], target, sizeof(target), PROT_READ, 0, -1), EINVAL);
	CHECK(riomap(ends[1], target, sizeof(target), PROT_WRITE, 0, 4096) == 4096);
	/* The peer learns of it with what is sent next. */
	CHECK(rsend(ends[1], "m", 1, 0) == 1 && rrecv(ends[0], &octet, 1, 0) == 1);
	CHECK(riowrite(ends[0], source, 10, 4095, 0) == 0);
	CHECK(riowrite(ends[0], source, sizeof(source), 4096, 0) == sizeof(source));
	CHECK(rsend(ends[0], "d", 1, 0) == 1 && rrecv(ends[1], &octet, 1, 0) == 1);
	CHECK(memcmp(source, target, sizeof(source)) == 0);
	CHECK(riomap(ends[1], source, 10, PROT_WRITE, 0, -1) == (off_t)(uintptr_t)source);
	FAILS(riomap(ends[1], source, 20, PROT_WRITE, 0, -1), ENOMEM);
	CHECK(riounmap(ends[1], source, 10) == 0);
	FAILS(riounmap(ends[1], source, 10), EINVAL);
	close_pair(ends);
}

static void sends_datagrams(void)
{
	static char octets[65536], got[65536];
	int one = rsocket(family, SOCK_DGRAM, 0), other = rsocket(family, SOCK_DGRAM, 0), i;
	struct sockaddr_in6 name, source;
	socklen_t length = sizeof(name);

	set_family(family);
	CHECK(rbind(one, &any.sa, any_len) == 0 && rbind(other, &any.sa, any_len) == 0);
	CHECK(rgetsockname(one, (struct sockaddr *)&name, &length) == 0);
	CHECK(rgetsockname(other, &any.sa, &any_len) == 0);
	FAILS(rrecv(one, got, 1, MSG_DONTWAIT), EAGAIN);
	FAILS(rsend(one, "x", 1, 0), EDESTADDRREQ);
	FAILS(rlisten(one, 1), EOPNOTSUPP);
	FAILS(rsendto(one, octets, 65536, 0, &any.sa, any_len), EMSGSIZE);
	/* The first in plain UDP, the others by queue pairs. */
	for (i = 0; i < 50; i++) {
		size_t size = i == 7 ? 60000 : 1 + 29 * i;

		memset(octets, i, size);
		CHECK(rsendto(one, octets, size, 0, &any.sa, any_len) == (ssize_t)size);
		CHECK(events(other, POLLIN, -1) == POLLIN);
		length = sizeof(source);
		CHECK(rrecvfrom(other, got, 1, MSG_PEEK, (struct sockaddr *)&source, &length) == 1);
		CHECK(rrecvfrom(other, got, sizeof(got), 0, (struct sockaddr *)&source, &length) == (ssize_t)size);
		CHECK(memcmp(octets, got, size) == 0);
		CHECK(length == any_len && memcmp(&source, &name, any_len) == 0);
	}
	CHECK(rconnect(other, (struct sockaddr *)&name, any_len) == 0);
	CHECK(rsend(other, "back", 4, 0) == 4);
	CHECK(rrecv(one, got, 2, 0) == 2 && memcmp(got, "ba", 2) == 0);
	CHECK(events(one, POLLIN, 0) == 0 && events(one, POLLOUT, 0) == POLLOUT);
	CHECK(rclose(one) == 0 && rclose(other) == 0);
}

int main(int count, char **words)
{
	CHECK(count == 2);
	set_family(atoi(words[1]) == 6 ? AF_INET6 : AF_INET);
	refuses_what_it_cannot();
	has_options();
	reports_refusal();
	moves_octets();
	keeps_back();
	goes_both_ways();
	waits_beside_other_descriptors();
	closes_each_direction();
	maps_memory();
	sends_datagrams();
	puts("ok");
	return 0;
}
