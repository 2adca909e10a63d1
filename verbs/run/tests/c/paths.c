/* Searches the device where the kernel would show it, in every way that a program may. Each line of the output is
 * one way: what it was, and what was found. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODE "/dev/infiniband/uverbs0"
#define HOME "/sys/class/infiniband/dgiwarp0"
#define STATE HOME "/ports/1/state"

static int failures;

static void expect(const char *what, int true)
{
	printf("%s: %s\n", true ? "ok" : "FAILED", what);
	if (!true)
		failures++;
}

static int reads(int fd, const char *text)
{
	char buffer[64] = "";
	int length = fd < 0 ? -1 : (int)read(fd, buffer, sizeof buffer - 1);

	if (fd >= 0)
		close(fd);
	return length == (int)strlen(text) && strcmp(buffer, text) == 0;
}

#define CHECKED(call) expect(#call, (call) != NULL)

static int is_device(const struct dirent *entry)
{
	return strcmp(entry->d_name, "dgiwarp0") == 0;
}

/* stat() as the headers of GNU C libraries before 2.33 have it. */
extern int __xstat(int version, const char *path, struct stat *to);

int main(void)
{
	static char deep[PATH_MAX + 100] = "/sys/class/infiniband/";
	struct stat status;
	struct stat64 status64;
	struct statx statusx;
	struct dirent *entry, **entries = NULL;
	char buffer[PATH_MAX], *found;
	int devices = 0, other;
	ssize_t length;
	FILE *file;
	DIR *directory;

	expect("stat", stat(NODE, &status) == 0 && S_ISCHR(status.st_mode));
	expect("stat64", stat64(NODE, &status64) == 0 && S_ISCHR(status64.st_mode));
	expect("__xstat", __xstat(1, NODE, &status) == 0 && S_ISCHR(status.st_mode));
	expect("lstat", lstat(HOME, &status) == 0 && S_ISDIR(status.st_mode));
	expect("fstatat", fstatat(AT_FDCWD, HOME, &status, 0) == 0 && S_ISDIR(status.st_mode));
	expect("statx", statx(AT_FDCWD, HOME, 0, STATX_TYPE, &statusx) == 0 && S_ISDIR(statusx.stx_mode));
	expect("access", access(NODE, R_OK | W_OK) == 0);
	expect("faccessat", faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0) == 0);
	expect("open", reads(open(STATE, O_RDONLY), "4: ACTIVE\n"));
	expect("open64", reads(open64(STATE, O_RDONLY), "4: ACTIVE\n"));
	expect("openat", reads(openat(AT_FDCWD, STATE, O_RDONLY), "4: ACTIVE\n"));
	other = open(HOME, O_RDONLY | O_DIRECTORY);
	expect("openat below", reads(openat(other, "ports/1/state", O_RDONLY), "4: ACTIVE\n"));
	file = fopen(STATE, "r");
	expect("fopen", file && fgets(buffer, sizeof buffer, file) && strcmp(buffer, "4: ACTIVE\n") == 0);
	length = readlink(NODE, buffer, sizeof buffer);
	expect("readlink", length == 9 && memcmp(buffer, "/dev/null", 9) == 0);
	expect("realpath", realpath(HOME "/ports/../device", buffer) && strcmp(buffer, HOME "/device") == 0);
	found = realpath(HOME, NULL);
	expect("realpath of its own", found && strcmp(found, HOME) == 0);
	directory = opendir("/sys/class/infiniband");
	while (directory && (entry = readdir(directory)))
		devices += is_device(entry);
	expect("opendir", devices == 1);
	expect("scandir", scandir("/sys/class/infiniband", &entries, is_device, alphasort) == 1);

	char here[PATH_MAX];
	glob_t found_paths = { .gl_offs = 2 };
	expect("glob", glob("/sys/class/infiniband/*/ports/1/stat[e]", GLOB_DOOFFS, NULL, &found_paths) == 0 && found_paths.gl_pathc == 1 &&
	       strcmp(found_paths.gl_pathv[2], STATE) == 0);
	expect("glob appends", glob("/dev/nul[l]", GLOB_DOOFFS | GLOB_APPEND, NULL, &found_paths) == 0 && found_paths.gl_pathc == 2 &&
	       strcmp(found_paths.gl_pathv[2], STATE) == 0 && strcmp(found_paths.gl_pathv[3], "/dev/null") == 0);
	globfree(&found_paths);
	CHECKED(getcwd(here, sizeof here));
	expect("chdir", chdir(HOME) == 0 && reads(open("ports/1/state", O_RDONLY), "4: ACTIVE\n"));
	expect("getcwd", getcwd(buffer, sizeof buffer) && strcmp(buffer, HOME) == 0);
	found = get_current_dir_name();
	expect("get_current_dir_name", found && strcmp(found, HOME) == 0);
	expect("chdir up", chdir("../..") == 0 && getcwd(buffer, sizeof buffer) && strcmp(buffer, "/sys/class") == 0);
	expect("chdir back", chdir(here) == 0 && getcwd(buffer, sizeof buffer) && strcmp(buffer, here) == 0);

	/* Missing files are missing here too, and other paths are as they were. */
	expect("no such file", open(HOME "/none", O_RDONLY) == -1 && errno == ENOENT);
	memset(deep + strlen(deep), 'x', PATH_MAX);
	expect("too long", open(deep, O_RDONLY) == -1 && errno == ENAMETOOLONG);
	expect("no path", stat(NULL, &status) == -1 && errno == EFAULT);
	expect("other", stat("/dev/null", &status) == 0 && S_ISCHR(status.st_mode));
	expect("other realpath", realpath("/proc/self/../1", buffer) && strcmp(buffer, "/proc/1") == 0);
	snprintf(buffer, sizeof buffer, "mode-%d", getpid());
	umask(0);
	other = open(buffer, O_WRONLY | O_CREAT | O_EXCL, 0640);
	expect("mode", other >= 0 && stat(buffer, &status) == 0 && (status.st_mode & 0777) == 0640);
	unlink(buffer);
	return failures ? 1 : 0;
}
