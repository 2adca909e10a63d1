//! Scenario of a seed: hosts, links, messages and mishaps.

use std::time::Duration;

use dgiwarp_sim::{Address, GilbertElliott, LinkConfig, Loss, NodeId, Reordering, Rng};
use rand::{RngExt as _, SeedableRng as _};

use super::ledger::{Flaw, Kind, Message, Target};
use super::memory::source;
use super::outgoing::Refusals;

/// Longest message.
const LONGEST: u32 = 1 << 20;
/// Smallest datagrams that every path takes (§8: never below 512 octets).
const SMALLEST_MTU: usize = 512;
/// The time that a Read has which must complete.
pub(super) const FAR: Duration = Duration::from_secs(600);
/// First port: a QPN.
const PORT: u16 = 1000;

/// Kind of network and use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Links keep order, and nothing that the specification limits is exceeded: what arrives counts, exactly.
    Orderly,
    /// Loss up to 30 %, duplication, reordering, corruption, paths that change.
    Lossy,
    /// As `Lossy`, and hosts that are slow, post late, release late, make mistakes and restart.
    Harsh,
    /// As `Harsh`, with many short messages, some of which come when hundreds of newer ones have.
    Chatty,
}

impl Style {
    fn is_harsh(self) -> bool {
        matches!(self, Self::Harsh | Self::Chatty)
    }
}

/// A QP.
#[derive(Debug, Clone)]
pub(super) struct QpPlan {
    pub(super) qkey: u32,
    pub(super) grh: bool,
    /// First address of the region that peers write to.
    pub(super) iova: u64,
    pub(super) record_slots: usize,
    pub(super) record_timeout: Duration,
    /// Whether each segment of a record is reported, and how many reports one poll takes.
    pub(super) reports: Option<usize>,
    /// Octets that it sends per second at most; 0 is no limit.
    pub(super) max_rate: u64,
    /// As the socket was granted one: it bounds what Reads ask for at once.
    pub(super) receive_buffer: usize,
    /// Length of each receive.
    pub(super) receives: Vec<u32>,
    /// After which a receive is posted (again), at most.
    pub(super) post_delay: Duration,
    /// After which a record is released, at most.
    pub(super) release_delay: Duration,
    pub(super) refusals: Refusals,
}

/// A host.
#[derive(Debug, Clone)]
pub(super) struct HostPlan {
    pub(super) qps: Vec<QpPlan>,
    /// From a datagram's arrival to the poll that finds it, at most.
    pub(super) poll_delay: Duration,
    /// By which timers run late.
    pub(super) lateness: Duration,
    /// Trains that one turn sends.
    pub(super) budget: usize,
}

/// Something that happens at a time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// The QP of the message posts it.
    Post(usize),
    /// The path between two hosts takes other datagrams.
    Mtu(NodeId, NodeId, usize),
    /// A QP is closed and opened again.
    Restart(Address),
    /// A QP wants all records now.
    CompleteNow(Address),
}

/// Everything of a run.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) style: Style,
    pub(super) hosts: Vec<HostPlan>,
    /// Row by row, from and to.
    pub(super) links: Vec<LinkConfig>,
    pub(super) messages: Vec<Message>,
    pub(super) events: Vec<(Duration, Event)>,
}

fn micros(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.random_range(0..=most))
}

/// Between 0 and 2^`bits` - 1, each power of two as likely as the next.
pub(super) fn log_uniform(rng: &mut Rng, bits: u32) -> u32 {
    let power = 1u32 << rng.random_range(0..bits);
    power - 1 + rng.random_range(0..power)
}

impl Scenario {
    /// The scenario of a seed.
    pub(super) fn new(seed: u64, style: Style) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let rng = &mut rng;
        let hosts: Vec<_> = (0..rng.random_range(2..=5))
            .map(|_| host(rng, style))
            .collect();
        let links = (0..hosts.len() * hosts.len())
            .map(|_| link(rng, style))
            .collect();
        let mut scenario = Self {
            seed,
            style,
            hosts,
            links,
            messages: Vec::new(),
            events: Vec::new(),
        };
        for address in scenario.addresses() {
            scenario.add_messages(address, rng);
        }
        scenario.add_mishaps(rng);
        scenario.events.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// All QPs.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let ports = |qps: usize| PORT..PORT + u16::try_from(qps).unwrap();
        let hosts = self.hosts.iter().enumerate();
        hosts
            .flat_map(|(node, host)| {
                ports(host.qps.len()).map(move |port| Address {
                    node: NodeId(node),
                    port,
                })
            })
            .collect()
    }

    /// The QP's position on its host.
    pub(super) fn position(address: Address) -> usize {
        usize::from(address.port - PORT)
    }

    pub(super) fn link(&self, from: NodeId, to: NodeId) -> LinkConfig {
        self.links[from.0 * self.hosts.len() + to.0]
    }

    fn add_messages(&mut self, from: Address, rng: &mut Rng) {
        let others: Vec<_> = self
            .addresses()
            .into_iter()
            .filter(|to| to.node != from.node)
            .collect();
        let chatty = self.style == Style::Chatty;
        let count = rng.random_range(if chatty { 300..=1500 } else { 10..=100 });
        let only = others[rng.random_range(0..others.len())];
        let mut at = micros(rng, 20_000);
        for _ in 0..count {
            let to = if chatty {
                only
            } else {
                others[rng.random_range(0..others.len())]
            };
            let message = self.message(from, to, rng);
            at += self.pause(&message, rng);
            self.events.push((at, Event::Post(self.messages.len())));
            self.messages.push(message);
        }
    }

    fn message(&self, from: Address, to: Address, rng: &mut Rng) -> Message {
        let length = match rng.random_range(0..24u32) {
            0 => [0, 1, LONGEST][rng.random_range(0..3)],
            // Whole segments, of a plain Send and of others, and one octet more.
            1 => {
                let headers = [22, 46, 42][rng.random_range(0..3)];
                let payload = self.link(from.node, to.node).mtu.min(65_000) - headers;
                let length = payload * rng.random_range(1..=15) + rng.random_range(0..=1);
                u32::try_from(length).unwrap().min(LONGEST)
            }
            _ if self.style == Style::Chatty => log_uniform(rng, 11),
            _ => log_uniform(rng, 20),
        };
        let kind = match rng.random_range(0..10) {
            0..4 => Kind::Send,
            4..8 => Kind::Write,
            _ => Kind::Read,
        };
        let flawed = self.style.is_harsh() && rng.random_bool(0.05);
        let flaw = match (flawed.then(|| rng.random_range(0..4)), kind) {
            (None, _) => Flaw::None,
            (Some(0), _) => Flaw::LocalKey,
            (Some(2), Kind::Write | Kind::Read) => Flaw::Bounds,
            (Some(3), Kind::Write | Kind::Read) => Flaw::Access,
            (Some(_), _) => Flaw::Key,
        };
        Message {
            from,
            to,
            kind,
            flaw,
            start: rng.random_range(0..=source().octets.len() - length as usize),
            length,
            immediate: rng.random_bool(0.4).then(|| rng.random()),
            solicited: rng.random_bool(0.2),
            signaled: kind == Kind::Read || rng.random_bool(0.7),
            timeout: if rng.random_bool(0.3) {
                Duration::from_millis(rng.random_range(1..300))
            } else {
                FAR
            },
            target: Target::default(),
            sent_as: None,
            outcome: None,
            ended_in: 0,
        }
    }

    /// How long an application waits before it posts a message.
    fn pause(&self, message: &Message, rng: &mut Rng) -> Duration {
        if self.style == Style::Orderly {
            // An incomplete Send is over before the next, and no two share a receiver's limits. Time costs nothing here.
            return match message.kind {
                Kind::Send => Duration::from_millis(rng.random_range(450..500)),
                Kind::Write | Kind::Read => micros(rng, 2_000),
            };
        }
        if self.style == Style::Chatty {
            return micros(rng, 200);
        }
        let rate = self.link(message.from.node, message.to.node).rate;
        let nanos = u64::from(message.length) * 1_000_000_000 / rate.unwrap_or(1_000_000_000);
        let most = match rng.random_range(0..10) {
            0..4 => 0,
            4..9 => nanos * 3,
            _ => nanos * 3 + 100_000_000,
        };
        Duration::from_nanos(rng.random_range(0..=most))
    }

    fn add_mishaps(&mut self, rng: &mut Rng) {
        let end = self
            .events
            .iter()
            .map(|(at, _)| *at)
            .max()
            .unwrap_or_default();
        let at = |rng: &mut Rng| rng.random_range(Duration::ZERO..=end);
        let addresses = self.addresses();
        for _ in 0..rng.random_range(0..24) {
            let from = NodeId(rng.random_range(0..self.hosts.len()));
            let to = NodeId(rng.random_range(0..self.hosts.len()));
            let event = Event::Mtu(from, to, mtu(rng));
            self.events.push((at(rng), event));
        }
        if self.style == Style::Orderly {
            return;
        }
        for _ in 0..rng.random_range(0..4) {
            let address = addresses[rng.random_range(0..addresses.len())];
            self.events.push((at(rng), Event::CompleteNow(address)));
        }
        if self.style.is_harsh() {
            for _ in 0..rng.random_range(0..4) {
                let address = addresses[rng.random_range(0..addresses.len())];
                self.events.push((at(rng), Event::Restart(address)));
            }
        }
    }
}

fn host(rng: &mut Rng, style: Style) -> HostPlan {
    let harsh = style.is_harsh();
    let slow = harsh && rng.random_bool(0.2);
    HostPlan {
        qps: (0..rng.random_range(1..=2))
            .map(|_| qp(rng, style))
            .collect(),
        poll_delay: micros(rng, if slow { 20_000 } else { 100 }),
        lateness: if harsh {
            micros(rng, 3_000)
        } else {
            Duration::ZERO
        },
        budget: rng.random_range(1..40),
    }
}

fn qp(rng: &mut Rng, style: Style) -> QpPlan {
    let orderly = style == Style::Orderly;
    let harsh = style.is_harsh();
    let grh = rng.random_bool(0.5);
    let roomy = LONGEST + 40;
    let receives = if orderly {
        24
    } else {
        rng.random_range(1..=24)
    };
    let mixed = harsh && rng.random_bool(0.5);
    let receives = (0..receives).map(|_| {
        if mixed && rng.random_bool(0.3) {
            40 + log_uniform(rng, 20)
        } else {
            roomy
        }
    });
    let receives = receives.collect();
    let slow = harsh && rng.random_bool(0.4);
    QpPlan {
        qkey: rng.random(),
        grh,
        iova: u64::from(rng.random::<u32>()) << 12,
        record_slots: match rng.random_range(0..10) {
            _ if orderly => 256,
            0 if harsh => 0,
            0..4 => rng.random_range(1..6),
            _ => 256,
        },
        record_timeout: Duration::from_millis(match rng.random_range(0..3) {
            _ if orderly => 200,
            0 => rng.random_range(1..50),
            _ => 200,
        }),
        max_rate: match rng.random_range(0..5) {
            0 if !orderly => rng.random_range(2_000_000..200_000_000),
            _ => 0,
        },
        receive_buffer: 1 << rng.random_range(16..24),
        reports: rng.random_bool(0.3).then(|| rng.random_range(0..100)),
        receives,
        post_delay: micros(rng, if slow { 100_000 } else { 10 }),
        release_delay: micros(rng, if slow { 500_000 } else { 10 }),
        refusals: Refusals {
            full: if orderly {
                0.0
            } else {
                rng.random_range(0.0..0.2)
            },
            unreachable: if harsh { 0.002 } else { 0.0 },
        },
    }
}

fn mtu(rng: &mut Rng) -> usize {
    match rng.random_range(0..100) {
        0..75 => rng.random_range(SMALLEST_MTU..=SMALLEST_MTU + 160),
        75..93 => 1472,
        93..98 => 8972,
        _ => 65_507,
    }
}

fn link(rng: &mut Rng, style: Style) -> LinkConfig {
    let rate = rng.random_range(0.0..0.3);
    let loss = match rng.random_range(0..4) {
        0 => Loss::None,
        1 => Loss::Bursts(GilbertElliott::bursts(rate, rng.random_range(1.0..40.0))),
        _ => Loss::Independent(rate),
    };
    let some = |rng: &mut Rng, most: f64| {
        if rng.random_bool(0.5) {
            rng.random_range(0.0..most)
        } else {
            0.0
        }
    };
    let orderly = style == Style::Orderly;
    let speed = 1_000_000 << rng.random_range(if orderly { 8..10 } else { 2..10 });
    let held_up = match (style, rng.random_range(0..10)) {
        (Style::Chatty, 0..5) | (Style::Harsh, 0) => 600_000,
        (_, 1..4) => 20_000,
        _ => 500,
    };
    LinkConfig {
        rate: (!rng.random_bool(0.1) || orderly).then_some(speed),
        queue: match rng.random_range(0..4) {
            0 if !orderly => 200_000,
            _ => usize::MAX,
        },
        delay: micros(rng, 20_000),
        loss,
        duplication: some(rng, 0.1),
        reordering: Reordering {
            probability: if orderly { 0.0 } else { some(rng, 0.2) },
            by: micros(rng, held_up),
        },
        corruption: some(rng, 0.05),
        mtu: mtu(rng),
        ..LinkConfig::default()
    }
}
