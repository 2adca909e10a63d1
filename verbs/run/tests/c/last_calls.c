/* Calls in destructors of threads and of the program, behind those of libraries. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>
#include "test.h"

static int fd = -1;
static pthread_key_t key;

static void look(void *unused)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	struct timeval time = { .tv_usec = 1000 };
	fd_set reads;
	char octet;
	(void)unused;
	FD_ZERO(&reads);
	FD_SET(fd, &reads);
	CHECK(poll(&readable, 1, 1) == 0);
	CHECK(select(fd + 1, &reads, NULL, NULL, &time) == 0);
	CHECK(recv(fd, &octet, 1, MSG_DONTWAIT) == -1);
}

static void at_end(void)
{
	look(NULL);
	CHECK(write(1, "ok\n", 3) == 3);
}

static void *run(void *unused)
{
	look(NULL);
	CHECK(pthread_setspecific(key, &fd) == 0);
	return unused;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t thread;
	CHECK(atexit(at_end) == 0 && pthread_key_create(&key, look) == 0);
	CHECK((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
	look(NULL);
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0 && pthread_join(thread, NULL) == 0);
	return 0;
}
