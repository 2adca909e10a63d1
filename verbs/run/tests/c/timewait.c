/* RDMA_CM_EVENT_TIMEWAIT_EXIT: comes after the end of a connection to both of its identifiers, unless they are destroyed or synchronous, and not as an RNIC. Argument: 1
 * where it comes. */
#include <poll.h>
#include <string.h>
#include <time.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include "test.h"

static struct rdma_event_channel *channel;

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int readable(struct rdma_event_channel *of, int milliseconds)
{
	struct pollfd entry = { .fd = of->fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

/* The next event: its type, and its identifier at `id`. */
static enum rdma_cm_event_type next(struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	CHECK(readable(channel, 20000) == 1 && rdma_get_cm_event(channel, &event) == 0 && event->status == 0);
	enum rdma_cm_event_type type = event->event;
	*id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return type;
}

static void expect(enum rdma_cm_event_type type, struct rdma_cm_id *id)
{
	struct rdma_cm_id *of;
	CHECK(next(&of) == type && of == id);
}

/* Events of one type for both identifiers, in any order. */
static void both(enum rdma_cm_event_type type, struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	struct rdma_cm_id *first, *second;
	CHECK(next(&first) == type && next(&second) == type);
	CHECK((first == one && second == other) || (first == other && second == one));
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

static void connect_pair(struct rdma_cm_id *listener, struct rdma_cm_id **client, struct rdma_cm_id **server)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(*client, NULL, rdma_get_local_addr(listener), 2000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, *client);
	CHECK(rdma_resolve_route(*client, 2000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, *client);
	make_qp(*client);
	struct rdma_conn_param param = { 0 };
	CHECK(rdma_connect(*client, &param) == 0);
	CHECK(next(server) == RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(*server);
	CHECK(rdma_accept(*server, &param) == 0);
	for (int left = 2; left; left--)
		CHECK(next(&id) == RDMA_CM_EVENT_ESTABLISHED);
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* A synchronous client and the listener's identifier for it; the call of the latter that ends the connection takes no other event for its own. */
static void synchronous(void)
{
	struct rdma_cm_id *listener, *client, *server;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 1) == 0);
	CHECK(rdma_create_id(NULL, &client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client, NULL, rdma_get_local_addr(listener), 2000) == 0 && rdma_resolve_route(client, 2000) == 0);
	make_qp(client);
	CHECK(rdma_migrate_id(client, channel) == 0);
	struct rdma_conn_param param = { 0 };
	CHECK(rdma_connect(client, &param) == 0 && rdma_get_request(listener, &server) == 0);
	make_qp(server);
	CHECK(rdma_accept(server, &param) == 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(rdma_migrate_id(client, NULL) == 0 && rdma_disconnect(client) == 0 && rdma_disconnect(server) == 0);
	/* Nothing comes to their own channels. */
	CHECK(readable(client->channel, 3000) == 0 && readable(server->channel, 0) == 0);
	destroy(client);
	destroy(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int comes = atoi(argv[1]);
	struct rdma_cm_id *listener, *client, *server, *gone, *left;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	CHECK((channel = rdma_create_event_channel()));
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 8) == 0);
	connect_pair(listener, &client, &server);
	connect_pair(listener, &gone, &left);

	double begun = seconds();
	CHECK(rdma_disconnect(client) == 0);
	both(RDMA_CM_EVENT_DISCONNECTED, client, server);
	/* One end without its queue pair, and destroyed at once: the other end alone has an event. */
	rdma_destroy_qp(gone);
	expect(RDMA_CM_EVENT_DISCONNECTED, left);
	CHECK(rdma_disconnect(gone) == 0);
	expect(RDMA_CM_EVENT_DISCONNECTED, gone);
	destroy(gone);
	if (comes) {
		both(RDMA_CM_EVENT_TIMEWAIT_EXIT, client, server);
		/* Not at once: programs that destroy their identifiers first never see it. */
		CHECK(seconds() - begun >= 1);
		expect(RDMA_CM_EVENT_TIMEWAIT_EXIT, left);
	}
	CHECK(readable(channel, 3000) == 0);
	destroy(client);
	destroy(server);
	destroy(left);
	synchronous();
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
