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
    /// Credit that messages less urgent than the default leave.
    kept: u64,
}

impl Credit {
    /// The first grants: of the peer, and to it.
    pub(crate) fn new(granted: u64, window: u64) -> Self {
        Self {
            sent: 0,
            granted,
            kept: 0,
            came: 0,
            consumed: 0,
            window,
            announced: window,
        }
    }

    /// Takes the first grant of a peer that takes messages of up to `longest` octets.
    pub(crate) fn greeted(&mut self, granted: u64, longest: usize) {
        self.granted(granted);
        // The peer announces what it has consumed once that is half of the grant: a message has room in the other half.
        let spare = (granted / 2).saturating_sub(cost(longest));
        self.kept = spare.min(granted / 4);
    }

    /// Charges a message that is sent now; false where it has to wait. One that `leaves` credit to others does not take the last of it.
    pub(crate) fn charge(&mut self, cost: u64, leaves: bool) -> bool {
        let kept = if leaves { self.kept } else { 0 };
        let fits = self.granted - self.sent >= cost.saturating_add(kept);
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
            if sender.charge(cost, false) {
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

    #[test]
    fn some_messages_leave_a_quarter_of_the_first_grant() {
        let (granted, longest) = (100_000, 8192);
        let mut sender = Credit::new(0, 0);
        sender.greeted(granted, longest);
        assert!(sender.charge(75_000, true));
        assert!(!sender.charge(1, true));
        assert!(sender.charge(25_000, false));
        assert!(!sender.charge(1, false));
        sender.granted(granted + 25_001);
        assert!(sender.charge(1, true));
    }

    #[test]
    fn a_message_that_leaves_credit_to_others_is_sent_in_the_end() {
        for (granted, longest) in [
            (1 << 20, 8192),
            (128 << 10, 65_536),
            (20_000, 8192),
            (500, 1024),
        ] {
            let mut sender = Credit::new(0, 0);
            let mut receiver = Credit::new(0, granted);
            sender.greeted(granted, longest);
            let longest = usize::try_from(granted / 2).unwrap().min(longest) - 128;
            for round in 0..300 {
                let cost = cost(longest - round % 7);
                assert!(sender.charge(cost, true), "{granted} {round}");
                assert_eq!(receiver.received(cost), Ok(()));
                receiver.consume(cost);
                if receiver.is_due() {
                    sender.granted(receiver.current());
                    receiver.announced();
                }
            }
        }
    }
}
