//! Runs of the simulation by seed. `DGIWARP_SIM_SEED=N` runs one.

use std::collections::VecDeque;
use std::time::Duration;

use dgiwarp_sim::{Datagram, LinkConfig, Loss, Network, Node, Reordering, Rng, Simulation};
use rand::{RngExt as _, SeedableRng as _};

use super::{Caller, Ending, History, Server, Tally, judge};

const SEED: &str = "DGIWARP_SIM_SEED";
const CALLERS: usize = 3;

enum Party {
    Server(Box<Server>),
    Caller(Box<Caller>),
}

impl Node for Party {
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network) {
        match self {
            Self::Server(server) => server.handle(now, datagram.from, &datagram.octets, network),
            Self::Caller(caller) => caller.handle(now, &datagram.octets, network),
        }
        network.recycle(datagram);
    }

    fn handle_wake(&mut self, now: Duration, network: &mut Network) {
        match self {
            Self::Server(server) => server.wake(now, network),
            Self::Caller(caller) => caller.wake(now, network),
        }
    }

    fn poll_wake(&self) -> Option<Duration> {
        match self {
            Self::Server(server) => server.next(),
            Self::Caller(caller) => caller.next(),
        }
    }
}

fn times(rng: &mut Rng, most: usize) -> VecDeque<Duration> {
    let count = rng.random_range(0..=most);
    let times = (0..count).map(|_| Duration::from_millis(rng.random_range(0..1500)));
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times.into()
}

fn run(seed: u64, calls: usize) -> History {
    let mut rng = Rng::seed_from_u64(seed);
    let config = LinkConfig {
        delay: Duration::from_micros(rng.random_range(10..4000)),
        loss: Loss::Independent(rng.random_range(0.0..0.3)),
        duplication: rng.random_range(0.0..0.3),
        reordering: Reordering {
            probability: rng.random_range(0.0..0.3),
            by: Duration::from_millis(rng.random_range(1..50)),
        },
        ..LinkConfig::default()
    };
    let mut fork = || Rng::from_rng(&mut rng);
    let mut breaking = fork();
    let mut breaks = |most| times(&mut breaking, most);
    let server = Server::new(fork(), breaks(3), breaks(12));
    let mut nodes = vec![Party::Server(server.into())];
    for node in 1..=CALLERS {
        let caller = Caller::new(node, fork(), calls / CALLERS, breaks(2), breaks(6));
        nodes.push(Party::Caller(caller.into()));
    }
    let mut simulation = Simulation::new(seed, nodes, |_, _| config);
    let end = simulation.run(Duration::from_secs(36_000));
    let mut history = History::default();
    if end.is_err() {
        history.faults.push("it does not come to rest".to_owned());
    }
    let (nodes, _) = simulation.parts();
    for node in nodes {
        let (is_idle, of_node) = match node {
            Party::Server(server) => (server.is_idle(), &mut server.history),
            Party::Caller(caller) => (caller.is_idle(), &mut caller.history),
        };
        history.faults.append(&mut of_node.faults);
        history.calls.append(&mut of_node.calls);
        history.executions.append(&mut of_node.executions);
        if !is_idle {
            history.faults.push("something is left".to_owned());
        }
    }
    history
}

fn runs(seeds: std::ops::Range<u64>, calls: usize) -> Tally {
    let chosen = std::env::var(SEED).ok().map(|text| text.parse().unwrap());
    let seeds = chosen.map_or(seeds, |seed: u64| seed..seed + 1);
    let mut sum = Tally::default();
    for seed in seeds {
        let tally = judge(&run(seed, calls));
        let tally = tally.unwrap_or_else(|wrong| panic!("{SEED}={seed}: {wrong}"));
        sum.calls += tally.calls;
        sum.replies += tally.replies;
        sum.failed += tally.failed;
        sum.whole += tally.whole;
        sum.octets += tally.octets;
    }
    sum
}

#[test]
fn streams_come_in_order_and_once_and_end() {
    let sum = runs(1..25, 150);
    println!("{sum:?}");
    assert!(std::env::var(SEED).is_ok() || sum.calls >= 3600);
    // All happen often, so that each is tested.
    assert!(sum.replies * 3 > sum.calls && sum.failed * 20 > sum.calls);
    assert!(sum.whole * 4 > sum.calls && sum.octets > 1000 * sum.calls as u64);
}

#[test]
#[ignore = "some minutes"]
fn soak_streams() {
    let sum = runs(1000..1400, 600);
    println!("{sum:?}");
    assert!(std::env::var(SEED).is_ok() || sum.calls >= 240_000);
}

#[test]
fn the_oracle_sees_every_fault() {
    let history = || run(7, 150);
    let seen = |change: &dyn Fn(&mut History)| {
        let mut history = history();
        change(&mut history);
        judge(&history).unwrap_err()
    };
    assert!(judge(&history()).is_ok());
    // A call with both streams that were read to the end.
    let good = history();
    let whole = |id: &(u64, u64)| {
        let executed = good.executions.iter().filter(|it| it.call == *id);
        executed.clone().count() == 1
            && executed
                .clone()
                .all(|it| it.report.whole && it.report.sent.is_some())
    };
    let replied = |it: &super::Called| matches!(it.ends[..], [Ending::Reply(_)]) && it.whole;
    let found = good.calls.iter().find(|(id, it)| whole(id) && replied(it));
    let id = *found.unwrap().0;
    let at = good.executions.iter().position(|it| it.call == id).unwrap();

    let fault = seen(&|it| it.executions.push(it.executions[at]));
    assert!(fault.contains("2 times"), "{fault}");
    let fault = seen(&|it| it.executions[at].report.read += 1_000_000);
    assert!(fault.contains("more octets"), "{fault}");
    let fault = seen(&|it| it.executions[at].report.read -= 1);
    assert!(fault.contains("an end after"), "{fault}");
    let fault = seen(&|it| it.calls.get_mut(&id).unwrap().read -= 1);
    assert!(fault.contains("an end after"), "{fault}");
    let fault = seen(&|it| it.calls.get_mut(&id).unwrap().whole = false);
    assert!(fault.contains("octets, and"), "{fault}");
    let fault = seen(&|it| {
        it.calls
            .get_mut(&id)
            .unwrap()
            .ends
            .push(Ending::MaybeExecuted)
    });
    assert!(fault.contains("ends"), "{fault}");
    let fault = seen(&|it| it.calls.get_mut(&id).unwrap().ends = vec![Ending::NotExecuted]);
    assert!(fault.contains("contrary"), "{fault}");

    let mut reader = super::Reader::new(id, true);
    let octets: Vec<_> = (0..3).map(|at| super::octet(id, true, at)).collect();
    assert_eq!(reader.read(&octets), Ok(()));
    assert!(reader.read(&octets).is_err(), "they come again");
    assert!(super::Reader::new(id, false).read(&octets).is_err());
    assert!(super::Reader::new(id, true).read(&octets[1..]).is_err());
    let many: Vec<_> = (0..5000).map(|at| super::octet(id, true, at)).collect();
    assert!(super::Reader::new(id, true).read(&many).is_err());
}
