"""Programs whose sockets dgiwarp-ss shows. Arguments: what to be, and the server's port.

Each line on standard input is the next step.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

ROLE = sys.argv[1]
# However the test ends.
signal.alarm(60)


def say(*words):
    print(*words, flush=True)


def step():
    if not sys.stdin.readline():
        os._exit(0)


def echo(sock):
    # A peer that is killed resets an rsocket.
    with sock, contextlib.suppress(ConnectionResetError):
        while octets := sock.recv(1 << 16):
            sock.sendall(octets)


def serve():
    server = socket.create_server(("127.0.0.1", 0))
    say(server.getsockname()[1])
    while True:
        accepted, _ = server.accept()
        threading.Thread(target=echo, args=[accepted], daemon=True).start()


def is_upgraded(sock):
    """The kernel's socket is not connected then."""
    established = 1
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != established


def connect(plain=False):
    while True:
        sock = socket.socket()
        if plain:
            # The socket has a port already.
            sock.bind(("127.0.0.1", 0))
        sock.connect(("127.0.0.1", int(sys.argv[2])))
        # A busy machine may not answer the port query in time.
        if is_upgraded(sock) != plain:
            return sock
        sock.close()
        time.sleep(0.05)


def exchange(sock, octets):
    for start in range(0, octets, 1000):
        some = min(1000, octets - start)
        sock.sendall(bytes(some))
        assert len(sock.recv(some, socket.MSG_WAITALL)) == some


def ask():
    """Exchanges half as many octets again with each step."""
    upgraded, plain = connect(), connect(True)
    plain.sendall(b"abc")
    assert plain.recv(2, socket.MSG_PEEK | socket.MSG_WAITALL) == b"ab"
    assert plain.recv(3, socket.MSG_WAITALL) == b"abc"
    total, more = 0, 20_000
    while True:
        exchange(upgraded, more)
        total += more
        say(total)
        step()
        more = total // 2


def end_sending():
    """One connection with two descriptors, of which one is closed, and then one direction."""
    sock = connect()
    again = sock.dup()
    sock.close()
    say(again.fileno())
    step()
    again.shutdown(socket.SHUT_WR)
    say("shut")
    step()
    again.close()
    say("closed")
    step()


def fork():
    upgraded, plain = connect(), connect(True)
    exchange(upgraded, 100)
    exchange(plain, 100)
    child = os.fork()
    if child:
        say(child)
        os.waitpid(child, 0)
        return
    exchange(plain, 50)
    say("used")
    step()
    own = connect()
    exchange(own, 7)
    say("connected")
    step()


def fill():
    """More plain connections than the table has records, and one when they are closed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 5000:
        say("few")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=2100) for _ in range(2)]
    addresses = [it.getsockname() for it in listeners]
    held = [socket.create_connection(addresses[n % 2]) for n in range(4100)]
    say("full")
    step()
    for sock in held:
        sock.close()
    for listener in listeners:
        listener.close()
    listener = socket.create_server(("127.0.0.1", 0))
    last = socket.create_connection(listener.getsockname())
    last.sendall(b"last")
    say("used again")
    step()


def forge():
    """Memfds of the name, one with each step."""
    header = struct.pack("=8sQQQQQQ", b"dgiwSOCK", 1, os.getpid(), 0, 1, 2, 4096)
    texts = struct.pack("=Q88s", 3, b"\x1b]0;reason\x07\x9b2J\nline") * 24
    for octets in [
        b"",
        b"dgiwSOCK",
        os.urandom(600_000),
        struct.pack("=8sQQQ", b"dgiwSOCK", 7, os.getpid(), 0) + bytes(4000),
        header.ljust(128, b"\0") + texts + os.urandom(600_000),
        header.ljust(128, b"\0") + texts + bytes(128) + records(),
    ]:
        fd = os.memfd_create("dgiwarp-sockets")
        os.write(fd, octets)
        say(len(octets))
        step()
        os.close(fd)


def records():
    """Records that are whole, of a socket of this process."""
    global held
    held = socket.socket()
    inode = os.fstat(held.fileno()).st_ino
    record = struct.pack("=QQQ", 2, 3 | 1 << 8 | 2 << 16 | 3 << 24, inode).ljust(128, b"\xff")
    return record * 5000


{"serve": serve, "ask": ask, "end": end_sending, "fork": fork, "fill": fill, "forge": forge}[ROLE]()
