//! Groups of short messages: half round trips and rates.

use crate::catalog::subjects::*;
use crate::catalog::{Mode, Subject};
use crate::machine::host::Wait;
use crate::report::size as short;
use crate::run::group::{Kind, Member};
use crate::session::control::EndpointSpec;
use crate::suite::plan::{Case, KIB, MESSAGES, Pace, Place, Planned, SMALL};
use crate::suite::results::Figure;

/// Messages of a list.
const LIST: u32 = 64;

/// Half round trips, polled.
pub(super) fn latencies(pace: Pace) -> Vec<Planned> {
    let sizes = pace.sizes(&[1, SMALL, KIB, 2 * KIB], &[SMALL, KIB]);
    let group = |&size: &u64| {
        let members = MESSAGES.map(|subject| Member::of(subject, Mode::Lat, size, Wait::Spin));
        let name = format!("lat {}", short(size));
        let at = |subject: Subject| format!("{subject}, {}", short(size));
        let thesis = Case::new(
            "thesis-latency",
            short(size),
            &[UD_WRITE_RECORD],
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
            time("ud-latency", UD_WRITE_RECORD, UDP_RAW),
            time("rc-latency", RC_SEND, TCP_RAW),
            time("rc-latency", RC_WRITE, TCP_RAW),
        ])
    };
    sizes.iter().map(group).collect()
}

/// Programs of perftest beside raw TCP that spins and that sleeps.
pub(super) fn programs(pace: Pace) -> Planned {
    let raw = |wait, key: &str| Member {
        key: key.to_owned(),
        ..Member::of(TCP_RAW, Mode::Lat, SMALL, wait)
    };
    let iters = if pace.quick { 4000 } else { 20_000 };
    let program = |line: &str| Member {
        key: line.to_owned(),
        kind: Kind::Program {
            line: line.to_owned(),
            size: SMALL,
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
pub(super) fn sleeping(pace: Pace) -> Vec<Planned> {
    let sizes = pace.sizes(&[SMALL, KIB], &[SMALL]);
    let subjects = [UDP_RAW, UD_SEND, UD_WRITE_RECORD, TCP_RAW, RC_SEND];
    let group = |&size: &u64| {
        let members = subjects.map(|subject| Member::of(subject, Mode::Lat, size, Wait::Block));
        let pairs = [
            (UD_SEND, UDP_RAW),
            (UD_WRITE_RECORD, UDP_RAW),
            (RC_SEND, TCP_RAW),
        ];
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
pub(super) fn rates(pace: Pace) -> Vec<Planned> {
    let subjects = [
        UDP_SINGLE,
        UD_SEND,
        UD_WRITE_RECORD,
        TCP_RAW,
        RC_SEND,
        RC_WRITE,
    ];
    let pairs = [
        (UD_SEND, UDP_SINGLE),
        (UD_WRITE_RECORD, UDP_SINGLE),
        (RC_SEND, TCP_RAW),
        (RC_WRITE, TCP_RAW),
    ];
    let single = subjects.map(|subject| Member::of(subject, Mode::Rate, SMALL, Wait::Spin));
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
    let lists = subjects.map(|subject| match subject.transport.is_raw() {
        true => Member::of(subject, Mode::Rate, SMALL, Wait::Spin),
        false => listed(subject, SMALL),
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

/// An operation posted as lists.
pub(super) fn listed(subject: Subject, size: u64) -> Member {
    let spec = EndpointSpec {
        list: LIST,
        ..EndpointSpec::new(subject, Mode::Rate, size)
    };
    Member {
        key: listed_key(subject),
        ..Member::endpoint(spec)
    }
}

/// The name of an operation posted as lists.
pub(super) fn listed_key(subject: Subject) -> String {
    format!("{subject}, lists")
}
