//! All ways to be connected, with every operation, and what siw cannot do.

use dgiwarp::{MpaConfig, MpaRevision, ReadDepths, RtrSet};

use super::DEPTHS;
use super::operations as op;
use super::ops::{Initiator, Ops, Siw};

/// Ends that want CRCs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crc {
    Nobody,
    We,
    /// Only an Initiator's word counts with siw.
    Siw,
}

/// The RTR indications of peer-to-peer mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rtr {
    /// The client-server model.
    None,
    Write,
    Read,
    /// Both are offered; siw sends and takes a Write then.
    Both,
}

/// A way to be connected.
#[derive(Debug, Clone, Copy)]
struct Row {
    initiator: Initiator,
    crc: Crc,
    revision: MpaRevision,
    rtr: Rtr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    OurSend,
    OurWrite,
    OurRead,
    OurSendInvalidate,
    TheirSend,
    TheirWrite,
    TheirRead,
    TheirSendInvalidate,
}

/// Operations of each row. Invalidations come last: the others use the keys that they take.
const OPERATIONS: [Operation; 8] = [
    Operation::OurSend,
    Operation::OurWrite,
    Operation::OurRead,
    Operation::TheirSend,
    Operation::TheirWrite,
    Operation::TheirRead,
    Operation::TheirSendInvalidate,
    Operation::OurSendInvalidate,
];

/// Several segments, the last one with a pad.
const SIZES: [u32; 2] = [17, 5001];

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for initiator in [Initiator::We, Initiator::Siw] {
        for (revision, rtr) in [
            (MpaRevision::One, Rtr::None),
            (MpaRevision::Two, Rtr::None),
            (MpaRevision::Two, Rtr::Write),
            (MpaRevision::Two, Rtr::Read),
            (MpaRevision::Two, Rtr::Both),
        ] {
            for crc in [Crc::Nobody, Crc::We, Crc::Siw] {
                if crc == Crc::Siw && initiator == Initiator::We {
                    continue;
                }
                rows.push(Row {
                    initiator,
                    crc,
                    revision,
                    rtr,
                });
            }
        }
    }
    rows
}

/// Something that siw cannot do, or does in its own way.
#[derive(Debug)]
struct Limit {
    what: &'static str,
    /// How it shows.
    symptom: &'static str,
    /// The test that meets it. Where that is none, it depends on the moment.
    met: Option<&'static str>,
}

/// siw's limits, of Linux 6.1.
const LIMITS: &[Limit] = &[
    Limit {
        what: "Markers",
        symptom: "it rejects a Request and refuses a Reply that ask for them",
        met: Some("startup::rejected, startup::rejects"),
    },
    Limit {
        what: "the atomic operations and Immediate Data of RFC 7306",
        symptom: "Terminate for an unexpected opcode, its layer and type as below",
        met: Some("refusals::of_ours"),
    },
    Limit {
        what: "a zero-length Send as RTR indication",
        symptom: "it asks for a Write instead",
        met: None,
    },
    Limit {
        what: "layer and type of a Terminate",
        symptom: "each is where the other belongs, coming and going: 1/0 for 0/1, 2/1 for 1/2, 2/0 for 0/2",
        met: Some("refusals"),
    },
    Limit {
        what: "more than 256 octets behind a Request's first 20",
        symptom: "it closes, and upon that we fall back to revision 1",
        met: Some("startup::ours"),
    },
    Limit {
        what: "more than 256 octets behind a Reply's first 20",
        symptom: "NULL pointer dereference in the kernel, after which siw is dead",
        met: None,
    },
    Limit {
        what: "256 octets of private data in revision 1",
        symptom: "its program is told of none",
        met: Some("startup::ours"),
    },
    Limit {
        what: "252 to 255 octets of private data of its own in revision 2",
        symptom: "PD_Length says 0 to 3, and what follows is no startup frame",
        met: Some("startup::theirs"),
    },
    Limit {
        what: "depths of a Request of revision 1, which names none",
        symptom: "its program is told of 0; one that takes these over cannot read, and each RDMA Read fails with EINVAL",
        met: None,
    },
    Limit {
        what: "FPDUs right behind its Reply",
        symptom: "it sends the Reply before it looks at what arrives, so the first one lies there until the next one comes",
        met: None,
    },
    Limit {
        what: "Terminates, and Reads of its peer",
        symptom: "now and then, more often on a busy machine, it closes TCP without a word, or does not see a Terminate of ours",
        met: None,
    },
    Limit {
        what: "octets that come together with its peer's FIN",
        symptom: "now and then, on a busy machine, it resets TCP and its program never sees them; our FIN comes behind TCP's acknowledgement",
        met: None,
    },
    Limit {
        what: "an RDMA Read of nothing behind other operations",
        symptom: "a Response with octets of a message that it sent before, which ends our connection (tagged buffer, bounds)",
        met: None,
    },
    Limit {
        what: "a peer that closes TCP before siw has taken the connection from its listener",
        symptom: "the listener is gone, and no other gets a connection",
        met: None,
    },
    Limit {
        what: "a peer that closes TCP between siw's peer-to-peer Reply and the RTR indication",
        symptom: "kernel BUG in iwcm.c, after which siw is dead",
        met: Some("ends::impolite"),
    },
    Limit {
        what: "a peer that resets TCP right behind its Reply",
        symptom: "a Send that its program has posted never completes",
        met: Some("ends::of_a_bare_peer"),
    },
];

fn configuration(row: &Row) -> MpaConfig {
    MpaConfig {
        crc: (row.crc == Crc::We).into(),
        revision: row.revision,
        depths: DEPTHS,
        peer_to_peer: row.rtr != Rtr::None,
        rtr: RtrSet {
            write: row.rtr != Rtr::Read,
            read: row.rtr != Rtr::Write,
            ..RtrSet::NONE
        },
        ..MpaConfig::default()
    }
}

fn set(siw: &Siw<'_>, row: &Row) {
    let initiator = row.initiator == Initiator::Siw;
    let revision = match row.revision {
        MpaRevision::One if initiator => 1,
        MpaRevision::One | MpaRevision::Two => 2,
    };
    let (peer_to_peer, mode) = match row.rtr {
        Rtr::None => (0, 3),
        Rtr::Write => (1, 1),
        Rtr::Read => (1, 2),
        Rtr::Both => (1, 3),
    };
    siw.set(&[
        ("mpa_version", revision),
        ("mpa_crc_required", u8::from(row.crc == Crc::Siw)),
        ("peer_to_peer", if initiator { peer_to_peer } else { 0 }),
        ("rtr_mode", mode),
    ]);
}

fn row(siw: &Siw<'_>, row: &Row) {
    eprintln!("{row:?}");
    set(siw, row);
    let ops = Ops::connect(siw, &configuration(row), row.initiator, 1 << 16);
    let negotiated = ops.negotiation;
    assert_eq!(negotiated.revision, row.revision);
    assert_eq!(negotiated.crc, row.crc != Crc::Nobody);
    assert_eq!(negotiated.rtr.is_some(), row.rtr != Rtr::None);
    if row.revision == MpaRevision::Two {
        assert_eq!(negotiated.depths, ReadDepths { ird: 4, ord: 4 });
    }
    for operation in OPERATIONS {
        for size in SIZES {
            match operation {
                Operation::OurSend => op::our_send(&ops, size),
                Operation::OurWrite => op::our_write(&ops, size),
                Operation::OurRead => op::our_read(&ops, size),
                Operation::TheirSend => op::their_send(&ops, size),
                Operation::TheirWrite => op::their_write(&ops, size),
                Operation::TheirRead => op::their_read(&ops, size),
                Operation::OurSendInvalidate | Operation::TheirSendInvalidate => {}
            }
        }
        match operation {
            Operation::OurSendInvalidate => op::our_send_invalidate(&ops),
            Operation::TheirSendInvalidate => op::their_send_invalidate(&ops),
            Operation::OurSend
            | Operation::OurWrite
            | Operation::OurRead
            | Operation::TheirSend
            | Operation::TheirWrite
            | Operation::TheirRead => {}
        }
    }
    ops.leave();
}

pub(crate) fn all(siw: &Siw<'_>) {
    for Limit { what, symptom, met } in LIMITS {
        eprintln!("siw: {what}: {symptom} ({})", met.unwrap_or("not provoked"));
    }
    for one in rows() {
        siw.tried(|| row(siw, &one));
    }
}
