//! MPA's startup, at both ends.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_conform::wire::ddp::opcode;
use dgiwarp_conform::wire::startup::{
    C, Depths, HEADER, M, NOT_NEGOTIATED, R, REPLY, REQUEST, S, Startup,
};

use super::device::{AcceptWith, World};
use super::out::Out;
use super::stream;

/// `enum rdma_cm_event_type`.
const CONNECT_ERROR: u64 = 5;
const UNREACHABLE: u64 = 6;
const REJECTED: u64 = 8;
const ESTABLISHED: u64 = 9;

/// How long a startup frame may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Takes a frame with this key; `None` if it is improper.
fn frame(world: &World, stream: &mut TcpStream, key: &[u8; 16]) -> Option<Startup> {
    let mut header = [0; HEADER];
    if world.does("startup-in-one-piece") {
        // It takes what is there for all that there is.
        let there = stream.peek(&mut header).ok()?;
        if there < HEADER {
            return None;
        }
    }
    stream.read_exact(&mut header[..16]).ok()?;
    if header[..16] != key[..] && !world.does("keys-unchecked") {
        return None;
    }
    stream.read_exact(&mut header[16..]).ok()?;
    let mut frame = Startup::parse(&header);
    let most = if world.does("private-data-of-any-length") {
        usize::MAX
    } else {
        512
    };
    let length = usize::from(frame.pd_length);
    if length > most {
        return None;
    }
    frame.private_data = vec![0; length];
    stream.read_exact(&mut frame.private_data).ok()?;
    if world.does("reserved-bits-refused") && frame.flags & 0x0f != 0 {
        return None;
    }
    Some(frame)
}

/// Takes a connection.
pub(super) fn respond(mut stream: TcpStream, world: &Arc<World>) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(LIMIT));
    let Some(request) = frame(world, &mut stream, &REQUEST) else {
        return;
    };
    let known = matches!(request.revision, 1..) && request.revision <= world.with.setup.revision
        || world.does("revision-0-repeated") && request.revision == 0
        || world.does("revision-0-enhanced-without-depths") && request.revision == 0;
    let enhanced = request.revision == 2 && request.has(S);
    if !known || enhanced && request.depths().is_none() && !world.does("depths-missing-accepted") {
        return;
    }
    let (with, asked) = (
        world.state().accept_with.clone(),
        request.depths().filter(|_| enhanced).unwrap_or_default(),
    );
    let mut depths = Depths::client_server(with.ird, with.ord.min(asked.ird));
    if asked.ird == NOT_NEGOTIATED {
        depths.ord = NOT_NEGOTIATED;
    }
    if asked.ord == NOT_NEGOTIATED {
        depths.ird = NOT_NEGOTIATED;
    }
    if asked.peer_to_peer {
        depths.peer_to_peer = true;
        depths.write = asked.write;
        depths.read = asked.read && !asked.write;
        depths.send = !depths.write && !depths.read;
    }
    let asks = world.with.setup.crc && !world.does("crc-not-asked");
    let mut flags = if asks { C } else { 0 } | if world.with.setup.markers { M } else { 0 };
    if with.reject && !world.does("rejects-without-bit") {
        flags |= R;
    }
    let mut data = Vec::new();
    match world.with.setup.fault {
        "reply-ord-above-ird" if asked.ird != NOT_NEGOTIATED => {
            depths.ord = depths.ord.max(asked.ird + 1).min(0x3ffe)
        }
        "reply-not-all-ones" => {
            depths.ord = depths.ord.min(4);
            depths.ird = depths.ird.min(4);
        }
        "reply-without-a" if asked.peer_to_peer => {
            depths = Depths::client_server(depths.ird, depths.ord);
        }
        "reply-a-unasked" if !asked.peer_to_peer => {
            depths.peer_to_peer = true;
            depths.write = true;
        }
        "reply-flags-without-a" if !asked.peer_to_peer => depths.write = true,
        "reply-no-rtr" => (depths.send, depths.write, depths.read) = (false, false, false),
        _ => {}
    }
    let mut answers = enhanced;
    match world.with.setup.fault {
        "reply-plain-to-enhanced" | "reply-revision-1" => answers = false,
        "reply-enhanced-to-plain" if request.revision == 2 => answers = true,
        _ => {}
    }
    if with.reject && world.does("rejection-without-depths") {
        answers = false;
    }
    if answers {
        flags |= S;
        data.extend(depths.to_bytes());
    }
    let silent = if with.reject {
        "rejection-says-nothing"
    } else {
        "reply-says-nothing"
    };
    if !world.does(silent) {
        data.extend(&with.private_data);
    }
    if world.does("private-data-rounded") {
        data.resize(data.len().next_multiple_of(4), 0);
    }
    if world.does("revision-0-enhanced-without-depths") && request.revision == 0 {
        flags |= S;
        data.clear();
    }
    if world.does("reply-reserved-bits") {
        flags |= 0x04;
    }
    if world.does("reply-refuses-markers") && request.has(M) {
        flags |= R;
    }
    if world.does("reply-private-data-of-600") {
        data.resize(600, 0);
    }
    let mut reply = Startup::new(REPLY, flags, request.revision, &data);
    match world.with.setup.fault {
        "reply-revision-3" => reply.revision = 3,
        "reply-revision-1" => reply.revision = 1,
        "reply-revision-2-to-1" => reply.revision = 2,
        "reply-key-of-request" => reply.key = REQUEST,
        _ => {}
    }
    let mut octets = reply.to_bytes();
    // Markers would have to go on behind it.
    if world.does("fpdu-behind-reply") && !request.has(M) {
        let crc = (request.flags | flags) & C != 0;
        let mut framer = dgiwarp_conform::wire::framing::Framer::new(crc, request.has(M));
        let write = dgiwarp_conform::wire::ddp::Segment::tagged(opcode::WRITE, 0, 0, &[]);
        octets.extend(framer.fpdu(&write.to_bytes()));
    }
    let mut out = Out::new(&stream, world.with.setup.fault, &world.with.sends);
    out.octets(octets);
    if with.reject {
        return out.finish();
    }
    let crc = (request.flags | flags) & C != 0;
    out.full_operation(crc, request.has(M));
    let number = {
        let mut state = world.state();
        let number = state.connection(out, &with, false);
        if let Some(connection) = state.connections.get_mut(&number) {
            connection.crc = crc;
            connection.ord = if enhanced {
                depths.ord.min(with.ord)
            } else {
                with.ord
            };
            connection.rtr_send = depths.send;
            connection.events.push_back(ESTABLISHED);
        }
        number
    };
    world.tell();
    stream::run(world, number, stream, world.with.setup.markers);
}

/// Connects, for the connection that was made for it.
pub(super) fn request(world: &Arc<World>, to: SocketAddr, with: AcceptWith) -> Option<u64> {
    let stream = TcpStream::connect_timeout(&to, LIMIT).ok()?;
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(LIMIT));
    let out = Out::new(&stream, world.with.setup.fault, &world.with.sends);
    let number = {
        let mut state = world.state();
        state.connection(out, &with, true)
    };
    let world = Arc::clone(world);
    std::thread::spawn(move || {
        let (event, markers) = ask(&world, number, stream, (to, &with.private_data));
        let _ = markers;
        if let Some(event) = event {
            if let Some(connection) = world.state().connections.get_mut(&number) {
                connection.events.push_back(event);
            }
            world.tell();
        }
    });
    Some(number)
}

/// Asks, and goes on; an event if nothing comes of it.
fn ask(
    world: &Arc<World>,
    number: u64,
    mut stream: TcpStream,
    (to, said): (SocketAddr, &[u8]),
) -> (Option<u64>, bool) {
    let fault = world.with.setup.fault;
    let mut revision = world.with.setup.revision;
    let (ird, ord) = {
        let state = world.state();
        let Some(connection) = state.connections.get(&number) else {
            return (None, false);
        };
        (connection.ird, connection.ord)
    };
    let mut flags =
        if world.with.setup.crc { C } else { 0 } | if world.with.setup.markers { M } else { 0 };
    let mut asked = Depths {
        peer_to_peer: true,
        write: true,
        read: true,
        ..Depths::client_server(ird, ord)
    };
    match fault {
        "request-flags-without-a" => asked.peer_to_peer = false,
        "request-a-without-flags" => (asked.write, asked.read) = (false, false),
        "request-reserved-bits" => flags |= 0x02,
        "request-rejects" => flags |= R,
        _ => {}
    }
    let reply = loop {
        let mut data = Vec::new();
        let mut all = flags;
        if revision == 2 {
            all |= S;
            data.extend(asked.to_bytes());
        }
        if !world.does("request-says-nothing") {
            data.extend(said);
        }
        if world.does("private-data-rounded") {
            data.resize(data.len().next_multiple_of(4), 0);
        }
        match fault {
            "request-s-with-revision-1" => all |= S,
            "request-without-depths" if revision == 2 => data.truncate(2),
            "request-private-data-of-600" => data.resize(600, 0),
            _ => {}
        }
        let mut frame_of = Startup::new(REQUEST, all, revision, &data);
        if fault == "request-revision-3" {
            frame_of.revision = 3;
        }
        let mut octets = frame_of.to_bytes();
        if fault == "fpdu-behind-request" {
            let mut framer =
                dgiwarp_conform::wire::framing::Framer::new(world.with.setup.crc, false);
            let write = dgiwarp_conform::wire::ddp::Segment::tagged(opcode::WRITE, 0, 0, &[]);
            octets.extend(framer.fpdu(&write.to_bytes()));
        }
        if let Some(connection) = world.state().connections.get_mut(&number) {
            connection.out.octets(octets);
        }
        // RFC 6581 §10: a peer that closes may know revision 1 only.
        let closed = matches!(stream.peek(&mut [0; 1]), Ok(0));
        if closed && revision == 2 && world.does("established-though-closed") {
            return (Some(ESTABLISHED), false);
        }
        if !closed || revision == 1 {
            break frame(world, &mut stream, &REPLY);
        }
        revision = 1;
        let Ok(again) = TcpStream::connect_timeout(&to, LIMIT) else {
            return (Some(UNREACHABLE), false);
        };
        let _ = again.set_nodelay(true);
        let _ = again.set_read_timeout(Some(LIMIT));
        stream = again;
        if let Some(connection) = world.state().connections.get_mut(&number) {
            connection.out = Out::new(&stream, fault, &world.with.sends);
        }
    };
    let Some(reply) = reply else {
        end(world, number);
        return (Some(CONNECT_ERROR), false);
    };
    let plain = world.does("plain-rejection-ignored") && revision == 2 && !reply.has(S);
    if reply.has(R) && !world.does("rejection-ignored") && !plain {
        end(world, number);
        return (Some(REJECTED), false);
    }
    let crc = (reply.flags | flags) & C != 0;
    {
        let mut state = world.state();
        let Some(connection) = state.connections.get_mut(&number) else {
            return (None, false);
        };
        connection.crc = crc;
        connection.out.full_operation(crc, reply.has(M));
        connection.open = true;
        let depths = reply.depths().filter(|_| revision == 2 && reply.has(S));
        if let Some(given) = depths {
            let limited = given.ord != NOT_NEGOTIATED || world.does("all-ones-in-reply-refused");
            let served = world.does("insufficient-ird-accepted");
            if given.ord > connection.ird && limited && !served {
                connection.out.terminate((2, 0, 6), None, false);
                connection.over = true;
            } else {
                if given.ird != NOT_NEGOTIATED && fault != "reads-beyond-the-depth" {
                    connection.ord = connection.ord.min(given.ird);
                }
                rtr(connection, asked, given, fault);
            }
        }
        if !connection.over {
            connection.events.push_back(ESTABLISHED);
        } else {
            connection.events.push_back(CONNECT_ERROR);
        }
    }
    world.tell();
    stream::run(world, number, stream, world.with.setup.markers);
    (None, false)
}

/// Sends the RTR indication that both have.
fn rtr(connection: &mut super::device::Connection, asked: Depths, given: Depths, fault: &str) {
    if !given.peer_to_peer || fault == "no-rtr-indication" {
        return;
    }
    let write = asked.write && given.write;
    let read = asked.read && given.read;
    let (write, read) = match fault {
        "other-rtr-indication" if write != read => (read, write),
        _ => (write, read),
    };
    if write {
        connection.out.tagged(opcode::WRITE, 0, 0, &[]);
    } else if read {
        let request = dgiwarp_conform::wire::ddp::ReadRequest {
            sink_stag: 1,
            sink_to: 0,
            size: 0,
            source_stag: 1,
            source_to: 0,
        };
        connection.asked.push_back(super::device::Asked {
            work: 0,
            stag: 1,
            to: 0,
            size: 0,
            got: 0,
            atomic: false,
        });
        connection
            .out
            .untagged(opcode::READ_REQUEST, 1, 0, &request.to_bytes());
    } else if fault != "no-common-rtr-accepted" {
        connection.out.terminate((2, 0, 7), None, false);
        connection.over = true;
    }
}

fn end(world: &World, number: u64) {
    if let Some(connection) = world.state().connections.get_mut(&number) {
        connection.over = true;
        connection.out.finish();
    }
}
