//! RNR queue: ULPDUs that arrived and wait for a posted receive, in order.

use std::time::Instant;

use dgiwarp_rdmap::stream::ends_message;

/// Capacity, octets. Further octets of the connection stay in TCP.
pub(super) const LIMIT: usize = 256 << 10;

/// Length of a length field, octets.
const LENGTH: usize = 2;

/// ULPDUs, each behind its length: with that no longer than its FPDU was.
#[derive(Debug, Default)]
pub(super) struct RnrQueue {
    octets: Vec<u8>,
    /// Offset of the first ULPDU; octets before it are obsolete.
    first: usize,
    /// When the first ULPDU became the first; `None` where the queue is empty.
    since: Option<Instant>,
    /// Sends and Writes whose last segment is in the queue.
    messages: u64,
}

impl RnrQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Octets that may be read from the connection so that all of them fit.
    pub(super) fn room(&self) -> usize {
        LIMIT.saturating_sub(self.octets.len() - self.first)
    }

    /// When the first ULPDU became the first.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Sends and Writes whose last segment is in the queue.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn push(&mut self, now: Instant, ulpdu: &[u8]) {
        let length = u16::try_from(ulpdu.len()).expect("MPA's length field has 16 bits");
        self.octets.extend_from_slice(&length.to_be_bytes());
        self.octets.extend_from_slice(ulpdu);
        self.messages += u64::from(ends_message(ulpdu));
        self.since.get_or_insert(now);
    }

    /// The first ULPDU.
    pub(super) fn front(&self) -> Option<&[u8]> {
        let (length, rest) = self
            .octets
            .get(self.first..)?
            .split_first_chunk::<LENGTH>()?;
        rest.get(..usize::from(u16::from_be_bytes(*length)))
    }

    /// Removes the first ULPDU. Memory is freed with the last one, and compacted now and then.
    pub(super) fn pop(&mut self, now: Instant) {
        let Some(ulpdu) = self.front() else {
            return;
        };
        let length = LENGTH + ulpdu.len();
        self.messages -= u64::from(ends_message(ulpdu));
        self.first += length;
        self.since = Some(now);
        if self.first == self.octets.len() {
            *self = Self::default();
        } else if self.first >= LIMIT {
            self.octets.drain(..self.first);
            self.first = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::now;
    use super::*;

    #[test]
    fn ulpdus_come_out_as_they_went_in_and_memory_is_bounded() {
        let mut queue = RnrQueue::default();
        assert_eq!((queue.front(), queue.room()), (None, LIMIT));
        let (mut next_in, mut next_out) = (0u32, 0u32);
        for round in 0..20_000u32 {
            while round % 3 > 0 && queue.room() > LIMIT / 2 {
                let length = next_in as usize * 37 % 3000 + 4;
                let mut ulpdu = vec![7; length];
                ulpdu[..4].copy_from_slice(&next_in.to_be_bytes());
                queue.push(now(), &ulpdu);
                next_in += 1;
            }
            if let Some(ulpdu) = queue.front() {
                assert_eq!(ulpdu[..4], next_out.to_be_bytes());
                assert_eq!(ulpdu.len(), next_out as usize * 37 % 3000 + 4);
                queue.pop(now());
                next_out += 1;
            }
            assert!(queue.octets.capacity() <= 4 * LIMIT);
        }
        while queue.front().is_some() {
            queue.pop(now());
            next_out += 1;
        }
        assert_eq!(next_in, next_out);
        assert_eq!((queue.octets.capacity(), queue.since()), (0, None));
    }
}
