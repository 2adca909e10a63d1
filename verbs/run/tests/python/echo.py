"""Ends of connections: echo servers, and clients of them. Arguments: what to be, address, port."""

import asyncio
import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time

ROLE, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


def connect():
    return socket.create_connection((HOST, PORT), 10)


async def handle(reader, writer):
    while octets := await reader.read(1 << 16):
        writer.write(octets)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve():
    server = await asyncio.start_server(handle, HOST, PORT)
    async with server:
        await server.serve_forever()


async def ask(n):
    reader, writer = await asyncio.open_connection(HOST, PORT)
    octets = bytes((n + i) % 251 for i in range(300_000))
    writer.write(octets)
    writer.write_eof()
    assert await reader.read() == octets
    writer.close()
    await writer.wait_closed()


async def ask_many():
    await asyncio.gather(*(ask(n) for n in range(10)))
    print("echoed")


def serve_until_killed():
    """Accepts one connection and does nothing with it."""
    with socket.create_server((HOST, PORT), family=socket.AF_INET6 if ":" in HOST else socket.AF_INET) as server:
        accepted, _ = server.accept()
        time.sleep(60)


def wait_for_the_end():
    sock = connect()
    sock.settimeout(None)
    try:
        end = sock.recv(1)
        assert end == b""
    except ConnectionResetError:
        pass
    print("the peer is gone")


def serve_by_workers():
    """Processes that share a listening socket; the first never accepts."""
    with socket.create_server((HOST, PORT)) as server:
        workers = []
        for _ in range(2):
            worker = os.fork()
            if worker == 0:
                while True:
                    accepted, _ = server.accept()
                    accepted.sendall(accepted.recv(100, socket.MSG_WAITALL))
                    accepted.close()
            workers.append(worker)
        for worker in workers:
            os.waitpid(worker, 0)


def ask_workers(connections=20):
    for n in range(connections):
        sock = connect()
        octets = bytes([n]) * 100
        sock.sendall(octets)
        sock.settimeout(10)
        assert sock.recv(100, socket.MSG_WAITALL) == octets
        sock.close()
    print("echoed")


def serve_by_threads():
    """Threads wait at an epoll set to which the one that accepts adds connections."""
    connections = {}
    with socket.create_server((HOST, PORT)) as server, select.epoll() as connected:

        def echo():
            while True:
                for number, _ in connected.poll():
                    if octets := connections[number].recv(1 << 16):
                        connections[number].sendall(octets)
                    else:
                        connected.unregister(number)
                        connections.pop(number).close()
                    if connections.get(number):
                        connected.modify(number, select.EPOLLIN | select.EPOLLONESHOT)

        for _ in range(3):
            threading.Thread(target=echo, daemon=True).start()
        while True:
            accepted, _ = server.accept()
            # All wait again by then.
            time.sleep(0.05)
            connections[accepted.fileno()] = accepted
            connected.register(accepted, select.EPOLLIN | select.EPOLLONESHOT)


def ask_threads():
    """Connections one after the other, and then some at once, so that the set has none between, or has one always."""
    for together in [1, 1, 4, 1]:
        socks = [connect() for _ in range(together)]
        for n in range(3):
            for sock in socks:
                sock.sendall(bytes([n]) * 100)
                assert sock.recv(100, socket.MSG_WAITALL) == bytes([n]) * 100
        for sock in socks:
            sock.close()
        time.sleep(0.1)
    print("echoed")


def greet():
    """Tells each connection its number, and closes it at once."""
    with socket.create_server((HOST, PORT)) as server:
        for n in range(1 << 16):
            accepted, _ = server.accept()
            accepted.sendall(bytes([n % 256]))
            accepted.close()


def be_greeted():
    first = None
    for n in range(300):
        sock = connect()
        number = sock.recv(2, socket.MSG_WAITALL)
        first = number[0] if first is None else first
        assert number == bytes([(first + n) % 256]), (first, n, number)
        sock.close()
    print("greeted")


def serve_by_children():
    """Forks for each connection."""
    with socket.create_server((HOST, PORT)) as server:
        while True:
            accepted, _ = server.accept()
            child = os.fork()
            if child == 0:
                try:
                    accepted.sendall(accepted.recv(100, socket.MSG_WAITALL))
                finally:
                    os._exit(0)
            accepted.close()
            os.waitpid(child, 0)


def ask_children():
    """The first connection fails, and so do those made before its child has noticed; later ones are plain."""
    failed = 0
    # On a busy machine the first ones may be plain.
    for _ in range(100):
        sock = connect()
        sock.settimeout(10)
        try:
            sock.sendall(b"x" * 100)
            octets = sock.recv(100, socket.MSG_WAITALL)
        except ConnectionResetError:
            octets = b""
        sock.close()
        failed += not octets
        if octets and failed:
            break
        time.sleep(0.02)
    assert failed and octets
    ask_workers()


def fork():
    """A child cannot use its parent's connection, and the parent can, also after children that close it and run programs."""
    sock = connect()
    sock.sendall(b"before")
    assert sock.recv(6, socket.MSG_WAITALL) == b"before"
    child = os.fork()
    if child == 0:
        try:
            sock.send(b"x")
            os._exit(1)
        except OSError as error:
            other = connect()
            other.sendall(b"own")
            own = other.recv(3, socket.MSG_WAITALL) == b"own"
            sock.close()
            other.close()
            os._exit(0 if own and error.errno == errno.EIO else 2)
    assert os.waitpid(child, 0)[1] == 0
    # By vfork(2) or posix_spawn(3), and by fork(2).
    subprocess.run(["true"], check=True)
    subprocess.run(["true"], check=True, preexec_fn=os.getpid)
    sock.sendall(b"after")
    assert sock.recv(5, socket.MSG_WAITALL) == b"after"
    sock.close()
    print("the parent goes on")


def listen_anew():
    """Listens at the port of a listener that was closed, and accepts only what its client has connected by then."""
    with socket.create_server((HOST, PORT)) as server:
        control, _ = server.accept()
    with control, socket.create_server((HOST, PORT)) as server:
        control.sendall(b"listening")
        assert control.recv(9, socket.MSG_WAITALL) == b"connected"
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"accepted")


def connect_anew():
    with connect() as control:
        assert control.recv(9, socket.MSG_WAITALL) == b"listening"
        with connect() as sock:
            control.sendall(b"connected")
            assert sock.recv(8, socket.MSG_WAITALL) == b"accepted"
    print("accepted")


match ROLE:
    case "serve":
        asyncio.run(serve())
    case "ask":
        asyncio.run(ask_many())
    case "silent":
        serve_until_killed()
    case "wait":
        wait_for_the_end()
    case "workers":
        serve_by_workers()
    case "ask-workers":
        ask_workers()
    case "ask-often":
        ask_workers(200)
    case "greet":
        greet()
    case "be-greeted":
        be_greeted()
    case "threads":
        serve_by_threads()
    case "ask-threads":
        ask_threads()
    case "children":
        serve_by_children()
    case "ask-children":
        ask_children()
    case "fork":
        fork()
    case "listen-anew":
        listen_anew()
    case "connect-anew":
        connect_anew()
