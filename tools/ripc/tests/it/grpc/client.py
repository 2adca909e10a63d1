"""Calls of Debian's grpcio, with messages of octets: `client.py ADDRESS SCENARIO...`. Fails where a reply is another one."""

import sys
import threading
import time

import grpc

SOON = 60
PATH = "/test.Octets/"
METADATA = [("x-text", "there"), ("x-text", "twice"), ("x-octets-bin", b"\0\xff\n")]

channel = grpc.insecure_channel(
    sys.argv[1],
    options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
)


def unary(name, request, timeout=SOON, **more):
    return channel.unary_unary(PATH + name).with_call(request, timeout=timeout, **more)


def pattern(at, length):
    return bytes([at % 256]) * length


def failure(call, code, text=None):
    """The error that a call has to end with."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        assert text is None or text in error.details(), error
        return error
    raise AssertionError(f"{code} did not come")


def has_metadata(call):
    got = list(call.initial_metadata())
    assert [it for it in got if it[0].startswith("x-")] == METADATA, got
    got = list(call.trailing_metadata())
    assert [it for it in got if it[0].startswith("t-x-")] == [("t-" + k, v) for k, v in METADATA], got


def is_whole(error):
    assert error.details() == "no: \u00fc%\n", error.details()
    trailing = dict(error.trailing_metadata())
    assert trailing["reason"] == "on-purpose" and trailing["reason-bin"] == b"\0\xff\n", trailing


def calls():
    for length in [0, 1, 100, 65_531, 65_536, 100_000, 5_000_000]:
        reply, call = unary("Echo", pattern(7, length), metadata=METADATA)
        assert reply == pattern(7, length)
        has_metadata(call)
    is_whole(failure(lambda: unary("Fail", b""), grpc.StatusCode.DATA_LOSS))
    failure(lambda: unary("None", b""), grpc.StatusCode.UNIMPLEMENTED)
    # Many at once, of which none gets another's reply.
    echo = channel.unary_unary(PATH + "Echo")
    futures = [echo.future(str(at).encode() * 50, timeout=SOON) for at in range(500)]
    for at, future in enumerate(futures):
        assert future.result() == str(at).encode() * 50


def streams():
    replies = channel.unary_stream(PATH + "Count")(b"300 20000", timeout=SOON, metadata=METADATA)
    assert list(replies) == [pattern(at, 20_000) for at in range(300)]
    has_metadata(replies)
    assert list(channel.unary_stream(PATH + "Count")(b"0 0", timeout=SOON)) == []
    requests = (pattern(at, 10_000) for at in range(300))
    reply, call = channel.stream_unary(PATH + "Add").with_call(requests, timeout=SOON, metadata=METADATA)
    assert reply == b"3000000"
    has_metadata(call)
    # Each request is made when the reply to the one before is there.
    turn = threading.Semaphore(1)

    def requests():
        for at in range(100):
            turn.acquire()
            yield pattern(at, 1000 * (at % 3))

    replies = channel.stream_stream(PATH + "Each")(requests(), timeout=SOON, metadata=METADATA)
    for at in range(100):
        assert next(replies) == pattern(at, 1000 * (at % 3))
        turn.release()
    assert list(replies) == []
    has_metadata(replies)
    # A failure behind messages, and in the middle of requests.
    replies = channel.unary_stream(PATH + "FailBehind")(b"3", timeout=SOON)
    assert [next(replies) for _ in range(3)] == [b"0", b"1", b"2"]
    is_whole(failure(lambda: next(replies), grpc.StatusCode.DATA_LOSS))
    requests = (it for it in [b"a", b"fail", b"b"])
    replies = channel.stream_stream(PATH + "Each")(requests, timeout=SOON)
    assert next(replies) == b"a"
    is_whole(failure(lambda: next(replies), grpc.StatusCode.DATA_LOSS))
    # The reply comes before the requests end.
    more = threading.Event()

    def endless():
        yield b"one"
        more.wait(SOON)

    assert channel.stream_unary(PATH + "Enough")(endless(), timeout=SOON) == b"one"
    more.set()


def deadlines():
    begun = time.monotonic()
    failure(lambda: unary("Hold", b"", timeout=0.5), grpc.StatusCode.DEADLINE_EXCEEDED)
    replies = channel.unary_stream(PATH + "HoldStream")(b"", timeout=0.5)
    assert next(replies) == b"first"
    failure(lambda: next(replies), grpc.StatusCode.DEADLINE_EXCEEDED)
    assert time.monotonic() - begun < 30
    left = float(unary("Remaining", b"", timeout=40)[0])
    assert 0 < left < 41, left
    left = channel.unary_unary(PATH + "Remaining")(b"")
    assert left == b"none" or float(left) > 1e6, left
    assert unary("Counts", b"2")[0].split()[0] == b"2"


def cancelled():
    before = int(unary("Counts", b"0")[0].split()[0])
    future = channel.unary_unary(PATH + "Hold").future(b"")
    replies = channel.unary_stream(PATH + "HoldStream")(b"")
    assert next(replies) == b"first"
    held = threading.Event()

    def requests():
        yield b"one"
        held.wait(SOON)

    both = channel.stream_stream(PATH + "Each")(requests())
    assert next(both) == b"one"
    # The one without a stream has begun, too.
    time.sleep(0.5)
    for call in [future, replies, both]:
        assert call.cancel()
    held.set()
    after = int(unary("Counts", str(before + 2).encode())[0].split()[0])
    assert after == before + 2, after


def stands_still(count):
    """Returns a number once it grows no more."""
    last = -1
    for _ in range(100):
        time.sleep(0.3)
        now = count()
        if now == last:
            return now
        last = now
    raise AssertionError(f"{now} messages, and no end")


def slow():
    """A reader that does not read stops its sender, and no other call of the connection."""
    floods = [channel.unary_stream(PATH + "Flood")(b"") for _ in range(8)]
    for flood in floods:
        next(flood)
    # Of 10,000 octets each; grpcio itself takes 4 MiB for each stream.
    messages = stands_still(lambda: int(unary("Counts", b"0")[0].split()[1]))
    assert messages < 8 * 1000, messages
    assert unary("Echo", pattern(1, 200_000))[0] == pattern(1, 200_000)
    sent = 0

    def requests():
        nonlocal sent
        while True:
            sent += 1
            yield bytes(10_000)

    unread = [channel.stream_unary(PATH + "Unread").future(requests()) for _ in range(8)]
    messages = stands_still(lambda: sent)
    assert 8 < messages < 8 * 1000, messages
    assert unary("Echo", pattern(1, 200_000))[0] == pattern(1, 200_000)
    for call in floods + unread:
        call.cancel()


def big():
    """Nothing of a long message is kept between the two ends."""
    message = pattern(1, 200_000_000)
    assert unary("Echo", message)[0] == message


def unavailable():
    begun = time.monotonic()
    failure(lambda: unary("Echo", b"", timeout=50), grpc.StatusCode.UNAVAILABLE)
    replies = channel.unary_stream(PATH + "Count")(b"3 3", timeout=50)
    failure(lambda: next(replies), grpc.StatusCode.UNAVAILABLE)
    assert time.monotonic() - begun < 30


TOO_LONG = "a message of 100001 bytes"


def long_requests():
    """Requests of at most 100,000 octets are taken."""
    assert unary("Echo", pattern(1, 100_000))[0] == pattern(1, 100_000)
    failure(lambda: unary("Echo", bytes(100_001)), grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LONG)
    add = channel.stream_unary(PATH + "Add")
    requests = (bytes(length) for length in [10, 100_001])
    failure(lambda: add(requests, timeout=SOON), grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LONG)


def long_replies():
    """Replies of at most 100,000 octets are taken."""
    assert unary("Echo", pattern(1, 100_000))[0] == pattern(1, 100_000)
    failure(lambda: unary("Echo", bytes(100_001)), grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LONG)
    replies = channel.unary_stream(PATH + "Count")(b"2 100001", timeout=SOON)
    failure(lambda: next(replies), grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LONG)


def calls_again():
    """The connection goes on, also behind metadata that are too long."""
    long = [("x-long", "a" * 3_500), ("x-longer", "b" * 3_500)]
    assert unary("Echo", b"one", metadata=long)[0] == b"one"
    long += [(key + "-too", value) for key, value in 2 * long]
    failure(lambda: unary("Echo", b"", metadata=long), grpc.StatusCode.RESOURCE_EXHAUSTED)
    echo()


def echo():
    assert unary("Echo", b"there", wait_for_ready=True)[0] == b"there"


def echo_soon():
    """A service that was just started may not be found at once."""
    end = time.monotonic() + SOON
    while True:
        try:
            return echo()
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() < end, error


def three_cancelled(count=3):
    assert unary("Counts", str(count).encode())[0].split()[0] == str(count).encode()


def six_cancelled():
    three_cancelled(6)


def greeter():
    """A service of protobuf's: strings and octets in fields 1 and 2."""

    def text(value):
        return bytes([10, len(value)]) + value

    def method(kind, name):
        return getattr(channel, kind)("/greeter.v1.Greeter/" + name)

    reply, call = method("unary_unary", "Hello").with_call(text(b"you"), timeout=SOON, metadata=METADATA)
    assert reply == text(b"Hello you!"), reply
    replies = method("unary_stream", "HelloOften")(text(b"3"), timeout=SOON)
    assert list(replies) == [text(b"0"), text(b"1"), text(b"2")]
    assert method("stream_unary", "HelloAll")(iter([text(b"a"), text(b"b")]), timeout=SOON) == text(b"ab")
    replies = method("stream_stream", "HelloEach")(iter([text(b"a"), text(b"b")]), timeout=SOON)
    assert list(replies) == [text(b"a"), text(b"b")]
    error = failure(lambda: method("unary_unary", "Hello")(text(b"fail"), timeout=SOON), grpc.StatusCode.DATA_LOSS)
    is_whole(error)
    call = method("unary_unary", "Hello")
    failure(lambda: call(text(b"hold"), timeout=0.5), grpc.StatusCode.DEADLINE_EXCEEDED)
    future = call.future(text(b"hold"))
    time.sleep(0.5)
    future.cancel()
    failure(lambda: method("unary_unary", "None")(b"", timeout=SOON), grpc.StatusCode.UNIMPLEMENTED)


def lost():
    """Calls under way whose server is killed once a line of standard input asks for it."""
    future = channel.unary_unary(PATH + "Hold").future(b"", timeout=SOON)
    replies = channel.unary_stream(PATH + "HoldStream")(b"", timeout=SOON)
    assert next(replies) == b"first"
    flood = channel.unary_stream(PATH + "Flood")(b"", timeout=SOON)
    assert len(next(flood)) == 10_000
    time.sleep(0.3)
    print("under way", flush=True)
    for call in [lambda: future.result(), lambda: next(replies), lambda: list(flood)]:
        failure(call, grpc.StatusCode.UNAVAILABLE)
    print("over", flush=True)


def held():
    """Calls under way until the process is killed."""
    replies = [channel.unary_stream(PATH + "HoldStream")(b"") for _ in range(3)]
    for reply in replies:
        assert next(reply) == b"first"
    print("under way", flush=True)
    time.sleep(SOON)


for scenario in sys.argv[2:]:
    globals()[scenario]()
