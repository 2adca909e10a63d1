/* One-sided communication: put, get and accumulate under fences, post and start, locks, and flushes. */
#include "check.h"

#define COMM MPI_COMM_WORLD

/* Untouched elements before and after a window: a page. */
enum { EDGE = 512 };

static int flushes_rget;

static void fences(MPI_Win window, long *memory, int count)
{
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	long *out = malloc(count * sizeof *out), *in = malloc(count * sizeof *in);
	for (int i = 0; i < count; i++) {
		memory[i] = -1;
		out[i] = i * 3L + rank;
	}
	MPI_Win_fence(0, window);
	MPI_Put(out, count, MPI_LONG, to, 0, count, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(memory[i] == i * 3L + from, "put under fences: element %d of %d is %ld", i, count, memory[i]);
	MPI_Win_fence(0, window);
	MPI_Get(in, count, MPI_LONG, from, 0, count, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(in[i] == i * 3L + (from + size - 1) % size, "get under fences: element %d of %d is %ld", i, count, in[i]);
	/* From all to all. */
	for (int i = 0; i < count; i++)
		memory[i] = i;
	MPI_Win_fence(0, window);
	for (int target = 0; target < size; target++)
		MPI_Accumulate(out, count, MPI_LONG, target, 0, count, MPI_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(memory[i] == i + size * i * 3L + size * (size - 1) / 2, "accumulate under fences: element %d of %d is %ld", i, count, memory[i]);
	MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
	free(out);
	free(in);
}

/* Each rank exposes to the one before it. */
static void post_and_start(MPI_Win window, long *memory, int count)
{
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	MPI_Group all, origins, targets;
	MPI_Comm_group(COMM, &all);
	MPI_Group_incl(all, 1, &from, &origins);
	MPI_Group_incl(all, 1, &to, &targets);
	long *out = malloc(count * sizeof *out);
	for (long round = 0; round < 10; round++) {
		for (int i = 0; i < count; i++)
			out[i] = i + 1000 * round + rank;
		MPI_Win_post(origins, 0, window);
		MPI_Win_start(targets, 0, window);
		MPI_Put(out, count, MPI_LONG, to, 0, count, MPI_LONG, window);
		MPI_Win_complete(window);
		MPI_Win_wait(window);
		for (int i = 0; i < count; i++)
			CHECK(memory[i] == i + 1000 * round + from, "put of round %ld: element %d is %ld", round, i, memory[i]);
	}
	/* The next part writes there without such an agreement. */
	MPI_Barrier(COMM);
	free(out);
	MPI_Group_free(&all);
	MPI_Group_free(&origins);
	MPI_Group_free(&targets);
}

/* Counters of rank 0, under an exclusive lock by get and put, and by atomic operations without one. */
static void counters(MPI_Win window, long *memory)
{
	enum { ROUNDS = 10 };
	long one = 1, old, found, *seen = calloc(size * ROUNDS, sizeof *seen);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
	for (int i = 0; i < 4; i++)
		memory[i] = 0;
	MPI_Win_unlock(rank, window);
	MPI_Barrier(COMM);
	for (int round = 0; round < ROUNDS; round++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
		MPI_Get(&old, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
		MPI_Win_flush(0, window);
		old++;
		MPI_Put(&old, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_lock_all(0, window);
	for (int round = 0; round < ROUNDS; round++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 1, MPI_SUM, window);
		MPI_Win_flush(0, window);
		CHECK(old >= 0 && old < size * ROUNDS, "fetch_and_op returns %ld", old);
		seen[old]++;
		do {
			MPI_Fetch_and_op(NULL, &old, MPI_LONG, 0, 2, MPI_NO_OP, window);
			MPI_Win_flush(0, window);
			long wanted = old + 2;
			MPI_Compare_and_swap(&wanted, &old, &found, MPI_LONG, 0, 2, window);
			MPI_Win_flush(0, window);
		} while (found != old);
		MPI_Get_accumulate(&one, 1, MPI_LONG, &old, 1, MPI_LONG, 0, 3, 1, MPI_LONG, MPI_SUM, window);
		MPI_Win_flush(0, window);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(COMM);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	if (rank == 0) {
		long all = size * ROUNDS;
		CHECK(memory[0] == all, "counter under a lock is %ld of %ld", memory[0], all);
		CHECK(memory[1] == all, "counter of fetch_and_op is %ld of %ld", memory[1], all);
		CHECK(memory[2] == 2 * all, "counter of compare_and_swap is %ld of %ld", memory[2], 2 * all);
		CHECK(memory[3] == all, "counter of get_accumulate is %ld of %ld", memory[3], all);
	}
	MPI_Win_unlock(rank, window);
	/* Every value was returned once, to somebody. */
	MPI_Allreduce(MPI_IN_PLACE, seen, size * ROUNDS, MPI_LONG, MPI_SUM, COMM);
	for (int i = 0; i < size * ROUNDS; i++)
		CHECK(seen[i] == 1, "fetch_and_op returned %d to %ld ranks", i, seen[i]);
	free(seen);
}

/* Passive targets: each rank writes its own part of all others' windows, and reads it back. */
static void passive(MPI_Win window, long *memory, int count)
{
	int part = count / size;
	long *out = malloc((part + 1) * sizeof *out), *in = malloc((part + 1) * sizeof *in);
	MPI_Request request;
	for (int i = 0; i < part; i++)
		out[i] = i * 7L + rank;
	MPI_Win_lock_all(0, window);
	for (int target = 0; target < size; target++) {
		MPI_Rput(out, part, MPI_LONG, target, rank * part, part, MPI_LONG, window, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
	MPI_Win_flush_all(window);
	for (int target = 0; target < size; target++) {
		memset(in, 0, part * sizeof *in);
		MPI_Rget(in, part, MPI_LONG, target, rank * part, part, MPI_LONG, window, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		if (flushes_rget)
			MPI_Win_flush(target, window);
		for (int i = 0; i < part; i++)
			CHECK(in[i] == out[i], "rget from rank %d: element %d of %d is %ld", target, i, part, in[i]);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(COMM);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	for (int from = 0; from < size; from++)
		for (int i = 0; i < part; i++)
			CHECK(memory[from * part + i] == i * 7L + from, "rput of rank %d: element %d", from, i);
	MPI_Win_unlock(rank, window);
	MPI_Barrier(COMM);
	free(out);
	free(in);
}

static void one(MPI_Win window, long *memory, int most)
{
	static const int counts[] = { 1, 5, 1000, 9000, 131072, 524288 };
	for (size_t i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= most; i++) {
		fences(window, memory, counts[i]);
		post_and_start(window, memory, counts[i] < 9000 ? counts[i] : 9000);
		passive(window, memory, counts[i]);
	}
	counters(window, memory);
}

void windows(void)
{
	int most = longest / sizeof(long) < 524288 ? longest / sizeof(long) : 524288;
	long *memory;
	MPI_Win window;
	MPI_Aint address, *addresses = calloc(size, sizeof *addresses);
	MPI_Win_allocate(most * sizeof *memory, sizeof *memory, MPI_INFO_NULL, COMM, &memory, &window);
	one(window, memory, most);
	MPI_Win_free(&window);

	most = most < 20000 ? most : 20000;
	/* MPICH 4.0 over UCX takes the start of the registered memory for that of the window, on any transport: a window begins at an aligned address. */
	memory = aligned_alloc(4096, (2 * EDGE + most) * sizeof *memory / 4096 * 4096 + 4096);
	for (int i = 0; i < EDGE; i++)
		memory[i] = memory[EDGE + most + i] = 0x1234567;
	MPI_Win_create(memory + EDGE, most * sizeof *memory, sizeof *memory, MPI_INFO_NULL, COMM, &window);
	one(window, memory + EDGE, most);
	MPI_Win_free(&window);
	for (int i = 0; i < EDGE; i++)
		CHECK(memory[i] == 0x1234567 && memory[EDGE + most + i] == 0x1234567, "memory outside of a window is written");

	MPI_Win_create_dynamic(MPI_INFO_NULL, COMM, &window);
	MPI_Win_attach(window, memory, 100 * sizeof *memory);
	MPI_Get_address(memory, &address);
	MPI_Allgather(&address, 1, MPI_AINT, addresses, 1, MPI_AINT, COMM);
	MPI_Win_fence(0, window);
	long word = 4711 + rank;
	MPI_Put(&word, 1, MPI_LONG, (rank + 1) % size, MPI_Aint_add(addresses[(rank + 1) % size], 9 * sizeof word), 1, MPI_LONG, window);
	MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
	CHECK(memory[9] == 4711 + (rank + size - 1) % size, "put into attached memory: %ld", memory[9]);
	MPI_Win_detach(window, memory);
	MPI_Win_free(&window);
	free(memory);
	free(addresses);
}

/* Open MPI 4.1 completes MPI_Rget by an atomic of its own, which UCX emulates by messages on `rc_verbs`: they may be handled before the completion of the Read. */
void windows_with_flushed_rget(void)
{
	flushes_rget = 1;
	windows();
}
