//! Two engines and a network of vectors between them.

use std::time::Duration;

use super::*;
use crate::mr::PdId;
use crate::recording_sink::RecordingSink;
use crate::recv_queue::{RecvQueue, SgeList, total_length};
use crate::types::{Operation, RecvWr, Route, Sge, WcOpcode, WcStatus};
use dgiwarp_llp_udp::{Path, PathKind, ShimConfig, Train};
use dgiwarp_memory::Piece;
use dgiwarp_memory::{Access, Buffer};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use std::collections::VecDeque;

mod floods;
mod hostile;
mod reads;
mod shims;
mod short;
mod sq_drain;

const PD: PdId = PdId(7);
const QKEY: u32 = 0x1111_1111;
const MEMORY: usize = 1 << 20;

/// Takes what is sent, or answers as a real network might.
#[derive(Default)]
struct Network {
    datagrams: Vec<Vec<u8>>,
    calls: usize,
    uncopied_octets: usize,
    outcomes: VecDeque<SendOutcome>,
    /// Outcomes of short segments.
    short_outcomes: VecDeque<SendOutcome>,
    /// The MTU that the path has after it turned out too small.
    smaller_mtu: u32,
}

impl TransmitSink for Network {
    fn staging(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn give_back(&mut self, _staging: Vec<u8>) {}

    fn send(
        &mut self,
        _peer: Peer,
        route: &Route,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> SendOutcome {
        self.calls += 1;
        let size = u16::try_from(train.datagram()).unwrap();
        match self.outcomes.pop_front() {
            // A datagram that cannot be smaller is not too big.
            Some(SendOutcome::TooBig) if !route.handle_too_big(now(), size, self.smaller_mtu) => {}
            None | Some(SendOutcome::Sent) => {}
            Some(outcome) => return outcome,
        }
        let mut octets = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => octets.extend_from_slice(bytes),
                Piece::Region(slice) => {
                    let start = octets.len();
                    octets.resize(start + slice.len(), 0);
                    slice.copy_to(&mut octets[start..]);
                    self.uncopied_octets += slice.len();
                }
            }
        }
        assert_eq!(octets.len(), train.octets());
        let size = train.segment_size().map_or(octets.len(), usize::from);
        let limit = usize::from(route.limit(now()).get());
        for datagram in octets.chunks(size.max(1)) {
            assert!(
                datagram.len() <= limit,
                "{} octets of {limit}",
                datagram.len()
            );
            self.datagrams.push(datagram.to_vec());
        }
        SendOutcome::Sent
    }

    fn send_short(
        &mut self,
        _peer: Peer,
        _from: Option<std::net::IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        self.calls += 1;
        if let Some(outcome) = self.short_outcomes.pop_front() {
            return outcome;
        }
        for datagram in octets.chunks(train.datagram()) {
            assert!(datagram.len() <= 512);
            self.datagrams.push(datagram.to_vec());
        }
        SendOutcome::Sent
    }

    fn path(&mut self, _peer: Peer, from: Option<std::net::IpAddr>) -> Option<Route> {
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let path = Path::new(PathKind::Network, false, 1500);
        Some(Route::new(address, 0, from, address, path))
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have a clock")]
fn now() -> Instant {
    Instant::now()
}

struct End {
    engine: UdEngine,
    mrs: MrTable,
    recv_queue: RecvQueue,
    buffer: Buffer,
    lkey: u32,
    rkey: u32,
    wcs: RecordingSink,
}

impl End {
    fn new(seed: u64) -> Self {
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(seed));
        let buffer = Buffer::zeroed(MEMORY).unwrap();
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let keys = mrs.register(buffer.region(), 0, access, PD);
        Self {
            engine: UdEngine::new(UdConfig {
                qpn: 1,
                pd: PD,
                connected: false,
                qkey: QKEY,
                grh: false,
                max_recv_wr: 64,
                record_slots: 64,
                segment_completions: false,
                send_copy: false,
                record_timeout: Duration::from_millis(200),
                reorder_window: 64,
                max_rate: 0,
                receive_buffer: 1 << 20,
                read_timeout: Duration::from_secs(2),
                shim: ShimConfig::Plain,
                random: Random {
                    seed: [3, u32::MAX - 1, u32::MAX],
                    group_key: [0; 4],
                    secret: [1, 2, 3, 4],
                    record_generation: 0,
                },
            }),
            mrs,
            recv_queue: RecvQueue::new(64, 16),
            buffer,
            lkey: keys.lkey,
            rkey: keys.rkey,
            wcs: RecordingSink::default(),
        }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: offset as u64,
            length: u32::try_from(length).unwrap(),
            lkey: self.lkey,
        }
    }

    fn post(&mut self, wr_id: u64, operation: Operation, route: &Route, sges: &[Sge]) {
        self.engine.accept(wqe(wr_id, operation, route, sges));
    }

    fn transmit(&mut self, network: &mut Network) -> Transmitted {
        self.engine
            .transmit(now(), 1000, &self.mrs, network, &mut self.wcs)
    }

    fn receive(&mut self, datagram: &[u8]) {
        let arrival = Arrival {
            by_memory: false,
            from: Peer::ip("192.0.2.1:1".parse().unwrap()),
            to: None,
            to_group: false,
            octets: datagram,
            stride: datagram.len(),
        };
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine
            .handle_input(now(), arrival, tables, &mut self.wcs);
    }
}

fn path(mtu: u32) -> Route {
    let path = Path::new(PathKind::Network, false, mtu);
    let host = [192, 0, 2, 2].into();
    Route::new(host, 0, None, host, path)
}

fn wqe(wr_id: u64, operation: Operation, route: &Route, sges: &[Sge]) -> SendWqe {
    SendWqe {
        wr_id,
        operation,
        route: route.clone(),
        peer: Peer::ip("192.0.2.2:2".parse().unwrap()),
        qkey: QKEY,
        sges: SgeList::from_slice(sges),
        length: total_length(sges, sges.len()).unwrap(),
        signaled: true,
        solicited: false,
        unrecorded: false,
    }
}

const SEND: Operation = Operation::Send { immediate: None };

#[test]
fn a_list_of_equal_messages_leaves_in_one_call() {
    let mut end = End::new(1);
    let route = path(1500);
    let sges = [end.sge(0, 64)];
    for wr_id in 0..64 {
        end.post(wr_id, SEND, &route, &sges);
    }
    let mut network = Network::default();
    assert_eq!(end.transmit(&mut network), Transmitted::All);
    assert_eq!((network.calls, network.datagrams.len()), (1, 64));
    assert_eq!((end.wcs.sent.len(), end.wcs.retired), (64, 64));
}

#[test]
fn large_segments_leave_uncopied_and_small_ones_do_not() {
    for (mtu, uncopied) in [(1500, 0), (65_535, 200_000)] {
        let mut end = End::new(1);
        let operation = Operation::WriteRecord {
            rkey: 1,
            remote_addr: 0,
            immediate: None,
        };
        let sges = [end.sge(0, 200_000)];
        end.post(1, operation, &path(mtu), &sges);
        let mut network = Network::default();
        end.transmit(&mut network);
        assert_eq!(network.uncopied_octets, uncopied);
    }
}

#[test]
fn an_error_of_one_message_is_its_own() {
    let mut end = End::new(1);
    let route = path(1500);
    let good = end.sge(0, 10);
    let bad = end.sge(MEMORY - 5, 10);
    for (wr_id, sge) in [(1, good), (2, bad), (3, good)] {
        end.post(wr_id, SEND, &route, &[sge]);
    }
    let mut network = Network::default();
    assert_eq!(end.transmit(&mut network), Transmitted::All);
    let statuses: Vec<_> = end
        .wcs
        .sent
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::LocalProtection),
        (3, WcStatus::Success),
    ];
    assert_eq!(statuses, expected);
    assert_eq!(network.datagrams.len(), 2);
}

/// A Send that fitted one datagram does not any more when the path shrinks: it goes in several, and arrives whole.
#[test]
fn a_shrinking_path_cuts_anew() {
    let (mut source, mut target) = (End::new(1), End::new(2));
    let pattern: Vec<u8> = (0..4000u32).map(|i| i.to_le_bytes()[0] ^ 0x5c).collect();
    source.buffer.write(0, &pattern);
    let sges = [source.sge(0, 4000)];
    source.post(1, SEND, &path(9000), &sges);
    let receive = [target.sge(0, 4000)];
    let wr = RecvWr {
        wr_id: 9,
        sges: &receive,
    };
    target.recv_queue.post(&wr).unwrap();
    let mut network = Network {
        outcomes: [SendOutcome::TooBig].into(),
        smaller_mtu: 1500,
        ..Network::default()
    };
    assert_eq!(source.transmit(&mut network), Transmitted::All);
    assert_eq!(network.datagrams.len(), 3);
    for datagram in &network.datagrams {
        target.receive(datagram);
    }
    assert_eq!(target.wcs.received.len(), 1);
    assert_eq!(target.buffer.to_vec(0, 4000), pattern);
}

#[derive(Debug, Clone)]
struct Message {
    write: bool,
    immediate: Option<u32>,
    parts: Vec<usize>,
}

fn message() -> impl Strategy<Value = Message> {
    let length = prop_oneof![0usize..100, 1000usize..3000, 8000usize..20_000];
    let parts = proptest::collection::vec(length, 0..4);
    (any::<bool>(), any::<Option<u32>>(), parts).prop_map(|(write, immediate, parts)| Message {
        write,
        immediate,
        parts,
    })
}

fn outcome() -> impl Strategy<Value = SendOutcome> {
    prop_oneof![
        6 => Just(SendOutcome::Sent),
        2 => Just(SendOutcome::WouldBlock),
        1 => Just(SendOutcome::TooBig),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is posted, however the path shrinks and the socket fills: every message arrives once, whole and in
    /// order, and its completions say so.
    #[test]
    fn what_is_posted_arrives(
        messages in proptest::collection::vec(message(), 1..12),
        outcomes in proptest::collection::vec(outcome(), 0..30),
        mtu in prop_oneof![Just(1500u32), Just(9000), Just(65_535)],
    ) {
        let (mut source, mut target) = (End::new(1), End::new(2));
        let pattern: Vec<u8> = (0..=250u8).cycle().take(MEMORY).map(|i| i ^ 0x5a).collect();
        source.buffer.write(0, &pattern);
        let route = path(mtu);
        let mut expected = Vec::new();
        let mut at = 0;
        for (wr_id, message) in (0..).zip(&messages) {
            let mut sges = Vec::new();
            let start = at;
            for &part in &message.parts {
                sges.push(source.sge(at, part));
                at += part;
            }
            let length = at - start;
            let operation = if message.write {
                Operation::WriteRecord {
                    rkey: target.rkey,
                    remote_addr: start as u64,
                    immediate: message.immediate,
                }
            } else {
                let receive = [target.sge(start, length)];
                target.recv_queue.post(&RecvWr { wr_id, sges: &receive }).unwrap();
                Operation::Send { immediate: message.immediate }
            };
            source.post(wr_id, operation, &route, &sges);
            expected.push((message.write, u32::try_from(length).unwrap(), message.immediate));
        }
        let mut network = Network {
            outcomes: outcomes.into(),
            smaller_mtu: 1400,
            ..Network::default()
        };
        let mut turns = 0;
        while source.transmit(&mut network) != Transmitted::All {
            turns += 1;
            prop_assert!(turns < 100, "the queue does not empty");
        }
        prop_assert_eq!(source.wcs.retired, messages.len());
        let order: Vec<_> = source.wcs.sent.iter().map(|wc| wc.wr_id).collect();
        prop_assert_eq!(order, (0..messages.len() as u64).collect::<Vec<_>>());
        for datagram in &network.datagrams {
            target.receive(datagram);
        }
        let arrived: Vec<_> = target
            .wcs
            .received
            .iter()
            .map(|wc| (wc.opcode == WcOpcode::WriteRecord, wc.byte_len, wc.immediate))
            .collect();
        prop_assert_eq!(arrived, expected);
        prop_assert_eq!(target.buffer.to_vec(0, at), &pattern[..at]);
        prop_assert_eq!(target.engine.counters().dropped_in_all(), 0);
    }
}

#[test]
fn the_error_queue_raises_one_event_when_it_turns_non_empty() {
    let mut engine = End::new(1).engine;
    let mut wcs = RecordingSink::default();
    let entry = ErrorEntry {
        peer: "192.0.2.9:7".parse().unwrap(),
        message: None,
        reason: ErrorReason::Network { errno: 111 },
    };
    engine.report_error(entry, &mut wcs);
    engine.report_error(entry, &mut wcs);
    assert_eq!(wcs.events.len(), 1);
    assert_eq!(engine.poll_error(), Some(entry));
    assert_eq!(engine.poll_error(), Some(entry));
    assert_eq!(engine.poll_error(), None);
    engine.report_error(entry, &mut wcs);
    assert_eq!(wcs.events.len(), 2);
}
