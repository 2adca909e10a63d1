//! Invitations to share memory, between queue pairs on one host (`rfc-notes/same-host.md`).

use std::convert::Infallible;

use dgiwarp_llp_udp::{Format, PathKind, Peer, TrainBuilder};
use dgiwarp_rdmap::datagram::{EXCHANGE_LEN, Invitation};

use super::UdEngine;
pub use super::receive::Invited;

impl UdEngine {
    /// Has the next [`transmit`](Self::transmit) invite a peer on this host to the Unix socket of a token. Not repeated if it is lost. Returns `false` where
    /// another datagram waits for the network.
    pub fn invite(&mut self, peer: Peer, token: u128) -> bool {
        if self.shim_output.1.is_some() {
            return false;
        }
        let octets = Invitation { token }.emit().octets;
        let path = PathKind::Network;
        let length = EXCHANGE_LEN + self.shim.overhead(path).total();
        let mut datagram = vec![0; length];
        let mut builder = TrainBuilder::new(&mut self.shim, peer, path, &mut datagram);
        let Ok(()) = builder.add(Format::Exchange, EXCHANGE_LEN, |out| {
            out.copy_from_slice(&octets);
            Ok::<_, Infallible>(())
        });
        self.shim_output = (datagram, Some(peer));
        true
    }

    /// The latest invitation of a peer, once.
    #[inline]
    pub fn take_invitation(&mut self) -> Option<Invited> {
        self.invited.take()
    }
}
