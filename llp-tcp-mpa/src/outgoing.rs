//! Octets on their way to TCP.

/// A queue of octets that is filled at its end and sent from its front.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// How many of them TCP has taken; at most all.
    sent: usize,
}

impl Outgoing {
    /// Where to append.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        // What was sent is dropped when it is at least half, so each octet moves once at most.
        if self.sent > 0 && self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// What TCP has not taken yet.
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

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
