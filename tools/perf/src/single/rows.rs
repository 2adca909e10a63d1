//! Rows of the reports, made of the rounds of a group.

use crate::catalog::{Mode, Op, Transport};
use crate::endpoint::pattern;
use crate::report::Row;
use crate::run::figures::{Segments, Series, bytes_per_ns};
use crate::run::group::Group;
use crate::session::control::EndpointSpec;
use crate::stats::{self, float};

/// One row for each member with at least one complete round.
pub(crate) fn rows(group: &Group, series: &[Series]) -> Vec<Row> {
    let specs = group.members.iter().map(|member| member.spec());
    let endpoints: Vec<(&EndpointSpec, &Series)> = specs
        .zip(series)
        .filter_map(|(spec, series)| Some((spec?, series)))
        .filter(|(_, series)| !series.rounds.is_empty())
        .collect();
    let receivers = group.receivers();
    let rows = endpoints.iter().map(|&(spec, series)| {
        let baseline = spec.subject.baseline(spec.mode);
        let raw = endpoints
            .iter()
            .find(|(other, _)| Some(other.subject) == baseline);
        row(spec, series, raw.map(|(_, raw)| *raw), receivers)
    });
    rows.collect()
}

fn row(spec: &EndpointSpec, one: &Series, raw: Option<&Series>, receivers: Option<u32>) -> Row {
    let mut row = Row::new(spec.subject, spec.mode, spec.size);
    row.list = (spec.list > 1).then_some(spec.list);
    row.iters = one.rounds.iter().map(|round| round.messages).sum();
    match spec.mode {
        Mode::Lat => fill_latency(&mut row, one),
        Mode::Bw | Mode::Bibw | Mode::Rate => fill_stream(&mut row, one, 1),
        Mode::Idle => fill_idle(&mut row, one),
        Mode::Fanout => {
            fill_stream(&mut row, one, receivers.unwrap_or(1));
            fill_fanout(&mut row, one, receivers.unwrap_or(1));
        }
        Mode::Loss => {
            fill_stream(&mut row, one, 1);
            fill_loss(&mut row, spec, one);
        }
    }
    if let Some(raw) = raw {
        let raw_values = raw.values(spec.mode);
        row.baseline = Some(raw.key.clone());
        row.baseline_value = stats::median(&raw_values);
        if let Some(ratio) = stats::paired_ratio(&one.values(spec.mode), &raw_values) {
            row.ratio = Some(ratio.median);
            row.ratio_q25 = Some(ratio.q25);
            row.ratio_q75 = Some(ratio.q75);
        }
    }
    row
}

fn fill_latency(row: &mut Row, one: &Series) {
    let answered = one.samples.as_ref().map_or(0, |samples| samples.len());
    row.loss = Some(1.0 - float(answered) / float(row.iters.max(1)));
    if let Some(latency) = one.samples.as_ref().and_then(stats::latency) {
        row.min_us = Some(latency.min);
        row.p50_us = Some(latency.p50);
        row.p99_us = Some(latency.p99);
        row.p999_us = latency.p999;
    }
}

fn fill_stream(row: &mut Row, one: &Series, receivers: u32) {
    let speeds: Vec<f64> = one.rounds.iter().filter_map(bytes_per_ns).collect();
    if let Some(speed) = stats::median(&speeds) {
        row.gbps = Some(speed * 8.0);
        row.mmsg_s = Some(speed * 1000.0 / float(row.size));
    }
    let directions = if row.mode == Mode::Bibw { 2 } else { 1 };
    row.iters *= directions;
    let sent = float(row.iters) * float(row.size) * f64::from(receivers);
    let reports = || {
        one.rounds
            .iter()
            .flat_map(|round| [round.here, round.there])
    };
    let received = float(reports().map(|report| report.received_bytes).sum());
    row.loss = Some((1.0 - received / sent.max(1.0)).max(0.0));
    if reports().any(|report| report.records > 0) {
        row.valid_fraction = Some((received / sent.max(1.0)).min(1.0));
        row.holes = Some(reports().map(|report| report.holes).sum());
    }
    if received > 0.0 {
        let cpu_ns = float(reports().map(|report| report.cpu_ns).sum());
        row.cpu_s_per_gib = Some(cpu_ns / 1e9 / (received / float(1 << 30)));
    }
}

/// The side that needs more memory counts. The kernel's is that of the client's host.
fn fill_idle(row: &mut Row, one: &Series) {
    row.iters = row.size;
    let Some(round) = one.rounds.last() else {
        return;
    };
    let (here, there) = (round.here.footprint, round.there.footprint);
    row.user_kib = Some(float(here.user.max(there.user)) / 1024.0);
    row.kernel_kib = Some(float(here.kernel) / 1024.0);
}

/// The share of payload that each receiver missed: a lost datagram is lost to one, or to all.
fn fill_fanout(row: &mut Row, one: &Series, receivers: u32) {
    row.receivers = Some(receivers);
    let sent = float(row.iters) * float(row.size);
    let of_receiver = |index: usize| {
        let received = one.rounds.iter().map(|round| round.received.get(index));
        let received = float(received.map(|bytes| bytes.copied().unwrap_or(0)).sum());
        (1.0 - received / sent.max(1.0)).max(0.0)
    };
    let count = pattern::narrow(u64::from(receivers));
    row.receiver_loss = Some((0..count).map(of_receiver).collect());
}

/// The remainder of the messages, and the counts of the datagrams themselves.
fn fill_loss(row: &mut Row, spec: &EndpointSpec, one: &Series) {
    row.loss_rate = spec.loss_rate();
    row.valid_fraction = row.loss.map(|loss| 1.0 - loss);
    // Reliable datagrams are sent again until they arrive: the stack counts messages of theirs, not datagrams.
    if spec.subject.transport.is_reliable_datagram() {
        return;
    }
    let mut segments = Segments::default();
    let mut complete = 0;
    for round in &one.rounds {
        segments += Segments::of(spec, round);
        complete += match spec.subject.op {
            Op::Read => round.here.complete,
            _ => round.there.complete,
        };
    }
    row.segments = Some(segments.sent);
    row.segments_dropped = Some(segments.dropped);
    row.segments_refused = Some(segments.refused);
    // A Send arrives whole or not at all, without a report of its segments. A Read requests again what is missing.
    if !matches!(spec.subject.op, Op::Send | Op::Read) {
        row.segments_valid = Some(segments.valid);
    }
    // A raw datagram is all there is.
    if matches!(spec.subject.transport, Transport::Ud | Transport::UdRing) {
        row.complete_fraction = Some(float(complete) / float(row.iters.max(1)));
    }
    if let Some(holes) = row.holes {
        row.holes_per_message = Some(float(holes) / float(row.iters.max(1)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::catalog::Subject;
    use crate::run::group::Member;
    use crate::session::client::Round;
    use crate::session::control::{Datagrams, RoundReport};

    const UDP_RAW: (Transport, Op) = (Transport::Udp, Op::Raw);
    const UD_SEND: (Transport, Op) = (Transport::Ud, Op::Send);
    const UD_RECORD: (Transport, Op) = (Transport::Ud, Op::WriteRecord);

    /// The rows of endpoints with these rounds.
    fn of(mode: Mode, size: u64, loss: f64, all: Vec<((Transport, Op), Vec<Round>)>) -> Vec<Row> {
        let (members, series) = all
            .into_iter()
            .map(|((transport, op), rounds)| {
                let spec = EndpointSpec {
                    loss,
                    ..EndpointSpec::new(Subject::new(transport, op), mode, size)
                };
                let mut series = Series::new(&spec.subject.to_string(), None);
                for round in rounds {
                    series.push(&spec, round);
                }
                (Member::endpoint(spec), series)
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let group = Group {
            name: "it".to_owned(),
            rounds: 2,
            round_time: Duration::from_millis(10),
            iters: None,
            more_rounds: 0,
            repeats: 0,
            members,
        };
        rows(&group, &series)
    }

    fn pings(samples: &[u64], sent: u64) -> Round {
        Round {
            samples: samples.to_vec(),
            messages: sent,
            ..Round::default()
        }
    }

    #[test]
    fn a_latency_row_names_its_baseline_and_pairs_its_rounds() {
        let raw = (UDP_RAW, vec![pings(&[2000], 1), pings(&[4000], 1)]);
        let ours = (UD_SEND, vec![pings(&[2200], 1), pings(&[4400], 2)]);
        let rows = of(Mode::Lat, 64, 0.0, vec![raw, ours]);
        assert_eq!(rows[0].baseline, None);
        assert_eq!(rows[1].baseline.as_deref(), Some("udp raw"));
        assert_eq!(rows[1].baseline_value, Some(3.0));
        assert!((rows[1].ratio.unwrap() - 1.1).abs() < 1e-9);
        assert!((rows[1].loss.unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((rows[1].gbps, rows[1].p999_us), (None, None));
    }

    #[test]
    fn goodput_counts_what_arrived_after_the_first_piece() {
        let round = Round {
            messages: 10,
            there: RoundReport {
                received_bytes: 9000,
                first_bytes: 1000,
                elapsed_ns: 4000,
                cpu_ns: 500,
                ..RoundReport::default()
            },
            ..Round::default()
        };
        let rows = of(Mode::Bw, 1000, 0.0, vec![(UDP_RAW, vec![round])]);
        assert_eq!(rows[0].gbps, Some(16.0));
        assert_eq!(rows[0].mmsg_s, Some(2.0));
        assert!((rows[0].loss.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!((rows[0].valid_fraction, rows[0].p50_us), (None, None));
    }

    #[test]
    fn a_row_with_loss_takes_lost_marks_out_of_what_was_dropped() {
        let round = Round {
            messages: 10,
            here: RoundReport {
                datagrams: Datagrams {
                    sent: 35,
                    marks: 5,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            there: RoundReport {
                received_bytes: 36_000,
                records: 10,
                holes: 3,
                complete: 7,
                datagrams: Datagrams {
                    marks: 4,
                    dropped: 4,
                    valid: 27,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            ..Round::default()
        };
        let row = &of(Mode::Loss, 4000, 0.1, vec![(UD_RECORD, vec![round])])[0];
        assert_eq!((row.segments, row.segments_dropped), (Some(30), Some(3)));
        assert_eq!(
            (row.segments_valid, row.segments_refused),
            (Some(27), Some(0))
        );
        assert_eq!(row.dropped_fraction(), Some(0.1));
        assert_eq!(row.valid_fraction, Some(0.9));
        assert_eq!(row.complete_fraction, Some(0.7));
        assert_eq!(row.holes_per_message, Some(0.3));
    }

    #[test]
    fn nothing_received_is_a_goodput_of_zero() {
        let round = Round {
            messages: 10,
            ..Round::default()
        };
        let row = &of(Mode::Loss, 64, 0.5, vec![(UD_SEND, vec![round])])[0];
        assert_eq!((row.gbps, row.valid_fraction), (Some(0.0), Some(0.0)));
        assert_eq!((row.segments_valid, row.holes), (None, None));
    }
}
