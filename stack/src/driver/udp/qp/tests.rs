//! Two datagram queue pairs over ports in memory: no socket.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_llp_udp::Peer;
use nix::poll::{PollTimeout, poll};

use crate::driver::device::clock;
use crate::driver::qp::cork_tests::Corked;
use crate::driver::reactor::member::{Member, NextReceive};
use crate::driver::udp::memory_port::MemoryPort;
use crate::driver::udp::path_cache::PathCache;
use crate::driver::udp::port::Port;
use crate::driver::udp::ports::Ports;
use crate::driver::udp::socket::ReceiveBuffer;
use crate::{
    Access, AddressHandle, Buffer, Config, Cq, Destination, Mr, Operation, RecvWr, Rnic,
    SameHostMode, SendWr, UdQp, UdQpAttr, Wc, WcOpcode, WcStatus,
};

const LONG: Duration = Duration::from_secs(30);
/// Several trains.
const LENGTH: usize = 300_000;
const QKEY: u32 = 0x1234;

/// A device with one queue pair and registered memory.
struct End {
    _rnic: Rnic,
    cq: Cq,
    qp: UdQp,
    ah: AddressHandle,
    memory: Buffer,
    mr: Mr,
}

impl End {
    fn new(port: MemoryPort) -> Self {
        Self::with(port, Config::default())
    }

    fn with(port: MemoryPort, config: Config) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(256).unwrap();
        let attr = UdQpAttr {
            qkey: QKEY,
            record_slots: 4,
            ..UdQpAttr::new(&cq, &cq)
        };
        let host = Peer::ip((IpAddr::from(Ipv6Addr::LOCALHOST), 1).into());
        let port = Port::Memory(port);
        let path = PathCache::default().path(host, None, &port, |mtu| mtu);
        let ah = AddressHandle::new(path.unwrap());
        let ports = Ports::new(port, 0);
        let qp = UdQp::create_on(&pd, &attr, || Ok(ports)).unwrap();
        let memory = Buffer::zeroed(LENGTH).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(memory.region(), rights).unwrap();
        Self {
            _rnic: rnic,
            cq,
            qp,
            ah,
            memory,
            mr,
        }
    }

    fn post(&self, wr_id: u64, operation: Operation, length: usize, to: &Self) {
        let wr = SendWr {
            wr_id,
            operation,
            destination: Destination {
                ah: self.ah.clone(),
                qpn: to.qp.qpn(),
                qkey: QKEY,
            },
            sges: &[self.mr.sge(..length)],
            signaled: true,
            solicited: false,
        };
        self.qp.post_send(&[wr]).unwrap();
    }

    fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    fn wait(&self) -> Wc {
        let wc = self.cq.wait(LONG).unwrap().expect("a completion in time");
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

fn ends() -> [End; 2] {
    MemoryPort::network().map(End::new)
}

#[test]
fn sends_a_write_record_and_a_read_pass_through_memory() {
    let [one, other] = ends();
    let (rkey, remote_addr) = (other.mr.rkey(), other.mr.addr());

    one.memory.write(0, &[1; 60_000]);
    other.post_recv(7);
    one.post(1, Operation::Send { immediate: Some(5) }, 60_000, &other);
    let received = other.wait();
    assert_eq!((received.wr_id, received.byte_len), (7, 60_000));
    assert_eq!(received.immediate, Some(5));
    assert_eq!(one.wait().wr_id, 1);
    assert_eq!(other.memory.to_vec(0, 60_000), [1; 60_000]);

    one.memory.write(0, &[2; LENGTH]);
    let write = Operation::WriteRecord {
        rkey,
        remote_addr,
        immediate: None,
    };
    one.post(2, write, LENGTH, &other);
    let record = other.wait();
    assert_eq!(record.byte_len as usize, LENGTH);
    assert_eq!(one.wait().wr_id, 2);
    assert_eq!(other.memory.to_vec(0, LENGTH), vec![2; LENGTH]);

    other.memory.write(0, &[3; LENGTH]);
    let read = Operation::Read {
        rkey,
        remote_addr,
        timeout: None,
    };
    one.post(3, read, LENGTH, &other);
    let read = one.wait();
    assert_eq!((read.wr_id, read.opcode), (3, WcOpcode::RdmaRead));
    assert_eq!(one.memory.to_vec(0, LENGTH), vec![3; LENGTH]);
}

/// Many messages make each peer busy: it gets a port of its own, and none is lost on the change.
#[test]
fn busy_peers_have_ports_of_their_own() {
    let [one, other] = ends();
    for round in 0..100 {
        for (from, to) in [(&one, &other), (&other, &one)] {
            to.post_recv(round);
            from.post(round, Operation::Send { immediate: None }, 64, to);
            assert_eq!(from.wait().wr_id, round);
            assert_eq!(to.wait().wr_id, round);
        }
    }
    for end in [&one, &other] {
        let own = end.qp.shared.run(|inner| inner.ports.siblings().count());
        assert_eq!(own, 1);
    }
}

/// A peer becomes busy while datagrams of it wait: what arrives at its new port comes after them.
#[test]
fn messages_are_received_in_order_on_the_change() {
    const BEFORE: u64 = 40;
    const ALL: u64 = 60;
    let [one, other] = ends();
    let mut buffer = ReceiveBuffer::new();
    let mut receive = |socket| {
        other
            .qp
            .shared
            .receive(socket, &mut buffer, NextReceive::Unknown)
    };
    let connects = || {
        other
            .qp
            .shared
            .run(|inner| inner.ports.siblings().count() == 1)
    };
    let send = |number: u64| {
        let operation = Operation::Send {
            immediate: u32::try_from(number).ok(),
        };
        one.post(number, operation, 64, &other);
        assert_eq!(one.wait().wr_id, number);
    };
    (0..ALL).for_each(|number| other.post_recv(number));
    (0..BEFORE).for_each(send);
    let end = clock::now() + LONG;
    while !connects() {
        assert!(clock::now() < end, "the peer is busy");
        receive(0);
    }
    (BEFORE..ALL).for_each(send);
    let mut numbers = Vec::new();
    while numbers.len() as u64 != ALL {
        assert!(clock::now() < end, "all arrive: {numbers:?}");
        // The new port first.
        receive(1);
        while let Some(wc) = other.cq.poll_one().unwrap() {
            numbers.push(wc.immediate.unwrap());
        }
    }
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn messages_posted_back_to_back_leave_whatever_follows() {
    // Nothing waits that memory takes at once.
    let apart = || Config {
        same_host: SameHostMode::Off,
        ..Config::default()
    };
    for leaves_process in [true, false] {
        let [one, other] = MemoryPort::network().map(|port| End::with(port, apart()));
        let send = |from: &End, to: &End| {
            to.post_recv(1);
            from.post(1, Operation::Send { immediate: None }, 64, to);
        };
        let corked = Corked {
            core: &one.qp.shared,
            post: &|| send(&one, &other),
            arrive: &|| while other.wait().opcode != WcOpcode::Recv {},
            receive: &|| {
                send(&other, &one);
                while one.cq.poll_one().unwrap().map(|wc| wc.opcode) != Some(WcOpcode::Recv) {}
            },
            close: &|| one.qp.shared.close(),
        };
        corked.check(leaves_process);
    }
}

/// Messages that a rate holds back are left when the process ends, and leave in time.
#[test]
fn a_rate_holds_messages_back_at_the_end_of_the_process_too() {
    let [one, other] = ends();
    one.qp.shared.set_max_rate(200_000);
    for _ in 0..8 {
        other.post_recv(1);
        one.post(1, Operation::Send { immediate: None }, 8000, &other);
    }
    assert!(!one.qp.shared.leave_process(false));
    while !one.qp.shared.leave_process(false) {
        let _ = poll(&mut [], PollTimeout::from(1u8));
    }
    for _ in 0..8 {
        while other.wait().opcode != WcOpcode::Recv {}
    }
}

/// More than a port holds: sending continues where it stopped.
#[test]
fn a_full_port_holds_up_its_sender_and_loses_nothing() {
    let [one, other] = ends();
    for wr_id in 0..200 {
        other.post_recv(wr_id);
    }
    for wr_id in 0..200 {
        one.post(wr_id, Operation::Send { immediate: None }, 2000, &other);
    }
    for wr_id in 0..200 {
        assert_eq!(one.wait().wr_id, wr_id);
        assert_eq!(other.wait().wr_id, wr_id);
    }
}

/// A thread that runs timers has the queue pair in hand while another one destroys it.
#[test]
fn a_datagram_that_a_fault_delays_does_not_reach_a_destroyed_queue_pair() {
    let [near, far] = MemoryPort::network();
    let config = Config {
        fault: Some("delay=100ms".parse().unwrap()),
        ..Config::default()
    };
    let (one, other) = (End::new(near), End::with(far, config));
    other.post_recv(1);
    other.post_recv(2);
    one.post(1, Operation::Send { immediate: None }, 64, &other);
    assert_eq!(other.wait().wr_id, 1);
    one.post(2, Operation::Send { immediate: None }, 64, &other);
    // Until the datagram waits for its time.
    let shared = Arc::clone(&other.qp.shared);
    while shared.run(|inner| inner.poll_timeout()).is_none() {
        assert_eq!(other.cq.poll(&mut []).unwrap_or(0), 0);
    }
    let End { qp, cq, .. } = other;
    drop(qp);
    shared.handle_timeout(clock::now() + LONG);
    assert!(cq.wait(Duration::from_millis(200)).unwrap().is_none());
}
