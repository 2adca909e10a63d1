/* Content that can be recomputed anywhere, and checks that name themselves and end the job. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of MPI_COMM_WORLD. */
extern int rank, size;
/* Longest message in octets. */
extern size_t longest;

void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
extern long checks;

#define CHECK(condition, ...) \
	do { \
		checks++; \
		if (!(condition)) \
			fail(__FILE__, __LINE__, __VA_ARGS__); \
	} while (0)

/* Fills with the content of a message that has this number. */
void fill(void *buffer, size_t octets, uint32_t number);
/* Number of octets before the first wrong one. */
size_t right(const void *buffer, size_t octets, uint32_t number);

#define CONTENT(buffer, octets, number, ...) \
	do { \
		size_t right_ = right((buffer), (octets), (number)); \
		if (right_ != (size_t)(octets)) \
			fprintf(stderr, "octet %zu of %zu is wrong\n", right_, (size_t)(octets)); \
		CHECK(right_ == (size_t)(octets), __VA_ARGS__); \
	} while (0)

/* The next number of a sequence that is alike on all ranks. */
uint32_t next(uint32_t *state);

void point_to_point(void);
void collectives(void);
void nonblocking_collectives(void);
void windows(void);
void windows_with_flushed_rget(void);
void communicators(void);
void threads(void);

#endif
