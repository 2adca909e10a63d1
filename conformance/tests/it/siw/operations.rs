//! Operations of all sizes, asked for by either end, contents compared.

use dgiwarp::{MpaConfig, RcOperation, RcSendWr, WcOpcode, WcStatus};

use super::ops::{DIGEST, Initiator, Ops, READ, SEND_INVALIDATE, Siw, WRITE};
use super::{fnv1a, pattern, repeated};

/// Both MULPDUs, of Writes and of Sends, and one octet to each side, at an MTU of 1,500: 1442 octets less the header.
const SIZES: [u32; 12] = [
    0,
    1,
    3,
    1423,
    1424,
    1425,
    1427,
    1428,
    1429,
    65_537,
    1 << 20,
    64 << 20,
];
/// siw answers a Read of nothing with octets of its own memory; see `table::LIMITS`.
const LEAST_READ: u32 = 1;

/// Our payload, which differs from siw's.
pub(crate) fn ours(len: u32) -> Vec<u8> {
    repeated(len, |i| i.wrapping_mul(31) ^ 0x3c)
}

/// A Write of ours.
pub(crate) fn our_write(ops: &Ops<'_>, size: u32) {
    let sent = ours(size);
    // Odd offsets, so that nothing is aligned by chance.
    ops.memory.0.write(3, &sent);
    ops.post(ops.their_write(5), 3..3 + sent.len());
    ops.expect(WcOpcode::RdmaWrite);
    let value = ops.ask(DIGEST, 5, size).value;
    assert_eq!(value, fnv1a(&sent), "our Write of {size}");
}

/// A Read of ours, of what our Write wrote.
pub(crate) fn our_read(ops: &Ops<'_>, size: u32) {
    let len = usize::try_from(size).unwrap();
    ops.memory.0.write(3, &vec![0; len]);
    ops.post(ops.their_read(5), 3..3 + len);
    ops.expect(WcOpcode::RdmaRead);
    assert!(
        ops.memory.0.to_vec(3, len) == ours(size),
        "our Read of {size}"
    );
}

pub(crate) fn our_send(ops: &Ops<'_>, size: u32) {
    let sent = ours(size);
    assert_eq!(ops.send(&sent), fnv1a(&sent), "our Send of {size}");
}

pub(crate) fn their_write(ops: &Ops<'_>, size: u32) {
    let len = usize::try_from(size).unwrap();
    ops.memory.0.write(0, &vec![0; len]);
    assert_eq!(ops.ask(WRITE, 7, size).error, 0);
    assert!(
        ops.memory.0.to_vec(0, len) == pattern(size),
        "siw's Write of {size}"
    );
}

pub(crate) fn their_read(ops: &Ops<'_>, size: u32) {
    let octets = ours(size);
    ops.memory.0.write(0, &octets);
    let answer = ops.ask(READ, 9, size);
    assert_eq!(
        (answer.error, answer.value),
        (0, fnv1a(&octets)),
        "siw's Read of {size}"
    );
}

pub(crate) fn their_send(ops: &Ops<'_>, size: u32) {
    assert!(ops.receive(size) == pattern(size), "siw's Send of {size}");
}

/// siw takes our key away. Our memory is for nobody else from then on.
pub(crate) fn their_send_invalidate(ops: &Ops<'_>) {
    let answer = ops.ask(SEND_INVALIDATE, 0, 0);
    assert_eq!(answer.invalidated, Some(ops.memory.1.rkey()));
}

/// We take siw's key away, with a command.
pub(crate) fn our_send_invalidate(ops: &Ops<'_>) {
    ops.post_command(DIGEST, 0, 0, 0, Some(ops.theirs.0));
    ops.expect(WcOpcode::Send);
    assert_eq!(ops.answer().value, fnv1a(b""));
}

/// Every operation of `size` octets, by each end.
fn every_operation(ops: &Ops<'_>, size: u32) {
    our_send(ops, size);
    their_send(ops, size);
    our_write(ops, size);
    if size >= LEAST_READ {
        our_read(ops, size);
    }
    their_write(ops, size);
    their_read(ops, size);
}

/// Several Reads at a time, no more than agreed on, and a fenced Write behind them.
fn many_reads(siw: &Siw<'_>) {
    let ops = Ops::connect(siw, &MpaConfig::default(), Initiator::We, 1 << 20);
    let octets = pattern(40_000);
    ops.memory.0.write(0, &octets);
    ops.post(ops.their_write(0), 0..40_000);
    ops.expect(WcOpcode::RdmaWrite);
    for read in 0..20u32 {
        let from = 50_000 + 2000 * usize::try_from(read).unwrap();
        ops.post(ops.their_read(2000 * read), from..from + 2000);
    }
    let sges = [ops.memory.1.sge(200_000..240_000)];
    let overwrite = RcSendWr {
        fence: true,
        ..RcSendWr::new(9, ops.their_write(0), &sges)
    };
    ops.qp.post_send(&[overwrite]).unwrap();
    for _ in 0..20 {
        ops.expect(WcOpcode::RdmaRead);
    }
    ops.expect(WcOpcode::RdmaWrite);
    assert!(ops.memory.0.to_vec(50_000, 40_000) == octets);
    assert_eq!(ops.ask(DIGEST, 0, 40_000).value, fnv1a(&[0; 40_000]));
    ops.leave();
}

/// A right given with one Send is taken away by the next, from either end: a solicited one and a plain one too.
fn solicited(siw: &Siw<'_>) {
    let ops = Ops::connect(siw, &MpaConfig::default(), Initiator::We, 4096);
    // A Send with Solicited Event is a Send to siw.
    ops.command(super::ops::RECEIVE, 0, 10);
    ops.answer();
    ops.post_answer_receive();
    ops.memory.0.write(0, &ours(10));
    let sges = [ops.memory.1.sge(..10)];
    let send = RcSendWr {
        solicited: true,
        ..RcSendWr::new(7, RcOperation::Send { invalidate: None }, &sges)
    };
    ops.qp.post_send(&[send]).unwrap();
    let wc = ops.expect(WcOpcode::Send);
    assert_eq!(wc.status, WcStatus::Success);
    assert_eq!(ops.answer().value, fnv1a(&ours(10)));
    ops.leave();
}

pub(crate) fn all(siw: &Siw<'_>) {
    let mpa = MpaConfig::default();
    for (initiator, room, sizes) in [
        (Initiator::We, (64 << 20) + 64, &SIZES[..]),
        (Initiator::Siw, 1 << 20, &[0, 1, 1425, 100_001]),
    ] {
        siw.tried(|| {
            let ops = Ops::connect(siw, &mpa, initiator, room);
            for size in sizes {
                every_operation(&ops, *size);
            }
            ops.leave();
        });
    }
    siw.tried(|| many_reads(siw));
    siw.tried(|| solicited(siw));
}
