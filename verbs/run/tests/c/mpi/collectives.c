/* All collectives of MPI-3, blocking and nonblocking, with every root, counts about the thresholds of their algorithms, and results that are computed apart. */
#include "check.h"

/* The nonblocking forms are called by the same names: they wait at once, or with others under way. */
static int nonblocking;

#define COMM MPI_COMM_WORLD
#define CALL(blocking, starting, ...) \
	do { \
		if (nonblocking) { \
			MPI_Request request_; \
			starting(__VA_ARGS__, &request_); \
			MPI_Wait(&request_, MPI_STATUS_IGNORE); \
		} else { \
			blocking(__VA_ARGS__); \
		} \
	} while (0)

/* Element `i` of what `from` has for `to`. */
static int element(int from, int to, int i)
{
	return (i * 31 + from * 1009 + to * 17) % 1000003;
}

static int *vector(int count)
{
	int *made = malloc((count + 1) * sizeof *made);
	for (int i = 0; i <= count; i++)
		made[i] = -7;
	return made;
}

static int *filled(int from, int to, int count)
{
	int *made = vector(count);
	for (int i = 0; i < count; i++)
		made[i] = element(from, to, i);
	return made;
}

static void expect(const int *got, int from, int to, int count, const char *what)
{
	for (int i = 0; i < count; i++)
		CHECK(got[i] == element(from, to, i), "%s%s: element %d of %d from %d is %d", nonblocking ? "nonblocking " : "", what, i, count, from, got[i]);
}

static void rooted(int root, int count)
{
	int *out = rank == root ? filled(root, 0, count) : vector(count), *in = vector(count * size);
	CALL(MPI_Bcast, MPI_Ibcast, out, count, MPI_INT, root, COMM);
	expect(out, root, 0, count, "bcast");
	free(out);

	out = filled(rank, root, count);
	CALL(MPI_Gather, MPI_Igather, out, count, MPI_INT, in, count, MPI_INT, root, COMM);
	for (int from = 0; rank == root && from < size; from++)
		expect(in + from * count, from, root, count, "gather");
	free(out);

	out = vector(count * size);
	for (int to = 0; to < size; to++)
		for (int i = 0; i < count; i++)
			out[to * count + i] = element(root, to, i);
	memset(in, 0, count * sizeof *in);
	CALL(MPI_Scatter, MPI_Iscatter, out, count, MPI_INT, in, count, MPI_INT, root, COMM);
	expect(in, root, rank, count, "scatter");
	free(out);

	out = filled(rank, root, count);
	CALL(MPI_Reduce, MPI_Ireduce, out, in, count, MPI_INT, MPI_SUM, root, COMM);
	for (int i = 0; rank == root && i < count; i++) {
		int sum = 0;
		for (int from = 0; from < size; from++)
			sum += element(from, root, i);
		CHECK(in[i] == sum, "reduce to %d: element %d of %d is %d", root, i, count, in[i]);
	}
	free(out);
	free(in);
}

/* Parts of unlike lengths with gaps between them. */
static void uneven(int root, int count)
{
	int *counts = calloc(size, sizeof *counts), *places = calloc(size, sizeof *places), total = 0;
	for (int i = 0; i < size; i++) {
		counts[i] = count * i / size + i % 2;
		places[i] = total;
		total += counts[i] + 3;
	}
	int *out = filled(rank, root, counts[rank]), *in = vector(total);
	CALL(MPI_Gatherv, MPI_Igatherv, out, counts[rank], MPI_INT, in, counts, places, MPI_INT, root, COMM);
	for (int from = 0; rank == root && from < size; from++) {
		expect(in + places[from], from, root, counts[from], "gatherv");
		CHECK(in[places[from] + counts[from]] == -7, "gatherv writes a gap");
	}
	free(out);
	free(in);

	out = vector(total);
	for (int to = 0; to < size; to++)
		for (int i = 0; i < counts[to]; i++)
			out[places[to] + i] = element(root, to, i);
	in = vector(counts[rank]);
	CALL(MPI_Scatterv, MPI_Iscatterv, out, counts, places, MPI_INT, in, counts[rank], MPI_INT, root, COMM);
	expect(in, root, rank, counts[rank], "scatterv");
	CHECK(in[counts[rank]] == -7, "scatterv writes too much");
	free(out);
	free(in);

	out = filled(rank, 0, counts[rank]);
	in = vector(total);
	CALL(MPI_Allgatherv, MPI_Iallgatherv, out, counts[rank], MPI_INT, in, counts, places, MPI_INT, COMM);
	for (int from = 0; from < size; from++)
		expect(in + places[from], from, 0, counts[from], "allgatherv");
	free(out);
	free(in);

	/* Rank `a` has `(a + b) % size` times as much for `b` as for itself. */
	int *in_counts = calloc(size, sizeof *in_counts), *in_places = calloc(size, sizeof *in_places), in_total = 0;
	MPI_Datatype *types = calloc(size, sizeof(MPI_Datatype));
	int *out_octets = calloc(size, sizeof *out_octets), *in_octets = calloc(size, sizeof *in_octets);
	total = 0;
	for (int peer = 0; peer < size; peer++) {
		counts[peer] = count * ((rank + 2 * peer) % size) / size;
		places[peer] = total;
		out_octets[peer] = total * sizeof(int);
		total += counts[peer];
		in_counts[peer] = count * ((peer + 2 * rank) % size) / size;
		in_places[peer] = in_total;
		in_octets[peer] = in_total * sizeof(int);
		in_total += in_counts[peer];
		types[peer] = MPI_INT;
	}
	out = vector(total);
	for (int to = 0; to < size; to++)
		for (int i = 0; i < counts[to]; i++)
			out[places[to] + i] = element(rank, to, i);
	for (int wide = 0; wide < 2; wide++) {
		in = vector(in_total);
		if (wide)
			CALL(MPI_Alltoallw, MPI_Ialltoallw, out, counts, out_octets, types, in, in_counts, in_octets, types, COMM);
		else
			CALL(MPI_Alltoallv, MPI_Ialltoallv, out, counts, places, MPI_INT, in, in_counts, in_places, MPI_INT, COMM);
		for (int from = 0; from < size; from++)
			expect(in + in_places[from], from, rank, in_counts[from], wide ? "alltoallw" : "alltoallv");
		CHECK(in[in_total] == -7, "alltoall writes too much");
		free(in);
	}
	free(out);
	free(counts);
	free(places);
	free(in_counts);
	free(in_places);
	free(types);
	free(out_octets);
	free(in_octets);
}

static void to_all(int count)
{
	int *out = filled(rank, 0, count), *in = vector(count * size);
	CALL(MPI_Allgather, MPI_Iallgather, out, count, MPI_INT, in, count, MPI_INT, COMM);
	for (int from = 0; from < size; from++)
		expect(in + from * count, from, 0, count, "allgather");
	memset(in, 0, count * size * sizeof *in);
	memcpy(in + rank * count, out, count * sizeof *in);
	CALL(MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, count, MPI_INT, COMM);
	for (int from = 0; from < size; from++)
		expect(in + from * count, from, 0, count, "allgather in place");
	free(out);

	out = vector(count * size);
	for (int to = 0; to < size; to++)
		for (int i = 0; i < count; i++)
			out[to * count + i] = element(rank, to, i);
	CALL(MPI_Alltoall, MPI_Ialltoall, out, count, MPI_INT, in, count, MPI_INT, COMM);
	for (int from = 0; from < size; from++)
		expect(in + from * count, from, rank, count, "alltoall");
	free(out);
	free(in);
}

/* Two by two matrices modulo a prime: their product depends on the order. */
enum { PRIME = 10007 };

static void multiply(const int *left, int *right_and_result)
{
	int *r = right_and_result, product[4];
	for (int i = 0; i < 4; i++)
		product[i] = (left[i & 2] * r[i & 1] + left[(i & 2) + 1] * r[2 + (i & 1)]) % PRIME;
	memcpy(r, product, sizeof product);
}

static void multiply_all(void *left, void *right_and_result, int *count, MPI_Datatype *type)
{
	(void)type;
	for (int i = 0; i < *count; i++)
		multiply((int *)left + 4 * i, (int *)right_and_result + 4 * i);
}

static void matrix(int of, int i, int *into)
{
	for (int at = 0; at < 4; at++)
		into[at] = (element(of, at, i) + at) % PRIME;
}

/* Product of the matrices `i` of ranks 0 to `last`. */
static void product(int last, int i, int *into)
{
	matrix(last, i, into);
	for (int of = last; of-- > 0;) {
		int left[4];
		matrix(of, i, left);
		multiply(left, into);
	}
}

static void expect_products(const int *got, int last, int count, int first, const char *what)
{
	for (int i = 0; i < count; i++) {
		int wanted[4];
		product(last, first + i, wanted);
		CHECK(memcmp(wanted, got + 4 * i, sizeof wanted) == 0, "%s%s: matrix %d of %d", nonblocking ? "nonblocking " : "", what, i, count);
	}
}

/* A reduction whose operands must keep their order. */
static void ordered(int count)
{
	MPI_Op op;
	MPI_Datatype type;
	MPI_Op_create(multiply_all, 0, &op);
	MPI_Type_contiguous(4, MPI_INT, &type);
	MPI_Type_commit(&type);
	int *out = vector(4 * count * size), *in = vector(4 * count * size), *counts = calloc(size, sizeof *counts);
	for (int i = 0; i < count * size; i++)
		matrix(rank, i, out + 4 * i);
	CALL(MPI_Allreduce, MPI_Iallreduce, out, in, count, type, op, COMM);
	expect_products(in, size - 1, count, 0, "allreduce");
	CALL(MPI_Scan, MPI_Iscan, out, in, count, type, op, COMM);
	expect_products(in, rank, count, 0, "scan");
	CALL(MPI_Exscan, MPI_Iexscan, out, in, count, type, op, COMM);
	if (rank > 0)
		expect_products(in, rank - 1, count, 0, "exscan");
	CALL(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, out, in, count, type, op, COMM);
	expect_products(in, size - 1, count, rank * count, "reduce_scatter_block");
	int first = 0;
	for (int i = 0; i < size; i++) {
		counts[i] = i % 2 ? count : count / 2;
		first += i < rank ? counts[i] : 0;
	}
	CALL(MPI_Reduce_scatter, MPI_Ireduce_scatter, out, in, counts, type, op, COMM);
	expect_products(in, size - 1, counts[rank], first, "reduce_scatter");
	MPI_Op_free(&op);
	MPI_Type_free(&type);
	free(out);
	free(in);
	free(counts);
}

static void operations(int count)
{
	struct { int value, place; } *pairs = malloc(count * sizeof *pairs), *least = malloc(count * sizeof *least);
	double *numbers = malloc(count * sizeof *numbers);
	int *bits = vector(count);
	for (int i = 0; i < count; i++) {
		pairs[i].value = element(rank, 5, i * 7) % 100;
		pairs[i].place = rank;
		numbers[i] = (double)(element(rank, 6, i) % 1000) / 8;
		bits[i] = 1 << (rank + i) % 31;
	}
	CALL(MPI_Allreduce, MPI_Iallreduce, pairs, least, count, MPI_2INT, MPI_MINLOC, COMM);
	CALL(MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, numbers, count, MPI_DOUBLE, MPI_MAX, COMM);
	CALL(MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, bits, count, MPI_INT, MPI_BOR, COMM);
	for (int i = 0; i < count; i++) {
		int place = 0, all = 0;
		double most = 0;
		for (int of = 0; of < size; of++) {
			if (element(of, 5, i * 7) % 100 < element(place, 5, i * 7) % 100)
				place = of;
			if ((double)(element(of, 6, i) % 1000) / 8 > most)
				most = (double)(element(of, 6, i) % 1000) / 8;
			all |= 1 << (of + i) % 31;
		}
		CHECK(least[i].place == place && least[i].value == element(place, 5, i * 7) % 100, "minloc: element %d", i);
		CHECK(numbers[i] == most, "max: element %d", i);
		CHECK(bits[i] == all, "bor: element %d", i);
	}
	free(pairs);
	free(least);
	free(numbers);
	free(bits);
}

/* Neighbours on a ring. */
static void neighbours(int count)
{
	MPI_Comm ring;
	int periodic = 1, before, after;
	MPI_Cart_create(COMM, 1, &size, &periodic, 0, &ring);
	MPI_Cart_shift(ring, 0, 1, &before, &after);
	int *out = filled(rank, 0, count), *in = vector(2 * count);
	CALL(MPI_Neighbor_allgather, MPI_Ineighbor_allgather, out, count, MPI_INT, in, count, MPI_INT, ring);
	expect(in, before, 0, count, "neighbor_allgather");
	expect(in + count, after, 0, count, "neighbor_allgather");
	free(out);
	out = vector(2 * count);
	for (int i = 0; i < count; i++) {
		out[i] = element(rank, 1, i);
		out[count + i] = element(rank, 2, i);
	}
	/* With two ranks both neighbours are one rank, and libraries differ in which of its messages is whose. */
	if (size > 2) {
		CALL(MPI_Neighbor_alltoall, MPI_Ineighbor_alltoall, out, count, MPI_INT, in, count, MPI_INT, ring);
		expect(in, before, 2, count, "neighbor_alltoall");
		expect(in + count, after, 1, count, "neighbor_alltoall");
	}
	free(out);
	free(in);
	MPI_Comm_free(&ring);
}

/* No rank leaves a barrier before the last one has come: rank 0 has counted all by then. */
static void barrier(void)
{
	for (int round = 0; round < 20; round++) {
		int late = round % size, word = round, got = -1, flag;
		MPI_Request request;
		if (rank == late && size > 1)
			MPI_Send(&word, 1, MPI_INT, (late + 1) % size, 90, COMM);
		if (nonblocking) {
			MPI_Ibarrier(COMM, &request);
			for (flag = 0; !flag;)
				MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
		} else {
			MPI_Barrier(COMM);
		}
		if (rank == (late + 1) % size && size > 1) {
			MPI_Recv(&got, 1, MPI_INT, late, 90, COMM, MPI_STATUS_IGNORE);
			CHECK(got == round, "barrier: round %d has the word of %d", round, got);
		}
	}
}

/* Several under way at a time, ended in the opposite order. */
static void overlapping(void)
{
	enum { COUNT = 8, ELEMENTS = 3000 };
	MPI_Request requests[COUNT];
	int *in[COUNT], *out[COUNT];
	for (int i = 0; i < COUNT; i++) {
		out[i] = filled(rank, i, ELEMENTS);
		in[i] = i % 2 ? filled(i % size, i, ELEMENTS) : vector(ELEMENTS);
		if (i % 2 && rank != i % size)
			memset(in[i], 0, ELEMENTS * sizeof(int));
		if (i % 2)
			MPI_Ibcast(in[i], ELEMENTS, MPI_INT, i % size, COMM, &requests[i]);
		else
			MPI_Iallreduce(out[i], in[i], ELEMENTS, MPI_INT, MPI_SUM, COMM, &requests[i]);
	}
	for (int i = COUNT; i-- > 0;) {
		MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
		if (i % 2)
			expect(in[i], i % size, i, ELEMENTS, "overlapping bcast");
		for (int at = 0; i % 2 == 0 && at < ELEMENTS; at++) {
			int sum = 0;
			for (int from = 0; from < size; from++)
				sum += element(from, i, at);
			CHECK(in[i][at] == sum, "overlapping allreduce %d: element %d", i, at);
		}
		free(in[i]);
		free(out[i]);
	}
}

static void all(void)
{
	static const int counts[] = { 0, 1, 17, 511, 1025, 9001, 70001, 300000 };
	barrier();
	for (size_t at = 0; at < sizeof counts / sizeof counts[0] && counts[at] * sizeof(int) <= longest; at++) {
		int count = counts[at];
		for (int root = 0; root < size && (count < 5000 || root < 2); root++)
			rooted(root, count);
		uneven(at % size, count);
		to_all(count < 100000 ? count : 100000);
		neighbours(count);
		if (count < 10000) {
			ordered(count);
			operations(count);
		}
	}
}

void collectives(void)
{
	nonblocking = 0;
	all();
}

void nonblocking_collectives(void)
{
	nonblocking = 1;
	all();
	overlapping();
}
