/* The events of a device that goes away, as a test of a program provokes them. Argument: a GID index. */
#include <rdma/rdma_cma.h>
#include <infiniband/dgiwarpdv.h>
#include "pair.h"

static int readable(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	return poll(&entry, 1, 0);
}

static struct rdma_cm_id *listen_at(struct rdma_event_channel *channel, struct in_addr address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = address };
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && rdma_listen(id, 1) == 0);
	return id;
}

static void fatal(struct ibv_context *context)
{
	struct ibv_async_event event;
	CHECK(readable(context->async_fd) == 1 && ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL && readable(context->async_fd) == 0);
	ibv_ack_async_event(&event);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(other && channel);
	struct rdma_cm_id *bound = listen_at(channel, (struct in_addr) { htonl(INADDR_LOOPBACK) });
	/* It listens at all devices, and is bound to none. */
	struct rdma_cm_id *everywhere = listen_at(channel, (struct in_addr) { htonl(INADDR_ANY) });
	CHECK(readable(context->async_fd) == 0 && readable(channel->fd) == 0);

	/* One more is the context that rdma_cm has of its own. */
	int raised = dgiwarpdv_remove_device();
	CHECK(raised == 4);
	fatal(context);
	fatal(other);
	struct rdma_cm_event *event;
	CHECK(readable(channel->fd) == 1 && rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == bound && event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0 && readable(channel->fd) == 0);

	CHECK(rdma_destroy_id(bound) == 0 && rdma_destroy_id(everywhere) == 0);
	rdma_destroy_event_channel(channel);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0 && ibv_close_device(other) == 0);
	open_device(argc, argv);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
