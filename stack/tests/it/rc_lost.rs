//! A connected queue pair whose peer is lost: everything posted ends within five seconds, each work request with the status of
//! its fate.
//!
//! | the peer | what it was at | the others |
//! |---|---|---|
//! | is killed, closes its socket between two messages | flushed | flushed |
//! | resets the connection, or ends it within a message | transport retry counter exceeded | flushed |
//! | is cut off by its link | transport retry counter exceeded | flushed |
//! | is stopped | goes on waiting | go on waiting |
//!
//! Receives are flushed always. A queue pair that was at nothing has nothing but flushed work requests.

mod cuts;
mod end;
mod link;
mod statuses;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::common::{self, Process, given, now, role};
use dgiwarp::{AtomicOperation, Config, MpaConfig, RcEnd, RcListener, RcOperation, Rnic};
use end::{DEPTHS, End, LIMIT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ROOM: usize = 1 << 20;

/// The peer process: accepts connections and then only sleeps, so that the background thread does the work.
fn peer(on: Ipv4Addr) {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let count: usize = given("CONNECTIONS").parse().unwrap();
    let ends: Vec<End> = (0..count).map(|_| End::of(&pd, ROOM)).collect();
    let mpa = MpaConfig::default();
    let listener = RcListener::bind((on, 0).into(), mpa).unwrap();
    let mr = &ends[0].mr;
    println!("at {} {} {}", listener.local_addr(), mr.rkey(), mr.addr());
    for end in &ends {
        let request = listener.accept(LIMIT * 4).unwrap().expect("a request");
        request.accept(&end.qp, DEPTHS, b"").unwrap();
    }
    common::sleep(LIMIT * 10);
}

/// A peer, as it reported itself.
#[derive(Debug, Clone, Copy)]
struct Remote {
    at: SocketAddr,
    rkey: u32,
    remote_addr: u64,
}

impl Remote {
    fn parse(told: &str) -> Self {
        let mut words = told.split(' ');
        Self {
            at: words.next().unwrap().parse().unwrap(),
            rkey: words.next().unwrap().parse().unwrap(),
            remote_addr: words.next().unwrap().parse().unwrap(),
        }
    }

    fn write(self) -> RcOperation {
        RcOperation::Write {
            rkey: self.rkey,
            remote_addr: self.remote_addr,
            immediate: None,
        }
    }

    fn read(self) -> RcOperation {
        RcOperation::Read {
            rkey: self.rkey,
            remote_addr: self.remote_addr,
        }
    }

    fn atomic(self) -> RcOperation {
        RcOperation::Atomic {
            rkey: self.rkey,
            remote_addr: self.remote_addr,
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        }
    }
}

fn start(test: &str, connections: usize) -> (Process, Remote) {
    let variables = [("CONNECTIONS", connections.to_string())];
    let mut process = Process::start(test, "peer", &variables);
    let remote = Remote::parse(&process.tells("at ", LIMIT * 4));
    (process, remote)
}

/// Everything at once: receives, and Writes, Reads and atomics in turn. Returns how many work requests that are.
fn post_everything(end: &End, remote: Remote) -> usize {
    for wr_id in 0..4 {
        end.post_recv(wr_id);
    }
    end.qp
        .connect(remote.at, &MpaConfig::default(), b"")
        .unwrap();
    for wr_id in 0..8 {
        end.post(100 + 3 * wr_id, remote.write(), ROOM);
        end.post(101 + 3 * wr_id, remote.read(), ROOM);
        end.post(102 + 3 * wr_id, remote.atomic(), 8);
    }
    28
}

/// Kills the peer at this moment of a long Write, with everything else posted behind it.
fn killed_after(test: &str, delay: Duration) {
    let (mut process, remote) = start(test, 1);
    let rnic = Rnic::open(Config::default()).unwrap();
    let end = End::on(&rnic, ROOM);
    let posted = post_everything(&end, remote);
    common::sleep(delay);
    process.kill();
    let statuses = end.all(posted, now() + LIMIT);
    statuses.check_order();
    let ended = end.qp.end().expect("the connection is over");
    assert!(
        matches!(ended, RcEnd::PeerClosed | RcEnd::Mpa(_)),
        "{ended}"
    );
}

#[test]
fn a_killed_peer_ends_everything_that_was_posted() {
    if role().is_some() {
        return peer(Ipv4Addr::LOCALHOST);
    }
    for micros in [0, 200, 1000, 5000, 50_000] {
        let test = here!("a_killed_peer_ends_everything_that_was_posted");
        killed_after(test, Duration::from_micros(micros));
    }
}

/// Its host answers, so it is there, however long it takes.
#[test]
fn a_stopped_peer_is_waited_for() {
    if role().is_some() {
        return peer(Ipv4Addr::LOCALHOST);
    }
    let (process, remote) = start(here!("a_stopped_peer_is_waited_for"), 2);
    let mut config = Config::default();
    config.connection_timeout = Duration::from_secs(1);
    let rnic = Rnic::open(config).unwrap();
    let busy = End::on(&rnic, ROOM);
    let posted = post_everything(&busy, remote);
    let idle = End::on(&rnic, ROOM);
    idle.qp
        .connect(remote.at, &MpaConfig::default(), b"")
        .unwrap();
    let id = Pid::from_raw(i32::try_from(process.id()).unwrap());
    kill(id, Signal::SIGSTOP).unwrap();
    // Both are asked again and again, with a closed window and without anything to send.
    common::sleep(Duration::from_secs(4));
    assert_eq!((busy.qp.end(), idle.qp.end()), (None, None));
    kill(id, Signal::SIGCONT).unwrap();
    let statuses = busy.all(posted - 4, now() + LIMIT * 2);
    statuses.check_all_succeeded();
}
