//! Invitations to share memory, between reliable datagram queue pairs on one host (`rfc-notes/same-host.md`): datagrams of format 2 beside their associations.

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_llp_udp::{Format, Peer, plain};
use dgiwarp_rdmap::datagram::{EXCHANGE_LEN, Invitation};

use super::RdEngine;
use crate::datagram::Invited;

/// The datagram of an invitation.
fn emit(token: u128) -> Vec<u8> {
    let mut datagram = Invitation { token }.emit().octets.to_vec();
    datagram.resize(EXCHANGE_LEN + plain::OVERHEAD.total(), 0);
    plain::seal(Format::Exchange, &mut datagram);
    datagram
}

/// The token of an invitation; `None` for other datagrams.
pub(super) fn parse<P: Payload + ?Sized>(datagram: PayloadSlice<'_, P>) -> Option<u128> {
    let (format, octets) = plain::open(datagram).ok()?;
    // One octet more, to find those that are too long.
    let mut head = [0; EXCHANGE_LEN + 1];
    let invitation = Invitation::parse(octets.head(&mut head))?;
    (format == Format::Exchange).then_some(invitation.token)
}

impl RdEngine {
    /// Has the next [`transmit`](Self::transmit) invite a peer on this host to the Unix socket of a token. Not repeated if it is lost. Returns `false` where
    /// another datagram waits for the network.
    pub fn invite(&mut self, peer: Peer, token: u128) -> bool {
        if self.output.next.is_some() {
            return false;
        }
        self.output.next = Some((peer, emit(token)));
        true
    }

    /// The latest invitation of a peer, once.
    #[inline]
    pub fn take_invitation(&mut self) -> Option<Invited> {
        self.invited.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that the specification has, and nothing else is one.
    #[test]
    fn invitations_are_told_from_other_datagrams() {
        let token = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;
        let datagram = emit(token);
        let (fields, crc) = datagram.split_at(32);
        assert_eq!(fields[..8], *b"\x49\x03\0\0DGiH");
        assert_eq!(fields[8..24], token.to_be_bytes());
        assert_eq!(fields[24..], [0; 8]);
        assert_eq!(crc.len(), 4);
        assert_eq!(parse(PayloadSlice::new(&datagram[..])), Some(token));
        for at in 0..datagram.len() {
            let mut other = datagram.clone();
            other[at] ^= 1;
            assert_eq!(parse(PayloadSlice::new(&other[..])), None, "{at}");
            assert_eq!(parse(PayloadSlice::new(&datagram[..at])), None, "{at}");
        }
        let mut other = datagram.clone();
        plain::seal(Format::Cookie, &mut other);
        assert_eq!(parse(PayloadSlice::new(&other[..])), None);
    }
}
