/* Check of all C tests: one that fails ends the program with the line that it stands in. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
