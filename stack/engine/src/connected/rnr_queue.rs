//! ULPDUs that arrived and wait for a receive, in order.

use std::time::Instant;

use dgiwarp_rdmap::stream::ends_message;

/// Octets that may wait. What lies in the connection beyond that waits in TCP.
pub(super) const LIMIT: usize = 256 << 10;

/// Octets of a length.
const LENGTH: usize = 2;

/// ULPDUs, one behind the other, each behind its length: with that no longer than the FPDUs that they came in.
#[derive(Debug, Default)]
pub(super) struct RnrQueue {
    octets: Vec<u8>,
    /// Where the first of them begins; all before it is gone.
    first: usize,
    /// Since when that one waits.
    since: Option<Instant>,
    /// Sends and Writes whose last segment is here.
    messages: u64,
}

impl RnrQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// How much may be read from the connection so that all of it can wait.
    pub(super) fn room(&self) -> usize {
        LIMIT.saturating_sub(self.octets.len() - self.first)
    }

    /// Since when the first waits, if there is one.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Sends and Writes whose last segment waits.
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

    /// The first one.
    pub(super) fn front(&self) -> Option<&[u8]> {
        let (length, rest) = self
            .octets
            .get(self.first..)?
            .split_first_chunk::<LENGTH>()?;
        rest.get(..usize::from(u16::from_be_bytes(*length)))
    }

    /// The first one is done with. The memory goes with the last, and is moved together now and then.
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
        let mut parked = RnrQueue::default();
        assert_eq!((parked.front(), parked.room()), (None, LIMIT));
        let (mut next_in, mut next_out) = (0u32, 0u32);
        for round in 0..20_000u32 {
            while round % 3 > 0 && parked.room() > LIMIT / 2 {
                let length = next_in as usize * 37 % 3000 + 4;
                let mut ulpdu = vec![7; length];
                ulpdu[..4].copy_from_slice(&next_in.to_be_bytes());
                parked.push(now(), &ulpdu);
                next_in += 1;
            }
            if let Some(ulpdu) = parked.front() {
                assert_eq!(ulpdu[..4], next_out.to_be_bytes());
                assert_eq!(ulpdu.len(), next_out as usize * 37 % 3000 + 4);
                parked.pop(now());
                next_out += 1;
            }
            assert!(parked.octets.capacity() <= 4 * LIMIT);
        }
        while parked.front().is_some() {
            parked.pop(now());
            next_out += 1;
        }
        assert_eq!(next_in, next_out);
        assert_eq!((parked.octets.capacity(), parked.since()), (0, None));
    }
}
