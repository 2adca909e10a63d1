//! Errors, by fault.
//!
//! [`Error`] ends a connection (fault of the peer or of the lower layer), [`SendError`] and
//! [`ConfigError`] are misuse by the caller, [`FrameError`] is the fault of a startup frame. The numbers that DDP and RDMAP put into a Terminate come from
//! [`Error::code`].

use core::time::Duration;
use thiserror::Error;

/// An error code of RFC 5044 §8 or RFC 6581 §8: the "error code" octet of a Terminate
/// with layer 2 (LLP) and error type 0 (MPA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorCode {
    /// TCP connection closed, terminated, or lost.
    TcpLost = 1,
    /// The MPA CRC does not match.
    Crc = 2,
    /// Marker and ULPDU Length do not agree on the start of an FPDU.
    Marker = 3,
    /// Invalid MPA Request or Reply Frame.
    StartupFrame = 4,
    /// Local catastrophic error.
    LocalCatastrophic = 5,
    /// Insufficient IRD resources.
    InsufficientIrd = 6,
    /// No matching RTR option.
    NoMatchingRtr = 7,
}

impl ErrorCode {
    /// The octet on the wire.
    pub const fn get(self) -> u8 {
        // The discriminants are the wire's values, declared just above.
        self as u8
    }
}

/// Fault of an MPA Request or Reply Frame (RFC 5044 §7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The key is neither "MPA ID Req Frame" nor "MPA ID Rep Frame".
    #[error("octet {at} of the startup key is {found:#04x}")]
    Key {
        /// Index of the first wrong octet, 0 to 15.
        at: usize,
        /// The octet found there.
        found: u8,
    },
    /// A Request arrived where a Reply was due: both ends are Initiators.
    #[error("the peer started as initiator too")]
    BothInitiators,
    /// A Reply arrived where a Request was due.
    #[error("the peer answered a request that was never made")]
    BothResponders,
    /// The revision is not one of 1 and 2, or a Reply's is above the Request's.
    #[error("MPA revision {0} is not supported here")]
    Revision(u8),
    /// PD_Length exceeds 512 octets.
    #[error("PD_Length is {0}, the limit is 512")]
    PrivateDataLength(u16),
    /// The S bit is set but PD_Length has no room for the enhanced data.
    #[error("PD_Length is {0}, enhanced connection data needs 4")]
    EnhancedTooShort(u16),
    /// The Initiator sent more than its Request before it had a Reply, so PD_Length
    /// does not match what was sent.
    #[error("{0} octets follow the request before any reply")]
    TrailingOctets(usize),
    /// A peer-to-peer Request was answered without enhanced data.
    #[error("an enhanced request was answered by an unenhanced reply")]
    Unenhanced,
}

/// Error that ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// A startup frame was improperly formatted.
    #[error("invalid MPA startup frame: {0}")]
    StartupFrame(#[from] FrameError),
    /// The startup frames did not arrive in time.
    #[error("MPA startup took longer than {0:?}")]
    StartupTimeout(Duration),
    /// TCP ended during startup.
    #[error("the peer closed TCP during MPA startup")]
    ClosedInStartup,
    /// TCP ended inside an FPDU.
    #[error("the peer closed TCP {received} octets into an FPDU")]
    ClosedInFpdu {
        /// Octets of the unfinished FPDU that had arrived.
        received: usize,
    },
    /// TCP was reset or timed out.
    #[error("the TCP connection was lost")]
    TcpLost,
    /// The CRC of an FPDU is wrong.
    #[error("FPDU CRC is {received:#010x}, calculated {calculated:#010x}")]
    Crc {
        /// The CRC in the FPDU.
        received: u32,
        /// The CRC calculated over it.
        calculated: u32,
    },
    /// A Marker points elsewhere than to the start of its FPDU, in an FPDU with a good CRC.
    #[error("marker points {found} octets back, its FPDU starts {expected} octets back")]
    Marker {
        /// The FPDUPTR found, its two low bits cleared.
        found: u16,
        /// The distance to the start of the FPDU.
        expected: u16,
    },
    /// The Responder's ORD is above what we can serve.
    #[error("the responder wants {wanted} inbound reads, {limit} are possible")]
    InsufficientIrd {
        /// The Responder's ORD.
        wanted: u16,
        /// Our IRD.
        limit: u16,
    },
    /// The Responder supports no RTR indication that we can send.
    #[error("no RTR indication in common with the responder")]
    NoMatchingRtr,
}

impl Error {
    /// The code for DDP and for a Terminate (RFC 5044 §8, RFC 6581 §8).
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::StartupFrame(_) => ErrorCode::StartupFrame,
            Self::StartupTimeout(_)
            | Self::ClosedInStartup
            | Self::ClosedInFpdu { .. }
            | Self::TcpLost => ErrorCode::TcpLost,
            Self::Crc { .. } => ErrorCode::Crc,
            Self::Marker { .. } => ErrorCode::Marker,
            Self::InsufficientIrd { .. } => ErrorCode::InsufficientIrd,
            Self::NoMatchingRtr => ErrorCode::NoMatchingRtr,
        }
    }

    /// Whether TCP is to be closed at once. Otherwise it stays open so that a Terminate
    /// can still be sent; closing is then the ULP's affair.
    pub const fn closes_tcp(self) -> bool {
        match self {
            // RFC 5044 §8: after an invalid startup frame TCP is closed immediately.
            Self::StartupFrame(_)
            | Self::StartupTimeout(_)
            | Self::ClosedInStartup
            | Self::TcpLost => true,
            // RFC 5044 §8: MPA does not close after codes 2 and 3; RFC 6581 §9.1, §9.2: codes 6
            // and 7 are reported to the peer by a Terminate. After a FIN this end can still send.
            Self::ClosedInFpdu { .. }
            | Self::Crc { .. }
            | Self::Marker { .. }
            | Self::InsufficientIrd { .. }
            | Self::NoMatchingRtr => false,
        }
    }
}

/// Error of a ULPDU to be sent: misuse by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The connection is not in full operation (yet, or any more).
    #[error("MPA is not in full operation")]
    NotInFullOperation,
    /// A Responder has to receive an FPDU before it sends one (RFC 5044 §7.1.2 rule 4).
    #[error("the responder has not received an FPDU yet")]
    AwaitingFirstFpdu,
    /// The ULPDU is longer than the MULPDU.
    #[error("a ULPDU of {len} octets exceeds the MULPDU of {mulpdu}")]
    TooLong {
        /// Length of header and payload, octets.
        len: usize,
        /// The present MULPDU, octets.
        mulpdu: u16,
    },
}

/// Error of a configuration or a startup decision: misuse by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// More private data than the frame holds: 512 octets, 508 in enhanced frames.
    #[error("{len} octets of private data, the limit is {max}")]
    PrivateDataTooLong {
        /// Octets given.
        len: usize,
        /// Octets possible.
        max: usize,
    },
    /// Peer-to-peer mode needs revision 2 and at least one RTR indication.
    #[error("peer-to-peer startup needs MPA revision 2 and an RTR indication")]
    PeerToPeer,
    /// A Request has not arrived, or has been answered already.
    #[error("there is no MPA request to answer")]
    NoRequest,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5044 §8, RFC 6581 §8: the table of codes, and which errors leave TCP to the ULP.
    #[test]
    fn every_error_has_its_code() {
        let rows = [
            (Error::TcpLost, 1, true),
            (Error::ClosedInStartup, 1, true),
            (Error::StartupTimeout(Duration::from_secs(1)), 1, true),
            (Error::ClosedInFpdu { received: 3 }, 1, false),
            (
                Error::Crc {
                    received: 0,
                    calculated: 1,
                },
                2,
                false,
            ),
            (
                Error::Marker {
                    found: 4,
                    expected: 8,
                },
                3,
                false,
            ),
            (Error::StartupFrame(FrameError::BothInitiators), 4, true),
            (
                Error::InsufficientIrd {
                    wanted: 2,
                    limit: 1,
                },
                6,
                false,
            ),
            (Error::NoMatchingRtr, 7, false),
        ];
        for (error, code, closes) in rows {
            assert_eq!(error.code().get(), code, "{error}");
            assert_eq!(error.closes_tcp(), closes, "{error}");
        }
        assert_eq!(ErrorCode::LocalCatastrophic.get(), 5);
    }
}
