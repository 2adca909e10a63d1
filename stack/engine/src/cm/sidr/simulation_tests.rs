//! Many askers, a service whose program takes its time, and links that lose, duplicate, reorder and corrupt.
//!
//! Each requester ends with the program's answer or, where the link lost everything, with a timeout; and the program was
//! asked once by each. Every run follows from its seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dgiwarp_sim::{
    Address, Datagram, LinkConfig, Loss, Network, Node, NodeId, Reordering, Simulation,
};
use proptest::prelude::*;

use super::listener::{Asked, Listener, Question, Verdict};
use super::lookup::{Lookup, Outcome};
use super::{PrivateData, RejectStatus, ServiceQp};

const PORT: u16 = 7174;
const SERVER: Address = Address {
    node: NodeId(0),
    port: PORT,
};

/// The zero of the simulation's clock.
#[expect(clippy::disallowed_methods, reason = "an arbitrary origin")]
fn origin() -> Instant {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn at(time: Duration) -> Instant {
    origin() + time
}

fn since(instant: Instant) -> Duration {
    instant - origin()
}

fn socket_addr(address: Address) -> SocketAddr {
    let node = u8::try_from(address.node.0).unwrap();
    SocketAddr::from(([192, 0, 2, node], address.port))
}

fn address(socket: SocketAddr) -> Address {
    let SocketAddr::V4(v4) = socket else {
        unreachable!("all are IPv4")
    };
    Address {
        node: NodeId(v4.ip().octets()[3].into()),
        port: v4.port(),
    }
}

/// The program's answer to a query: a function of its private data, so that the asker can check it.
fn verdict(private_data: &[u8]) -> (Verdict, PrivateData) {
    let sum: u32 = private_data.iter().map(|octet| u32::from(*octet)).sum();
    let echo = private_data.iter().rev().copied().collect();
    if sum.is_multiple_of(3) {
        (Verdict::Reject(RejectStatus::REJECTED), echo)
    } else {
        let qp = ServiceQp {
            qpn: 1 + sum,
            qkey: sum << 8,
        };
        (Verdict::Accept(qp), echo)
    }
}

fn expected(private_data: &[u8]) -> Outcome {
    match verdict(private_data) {
        (Verdict::Accept(qp), echo) => Outcome::Found(qp, echo),
        (Verdict::Reject(status), echo) => Outcome::Rejected(status, echo),
    }
}

struct Server {
    listener: Listener,
    /// The program answers each question this long after it was asked.
    think: Duration,
    thinking: Vec<(Duration, Asked)>,
    asked: BTreeMap<Question, u32>,
}

struct Asker {
    own: Address,
    private_data: PrivateData,
    lookup: Option<Lookup>,
    outcome: Option<(Duration, Outcome)>,
}

enum Host {
    Server(Box<Server>),
    Asker(Box<Asker>),
}

impl Server {
    fn turn(&mut self, now: Duration, network: &mut Network) {
        self.listener.handle_timeout(at(now));
        self.send(now, network);
        while let Some(asked) = self.listener.poll_event() {
            *self.asked.entry(asked.question).or_default() += 1;
            self.thinking.push((now + self.think, asked));
        }
        while let Some(next) = self.thinking.iter().position(|(due, _)| *due <= now) {
            let (_, asked) = self.thinking.remove(next);
            let (verdict, private_data) = verdict(&asked.private_data);
            let question = asked.question;
            self.listener
                .answer(at(now), question, verdict, &private_data);
            self.send(now, network);
        }
    }

    fn send(&mut self, now: Duration, network: &mut Network) {
        while let Some(reply) = self.listener.poll_transmit() {
            let to = address(reply.to);
            network.send(now, SERVER, to, &reply.datagram).unwrap();
        }
    }
}

impl Asker {
    fn turn(&mut self, now: Duration, network: &mut Network) {
        let Some(lookup) = &mut self.lookup else {
            return;
        };
        lookup.handle_timeout(at(now));
        while let Some(octets) = lookup.poll_transmit() {
            network.send(now, self.own, SERVER, octets).unwrap();
        }
        if let Some(outcome) = lookup.poll_event() {
            assert_eq!(self.outcome, None, "one outcome");
            self.outcome = Some((now, outcome));
        }
    }
}

impl Node for Host {
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network) {
        match self {
            Self::Server(server) => {
                let from = socket_addr(datagram.from);
                let octets = &datagram.octets;
                let _ = server.listener.handle_input(at(now), from, None, octets);
                server.turn(now, network);
            }
            Self::Asker(asker) => {
                if let Some(lookup) = &mut asker.lookup {
                    let _ = lookup.handle_input(at(now), &datagram.octets);
                }
                asker.turn(now, network);
            }
        }
        network.recycle(datagram);
    }

    fn handle_wake(&mut self, now: Duration, network: &mut Network) {
        match self {
            Self::Server(server) => server.turn(now, network),
            Self::Asker(asker) => {
                if asker.lookup.is_none() {
                    let transaction = network.rng().next_u64();
                    let own = u32::from(asker.own.port);
                    let qp = ServiceQp { qpn: own, qkey: 1 };
                    let (data, now) = (&asker.private_data, at(now));
                    asker.lookup = Some(Lookup::new(now, transaction, PORT, Some(qp), data));
                }
                asker.turn(now, network);
            }
        }
    }

    fn poll_wake(&self) -> Option<Duration> {
        match self {
            Self::Server(server) => {
                let forget = server.listener.poll_timeout().map(since);
                let think = server.thinking.iter().map(|(due, _)| *due).min();
                forget.into_iter().chain(think).min()
            }
            Self::Asker(asker) => match &asker.lookup {
                Some(lookup) => lookup.poll_timeout().map(since),
                None => Some(Duration::ZERO),
            },
        }
    }
}

/// Results of a run.
struct Results {
    /// How often the program was asked each question.
    asked: BTreeMap<Question, u32>,
    /// Private data of each asker, time and outcome of its answer.
    outcomes: Vec<(Vec<u8>, Duration, Outcome)>,
}

/// Every asker asks once at time zero, and the run goes on until all are at rest.
fn run(seed: u64, link: LinkConfig, think: Duration, questions: &[Vec<u8>]) -> Results {
    let server = Server {
        listener: Listener::new(PORT, 1024),
        think,
        thinking: Vec::new(),
        asked: BTreeMap::new(),
    };
    let mut hosts = vec![Host::Server(Box::new(server))];
    hosts.extend(questions.iter().zip(1..).map(|(private_data, node)| {
        Host::Asker(Box::new(Asker {
            own: Address {
                node: NodeId(node),
                port: 1000,
            },
            private_data: private_data.iter().copied().collect(),
            lookup: None,
            outcome: None,
        }))
    }));
    let mut simulation = Simulation::new(seed, hosts, |_, _| link);
    simulation
        .run(Duration::from_secs(120))
        .expect("all is answered or given up");
    let mut results = Results {
        asked: BTreeMap::new(),
        outcomes: Vec::new(),
    };
    for host in simulation.nodes() {
        match host {
            Host::Server(server) => results.asked.clone_from(&server.asked),
            Host::Asker(asker) => {
                let (when, outcome) = asker.outcome.clone().expect("every question ends");
                let asked = asker.private_data.to_vec();
                results.outcomes.push((asked, when, outcome));
            }
        }
    }
    results
}

fn questions() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let one = proptest::collection::vec(any::<u8>(), 0..=256);
    proptest::collection::vec(one, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Nobody hears anything but what the program said to it, and the program hears each question once.
    #[test]
    fn faulty_links_change_no_answer_and_ask_no_question_twice(
        seed: u64,
        questions in questions(),
        loss in 0.0..0.4,
        duplication in 0.0..0.5,
        corruption in 0.0..0.2,
        think in 0u64..6_000,
    ) {
        let link = LinkConfig {
            delay: Duration::from_millis(20),
            loss: Loss::Independent(loss),
            duplication,
            corruption,
            reordering: Reordering { probability: 0.3, by: Duration::from_millis(300) },
            ..LinkConfig::default()
        };
        let Results { asked, outcomes } = run(seed, link, Duration::from_millis(think), &questions);
        prop_assert!(asked.values().all(|times| *times == 1), "seed {seed}");
        for (private_data, when, outcome) in outcomes {
            if outcome == Outcome::TimedOut {
                prop_assert!(when >= Duration::from_millis(4500));
            } else {
                prop_assert_eq!(outcome, expected(&private_data), "seed {}", seed);
            }
        }
    }

    /// With one datagram in ten lost, that none of eight tries gets an answer happens once in half a million questions.
    #[test]
    fn repeats_find_their_way(seed: u64, questions in questions(), think in 0u64..40) {
        let link = LinkConfig { loss: Loss::Independent(0.1), ..LinkConfig::default() };
        let results = run(seed, link, Duration::from_millis(think), &questions);
        let lost = results.outcomes.iter().filter(|(_, _, outcome)| *outcome == Outcome::TimedOut);
        prop_assert!(lost.count() <= 1, "seed {seed}");
    }

    /// On a perfect link each gets its answer as soon as the program gave it, also if that takes longer than a silent service is given.
    #[test]
    fn a_slow_program_is_waited_for(seed: u64, questions in questions(), think in 0u64..50_000) {
        let think = Duration::from_millis(think);
        let Results { asked, outcomes } = run(seed, LinkConfig::default(), think, &questions);
        prop_assert_eq!(asked.len(), questions.len());
        for (private_data, when, outcome) in outcomes {
            prop_assert_eq!(outcome, expected(&private_data), "seed {}", seed);
            prop_assert_eq!(when, think + 2 * LinkConfig::default().delay);
        }
    }

    /// Whatever comes from strangers, the engines neither panic nor grow, and the real question is answered.
    #[test]
    fn hostile_octets_do_no_harm(
        strangers in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 0..200),
    ) {
        let now = at(Duration::ZERO);
        let mut listener = Listener::new(PORT, 4);
        let mut lookup = Lookup::new(now, 7, PORT, None, b"who");
        let from = SocketAddr::from(([192, 0, 2, 9], 9));
        for (index, mut octets) in strangers.into_iter().enumerate() {
            if index % 2 == 0 {
                // Half of them have a good first octet, type, length and CRC.
                octets.resize(280, 0);
                octets[0] = 0x4d;
                octets[1] %= 6;
                octets[12..14].copy_from_slice(&PORT.to_be_bytes());
                octets[14] = 0;
                let crc = dgiwarp_codec::crc::to_wire(dgiwarp_codec::crc::crc32c(&octets));
                octets.extend(crc);
            }
            let _ = listener.handle_input(now, from, None, &octets);
            let _ = lookup.handle_input(now, &octets);
            if let Some(reply) = listener.poll_transmit() {
                prop_assert!(reply.datagram.len() <= octets.len(), "no answer is longer");
            }
        }
        let mut waiting = 0;
        while listener.poll_event().is_some() {
            waiting += 1;
        }
        prop_assert!(waiting <= 4);
        prop_assert_eq!(lookup.poll_event(), None);
    }
}
