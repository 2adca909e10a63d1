/* Communicators of parts of the ranks, and several threads of each rank at once. */
#include "check.h"
#include <pthread.h>

/* A sum over a communicator shows its members. */
static void expect_members(MPI_Comm comm, int wanted, const char *what)
{
	int sum = 0, members = 0, one = 1;
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
	MPI_Allreduce(&one, &members, 1, MPI_INT, MPI_SUM, comm);
	CHECK(sum == wanted, "%s: the ranks of %d members add to %d, not %d", what, members, sum, wanted);
}

static void splits(void)
{
	MPI_Comm half, backwards;
	int own, sum = 0;
	for (int i = rank % 2; i < size; i += 2)
		sum += i;
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
	expect_members(half, sum, "split");
	MPI_Comm_rank(half, &own);
	CHECK(own == rank / 2, "split: rank %d", own);
	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
	MPI_Comm_rank(backwards, &own);
	CHECK(own == size - 1 - rank, "split with keys: rank %d", own);
	MPI_Comm_free(&half);
	MPI_Comm_free(&backwards);
	MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &half);
	CHECK((half == MPI_COMM_NULL) == (rank == 0), "split without rank 0");
	if (half != MPI_COMM_NULL) {
		expect_members(half, size * (size - 1) / 2, "split without rank 0");
		MPI_Comm_free(&half);
	}
}

/* Messages with one tag in two communicators, received in the opposite order. */
static void apart(void)
{
	MPI_Comm twin;
	MPI_Request requests[2];
	int to = (rank + 1) % size, from = (rank + size - 1) % size, out[2] = { 100 + rank, 200 + rank }, in[2];
	MPI_Comm_dup(MPI_COMM_WORLD, &twin);
	MPI_Isend(&out[0], 1, MPI_INT, to, 3, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(&out[1], 1, MPI_INT, to, 3, twin, &requests[1]);
	MPI_Recv(&in[1], 1, MPI_INT, from, 3, twin, MPI_STATUS_IGNORE);
	MPI_Recv(&in[0], 1, MPI_INT, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	CHECK(in[0] == 100 + from && in[1] == 200 + from, "messages of two communicators: %d and %d", in[0], in[1]);
	MPI_Comm_free(&twin);
}

static void groups(void)
{
	MPI_Group all, some;
	MPI_Comm made;
	int first = size / 2, range[1][3] = { { first, size - 1, 1 } }, sum = 0;
	for (int i = first; i < size; i++)
		sum += i;
	MPI_Comm_group(MPI_COMM_WORLD, &all);
	MPI_Group_range_incl(all, 1, range, &some);
	if (rank >= first) {
		MPI_Comm_create_group(MPI_COMM_WORLD, some, 5, &made);
		expect_members(made, sum, "create_group");
		MPI_Comm_free(&made);
	}
	MPI_Group_free(&all);
	MPI_Group_free(&some);
}

/* Both halves as ends of an intercommunicator, then one again. */
static void between(void)
{
	MPI_Comm half, inter, merged;
	int second = rank >= size / 2, own, got = -1;
	MPI_Comm_split(MPI_COMM_WORLD, second, rank, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, second ? 0 : size / 2, 8, &inter);
	MPI_Comm_rank(half, &own);
	if (own == 0) {
		MPI_Sendrecv(&rank, 1, MPI_INT, 0, 1, &got, 1, MPI_INT, 0, 1, inter, MPI_STATUS_IGNORE);
		CHECK(got == (second ? 0 : size / 2), "the first of the other half is %d", got);
	}
	int sum = 0, wanted = 0;
	for (int i = second ? 0 : size / 2; i < (second ? size / 2 : size); i++)
		wanted += i;
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, inter);
	CHECK(sum == wanted, "allreduce between halves: %d", sum);
	MPI_Intercomm_merge(inter, second, &merged);
	expect_members(merged, size * (size - 1) / 2, "merged halves");
	MPI_Comm_free(&merged);
	MPI_Comm_free(&inter);
	MPI_Comm_free(&half);
}

/* Sums over rows and columns of a grid. */
static void grid(void)
{
	int sides[2] = { 0, 0 }, periodic[2] = { 1, 0 }, place[2], row_only[2] = { 0, 1 }, members, before, after;
	MPI_Comm cart, row;
	MPI_Dims_create(size, 2, sides);
	MPI_Cart_create(MPI_COMM_WORLD, 2, sides, periodic, 0, &cart);
	MPI_Cart_coords(cart, rank, 2, place);
	MPI_Cart_sub(cart, row_only, &row);
	MPI_Comm_size(row, &members);
	CHECK(members == sides[1], "a row of a grid has %d members", members);
	int sum = 0, wanted = 0, got = -1;
	for (int i = 0; i < sides[1]; i++)
		wanted += place[0] * sides[1] + i;
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, row);
	CHECK(sum == wanted, "sum over a row of a grid: %d", sum);
	MPI_Cart_shift(cart, 1, 1, &before, &after);
	MPI_Sendrecv(&rank, 1, MPI_INT, after, 2, &got, 1, MPI_INT, before, 2, cart, MPI_STATUS_IGNORE);
	CHECK(got == (before == MPI_PROC_NULL ? -1 : before), "from the neighbour on a grid: %d", got);
	MPI_Comm_free(&row);
	MPI_Comm_free(&cart);
}

void communicators(void)
{
	for (int round = 0; round < 5; round++) {
		splits();
		apart();
		groups();
		if (size > 1)
			between();
		grid();
	}
}

enum { THREADS = 3, ROUNDS = 40 };

/* Each thread exchanges with the thread of its number on the next rank, in a communicator of its own. * */
static void *exchange(void *argument)
{
	MPI_Comm comm = *(MPI_Comm *)argument;
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	enum { LARGEST = 50000 };
	unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
	for (int round = 0; round < ROUNDS; round++) {
		size_t octets = round * 1237 % LARGEST;
		fill(out, octets, round + rank);
		memset(in, 0, octets);
		MPI_Sendrecv(out, octets, MPI_BYTE, to, round, in, octets, MPI_BYTE, from, round, comm, MPI_STATUS_IGNORE);
		CONTENT(in, octets, round + from, "exchange %d between threads", round);
	}
	free(out);
	free(in);
	return NULL;
}

void threads(void)
{
	pthread_t running[THREADS];
	MPI_Comm comms[THREADS];
	for (int i = 0; i < THREADS; i++)
		MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&running[i], NULL, exchange, &comms[i]);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(running[i], NULL);
		MPI_Comm_free(&comms[i]);
	}
}
