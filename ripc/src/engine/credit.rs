//! Credit of one connection, both ways (`rfc-notes/ripc.md`, "Credit").

/// Cost of a message beside its length.
const EXTRA: u64 = 128;

/// Cost of a message of so many octets.
pub(crate) fn cost(length: usize) -> u64 {
    length as u64 + EXTRA
}

/// A peer sent more than it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of cost {cost} where {left} are granted")]
pub(crate) struct Overdrawn {
    pub(crate) cost: u64,
    pub(crate) left: u64,
}

/// Octets granted and used since the connection began.
#[derive(Debug)]
pub(crate) struct Credit {
    /// Cost of what was sent, at most `granted`.
    sent: u64,
    granted: u64,
    /// Cost of what has come, at most `consumed` and `window`.
    came: u64,
    consumed: u64,
    /// First grant to the peer.
    window: u64,
    announced: u64,
}

impl Credit {
    /// The first grants: of the peer, and to it.
    pub(crate) fn new(granted: u64, window: u64) -> Self {
        Self {
            sent: 0,
            granted,
            came: 0,
            consumed: 0,
            window,
            announced: window,
        }
    }

    /// Charges a message that is sent now; false where it has to wait.
    pub(crate) fn charge(&mut self, cost: u64) -> bool {
        let fits = self.granted - self.sent >= cost;
        if fits {
            self.sent += cost;
        }
        fits
    }

    /// Takes the credit that a message announces. Older ones change nothing.
    pub(crate) fn granted(&mut self, credit: u64) {
        self.granted = self.granted.max(credit);
    }

    /// Takes a message that costs.
    pub(crate) fn received(&mut self, cost: u64) -> Result<(), Overdrawn> {
        let left = (self.consumed + self.window).saturating_sub(self.came);
        if cost > left {
            return Err(Overdrawn { cost, left });
        }
        self.came += cost;
        Ok(())
    }

    /// Takes the end of a received message.
    pub(crate) fn consume(&mut self, cost: u64) {
        self.consumed += cost;
    }

    /// The credit of the peer now.
    pub(crate) fn current(&self) -> u64 {
        self.consumed + self.window
    }

    /// Takes the departure of a message with the [current](Self::current) credit.
    pub(crate) fn announced(&mut self) {
        self.announced = self.current();
    }

    /// Whether a message is due that only announces.
    pub(crate) fn is_due(&self) -> bool {
        self.current() - self.announced >= self.window / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_sends_more_than_was_granted() {
        let mut sender = Credit::new(1000, 0);
        let mut receiver = Credit::new(0, 1000);
        let mut refused = 0;
        for round in 0..200 {
            let cost = cost(round);
            if sender.charge(cost) {
                assert_eq!(receiver.received(cost), Ok(()));
            } else {
                refused += 1;
                assert!(receiver.received(cost).is_err());
                // All that came is consumed.
                receiver.consume(receiver.came - receiver.consumed);
                assert!(receiver.is_due());
                sender.granted(receiver.current());
                receiver.announced();
                sender.granted(3);
                assert!(!receiver.is_due());
            }
        }
        assert!(refused > 10);
    }
}
