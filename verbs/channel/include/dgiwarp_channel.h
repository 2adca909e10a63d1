/*
 * Channels of blocks between two programs, on one host or two. Each end has a ring of slots that the other end writes to by RDMA. Programs link with
 * -ldgiwarpchannel.
 *
 * Functions that return a pointer return NULL, and those that return an int return -1, where they fail, and set errno:
 *   ETIMEDOUT    not in time
 *   EPIPE        the peer closed the channel
 *   ECONNRESET   the connection was lost before the peer closed the channel
 *   EPROTO       the peer broke the protocol, or is another service
 *   ECONNREFUSED no connection came up
 *   EADDRINUSE   the device could not be opened or the port is taken
 *   EMSGSIZE     the block is longer than its slot
 *   EFBIG        the peer's ring is longer than largest_ring
 *   ENOMEM       no memory for a ring
 *   EINVAL       an argument is out of its range, or is no slot or block of the channel
 *
 * Time limits are in milliseconds; -1 is none. Any number of threads may use a channel at a time, but none once it is closed or dropped.
 */
#ifndef DGIWARP_CHANNEL_H_
#define DGIWARP_CHANNEL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dgiwarp_channel;
struct dgiwarp_channel_listener;

/* The ring that the peer writes to, and the limit of the peer's ring. A field that is 0 has its default. */
struct dgiwarp_channel_config {
	uint16_t slots;        /* 1 to 1024; default 16 */
	uint32_t slot_size;    /* octets; default 1 MiB */
	uint64_t largest_ring; /* octets; default 1 GiB */
};

/* Listens at an address, or the first one of a name, and a TCP port, 0 for one of the system's choice. config may be NULL. */
struct dgiwarp_channel_listener *dgiwarp_channel_listen(const char *host, uint16_t port, const struct dgiwarp_channel_config *config);
uint16_t dgiwarp_channel_listener_port(const struct dgiwarp_channel_listener *listener);
/* The next channel. A peer that fails to come up is an error; the listener goes on. */
struct dgiwarp_channel *dgiwarp_channel_accept(struct dgiwarp_channel_listener *listener, int timeout);
/* Frees the listener; its channels stay. */
void dgiwarp_channel_listener_close(struct dgiwarp_channel_listener *listener);

/* Connects to a listener at the first address of a host at which a connection comes up. config may be NULL. */
struct dgiwarp_channel *dgiwarp_channel_connect(const char *host, uint16_t port, const struct dgiwarp_channel_config *config);

/* A free slot to write a block to, and its octets in room, unless that is NULL. Waits until the peer has released one. */
void *dgiwarp_channel_acquire(struct dgiwarp_channel *channel, int timeout, size_t *room);
/* Sends the first length octets of a slot. The slot is the channel's again, also where that fails. */
int dgiwarp_channel_publish(struct dgiwarp_channel *channel, void *slot, size_t length);
/* Gives an acquired slot back without sending. */
int dgiwarp_channel_abandon(struct dgiwarp_channel *channel, void *slot);

/* The next block of the peer, and its octets in length. NULL with EPIPE once the peer has closed the channel and all blocks were taken. */
const void *dgiwarp_channel_next(struct dgiwarp_channel *channel, int timeout, size_t *length);
/* Gives the slot of a block back to the peer. */
int dgiwarp_channel_release(struct dgiwarp_channel *channel, const void *block);

/* Waits until all blocks are placed at the peer, tells it that no more follow, and frees the channel, also where that fails. */
int dgiwarp_channel_close(struct dgiwarp_channel *channel, int timeout);
/* Frees the channel; it is lost for the peer. */
void dgiwarp_channel_drop(struct dgiwarp_channel *channel);

#ifdef __cplusplus
}
#endif

#endif
