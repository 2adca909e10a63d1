//! Scenarios. Each run prints its seed; `DGIWARP_SIM_SEED` runs one seed of the random ones again.

use std::env;
use std::time::{Duration, Instant};

use dgiwarp_sim::{GilbertElliott, LinkConfig, Loss, NodeId, Reordering, Rng};
use rand::{RngExt as _, SeedableRng as _};

use super::{Order, World, address, peer_of};
use crate::rd::config::{Cause, RdConfig, Scope};
use crate::rd::congestion::Algorithm;
use crate::rd::frame::CloseReason;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
/// Octets of the longest segment of a datagram of 1472.
const FULL: u16 = 1472 - 28 - 20;

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
pub(super) fn origin() -> Instant {
    Instant::now()
}

/// Messages of one end to another, each of `octets`.
fn stream(from: (usize, u16), to: (usize, u16), messages: usize, octets: u32) -> Vec<Order> {
    let segments = octets.div_ceil(FULL.into());
    let last = octets - (segments - 1) * u32::from(FULL);
    let order = Order {
        at: Duration::ZERO,
        from,
        to,
        segments,
        length: FULL,
        last_length: u16::try_from(last).unwrap().max(12),
        stream: Some(1),
        receive: false,
    };
    vec![order; messages]
}

fn plain(_: usize, _: u16, config: RdConfig) -> RdConfig {
    config
}

/// A link with faults of every kind.
fn faulty(rng: &mut Rng) -> LinkConfig {
    let rate = rng.random_range(0..4u32);
    let loss = match rng.random_range(0..4u32) {
        0 => Loss::None,
        1 => Loss::Bursts(GilbertElliott::bursts(rng.random_range(0.0..0.05), 4.0)),
        _ => Loss::Independent(rng.random_range(0.0..0.1)),
    };
    LinkConfig {
        rate: (rate > 0).then(|| 10u64.pow(rate + 5)),
        queue: rng.random_range(5_000..200_000),
        delay: rng.random_range(5..20_000) * US,
        loss,
        duplication: rng.random_range(0.0..0.1),
        reordering: Reordering {
            probability: rng.random_range(0.0..0.2),
            by: rng.random_range(0..10_000) * US,
        },
        corruption: rng.random_range(0.0..0.01),
        mark: if rng.random() { usize::MAX } else { 20_000 },
        ..LinkConfig::default()
    }
}

fn random_orders(rng: &mut Rng) -> Vec<Order> {
    (0..rng.random_range(1..60u32))
        .map(|_| {
            let from = rng.random_range(0..2usize);
            let segments = if rng.random_ratio(1, 8) {
                rng.random_range(1..200)
            } else {
                rng.random_range(1..6)
            };
            Order {
                at: rng.random_range(0..50u32) * MS,
                from: (from, 0),
                to: (1 - from, 0),
                segments,
                length: rng.random_range(12..=FULL),
                last_length: rng.random_range(12..=FULL),
                stream: rng.random_ratio(3, 4).then(|| rng.random_range(0..3u16)),
                receive: rng.random_ratio(1, 3),
            }
        })
        .collect()
}

/// Questions and answers of a few segments, in both directions at once.
fn short_orders(rng: &mut Rng) -> Vec<Order> {
    (0..rng.random_range(1..7u32))
        .map(|_| {
            let from = rng.random_range(0..2usize);
            Order {
                at: rng.random_range(0..40u32) * MS / 4,
                from: (from, 0),
                to: (1 - from, 0),
                segments: rng.random_range(1..4),
                length: rng.random_range(12..=FULL),
                last_length: rng.random_range(12..=FULL),
                stream: rng.random_ratio(3, 4).then_some(0),
                receive: rng.random_ratio(1, 2),
            }
        })
        .collect()
}

/// One random run: everything arrives once, in order, and before the limit in virtual time.
fn random_run(seed: u64, orders: fn(&mut Rng) -> Vec<Order>) {
    let mut rng = Rng::seed_from_u64(seed);
    let links = [faulty(&mut rng), faulty(&mut rng)];
    let algorithm = match rng.random_range(0..4u32) {
        0 => Algorithm::Delay,
        1 => Algorithm::FixedRate(500_000),
        _ => Algorithm::Cubic,
    };
    let receives = rng.random_range(0..6u32);
    // Credit may be more than there is.
    let pool = rng.random_range(1..receives + 2);
    let mut orders = orders(&mut rng);
    orders.sort_by_key(|order| order.at);
    let takes = rng.random_range(0..20u32) * MS;
    // Acknowledgements are held for as long as they may be.
    let polls = rng.random_ratio(1, 3);
    // A rest loses nothing, even amid traffic.
    let rest = [Duration::ZERO, 3 * MS, 1000 * MS][rng.random_range(0..3)];
    let config = |_, _, config| RdConfig {
        algorithm,
        receives,
        polls,
        rest,
        unreachable: Duration::from_secs(60),
        ..config
    };
    let mut world = World::new(seed, [1, 1], pool, |from| links[from], config, &orders);
    for host in world.simulation.parts().0 {
        host.ends[0].takes = takes;
    }
    world.run(Duration::from_secs(120));
    for host in world.simulation.nodes() {
        assert_eq!(host.ends[0].ended, 0);
        assert_eq!(host.ends[0].causes, []);
    }
}

fn random_runs(first: u64, count: u64, orders: fn(&mut Rng) -> Vec<Order>) {
    if let Ok(seed) = env::var("DGIWARP_SIM_SEED") {
        random_run(seed.parse().unwrap(), orders);
        return;
    }
    for seed in first..first + count {
        println!("DGIWARP_SIM_SEED={seed}");
        random_run(seed, orders);
    }
}

/// A seed that differs from run to run.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.finish() >> 24
}

#[test]
fn random_faults_do_no_harm() {
    random_runs(1, 50, random_orders);
}

#[test]
fn short_exchanges_survive_faults() {
    random_runs(1, 10_000, short_orders);
}

#[test]
#[ignore = "ten minutes: 10^6 seeds"]
fn soak_short_exchanges_survive_faults() {
    random_runs(rand_seed(), 1_000_000, short_orders);
}

/// The acceptor's answers are lost until it may send no more; the opener has nothing to send.
#[test]
fn an_opener_without_output_validates_itself() {
    random_run(820_838_273_761, random_orders);
}

#[test]
#[ignore = "an hour: 10^6 seeds"]
fn soak_random_faults_do_no_harm() {
    random_runs(rand_seed(), 1_000_000, random_orders);
}

/// A small question and an answer that may exceed what the acceptor may send before it is validated, under heavy loss.
#[test]
fn questions_and_answers_survive_loss() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut orders = stream((0, 0), (1, 0), 1, 30);
        for at in 1..4 {
            let mut answer = stream((1, 0), (0, 0), 1, 30 * at);
            answer[0].at = at * MS;
            orders.extend(answer);
        }
        let link = LinkConfig {
            loss: Loss::Independent(0.3),
            delay: 100 * US,
            ..LinkConfig::default()
        };
        let config = |_, _, config| RdConfig {
            unreachable: Duration::from_secs(60),
            ..config
        };
        let mut world = World::new(seed, [1, 1], 0, |_| link, config, &orders);
        world.run(Duration::from_secs(30));
    }
}

/// Octets per second of one transfer of `octets`, from the start to the last completion.
fn goodput(link: LinkConfig, back: LinkConfig, octets: u32, algorithm: Algorithm) -> f64 {
    let orders = stream((0, 0), (1, 0), 8, octets / 8);
    let config = |_, _, config| RdConfig {
        algorithm,
        window: 64 << 20,
        ..config
    };
    let links = [link, back];
    let mut world = World::new(1, [1, 1], 0, |from| links[from], config, &orders);
    let took = world.run(Duration::from_secs(300));
    f64::from(octets) / took.as_secs_f64()
}

/// A link of `mbit` Mbit/s with a queue of `queue` of its time.
fn wire(mbit: u64, delay: Duration, queue: Duration, loss: f64) -> LinkConfig {
    let rate = mbit * 125_000;
    let queue = u128::from(rate) * queue.as_nanos() / 1_000_000_000;
    LinkConfig {
        rate: Some(rate),
        queue: usize::try_from(queue).unwrap(),
        delay,
        loss: if loss > 0.0 {
            Loss::Independent(loss)
        } else {
            Loss::None
        },
        ..LinkConfig::default()
    }
}

/// Loss on a local network of 1 Gbit/s, round trip 0.2 ms: share of the goodput without loss.
#[test]
fn loss_on_a_local_network_costs_little_more_than_the_lost() {
    for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
        let at = |loss| {
            let link = |loss| wire(1000, 100 * US, MS, loss);
            goodput(link(loss), link(0.0), 4 << 20, algorithm)
        };
        let full = at(0.0);
        println!("{algorithm:?}: {:.3} of the link", full / 125e6);
        assert!(full > 0.85 * 125e6, "{algorithm:?} {full}");
        for (loss, bar) in [(0.001, 0.97), (0.01, 0.92), (0.05, 0.78)] {
            let share = at(loss) / full / (1.0 - loss);
            println!("{algorithm:?} loss {loss}: {share:.3}");
            assert!(share >= bar, "{algorithm:?} with {loss}: {share}");
        }
    }
}

/// 1 % loss, round trip 50 ms: share of a link of `mbit` in a transfer of `octets`.
fn share_of_a_long_path(mbit: u64, octets: u32) -> f64 {
    let link = |loss| wire(mbit, 25 * MS, 25 * MS, loss);
    let rate = goodput(link(0.01), link(0.0), octets, Algorithm::Cubic);
    rate / (mbit * 125_000) as f64
}

#[test]
fn loss_on_a_long_path_costs_little() {
    let share = share_of_a_long_path(50, 24 << 20);
    println!("{share:.3} of the link");
    assert!(share >= 0.7, "{share}");
}

#[test]
#[ignore = "two minutes: 2 GiB"]
fn soak_loss_on_a_long_and_fast_path_costs_little() {
    let share = share_of_a_long_path(1000, 2 << 30);
    println!("{share:.3} of the link");
    // 0.875 measured.
    assert!(share >= 0.85, "{share}");
}

/// A long path holds more octets than the window that receivers grant at first.
#[test]
fn the_receivers_window_follows_a_long_path() {
    let link = wire(200, 25 * MS, 25 * MS, 0.0);
    let octets = 32 << 20;
    let orders = stream((0, 0), (1, 0), 8, octets / 8);
    let mut world = World::new(1, [1, 1], 0, |_| link, plain, &orders);
    let took = world.run(Duration::from_secs(300));
    let share = f64::from(octets) / took.as_secs_f64() / 25e6;
    println!("{share:.3} of the link");
    // 256 KiB in each 50 ms are 0.21.
    assert!(share > 0.6, "{share}");
}

/// Share of a link of 200 Mbit/s with 1 % loss, where each 100 ms what the receiver is sent arrives `pause` late, in order: its host was not scheduled.
fn share_with_pauses(delay: Duration, pause: Duration) -> f64 {
    // The least jitter keeps the order.
    let link = |loss| LinkConfig {
        jitter: Duration::from_nanos(1),
        ..wire(200, delay, 25 * MS, loss)
    };
    let octets = 64 << 20;
    let orders = stream((0, 0), (1, 0), 8, octets / 8);
    let links = [link(0.01), link(0.0)];
    let mut world = World::new(1, [1, 1], 0, |from| links[from], plain, &orders);
    let mut now = Duration::ZERO;
    while !world.ledger.borrow().is_done() && now < Duration::from_secs(60) {
        for (lasts, more) in [(90 * MS, Duration::ZERO), (10 * MS, pause)] {
            let config = LinkConfig {
                delay: delay + more,
                ..links[0]
            };
            let (_, network) = world.simulation.parts();
            network.link_mut(NodeId(0), NodeId(1)).set_config(config);
            now += lasts;
            world.run_until(now);
        }
    }
    f64::from(octets) / world.simulation.now().as_secs_f64() / 25e6
}

/// Loss that coincides with a late arrival is no congestion.
#[test]
fn pauses_of_a_host_are_no_queue() {
    for (delay, pause) in [(25 * MS, 20 * MS), (100 * US, 3 * MS)] {
        let share = share_with_pauses(delay, pause);
        println!("{delay:?}: {share:.3} of the link");
        assert!(share > 0.6, "{delay:?}: {share}");
    }
}

/// Two flows on one bottleneck, one of which begins a second later: share of the first, and that of both in the link, between two times.
fn shares(mbit: u64, from: Duration, to: Duration) -> (f64, f64) {
    let link = wire(mbit, 10 * MS, 20 * MS, 0.0);
    let mut orders = stream((0, 0), (1, 0), 400, 1 << 20);
    let mut second = stream((0, 1), (1, 1), 400, 1 << 20);
    for order in &mut second {
        order.at = Duration::from_secs(1);
    }
    orders.extend(second);
    let config = |_, _, config| RdConfig {
        window: 64 << 20,
        ..config
    };
    let mut world = World::new(2, [2, 2], 0, |_| link, config, &orders);
    let octets =
        |world: &World| [0, 1].map(|port| world.ledger.borrow().octets_from((0, port)) as f64);
    world.run_until(from);
    let begin = octets(&world);
    world.run_until(to);
    let end = octets(&world);
    let [one, two] = [end[0] - begin[0], end[1] - begin[1]];
    let link = (to - from).as_secs_f64() * (mbit * 125_000) as f64;
    (one / (one + two), (one + two) / link)
}

#[test]
fn two_flows_share_a_bottleneck() {
    let (share, link) = shares(10, Duration::from_secs(10), Duration::from_secs(30));
    println!("{share:.3}; {link:.3} of the link");
    assert!((0.3..=0.7).contains(&share), "{share}");
    assert!(link > 0.85, "{link}");
}

#[test]
#[ignore = "a minute"]
fn soak_two_flows_share_a_fast_bottleneck() {
    let (share, link) = shares(100, Duration::from_secs(10), Duration::from_secs(25));
    println!("{share:.3}; {link:.3} of the link");
    assert!((0.35..=0.65).contains(&share), "{share}");
    assert!(link > 0.85, "{link}");
}

/// 64 senders to one receiver, whose link has a shallow queue.
#[test]
fn many_senders_share_one_receiver() {
    let link = wire(1000, 50 * US, 2 * MS, 0.0);
    let mut orders = Vec::new();
    for port in 0..64 {
        orders.extend(stream((0, port), (1, 0), 4, 64 << 10));
    }
    let mut world = World::new(3, [64, 1], 0, |_| link, plain, &orders);
    let took = world.run(Duration::from_secs(10));
    let share = f64::from(64 * (256 << 10)) / took.as_secs_f64() / 125e6;
    println!("{share:.3} of the link in {took:?}");
    assert!(share > 0.8, "{share}");
}

/// A small message costs a datagram and, some time later, an acknowledgement.
#[test]
fn nothing_is_in_the_way_of_a_small_message() {
    let link = LinkConfig::default();
    let mut orders = Vec::new();
    for message in 0..100u32 {
        let mut order = stream((0, 0), (1, 0), 1, 64);
        order[0].at = message * MS;
        orders.extend(order);
    }
    let mut world = World::new(4, [1, 1], 0, |_| link, plain, &orders);
    world.run(Duration::from_secs(1));
    let sent = world.simulation.network().log().sent();
    assert!(sent.len() <= 203, "{} datagrams", sent.len());
    let data: Vec<_> = sent.iter().filter(|it| it.length == 64 + 48).collect();
    assert!(data.len() >= 98, "{}", data.len());
    // Each leaves when it is posted.
    assert!(
        data.iter()
            .all(|it| it.at.subsec_micros().is_multiple_of(1000))
    );
}

#[test]
fn a_restarted_peer_fails_what_is_outstanding_and_serves_what_comes_then() {
    let mut orders = stream((0, 0), (1, 0), 4, 1 << 20);
    for (at, order) in (0..).zip(&mut orders) {
        order.at = if at < 2 { Duration::ZERO } else { 500 * MS };
    }
    let link = wire(100, 5 * MS, 20 * MS, 0.0);
    let mut world = World::new(5, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(60 * MS);
    world.simulation.parts().0[1].ends[0].restart();
    world.run_until(400 * MS);
    assert_eq!(world.ledger.borrow().failures(), [0, 1]);
    let end = &world.simulation.nodes()[0].ends[0];
    assert_eq!(end.causes, [Cause::Restarted; 2]);
    world.run_until(Duration::from_secs(3));
    assert_eq!(world.ledger.borrow().failures(), [0, 1]);
    assert_eq!(world.ledger.borrow().octets_from((0, 0)), 2 << 20);
}

/// The first message of a restarted peer arrives behind the end of the former association, which the layer above hears of first.
#[test]
fn a_restarted_opener_is_served() {
    let mut orders = stream((0, 0), (1, 0), 3, 5000);
    for (at, order) in (0..).zip(&mut orders) {
        order.at = at * 100 * MS;
    }
    let link = wire(100, 5 * MS, 20 * MS, 0.0);
    let mut world = World::new(5, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(60 * MS);
    world.simulation.parts().0[0].ends[0].restart();
    world.run_until(Duration::from_secs(2));
    assert_eq!(world.ledger.borrow().failures(), []);
    assert_eq!(world.ledger.borrow().octets_from((0, 0)), 15_000);
    assert_eq!(world.simulation.nodes()[1].ends[0].ended, 1);
}

/// A request that was acknowledged can be refused; its sender hears of it once, though the datagram comes twice.
#[test]
fn a_message_is_refused_behind_its_acknowledgement() {
    let mut orders = stream((0, 0), (1, 0), 1, 5000);
    orders.extend(stream((1, 0), (0, 0), 1, 5000));
    orders[1].at = 300 * MS;
    let mut link = wire(100, 5 * MS, 20 * MS, 0.0);
    link.duplication = 0.5;
    let mut world = World::new(5, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(200 * MS);
    let host = &mut world.simulation.parts().0[1];
    let at = host.at(200 * MS);
    let to = peer_of(address(0, 0));
    host.ends[0].endpoint.refuse(at, to, 0, 0x0102_0000);
    world.run_until(Duration::from_secs(1));
    let nodes = world.simulation.nodes();
    assert_eq!(nodes[0].ends[0].refused, [0x0102_0000]);
    assert_eq!((nodes[0].ends[0].ended, nodes[1].ends[0].ended), (0, 0));
}

#[test]
fn a_peer_moves_to_another_port() {
    let mut orders = stream((0, 0), (1, 0), 8, 256 << 10);
    orders.extend(stream((1, 0), (0, 0), 8, 256 << 10));
    let link = wire(100, 5 * MS, 20 * MS, 0.01);
    let mut world = World::new(6, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(60 * MS);
    let end = &mut world.simulation.parts().0[0].ends[0];
    end.address = address(0, 9);
    world.run(Duration::from_secs(20));
    let nodes = world.simulation.nodes();
    assert_eq!(nodes[1].ends[0].moved, [peer_of(address(0, 9))]);
    assert_eq!((nodes[0].ends[0].ended, nodes[1].ends[0].ended), (0, 0));
}

#[test]
fn a_silent_peer_is_unreachable_and_an_idle_one_is_forgotten() {
    let mut orders = stream((0, 0), (1, 0), 2, 1000);
    orders[1].at = Duration::from_secs(70);
    let mut link = LinkConfig::default();
    let mut world = World::new(7, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(Duration::from_secs(59));
    let count = |world: &World| {
        let nodes = world.simulation.nodes();
        [0, 1].map(|node| nodes[node].ends[0].endpoint.associations())
    };
    assert_eq!(count(&world), [1, 1]);
    world.run_until(Duration::from_secs(69));
    assert_eq!(count(&world), [0, 0], "idle for a minute");
    link.loss = Loss::Independent(1.0);
    world
        .simulation
        .parts()
        .1
        .link_mut(NodeId(0), NodeId(1))
        .set_config(link);
    world.run_until(Duration::from_millis(73_990));
    assert!(world.ledger.borrow().failures().is_empty());
    world.run_until(Duration::from_millis(74_010));
    assert_eq!(world.ledger.borrow().failures(), [1]);
    assert_eq!(
        world.simulation.nodes()[0].ends[0].causes,
        [Cause::Unreachable]
    );
    assert_eq!(count(&world), [0, 0]);
}

/// Either end may begin after the rest, with or without an order.
#[test]
fn an_association_goes_on_after_a_rest() {
    let mut orders = [(0, 0), (3, 1), (6, 0), (9, 0), (9, 1)].map(|(second, from)| Order {
        at: Duration::from_secs(second),
        ..stream((from, 0), (1 - from, 0), 1, 20_000)[0]
    });
    orders[4].stream = None;
    let link = wire(100, MS, 20 * MS, 0.02);
    let mut world = World::new(9, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(Duration::from_secs(12));
    assert!(world.ledger.borrow().failures().is_empty());
    for node in world.simulation.nodes() {
        let end = &node.ends[0];
        assert_eq!((end.rests, end.ended, &end.causes[..]), (4, 0, &[][..]));
        assert_eq!(end.endpoint.associations(), 1);
    }
}

#[test]
fn a_failed_message_fails_its_peers_or_itself_alone() {
    let cases = [Scope::Peer, Scope::Message];
    // Of many segments, and of one, which a single acknowledgement covers.
    let cases = cases
        .iter()
        .flat_map(|scope| [(*scope, 20_000), (*scope, 100)]);
    for (scope, octets) in cases {
        let orders = stream((0, 0), (1, 0), 5, octets);
        let link = wire(100, MS, 20 * MS, 0.02);
        let config = |_, _, config| RdConfig { scope, ..config };
        let mut world = World::new(8, [1, 1], 0, |_| link, config, &orders);
        world.simulation.parts().0[1].ends[0].refuses = Some(1);
        world.run_until(Duration::from_secs(2));
        let end = &world.simulation.nodes()[0].ends[0];
        let remote = Cause::Remote(0x0100_0000);
        assert_eq!(
            end.causes.iter().filter(|it| **it == remote).count(),
            1,
            "{scope:?}"
        );
        let failures = world.ledger.borrow().failures();
        match scope {
            Scope::Message => {
                assert_eq!(failures, [1]);
                assert_eq!(
                    world.ledger.borrow().octets_from((0, 0)),
                    4 * u64::from(octets)
                );
            }
            Scope::Peer => {
                assert!(failures.contains(&1) && failures.len() > 1);
                assert!(
                    end.causes
                        .iter()
                        .all(|it| [remote, Cause::Flushed].contains(it))
                );
                let there = &world.simulation.nodes()[1].ends[0];
                assert_eq!(there.endpoint.associations(), 0);
            }
        }
    }
}

#[test]
fn a_closed_association_is_closed_at_both_ends() {
    let mut orders = stream((0, 0), (1, 0), 1, 100 << 10);
    orders.extend(stream((1, 0), (0, 0), 1, 10 << 20));
    let link = wire(100, MS, 20 * MS, 0.0);
    let mut world = World::new(9, [1, 1], 0, |_| link, plain, &orders);
    world.run_until(100 * MS);
    let (hosts, network) = world.simulation.parts();
    let now = hosts[0].at(100 * MS);
    hosts[0].ends[0].endpoint.close(now, peer_of(address(1, 0)));
    hosts[0].pump(100 * MS, network);
    world.run_until(200 * MS);
    let nodes = world.simulation.nodes();
    for node in nodes {
        assert_eq!(node.ends[0].endpoint.associations(), 0);
        assert_eq!(node.ends[0].ended, 1);
    }
    assert_eq!(nodes[1].ends[0].causes, [Cause::Closed(CloseReason::Done)]);
}

/// Receives that come late delay messages and fail none; with a bound on retries they do.
#[test]
fn messages_wait_for_receives() {
    let mut orders = stream((0, 0), (1, 0), 30, 3000);
    for order in &mut orders {
        order.receive = true;
    }
    for (receives, retries) in [(0, None), (2, None), (0, Some(3))] {
        let link = wire(1000, 100 * US, MS, 0.01);
        let config = |_, _, config| RdConfig {
            receives,
            rnr_retries: retries,
            ..config
        };
        let pool = receives.max(1);
        let mut world = World::new(10, [1, 1], pool, |_| link, config, &orders);
        let takes = if retries.is_some() {
            Duration::from_secs(1)
        } else {
            5 * MS
        };
        world.simulation.parts().0[1].ends[0].takes = takes;
        if retries.is_some() {
            world.run_until(Duration::from_secs(2));
            let causes = &world.simulation.nodes()[0].ends[0].causes;
            assert_eq!(causes.first(), Some(&Cause::RnrRetries));
        } else {
            let took = world.run(Duration::from_secs(20));
            let turns = 30 / pool;
            assert!(took >= (turns - 1) * takes, "{took:?}");
            println!("{receives}: {took:?}");
        }
    }
}
