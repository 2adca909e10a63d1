//! Queue pairs that go: nobody waits for their peers, and what they accepted arrives all the same.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::connected::{connect, depths};
use crate::common::{Process, given, now, role};
use dgiwarp::{
    Access, Buffer, Completion, Config, MpaConfig, MpaRevision, Pd, RcOptions, RcQp, RcQpAttr,
    RcSendWr, ReadDepths, RecvWr, Rnic, WcStatus,
};
use socket2::SockRef;

const SOON: Duration = Duration::from_secs(10);
/// Time that a peer that never closes may cost the destruction of a queue pair: less than the peer would have to close.
const SHORT: Duration = Duration::from_secs(1);
/// Octets of a long Send.
const LONG: usize = 64 << 10;
/// Octets that TCP cannot take.
const BEYOND: usize = 512 << 10;

/// A peer of TCP and MPA and nothing else.
struct Peer {
    listener: TcpListener,
}

impl Peer {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Little is on its way to a peer that does not read.
        SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        Self { listener }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn accept(&self) -> TcpStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut request = [0; 20];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
        stream
    }
}

/// How many long Sends are half a mebibyte more than TCP takes for a peer that does not read.
fn too_many() -> usize {
    let peer = Peer::new();
    let mut ours = TcpStream::connect(peer.address()).unwrap();
    ours.set_nodelay(true).unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut taken = 0;
    while let Ok(len) = ours.write(&[0; LONG]) {
        taken += len;
    }
    (taken + BEYOND) / LONG
}

/// The octets that complete Sends carry, in a stream that ends between two FPDUs.
fn sent(stream: &[u8]) -> usize {
    let mut rest = stream;
    let mut octets = 0;
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let fpdu = (2 + length).next_multiple_of(4) + 4;
        assert!(fpdu <= rest.len(), "the stream ends within an FPDU");
        let untagged = behind[0] & 0x80 == 0;
        octets += if untagged { length - 18 } else { 0 };
        rest = &rest[fpdu..];
    }
    octets
}

fn connected(pd: &Pd, to: SocketAddr) -> RcQp {
    let cq = pd.rnic().create_cq(64).unwrap();
    let options = RcOptions {
        hello: false,
        ..RcOptions::default()
    };
    let attr = RcQpAttr {
        options: Some(options),
        ..RcQpAttr::new(&cq, &cq)
    };
    let qp = pd.create_rc_qp(&attr).unwrap();
    let mpa = MpaConfig {
        revision: MpaRevision::One,
        depths: ReadDepths { ird: 1, ord: 1 },
        ..MpaConfig::default()
    };
    qp.connect(to, &mpa, b"").unwrap();
    qp
}

/// Long Sends, of which TCP has room for some, and a short one behind them. None has completed.
fn post(pd: &Pd, qp: &RcQp, count: usize) -> usize {
    let memory = Buffer::zeroed(LONG).unwrap();
    let mr = pd.register(memory.region(), Access::empty()).unwrap();
    let sges = [mr.sge(..)];
    for _ in 0..count {
        let wr = RcSendWr {
            signaled: false,
            ..RcSendWr::send(1, &sges)
        };
        qp.post_send(&[wr]).unwrap();
    }
    let last = RcSendWr {
        inline: b"last",
        signaled: false,
        ..RcSendWr::send(2, &[])
    };
    qp.post_send(&[last]).unwrap();
    // The memory is there until what was posted has left, or the queue pair is gone.
    Box::leak(Box::new((mr, memory)));
    count * LONG + 4
}

#[test]
fn nobody_waits_for_a_peer_that_does_not_close_and_it_gets_all() {
    let peer = Peer::new();
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let (qp, mut stream) = thread::scope(|scope| {
        let address = peer.address();
        let qp = scope.spawn({
            let pd = &pd;
            move || connected(pd, address)
        });
        let stream = peer.accept();
        (qp.join().unwrap(), stream)
    });
    stream.write_all(&[0; 3]).unwrap();
    let octets = post(&pd, &qp, too_many());
    let began = now();
    drop((qp, pd, rnic));
    assert!(began.elapsed() < SHORT, "{:?}", began.elapsed());
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(sent(&got), octets);
}

#[test]
fn a_disconnect_does_not_wait_and_its_end_comes_last() {
    let peer = Peer::new();
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let (qp, mut stream) = thread::scope(|scope| {
        let address = peer.address();
        let qp = scope.spawn({
            let pd = &pd;
            move || connected(pd, address)
        });
        let stream = peer.accept();
        (qp.join().unwrap(), stream)
    });
    let octets = post(&pd, &qp, too_many());
    let began = now();
    qp.disconnect();
    assert!(began.elapsed() < SHORT, "{:?}", began.elapsed());
    assert_eq!(qp.end(), None, "TCP has not taken everything");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(sent(&got), octets);
    assert_eq!(qp.end(), Some(dgiwarp::RcEnd::Closed));
}

const AT_ONCE: &str = here!("a_process_that_ends_at_once_loses_nothing");

fn ends_at_once() -> ! {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let qp = connected(&pd, given("TO").parse().unwrap());
    post(&pd, &qp, given("COUNT").parse().unwrap());
    rnic.leave_process();
    std::process::exit(0);
}

/// As a program whose `main` returns without destroying anything.
#[test]
fn a_process_that_ends_at_once_loses_nothing() {
    if role().is_some() {
        ends_at_once();
    }
    let peer = Peer::new();
    let (to, count) = (peer.address().to_string(), too_many());
    let variables = [("TO", to), ("COUNT", count.to_string())];
    let leaver = Process::start(AT_ONCE, "leaver", &variables);
    let mut stream = peer.accept();
    // Unread when the process ends: the connection would be reset.
    stream.write_all(&[0; 3]).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    drop(stream);
    assert_eq!(sent(&got), count * LONG + 4);
    leaver.finish(SOON);
}

/// Sends that TCP took wait for their receives after their sender is gone: few, and more than the receiving end keeps outside of TCP.
#[test]
fn late_receives_get_what_a_sender_left() {
    for count in [3_u64, 30] {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let local = RcOptions {
            completion: Completion::Local,
            ..RcOptions::default()
        };
        let [(client, client_cq), (server, server_cq)] = [local, RcOptions::default()].map(|it| {
            let cq = rnic.create_cq(64).unwrap();
            let attr = RcQpAttr {
                options: Some(it),
                ..RcQpAttr::new(&cq, &cq)
            };
            (pd.create_rc_qp(&attr).unwrap(), cq)
        });
        connect(&client, &server, depths(0));
        let memory = [(); 2].map(|()| Buffer::zeroed(LONG).unwrap());
        let [from, to] = memory
            .each_ref()
            .map(|it| pd.register(it.region(), Access::LOCAL_WRITE).unwrap());
        for wr_id in 0..count {
            memory[0].write(0, &wr_id.to_be_bytes());
            client
                .post_send(&[RcSendWr::send(wr_id, &[from.sge(..)])])
                .unwrap();
            let wc = client_cq.wait(SOON).unwrap().expect("TCP takes it");
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        drop(client);
        for wr_id in 0..count {
            let sges = [to.sge(..)];
            server.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
            let wc = server_cq.wait(SOON).unwrap().expect("the message");
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
            assert_eq!(memory[1].to_vec(0, 8), wr_id.to_be_bytes());
        }
        assert_eq!(server_cq.poll_one().unwrap(), None);
    }
}

/// A program whose receives are all taken posts one again when it looks, and the connection may be over by then.
#[test]
fn a_receive_that_is_posted_behind_the_end_is_flushed() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    for end in ["the peer's", "ours", "an error"] {
        let [(client, _client_cq), (server, cq)] = [(); 2].map(|()| {
            let cq = rnic.create_cq(16).unwrap();
            (pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(), cq)
        });
        connect(&client, &server, depths(0));
        match end {
            "the peer's" => client.disconnect(),
            "ours" => server.disconnect(),
            _ => server.flush(),
        }
        let until = now() + SOON;
        while server.end().is_none() {
            assert_eq!(cq.poll_one().unwrap(), None);
            assert!(now() < until, "the end is not reported");
        }
        for wr_id in 1..3 {
            server.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
            let wc = cq.wait(SOON).unwrap().expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Flushed));
        }
    }
}
