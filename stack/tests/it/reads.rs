//! RDMA Read over datagrams, on real sockets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::node::{Node, SOON};
use crate::common::strangers::is_port_query;
use crate::common::{Process, crc32c, now, role, sleep, wait_until};
use dgiwarp::{
    Access, Buffer, Config, Destination, DropReason, ErrorEntry, ErrorReason, Operation, Pd,
    PostError, Region, Rnic, SendWr, Sge, UcOperation, UcQpAttr, UcSendWr, UdQpAttr, Wc, WcOpcode,
    WcStatus,
};

/// Value of a source at an offset.
fn pattern(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length)
        .map(|i| (i * 31 + i / 256 * 7 + i / 65_536).to_le_bytes()[0])
        .collect()
}

/// A buffer that peers may read.
struct Source {
    mr: dgiwarp::Mr,
    _memory: Buffer,
}

impl Source {
    fn new(pd: &Pd, length: usize) -> Self {
        Self::with(pd, length, Access::REMOTE_READ)
    }

    fn with(pd: &Pd, length: usize, access: Access) -> Self {
        let memory = Buffer::zeroed(length).unwrap();
        let step = 1 << 20;
        for start in (0..length).step_by(step) {
            memory.write(start, &pattern(start, step.min(length - start)));
        }
        let region: Region = memory.region();
        Self {
            mr: pd.register(region, access).unwrap(),
            _memory: memory,
        }
    }

    fn read(&self, offset: usize) -> Operation {
        read(self.mr.rkey(), self.mr.addr() + offset as u64, None)
    }
}

fn read(rkey: u32, remote_addr: u64, timeout: Option<Duration>) -> Operation {
    Operation::Read {
        rkey,
        remote_addr,
        timeout,
    }
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Two nodes, a source at the second, and the way there.
fn pair(sink: usize, source: usize) -> (Node, Node, Source, Destination) {
    let (reader, target) = (Node::new(sink), Node::new(64));
    let source = Source::new(&target.pd, source);
    let to = reader.to(&target.qp);
    (reader, target, source, to)
}

fn post(reader: &Node, wr_id: u64, operation: Operation, to: &Destination, sges: &[Sge]) {
    reader.post(wr_id, operation, to, sges).unwrap();
}

#[track_caller]
fn check(wc: &Wc, wr_id: u64, status: WcStatus, valid: usize) {
    assert_eq!((wc.opcode, wc.wr_id), (WcOpcode::RdmaRead, wr_id), "{wc:?}");
    assert_eq!((wc.status, wc.byte_len as usize), (status, valid), "{wc:?}");
}

/// The target's program never polls: its background thread answers.
#[test]
fn reads_of_all_sizes_and_alignments() {
    let (reader, target, source, to) = pair(2 << 20, 2 << 20);
    let sizes = [
        0,
        1,
        7,
        132,
        133,
        1000,
        4097,
        65_535,
        65_536,
        65_537,
        1_000_003,
        1 << 20,
    ];
    for (index, size) in sizes.into_iter().enumerate() {
        for (from, into) in [(0, 0), (3, 5), (4095, 1)] {
            let wr_id = index as u64;
            reader.memory.write(0, &vec![0xee; size + 16]);
            let sges = [reader.mr.sge(into..into + size)];
            post(&reader, wr_id, source.read(from), &to, &sges);
            check(&reader.wait(), wr_id, WcStatus::Success, size);
            assert_eq!(reader.memory.to_vec(into, size), pattern(from, size));
            assert!(reader.memory.to_vec(0, into).iter().all(|&it| it == 0xee));
            assert_eq!(reader.memory.load(into + size), 0xee, "{size} octets");
        }
    }
    let counters = target.qp.counters();
    assert!(counters.read_responses_sent > 100);
    assert_eq!(reader.qp.counters().reads_timed_out, 0);
    assert_eq!(reader.qp.take_read_map(1), None);
}

#[test]
fn a_read_of_64_mib_into_scattered_memory() {
    let length = 64 << 20;
    let (reader, _target, source, to) = pair(length + 3, length);
    let cut = 10_000_001;
    let sges = [
        reader.mr.sge(length - cut + 3..length + 3),
        reader.mr.sge(0..length - cut),
    ];
    let operation = read(source.mr.rkey(), source.mr.addr(), Some(SOON));
    post(&reader, 1, operation, &to, &sges);
    check(&reader.wait(), 1, WcStatus::Success, length);
    assert_eq!(
        reader.memory.to_vec(length - cut + 3, cut),
        pattern(0, cut),
        "the first part"
    );
    assert_eq!(
        reader.memory.to_vec(0, length - cut),
        pattern(cut, length - cut)
    );
}

#[test]
#[ignore = "takes a GiB of memory twice"]
fn soak_a_read_of_1_gib() {
    let length = 1 << 30;
    let (reader, _target, source, to) = pair(length, length);
    let operation = read(source.mr.rkey(), source.mr.addr(), Some(SOON * 6));
    post(&reader, 1, operation, &to, &[reader.mr.sge(..)]);
    let wc = reader.cq.wait(SOON * 6).unwrap().unwrap();
    check(&wc, 1, WcStatus::Success, length);
    for start in (0..length).step_by(1 << 20) {
        assert_eq!(
            reader.memory.to_vec(start, 1 << 20),
            pattern(start, 1 << 20)
        );
    }
}

/// More Reads than requests may be out, of several sizes, from several threads' worth of targets.
#[test]
fn many_reads_are_outstanding() {
    let reader = Node::new(8 << 20);
    let targets: Vec<_> = (0..4).map(|_| Node::new(64)).collect();
    let sources: Vec<_> = targets
        .iter()
        .map(|it| Source::new(&it.pd, 1 << 20))
        .collect();
    let ways: Vec<_> = targets.iter().map(|it| reader.to(&it.qp)).collect();
    let sizes = [64, 5000, 100_000, 0, 1];
    let room = 32 << 10;
    for wr in 0..250 {
        let size = sizes[wr % 5].min(room);
        let sges = [reader.mr.sge(wr * room..wr * room + size)];
        post(
            &reader,
            wr as u64,
            sources[wr % 4].read(wr),
            &ways[wr % 4],
            &sges,
        );
    }
    let mut seen = [false; 250];
    for _ in 0..250 {
        let wc = reader.wait();
        let wr = usize::try_from(wc.wr_id).unwrap();
        let size = sizes[wr % 5].min(room);
        check(&wc, wc.wr_id, WcStatus::Success, size);
        assert_eq!(reader.memory.to_vec(wr * room, size), pattern(wr, size));
        assert!(!std::mem::replace(&mut seen[wr], true));
    }
}

#[test]
fn what_may_not_be_read_ends_at_once() {
    let (reader, target, source, to) = pair(10_000, 10_000);
    let closed = Source::with(&target.pd, 100, Access::REMOTE_WRITE);
    let other = Source::new(&target.pd.rnic().alloc_pd(), 100);
    let (rkey, addr) = (source.mr.rkey(), source.mr.addr());
    let wrong = [
        (read(rkey ^ 1, addr, Some(SOON)), 5000, DropReason::BadStag),
        (read(rkey ^ 1, addr, Some(SOON)), 5, DropReason::BadStag),
        (
            read(rkey, addr + 9000, Some(SOON)),
            1001,
            DropReason::OutOfBounds,
        ),
        (closed.read(0), 100, DropReason::NoAccess),
        (other.read(0), 100, DropReason::BadPd),
    ];
    for (wr_id, (operation, length, reason)) in wrong.into_iter().enumerate() {
        let wr_id = wr_id as u64;
        let started = now();
        post(&reader, wr_id, operation, &to, &[reader.mr.sge(..length)]);
        check(&reader.wait(), wr_id, WcStatus::RemoteAccess, 0);
        assert!(now() - started < SOON / 2, "no need to wait for the time");
        assert!(target.qp.counters().dropped(reason) > 0, "{reason}");
        let map = reader.qp.take_read_map(wr_id).unwrap();
        assert_eq!((map.length as usize, map.valid()), (length, 0));
    }
    // The queue pairs go on.
    post(&reader, 9, source.read(0), &to, &[reader.mr.sge(..)]);
    check(&reader.wait(), 9, WcStatus::Success, 10_000);
}

/// Completions of Reads go to the queue of sends, which need not be that of receives: threads that wait there wake up.
#[test]
fn reads_complete_on_the_queue_of_sends() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let [sends, receives] = [(); 2].map(|()| rnic.create_cq(64).unwrap());
    let reader = pd.create_ud_qp(&UdQpAttr::new(&sends, &receives)).unwrap();
    let target = Node::new(64);
    let source = Source::new(&target.pd, 100_000);
    let memory = Buffer::zeroed(100_000).unwrap();
    let sink = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    let to = Destination {
        ah: pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap(),
        qpn: target.qp.qpn(),
        qkey: 0,
    };
    for wr_id in 0..20 {
        let wr = SendWr {
            wr_id,
            operation: source.read(0),
            destination: to.clone(),
            sges: &[sink.sge(..)],
            signaled: wr_id == 19,
            solicited: false,
        };
        reader.post_send(&[wr]).unwrap();
        if wr_id == 19 {
            let wc = sends.wait(SOON).unwrap().unwrap();
            check(&wc, 19, WcStatus::Success, 100_000);
        }
    }
    // Unsignaled ones made no completion.
    assert_eq!(sends.poll(&mut [Wc::default()]).unwrap(), 0);
    assert_eq!(receives.poll(&mut [Wc::default()]).unwrap(), 0);
}

#[test]
fn the_sink_must_be_writable() {
    let (reader, _target, source, to) = pair(100, 100);
    let memory = Buffer::zeroed(100).unwrap();
    let locked = reader.pd.register(memory.region(), Access::empty());
    let sges = [locked.unwrap().sge(..)];
    post(&reader, 1, source.read(0), &to, &sges);
    check(&reader.wait(), 1, WcStatus::LocalProtection, 0);
}

#[test]
fn a_target_that_is_gone_costs_the_time_given() {
    let (reader, target, source, to) = pair(100_000, 100_000);
    drop(target);
    for (wr_id, length) in [(1, 100_000), (2, 10)] {
        let started = now();
        let operation = read(source.mr.rkey(), source.mr.addr(), Some(millis(150)));
        post(&reader, wr_id, operation, &to, &[reader.mr.sge(..length)]);
        let wc = reader.wait();
        check(&wc, wr_id, WcStatus::ResponseTimeout, 0);
        assert!(now() - started >= millis(150));
        assert_eq!(wc.vendor_error, nix::libc::ECONNREFUSED.unsigned_abs());
        assert_eq!(reader.qp.take_read_map(wr_id).unwrap().ranges, []);
    }
    assert_eq!(reader.qp.counters().reads_timed_out, 2);
}

/// A target made by hand: it decides itself what it answers.
struct Hand {
    socket: UdpSocket,
}

impl Hand {
    fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self { socket }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// The next datagram without its CRC, and who sent it.
    fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 2000];
        let (length, from) = loop {
            let (length, from) = self.socket.recv_from(&mut buffer).unwrap();
            if !is_port_query(&buffer[..length]) {
                break (length, from);
            }
        };
        let (octets, crc) = buffer[..length].split_at(length - 4);
        assert_eq!(crc, crc32c(octets).to_le_bytes());
        (octets.to_vec(), from)
    }

    fn send(&self, to: SocketAddr, mut octets: Vec<u8>) {
        octets.extend(crc32c(&octets).to_le_bytes());
        self.socket.send_to(&octets, to).unwrap();
    }

    /// Answers a cookie request and returns the Read Request that follows: header, then 28 octets.
    fn request(&self) -> (Vec<u8>, SocketAddr) {
        let (mut exchange, from) = self.receive();
        assert_eq!(exchange[..4], [0x49, 1, 0, 0]);
        exchange[1] = 2;
        exchange[16..24].copy_from_slice(b"a cookie");
        self.send(from, exchange);
        let (request, from) = self.receive();
        assert_eq!(request[..2], [0x45, 0x41]);
        assert_eq!(request[18..26], *b"a cookie");
        (request[26..].to_vec(), from)
    }

    /// Answers `length` octets from `offset` on of a request.
    fn respond(&self, to: SocketAddr, request: &[u8], offset: u64, length: usize) {
        let mut response = vec![0x81, 0x42];
        response.extend(&request[..4]);
        let sink = u64::from_be_bytes(request[4..12].try_into().unwrap());
        response.extend((sink + offset).to_be_bytes());
        response.extend(vec![0x77; length]);
        self.send(to, response);
    }
}

#[test]
fn at_the_deadline_the_map_tells_what_came_and_later_octets_touch_nothing() {
    let reader = Node::new(10_000);
    let hand = Hand::new();
    let to = reader.to_port(Ipv4Addr::LOCALHOST.into(), hand.port());
    let operation = read(1, 0, Some(millis(300)));
    post(&reader, 7, operation, &to, &[reader.mr.sge(..)]);
    let (request, from) = hand.request();
    assert_eq!(request[12..16], 10_000u32.to_be_bytes());
    hand.respond(from, &request, 1000, 500);
    hand.respond(from, &request, 3000, 7);
    hand.respond(from, &request, 1000, 500);
    // Nobody polls: the background thread takes it in, and ends the Read.
    sleep(millis(400));
    hand.respond(from, &request, 5000, 500);
    sleep(millis(50));
    check(&reader.wait(), 7, WcStatus::ResponseTimeout, 507);
    let map = reader.qp.take_read_map(7).unwrap();
    assert_eq!(map.ranges, [(1000, 1500), (3000, 3007)]);
    assert_eq!(reader.qp.take_read_map(7), None);
    let memory = reader.memory.to_vec(0, 10_000);
    for (position, octet) in memory.into_iter().enumerate() {
        let placed = (1000..1500).contains(&position) || (3000..3007).contains(&position);
        assert_eq!(octet, if placed { 0x77 } else { 0 }, "{position}");
    }
    let counters = reader.qp.counters();
    assert_eq!(counters.dropped(DropReason::BadStag), 1);
    assert_eq!(counters.dropped(DropReason::Duplicate), 1);
}

/// The time is kept though nobody polls and the target is silent.
#[test]
fn the_deadline_is_kept_in_the_background() {
    let reader = Node::new(5000);
    let hand = Hand::new();
    let to = reader.to_port(Ipv4Addr::LOCALHOST.into(), hand.port());
    let mut latest = Duration::ZERO;
    // A machine that stalls may be late once.
    for _ in 0..5 {
        let started = now();
        post(
            &reader,
            1,
            read(1, 0, Some(millis(100))),
            &to,
            &[reader.mr.sge(..)],
        );
        let due = started + millis(100);
        let wc = reader.cq.wait(SOON).unwrap().unwrap();
        check(&wc, 1, WcStatus::ResponseTimeout, 0);
        latest = now().saturating_duration_since(due);
        if latest < millis(50) {
            break;
        }
    }
    assert!(latest < millis(50), "{latest:?} late");
}

#[test]
fn a_sink_that_goes_fails_the_read() {
    let reader = Node::new(64);
    let memory = Buffer::zeroed(5000).unwrap();
    let sink = reader
        .pd
        .register(memory.region(), Access::LOCAL_WRITE)
        .unwrap();
    let hand = Hand::new();
    let to = reader.to_port(Ipv4Addr::LOCALHOST.into(), hand.port());
    post(&reader, 3, read(1, 0, Some(SOON)), &to, &[sink.sge(..)]);
    let (request, from) = hand.request();
    drop(sink);
    hand.respond(from, &request, 0, 100);
    check(&reader.wait(), 3, WcStatus::LocalProtection, 0);
    assert_eq!(memory.to_vec(0, 5000), vec![0; 5000]);
}

#[test]
fn flushing_ends_reads() {
    let reader = Node::new(5000);
    let hand = Hand::new();
    let to = reader.to_port(Ipv4Addr::LOCALHOST.into(), hand.port());
    for wr_id in 0..3 {
        let sges = [reader.mr.sge(..)];
        post(&reader, wr_id, read(1, 0, Some(SOON)), &to, &sges);
    }
    reader.qp.flush();
    for wr_id in 0..3 {
        check(&reader.wait(), wr_id, WcStatus::Flushed, 0);
    }
    // The queue has room again for all that it was made for.
    for wr_id in 0..256 {
        let sges = [reader.mr.sge(..1)];
        post(&reader, wr_id, read(1, 0, Some(SOON)), &to, &sges);
    }
    let started = now();
    drop(reader.qp);
    assert!(now() - started < SOON / 2);
    for wr_id in 0..256 {
        let wc = reader.cq.wait(SOON).unwrap().unwrap();
        check(&wc, wr_id, WcStatus::Flushed, 0);
    }
}

/// A requester without a cookie gets at most three times what it sent.
#[test]
fn strangers_get_little() {
    let target = Node::new(64);
    let source = Source::new(&target.pd, 10_000);
    let hand = Hand::new();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, target.qp.qpn()));
    let ask = |size: u32, cookie: Option<&[u8]>| {
        let mut request = vec![if cookie.is_some() { 0x45 } else { 0x41 }, 0x41];
        for word in [0xe, 1, 0, 0u32] {
            request.extend(word.to_be_bytes());
        }
        request.extend(cookie.unwrap_or_default());
        request.extend([9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.extend(size.to_be_bytes());
        request.extend(source.mr.rkey().to_be_bytes());
        request.extend(source.mr.addr().to_be_bytes());
        hand.send(to, request);
    };
    ask(133, None);
    ask(157, Some(b"made up."));
    ask(132, None);
    let (response, _) = hand.receive();
    assert_eq!(response[..2], [0xc1, 0x42]);
    assert_eq!(response[14..], pattern(0, 132));
    let dropped = target.qp.counters().dropped(DropReason::UnvalidatedRead);
    assert_eq!(dropped, 2);
    // With a cookie it gets what it asks for.
    let mut exchange = vec![0x49, 1, 0, 0];
    exchange.extend([0, 0, 0, 0xe]);
    exchange.extend(b"8 octets");
    exchange.extend([0; 16]);
    hand.send(to, exchange);
    let (answer, _) = hand.receive();
    assert_eq!(answer[..2], [0x49, 2]);
    assert_eq!(answer[8..16], *b"8 octets");
    ask(1000, Some(&answer[16..24]));
    let (response, _) = hand.receive();
    assert_eq!(response[14..], pattern(0, 1000));
}

const SLEEPER: &str = here!("a_process_that_sleeps_is_read_from");

/// The target is another process whose only thread sleeps.
#[test]
fn a_process_that_sleeps_is_read_from() {
    if role().is_some() {
        let target = Node::new(64);
        let source = Source::new(&target.pd, 3 << 20);
        println!(
            "TARGET {} {} {}",
            target.qp.qpn(),
            source.mr.rkey(),
            source.mr.addr()
        );
        let until: Instant = now() + SOON * 3;
        while now() < until {
            sleep(SOON);
        }
        return;
    }
    let mut process = Process::start(SLEEPER, "target", &[]);
    let told = process.tells("TARGET ", SOON);
    let mut parts = told.split(' ').map(|part| part.parse::<u64>().unwrap());
    let mut part = || parts.next().unwrap();
    let (qpn, rkey, addr) = (
        u16::try_from(part()).unwrap(),
        u32::try_from(part()).unwrap(),
        part(),
    );
    let length = 3 << 20;
    let reader = Node::with(length, Config::default(), |_| ());
    let to = reader.to_port(Ipv4Addr::LOCALHOST.into(), qpn);
    for wr_id in 0..4 {
        let operation = read(rkey, addr, Some(SOON));
        post(&reader, wr_id, operation, &to, &[reader.mr.sge(..)]);
        check(&reader.wait(), wr_id, WcStatus::Success, length);
    }
    assert_eq!(reader.memory.to_vec(0, length), pattern(0, length));
    // Killed in the middle, it costs the time given.
    let operation = read(rkey, addr, Some(millis(200)));
    let started = now();
    for wr_id in 0..40 {
        post(&reader, wr_id, operation, &to, &[reader.mr.sge(..)]);
    }
    process.kill();
    let mut timed_out = 0;
    for _ in 0..40 {
        let wc = reader.wait();
        timed_out += usize::from(wc.status == WcStatus::ResponseTimeout);
    }
    assert!(timed_out > 0 && now() - started >= millis(200));
}

/// A hand that asks for a cookie of its epoch, 0xe.
fn cookie_for(hand: &Hand, to: SocketAddr) -> Vec<u8> {
    let mut exchange = vec![0x49, 1, 0, 0, 0, 0, 0, 0xe];
    exchange.extend(b"8 octets");
    exchange.extend([0; 16]);
    hand.send(to, exchange);
    hand.receive().0[16..24].to_vec()
}

#[test]
fn a_peer_with_a_cookie_learns_why_its_write_record_was_dropped() {
    let target = Node::with(64, Config::default(), |attr| attr.record_slots = 4);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, target.qp.qpn()));
    let hand = Hand::new();
    let cookie = cookie_for(&hand, to);
    let write = |number: u32, cookie: Option<&[u8]>| {
        let mut segment = vec![if cookie.is_some() { 0xc5 } else { 0xc1 }, 0x4c];
        segment.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut extension = vec![0; 4];
        for word in [0xe, number, 9, 0, 0] {
            extension.extend(word.to_be_bytes());
        }
        segment.extend(&extension);
        segment.extend(cookie.unwrap_or_default());
        segment.extend([7; 9]);
        hand.send(to, segment);
        extension
    };
    write(1, None);
    write(2, Some(b"made up."));
    let extension = write(3, Some(&cookie));
    let (terminate, _) = hand.receive();
    assert_eq!(terminate[..2], [0x41, 0x47]);
    assert_eq!(terminate[6..10], [0, 0, 0, 2], "queue 2");
    assert_eq!(terminate[18..22], [0x01, 0x00, 0x40, 0], "invalid STag");
    assert_eq!(terminate[22..], extension);
    assert_eq!(target.qp.counters().dropped(DropReason::BadStag), 3);
    // A Terminate is never answered, whatever its contents.
    let mut stray = terminate.clone();
    stray[0] = 0x45;
    stray.splice(18..18, cookie.iter().copied());
    hand.send(to, stray);
    let sent = target.qp.counters().segments_sent;
    sleep(millis(50));
    assert_eq!(target.qp.counters().segments_sent, sent);
    assert_eq!(target.qp.counters().dropped(DropReason::Unsolicited), 1);
}

#[test]
fn a_terminate_about_a_message_becomes_an_entry_of_the_error_queue() {
    let source = Node::new(64);
    let hand = Hand::new();
    let to = source.to_port(Ipv4Addr::LOCALHOST.into(), hand.port());
    let write = Operation::WriteRecord {
        rkey: 1,
        remote_addr: 2,
        immediate: None,
    };
    post(&source, 1, write, &to, &[source.mr.sge(..9)]);
    let (segment, from) = hand.receive();
    let mut terminate = vec![0x41, 0x47];
    for word in [0xf, 2, 3, 0u32] {
        terminate.extend(word.to_be_bytes());
    }
    terminate.extend([0x01, 0x02, 0x40, 0]);
    terminate.extend(&segment[14..38]);
    // A Terminate about another epoch is dropped.
    let mut other = terminate.clone();
    other[26] ^= 1;
    hand.send(from, other);
    hand.send(from, terminate);
    let number = u32::from_be_bytes(segment[22..26].try_into().unwrap());
    let mut entry = None;
    wait_until(SOON, "an entry", || {
        entry = source.qp.poll_error();
        entry.is_some()
    });
    let expected = ErrorEntry {
        peer: (Ipv4Addr::LOCALHOST, hand.port()).into(),
        message: Some(number),
        reason: ErrorReason::Terminate {
            layer: 0,
            error_type: 1,
            code: 2,
        },
    };
    assert_eq!(entry, Some(expected));
    assert_eq!(source.qp.poll_error(), None);
    assert_eq!(source.qp.counters().dropped(DropReason::Unsolicited), 1);
}

/// The peer of a UC queue pair is fixed: a Terminate to it needs no cookie.
#[test]
fn a_uc_queue_pair_learns_why_its_write_was_dropped() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let ends = [(); 2].map(|()| pd.create_uc_qp(&UcQpAttr::new(&cq, &cq)).unwrap());
    let ah = pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
    ends[0].connect(&ah, ends[1].qpn()).unwrap();
    ends[1].connect(&ah, ends[0].qpn()).unwrap();
    let memory = Buffer::zeroed(100).unwrap();
    let mr = pd.register(memory.region(), Access::empty()).unwrap();
    let operation = UcOperation::Write {
        rkey: mr.rkey(),
        remote_addr: mr.addr(),
        immediate: None,
    };
    let sges = [mr.sge(..)];
    let write = UcSendWr {
        wr_id: 1,
        operation,
        sges: &sges,
        signaled: false,
        solicited: false,
    };
    ends[0].post_send(&[write]).unwrap();
    let mut entry = None;
    wait_until(SOON, "an entry", || {
        entry = ends[0].poll_error();
        entry.is_some()
    });
    let expected = ErrorReason::Terminate {
        layer: 0,
        error_type: 1,
        code: 2,
    };
    assert_eq!(entry.map(|entry| entry.reason), Some(expected));
    assert_eq!(ends[1].counters().dropped(DropReason::NoAccess), 1);
}

#[test]
fn a_group_cannot_be_read_from() {
    let reader = Node::new(64);
    let to = reader.to_port("239.1.2.3".parse().unwrap(), 5);
    let refused = reader.post(1, read(1, 2, None), &to, &[reader.mr.sge(..1)]);
    assert_eq!(refused.unwrap_err().source, PostError::Group);
}

/// Replies leave from the address that was asked, whichever the kernel would choose.
#[test]
fn a_target_is_read_at_every_address_that_it_has() {
    let (reader, target, source, _) = pair(300_000, 300_000);
    for (wr_id, address) in ["127.0.0.2", "127.0.0.1", "127.0.0.3", "::1"]
        .into_iter()
        .enumerate()
    {
        let to = reader.to_port(address.parse().unwrap(), target.qp.qpn());
        for length in [100, 300_000] {
            let sges = [reader.mr.sge(..length)];
            post(&reader, wr_id as u64, source.read(0), &to, &sges);
            check(&reader.wait(), wr_id as u64, WcStatus::Success, length);
        }
    }
    // A target that had no CPU for a while is asked twice, and may answer twice.
    let counters = reader.qp.counters();
    assert!(counters.read_repeats > 0 || counters.dropped(DropReason::BadStag) == 0);
}

/// A cookie that no Read needs, only the program, is requested until it arrives.
#[test]
fn a_lost_cookie_request_is_repeated() {
    let mut config = Config::default();
    config.fault = Some("drop=0.5,seed=3".parse().unwrap());
    let target = Node::with(64, config, |_| ());
    let source = Node::new(64);
    let to = source.to(&target.qp);
    for _ in 0..8 {
        source.qp.prove_address(&to, SOON * 3).unwrap();
    }
    assert!(target.qp.counters().fault_dropped > 0);
}

/// With loss, duplication and reordering in both directions every Read is complete in the end.
#[test]
fn a_bad_path_only_costs_time() {
    let mut config = Config::default();
    config.fault = Some("drop=0.1,dup=0.05,reorder=0.1,seed=7".parse().unwrap());
    config.max_mtu = 1500;
    let reader = Node::with(1 << 20, config.clone(), |_| ());
    let target = Node::with(64, config, |_| ());
    let source = Source::new(&target.pd, 1 << 20);
    let to = reader.to(&target.qp);
    for (wr_id, length) in [(0, 50), (1, 1 << 20), (2, 77_777), (3, 0)] {
        let operation = read(source.mr.rkey(), source.mr.addr(), Some(SOON * 3));
        let sges = [reader.mr.sge(..length)];
        post(&reader, wr_id, operation, &to, &sges);
        let wc = reader.cq.wait(SOON * 3).unwrap().unwrap();
        check(&wc, wr_id, WcStatus::Success, length);
        assert_eq!(reader.memory.to_vec(0, length), pattern(0, length));
    }
    assert!(reader.qp.counters().read_repeats > 0);
}
