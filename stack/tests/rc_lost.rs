//! A connected queue pair whose peer is lost: everything posted ends.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{Process, given, now, role};
use dgiwarp::{
    Access, AtomicOperation, Buffer, Config, Cq, MpaConfig, Mr, Pd, RcEnd, RcListener, RcOperation,
    RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, WcOpcode, WcStatus,
};

/// Everything posted has ended by then.
const LIMIT: Duration = Duration::from_secs(5);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
const ROOM: usize = 1 << 20;

struct End {
    qp: RcQp,
    cq: Cq,
    mr: Mr,
    _memory: Buffer,
    _pd: Pd,
}

impl End {
    fn on(rnic: &Rnic, room: usize) -> Self {
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let memory = Buffer::zeroed(room).unwrap();
        Self {
            qp: pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(),
            mr: pd.register(memory.region(), Access::all()).unwrap(),
            cq,
            _memory: memory,
            _pd: pd,
        }
    }

    fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..64)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    fn post(&self, wr_id: u64, operation: RcOperation, octets: usize) {
        let sges = [self.mr.sge(..octets)];
        let wr = RcSendWr::new(wr_id, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }
}

/// The peer process: accepts one connection and then only sleeps, so that the background thread does the work.
fn peer() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let end = End::on(&rnic, ROOM);
    let mpa = MpaConfig::default();
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa).unwrap();
    println!(
        "at {} {} {}",
        listener.local_addr(),
        end.mr.rkey(),
        end.mr.addr()
    );
    let request = listener.accept(LIMIT * 4).unwrap().expect("a request");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    let _ = given("TEST_NAME");
    common::sleep(LIMIT * 10);
}

/// Kills the peer at this moment of a long Write, with everything else posted behind it.
fn killed_after(test: &str, delay: Duration) {
    let variables = [("TEST_NAME", test.to_owned())];
    let mut process = Process::start(test, "peer", &variables);
    let told = process.tells("at ", LIMIT * 4);
    let mut words = told.split(' ');
    let to: SocketAddr = words.next().unwrap().parse().unwrap();
    let rkey = words.next().unwrap().parse().unwrap();
    let remote_addr = words.next().unwrap().parse().unwrap();
    let rnic = Rnic::open(Config::default()).unwrap();
    let end = End::on(&rnic, ROOM);
    for wr_id in 0..4 {
        end.post_recv(wr_id);
    }
    end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
    let write = RcOperation::Write {
        rkey,
        remote_addr,
        immediate: None,
    };
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let atomic = RcOperation::Atomic {
        rkey,
        remote_addr,
        operation: add,
    };
    let mut posted = 4;
    for wr_id in 0..8 {
        end.post(100 + wr_id, write, ROOM);
        end.post(200 + wr_id, RcOperation::Read { rkey, remote_addr }, ROOM);
        end.post(300 + wr_id, atomic, 8);
        posted += 3;
    }
    common::sleep(delay);
    process.kill();
    let deadline = now() + LIMIT;
    for left in (0..posted).rev() {
        let wait = deadline.saturating_duration_since(now());
        let wc = end.cq.wait(wait).unwrap();
        let wc = wc.unwrap_or_else(|| panic!("{left} work requests have not ended"));
        let is_receive = wc.opcode == WcOpcode::Recv;
        // What was done before is done; the request that the peer was at may end as the transport's failure.
        let allowed: &[WcStatus] = if is_receive {
            &[WcStatus::Flushed]
        } else {
            &[
                WcStatus::Success,
                WcStatus::Flushed,
                WcStatus::RetryExceeded,
                WcStatus::RemoteOperation,
            ]
        };
        assert!(allowed.contains(&wc.status), "{wc:?}");
    }
    let ended = end.qp.end().expect("the connection is over");
    assert!(
        matches!(ended, RcEnd::PeerClosed | RcEnd::Mpa(_)),
        "{ended}"
    );
}

#[test]
fn a_killed_peer_ends_everything_that_was_posted() {
    if role().is_some() {
        return peer();
    }
    for micros in [0, 200, 1000, 5000, 50_000] {
        let test = "a_killed_peer_ends_everything_that_was_posted";
        killed_after(test, Duration::from_micros(micros));
    }
}
