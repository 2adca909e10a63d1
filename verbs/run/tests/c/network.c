/* IBV_EVENT_PORT_ACTIVE, PORT_ERR, LID_CHANGE and GID_CHANGE: the port's events follow the host's links and addresses. For a network namespace of its own with lo alone, as its
 * root. Argument: a GID index. */
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "pair.h"

static int control;

static int readable(struct ibv_context *of, int milliseconds)
{
	struct pollfd entry = { .fd = of->async_fd, .events = POLLIN };
	return poll(&entry, 1, milliseconds);
}

/* The next event of a context. */
static enum ibv_event_type next_event(struct ibv_context *of)
{
	struct ibv_async_event event;
	CHECK(readable(of, 20000) == 1 && ibv_get_async_event(of, &event) == 0 && event.element.port_num == 1);
	ibv_ack_async_event(&event);
	return event.event_type;
}

static enum ibv_port_state state(void)
{
	struct ibv_port_attr attr;
	CHECK(ibv_query_port(context, 1, &attr) == 0);
	return attr.state;
}

static int has_gid(const char *address)
{
	union ibv_gid wanted = { .raw = { [10] = 0xff, [11] = 0xff } }, gid;
	CHECK(inet_pton(AF_INET, address, wanted.raw + 12) == 1);
	for (int index = 0; ibv_query_gid(context, 1, index, &gid) == 0; index++)
		if (memcmp(&gid, &wanted, sizeof gid) == 0)
			return 1;
	return 0;
}

/* Gives an address to a label of lo; 0.0.0.0 takes it away. */
static void give(const char *label, const char *address)
{
	struct ifreq request = { 0 };
	strcpy(request.ifr_name, label);
	struct sockaddr_in *to = (struct sockaddr_in *)&request.ifr_addr;
	to->sin_family = AF_INET;
	CHECK(inet_pton(AF_INET, address, &to->sin_addr) == 1);
	CHECK(ioctl(control, SIOCSIFADDR, &request) == 0);
}

static void set_up(int up)
{
	struct ifreq request = { .ifr_name = "lo" };
	CHECK(ioctl(control, SIOCGIFFLAGS, &request) == 0);
	request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
	CHECK(ioctl(control, SIOCSIFFLAGS, &request) == 0);
}

/* Takes events until one of this type; the kernel reports one change in several steps, and each may be an event. */
static void until(struct ibv_context *of, enum ibv_event_type type)
{
	for (int left = 20; next_event(of) != type; left--)
		CHECK(left);
}

/* Takes what is left of a change. */
static void settle(struct ibv_context *of)
{
	while (readable(of, 200))
		next_event(of);
}

int main(int argc, char **argv)
{
	CHECK((control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
	open_device(argc, argv);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(other && state() == IBV_PORT_ACTIVE && readable(context, 100) == 0);

	/* An address comes and goes, seen by all contexts. */
	give("lo:1", "10.1.2.3");
	until(context, IBV_EVENT_GID_CHANGE);
	CHECK(has_gid("10.1.2.3"));
	until(other, IBV_EVENT_GID_CHANGE);
	settle(context);
	settle(other);
	give("lo:1", "0.0.0.0");
	until(context, IBV_EVENT_GID_CHANGE);
	CHECK(!has_gid("10.1.2.3"));
	until(other, IBV_EVENT_GID_CHANGE);
	settle(context);
	settle(other);

	/* The last address goes, and comes back. */
	set_up(0);
	until(context, IBV_EVENT_PORT_ERR);
	CHECK(state() == IBV_PORT_DOWN);
	settle(context);
	set_up(1);
	until(context, IBV_EVENT_PORT_ACTIVE);
	CHECK(state() == IBV_PORT_ACTIVE);
	settle(context);
	/* The other context did not take its events: the last state is the present one. */
	enum ibv_event_type last = IBV_EVENT_GID_CHANGE, type;
	while (readable(other, 200)) {
		type = next_event(other);
		if (type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR)
			last = type;
	}
	CHECK(last == IBV_EVENT_PORT_ACTIVE);
	for (int i = 0; i < 20; i++)
		set_up(i & 1);
	for (last = IBV_EVENT_GID_CHANGE; readable(other, 200);) {
		type = next_event(other);
		if (type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR)
			last = type;
	}
	CHECK((last == IBV_EVENT_PORT_ACTIVE || last == IBV_EVENT_GID_CHANGE) && state() == IBV_PORT_ACTIVE);

	/* A context that is closed has no events; the others have. */
	CHECK(ibv_close_device(other) == 0);
	settle(context);
	give("lo:1", "10.1.2.4");
	until(context, IBV_EVENT_GID_CHANGE);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
