/* Random numbers, contents of messages, and failures that name the seed. */
#define _GNU_SOURCE
#include "../pair.h"
#include <stdarg.h>

/* The seed of the round that the thread runs: a failure prints it, and `main.c` runs it again. */
static __thread uint64_t round_seed;
static __thread uint64_t random_state;

__attribute__((format(printf, 2, 3), noreturn)) static void failed(int line, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	flockfile(stderr);
	fprintf(stderr, "seed %llu, line %d: ", (unsigned long long)round_seed, line);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	/* Other threads must not see the library go. */
	_exit(1);
}

#define FAIL(...) failed(__LINE__, __VA_ARGS__)
#define SURE(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what))                                                                                           \
			FAIL("%s (errno %d)", #what, errno);                                                           \
	} while (0)

/* SplitMix64. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t next_random(void)
{
	return mix(random_state++);
}

static uint32_t below(uint32_t limit)
{
	return next_random() % limit;
}

static int one_in(uint32_t n)
{
	return below(n) == 0;
}

/* The content that belongs to a key: octet by octet a function of both. */
static void fill(unsigned char *at, uint32_t length, uint64_t key)
{
	uint64_t word = 0;
	for (uint32_t i = 0; i < length; i += 8) {
		word = mix(key + i);
		memcpy(at + i, &word, length - i < 8 ? length - i : 8);
	}
}

/* The first octet that is not as `fill` leaves it, or the length. */
static uint32_t same_as(const unsigned char *at, uint32_t length, uint64_t key)
{
	for (uint32_t i = 0; i < length; i += 8) {
		uint64_t word = mix(key + i);
		uint32_t n = length - i < 8 ? length - i : 8;
		if (memcmp(at + i, &word, n))
			for (uint32_t k = 0;; k++)
				if (at[i + k] != ((unsigned char *)&word)[k])
					return i + k;
	}
	return length;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void pause_ms(int ms)
{
	struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&pause, NULL);
}
