//! Groups with many peers.

use crate::catalog::Transport;
use crate::run::group::{Kind, Member};
use crate::run::scale::Scale;
use crate::suite::plan::{Case, Pace, Place, Planned};
use crate::suite::results::Figure;

/// Plain TCP connections beside as many of ours as there are: a process may often have 20,000 descriptors.
const MOST_RAW: u32 = 4096;

/// One queue pair or completion queue with more and more peers.
pub(super) fn scales(pace: Pace) -> [Planned; 3] {
    let counts = pace.sizes(&[2, 16, 256, 4096, 10_000], &[2, 256, 1000]);
    let counts: Vec<u32> = counts
        .iter()
        .filter_map(|&count| u32::try_from(count).ok())
        .collect();
    let all = counts.last().copied().unwrap_or(2);
    let member = |transport, peers: u32, theirs, disturbed, key: String| Member {
        key,
        kind: Kind::Scale(Scale {
            transport,
            all,
            peers,
            theirs,
            disturbed,
            threads: 0,
        }),
    };
    let case = |quantity, name: String, ours: String, base: Option<String>, figure| Case {
        ours: vec![ours],
        base: base.into_iter().collect(),
        ..Case::new(quantity, name, &[], &[], figure)
    };
    let of = |[transport, raw]: [Transport; 2], [id, beside, memory]: [&'static str; 3]| {
        let key = |peers: u32| format!("{} {peers}", transport.name());
        let raw_key = |peers: u32| format!("{} {peers}", raw.name());
        let beside_raw = counts
            .iter()
            .filter(|&&peers| raw == Transport::Udp || peers <= MOST_RAW);
        let ours = counts
            .iter()
            .map(|&peers| member(transport, peers, false, false, key(peers)));
        let theirs = beside_raw.clone().map(|&peers| Member {
            key: raw_key(peers),
            kind: Kind::Scale(Scale {
                transport: raw,
                all: all.min(if raw == Transport::Udp { all } else { MOST_RAW }),
                peers,
                theirs: false,
                disturbed: false,
                threads: 0,
            }),
        });
        let members: Vec<Member> = ours.chain(theirs).collect();
        let more = counts.iter().skip(1);
        let mut cases: Vec<Case> = more
            .map(|&peers| {
                case(
                    id,
                    peers.to_string(),
                    key(peers),
                    Some(key(2)),
                    Figure::Time,
                )
            })
            .collect();
        cases.extend(beside_raw.map(|&peers| {
            let (name, base) = (peers.to_string(), Some(raw_key(peers)));
            case(beside, name, key(peers), base, Figure::Time)
        }));
        cases.push(case(
            memory,
            format!("of {all}"),
            key(all),
            None,
            Figure::Memory,
        ));
        let name = format!("scale {}", transport.name());
        pace.group(Place::Lo, &name, (7, 1), members).with(cases)
    };
    let mut ud = of(
        [Transport::Ud, Transport::Udp],
        ["scale-ud", "scale-ud-raw", "memory-ud"],
    );
    let more = [
        member(Transport::Ud, 2, true, false, "cq 2".to_owned()),
        member(Transport::Ud, 256, true, false, "cq 256".to_owned()),
        member(Transport::Ud, 256, false, true, "disturbed".to_owned()),
        threaded(1, all),
        threaded(8, all),
    ];
    ud.group.members.extend(more);
    let rd = of(
        [Transport::Rd, Transport::Udp],
        ["scale-rd", "scale-rd-raw", "memory-rd"],
    );
    let mut rc = of(
        [Transport::Rc, Transport::Tcp],
        ["scale-rc", "scale-rc-raw", "memory-rc"],
    );
    let kernel = case(
        "memory-kernel",
        format!("of {all}"),
        format!("rc {all}"),
        None,
        Figure::Kernel,
    );
    rc.cases.push(kernel);
    let beside = |quantity, ours: &str, base: &str| {
        case(
            quantity,
            "256 UD".to_owned(),
            ours.to_owned(),
            Some(base.to_owned()),
            Figure::Time,
        )
    };
    let ud = ud.with([
        beside("scale-cq", "cq 256", "cq 2"),
        beside("scale-disturbed", "disturbed", "ud 256"),
        Case {
            name: "8".to_owned(),
            ..beside("scale-threads", "threads 8", "threads 1")
        },
    ]);
    // Memory that one frees counts no more for the next: what takes most comes first.
    [rc, rd, ud]
}

/// So many threads with a UD queue pair each.
fn threaded(threads: u32, all: u32) -> Member {
    Member {
        key: format!("threads {threads}"),
        kind: Kind::Scale(Scale {
            transport: Transport::Ud,
            all,
            peers: 2 * threads,
            theirs: false,
            disturbed: false,
            threads,
        }),
    }
}
