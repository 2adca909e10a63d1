//! The two streams of one call at one end, and the connection that they belong to (`rfc-notes/ripc.md`, "Streams").

use super::streams::{BadPart, Incoming, Outgoing};
use crate::wire::message::{Direction, Kind, Message, Streams};

/// Streams of a call.
#[derive(Debug)]
pub(crate) struct CallStreams {
    /// Connection of the call.
    pub(crate) connection: u64,
    /// `None` where this end sends no octets.
    pub(crate) outgoing: Option<Outgoing>,
    /// `None` where none come.
    pub(crate) incoming: Option<Incoming>,
    /// The call is sent; always so at the server.
    pub(crate) opened: bool,
    /// Octets have come, or those of this end were sent.
    used: bool,
    /// The call is over, and the stream had no end before.
    pub(crate) broken: bool,
}

/// Something that is to be sent now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Credit of the incoming stream.
    Grant { granted: u64, stop: bool },
    /// A part of the outgoing stream.
    Part { octets: Vec<u8>, end: bool },
}

impl Step {
    /// The message of the call with this number. `outward` is the direction of the outgoing stream.
    pub(crate) fn into_message(self, number: u64, outward: Direction) -> Message {
        let kind = match self {
            Self::Grant { granted, stop } => Kind::Grant {
                direction: outward.opposite(),
                stop,
                granted,
            },
            Self::Part { octets, end } => Kind::Stream {
                direction: outward,
                end,
                octets,
            },
        };
        Message {
            number,
            credit: 0,
            kind,
        }
    }
}

impl CallStreams {
    /// At the caller, before the call is sent. `window` is the first grant of this end.
    pub(crate) fn of_caller(connection: u64, streams: Streams, window: u64) -> Self {
        Self {
            connection,
            outgoing: streams.up.then(|| Outgoing::new(0)),
            incoming: streams.down.then(|| Incoming::new(window)),
            opened: false,
            used: false,
            broken: false,
        }
    }

    /// At the server. `granted` is the first grant of the peer, `window` that of this end. `None` without streams.
    pub(crate) fn of_server(
        connection: u64,
        streams: Streams,
        granted: u64,
        window: u64,
    ) -> Option<Self> {
        (streams.down || streams.up).then(|| Self {
            connection,
            outgoing: streams.down.then(|| Outgoing::new(granted)),
            incoming: streams.up.then(|| Incoming::new(window)),
            opened: true,
            used: false,
            broken: false,
        })
    }

    /// Takes the connection that the call is sent on, and the first grant of its peer. Returns the streams that the call has there.
    pub(crate) fn send_on(&mut self, connection: u64, granted: u64) -> Streams {
        self.connection = connection;
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.grant(granted);
        }
        Streams {
            down: granted > 0 && self.incoming.is_some(),
            up: self.outgoing.is_some(),
        }
    }

    /// At the caller: whether the call belongs to its connection, and is not sent on another one.
    pub(crate) fn is_bound(&self) -> bool {
        self.used || self.outgoing.is_some()
    }

    /// At the server: whether the streams go to another connection with a call that comes again.
    pub(crate) fn may_move(&self) -> bool {
        !self.is_needed()
    }

    /// At the server: whether the loss of their connection ends the execution.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_used() || self.incoming.is_some()
    }

    /// Whether octets have come, or the program has given some: those may be lost with the connection.
    fn is_used(&self) -> bool {
        self.used || self.outgoing.as_ref().is_some_and(Outgoing::is_used)
    }

    /// Takes a part.
    pub(crate) fn part(&mut self, octets: &[u8], end: bool) -> Result<(), BadPart> {
        if let Some(incoming) = &mut self.incoming {
            incoming.part(octets, end)?;
            self.used = true;
        }
        Ok(())
    }

    /// Takes credit.
    pub(crate) fn grant(&mut self, granted: u64, stop: bool) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.grant(granted);
            if stop {
                outgoing.stop();
            }
        }
    }

    /// The next part, of at most `most` octets, or grant.
    pub(crate) fn step(&mut self, most: usize) -> Option<Step> {
        if let Some(incoming) = &mut self.incoming
            && incoming.is_due()
        {
            let (granted, stop) = incoming.announce();
            return Some(Step::Grant { granted, stop });
        }
        let (octets, end) = self.outgoing.as_mut()?.part(most)?;
        self.used = true;
        Some(Step::Part { octets, end })
    }

    /// Takes the end of the call, or of the connection; octets that have come stay.
    pub(crate) fn end(&mut self) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.stop();
        }
        if let Some(incoming) = &mut self.incoming {
            self.broken |= !incoming.has_ended();
            incoming.end();
        }
    }

    /// At the server: the connection that the octets of the call belong to, if there are any. A reply on another one does not stand for them.
    pub(crate) fn used_on(&self) -> Option<u64> {
        self.is_used().then_some(self.connection)
    }
}
