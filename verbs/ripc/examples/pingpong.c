/*
 * Round trips of short messages between two processes, as LibRIPC's benchmark has them:
 *
 *   pingpong server
 *   pingpong client [bytes [rounds]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "ripc.h"

#define SERVER 4

static int serve(void)
{
	if (!ripc_register_service_id(SERVER))
		return 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		uint16_t from, num_short, num_long;
		void **short_items, **long_items;
		uint32_t *short_sizes, *long_sizes;

		if (ripc_receive(SERVER, &from, &short_items, &short_sizes, &num_short,
				&long_items, &long_sizes, &num_long))
			return 1;
		if (ripc_send_short(SERVER, from, short_items, short_sizes, num_short, NULL, NULL, 0))
			fprintf(stderr, "an answer was not sent\n");
		if (num_short)
			ripc_buf_free(short_items[0]);
		free(short_items);
		free(short_sizes);
		free(long_items);
		free(long_sizes);
	}
}

static int call(uint32_t bytes, int rounds)
{
	uint16_t own = ripc_register_random_service_id();
	void *message = ripc_buf_alloc(bytes);
	struct timeval before, after;
	int i;

	if (!own || !message)
		return 1;
	memset(message, 'x', bytes);
	gettimeofday(&before, NULL);
	for (i = 0; i < rounds; i++) {
		uint16_t from, num_short, num_long;
		void **short_items, **long_items;
		uint32_t *short_sizes, *long_sizes;

		if (ripc_send_short(own, SERVER, &message, &bytes, 1, NULL, NULL, 0))
			return 1;
		if (ripc_receive(own, &from, &short_items, &short_sizes, &num_short,
				&long_items, &long_sizes, &num_long))
			return 1;
		if (from != SERVER || num_short != 1 || short_sizes[0] != bytes
				|| memcmp(short_items[0], message, bytes)) {
			fprintf(stderr, "another message came\n");
			return 1;
		}
		ripc_buf_free(short_items[0]);
		free(short_items);
		free(short_sizes);
		free(long_items);
		free(long_sizes);
	}
	gettimeofday(&after, NULL);
	printf("%d round trips of %u bytes, %.2f usec each\n", rounds, bytes,
		((after.tv_sec - before.tv_sec) * 1e6 + (after.tv_usec - before.tv_usec)) / rounds);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "server"))
		return serve();
	if (argc > 1 && !strcmp(argv[1], "client"))
		return call(argc > 2 ? (uint32_t)atoi(argv[2]) : 50, argc > 3 ? atoi(argv[3]) : 10000);
	fprintf(stderr, "pingpong server | pingpong client [bytes [rounds]]\n");
	return 2;
}
