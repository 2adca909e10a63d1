/* Services of datagram queue pairs and groups through the C API of librdmacm. The program ends at the first surprise and
 * prints its line. Arguments: an address of this host, and a group of the same kind. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include "test.h"

enum { DEPTH = 8, ROOM = 2048, GRH = 40 };

static struct rdma_event_channel *channel;
static struct sockaddr_storage here, group;
static char memory[16][ROOM];

static struct sockaddr_storage address(const char *text, uint16_t port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM }, *found;
	struct sockaddr_storage storage = { 0 };
	CHECK(getaddrinfo(text, NULL, &hints, &found) == 0);
	memcpy(&storage, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	/* The port is in the same place in both kinds. */
	((struct sockaddr_in *)&storage)->sin_port = htons(port);
	return storage;
}

static struct sockaddr_storage at_port(uint16_t port)
{
	struct sockaddr_storage storage = here;
	((struct sockaddr_in *)&storage)->sin_port = htons(port);
	return storage;
}

static struct rdma_cm_event *next(enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type || event->status != status) {
		fprintf(stderr, "%s %d where %s %d was expected\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type), status);
		exit(1);
	}
	return event;
}

static void expect(enum rdma_cm_event_type type, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = next(type, 0);
	CHECK(event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static struct rdma_cm_id *make_id(void *context)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, context, RDMA_PS_UDP) == 0);
	CHECK(id->qp_type == IBV_QPT_UD && id->ps == RDMA_PS_UDP && id->context == context && !id->verbs);
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(id->qp && id->qp->state == IBV_QPS_RTS);
	struct ibv_qp_attr attr;
	CHECK(ibv_query_qp(id->qp, &attr, IBV_QP_QKEY | IBV_QP_STATE, &init) == 0);
	CHECK(attr.qkey == RDMA_UDP_QKEY && attr.qp_state == IBV_QPS_RTS);
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static struct ibv_wc take(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 20;
	int found;
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(time(NULL) < end);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static struct ibv_mr *mr_of(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	return mr;
}

static void post_recv(struct rdma_cm_id *id, struct ibv_mr *mr, int slot)
{
	struct ibv_sge sge = { (uintptr_t)memory[slot], ROOM, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
}

static void send_to(struct rdma_cm_id *id, struct ibv_mr *mr, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey,
		    const char *text)
{
	strcpy(memory[15], text);
	struct ibv_sge sge = { (uintptr_t)memory[15], strlen(text) + 1, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
	take(id->qp->send_cq);
}

static struct rdma_cm_id *listener_at(uint16_t port)
{
	struct sockaddr_storage to = at_port(port);
	struct rdma_cm_id *id = make_id(&channel);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&to) == 0);
	CHECK(id->verbs && id->port_num == 1);
	CHECK(rdma_listen(id, 5) == 0);
	return id;
}

static struct rdma_cm_id *asker(uint16_t port)
{
	struct sockaddr_storage to = at_port(port);
	struct rdma_cm_id *id = make_id(NULL);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, id);
	struct rdma_conn_param none = { 0 };
	CHECK(rdma_connect(id, &none) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
	make_qp(id);
	return id;
}

static void ask(struct rdma_cm_id *id, const char *text)
{
	struct rdma_conn_param param = { .private_data = text, .private_data_len = strlen(text) };
	CHECK(rdma_connect(id, &param) == 0);
}

/* The event of a question, and its identifier. */
static struct rdma_cm_id *asked(struct rdma_cm_id *listener, const char *text)
{
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	struct rdma_cm_id *id = event->id;
	CHECK(event->listen_id == listener && id != listener);
	CHECK(id->verbs == listener->verbs && id->context == listener->context && id->channel == channel);
	CHECK(id->ps == RDMA_PS_UDP && id->qp_type == IBV_QPT_UD && !id->qp);
	CHECK(rdma_get_src_port(id) == rdma_get_src_port(listener) && rdma_get_dst_port(id) != 0);
	CHECK(rdma_get_peer_addr(id)->sa_family == here.ss_family);
	CHECK(event->param.ud.private_data_len == strlen(text));
	CHECK(memcmp(event->param.ud.private_data, text, strlen(text)) == 0);
	/* IB fills it up with zeros, a string too. */
	if (*text)
		CHECK(((const char *)event->param.ud.private_data)[strlen(text)] == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

/* A message there and an answer back, as udaddy does it. */
static void found_and_used(struct rdma_cm_id *listener, uint16_t port)
{
	struct rdma_cm_id *client = asker(port);
	ask(client, "who");
	struct rdma_cm_id *server = asked(listener, "who");
	make_qp(server);
	struct ibv_mr *mr_s = mr_of(server), *mr_c = mr_of(client);
	post_recv(server, mr_s, 1);
	post_recv(client, mr_c, 2);
	struct rdma_conn_param param = { .private_data = "me", .private_data_len = 2, .qp_num = server->qp->qp_num };
	CHECK(rdma_accept(server, &param) == 0);
	CHECK(rdma_accept(server, &param) == -1 && errno == EINVAL);

	struct rdma_cm_event *event = next(RDMA_CM_EVENT_ESTABLISHED, 0);
	struct rdma_ud_param ud = event->param.ud;
	CHECK(event->id == client && ud.private_data_len == 2 && memcmp(ud.private_data, "me", 2) == 0);
	CHECK(ud.qp_num == server->qp->qp_num && ud.qkey == RDMA_UDP_QKEY);
	CHECK(ud.ah_attr.is_global && ud.ah_attr.port_num == 1);
	struct ibv_ah *there = ibv_create_ah(client->pd, &ud.ah_attr);
	CHECK(there);
	CHECK(rdma_ack_cm_event(event) == 0);

	send_to(client, mr_c, there, ud.qp_num, ud.qkey, "hello");
	struct ibv_wc wc = take(server->qp->recv_cq);
	CHECK(wc.wr_id == 1 && wc.byte_len == GRH + 6 && strcmp(memory[1] + GRH, "hello") == 0);
	CHECK(wc.src_qp == client->qp->qp_num && (wc.wc_flags & IBV_WC_GRH));
	struct ibv_ah *back = ibv_create_ah_from_wc(server->pd, &wc, (struct ibv_grh *)memory[1], 1);
	CHECK(back);
	send_to(server, mr_s, back, wc.src_qp, RDMA_UDP_QKEY, "you");
	wc = take(client->qp->recv_cq);
	CHECK(wc.wr_id == 2 && strcmp(memory[2] + GRH, "you") == 0);

	CHECK(ibv_destroy_ah(there) == 0 && ibv_destroy_ah(back) == 0);
	CHECK(ibv_dereg_mr(mr_s) == 0 && ibv_dereg_mr(mr_c) == 0);
	destroy(server);
	destroy(client);
}

/* SIDR's status 2: the program rejects, with private data and without. */
static void rejected(struct rdma_cm_id *listener, uint16_t port)
{
	for (int silently = 0; silently < 2; silently++) {
		struct rdma_cm_id *client = asker(port);
		ask(client, "");
		struct rdma_cm_id *server = asked(listener, "");
		if (!silently)
			CHECK(rdma_reject(server, "no way", 6) == 0);
		destroy(server);
		struct rdma_cm_event *event = next(RDMA_CM_EVENT_UNREACHABLE, 2);
		CHECK(event->id == client && event->param.ud.private_data_len == (silently ? 0 : 6));
		CHECK(silently || memcmp(event->param.ud.private_data, "no way", 6) == 0);
		CHECK(rdma_ack_cm_event(event) == 0);
		destroy(client);
	}
}

/* A queue pair that the program made, named by its number. */
static void own_queue_pair(struct rdma_cm_id *listener, uint16_t port)
{
	struct rdma_cm_id *client = asker(port);
	ask(client, "x");
	struct rdma_cm_id *server = asked(listener, "x");
	struct rdma_conn_param param = { .qp_num = 4711 };
	CHECK(rdma_accept(server, &param) == 0);
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(event->param.ud.qp_num == 4711 && event->param.ud.private_data_len == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(server);
	destroy(client);
}

/* A port that was taken is free when its identifier is gone, and then nobody is there: SIDR's status 1, at once. */
static void nobody(uint16_t port)
{
	struct sockaddr_storage to = at_port(port);
	struct rdma_cm_id *second = make_id(NULL);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&to) == -1 && errno == EADDRINUSE);
	destroy(second);
}

static void nobody_there(uint16_t port)
{
	time_t began = time(NULL);
	struct rdma_cm_id *client = asker(port);
	ask(client, "anybody");
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_UNREACHABLE, 1);
	CHECK(event->id == client);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(client);
	CHECK(time(NULL) - began < 5);
	struct sockaddr_storage to = at_port(port);
	struct rdma_cm_id *again = make_id(NULL);
	CHECK(rdma_bind_addr(again, (struct sockaddr *)&to) == 0);
	destroy(again);
}

static void *answer(void *listening)
{
	struct rdma_cm_id *listener = listening, *id;
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(id);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

/* Calls that wait for their events. */
static void waiting_calls(void)
{
	struct sockaddr_storage to = at_port(0);
	struct rdma_cm_id *listener, *client;
	CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&to) == 0 && rdma_listen(listener, 0) == 0);
	to = at_port(ntohs(rdma_get_src_port(listener)));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, answer, listener) == 0);

	CHECK(rdma_create_id(NULL, &client, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 2000) == 0);
	CHECK(rdma_resolve_route(client, 2000) == 0);
	make_qp(client);
	struct rdma_conn_param none = { 0 };
	CHECK(rdma_connect(client, &none) == 0);
	void *server;
	CHECK(pthread_join(thread, &server) == 0);
	CHECK(client->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(client->event->param.ud.qp_num == ((struct rdma_cm_id *)server)->qp->qp_num);
	destroy(server);
	destroy(listener);
	destroy(client);
}

static void *answer_endpoint(void *listening)
{
	struct rdma_cm_id *listener = listening, *id;
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->qp->state == IBV_QPS_RTS && id->qp->qp_type == IBV_QPT_UD);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

/* Endpoints with the queue pairs that rdma_create_ep(3) makes, and the messages of rdma_verbs.h. */
static void endpoints(const char *host)
{
	struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_UDP,
					 .ai_qp_type = IBV_QPT_UD };
	struct rdma_addrinfo active = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_UDP, .ai_qp_type = IBV_QPT_UD };
	struct rdma_addrinfo *found;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_init_attr again = init;
	struct rdma_cm_id *listener, *client;
	char port[8];
	CHECK(rdma_getaddrinfo(host, "0", &passive, &found) == 0);
	CHECK(found->ai_port_space == RDMA_PS_UDP && found->ai_qp_type == IBV_QPT_UD);
	CHECK(rdma_create_ep(&listener, found, NULL, &init) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listener, 3) == 0);
	snprintf(port, sizeof(port), "%u", ntohs(rdma_get_src_port(listener)));
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, answer_endpoint, listener) == 0);

	CHECK(rdma_getaddrinfo(host, port, &active, &found) == 0);
	CHECK(rdma_create_ep(&client, found, NULL, &again) == 0);
	rdma_freeaddrinfo(found);
	CHECK(client->qp && client->qp->state == IBV_QPS_RTS);
	struct rdma_conn_param none = { 0 };
	CHECK(rdma_connect(client, &none) == 0);
	void *made;
	CHECK(pthread_join(thread, &made) == 0);
	struct rdma_cm_id *server = made;
	struct rdma_ud_param ud = client->event->param.ud;
	CHECK(ud.qp_num == server->qp->qp_num);

	struct ibv_mr *mr_s = rdma_reg_msgs(server, memory, sizeof(memory));
	struct ibv_mr *mr_c = rdma_reg_msgs(client, memory, sizeof(memory));
	CHECK(mr_s && mr_c);
	CHECK(rdma_post_recv(server, NULL, memory[1], ROOM, mr_s) == 0);
	struct ibv_ah *ah = ibv_create_ah(client->pd, &ud.ah_attr);
	CHECK(ah);
	strcpy(memory[2], "endpoint");
	CHECK(rdma_post_ud_send(client, NULL, memory[2], 9, mr_c, 0, ah, ud.qp_num) == 0);
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(memory[1] + GRH, "endpoint") == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(mr_s) == 0 && rdma_dereg_mr(mr_c) == 0);
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
}

static struct rdma_cm_id *bound(void)
{
	struct sockaddr_storage to = at_port(0);
	struct rdma_cm_id *id = make_id(NULL);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&to) == 0);
	make_qp(id);
	return id;
}

static struct ibv_ah *join(struct rdma_cm_id *id, struct sockaddr *to, int send_only)
{
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = send_only ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
		.addr = to,
	};
	void *context = &attr;
	if (send_only)
		CHECK(rdma_join_multicast_ex(id, &attr, context) == 0);
	else
		CHECK(rdma_join_multicast(id, to, context) == 0);
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	CHECK(event->id == id && event->param.ud.private_data == context);
	CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	CHECK(rdma_ack_cm_event(event) == 0);
	return ah;
}

/* How far a message goes that is sent with these attributes: the hop limit that it has when a plain socket gets it. */
static int hop_limit_of(struct rdma_cm_id *sender, struct ibv_mr *mr, struct ibv_ah_attr *attr)
{
	int on = 1, ttl = -1, fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in at = *(struct sockaddr_in *)&group;
	struct ip_mreqn membership = { .imr_multiaddr = at.sin_addr, .imr_address = ((struct sockaddr_in *)&here)->sin_addr };
	at.sin_port = htons(18514);
	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) == 0);
	CHECK(setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof(on)) == 0);
	struct ibv_ah *ah = ibv_create_ah(sender->pd, attr);
	CHECK(ah);
	send_to(sender, mr, ah, 0xffffff, RDMA_UDP_QKEY, "how far");
	char room[64], control[64];
	struct iovec piece = { room, sizeof(room) };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	CHECK(poll(&readable, 1, 20000) == 1 && recvmsg(fd, &message, 0) > 0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL)
			memcpy(&ttl, CMSG_DATA(c), sizeof(ttl));
	CHECK(ibv_destroy_ah(ah) == 0 && close(fd) == 0);
	return ttl;
}

static void hop_limits(struct sockaddr *to)
{
	struct rdma_cm_id *sender = bound();
	struct ibv_mr *mr = mr_of(sender);
	CHECK(rdma_join_multicast(sender, to, NULL) == 0);
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	struct ibv_ah_attr attr = event->param.ud.ah_attr;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(hop_limit_of(sender, mr, &attr) == 1);
	attr.grh.hop_limit = 7;
	CHECK(hop_limit_of(sender, mr, &attr) == 7);
	attr.grh.hop_limit = 0;
	CHECK(hop_limit_of(sender, mr, &attr) == 1);
	CHECK(ibv_dereg_mr(mr) == 0);
	destroy(sender);
}

/* Two members get what a third sends, until one leaves. */
static void groups(struct sockaddr *to)
{
	struct rdma_cm_id *members[2] = { bound(), bound() }, *sender = bound();
	struct ibv_mr *mrs[2], *mr = mr_of(sender);
	struct ibv_ah *ahs[2], *ah = join(sender, to, 1);
	for (int i = 0; i < 2; i++) {
		mrs[i] = mr_of(members[i]);
		ahs[i] = join(members[i], to, 0);
		post_recv(members[i], mrs[i], i);
		post_recv(members[i], mrs[i], 4 + i);
	}
	/* One that the sender is no member of itself. */
	post_recv(sender, mr, 8);
	send_to(sender, mr, ah, 0xffffff, RDMA_UDP_QKEY, "all");
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = take(members[i]->qp->recv_cq);
		CHECK((int)wc.wr_id == i && wc.src_qp == sender->qp->qp_num && strcmp(memory[i] + GRH, "all") == 0);
	}
	CHECK(rdma_leave_multicast(members[0], to) == 0);
	CHECK(rdma_leave_multicast(members[0], to) == -1 && errno == EADDRNOTAVAIL);
	send_to(sender, mr, ah, 0xffffff, RDMA_UDP_QKEY, "one");
	struct ibv_wc wc = take(members[1]->qp->recv_cq);
	CHECK(wc.wr_id == 5 && strcmp(memory[5] + GRH, "one") == 0);
	CHECK(ibv_poll_cq(members[0]->qp->recv_cq, 1, &wc) == 0);
	CHECK(ibv_poll_cq(sender->qp->recv_cq, 1, &wc) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_ah(ahs[i]) == 0 && ibv_dereg_mr(mrs[i]) == 0);
		destroy(members[i]);
	}
	destroy(sender);
}

/* There is no multicast on the IPv6 loopback interface, which the event reports. */
static void no_group(void)
{
	struct rdma_cm_id *id = bound();
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, id) == 0);
	struct rdma_cm_event *event = next(RDMA_CM_EVENT_MULTICAST_ERROR, -ENETUNREACH);
	CHECK(event->id == id && event->param.ud.private_data == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(id);
}

/* A sender that keeps its messages off its own host: only what another sends arrives. */
static void blocked(struct sockaddr *to)
{
	struct rdma_cm_id *member = bound(), *open = bound(), *sender = make_id(NULL);
	struct sockaddr_storage own = at_port(0);
	CHECK(rdma_bind_addr(sender, (struct sockaddr *)&own) == 0);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_PD,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, .pd = sender->pd,
	};
	CHECK(rdma_create_qp_ex(sender, &init) == 0);
	struct ibv_mr *mr = mr_of(sender);
	struct ibv_ah *ahs[3] = { join(member, to, 0), join(sender, to, 1), join(open, to, 1) };
	post_recv(member, mr, 1);
	send_to(sender, mr, ahs[1], 0xffffff, RDMA_UDP_QKEY, "not you");
	send_to(open, mr, ahs[2], 0xffffff, RDMA_UDP_QKEY, "you");
	struct ibv_wc wc = take(member->qp->recv_cq);
	CHECK(wc.src_qp == open->qp->qp_num && strcmp(memory[1] + GRH, "you") == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(ibv_destroy_ah(ahs[i]) == 0);
	destroy(member);
	destroy(sender);
	destroy(open);
}

static void bad_groups(void)
{
	struct rdma_cm_id *id = make_id(NULL), *stream;
	struct sockaddr *to = (struct sockaddr *)&group;
	CHECK(rdma_join_multicast(id, to, NULL) == -1 && errno == EINVAL);
	struct sockaddr_storage own = at_port(0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&own) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&own, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_leave_multicast(id, to) == -1 && errno == EADDRNOTAVAIL);
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = to };
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	/* Left before anybody asked what became of it: no event. */
	CHECK(rdma_join_multicast(id, to, NULL) == 0 && rdma_leave_multicast(id, to) == 0);
	destroy(id);
	CHECK(rdma_create_id(channel, &stream, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(stream, (struct sockaddr *)&own) == 0);
	CHECK(rdma_join_multicast(stream, to, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(stream) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	here = address(argv[1], 0);
	group = address(argv[2], 0);
	channel = rdma_create_event_channel();
	CHECK(channel);

	struct rdma_cm_id *listener = listener_at(0);
	uint16_t port = ntohs(rdma_get_src_port(listener));
	CHECK(port != 0);
	found_and_used(listener, port);
	rejected(listener, port);
	own_queue_pair(listener, port);
	nobody(port);
	destroy(listener);
	nobody_there(port);
	waiting_calls();
	endpoints(argv[1]);

	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&here;
	if (here.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) {
		no_group();
		puts("ok");
		return 0;
	}
	groups((struct sockaddr *)&group);
	/* The same group by its GID. */
	struct sockaddr_ib gid = { .sib_family = AF_IB };
	if (group.ss_family == AF_INET6)
		memcpy(&gid.sib_addr, &((struct sockaddr_in6 *)&group)->sin6_addr, 16);
	else
		memcpy((char *)&gid.sib_addr + 10, "\xff\xff", 2),
			memcpy((char *)&gid.sib_addr + 12, &((struct sockaddr_in *)&group)->sin_addr, 4);
	groups((struct sockaddr *)&gid);
	/* Datagrams that leave through the loopback interface come in again in any case. */
	if (strncmp(argv[1], "127.", 4) != 0)
		blocked((struct sockaddr *)&group);
	bad_groups();
	if (here.ss_family == AF_INET)
		hop_limits((struct sockaddr *)&group);

	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
