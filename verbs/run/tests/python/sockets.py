"""Results and readiness of calls on two connected sockets of one process, one line each.

The test compares the lines of TCP sockets with those of rsockets. The argument is 4 or 6.
"""

import array
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import tempfile
import termios
import threading
import time

FAMILY, HOST = {
    "4": (socket.AF_INET, "127.0.0.1"),
    "6": (socket.AF_INET6, "::1"),
}[sys.argv[1]]
POLL = {
    name: getattr(select, name)
    for name in ("POLLIN", "POLLOUT", "POLLERR", "POLLHUP", "POLLRDHUP", "POLLPRI", "POLLNVAL")
}
ALL = select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI


def names(events):
    return "|".join(name for name, bit in POLL.items() if events & bit) or "none"


def ready(sock, events=ALL, timeout=0):
    poll = select.poll()
    poll.register(sock, events)
    found = poll.poll(timeout)
    return names(found[0][1]) if found else "none"


def come(sock, event=select.POLLIN):
    """Events once this one is among them: octets of a TCP socket of this host are there at once, those of an rsocket soon."""
    ready(sock, event, 5000)
    return ready(sock)


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def show(name, *values):
    print(name + ":", *values, flush=True)


def listener():
    sock = socket.socket(FAMILY, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, 0))
    sock.listen(8)
    return sock


def pair(server):
    client = socket.create_connection(server.getsockname()[:2])
    accepted, peer = server.accept()
    assert peer == client.getsockname() == accepted.getpeername(), (peer, client, accepted)
    assert client.getpeername() == accepted.getsockname()
    return client, accepted


def names_and_options(server):
    one, other = pair(server)
    show("types", one.type, other.family)
    show("error", one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    show("nodelay", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    show("keepalive", one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    show("connect again", attempt(one.connect, server.getsockname()))
    show("is a socket", os.fstat(one.fileno()).st_mode >> 12)
    one.close()
    other.close()


def octets(server):
    one, other = pair(server)
    show("new", ready(one), ready(other))
    show("sent", one.send(b"hello"), come(other))
    show("peek", other.recv(3, socket.MSG_PEEK), other.recv(2), ready(other))
    show("rest", other.recv(100), ready(other))
    other.setblocking(False)
    show("empty", attempt(other.recv, 1), attempt(other.recvmsg, 1))
    other.setblocking(True)
    show("no wait", attempt(other.recv, 1, socket.MSG_DONTWAIT))
    show("vectors", one.sendmsg([b"ab", b"", b"cde"]))
    come(other)
    rooms = [bytearray(2), bytearray(9)]
    show("received", other.recvmsg_into(rooms)[:3], bytes(rooms[0]), bytes(rooms[1][:3]))
    one.sendall(b"x" * 100)
    show("all", len(other.recv(100, socket.MSG_WAITALL)))
    one.sendall(b"1234567")
    come(other)
    count = array.array("i", [0])
    fcntl.ioctl(other.fileno(), termios.FIONREAD, count)
    show("FIONREAD", count[0])
    show("recvfrom", other.recvfrom(100))
    show("writev", os.writev(one.fileno(), [b"12", b"345"]), os.read(other.fileno(), 3), os.read(other.fileno(), 3))
    show("nothing", one.send(b""), other.recv(0))
    one.close()
    other.close()


def times(server):
    one, other = pair(server)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 60_000))
    start = time.monotonic()
    show("SO_RCVTIMEO", attempt(other.recv, 1), 0.05 < time.monotonic() - start < 2)
    one.send(b"x")
    show("in time", other.recv(1))
    start = time.monotonic()
    show("poll", ready(other, select.POLLIN, 50), 0.04 < time.monotonic() - start < 2)
    show("select", select.select([other], [other], [other], 0.05)[0:2] == ([], [other]))
    one.send(b"x")
    show("select", select.select([other], [], [other], 5)[0] == [other])
    one.close()
    other.close()


def full(server):
    one, other = pair(server)
    one.setblocking(False)
    sent = 0
    while True:
        try:
            sent += one.send(bytes(1 << 16))
        except BlockingIOError:
            break
    show("full", sent > 1 << 14, ready(one))
    received = 0
    while received < sent:
        received += len(other.recv(1 << 20))
    show("drained", come(one, select.POLLOUT), one.send(b"more"), other.recv(4))
    one.close()
    other.close()


def unread(server):
    for wait in "poll", "error", "block":
        one, other = pair(server)
        one.setblocking(False)
        while attempt(one.send, bytes(1 << 16)) != "EAGAIN":
            pass
        if wait == "block":
            one.setblocking(True)
            closer = threading.Timer(0.2, other.close)
            closer.start()
            while not isinstance(result := attempt(one.send, bytes(1 << 16)), str):
                pass
            show("blocked", result)
            closer.join()
        else:
            other.close()
            show("unread", come(one, select.POLLRDHUP), ready(one))
            if wait == "error":
                show("error", one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            else:
                show("first", attempt(one.send, b"x"))
        show("then", attempt(one.send, b"x"), attempt(one.recv, 1), ready(one))
        one.close()


def ends(server):
    one, other = pair(server)
    one.send(b"last")
    one.shutdown(socket.SHUT_WR)
    show("EPIPE", attempt(one.send, b"x"))
    show("before the end", come(other, select.POLLRDHUP), other.recv(10))
    show("the end", come(other), other.recv(10), other.recv(10))
    show("half", other.send(b"back"), one.recv(10))
    other.close()
    show("both", ready(one, select.POLLIN, 1000), one.recv(10))
    one.close()
    one, other = pair(server)
    one.send(b"last")
    one.close()
    show("closed", ready(other, select.POLLIN, 1000), other.recv(10), other.recv(10))
    other.close()
    show("bad", attempt(os.read, other.fileno(), 1))


def duplicates(server):
    one, other = pair(server)
    again = os.dup(one.fileno())
    third = fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 100)
    number = one.fileno()
    one.close()
    show("dup", os.write(again, b"a"), os.write(third, b"b"), third >= 100)
    come(other)
    os.dup2(third, number)
    os.close(third)
    os.close(again)
    show("dup2", os.write(number, b"c"))
    show("came", other.recv(3, socket.MSG_WAITALL), ready(other))
    os.close(number)
    show("closed", other.recv(1))
    other.close()


def epoll(server, edge):
    one, other = pair(server)
    plain, writer = os.pipe()
    one.setblocking(False)
    other.setblocking(False)
    flag = select.EPOLLET if edge else 0
    name = "edge" if edge else "level"
    with select.epoll() as set:

        def wait(timeout=0.0, most=8):
            found = set.poll(timeout, most)
            return sorted((("other" if fd == other.fileno() else "pipe"), names(events)) for fd, events in found)

        set.register(plain, select.EPOLLIN)
        set.register(other, select.EPOLLIN | flag)
        show(name, wait(0.03), attempt(set.register, other, 1), attempt(set.modify, one, 1), attempt(set.unregister, one))
        one.send(b"abc")
        show(name, wait(5), wait())
        other.recv(1)
        show(name, "partly", wait())
        other.recv(10)
        show(name, "read", wait())
        one.send(b"d")
        os.write(writer, b"x")
        ready(other, select.POLLIN, 1000)
        show(name, "two", sorted(wait(5) + (wait(0.2) if edge else [])))
        os.read(plain, 1)
        other.recv(10)
        set.modify(other, select.EPOLLIN | select.EPOLLOUT | flag)
        show(name, "out", wait(5), wait())
        one.send(b"e")
        ready(other, select.POLLIN, 1000)
        show(name, "in", wait(5), wait())
        other.recv(10)
        set.modify(other, select.EPOLLIN | select.EPOLLONESHOT | flag)
        one.send(b"f")
        show(name, "once", wait(5), wait())
        set.modify(other, select.EPOLLIN | select.EPOLLONESHOT | flag)
        show(name, "again", wait(5), wait())
        set.modify(other, select.EPOLLIN | select.EPOLLRDHUP | flag)
        other.recv(10)
        wait()
        one.shutdown(socket.SHUT_WR)
        ready(other, select.POLLIN, 1000)
        show(name, "end", wait(5), wait())
        other.close()
        show(name, "gone", wait(0.02))
    one.close()
    os.close(plain)
    os.close(writer)


def refill(server):
    one, other = pair(server)
    one.setblocking(False)
    with select.epoll() as set:
        set.register(one, select.EPOLLOUT | select.EPOLLET)
        show("edge of room", [names(events) for _, events in set.poll(1)], set.poll(0))
        sent = 0
        while True:
            try:
                sent += one.send(bytes(1 << 16))
            except BlockingIOError:
                break
        show("full", set.poll(0.02))
        while sent > 0:
            sent -= len(other.recv(1 << 20))
        show("room", [names(events) for _, events in set.poll(5)])
    one.close()
    other.close()


def listening(server):
    with select.epoll() as set:
        set.register(server, select.EPOLLIN)
        show("listener", ready(server, select.POLLIN), set.poll(0))
        client = socket.create_connection(server.getsockname()[:2])
        show("request", ready(server, select.POLLIN, 1000), len(set.poll(1)), select.select([server], [], [], 1)[0] == [server])
        accepted, _ = server.accept()
        show("taken", ready(server, select.POLLIN), set.poll(0), accepted.getblocking())
        server.setblocking(False)
        show("none", attempt(server.accept))
        server.setblocking(True)
        client.close()
        accepted.close()


def files(server):
    one, other = pair(server)
    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789" * 1000)
        file.flush()
        file.seek(5)
        show("sendfile", os.sendfile(one.fileno(), file.fileno(), 2, 3), other.recv(3, socket.MSG_WAITALL))
        show("position", os.lseek(file.fileno(), 0, os.SEEK_CUR))
        show("sendfile", os.sendfile(one.fileno(), file.fileno(), None, 20000), len(other.recv(9995, socket.MSG_WAITALL)))
    reader, writer = os.pipe()
    one.send(b"through a pipe")
    ready(other, select.POLLIN, 1000)
    show("splice", os.splice(other.fileno(), writer, 100), os.read(reader, 100))
    os.write(writer, b"and back")
    show("splice", os.splice(reader, other.fileno(), 100), one.recv(8, socket.MSG_WAITALL))
    os.close(reader)
    os.close(writer)
    one.close()
    other.close()


def unconnected():
    sock = socket.socket(FAMILY, socket.SOCK_STREAM)
    show("unconnected", ready(sock), attempt(sock.recv, 1), attempt(sock.getpeername))
    free = listener()
    address = free.getsockname()
    free.close()
    show("refused", attempt(sock.connect, address))
    sock.close()
    sock = socket.socket(FAMILY, socket.SOCK_STREAM)
    sock.setblocking(False)
    show("refused later", attempt(sock.connect, address), ready(sock, select.POLLOUT, 1000))
    show("error", errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    sock.close()


server = listener()
# The first call that waits for connections makes the listener of rsockets.
ready(server, select.POLLIN)
names_and_options(server)
octets(server)
times(server)
full(server)
unread(server)
ends(server)
duplicates(server)
epoll(server, False)
epoll(server, True)
refill(server)
listening(server)
files(server)
unconnected()
server.close()
