/* A library to be preloaded: a thread of the program that is in the dgiwarp library, and could be cancelled in one of its system calls, ends the
 * program. Such a cancellation would unwind through frames that hold locks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_ours(void *caller)
{
	static __thread uintptr_t base;
	Dl_info info;
	if (!dladdr(caller, &info) || !info.dli_fname)
		return 0;
	if ((uintptr_t)info.dli_fbase == base)
		return 1;
	if (!strstr(info.dli_fname, "libibverbs.so") && !strstr(info.dli_fname, "librdmacm.so") && !strstr(info.dli_fname, "dgiwarp_verbs"))
		return 0;
	base = (uintptr_t)info.dli_fbase;
	return 1;
}

/* Threads of the library have its name, and nobody cancels them. */
static int is_program_s(void)
{
	char name[16];
	return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strncmp(name, "dgiwarp", 7) != 0;
}

static void check(const char *call, void *caller)
{
	int old;
	if (!is_ours(caller) || !is_program_s())
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	if (old == PTHREAD_CANCEL_ENABLE) {
		dprintf(2, "%s is a cancellation point\n", call);
		abort();
	}
}

/* A call under its own name, and under others that libraries have for it. */
#define POINT(type, name, parameters, arguments)                                                                       \
	type name parameters                                                                                           \
	{                                                                                                              \
		static type (*real) parameters;                                                                        \
		if (!real)                                                                                             \
			real = (type (*) parameters)dlsym(RTLD_NEXT, #name);                                           \
		check(#name, __builtin_return_address(0));                                                             \
		return real arguments;                                                                                 \
	}

POINT(int, accept4, (int fd, struct sockaddr *from, socklen_t *length, int flags), (fd, from, length, flags))
POINT(int, close, (int fd), (fd))
POINT(int, connect, (int fd, const struct sockaddr *to, socklen_t length), (fd, to, length))
POINT(int, poll, (struct pollfd *fds, nfds_t count, int timeout), (fds, count, timeout))
POINT(ssize_t, preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
POINT(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
POINT(ssize_t, read, (int fd, void *at, size_t length), (fd, at, length))
POINT(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count))
POINT(ssize_t, recv, (int fd, void *at, size_t length, int flags), (fd, at, length, flags))
POINT(ssize_t, recvfrom, (int fd, void *at, size_t length, int flags, struct sockaddr *from, socklen_t *size), (fd, at, length, flags, from, size))
POINT(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
POINT(ssize_t, send, (int fd, const void *at, size_t length, int flags), (fd, at, length, flags))
POINT(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
POINT(ssize_t, sendto, (int fd, const void *at, size_t length, int flags, const struct sockaddr *to, socklen_t size), (fd, at, length, flags, to, size))
POINT(ssize_t, write, (int fd, const void *at, size_t length), (fd, at, length))
POINT(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))

#define OPEN(name)                                                                                                     \
	int name(const char *path, int flags, ...)                                                                     \
	{                                                                                                              \
		static int (*real)(const char *, int, ...);                                                            \
		va_list more;                                                                                          \
		va_start(more, flags);                                                                                 \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                \
		va_end(more);                                                                                          \
		if (!real)                                                                                             \
			real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                               \
		check(#name, __builtin_return_address(0));                                                             \
		return real(path, flags, mode);                                                                        \
	}
OPEN(open)
OPEN(open64)
