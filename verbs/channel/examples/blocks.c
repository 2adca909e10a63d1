/*
 * blocks listen SECONDS     prints its port, takes blocks of numbers, and prints how many numbers there were and their sum
 * blocks HOST PORT COUNT    sends so many blocks, each of as many numbers as have room
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dgiwarp_channel.h"

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

static int consume(int timeout)
{
	struct dgiwarp_channel_config config = { .slots = 4, .slot_size = 65536 };
	struct dgiwarp_channel_listener *listener = dgiwarp_channel_listen("127.0.0.1", 0, &config);
	struct dgiwarp_channel *channel;
	const uint64_t *block;
	size_t length, at;
	uint64_t count = 0, sum = 0;

	if (!listener)
		return fail("listen");
	printf("%u\n", dgiwarp_channel_listener_port(listener));
	fflush(stdout);
	channel = dgiwarp_channel_accept(listener, timeout);
	dgiwarp_channel_listener_close(listener);
	if (!channel)
		return fail("accept");
	while ((block = dgiwarp_channel_next(channel, timeout, &length))) {
		for (at = 0; at < length / sizeof(*block); at++, count++)
			sum += block[at];
		if (dgiwarp_channel_release(channel, block))
			return fail("release");
	}
	if (errno != EPIPE)
		return fail("next");
	printf("%llu numbers, sum %llu\n", (unsigned long long)count, (unsigned long long)sum);
	return dgiwarp_channel_close(channel, timeout) ? fail("close") : 0;
}

static int produce(const char *host, const char *port, const char *blocks)
{
	struct dgiwarp_channel *channel = dgiwarp_channel_connect(host, atoi(port), NULL);
	uint64_t number = 0, *slot;
	long left;
	size_t room, at;

	if (!channel)
		return fail("connect");
	for (left = atol(blocks); left > 0; left--) {
		slot = dgiwarp_channel_acquire(channel, 10000, &room);
		if (!slot)
			return fail("acquire");
		for (at = 0; at < room / sizeof(*slot); at++)
			slot[at] = number++;
		if (dgiwarp_channel_publish(channel, slot, at * sizeof(*slot)))
			return fail("publish");
	}
	return dgiwarp_channel_close(channel, 10000) ? fail("close") : 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "listen"))
		return consume(1000 * atoi(argv[2]));
	if (argc == 4)
		return produce(argv[1], argv[2], argv[3]);
	fprintf(stderr, "blocks listen SECONDS, or blocks HOST PORT COUNT\n");
	return 2;
}
