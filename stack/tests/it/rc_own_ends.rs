//! Two connected ends of our own kind: completion means placed, and messages wait for receives.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait and look at the clock"
)]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::connected::{self, depths};
use dgiwarp::{
    Access, Buffer, Config, Cq, Mr, NoReceive, Pd, PostError, QpAttr, RcOperation, RcOptions, RcQp,
    RcQpAttr, RcSendWr, RecvWr, Rnic, Srq, SrqAttr, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(20);
const SEND: RcOperation = RcOperation::Send { invalidate: None };

/// A queue pair of a device of its own, with memory that the peer may use.
struct End {
    qp: RcQp,
    cq: Cq,
    srq: Option<Srq>,
    memory: Buffer,
    mr: Mr,
    _pd: Pd,
}

impl End {
    fn new(octets: usize) -> Self {
        Self::with(octets, RcOptions::default(), false)
    }

    fn with(octets: usize, options: RcOptions, shares: bool) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(512).unwrap();
        let srq = shares.then(|| pd.create_srq(&SrqAttr::default()).unwrap());
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::from(QpAttr {
                srq: srq.as_ref(),
                ..QpAttr::new(&cq, &cq)
            })
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let mr = pd.register(memory.region(), Access::all()).unwrap();
        Self {
            qp,
            cq,
            srq,
            memory,
            mr,
            _pd: pd,
        }
    }

    fn post(&self, wr_id: u64, operation: RcOperation, length: usize) {
        let sges = [self.mr.sge(..length)];
        let wr = RcSendWr::new(wr_id, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..)];
        let wr = RecvWr { wr_id, sges: &sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&[wr]).unwrap(),
            None => self.qp.post_recv(&[wr]).unwrap(),
        }
    }

    fn write_at(&self, at: u64) -> RcOperation {
        RcOperation::Write {
            rkey: self.mr.rkey(),
            remote_addr: self.mr.addr() + at,
            immediate: None,
        }
    }

    #[track_caller]
    fn wait(&self) -> Wc {
        self.cq.wait(SOON).unwrap().expect("a completion")
    }

    #[track_caller]
    fn expect(&self, wr_id: u64, opcode: WcOpcode) -> Wc {
        let wc = self.wait();
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.status),
            (wr_id, opcode, WcStatus::Success)
        );
        wc
    }

    /// Checks that nothing completes for a while.
    #[track_caller]
    fn expect_nothing(&self) {
        let wc = self.cq.wait(Duration::from_millis(300)).unwrap();
        assert_eq!(wc, None);
    }
}

fn connect(client: &End, server: &End) {
    connected::connect(&client.qp, &server.qp, depths(4));
}

/// Connects, and returns when each has heard the other's greeting: without it completions are local after a while, and on a
/// machine with much else to do a greeting may take that long.
fn connect_own(client: &End, server: &End) {
    connect(client, server);
    for (from, to) in [(client, server), (server, client)] {
        to.post_recv(0);
        from.post(0, SEND, 0);
        to.expect(0, WcOpcode::Recv);
        from.expect(0, WcOpcode::Send);
    }
}

fn connected(octets: usize) -> (End, End) {
    let (client, server) = (End::new(octets), End::new(octets));
    connect_own(&client, &server);
    (client, server)
}

/// Whenever a Write has completed, the peer's memory holds it, whatever the peer does: here it sleeps.
#[test]
fn a_completed_write_is_in_the_memory_of_a_peer_that_sleeps() {
    const ROOM: usize = 1 << 20;
    let (client, server) = connected(ROOM);
    for round in 1..=100u8 {
        let length = ROOM >> (round % 20);
        client.memory.write(0, &vec![round; length]);
        client.post(round.into(), server.write_at(0), length);
        client.expect(round.into(), WcOpcode::RdmaWrite);
        assert!(server.memory.to_vec(0, length) == vec![round; length]);
    }
}

/// A peer that polls and answers nothing acknowledges in time too.
#[test]
fn one_who_polls_tells_as_well_and_one_who_stops_polling_does() {
    let (client, server) = connected(64);
    for wr_id in 0..200 {
        server.post_recv(wr_id);
        client.post(wr_id, SEND, 64);
        while server.cq.poll_one().unwrap().is_none() {}
        // In every second round nobody polls after the message was received.
        if wr_id % 2 == 0 {
            while client.cq.poll_one().unwrap().is_none() {
                assert_eq!(server.cq.poll_one().unwrap(), None);
            }
        } else {
            client.expect(wr_id, WcOpcode::Send);
        }
    }
}

#[test]
fn messages_wait_for_late_receives() {
    for shares in [false, true] {
        let (client, server) = (
            End::new(4096),
            End::with(4096, RcOptions::default(), shares),
        );
        connect_own(&client, &server);
        client.memory.write(0, &[7; 4096]);
        client.post(1, SEND, 4096);
        client.post(2, SEND, 10);
        client.expect_nothing();
        assert!(server.qp.counters().parked > 0);
        // Reads of the one that waits are answered.
        let read = RcOperation::Read {
            rkey: client.mr.rkey(),
            remote_addr: client.mr.addr(),
        };
        server.post(5, read, 100);
        server.expect(5, WcOpcode::RdmaRead);
        server.post_recv(3);
        assert_eq!(server.expect(3, WcOpcode::Recv).byte_len, 4096);
        client.expect(1, WcOpcode::Send);
        server.post_recv(4);
        assert_eq!(server.expect(4, WcOpcode::Recv).byte_len, 10);
        client.expect(2, WcOpcode::Send);
    }
}

/// Receives come from one thread while others receive: no message is left waiting beside a receive.
#[test]
fn no_kick_is_lost() {
    const MESSAGES: u64 = 5000;
    for shares in [false, true] {
        let (client, server) = (End::new(64), End::with(64, RcOptions::default(), shares));
        connect_own(&client, &server);
        thread::scope(|scope| {
            scope.spawn(|| {
                for wr_id in 0..MESSAGES {
                    while server.qp.counters().segments_received + 8 < wr_id {
                        thread::yield_now();
                    }
                    server.post_recv(wr_id);
                    if wr_id % 64 == 0 {
                        thread::sleep(Duration::from_micros(200));
                    }
                }
            });
            scope.spawn(|| {
                for wr_id in 0..MESSAGES {
                    client.post(wr_id, SEND, 8);
                    if wr_id >= 100 {
                        client.expect(wr_id - 100, WcOpcode::Send);
                    }
                }
                for wr_id in MESSAGES - 100..MESSAGES {
                    client.expect(wr_id, WcOpcode::Send);
                }
            });
            for wr_id in 0..MESSAGES {
                server.expect(wr_id, WcOpcode::Recv);
            }
        });
    }
}

/// More than may wait stays in TCP, and it all arrives once there are receives.
#[test]
fn what_waits_is_bounded_and_all_arrives() {
    const LENGTH: usize = 64 << 10;
    const MESSAGES: u64 = 200;
    let (client, server) = connected(LENGTH);
    for wr_id in 0..MESSAGES {
        client.post(wr_id, SEND, LENGTH);
    }
    client.expect_nothing();
    // Headers and the FPDU that is unfinished come on top.
    let received = server.qp.counters().octets_received;
    assert!((100_000..400_000).contains(&received), "{received}");
    for wr_id in 0..MESSAGES {
        server.post_recv(wr_id);
        assert_eq!(
            server.expect(wr_id, WcOpcode::Recv).byte_len as usize,
            LENGTH
        );
    }
    for wr_id in 0..MESSAGES {
        client.expect(wr_id, WcOpcode::Send);
    }
}

/// A peer that leaves while nothing is read is noticed.
#[test]
fn a_peer_that_leaves_while_nothing_is_read_is_noticed() {
    const LENGTH: usize = 64 << 10;
    let (client, server) = connected(LENGTH);
    for wr_id in 0..5 {
        client.post(wr_id, SEND, LENGTH);
    }
    let parked = Instant::now();
    while server.qp.counters().octets_received < 250_000 {
        assert!(parked.elapsed() < SOON);
        thread::sleep(Duration::from_millis(10));
    }
    server.post(7, SEND, 8);
    drop(client);
    assert_ne!(server.wait().status, WcStatus::Success);
    assert!(server.qp.end().is_some());
}

#[test]
fn waiting_for_a_receive_has_its_limit() {
    let options = RcOptions {
        receive_timeout: Some(Duration::from_millis(200)),
        ..RcOptions::default()
    };
    let (client, server) = (End::new(64), End::with(64, options, false));
    connect_own(&client, &server);
    client.post(1, SEND, 10);
    let wc = client.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RnrRetryExceeded));
}

/// With one who does not greet, all is as the RFCs have it.
#[test]
fn a_quiet_end_is_a_foreign_one() {
    let quiet = RcOptions {
        hello: false,
        no_receive: NoReceive::Terminate,
        ..RcOptions::default()
    };
    for quiet_client in [false, true] {
        let (quiet, own) = (End::with(64, quiet, false), End::new(64));
        let (client, server) = if quiet_client {
            (&quiet, &own)
        } else {
            (&own, &quiet)
        };
        client.post_recv(1);
        server.post_recv(2);
        connect(client, server);
        client.post(3, SEND, 10);
        server.expect(2, WcOpcode::Recv);
        server.post(4, SEND, 10);
        let mut done = [client.wait(), client.wait(), server.wait()].map(|wc| wc.wr_id);
        done.sort_unstable();
        assert_eq!(done, [1, 3, 4]);
        let sges = [own.mr.sge(..8)];
        let immediate = RcOperation::SendImmediate { immediate: 9 };
        let refused = own.qp.post_send(&[RcSendWr::new(5, immediate, &sges)]);
        assert_eq!(refused.unwrap_err().source, PostError::NoImmediates);
    }
}

#[test]
fn a_send_with_immediate() {
    let (client, server) = connected(64);
    server.post_recv(1);
    client.post(
        2,
        RcOperation::SendImmediate {
            immediate: 0x1234_5678,
        },
        10,
    );
    let wc = server.expect(1, WcOpcode::Recv);
    assert_eq!((wc.byte_len, wc.immediate), (10, Some(0x1234_5678)));
    client.expect(2, WcOpcode::Send);
}
