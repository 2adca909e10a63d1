/* Descriptors of connections: the program's and two more each at low numbers, as programs with short tables of descriptors need it. A child of this program connects. */
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

enum { CONNECTIONS = 20, EACH = 3, BEFORE = 16 };

/* The number of the next connection, whose octets have come. */
static void check_number(int fd, int connection, const char *sends)
{
	char octet;
	CHECK(write(fd, sends, 1) == 1 && read(fd, &octet, 1) == 1);
	CHECK(fd <= BEFORE + EACH * connection);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (argc > 1) {
		address.sin_port = htons(atoi(argv[1]));
		for (int i = 0; i < CONNECTIONS; i++) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);
			CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
			check_number(fd, i, "a");
		}
		return 0;
	}
	int listener = socket(AF_INET, SOCK_STREAM, 0), status;
	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char port[8];
		snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
		close(listener);
		execl(argv[0], argv[0], port, NULL);
		_exit(1);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		int fd = accept(listener, NULL, NULL);
		CHECK(fd >= 0);
		check_number(fd, i, "b");
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	puts("ok");
	return 0;
}
