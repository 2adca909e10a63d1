"""A gRPC server of Debian's grpcio, with handlers of octets: prints its address when it serves."""

import sys
import threading
from concurrent import futures

import grpc

cancelled = 0
produced = 0
changed = threading.Condition()


def add_cancelled():
    global cancelled
    with changed:
        cancelled += 1
        changed.notify_all()


def reflect(context):
    """Metadata of the call goes back: as headers, and as trailers."""
    pairs = [(k, v) for k, v in context.invocation_metadata() if k.startswith("x-")]
    context.send_initial_metadata(pairs)
    context.set_trailing_metadata([("t-" + k, v) for k, v in pairs])


def echo(request, context):
    reflect(context)
    return request


def fail(request, context):
    context.set_trailing_metadata([("reason", "on-purpose"), ("reason-bin", b"\0\xff\n")])
    context.abort(grpc.StatusCode.DATA_LOSS, "no: \u00fc%\n")


def hold(request, context):
    """Waits until the call is cancelled."""
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait()
    add_cancelled()
    return b""


def hold_stream(request, context):
    context.add_callback(add_cancelled)
    context.send_initial_metadata([("x-begun", "yes")])
    gone = threading.Event()
    context.add_callback(gone.set)
    yield b"first"
    gone.wait()


def remaining(request, context):
    """Seconds that the call has left."""
    left = context.time_remaining()
    return b"none" if left is None else str(left).encode()


def counts(request, context):
    """Cancelled handlers, once there are so many, and messages that were produced."""
    with changed:
        changed.wait_for(lambda: cancelled >= int(request), timeout=60)
        return f"{cancelled} {produced}".encode()


def count(request, context):
    number, length = map(int, request.split())
    reflect(context)
    for at in range(number):
        yield bytes([at % 256]) * length


def fail_behind(request, context):
    for at in range(int(request)):
        yield str(at).encode()
    fail(request, context)


def flood(request, context):
    global produced
    while context.is_active():
        produced += 1
        yield bytes(10_000)


def add(requests, context):
    reflect(context)
    return str(sum(len(it) for it in requests)).encode()


def enough(requests, context):
    """Takes one message, and replies before the others."""
    return next(requests)


def unread(requests, context):
    """Takes no message."""
    return hold(b"", context)


def each(requests, context):
    reflect(context)
    for request in requests:
        if request == b"fail":
            fail(request, context)
        yield request


HANDLERS = {
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Hold": grpc.unary_unary_rpc_method_handler(hold),
    "HoldStream": grpc.unary_stream_rpc_method_handler(hold_stream),
    "Remaining": grpc.unary_unary_rpc_method_handler(remaining),
    "Counts": grpc.unary_unary_rpc_method_handler(counts),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "FailBehind": grpc.unary_stream_rpc_method_handler(fail_behind),
    "Flood": grpc.unary_stream_rpc_method_handler(flood),
    "Add": grpc.stream_unary_rpc_method_handler(add),
    "Enough": grpc.stream_unary_rpc_method_handler(enough),
    "Unread": grpc.stream_unary_rpc_method_handler(unread),
    "Each": grpc.stream_stream_rpc_method_handler(each),
}

# Messages of protobuf's, of which request and reply have one form.
GREETER = {
    "Hello": grpc.unary_unary_rpc_method_handler(echo),
    "HelloEach": grpc.stream_stream_rpc_method_handler(each),
}

server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=64),
    options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
)
for name, handlers in [("test.Octets", HANDLERS), ("greeter.v1.Greeter", GREETER)]:
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
address = sys.argv[1]
port = server.add_insecure_port(address)
server.start()
print(address.rsplit(":", 1)[0] + f":{port}" if address.endswith(":0") else address, flush=True)
server.wait_for_termination()
