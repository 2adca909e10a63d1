/* Random traffic of verbs, with every octet and completion checked. Arguments: a GID index, a seed, seconds (0 for the one round of the seed), threads, and
 * words for the settings of the run: `local` (completions do not wait for the peer), `plain` (the ends are not dgiwarp to each other), `terminates` (a message
 * needs a receive), `duplicates` (the network doubles datagrams). A failure prints the seed of its round. */
#include "victim.h"

static uint64_t first_seed;
static double until;
static int threads;
static unsigned long long rounds;

static void *run(void *argument)
{
	uint64_t thread = (uintptr_t)argument;
	uint64_t number = 0;
	do {
		uint64_t seed = until ? mix(first_seed + thread * 1000003 + number * 7919) : first_seed;
		if (seed % 16 == 1)
			run_killed_round(seed);
		else
			run_round(seed);
		number++;
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	} while (seconds() < until);
	return NULL;
}

int main(int argc, char **argv)
{
	char *two[] = { argv[0], argv[1] };
	CHECK(argc >= 4);
	open_device(2, two);
	for (int i = 4; i < argc; i++) {
		if (strcmp(argv[i], "local") == 0)
			placed = 0;
		if (strcmp(argv[i], "plain") == 0)
			placed = immediates = 0;
		if (strcmp(argv[i], "terminates") == 0)
			terminates = 1;
		if (strcmp(argv[i], "duplicates") == 0)
			duplicates = 1;
	}
	if (strcmp(argv[2], "victim") == 0) {
		be_killed(strtoull(argv[3], NULL, 0));
		return 0;
	}
	own_arguments = argv;
	first_seed = strtoull(argv[2], NULL, 0);
	double time = atof(argv[3]);
	until = time > 0 ? seconds() + time : 0;
	threads = argc > 4 ? atoi(argv[4]) : 1;
	pthread_t started[16];
	CHECK(threads >= 1 && threads <= 16);
	for (intptr_t i = 0; i < threads; i++)
		CHECK(pthread_create(&started[i], NULL, run, (void *)i) == 0);
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(started[i], NULL) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	printf("ok %llu rounds\n", rounds);
	return 0;
}
