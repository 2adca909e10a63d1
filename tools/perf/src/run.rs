//! Executes a plan: rounds in turns, repetition when the machine drifted, rows as results.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;

use crate::catalog::{Mode, Op, Subject, Transport};
use crate::client::{Opened, Round, Session};
use crate::clock;
use crate::control::{EndpointSpec, GroupSpec};
use crate::error::{IoContext, Result};
use crate::host::Wait;
use crate::loss::DEFAULT_MTU;
use crate::pattern;
use crate::plan::Group;
use crate::report::{Row, size};
use crate::stats;

/// How often a group whose baseline drifted is measured again.
const MAX_REPEATS: u32 = 2;

/// Rounds that every group gets if it is late itself; if the whole run is, it gets one.
const MIN_ROUNDS: u32 = 3;

/// Settings that hold for every group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How both sides wait.
    pub(crate) wait: Wait,
    /// Whether contents are compared.
    pub(crate) check: bool,
    /// Receive buffer to ask for.
    pub(crate) receive_buffer: usize,
    /// Bytes in flight, if given.
    pub(crate) window: Option<u64>,
    /// Largest MTU to assume of the path, if given.
    pub(crate) mtu: Option<u32>,
    /// Seed of what is dropped on purpose.
    pub(crate) seed: u64,
    /// The group's share of the time limit ends here: nothing is repeated that would end later,
    /// and no round begins later but the first few.
    pub(crate) deadline: Option<Instant>,
    /// Less time is left than the rest of the run was planned to take.
    pub(crate) behind: bool,
}

/// What a group gave: rows, and the error that ended it early.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// One row per member with at least one complete round.
    pub(crate) rows: Vec<Row>,
    /// Things the reader of the rows should know.
    pub(crate) notes: Vec<String>,
    /// The group ended early.
    pub(crate) result: Result<()>,
}

/// The rounds of one member so far.
#[derive(Clone, Debug)]
struct Series {
    subject: Subject,
    member: usize,
    messages: u64,
    rounds: Vec<Round>,
}

/// Measures one group.
pub(crate) fn group(session: &mut Session, group: &Group, settings: &Settings) -> Outcome {
    let mut notes = Vec::new();
    let mut series = Vec::new();
    let result = measure(session, group, settings, &mut series, &mut notes);
    Outcome {
        rows: rows(group, &series),
        notes,
        result,
    }
}

fn measure(
    session: &mut Session,
    group: &Group,
    settings: &Settings,
    series: &mut Vec<Series>,
    notes: &mut Vec<String>,
) -> Result<()> {
    session.close_all()?;
    let mut too_large = None;
    let receivers = group.fanout.map_or(1, |fanout| fanout.receivers);
    for &subject in &group.subjects {
        let address = group.fanout.map(|fanout| fanout.address);
        let spec = EndpointSpec {
            subject,
            mode: group.mode,
            size: group.size,
            wait: settings.wait,
            receive_buffer: settings.receive_buffer,
            check: settings.check,
            mtu: settings.mtu.unwrap_or(if group.mode == Mode::Loss {
                DEFAULT_MTU
            } else {
                0
            }),
            loss: group.loss.unwrap_or(0.0),
            seed: settings.seed,
            list: 1,
            group: address.map(free_group).transpose()?,
        };
        let servers = usize::try_from(receivers).unwrap_or(usize::MAX);
        match session.open(&spec, servers, settings.window)? {
            Opened::Ready(member) => series.push(Series {
                subject,
                member,
                messages: first_guess(group),
                rounds: Vec::new(),
            }),
            Opened::TooLargeToPing(granted) => too_large = Some(granted),
        }
    }
    if let Some(granted) = too_large {
        notes.push(format!(
            "lat {} left out over datagrams: a ping-pong has no flow control, and the receive \
             buffer is {granted} bytes (limited by net.core.rmem_max or --rcvbuf)",
            size(group.size)
        ));
    }
    for one in series.iter_mut() {
        // The first round warms caches and tells how many messages fit the time.
        let warm_up = session.round(one.member, group.mode, one.messages)?;
        one.messages = next_messages(group, &warm_up);
    }
    repeat_while_drifting(session, group, settings, series, notes)
}

/// A port for a group that nobody else uses: rows that take turns must not hear each other.
fn free_group(address: Ipv4Addr) -> Result<GroupSpec> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).during("find a free port")?;
    let port = socket.local_addr().during("find a free port")?.port();
    Ok(GroupSpec { address, port })
}

fn repeat_while_drifting(
    session: &mut Session,
    group: &Group,
    settings: &Settings,
    series: &mut Vec<Series>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let mut best_drift = f64::INFINITY;
    for attempt in 0..=MAX_REPEATS {
        let mut fresh = series.clone();
        for one in &mut fresh {
            one.rounds.clear();
        }
        let outcome = interleave(session, group, settings, &mut fresh);
        let drift = baseline_drift(group, &fresh);
        // A repetition that was cut short is worth less than a complete run.
        if attempt == 0 || (outcome.is_ok() && drift < best_drift) {
            best_drift = drift;
            *series = fresh;
        }
        outcome?;
        let in_time = settings
            .deadline
            .is_none_or(|deadline| clock::now() + group.duration() < deadline);
        if best_drift <= stats::MAX_DRIFT || !in_time {
            break;
        }
    }
    let rounds = series.first().map_or(0, |one| one.rounds.len());
    if pattern::widen(rounds) < u64::from(group.rounds) {
        notes.push(format!(
            "{} {}: only {rounds} of {} rounds, out of time",
            group.mode.name(),
            size(group.size),
            group.rounds
        ));
    }
    if group.mode == Mode::Lat && best_drift > stats::MAX_DRIFT {
        notes.push(format!(
            "lat {}: the raw p50 drifted by {best_drift:.2}x between rounds, the machine was busy",
            size(group.size)
        ));
    }
    Ok(())
}

/// A B A B: each round runs every member once.
fn interleave(
    session: &mut Session,
    group: &Group,
    settings: &Settings,
    series: &mut [Series],
) -> Result<()> {
    for number in 0..group.rounds {
        // A machine that is much slower than planned for gives fewer rounds, not a longer run.
        let late = settings
            .deadline
            .is_some_and(|deadline| clock::now() > deadline);
        let least = if settings.behind { 1 } else { MIN_ROUNDS };
        if late && number >= least {
            break;
        }
        for one in series.iter_mut() {
            session.check_interrupt()?;
            let messages = group.messages(number).unwrap_or(one.messages);
            let round = session.round(one.member, group.mode, messages)?;
            one.messages = next_messages(group, &round).clamp(one.messages / 2, one.messages * 2);
            one.rounds.push(round);
        }
    }
    Ok(())
}

/// Messages of the warm-up round: few milliseconds in any case.
fn first_guess(group: &Group) -> u64 {
    let guess = match group.mode {
        Mode::Lat if group.size > 1 << 16 => 20,
        Mode::Lat => 100,
        Mode::Idle => 1,
        Mode::Bw | Mode::Bibw | Mode::Rate | Mode::Loss | Mode::Fanout => {
            ((4 << 20) / group.size).clamp(8, 2000)
        }
    };
    group
        .messages(0)
        .map_or(guess, |messages| guess.min(messages))
}

/// Messages that fill the round's time at the speed just seen.
fn next_messages(group: &Group, round: &Round) -> u64 {
    let wanted = u64::try_from(group.round_time.as_nanos()).unwrap_or(u64::MAX);
    let fitting =
        u128::from(round.messages) * u128::from(wanted) / u128::from(round.wall_ns.max(1));
    u64::try_from(fitting)
        .unwrap_or(u64::MAX)
        .clamp(8, 10_000_000)
}

/// The drift of the group's raw p50; 1 for streams, whose rate varies by nature.
fn baseline_drift(group: &Group, series: &[Series]) -> f64 {
    if group.mode != Mode::Lat {
        return 1.0;
    }
    series
        .iter()
        .filter(|one| one.subject.baseline(group.mode).is_none())
        .map(|one| stats::drift(&values(group, one)))
        .fold(1.0, f64::max)
}

/// The mode's own figure for each round: µs, Gb/s or million messages per second.
fn values(group: &Group, series: &Series) -> Vec<f64> {
    series
        .rounds
        .iter()
        .map(|round| value(group, round).unwrap_or(0.0))
        .collect()
}

fn value(group: &Group, round: &Round) -> Option<f64> {
    match group.mode {
        Mode::Lat => {
            let mut samples = round.samples.clone();
            samples.sort_unstable();
            stats::percentile(&samples, 0.5).map(stats::microseconds)
        }
        Mode::Bw | Mode::Bibw | Mode::Loss | Mode::Fanout => Some(bytes_per_ns(round)? * 8.0),
        Mode::Rate => Some(bytes_per_ns(round)? * 1000.0 / float(group.size)),
        Mode::Idle => None,
    }
}

/// Goodput of a round, both directions together, in bytes per nanosecond.
///
/// The clock runs from the first to the last arrival, so the first one is not counted. A round
/// that arrived in one piece falls back on the sender's time.
pub(crate) fn bytes_per_ns(round: &Round) -> Option<f64> {
    let received = round.here.received_bytes + round.there.received_bytes;
    if received == 0 {
        // Nothing of what was sent came through: that is a speed. Nothing sent is none.
        return (round.messages > 0).then_some(0.0);
    }
    let elapsed = round.here.elapsed_ns.max(round.there.elapsed_ns);
    let later = received - round.here.first_bytes - round.there.first_bytes;
    if elapsed == 0 || later == 0 {
        return Some(float(received) / float(round.wall_ns.max(1)));
    }
    Some(float(later) / float(elapsed))
}

fn rows(group: &Group, series: &[Series]) -> Vec<Row> {
    series
        .iter()
        .filter(|one| !one.rounds.is_empty())
        .map(|one| row(group, one, series))
        .collect()
}

fn row(group: &Group, one: &Series, all: &[Series]) -> Row {
    let mut row = Row::new(one.subject, group.mode, group.size);
    row.iters = one.rounds.iter().map(|round| round.messages).sum();
    match group.mode {
        Mode::Lat => fill_latency(&mut row, one),
        Mode::Bw | Mode::Bibw | Mode::Rate => fill_stream(&mut row, group, one),
        Mode::Idle => fill_idle(&mut row, one),
        Mode::Fanout => {
            fill_stream(&mut row, group, one);
            fill_fanout(&mut row, group, one);
        }
        Mode::Loss => {
            fill_stream(&mut row, group, one);
            fill_loss(&mut row, group, one);
        }
    }
    let baseline = one.subject.baseline(group.mode);
    if let Some(raw) = all.iter().find(|other| Some(other.subject) == baseline) {
        let raw_values = values(group, raw);
        row.baseline = Some(raw.subject.to_string());
        row.baseline_value = stats::median(&raw_values);
        if let Some(ratio) = stats::paired_ratio(&values(group, one), &raw_values) {
            row.ratio = Some(ratio.median);
            row.ratio_q25 = Some(ratio.q25);
            row.ratio_q75 = Some(ratio.q75);
        }
    }
    row
}

fn fill_latency(row: &mut Row, one: &Series) {
    let mut samples: Vec<u64> = one
        .rounds
        .iter()
        .flat_map(|round| round.samples.iter().copied())
        .collect();
    let answered = float(pattern::widen(samples.len()));
    row.loss = Some(1.0 - answered / float(row.iters.max(1)));
    if let Some(latency) = stats::latency(&mut samples) {
        row.min_us = Some(latency.min);
        row.p50_us = Some(latency.p50);
        row.p99_us = Some(latency.p99);
        row.p999_us = latency.p999;
    }
}

fn fill_stream(row: &mut Row, group: &Group, one: &Series) {
    let speeds: Vec<f64> = one.rounds.iter().filter_map(bytes_per_ns).collect();
    if let Some(speed) = stats::median(&speeds) {
        row.gbps = Some(speed * 8.0);
        row.mmsg_s = Some(speed * 1000.0 / float(group.size));
    }
    let directions = if group.mode == Mode::Bibw { 2 } else { 1 };
    row.iters *= directions;
    let receivers = group.fanout.map_or(1, |fanout| fanout.receivers);
    let sent = float(row.iters) * float(group.size) * f64::from(receivers);
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

/// What each receiver missed: one lost datagram is lost to one, or to all.
fn fill_fanout(row: &mut Row, group: &Group, one: &Series) {
    let receivers = group.fanout.map_or(1, |fanout| fanout.receivers);
    row.receivers = Some(receivers);
    let sent = float(row.iters) * float(group.size);
    let of_receiver = |index: usize| {
        let received = one.rounds.iter().map(|round| round.received.get(index));
        let received = float(received.map(|bytes| bytes.copied().unwrap_or(0)).sum());
        (1.0 - received / sent.max(1.0)).max(0.0)
    };
    let count = usize::try_from(receivers).unwrap_or(0);
    row.receiver_loss = Some((0..count).map(of_receiver).collect());
}

/// What is left of the messages, and what the datagrams' own counts say about it.
fn fill_loss(row: &mut Row, group: &Group, one: &Series) {
    let mut sent = 0;
    let mut dropped = 0;
    let mut valid = 0;
    let mut refused = 0;
    let mut complete = 0;
    for round in &one.rounds {
        // Data comes to the server, but for Reads.
        let (source, sink) = match one.subject.op {
            Op::Read => (&round.there, &round.here),
            _ => (&round.here, &round.there),
        };
        let (from, to) = (&source.datagrams, &sink.datagrams);
        // A raw receiver drops no marks.
        let marks_lost = match one.subject.transport {
            Transport::Ud => from.marks.saturating_sub(to.marks),
            Transport::Rc | Transport::Udp | Transport::Tcp => 0,
        };
        sent += from.sent.saturating_sub(from.marks);
        dropped += to.dropped.saturating_sub(marks_lost);
        refused += to.refused;
        valid += to.valid;
        complete += sink.complete;
    }
    row.loss_rate = group.loss;
    row.valid_fraction = row.loss.map(|loss| 1.0 - loss);
    row.segments = Some(sent);
    row.segments_dropped = Some(dropped);
    row.segments_refused = Some(refused);
    // A Send arrives whole or not at all: which of its segments came is not told. A Read asks again.
    if !matches!(one.subject.op, Op::Send | Op::Read) {
        row.segments_valid = Some(valid);
    }
    // A raw datagram is all there is.
    if one.subject.transport == Transport::Ud {
        row.complete_fraction = Some(float(complete) / float(row.iters.max(1)));
    }
    if let Some(holes) = row.holes {
        row.holes_per_message = Some(float(holes) / float(row.iters.max(1)));
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of bytes and nanoseconds stay below 2^52"
)]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::{Datagrams, RoundReport};

    fn lat_group() -> Group {
        Group {
            mode: Mode::Lat,
            size: 64,
            loss: None,
            fanout: None,
            subjects: Vec::new(),
            rounds: 2,
            round_time: Duration::from_millis(10),
            iters: None,
        }
    }

    fn series(op: Op, transport: Transport, rounds: Vec<Round>) -> Series {
        Series {
            subject: Subject::new(transport, op),
            member: 0,
            messages: 1,
            rounds,
        }
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
        let raw = series(
            Op::Raw,
            Transport::Udp,
            vec![pings(&[2000], 1), pings(&[4000], 1)],
        );
        let ours = series(
            Op::Send,
            Transport::Ud,
            vec![pings(&[2200], 1), pings(&[4400], 2)],
        );
        let rows = rows(&lat_group(), &[raw, ours]);
        assert_eq!(rows[0].baseline, None);
        assert_eq!(rows[1].baseline.as_deref(), Some("udp raw"));
        assert_eq!(rows[1].baseline_value, Some(3.0));
        assert!((rows[1].ratio.unwrap() - 1.1).abs() < 1e-9);
        assert!((rows[1].loss.unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((rows[1].gbps, rows[1].p999_us), (None, None));
    }

    #[test]
    fn goodput_counts_what_arrived_after_the_first_piece() {
        let group = Group {
            mode: Mode::Bw,
            size: 1000,
            ..lat_group()
        };
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
        let rows = rows(&group, &[series(Op::Raw, Transport::Udp, vec![round])]);
        assert_eq!(rows[0].gbps, Some(16.0));
        assert_eq!(rows[0].mmsg_s, Some(2.0));
        assert!((rows[0].loss.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!((rows[0].valid_fraction, rows[0].p50_us), (None, None));
    }

    #[test]
    fn a_row_with_loss_takes_lost_marks_out_of_what_was_dropped() {
        let group = Group {
            mode: Mode::Loss,
            size: 4000,
            loss: Some(0.1),
            ..lat_group()
        };
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
        let ours = series(Op::WriteRecord, Transport::Ud, vec![round]);
        let row = &rows(&group, &[ours])[0];
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
        let group = Group {
            mode: Mode::Loss,
            loss: Some(0.5),
            ..lat_group()
        };
        let round = Round {
            messages: 10,
            ..Round::default()
        };
        let row = &rows(&group, &[series(Op::Send, Transport::Ud, vec![round])])[0];
        assert_eq!((row.gbps, row.valid_fraction), (Some(0.0), Some(0.0)));
        assert_eq!((row.segments_valid, row.holes), (None, None));
    }

    #[test]
    fn the_number_of_messages_follows_the_speed() {
        let group = lat_group();
        let round = Round {
            messages: 100,
            wall_ns: 1_000_000,
            ..Round::default()
        };
        assert_eq!(next_messages(&group, &round), 1000);
        let stuck = Round {
            messages: 100,
            wall_ns: 3_000_000_000,
            ..Round::default()
        };
        assert_eq!(next_messages(&group, &stuck), 8);
    }
}
