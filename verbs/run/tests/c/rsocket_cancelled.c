/* Threads that are cancelled in calls of rsockets, listeners and plain descriptors among what they wait for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#include "test.h"

enum { ACCEPT, RECV, RECVFROM, SELECT, POLL, SELECT_PLAIN, POLL_PLAIN, KINDS };

static int listener, udp, entered[2];

static void *wait_in(void *kind)
{
	char octet;
	int plain = entered[0];
	struct pollfd readable = { .fd = udp, .events = POLLIN }, other = { .fd = plain, .events = POLLPRI };
	fd_set reads, none;
	FD_ZERO(&none);
	FD_ZERO(&reads);
	FD_SET(udp, &reads);
	FD_SET(plain, &none);
	CHECK(write(entered[1], "e", 1) == 1);
	switch ((intptr_t)kind) {
	case ACCEPT: raccept(listener, NULL, NULL); break;
	case RECV: rrecv(udp, &octet, 1, 0); break;
	case RECVFROM: rrecvfrom(udp, &octet, 1, 0, NULL, NULL); break;
	case SELECT: rselect(udp + 1, &reads, NULL, NULL, NULL); break;
	case POLL: rpoll(&readable, 1, -1); break;
	case SELECT_PLAIN: rselect(plain + 1, NULL, NULL, &none, NULL); break;
	case POLL_PLAIN: rpoll(&other, 1, -1); break;
	}
	return NULL;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timespec deadline;
	pthread_t threads[KINDS];
	void *result;
	char octet;
	CHECK(pipe(entered) == 0);
	CHECK((listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && (udp = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	CHECK(rbind(listener, (struct sockaddr *)&address, sizeof address) == 0 && rlisten(listener, 4) == 0);
	CHECK(rbind(udp, (struct sockaddr *)&address, sizeof address) == 0);
	for (intptr_t kind = 0; kind < KINDS; kind++) {
		CHECK(pthread_create(&threads[kind], NULL, wait_in, (void *)kind) == 0);
		CHECK(read(entered[0], &octet, 1) == 1);
	}
	usleep(50000);
	for (int kind = 0; kind < KINDS; kind++)
		CHECK(pthread_cancel(threads[kind]) == 0);
	CHECK(clock_gettime(CLOCK_REALTIME, &deadline) == 0);
	deadline.tv_sec += 20;
	for (int kind = 0; kind < KINDS; kind++)
		CHECK(pthread_timedjoin_np(threads[kind], &result, &deadline) == 0 && result == PTHREAD_CANCELED);
	CHECK(rclose(listener) == 0 && rclose(udp) == 0);
	puts("ok");
	return 0;
}
