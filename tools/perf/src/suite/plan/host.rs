//! Groups within one host: one-sided copies, and queue pairs by memory beside plain shared memory.

use crate::catalog::subjects::*;
use crate::catalog::{Mode, Subject};
use crate::machine::host::Wait;
use crate::run::group::Member;
use crate::suite::plan::messages::{listed, listed_key};
use crate::suite::plan::{Case, MIB, Pace, Place, Planned, SMALL};
use crate::suite::results::Figure;

/// Messages of queue pairs by memory.
const BY_MEMORY: [Subject; 3] = [UD_RING_SEND, RC_RING_SEND, RC_RING_WRITE];

/// All of them.
pub(super) fn within_host(pace: Pace) -> [Planned; 5] {
    [
        one_sided(pace),
        beside_raw(pace, "shm-latency", Mode::Lat),
        beside_raw(pace, "shm-rate", Mode::Rate),
        lists(pace),
        goodput(pace),
    ]
}

/// Writes and Reads whose target does not poll its queue.
fn one_sided(pace: Pace) -> Planned {
    let members = [RC_DIRECT_WRITE, RC_DIRECT_READ]
        .map(|subject| Member::of(subject, Mode::Lat, SMALL, Wait::Spin));
    let case = |quantity, subject: Subject| {
        let name = format!("{subject}, 64");
        Case::new(quantity, name, &[subject], &[], Figure::Time)
    };
    pace.group(Place::Lo, "one-sided 64", (21, 25), members.to_vec())
        .with([
            case("one-sided-write", RC_DIRECT_WRITE),
            case("one-sided-read", RC_DIRECT_READ),
        ])
}

/// Messages of 64 octets beside those of a ring without queue pairs.
fn beside_raw(pace: Pace, quantity: &'static str, mode: Mode) -> Planned {
    let (figure, rounds) = match mode {
        Mode::Lat => (Figure::Time, (21, 25)),
        _ => (Figure::Rate, (15, 60)),
    };
    let subjects = std::iter::once(SHM_RAW).chain(BY_MEMORY);
    let members = subjects.map(|subject| Member::of(subject, mode, SMALL, Wait::Spin));
    let cases = BY_MEMORY.map(|subject| {
        let name = format!("{subject}, 64");
        Case::new(quantity, name, &[subject], &[SHM_RAW], figure)
    });
    let name = format!("memory {} 64", mode.name());
    pace.group(Place::Lo, &name, rounds, members.collect())
        .with(cases)
}

/// Messages of 64 octets, posted as lists.
fn lists(pace: Pace) -> Planned {
    let members = BY_MEMORY.map(|subject| listed(subject, SMALL));
    let cases = BY_MEMORY.map(|subject| Case {
        ours: vec![listed_key(subject)],
        ..Case::new("shm-rate-list", subject.to_string(), &[], &[], Figure::Rate)
    });
    pace.group(Place::Lo, "memory rate list", (15, 60), members.to_vec())
        .with(cases)
}

/// Large messages beside one copy in and one out.
fn goodput(pace: Pace) -> Planned {
    let ours = [RC_RING_SEND, RC_RING_WRITE];
    let members = [SHM_RAW, RC_RING_SEND, RC_RING_WRITE]
        .map(|subject| Member::of(subject, Mode::Bw, MIB, Wait::Spin));
    let cases = ours.map(|subject| {
        let name = format!("{subject}, 1M");
        let base = &[SHM_RAW];
        Case::new("shm-goodput", name, &[subject], base, Figure::Goodput)
    });
    pace.group(Place::Lo, "memory bw 1M", (15, 80), members.to_vec())
        .with(cases)
}
