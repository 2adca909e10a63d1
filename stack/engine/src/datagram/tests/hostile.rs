//! Whatever arrives, octets land in the regions and receives that were given for it, and nowhere else.

use super::*;
use dgiwarp_codec::crc;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

/// All memory starts as this.
const GUARD: u8 = 0x5e;
const PAGE: usize = 4096;
/// Pages: guard, region for peers, guard, receives, guard.
const PAGES: usize = 5;
const REGION: usize = PAGE;
const RECEIVES: usize = 3 * PAGE;
const IOVA: u64 = 0x10_0000;
const OTHER_PD: PdId = PdId(8);
/// A receive every so many octets, with half of them not its own.
const STRIDE: usize = 256;
const SLOTS: usize = 12;

/// A QP, the memory given to peers, and memory around it that is not.
struct Victim {
    engine: UdEngine,
    mrs: MrTable,
    recv_queue: RecvQueue,
    wcs: RecordingSink,
    memory: Buffer,
    /// Registered, and not for these peers.
    private: Buffer,
    stags: Vec<u32>,
}

impl Victim {
    fn new(grh: bool, record_slots: usize) -> Self {
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(5));
        let memory = Buffer::zeroed(PAGES * PAGE).unwrap();
        let private = Buffer::zeroed(PAGE).unwrap();
        memory.write(0, &[GUARD; PAGES * PAGE]);
        private.write(0, &[GUARD; PAGE]);
        let both = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let part = |offset| memory.region().part(offset, PAGE).unwrap();
        let target = mrs.register(part(REGION), IOVA, both, PD);
        let receives = mrs.register(part(RECEIVES), 0, Access::LOCAL_WRITE, PD);
        let local = mrs.register(private.region(), IOVA, Access::LOCAL_WRITE, PD);
        let other = mrs.register(private.region(), IOVA, both, OTHER_PD);
        let recv_queue = RecvQueue::new(SLOTS, 2);
        for slot in 0..SLOTS {
            let start = slot * STRIDE + STRIDE / 4;
            // In two parts with a hole between them.
            let sges = [(start, 40), (start + 48, STRIDE / 2)].map(|(addr, length)| Sge {
                addr: addr as u64,
                length: u32::try_from(length).unwrap(),
                lkey: receives.lkey,
            });
            let wr_id = slot as u64;
            recv_queue.post(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        Self {
            engine: UdEngine::new(UdConfig {
                qpn: 1,
                pd: PD,
                connected: false,
                qkey: QKEY,
                grh,
                max_recv_wr: SLOTS,
                record_slots,
                segment_completions: record_slots > 4,
                record_timeout: Duration::from_millis(200),
                reorder_window: 64,
                max_rate: 0,
                send_copy: false,
                receive_buffer: 1 << 20,
                read_timeout: Duration::from_secs(2),
                shim: ShimConfig::Plain,
                random: Random {
                    secret: [1, 2, 3, 4],
                    seed: [3, 4, 5],
                    group_key: [0; 4],
                    record_generation: 0,
                },
            }),
            stags: vec![
                target.rkey,
                receives.rkey,
                local.rkey,
                other.rkey,
                target.lkey,
                0,
            ],
            mrs,
            recv_queue,
            wcs: RecordingSink::default(),
            memory,
            private,
        }
    }

    fn receive(&mut self, now: Instant, datagram: &[u8], to_group: bool) {
        let arrival = Arrival {
            by_memory: false,
            from: Peer::ip("192.0.2.1:1".parse().unwrap()),
            to: Some([192, 0, 2, 2].into()),
            to_group,
            octets: datagram,
            stride: datagram.len(),
        };
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine
            .handle_input(now, arrival, tables, &mut self.wcs);
    }

    /// The first octet that was written and may not be.
    fn trespassed(&self) -> Option<usize> {
        let memory = self.memory.to_vec(0, PAGES * PAGE);
        let allowed = |at: usize| {
            let in_slot = |at: usize| {
                let at = at.wrapping_sub(STRIDE / 4);
                at < 40 || (48..48 + STRIDE / 2).contains(&at)
            };
            let receive = at.wrapping_sub(RECEIVES);
            (REGION..REGION + PAGE).contains(&at)
                || receive < SLOTS * STRIDE && in_slot(receive % STRIDE)
        };
        let private = self.private.to_vec(0, PAGE);
        let private = private.iter().position(|octet| *octet != GUARD);
        let trespass = |at: &usize| memory[*at] != GUARD && !allowed(*at);
        (0..memory.len()).find(trespass).or(private)
    }
}

/// Numbers at which checks turn.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0u32..200,
        4 => 4000u32..4200,
        1 => Just(1 << 24),
        1 => Just((1 << 30) + 1),
        1 => Just(u32::MAX),
        1 => any::<u32>(),
    ]
}

#[derive(Debug, Clone)]
struct Frame {
    opcode: u8,
    stag: prop::sample::Index,
    base: u64,
    qkey: u32,
    flags: u8,
    number: u32,
    length: u32,
    offset: u32,
    payload: usize,
    /// The parts that follow from each other do.
    coherent: bool,
    mutation: Option<(prop::sample::Index, u8)>,
    good_crc: bool,
    to_group: bool,
}

fn frame() -> impl Strategy<Value = Frame> {
    let opcode =
        prop_oneof![4 => Just(0x4c_u8), 3 => Just(0x4d), 2 => Just(0x43), 1 => any::<u8>()];
    let base = prop_oneof![
        6 => (0u64..64).prop_map(|n| IOVA + n),
        3 => (4000u64..4200).prop_map(|n| IOVA + n),
        1 => (1u64..100).prop_map(|n| IOVA - n),
        1 => (0u64..100).prop_map(|n| u64::MAX - n),
        1 => any::<u64>(),
    ];
    let qkey = prop_oneof![9 => Just(QKEY), 1 => any::<u32>()];
    let flags = prop_oneof![8 => 0u8..4, 1 => any::<u8>()];
    let mutation = proptest::option::weighted(0.3, (any::<prop::sample::Index>(), 1u8..));
    let numbers = (0u32..40, number(), number(), 0usize..200);
    let rest = (
        proptest::bool::weighted(0.8),
        mutation,
        proptest::bool::weighted(0.95),
        proptest::bool::weighted(0.05),
    );
    let head = (opcode, any::<prop::sample::Index>(), base, qkey, flags);
    (head, numbers, rest).prop_map(|(head, numbers, rest)| Frame {
        opcode: head.0,
        stag: head.1,
        base: head.2,
        qkey: head.3,
        flags: head.4,
        number: numbers.0,
        length: numbers.1,
        offset: numbers.2,
        payload: numbers.3,
        coherent: rest.0,
        mutation: rest.1,
        good_crc: rest.2,
        to_group: rest.3,
    })
}

impl Frame {
    /// The datagram, put together by hand: what the stack never sends must be possible.
    fn datagram(&self, stags: &[u32]) -> Vec<u8> {
        let payload = u32::try_from(self.payload).unwrap();
        let (offset, length) = if self.coherent {
            let length = self.length.max(payload);
            (self.offset % (length - payload).saturating_add(1), length)
        } else {
            (self.offset, self.length)
        };
        let plain = self.opcode == 0x43;
        let last = plain || u64::from(offset) + u64::from(payload) == u64::from(length);
        let tagged = self.opcode == 0x4c;
        let mut octets = vec![
            0x01 | u8::from(last) << 6 | u8::from(tagged) << 7,
            self.opcode,
        ];
        if tagged {
            octets.extend(self.stag.get(stags).to_be_bytes());
            let to = self.base.wrapping_add(u64::from(offset));
            octets.extend(to.to_be_bytes());
        } else {
            let mo = if plain { 0 } else { offset };
            for word in [self.qkey, 0, self.number, mo] {
                octets.extend(word.to_be_bytes());
            }
        }
        if !plain {
            octets.extend([self.flags, 0, 0, 0]);
            for word in [9, self.number, length, offset, 0] {
                octets.extend(word.to_be_bytes());
            }
        }
        octets.resize(octets.len() + self.payload, 0xff);
        if let Some((at, change)) = &self.mutation {
            let at = at.index(octets.len());
            octets[at] ^= change;
        }
        let crc = crc::to_wire(crc::crc32c(&octets) ^ u32::from(!self.good_crc));
        octets.extend(crc);
        octets
    }
}

fn random_octets() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..120).prop_map(|mut octets| {
        octets.extend(crc::to_wire(crc::crc32c(&octets)));
        octets
    })
}

/// Without what is counted by message.
fn dropped_segments(counters: &QpCounters) -> u64 {
    let messages = [
        DropReason::ReassemblyTimeout,
        DropReason::ReassemblySuperseded,
    ];
    let messages: u64 = messages
        .iter()
        .map(|reason| counters.dropped(*reason))
        .sum();
    counters.dropped_in_all() - messages
}

#[test]
fn nothing_lands_outside_what_was_given() {
    let used = Cell::new(0);
    let dropped = Cell::new(0);
    let frames = proptest::collection::vec((frame(), random_octets(), 0u8..8), 1..80);
    let strategy = (frames, any::<bool>(), prop_oneof![Just(2usize), Just(64)]);
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(1500)
    });
    let run = runner.run(&strategy, |(frames, grh, slots)| {
        let mut victim = Victim::new(grh, slots);
        let start = now();
        for (n, (frame, octets, kind)) in (0..).zip(&frames) {
            let at = start + Duration::from_millis(n * 5);
            let datagram = match kind {
                0 => octets.clone(),
                _ => frame.datagram(&victim.stags),
            };
            victim.receive(at, &datagram, frame.to_group);
            let tables = Tables {
                mrs: &victim.mrs,
                recv_queue: &victim.recv_queue,
            };
            victim.engine.handle_timeout(at, tables, &mut victim.wcs);
        }
        prop_assert_eq!(victim.trespassed(), None);
        let counters = victim.engine.counters();
        let handled = counters.segments_received + dropped_segments(&counters);
        prop_assert_eq!(
            handled,
            frames.len() as u64,
            "every datagram is counted once"
        );
        used.set(used.get() + counters.segments_received);
        dropped.set(dropped.get() + dropped_segments(&counters));
        let tables = Tables {
            mrs: &victim.mrs,
            recv_queue: &victim.recv_queue,
        };
        victim.engine.complete_now(tables, &mut victim.wcs);
        victim.engine.flush(tables, &mut victim.wcs);
        let receives = victim
            .wcs
            .received
            .iter()
            .filter(|wc| wc.opcode == WcOpcode::Recv);
        prop_assert_eq!(receives.count(), SLOTS, "each receive completes once");
        prop_assert_eq!(victim.trespassed(), None);
        Ok(())
    });
    run.unwrap();
    let (used, dropped) = (used.get(), dropped.get());
    println!("{used} segments used, {dropped} dropped");
    assert!(
        used > 5000 && dropped > 5000,
        "the attack is neither refused nor welcome in general"
    );
}
