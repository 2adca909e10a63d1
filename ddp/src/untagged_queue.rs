//! Receiving end of an untagged queue (RFC 5041 §5.2, §7.1) over a lower layer that keeps the order.

use crate::error::UntaggedError;
use crate::wire::{Control, UntaggedHeader, untagged};
use crate::{MessageOffset, Msn, QueueNumber};

/// The receiving end of one untagged queue. Segments arrive in order, so one MSN and one MO are valid at a time.
///
/// Each segment passes [`check`](Self::check), which yields an [`ExpectedSegment`]; its [`fit`](ExpectedSegment::fit) in the message's
/// buffer yields a [`Placement`]; once the payload is placed, [`advance`](Self::advance) takes that.
#[derive(Debug)]
pub struct UntaggedQueue {
    /// MSN of the message that is arriving or comes next.
    msn: Msn,
    /// Octets of that message that are placed.
    placed: u32,
}

/// A segment with the MSN and the MO that come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedSegment {
    start: u32,
    last: bool,
}

/// Octets of a message's buffer that a segment fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    start: u32,
    end: u32,
    last: bool,
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl UntaggedQueue {
    /// A queue on which no message has arrived.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            msn: Msn::FIRST,
            placed: 0,
        }
    }

    /// Checks MSN and MO of a segment of this queue.
    ///
    /// # Errors
    /// [`UntaggedError::MsnRange`] or [`UntaggedError::InvalidOffset`].
    #[inline]
    pub fn check(&self, header: &UntaggedHeader) -> Result<ExpectedSegment, UntaggedError> {
        if header.msn != self.msn {
            return Err(UntaggedError::MsnRange);
        }
        if header.message_offset != MessageOffset::new(self.placed) {
            return Err(UntaggedError::InvalidOffset);
        }
        Ok(ExpectedSegment {
            start: self.placed,
            last: header.control.last,
        })
    }

    /// Whether the octets of a header have the number of this `queue`, and the MSN and MO that [`check`](Self::check) passes.
    #[inline]
    #[must_use]
    pub fn is_next(&self, queue: QueueNumber, header: &[u8; untagged::LEN]) -> bool {
        let expected = UntaggedHeader {
            control: Control::new(false, true),
            rsvd_ulp: 0,
            rsvd_ulp_word: 0,
            queue_number: queue,
            msn: self.msn,
            message_offset: MessageOffset::new(self.placed),
        };
        header[untagged::PLACE] == expected.emit()[untagged::PLACE]
    }

    /// Counts a message of one segment as placed, which is [checked](Self::check).
    #[inline]
    pub const fn pass(&mut self) {
        self.msn = self.msn.next();
    }

    /// Counts a segment as placed, and a message as complete with its last one.
    #[inline]
    pub const fn advance(&mut self, placement: Placement) {
        if placement.last {
            self.msn = self.msn.next();
            self.placed = 0;
        } else {
            self.placed = placement.end;
        }
    }
}

impl ExpectedSegment {
    /// Place of a payload of `length` octets in a buffer of `capacity` octets.
    ///
    /// # Errors
    /// [`UntaggedError::TooLong`] if the buffer ends before the payload.
    #[inline]
    pub fn fit(self, length: usize, capacity: u32) -> Result<Placement, UntaggedError> {
        let end = u32::try_from(length)
            .ok()
            .and_then(|length| self.start.checked_add(length))
            .filter(|end| *end <= capacity)
            .ok_or(UntaggedError::TooLong)?;
        Ok(Placement {
            start: self.start,
            end,
            last: self.last,
        })
    }
}

impl Placement {
    /// MO of the first octet.
    #[must_use]
    pub const fn start(self) -> u32 {
        self.start
    }

    /// MO behind the last octet: of a last segment, the length of the message.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.end
    }

    /// Whether the message is complete with this segment.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueNumber;
    use crate::wire::Control;

    fn header(msn: u32, offset: u32, last: bool) -> UntaggedHeader {
        UntaggedHeader {
            control: Control::new(false, last),
            rsvd_ulp: 0,
            rsvd_ulp_word: 0,
            queue_number: QueueNumber::SEND,
            msn: Msn::new(msn),
            message_offset: MessageOffset::new(offset),
        }
    }

    #[track_caller]
    fn place(queue: &mut UntaggedQueue, header: &UntaggedHeader, length: usize) -> Placement {
        let placement = queue.check(header).unwrap().fit(length, 100).unwrap();
        queue.advance(placement);
        placement
    }

    #[test]
    fn one_msn_and_one_offset_are_valid_at_a_time() {
        let mut queue = UntaggedQueue::default();
        for msn in [0, 2, u32::MAX] {
            let error = queue.check(&header(msn, 0, true));
            assert_eq!(error, Err(UntaggedError::MsnRange));
        }
        let error = queue.check(&header(1, 1, false));
        assert_eq!(error, Err(UntaggedError::InvalidOffset));
        let first = place(&mut queue, &header(1, 0, false), 40);
        assert_eq!(
            (first.start(), first.end(), first.is_last()),
            (0, 40, false)
        );
        for offset in [0, 39, 41] {
            let error = queue.check(&header(1, offset, true));
            assert_eq!(error, Err(UntaggedError::InvalidOffset));
        }
        let error = queue.check(&header(2, 40, true));
        assert_eq!(error, Err(UntaggedError::MsnRange));
        let last = place(&mut queue, &header(1, 40, true), 60);
        assert_eq!((last.start(), last.end(), last.is_last()), (40, 100, true));
        place(&mut queue, &header(2, 0, true), 0);
        place(&mut queue, &header(3, 0, true), 1);
    }

    #[test]
    fn msns_wrap() {
        let mut queue = UntaggedQueue {
            msn: Msn::new(u32::MAX),
            placed: 0,
        };
        place(&mut queue, &header(u32::MAX, 0, true), 5);
        place(&mut queue, &header(0, 0, true), 5);
    }

    #[test]
    fn a_message_ends_within_its_buffer() {
        let mut queue = UntaggedQueue::new();
        let expected = queue.check(&header(1, 0, false)).unwrap();
        assert_eq!(expected.fit(9, 8), Err(UntaggedError::TooLong));
        queue.advance(expected.fit(8, 8).unwrap());
        let expected = queue.check(&header(1, 8, true)).unwrap();
        assert_eq!(expected.fit(1, 8), Err(UntaggedError::TooLong));
        assert!(expected.fit(0, 8).is_ok());
        // No sum wraps.
        let huge = u32::MAX as usize;
        assert_eq!(expected.fit(huge, u32::MAX), Err(UntaggedError::TooLong));
        assert!(expected.fit(huge - 8, u32::MAX).is_ok());
        assert_eq!(
            expected.fit(huge + 1, u32::MAX),
            Err(UntaggedError::TooLong)
        );
    }
}
