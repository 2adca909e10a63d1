/* A server of rsockets that serves one connection after the other: it prints the octets that came, and the errno value of the end. */

#include "test.h"
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <string.h>

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	socklen_t length = sizeof(any);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

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
