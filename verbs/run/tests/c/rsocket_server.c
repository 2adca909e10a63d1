/* A server of rsockets that serves one connection after the other: it prints the octets that came, and the errno value of the end. */

#include "test.h"
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <string.h>

/* A client that sends and exits: it closes nothing. */
static int client(int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	char octets[4321] = "";
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(rconnect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	CHECK(rsend(fd, octets, sizeof(octets), 0) == sizeof(octets));
	return 0;
}

int main(int count, char **words)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	socklen_t length = sizeof(any);
	int listener;

	if (count > 1)
		return client(atoi(words[1]));
	listener = rsocket(AF_INET, SOCK_STREAM, 0);

	any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(rbind(listener, (struct sockaddr *)&any, sizeof(any)) == 0);
	CHECK(rlisten(listener, 5) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&any, &length) == 0);
	printf("%d\n", ntohs(any.sin_port));
	fflush(stdout);
	for (;;) {
		int fd = raccept(listener, NULL, NULL), got, all = 0;
		char octets[1000];

		CHECK(fd >= 0);
		while ((got = rrecv(fd, octets, sizeof(octets), 0)) > 0)
			all += got;
		printf("%d octets, errno %d\n", all, got < 0 ? errno : 0);
		fflush(stdout);
		CHECK(rclose(fd) == 0);
		if (all == 4321)
			return 0;
	}
}
