//! Runs of the simulation by seed. `DGIWARP_SIM_SEED=N` runs one.

use std::collections::VecDeque;
use std::time::Duration;

use dgiwarp_sim::{LinkConfig, Loss, Reordering, Rng, Simulation};
use rand::{RngExt as _, SeedableRng as _};

use super::{Caller, History, Party, Server, Tally, judge};

const SEED: &str = "DGIWARP_SIM_SEED";
const CALLERS: usize = 4;

fn restarts(rng: &mut Rng, most: usize) -> VecDeque<Duration> {
    let count = rng.random_range(0..=most);
    let mut times: Vec<_> = (0..count)
        .map(|_| Duration::from_millis(rng.random_range(0..3000)))
        .collect();
    times.sort_unstable();
    times.into()
}

fn run(seed: u64, calls: usize) -> (History, Duration) {
    let mut rng = Rng::seed_from_u64(seed);
    let config = LinkConfig {
        delay: Duration::from_micros(rng.random_range(10..5000)),
        loss: Loss::Independent(rng.random_range(0.0..0.4)),
        duplication: rng.random_range(0.0..0.4),
        reordering: Reordering {
            probability: rng.random_range(0.0..0.3),
            by: Duration::from_millis(rng.random_range(1..200)),
        },
        ..LinkConfig::default()
    };
    let mut fork = || Rng::from_rng(&mut rng);
    let mut restarting = fork();
    let mut nodes = vec![Party::Server(Server::new(
        fork(),
        restarts(&mut restarting, 6),
    ))];
    for node in 1..=CALLERS {
        let restarts = restarts(&mut restarting, 2);
        let share = calls / CALLERS;
        nodes.push(Party::Caller(Caller::new(node, fork(), share, restarts)));
    }
    let mut simulation = Simulation::new(seed, nodes, |_, _| config);
    let end = simulation.run(Duration::from_secs(36_000)).unwrap();
    let mut history = History::default();
    let (nodes, _) = simulation.parts();
    for node in nodes {
        let of_node = match node {
            Party::Server(server) => &mut server.history,
            Party::Caller(caller) => &mut caller.history,
        };
        history.calls.append(&mut of_node.calls);
        history.executions.append(&mut of_node.executions);
    }
    (history, end)
}

fn runs(seeds: std::ops::Range<u64>, calls: usize) -> Tally {
    let chosen = std::env::var(SEED).ok().map(|text| text.parse().unwrap());
    let seeds = chosen.map_or(seeds, |seed: u64| seed..seed + 1);
    let mut sum = Tally::default();
    for seed in seeds {
        let (history, _) = run(seed, calls);
        let tally = judge(&history).unwrap_or_else(|wrong| panic!("{SEED}={seed}: {wrong}"));
        sum.calls += tally.calls;
        sum.right += tally.right;
        sum.failed += tally.failed;
        sum.executed += tally.executed;
    }
    assert_eq!(sum.right + sum.failed, sum.calls);
    sum
}

#[test]
fn calls_are_executed_at_most_once_and_end_once() {
    let sum = runs(1..17, 400);
    println!("{sum:?}");
    assert!(std::env::var(SEED).is_ok() || sum.calls >= 6_400);
    // Both happen often, so that either is tested.
    assert!(sum.right * 2 > sum.calls && sum.failed * 50 > sum.calls);
}

#[test]
#[ignore = "some minutes"]
fn soak_a_million_calls() {
    let sum = runs(1000..1064, 20_000);
    println!("{sum:?}");
    assert!(sum.calls >= 1_000_000);
}

#[test]
fn the_oracle_sees_every_fault() {
    let (history, _) = run(7, 200);
    assert!(judge(&history).is_ok());
    let again = || run(7, 200).0;
    let plain = |history: &History, (caller, number): (u64, u64)| {
        !history.calls[&(caller, number)].0.idempotent
    };
    let executed = |history: &History| {
        let all = history.executions.iter();
        let mut all = all.filter(|(_, caller, number)| plain(history, (*caller, *number)));
        *all.next().unwrap()
    };

    let mut twice = again();
    let (server, caller, number) = executed(&twice);
    twice.executions.push((server, caller, number));
    assert!(judge(&twice).unwrap_err().contains("twice"));

    let mut elsewhere = again();
    elsewhere.executions.push((server + 1, caller, number));
    assert!(judge(&elsewhere).unwrap_err().contains("was executed by"));

    let mut two_ends = again();
    let ends = &mut two_ends.calls.get_mut(&(caller, number)).unwrap().1;
    ends.push(super::Ending::MaybeExecuted);
    assert!(judge(&two_ends).unwrap_err().contains("ends"));

    let mut lie = again();
    lie.calls.get_mut(&(caller, number)).unwrap().1 = vec![super::Ending::NotExecuted];
    assert!(judge(&lie).unwrap_err().contains("contrary"));

    let mut wrong = again();
    wrong.calls.get_mut(&(caller, number)).unwrap().1 = vec![super::Ending::Reply(1)];
    assert!(judge(&wrong).unwrap_err().contains("reply 1"));
}
