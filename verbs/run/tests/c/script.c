// One end of the scripts of oracle.rs: calls on sockets by lines of standard input, their results as lines of standard output.
//
// A result is that of the call, the name of errno after a failure, and what the call gave. A line that begins with "!" may wait; others that would are
// "waits" without a call. Descriptors are named by slots.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLOTS 6
#define MOST (1 << 20)

static int slots[SLOTS], set = -1, listener = -1, file, pipes[2];
static uint32_t position;
static volatile sig_atomic_t broken;
static unsigned char room[MOST];
static struct sockaddr_in server;

static void on_pipe(int signal) { (void)signal; broken++; }
static void on_alarm(int signal) { (void)signal; }

/// Octets to send: those of the stream from `position` on.
static void fill(unsigned octets) {
    for (unsigned n = 0; n < octets; n++)
        room[n] = (unsigned char)((position + n) * 2654435761u >> 24);
}

static void sent(ssize_t octets) {
    if (octets > 0)
        position += (uint32_t)octets;
}

static void result(long value) {
    printf("%ld", value);
    if (value < 0)
        printf(" %s", strerrorname_np(errno) ? strerrorname_np(errno) : "?");
}

/// Octets of vectors that were filled, and whether anything behind them was changed.
static void received(const struct iovec *vectors, int count, ssize_t octets) {
    uint32_t sum = 2166136261u;
    unsigned changed = 0;
    for (int at = 0; at < count; at++) {
        for (size_t n = 0; n < vectors[at].iov_len; n++) {
            unsigned char octet = ((unsigned char *)vectors[at].iov_base)[n];
            if (octets-- > 0)
                sum = (sum ^ octet) * 16777619u;
            else
                changed += octet != 0xa5;
        }
    }
    printf(" %08x", sum);
    if (changed)
        printf(" changed %u", changed);
}

static int vectors(struct iovec *to, const long *lengths, int count) {
    size_t at = 0;
    for (int n = 0; n < count; n++) {
        to[n].iov_base = room + at;
        to[n].iov_len = (size_t)lengths[n];
        at += (size_t)lengths[n];
    }
    return (int)at;
}

/// Whether a call that receives would wait, by the kernel.
static int waits(int fd, long octets, int all) {
    int found = 0, flags = fcntl(fd, F_GETFL);
    struct timeval time = {0};
    socklen_t length = sizeof time;
    if (flags < 0 || flags & O_NONBLOCK)
        return 0;
    if (!getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &length) && (time.tv_sec || time.tv_usec))
        return 0;
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&one, 1, 0) <= 0)
        return 1;
    if (!all || one.revents & (POLLRDHUP | POLLERR | POLLHUP))
        return 0;
    return !ioctl(fd, FIONREAD, &found) && found < octets;
}

static void name(int (*get)(int, struct sockaddr *, socklen_t *), int fd) {
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    result(get(fd, (struct sockaddr *)&address, &length));
    printf(" %u %u %s port %u.", length, address.sin_family, inet_ntoa(address.sin_addr), ntohs(address.sin_port));
}

static void option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    result(getsockopt(fd, level, name, &value, &length));
    if (level == SOL_SOCKET && name == SO_ERROR && value > 0)
        printf(" %s", strerrorname_np(value));
    else
        printf(" %d", value);
    printf(" %u", length);
}

static void set_time(int fd, int name, long millis) {
    struct timeval time = {.tv_sec = millis / 1000, .tv_usec = millis % 1000 * 1000};
    result(setsockopt(fd, SOL_SOCKET, name, &time, sizeof time));
}

static void select_one(int fd, long sets, long millis) {
    fd_set all[3];
    struct timeval time = {.tv_sec = millis / 1000, .tv_usec = millis % 1000 * 1000};
    for (int n = 0; n < 3; n++) {
        FD_ZERO(&all[n]);
        if (sets >> n & 1 && fd >= 0)
            FD_SET(fd, &all[n]);
    }
    result(select(fd + 1, &all[0], &all[1], &all[2], &time));
    for (int n = 0; n < 3; n++)
        printf(" %d", fd >= 0 && FD_ISSET(fd, &all[n]) ? 1 : 0);
}

static int by_data(const void *one, const void *other) {
    uint64_t a = ((const struct epoll_event *)one)->data.u64, b = ((const struct epoll_event *)other)->data.u64;
    return a < b ? -1 : a > b;
}

static void wait_set(long most, long millis) {
    struct epoll_event events[8] = {{0}};
    int count = epoll_wait(set, events, (int)most, (int)millis);
    result(count);
    if (count > 0)
        qsort(events, (size_t)count, sizeof *events, by_data);
    for (int n = 0; n < count; n++)
        printf(" %x:%llx", events[n].events, (unsigned long long)events[n].data.u64);
}

static void receive_message(int fd, const long *lengths, int flags) {
    struct iovec to[2];
    char control[64];
    struct sockaddr_in from;
    vectors(to, lengths, 2);
    struct msghdr message = {.msg_iov = to, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control, .msg_name = &from, .msg_namelen = sizeof from, .msg_flags = 0x5555};
    ssize_t octets = recvmsg(fd, &message, flags);
    result(octets);
    received(to, 2, octets);
    if (octets >= 0)
        printf(" %x %zu %u", message.msg_flags, message.msg_controllen, message.msg_namelen);
}

/// What can be asked without a change.
static void state(int fd) {
    int found = -1;
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP | POLLPRI};
    poll(&one, 1, 0);
    result(ioctl(fd, FIONREAD, &found));
    printf(" %d %x", found, one.revents);
}

static void close_all(void) {
    for (int n = 0; n < SLOTS; n++) {
        if (slots[n] >= 0)
            close(slots[n]);
        slots[n] = -1;
    }
    if (set >= 0)
        close(set);
    set = epoll_create1(0);
    position = 0;
}

static void drain(void) {
    ssize_t octets = read(pipes[0], room, MOST);
    struct iovec all = {room, octets > 0 ? (size_t)octets : 0};
    received(&all, 1, octets);
}

/// Two messages of a vector each; the result is their octets.
static void many_messages(int fd, const long *lengths, int flags, int receives) {
    struct iovec all[2];
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &all[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &all[1], .msg_iovlen = 1}}};
    int octets = vectors(all, lengths, 2);
    if (!receives)
        fill((unsigned)octets);
    int count = receives ? recvmmsg(fd, messages, 2, flags, NULL) : sendmmsg(fd, messages, 2, flags);
    octets = 0;
    for (int n = 0; n < count; n++)
        octets += (int)messages[n].msg_len;
    result(count < 0 ? -1 : octets);
    printf(" %d", count);
    if (!receives)
        sent(octets);
    for (int n = 0; receives && n < count; n++)
        received(&all[n], 1, messages[n].msg_len);
}

/// Moves many octets, whether the socket waits or not.
static void move_all(int fd, short event, long octets) {
    uint32_t sum = 2166136261u;
    long done = 0;
    while (done < octets) {
        struct pollfd one = {.fd = fd, .events = event};
        if (poll(&one, 1, 2500) <= 0)
            break;
        fill(event == POLLOUT ? (unsigned)(octets - done) : 0);
        ssize_t some = event == POLLIN ? recv(fd, room, (size_t)(octets - done), 0) : send(fd, room, (size_t)(octets - done), MSG_NOSIGNAL);
        if (some < 0 && errno == EAGAIN)
            continue;
        if (some <= 0)
            break;
        for (ssize_t n = 0; event == POLLIN && n < some; n++)
            sum = (sum ^ room[n]) * 16777619u;
        if (event == POLLOUT)
            sent(some);
        done += some;
    }
    printf("%ld %08x", done, sum);
}

static int run(const char *call, int fd, long *a, int may_wait) {
    struct iovec some[3];
    ssize_t octets;
    int receives = !strncmp(call, "re", 2) || !strcmp(call, "spliceout");
    if (receives) {
        memset(room, 0xa5, MOST);
        int flagged = !strcmp(call, "recv") || !strcmp(call, "recvfrom");
        long flags = flagged ? a[1] : !strncmp(call, "recvm", 5) ? a[2] : 0;
        long all = flagged ? a[0] : a[0] + a[1];
        if (!may_wait && !(flags & MSG_DONTWAIT) && waits(fd, all, !!(flags & MSG_WAITALL)))
            return printf("waits");
    }
#define IS(name) (!strcmp(call, name))
    if (IS("send") || IS("write")) {
        fill((unsigned)a[0]);
        sent(octets = IS("send") ? send(fd, room, (size_t)a[0], (int)a[1]) : write(fd, room, (size_t)a[0]));
        result(octets);
    } else if (IS("writev") || IS("sendmsg")) {
        int count = IS("writev") ? 3 : 2;
        fill((unsigned)vectors(some, a, count));
        struct msghdr message = {.msg_iov = some, .msg_iovlen = 2};
        sent(octets = IS("writev") ? writev(fd, some, 3) : sendmsg(fd, &message, (int)a[2]));
        result(octets);
    } else if (IS("sendfile")) {
        off_t at = a[1];
        sent(octets = sendfile(fd, file, &at, (size_t)a[0]));
        result(octets);
        printf(" %ld", (long)at);
    } else if (IS("splicein")) {
        fill((unsigned)a[0]);
        octets = a[0] ? write(pipes[1], room, (size_t)a[0]) : 0;
        sent(octets = splice(pipes[0], NULL, fd, NULL, (size_t)a[0], a[1] ? SPLICE_F_NONBLOCK : 0));
        result(octets);
        drain();
    } else if (IS("spliceout")) {
        octets = splice(fd, NULL, pipes[1], NULL, (size_t)a[0], SPLICE_F_NONBLOCK);
        result(octets);
        drain();
    } else if (IS("recv") || IS("read")) {
        some[0] = (struct iovec){room, 4096 > a[0] ? 4096 : (size_t)a[0]};
        octets = IS("recv") ? recv(fd, room, (size_t)a[0], (int)a[1]) : read(fd, room, (size_t)a[0]);
        result(octets);
        received(some, 1, octets);
    } else if (IS("recvfrom")) {
        struct sockaddr_in from = {0};
        socklen_t length = sizeof from;
        some[0] = (struct iovec){room, 4096 > a[0] ? 4096 : (size_t)a[0]};
        octets = recvfrom(fd, room, (size_t)a[0], (int)a[1], (struct sockaddr *)&from, &length);
        result(octets);
        received(some, 1, octets);
        printf(" %u", octets < 0 ? 0 : length);
    } else if (IS("readv")) {
        vectors(some, a, 3);
        octets = readv(fd, some, 3);
        result(octets);
        received(some, 3, octets);
    } else if (IS("take") || IS("give")) {
        move_all(fd, IS("take") ? POLLIN : POLLOUT, a[0]);
    } else if (IS("bind")) {
        struct sockaddr_in any = {.sin_family = AF_INET};
        result(bind(fd, (struct sockaddr *)&any, sizeof any));
    } else if (IS("recvmany") || IS("sendmany")) {
        many_messages(fd, a, (int)a[2], IS("recvmany"));
    } else if (IS("recvmsg")) {
        receive_message(fd, a, (int)a[2]);
    } else if (IS("shutdown")) {
        result(shutdown(fd, (int)a[0]));
    } else if (IS("nonblock")) {
        result(fcntl(fd, F_SETFL, a[0] ? O_NONBLOCK : 0));
    } else if (IS("fionbio")) {
        int on = (int)a[0];
        result(ioctl(fd, FIONBIO, &on));
    } else if (IS("getfl")) {
        result(fcntl(fd, F_GETFL));
    } else if (IS("getfd")) {
        result(fcntl(fd, F_GETFD));
    } else if (IS("rcvtimeo") || IS("sndtimeo")) {
        set_time(fd, IS("rcvtimeo") ? SO_RCVTIMEO : SO_SNDTIMEO, a[0]);
    } else if (IS("getopt")) {
        option(fd, (int)a[0], (int)a[1]);
    } else if (IS("setopt")) {
        int value = (int)a[2];
        result(setsockopt(fd, (int)a[0], (int)a[1], &value, sizeof value));
    } else if (IS("sockname")) {
        name(getsockname, fd);
    } else if (IS("peername")) {
        name(getpeername, fd);
    } else if (IS("again")) {
        result(connect(fd, (struct sockaddr *)&server, sizeof server));
    } else if (IS("listenon")) {
        result(listen(fd, 1));
    } else if (IS("acceptat")) {
        result(accept4(fd, NULL, NULL, SOCK_NONBLOCK));
    } else if (IS("state")) {
        state(fd);
    } else if (IS("poll")) {
        struct pollfd one = {.fd = fd, .events = (short)a[0]};
        struct timespec time = {.tv_sec = a[1] / 1000, .tv_nsec = a[1] % 1000 * 1000000};
        result(a[2] ? ppoll(&one, 1, &time, NULL) : poll(&one, 1, (int)a[1]));
        printf(" %x", one.revents);
    } else if (IS("select")) {
        select_one(fd, a[0], a[1]);
    } else if (IS("ctl")) {
        struct epoll_event event = {.events = (uint32_t)a[1], .data.u64 = (uint64_t)a[2]};
        result(epoll_ctl(set, (int)a[0], fd, &event));
    } else {
        return 0;
    }
    return 1;
}

static int descriptor(const char *call, int slot, const long *a) {
    int *to = &slots[a[0] >= 0 && a[0] < SLOTS ? a[0] : 0];
    if (IS("close")) {
        result(close(slots[slot]));
        slots[slot] = -1;
    } else if (IS("dup") || IS("dupfd")) {
        if (*to >= 0)
            return printf("in use");
        *to = IS("dup") ? dup(slots[slot]) : fcntl(slots[slot], F_DUPFD_CLOEXEC, 50);
        result(*to < 0 ? -1 : 0);
    } else if (IS("dup2")) {
        if (*to < 0 || slots[slot] < 0)
            return printf("not there");
        result(dup2(slots[slot], *to) == *to ? 0 : -1);
    } else if (IS("wait")) {
        wait_set(a[0], a[1]);
    } else {
        return 0;
    }
    return 1;
}

/// Calls that begin a connection. A system call beside the C library's shows whether the kernel's socket is connected.
static int begin(const char *call, int slot, const long *a) {
    socklen_t length = sizeof server;
    if (IS("listen")) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        server.sin_family = AF_INET;
        server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        bind(listener, (struct sockaddr *)&server, length);
        listen(listener, 16);
        getsockname(listener, (struct sockaddr *)&server, &length);
        struct pollfd one = {.fd = listener, .events = POLLIN};
        poll(&one, 1, 0);
        printf("%u", ntohs(server.sin_port));
    } else if (IS("connect")) {
        server.sin_family = AF_INET;
        server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        server.sin_port = htons((uint16_t)a[0]);
        slots[slot] = socket(AF_INET, SOCK_STREAM | (a[1] ? SOCK_NONBLOCK : 0), 0);
        int found = connect(slots[slot], (struct sockaddr *)&server, length);
        struct pollfd one = {.fd = slots[slot], .events = POLLOUT};
        if (found < 0 && errno == EINPROGRESS)
            found = poll(&one, 1, 5000) == 1 ? connect(slots[slot], (struct sockaddr *)&server, length) : -1;
        result(found);
    } else if (IS("accept")) {
        slots[slot] = accept4(listener, NULL, NULL, (int)a[0]);
        result(slots[slot] < 0 ? -1 : 0);
    } else if (IS("iskernels")) {
        struct sockaddr_in peer;
        result(syscall(SYS_getpeername, slots[slot], &peer, &length));
    } else if (IS("reset")) {
        close_all();
        result(0);
    } else {
        return 0;
    }
    return 1;
}

int main(void) {
    char line[256], call[32];
    struct sigaction act = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &act, NULL);
    act.sa_handler = on_alarm;
    sigaction(SIGALRM, &act, NULL);
    memset(slots, -1, sizeof slots);
    close_all();
    file = fileno(tmpfile());
    fill(100000);
    if (write(file, room, 100000) != 100000 || pipe2(pipes, O_NONBLOCK))
        return 1;
    while (fgets(line, sizeof line, stdin)) {
        int slot = 0, may_wait = line[0] == '!';
        long a[4] = {0};
        sscanf(line + may_wait, "%31s %d %ld %ld %ld %ld", call, &slot, &a[0], &a[1], &a[2], &a[3]);
        slot = slot >= 0 && slot < SLOTS ? slot : 0;
        broken = 0;
        struct itimerval limit = {.it_value = {.tv_sec = 3}};
        setitimer(ITIMER_REAL, &limit, NULL);
        if (!begin(call, slot, a) && !descriptor(call, slot, a) && !run(call, slots[slot], a, may_wait))
            printf("no such call");
        limit.it_value.tv_sec = 0;
        setitimer(ITIMER_REAL, &limit, NULL);
        if (broken)
            printf(" SIGPIPE %d", broken);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
