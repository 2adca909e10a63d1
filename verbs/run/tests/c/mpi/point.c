/* Point to point: sizes about the thresholds of eager and rendezvous protocols, modes, order, wildcards, many outstanding requests. */
#include "check.h"

/* Untouched octets before and after what is received. */
enum { GUARD = 64 };

static const size_t sizes[] = {
	0, 1, 3, 8, 63, 64, 65, 200, 1023, 1024, 1025, 4032, 4095, 4096, 4097, 8191, 8192, 8193, 8256, 16384, 32769, 65535, 65536, 65537, 131071, 262145, 524288, 1048577, 4194304, 16777216,
};

static void check_received(const unsigned char *buffer, size_t octets, uint32_t number, const char *what)
{
	for (size_t i = 0; i < GUARD; i++) {
		CHECK(buffer[i] == 0xA5, "%s: octet %zu before a message of %zu is written", what, GUARD - i, octets);
		CHECK(buffer[GUARD + octets + i] == 0xA5, "%s: octet %zu after a message of %zu is written", what, i, octets);
	}
	CONTENT(buffer + GUARD, octets, number, "%s: content of %zu octets", what, octets);
}

/* Every rank sends to the one `distance` after it. */
static void shift(size_t octets, int distance)
{
	int to = (rank + distance) % size, from = (rank + size - distance) % size, count;
	unsigned char *out = malloc(octets + 1), *in = malloc(octets + 2 * GUARD);
	MPI_Status status;
	fill(out, octets, octets + rank);
	memset(in, 0xA5, octets + 2 * GUARD);
	MPI_Sendrecv(out, octets, MPI_BYTE, to, 7, in + GUARD, octets, MPI_BYTE, from, 7, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	CHECK((size_t)count == octets && status.MPI_SOURCE == from && status.MPI_TAG == 7,
		"shift of %zu by %d: %d octets from %d", octets, distance, count, status.MPI_SOURCE);
	check_received(in, octets, octets + from, "shift");
	free(out);
	free(in);
}

/* Of pairs of ranks one sends in each mode, the other receives late or early. */
static void modes(size_t octets)
{
	int peer = rank ^ 1;
	unsigned char *buffer = malloc(octets + 2 * GUARD);
	MPI_Request request;
	if (peer < size && rank % 2 == 0) {
		int room = octets + MPI_BSEND_OVERHEAD;
		void *attached = malloc(room);
		fill(buffer, octets, 1);
		MPI_Send(buffer, octets, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
		fill(buffer, octets, 2);
		MPI_Ssend(buffer, octets, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
		MPI_Buffer_attach(attached, room);
		fill(buffer, octets, 3);
		MPI_Bsend(buffer, octets, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
		memset(buffer, 0, octets);
		MPI_Buffer_detach(&attached, &room);
		free(attached);
		MPI_Recv(NULL, 0, MPI_BYTE, peer, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		fill(buffer, octets, 4);
		MPI_Rsend(buffer, octets, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
		fill(buffer, octets, 5);
		MPI_Issend(buffer, octets, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else if (peer < size) {
		for (int mode = 1; mode <= 5; mode++) {
			memset(buffer, 0xA5, octets + 2 * GUARD);
			MPI_Irecv(buffer + GUARD, octets, MPI_BYTE, peer, mode, MPI_COMM_WORLD, &request);
			if (mode == 4)
				MPI_Send(NULL, 0, MPI_BYTE, peer, 9, MPI_COMM_WORLD);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			check_received(buffer, octets, mode, "mode");
		}
	}
	free(buffer);
}

/* Messages that nobody waits for yet, received in the opposite order. */
static void unexpected(void)
{
	enum { COUNT = 60, LARGEST = 40000 };
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	unsigned char *out = malloc(COUNT * LARGEST), *in = malloc(LARGEST + 2 * GUARD);
	MPI_Request requests[COUNT];
	for (int i = 0; i < COUNT; i++) {
		size_t octets = i * 677 % LARGEST;
		fill(out + i * LARGEST, octets, i);
		MPI_Isend(out + i * LARGEST, octets, MPI_BYTE, to, i, MPI_COMM_WORLD, &requests[i]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = COUNT; i-- > 0;) {
		memset(in, 0xA5, LARGEST + 2 * GUARD);
		MPI_Recv(in + GUARD, LARGEST, MPI_BYTE, from, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check_received(in, i * 677 % LARGEST, i, "unexpected");
	}
	MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
	free(out);
	free(in);
}

/* Rank 0 takes from anybody: the messages of each come in the order in which they were sent. */
static void any_source(void)
{
	enum { COUNT = 300, LARGEST = 12000 };
	unsigned char *buffer = malloc(LARGEST);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		int *seen = calloc(size, sizeof *seen), count;
		for (int i = 0; i < COUNT * (size - 1); i++) {
			MPI_Status status;
			MPI_Recv(buffer, LARGEST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			int turn = seen[status.MPI_SOURCE]++;
			CHECK(status.MPI_TAG == turn, "any source: message %d of rank %d came as number %d", status.MPI_TAG, status.MPI_SOURCE, turn);
			CHECK(count == turn * 37 % LARGEST, "any source: %d octets", count);
			CONTENT(buffer, count, turn + 1000 * status.MPI_SOURCE, "any source: content");
		}
		free(seen);
	} else {
		for (int i = 0; i < COUNT; i++) {
			fill(buffer, i * 37 % LARGEST, i + 1000 * rank);
			MPI_Send(buffer, i * 37 % LARGEST, MPI_BYTE, 0, i, MPI_COMM_WORLD);
		}
	}
	free(buffer);
}

/* Requests of all sizes from all to all at once, completed in whatever order they are. */
static void outstanding(void)
{
	enum { EACH = 32 };
	size_t most = longest < 150000 ? longest : 150000;
	int all = EACH * size, left = 2 * all, done;
	MPI_Request *requests = malloc(2 * all * sizeof *requests);
	unsigned char **buffers = malloc(2 * all * sizeof *buffers);
	int *finished = malloc(2 * all * sizeof *finished);
	for (int peer = 0; peer < size; peer++) {
		for (int i = 0; i < EACH; i++) {
			uint32_t in = peer * 1000 + rank * 50 + i, out = rank * 1000 + peer * 50 + i, one = in, other = out;
			int at = peer * EACH + i;
			/* Three of four are short. */
			size_t in_size = next(&one) % (i % 4 ? 3000 : most), out_size = next(&other) % (i % 4 ? 3000 : most);
			buffers[at] = malloc(in_size + 2 * GUARD);
			memset(buffers[at], 0xA5, in_size + 2 * GUARD);
			MPI_Irecv(buffers[at] + GUARD, in_size, MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[at]);
			buffers[all + at] = malloc(out_size + 1);
			fill(buffers[all + at], out_size, out);
			MPI_Isend(buffers[all + at], out_size, MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[all + at]);
		}
	}
	while (left > 0) {
		MPI_Waitsome(2 * all, requests, &done, finished, MPI_STATUSES_IGNORE);
		for (int i = 0; i < done; i++) {
			int at = finished[i], peer = at / EACH;
			uint32_t number = peer * 1000 + rank * 50 + at % EACH, state = number;
			if (at < all)
				check_received(buffers[at], next(&state) % (at % EACH % 4 ? 3000 : most), number, "outstanding");
			free(buffers[at]);
		}
		left -= done;
	}
	free(requests);
	free(buffers);
	free(finished);
}

static void probes(void)
{
	int to = (rank + 1) % size, from = (rank + size - 1) % size, count, flag = 0;
	static unsigned char out[2][100000], in[100000];
	MPI_Request requests[2];
	MPI_Message message;
	MPI_Status status;
	for (int i = 0; i < 2; i++) {
		fill(out[i], 11 + 90000 * i, i);
		MPI_Isend(out[i], 11 + 90000 * i, MPI_BYTE, to, 40 + i, MPI_COMM_WORLD, &requests[i]);
	}
	while (!flag)
		MPI_Iprobe(from, 41, MPI_COMM_WORLD, &flag, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	CHECK(count == 90011, "iprobe: %d octets", count);
	MPI_Recv(in, count, MPI_BYTE, from, 41, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	CONTENT(in, 90011, 1, "content after iprobe");
	MPI_Mprobe(MPI_ANY_SOURCE, 40, MPI_COMM_WORLD, &message, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	CHECK(count == 11 && status.MPI_SOURCE == from, "mprobe: %d octets from %d", count, status.MPI_SOURCE);
	MPI_Mrecv(in, count, MPI_BYTE, &message, &status);
	CONTENT(in, 11, 0, "content after mprobe");
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void persistent(void)
{
	enum { ROUNDS = 20, OCTETS = 30000 };
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	static unsigned char out[OCTETS], in[OCTETS];
	MPI_Request requests[2];
	MPI_Recv_init(in, OCTETS, MPI_BYTE, from, 50, MPI_COMM_WORLD, &requests[0]);
	MPI_Send_init(out, OCTETS, MPI_BYTE, to, 50, MPI_COMM_WORLD, &requests[1]);
	for (int round = 0; round < ROUNDS; round++) {
		fill(out, OCTETS, round * 100 + rank);
		memset(in, 0, OCTETS);
		MPI_Startall(2, requests);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CONTENT(in, OCTETS, round * 100 + from, "persistent request, round %d", round);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
}

/* Every third of a row of integers, sent as a vector and received as it was, and as a row. */
static void datatypes(void)
{
	enum { COUNT = 40000 };
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	int *out = malloc(3 * COUNT * sizeof *out), *in = malloc(3 * COUNT * sizeof *in);
	MPI_Datatype vector;
	MPI_Type_vector(COUNT, 1, 3, MPI_INT, &vector);
	MPI_Type_commit(&vector);
	for (int i = 0; i < 3 * COUNT; i++)
		out[i] = i ^ rank << 20;
	for (int contiguous = 0; contiguous < 2; contiguous++) {
		memset(in, -1, 3 * COUNT * sizeof *in);
		MPI_Sendrecv(out, 1, vector, to, 60, in, contiguous ? COUNT : 1, contiguous ? MPI_INT : vector, from, 60, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < COUNT; i++)
			CHECK(in[contiguous ? i : 3 * i] == (3 * i ^ from << 20), "element %d of a vector", i);
		if (!contiguous)
			CHECK(in[1] == -1 && in[2] == -1, "a gap of a vector is written");
	}
	MPI_Type_free(&vector);
	free(out);
	free(in);
}

static void cancelled(void)
{
	int octet, flag;
	MPI_Request request;
	MPI_Status status;
	MPI_Irecv(&octet, 1, MPI_INT, MPI_ANY_SOURCE, 70, MPI_COMM_WORLD, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &flag);
	CHECK(flag, "a receive is not cancelled");
}

void point_to_point(void)
{
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && sizes[i] <= longest; i++) {
		/* To oneself too. */
		for (int distance = 0; distance < size && (sizes[i] <= 8193 || distance < 2); distance++)
			shift(sizes[i], distance);
		if (sizes[i] <= 1048577)
			modes(sizes[i]);
	}
	unexpected();
	any_source();
	/* Before it has all its messages, rank 0 would take those of what follows too. */
	MPI_Barrier(MPI_COMM_WORLD);
	outstanding();
	probes();
	persistent();
	datatypes();
	cancelled();
}
