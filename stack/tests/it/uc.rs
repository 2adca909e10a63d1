//! UC queue pairs over real sockets.
//!
//! Incomplete and repeated messages come from a socket of the test, in datagrams made after the specification and by no code of dgiwarp.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::node::SOON;
use crate::common::strangers::dropped;
use crate::common::{crc32c, now, sleep, wait_until};
use dgiwarp::{
    Access, AsyncEvent, Buffer, Config, Cq, DatagramConnectError, DropReason, ErrorReason, Mr, Pd,
    PostError, PostFailure, RecvWr, Rnic, UcOperation, UcQp, UcQpAttr, UcSendWr, Wc, WcOpcode,
    WcStatus,
};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const IMMEDIATE: u32 = 0xcafe_f00d;
const SEND: UcOperation = UcOperation::Send { immediate: None };

/// A UC queue pair of a device of its own, with one completion queue and registered memory.
struct End {
    qp: UcQp,
    cq: Cq,
    mr: Mr,
    memory: Buffer,
    pd: Pd,
}

impl End {
    fn new(octets: usize) -> Self {
        Self::with(octets, Config::default(), |_| ())
    }

    fn with(octets: usize, config: Config, change: impl FnOnce(&mut UcQpAttr<'_>)) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let mut attr = UcQpAttr::new(&cq, &cq);
        change(&mut attr);
        let qp = pd.create_uc_qp(&attr).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let mr = pd.register(memory.region(), Access::REMOTE_WRITE).unwrap();
        Self {
            qp,
            cq,
            mr,
            memory,
            pd,
        }
    }

    /// Two that are each other's peer.
    fn pair(octets: usize) -> (Self, Self) {
        let (a, b) = (Self::new(octets), Self::new(octets));
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        (a, b)
    }

    fn connect(&self, qpn: u16) {
        self.qp
            .connect(&self.pd.create_ah(HOST).unwrap(), qpn)
            .unwrap();
    }

    fn post(&self, operation: UcOperation, length: usize) -> Result<(), PostFailure> {
        self.qp.post_send(&[UcSendWr {
            wr_id: 1,
            operation,
            sges: &[self.mr.sge(..length)],
            signaled: true,
            solicited: false,
        }])
    }

    /// Posts, and waits for the completion.
    #[track_caller]
    fn send(&self, operation: UcOperation, length: usize) {
        self.post(operation, length).unwrap();
        let wc = self.wait();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
        assert_eq!(wc.byte_len as usize, length);
    }

    fn post_recv(&self, wr_id: u64, length: usize) {
        let sges = [self.mr.sge(..length)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    #[track_caller]
    fn wait(&self) -> Wc {
        self.cq.wait(SOON).unwrap().expect("a completion")
    }

    /// A Write into our memory at `offset`.
    fn write_here(&self, offset: u64, immediate: Option<u32>) -> UcOperation {
        UcOperation::Write {
            rkey: self.mr.rkey(),
            remote_addr: self.mr.addr() + offset,
            immediate,
        }
    }

    #[track_caller]
    fn drops(&self, reason: DropReason, count: u64) {
        wait_until(SOON, "it is counted", || {
            // Nobody else polls.
            assert_eq!(self.cq.poll_one(), Ok(None));
            self.qp.counters().dropped(reason) == count
        });
    }
}

/// Octet i of a message.
fn pattern(length: usize) -> Vec<u8> {
    (0u8..251).cycle().take(length).map(|i| i + 1).collect()
}

/// Another implementation's UC QP, which sends what a test gives it.
struct Stranger {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Stranger {
    fn new(target: &End) -> Self {
        Self {
            socket: UdpSocket::bind((HOST, 0)).unwrap(),
            to: (HOST, target.qp.qpn()).into(),
        }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// One segment of a UC Write with immediate to the start of the memory.
    fn write(&self, target: &End, [number, length, offset]: [u32; 3], payload: &[u8]) {
        let end = offset + u32::try_from(payload.len()).unwrap();
        let mut datagram = vec![if end == length { 0xc1 } else { 0x81 }, 0x4c];
        datagram.extend(target.mr.rkey().to_be_bytes());
        datagram.extend((target.mr.addr() + u64::from(offset)).to_be_bytes());
        datagram.extend([0x05, 0, 0, 0]);
        for word in [0x1234_5678, number, length, offset, IMMEDIATE] {
            datagram.extend(word.to_be_bytes());
        }
        datagram.extend(payload);
        datagram.extend(crc32c(&datagram).to_le_bytes());
        self.socket.send_to(&datagram, self.to).unwrap();
    }
}

#[test]
fn sends_go_both_ways_with_and_without_immediate() {
    let (a, b) = End::pair(1 << 20);
    for (from, to) in [(&a, &b), (&b, &a)] {
        for length in [0, 1, 1001, 64_900, 65_001, 300_000] {
            for immediate in [None, Some(IMMEDIATE)] {
                from.memory.write(0, &pattern(length));
                to.memory.write(0, &vec![0; length]);
                to.post_recv(7, length);
                from.send(UcOperation::Send { immediate }, length);
                let wc = to.wait();
                assert_eq!((wc.wr_id, wc.opcode), (7, WcOpcode::Recv));
                assert_eq!(wc.byte_len as usize, length);
                assert_eq!(wc.immediate, immediate);
                assert_eq!(wc.source.unwrap().port(), from.qp.qpn());
                assert_eq!(to.memory.to_vec(0, length), pattern(length));
            }
        }
        assert_eq!(dropped(&to.qp.counters()), 0);
    }
}

#[test]
fn peers_meet_over_ipv6() {
    let on_v6 = || {
        let v6 = |attr: &mut UcQpAttr<'_>| attr.bind = Some((Ipv6Addr::LOCALHOST, 0).into());
        End::with(100_000, Config::default(), v6)
    };
    let (a, b) = (on_v6(), on_v6());
    for (end, other) in [(&a, &b), (&b, &a)] {
        let ah = end.pd.create_ah(Ipv6Addr::LOCALHOST.into()).unwrap();
        end.qp.connect(&ah, other.qp.qpn()).unwrap();
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.memory.write(0, &pattern(100_000));
        to.memory.write(0, &[0; 100_000]);
        to.post_recv(1, 0);
        from.send(to.write_here(0, Some(5)), 100_000);
        let wc = to.wait();
        assert_eq!(wc.source, Some((Ipv6Addr::LOCALHOST, from.qp.qpn()).into()));
        assert_eq!(to.memory.to_vec(0, 100_000), pattern(100_000));
    }
}

#[test]
fn a_write_with_immediate_completes_a_receive() {
    let (a, b) = End::pair(1 << 20);
    for length in [0, 1, 1001, 64_900, 65_001, 300_001] {
        a.memory.write(0, &pattern(length));
        b.memory.write(0, &vec![0; length + 1]);
        b.post_recv(9, 0);
        a.send(b.write_here(1, Some(IMMEDIATE)), length);
        let wc = b.wait();
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.status),
            (9, WcOpcode::RecvRdmaWithImmediate, WcStatus::Success)
        );
        assert_eq!(wc.byte_len as usize, length);
        assert_eq!(wc.immediate, Some(IMMEDIATE));
        assert_eq!(wc.source.unwrap().port(), a.qp.qpn());
        assert_eq!(b.memory.to_vec(1, length), pattern(length));
    }
}

#[test]
fn a_write_without_immediate_is_seen_in_memory_only() {
    let (a, b) = End::pair(1 << 20);
    b.post_recv(9, 100);
    for length in [1, 1001, 300_001] {
        a.memory.write(0, &pattern(length));
        b.memory.write(0, &vec![0; length]);
        a.send(b.write_here(0, None), length);
        wait_until(SOON, "the octets arrive", || {
            assert_eq!(b.cq.poll_one(), Ok(None));
            b.memory.to_vec(0, length) == pattern(length)
        });
    }
    // The receive is still there, and takes what comes next.
    a.send(SEND, 10);
    assert_eq!(b.wait().wr_id, 9);
}

#[test]
fn without_a_receive_a_write_with_immediate_is_dropped() {
    let (a, b) = End::pair(4096);
    a.memory.write(0, &pattern(10));
    a.send(b.write_here(0, Some(1)), 10);
    b.drops(DropReason::NoReceive, 1);
    assert_eq!(b.memory.to_vec(0, 10), [0; 10]);
    a.send(SEND, 10);
    b.drops(DropReason::NoReceive, 2);
    b.post_recv(3, 0);
    a.send(b.write_here(0, Some(2)), 10);
    assert_eq!((b.wait().immediate, b.cq.poll_one()), (Some(2), Ok(None)));
}

#[test]
fn only_the_peer_is_heard() {
    let (a, b) = End::pair(4096);
    let third = End::new(4096);
    third.connect(b.qp.qpn());
    b.post_recv(1, 100);
    third.send(SEND, 50);
    third.send(b.write_here(0, None), 50);
    b.drops(DropReason::WrongPeer, 2);
    a.send(SEND, 60);
    assert_eq!(b.wait().byte_len, 60);
}

#[test]
fn before_there_is_a_peer_nothing_goes_in_or_out() {
    let (a, b) = (End::new(4096), End::new(4096));
    let refused = PostFailure {
        accepted: 0,
        source: PostError::State,
    };
    assert_eq!(a.post(SEND, 10), Err(refused));
    assert_eq!(a.qp.peer_addr(), None);
    a.connect(b.qp.qpn());
    assert_eq!(a.qp.peer_addr(), Some((HOST, b.qp.qpn()).into()));
    b.post_recv(1, 100);
    a.send(SEND, 10);
    b.drops(DropReason::WrongPeer, 1);
    b.connect(a.qp.qpn());
    a.send(SEND, 20);
    assert_eq!(b.wait().byte_len, 20);
    let ah = a.pd.create_ah(HOST).unwrap();
    assert_eq!(
        a.qp.connect(&ah, b.qp.qpn()),
        Err(DatagramConnectError::Connected)
    );
}

#[test]
fn a_peer_is_one_host_that_can_be_reached() {
    let end = End::with(4096, Config::default(), |attr| {
        attr.bind = Some((HOST, 0).into());
    });
    let v6 = end.pd.create_ah(Ipv6Addr::LOCALHOST.into());
    let refused = end.qp.connect(&v6.unwrap(), 4000);
    assert_eq!(refused, Err(DatagramConnectError::AddressFamily));
    let nobody = end.pd.create_ah(Ipv4Addr::UNSPECIFIED.into());
    let refused = end.qp.connect(&nobody.unwrap(), 4000);
    assert_eq!(refused, Err(DatagramConnectError::NotUnicast));
    end.connect(4000);
}

/// The peer has a connected socket from the beginning, not only once it is busy.
#[test]
fn the_peer_has_a_socket_of_its_own() {
    let (a, b) = End::pair(4096);
    let sockets = std::fs::read_to_string("/proc/self/net/udp").unwrap();
    let ends = |one: &End, other: &End| {
        let local = format!("0100007F:{:04X}", one.qp.qpn());
        let remote = format!("0100007F:{:04X}", other.qp.qpn());
        sockets
            .lines()
            .any(|line| line.contains(&local) && line.contains(&remote))
    };
    assert!(ends(&a, &b) && ends(&b, &a), "{sockets}");
}

/// An established peer gets a Terminate about its segment that was dropped.
#[test]
fn a_refused_write_becomes_an_entry_of_the_error_queue() {
    let (a, b) = End::pair(4096);
    let events = a.pd.rnic().async_events();
    let refused = UcOperation::Write {
        rkey: b.mr.rkey() ^ 1,
        remote_addr: b.mr.addr(),
        immediate: None,
    };
    a.send(refused, 100);
    b.drops(DropReason::BadStag, 1);
    let mut entry = None;
    wait_until(SOON, "it is told", || {
        assert_eq!(a.cq.poll_one(), Ok(None));
        entry = a.qp.poll_error();
        entry.is_some()
    });
    let entry = entry.unwrap();
    assert_eq!(entry.peer, (HOST, b.qp.qpn()).into());
    assert!(entry.message.is_some());
    let ErrorReason::Terminate {
        layer,
        error_type,
        code,
    } = entry.reason
    else {
        panic!("{entry:?}");
    };
    // RFC 5040 §4.8: RDMAP, remote protection error, invalid STag.
    assert_eq!((layer, error_type, code), (0, 1, 0));
    let qpn = a.qp.qpn().into();
    assert_eq!(
        events.next_event(false),
        Some(AsyncEvent::ErrorQueue { qpn })
    );
    // Both go on.
    b.post_recv(1, 100);
    a.send(SEND, 10);
    assert_eq!(b.wait().byte_len, 10);
}

/// A UC QP has no Reads, and hears of errors from its peer only.
#[test]
fn reads_and_strangers_reports_are_dropped() {
    let target = End::new(4096);
    let (peer, stranger) = (Stranger::new(&target), Stranger::new(&target));
    target.connect(peer.port());
    // Untagged headers: control, opcode, epoch, queue, MSN, MO; then the body.
    let untagged = |opcode: u8, queue: u32, body: &[u8]| {
        let mut datagram = vec![0x41, opcode];
        for word in [0x0bad_cafe, queue, 1, 0] {
            datagram.extend(u32::to_be_bytes(word));
        }
        datagram.extend(body);
        datagram.extend(crc32c(&datagram).to_le_bytes());
        datagram
    };
    let mut read = vec![];
    for word in [1, 0, 0, 16, target.mr.rkey()] {
        read.extend(u32::to_be_bytes(word));
    }
    read.extend(target.mr.addr().to_be_bytes());
    let read = untagged(0x41, 1, &read);
    let mut report = vec![0x01, 0x00, 0x40, 0x00, 0, 0, 0, 0];
    for word in [0xa1b2_c3d4, 5, 100, 0, 0] {
        report.extend(u32::to_be_bytes(word));
    }
    let report = untagged(0x47, 2, &report);
    for (from, datagram, reason, count) in [
        (&stranger, &read, DropReason::WrongPeer, 1),
        (&stranger, &report, DropReason::WrongPeer, 2),
        (&peer, &read, DropReason::UnexpectedOpcode, 1),
        (&peer, &report, DropReason::Unsolicited, 1),
    ] {
        from.socket.send_to(datagram, from.to).unwrap();
        target.drops(reason, count);
    }
    assert_eq!(target.qp.poll_error(), None);
    let mut answer = [0; 100];
    for socket in [&peer.socket, &stranger.socket] {
        socket.set_nonblocking(true).unwrap();
        while let Ok((_, from)) = socket.recv_from(&mut answer) {
            assert_ne!(from, peer.to, "nothing comes back");
        }
    }
}

#[test]
fn an_incomplete_write_is_counted_and_reported_to_nobody() {
    let mut config = Config::default();
    config.record_timeout = Duration::from_millis(100);
    let target = End::with(4096, config, |_| ());
    let peer = Stranger::new(&target);
    target.connect(peer.port());
    target.post_recv(1, 0);
    let began = now();
    peer.write(&target, [5, 1000, 0], &[1; 400]);
    peer.write(&target, [5, 1000, 700], &[3; 300]);
    target.drops(DropReason::IncompleteWrite, 1);
    // The clock of the data path ticks every few milliseconds.
    assert!(now() - began >= Duration::from_millis(80));
    // The rest comes too late, and the receive is there for the next message.
    peer.write(&target, [5, 1000, 400], &[2; 300]);
    target.drops(DropReason::Late, 1);
    assert_eq!(target.memory.to_vec(400, 300), [0; 300]);
    peer.write(&target, [6, 1000, 500], &[5; 500]);
    peer.write(&target, [6, 1000, 500], &[6; 500]);
    target.drops(DropReason::Duplicate, 1);
    peer.write(&target, [6, 1000, 0], &[4; 500]);
    let wc = target.wait();
    assert_eq!((wc.wr_id, wc.byte_len), (1, 1000));
    assert_eq!(target.memory.to_vec(0, 1000), [[4; 500], [5; 500]].concat());
    assert_eq!(target.cq.poll_one(), Ok(None));
}

#[test]
fn write_records_are_taken_where_they_are_asked_for() {
    let a = End::new(4096);
    let (off, on) = (
        End::new(4096),
        End::with(4096, Config::default(), |attr| attr.record_slots = 2),
    );
    let record_in = |target: &End| UcOperation::WriteRecord {
        rkey: target.mr.rkey(),
        remote_addr: target.mr.addr(),
        immediate: None,
    };
    let other = End::new(4096);
    other.connect(off.qp.qpn());
    off.connect(other.qp.qpn());
    other.send(record_in(&off), 100);
    off.drops(DropReason::WriteRecordOff, 1);
    a.connect(on.qp.qpn());
    on.connect(a.qp.qpn());
    a.send(record_in(&on), 100);
    let wc = on.wait();
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::WriteRecord, 100));
    assert_eq!(on.qp.record(wc.record()).unwrap().ranges, [(0, 100)]);
    assert!(on.qp.release_record(wc.record()));
    a.send(on.write_here(0, None), 100);
    wait_until(SOON, "it arrives", || {
        assert_eq!(on.cq.poll_one(), Ok(None));
        on.qp.counters().segments_received == 2
    });
}

/// A peer that went and came back on its port is heard, though its message numbers begin anew.
#[test]
fn a_restarted_peer_goes_on() {
    let target = End::new(4096);
    let mut port = 0;
    for life in 1..=3 {
        let peer = End::with(4096, Config::default(), |attr| {
            attr.bind = Some((HOST, port).into());
        });
        if life == 1 {
            port = peer.qp.qpn();
            target.connect(port);
        }
        peer.connect(target.qp.qpn());
        for number in 0..20 {
            target.post_recv(number, 100);
            let length = 10 + usize::try_from(number).unwrap();
            peer.send(target.write_here(0, Some(life)), length);
            let wc = target.wait();
            assert_eq!((wc.wr_id, wc.immediate), (number, Some(life)));
            // And back, over the socket that was connected to the one before.
            peer.post_recv(number, 100);
            target.send(SEND, length);
            assert_eq!(peer.wait().byte_len as usize, length);
        }
        drop(peer);
        // Nobody is there: the network may report it, which hurts nothing.
        target.send(SEND, 10);
        sleep(Duration::from_millis(5));
    }
    assert_eq!(dropped(&target.qp.counters()), 0);
}

/// On a bad network a Write with immediate is reported if all of it is in memory, and else counted; each exactly once.
#[test]
fn a_bad_network_makes_no_write_half_reported() {
    const MESSAGES: u32 = 500;
    const LENGTH: usize = 20_000;
    const SLOT: usize = 32_768;
    let mut config = Config::default();
    config.max_mtu = 1500;
    config.record_timeout = Duration::from_millis(100);
    let source = End::with(LENGTH, config.clone(), |_| ());
    let fault = "drop=0.02,dup=0.05,reorder=0.1,corrupt=0.01,delay=2ms,seed=77";
    config.fault = Some(fault.parse().unwrap());
    let target = End::with(MESSAGES as usize * SLOT, config, |attr| {
        attr.qp.max_recv_wr = MESSAGES as usize;
    });
    source.connect(target.qp.qpn());
    target.connect(source.qp.qpn());
    let content = |number: u32| -> Vec<u8> {
        let salt = number.to_le_bytes()[0] | 1;
        pattern(LENGTH)
            .into_iter()
            .map(|octet| octet ^ salt)
            .collect()
    };
    let mut completed = std::collections::BTreeSet::new();
    let mut take = |wc: Wc| {
        assert_eq!(
            (wc.opcode, wc.byte_len as usize),
            (WcOpcode::RecvRdmaWithImmediate, LENGTH)
        );
        assert_eq!(wc.wr_id, completed.len() as u64, "receives in order");
        let number = wc.immediate.unwrap();
        let octets = target.memory.to_vec(number as usize * SLOT, LENGTH);
        assert!(octets == content(number), "all of {number} is there");
        assert!(completed.insert(number), "{number} comes once");
    };
    for number in 0..MESSAGES {
        target.post_recv(number.into(), 0);
        source.memory.write(0, &content(number));
        source.send(
            target.write_here(u64::from(number) * SLOT as u64, Some(number)),
            LENGTH,
        );
        while let Some(wc) = target.cq.poll_one().unwrap() {
            take(wc);
        }
    }
    // Longer than a message may be silent.
    while let Some(wc) = target.cq.wait(Duration::from_millis(400)).unwrap() {
        take(wc);
    }
    let counters = target.qp.counters();
    let incomplete = counters.dropped(DropReason::IncompleteWrite);
    assert_eq!(
        completed.len() as u64 + incomplete,
        u64::from(MESSAGES),
        "{counters:?}"
    );
    // Both happen: of 15 segments, some are lost in two of five messages.
    assert!((100..400).contains(&completed.len()), "{}", completed.len());
    for reason in [DropReason::BadCrc, DropReason::Duplicate, DropReason::Late] {
        assert!(counters.dropped(reason) > 0, "{reason} is counted");
    }
    assert_eq!(counters.dropped(DropReason::NoReceive), 0);
}

#[test]
fn many_writes_under_a_window_all_complete() {
    const WINDOW: u64 = 8;
    let (a, b) = End::pair(1 << 20);
    a.memory.write(0, &pattern(20_000));
    let (mut posted, mut completed) = (0, 0);
    while completed < 2000 {
        while posted < 2000 && posted - completed < WINDOW {
            b.post_recv(posted, 0);
            let operation = b.write_here(posted % 16 * 20_000, Some(0));
            a.post(operation, 20_000).unwrap();
            posted += 1;
        }
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.byte_len), (completed, 20_000));
        completed += 1;
        while a.cq.poll_one().unwrap().is_some() {}
    }
    for slot in 0..16 {
        assert_eq!(b.memory.to_vec(slot * 20_000, 20_000), pattern(20_000));
    }
}

#[test]
fn after_a_reset_a_queue_pair_takes_another_peer() {
    let (a, b) = End::pair(64);
    let c = End::new(64);
    c.connect(a.qp.qpn());
    let receive = |end: &End, wr_id| {
        let sges = [end.mr.sge(..)];
        end.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    };
    receive(&b, 1);
    a.post(SEND, 8).unwrap();
    assert_eq!(b.cq.wait(SOON).unwrap().expect("a receive").wr_id, 1);
    receive(&a, 2);
    let sent = a.qp.counters().segments_sent;
    a.qp.reset();
    // Neither the completion of the Send nor one of the receive.
    assert_eq!(a.cq.poll_one().unwrap(), None);
    assert_eq!(a.post(SEND, 8).unwrap_err().source, PostError::State);
    a.connect(c.qp.qpn());
    // More than its queue takes, so that it would fill if what was forgotten counted.
    for wr_id in 10..16 {
        receive(&a, wr_id);
        c.post(SEND, 5).unwrap();
        let wc = a.cq.wait(SOON).unwrap().expect("a receive");
        assert_eq!((wc.wr_id, wc.byte_len), (wr_id, 5));
    }
    receive(&c, 3);
    a.post(SEND, 7).unwrap();
    while c.cq.wait(SOON).unwrap().expect("a receive").opcode != WcOpcode::Recv {}
    assert!(a.qp.counters().segments_sent > sent);
    // The old peer is nobody now.
    receive(&a, 4);
    b.post(SEND, 8).unwrap();
    c.post(SEND, 6).unwrap();
    while let Some(wc) = a.cq.wait(SOON).unwrap() {
        if wc.opcode == WcOpcode::Recv {
            assert_eq!(wc.byte_len, 6);
            break;
        }
    }
}
