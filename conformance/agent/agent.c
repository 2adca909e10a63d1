/* The agent of dgiwarp-conform: does on the device under test what the tester asks for.
 *
 *   cc -o agent agent.c -lrdmacm -libverbs
 *   ./agent -a ADDRESS [-c CONTROL-ADDRESS] [-p CONTROL-PORT] [-1]
 *
 * Where the compiler finds infiniband/dgiwarpdv.h (cc $(pkg-config --cflags dgiwarp) ...) the agent has the operations for datagrams too; the
 * program starts without that library all the same.
 *
 * It listens on CONTROL-ADDRESS, else on ADDRESS, for one tester at a time, and prints the port and a token. The tester sends one JSON object per line,
 * {"op": NAME, ...}, and gets one back, {"ok": 1, ...} or {"ok": 0, "error": REASON}. The first has to be
 * {"op": "hello", "token": TOKEN}. conformance/README.md has the operations. -1 ends it with the first tester that has the token.
 *
 * It needs librdmacm and libibverbs, nothing else, and gives whoever knows the token what the verbs give a program here.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if defined(__has_include) && __has_include(<infiniband/dgiwarpdv.h>)
#define DGIWARPDV_WEAK
#include <infiniband/dgiwarpdv.h>
#define DATAGRAMS 1
#else
#define DATAGRAMS 0
#endif

#define MOST_MEMORY 256
#define MOST_CONNECTIONS 256
#define MOST_EVENTS 16
#define MOST_LENGTH (1 << 24)
#define LINE (1 << 16)

struct memory {
	int used;
	char *octets;
	uint64_t margin, length; /* what is registered begins behind the margin; as much is behind it */
	struct ibv_mr *mr; /* null once it is deregistered */
};

struct connection {
	int used, taken, ours; /* taken: the tester knows of it; ours: rdma_connect was called here */
	struct rdma_cm_id *id; /* null of a queue pair for datagrams */
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_ah *ah; /* where its datagrams go, with the two below */
	uint32_t to_qpn, to_qkey;
	int room; /* its receives: a memory */
	int receives, octets;
	struct { int event, status; } events[MOST_EVENTS];
	int first_event, last_event;
	struct ibv_mw *window;
};

static struct memory memories[MOST_MEMORY];
static struct connection connections[MOST_CONNECTIONS];
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static struct ibv_pd *pds[2];
static struct sockaddr_storage address;
static int control = -1;

/* What connections get when they are accepted. */
static struct { int receives, octets, ird, ord, cqes, reject, private_length; unsigned char private_data[260]; } accept_with;

/* A service of UDP's port space: who asks for it gets the queue pair, a rejection, or has to wait for ud_answer. */
#define MOST_QUESTIONS 64
static struct { struct rdma_cm_id *listener, *asked[MOST_QUESTIONS]; int questions, answered, hold, reject; uint32_t qpn; } service;

static char *answer;
static size_t answer_length, answer_room;

static void say(const char *format, ...)
{
	va_list list;
	int more;
	for (;;) {
		va_start(list, format);
		more = vsnprintf(answer + answer_length, answer_room - answer_length, format, list);
		va_end(list);
		if (more < 0)
			abort();
		if (answer_length + more < answer_room)
			break;
		answer_room = 2 * (answer_room + more + 1);
		answer = realloc(answer, answer_room);
		if (!answer)
			abort();
	}
	answer_length += more;
}

/* Refuses: a reason, with errno's text if there is one. */
static int refuse(const char *what)
{
	answer_length = 0;
	if (errno)
		say("{\"ok\": 0, \"error\": \"%s: %s\"", what, strerror(errno));
	else
		say("{\"ok\": 0, \"error\": \"%s\"", what);
	return -1;
}

/* Where a field's value begins; the tester's objects are flat. */
static const char *field(const char *line, const char *name)
{
	char key[32];
	const char *at;
	snprintf(key, sizeof key, "\"%s\":", name);
	at = strstr(line, key);
	if (!at)
		return NULL;
	at += strlen(key);
	while (*at == ' ')
		at++;
	return at;
}

static uint64_t number(const char *line, const char *name, uint64_t otherwise)
{
	const char *at = field(line, name);
	return at ? strtoull(at, NULL, 10) : otherwise;
}

/* A string without escapes; its length, or -1 if there is none that fits. */
static int text(const char *line, const char *name, char *into, int room)
{
	const char *at = field(line, name), *end;
	if (!at || *at != '"' || !(end = strchr(at + 1, '"')) || end - at > room)
		return -1;
	memcpy(into, at + 1, end - at - 1);
	into[end - at - 1] = 0;
	return end - at - 1;
}

static int64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* ---- memory ---- */

static struct ibv_mr *restricted(const char *line, int pd, void *octets, uint64_t length, int access);

/* line says of whom and how the memory may be used; null if nothing special. */
static int register_memory(const char *line, int pd, uint64_t length, int access, int fill, uint64_t margin)
{
	uint64_t all = length + 2 * margin;
	int i;
	errno = 0;
	for (i = 0; i < MOST_MEMORY && memories[i].used; i++)
		;
	if (i == MOST_MEMORY || pd > 1 || length > MOST_LENGTH || margin > 4096)
		return refuse("too much memory");
	if (posix_memalign((void **)&memories[i].octets, 4096, all))
		return refuse("no memory");
	memset(memories[i].octets, fill, all);
	memories[i].margin = margin;
	memories[i].length = length;
	if (line && (field(line, "only_address") || field(line, "cookie") || field(line, "well_known")))
		memories[i].mr = restricted(line, pd, memories[i].octets + margin, length, access);
	else
		memories[i].mr = ibv_reg_mr(pds[pd], memories[i].octets + margin, length, access);
	if (!memories[i].mr) {
		refuse("ibv_reg_mr");
		free(memories[i].octets);
		return -1;
	}
	memories[i].used = 1;
	return i;
}

static void say_memory(int i)
{
	say(", \"mr\": %d, \"rkey\": %u, \"addr\": %llu", i, memories[i].mr->rkey,
	    (unsigned long long)(uintptr_t)(memories[i].octets + memories[i].margin));
}

static void forget(int i)
{
	if (!memories[i].used)
		return;
	if (memories[i].mr)
		ibv_dereg_mr(memories[i].mr);
	free(memories[i].octets);
	memset(&memories[i], 0, sizeof memories[i]);
}

static struct memory *the_memory(const char *line)
{
	uint64_t i = number(line, "mr", MOST_MEMORY);
	errno = 0;
	if (i < MOST_MEMORY && memories[i].used)
		return &memories[i];
	refuse("no such mr");
	return NULL;
}

/* ---- connections ---- */

static int post_receive(struct connection *c, int slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)memories[c->room].octets + (uint64_t)slot * c->octets,
		.length = c->octets,
		.lkey = memories[c->room].mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = c->octets ? 1 : 0 }, *bad;
	return ibv_post_recv(c->qp, &wr, &bad);
}

/* A connection's place, with a completion queue and the memory of its receives. */
static int new_place(struct ibv_context *context, int receives, int octets, int cqes)
{
	struct connection *c;
	int i;
	errno = 0;
	for (i = 0; i < MOST_CONNECTIONS && connections[i].used; i++)
		;
	if (i == MOST_CONNECTIONS)
		return refuse("too many connections");
	c = &connections[i];
	memset(c, 0, sizeof *c);
	c->receives = receives;
	c->octets = octets;
	c->room = register_memory(NULL, 0, (uint64_t)receives * octets + 1, IBV_ACCESS_LOCAL_WRITE, 0xa5, 0);
	if (c->room < 0)
		return -1;
	c->cq = ibv_create_cq(context, cqes, NULL, NULL, 0);
	if (!c->cq) {
		refuse("ibv_create_cq");
		forget(c->room);
		return -1;
	}
	return i;
}

/* The same with a queue pair and receives. */
static int new_connection(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr;
	struct connection *c;
	int i = new_place(id->verbs, accept_with.receives, accept_with.octets, accept_with.cqes), slot;
	if (i < 0)
		return -1;
	c = &connections[i];
	c->id = id;
	memset(&attr, 0, sizeof attr);
	attr.send_cq = attr.recv_cq = c->cq;
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = 64;
	attr.cap.max_recv_wr = 64;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (rdma_create_qp(id, pds[0], &attr)) {
		refuse("rdma_create_qp");
		ibv_destroy_cq(c->cq);
		forget(c->room);
		return -1;
	}
	c->qp = id->qp;
	c->used = 1;
	id->context = c;
	for (slot = 0; slot < c->receives; slot++)
		post_receive(c, slot);
	return i;
}

static void end_connection(struct connection *c)
{
	if (!c->used)
		return;
	if (c->id)
		rdma_disconnect(c->id);
	if (c->window)
		ibv_dealloc_mw(c->window);
	if (c->id)
		rdma_destroy_qp(c->id);
	else
		ibv_destroy_qp(c->qp);
	if (c->ah)
		ibv_destroy_ah(c->ah);
	ibv_destroy_cq(c->cq);
	if (c->id)
		rdma_destroy_id(c->id);
	forget(c->room);
	memset(c, 0, sizeof *c);
}

static void say_connection(int i)
{
	struct connection *c = &connections[i];
	say("{\"ok\": 1, \"conn\": %d, \"room\": %d", i, c->receives * c->octets);
	say_memory(c->room);
}

static struct connection *the_connection(const char *line)
{
	uint64_t i = number(line, "conn", MOST_CONNECTIONS);
	errno = 0;
	if (i < MOST_CONNECTIONS && connections[i].used)
		return &connections[i];
	refuse("no such conn");
	return NULL;
}

static void request(struct rdma_cm_id *id)
{
	struct rdma_conn_param param;
	if (accept_with.reject) {
		rdma_reject(id, accept_with.private_data, accept_with.private_length);
		rdma_destroy_id(id);
		return;
	}
	if (new_connection(id) < 0) {
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		return;
	}
	memset(&param, 0, sizeof param);
	param.responder_resources = accept_with.ird;
	param.initiator_depth = accept_with.ord;
	param.private_data = accept_with.private_data;
	param.private_data_len = accept_with.private_length;
	if (rdma_accept(id, &param))
		end_connection(id->context);
}

static void answer_question(struct rdma_cm_id *id)
{
	struct rdma_conn_param param;
	memset(&param, 0, sizeof param);
	param.private_data = "said";
	param.private_data_len = 4;
	param.qp_num = service.qpn;
	if (service.reject)
		rdma_reject(id, "no", 2);
	else
		rdma_accept(id, &param);
}

static void question(struct rdma_cm_id *id)
{
	if (service.questions == MOST_QUESTIONS) {
		rdma_destroy_id(id);
		return;
	}
	service.asked[service.questions++] = id;
	if (service.hold)
		return;
	answer_question(id);
	service.answered = service.questions;
}

static void end_service(void)
{
	while (service.questions)
		rdma_destroy_id(service.asked[--service.questions]);
	if (service.listener)
		rdma_destroy_id(service.listener);
	memset(&service, 0, sizeof service);
}

/* Takes the events that are there. */
static void take_events(int wait_ms)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	while (poll(&fd, 1, wait_ms) > 0 && !rdma_get_cm_event(channel, &event)) {
		struct rdma_cm_id *id = event->id;
		struct connection *c = id->context;
		int kind = event->event, status = event->status;
		rdma_ack_cm_event(event);
		wait_ms = 0;
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			id->context = NULL;
			if (id->ps == RDMA_PS_UDP)
				question(id);
			else
				request(id);
		} else if (c && id != listener && c->last_event < MOST_EVENTS) {
			c->events[c->last_event].event = kind;
			c->events[c->last_event++].status = status;
		}
	}
}

static int next_event(struct connection *c, int64_t wait_ms, int *status)
{
	int64_t until = now() + wait_ms;
	while (c->first_event == c->last_event) {
		if (now() >= until)
			return -1;
		take_events(10);
	}
	*status = c->events[c->first_event].status;
	return c->events[c->first_event++].event;
}

/* ---- operations ---- */

static int new_listener(int port)
{
	struct sockaddr_storage any = address;
	if (any.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&any)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)&any)->sin_port = htons(port);
	return rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	       rdma_bind_addr(listener, (struct sockaddr *)&any);
}

/* Listens, each time at another port, the tester's or any: a device may have lost its listener. */
static int op_listen(const char *line)
{
	static int listens;
	int port = number(line, "port", 0);
	char host[64] = "";
	errno = 0;
	/* The old one stays: there are devices that do not survive the destruction of a listener that they have lost. */
	if ((listens || port) && new_listener(port))
		return refuse("rdma_bind_addr");
	listens = 1;
	if (rdma_listen(listener, 64))
		return refuse("rdma_listen");
	if (getnameinfo((struct sockaddr *)&address, sizeof address, host, sizeof host, NULL, 0, NI_NUMERICHOST))
		return refuse("getnameinfo");
	say("{\"ok\": 1, \"port\": %d, \"address\": \"%s\"", ntohs(rdma_get_src_port(listener)), host);
	return 0;
}

static int op_reg_mr(const char *line)
{
	int i = register_memory(line, number(line, "pd", 0), number(line, "length", 0), number(line, "access", 0),
				number(line, "fill", 0), number(line, "margin", 0));
	if (i < 0)
		return -1;
	say("{\"ok\": 1");
	say_memory(i);
	return 0;
}

static int op_dereg_mr(const char *line)
{
	struct memory *m = the_memory(line);
	if (!m)
		return -1;
	if (!m->mr || ibv_dereg_mr(m->mr))
		return refuse("ibv_dereg_mr");
	m->mr = NULL;
	say("{\"ok\": 1");
	return 0;
}

static int op_peek(const char *line)
{
	struct memory *m = the_memory(line);
	uint64_t offset = number(line, "offset", 0), length = number(line, "length", 0), i;
	if (!m)
		return -1;
	/* The margins may be looked at too. */
	if (offset > m->length + 2 * m->margin || length > m->length + 2 * m->margin - offset)
		return refuse("outside of the mr");
	say("{\"ok\": 1, \"hex\": \"");
	for (i = 0; i < length; i++)
		say("%02x", (unsigned char)m->octets[offset + i]);
	say("\"");
	return 0;
}

/* Private data in hexadecimal digits; the number of its octets. */
static int private_data(const char *line, unsigned char *to)
{
	char digits[520];
	int i, length = text(line, "private", digits, sizeof digits - 1);
	errno = 0;
	length = length > 0 ? length / 2 : 0;
	for (i = 0; i < length; i++) {
		unsigned value = 0;
		sscanf(digits + 2 * i, "%2x", &value);
		to[i] = value;
	}
	return length;
}

static int op_accept_with(const char *line)
{
	accept_with.receives = number(line, "receives", accept_with.receives);
	accept_with.octets = number(line, "octets", accept_with.octets);
	accept_with.ird = number(line, "ird", accept_with.ird);
	accept_with.ord = number(line, "ord", accept_with.ord);
	accept_with.cqes = number(line, "cqes", accept_with.cqes);
	accept_with.reject = number(line, "reject", 0);
	accept_with.private_length = private_data(line, accept_with.private_data);
	if (accept_with.cqes > 256 || accept_with.receives > 64 || accept_with.octets > 1 << 20)
		return refuse("too many receives");
	say("{\"ok\": 1");
	return 0;
}

static int op_accepted(const char *line)
{
	int64_t until = now() + number(line, "timeout_ms", 0);
	int i;
	for (;;) {
		for (i = 0; i < MOST_CONNECTIONS; i++)
			if (connections[i].used && !connections[i].taken && !connections[i].ours) {
				connections[i].taken = 1;
				say_connection(i);
				return 0;
			}
		errno = 0;
		if (now() >= until)
			return refuse("no connection was accepted");
		take_events(10);
	}
}

/* Passes over connections that other cases left. */
static int op_skip_accepted(void)
{
	int i;
	take_events(0);
	for (i = 0; i < MOST_CONNECTIONS; i++)
		connections[i].taken = 1;
	say("{\"ok\": 1");
	return 0;
}

static int op_connect(const char *line)
{
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *to;
	struct connection scratch;
	char host[64], port[16];
	unsigned char said[260];
	struct sockaddr_storage from = address;
	int i, status;
	errno = 0;
	if (text(line, "address", host, sizeof host) < 0)
		return refuse("no address");
	snprintf(port, sizeof port, "%u", (unsigned)number(line, "port", 0));
	if (getaddrinfo(host, port, &hints, &to))
		return refuse("not an address");
	memset(&scratch, 0, sizeof scratch);
	if (rdma_create_id(channel, &id, &scratch, RDMA_PS_TCP)) {
		freeaddrinfo(to);
		return refuse("rdma_create_id");
	}
	i = rdma_resolve_addr(id, (struct sockaddr *)&from, to->ai_addr, 2000);
	freeaddrinfo(to);
	if (i || next_event(&scratch, 5000, &status) != RDMA_CM_EVENT_ADDR_RESOLVED) {
		refuse("rdma_resolve_addr");
		rdma_destroy_id(id);
		return -1;
	}
	if (rdma_resolve_route(id, 2000) || next_event(&scratch, 5000, &status) != RDMA_CM_EVENT_ROUTE_RESOLVED) {
		refuse("rdma_resolve_route");
		rdma_destroy_id(id);
		return -1;
	}
	i = new_connection(id);
	if (i < 0) {
		rdma_destroy_id(id);
		return -1;
	}
	connections[i].ours = connections[i].taken = 1;
	memset(&param, 0, sizeof param);
	param.responder_resources = number(line, "ird", 4);
	param.initiator_depth = number(line, "ord", 4);
	param.private_data = said;
	param.private_data_len = private_data(line, said);
	if (rdma_connect(id, &param)) {
		refuse("rdma_connect");
		end_connection(&connections[i]);
		return -1;
	}
	say_connection(i);
	return 0;
}

static int op_event(const char *line)
{
	struct connection *c = the_connection(line);
	int event, status = 0;
	if (!c)
		return -1;
	event = next_event(c, number(line, "timeout_ms", 0), &status);
	if (event < 0)
		return refuse("no event");
	say("{\"ok\": 1, \"event\": %d, \"status\": %d", event, status);
	return 0;
}

static int op_post_recv(const char *line)
{
	struct connection *c = the_connection(line);
	uint64_t slot = number(line, "slot", 0);
	if (!c)
		return -1;
	if (slot >= (uint64_t)c->receives)
		return refuse("no such slot");
	if ((errno = post_receive(c, slot)))
		return refuse("ibv_post_recv");
	say("{\"ok\": 1");
	return 0;
}

static int post_datagram(const char *line, struct connection *c, struct ibv_sge *sge, int count);

static int op_post_send(const char *line)
{
	struct connection *c = the_connection(line);
	uint64_t offset = number(line, "offset", 0), length = number(line, "length", 0);
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct memory *m = NULL;
	if (!c || (length && !(m = the_memory(line))))
		return -1;
	if (m && (!m->mr || offset > m->length || length > m->length - offset))
		return refuse("outside of the mr");
	memset(&wr, 0, sizeof wr);
	if (m) {
		sge = (struct ibv_sge){ (uintptr_t)m->octets + m->margin + offset, length, m->mr->lkey };
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	if (c->ah)
		return post_datagram(line, c, wr.sg_list, wr.num_sge);
	wr.wr_id = number(line, "wr_id", 0);
	wr.opcode = number(line, "opcode", IBV_WR_SEND);
	wr.send_flags = number(line, "flags", IBV_SEND_SIGNALED);
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number(line, "rkey", 0);
	else
		wr.imm_data = number(line, "imm", 0);
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = number(line, "remote", 0);
		wr.wr.atomic.rkey = number(line, "rkey", 0);
		wr.wr.atomic.compare_add = number(line, "compare", 0);
		wr.wr.atomic.swap = number(line, "swap", 0);
	} else {
		wr.wr.rdma.remote_addr = number(line, "remote", 0);
		wr.wr.rdma.rkey = number(line, "rkey", 0);
	}
	if ((errno = ibv_post_send(c->qp, &wr, &bad)))
		return refuse("ibv_post_send");
	say("{\"ok\": 1");
	return 0;
}

static int op_poll(const char *line)
{
	struct connection *c = the_connection(line);
	int64_t until = now() + number(line, "timeout_ms", 0);
	struct ibv_wc wc;
	int count;
	if (!c)
		return -1;
	while (!(count = ibv_poll_cq(c->cq, 1, &wc))) {
		if (now() >= until)
			return refuse("no completion");
		take_events(1);
	}
	if (count < 0)
		return refuse("ibv_poll_cq");
	/* Of a failed one, no more than these two fields are there. */
	if (wc.status) {
		wc.opcode = 0;
		wc.byte_len = wc.wc_flags = wc.imm_data = wc.src_qp = 0;
	}
	say("{\"ok\": 1, \"wr_id\": %llu, \"status\": %d, \"opcode\": %d, \"length\": %u, \"flags\": %u, \"imm\": %u, \"source\": %u",
	    (unsigned long long)wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.wc_flags,
	    wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) ? wc.imm_data : 0, wc.src_qp);
	return 0;
}

/* A window of type 2 over an mr, bound to a connection. */
static int op_window(const char *line)
{
	struct connection *c = the_connection(line);
	struct memory *m = c ? the_memory(line) : NULL;
	struct ibv_send_wr wr, *bad;
	struct ibv_wc wc;
	int64_t until = now() + 2000;
	int count;
	if (!m)
		return -1;
	if (c->window || !m->mr)
		return refuse("no second window");
	c->window = ibv_alloc_mw(pds[0], IBV_MW_TYPE_2);
	if (!c->window)
		return refuse("ibv_alloc_mw");
	memset(&wr, 0, sizeof wr);
	wr.opcode = IBV_WR_BIND_MW;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.bind_mw.mw = c->window;
	wr.bind_mw.rkey = ibv_inc_rkey(c->window->rkey);
	wr.bind_mw.bind_info.mr = m->mr;
	wr.bind_mw.bind_info.addr = (uintptr_t)m->octets + m->margin;
	wr.bind_mw.bind_info.length = m->length;
	wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if ((errno = ibv_post_send(c->qp, &wr, &bad)))
		return refuse("ibv_post_send of a bind");
	while (!(count = ibv_poll_cq(c->cq, 1, &wc)) && now() < until)
		take_events(1);
	errno = 0;
	if (count != 1 || wc.status)
		return refuse("the bind failed");
	say("{\"ok\": 1, \"rkey\": %u", wr.bind_mw.rkey);
	return 0;
}

static int op_disconnect(const char *line)
{
	struct connection *c = the_connection(line);
	if (!c)
		return -1;
	if (!c->id)
		return refuse("not connected");
	if (rdma_disconnect(c->id))
		return refuse("rdma_disconnect");
	say("{\"ok\": 1");
	return 0;
}

/* ---- datagrams ---- */

#if DATAGRAMS
/* An address as a GID: IPv4 as ::ffff:a.b.c.d. */
static int gid_of(const char *host, union ibv_gid *gid)
{
	memset(gid, 0, sizeof *gid);
	if (inet_pton(AF_INET6, host, gid->raw) == 1)
		return 0;
	gid->raw[10] = gid->raw[11] = 0xff;
	return inet_pton(AF_INET, host, gid->raw + 12) == 1 ? 0 : -1;
}

static int is_loopback(const union ibv_gid *gid)
{
	static const uint8_t net[13] = { [10] = 0xff, [11] = 0xff, [12] = 127 };
	return !memcmp(gid->raw, net, sizeof net);
}

/* Where the device has its own address in its table; -1 if nowhere. All of 127.0.0.0/8 is this host's, and one of them is there. */
static int gid_index(void)
{
	union ibv_gid own, gid;
	char host[64];
	int i, found = -1;
	if (getnameinfo((struct sockaddr *)&address, sizeof address, host, sizeof host, NULL, 0, NI_NUMERICHOST) || gid_of(host, &own))
		return -1;
	for (i = 0; !ibv_query_gid(listener->verbs, 1, i, &gid); i++) {
		if (!memcmp(&gid, &own, sizeof gid))
			return i;
		if (found < 0 && is_loopback(&own) && is_loopback(&gid))
			found = i;
	}
	return found;
}

static int address_attr(const char *line, struct ibv_ah_attr *attr)
{
	char host[64];
	int index;
	memset(attr, 0, sizeof *attr);
	attr->is_global = attr->port_num = attr->grh.hop_limit = 1;
	if (text(line, "address", host, sizeof host) < 0 || gid_of(host, &attr->grh.dgid))
		return refuse("no address");
	index = gid_index();
	if (index < 0) {
		errno = EADDRNOTAVAIL;
		return refuse("no GID for the address of -a");
	}
	attr->grh.sgid_index = index;
	return 0;
}

static struct ibv_mr *restricted(const char *line, int pd, void *octets, uint64_t length, int access)
{
	struct dgiwarpdv_mr_init_attr attr = { .size = sizeof attr, .addr = octets, .length = length, .access = access };
	char host[64];
	errno = EOPNOTSUPP;
	if (!dgiwarpdv_reg_mr)
		return NULL;
	if (text(line, "only_address", host, sizeof host) >= 0 && !gid_of(host, &attr.peer_gid)) {
		attr.flags |= DGIWARPDV_MR_ONLY_FROM;
		attr.peer_qpn = number(line, "only_qpn", 0);
	}
	if (number(line, "cookie", 0))
		attr.flags |= DGIWARPDV_MR_COOKIE;
	if ((attr.well_known = number(line, "well_known", 0)))
		attr.flags |= DGIWARPDV_MR_WELL_KNOWN;
	return dgiwarpdv_reg_mr(pds[pd], &attr);
}

static int ready_for_datagrams(struct ibv_qp *qp, uint32_t qkey)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey };
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)))
		return -1;
	attr.qp_state = IBV_QPS_RTR;
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE)))
		return -1;
	attr.qp_state = IBV_QPS_RTS;
	return (errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN)) ? -1 : 0;
}

/* A place for a queue pair of datagrams, and what its attributes have in common. */
static int new_datagram_place(const char *line, struct ibv_qp_init_attr_ex *attr)
{
	int i;
	errno = 0;
	if (!dgiwarpdv_is_supported || !dgiwarpdv_is_supported(listener->verbs->device))
		return refuse("the device has no datagrams");
	if (number(line, "receives", 4) > 64 || number(line, "octets", 4096) > 1 << 20)
		return refuse("too many receives");
	i = new_place(listener->verbs, number(line, "receives", 4), number(line, "octets", 4096), 256);
	if (i < 0)
		return -1;
	memset(attr, 0, sizeof *attr);
	attr->send_cq = attr->recv_cq = connections[i].cq;
	attr->pd = pds[0];
	attr->cap.max_send_wr = attr->cap.max_recv_wr = 64;
	attr->cap.max_send_sge = attr->cap.max_recv_sge = 1;
	attr->comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr->send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	return i;
}

/* Posts the receives of a queue pair of datagrams and says where it is; or, where it is none, gives its place back. */
static int take_datagrams(int i, int bad, const char *call)
{
	struct connection *c = &connections[i];
	int slot;
	if (bad) {
		refuse(call);
		if (c->qp)
			ibv_destroy_qp(c->qp);
		ibv_destroy_cq(c->cq);
		forget(c->room);
		return -1;
	}
	c->used = c->taken = c->ours = 1;
	for (slot = 0; slot < c->receives; slot++)
		post_receive(c, slot);
	say_connection(i);
	say(", \"qpn\": %u", c->qp->qp_num);
	return 0;
}

static int op_ud_open(const char *line)
{
	struct dgiwarpdv_qp_init_attr dv = { .size = sizeof dv };
	struct ibv_qp_init_attr_ex attr;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct connection *c;
	int i, bad, uc = number(line, "uc", 0);
	i = new_datagram_place(line, &attr);
	if (i < 0)
		return -1;
	c = &connections[i];
	if (number(line, "records", 1))
		dv.flags |= DGIWARPDV_QP_RECORDS;
	dv.record_slots = number(line, "slots", 0);
	dv.record_timeout_ms = number(line, "record_ms", 0);
	dv.reorder_window = number(line, "window", 0);
	dv.read_timeout_ms = uc ? 0 : number(line, "read_ms", 0);
	attr.qp_type = uc ? IBV_QPT_UC : IBV_QPT_UD;
	attr.send_ops_flags |= IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | (uc ? 0 : IBV_QP_EX_WITH_RDMA_READ);
	c->qp = dgiwarpdv_create_qp(listener->verbs, &attr, &dv);
	c->to_qkey = uc ? 0 : number(line, "qkey", 0);
	bad = !c->qp;
	if (c->qp && uc)
		bad = (errno = ibv_modify_qp(c->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	else if (c->qp)
		bad = ready_for_datagrams(c->qp, c->to_qkey);
	return take_datagrams(i, bad, "dgiwarpdv_create_qp");
}

/* A queue pair on reliable datagrams. */
static int op_rd_open(const char *line)
{
	struct dgiwarpdv_qp_init_attr dv = { .size = sizeof dv, .driver_qp_type = DGIWARPDV_QP_DRIVER_TYPE_RD };
	struct ibv_qp_init_attr_ex attr;
	struct connection *c;
	int bad, i = new_datagram_place(line, &attr);
	if (i < 0)
		return -1;
	c = &connections[i];
	attr.qp_type = IBV_QPT_DRIVER;
	c->qp = dgiwarpdv_create_qp(listener->verbs, &attr, &dv);
	c->to_qkey = number(line, "qkey", 0);
	bad = !c->qp || ready_for_datagrams(c->qp, c->to_qkey);
	return take_datagrams(i, bad, "the device has no reliable datagrams");
}

/* Where a queue pair's datagrams go from now on; of UC, its one peer. */
static int op_ud_to(const char *line)
{
	struct connection *c = the_connection(line);
	struct ibv_qp_attr attr;
	struct ibv_ah *ah;
	memset(&attr, 0, sizeof attr);
	if (!c || address_attr(line, &attr.ah_attr))
		return -1;
	ah = ibv_create_ah(pds[0], &attr.ah_attr);
	if (!ah)
		return refuse("ibv_create_ah");
	if (c->ah)
		ibv_destroy_ah(c->ah);
	c->ah = ah;
	c->to_qpn = number(line, "qpn", 0);
	if (c->qp->qp_type == IBV_QPT_UC) {
		attr.qp_state = IBV_QPS_RTR;
		attr.path_mtu = IBV_MTU_1024;
		attr.dest_qp_num = c->to_qpn;
		if ((errno = ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)))
			return refuse("to RTR");
		attr.qp_state = IBV_QPS_RTS;
		if ((errno = ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN)))
			return refuse("to RTS");
	}
	say("{\"ok\": 1");
	return 0;
}

static int post_datagram(const char *line, struct connection *c, struct ibv_sge *sge, int count)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(c->qp);
	uint64_t remote = number(line, "remote", 0);
	uint32_t rkey = number(line, "rkey", 0), imm = number(line, "imm", 0);
	int opcode = number(line, "opcode", IBV_WR_SEND);
	if (!qp)
		return refuse("no work requests for datagrams");
	ibv_wr_start(qp);
	qp->wr_id = number(line, "wr_id", 0);
	qp->wr_flags = number(line, "flags", IBV_SEND_SIGNALED);
	if (opcode == IBV_WR_SEND)
		ibv_wr_send(qp);
	else if (opcode == IBV_WR_SEND_WITH_IMM)
		ibv_wr_send_imm(qp, imm);
	else if (opcode == IBV_WR_RDMA_WRITE)
		ibv_wr_rdma_write(qp, rkey, remote);
	else if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		ibv_wr_rdma_write_imm(qp, rkey, remote, imm);
	else if (opcode == IBV_WR_RDMA_READ) {
		ibv_wr_rdma_read(qp, rkey, remote);
		if (field(line, "limit_ms"))
			dgiwarpdv_wr_set_read_timeout(qp, number(line, "limit_ms", 0));
	}
	ibv_wr_set_sge_list(qp, count, sge);
	if (c->qp->qp_type != IBV_QPT_UC)
		ibv_wr_set_ud_addr(qp, c->ah, c->to_qpn, number(line, "to_qkey", c->to_qkey));
	if ((errno = ibv_wr_complete(qp)))
		return refuse("ibv_wr_complete");
	say("{\"ok\": 1");
	return 0;
}

static int op_group(const char *line, int join)
{
	struct connection *c = the_connection(line);
	struct ibv_ah_attr attr;
	if (!c || address_attr(line, &attr))
		return -1;
	errno = join ? ibv_attach_mcast(c->qp, &attr.grh.dgid, 0) : ibv_detach_mcast(c->qp, &attr.grh.dgid, 0);
	if (errno)
		return refuse(join ? "ibv_attach_mcast" : "ibv_detach_mcast");
	say("{\"ok\": 1");
	return 0;
}

static void say_ranges(const struct dgiwarpdv_range *ranges, int count)
{
	int i;
	say(", \"ranges\": \"");
	for (i = 0; i < count; i++)
		say("%s%u-%u", i ? " " : "", ranges[i].start, ranges[i].end);
	say("\"");
}

/* What is known of a record; it is given back unless "keep" is 1. */
static int op_record(const char *line)
{
	struct connection *c = the_connection(line);
	struct dgiwarpdv_record_info info = { .size = sizeof info };
	struct dgiwarpdv_range ranges[DGIWARPDV_MAX_RANGES];
	uint64_t record = number(line, "record", 0);
	int count;
	if (!c)
		return -1;
	if (dgiwarpdv_record_info(c->qp, record, &info) || (count = dgiwarpdv_record_ranges(c->qp, record, ranges, DGIWARPDV_MAX_RANGES)) < 0)
		return refuse("dgiwarpdv_record_info");
	if (!number(line, "keep", 0) && dgiwarpdv_record_release(c->qp, record))
		return refuse("dgiwarpdv_record_release");
	say("{\"ok\": 1, \"addr\": %llu, \"rkey\": %u, \"length\": %u, \"valid\": %u, \"flags\": %u, \"imm\": %u, \"source\": %u",
	    (unsigned long long)info.remote_addr, info.rkey, info.length, info.valid, info.flags, info.imm_data, info.qpn);
	say_ranges(ranges, count);
	return 0;
}

static int op_records_now(const char *line)
{
	struct connection *c = the_connection(line);
	if (!c)
		return -1;
	if (dgiwarpdv_record_complete_now(c->qp))
		return refuse("dgiwarpdv_record_complete_now");
	say("{\"ok\": 1");
	return 0;
}

static int op_read_map(const char *line)
{
	struct connection *c = the_connection(line);
	struct dgiwarpdv_range ranges[DGIWARPDV_MAX_RANGES];
	uint32_t length = 0;
	int count;
	if (!c)
		return -1;
	count = dgiwarpdv_take_read_map(c->qp, number(line, "wr_id", 0), &length, ranges, DGIWARPDV_MAX_RANGES);
	if (count < 0)
		return refuse("dgiwarpdv_take_read_map");
	say("{\"ok\": 1, \"length\": %u", length);
	say_ranges(ranges, count);
	return 0;
}

static int op_error(const char *line)
{
	struct connection *c = the_connection(line);
	struct dgiwarpdv_error error = { .size = sizeof error };
	if (!c)
		return -1;
	if (dgiwarpdv_poll_error(c->qp, &error) != 1)
		return refuse("no error");
	say("{\"ok\": 1, \"reason\": %u, \"message\": %u, \"layer\": %u, \"type\": %u, \"code\": %u", error.reason, error.message,
	    error.layer, error.error_type, error.code);
	return 0;
}

/* What the queue pair counts, under its names. */
static int op_counters(const char *line)
{
	struct connection *c = the_connection(line);
	uint64_t values[DGIWARPDV_COUNTERS];
	int i, known;
	if (!c)
		return -1;
	known = dgiwarpdv_query_counters(c->qp, values, DGIWARPDV_COUNTERS);
	if (known < 0)
		return refuse("dgiwarpdv_query_counters");
	say("{\"ok\": 1");
	for (i = 0; i < known && i < DGIWARPDV_COUNTERS; i++)
		say(", \"%s\": %llu", dgiwarpdv_counter_name(i), (unsigned long long)values[i]);
	return 0;
}

static int op_ud_service(const char *line)
{
	struct connection *c = the_connection(line);
	struct sockaddr_storage any = address;
	if (!c)
		return -1;
	end_service();
	service.qpn = c->qp->qp_num;
	service.hold = number(line, "hold", 0);
	service.reject = number(line, "reject", 0);
	if (rdma_create_id(channel, &service.listener, NULL, RDMA_PS_UDP))
		return refuse("rdma_create_id");
	if (rdma_bind_addr(service.listener, (struct sockaddr *)&any) || rdma_listen(service.listener, 16)) {
		refuse("rdma_listen");
		end_service();
		return -1;
	}
	say("{\"ok\": 1, \"port\": %d", ntohs(rdma_get_src_port(service.listener)));
	return 0;
}

/* Answers what was held back. */
static int op_ud_answer(void)
{
	take_events(0);
	for (; service.answered < service.questions; service.answered++)
		answer_question(service.asked[service.answered]);
	say("{\"ok\": 1, \"questions\": %d", service.questions);
	return 0;
}

/* Gets the peer's cookie, which its datagrams carry from now on. */
static int op_prove(const char *line)
{
	struct connection *c = the_connection(line);
	struct ibv_ah *proved;
	if (!c)
		return -1;
	if (!c->ah || !(proved = dgiwarpdv_prove_address(c->qp, c->ah, c->to_qpn, number(line, "timeout_ms", 1000))))
		return refuse("dgiwarpdv_prove_address");
	ibv_destroy_ah(c->ah);
	c->ah = proved;
	say("{\"ok\": 1");
	return 0;
}
#else
static int no_datagrams(void)
{
	errno = 0;
	return refuse("the agent was compiled without infiniband/dgiwarpdv.h");
}

static struct ibv_mr *restricted(const char *line, int pd, void *octets, uint64_t length, int access)
{
	(void)line, (void)pd, (void)octets, (void)length, (void)access;
	errno = EOPNOTSUPP;
	return NULL;
}

static int post_datagram(const char *line, struct connection *c, struct ibv_sge *sge, int count)
{
	(void)line, (void)c, (void)sge, (void)count;
	return no_datagrams();
}

#define op_ud_open(line) no_datagrams()
#define op_rd_open(line) no_datagrams()
#define op_ud_to(line) no_datagrams()
#define op_group(line, join) no_datagrams()
#define op_record(line) no_datagrams()
#define op_records_now(line) no_datagrams()
#define op_read_map(line) no_datagrams()
#define op_error(line) no_datagrams()
#define op_counters(line) no_datagrams()
#define op_prove(line) no_datagrams()
#define op_ud_service(line) no_datagrams()
#define op_ud_answer() no_datagrams()
#endif

static int op_destroy(const char *line)
{
	struct connection *c = the_connection(line);
	if (!c)
		return -1;
	end_connection(c);
	say("{\"ok\": 1");
	return 0;
}

static void clear(void)
{
	int i;
	take_events(0);
	end_service();
	for (i = 0; i < MOST_CONNECTIONS; i++)
		end_connection(&connections[i]);
	for (i = 0; i < MOST_MEMORY; i++)
		forget(i);
	memset(&accept_with, 0, sizeof accept_with);
	accept_with.receives = 4;
	accept_with.octets = 4096;
	accept_with.cqes = 256;
	accept_with.ird = accept_with.ord = 4;
}

static int op_clear(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;
	clear();
	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	say("{\"ok\": 1, \"fds\": %d", count);
	return 0;
}

static void obey(const char *line)
{
	char op[32] = "";
	text(line, "op", op, sizeof op);
	errno = 0;
	answer_length = 0;
	if (!strcmp(op, "hello")) say("{\"ok\": 1, \"agent\": 1");
	else if (!strcmp(op, "listen")) op_listen(line);
	else if (!strcmp(op, "reg_mr")) op_reg_mr(line);
	else if (!strcmp(op, "dereg_mr")) op_dereg_mr(line);
	else if (!strcmp(op, "peek")) op_peek(line);
	else if (!strcmp(op, "accept_with")) op_accept_with(line);
	else if (!strcmp(op, "accepted")) op_accepted(line);
	else if (!strcmp(op, "skip_accepted")) op_skip_accepted();
	else if (!strcmp(op, "connect")) op_connect(line);
	else if (!strcmp(op, "event")) op_event(line);
	else if (!strcmp(op, "post_recv")) op_post_recv(line);
	else if (!strcmp(op, "post_send")) op_post_send(line);
	else if (!strcmp(op, "poll")) op_poll(line);
	else if (!strcmp(op, "window")) op_window(line);
	else if (!strcmp(op, "disconnect")) op_disconnect(line);
	else if (!strcmp(op, "destroy")) op_destroy(line);
	else if (!strcmp(op, "clear")) op_clear();
	else if (!strcmp(op, "ud_open")) op_ud_open(line);
	else if (!strcmp(op, "rd_open")) op_rd_open(line);
	else if (!strcmp(op, "ud_to")) op_ud_to(line);
	else if (!strcmp(op, "join")) op_group(line, 1);
	else if (!strcmp(op, "leave")) op_group(line, 0);
	else if (!strcmp(op, "record")) op_record(line);
	else if (!strcmp(op, "records_now")) op_records_now(line);
	else if (!strcmp(op, "read_map")) op_read_map(line);
	else if (!strcmp(op, "error")) op_error(line);
	else if (!strcmp(op, "counters")) op_counters(line);
	else if (!strcmp(op, "prove")) op_prove(line);
	else if (!strcmp(op, "ud_service")) op_ud_service(line);
	else if (!strcmp(op, "ud_answer")) op_ud_answer();
	else refuse("no such op");
	say("}\n");
}

/* ---- the control connection ---- */

static int send_answer(void)
{
	size_t sent = 0;
	while (sent < answer_length) {
		ssize_t more = send(control, answer + sent, answer_length - sent, MSG_NOSIGNAL);
		if (more <= 0)
			return -1;
		sent += more;
	}
	return 0;
}

/* Reads lines until the tester goes; the first has to have the token, and to come soon. Returns whether it did. */
static int serve(const char *token)
{
	static char line[LINE];
	size_t length = 0;
	int known = 0;
	int64_t until = now() + 5000;
	for (;;) {
		struct pollfd fds[] = { { .fd = control, .events = POLLIN }, { .fd = channel->fd, .events = POLLIN } };
		char *end;
		ssize_t more;
		if (poll(fds, 2, 1000) < 0 && errno != EINTR)
			return known;
		if (!known && now() > until)
			return known;
		if (fds[1].revents)
			take_events(0);
		if (!fds[0].revents)
			continue;
		more = read(control, line + length, sizeof line - 1 - length);
		if (more <= 0)
			return known;
		length += more;
		line[length] = 0;
		while ((end = strchr(line, '\n'))) {
			*end = 0;
			if (!known) {
				char given[64] = "";
				text(line, "token", given, sizeof given);
				if (strcmp(given, token))
					return known;
				known = 1;
			}
			obey(line);
			if (send_answer())
				return known;
			length -= end + 1 - line;
			memmove(line, end + 1, length + 1);
		}
		if (length == sizeof line - 1)
			return known;
	}
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void set_up_device(void)
{
	channel = rdma_create_event_channel();
	if (!channel || fcntl(channel->fd, F_SETFL, O_NONBLOCK))
		fail("rdma_create_event_channel");
	if (new_listener(0))
		fail("rdma_bind_addr");
	if (!listener->verbs) {
		fprintf(stderr, "no device has this address\n");
		exit(1);
	}
	pds[0] = ibv_alloc_pd(listener->verbs);
	pds[1] = ibv_alloc_pd(listener->verbs);
	if (!pds[0] || !pds[1])
		fail("ibv_alloc_pd");
}

/* An address of numbers, with a port. */
static struct addrinfo *numeric(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *to;
	int error = getaddrinfo(host, port, &hints, &to);
	if (error) {
		fprintf(stderr, "%s: %s\n", host, gai_strerror(error));
		exit(2);
	}
	return to;
}

static int control_socket(const char *host, const char *port)
{
	struct addrinfo *to = numeric(host, port);
	int fd, on = 1;
	fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
	    bind(fd, to->ai_addr, to->ai_addrlen) || listen(fd, 1))
		fail("control socket");
	freeaddrinfo(to);
	return fd;
}

/* The address of RDMA connections, which have any port. */
static void data_address(const char *host)
{
	struct addrinfo *to = numeric(host, "0");
	memcpy(&address, to->ai_addr, to->ai_addrlen);
	freeaddrinfo(to);
}

static void make_token(char *token)
{
	unsigned char octets[16];
	FILE *file = fopen("/dev/urandom", "r");
	int i;
	if (!file || fread(octets, 1, sizeof octets, file) != sizeof octets)
		fail("/dev/urandom");
	fclose(file);
	for (i = 0; i < 16; i++)
		sprintf(token + 2 * i, "%02x", octets[i]);
}

int main(int argc, char **argv)
{
	const char *host = NULL, *control_host = NULL, *port = "0";
	char token[40];
	struct sockaddr_storage bound;
	socklen_t length = sizeof bound;
	int option, once = 0, fd;
	while ((option = getopt(argc, argv, "a:c:p:1")) != -1) {
		if (option == 'a') host = optarg;
		else if (option == 'c') control_host = optarg;
		else if (option == 'p') port = optarg;
		else if (option == '1') once = 1;
		else host = NULL, optind = argc + 1;
	}
	if (!host || optind != argc) {
		fprintf(stderr, "usage: %s -a ADDRESS [-c CONTROL-ADDRESS] [-p CONTROL-PORT] [-1]\n", argv[0]);
		return 2;
	}
	fd = control_socket(control_host ? control_host : host, port);
	data_address(host);
	set_up_device();
	make_token(token);
	if (getsockname(fd, (struct sockaddr *)&bound, &length))
		fail("getsockname");
	printf("port %d\ntoken %s\n", ntohs(((struct sockaddr_in *)&bound)->sin_port), token);
	fflush(stdout);
	for (int served = 0; !(once && served);) {
		control = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (control < 0)
			continue;
		clear();
		served = serve(token);
		clear();
		close(control);
	}
	return 0;
}
