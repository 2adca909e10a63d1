//! Private data of requests, answers and refusals, through real sockets: as much as the frames hold, and not an octet more.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Config, ConnectError, MpaConfig, MpaRevision, RcListener, RcQp, RcQpAttr, ReadDepths, Rnic,
};

const SOON: Duration = Duration::from_secs(20);
const DEPTHS: ReadDepths = ReadDepths { ird: 1, ord: 1 };

/// Each revision with the octets that its frames hold: RFC 6581 §9 takes four of the 512 of RFC 5044 §7.1.1 for itself.
fn revisions() -> [(MpaConfig, usize); 2] {
    let of = |revision| MpaConfig {
        revision,
        ..MpaConfig::default()
    };
    [(of(MpaRevision::One), 512), (of(MpaRevision::Two), 508)]
}

fn data(octets: usize, seed: u8) -> Vec<u8> {
    (seed..=u8::MAX).cycle().take(octets).collect()
}

fn qp(rnic: &Rnic) -> RcQp {
    let cq = rnic.create_cq(16).unwrap();
    let attr = RcQpAttr::new(&cq, &cq);
    rnic.alloc_pd().create_rc_qp(&attr).unwrap()
}

/// Both sides of an attempt to connect.
fn attempt<A>(
    rnic: &Rnic,
    mpa: &MpaConfig,
    asked: &[u8],
    answer: impl FnOnce(dgiwarp::RcRequest) -> A + Send,
) -> (A, Result<Vec<u8>, ConnectError>)
where
    A: Send,
{
    let on = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = RcListener::bind(on, mpa.clone()).unwrap();
    let to = listener.local_addr();
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let request = listener.accept(SOON).unwrap().expect("a request");
            answer(request)
        });
        let client = qp(rnic);
        let connected = client.connect(to, mpa, asked);
        let connected = connected.map(|established| established.private_data);
        (answering.join().unwrap(), connected)
    })
}

#[test]
fn both_sides_get_all_of_it() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for (mpa, max) in revisions() {
        for octets in [0, 1, 3, 4, 507, 508, 511, 512]
            .into_iter()
            .filter(|n| *n <= max)
        {
            let asked = data(octets, 7);
            let answered = data(octets, 9);
            let server = qp(&rnic);
            let (seen, connected) = attempt(&rnic, &mpa, &asked, |request| {
                let seen = request.request().private_data.clone();
                request.accept(&server, DEPTHS, &answered).unwrap();
                seen
            });
            assert_eq!(seen, asked, "{:?} {octets}", mpa.revision);
            assert_eq!(connected.unwrap(), answered, "{:?} {octets}", mpa.revision);
        }
    }
}

#[test]
fn a_refusal_carries_as_much() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for (mpa, max) in revisions() {
        for octets in [0, 1, max - 1, max] {
            let reason = data(octets, 11);
            let ((), connected) = attempt(&rnic, &mpa, b"", |request| {
                request.reject(&reason).unwrap();
            });
            match connected {
                Err(ConnectError::Rejected(rejection)) => {
                    assert_eq!(rejection.private_data, reason, "{:?}", mpa.revision);
                }
                other => panic!("{:?} {octets}: {other:?}", mpa.revision),
            }
        }
    }
}

#[test]
fn an_octet_more_cannot_be_said_by_either_side() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for (mpa, max) in revisions() {
        let long = data(max + 1, 0);
        // Asked: nothing comes of it, and the queue pair may ask again.
        let nobody = qp(&rnic);
        let on = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = RcListener::bind(on, mpa.clone()).unwrap();
        for _ in 0..2 {
            let asked = nobody.connect(listener.local_addr(), &mpa, &long);
            assert!(matches!(asked, Err(ConnectError::Config(_))), "{asked:?}");
        }
        drop(listener);
        // Accepted or refused: an error here, and no answer there. The queue pair may take another.
        let server = qp(&rnic);
        let impatient = MpaConfig {
            startup_timeout: Duration::from_millis(500),
            ..mpa.clone()
        };
        let (accepted, connected) = attempt(&rnic, &impatient, b"", |request| {
            request.accept(&server, DEPTHS, &long)
        });
        assert!(
            matches!(accepted, Err(ConnectError::Config(_))),
            "{accepted:?}"
        );
        assert!(connected.is_err(), "{connected:?}");
        let (refused, connected) = attempt(&rnic, &impatient, b"", |request| request.reject(&long));
        assert!(
            matches!(refused, Err(ConnectError::Config(_))),
            "{refused:?}"
        );
        assert!(connected.is_err(), "{connected:?}");
        let (accepted, connected) = attempt(&rnic, &mpa, b"", |request| {
            request.accept(&server, DEPTHS, b"yes").map(|_| ())
        });
        accepted.unwrap();
        assert_eq!(connected.unwrap(), b"yes");
    }
}
