//! Received datagrams, before they are opened.

use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_llp_udp::Peer;
use dgiwarp_rdmap::datagram::Origin;

/// Octets of one receive call: one datagram, or a train of equal ones. They lie in a receive buffer, or in memory that another
/// process writes.
#[derive(Debug)]
pub struct Arrival<'a, P: ?Sized = [u8]> {
    /// Sender.
    pub from: Peer,
    /// Address of ours that it was sent to.
    pub to: Option<IpAddr>,
    /// Whether that is a group's: such datagrams are never answered (§6).
    pub to_group: bool,
    /// Whether they came through memory of this host: their CRC is not checked.
    pub by_memory: bool,
    /// One datagram, or several of equal length and a last one.
    pub octets: &'a P,
    /// Length of each datagram but the last, in octets.
    pub stride: usize,
}

impl<P: ?Sized> Clone for Arrival<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for Arrival<'_, P> {}

impl<'a> Arrival<'a> {
    /// The datagrams, each as if it had come alone.
    pub fn each(self) -> impl Iterator<Item = Self> + 'a {
        self.octets
            .chunks(self.stride.max(1))
            .map(move |octets| Self {
                octets,
                stride: octets.len(),
                ..self
            })
    }
}

/// Where and when a datagram arrived, and its length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Envelope {
    pub(super) now: Instant,
    pub(super) origin: Origin<Peer>,
    pub(super) to: Option<IpAddr>,
    /// Octets of the datagram.
    pub(super) datagram: usize,
}
