/*
 * A file server and its client: the name goes by a short message, the file comes back by a long one, into a return buffer of the client's.
 *
 *   file_get server FOLDER
 *   file_get client NAME LARGEST > file
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ripc.h"

#define SERVER 80

struct message {
	uint16_t from, num_short, num_long;
	void **short_items, **long_items;
	uint32_t *short_sizes, *long_sizes;
};

static int receive(uint16_t service, struct message *m)
{
	return ripc_receive(service, &m->from, &m->short_items, &m->short_sizes, &m->num_short,
		&m->long_items, &m->long_sizes, &m->num_long);
}

static void give_up(struct message *m)
{
	uint16_t i;

	if (m->num_short)
		ripc_buf_free(m->short_items[0]);
	for (i = 0; i < m->num_long; i++)
		ripc_buf_free(m->long_items[i]);
	free(m->short_items);
	free(m->short_sizes);
	free(m->long_items);
	free(m->long_sizes);
}

/* Answers with the file, or with a short message that has the reason why not. */
static void answer(const char *folder, struct message *m)
{
	char path[4096];
	char *reason = "no such file";
	uint32_t length = (uint32_t)strlen(reason);
	void *octets = NULL;
	struct stat st;
	int fd = -1;
	int bytes = m->num_short == 1 ? (int)m->short_sizes[0] : 0;

	snprintf(path, sizeof path, "%s/%.*s", folder, bytes, bytes ? (char *)m->short_items[0] : "");
	if (bytes && !memchr(m->short_items[0], '/', (size_t)bytes))
		fd = open(path, O_RDONLY);
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size < 1 << 30)
		octets = ripc_buf_alloc((size_t)st.st_size);
	if (octets) {
		uint32_t size = (uint32_t)st.st_size, at = 0;
		ssize_t got;

		while (at < size && (got = read(fd, (char *)octets + at, size - at)) > 0)
			at += (uint32_t)got;
		if (at != size || ripc_send_long(SERVER, m->from, &octets, &size, 1, NULL, NULL, 0))
			fprintf(stderr, "%s was not sent\n", path);
		/* The library keeps it until the client has it. */
		ripc_buf_free(octets);
	} else {
		ripc_send_short(SERVER, m->from, (void **)&reason, &length, 1, NULL, NULL, 0);
	}
	if (fd >= 0)
		close(fd);
}

static int serve(const char *folder)
{
	if (!ripc_register_service_id(SERVER))
		return 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct message m;

		if (receive(SERVER, &m))
			return 1;
		answer(folder, &m);
		give_up(&m);
	}
}

static int get(char *name, uint32_t largest)
{
	uint16_t own = ripc_register_random_service_id();
	uint32_t length = (uint32_t)strlen(name);
	void *room = ripc_buf_alloc(largest);
	struct message m;
	int failed = 1;

	if (!own || !room)
		return 1;
	if (ripc_send_short(own, SERVER, (void **)&name, &length, 1, &room, &largest, 1) || receive(own, &m))
		return 1;
	if (m.num_long == 1) {
		fprintf(stderr, "%u bytes, %s\n", m.long_sizes[0],
			m.long_items[0] == room ? "written into the return buffer" : "read");
		failed = fwrite(m.long_items[0], 1, m.long_sizes[0], stdout) != m.long_sizes[0];
	} else if (m.num_short == 1) {
		fprintf(stderr, "%.*s\n", (int)m.short_sizes[0], (char *)m.short_items[0]);
	}
	give_up(&m);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "server"))
		return serve(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "client"))
		return get(argv[2], (uint32_t)atoi(argv[3]));
	fprintf(stderr, "file_get server FOLDER | file_get client NAME LARGEST\n");
	return 2;
}
