//! A process that may have few descriptors.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use crate::common::{Process, role};
use dgiwarp::{
    Config, Error, Pairing, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, UdQpAttr, WcOpcode, WcStatus,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const SOON: Duration = Duration::from_secs(10);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// `EMFILE`.
const TOO_MANY: i32 = 24;

fn limit(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard).unwrap();
}

fn few() {
    limit(64);
    let rnic = Rnic::open(Config::default()).unwrap();
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
    let attr = RcQpAttr {
        paired: true,
        ..RcQpAttr::new(&cq, &cq)
    };
    let mut qps: Vec<RcQp> = Vec::new();
    let error = loop {
        match pd.create_rc_qp(&attr) {
            Ok(qp) => qps.push(qp),
            Err(error) => break error,
        }
        assert!(qps.len() < 64, "more than there are descriptors");
    };
    assert!(matches!(error, Error::System { .. }), "{error}");
    assert_eq!(error.errno(), TOO_MANY);
    let error = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq)).unwrap_err();
    assert_eq!(error.errno(), TOO_MANY, "{error}");
    // All queue pairs that could be made can be connected.
    let mut pairs = qps.chunks_exact(2).collect::<Vec<_>>();
    assert!(pairs.len() > 10);
    pairs.reverse();
    for pair in &pairs {
        for (own, peer) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let pairing = Pairing {
                peer: HERE,
                scope_id: 0,
                peer_qpn: peer.qpn(),
                source: HERE,
                rq_psn: 0,
                ird: 1,
            };
            own.pair(&pairing).unwrap();
            own.start(0, 1, Some(SOON)).unwrap();
        }
        let receive = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        pair[1].post_recv(&[receive]).unwrap();
        pair[0].post_send(&[RcSendWr::send(2, &[])]).unwrap();
        for _ in 0..2 {
            let wc = cq.wait(SOON).unwrap().expect("a completion");
            assert_eq!(wc.status, WcStatus::Success);
            assert!(matches!(wc.opcode, WcOpcode::Recv | WcOpcode::Send));
        }
    }
}

#[test]
fn who_makes_too_many_is_told_and_the_others_work() {
    if role().is_some() {
        return few();
    }
    Process::start(
        here!("who_makes_too_many_is_told_and_the_others_work"),
        "few",
        &[],
    )
    .finish(SOON * 4);
}

/// Programs that use `select(2)` cannot take descriptors above.
const SELECT: i32 = 1024;

#[test]
fn low_descriptors_are_left_to_the_program() {
    if role().is_none() {
        Process::start(
            here!("low_descriptors_are_left_to_the_program"),
            "alone",
            &[],
        )
        .finish(SOON);
        return;
    }
    limit(4096);
    if getrlimit(Resource::RLIMIT_NOFILE).unwrap().0 < 2048 {
        println!("skipped: this process may not have more descriptors");
        return;
    }
    let rnic = Rnic::open(Config::default()).unwrap();
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
    let before = std::fs::File::open("/dev/null").unwrap();
    let qps: Vec<_> = (0..40)
        .map(|_| pd.create_ud_qp(&UdQpAttr::new(&cq, &cq)).unwrap())
        .collect();
    let after = std::fs::File::open("/dev/null").unwrap();
    assert!(after.as_raw_fd() < before.as_raw_fd() + 10);
    let sockets = dgiwarp::own_sockets().filter(|(fd, _)| *fd >= SELECT);
    assert!(sockets.count() >= qps.len());
}
