//! Which rounds give which quantity: groups of members that take turns, and the cases judged by them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Op, Subject, Transport};
use crate::host::Wait;
use crate::report::size as short;
use crate::suite::peers::{PEERS, Peer, Test};
use crate::suite::results::Figure;
use crate::suite::scale::{Scale, scales};

/// Where a group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// The loopback interface.
    Lo,
    /// Two network namespaces, a link of 1500 octets with all offloads.
    Veth,
    /// The same, but the sending host cuts segments itself, as for a plain network card.
    Wire,
}

impl Place {
    /// The name in groups and documents.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lo => "lo",
            Self::Veth => "veth",
            Self::Wire => "wire",
        }
    }
}

/// What a member does in its turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// An endpoint of this program, raw or ours.
    Endpoint {
        /// Transport and operation.
        subject: Subject,
        /// What is measured.
        mode: Mode,
        /// How both sides wait.
        wait: Wait,
        /// The share of datagrams dropped on purpose.
        loss: f64,
        /// Messages posted in one call.
        list: u32,
    },
    /// A program of perftest under dgiwarp-run.
    Program {
        /// The program and its options.
        line: String,
        /// Messages of a round.
        iters: u32,
    },
    /// Messages to many peers by turns.
    Scale(Scale),
    /// The benchmark of another library.
    Peer {
        /// Which one.
        peer: Peer,
        /// What it measures.
        test: Test,
    },
}

/// Something that takes turns with the others of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its name within the group.
    pub(crate) key: String,
    /// Payload octets of a message.
    pub(crate) size: u64,
    /// What it does.
    pub(crate) kind: Kind,
}

/// Members of one group take turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Unique in a run.
    pub(crate) name: String,
    /// Where it runs.
    pub(crate) place: Place,
    /// Rounds of each member.
    pub(crate) rounds: u32,
    /// Time of one round of one endpoint.
    pub(crate) round_time: Duration,
    /// Who takes turns.
    pub(crate) members: Vec<Member>,
    /// What is judged by it.
    #[serde(skip)]
    pub(crate) cases: Vec<Case>,
}

/// A figure of one quantity: of members of one group, over that of others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// The quantity's name.
    pub(crate) quantity: &'static str,
    /// What tells it from the quantity's other cases.
    pub(crate) name: String,
    /// Members of the group; the better one of each round counts.
    pub(crate) ours: Vec<String>,
    /// What is compared with, likewise; none if the figure stands for itself.
    pub(crate) base: Vec<String>,
    /// Which figure.
    pub(crate) figure: Figure,
    /// What the other's figure is multiplied by.
    pub(crate) scale: f64,
}

/// How long rounds are, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// A choice of sizes, and short rounds.
    pub(crate) quick: bool,
    /// Rounds, if given.
    pub(crate) rounds: Option<u32>,
}

/// What a round of an endpoint takes beside its time, and opening one.
const OVERHEAD: Duration = Duration::from_millis(3);
/// What a run of another program takes, about.
const PROGRAM: Duration = Duration::from_millis(900);
/// What a message to one of many peers takes, and the way back, about.
const MESSAGE: Duration = Duration::from_micros(20);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The message size of rates.
pub(crate) const SMALL: u64 = 64;
/// Messages of a list.
const LIST: u32 = 64;
/// Shares of datagrams dropped, and the name of a member without.
const LOSSES: [f64; 4] = [0.001, 0.005, 0.01, 0.05];

const UDP_RAW: Subject = Subject::new(Transport::Udp, Op::Raw);
const UDP_SINGLE: Subject = Subject::new(Transport::Udp, Op::RawSingle);
const TCP_RAW: Subject = Subject::new(Transport::Tcp, Op::Raw);
const UD_SEND: Subject = Subject::new(Transport::Ud, Op::Send);
const UD_RECORD: Subject = Subject::new(Transport::Ud, Op::WriteRecord);
const UD_READ: Subject = Subject::new(Transport::Ud, Op::Read);
const RC_SEND: Subject = Subject::new(Transport::Rc, Op::Send);
const RC_WRITE: Subject = Subject::new(Transport::Rc, Op::Write);
const RC_READ: Subject = Subject::new(Transport::Rc, Op::Read);
const RC_WRITE_IMM: Subject = Subject::new(Transport::Rc, Op::WriteImm);

/// Raw sockets, and each operation that a message can be sent with.
const MESSAGES: [Subject; 6] = [UDP_RAW, UD_SEND, UD_RECORD, TCP_RAW, RC_SEND, RC_WRITE];

impl Member {
    fn new(subject: Subject, mode: Mode, size: u64, wait: Wait) -> Self {
        Self {
            key: subject.to_string(),
            size,
            kind: Kind::Endpoint {
                subject,
                mode,
                wait,
                loss: 0.0,
                list: 1,
            },
        }
    }

    fn lossy(subject: Subject, size: u64, share: f64) -> Self {
        Self {
            key: lossy_key(subject, share),
            size,
            kind: Kind::Endpoint {
                subject,
                mode: Mode::Loss,
                wait: Wait::Spin,
                loss: share,
                list: 1,
            },
        }
    }

    fn listed(subject: Subject, size: u64) -> Self {
        Self {
            key: listed_key(subject),
            size,
            kind: Kind::Endpoint {
                subject,
                mode: Mode::Rate,
                wait: Wait::Spin,
                loss: 0.0,
                list: LIST,
            },
        }
    }

    #[cfg(test)]
    const fn is_endpoint(&self) -> bool {
        matches!(self.kind, Kind::Endpoint { .. })
    }
}

/// The name of an operation posted as lists.
fn listed_key(subject: Subject) -> String {
    format!("{subject}, lists")
}

/// The name of an operation under loss.
fn lossy_key(subject: Subject, share: f64) -> String {
    format!("{subject}, {:.1} %", share * 100.0)
}

impl Case {
    pub(crate) fn new(
        quantity: &'static str,
        name: impl Into<String>,
        ours: &[Subject],
        base: &[Subject],
        figure: Figure,
    ) -> Self {
        let keys = |subjects: &[Subject]| subjects.iter().map(ToString::to_string).collect();
        Self {
            quantity,
            name: name.into(),
            ours: keys(ours),
            base: keys(base),
            figure,
            scale: 1.0,
        }
    }
}

impl Pace {
    pub(crate) fn group(
        self,
        place: Place,
        name: &str,
        (rounds, milliseconds): (u32, u64),
        members: Vec<Member>,
    ) -> Group {
        let (rounds, milliseconds) = match self.quick {
            true => (rounds.div_ceil(2).max(3), milliseconds.div_ceil(3)),
            false => (rounds, milliseconds),
        };
        Group {
            name: format!("{} {name}", place.name()),
            place,
            rounds: self.rounds.unwrap_or(rounds),
            round_time: Duration::from_millis(milliseconds),
            members,
            cases: Vec::new(),
        }
    }

    /// All sizes, or in a hurry those that say most.
    pub(crate) const fn sizes<'a>(self, all: &'a [u64], quick: &'a [u64]) -> &'a [u64] {
        if self.quick { quick } else { all }
    }
}

impl Group {
    /// How long it takes, about.
    pub(crate) fn duration(&self) -> Duration {
        let turn = |member: &Member| match member.kind {
            Kind::Endpoint { .. } => self.round_time + OVERHEAD,
            Kind::Program { .. } | Kind::Peer { .. } => PROGRAM,
            Kind::Scale(scale) => MESSAGE * scale.peers.max(4000),
        };
        let turns: Duration = self.members.iter().map(turn).sum();
        turns * (self.rounds + 1)
    }

    /// Whether memory is counted in it.
    pub(crate) fn counts_memory(&self) -> bool {
        let counts = |member: &Member| matches!(member.kind, Kind::Scale(_));
        self.members.iter().any(counts)
    }

    pub(crate) fn with(mut self, cases: impl IntoIterator<Item = Case>) -> Self {
        self.cases.extend(cases);
        self
    }

    /// Without the cases of other quantities, and the members that only they need.
    fn only(mut self, ids: &[String]) -> Option<Self> {
        self.cases
            .retain(|case| ids.iter().any(|id| id == case.quantity));
        let needed = |member: &Member| {
            let named =
                |case: &Case| case.ours.contains(&member.key) || case.base.contains(&member.key);
            self.cases.iter().any(named)
        };
        self.members.retain(needed);
        (!self.cases.is_empty()).then_some(self)
    }
}

/// The groups that these quantities need, of all quantities if none is named.
pub(crate) fn groups(pace: Pace, only: &[String]) -> Vec<Group> {
    let mut groups = Vec::new();
    groups.extend(latencies(pace));
    groups.push(programs(pace));
    groups.extend(sleeping(pace));
    groups.extend(rates(pace));
    groups.push(loopback_goodput(pace));
    groups.push(short_goodput(pace));
    groups.push(cpu(pace, Place::Lo));
    groups.push(veth_goodput(pace));
    groups.push(wire_goodput(pace));
    groups.push(cpu(pace, Place::Wire));
    groups.extend(losses(pace));
    groups.extend(peers(pace));
    groups.extend(scales(pace));
    if !only.is_empty() {
        groups = groups
            .into_iter()
            .filter_map(|group| group.only(only))
            .collect();
    }
    groups
}

/// Half round trips, polled.
fn latencies(pace: Pace) -> Vec<Group> {
    let sizes = pace.sizes(&[1, SMALL, KIB, 2 * KIB], &[SMALL, KIB]);
    let group = |&size: &u64| {
        let members = MESSAGES.map(|subject| Member::new(subject, Mode::Lat, size, Wait::Spin));
        let name = format!("lat {}", short(size));
        let at = |subject: Subject| format!("{subject}, {}", short(size));
        let thesis = Case::new(
            "thesis-latency",
            short(size),
            &[UD_RECORD],
            &[RC_SEND, RC_WRITE],
            Figure::Time,
        );
        let time = |quantity, subject, raw| {
            Case::new(quantity, at(subject), &[subject], &[raw], Figure::Time)
        };
        let group = pace
            .group(Place::Lo, &name, (21, 25), members.to_vec())
            .with([thesis]);
        if size > KIB {
            return group;
        }
        group.with([
            time("ud-latency", UD_SEND, UDP_RAW),
            time("ud-latency", UD_RECORD, UDP_RAW),
            time("rc-latency", RC_SEND, TCP_RAW),
            time("rc-latency", RC_WRITE, TCP_RAW),
        ])
    };
    sizes.iter().map(group).collect()
}

/// Programs of perftest beside raw TCP that spins and that sleeps.
fn programs(pace: Pace) -> Group {
    let raw = |wait, key: &str| Member {
        key: key.to_owned(),
        ..Member::new(TCP_RAW, Mode::Lat, SMALL, wait)
    };
    let iters = if pace.quick { 4000 } else { 20_000 };
    let program = |line: &str| Member {
        key: line.to_owned(),
        size: SMALL,
        kind: Kind::Program {
            line: line.to_owned(),
            iters,
        },
    };
    let members = vec![
        raw(Wait::Spin, "tcp spinning"),
        raw(Wait::Block, "tcp sleeping"),
        program("ib_send_lat"),
        program("ib_write_lat"),
    ];
    let case = |quantity, line: &str, base: &str| Case {
        ours: vec![line.to_owned()],
        base: vec![base.to_owned()],
        ..Case::new(quantity, short(SMALL), &[], &[], Figure::Time)
    };
    pace.group(Place::Lo, "programs", (9, 40), members).with([
        case("ib-send-lat", "ib_send_lat", "tcp spinning"),
        case("ib-write-lat", "ib_write_lat", "tcp sleeping"),
    ])
}

/// Half round trips of who sleeps. RC Write is not among them: it wakes nobody.
fn sleeping(pace: Pace) -> Vec<Group> {
    let sizes = pace.sizes(&[SMALL, KIB], &[SMALL]);
    let subjects = [UDP_RAW, UD_SEND, UD_RECORD, TCP_RAW, RC_SEND];
    let group = |&size: &u64| {
        let members = subjects.map(|subject| Member::new(subject, Mode::Lat, size, Wait::Block));
        let pairs = [(UD_SEND, UDP_RAW), (UD_RECORD, UDP_RAW), (RC_SEND, TCP_RAW)];
        let cases = pairs.map(|(subject, raw)| {
            let name = format!("{subject}, {}", short(size));
            Case::new("sleeping", name, &[subject], &[raw], Figure::Time)
        });
        let name = format!("sleeping {}", short(size));
        pace.group(Place::Lo, &name, (15, 50), members.to_vec())
            .with(cases)
    };
    sizes.iter().map(group).collect()
}

/// Rates of small messages.
fn rates(pace: Pace) -> Vec<Group> {
    let subjects = [UDP_SINGLE, UD_SEND, UD_RECORD, TCP_RAW, RC_SEND, RC_WRITE];
    let pairs = [
        (UD_SEND, UDP_SINGLE),
        (UD_RECORD, UDP_SINGLE),
        (RC_SEND, TCP_RAW),
        (RC_WRITE, TCP_RAW),
    ];
    let single = subjects.map(|subject| Member::new(subject, Mode::Rate, SMALL, Wait::Spin));
    let cases = pairs.map(|(subject, raw)| {
        Case::new(
            "rate",
            subject.to_string(),
            &[subject],
            &[raw],
            Figure::Rate,
        )
    });
    let one_by_one = pace
        .group(Place::Lo, "rate 64", (15, 60), single.to_vec())
        .with(cases);
    let lists = subjects.map(|subject| match subject.transport {
        Transport::Ud | Transport::Rc => Member::listed(subject, SMALL),
        Transport::Udp | Transport::Tcp => Member::new(subject, Mode::Rate, SMALL, Wait::Spin),
    });
    let cases = pairs.map(|(subject, raw)| Case {
        ours: vec![listed_key(subject)],
        ..Case::new("rate-list", subject.to_string(), &[], &[raw], Figure::Rate)
    });
    let lists = pace
        .group(Place::Lo, "rate list", (15, 60), lists.to_vec())
        .with(cases);
    vec![one_by_one, lists]
}

/// Large messages over the loopback interface, which takes segments of 64 KiB.
fn loopback_goodput(pace: Pace) -> Group {
    let subjects = [UDP_RAW, UD_RECORD, UD_READ, TCP_RAW, RC_WRITE, RC_READ];
    let members = subjects.map(|subject| Member::new(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Lo, "bw 1M", (15, 80), members.to_vec())
        .with([
            goodput("goodput-large", UD_RECORD, UDP_RAW),
            goodput("rc-goodput-large", RC_WRITE, TCP_RAW),
            goodput("read-goodput", UD_READ, UD_RECORD),
            goodput("read-goodput", RC_READ, RC_WRITE),
        ])
}

fn goodput(quantity: &'static str, ours: Subject, base: Subject) -> Case {
    Case::new(
        quantity,
        format!("{ours}, 1M"),
        &[ours],
        &[base],
        Figure::Goodput,
    )
}

/// Messages of 1 KiB, where TCP has more to do for each than UDP.
fn short_goodput(pace: Pace) -> Group {
    let members = MESSAGES.map(|subject| Member::new(subject, Mode::Bw, KIB, Wait::Spin));
    let thesis = Case::new(
        "thesis-goodput",
        short(KIB),
        &[UD_RECORD],
        &[RC_SEND, RC_WRITE],
        Figure::Goodput,
    );
    pace.group(Place::Lo, "bw 1K", (15, 60), members.to_vec())
        .with([thesis])
}

/// Large messages over a link with Ethernet's MTU and all offloads.
fn veth_goodput(pace: Pace) -> Group {
    let members =
        [UDP_RAW, UD_RECORD].map(|subject| Member::new(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Veth, "bw 1M", (15, 80), members.to_vec())
        .with([goodput("goodput-veth", UD_RECORD, UDP_RAW)])
}

/// The same where the sending host cuts.
fn wire_goodput(pace: Pace) -> Group {
    let members = [UDP_RAW, UD_RECORD, TCP_RAW, RC_WRITE]
        .map(|subject| Member::new(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Wire, "bw 1M", (15, 80), members.to_vec())
        .with([
            goodput("goodput-wire", UD_RECORD, UDP_RAW),
            goodput("rc-goodput-wire", RC_WRITE, TCP_RAW),
        ])
}

/// CPU time of streams. Both sides sleep while they wait: who spins is always busy. A plain RC Write wakes nobody, so
/// its target would have to look again and again.
fn cpu(pace: Pace, place: Place) -> Group {
    let subjects = match place {
        Place::Lo => vec![TCP_RAW, RC_WRITE_IMM],
        Place::Veth | Place::Wire => vec![UDP_RAW, UD_RECORD, TCP_RAW, RC_WRITE_IMM],
    };
    let members = subjects
        .iter()
        .map(|&subject| Member::new(subject, Mode::Bw, MIB, Wait::Block));
    let case = |quantity, subject: Subject, raw| {
        let name = format!("{subject}, {}", place.name());
        Case::new(quantity, name, &[subject], &[raw], Figure::Cpu)
    };
    let mut cases = vec![case("cpu-tcp", RC_WRITE_IMM, TCP_RAW)];
    if place != Place::Lo {
        cases.push(case("cpu-udp-wire", UD_RECORD, UDP_RAW));
    }
    pace.group(place, "cpu 1M", (11, 100), members.collect())
        .with(cases)
}

/// What is left of messages when the receiver drops some of the datagrams.
fn losses(pace: Pace) -> Vec<Group> {
    let sizes = pace.sizes(&[KIB, 16 * KIB, 64 * KIB, MIB], &[64 * KIB]);
    let mut groups = Vec::new();
    for &size in sizes {
        for subject in [UD_RECORD, UD_SEND, UD_READ] {
            let shares = [0.0].into_iter().chain(LOSSES);
            let members = shares.map(|share| Member::lossy(subject, size, share));
            let name = format!("loss {subject} {}", short(size));
            let cases = LOSSES.into_iter().flat_map(|share| {
                let key = lossy_key(subject, share);
                let name = match subject.op {
                    Op::WriteRecord => format!("{}, {:.1} %", short(size), share * 100.0),
                    _ => format!("{key}, {}", short(size)),
                };
                let of_record = subject == UD_RECORD;
                let goodput = Case {
                    ours: vec![key.clone()],
                    base: vec![lossy_key(subject, 0.0)],
                    scale: 1.0 - share,
                    ..Case::new(
                        if of_record {
                            "loss-goodput"
                        } else {
                            "loss-others"
                        },
                        name.clone(),
                        &[],
                        &[],
                        Figure::Goodput,
                    )
                };
                let valid = Case {
                    ours: vec![key],
                    ..Case::new("loss-valid", name, &[], &[], Figure::Valid)
                };
                [Some(goodput), of_record.then_some(valid)]
            });
            groups.push(
                pace.group(Place::Lo, &name, (11, 60), members.collect())
                    .with(cases.flatten()),
            );
        }
    }
    groups
}

/// Other libraries beside all that ours can send a message with.
fn peers(pace: Pace) -> Vec<Group> {
    let latency = pace.sizes(&[SMALL, KIB, 4 * KIB, 32 * KIB], &[KIB]);
    let goodput = pace.sizes(&[8 * KIB, 64 * KIB, MIB], &[64 * KIB]);
    let latency = latency.iter().map(|&size| peers_at(pace, size, false));
    let goodput = goodput.iter().map(|&size| peers_at(pace, size, true));
    latency.chain(goodput).collect()
}

fn peers_at(pace: Pace, size: u64, stream: bool) -> Group {
    let ours = [UD_SEND, UD_RECORD, RC_SEND, RC_WRITE];
    let (mode, figure) = match stream {
        true => (Mode::Bw, Figure::Goodput),
        false => (Mode::Lat, Figure::Time),
    };
    let iters = match (stream, size) {
        (true, MIB..) => 300,
        (true, _) => 3000,
        (false, _) => 2000,
    };
    // Once it is said what has no test of goodput.
    let said = |peer: &Peer| stream && size == 64 * KIB && !peer.shares_memory();
    let there = PEERS.into_iter();
    let peers: Vec<Peer> = there
        .filter(|peer| peer.has(size, stream) || said(peer))
        .collect();
    let endpoints = ours.map(|subject| Member::new(subject, mode, size, Wait::Spin));
    let others = peers.iter().map(|&peer| Member {
        key: peer.name().to_owned(),
        size,
        kind: Kind::Peer {
            peer,
            test: Test {
                size,
                iters,
                stream,
            },
        },
    });
    let members = endpoints.into_iter().chain(others).collect();
    let cases = peers.iter().map(|&peer| {
        let quantity = match (peer.shares_memory(), stream) {
            (true, false) => "peers-shm",
            (true, true) => "peers-shm-goodput",
            (false, false) => "peers-latency",
            (false, true) => "peers-goodput",
        };
        let name = format!("{}, {}", peer.name(), short(size));
        Case {
            base: vec![peer.name().to_owned()],
            ..Case::new(quantity, name, &ours, &[], figure)
        }
    });
    let name = format!("peers {} {}", mode.name(), short(size));
    pace.group(Place::Lo, &name, (5, 40), members).with(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::quantities::{QUANTITIES, find};

    const FULL: Pace = Pace {
        quick: false,
        rounds: None,
    };
    const QUICK: Pace = Pace {
        quick: true,
        rounds: None,
    };

    #[test]
    fn every_quantity_has_a_case_and_every_case_its_members() {
        for pace in [FULL, QUICK] {
            let groups = groups(pace, &[]);
            for quantity in QUANTITIES {
                let has =
                    |group: &Group| group.cases.iter().any(|case| case.quantity == quantity.id);
                assert!(groups.iter().any(has), "{}", quantity.id);
            }
            for group in &groups {
                for case in &group.cases {
                    assert!(find(case.quantity).is_some(), "{}", case.quantity);
                    assert!(!case.ours.is_empty(), "{}: {}", group.name, case.name);
                    for key in case.ours.iter().chain(&case.base) {
                        let there = group.members.iter().filter(|member| member.key == *key);
                        assert_eq!(there.count(), 1, "{}: {key}", group.name);
                    }
                }
            }
        }
    }

    #[test]
    fn groups_have_names_of_their_own_and_fit_the_time() {
        for (pace, limit) in [(FULL, 14 * 60), (QUICK, 160)] {
            let groups = groups(pace, &[]);
            for (at, group) in groups.iter().enumerate() {
                let first = groups.iter().position(|other| other.name == group.name);
                assert_eq!(first, Some(at), "{}", group.name);
                assert!(group.members.iter().filter(|it| it.is_endpoint()).count() <= 16);
            }
            let total: Duration = groups.iter().map(Group::duration).sum();
            assert!(total < Duration::from_secs(limit), "{total:?}");
        }
    }

    #[test]
    fn a_choice_leaves_out_what_it_does_not_need() {
        let only = ["ud-latency".to_owned(), "goodput-wire".to_owned()];
        let groups = groups(QUICK, &only);
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["lo lat 64", "lo lat 1K", "wire bw 1M"]);
        let keys = |at: usize| -> Vec<&str> {
            let members = groups[at].members.iter();
            members.map(|member| member.key.as_str()).collect()
        };
        assert_eq!(keys(0), ["udp raw", "ud send", "ud write-record"]);
        assert_eq!(keys(2), ["udp raw", "ud write-record"]);
    }
}
