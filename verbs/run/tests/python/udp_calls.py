"""Random calls on two UDP sockets of one process: what each of them gives is printed, and is the same with and without a queue pair."""

import array
import errno
import fcntl
import random
import select
import socket
import sys
import termios
import time

PATIENCE = 10_000


def attempt(name, call):
    try:
        return "%s %r" % (name, call())
    except OSError as error:
        return "%s %s" % (name, errno.errorcode[error.errno])


class End:
    def __init__(self, host, how):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.socket, select.POLLIN | select.POLLOUT)
        self.epoll = select.epoll()
        self.epoll.register(self.socket, select.EPOLLIN | how)
        self.queued = 0
        self.connected = False

    def wait(self):
        """What was sent has come."""
        if self.queued:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            assert poll.poll(PATIENCE), "a datagram is lost"

    def unread(self):
        room = array.array("i", [0])
        fcntl.ioctl(self.socket, termios.FIONREAD, room)
        return room[0]


def masked(name):
    """The source is named by its end."""
    return lambda it: it if it is None else name.get(it[:2], "unknown")


def step(rng, ends, names, n):
    at = rng.randrange(2)
    end, other = ends[at], ends[1 - at]
    name = masked(names)
    to = other.socket.getsockname()
    lengths = [0, 1, 10, 100, 1472, 5000, 65507, 65508]
    size = rng.choice(lengths) if rng.random() < 0.3 else rng.randrange(200)
    if other.queued and size > 200:
        # Few have room in the kernel's buffer.
        size %= 200
    octets = (b"%d " % n * 65508)[:size]
    what = rng.randrange(14)
    if what < 5:
        if other.queued >= 60:
            return "full"
        if end.connected and rng.random() < 0.5:
            call = rng.choice([lambda: end.socket.send(octets), lambda: end.socket.sendmsg([octets[:7], octets[7:]])])
        else:
            call = rng.choice([
                lambda: end.socket.sendto(octets, to),
                lambda: end.socket.sendto(octets, socket.MSG_DONTWAIT, to),
                lambda: end.socket.sendmsg([octets[:3], b"", octets[3:]], [], 0, to),
            ])
        result = attempt("sent", call)
        other.queued += "E" not in result
        return result
    if what < 10:
        end.wait()
        flags = sum(it for it in [socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_DONTWAIT] if rng.random() < 0.3)
        room = rng.choice([0, 5, 150, 65536])
        into = bytearray(room)

        def message():
            vectors = [bytearray(room // 2), bytearray(room)]
            count, control, found, source = end.socket.recvmsg_into(vectors, 100, flags)
            return count, control, found & socket.MSG_TRUNC, name(source), bytes(vectors[0][:20])

        def from_any():
            count, source = end.socket.recvfrom_into(into, room, flags)
            return count, name(source), bytes(into[:20])

        call = rng.choice([message, from_any])
        result = attempt("received", call)
        if end.queued and not flags & socket.MSG_PEEK:
            end.queued -= 1
        return result
    if what == 10:
        end.wait()
        found = end.poll.poll(0)
        return "poll %r" % [event for _, event in found]
    if what == 11:
        end.wait()
        return "select %r" % [len(it) for it in select.select([end.socket], [end.socket], [], 0)]
    if what == 12:
        end.wait()
        return "first has %d" % end.unread()
    if end.connected:
        return "connected"
    end.connected = True
    return attempt("connect", lambda: end.socket.connect(to))


def run(host, seed):
    rng = random.Random(seed)
    how = rng.choice([0, select.EPOLLET])
    ends = [End(host, how), End(host, how)]
    names = {end.socket.getsockname()[:2]: "end %d" % n for n, end in enumerate(ends)}
    # Enough for a queue pair.
    for n in range(40):
        for end, other in [ends, ends[::-1]]:
            end.socket.sendto(b"%d" % n, other.socket.getsockname())
            assert other.epoll.poll(PATIENCE / 1000), "no event"
            assert other.socket.recv(10) == b"%d" % n
            time.sleep(0.002)
    for n in range(300):
        print(seed, n, step(rng, ends, names, n))
    for end in ends:
        while end.queued:
            end.wait()
            print(seed, "left", end.socket.recv(65536)[:20])
            end.queued -= 1
        print(seed, attempt("none", lambda: end.socket.recv(1)), end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    # An end that has gone is reported to one that is connected.
    ends[1].socket.close()
    if ends[0].connected:
        time.sleep(0.1)
        results = []
        for _ in range(2):
            results.append(attempt("to nobody", lambda: ends[0].socket.send(b"x")))
        print(seed, results)


for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    run(sys.argv[1], seed)
