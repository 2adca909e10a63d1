"""Programs of UDP sockets, which know nothing of rsockets."""

import asyncio
import os
import select
import signal
import socket
import sys
import time

LONGEST = 65507


def made(host, bound_to=None):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    it = socket.socket(family, socket.SOCK_DGRAM)
    if bound_to is not None:
        it.bind((host, bound_to))
    return it


def serve(host, port):
    it = made(host, port)
    while True:
        octets, source = it.recvfrom(LONGEST)
        it.sendto(octets, source)


def serve_by(waiter):
    def serve(host, port):
        it = made(host, port)
        it.setblocking(False)
        waits = waiter(it)
        while True:
            waits()
            while True:
                try:
                    octets, source = it.recvfrom(LONGEST)
                except BlockingIOError:
                    break
                it.sendto(octets, source)
    return serve


def by_poll(it):
    poll = select.poll()
    poll.register(it, select.POLLIN)
    return poll.poll


def by_select(it):
    return lambda: select.select([it], [], [])


def by_epoll(flags):
    def by(it):
        epoll = select.epoll()
        epoll.register(it, select.EPOLLIN | flags)

        def wait():
            assert epoll.poll()
            if flags & select.EPOLLONESHOT:
                epoll.modify(it, select.EPOLLIN | flags)
        return wait
    return by


def serve_async(host, port):
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, octets, source):
            self.transport.sendto(octets, source)

    async def main():
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(Echo, local_addr=(host, port))
        await asyncio.Event().wait()
    asyncio.run(main())


def pause(n):
    """Gives the libraries time to find each other behind the first datagrams."""
    if n < 50:
        time.sleep(0.004)


def sizes():
    return [0, 1, 1472, 8192, LONGEST - 1, LONGEST] + [64] * 200 + [0, LONGEST, 3]


def ask(host, port):
    it = made(host)
    it.settimeout(10)
    for n, size in enumerate(sizes()):
        octets = (b"%d " % n * LONGEST)[:size]
        it.sendto(octets, (host, port))
        found, source = it.recvfrom(LONGEST)
        assert found == octets, (n, size, found[:20])
        pause(n)
        assert source[:2] == (host, port), source
    print("echoed")


def ask_connected(host, port):
    it = made(host)
    it.connect((host, port))
    it.settimeout(10)
    for n in range(200):
        assert it.send(b"%d" % n) == len(b"%d" % n)
        assert it.recv(100) == b"%d" % n
        pause(n)
    print("echoed")


def ask_in_flight(host, port):
    """Many at once come in order, and none is lost, while the way changes from the one to the other."""
    it = made(host)
    it.settimeout(10)
    sent = 0
    for burst in [1, 7, 1, 1, 50, 1, 100, 150, 100]:
        for n in range(burst):
            it.sendto(b"%d" % (sent + n), (host, port))
        for n in range(burst):
            found = it.recv(100)
            assert found == b"%d" % (sent + n), (sent + n, found)
        sent += burst
        if burst == 150:
            time.sleep(0.2)
    print("echoed")


def answer(it, to, octets, patience):
    """Asks until an answer comes. Returns the seconds that it took."""
    begun = time.monotonic()
    it.settimeout(0.05)
    while time.monotonic() - begun < patience:
        try:
            it.sendto(octets, to)
            while it.recv(LONGEST) != octets:
                pass
            return time.monotonic() - begun
        except (TimeoutError, ConnectionRefusedError):
            pass
    raise SystemExit("no answer to %r in %s seconds" % (octets, patience))


def ask_again(host, port, servers):
    """Each server is killed behind some datagrams, and the next one has its address."""
    connected = made(host)
    connected.connect((host, port))
    for server in servers:
        words = server.split()
        child = os.spawnvp(os.P_NOWAIT, words[0], words)
        # A destination that had no queue pair is asked again after a second.
        time.sleep(1)
        to = made(host)
        for it in [to, connected]:
            answer(it, (host, port), b"first of " + server.encode(), 20)
            for n in range(100):
                answer(it, (host, port), b"%d" % n, 5)
                pause(n)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        refused = False
        for _ in range(100):
            try:
                connected.send(b"to nobody")
            except ConnectionRefusedError:
                refused = True
                break
            time.sleep(0.01)
        assert refused, "datagrams to a server that is gone vanish"
    print("echoed by all")


def fork(host, port):
    """A child uses its parent's socket, and goes on behind it."""
    it = made(host)
    it.connect((host, port))
    for n in range(200):
        answer(it, (host, port), b"parent %d" % n, 10)
        pause(n)
    child = os.fork()
    if child == 0:
        for n in range(200):
            answer(it, (host, port), b"child %d" % n, 10)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for n in range(200):
        answer(it, (host, port), b"again %d" % n, 10)
    print("both echoed")


def serve_forked(host, port):
    """A server whose child takes the socket over behind the first datagrams."""
    it = made(host, port)
    for n in range(50):
        octets, source = it.recvfrom(LONGEST)
        it.sendto(octets, source)
    if os.fork() > 0:
        # The parent has the socket, and never reads it.
        signal.pause()
    while True:
        octets, source = it.recvfrom(LONGEST)
        it.sendto(octets, source)


def ask_forked(host, port):
    it = made(host)
    for n in range(200):
        answer(it, (host, port), b"%d" % n, 20)
        pause(n)
    print("echoed")


def duplicates(host, port):
    it = made(host)
    it.connect((host, port))
    other = it.dup()
    for n in range(100):
        it.send(b"%d" % n)
        assert other.recv(10) == b"%d" % n
        pause(n)
    it.close()
    for n in range(100):
        other.send(b"%d" % n)
        assert other.recv(10) == b"%d" % n
    print("echoed")


def options(host, port):
    """An option that no queue pair gives makes the socket plain, and the next one not."""
    it = made(host)
    it.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
    it.settimeout(10)
    for n in range(100):
        it.sendto(b"%d" % n, (host, port))
        octets, control, _, _ = it.recvmsg(10, 100)
        assert octets == b"%d" % n and len(control) == 1, control
    print("echoed with a TTL")


def quick(host, port):
    """Datagrams of a process that ends at once arrive."""
    it = made(host)
    for n in range(50):
        answer(it, (host, port), b"%d" % n, 10)
        pause(n)
    for n in range(150):
        it.sendto(b"last %d" % n, (host, port))


def collect(host, port):
    """Echoes, and tells how many last datagrams have come."""
    it = made(host, port)
    last = 0
    while last < 150:
        octets, source = it.recvfrom(LONGEST)
        if octets.startswith(b"last"):
            assert octets == b"last %d" % last, octets
            last += 1
        else:
            it.sendto(octets, source)
    print("all came")


def elsewhere(host, port):
    """Datagrams to a port of another host reach no socket of this one."""
    server = made("0.0.0.0", port)
    server.settimeout(5)
    it = made(host)
    for n in range(50):
        it.sendto(b"%d" % n, (host, port))
        assert server.recv(10) == b"%d" % n
        pause(n)
    for n in range(50):
        try:
            it.sendto(b"not for this host", ("192.0.2.77", port))
        except OSError:
            pass
    time.sleep(0.2)
    for n in range(50):
        it.sendto(b"%d" % n, (host, port))
        assert server.recv(100) == b"%d" % n
    print("none came")


def show(host, port):
    """Sockets of this process, as dgiwarp-ss has them."""
    server = made(host, port)
    it = made(host)
    other = made(host)
    other.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
    for n in range(100):
        for end in [it, other]:
            end.sendto(b"%100d" % n, (host, port))
            _, source = server.recvfrom(100)
            server.sendto(b"%100d" % n, source)
            end.recv(100)
        pause(n)
    words = [os.environ["SS"], "--all", "--json", "-p", str(os.getpid())]
    sys.stdout.flush()
    os.waitpid(os.spawnve(os.P_NOWAIT, words[0], words, {}), 0)


MODES = {
    "show": show,
    "elsewhere": elsewhere,
    "serve": serve,
    "serve-poll": serve_by(by_poll),
    "serve-select": serve_by(by_select),
    "serve-epoll": serve_by(by_epoll(0)),
    "serve-edges": serve_by(by_epoll(select.EPOLLET)),
    "serve-once": serve_by(by_epoll(select.EPOLLONESHOT)),
    "serve-async": serve_async,
    "serve-forked": serve_forked,
    "ask": ask,
    "ask-connected": ask_connected,
    "ask-in-flight": ask_in_flight,
    "ask-forked": ask_forked,
    "duplicates": duplicates,
    "fork": fork,
    "options": options,
    "quick": quick,
    "collect": collect,
}

if sys.argv[1] == "ask-again":
    ask_again(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
else:
    MODES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
