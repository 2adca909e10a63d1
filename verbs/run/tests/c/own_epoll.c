/* A library for LD_PRELOAD that has epoll(7), as librspreload.so of rdma-core 65 has: nothing but the program's own calls may reach it. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

static int reached(const char *call)
{
	fprintf(stderr, "%s reached the preloaded library\n", call);
	abort();
}

int epoll_create1(int flags)
{
	(void)flags;
	return reached("epoll_create1");
}

int epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
	(void)set, (void)operation, (void)fd, (void)event;
	return reached("epoll_ctl");
}

int epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
	(void)set, (void)events, (void)most, (void)timeout;
	return reached("epoll_wait");
}
