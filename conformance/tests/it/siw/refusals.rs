//! Accesses that one end refuses: the Terminate, and what the programs of both ends see.
//!
//! siw has layer and type of a Terminate in each other's place, coming and going: see `table::LIMITS`. Where they are equal nothing shows. So its
//! Terminate of a Read has layer 1 and type 0 where RFC 5040 §4.8 wants 0 and 1, and so is what it logs of ours.

use dgiwarp::{Access, AtomicOperation, MpaConfig, RcOperation, WcOpcode, WcStatus};

use super::ops::{FLUSHED, HELLO, Initiator, Ops, READ, SEND, SEND_INVALIDATE, Siw, WRITE};
use super::raw::{CLIENT_SERVER, Raw};

const OUR_ROOM: u32 = 4096;
const READ_FLUSHED: &str = "read: Work Request Flushed Error\n";

fn connect<'a>(siw: &'a Siw<'a>) -> Ops<'a> {
    Ops::connect(siw, &MpaConfig::default(), Initiator::We, OUR_ROOM)
}

/// Something of ours that siw refuses.
struct OfOurs {
    what: &'static str,
    operation: fn(&Ops<'_>) -> RcOperation,
    length: usize,
    /// How it ends. A Write is complete before the peer looks at it (RFC 5040 §5.5).
    status: WcStatus,
    /// Contents of siw's Terminate.
    told: &'static str,
}

const OF_OURS: &[OfOurs] = &[
    OfOurs {
        what: "a Read by a key that is none",
        operation: |ops| RcOperation::Read {
            rkey: !ops.theirs.0,
            remote_addr: ops.theirs.1,
        },
        length: 100,
        status: WcStatus::RemoteOperation,
        told: "layer 1, type 0, code 0x00",
    },
    OfOurs {
        what: "a Read beyond the end",
        operation: |ops| ops.their_read(ops.their_room - 50),
        length: 100,
        status: WcStatus::RemoteOperation,
        told: "layer 1, type 0, code 0x01",
    },
    OfOurs {
        what: "a Write by a key that is none",
        operation: |ops| RcOperation::Write {
            rkey: !ops.theirs.0,
            remote_addr: ops.theirs.1,
            immediate: None,
        },
        length: 100,
        status: WcStatus::Success,
        told: "layer 1, type 1, code 0x00",
    },
    OfOurs {
        what: "a Write beyond the end",
        operation: |ops| ops.their_write(ops.their_room - 50),
        length: 100,
        status: WcStatus::Success,
        told: "layer 1, type 1, code 0x01",
    },
    OfOurs {
        what: "an atomic operation, which siw does not know",
        operation: |ops| RcOperation::Atomic {
            rkey: ops.theirs.0,
            remote_addr: ops.theirs.1,
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        },
        length: 8,
        status: WcStatus::RemoteOperation,
        told: "layer 2, type 0, code 0x06",
    },
    OfOurs {
        what: "Immediate Data, which siw does not know",
        operation: |ops| RcOperation::Write {
            rkey: ops.theirs.0,
            remote_addr: ops.theirs.1,
            immediate: Some(7),
        },
        length: 100,
        status: WcStatus::Success,
        told: "layer 2, type 0, code 0x06",
    },
];

fn of_ours(siw: &Siw<'_>) {
    for row in OF_OURS {
        siw.tried(|| one_of_ours(siw, row));
    }
}

fn one_of_ours(siw: &Siw<'_>, row: &OfOurs) {
    let ops = connect(siw);
    ops.post_answer_receive();
    ops.post((row.operation)(&ops), 0..row.length);
    assert_eq!(ops.wait().status, row.status, "{}", row.what);
    let receive = ops.wait();
    let flushed = (receive.opcode, receive.status);
    assert_eq!(flushed, (WcOpcode::Recv, WcStatus::Flushed), "{}", row.what);
    let end = ops.qp.end().unwrap().to_string();
    assert_eq!(
        end,
        format!("the peer terminated: {}", row.told),
        "{}",
        row.what
    );
    let said = ops.over();
    assert!(said.contains(FLUSHED), "{}: {said}", row.what);
}

/// Whose key siw is given.
#[derive(Clone, Copy)]
enum Key {
    Ours,
    /// Of the same octets, without a right for the peer.
    WithoutRights,
    None,
}

/// Something of siw's that we refuse.
struct OfSiws {
    what: &'static str,
    operation: u32,
    key: Key,
    length: u32,
    /// Why our end is over.
    end: &'static str,
    /// Contents of our Terminate, as siw reads it.
    told: &'static str,
    /// Result of the operation of siw's program. A Write or Send is complete before the peer checks it.
    seen: &'static str,
    /// Status of the receive that was posted here.
    receive: WcStatus,
}

const OF_SIWS: &[OfSiws] = &[
    OfSiws {
        what: "a Read by a key that is none",
        operation: READ,
        key: Key::None,
        length: 100,
        end: "requested buffer: invalid STag",
        told: "layer 1, type 0, code 0",
        seen: READ_FLUSHED,
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "a Read beyond the end",
        operation: READ,
        key: Key::Ours,
        length: OUR_ROOM + 1,
        end: "requested buffer: base or bounds violation",
        told: "layer 1, type 0, code 1",
        seen: READ_FLUSHED,
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "a Read without the right",
        operation: READ,
        key: Key::WithoutRights,
        length: 100,
        end: "requested buffer: access rights violation",
        told: "layer 1, type 0, code 2",
        seen: READ_FLUSHED,
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "a Write by a key that is none",
        operation: WRITE,
        key: Key::None,
        length: 100,
        end: "tagged segment: invalid STag",
        told: "layer 1, type 1, code 0",
        seen: "",
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "a Write beyond the end",
        operation: WRITE,
        key: Key::Ours,
        length: OUR_ROOM + 1,
        end: "tagged segment: base or bounds violation",
        told: "layer 1, type 1, code 1",
        seen: "",
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "a Write without the right",
        operation: WRITE,
        key: Key::WithoutRights,
        length: 100,
        end: "tagged segment: access rights violation",
        told: "layer 1, type 0, code 2",
        seen: "",
        receive: WcStatus::Flushed,
    },
    OfSiws {
        what: "an invalidation of a key that is none",
        operation: SEND_INVALIDATE,
        key: Key::None,
        length: 0,
        end: " cannot be invalidated",
        told: "layer 1, type 0, code 9",
        seen: "",
        receive: WcStatus::RemoteOperation,
    },
    OfSiws {
        // The answer comes behind it, and finds no receive.
        what: "a Send without a receive",
        operation: SEND,
        key: Key::Ours,
        length: 32,
        end: "untagged segment: no buffer available for the message",
        told: "layer 2, type 1, code 2",
        seen: "",
        receive: WcStatus::Success,
    },
    OfSiws {
        what: "a Send that is longer than its receive",
        operation: SEND,
        key: Key::Ours,
        length: 33,
        end: "untagged segment: message too long for its buffer",
        told: "layer 2, type 1, code 5",
        seen: "",
        receive: WcStatus::LocalLength,
    },
];

fn of_siws(siw: &Siw<'_>) {
    for row in OF_SIWS {
        siw.tried(|| one_of_siws(siw, row));
    }
}

fn one_of_siws(siw: &Siw<'_>, row: &OfSiws) {
    let ops = connect(siw);
    let (buffer, mr) = &ops.memory;
    let local = ops.qp.pd().register(buffer.region(), Access::LOCAL_WRITE);
    let local = local.unwrap();
    let rkey = match row.key {
        Key::Ours => mr.rkey(),
        Key::WithoutRights => local.rkey(),
        Key::None => !mr.rkey(),
    };
    siw.new_log();
    ops.command_with_key(row.operation, rkey, 0, row.length);
    assert_eq!(ops.wait().status, row.receive, "{}", row.what);
    let end = ops.end().to_string();
    assert!(end.ends_with(row.end), "{}: {end}", row.what);
    // Of a Write that ends outside, what came before the end may be there.
    if !matches!(row.key, Key::Ours) {
        let octets = buffer.to_vec(0, buffer.len());
        assert!(octets.iter().all(|octet| *octet == 0), "{}", row.what);
    }
    let said = ops.over();
    assert!(said.contains(row.seen), "{}: {said}", row.what);
    let log = siw.new_log();
    let told = format!("siw: got TERMINATE. {}", row.told);
    let is_told = log.lines().any(|line| line.ends_with(&told));
    assert!(is_told, "{}: {log}", row.what);
}

/// Octets that siw refuses, and the first of its Terminate behind the DDP header: layer and type, code.
fn octets(siw: &Siw<'_>) {
    let mut write = vec![0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
    write.extend([7; 4]);
    let request = |opcode| vec![0x41, opcode, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let mut read = request(0x41);
    read.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    read.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut atomic = request(0x4a);
    atomic.extend([0; 52]);
    for (ulpdu, told) in [(write, [0x11, 0]), (read, [0x10, 0]), (atomic, [0x20, 6])] {
        let mut raw = Raw::connect(siw);
        raw.write(&Raw::request(b"", CLIENT_SERVER));
        raw.startup_frame();
        raw.command(HELLO, 0);
        raw.ulpdu().expect("an answer");
        raw.fpdu(&ulpdu);
        let terminate = raw.ulpdu().expect("a Terminate");
        let head = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(terminate[..18], head, "{terminate:x?}");
        assert_eq!(terminate[18..20], told, "{terminate:x?}");
        assert_eq!(raw.ulpdu(), None, "nothing comes behind it");
        drop(raw);
        siw.says("over\n");
    }
}

pub(crate) fn all(siw: &Siw<'_>) {
    siw.tried(|| octets(siw));
    of_ours(siw);
    of_siws(siw);
}
