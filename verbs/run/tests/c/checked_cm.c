/* A connection whose events one thread takes, while another makes the calls: what a call had before it is there for its events. Argument: an address
 * of this host, and race or none. */
#include <netinet/in.h>
#include <semaphore.h>
#include "pair.h"
#include <rdma/rdma_cma.h>

struct end {
	char name[8];
	struct rdma_cm_id *id;
	int begun;
};

static struct rdma_event_channel *channel;
static sem_t resolved, routed, established;
static int racy, races;

static struct end *make_end(const char *name)
{
	struct end *end = malloc(sizeof *end);
	CHECK(end);
	CHECK(rdma_create_id(channel, &end->id, end, RDMA_PS_TCP) == 0);
	/* After the identifier was made, and before anything is begun with it. */
	strcpy(end->name, name);
	end->begun = 1;
	return end;
}

static void accept_it(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && rdma_accept(id, &param) == 0);
}

static void *take_events(void *unused)
{
	struct rdma_cm_id *accepted = NULL;
	int disconnected = 0;
	(void)unused;
	while (disconnected < 2) {
		struct rdma_cm_event *event;
		CHECK(rdma_get_cm_event(channel, &event) == 0 && event->status == 0);
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		struct end *end = id->context;
		CHECK(end->begun && strcmp(end->name, id == end->id && type != RDMA_CM_EVENT_CONNECT_REQUEST ? "client" : "server") == 0);
		CHECK(rdma_ack_cm_event(event) == 0);
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			sem_post(&resolved);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			sem_post(&routed);
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			accept_it(accepted = id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			sem_post(&established);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			if (id == accepted)
				CHECK(rdma_disconnect(id) == 0);
			disconnected++;
			break;
		default:
			CHECK(!"an event that is expected");
		}
	}
	if (races)
		racy++;
	rdma_destroy_qp(accepted);
	CHECK(rdma_destroy_id(accepted) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	pthread_t thread;
	CHECK(argc == 3 && inet_aton(argv[1], &address.sin_addr));
	races = strcmp(argv[2], "race") == 0;
	CHECK(sem_init(&resolved, 0, 0) == 0 && sem_init(&routed, 0, 0) == 0 && sem_init(&established, 0, 0) == 0);
	CHECK((channel = rdma_create_event_channel()));
	CHECK(pthread_create(&thread, NULL, take_events, NULL) == 0);

	struct end *server = make_end("server"), *client = make_end("client");
	CHECK(rdma_bind_addr(server->id, (struct sockaddr *)&address) == 0 && rdma_listen(server->id, 4) == 0);
	address.sin_port = rdma_get_src_port(server->id);
	CHECK(rdma_resolve_addr(client->id, NULL, (struct sockaddr *)&address, 5000) == 0);
	sem_wait(&resolved);
	CHECK(rdma_resolve_route(client->id, 5000) == 0);
	sem_wait(&routed);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(rdma_create_qp(client->id, NULL, &init) == 0 && rdma_connect(client->id, &param) == 0);
	sem_wait(&established);
	sem_wait(&established);
	CHECK(rdma_disconnect(client->id) == 0);
	if (races)
		racy++;
	CHECK(pthread_join(thread, NULL) == 0);
	rdma_destroy_qp(client->id);
	CHECK(rdma_destroy_id(client->id) == 0 && rdma_destroy_id(server->id) == 0);
	rdma_destroy_event_channel(channel);
	free(client);
	free(server);
	puts("ok");
	return 0;
}
