//! Reactions of a device, and the outcomes that are allowed.
//!
//! The RFCs leave many things open, so an oracle is a set: each outcome that is allowed, with the clause that allows it. An
//! outcome in none of them is a finding.

use core::fmt;

use crate::wire::ddp::{Segment, Terminate};
use crate::wire::framing::Fpdu;
use crate::wire::startup::{self, Startup};

/// One thing that came from the device.
#[derive(Clone, Debug)]
pub enum Came {
    /// A startup frame.
    Startup(Startup),
    /// An FPDU and the segment in it.
    Segment(Segment, Fpdu),
    /// An FPDU whose ULPDU is shorter than its header.
    Short(Fpdu),
    /// The end of the stream.
    End,
    /// A reset connection.
    Reset,
    /// Nothing within the time.
    Nothing,
    /// The beginning of a frame, and then nothing or the end.
    Torn(Vec<u8>),
}

impl fmt::Display for Came {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Startup(frame) => frame.fmt(f),
            Self::Segment(segment, _) => segment.fmt(f),
            Self::Short(fpdu) => write!(f, "an FPDU with {} octets only", fpdu.ulpdu.len()),
            Self::End => f.write_str("end of stream"),
            Self::Reset => f.write_str("reset"),
            Self::Nothing => f.write_str("nothing"),
            Self::Torn(octets) => write!(f, "{} octets that are no frame", octets.len()),
        }
    }
}

/// All of them, as text.
#[must_use]
pub fn listing(came: &[Came]) -> String {
    let all: Vec<_> = came.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Reaction of a device, from its first reaction to the last.
#[derive(Clone, Debug, Default)]
pub struct Reaction {
    /// All that came, in order. The last one says how it ended.
    pub came: Vec<Came>,
    /// Whether the connection served an RDMA Read of nothing afterwards.
    pub lives: bool,
}

impl Reaction {
    /// The Terminate among what came.
    #[must_use]
    pub fn terminate(&self) -> Option<Terminate> {
        self.segments().find_map(|segment| {
            is_terminate(segment).then(|| Terminate::parse(&segment.payload))?
        })
    }

    /// The segments that came, without Writes of nothing.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.came.iter().filter_map(|came| match came {
            Came::Segment(segment, _) if !segment.is_empty_write() => Some(segment),
            Came::Segment(..)
            | Came::Startup(_)
            | Came::Short(_)
            | Came::End
            | Came::Reset
            | Came::Nothing
            | Came::Torn(_) => None,
        })
    }

    /// The startup frame that came.
    #[must_use]
    pub fn startup(&self) -> Option<&Startup> {
        self.came.iter().find_map(|came| match came {
            Came::Startup(frame) => Some(frame),
            Came::Segment(..)
            | Came::Short(_)
            | Came::End
            | Came::Reset
            | Came::Nothing
            | Came::Torn(_) => None,
        })
    }

    /// Whether the connection ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.came
            .iter()
            .any(|came| matches!(came, Came::End | Came::Reset))
    }
}

fn is_terminate(segment: &Segment) -> bool {
    segment.opcode() == crate::wire::ddp::opcode::TERMINATE
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listing(&self.came))?;
        match (self.lives, self.came.is_empty()) {
            (true, true) => f.write_str("the connection goes on"),
            (true, false) => f.write_str("; the connection goes on"),
            (false, _) => Ok(()),
        }
    }
}

/// A kind of outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A Terminate with this layer, error type and code.
    Terminate(u8, u8, u8),
    /// Any Terminate of this layer and type.
    TerminateOfType(u8, u8),
    /// Any Terminate at all.
    AnyTerminate,
    /// The end of the connection, with neither a startup frame nor a Terminate before it.
    Closed,
    /// An accepting Reply.
    Accepted,
    /// A rejecting Reply.
    Rejected,
    /// The connection goes on, and nothing was said about what was sent.
    GoesOn,
    /// Nothing, and the connection stays.
    Silence,
}

impl Outcome {
    /// Whether this is what happened.
    #[must_use]
    pub fn is(self, reaction: &Reaction) -> bool {
        let terminate = reaction.terminate();
        let code = |wanted: (u8, u8, Option<u8>)| {
            terminate.as_ref().is_some_and(|terminate| {
                (terminate.layer, terminate.etype) == (wanted.0, wanted.1)
                    && wanted.2.is_none_or(|code| code == terminate.code)
            })
        };
        let rejects = |frame: &Startup| frame.has(startup::R);
        match self {
            Self::Terminate(layer, etype, error) => code((layer, etype, Some(error))),
            Self::TerminateOfType(layer, etype) => code((layer, etype, None)),
            Self::AnyTerminate => terminate.is_some(),
            Self::Closed => reaction.ended() && terminate.is_none() && reaction.startup().is_none(),
            Self::Accepted => reaction.startup().is_some_and(|frame| !rejects(frame)),
            Self::Rejected => reaction.startup().is_some_and(rejects),
            Self::GoesOn => reaction.lives && terminate.is_none(),
            Self::Silence => {
                !reaction.lives
                    && !reaction.ended()
                    && reaction.segments().next().is_none()
                    && reaction.startup().is_none()
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminate(layer, etype, code) => {
                write!(f, "Terminate {layer}/{etype}/{code:02x}")
            }
            Self::TerminateOfType(layer, etype) => write!(f, "any Terminate {layer}/{etype}"),
            Self::AnyTerminate => f.write_str("any Terminate"),
            Self::Closed => f.write_str("TCP's end"),
            Self::Accepted => f.write_str("an accepting Reply"),
            Self::Rejected => f.write_str("a rejecting Reply"),
            Self::GoesOn => f.write_str("the connection goes on"),
            Self::Silence => f.write_str("nothing"),
        }
    }
}

/// An outcome, and the clause that allows it.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// The outcome.
    pub outcome: Outcome,
    /// The clause, as in `RFC 5041 §7.2`.
    pub clause: &'static str,
}

/// The outcome, allowed by the clause.
#[must_use]
pub const fn allow(outcome: Outcome, clause: &'static str) -> Allowed {
    Allowed { outcome, clause }
}

/// The first outcome of the set that happened.
#[must_use]
pub fn judge(reaction: &Reaction, allowed: &[Allowed]) -> Option<Allowed> {
    allowed
        .iter()
        .find(|allowed| allowed.outcome.is(reaction))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ddp::opcode;
    use crate::wire::framing::{Deframer, Framer};

    fn terminate(layer: u8, etype: u8, code: u8) -> Reaction {
        let payload = [layer << 4 | etype, code, 0, 0];
        let segment = Segment::untagged(opcode::TERMINATE, 2, 1, &payload);
        let octets = Framer::new(true, false).fpdu(&segment.to_bytes());
        let fpdu = Deframer::new(false).take(&octets).unwrap();
        Reaction {
            came: vec![Came::Segment(segment, fpdu), Came::End],
            lives: false,
        }
    }

    #[test]
    fn sets_have_what_they_allow_and_nothing_else() {
        let set = [
            allow(Outcome::Terminate(1, 1, 0), "a"),
            allow(Outcome::Closed, "b"),
        ];
        let clause = |reaction: &Reaction| judge(reaction, &set).map(|allowed| allowed.clause);
        assert_eq!(clause(&terminate(1, 1, 0)), Some("a"));
        assert_eq!(clause(&terminate(1, 1, 1)), None, "another code");
        assert_eq!(clause(&terminate(0, 1, 0)), None, "another layer");
        let came = |came| Reaction {
            came: vec![came],
            lives: false,
        };
        assert_eq!(clause(&came(Came::Reset)), Some("b"));
        assert_eq!(clause(&came(Came::Nothing)), None);
        let lives = Reaction {
            lives: true,
            ..Reaction::default()
        };
        assert_eq!(clause(&lives), None);
        assert!(Outcome::GoesOn.is(&lives) && !Outcome::Silence.is(&lives));
    }
}
