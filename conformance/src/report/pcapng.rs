//! A case's connections as a packet file: the octets as they were sent and received, in Ethernet, IP and TCP headers that are
//! made up, or UDP. TCP's own segments are not in it.

use std::net::{IpAddr, SocketAddr};
use std::time::UNIX_EPOCH;

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};

use crate::recording::{Conversation, Piece, Way};
use crate::run::Done;

/// The longest payload of one packet.
const MOST: usize = 16_384;

/// The file; every connection's first packet has the case's name as a comment.
#[must_use]
pub fn pcapng(done: &Done) -> Vec<u8> {
    let mut file = Vec::new();
    // Section header: byte order, version 1.0, length unknown. Interface: Ethernet.
    block(
        &mut file,
        0x0a0d_0d0a,
        &[
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
        ],
    );
    block(&mut file, 1, &[1, 0, 0, 0, 0, 0, 0, 0]);
    for (number, conversation) in (1..).zip(done.recorder.conversations()) {
        let comment = format!("{} {}, connection {number}", done.case.id, done.case.about);
        if conversation.datagrams {
            datagrams(&mut file, &conversation, &comment);
        } else {
            packets(&mut file, &conversation, &comment);
        }
    }
    file
}

/// One block of little-endian pcapng.
fn block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = u32::try_from(12 + body.len().next_multiple_of(4)).unwrap_or(u32::MAX);
    file.extend(kind.to_le_bytes());
    file.extend(length.to_le_bytes());
    file.extend(body);
    file.resize(file.len().next_multiple_of(4), 0);
    file.extend(length.to_le_bytes());
}

/// Effect of a packet besides carrying octets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Syn,
    Push,
    Fin,
}

fn microseconds(piece: &Piece) -> u64 {
    let since = piece.at.duration_since(UNIX_EPOCH).ok();
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

fn datagrams(file: &mut Vec<u8>, conversation: &Conversation, comment: &str) {
    let mut comment = Some(comment);
    for piece in &conversation.pieces {
        let (from, to) = ends(conversation, piece.way);
        let udp = headers(from, to).udp(from.port(), to.port());
        let mut packet = Vec::with_capacity(udp.size(piece.octets.len()));
        if udp.write(&mut packet, &piece.octets).is_ok() {
            block_of(file, &packet, microseconds(piece), comment.take());
        }
    }
}

fn packets(file: &mut Vec<u8>, conversation: &Conversation, comment: &str) {
    let at = |index: usize| conversation.pieces.get(index).map_or(0, microseconds);
    // The next octet of ours and of theirs; the end is sent once.
    let mut next = [1_u32, 1];
    let first = if conversation.we_connected {
        Way::Sent
    } else {
        Way::Received
    };
    let second = if conversation.we_connected {
        Way::Received
    } else {
        Way::Sent
    };
    let mut comment = Some(comment);
    for way in [first, second] {
        let numbers = (0, u32::from(way == second));
        write(
            file,
            conversation,
            way,
            numbers,
            Flag::Syn,
            &[],
            at(0),
            comment.take(),
        );
    }
    let mut ended = [false; 2];
    for (index, piece) in conversation.pieces.iter().enumerate() {
        let (mine, other) = match piece.way {
            Way::Sent => (0, 1),
            Way::Received => (1, 0),
        };
        if piece.octets.is_empty() {
            if !std::mem::replace(&mut ended[mine], true) {
                write(
                    file,
                    conversation,
                    piece.way,
                    (next[mine], next[other]),
                    Flag::Fin,
                    &[],
                    at(index),
                    None,
                );
                next[mine] = next[mine].wrapping_add(1);
            }
            continue;
        }
        for octets in piece.octets.chunks(MOST) {
            write(
                file,
                conversation,
                piece.way,
                (next[mine], next[other]),
                Flag::Push,
                octets,
                at(index),
                None,
            );
            next[mine] = next[mine].wrapping_add(u32::try_from(octets.len()).unwrap_or(0));
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the fields of one packet")]
fn write(
    file: &mut Vec<u8>,
    conversation: &Conversation,
    way: Way,
    (sequence, acknowledged): (u32, u32),
    flag: Flag,
    octets: &[u8],
    microseconds: u64,
    comment: Option<&str>,
) {
    let (from, to) = ends(conversation, way);
    let mut tcp = headers(from, to).tcp(from.port(), to.port(), sequence, 65_535);
    tcp = match flag {
        Flag::Syn => tcp.syn(),
        Flag::Push => tcp.psh(),
        Flag::Fin => tcp.fin(),
    };
    if flag != Flag::Syn || acknowledged != 0 {
        tcp = tcp.ack(acknowledged);
    }
    let mut packet = Vec::with_capacity(tcp.size(octets.len()));
    // Writing to a Vec fails only for what is longer than a packet can be, and MOST is less.
    if tcp.write(&mut packet, octets).is_err() {
        return;
    }
    block_of(file, &packet, microseconds, comment);
}

/// Where a packet comes from and goes to.
fn ends(conversation: &Conversation, way: Way) -> (SocketAddr, SocketAddr) {
    match way {
        Way::Sent => (conversation.ours, conversation.theirs),
        Way::Received => (conversation.theirs, conversation.ours),
    }
}

fn headers(from: SocketAddr, to: SocketAddr) -> PacketBuilderStep<IpHeaders> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (from, to) => ethernet.ipv6(v6(from), v6(to), 64),
    }
}

/// An enhanced packet block.
fn block_of(file: &mut Vec<u8>, packet: &[u8], microseconds: u64, comment: Option<&str>) {
    let length = u32::try_from(packet.len())
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    let [b0, b1, b2, b3, high @ ..] = microseconds.to_le_bytes();
    let mut body = vec![0; 4];
    body.extend(high);
    body.extend([b0, b1, b2, b3]);
    body.extend(length);
    body.extend(length);
    body.extend(packet);
    body.resize(body.len().next_multiple_of(4), 0);
    if let Some(comment) = comment {
        body.extend([1, 0]);
        body.extend(u16::try_from(comment.len()).unwrap_or(0).to_le_bytes());
        body.extend(comment.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([0; 4]);
    }
    block(file, 6, &body);
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
