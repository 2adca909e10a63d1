//! Datagrams of format 2: the cookie exchange (§6), in which a datagram asks for a cookie and one of equal length yields it, and invitations to
//! share memory within one host (`rfc-notes/same-host.md`).

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

/// Type of an invitation, and the octets where an exchange of cookies has an epoch.
const INVITATION: u8 = 3;
const NAME: [u8; 4] = *b"DGiH";
/// Bits of a token.
const TOKEN_BITS: u32 = 120;

/// Invitation of a peer on one host to share memory: it names a Unix socket at which the sender listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invitation {
    /// Random, of 120 bits.
    pub token: u128,
}

impl Invitation {
    /// Parses a datagram of format 2 without what the lower layer added. `None` for other ones, and malformed ones.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let octets = <&[u8; EXCHANGE_LEN]>::try_from(bytes).ok()?;
        let [first, kind, ..] = *octets;
        let control = Control::parse(first);
        let high = u64_at::<8, EXCHANGE_LEN>(octets);
        let low = u64_at::<16, EXCHANGE_LEN>(octets);
        let token = u128::from(high) << 64 | u128::from(low);
        let is_one = control.version == control::DV
            && !control.tagged
            && control.last
            && kind == INVITATION
            && u32_at::<4, EXCHANGE_LEN>(octets) == u32::from_be_bytes(NAME)
            && token >> TOKEN_BITS == 0;
        is_one.then_some(Self { token })
    }

    /// The octets, reserved ones zero.
    #[must_use]
    pub fn emit(&self) -> Short {
        let first = Control::new(false, true);
        Short::of(
            Layout::Exchange,
            &[
                &[first.emit(), INVITATION, 0, 0],
                &NAME,
                &self.token.to_be_bytes(),
                &[0; 8],
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_parsed_as_it_was_emitted_and_others_are_none() {
        let token = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;
        let octets = Invitation { token }.emit().octets;
        assert_eq!(Invitation::parse(&octets), Some(Invitation { token }));
        assert_eq!(CookieExchange::parse(&octets), Err(DropReason::Malformed));
        // T, L, the version, the type, the name, and a token of more bits.
        for (at, bits) in [(0, 0x80), (0, 0x40), (0, 1), (1, 1), (7, 1), (8, 1)] {
            let mut other = octets.clone();
            other[at] ^= bits;
            assert_eq!(Invitation::parse(&other), None, "{at}");
        }
        assert_eq!(Invitation::parse(&octets[..31]), None);
        let request = CookieExchange {
            kind: ExchangeKind::Request,
            epoch: 1,
            nonce: 2,
            cookie: Cookie::new(0),
        };
        assert_eq!(Invitation::parse(&request.emit().octets), None);
    }
}
