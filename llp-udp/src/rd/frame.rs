//! Frames (§3): header of four octets, then a body by type.

mod ack;
mod close;
mod credit;
mod error;
mod hello;
mod not_ready;
mod ping;
mod placed;
mod segment;
#[cfg(test)]
mod tests;

use std::fmt;

use dgiwarp_codec::{Payload, PayloadSlice};
use smallvec::SmallVec;

use super::malformed::Malformed;
use super::octets::emit_header;

pub use ack::{Ack, EcnCounts, MAX_RANGES};
pub use close::{Close, CloseReason};
pub use credit::Credit;
pub use error::MessageError;
pub use hello::{Hello, VERSION};
pub use not_ready::NotReady;
pub use ping::{Ping, Pong};
pub use placed::Placed;
pub use segment::SegmentHeader;

pub use super::octets::HEADER_LEN;

/// Octets that a segment frame has beside its segment.
pub const SEGMENT_OVERHEAD: usize = HEADER_LEN + segment::LEN;
/// Octets of a hello, header included.
pub const HELLO_LEN: usize = HEADER_LEN + hello::LEN;

const PAD: u8 = 0x00;
/// Frames that are kept as they were parsed: those of a datagram with one message.
const KEPT: usize = 4;

/// A frame, its segment where it lies.
#[derive(Debug, PartialEq)]
pub enum Frame<'a, P: Payload + ?Sized> {
    /// Octets without meaning, of this number.
    Pad(u16),
    /// A segment of a message.
    Segment(SegmentHeader, PayloadSlice<'a, P>),
    /// Packet numbers that arrived.
    Ack(Ack),
    /// Segments that are placed.
    Placed(Placed),
    /// Room at the receiver.
    Credit(Credit),
    /// A Send found no posted receive.
    NotReady(NotReady),
    /// A message failed.
    Error(MessageError),
    /// Opens an association.
    Hello(Hello),
    /// Requests a pong.
    Ping(Ping),
    /// Response to a ping.
    Pong(Pong),
    /// Ends an association.
    Close(Close),
}

impl<P: Payload + ?Sized> Frame<'_, P> {
    /// Whether the receiver owes an acknowledgement (§6.1).
    #[must_use]
    pub const fn elicits_ack(&self) -> bool {
        match self {
            Self::Segment(..) | Self::Error(_) | Self::Hello(_) | Self::Ping(_) => true,
            Self::Pad(_)
            | Self::Ack(_)
            | Self::Placed(_)
            | Self::Credit(_)
            | Self::NotReady(_)
            | Self::Pong(_)
            | Self::Close(_) => false,
        }
    }
}

impl Frame<'_, [u8]> {
    /// Appends the frame. Padding and segments of more octets than a datagram has do not fit.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pad(length) => {
                let header = u16::try_from(HEADER_LEN).unwrap_or(u16::MAX);
                emit_pad(out, length.saturating_add(header));
            }
            Self::Segment(header, segment) => {
                header.emit(out, u16::try_from(segment.len()).unwrap_or(u16::MAX));
                out.extend(segment.octets());
            }
            Self::Ack(it) => it.emit(out),
            Self::Placed(it) => it.emit(out),
            Self::Credit(it) => it.emit(out),
            Self::NotReady(it) => it.emit(out),
            Self::Error(it) => it.emit(out),
            Self::Hello(it) => it.emit(out),
            Self::Ping(it) => it.emit(out),
            Self::Pong(it) => it.emit(out),
            Self::Close(it) => it.emit(out),
        }
    }
}

/// The frames of a datagram, one after the other. Ends behind the first error.
#[derive(Debug, Clone)]
pub struct Frames<'a, P: ?Sized> {
    rest: Option<PayloadSlice<'a, P>>,
}

impl<'a, P: Payload + ?Sized> Frames<'a, P> {
    /// The frames in these octets.
    #[must_use]
    pub const fn new(octets: PayloadSlice<'a, P>) -> Self {
        Self { rest: Some(octets) }
    }

    #[inline]
    fn take(&mut self, rest: PayloadSlice<'a, P>) -> Result<Frame<'a, P>, Malformed> {
        let left = rest.len();
        let [kind, flags, high, low] = *rest.head(&mut [0; HEADER_LEN]) else {
            return Err(Malformed::FrameTooShort {
                needed: HEADER_LEN,
                left,
            });
        };
        let length = u16::from_be_bytes([high, low]);
        let needed = HEADER_LEN + usize::from(length);
        let (Some(frame), Some(behind)) = (rest.first(needed), rest.after(needed)) else {
            return Err(Malformed::FrameTooShort { needed, left });
        };
        let Some(body) = frame.after(HEADER_LEN) else {
            return Err(Malformed::FrameTooShort { needed, left });
        };
        self.rest = (!behind.is_empty()).then_some(behind);
        parse(kind, flags, body).ok_or(Malformed::FrameLength { kind, length })?
    }
}

/// `None` for a body whose length is not its type's.
#[inline]
fn parse<P: Payload + ?Sized>(
    kind: u8,
    flags: u8,
    body: PayloadSlice<'_, P>,
) -> Option<Result<Frame<'_, P>, Malformed>> {
    let length = body.len();
    let mut copy = [0; ack::MAX_LEN];
    let octets = body.head(&mut copy).get(..length);
    Some(Ok(match kind {
        PAD => Frame::Pad(u16::try_from(length).ok()?),
        segment::KIND => {
            let header = SegmentHeader::parse(flags, body.head(&mut [0; segment::LEN]))?;
            let segment = body.after(segment::LEN)?;
            if segment.len() < segment::SHORTEST {
                return None;
            }
            Frame::Segment(header, segment)
        }
        ack::KIND => match Ack::parse(flags, octets?)? {
            Ok(ack) => Frame::Ack(ack),
            Err(malformed) => return Some(Err(malformed)),
        },
        placed::KIND => Frame::Placed(Placed::parse(octets?)?),
        credit::KIND => Frame::Credit(Credit::parse(octets?)?),
        not_ready::KIND => Frame::NotReady(NotReady::parse(octets?)?),
        error::KIND => Frame::Error(MessageError::parse(octets?)?),
        hello::KIND => match Hello::parse(flags, octets?)? {
            Ok(hello) => Frame::Hello(hello),
            Err(malformed) => return Some(Err(malformed)),
        },
        ping::PING => Frame::Ping(Ping::parse(octets?)?),
        ping::PONG => Frame::Pong(Pong::parse(octets?)?),
        close::KIND => Frame::Close(Close::parse(octets?)?),
        other => return Some(Err(Malformed::FrameType(other))),
    }))
}

impl<'a, P: Payload + ?Sized> Iterator for Frames<'a, P> {
    type Item = Result<Frame<'a, P>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take().filter(|rest| !rest.is_empty())?;
        let taken = self.take(rest);
        if taken.is_err() {
            self.rest = None;
        }
        Some(taken)
    }
}

/// The frames of a datagram, all of them well-formed. The first ones are kept as they were parsed; more are parsed again.
#[derive(Debug)]
pub(in crate::rd) struct CheckedFrames<'a, P: Payload + ?Sized> {
    pub(in crate::rd) first: SmallVec<[Frame<'a, P>; KEPT]>,
    rest: Option<PayloadSlice<'a, P>>,
    /// The hello, which is the first frame.
    pub(in crate::rd) hello: Option<Hello>,
    /// The last close.
    pub(in crate::rd) close: Option<Close>,
}

impl<'a, P: Payload + ?Sized> CheckedFrames<'a, P> {
    /// Parses the frames in these octets.
    ///
    /// # Errors
    /// [`Malformed`]: the first frame that is not well-formed.
    pub(in crate::rd) fn parse(octets: PayloadSlice<'a, P>) -> Result<Self, Malformed> {
        let mut this = Self {
            first: SmallVec::new(),
            rest: None,
            hello: None,
            close: None,
        };
        let mut frames = Frames::new(octets);
        while this.first.len() < KEPT
            && let Some(frame) = frames.next()
        {
            let frame = frame?;
            this.note(&frame, this.first.is_empty())?;
            this.first.push(frame);
        }
        this.rest = frames.rest;
        for frame in frames {
            this.note(&frame?, false)?;
        }
        Ok(this)
    }

    /// The frames behind the first ones.
    pub(in crate::rd) fn rest(&self) -> impl Iterator<Item = Frame<'a, P>> {
        Frames { rest: self.rest }.flatten()
    }

    #[inline]
    fn note(&mut self, frame: &Frame<'_, P>, is_first: bool) -> Result<(), Malformed> {
        match frame {
            Frame::Hello(_) if !is_first => return Err(Malformed::LateHello),
            Frame::Hello(it) => self.hello = Some(*it),
            Frame::Close(it) => self.close = Some(*it),
            Frame::Pad(_)
            | Frame::Segment(..)
            | Frame::Ack(_)
            | Frame::Placed(_)
            | Frame::Credit(_)
            | Frame::NotReady(_)
            | Frame::Error(_)
            | Frame::Ping(_)
            | Frame::Pong(_) => {}
        }
        Ok(())
    }
}

/// Appends padding of `length` octets, header included; shorter than a header it is none.
pub fn emit_pad(out: &mut Vec<u8>, length: u16) {
    let header = u16::try_from(HEADER_LEN).unwrap_or(u16::MAX);
    if let Some(body) = length.checked_sub(header) {
        emit_header(out, PAD, 0, body);
        out.resize(out.len() + usize::from(body), 0);
    }
}

impl<P: Payload + ?Sized> fmt::Display for Frame<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pad(length) => write!(f, "pad of {length} octets"),
            Self::Segment(header, segment) => write!(f, "{header} of {} octets", segment.len()),
            Self::Ack(it) => it.fmt(f),
            Self::Placed(it) => it.fmt(f),
            Self::Credit(it) => it.fmt(f),
            Self::NotReady(it) => it.fmt(f),
            Self::Error(it) => it.fmt(f),
            Self::Hello(it) => it.fmt(f),
            Self::Ping(it) => it.fmt(f),
            Self::Pong(it) => it.fmt(f),
            Self::Close(it) => it.fmt(f),
        }
    }
}
