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
