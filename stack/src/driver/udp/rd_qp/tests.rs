//! Two reliable datagram queue pairs on loopback: ports of busy peers.

use std::net::Ipv4Addr;
use std::time::Duration;

use dgiwarp_llp_udp::Peer;

use crate::driver::device::clock;
use crate::driver::qp::cork_tests::Corked;
use crate::driver::reactor::member::{Member as _, NextReceive, Received};
use crate::driver::udp::socket::ReceiveBuffer;
use crate::{
    Access, AddressHandle, Buffer, Config, Cq, Destination, Mr, QpAttr, RcOperation, RcSendWr,
    RdQp, RdQpAttr, RdSendWr, RecvWr, Rnic, Wc, WcStatus,
};

const LONG: Duration = Duration::from_secs(30);
const LENGTH: usize = 100_000;

/// A device with one queue pair and registered memory.
struct End {
    cq: Cq,
    qp: RdQp,
    ah: AddressHandle,
    mr: Mr,
}

impl End {
    fn new(peer_sockets: usize) -> Self {
        let config = Config {
            peer_sockets,
            ..Config::default()
        };
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let attr = RdQpAttr::new(QpAttr::new(&cq, &cq));
        let qp = pd.create_rd_qp(&attr).unwrap();
        let memory = Buffer::zeroed(LENGTH).unwrap();
        let mr = pd
            .register(memory.region(), Access::LOCAL_WRITE | Access::REMOTE_READ)
            .unwrap();
        let ah = pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
        Self { cq, qp, ah, mr }
    }

    /// Sends a message that arrives and is placed.
    fn send(&self, number: u64, to: &Self, length: usize) {
        self.post(number, to, length, true);
        for (end, octets) in [(to, length), (self, length)] {
            let wc = end.wait();
            assert_eq!((wc.wr_id, wc.byte_len as usize), (number, octets));
        }
    }

    fn post(&self, number: u64, to: &Self, length: usize, signaled: bool) {
        let sges = [to.mr.sge(..)];
        let wr_id = number;
        to.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        let destination = Destination {
            ah: self.ah.clone(),
            qpn: to.qp.qpn(),
            qkey: 0,
        };
        let sges = [self.mr.sge(..length)];
        let operation = RcOperation::Send { invalidate: None };
        let wr = RcSendWr {
            signaled,
            ..RcSendWr::new(wr_id, operation, &sges)
        };
        self.qp.post_send(&[RdSendWr { destination, wr }]).unwrap();
    }

    /// Reads from the beginning of a peer's memory.
    fn read(&self, number: u64, from: &Self, length: usize) {
        self.post_read(number, from, length);
        assert_eq!(self.wait().wr_id, number);
    }

    fn post_read(&self, number: u64, from: &Self, length: usize) {
        let destination = Destination {
            ah: self.ah.clone(),
            qpn: from.qp.qpn(),
            qkey: 0,
        };
        let read = RcOperation::Read {
            rkey: from.mr.rkey(),
            remote_addr: from.mr.addr(),
        };
        let sges = [self.mr.sge(..length)];
        let wr = RcSendWr::new(number, read, &sges);
        self.qp.post_send(&[RdSendWr { destination, wr }]).unwrap();
    }

    fn wait(&self) -> Wc {
        let wc = self.cq.wait(LONG).unwrap().expect("a completion in time");
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }

    fn peer_ports(&self) -> usize {
        self.qp.shared.run(|inner| inner.ports.siblings().count())
    }
}

fn has_port(end: &End, of: &End) -> bool {
    let peer = Peer::ip((Ipv4Addr::LOCALHOST, of.qp.qpn()).into());
    end.qp
        .shared
        .run(|inner| inner.ports.own(clock::now(), peer, None).is_some())
}

/// Many messages make each peer busy: it gets a port of its own, and none is lost on the change.
#[test]
fn busy_peers_have_ports_of_their_own() {
    for allowed in [0, 4] {
        let [one, other] = [(); 2].map(|()| End::new(allowed));
        for number in 0..50 {
            one.send(number, &other, 64);
            other.send(number, &one, 20_000);
        }
        assert_eq!(one.peer_ports(), allowed.min(1));
        assert_eq!(other.peer_ports(), allowed.min(1));
        // A reset queue pair begins anew.
        one.qp.reset();
        assert_eq!(one.peer_ports(), 0);
        one.send(0, &other, LENGTH);
    }
}

/// More peers than places: the ports go to busy ones, and return when these are idle.
#[test]
fn a_place_goes_from_an_idle_peer_to_a_busy_one() {
    let server = End::new(2);
    let clients = [(); 4].map(|()| End::new(4));
    for client in &clients {
        for number in 0..40 {
            client.send(number, &server, 64);
            server.send(number, client, 64);
        }
    }
    for client in &clients {
        let idle = server.cq.wait(Duration::from_millis(150)).unwrap();
        assert_eq!(idle, None);
        for number in 40..80 {
            client.send(number, &server, 64);
            server.send(number, client, 64);
        }
        assert!(has_port(&server, client));
        // Two, and one that was given up.
        assert!(server.peer_ports() <= 3);
    }
    for (client, number) in clients.iter().zip(80..) {
        client.send(number, &server, LENGTH);
        server.send(number, client, LENGTH);
    }
}

/// Responses have the path's datagrams as requests have: the target finds its path back.
#[test]
fn read_responses_within_a_host_are_few_datagrams() {
    let [one, other] = [(); 2].map(|()| End::new(4));
    one.send(0, &other, 64);
    let before = one.qp.counters().segments_received;
    for number in 1..4 {
        one.read(number, &other, LENGTH);
    }
    let received = one.qp.counters().segments_received - before;
    // With datagrams of an Ethernet, seventy for each.
    assert!(received < 3 * 20, "{received}");
}

#[test]
fn messages_posted_back_to_back_leave_whatever_follows() {
    for leaves_process in [true, false] {
        let [one, other] = [(); 2].map(|()| End::new(4));
        let corked = Corked {
            core: &one.qp.shared,
            post: &|| one.post(1, &other, 64, false),
            arrive: &|| assert_eq!(other.wait().wr_id, 1),
            receive: &|| {
                other.post(2, &one, 64, false);
                while one.cq.poll_one().unwrap().is_none() {}
            },
            close: &|| one.qp.shared.close(),
        };
        corked.check(leaves_process);
    }
}

/// The answer to a request that comes behind another one leaves with the end of the burst.
#[test]
fn answers_to_requests_that_come_back_to_back_leave_together() {
    let [one, other] = [(); 2].map(|()| End::new(0));
    one.send(0, &other, 64);
    // Nobody else receives for the target.
    other.qp.shared.background().stop();
    let mut buffer = ReceiveBuffer::new();
    let mut receive = || {
        other
            .qp
            .shared
            .receive(0, &mut buffer, NextReceive::Unknown)
    };
    while receive() != Some(Received::Nothing) {}
    for number in 1..3 {
        one.post_read(number, &other, 8);
        assert_eq!(one.cq.poll_one().unwrap(), None);
    }
    assert!((0..1000).any(|_| receive() == Some(Received::Held)));
    let polled = (0..1000).filter_map(|_| one.cq.poll_one().unwrap());
    assert!(polled.count() < 2);
    // A request that is late, or comes again, needs somebody who receives it.
    let deadline = clock::now() + LONG;
    let mut answered = 0;
    while answered < 2 {
        other.qp.shared.end_burst();
        if let Some(wc) = one.cq.poll_one().unwrap() {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            answered = wc.wr_id;
        }
        receive();
        assert!(clock::now() < deadline, "no answer in time");
    }
}
