/* Threads that are cancelled in accept(2), a cancellation point: each ends there, and the listener goes on. A child of this program connects. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

enum { TRIES = 4 };

static int listener, entered[2];

static void *wait_for_a_connection(void *four)
{
	CHECK(write(entered[1], "e", 1) == 1);
	int fd = four ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : accept(listener, NULL, NULL);
	CHECK(fd < 0);
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	char octet;
	if (argc > 1) {
		address.sin_port = htons(atoi(argv[1]));
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
		CHECK(write(fd, "a", 1) == 1 && read(fd, &octet, 1) == 1 && octet == 'b');
		return 0;
	}
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && pipe(entered) == 0);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	for (int i = 0; i < TRIES; i++) {
		pthread_t thread;
		void *result;
		CHECK(pthread_create(&thread, NULL, wait_for_a_connection, i % 2 ? &octet : NULL) == 0);
		CHECK(read(entered[0], &octet, 1) == 1);
		/* Before it waits, and while it does. */
		usleep(i < 2 ? 0 : 50000);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	for (int i = 0; i < TRIES; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			char port[8];
			snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
			execl(argv[0], argv[0], port, NULL);
			_exit(1);
		}
		int fd = accept(listener, NULL, NULL), status;
		CHECK(fd >= 0 && read(fd, &octet, 1) == 1 && octet == 'a' && write(fd, "b", 1) == 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(close(fd) == 0);
	}
	puts("ok");
	return 0;
}
