//! Groups of streams: goodput and CPU time, with and without loss.

use crate::catalog::subjects::*;
use crate::catalog::{Mode, Op, Subject};
use crate::machine::host::Wait;
use crate::report::size as short;
use crate::run::group::Member;
use crate::session::control::EndpointSpec;
use crate::suite::plan::{Case, KIB, MESSAGES, MIB, Pace, Place, Planned};
use crate::suite::results::Figure;

/// Shares of datagrams dropped; another member drops none.
const LOSSES: [f64; 4] = [0.001, 0.005, 0.01, 0.05];

/// Large messages over the loopback interface, which takes segments of 64 KiB.
pub(super) fn loopback_goodput(pace: Pace) -> Planned {
    let subjects = [
        UDP_RAW,
        UD_WRITE_RECORD,
        UD_READ,
        TCP_RAW,
        RC_WRITE,
        RC_READ,
    ];
    let members = subjects.map(|subject| Member::of(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Lo, "bw 1M", (15, 80), members.to_vec())
        .with([
            goodput("goodput-large", UD_WRITE_RECORD, UDP_RAW),
            goodput("rc-goodput-large", RC_WRITE, TCP_RAW),
            goodput("read-goodput", UD_READ, UD_WRITE_RECORD),
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

/// Streams of 64 KiB whose ends sleep while they wait: what a sleeper leaves for later would wait for the background thread.
pub(super) fn sleeping_goodput(pace: Pace) -> Planned {
    let subjects = [UDP_RAW, UD_SEND, UD_READ, TCP_RAW, RC_SEND, RC_READ];
    let size = 64 * KIB;
    let members = subjects.map(|subject| Member::of(subject, Mode::Bw, size, Wait::Block));
    let pairs = [
        (UD_SEND, UDP_RAW),
        (UD_READ, UDP_RAW),
        (RC_SEND, TCP_RAW),
        (RC_READ, TCP_RAW),
    ];
    let cases = pairs.map(|(subject, raw)| {
        let name = format!("{subject}, {}", short(size));
        Case::new(
            "sleeping-goodput",
            name,
            &[subject],
            &[raw],
            Figure::Goodput,
        )
    });
    pace.group(Place::Lo, "sleeping bw 64K", (11, 60), members.to_vec())
        .with(cases)
}

/// Messages of 1 KiB that leave one by one, as the thesis' do: TCP has more to do for each than UDP.
pub(super) fn short_goodput(pace: Pace) -> Planned {
    let members = MESSAGES.map(|subject| {
        Member::endpoint(EndpointSpec {
            autocork: false,
            ..EndpointSpec::new(subject, Mode::Bw, KIB)
        })
    });
    let thesis = Case::new(
        "thesis-goodput",
        short(KIB),
        &[UD_WRITE_RECORD],
        &[RC_SEND, RC_WRITE],
        Figure::Goodput,
    );
    pace.group(Place::Lo, "bw 1K", (15, 60), members.to_vec())
        .with([thesis])
}

/// Large messages over a link with Ethernet's MTU and all offloads.
pub(super) fn veth_goodput(pace: Pace) -> Planned {
    let members =
        [UDP_RAW, UD_WRITE_RECORD].map(|subject| Member::of(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Veth, "bw 1M", (15, 80), members.to_vec())
        .with([goodput("goodput-veth", UD_WRITE_RECORD, UDP_RAW)])
}

/// Large messages where the sending host cuts segments.
pub(super) fn wire_goodput(pace: Pace) -> Planned {
    let members = [UDP_RAW, UD_WRITE_RECORD, TCP_RAW, RC_WRITE]
        .map(|subject| Member::of(subject, Mode::Bw, MIB, Wait::Spin));
    pace.group(Place::Wire, "bw 1M", (15, 80), members.to_vec())
        .with([
            goodput("goodput-wire", UD_WRITE_RECORD, UDP_RAW),
            goodput("rc-goodput-wire", RC_WRITE, TCP_RAW),
        ])
}

/// CPU time of streams. Both sides sleep while they wait: a spinning side is always busy. A plain RC Write wakes nobody, so
/// its target would have to poll.
pub(super) fn cpu(pace: Pace, place: Place) -> Planned {
    let subjects = match place {
        Place::Lo => vec![TCP_RAW, RC_WRITE_IMM],
        Place::Veth | Place::Wire => vec![UDP_RAW, UD_WRITE_RECORD, TCP_RAW, RC_WRITE_IMM],
    };
    let members = subjects
        .iter()
        .map(|&subject| Member::of(subject, Mode::Bw, MIB, Wait::Block));
    let case = |quantity, subject: Subject, raw| {
        let name = format!("{subject}, {}", place.name());
        Case::new(quantity, name, &[subject], &[raw], Figure::Cpu)
    };
    let mut cases = vec![case("cpu-tcp", RC_WRITE_IMM, TCP_RAW)];
    if place != Place::Lo {
        cases.push(case("cpu-udp-wire", UD_WRITE_RECORD, UDP_RAW));
    }
    pace.group(place, "cpu 1M", (11, 100), members.collect())
        .with(cases)
}

/// Goodput and validity when the receiver drops some of the datagrams.
pub(super) fn losses(pace: Pace) -> Vec<Planned> {
    let sizes = pace.sizes(&[KIB, 16 * KIB, 64 * KIB, MIB], &[64 * KIB]);
    let mut groups = Vec::new();
    for &size in sizes {
        for subject in [UD_WRITE_RECORD, UD_SEND, UD_READ] {
            let shares = [0.0].into_iter().chain(LOSSES);
            let members = shares.map(|share| lossy(subject, size, share));
            let name = format!("loss {subject} {}", short(size));
            let cases = LOSSES.into_iter().flat_map(|share| {
                let key = lossy_key(subject, share);
                let name = match subject.op {
                    Op::WriteRecord => format!("{}, {:.1} %", short(size), share * 100.0),
                    _ => format!("{key}, {}", short(size)),
                };
                let of_record = subject == UD_WRITE_RECORD;
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

/// An operation under loss.
fn lossy(subject: Subject, size: u64, share: f64) -> Member {
    let spec = EndpointSpec {
        loss: share,
        ..EndpointSpec::new(subject, Mode::Loss, size)
    };
    Member {
        key: lossy_key(subject, share),
        ..Member::endpoint(spec)
    }
}

/// The name of an operation under loss.
fn lossy_key(subject: Subject, share: f64) -> String {
    format!("{subject}, {:.1} %", share * 100.0)
}
