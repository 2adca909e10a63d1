//! Ends that lack something, or are apart from each other: the connection works, by TCP where it has to, and the reason is counted.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use dgiwarp::{Pd, QpCounters};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, close, geteuid, setuid};

use super::*;
use crate::common::{skip, wait_until};

/// Messages of an exchange; the stream moves within the first of them.
const MESSAGES: usize = 200;
/// A user that no test runs as.
const OTHER_USER: u32 = 65_533;

pub(super) fn refusals(counters: &QpCounters) -> u64 {
    let refused = counters
        .iter()
        .filter(|(name, _)| name.starts_with("lane_refused"));
    refused.map(|(_, count)| count).sum()
}

/// Waits until the connection of an end has lanes or is refused them. Returns its counters.
pub(super) fn decided(end: &End) -> String {
    let is_decided = || {
        let counters = end.rnic.counters();
        counters.lane_octets_received > 0 || refusals(&counters) > 0
    };
    wait_until(SOON, "lanes, or a refusal", is_decided);
    end.rnic.counters().to_string()
}

/// The peer process: exchanges messages with whoever connects, and prints its counters.
fn exchange_as_peer() -> End {
    let end = End::new(SameHostMode::Ring);
    let listener = listen();
    println!("at {}", listener.local_addr());
    let request = listener.accept(SOON).unwrap().expect("a request");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    end.exchange(MESSAGES, Waits::Sleeping);
    println!("counted {}", decided(&end));
    end
}

/// The peer process is done with its exchange, and so is the end that exchanged with it.
fn exchanged_as_peer() -> End {
    let end = exchange_as_peer();
    // One more message. Acknowledgements of those before may have come late.
    assert_ne!(end.next(Waits::Sleeping).wr_id, 1000);
    end
}

/// Waits until the peer ends the connection.
#[track_caller]
fn wait_for_end(end: &End) {
    let ended = || {
        let _ = end.cq.poll_one().unwrap();
        end.qp.end().is_some()
    };
    wait_until(SOON, "the end of the connection", ended);
}

/// Exchanges messages with a peer process. Returns our end, the process, and the counters of both ends.
fn with_peer(command: Command, test: &str, peer: &str) -> (End, Process, [String; 2]) {
    let mut process = Process::start_as(command, test, peer, &[]);
    let to: SocketAddr = process.tells("at ", SOON).parse().unwrap();
    let end = End::new(SameHostMode::Ring);
    end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
    end.exchange(MESSAGES, Waits::Polling);
    let theirs = process.tells("counted ", SOON);
    let ours = decided(&end);
    (end, process, [ours, theirs])
}

pub(super) fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// Exchanges messages with a peer that stays until our end goes. Returns the counters of both.
fn exchanged(command: Command, test: &str) -> [String; 2] {
    let (end, process, counters) = with_peer(command, test, "peer");
    drop(end);
    process.finish(SOON);
    counters
}

#[track_caller]
fn has_no_lanes(counters: &[String; 2], reasons: [&str; 2]) {
    for (counters, reason) in counters.iter().zip(reasons) {
        assert!(!counters.contains("lane_octets"), "{counters}");
        assert!(counters.contains(reason), "{reason}: {counters}");
    }
}

/// `RLIMIT_FSIZE` is one of files in memory too, and beyond it the kernel raises a signal.
#[test]
fn a_limit_of_files_leaves_connections_to_tcp() {
    if role().is_some() {
        setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096).unwrap();
        return wait_for_end(&exchange_as_peer());
    }
    let test = here!("a_limit_of_files_leaves_connections_to_tcp");
    let counters = exchanged(this_program(), test);
    has_no_lanes(&counters, ["lane_refused_offer 1", "lane_refused_memory 1"]);
}

#[test]
fn users_do_not_share_memory() {
    let test = here!("users_do_not_share_memory");
    if role().is_some() {
        setuid(Uid::from_raw(OTHER_USER)).unwrap();
        return wait_for_end(&exchange_as_peer());
    }
    if !geteuid().is_root() {
        return skip(test, "only root can be another user");
    }
    let counters = exchanged(this_program(), test);
    has_no_lanes(&counters, ["lane_refused_user 1", "lane_refused_user 1"]);
}

/// This program in namespaces of its own; `None` where they cannot be made.
pub(super) fn apart(test: &str, namespaces: &[&str], prepare: &str) -> Option<Command> {
    let unshare = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-ec", line]);
        command.arg(std::env::current_exe().unwrap());
        command
    };
    let possible = unshare(prepare).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip(test, &format!("{namespaces:?} cannot be made here"));
        return None;
    }
    Some(unshare(&format!("{prepare}; exec \"$0\" \"$@\"")))
}

/// Containers that have a network in common: neither users nor process numbers nor files in memory have to be.
#[test]
fn other_namespaces_of_one_network_share_memory() {
    if role().is_some() {
        return wait_for_end(&exchange_as_peer());
    }
    let test = here!("other_namespaces_of_one_network_share_memory");
    const USER: [&str; 2] = ["--user", "--map-root-user"];
    let no_room = "mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm";
    for (more, prepare) in [
        (&[][..], "true"),
        (&["--pid", "--fork", "--kill-child", "--ipc"], "true"),
        (&["--mount"], no_room),
    ] {
        let Some(command) = apart(test, &[&USER, more].concat(), prepare) else {
            continue;
        };
        for counters in exchanged(command, test) {
            assert!(
                counters.contains("lane_octets_sent"),
                "{more:?}: {counters}"
            );
        }
    }
    // A user without a number cannot be compared.
    if let Some(command) = apart(test, &["--user"], "true") {
        let counters = exchanged(command, test);
        has_no_lanes(&counters, ["lane_refused_offer 1", "lane_refused_user 1"]);
    }
}

/// A process that becomes another program is gone, though it lives: nothing of it keeps its descriptors or its memory.
#[test]
fn a_peer_that_executes_another_program_ends_the_connection() {
    if role().is_some() {
        let _end = exchanged_as_peer();
        let error = Command::new("sleep").arg("600").exec();
        panic!("{error}");
    }
    let test = here!("a_peer_that_executes_another_program_ends_the_connection");
    let (end, _sleeps, counters) = with_peer(this_program(), test, "peer");
    assert!(counters[0].contains("lane_octets_sent"), "{counters:?}");
    end.send(0);
    wait_for_end(&end);
}

/// A peer that closes all its descriptors, as daemons do, ends the connection; so does its own end, which it still posts to.
#[test]
fn a_peer_that_closes_its_descriptors_ends_the_connection() {
    if role().is_some() {
        let end = exchanged_as_peer();
        for fd in 3..4096 {
            let _ = close(fd);
        }
        let octets = [end.mr.sge(0..LONGEST)];
        let posts = || {
            let wr = RcSendWr::new(1000, SEND, &octets);
            let refused = end.qp.post_send(&[wr]).is_err();
            let ended = end.cq.poll_one().unwrap();
            refused || ended.is_some_and(|wc| wc.status != WcStatus::Success)
        };
        wait_until(SOON, "the end of a connection without descriptors", posts);
        println!("ended");
        // Destructors would close descriptors that are closed already.
        std::process::exit(0);
    }
    let test = here!("a_peer_that_closes_its_descriptors_ends_the_connection");
    let (end, mut process, counters) = with_peer(this_program(), test, "peer");
    assert!(counters[0].contains("lane_octets_sent"), "{counters:?}");
    end.send(0);
    wait_for_end(&end);
    process.tells("ended", SOON);
}

/// Octets of a message that makes a ring as long as it can be.
const LONG: usize = 1 << 20;

/// One end of many connections, with one memory for all.
struct Many {
    rnic: Rnic,
    pd: Pd,
    cq: Cq,
    memory: Mr,
    qps: Vec<RcQp>,
}

impl Many {
    fn new() -> Self {
        let rnic = Rnic::open(config(SameHostMode::Ring)).unwrap();
        let pd = rnic.alloc_pd();
        let buffer = Buffer::zeroed(LONG).unwrap();
        let memory = pd.register(buffer.region(), Access::LOCAL_WRITE).unwrap();
        Self {
            cq: rnic.create_cq(1024).unwrap(),
            memory,
            qps: Vec::new(),
            rnic,
            pd,
        }
    }

    fn add(&mut self) {
        let attr = RcQpAttr::new(&self.cq, &self.cq);
        self.qps.push(self.pd.create_rc_qp(&attr).unwrap());
    }

    fn refusals(&self) -> u64 {
        refusals(&self.rnic.counters())
    }

    /// Sends a message on a connection to the other end.
    fn send(&self, to: &Self, connection: usize, octets: usize) {
        let sges = [to.memory.sge(0..LONG)];
        let receive = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        to.qps[connection].post_recv(&[receive]).unwrap();
        let sges = [self.memory.sge(0..octets)];
        let wr = RcSendWr::new(2, SEND, &sges);
        self.qps[connection].post_send(&[wr]).unwrap();
        let mut left = vec![&self.cq, &to.cq];
        let until = now() + SOON;
        while !left.is_empty() {
            assert!(now() < until, "connection {connection} does not go on");
            left.retain(|cq| match cq.poll_one().unwrap() {
                Some(wc) => {
                    assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                    false
                }
                None => true,
            });
        }
    }
}

/// More connections than the process has memory for: those that come later stay on TCP, or have short rings. All of them work.
fn many_connections() {
    const MOST: usize = 90;
    let (mut ours, mut theirs) = (Many::new(), Many::new());
    let listener = listen();
    let mut connection = 0;
    while connection < MOST {
        ours.add();
        theirs.add();
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept(SOON).unwrap().expect("a request");
                request
                    .accept(&theirs.qps[connection], DEPTHS, b"")
                    .unwrap();
            });
            let mpa = MpaConfig::default();
            let to = listener.local_addr();
            ours.qps[connection].connect(to, &mpa, b"").unwrap();
        });
        ours.send(&theirs, connection, LONG);
        connection += 1;
        let settled = || arenas() as u64 + ours.refusals() + theirs.refusals();
        wait_until(SOON, "lanes, or a refusal", || {
            let _ = (ours.cq.poll_one(), theirs.cq.poll_one());
            settled() >= 2 * connection as u64
        });
        for _ in 0..2 {
            ours.send(&theirs, connection - 1, LONG);
            theirs.send(&ours, connection - 1, LONG);
        }
        if ours.refusals() > 3 {
            break;
        }
    }
    let refused =
        theirs.rnic.counters().lane_refused_budget + ours.rnic.counters().lane_refused_budget;
    assert!(
        refused > 0,
        "{} {}",
        ours.rnic.counters(),
        theirs.rnic.counters()
    );
    for at in 0..connection {
        ours.send(&theirs, at, LONG / 8);
        theirs.send(&ours, at, LONG / 8);
    }
}

#[test]
fn connections_beyond_the_budget_work_by_tcp() {
    if role().is_some() {
        many_connections();
        // The memory is back.
        wait_until(SOON, "no arenas", || arenas() == 0);
        let [client, server] = [(); 2].map(|()| End::new(SameHostMode::Ring));
        connect(&client, &server);
        both(&client, &server, MESSAGES, [Waits::Polling; 2]);
        return assert!(client.lane_octets().0 > 0);
    }
    let test = here!("connections_beyond_the_budget_work_by_tcp");
    Process::start(test, "process", &[]).finish(2 * SOON);
}
