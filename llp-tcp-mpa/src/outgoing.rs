//! Octets on their way to TCP.

/// A queue of octets that is filled at its end and sent from its front.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// How many of them TCP has taken; at most all.
    sent: usize,
}

impl Outgoing {
    /// The queue, to append to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        // Sent octets are dropped once they are at least half, so each octet moves once at most.
        if self.sent > 0 && self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// How many of the octets at the front of [`bytes`](Self::bytes) TCP has taken.
    pub(crate) const fn sent(&self) -> usize {
        self.sent
    }

    /// Octets that TCP has not taken.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// TCP took `len` more octets.
    pub(crate) fn advance(&mut self, len: usize) {
        self.sent = self.sent.saturating_add(len).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.clear();
        }
    }

    /// Takes back the last of them, so that `len` are unsent.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.sent + len);
    }

    /// Makes room for `len` octets behind the first `at` that are unsent.
    pub(crate) fn open(&mut self, at: usize, len: usize) -> &mut [u8] {
        let start = self.sent + at;
        let end = self.bytes.len();
        self.bytes.resize(end + len, 0);
        self.bytes.copy_within(start..end, start + len);
        self.bytes.get_mut(start..start + len).unwrap_or_default()
    }

    /// Uses `room` as memory from now on, unless the present memory is as large. Returns the memory that is not used.
    pub(crate) fn lend(&mut self, mut room: Vec<u8>) -> Vec<u8> {
        if self.bytes.capacity() >= room.capacity() {
            return room;
        }
        room.clear();
        room.extend_from_slice(self.unsent());
        self.sent = 0;
        std::mem::replace(&mut self.bytes, room)
    }

    /// Returns all memory if no octet is unsent.
    pub(crate) fn reclaim(&mut self) -> Option<Vec<u8>> {
        let idle = self.bytes.is_empty() && self.bytes.capacity() > 0;
        idle.then(|| std::mem::take(&mut self.bytes))
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_opened_among_what_is_unsent() {
        let mut out = Outgoing::default();
        out.bytes().extend_from_slice(b"sent<>later");
        out.advance(4);
        out.open(1, 4).copy_from_slice(b"mind");
        assert_eq!(out.unsent(), b"<mind>later");
        out.truncate(6);
        assert_eq!(out.unsent(), b"<mind>");
        out.open(6, 1).copy_from_slice(b"!");
        assert_eq!(out.unsent(), b"<mind>!");
    }

    #[test]
    fn octets_are_moved_when_half_of_them_have_left() {
        for (sent, moved) in [(0, false), (4, false), (5, true), (9, true)] {
            let mut out = Outgoing::default();
            out.bytes().extend_from_slice(b"0123456789");
            out.advance(sent);
            assert_eq!(out.bytes().len(), if moved { 10 - sent } else { 10 });
            assert_eq!(out.sent(), if moved { 0 } else { sent });
            assert_eq!(out.unsent(), &b"0123456789"[sent..]);
        }
    }

    #[test]
    fn lent_room_goes_back_once_it_is_empty() {
        let mut out = Outgoing::default();
        assert!(out.reclaim().is_none());
        out.bytes().extend_from_slice(b"own");
        out.advance(1);
        let own = out.lend(Vec::with_capacity(1000));
        assert!(own.capacity() < 1000);
        assert_eq!(out.unsent(), b"wn");
        assert!(out.reclaim().is_none());
        assert_eq!(out.lend(Vec::with_capacity(1000)).capacity(), 1000);
        out.advance(2);
        assert_eq!(out.reclaim().unwrap().capacity(), 1000);
        assert!(out.reclaim().is_none());
    }

    #[test]
    fn octets_leave_in_order_whatever_tcp_takes() {
        let mut out = Outgoing::default();
        let mut seen = Vec::new();
        for round in 0..100u8 {
            out.bytes().extend_from_slice(&[round; 7]);
            let take = usize::from(round % 11).min(out.unsent().len());
            seen.extend_from_slice(&out.unsent()[..take]);
            out.advance(take);
        }
        seen.extend_from_slice(out.unsent());
        out.advance(usize::MAX);
        assert!(out.unsent().is_empty());
        let expected: Vec<u8> = (0..100).flat_map(|round| [round; 7]).collect();
        assert_eq!(seen, expected);
    }
}
