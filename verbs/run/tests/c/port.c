/* A TCP listener and one of rdma_cm at one port, in one process, whichever comes first. Arguments: an address of this host, and the word "listens" where
 * only the order in which TCP has the port first works, as without dgiwarp-run. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include "test.h"

static struct sockaddr_storage any_port;
static socklen_t length;
static struct rdma_event_channel *channel;

static struct rdma_cm_event *next(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 30000) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind) {
		fprintf(stderr, "%s instead of %s, status %d\n", rdma_event_str(event->event), rdma_event_str(kind), event->status);
		exit(1);
	}
	return event;
}

static void expect(enum rdma_cm_event_type kind)
{
	CHECK(rdma_ack_cm_event(next(kind)) == 0);
}

static int tcp(int reuse)
{
	int fd = socket(any_port.ss_family, SOCK_STREAM, 0);
	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) == 0);
	return fd;
}

static int bind_tcp(int fd, const struct sockaddr_storage *at)
{
	return bind(fd, (const struct sockaddr *)at, length);
}

static struct rdma_cm_id *id_at(const struct sockaddr_storage *at, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)at) == 0);
	return id;
}

static uint16_t port_of(const struct sockaddr_storage *at)
{
	return ((const struct sockaddr_in *)at)->sin_port;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
	};
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}

/* A connection to the port by rdma_cm, whose ends have the port that was named, and one by TCP. */
static void both_serve(struct rdma_cm_id *listener, int fd, struct sockaddr_storage *at)
{
	CHECK(rdma_get_src_port(listener) == port_of(at));
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 2000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 4 };
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *accepted = event->id;
	CHECK(event->listen_id == listener && memcmp(event->param.conn.private_data, "who", 4) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_src_port(accepted) == port_of(at));
	make_qp(accepted);
	CHECK(rdma_accept(accepted, NULL) == 0);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_dst_port(id) == port_of(at) && rdma_get_src_port(listener) == port_of(at));

	int client = socket(any_port.ss_family, SOCK_STREAM, 0);
	CHECK(client >= 0 && connect(client, (struct sockaddr *)at, length) == 0);
	CHECK(write(client, "x", 1) == 1 && shutdown(client, SHUT_WR) == 0);
	/* Attempts of rdma_cm may have been here, and left without an octet. */
	char octet = 0;
	while (octet != 'x') {
		int server = accept(fd, NULL, NULL);
		CHECK(server >= 0);
		ssize_t got = read(server, &octet, 1);
		CHECK(got <= 0 || octet == 'x');
		CHECK(close(server) == 0);
	}
	CHECK(close(client) == 0);

	CHECK(rdma_disconnect(id) == 0);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	rdma_destroy_qp(accepted);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(accepted) == 0);
}

/* A port is one listener's of rdma_cm, however its socket has it. */
static void end(struct rdma_cm_id *listener, int fd, struct sockaddr_storage *at)
{
	struct rdma_cm_id *second;
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK((rdma_bind_addr(second, (struct sockaddr *)at) == -1 || rdma_listen(second, 1) == -1) && errno == EADDRINUSE);
	CHECK(rdma_destroy_id(second) == 0);
	CHECK(rdma_destroy_id(listener) == 0 && close(fd) == 0);
	/* All of it is free again. */
	fd = tcp(1);
	CHECK(bind_tcp(fd, at) == 0 && listen(fd, 5) == 0 && close(fd) == 0);
	second = id_at(at, RDMA_PS_TCP);
	CHECK(rdma_listen(second, 5) == 0 && rdma_destroy_id(second) == 0);
	second = id_at(at, RDMA_PS_UDP);
	CHECK(rdma_destroy_id(second) == 0);
}

static void tcp_first(void)
{
	struct sockaddr_storage at = any_port;
	socklen_t size = sizeof at;
	int fd = tcp(1);
	CHECK(bind_tcp(fd, &at) == 0 && listen(fd, 5) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
	struct rdma_cm_id *listener = id_at(&at, RDMA_PS_TCP);
	CHECK(rdma_listen(listener, 5) == 0);
	both_serve(listener, fd, &at);
	both_serve(listener, fd, &at);
	end(listener, fd, &at);
}

/* A bound identifier, and a socket bound to its port. Without SO_REUSEADDR the socket cannot have a port at which connections ended lately. */
static struct rdma_cm_id *rdma_binds_first(int reuse, int listens, int *fd)
{
	for (int attempt = 0;; attempt++) {
		struct rdma_cm_id *listener = id_at(&any_port, RDMA_PS_TCP);
		if (listens)
			CHECK(rdma_listen(listener, 5) == 0);
		*fd = tcp(reuse);
		if (bind_tcp(*fd, &listener->route.addr.src_storage) == 0)
			return listener;
		CHECK(errno == EADDRINUSE && !reuse && attempt < 5);
		CHECK(rdma_destroy_id(listener) == 0 && close(*fd) == 0);
	}
}

static void rdma_first(int reuse)
{
	int fd;
	struct rdma_cm_id *listener = rdma_binds_first(reuse, 1, &fd);
	struct sockaddr_storage at = listener->route.addr.src_storage;
	CHECK(listen(fd, 5) == 0);
	both_serve(listener, fd, &at);
	both_serve(listener, fd, &at);
	end(listener, fd, &at);
}

/* Both bind, then both listen. */
static void one_by_one(int reuse, int rdma_listens_first)
{
	int fd;
	struct rdma_cm_id *listener = rdma_binds_first(reuse, 0, &fd);
	struct sockaddr_storage at = listener->route.addr.src_storage;
	if (rdma_listens_first)
		CHECK(rdma_listen(listener, 5) == 0);
	CHECK(listen(fd, 5) == 0);
	if (!rdma_listens_first)
		CHECK(rdma_listen(listener, 5) == 0);
	both_serve(listener, fd, &at);
	end(listener, fd, &at);
}

/* A service of rdma_cm's UDP port space has the same number, before and after. */
static void with_a_service(int service_first)
{
	struct sockaddr_storage at = any_port;
	socklen_t size = sizeof at;
	int fd = tcp(1);
	CHECK(bind_tcp(fd, &at) == 0 && listen(fd, 5) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
	struct rdma_cm_id *service = NULL;
	if (service_first) {
		service = id_at(&at, RDMA_PS_UDP);
		CHECK(rdma_listen(service, 5) == 0);
	}
	struct rdma_cm_id *listener = id_at(&at, RDMA_PS_TCP);
	CHECK(rdma_listen(listener, 5) == 0);
	if (!service_first) {
		service = id_at(&at, RDMA_PS_UDP);
		CHECK(rdma_listen(service, 5) == 0);
	}
	both_serve(listener, fd, &at);
	CHECK(rdma_destroy_id(service) == 0);
	CHECK(rdma_destroy_id(listener) == 0 && close(fd) == 0);
}

/* Ports that rdma_cm does not have stay taken. */
static void others(void)
{
	struct sockaddr_storage at = any_port;
	socklen_t size = sizeof at;
	int fd = tcp(0), second = tcp(0);
	CHECK(bind_tcp(fd, &at) == 0 && listen(fd, 5) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
	CHECK(bind_tcp(second, &at) == -1 && errno == EADDRINUSE);
	CHECK(close(fd) == 0 && close(second) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;
	CHECK(getaddrinfo(argv[1], NULL, &hints, &found) == 0);
	memcpy(&any_port, found->ai_addr, found->ai_addrlen);
	length = found->ai_addrlen;
	freeaddrinfo(found);
	CHECK((channel = rdma_create_event_channel()));
	tcp_first();
	others();
	with_a_service(0);
	with_a_service(1);
	if (argc == 2) {
		for (int reuse = 0; reuse < 2; reuse++) {
			rdma_first(reuse);
			one_by_one(reuse, 0);
			one_by_one(reuse, 1);
		}
	}
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
