/* A program that closes all its descriptors while a device is open, as daemons do: the device's thread ends, or sleeps, instead of failing for ever. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;
	while (tasks && readdir(tasks))
		count++;
	if (tasks)
		closedir(tasks);
	return count - 2;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct timespec moment = { .tv_nsec = 10000000 };
	if (!ibv_create_qp(pd, &attr) || threads() < 2)
		return 1;
	for (int fd = 3; fd < 1000; fd++)
		close(fd);
	/* A thread that slept without a deadline was not woken by that. */
	clock_t before = clock();
	for (int waited = 0; threads() > 1 && waited < 500; waited++)
		nanosleep(&moment, NULL);
	if (threads() > 1 && clock() - before > CLOCKS_PER_SEC / 5)
		return 2;
	puts("quiet");
	return 0;
}
