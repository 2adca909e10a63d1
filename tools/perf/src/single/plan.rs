//! The groups of a single measurement, and their duration.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::catalog::subjects::*;
use crate::catalog::{CATALOG, Mode, Op, Subject};
use crate::cli::{RunArgs, SameHost};
use crate::endpoint::can_list;
use crate::endpoint::idle::MAX_CONNECTIONS;
use crate::endpoint::loss::DEFAULT_LOSSES;
use crate::endpoint::pattern::narrow;
use crate::error::{PerfError, Result};
use crate::report::size as short;
use crate::run::group::{Group, Kind, Member};
use crate::session::control::{EndpointSpec, GroupSpec};

/// A group address, and how many receive there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fanout {
    /// The broadcast or multicast address.
    address: Ipv4Addr,
    /// Receivers, each in a process of its own.
    receivers: u32,
}

/// The number of paired rounds that a latency ratio needs at least.
const MIN_LATENCY_ROUNDS: u32 = 15;

/// Repetitions of a group whose baseline drifted.
const MAX_REPEATS: u32 = 2;

/// 1 B to 1 MiB in factors of 4.
const SWEEP_SIZES: &[u64] = &[
    1,
    4,
    16,
    64,
    256,
    1 << 10,
    1 << 12,
    1 << 14,
    1 << 16,
    1 << 18,
    1 << 20,
];
const QUICK_SIZES: &[u64] = &[1, 64, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 20];
/// The message size of the rate mode.
const RATE_SIZE: u64 = 64;
/// From this size on, streams are compared with MTU-sized datagrams too.
const LARGE: u64 = 1 << 16;

/// Idle connections: few enough for the usual limit of descriptors.
const IDLE_COUNTS: &[u64] = &[400];

/// Message sizes of runs with loss: one datagram of Ethernet and less, up to 700.
const LOSS_SIZES: &[u64] = &[1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// And those in the sweeps, with the shares dropped there.
const SWEEP_LOSS_SIZES: &[u64] = &[1 << 10, 1 << 14, 1 << 16, 1 << 20];
const SWEEP_LOSSES: &[f64] = &[0.001, 0.01, 0.05];
const QUICK_LOSS_SIZES: &[u64] = &[1 << 16];
const QUICK_LOSSES: &[f64] = &[0.01];

/// Message sizes of runs with several receivers.
const FANOUT_SIZES: &[u64] = &[64, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// And those in the sweeps.
const SWEEP_FANOUT_SIZES: &[u64] = &[1 << 10, 1 << 14, 1 << 16, 1 << 20];
const QUICK_FANOUT_SIZES: &[u64] = &[1 << 16];
/// The size at which a sweep has broadcast beside multicast.
const BROADCAST_SIZE: u64 = 1 << 16;
/// Default groups of `--op broadcast` and `multicast`: on the loopback interface, and
/// within the range for local use.
const BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);
const MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 255, 18, 14);

/// Rows of a sweep at all sizes: each kind of queue pair behind its baseline.
const SIDE_BY_SIDE: &[Subject] = &[
    UDP_RAW,
    UD_SEND,
    UD_WRITE_RECORD,
    UD_READ,
    TCP_RAW,
    RC_SEND,
    RC_WRITE,
    RC_READ,
];
/// Of these, what works in both directions, or without an answer to each message.
const BOTH_KINDS: &[Subject] = &[
    UDP_RAW,
    UD_SEND,
    UD_WRITE_RECORD,
    TCP_RAW,
    RC_SEND,
    RC_WRITE,
];
/// Operand of atomic operations, in octets.
const ATOMIC_SIZE: u64 = 8;

/// A mode, a message size, and the rows to compare.
type Wanted = (Mode, u64, Vec<Subject>);

/// How long all groups take.
pub(crate) fn duration(groups: &[Group]) -> Duration {
    groups.iter().map(Group::duration).sum()
}

/// The groups that the options ask for; without any choice, the sweep over everything.
pub(crate) fn groups(args: &RunArgs) -> Result<Vec<Group>> {
    if !args.loss.is_empty() && args.mode.is_some_and(|mode| mode != Mode::Loss) {
        return Err(PerfError::Usage(
            "--loss is a mode of its own: leave --mode out".to_owned(),
        ));
    }
    let only = if args.loss.is_empty() {
        args.mode
    } else {
        Some(Mode::Loss)
    };
    let chosen = args.transport.is_some() || args.op.is_some();
    let wanted = match only {
        Some(mode) if chosen || matches!(mode, Mode::Loss | Mode::Fanout | Mode::Idle) => {
            selection(args, &[mode])?
        }
        None if chosen => selection(
            args,
            &[
                Mode::Idle,
                Mode::Lat,
                Mode::Bw,
                Mode::Bibw,
                Mode::Rate,
                Mode::Fanout,
            ],
        )?,
        Some(_) | None => sweep(args),
    };
    let wanted = within_host(wanted, &args.same_host);
    let over_udp = |subject: &Subject| subject.transport.uses_datagrams();
    if (args.rcvbuf.is_some() || args.mtu.is_some())
        && !wanted
            .iter()
            .any(|(.., subjects)| subjects.iter().any(over_udp))
    {
        return Err(PerfError::Usage(
            "--rcvbuf and --mtu are about datagrams: connections leave buffers and segments to TCP"
                .to_owned(),
        ));
    }
    let sweeping = !chosen && only.is_none();
    let mut groups = Vec::new();
    for (mode, size, subjects) in wanted {
        if mode == Mode::Loss {
            let losses = losses(args, sweeping).iter();
            groups.extend(losses.map(|&loss| group(args, (mode, size), &subjects, loss, None)));
        } else if mode == Mode::Idle {
            // Connections open at the same time would be counted too.
            let alone = |subject| group(args, (mode, size), &[subject], 0.0, None);
            groups.extend(subjects.into_iter().map(alone));
        } else if mode == Mode::Fanout {
            // Compared rows share an address.
            for op in [Op::Multicast, Op::Broadcast] {
                let of_op = subjects.iter().filter(|subject| subject.op == op);
                groups.extend(fanouts(args, size, &of_op.copied().collect::<Vec<_>>())?);
            }
        } else {
            groups.push(group(args, (mode, size), &subjects, 0.0, None));
        }
    }
    // The rows of one loss stand together, as those of one mode do. Groups with more processes come last.
    groups.sort_by(|one, other| {
        let losses = f64::total_cmp(&one.loss().unwrap_or(-1.0), &other.loss().unwrap_or(-1.0));
        one.receivers().cmp(&other.receivers()).then(losses)
    });
    Ok(groups)
}

/// With the rows of these ways within one host behind those of sockets, and plain shared memory beside its rows.
fn within_host(mut wanted: Vec<Wanted>, ways: &[SameHost]) -> Vec<Wanted> {
    for (mode, _, subjects) in &mut wanted {
        let all = |subject: &Subject| {
            let others = ways.iter().map(|&way| subject.within_host(way, *mode));
            let all = std::iter::once(Some(*subject)).chain(others);
            all.flatten().collect::<Vec<_>>()
        };
        let mut with_others: Vec<Subject> = subjects.iter().flat_map(all).collect();
        if with_others.iter().any(|it| it.transport.is_in_ring())
            && !subjects.iter().any(|it| it.transport.is_within_host())
        {
            with_others.push(SHM_RAW);
        }
        *subjects = with_others;
    }
    wanted
}

/// Groups with one receiver, two, and so on.
fn fanouts(args: &RunArgs, size: u64, subjects: &[Subject]) -> Result<Vec<Group>> {
    let Some(first) = subjects.first() else {
        return Ok(Vec::new());
    };
    let multicast = first.op == Op::Multicast;
    let default = if multicast { MULTICAST } else { BROADCAST };
    let address = args.group.unwrap_or(default);
    if address.is_multicast() != multicast {
        return Err(PerfError::Usage(format!(
            "{address} is not an address for {}",
            first.op.name()
        )));
    }
    let fanouts = (1..=args.receivers).map(|receivers| Fanout { address, receivers });
    Ok(fanouts
        .map(|fanout| group(args, (Mode::Fanout, size), subjects, 0.0, Some(fanout)))
        .collect())
}

/// Without the groups whose receivers must be processes of this machine.
pub(crate) fn without_fanout(mut groups: Vec<Group>) -> Result<Vec<Group>> {
    groups.retain(|group| group.receivers().is_none());
    if groups.is_empty() {
        return Err(PerfError::Usage(
            "broadcast and multicast are measured on one machine, without a server elsewhere"
                .to_owned(),
        ));
    }
    Ok(groups)
}

/// The shares of datagrams dropped in loss mode.
fn losses(args: &RunArgs, sweeping: bool) -> &[f64] {
    match (args.loss.as_slice(), sweeping, args.quick) {
        ([], true, true) => QUICK_LOSSES,
        ([], true, false) => SWEEP_LOSSES,
        ([], false, _) => DEFAULT_LOSSES,
        (given, ..) => given,
    }
}

fn group(
    args: &RunArgs,
    (mode, size): (Mode, u64),
    subjects: &[Subject],
    loss: f64,
    fanout: Option<Fanout>,
) -> Group {
    let (rounds, milliseconds) = match (mode, args.quick) {
        (Mode::Lat, true) => (MIN_LATENCY_ROUNDS, 8),
        (Mode::Lat, false) => (21, 25),
        (Mode::Idle, _) => (1, 1),
        (Mode::Fanout, true) => (5, 15),
        (Mode::Fanout, false) => (9, 40),
        (Mode::Bw | Mode::Bibw | Mode::Rate | Mode::Loss, true) => (7, 15),
        (Mode::Loss, false) => (9, 50),
        (Mode::Bw | Mode::Bibw | Mode::Rate, false) => (9, 55),
    };
    let rounds = args.rounds.unwrap_or(rounds);
    // With few messages there are as many rounds as messages.
    let rounds = args.iters.map_or(rounds, |iters| {
        rounds.min(u32::try_from(iters).unwrap_or(u32::MAX))
    });
    let member = |&subject: &Subject| {
        let default = EndpointSpec::new(subject, mode, size);
        let spec = EndpointSpec {
            check: args.check,
            autocork: !args.no_autocork,
            receive_buffer: args.rcvbuf.map_or(default.receive_buffer, narrow),
            mtu: args.mtu.unwrap_or(default.mtu),
            loss,
            list: match can_list(subject, mode, size) {
                true => args.post_list,
                false => 1,
            },
            seed: args.seed,
            group: fanout.map(|Fanout { address, .. }| GroupSpec { address, port: 0 }),
            ..default
        };
        Member {
            key: subject.to_string(),
            kind: Kind::Endpoint {
                spec,
                receivers: fanout.map_or(1, |fanout| fanout.receivers),
                window: args.window,
            },
        }
    };
    Group {
        name: format!("{} {}", mode.name(), short(size)),
        rounds,
        round_time: Duration::from_millis(milliseconds),
        iters: args.iters,
        more_rounds: 0,
        repeats: MAX_REPEATS,
        members: subjects.iter().map(member).collect(),
    }
}

/// All operations, each at its significant sizes.
fn sweep(args: &RunArgs) -> Vec<Wanted> {
    let default_sizes = if args.quick { QUICK_SIZES } else { SWEEP_SIZES };
    let sizes = args.size.as_ref().map_or(default_sizes, |sizes| &sizes.0);
    let mut wanted = Vec::new();
    // First of all, before other groups leave memory that can be used again.
    if args.size.is_none() && !args.quick {
        wanted.push((Mode::Idle, IDLE_COUNTS[0], vec![TCP_CONNECT, RC_CONNECT]));
    }
    for &size in sizes {
        wanted.push((Mode::Lat, size, SIDE_BY_SIDE.to_vec()));
    }
    // Operations that depend little on the size have one.
    if args.size.is_none() && !args.quick {
        let size = RATE_SIZE;
        wanted.push((Mode::Lat, size, vec![TCP_RAW, RC_WRITE_IMM]));
        let atomics = vec![TCP_RAW, RC_FETCH_ADD, RC_COMPARE_SWAP];
        wanted.push((Mode::Lat, ATOMIC_SIZE, atomics));
    }
    for &size in sizes {
        let mut subjects = SIDE_BY_SIDE.to_vec();
        if size >= LARGE {
            subjects.extend([UDP_TRAIN, UDP_SINGLE]);
        }
        wanted.push((Mode::Bw, size, subjects));
    }
    for &size in sizes.iter().filter(|&&size| size >= LARGE) {
        wanted.push((Mode::Bibw, size, BOTH_KINDS.to_vec()));
    }
    let rate_sizes = args
        .size
        .as_ref()
        .map_or_else(|| vec![RATE_SIZE], |sizes| sizes.0.clone());
    for size in rate_sizes {
        let subjects = BOTH_KINDS.iter().map(|&subject| match subject {
            UDP_RAW => UDP_SINGLE,
            other => other,
        });
        wanted.push((Mode::Rate, size, subjects.collect()));
    }
    let loss_sizes = if args.quick {
        QUICK_LOSS_SIZES
    } else {
        SWEEP_LOSS_SIZES
    };
    let loss_sizes = args.size.as_ref().map_or(loss_sizes, |sizes| &sizes.0);
    for &size in loss_sizes {
        let subjects = vec![UDP_RAW, UD_SEND, UD_WRITE_RECORD, UD_READ];
        wanted.push((Mode::Loss, size, subjects));
    }
    let fanout_sizes = if args.quick {
        QUICK_FANOUT_SIZES
    } else {
        SWEEP_FANOUT_SIZES
    };
    let fanout_sizes = args.size.as_ref().map_or(fanout_sizes, |sizes| &sizes.0);
    for &size in fanout_sizes {
        let mut subjects = vec![UDP_MULTICAST, UD_MULTICAST];
        // The network makes no difference between the two.
        if size == BROADCAST_SIZE && !args.quick {
            subjects.extend([UDP_BROADCAST, UD_BROADCAST]);
        }
        wanted.push((Mode::Fanout, size, subjects));
    }
    wanted.retain(|(mode, ..)| args.mode.is_none_or(|only| only == *mode));
    wanted
}

/// The chosen transport and operation, or all of them, each with its baseline, in these modes.
fn selection(args: &RunArgs, modes: &[Mode]) -> Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for &mode in modes {
        // Sizes are those of messages, unless connections alone are wanted.
        let connections = args.mode == Some(Mode::Idle) || args.op == Some(Op::Connect);
        if mode == Mode::Idle && args.size.is_some() && !connections {
            continue;
        }
        let chosen: Vec<Subject> = CATALOG
            .iter()
            .filter(|entry| match args.transport {
                Some(only) => only == entry.transport,
                None => !entry.transport.is_within_host(),
            })
            .filter(|entry| args.op.is_none_or(|only| only == entry.op))
            .filter(|entry| entry.modes.contains(&mode))
            .map(|entry| Subject::new(entry.transport, entry.op))
            .collect();
        let default_sizes = if mode == Mode::Rate {
            &[RATE_SIZE]
        } else if mode == Mode::Idle {
            IDLE_COUNTS
        } else if mode == Mode::Loss {
            LOSS_SIZES
        } else if mode == Mode::Fanout {
            FANOUT_SIZES
        } else if args.quick {
            QUICK_SIZES
        } else {
            SWEEP_SIZES
        };
        let sizes = args.size.as_ref().map_or(default_sizes, |sizes| &sizes.0);
        let only = |subject: &Subject| subject.op.only_size();
        let mut only_sizes: Vec<u64> = chosen.iter().filter_map(only).collect();
        // A size that was asked for is asked of all.
        only_sizes.retain(|size| args.size.is_none() && !sizes.contains(size));
        only_sizes.dedup();
        for &size in only_sizes.iter().chain(sizes) {
            let is_only = only_sizes.contains(&size);
            let fits = |subject: &Subject| match only(subject) {
                Some(only) => only == size,
                None => !is_only,
            };
            let subjects: Vec<Subject> = chosen.iter().copied().filter(fits).collect();
            if !subjects.is_empty() {
                wanted.push((mode, size, with_baselines(mode, &subjects)));
            }
        }
    }
    let too_many = |(mode, size, _): &Wanted| *mode == Mode::Idle && *size > MAX_CONNECTIONS;
    if wanted.iter().any(too_many) {
        return Err(PerfError::Usage(format!(
            "at most {MAX_CONNECTIONS} idle connections are measured at a time"
        )));
    }
    if wanted.is_empty() {
        return Err(PerfError::Usage(
            "this combination of transport, op, mode and size does not exist (see --list)"
                .to_owned(),
        ));
    }
    Ok(wanted)
}

/// These behind what each is compared with.
fn with_baselines(mode: Mode, chosen: &[Subject]) -> Vec<Subject> {
    let baselines = chosen.iter().filter_map(|subject| subject.baseline(mode));
    // Memory has no ratio, but the row.
    let beside = (mode == Mode::Idle).then_some(TCP_CONNECT);
    let mut unique = Vec::new();
    for subject in baselines.chain(beside).chain(chosen.iter().copied()) {
        if !unique.contains(&subject) {
            unique.push(subject);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::catalog::Transport;
    use crate::cli::Cli;

    fn mode(group: &Group) -> Mode {
        group.spec().unwrap().mode
    }

    fn size(group: &Group) -> u64 {
        group.spec().unwrap().size
    }

    fn subjects(group: &Group) -> Vec<Subject> {
        let specs = group.members.iter().filter_map(Member::spec);
        specs.map(|spec| spec.subject).collect()
    }

    fn args(line: &str) -> RunArgs {
        Cli::try_parse_from(std::iter::once("dgiwarp-perf").chain(line.split_whitespace()))
            .unwrap()
            .run
    }

    #[test]
    fn the_sweep_ends_in_time_and_leaves_room_for_repetitions() {
        for line in ["", "--quick"] {
            let args = args(line);
            let planned = duration(&groups(&args).unwrap());
            assert!(
                planned < args.time_limit().mul_f64(0.8),
                "{line}: {planned:?} of {:?}",
                args.time_limit()
            );
        }
    }

    #[test]
    fn the_sweep_covers_one_byte_to_one_mebibyte_with_enough_rounds() {
        for line in ["", "--quick"] {
            let groups = groups(&args(line)).unwrap();
            for mode in [Mode::Lat, Mode::Bw] {
                let sizes: Vec<u64> = groups
                    .iter()
                    .filter(|group| self::mode(group) == mode)
                    .map(size)
                    .collect();
                let (first, last) = (sizes.iter().min(), sizes.iter().max());
                assert_eq!((first, last), (Some(&1), Some(&(1 << 20))));
            }
            for group in groups.iter().filter(|group| mode(group) == Mode::Lat) {
                assert!(group.rounds >= MIN_LATENCY_ROUNDS);
            }
        }
    }

    #[test]
    fn every_subject_has_its_baseline_in_the_same_group() {
        for line in ["", "--transport ud", "--op send --mode rate", "--op raw"] {
            for group in groups(&args(line)).unwrap() {
                let subjects = subjects(&group);
                for subject in &subjects {
                    if let Some(baseline) = subject.baseline(mode(&group)) {
                        assert!(subjects.contains(&baseline), "{line}: {subject}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_choice_is_respected() {
        let groups = groups(&args("--transport udp --op raw-single --mode bw --size 1K")).unwrap();
        assert_eq!(groups.len(), 1);
        assert_eq!(subjects(&groups[0]), [UDP_SINGLE]);
        let nothing = super::groups(&args("--transport tcp --op send"));
        assert!(matches!(nothing, Err(PerfError::Usage(_))));
    }

    #[test]
    fn operations_with_one_size_have_a_group_of_their_own() {
        let sizes = |line: &str, subject: Subject| -> Vec<u64> {
            let groups = groups(&args(line)).unwrap();
            let of_subject = groups
                .iter()
                .filter(|group| subjects(group).contains(&subject));
            of_subject.map(size).collect()
        };
        assert_eq!(sizes("--transport rc --mode lat", RC_FETCH_ADD), [8]);
        assert_eq!(sizes("--transport rc --mode lat", RC_SEND), SWEEP_SIZES);
        assert_eq!(sizes("--op compare-swap --mode rate", RC_COMPARE_SWAP), [8]);
        let line = "--transport rc --mode lat --size 8,64";
        assert_eq!(sizes(line, RC_FETCH_ADD), [8]);
        assert_eq!(sizes(line, RC_SEND), [8, 64]);
        let nothing = groups(&args("--op fetch-add --size 64"));
        assert!(matches!(nothing, Err(PerfError::Usage(_))));
    }

    #[test]
    fn idle_connections_are_counted_where_sizes_are_not_those_of_messages() {
        let idle = |line: &str| -> Vec<(Subject, u64)> {
            let groups = groups(&args(line)).unwrap();
            let idle = groups.iter().filter(|group| mode(group) == Mode::Idle);
            idle.map(|group| (subjects(group)[0], size(group)))
                .collect()
        };
        let both = |size| [(TCP_CONNECT, size), (RC_CONNECT, size)];
        assert_eq!(idle(""), both(IDLE_COUNTS[0]));
        assert_eq!(idle("--transport rc"), both(IDLE_COUNTS[0]));
        assert!(idle("--transport rc --size 64").is_empty());
        assert_eq!(
            idle("--mode idle --size 10,100"),
            [both(10), both(100)].concat()
        );
        assert_eq!(idle("--transport rc --mode idle --size 10"), both(10));
        let many = groups(&args("--mode idle --size 5000"));
        assert!(matches!(many, Err(PerfError::Usage(_))));
    }

    #[test]
    fn rows_within_a_host_stand_behind_those_of_sockets() {
        let subjects_of = |line: &str| subjects(&groups(&args(line)).unwrap()[0]);
        let line = "--transport rc --op send --mode lat --size 64";
        assert_eq!(subjects_of(line), [TCP_RAW, RC_SEND]);
        let ring = subjects_of(&format!("{line} --same-host ring"));
        assert_eq!(ring, [TCP_RAW, RC_SEND, RC_RING_SEND, SHM_RAW]);
        let line = "--transport rc --op write --size 64";
        let ways = subjects_of(&format!("{line} --mode lat --same-host ring,direct"));
        let direct = |op| Subject::new(Transport::RcDirect, op);
        let beside = [RC_WRITE, RC_RING_WRITE, direct(Op::Write), SHM_RAW];
        assert_eq!(ways, [&[TCP_RAW][..], &beside].concat());
        // One-sided copies have latencies alone.
        let rate = subjects_of(&format!("{line} --mode rate --same-host direct"));
        assert_eq!(rate, [TCP_RAW, RC_WRITE]);
        // Without the option there are none.
        for line in ["", "--op send", "--op raw", "--op read --same-host off"] {
            let all = groups(&args(line)).unwrap();
            let within = |group: &Group| {
                subjects(group)
                    .iter()
                    .any(|it| it.transport.is_within_host())
            };
            assert!(!all.iter().any(within), "{line}");
        }
        let alone = subjects_of("--transport rc-direct --op read --mode lat --size 4K");
        assert_eq!(alone, [TCP_RAW, direct(Op::Read)]);
        assert_eq!(subjects_of("--transport shm --mode bw"), [SHM_RAW]);
        let lossy = groups(&args("--loss 0.01 --op send --same-host ring")).unwrap();
        assert!(!lossy.iter().any(|group| subjects(group).contains(&SHM_RAW)));
    }

    #[test]
    fn lists_are_for_short_messages_of_queue_pairs_at_a_rate() {
        let lists = |line: &str| -> Vec<u32> {
            let groups = groups(&args(line)).unwrap();
            let members = groups.iter().flat_map(|group| &group.members);
            members
                .filter_map(Member::spec)
                .map(|spec| spec.list)
                .collect()
        };
        let line = "--transport rc --op write --size 64 --same-host ring --post-list 64";
        // Raw TCP, sockets, memory, raw memory.
        assert_eq!(lists(&format!("{line} --mode rate")), [1, 64, 64, 1]);
        assert_eq!(lists(&format!("{line} --mode lat")), [1; 4]);
        let line = "--transport rc --mode rate --post-list 8";
        assert_eq!(lists(&format!("{line} --op send --size 4K")), [1, 1]);
        assert_eq!(lists(&format!("{line} --op fetch-add --size 8")), [1, 1]);
    }

    #[test]
    fn connections_take_no_options_about_datagrams() {
        for line in ["--transport rc --mtu 1500", "--transport tcp --rcvbuf 1M"] {
            let refused = groups(&args(line));
            assert!(matches!(refused, Err(PerfError::Usage(_))), "{line}");
        }
        assert!(groups(&args("--op send --rcvbuf 1M")).is_ok());
    }

    #[test]
    fn there_are_rows_for_each_number_of_receivers() {
        let groups = groups(&args("--op multicast --receivers 2 --size 1K,64K")).unwrap();
        let rows: Vec<_> = groups
            .iter()
            .map(|group| (group.receivers().unwrap(), size(group)))
            .collect();
        assert_eq!(rows, [(1, 1024), (1, 65_536), (2, 1024), (2, 65_536)]);
        assert_eq!(subjects(&groups[0]), [UDP_MULTICAST, UD_MULTICAST]);
        assert!(without_fanout(groups).is_err());
        for wrong in [
            "--op multicast --group 127.255.255.255",
            "--op broadcast --group 239.1.1.1",
        ] {
            let refused = super::groups(&args(wrong));
            assert!(matches!(refused, Err(PerfError::Usage(_))), "{wrong}");
        }
        let swept = super::groups(&args("")).unwrap();
        let last = swept.last().unwrap();
        assert_eq!(last.receivers().unwrap(), 3, "after all others");
        assert!(without_fanout(swept).is_ok());
    }

    #[test]
    fn iterations_are_spread_over_the_rounds() {
        let few = groups(&args(
            "--op raw --transport udp --mode lat --size 1 --iters 5",
        ))
        .unwrap();
        assert_eq!((few[0].rounds, few[0].messages(4)), (5, Some(1)));
        let many = groups(&args(
            "--transport udp --mode lat --size 1 --iters 104 --rounds 10",
        ))
        .unwrap();
        let each: Vec<u64> = (0..10)
            .filter_map(|round| many[0].messages(round))
            .collect();
        assert_eq!(each, [11, 11, 11, 11, 10, 10, 10, 10, 10, 10]);
    }
}
