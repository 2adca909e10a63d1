/* Prints which device there is, and which file each of the two libraries is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static int show(const char *what, void *function)
{
	Dl_info info;
	char *file;

	if (!dladdr(function, &info) || !(file = realpath(info.dli_fname, NULL)))
		return 1;
	printf("%s %s\n", what, file);
	free(file);
	return 0;
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (!devices || !devices[0] || !channel)
		return 1;
	printf("device %s\n", ibv_get_device_name(devices[0]));
	rdma_destroy_event_channel(channel);
	ibv_free_device_list(devices);
	return show("ibverbs", dlsym(RTLD_DEFAULT, "ibv_get_device_list")) +
	       show("rdmacm", dlsym(RTLD_DEFAULT, "rdma_create_event_channel"));
}
