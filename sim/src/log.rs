//! Log of the datagrams that the links let through, and of those that they dropped.

use std::time::Duration;

use crate::Address;

/// Names a datagram that was sent: its position in [`Log::sent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatagramId(pub usize);

/// Names an arrival: its position in [`Log::arrivals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArrivalId(pub usize);

/// Decision of a link about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It goes through, at least once.
    Passed,
    /// The channel lost it.
    Lost,
    /// The queue before the link was full.
    Overflowed,
}

/// A datagram that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub at: Duration,
    /// By whom.
    pub from: Address,
    /// To whom.
    pub to: Address,
    /// Octets.
    pub length: usize,
    /// Decision of the link.
    pub fate: Fate,
}

/// A copy of a datagram that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Duration,
    /// Which datagram.
    pub datagram: DatagramId,
    /// Whether the link changed bits of this copy.
    pub corrupted: bool,
}

/// Everything that happened on the links, in order.
#[derive(Debug, Default)]
pub struct Log {
    pub(crate) sent: Vec<Sent>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) refused: usize,
}

impl Log {
    /// All datagrams sent, in order of sending. Refused ones are not among them.
    #[must_use]
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// All arrivals so far, in order.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// How many datagrams were refused because they exceeded the MTU.
    #[must_use]
    pub const fn refused(&self) -> usize {
        self.refused
    }

    /// How many datagrams had this fate.
    #[must_use]
    pub fn count(&self, fate: Fate) -> usize {
        self.sent.iter().filter(|sent| sent.fate == fate).count()
    }

    pub(crate) fn add_sent(&mut self, sent: Sent) -> DatagramId {
        self.sent.push(sent);
        DatagramId(self.sent.len() - 1)
    }

    pub(crate) fn add_arrival(&mut self, arrival: Arrival) -> ArrivalId {
        self.arrivals.push(arrival);
        ArrivalId(self.arrivals.len() - 1)
    }
}
