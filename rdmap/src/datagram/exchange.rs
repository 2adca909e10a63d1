//! The cookie exchange (§6): a datagram asks for a cookie, and one of equal length yields it.

#![deny(clippy::indexing_slicing)]

use dgiwarp_codec::{u32_at, u64_at};
use dgiwarp_ddp::wire::{Control, control};

use super::read::segment::{Layout, Short};
use super::{Cookie, DropReason};

/// Octets of a cookie exchange.
pub const EXCHANGE_LEN: usize = 32;

/// Direction of a cookie exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExchangeKind {
    /// Request for a cookie.
    Request = 1,
    /// Answer with the cookie.
    Answer = 2,
}

/// Request for a cookie, or answer with one (§6); both are equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieExchange {
    /// Direction.
    pub kind: ExchangeKind,
    /// The requester's epoch.
    pub epoch: u32,
    /// Nonce of the requester, which the target repeats.
    pub nonce: u64,
    /// The cookie; zero in a request.
    pub cookie: Cookie,
}

impl CookieExchange {
    /// Parses a datagram of format 2 without what the lower layer added.
    ///
    /// # Errors
    /// The reason to drop it.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let first = bytes.first().ok_or(DropReason::Malformed)?;
        if Control::parse(*first).version != control::DV {
            return Err(DropReason::BadVersion);
        }
        let octets = <&[u8; EXCHANGE_LEN]>::try_from(bytes).map_err(|_| DropReason::Malformed)?;
        let [first, kind, ..] = *octets;
        let control = Control::parse(first);
        let kind = match kind {
            1 => ExchangeKind::Request,
            2 => ExchangeKind::Answer,
            _ => return Err(DropReason::Malformed),
        };
        if control.tagged || !control.last {
            return Err(DropReason::Malformed);
        }
        Ok(Self {
            kind,
            epoch: u32_at::<4, EXCHANGE_LEN>(octets),
            nonce: u64_at::<8, EXCHANGE_LEN>(octets),
            cookie: Cookie::new(u64_at::<16, EXCHANGE_LEN>(octets)),
        })
    }

    /// The octets, reserved ones zero.
    #[must_use]
    pub fn emit(&self) -> Short {
        let first = Control::new(false, true);
        let kind: u8 = match self.kind {
            ExchangeKind::Request => 1,
            ExchangeKind::Answer => 2,
        };
        Short::of(
            Layout::Exchange,
            &[
                &[first.emit(), kind, 0, 0],
                &self.epoch.to_be_bytes(),
                &self.nonce.to_be_bytes(),
                &self.cookie.get().to_be_bytes(),
                &[0; 8],
            ],
        )
    }
}
