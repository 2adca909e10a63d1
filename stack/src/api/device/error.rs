//! Errors of our side of the API.

use std::io;
use std::net::{IpAddr, SocketAddr};

use dgiwarp_memory::Buffer;

/// A device, queue or registration could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The UDP port is taken, or the address is not one of this host's.
    #[error("cannot bind {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// There is no route to the destination.
    #[error("no route to {address}: {source}")]
    Route {
        /// The destination.
        address: IpAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A descriptor, thread or setting was refused; `EMFILE` means that the descriptor limit is reached.
    #[error("{what}: {source}")]
    System {
        /// Action that failed.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The STag chosen for a region names another one, or is 0 or all ones, which none has.
    #[error("the STag {stag:#010x} cannot be had")]
    StagTaken {
        /// The STag asked for.
        stag: u32,
    },
    /// The address is neither a multicast nor a broadcast address.
    #[error("{address} is not the address of a group")]
    NotAGroup {
        /// The address.
        address: IpAddr,
    },
    /// The queue pair receives from the group already.
    #[error("the queue pair is attached to {group} already")]
    Attached {
        /// The group.
        group: IpAddr,
    },
    /// The queue pair does not receive from the group.
    #[error("the queue pair is not attached to {group}")]
    NotAttached {
        /// The group.
        group: IpAddr,
    },
    /// Memory windows are bound to the region.
    #[error("{windows} memory windows are bound to the region")]
    WindowsBound {
        /// How many there are.
        windows: usize,
    },
    /// A peer on this host copies from the region or to it, and did not end within a second.
    #[error("a peer on this host copies from or to the region, and does not end")]
    PeerCopies,
    /// A peer did not give its cookie in time.
    #[error("no cookie from {peer} in time")]
    NoCookie {
        /// The peer.
        peer: SocketAddr,
    },
    /// A size is outside the limits of the device.
    #[error("{what} of {value} is not between {min} and {max}")]
    Limit {
        /// Which size.
        what: &'static str,
        /// The value asked for.
        value: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
}

impl Error {
    /// All numbers for connected queue pairs are taken.
    pub(crate) fn no_qpn() -> Self {
        Self::no_memory("no QPN is left")
    }

    /// There is no memory for an object.
    pub(crate) fn no_memory(what: &'static str) -> Self {
        Self::system(what)(io::Error::from_raw_os_error(nix::libc::ENOMEM))
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// Checks a size against the limits of the device.
    pub(crate) fn check_limit(
        what: &'static str,
        value: usize,
        min: usize,
        max: usize,
    ) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::Limit {
            what,
            value,
            min,
            max,
        })
    }

    /// Checks that so much memory can be had: a failed allocation of many small ones would end the process.
    pub(crate) fn check_memory(what: &'static str, octets: usize) -> Result<(), Self> {
        Buffer::zeroed(octets).map(drop).map_err(Self::system(what))
    }

    /// The errno that the verbs report for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Bind { source, .. }
            | Self::Route { source, .. }
            | Self::System { source, .. } => source.raw_os_error().unwrap_or(5),
            Self::StagTaken { .. } | Self::Attached { .. } => 98,
            Self::WindowsBound { .. } | Self::PeerCopies => 16,
            Self::NoCookie { .. } => 110,
            Self::Limit { .. } | Self::NotAGroup { .. } | Self::NotAttached { .. } => 22,
        }
    }
}

/// A completion queue cannot be polled any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// A completion found the queue full and was lost.
    #[error("the completion queue overran: it is smaller than the work outstanding on it")]
    Overrun,
}
