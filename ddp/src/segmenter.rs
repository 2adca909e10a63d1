//! Segmentation of messages (RFC 5041 §5.1.1).

/// One segment of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Octets from the start of the message.
    pub offset: u32,
    /// Octets of payload.
    pub length: u32,
    /// L: no segment follows (RFC 5041 §4.1).
    pub last: bool,
}

/// Segments of a message in order. An empty message has one.
///
/// The longest payload is given for each segment, because the path MTU may change in between.
#[derive(Debug, Clone)]
pub struct Segmenter {
    /// Octets of the message.
    length: u32,
    /// Message offset of the next segment; at most `length`.
    next: u32,
    /// The last segment was taken.
    done: bool,
}

impl Segmenter {
    /// The segments of a message of `length` octets.
    #[must_use]
    pub const fn new(length: u32) -> Self {
        Self {
            length,
            next: 0,
            done: false,
        }
    }

    /// The next segment with at most `payload` octets, without taking it. `None` after the last.
    ///
    /// # Panics
    /// If `payload` is 0 and the message is not empty.
    #[must_use]
    #[inline]
    pub fn peek(&self, payload: u32) -> Option<Segment> {
        if self.done {
            return None;
        }
        let left = self.length - self.next;
        assert!(
            payload > 0 || left == 0,
            "a segment carries at least one octet"
        );
        let length = left.min(payload);
        Some(Segment {
            offset: self.next,
            length,
            last: length == left,
        })
    }

    /// [`peek`](Self::peek) of a message that is cut into equal segments where segments are long: its receiver then places the first while
    /// the last is on the way. Short segments are as long as they may be.
    ///
    /// # Panics
    /// As [`peek`](Self::peek).
    #[must_use]
    #[inline]
    pub fn peek_equal(&self, payload: u32) -> Option<Segment> {
        self.peek(equal(self.length, payload))
    }

    /// Takes a segment that [`peek`](Self::peek) returned.
    #[inline]
    pub fn advance(&mut self, segment: Segment) {
        self.next = segment.offset + segment.length;
        self.done = segment.last;
    }

    /// Octets of the message.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Whether every segment was taken.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Octets not yet taken.
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.length - self.next
    }
}

/// Payload per segment, in octets, from which a message is cut into equal segments. Smaller segments fill those of TCP (RFC 5044 §5.1) and datagrams;
/// no path has larger ones.
const EQUAL_FROM: u32 = 16 << 10;

/// Octets of the segments of a message of `length` octets, all equal but the last, where segments have up to `most` octets of payload.
#[must_use]
#[inline]
pub fn equal(length: u32, most: u32) -> u32 {
    if most < EQUAL_FROM || length <= most {
        return most;
    }
    // Whole cache lines, as far as they fit.
    let equal = length.div_ceil(length.div_ceil(most));
    equal.next_multiple_of(64).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_message_is_one_empty_last_segment() {
        let mut segmenter = Segmenter::new(0);
        let only = segmenter.peek(100).unwrap();
        assert_eq!(
            only,
            Segment {
                offset: 0,
                length: 0,
                last: true
            }
        );
        segmenter.advance(only);
        assert!(segmenter.is_done());
        assert_eq!(segmenter.peek(100), None);
    }

    #[test]
    fn long_segments_are_equal() {
        let cut = |length, most| {
            let mut segmenter = Segmenter::new(length);
            let mut lengths = Vec::new();
            while let Some(segment) = segmenter.peek_equal(most) {
                segmenter.advance(segment);
                lengths.push(segment.length);
            }
            lengths
        };
        assert_eq!(cut(65_536, 64_952), [32_768, 32_768]);
        assert_eq!(cut(64_952, 64_952), [64_952]);
        assert_eq!(cut(100_001, 64_952), [50_048, 49_953]);
        assert_eq!(cut(20_000, 16_384), [10_048, 9952]);
        assert_eq!(cut(20_000, 16_383), [16_383, 3617]);
        assert_eq!(cut(1 << 20, 64_952).len(), 17);
        assert_eq!(cut(0, 64_952), [0]);
        for most in [16_384, 16_385, 64_000] {
            for length in (most..40 * most).step_by(997) {
                let lengths = cut(length, most);
                let fewest = length.div_ceil(most) as usize;
                assert_eq!(
                    lengths.len(),
                    fewest,
                    "{length} octets in segments of {most}"
                );
            }
        }
    }

    proptest! {
        /// Segments are adjacent, as long as they may be, and cover the message; only the last has L, whatever sizes are asked for.
        #[test]
        fn segments_tile_the_message(length in 0u32..100_000, sizes in proptest::collection::vec(1u32..9000, 1..20)) {
            let mut segmenter = Segmenter::new(length);
            let mut expected = 0;
            let mut sizes = sizes.iter().copied().cycle();
            for _ in 0..=length {
                prop_assert_eq!((segmenter.length(), segmenter.remaining()), (length, length - expected));
                let most = sizes.next().unwrap();
                let Some(segment) = segmenter.peek(most) else {
                    break;
                };
                prop_assert!(!segmenter.is_done());
                prop_assert_eq!((segment.offset, segment.length), (expected, most.min(length - expected)));
                expected += segment.length;
                prop_assert_eq!(segment.last, expected == length);
                segmenter.advance(segment);
            }
            prop_assert!(segmenter.is_done());
            prop_assert_eq!(segmenter.peek(1), None);
            prop_assert_eq!(expected, length);
            prop_assert_eq!(segmenter.remaining(), 0);
        }
    }
}
