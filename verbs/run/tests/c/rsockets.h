/* Rsockets in one process: addresses, options, readiness, and two ends that are connected. */

#include "test.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <string.h>

#define FAILS(call, error) CHECK((errno = 0, (call) == -1 && errno == (error)))

static union {
	struct sockaddr sa;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
} any;
static socklen_t any_len;
static int family;

static void set_family(int to)
{
	family = to;
	memset(&any, 0, sizeof(any));
	any.sa.sa_family = to;
	if (to == AF_INET) {
		any.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		any_len = sizeof(any.v4);
	} else {
		any.v6.sin6_addr = in6addr_loopback;
		any_len = sizeof(any.v6);
	}
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);

	CHECK(rgetsockopt(fd, level, name, &value, &length) == 0);
	CHECK(length == sizeof(value));
	return value;
}

static void set_option(int fd, int level, int name, int value)
{
	CHECK(rsetsockopt(fd, level, name, &value, sizeof(value)) == 0);
}

static int events(int fd, int asked, int timeout)
{
	struct pollfd one = { .fd = fd, .events = asked };
	int ready = rpoll(&one, 1, timeout);

	CHECK(ready == (one.revents != 0));
	return one.revents;
}

/* A listener at a port of the system's choice, which `any` has then. */
static int listener(int maps)
{
	int fd = rsocket(family, SOCK_STREAM, 0);

	set_family(family);
	set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (maps)
		set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, maps);
	CHECK(rbind(fd, &any.sa, any_len) == 0);
	CHECK(rlisten(fd, 5) == 0);
	CHECK(rgetsockname(fd, &any.sa, &any_len) == 0 && any.v4.sin_port != 0);
	return fd;
}

static void connect_pair(int ends[2], int maps)
{
	int fd = listener(maps);
	struct sockaddr_in6 name, peer;
	socklen_t length = sizeof(name);
	int error;

	CHECK(events(fd, POLLIN, 0) == 0);
	CHECK(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(raccept(fd, NULL, NULL), EAGAIN);
	CHECK(rfcntl(fd, F_SETFL, 0) == 0);
	ends[0] = rsocket(family, SOCK_STREAM, 0);
	if (maps)
		set_option(ends[0], SOL_RDMA, RDMA_IOMAPSIZE, maps);
	CHECK(rfcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	FAILS(rconnect(ends[0], &any.sa, any_len), EINPROGRESS);
	CHECK(events(fd, POLLIN, -1) == POLLIN);
	ends[1] = raccept(fd, (struct sockaddr *)&peer, &length);
	CHECK(ends[1] >= 0 && length == any_len);
	CHECK(events(ends[0], POLLOUT, -1) == POLLOUT);
	error = option(ends[0], SOL_SOCKET, SO_ERROR);
	CHECK(error == 0);
	CHECK(rfcntl(ends[0], F_SETFL, 0) == 0);
	length = sizeof(name);
	CHECK(rgetsockname(ends[0], (struct sockaddr *)&name, &length) == 0);
	CHECK(length == any_len && memcmp(&name, &peer, any_len) == 0);
	length = sizeof(name);
	CHECK(rgetpeername(ends[0], (struct sockaddr *)&name, &length) == 0);
	CHECK(length == any_len && memcmp(&name, &any, any_len) == 0);
	FAILS(rconnect(ends[0], &any.sa, any_len), EISCONN);
	FAILS(rsetsockopt(ends[0], SOL_RDMA, RDMA_SQSIZE, &error, sizeof(error)), EINVAL);
	CHECK(rclose(fd) == 0);
}

static void close_pair(int ends[2])
{
	CHECK(rclose(ends[0]) == 0);
	CHECK(rclose(ends[1]) == 0);
}
