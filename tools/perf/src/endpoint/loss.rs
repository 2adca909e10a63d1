//! Datagrams that are dropped on purpose, and their rows.
//!
//! A queue pair drops by the stack's own fault injection. Raw rows drop here, in the receiver too,
//! with the same probability and seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::endpoint::pattern::{self, widen};

/// The shares of datagrams dropped by `--mode loss` without `--loss`.
pub(crate) const DEFAULT_LOSSES: &[f64] = &[0.0, 0.001, 0.01, 0.05];

/// The MTU of runs with loss, unless another is asked for: with the 64 KiB of loopback most messages
/// would be one datagram, and arrive whole or not at all.
pub(crate) const DEFAULT_MTU: u32 = 1500;

/// Decides which datagrams a raw receiver drops: the same seed and order give the same decisions.
#[derive(Debug)]
pub(crate) struct Dropper {
    generator: ChaCha8Rng,
    /// A 32-bit draw below this drops.
    threshold: u64,
    dropped: u64,
}

impl Dropper {
    /// Drops this share of the datagrams, 0 to 1.
    pub(crate) fn new(share: f64, seed: u64) -> Self {
        Self {
            generator: ChaCha8Rng::seed_from_u64(seed),
            threshold: threshold(share),
            dropped: 0,
        }
    }

    /// Whether the next datagram is dropped.
    pub(crate) fn drops(&mut self) -> bool {
        if self.threshold == 0 {
            return false;
        }
        let drops = u64::from(self.generator.next_u32()) < self.threshold;
        self.dropped += u64::from(drops);
        drops
    }

    /// Datagrams dropped since this was asked last.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// A share of all 32-bit numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is in 0..=1, so that the product is at most 2^32"
)]
fn threshold(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64
}

/// In stamps of runs with loss, this bit of the position names a mark, a datagram without data.
const MARK: u64 = 1 << (pattern::POSITION_BITS - 1);
/// And this bit that it is the last one.
const LAST: u64 = 1 << (pattern::POSITION_BITS - 2);

/// How far the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The position up to which it sent.
    pub(crate) position: u64,
    /// Whether that is the end of the round.
    pub(crate) last: bool,
}

impl Mark {
    /// The mark as the position part of a stamp.
    pub(crate) const fn to_position(self) -> u64 {
        self.position | MARK | if self.last { LAST } else { 0 }
    }

    /// The mark in the position part of a stamp; none in a stamp of data.
    pub(crate) fn from_position(position: u64) -> Option<Self> {
        (position & MARK != 0).then_some(Self {
            position: position & (LAST - 1),
            last: position & LAST != 0,
        })
    }
}

/// Segments of `segment` bytes that the valid `ranges` (start and end) of a message consist of. Ranges
/// begin and end where segments do, but for the end of the message.
pub(crate) fn segments_in(ranges: &[(u32, u32)], segment: u64) -> u64 {
    let segment = segment.max(1);
    ranges
        .iter()
        .map(|&(start, end)| u64::from(end).div_ceil(segment) - u64::from(start) / segment)
        .sum()
}

/// The rest of a run of segments after drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survivors {
    /// Bytes of data.
    pub(crate) bytes: u64,
    /// Datagrams of data.
    pub(crate) datagrams: u64,
    /// The stamp just behind the last of them, or of a mark.
    pub(crate) end: Option<u64>,
    /// A mark was among them.
    pub(crate) mark: Option<Mark>,
}

/// Decides for each segment of a run that arrived in one piece.
pub(crate) fn survivors(run: &[u8], segment: usize, dropper: &mut Dropper) -> Survivors {
    let mut left = Survivors::default();
    let mut at = None;
    for piece in run.chunks(segment.max(1)) {
        // A tail too short for a stamp follows the segment before it.
        let stamp = pattern::read_stamp(piece).or(at);
        at = stamp.map(|stamp| stamp + widen(piece.len()));
        match stamp.and_then(|stamp| Mark::from_position(stamp & pattern::POSITION_MASK)) {
            // How many marks come depends on time: without them the decisions depend on the seed alone.
            Some(mark) => {
                left.mark = Some(mark);
                left.end = left.end.or(stamp);
            }
            None if dropper.drops() => {}
            None => {
                left.bytes += widen(piece.len());
                left.datagrams += 1;
                left.end = at;
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_dropped_is_the_one_asked_for_and_the_seed_decides_which() {
        let choices = |share: f64, seed: u64| -> Vec<bool> {
            let mut dropper = Dropper::new(share, seed);
            (0..100_000).map(|_| dropper.drops()).collect()
        };
        for share in [0.001, 0.01, 0.05, 0.5] {
            let dropped = choices(share, 7).iter().filter(|drops| **drops).count();
            let dropped = u32::try_from(dropped).unwrap();
            let expected = share * 100_000.0;
            // Five standard deviations of the binomial distribution.
            let bound = 5.0 * (expected * (1.0 - share)).sqrt();
            assert!(
                (f64::from(dropped) - expected).abs() < bound,
                "{share}: {dropped}"
            );
        }
        assert_eq!(choices(0.05, 7), choices(0.05, 7));
        assert_ne!(choices(0.05, 7), choices(0.05, 8));
        assert!(!choices(0.0, 7).contains(&true));
        assert!(!choices(1.0, 7).contains(&false));
    }

    #[test]
    fn what_was_dropped_is_counted_once() {
        let mut dropper = Dropper::new(1.0, 1);
        for _ in 0..5 {
            dropper.drops();
        }
        assert_eq!((dropper.take_dropped(), dropper.take_dropped()), (5, 0));
    }

    #[test]
    fn marks_are_told_from_data() {
        for last in [false, true] {
            let mark = Mark {
                position: (1 << 46) - 1,
                last,
            };
            assert_eq!(Mark::from_position(mark.to_position()), Some(mark));
        }
        assert_eq!(Mark::from_position((1 << 46) - 1), None);
    }

    #[test]
    fn ranges_are_counted_in_segments() {
        assert_eq!(segments_in(&[(0, 1000)], 300), 4);
        assert_eq!(segments_in(&[(0, 300), (600, 1000)], 300), 3);
        assert_eq!(segments_in(&[(900, 1000)], 300), 1);
        assert_eq!(segments_in(&[], 300), 0);
    }

    #[test]
    fn survivors_are_counted_and_the_last_one_gives_the_position() {
        let mut run = pattern::fill(100);
        pattern::stamp(&mut run, 30, 5000);
        let mut none = Dropper::new(0.0, 1);
        let all = survivors(&run, 30, &mut none);
        assert_eq!((all.bytes, all.datagrams, all.end), (100, 4, Some(5100)));
        let mut every = Dropper::new(1.0, 1);
        assert_eq!(survivors(&run, 30, &mut every), Survivors::default());
        assert_eq!(every.take_dropped(), 4);

        // Decisions of a second dropper with this seed leave these bytes.
        let (mut one, mut other) = (Dropper::new(0.5, 3), Dropper::new(0.5, 3));
        let left = survivors(&run, 30, &mut one);
        let kept = run.chunks(30).filter(|_| !other.drops());
        let kept: u64 = kept.map(|piece| widen(piece.len())).sum();
        assert_eq!(left.bytes, kept);
    }

    #[test]
    fn a_mark_behind_data_is_both() {
        let mut run = pattern::fill(60);
        pattern::stamp(&mut run, 30, 5000);
        let mark = Mark {
            position: 5060,
            last: true,
        };
        run.extend(mark.to_position().to_le_bytes());
        let left = survivors(&run, 30, &mut Dropper::new(0.0, 1));
        assert_eq!((left.bytes, left.datagrams, left.mark), (60, 2, Some(mark)));
        assert_eq!(left.end, Some(5060));
    }
}
