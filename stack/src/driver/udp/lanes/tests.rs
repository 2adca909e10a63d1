//! Lanes with a peer that writes the shared words as it likes.

use std::fs::File;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;

use dgiwarp_codec::Payload;
use dgiwarp_memory::lane::{Arena, ArenaEnd};

use super::*;
use crate::driver::device::clock;
use crate::driver::same_host::budget::Share;
use crate::driver::udp::memory_port::MemoryPort;

/// Words of lane 1, in which the peer sends, and its ring: offsets in the arena.
const HEAD: u64 = 0x800;
const PLACED: u64 = 0x810;
const START: u64 = 0x880;
const END: u64 = 0x888;
const RESUME: u64 = 0x890;
const RING: u64 = 0x2000 + (1 << 20);
/// Of lane 0, in which it receives.
const SENT: u64 = 0x400;
const TAIL: u64 = 0x500;

/// An end with its port, and a peer that has the descriptor and a port, and nothing else of the lanes.
struct Pair {
    lanes: DatagramLanes,
    port: Port,
    peer: Port,
    file: File,
    buffer: ReceiveBuffer,
}

impl Pair {
    fn new(starts: bool) -> Self {
        let (arena, fd) = Arena::create(20).unwrap();
        let ends = LaneEnds::new(arena.lanes(ArenaEnd::Maker), Share::take(0).unwrap());
        let [one, two] = MemoryPort::network().map(Port::Memory);
        let host = IpAddr::from(Ipv6Addr::LOCALHOST);
        let sibling = |port: &Port, peer: u16| {
            let peer = SocketAddr::new(host, peer);
            port.connect_sibling(peer, host, 0).unwrap()
        };
        let names = (Peer::ip((host, 2).into()), host);
        Self {
            lanes: DatagramLanes::new(ends, starts, names),
            port: sibling(&one, 2),
            peer: sibling(&two, 1),
            file: File::from(fd),
            buffer: ReceiveBuffer::new(),
        }
    }

    fn store(&self, at: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn load(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    }

    /// Sends a datagram, by the lane or the socket. Returns whether the lane took them.
    fn send(&mut self, octets: &[u8]) -> bool {
        let mut train = Train::new();
        train.add(octets.len());
        let pieces = [Piece::Bytes(octets)];
        let now = clock::now();
        let sent = self.lanes.send(now, &self.port, &pieces, &train);
        if !sent {
            self.port
                .send(None, Leave::default(), &pieces, None)
                .unwrap();
            self.lanes.note_sent(now, &train);
        }
        sent
    }

    /// Octets of a datagram that this end receives.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let received = self.lanes.receive(&mut self.port, &mut self.buffer).ok()?;
        Some(self.buffer.octets(received.len).to_vec())
    }

    /// The peer publishes records of one octet each.
    fn publish(&self, octets: &[u8]) {
        let mut at = self.load(HEAD);
        for octet in octets {
            let record = [1, 0, 0, 0, 1, 0, 0, 0, *octet];
            self.file.write_all_at(&record, RING + at).unwrap();
            at += 9;
        }
        self.store(HEAD, at);
    }

    fn send_as_peer(&self, octets: &[u8]) {
        let pieces = [Piece::Bytes(octets)];
        self.peer
            .send(None, Leave::default(), &pieces, None)
            .unwrap();
    }
}

/// Octets of records and words that nobody should send: the lanes are over, and the socket serves.
#[test]
fn impossible_words_end_the_lanes() {
    for (what, head, header) in [
        ("a part of a header", 7, [1, 0, 0, 0, 1, 0, 0, 0]),
        ("nothing", 9, [0, 0, 0, 0, 1, 0, 0, 0]),
        ("more than is there", 9, [2, 0, 0, 0, 1, 0, 0, 0]),
        ("more than fits", 9, [0, 0, 0, 1, 1, 0, 0, 0]),
        ("no stride", 9, [1, 0, 0, 0, 0, 0, 0, 0]),
        ("a longer stride", 9, [1, 0, 0, 0, 2, 0, 0, 0]),
        ("more than the ring has", 1 << 40, [1, 0, 0, 0, 1, 0, 0, 0]),
    ] {
        let mut pair = Pair::new(true);
        pair.file.write_all_at(&header, RING).unwrap();
        pair.store(HEAD, head);
        pair.send_as_peer(b"by the socket");
        assert_eq!(pair.receive().unwrap(), b"by the socket", "{what}");
        assert_eq!(pair.receive(), None, "{what}");
        assert!(pair.lanes.are_over(), "{what}");
        assert!(!pair.send(b"1"), "{what}");
    }
}

/// An end sends by its socket until the peer has received what went there before, whatever it counts.
#[test]
fn a_lane_is_used_behind_what_the_socket_carried() {
    let mut pair = Pair::new(false);
    assert!(!pair.send(b"before the peer has the arena"));
    pair.store(START, 1);
    assert!(!pair.send(b"1"));
    // The first bell, from which the peer counts, came between.
    let mut came = Vec::new();
    while let Ok(received) = pair.peer.receive(&mut pair.buffer) {
        came.push(received.len);
    }
    assert_eq!(came, [29, 0, 1]);
    // One more is under way each time but the last.
    for placed in [1, 2] {
        pair.store(PLACED, placed);
        assert!(!pair.send(b"1"), "{placed}");
    }
    pair.store(PLACED, 4);
    assert!(pair.send(b"1"));
    assert_eq!(pair.load(SENT), 9);
}

/// A lane that is full is used again once the peer has received the rest by the socket too.
#[test]
fn a_full_lane_leaves_the_rest_to_the_socket() {
    let mut pair = Pair::new(true);
    let octets = vec![7; 60_000];
    assert!(!pair.send(&octets));
    pair.store(PLACED, 2);
    let mut count = 0;
    while pair.send(&octets) {
        count += 1;
    }
    assert_eq!(count, (1 << 20) / 60_008);
    // There is room, and one datagram that the peer has not received.
    pair.store(TAIL, pair.load(SENT));
    assert!(!pair.send(&octets));
    pair.store(PLACED, 3);
    assert!(!pair.send(&octets));
    pair.store(PLACED, 5);
    assert!(pair.send(&octets));
}

/// The lane is emptied before the socket, and the peer learns how much came by that.
#[test]
fn the_socket_comes_behind_the_lane_and_is_counted() {
    let mut pair = Pair::new(true);
    pair.send_as_peer(b"not counted");
    pair.send_as_peer(b"");
    pair.publish(b"ab");
    pair.send_as_peer(b"c");
    let mut all = Vec::new();
    while let Some(octets) = pair.receive() {
        all.push(octets);
    }
    assert_eq!(all, [b"a".as_slice(), b"b", b"not counted", b"c"]);
    assert_eq!(pair.load(SENT + 0x10), 2);
}

/// The end that the peer marks is the lanes' end: what is in the lane is received, and the socket serves from then on.
#[test]
fn what_is_in_a_lane_that_has_ended_is_received() {
    let mut pair = Pair::new(true);
    pair.publish(b"ab");
    pair.store(RESUME, 1);
    pair.store(END, 19);
    assert!(!pair.send(b"1"));
    assert!(!pair.lanes.are_over());
    assert_eq!(pair.receive().unwrap(), b"a");
    assert_eq!(pair.receive().unwrap(), b"b");
    assert_eq!(pair.receive(), None);
    assert!(pair.lanes.are_over());
}

/// A datagram of the socket that waits for the lane outlives the lanes.
#[test]
fn what_is_held_is_received_when_the_lanes_have_ended() {
    let mut pair = Pair::new(true);
    pair.send_as_peer(b"c");
    let received = pair.port.receive(&mut pair.buffer).unwrap();
    pair.publish(b"a");
    let Pair {
        lanes,
        port,
        buffer,
        ..
    } = &mut pair;
    let first = lanes.behind_records(received, port, buffer).unwrap();
    assert_eq!(pair.buffer.octets(first.len), b"a");
    pair.lanes.end();
    assert!(!pair.lanes.are_over());
    assert!(pair.lanes.take_unannounced());
    assert_eq!(pair.receive().unwrap(), b"c");
    assert_eq!(pair.receive(), None);
    assert!(pair.lanes.are_over());
}

/// Long records stay in the lane until they are released, in order with short ones.
#[test]
fn long_records_are_found_where_they_lie() {
    let mut pair = Pair::new(true);
    let long: Vec<u8> = (0..2000u32).map(|at| at.to_le_bytes()[0]).collect();
    let header = [0xd0, 7, 0, 0, 0xe8, 3, 0, 0];
    let record = [&header[..], &long].concat();
    pair.file.write_all_at(&record, RING).unwrap();
    pair.store(HEAD, record.len() as u64);
    pair.publish(b"s");
    for _ in 0..2 {
        let polled = pair.lanes.poll_or_find(&pair.port, &mut pair.buffer);
        let Ok(Polled::Found(found)) = polled else {
            panic!("{polled:?}");
        };
        let received = pair.lanes.received(found);
        assert_eq!((received.len, received.stride), (2000, 1000));
        let mut octets = vec![0; 2000];
        Payload::copy(&pair.lanes.found(found), 0, &mut octets);
        assert_eq!(octets, long);
    }
    let polled = pair.lanes.poll_or_find(&pair.port, &mut pair.buffer);
    let Ok(Polled::Found(found)) = polled else {
        panic!("{polled:?}");
    };
    pair.lanes.release_found(found, &pair.port);
    let polled = pair.lanes.poll_or_find(&pair.port, &mut pair.buffer);
    let Ok(Polled::Copied(received)) = polled else {
        panic!("{polled:?}");
    };
    assert_eq!(pair.buffer.octets(received.len), b"s");
    let polled = pair.lanes.poll_or_find(&pair.port, &mut pair.buffer);
    assert_eq!(polled.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(pair.lanes.octets_received, 2001);
}

/// A thread that was woken by a bell alone is told so: no other one took the input. One that polls has found nothing.
#[test]
fn bells_without_records_are_told_from_silence() {
    let mut pair = Pair::new(true);
    let receive = |pair: &mut Pair| {
        let received = pair.lanes.receive(&mut pair.port, &mut pair.buffer);
        received.unwrap_err().kind()
    };
    assert_eq!(receive(&mut pair), io::ErrorKind::WouldBlock);
    pair.send_as_peer(b"");
    assert_eq!(receive(&mut pair), io::ErrorKind::Interrupted);
    assert_eq!(receive(&mut pair), io::ErrorKind::WouldBlock);
    pair.lanes.want_bells(false);
    pair.send_as_peer(b"");
    assert_eq!(receive(&mut pair), io::ErrorKind::WouldBlock);
}
