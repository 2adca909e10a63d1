//! RDMAP's control octet (RFC 5040 §4.1): version, two reserved bits, opcode.

/// The RDMAP version that RFC 5040 §4.1 defines.
pub const RV: u8 = 0b01;

const RV_SHIFT: u32 = 6;
const OPCODE_MASK: u8 = 0x0f;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write (RFC 5040 §4.3).
    Write = 0x0,
    /// RDMA Read Request (RFC 5040 §4.4).
    ReadRequest = 0x1,
    /// RDMA Read Response (RFC 5040 §4.5).
    ReadResponse = 0x2,
    /// Send (RFC 5040 §4.6).
    Send = 0x3,
    /// Send with Invalidate (RFC 5040 §4.6).
    SendInvalidate = 0x4,
    /// Send with Solicited Event (RFC 5040 §4.6).
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate (RFC 5040 §4.6).
    SendSolicitedInvalidate = 0x6,
    /// Terminate (RFC 5040 §4.8).
    Terminate = 0x7,
    /// Immediate Data (RFC 7306 §6).
    Immediate = 0x8,
    /// Immediate Data with Solicited Event (RFC 7306 §6).
    ImmediateSolicited = 0x9,
    /// Atomic Request (RFC 7306 §5).
    AtomicRequest = 0xa,
    /// Atomic Response (RFC 7306 §5).
    AtomicResponse = 0xb,
    /// RDMA Write-Record: assigned by the datagram mapping, reserved in the RFCs.
    WriteRecord = 0xc,
    /// Segmented Send: assigned by the datagram mapping, reserved in the RFCs.
    SegmentedSend = 0xd,
}

/// A control octet is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// RV is not 1.
    #[error("RDMAP version {0}")]
    Version(u8),
    /// No message has this opcode.
    #[error("opcode {0:#x}")]
    Opcode(u8),
}

impl Opcode {
    /// Opcode of a control octet.
    ///
    /// # Errors
    /// [`ControlError`], the version first.
    #[inline]
    pub const fn parse(octet: u8) -> Result<Self, ControlError> {
        let version = octet >> RV_SHIFT;
        if version != RV {
            return Err(ControlError::Version(version));
        }
        // RFC 5040 §4.1: the two reserved bits between are ignored when received.
        Ok(match octet & OPCODE_MASK {
            0x0 => Self::Write,
            0x1 => Self::ReadRequest,
            0x2 => Self::ReadResponse,
            0x3 => Self::Send,
            0x4 => Self::SendInvalidate,
            0x5 => Self::SendSolicited,
            0x6 => Self::SendSolicitedInvalidate,
            0x7 => Self::Terminate,
            0x8 => Self::Immediate,
            0x9 => Self::ImmediateSolicited,
            0xa => Self::AtomicRequest,
            0xb => Self::AtomicResponse,
            0xc => Self::WriteRecord,
            0xd => Self::SegmentedSend,
            unassigned => return Err(ControlError::Opcode(unassigned)),
        })
    }

    /// The control octet, reserved bits zero.
    #[must_use]
    #[inline]
    pub const fn emit(self) -> u8 {
        RV << RV_SHIFT | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_is_the_inverse_of_emit_and_ignores_reserved_bits() {
        for octet in 0..=u8::MAX {
            match Opcode::parse(octet) {
                Ok(opcode) => assert_eq!(opcode.emit(), octet & 0b1100_1111),
                Err(ControlError::Version(version)) => assert_ne!(version, RV),
                Err(ControlError::Opcode(code)) => assert!(code >= 0xe),
            }
        }
    }

    #[test]
    fn the_figures_values() {
        // RFC 5040 figure 4: Send is 0011b, Terminate 0111b.
        assert_eq!(Opcode::Send.emit(), 0x43);
        assert_eq!(Opcode::Terminate.emit(), 0x47);
    }
}
