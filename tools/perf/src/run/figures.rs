//! The figures of one round, and the rounds of one member.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Op, Transport};
use crate::session::client::Round;
use crate::session::control::{Datagrams, EndpointSpec};
use crate::stats::{self, float};

/// The figures of one round of one member; none where it has no such figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Median half round trip, or cost of a message, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) us: Option<f64>,
    /// Payload at the receiver, in 1e9 octets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gigabytes_s: Option<f64>,
    /// Million messages per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mmsg_s: Option<f64>,
    /// CPU seconds of both sides for each GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s_per_gib: Option<f64>,
    /// Memory of the process for each peer, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user_kib: Option<f64>,
    /// Memory of the kernel for it, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kernel_kib: Option<f64>,
    /// The share of the sent payload that arrived (and is marked valid, where validity maps exist).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arrived: Option<f64>,
    /// Segments marked valid over those neither dropped nor refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) valid: Option<f64>,
}

/// The rounds of one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Its name within the group.
    pub(crate) key: String,
    /// The reason for rounds that do not exist.
    pub(crate) missing: Option<String>,
    /// One entry for each round, none for a round that failed.
    #[serde(rename = "rounds")]
    pub(crate) figures: Vec<Option<Figures>>,
    /// Both sides' reports of each round of an endpoint, without samples.
    #[serde(skip)]
    pub(crate) rounds: Vec<Round>,
    /// Half round trips of all rounds of an endpoint, in nanoseconds.
    #[serde(skip)]
    pub(crate) samples: Option<Histogram<u32>>,
}

/// The segments of a round, without marks of progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    /// Sent.
    pub(crate) sent: u64,
    /// Of these, dropped on purpose.
    pub(crate) dropped: u64,
    /// Of these, dropped by the receiver for reasons of its own.
    pub(crate) refused: u64,
    /// Of these, arrived, and marked valid where validity maps exist.
    pub(crate) valid: u64,
}

impl Figures {
    /// A half round trip, or the cost of a message.
    pub(crate) fn time(us: f64) -> Self {
        Self {
            us: Some(us),
            ..Self::default()
        }
    }

    /// Of a round of an endpoint.
    pub(crate) fn of(spec: &EndpointSpec, round: &Round) -> Self {
        let speed = bytes_per_ns(round);
        let received = round.here.received_bytes + round.there.received_bytes;
        let gib = float(received) / float(1 << 30);
        let cpu = float(round.here.cpu_ns + round.there.cpu_ns) / 1e9;
        let sent = float(round.messages) * float(spec.size);
        let lossy = spec.mode == Mode::Loss;
        Self {
            gigabytes_s: speed,
            mmsg_s: speed.map(|speed| speed * 1000.0 / float(spec.size)),
            cpu_s_per_gib: (received > 0).then(|| cpu / gib),
            arrived: lossy.then(|| float(received) / sent.max(1.0)),
            valid: (lossy && spec.subject.op == Op::WriteRecord)
                .then(|| Segments::of(spec, round).valid_share()),
            ..Self::default()
        }
    }

    /// The figure that a mode is judged by: µs, Gb/s or million messages per second.
    pub(crate) fn judged(&self, mode: Mode) -> Option<f64> {
        match mode {
            Mode::Lat => self.us,
            Mode::Bw | Mode::Bibw | Mode::Loss | Mode::Fanout => {
                self.gigabytes_s.map(|bytes| bytes * 8.0)
            }
            Mode::Rate => self.mmsg_s,
            Mode::Idle => None,
        }
    }
}

impl Series {
    /// Without rounds so far.
    pub(crate) fn new(key: &str, missing: Option<String>) -> Self {
        Self {
            key: key.to_owned(),
            missing,
            ..Self::default()
        }
    }

    /// Adds a round of an endpoint.
    pub(crate) fn push(&mut self, spec: &EndpointSpec, mut round: Round) {
        let figures = if spec.mode == Mode::Lat {
            let samples = stats::histogram(&std::mem::take(&mut round.samples));
            let median = stats::percentile(&samples, 0.5);
            match &mut self.samples {
                // Both grow to whatever is added.
                Some(all) => all.add(&samples).unwrap_or_default(),
                none => *none = Some(samples),
            }
            Figures {
                us: median,
                ..Figures::default()
            }
        } else {
            Figures::of(spec, &round)
        };
        self.figures.push(Some(figures));
        self.rounds.push(round);
    }

    /// The figure of each round that the mode is judged by; 0 stands for none.
    pub(crate) fn values(&self, mode: Mode) -> Vec<f64> {
        let judged = |figures: &Option<Figures>| figures.as_ref().and_then(|it| it.judged(mode));
        let values = self.figures.iter().map(judged);
        values.map(|value| value.unwrap_or(0.0)).collect()
    }
}

impl Segments {
    /// Counted in a round with loss. A Read's data comes to the client, all other data to the server.
    pub(crate) fn of(spec: &EndpointSpec, round: &Round) -> Self {
        let (from, to): (&Datagrams, &Datagrams) = match spec.subject.op {
            Op::Read => (&round.there.datagrams, &round.here.datagrams),
            _ => (&round.here.datagrams, &round.there.datagrams),
        };
        // A raw receiver drops no marks.
        let marks_lost = match spec.subject.transport {
            Transport::Ud | Transport::UdRing => from.marks.saturating_sub(to.marks),
            _ => 0,
        };
        Self {
            sent: from.sent.saturating_sub(from.marks),
            dropped: to.dropped.saturating_sub(marks_lost),
            refused: to.refused,
            valid: to.valid,
        }
    }

    fn valid_share(self) -> f64 {
        let lost = self.dropped + self.refused;
        float(self.valid) / float(self.sent.saturating_sub(lost).max(1))
    }
}

impl std::ops::AddAssign for Segments {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.valid += other.valid;
    }
}

/// Goodput of a round, both directions together, in bytes per nanosecond.
///
/// The clock runs from the first to the last arrival, so the first one is not counted. A round
/// that arrived in one piece falls back on the sender's time.
pub(crate) fn bytes_per_ns(round: &Round) -> Option<f64> {
    let received = round.here.received_bytes + round.there.received_bytes;
    if received == 0 {
        // Messages of which nothing arrived have a goodput of zero; without messages, none exists.
        return (round.messages > 0).then_some(0.0);
    }
    let elapsed = round.here.elapsed_ns.max(round.there.elapsed_ns);
    let later = received - round.here.first_bytes - round.there.first_bytes;
    if elapsed == 0 || later == 0 {
        return Some(float(received) / float(round.wall_ns.max(1)));
    }
    Some(float(later) / float(elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Subject;
    use crate::session::control::RoundReport;

    fn round() -> Round {
        Round {
            messages: 10,
            wall_ns: 1_000_000,
            here: RoundReport {
                cpu_ns: 1 << 20,
                datagrams: Datagrams {
                    sent: 35,
                    marks: 5,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            there: RoundReport {
                received_bytes: 9000,
                first_bytes: 1000,
                elapsed_ns: 4000,
                datagrams: Datagrams {
                    marks: 4,
                    dropped: 4,
                    valid: 27,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            ..Round::default()
        }
    }

    fn spec(op: Op, mode: Mode) -> EndpointSpec {
        EndpointSpec {
            loss: 0.1,
            ..EndpointSpec::new(Subject::new(Transport::Ud, op), mode, 1000)
        }
    }

    #[test]
    fn a_round_with_loss_says_what_is_valid_of_what_came_through() {
        let spec = spec(Op::WriteRecord, Mode::Loss);
        let figures = Figures::of(&spec, &round());
        assert_eq!(figures.gigabytes_s, Some(2.0));
        assert_eq!((figures.valid, figures.arrived), (Some(1.0), Some(0.9)));
        let mut lost = round();
        lost.there.datagrams.valid = 26;
        assert!(Segments::of(&spec, &lost).valid_share() < 1.0);
    }

    #[test]
    fn a_stream_has_speed_rate_and_cpu_time() {
        let figures = Figures::of(&spec(Op::Send, Mode::Bw), &round());
        assert_eq!((figures.mmsg_s, figures.valid), (Some(2.0), None));
        let seconds_per_gib = (f64::from(1 << 20) / 1e9) / (9000.0 / f64::from(1 << 30));
        assert!((figures.cpu_s_per_gib.unwrap() - seconds_per_gib).abs() < 1e-9);
    }

    #[test]
    fn latencies_of_all_rounds_come_together() {
        let spec = spec(Op::Send, Mode::Lat);
        let mut series = Series::new("ud send", None);
        for samples in [vec![2000, 3000, 2500], vec![4000]] {
            series.push(
                &spec,
                Round {
                    messages: 3,
                    samples,
                    ..Round::default()
                },
            );
        }
        assert_eq!(series.values(Mode::Lat), [2.5, 4.0]);
        assert_eq!(series.samples.map(|all| all.len()), Some(4));
        assert!(series.rounds.iter().all(|round| round.samples.is_empty()));
    }
}
