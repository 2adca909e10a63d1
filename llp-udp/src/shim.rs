//! The stage between UDP and DDP: segments are sealed into datagrams and datagrams opened into segments (§1).

#[cfg(any(test, feature = "keyed-shim"))]
mod keyed;
pub mod plain;
#[cfg(test)]
mod tests;

use std::time::Instant;

use dgiwarp_codec::{Payload, PayloadSlice};

use crate::{DatagramLimit, Format, PathKind, Peer, UnknownFormat};
#[cfg(any(test, feature = "keyed-shim"))]
pub use keyed::Keyed;

/// Which shim a queue pair has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ShimConfig {
    /// A CRC32c behind each segment.
    #[default]
    Plain,
    /// Another overhead and other contents, for tests: see [`Keyed`].
    #[cfg(any(test, feature = "keyed-shim"))]
    Keyed(u64),
}

/// Octets that a shim adds to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Octets before the segment.
    pub head: usize,
    /// Octets behind the segment.
    pub tail: usize,
}

impl Overhead {
    /// All of them.
    #[must_use]
    #[inline]
    pub const fn total(self) -> usize {
        self.head + self.tail
    }
}

/// A datagram that was opened.
#[derive(Debug, Clone, Copy)]
pub enum Opened<'a, P: ?Sized> {
    /// A segment, or what stands in its place in other formats, where it lies.
    Segment(Format, PayloadSlice<'a, P>),
    /// A segment, or what stands in its place, decrypted into memory of the shim.
    Decrypted(Format, PayloadSlice<'a, [u8]>),
    /// The shim's own: nothing for the layers above.
    Consumed,
}

/// A datagram holds nothing for the layers above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Shorter than its overhead and the two octets of control that every format has.
    #[error("a datagram of {0} octets is too short")]
    TooShort(usize),
    /// Not intact: the CRC or its like differs. Nothing of the datagram may be used.
    #[error("the check is {found:#010x} where {computed:#010x} was computed")]
    Mismatch {
        /// The value in the datagram.
        found: u32,
        /// The value of its octets.
        computed: u32,
    },
    /// Intact, of a format that is not implemented.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
}

/// The shim of a datagram queue pair.
///
/// Order of calls: [`seal`](Self::seal) or [`seal_gathered`](Self::seal_gathered) for each datagram that leaves, in the order of
/// leaving; [`open`](Self::open) for each that arrives; [`poll_transmit`](Self::poll_transmit) until it yields nothing, after
/// each of these; [`handle_timeout`](Self::handle_timeout) at or after [`poll_timeout`](Self::poll_timeout). A datagram that was
/// sealed and not sent counts as lost.
#[derive(Debug)]
#[non_exhaustive]
pub enum Shim {
    /// A CRC32c behind each segment, and no state.
    Plain,
    /// For tests.
    #[cfg(any(test, feature = "keyed-shim"))]
    Keyed(Keyed),
}

impl Shim {
    /// A shim without state of any peer.
    #[must_use]
    pub fn new(config: ShimConfig) -> Self {
        match config {
            ShimConfig::Plain => Self::Plain,
            #[cfg(any(test, feature = "keyed-shim"))]
            ShimConfig::Keyed(key) => Self::Keyed(Keyed::new(key)),
        }
    }

    /// Most overhead of the shims that [`gather`](Self::gathers).
    pub const GATHERED: Overhead = plain::OVERHEAD;

    /// Octets that each datagram on a path has beside its segment.
    #[must_use]
    #[inline]
    pub const fn overhead(&self, _path: PathKind) -> Overhead {
        match self {
            Self::Plain => plain::OVERHEAD,
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(_) => keyed::OVERHEAD,
        }
    }

    /// MULPDU (RFC 5041 §2.2): octets of the longest segment whose datagram keeps to `limit`.
    #[must_use]
    #[inline]
    pub fn mulpdu(&self, path: PathKind, limit: DatagramLimit) -> u16 {
        let overhead = u16::try_from(self.overhead(path).total()).unwrap_or(u16::MAX);
        limit.get().saturating_sub(overhead)
    }

    /// Whether payload may leave from where it lies: sealing changes no octet of the segment.
    #[must_use]
    #[inline]
    pub const fn gathers(&self) -> bool {
        match self {
            Self::Plain => true,
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(_) => false,
        }
    }

    /// Seals a datagram: `datagram` holds a segment of format 0 between the octets of [`overhead`](Self::overhead).
    ///
    /// # Panics
    /// If `datagram` is shorter than its overhead and one octet.
    #[inline]
    pub fn seal(&mut self, peer: Peer, format: Format, datagram: &mut [u8]) {
        match self {
            Self::Plain => {
                let _ = peer;
                plain::seal(format, datagram);
            }
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.seal(peer, format, datagram),
        }
    }

    /// Seals a datagram whose payload stays where it lies. `header` holds the octets of the segment before its payload behind the
    /// overhead's `head`; `trailer` is the overhead's `tail`. Only for a shim that [`gathers`](Self::gathers).
    ///
    /// # Panics
    /// If `header` has no octet, or `trailer` another length.
    #[inline]
    pub fn seal_gathered(
        &mut self,
        format: Format,
        header: &mut [u8],
        payload: &impl Payload,
        trailer: &mut [u8],
    ) {
        match self {
            Self::Plain => plain::seal_gathered(format, header, payload, trailer),
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(_) => unreachable!("the caller asked whether it gathers"),
        }
    }

    /// Opens a received datagram.
    ///
    /// # Errors
    /// [`OpenError`]: the datagram is to be dropped.
    #[inline]
    pub fn open<'a, P: Payload + ?Sized>(
        &'a mut self,
        now: Instant,
        from: Peer,
        datagram: PayloadSlice<'a, P>,
    ) -> Result<Opened<'a, P>, OpenError> {
        self.open_as(now, from, datagram, true)
    }

    /// Opens a datagram that came through memory of this host: a CRC is not checked.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[inline]
    pub fn open_unchecked<'a, P: Payload + ?Sized>(
        &'a mut self,
        now: Instant,
        from: Peer,
        datagram: PayloadSlice<'a, P>,
    ) -> Result<Opened<'a, P>, OpenError> {
        self.open_as(now, from, datagram, false)
    }

    /// Opens a datagram that came through memory of this host, where that alters neither octets nor state: a CRC is not checked. `None` for others, and for one
    /// that does not open.
    #[must_use]
    #[inline]
    pub fn open_stateless<'a, P: Payload + ?Sized>(
        &self,
        datagram: PayloadSlice<'a, P>,
    ) -> Option<(Format, PayloadSlice<'a, P>)> {
        match self {
            Self::Plain => plain::open_unchecked(datagram).ok(),
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(_) => None,
        }
    }

    #[inline]
    fn open_as<'a, P: Payload + ?Sized>(
        &'a mut self,
        now: Instant,
        from: Peer,
        datagram: PayloadSlice<'a, P>,
        checked: bool,
    ) -> Result<Opened<'a, P>, OpenError> {
        match self {
            Self::Plain => {
                let _ = (now, from);
                let (format, segment) = if checked {
                    plain::open(datagram)?
                } else {
                    plain::open_unchecked(datagram)?
                };
                Ok(Opened::Segment(format, segment))
            }
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.open(now, from, datagram),
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    #[inline]
    pub fn has_transmit(&self) -> bool {
        match self {
            Self::Plain => false,
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.has_transmit(),
        }
    }

    /// The next datagram of the shim's own, at most 512 octets, and its peer. It replaces the contents of `datagram`.
    #[inline]
    pub fn poll_transmit(&mut self, datagram: &mut Vec<u8>) -> Option<Peer> {
        match self {
            Self::Plain => {
                let _ = datagram;
                None
            }
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.poll_transmit(datagram),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Plain => None,
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.poll_timeout(),
        }
    }

    /// Makes output of what is due.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Plain => {
                let _ = now;
            }
            #[cfg(any(test, feature = "keyed-shim"))]
            Self::Keyed(keyed) => keyed.handle_timeout(now),
        }
    }
}

/// The format of what was found intact.
#[inline]
fn format_of<P: Payload + ?Sized>(
    datagram: usize,
    segment: PayloadSlice<'_, P>,
) -> Result<Format, OpenError> {
    let [first, _] = *segment.head(&mut [0; 2]) else {
        return Err(OpenError::TooShort(datagram));
    };
    Ok(Format::parse(first)?)
}
