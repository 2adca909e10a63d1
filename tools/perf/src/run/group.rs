//! The description of a measurement: members that take turns, and their rounds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Subject};
use crate::machine::host::Wait;
use crate::programs::peers::{Peer, Test};
use crate::run::scale::Scale;
use crate::session::control::EndpointSpec;

/// Overhead of a round of an endpoint: two exchanges on the control connection, and getting ready.
const ROUND_OVERHEAD: Duration = Duration::from_millis(1);
/// Opening and connecting one endpoint.
const OPEN_OVERHEAD: Duration = Duration::from_millis(4);
/// Typical time of a message beside a nanosecond per byte; announces a run's length, nothing else.
const TYPICAL_MESSAGE_NS: u64 = 5_000;
/// Typical time of a run of another program.
const PROGRAM: Duration = Duration::from_millis(900);
/// Typical time of a message to one of many peers, and of its answer.
const MESSAGE: Duration = Duration::from_micros(20);

/// Members that take turns: each runs once in every round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Unique in a suite.
    pub(crate) name: String,
    /// Rounds of each member, beside one that warms up endpoints.
    pub(crate) rounds: u32,
    /// Time of one round of one endpoint.
    pub(crate) round_time: Duration,
    /// Messages of each endpoint over all rounds; without a value, as many as fit the time.
    pub(crate) iters: Option<u64>,
    /// Rounds added, at most, until the medians of the ratios are known well enough ([`SETTLED`](crate::run::SETTLED)).
    #[serde(default)]
    pub(crate) more_rounds: u32,
    /// Repetitions allowed while the raw latency drifts.
    pub(crate) repeats: u32,
    /// In the order of their turns.
    pub(crate) members: Vec<Member>,
}

/// One participant of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Unique in the group.
    pub(crate) key: String,
    /// Its turn.
    pub(crate) kind: Kind,
}

/// The turn of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// An endpoint of this program, raw or dgiwarp's.
    Endpoint {
        /// Both sides' description of it.
        spec: EndpointSpec,
        /// Servers that receive: more than one for a broadcast or multicast address.
        receivers: u32,
        /// Bytes in flight; without a value, the default of the transport.
        window: Option<u64>,
    },
    /// Raw TCP between two threads of this process, without a session.
    Threads {
        /// How both threads wait.
        wait: Wait,
        /// Octets of a message.
        size: u64,
        /// Messages of a round.
        iters: u32,
    },
    /// A program of perftest under dgiwarp-run.
    Program {
        /// The program and its options.
        line: String,
        /// Octets of a message.
        size: u64,
        /// Messages of a round.
        iters: u32,
    },
    /// Messages to many peers in turn.
    Scale(Scale),
    /// The benchmark of another library.
    Peer {
        /// The library and its transport.
        peer: Peer,
        /// The measurement.
        test: Test,
    },
}

impl Member {
    /// An endpoint, named after its subject.
    pub(crate) fn endpoint(spec: EndpointSpec) -> Self {
        Self {
            key: spec.subject.to_string(),
            kind: Kind::Endpoint {
                spec,
                receivers: 1,
                window: None,
            },
        }
    }

    /// An endpoint with default settings.
    pub(crate) fn of(subject: Subject, mode: Mode, size: u64, wait: Wait) -> Self {
        Self::endpoint(EndpointSpec {
            wait,
            ..EndpointSpec::new(subject, mode, size)
        })
    }

    /// The description of an endpoint.
    pub(crate) const fn spec(&self) -> Option<&EndpointSpec> {
        match &self.kind {
            Kind::Endpoint { spec, .. } => Some(spec),
            Kind::Threads { .. } | Kind::Program { .. } | Kind::Scale(_) | Kind::Peer { .. } => {
                None
            }
        }
    }
}

impl Group {
    /// Expected duration, without repetitions.
    pub(crate) fn duration(&self) -> Duration {
        let turn = |member: &Member| match &member.kind {
            Kind::Endpoint { spec, .. } => self.endpoint_time(spec.size) + ROUND_OVERHEAD,
            Kind::Threads { .. } => self.round_time,
            Kind::Program { .. } | Kind::Peer { .. } => PROGRAM,
            Kind::Scale(scale) => MESSAGE * scale.peers.max(4000),
        };
        let turns: Duration = self.members.iter().map(turn).sum();
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        turns * (self.rounds + 1) + OPEN_OVERHEAD * members
    }

    fn endpoint_time(&self, size: u64) -> Duration {
        self.iters.map_or(self.round_time, |iters| {
            let messages = iters / u64::from(self.rounds) + 1;
            Duration::from_nanos(messages.saturating_mul(TYPICAL_MESSAGE_NS + size))
        })
    }

    /// Messages of one round, counted from 0, if their number is given.
    pub(crate) fn messages(&self, round: u32) -> Option<u64> {
        let (iters, rounds) = (self.iters?, u64::from(self.rounds));
        Some(iters / rounds + u64::from(u64::from(round) < iters % rounds))
    }

    /// Whether the group measures memory: what another group freed would count as free here.
    pub(crate) fn counts_memory(&self) -> bool {
        let scales = |member: &Member| matches!(member.kind, Kind::Scale(_));
        self.members.iter().any(scales)
    }

    /// The description of the first endpoint: mode and size hold for all members of a single measurement.
    pub(crate) fn spec(&self) -> Option<&EndpointSpec> {
        self.members.iter().find_map(Member::spec)
    }

    /// The share of datagrams dropped on purpose, in loss mode.
    pub(crate) fn loss(&self) -> Option<f64> {
        self.spec()?.loss_rate()
    }

    /// Receivers of one sender, in fan-out mode.
    pub(crate) fn receivers(&self) -> Option<u32> {
        self.members.iter().find_map(|member| match &member.kind {
            Kind::Endpoint {
                spec, receivers, ..
            } => (spec.mode == Mode::Fanout).then_some(*receivers),
            Kind::Threads { .. } | Kind::Program { .. } | Kind::Scale(_) | Kind::Peer { .. } => {
                None
            }
        })
    }

    /// The group with endpoints that sleep while they wait.
    pub(crate) fn sleeping(mut self) -> Self {
        for member in &mut self.members {
            if let Kind::Endpoint { spec, .. } = &mut member.kind {
                spec.wait = Wait::Block;
            }
        }
        self
    }
}
