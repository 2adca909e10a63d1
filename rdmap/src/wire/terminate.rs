//! The Terminate header (RFC 5040 §4.8): 4 octets of control, then the parts that the control announces.
//!
//! ```text
//! octet 0 layer, error type | 1 error code | 2 M D R, reserved | 3 reserved
//!       4 DDP Segment Length, if M or D | 6 DDP header, if D (14 tagged, 18 untagged) | Read Request header, if R
//! ```

use std::fmt;

use arrayvec::ArrayVec;
use dgiwarp_codec::{Truncated, split_header};
use dgiwarp_ddp::wire::{Control, tagged, untagged};

use super::ReadRequest;
use super::read_request;

/// Length of the control in octets.
pub const CONTROL_LEN: usize = 4;
/// Length of the longest Terminate header in octets.
pub const MAX_LEN: usize = CONTROL_LEN + 2 + untagged::LEN + read_request::LEN;

const LENGTH_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMA_HEADER: u8 = 0x20;

/// Error of a Terminate: a row of RFC 5040 §4.8 figure 9, of RFC 5041 §7.2 for layer 1, or of the lower layer for layer 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    /// 0 RDMA, 1 DDP, 2 LLP; four bits.
    pub layer: u8,
    /// Error type of the layer; four bits.
    pub error_type: u8,
    /// Error code of layer and type.
    pub code: u8,
}

impl Cause {
    /// Remote protection: the STag names no buffer.
    pub const INVALID_STAG: Self = Self::rdma(1, 0x00);
    /// Remote protection: the octets are not all inside the buffer.
    pub const BASE_OR_BOUNDS: Self = Self::rdma(1, 0x01);
    /// Remote protection: the buffer does not give the right.
    pub const ACCESS: Self = Self::rdma(1, 0x02);
    /// Remote protection: the STag belongs to another stream or protection domain.
    pub const NOT_ASSOCIATED: Self = Self::rdma(1, 0x03);
    /// Remote protection: the tagged offset wraps.
    pub const WRAP: Self = Self::rdma(1, 0x04);
    /// Remote protection: the STag cannot be invalidated.
    pub const CANNOT_INVALIDATE: Self = Self::rdma(1, 0x09);
    /// Remote operation: another RDMAP version.
    pub const VERSION: Self = Self::rdma(2, 0x05);
    /// Remote operation: unexpected opcode.
    pub const UNEXPECTED_OPCODE: Self = Self::rdma(2, 0x06);
    /// Remote operation: a catastrophic error of this stream.
    pub const CATASTROPHIC_STREAM: Self = Self::rdma(2, 0x07);
    /// Remote operation: a catastrophic error of the whole RNIC.
    pub const CATASTROPHIC_GLOBAL: Self = Self::rdma(2, 0x08);
    /// Remote operation: unspecified error.
    pub const UNSPECIFIED_OPERATION: Self = Self::rdma(2, 0xff);
    /// Local catastrophic error, which has no code.
    pub const LOCAL: Self = Self::rdma(0, 0x00);

    const fn rdma(error_type: u8, code: u8) -> Self {
        Self {
            layer: 0,
            error_type,
            code,
        }
    }

    /// Whether the error is a remote protection error: RDMAP refused a buffer that the peer named.
    #[must_use]
    pub const fn is_protection(self) -> bool {
        self.layer == 0 && self.error_type == 1
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            layer,
            error_type,
            code,
        } = self;
        write!(f, "layer {layer}, type {error_type}, code {code:#04x}")
    }
}

/// The first four octets: the error, and the parts that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateControl {
    /// Error.
    pub cause: Cause,
    /// M: the DDP Segment Length is valid.
    pub length_valid: bool,
    /// D: the DDP header follows.
    pub ddp_header: bool,
    /// R: the header of a Read Request follows.
    pub rdma_header: bool,
}

impl TerminateControl {
    /// Parses a control and returns it with the octets behind it. The 13 reserved bits are ignored.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 4 octets.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (&[layer_and_type, code, headers, _], rest) = split_header::<CONTROL_LEN>(bytes)?;
        let control = Self {
            cause: Cause {
                layer: layer_and_type >> 4,
                error_type: layer_and_type & 0x0f,
                code,
            },
            length_valid: headers & LENGTH_VALID != 0,
            ddp_header: headers & DDP_HEADER != 0,
            rdma_header: headers & RDMA_HEADER != 0,
        };
        Ok((control, rest))
    }

    /// Octets of the control, reserved bits zero. The low four bits of layer and type are used.
    #[must_use]
    pub fn emit(&self) -> [u8; CONTROL_LEN] {
        let Cause {
            layer,
            error_type,
            code,
        } = self.cause;
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        [
            layer << 4 | error_type & 0x0f,
            code,
            bit(self.length_valid, LENGTH_VALID)
                | bit(self.ddp_header, DDP_HEADER)
                | bit(self.rdma_header, RDMA_HEADER),
            0,
        ]
    }
}

/// A whole Terminate header, as sent on streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate<'a> {
    /// Error.
    pub cause: Cause,
    /// DDP Segment Length: octets of the offending segment, if known.
    pub segment_length: Option<u16>,
    /// The offending segment's DDP header, 14 octets tagged or 18 untagged.
    pub ddp_header: Option<&'a [u8]>,
    /// The offending Read Request.
    pub read_request: Option<ReadRequest>,
}

impl<'a> Terminate<'a> {
    /// Parses a header. Octets behind it, and a DDP Segment Length without M, are ignored.
    ///
    /// # Errors
    /// [`Truncated`] where a part that the control announces is not whole.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Truncated> {
        let (control, mut rest) = TerminateControl::parse(bytes)?;
        let mut segment_length = None;
        // The length field MUST be present when D is set, valid or not.
        if control.length_valid || control.ddp_header {
            let (&length, tail) = split_header::<2>(rest)?;
            segment_length = control.length_valid.then_some(u16::from_be_bytes(length));
            rest = tail;
        }
        let mut ddp_header = None;
        if control.ddp_header {
            let is_tagged = rest
                .first()
                .is_some_and(|first| Control::parse(*first).tagged);
            let len = if is_tagged {
                tagged::LEN
            } else {
                untagged::LEN
            };
            let (header, tail) = rest.split_at_checked(len).ok_or(Truncated {
                needed: len,
                available: rest.len(),
            })?;
            ddp_header = Some(header);
            rest = tail;
        }
        let read_request = if control.rdma_header {
            Some(ReadRequest::parse(rest)?.0)
        } else {
            None
        };
        Ok(Self {
            cause: control.cause,
            segment_length,
            ddp_header,
            read_request,
        })
    }

    /// Octets of the header. A DDP header without a segment length has a length of zero before it, and M is clear.
    ///
    /// # Panics
    /// If the DDP header is longer than an untagged one.
    #[must_use]
    pub fn emit(&self) -> ArrayVec<u8, MAX_LEN> {
        let control = TerminateControl {
            cause: self.cause,
            length_valid: self.segment_length.is_some(),
            ddp_header: self.ddp_header.is_some(),
            rdma_header: self.read_request.is_some(),
        };
        let mut out = ArrayVec::new();
        let mut put = |octets: &[u8]| {
            out.try_extend_from_slice(octets)
                .expect("no DDP header is longer than an untagged one");
        };
        put(&control.emit());
        if control.length_valid || control.ddp_header {
            put(&self.segment_length.unwrap_or(0).to_be_bytes());
        }
        put(self.ddp_header.unwrap_or_default());
        if let Some(request) = &self.read_request {
            put(&request.emit());
        }
        out
    }
}

impl fmt::Display for Terminate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "terminate, {}", self.cause)?;
        match &self.read_request {
            Some(request) => write!(f, ": {request}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 5040 §4.8, figures 7 and 8: layer and type share an octet, M D R are the three bits after the code.
    #[test]
    fn the_figures_bits() {
        let header = [0x41; untagged::LEN];
        let terminate = Terminate {
            cause: Cause::BASE_OR_BOUNDS,
            segment_length: Some(46),
            ddp_header: Some(&header),
            read_request: None,
        };
        let octets = terminate.emit();
        assert_eq!(octets[..6], [0x01, 0x01, 0xc0, 0, 0, 46]);
        assert_eq!(octets[6..], header);
        assert_eq!(
            terminate.to_string(),
            "terminate, layer 0, type 1, code 0x01"
        );
        let control = TerminateControl {
            cause: Cause {
                layer: 1,
                error_type: 2,
                code: 3,
            },
            length_valid: false,
            ddp_header: false,
            rdma_header: true,
        };
        assert_eq!(control.emit(), [0x12, 3, 0x20, 0]);
    }

    #[test]
    fn the_longest_has_every_part() {
        let request = ReadRequest {
            sink_stag: dgiwarp_ddp::STag::new(1),
            sink_offset: dgiwarp_ddp::TaggedOffset::new(2),
            size: 3,
            source_stag: dgiwarp_ddp::STag::new(4),
            source_offset: dgiwarp_ddp::TaggedOffset::new(5),
        };
        let header = [0x41; untagged::LEN];
        let terminate = Terminate {
            cause: Cause::INVALID_STAG,
            segment_length: Some(46),
            ddp_header: Some(&header),
            read_request: Some(request),
        };
        let octets = terminate.emit();
        assert_eq!((octets.len(), octets.capacity(), MAX_LEN), (52, 52, 52));
        assert_eq!(Terminate::parse(&octets), Ok(terminate));
        let text = "terminate, layer 0, type 1, code 0x00: read 3 octets of 0x00000004 at";
        assert!(terminate.to_string().starts_with(text), "{terminate}");
        // A length alone, and a header whose length is not valid.
        let length = Terminate {
            ddp_header: None,
            read_request: None,
            ..terminate
        };
        assert_eq!(length.emit()[..], [0x01, 0, 0x80, 0, 0, 46]);
        assert_eq!(Terminate::parse(&length.emit()), Ok(length));
        let header = Terminate {
            segment_length: None,
            read_request: None,
            ..terminate
        };
        assert_eq!(header.emit()[..7], [0x01, 0, 0x40, 0, 0, 0, 0x41]);
        assert_eq!(Terminate::parse(&header.emit()), Ok(header));
    }

    #[test]
    fn protection_errors_are_those_of_rdmap_about_buffers() {
        for layer in 0..3 {
            for error_type in 0..3 {
                let cause = Cause {
                    layer,
                    error_type,
                    code: 1,
                };
                assert_eq!(cause.is_protection(), (layer, error_type) == (0, 1));
            }
        }
    }

    #[test]
    fn parts_that_are_announced_must_be_there() {
        assert!(Terminate::parse(&[0; 3]).is_err());
        assert!(Terminate::parse(&[0, 0, 0x80, 0, 1]).is_err());
        let tagged_one = [&[0, 0, 0x40, 0, 0, 0, 0xc1][..], &[0; tagged::LEN - 1]].concat();
        assert!(Terminate::parse(&tagged_one).is_ok());
        assert!(Terminate::parse(&tagged_one[..tagged_one.len() - 1]).is_err());
        let untagged_one = [&[0, 0, 0x40, 0, 0, 0, 0x41][..], &[0; untagged::LEN - 1]].concat();
        assert!(Terminate::parse(&untagged_one[..untagged_one.len() - 1]).is_err());
        assert!(Terminate::parse(&[0, 0, 0x20, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_octets_return_and_what_was_understood_survives(bytes: Vec<u8>) {
            if let Ok(terminate) = Terminate::parse(&bytes) {
                let emitted = terminate.emit();
                prop_assert_eq!(Terminate::parse(&emitted).unwrap(), terminate);
                prop_assert!(emitted.len() <= bytes.len());
            }
        }

        #[test]
        fn a_control_survives(mut bytes: [u8; CONTROL_LEN]) {
            let (control, _) = TerminateControl::parse(&bytes).unwrap();
            bytes[2] &= 0xe0;
            bytes[3] = 0;
            prop_assert_eq!(control.emit(), bytes);
        }
    }
}
