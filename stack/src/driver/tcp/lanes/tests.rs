//! Lanes with a peer that writes its socket and the shared words as it likes.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dgiwarp_memory::lane::{Arena, ArenaEnd};

use super::*;
use crate::driver::device::clock;
use crate::driver::same_host::budget::Share;

/// Words of lane 1, in which the peer sends: offsets in the arena.
const HEAD: u64 = 0x800;
const START: u64 = 0x880;
const END: u64 = 0x888;
const RESUME: u64 = 0x890;
const RING: u64 = 0x2000 + 4096;
/// Of lane 0, in which it receives.
const TAIL: u64 = 0x500;
const ROOM_WANTED: u64 = 0x584;
/// Of lane 1: this end wants a bell for octets.
const ARMED: u64 = 0x980;

/// A peer that has the descriptor and the socket, and nothing else of the lanes.
struct Peer {
    file: File,
    stream: std::net::TcpStream,
}

impl Peer {
    fn store(&self, at: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn wants(&self, at: u64) -> bool {
        let mut word = [0; 4];
        self.file.read_exact_at(&mut word, at).unwrap();
        word != [0; 4]
    }

    fn send(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).unwrap();
    }
}

fn pair() -> (Lanes, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ours.set_nonblocking(true).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let (arena, fd) = Arena::create(12).unwrap();
    let ends = LaneEnds::new(arena.lanes(ArenaEnd::Maker), Share::take(0).unwrap());
    let peer = Peer {
        file: File::from(fd),
        stream,
    };
    (Lanes::new(ours.into(), ends), peer)
}

/// Receives until octets come, or the end.
fn receive(lanes: &mut Lanes, octets: &mut [u8]) -> io::Result<usize> {
    let until = clock::now() + Duration::from_secs(30);
    loop {
        match lanes.receive(InputRoom::new(&mut [], octets)) {
            Err(error)
                if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted]
                    .contains(&error.kind()) =>
            {
                assert!(clock::now() < until, "nothing is received");
                std::thread::yield_now();
            }
            received => return received,
        }
    }
}

/// Octets of TCP up to the start, octets of the lane, bells, octets of TCP behind them: in this order, and no bell among them.
#[test]
fn the_stream_goes_from_tcp_to_the_lane_and_back() {
    let (mut lanes, mut peer) = pair();
    let mut octets = [0; 16];
    peer.send(b"tcp");
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 3);
    peer.store(START, 6);
    peer.send(b"2");
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 1);
    assert!(!lanes.carry_input(), "an octet of the stream is missing");
    peer.send(b"3bells");
    peer.file.write_all_at(b"lane", RING).unwrap();
    peer.store(HEAD, 4);
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 1);
    assert_eq!(octets[0], b'3');
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 4);
    assert_eq!(&octets[..4], b"lane");
    assert!(lanes.carry_input() && lanes.carry_output());
    // Five bells were sent, and two more come.
    peer.store(RESUME, 5 + 5 + 2 + 1);
    peer.store(END, 4 + 1);
    peer.send(b"??the rest");
    let len = receive(&mut lanes, &mut octets[..2]).unwrap();
    let more = receive(&mut lanes, &mut octets[len..]).unwrap();
    assert_eq!(&octets[..len + more], b"the rest");
    assert!(!lanes.carry_input());
    peer.send(b"end");
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 3);
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 0);
}

/// The peer has ended its lane before anything of all this was received: one call to TCP returns octets from before the lane, a bell, and octets from behind.
#[test]
fn a_lane_may_end_before_its_start_is_seen() {
    for published in [0, 4] {
        let (mut lanes, mut peer) = pair();
        peer.store(START, 6 + 1);
        peer.send(b"before?");
        peer.file.write_all_at(b"lane", RING).unwrap();
        peer.store(HEAD, published);
        peer.store(RESUME, 7 + 1);
        peer.store(END, published + 1);
        peer.send(b"behind");
        let expected = if published == 0 {
            b"beforebehind".to_vec()
        } else {
            b"beforelanebehind".to_vec()
        };
        let mut octets = [0; 64];
        let mut all = Vec::new();
        while all.len() < expected.len() {
            let len = receive(&mut lanes, &mut octets).unwrap();
            all.extend_from_slice(&octets[..len]);
        }
        assert_eq!(all, expected);
        assert!(lanes.have_carried_input() && !lanes.carry_input());
    }
}

/// The peer claims that bells without end come before the stream, and sends them as fast as it can: each call returns soon.
#[test]
fn bells_without_end_keep_no_call() {
    let (mut lanes, mut peer) = pair();
    peer.store(START, 1);
    assert!(lanes.receive(InputRoom::new(&mut [], &mut [0; 8])).is_err());
    assert!(lanes.carry_input());
    peer.store(RESUME, u64::MAX);
    peer.store(END, 1);
    let stop = AtomicBool::new(false);
    let before = lanes.tcp.received();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let bells = [0; 4096];
            while !stop.load(Ordering::Relaxed) {
                peer.send(&bells);
            }
        });
        let mut most = 0;
        while lanes.tcp.received() < before + 2_000_000 {
            let at = lanes.tcp.received();
            let error = lanes
                .receive(InputRoom::new(&mut [], &mut [0; 8]))
                .unwrap_err();
            assert!(error.kind() != io::ErrorKind::InvalidData, "{error}");
            most = most.max(lanes.tcp.received() - at);
        }
        stop.store(true, Ordering::Relaxed);
        // The sender may wait for room in TCP.
        while !sender.is_finished() {
            let _ = lanes.receive(InputRoom::new(&mut [], &mut [0; 8]));
        }
        assert!(most <= (MOST_STEPS * BELLS) as u64, "{most} in one call");
    });
}

/// The marks of the end change while they are read, or are impossible: the connection ends, and no call stays.
#[test]
fn marks_that_change_keep_no_call() {
    for (end, resume, sent) in [
        // The stream goes on at an octet that was a bell before.
        (0, 1, true),
        (0, 0, true),
        // Behind what is published.
        (9, 20, true),
        // Without the octet that follows.
        (0, u64::MAX, false),
    ] {
        let (mut lanes, mut peer) = pair();
        peer.store(START, 1);
        let mut octets = [0; 8];
        assert!(lanes.receive(InputRoom::new(&mut [], &mut octets)).is_err());
        peer.send(b"bells");
        while lanes.tcp.received() < 5 {
            let _ = lanes.receive(InputRoom::new(&mut [], &mut octets));
        }
        if sent {
            peer.store(RESUME, resume + 1);
        }
        peer.store(END, end + 1);
        peer.send(b"x");
        let result = receive(&mut lanes, &mut octets);
        let kind = result.map_err(|error| error.kind());
        // Octets behind an end that lies in the past are octets of the stream.
        assert!(
            kind == Err(io::ErrorKind::InvalidData) || kind == Ok(1),
            "{end} {resume}: {kind:?}"
        );
    }
    // Words that flip all the time.
    let (mut lanes, peer) = pair();
    peer.store(START, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0u64;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                peer.store(END, turn % 2);
                peer.store(RESUME, turn % 3);
                peer.store(HEAD, turn % 5);
            }
        });
        for _ in 0..20_000 {
            let _ = lanes.receive(InputRoom::new(&mut [], &mut [0; 8]));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Lanes whose output is full.
fn full() -> (Lanes, Peer) {
    let (mut lanes, peer) = pair();
    peer.store(START, 1);
    assert!(lanes.receive(InputRoom::new(&mut [], &mut [0; 8])).is_err());
    let sent = lanes.send(&[Piece::Bytes(&[7; 5000])]);
    assert!(matches!(sent, Taken::Octets(4096)), "{sent:?}");
    assert!(!lanes.take_unannounced());
    (lanes, peer)
}

/// A check for input takes the bell for room: what was to be sent goes on nevertheless, whether input is read or paused.
#[test]
fn room_whose_bell_was_taken_is_announced() {
    for paused in [false, true] {
        let (mut lanes, mut peer) = full();
        assert!(lanes.is_blocked() && peer.wants(ROOM_WANTED));
        peer.store(TAIL, 4096);
        peer.send(b"!");
        let before = lanes.tcp.received();
        while lanes.tcp.received() == before {
            if paused {
                lanes.silence();
            } else {
                assert!(lanes.receive(InputRoom::new(&mut [], &mut [0; 8])).is_err());
            }
        }
        assert!(lanes.take_unannounced(), "paused: {paused}");
        assert!(!lanes.is_blocked());
    }
}

/// An end that is paused sleeps: bells for room come, and none for octets.
#[test]
fn a_paused_end_wants_room() {
    let (mut lanes, peer) = full();
    lanes.want_bells(false, false);
    assert!(lanes.is_blocked() && !peer.wants(ROOM_WANTED), "polled");
    lanes.want_bells(true, true);
    assert!(peer.wants(ROOM_WANTED) && !peer.wants(ARMED));
    peer.store(TAIL, 4096);
    lanes.want_bells(true, true);
    assert!(lanes.take_unannounced());
}

/// Bells that come with the last octets before the lane are all that announces it.
#[test]
fn a_lane_whose_bells_came_before_it_is_announced() {
    let (mut lanes, mut peer) = pair();
    peer.store(START, 6 + 1);
    peer.send(b"before!!");
    peer.file.write_all_at(b"lane", RING).unwrap();
    peer.store(HEAD, 4);
    let mut octets = [0; 16];
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 6);
    assert_eq!(lanes.tcp.received(), 8, "one segment");
    assert!(lanes.take_unannounced());
    assert_eq!(receive(&mut lanes, &mut octets).unwrap(), 4);
    assert_eq!(&octets[..4], b"lane");
}
