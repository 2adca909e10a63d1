//! Reads between two engines, over a network that does not always take what it is given.

use super::*;

const LENGTH: usize = 300_000;

fn reader_at() -> Peer {
    Peer::ip("192.0.2.1:1".parse().unwrap())
}

fn target_at() -> Peer {
    Peer::ip("192.0.2.2:2".parse().unwrap())
}

fn hear(end: &mut End, from: Peer, datagrams: &[Vec<u8>]) {
    for octets in datagrams {
        let arrival = Arrival {
            by_memory: false,
            from,
            to: None,
            to_group: false,
            octets,
            stride: octets.len(),
        };
        let tables = Tables {
            mrs: &end.mrs,
            recv_queue: &end.recv_queue,
        };
        end.engine
            .handle_input(now(), arrival, tables, &mut end.wcs);
    }
}

/// A reader, a target with its own network, and the remote key of its memory.
struct Reading {
    reader: End,
    target: End,
    from_reader: Network,
    from_target: Network,
    keys: crate::mr::Keys,
}

impl Reading {
    fn new() -> Self {
        let target = End::new(2);
        let octets: Vec<u8> = (0..LENGTH)
            .map(|i| (i * 13 + i / 256).to_le_bytes()[0])
            .collect();
        target.buffer.write(0, &octets);
        let region = target.buffer.region();
        let keys = target.mrs.register(region, 0, Access::REMOTE_READ, PD);
        let mut reader = End::new(1);
        // Another number than the target's, as two QPs of one host have.
        reader.engine = UdEngine::new(UdConfig {
            random: Random {
                seed: [9, 9, 9],
                ..reader.engine.config.random
            },
            ..reader.engine.config
        });
        Self {
            reader,
            target,
            from_reader: Network::default(),
            from_target: Network::default(),
            keys,
        }
    }

    fn read(&mut self, wr_id: u64, length: usize) {
        let operation = Operation::Read {
            rkey: self.keys.rkey,
            remote_addr: 0,
            timeout: None,
        };
        let sges = [self.reader.sge(0, length)];
        self.reader.post(wr_id, operation, &path(1500), &sges);
    }

    /// Lets the reader send and the target hear it.
    fn ask(&mut self) -> Transmitted {
        let sent = self.reader.transmit(&mut self.from_reader);
        let datagrams = std::mem::take(&mut self.from_reader.datagrams);
        hear(&mut self.target, reader_at(), &datagrams);
        sent
    }

    fn answer(&mut self) -> Transmitted {
        let sent = self.target.transmit(&mut self.from_target);
        let datagrams = std::mem::take(&mut self.from_target.datagrams);
        hear(&mut self.reader, target_at(), &datagrams);
        sent
    }

    fn run(&mut self) {
        for _ in 0..100 {
            self.ask();
            self.answer();
        }
    }

    #[track_caller]
    fn check(&self, wr_id: u64, length: usize) {
        let ended = self.reader.wcs.sent.last().map(|wc| (wc.wr_id, wc.status));
        assert_eq!(ended, Some((wr_id, WcStatus::Success)));
        let expected = self.target.buffer.to_vec(0, length);
        assert_eq!(self.reader.buffer.to_vec(0, length), expected);
    }
}

#[test]
fn reads_are_flushed_in_the_order_of_their_posts() {
    let mut reading = Reading::new();
    for wr_id in 0..3 {
        reading.read(wr_id, 1);
    }
    reading.ask();
    for wr_id in 3..6 {
        reading.read(wr_id, 1);
    }
    let End {
        engine,
        mrs,
        recv_queue,
        wcs,
        ..
    } = &mut reading.reader;
    engine.flush(Tables { mrs, recv_queue }, wcs);
    let ended: Vec<_> = wcs.sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected: Vec<_> = (0..6).map(|wr_id| (wr_id, WcStatus::Flushed)).collect();
    assert_eq!(ended, expected);
}

#[test]
fn a_full_socket_keeps_requests_and_responses_in_their_place() {
    let mut reading = Reading::new();
    reading.read(1, LENGTH);
    // Cookie request, its answer, the first requests, the first responses: each meets a full socket once.
    let full = || VecDeque::from([SendOutcome::WouldBlock]);
    for _ in 0..2 {
        reading.from_reader.short_outcomes = full();
        assert_eq!(reading.ask(), Transmitted::Blocked);
        assert_eq!(reading.ask(), Transmitted::All);
        reading.from_target.short_outcomes = full();
        reading.from_target.outcomes = full();
        assert_eq!(reading.answer(), Transmitted::Blocked);
        assert_eq!(reading.answer(), Transmitted::All);
    }
    reading.run();
    reading.check(1, LENGTH);
    let counters = reading.reader.engine.counters();
    assert_eq!(counters.read_repeats, 0);
    assert_eq!(counters.dropped_in_all(), 0);
}

#[test]
fn responses_are_cut_anew_for_a_smaller_path() {
    let mut reading = Reading::new();
    reading.read(1, LENGTH);
    reading.run();
    reading.check(1, LENGTH);
    reading.read(2, LENGTH);
    reading.ask();
    reading.from_target.smaller_mtu = 1000;
    reading.from_target.outcomes = VecDeque::from([SendOutcome::TooBig]);
    reading.run();
    reading.check(2, LENGTH);
    assert_eq!(reading.target.engine.counters().resized, 1);
}

#[test]
fn posted_messages_and_responses_take_turns() {
    let mut reading = Reading::new();
    reading.read(1, LENGTH);
    reading.ask();
    reading.answer();
    reading.ask();
    for wr_id in 0..8 {
        let operation = Operation::WriteRecord {
            rkey: 1,
            remote_addr: 0,
            immediate: None,
        };
        let sges = [reading.target.sge(0, 50_000)];
        reading.target.post(wr_id, operation, &path(1500), &sges);
    }
    reading.target.transmit(&mut reading.from_target);
    let opcodes: Vec<u8> = reading
        .from_target
        .datagrams
        .iter()
        .map(|datagram| datagram[1] & 0x0f)
        .collect();
    let first = |opcode| opcodes.iter().position(|it| *it == opcode).unwrap();
    let last = |opcode| opcodes.iter().rposition(|it| *it == opcode).unwrap();
    let (response, write) = (0x2, 0xc);
    assert!(first(write) < last(response) && first(response) < last(write));
    let runs = opcodes.chunk_by(|a, b| a == b).count();
    assert!(runs >= 7, "{runs} runs");
}

#[test]
fn a_region_that_goes_between_request_and_response_ends_the_read() {
    let mut reading = Reading::new();
    reading.read(1, LENGTH);
    reading.ask();
    reading.answer();
    reading.ask();
    reading.target.mrs.deregister(reading.keys);
    reading.answer();
    let wc = reading.reader.wcs.sent.last().unwrap();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RemoteAccess));
    let failed = reading.reader.engine.take_failed_read(1).unwrap();
    assert_eq!(failed.map.octets(), wc.byte_len);
    assert_eq!(reading.reader.wcs.retired, 1);
}

#[test]
fn what_was_sent_to_a_group_is_never_answered() {
    let mut reading = Reading::new();
    reading.read(1, 100);
    reading.reader.transmit(&mut reading.from_reader);
    let datagrams = std::mem::take(&mut reading.from_reader.datagrams);
    let arrival = Arrival {
        by_memory: false,
        from: reader_at(),
        to: None,
        to_group: true,
        octets: &datagrams[0],
        stride: datagrams[0].len(),
    };
    let tables = Tables {
        mrs: &reading.target.mrs,
        recv_queue: &reading.target.recv_queue,
    };
    let engine = &mut reading.target.engine;
    engine.handle_input(now(), arrival, tables, &mut reading.target.wcs);
    assert!(!engine.has_output());
    assert_eq!(engine.counters().dropped(DropReason::NotWellKnown), 1);
}

/// Responses that have to wait hold nothing back that the program itself posted.
#[test]
fn own_reads_leave_while_responses_wait() {
    let mut reading = Reading::new();
    reading.read(1, LENGTH);
    reading.ask();
    reading.answer();
    reading.ask();
    let began = now();
    let ended = began + Duration::from_micros(200);
    let engine = &mut reading.target.engine;
    assert!(engine.responses_have_output() && !engine.reads_have_output());
    let mut busy = UdEngine::begin_round(true);
    assert!(engine.next_turn(&mut busy, began).is_some());
    engine.end_turn(began, ended);
    assert_eq!(engine.next_turn(&mut busy, ended), None);
    let mut busy = UdEngine::begin_round(true);
    assert!(engine.next_turn(&mut busy, ended).is_some(), "posted alone");
    let operation = Operation::Read {
        rkey: 5,
        remote_addr: 0,
        timeout: None,
    };
    let sges = [reading.target.sge(0, 100)];
    reading.target.post(7, operation, &path(1500), &sges);
    assert!(reading.target.engine.reads_have_output());
    reading.target.transmit(&mut reading.from_target);
    let opcodes = |network: &Network| -> Vec<u8> {
        let opcode = |datagram: &Vec<u8>| datagram[1] & 0x0f;
        network.datagrams.iter().map(opcode).collect()
    };
    assert_eq!(opcodes(&reading.from_target), [0x1], "a Read Request alone");
    let engine = &mut reading.target.engine;
    engine.end_turn(ended, ended);
    assert_eq!(engine.next_turn(&mut busy, ended), None);
    assert!(engine.responses_have_output() && !engine.reads_have_output());
    let mut idle = UdEngine::begin_round(false);
    assert!(engine.next_turn(&mut idle, ended).is_some());
    reading.target.transmit(&mut reading.from_target);
    assert!(opcodes(&reading.from_target).contains(&0x2), "responses");
}
