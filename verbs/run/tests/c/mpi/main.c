/* Checks of an MPI library's results: `main LONGEST PART...`, with the longest message in octets. The first failed check names itself and ends the job. */
#include "check.h"

int rank, size;
size_t longest;
long checks;

void fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;
	char text[400];
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "FAILED on rank %d of %d: %s:%d: %s\n", rank, size, file, line, text);
	fflush(stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

static uint32_t mixed(uint32_t word, uint32_t number)
{
	uint32_t value = (word + 1) * 2654435761u ^ number * 2246822519u;
	return value ^ value >> 15;
}

void fill(void *buffer, size_t octets, uint32_t number)
{
	unsigned char *at = buffer;
	for (size_t i = 0; i < octets; i += 4) {
		uint32_t value = mixed(i / 4, number);
		memcpy(at + i, &value, octets - i < 4 ? octets - i : 4);
	}
}

size_t right(const void *buffer, size_t octets, uint32_t number)
{
	const unsigned char *at = buffer;
	for (size_t i = 0; i < octets; i += 4) {
		uint32_t value = mixed(i / 4, number);
		size_t count = octets - i < 4 ? octets - i : 4;
		if (memcmp(at + i, &value, count) != 0) {
			const unsigned char *wanted = (const unsigned char *)&value;
			while (*wanted == at[i]) {
				wanted++;
				i++;
			}
			return i;
		}
	}
	return octets;
}

uint32_t next(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{ "point", point_to_point },
	{ "collectives", collectives },
	{ "nonblocking", nonblocking_collectives },
	{ "windows", windows },
	{ "windows-flushed", windows_with_flushed_rget },
	{ "communicators", communicators },
	{ "threads", threads },
};

int main(int argc, char **argv)
{
	int wanted = MPI_THREAD_SINGLE, provided;
	if (argc < 3)
		return 2;
	longest = strtoul(argv[1], NULL, 10);
	for (int i = 2; i < argc; i++)
		if (strcmp(argv[i], "threads") == 0)
			wanted = MPI_THREAD_MULTIPLE;
	MPI_Init_thread(&argc, &argv, wanted, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int i = 2; i < argc; i++) {
		size_t found = 0;
		while (found < sizeof parts / sizeof parts[0] && strcmp(parts[found].name, argv[i]) != 0)
			found++;
		CHECK(found < sizeof parts / sizeof parts[0], "no part %s", argv[i]);
		if (parts[found].run == threads && provided < wanted)
			continue;
		parts[found].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			printf("part %s passed\n", argv[i]);
			fflush(stdout);
		}
	}
	long all = 0;
	MPI_Reduce(&checks, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	if (rank == 0)
		printf("passed: %ld checks on %d ranks\n", all, size);
	return 0;
}
