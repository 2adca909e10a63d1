//! Properties of the stream of octets between two engines: wherever TCP cuts it, the messages are the same, and whatever it brings, nothing lands
//! outside of what the peer may use.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_tcp_mpa::framing::Framer;
use dgiwarp_llp_tcp_mpa::{Config, CrcPreference};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::wire::AtomicOperation;
use proptest::prelude::*;

use super::*;
use super::{End, PD, PLAIN, now, pair_of};
use crate::mr::Keys;
use crate::types::{RcOptions, Wc, WcOpcode};

/// State of one end at last: its memory, and its completions.
type Outcome = (Vec<u8>, Vec<Completion>, Vec<Completion>);
type Completion = (u64, WcOpcode, WcStatus, u32, Option<u32>, bool);

fn completion(wc: &Wc) -> Completion {
    let (length, immediate) = (wc.byte_len, wc.immediate);
    (
        wc.wr_id,
        wc.opcode,
        wc.status,
        length,
        immediate,
        wc.solicited,
    )
}

fn outcome(end: &End) -> Outcome {
    assert_eq!(end.engine.end(), None);
    (
        end.memory.to_vec(0, end.memory.len()),
        end.completed.sent.iter().map(completion).collect(),
        end.completed.received.iter().map(completion).collect(),
    )
}

/// Carries octets both ways, cut after these numbers of octets, again and again, until nothing is left.
fn carry(ends: &mut (End, End), cuts: &[usize]) {
    let mut cuts = cuts.iter().cycle().copied();
    let mut idle = 0;
    while idle < 2 {
        idle += 1;
        let (from, to) = (&mut ends.0, &mut ends.1);
        let octets = from.engine.poll_transmit(now()).to_vec();
        if !octets.is_empty() {
            idle = 0;
            let completed = &mut from.completed;
            from.engine.transmitted(now(), octets.len(), completed);
            from.work(|_, _, _| ());
        }
        let mut rest = &octets[..];
        while !rest.is_empty() {
            let cut = cuts.next().unwrap_or(rest.len()).min(rest.len());
            let (now_here, later) = rest.split_at(cut);
            to.work(|engine, tables, completed| {
                engine.handle_input(now(), now_here, tables, completed);
            });
            rest = later;
        }
        core::mem::swap(&mut ends.0, &mut ends.1);
    }
}

/// Memory of the other end, from this address on.
fn at(keys: Keys, addr: u64) -> (STag, TaggedOffset) {
    (STag::new(keys.rkey), TaggedOffset::new(addr))
}

/// Messages of every kind both ways, each in memory of its own; the outcome at both ends.
fn exchange(config: &Config, hello: bool, cuts: &[usize]) -> (Outcome, Outcome) {
    let options = RcOptions { hello, ..PLAIN };
    let (mut client, mut server) = pair_of(2, config, [options; 2]);
    for (end, first) in [(&mut client, 1u8), (&mut server, 2)] {
        let octets: Vec<u8> = (0..=u8::MAX)
            .map(|i| i.wrapping_mul(7).wrapping_add(first))
            .collect();
        end.memory.write(0, &octets.repeat(32));
        for wr_id in 0..4 {
            end.post_recv(wr_id, 8192 + 1600 * wr_id, 1600);
        }
    }
    let all = Access::all();
    let theirs = server.mrs.register(server.memory.region(), 0, all, PD);
    let ours = client.mrs.register(client.memory.region(), 0, all, PD);
    for (end, keys) in [(&mut server, ours), (&mut client, theirs)] {
        let (stag, start) = at(keys, 14_800);
        let write = RcWork::Write {
            stag,
            start,
            immediate: Some(0x0102_0304),
        };
        let (stag, start) = at(keys, 100);
        let read = RcWork::Read { stag, start };
        let (stag, start) = at(keys, 16_000);
        let atomic = RcWork::Atomic {
            stag,
            start,
            operation: AtomicOperation::FetchAdd { add: 5, mask: 0 },
        };
        let send = RcWork::Send { invalidate: None };
        end.post(1, send, &[end.sge(0, 0)], false);
        end.post(2, write, &[end.sge(3, 1000)], false);
        end.post(3, read, &[end.sge(4000, 3000)], false);
        end.post(9, send, &[end.sge(5, 800), end.sge(900, 799)], true);
        end.post(5, atomic, &[end.sge(16_008, 8)], false);
        end.post(6, send, &[end.sge(7, 1)], false);
    }
    let mut ends = (client, server);
    carry(&mut ends, cuts);
    (outcome(&ends.0), outcome(&ends.1))
}

fn configs() -> impl Strategy<Value = Config> {
    (any::<bool>(), any::<bool>()).prop_map(|(crc, markers)| Config {
        crc: crc.into(),
        markers,
        ..Config::default()
    })
}

/// Where the peer may write and read, in 16 KiB of memory.
const OPEN: core::ops::Range<usize> = 4096..8192;

/// A ULPDU that is nearly what a peer would send, mostly a Write about the open octets by their key: first octet, opcode, T bit, offset, payload.
fn plausible() -> impl Strategy<Value = (u8, u8, bool, u16, Vec<u8>)> {
    let payload = proptest::collection::vec(any::<u8>(), 0..200);
    let kind = prop_oneof![
        6 => (Just(0u8), Just(true)),
        1 => (0u8..16, any::<bool>()),
        1 => (0u8..12, Just(false)),
    ];
    // Around both ends, and anywhere inside.
    let place = prop_oneof![
        1 => 3900u16..4100,
        1 => 7990u16..8200,
        4 => 4096u16..8000,
    ];
    (any::<u8>(), kind, place, payload).prop_map(|(first, (opcode, tagged), place, payload)| {
        (first, opcode, tagged, place, payload)
    })
}

fn ulpdu(
    (first, opcode, tagged, place, payload): &(u8, u8, bool, u16, Vec<u8>),
    rkey: u32,
) -> Vec<u8> {
    // Mostly the right versions.
    let reserved = if *first < 8 { *first } else { 0 };
    let mut octets = vec![0x41 | u8::from(*tagged) << 7 | reserved, 0x40 | opcode];
    if *tagged {
        octets.extend(rkey.to_be_bytes());
        octets.extend(u64::from(*place).to_be_bytes());
    } else {
        let [queue, msn] = place.to_be_bytes();
        octets.extend([0, 0, 0, 0, 0, 0, 0, queue % 4, 0, 0, 0, msn % 3]);
        octets.extend([0, 0, 0, 0]);
        // As a Read Request: the open octets.
        octets.extend([0; 12]);
        octets.extend(u32::from(*place).to_be_bytes());
        octets.extend(rkey.to_be_bytes());
        octets.extend(u64::from(*place).to_be_bytes());
    }
    octets.extend(payload);
    octets
}

proptest! {
    /// With and without Markers, CRCs and hellos.
    #[test]
    fn any_cut_of_the_stream_gives_the_same_messages(
        config in configs(),
        hello in any::<bool>(),
        cuts in proptest::collection::vec(prop_oneof![1usize..9, 1usize..3000], 1..200),
    ) {
        let whole = exchange(&config, hello, &[usize::MAX]);
        // All of it happened.
        prop_assert_eq!((whole.0.1.len(), whole.0.2.len()), (6, 4));
        prop_assert!(whole.0.1.iter().all(|wc| wc.2 == WcStatus::Success));
        prop_assert!(exchange(&config, hello, &cuts) == whole);
    }

    /// FPDUs whose CRC is right, and octets that are no FPDUs.
    #[test]
    fn arbitrary_octets_place_nothing_outside(
        config in configs(),
        ulpdus in proptest::collection::vec(plausible(), 0..12),
        noise in proptest::collection::vec(any::<u8>(), 0..100),
        cuts in proptest::collection::vec(1usize..300, 1..50),
    ) {
        let (_, mut end) = pair_of(2, &config, [PLAIN; 2]);
        end.memory.write(0, &[0x5a; 16_384]);
        let open = end.memory.region().part(OPEN.start, OPEN.len()).unwrap();
        let keys = end.mrs.register(open, 4096, Access::all(), PD);
        for wr_id in 0..3 {
            end.post_recv(wr_id, 4096 + 100 * wr_id, 100);
        }
        let mut framer = Framer::new(config.crc == CrcPreference::Always, config.markers);
        let mut stream = Vec::new();
        for one in &ulpdus {
            framer.frame(&mut stream, &ulpdu(one, keys.rkey), &[][..]);
        }
        stream.extend(noise);
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (octets, later) = rest.split_at((*cut).min(rest.len()));
            end.work(|engine, tables, completed| {
                engine.handle_input(now(), octets, tables, completed);
            });
            rest = later;
        }
        let memory = end.memory.to_vec(0, 16_384);
        let outside = memory[..OPEN.start].iter().chain(&memory[OPEN.end..]);
        prop_assert!(outside.into_iter().all(|octet| *octet == 0x5a));
        prop_assert!(end.engine.poll_transmit(now()).len() < 1 << 20);
    }
}
