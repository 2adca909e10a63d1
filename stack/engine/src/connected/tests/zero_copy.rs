//! Segments without a copy are on the wire as copied ones are, whatever TCP takes of them.

use dgiwarp_llp_tcp_mpa::Config;
use dgiwarp_llp_tcp_mpa::framing::Deframer;
use dgiwarp_memory::Piece;
use proptest::prelude::*;

use super::*;
use super::{End, PLAIN, now, pair_of};

/// A TCP that takes so many octets with each call; none is a full buffer.
struct Choosy {
    takes: Vec<usize>,
    calls: usize,
    stream: Vec<u8>,
}

impl Choosy {
    fn new(takes: Vec<usize>) -> Self {
        Self {
            takes,
            calls: 0,
            stream: Vec::new(),
        }
    }

    fn take(&mut self, octets: &[u8]) -> Taken {
        let most = self.takes[self.calls % self.takes.len()];
        self.calls += 1;
        let (now, _) = octets.split_at(most.min(octets.len()));
        self.stream.extend_from_slice(now);
        if now.is_empty() {
            Taken::WouldBlock
        } else {
            Taken::Octets(now.len())
        }
    }
}

impl StreamSink for Choosy {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        let mut octets = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => octets.extend_from_slice(bytes),
                Piece::Region(slice) => {
                    let at = octets.len();
                    octets.resize(at + slice.len(), 0);
                    slice.copy_to(&mut octets[at..]);
                }
            }
        }
        self.take(&octets)
    }
}

/// One call to TCP, if there is something for it.
fn transmit(end: &mut End, tcp: &mut Choosy) -> Option<Taken> {
    let mut taken = None;
    end.work(|_, _, _| ());
    end.work(|engine, tables, completed| {
        taken = engine.send_zero_copy(now(), tables, tcp, completed);
        if taken.is_none() && !engine.poll_transmit(now()).is_empty() {
            let outcome = tcp.take(engine.poll_transmit(now()));
            if let Taken::Octets(octets) = outcome {
                engine.transmitted(now(), octets, completed);
            }
            taken = Some(outcome);
        }
    });
    taken
}

fn config() -> Config {
    Config {
        emss: 20_000,
        ..Config::default()
    }
}

/// Three messages: one that needs several segments of several elements, a short one, and one with its length cut from large ones.
fn post(end: &mut End) {
    let memory: Vec<u8> = (0..16_384u32)
        .map(|i| (i * 7 + (i >> 8)).to_le_bytes()[0])
        .collect();
    end.memory.write(0, &memory);
    let sges = [
        end.sge(0, 16_384),
        end.sge(100, 7001),
        end.sge(3, 16_000),
        end.sge(1, 16_383),
    ];
    let write = RcWork::Write {
        stag: dgiwarp_ddp::STag::new(7),
        start: dgiwarp_ddp::TaggedOffset::new(9),
        immediate: Some(5),
    };
    let send = RcWork::Send { invalidate: None };
    end.post(1, write, &sges, false);
    end.post(2, send, &sges[1..2], false);
    end.post(3, send, &sges[2..], false);
}

/// The stream of an end that copies everything.
fn copied() -> Vec<u8> {
    let (mut end, _) = pair_of(1, &config(), [PLAIN; 2]);
    post(&mut end);
    let mut tcp = Choosy::new(vec![usize::MAX]);
    while transmit(&mut end, &mut tcp).is_some() {}
    assert_eq!(end.engine.counters().octets_staged, 55_768 + 7001 + 32_383);
    tcp.stream
}

fn uncopied(takes: Vec<usize>) -> (End, Choosy) {
    let (mut end, _) = pair_of(1, &config(), [PLAIN; 2]);
    end.engine.copy_all(false);
    post(&mut end);
    let mut tcp = Choosy::new(takes);
    while transmit(&mut end, &mut tcp).is_some() {}
    (end, tcp)
}

#[test]
fn a_tcp_that_takes_everything_gets_large_segments_uncopied() {
    let (end, tcp) = uncopied(vec![usize::MAX]);
    assert!(tcp.stream == copied());
    // The short message alone.
    assert_eq!(end.engine.counters().octets_staged, 7001);
    assert_eq!(end.completed.sent.len(), 3);
    assert!(tcp.calls <= 4, "{} calls", tcp.calls);
}

#[test]
fn the_rest_of_an_fpdu_is_copied_and_the_next_ones_are_not() {
    let (mut end, _) = pair_of(1, &config(), [PLAIN; 2]);
    end.engine.copy_all(false);
    post(&mut end);
    let mut tcp = Choosy::new(vec![20_000, 0, usize::MAX]);
    assert_eq!(transmit(&mut end, &mut tcp), Some(Taken::Octets(20_000)));
    let staged = end.engine.counters().octets_staged;
    assert!((1..20_000).contains(&staged), "{staged}");
    // Copied: the memory may go now, and ends the connection where the next FPDU begins.
    assert_eq!(transmit(&mut end, &mut tcp), Some(Taken::WouldBlock));
    end.mrs.deregister(end.keys);
    while transmit(&mut end, &mut tcp).is_some() {}
    assert_eq!(end.engine.end(), Some(RcEnd::LocalProtection));
    let (sent, whole) = (ulpdus(&tcp.stream), ulpdus(&copied()));
    let (terminate, begun) = sent.split_last().unwrap();
    assert_eq!(begun, &whole[..begun.len()]);
    assert_eq!(begun.len(), 2);
    // Untagged, of queue 2.
    assert_eq!(
        (terminate[0] & 0x80, &terminate[6..10]),
        (0, &[0, 0, 0, 2][..])
    );
}

/// ULPDUs of the FPDUs of a stream. Every FPDU is whole, with a right CRC.
fn ulpdus(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut deframer = Deframer::new(true, false);
    let mut rest = stream;
    let mut ulpdus = Vec::new();
    while !rest.is_empty() {
        ulpdus.extend(deframer.next(&mut rest).unwrap().map(<[u8]>::to_vec));
    }
    assert_eq!(deframer.unfinished(), 0);
    ulpdus
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_stream_is_the_same_whatever_tcp_takes(
        mut takes in prop::collection::vec(prop_oneof![0..64usize, 0..40_000usize], 1..12),
    ) {
        takes.push(17_000);
        let (end, tcp) = uncopied(takes);
        prop_assert!(tcp.stream == copied());
        prop_assert_eq!(end.completed.sent.len(), 3);
    }
}
