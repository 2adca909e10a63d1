/* rdma_cm within one process, through the C API as Debian's headers have it. The program ends at the first surprise and prints its
 * line. Argument: an address of this host. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include "test.h"

static const char *host;
static struct sockaddr_storage any_port;

static int readable(struct rdma_event_channel *channel, int millis)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	return poll(&fd, 1, millis) == 1;
}

/* The next event of a channel, which must be of this kind and come soon. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	CHECK(readable(channel, 8000));
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind) {
		fprintf(stderr, "%s instead of %s, status %d\n", rdma_event_str(event->event), rdma_event_str(kind), event->status);
		exit(1);
	}
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = next(channel, kind);
	CHECK(event->id == id && event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static struct ibv_qp_init_attr small(void)
{
	return (struct ibv_qp_init_attr) {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

/* A listener on a port of the system's choice, and that. */
static struct rdma_cm_id *listener_on(struct rdma_event_channel *channel, void *context, struct sockaddr_storage *at)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, context, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any_port) == 0);
	CHECK(id->verbs && id->port_num == 1 && id->pd && rdma_get_src_port(id) != 0);
	CHECK(rdma_listen(id, 5) == 0);
	*at = id->route.addr.src_storage;
	return id;
}

/* An identifier that has a way to a place. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, struct sockaddr_storage *to)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_route(id, 1000) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 1000) == 0);
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, id);
	CHECK(id->verbs && id->pd);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, id);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu >= IBV_MTU_256);
	return id;
}

static void channels_wait_or_do_not(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	CHECK(channel && !readable(channel, 0));
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	rdma_destroy_event_channel(channel);

	int devices;
	struct ibv_context **list = rdma_get_devices(&devices);
	CHECK(list && devices == 1 && list[0] && !list[1]);
	channel = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *id = listener_on(channel, NULL, &at);
	CHECK(id->verbs == list[0]);
	rdma_free_devices(list);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

/* Strangers that connect to a listener and go, without a word or with the wrong one, are no event. */
static void strangers_are_no_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(channel, NULL, &at);
	socklen_t length = at.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	for (int i = 0; i < 6; i++) {
		int stranger = socket(at.ss_family, SOCK_STREAM, 0);
		CHECK(stranger >= 0 && connect(stranger, (struct sockaddr *)&at, length) == 0);
		if (i % 2)
			CHECK(write(stranger, "GET / HTTP/1.1\r\nHost: here\r\n\r\n", 30) == 30);
		CHECK(close(stranger) == 0);
	}
	CHECK(!readable(channel, 300));
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
}

static void ports_and_addresses_that_cannot_be(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *first = listener_on(channel, NULL, &at), *second;
	CHECK(rdma_listen(first, 5) == -1 && errno == EINVAL);
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK((rdma_bind_addr(second, (struct sockaddr *)&at) == -1 || rdma_listen(second, 1) == -1) && errno == EADDRINUSE);
	CHECK(rdma_destroy_id(second) == 0);
	CHECK(rdma_destroy_id(first) == 0);
	/* It is free again. */
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&at) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&at) == -1 && errno == EINVAL);
	CHECK(rdma_listen(second, 1) == 0);
	CHECK(rdma_destroy_id(second) == 0);

	struct sockaddr_in stranger = { .sin_family = AF_INET };
	CHECK(inet_pton(AF_INET, "192.0.2.1", &stranger.sin_addr) == 1);
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&stranger) == -1 && errno == EADDRNOTAVAIL);
	CHECK(!second->verbs);
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_qp(second, NULL, &init) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(second) == 0);
	CHECK(rdma_create_id(channel, &second, NULL, 99) == -1 && errno == EINVAL);

	/* Options have their lengths and their time. */
	int one = 1;
	uint8_t tos = 32;
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof one) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one) == 0);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one) == 0);
	struct ibv_ece ece = { 1, 2, 3 }, options = { .vendor_id = 0x15b3, .options = 4 };
	CHECK(rdma_get_remote_ece(second, &ece) == 0 && !ece.vendor_id && !ece.options && !ece.comp_mask);
	CHECK(rdma_set_local_ece(second, &ece) == 0);
	CHECK(rdma_set_local_ece(second, &options) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(second, 7, 7, &one, sizeof one) == -1 && errno == ENOSYS);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&any_port) == 0);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(second) == 0);
	rdma_destroy_event_channel(channel);
}

/* Two ends with a connection between them. */
struct pair {
	struct rdma_cm_id *client, *server;
};

static struct pair connected(struct rdma_event_channel *ours, struct rdma_event_channel *theirs, struct sockaddr_storage *at)
{
	struct pair pair = { .client = resolved(ours, at) };
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_qp(pair.client, NULL, &init) == 0);
	CHECK(pair.client->qp && pair.client->send_cq && pair.client->recv_cq_channel && pair.client->qp->state == IBV_QPS_INIT);
	struct rdma_conn_param say = { .private_data = "hello", .private_data_len = 5, .responder_resources = 3, .initiator_depth = 2 };
	CHECK(rdma_connect(pair.client, &say) == 0);
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.private_data_len == 5 && !memcmp(event->param.conn.private_data, "hello", 5));
	/* Reads that one side wants outstanding the other has to serve. */
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	pair.server = event->id;
	CHECK(pair.server->context == event->listen_id->context && pair.server->verbs && pair.server->channel == theirs);
	CHECK(rdma_get_src_port(pair.server) == rdma_get_dst_port(pair.client));
	CHECK(rdma_ack_cm_event(event) == 0);
	init = small();
	CHECK(rdma_create_qp(pair.server, NULL, &init) == 0);
	struct rdma_conn_param answer = { .private_data = "welcome", .private_data_len = 7, .responder_resources = 2, .initiator_depth = 3 };
	CHECK(rdma_accept(pair.server, &answer) == 0);
	event = next(ours, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == pair.client && event->status == 0);
	CHECK(event->param.conn.private_data_len == 7 && !memcmp(event->param.conn.private_data, "welcome", 7));
	CHECK(rdma_ack_cm_event(event) == 0);
	expect(theirs, RDMA_CM_EVENT_ESTABLISHED, pair.server);
	CHECK(pair.client->qp->state == IBV_QPS_RTS && pair.server->qp->state == IBV_QPS_RTS);
	CHECK(rdma_get_src_port(pair.client) != 0);
	return pair;
}

static void finish(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	CHECK(rdma_destroy_id(id) == 0);
}

static void connections_begin_carry_and_end(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(theirs, "context", &at);
	struct pair pair = connected(ours, theirs, &at);
	char text[16] = "", buffer[16] = "from the server";
	struct ibv_mr *sink = rdma_reg_msgs(pair.client, text, sizeof text), *source = rdma_reg_msgs(pair.server, buffer, sizeof buffer);
	CHECK(sink && source);
	struct ibv_wc wc;
	CHECK(rdma_post_recv(pair.client, text, text, sizeof text, sink) == 0);
	/* The side that accepted may send first. */
	CHECK(rdma_post_send(pair.server, NULL, buffer, sizeof buffer, source, 0) == 0);
	CHECK(rdma_get_recv_comp(pair.client, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(text, buffer));
	CHECK(rdma_get_send_comp(pair.server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_connect(pair.client, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_establish(pair.client) == -1 && errno == EINVAL);

	/* The end is reported to both sides, and posted work requests are flushed. */
	CHECK(rdma_post_recv(pair.client, text, text, sizeof text, sink) == 0);
	CHECK(rdma_post_recv(pair.server, buffer, buffer, sizeof buffer, source) == 0);
	CHECK(rdma_disconnect(pair.client) == 0);
	expect(ours, RDMA_CM_EVENT_DISCONNECTED, pair.client);
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED, pair.server);
	/* Not before the program of that side has ended it too. */
	CHECK(ibv_poll_cq(pair.server->recv_cq, 1, &wc) == 0);
	CHECK(rdma_disconnect(pair.server) == 0);
	CHECK(rdma_get_recv_comp(pair.client, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(rdma_get_recv_comp(pair.server, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(pair.client->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(!readable(ours, 0) && !readable(theirs, 0));
	CHECK(rdma_dereg_mr(sink) == 0 && rdma_dereg_mr(source) == 0);
	finish(pair.client);
	finish(pair.server);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

static void no_is_said_in_several_ways(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(theirs, NULL, &at), *id = resolved(ours, &at);
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	/* By the program, with reasons. */
	CHECK(rdma_connect(id, NULL) == 0);
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(event->id, "because", 7) == 0);
	CHECK(rdma_reject(event->id, "because", 7) == -1 && errno == EINVAL);
	struct rdma_cm_id *new = event->id;
	CHECK(rdma_destroy_id(new) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 7);
	CHECK(!memcmp(event->param.conn.private_data, "because", 7));
	CHECK(rdma_ack_cm_event(event) == 0);
	finish(id);
	/* By a program that destroys the new identifier, and by one that destroys its listener instead of taking the event. */
	for (int fetched = 1; fetched >= 0; fetched--) {
		id = resolved(ours, &at);
		init = small();
		CHECK(rdma_create_qp(id, NULL, &init) == 0 && rdma_connect(id, NULL) == 0);
		CHECK(readable(theirs, 8000));
		if (fetched) {
			event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
			new = event->id;
			CHECK(rdma_ack_cm_event(event) == 0 && rdma_destroy_id(new) == 0);
		} else {
			CHECK(rdma_destroy_id(listener) == 0);
			CHECK(!readable(theirs, 0));
		}
		event = next(ours, RDMA_CM_EVENT_REJECTED);
		CHECK(event->status == 28 && rdma_ack_cm_event(event) == 0);
		finish(id);
	}
	/* By nobody: the listener is gone. */
	id = resolved(ours, &at);
	init = small();
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && rdma_connect(id, NULL) == 0);
	event = next(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8 && rdma_ack_cm_event(event) == 0);
	finish(id);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

static void identifiers_may_go_at_any_moment(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(theirs, NULL, &at);
	/* While it connects: no event of it comes any more. */
	struct rdma_cm_id *id = resolved(ours, &at);
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && rdma_connect(id, NULL) == 0);
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *new = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	init = small();
	CHECK(rdma_create_qp(new, NULL, &init) == 0 && rdma_accept(new, NULL) == 0);
	expect(theirs, RDMA_CM_EVENT_ESTABLISHED, new);
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED, new);
	finish(new);
	CHECK(!readable(ours, 0));
	/* With events that nobody fetched. */
	struct pair pair = connected(ours, theirs, &at);
	CHECK(rdma_disconnect(pair.server) == 0);
	CHECK(readable(ours, 8000) && readable(theirs, 8000));
	finish(pair.client);
	finish(pair.server);
	CHECK(!readable(ours, 0) && !readable(theirs, 0));
	/* With its queue pair gone before. */
	pair = connected(ours, theirs, &at);
	rdma_destroy_qp(pair.client);
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED, pair.server);
	CHECK(rdma_disconnect(pair.client) == 0);
	expect(ours, RDMA_CM_EVENT_DISCONNECTED, pair.client);
	finish(pair.client);
	finish(pair.server);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

static void *acknowledge_later(void *event)
{
	struct timespec soon = { .tv_nsec = 50000000 };
	nanosleep(&soon, NULL);
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

static void destroying_waits_for_acknowledgements_and_events_migrate(void)
{
	struct rdma_event_channel *old = rdma_create_event_channel(), *new = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(old, NULL, &at), *id, *other;
	CHECK(rdma_create_id(old, &id, NULL, RDMA_PS_TCP) == 0 && rdma_create_id(old, &other, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&at, 1000) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000) == 0);
	CHECK(!readable(new, 0));
	CHECK(rdma_migrate_id(id, new) == 0 && id->channel == new);
	expect(new, RDMA_CM_EVENT_ADDR_RESOLVED, id);
	expect(old, RDMA_CM_EVENT_ADDR_RESOLVED, other);
	CHECK(!readable(old, 0) && !readable(new, 0));
	/* Without a channel, calls wait. */
	CHECK(rdma_migrate_id(id, NULL) == 0 && id->channel != new);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_migrate_id(id, old) == 0 && !id->event && id->channel == old);
	CHECK(rdma_destroy_id(id) == 0);

	CHECK(rdma_resolve_route(other, 1000) == 0);
	struct rdma_cm_event *event = next(old, RDMA_CM_EVENT_ROUTE_RESOLVED);
	pthread_t thread;
	struct timespec before, after;
	clock_gettime(CLOCK_MONOTONIC, &before);
	CHECK(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
	CHECK(rdma_destroy_id(other) == 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec >= 50000000);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(old);
	rdma_destroy_event_channel(new);
}

/* Queue pairs that the program makes and moves itself. */
static void move_to(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && attr.qp_state == state && (mask & IBV_QP_STATE));
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0 && qp->state == state);
}

enum finish { ESTABLISH, WAIT, DISCONNECT, DESTROY };

/* A connection without a queue pair: the messages are all that there is, and the peer has its establishment when this end says so. */
static void messages_alone(struct rdma_event_channel *ours, struct rdma_event_channel *theirs, struct sockaddr_storage *at, enum finish how)
{
	struct rdma_cm_id *id = resolved(ours, at);
	struct rdma_conn_param say = { .private_data = "a", .private_data_len = 1 };
	CHECK(rdma_connect(id, &say) == 0);
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *new = event->id;
	CHECK(event->param.conn.private_data_len == 1 && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_accept(new, NULL) == 0);
	expect(ours, RDMA_CM_EVENT_CONNECT_RESPONSE, id);
	CHECK(rdma_get_src_port(id) == rdma_get_dst_port(new) && rdma_get_dst_port(id) == rdma_get_src_port(new));
	CHECK(!readable(theirs, 100));
	if (how == ESTABLISH)
		CHECK(rdma_establish(id) == 0);
	if (how == DISCONNECT) {
		CHECK(rdma_disconnect(id) == 0);
		expect(ours, RDMA_CM_EVENT_DISCONNECTED, id);
	}
	if (how == DESTROY)
		CHECK(rdma_destroy_id(id) == 0);
	expect(theirs, RDMA_CM_EVENT_ESTABLISHED, new);
	if (how == ESTABLISH || how == WAIT) {
		CHECK(rdma_disconnect(new) == 0);
		expect(ours, RDMA_CM_EVENT_DISCONNECTED, id);
	}
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED, new);
	CHECK((how == DESTROY || rdma_destroy_id(id) == 0) && rdma_destroy_id(new) == 0);
}

static void programs_make_their_own_queue_pairs(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(theirs, NULL, &at), *id = resolved(ours, &at);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = small();
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *client = ibv_create_qp(id->pd, &init), *server = ibv_create_qp(id->pd, &init);
	CHECK(cq && client && server);
	move_to(id, client, IBV_QPS_INIT);
	struct rdma_conn_param say = { .qp_num = client->qp_num, .responder_resources = 1, .initiator_depth = 1 };
	CHECK(rdma_connect(id, &say) == 0);
	struct rdma_cm_event *event = next(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *new = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	move_to(new, server, IBV_QPS_INIT);
	move_to(new, server, IBV_QPS_RTR);
	move_to(new, server, IBV_QPS_RTS);
	say.qp_num = server->qp_num;
	CHECK(rdma_accept(new, &say) == 0);
	expect(ours, RDMA_CM_EVENT_CONNECT_RESPONSE, id);
	move_to(id, client, IBV_QPS_RTR);
	move_to(id, client, IBV_QPS_RTS);
	CHECK(rdma_establish(id) == 0);
	expect(theirs, RDMA_CM_EVENT_ESTABLISHED, new);

	static uint64_t words[2];
	struct ibv_mr *mr = ibv_reg_mr(id->pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	words[0] = 0x600df00d;
	struct ibv_sge sge = { (uintptr_t)words, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)(words + 1);
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(client, &wr, &bad) == 0);
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && words[1] == words[0]);
	CHECK(rdma_disconnect(id) == 0);
	expect(ours, RDMA_CM_EVENT_DISCONNECTED, id);
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED, new);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(new) == 0);
	CHECK(ibv_destroy_qp(client) == 0 && ibv_destroy_qp(server) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);

	for (enum finish how = ESTABLISH; how <= DESTROY; how++)
		messages_alone(ours, theirs, &at, how);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* Endpoints, whose calls wait, between two threads. */
static struct rdma_addrinfo *lookup(int flags, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
	CHECK(rdma_getaddrinfo(host, port, &hints, &found) == 0);
	CHECK(found->ai_port_space == RDMA_PS_TCP && found->ai_qp_type == IBV_QPT_RC);
	return found;
}

static char port_text[8];

static void *call(void *unused)
{
	(void)unused;
	struct rdma_addrinfo *to = lookup(0, port_text);
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = small();
	for (int accepted = 0; accepted < 2; accepted++) {
		CHECK(rdma_create_ep(&id, to, NULL, &init) == 0);
		CHECK(id->qp && id->qp->qp_type == IBV_QPT_RC);
		char word[4] = "abc";
		struct ibv_mr *mr = rdma_reg_msgs(id, word, 4);
		CHECK(mr);
		struct rdma_conn_param say = { .private_data = "x", .private_data_len = 1 };
		if (!accepted) {
			CHECK(rdma_connect(id, &say) == -1 && errno == ECONNREFUSED);
			CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->param.conn.private_data_len == 2);
		} else {
			CHECK(rdma_connect(id, &say) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
			struct ibv_wc wc;
			CHECK(rdma_post_send(id, NULL, word, 4, mr, 0) == 0);
			CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
			CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
		}
		CHECK(rdma_dereg_mr(mr) == 0);
		rdma_destroy_ep(id);
		init = small();
	}
	rdma_freeaddrinfo(to);
	return NULL;
}

static void endpoints_wait(void)
{
	struct rdma_addrinfo *at = lookup(RAI_PASSIVE, "0");
	struct rdma_cm_id *listener, *id;
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_ep(&listener, at, NULL, &init) == 0);
	CHECK(rdma_get_request(listener, &id) == -1 && errno == EINVAL);
	CHECK(rdma_listen(listener, 0) == 0);
	snprintf(port_text, sizeof port_text, "%d", ntohs(rdma_get_src_port(listener)));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, call, NULL) == 0);
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->event->param.conn.private_data_len == 1 && id->qp);
	CHECK(rdma_reject(id, "no", 2) == 0);
	rdma_destroy_ep(id);
	CHECK(rdma_get_request(listener, &id) == 0 && id->qp);
	char word[4];
	struct ibv_mr *mr = rdma_reg_msgs(id, word, 4);
	struct ibv_wc wc;
	CHECK(mr && rdma_post_recv(id, NULL, word, 4, mr) == 0);
	CHECK(rdma_accept(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(word, "abc"));
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	CHECK(pthread_join(thread, NULL) == 0);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(at);
	CHECK(rdma_getaddrinfo("not an address", NULL, NULL, &at) != 0);
	CHECK(rdma_getaddrinfo(NULL, NULL, NULL, &at) == -1 && errno == EINVAL);
}

/* A shared receive queue that is the identifier's. */
static void receive_queues_are_shared(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_storage at;
	struct rdma_cm_id *listener = listener_on(theirs, NULL, &at), *id = resolved(ours, &at);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	CHECK(rdma_create_srq(id, NULL, &shared) == 0 && id->srq);
	struct ibv_qp_init_attr init = small();
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && init.srq == id->srq && id->qp->srq == id->srq);
	CHECK(rdma_create_qp(id, NULL, &init) == -1 && errno == EINVAL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	CHECK(!id->srq);
	struct ibv_srq_init_attr_ex ex = {
		.attr = { .max_wr = 8, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_BASIC,
	};
	CHECK(rdma_create_srq_ex(id, &ex) == 0 && id->srq && id->srq->pd == id->pd);
	rdma_destroy_srq(id);
	CHECK(!id->srq && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	host = argv[1];
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	CHECK(getaddrinfo(host, NULL, &hints, &found) == 0);
	memcpy(&any_port, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	channels_wait_or_do_not();
	strangers_are_no_event();
	ports_and_addresses_that_cannot_be();
	connections_begin_carry_and_end();
	no_is_said_in_several_ways();
	identifiers_may_go_at_any_moment();
	destroying_waits_for_acknowledgements_and_events_migrate();
	programs_make_their_own_queue_pairs();
	endpoints_wait();
	receive_queues_are_shared();
	puts("ok");
	return 0;
}
