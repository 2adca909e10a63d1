//! Destinations of a datagram socket (§6).

use crate::wire::{MalformedDatagram, Operation, UdpHeader};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Destinations that a socket keeps the queue pairs of. Beyond, datagrams travel as plain UDP.
pub const MAX_DESTINATIONS: usize = 1 << 16;

/// Way of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// In plain UDP, behind a [`UdpHeader`]: the peer's queue pair is not known.
    Udp,
    /// In a Send to this queue pair of the peer's, behind a [`DatagramHeader`](crate::wire::DatagramHeader).
    Qp(u32),
}

/// A datagram that came in plain UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived<'a> {
    /// The program's octets, if it carries any.
    pub payload: Option<&'a [u8]>,
    /// Whether the sender is to be answered with a datagram of [`Operation::Control`].
    pub answer: bool,
}

/// The peers' queue pairs, as far as they are known.
#[derive(Debug, Default)]
pub struct Destinations {
    qpns: HashMap<SocketAddr, u32>,
}

impl Destinations {
    /// The way to a destination.
    #[must_use]
    pub fn route(&self, to: SocketAddr) -> Route {
        self.qpns.get(&to).copied().map_or(Route::Udp, Route::Qp)
    }

    /// Takes a datagram that came in plain UDP from `source`.
    ///
    /// # Errors
    /// [`MalformedDatagram`]: it is dropped.
    pub fn handle_udp<'a>(
        &mut self,
        source: SocketAddr,
        octets: &'a [u8],
    ) -> Result<Arrived<'a>, MalformedDatagram> {
        let (header, payload) = UdpHeader::parse(octets)?;
        // The queue pair is the sender's own: nobody redirects datagrams to others.
        if self.qpns.len() < MAX_DESTINATIONS || self.qpns.contains_key(&source) {
            self.qpns.insert(source, header.qpn);
        }
        let data = header.operation == Operation::Data;
        Ok(Arrived {
            payload: data.then_some(payload),
            answer: data,
        })
    }

    /// Forgets the queue pair of a destination that is not reached there.
    pub fn forget(&mut self, to: SocketAddr) {
        self.qpns.remove(&to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MalformedDatagram;

    fn datagram(operation: Operation, qpn: u32, payload: &[u8]) -> Vec<u8> {
        let address = "192.0.2.1".parse().unwrap();
        let header = UdpHeader {
            operation,
            qpn,
            address,
        };
        let mut octets = [0; UdpHeader::MAX_LEN];
        let len = header.emit(&mut octets);
        [&octets[..len], payload].concat()
    }

    #[test]
    fn a_datagram_names_the_queue_pair_and_data_are_answered() {
        let peer = "192.0.2.1:7".parse().unwrap();
        let mut destinations = Destinations::default();
        assert_eq!(destinations.route(peer), Route::Udp);
        let data = datagram(Operation::Data, 77, b"octets");
        let arrived = destinations.handle_udp(peer, &data).unwrap();
        assert_eq!(
            arrived,
            Arrived {
                payload: Some(b"octets"),
                answer: true
            }
        );
        assert_eq!(destinations.route(peer), Route::Qp(77));
        let answer = datagram(Operation::Control, 78, b"ignored");
        let arrived = destinations.handle_udp(peer, &answer).unwrap();
        assert_eq!(
            arrived,
            Arrived {
                payload: None,
                answer: false
            }
        );
        assert_eq!(destinations.route(peer), Route::Qp(78));
        destinations.forget(peer);
        assert_eq!(destinations.route(peer), Route::Udp);
    }

    #[test]
    fn strangers_are_dropped_and_destinations_are_bounded() {
        let mut destinations = Destinations::default();
        let source =
            |n: usize| SocketAddr::from(([10, 0, 0, 1], u16::try_from(n % 65536).unwrap()));
        let tag = destinations.handle_udp(source(1), &[0; 64]);
        assert_eq!(tag, Err(MalformedDatagram::Tag(0)));
        let data = datagram(Operation::Data, 1, b"");
        for n in 0..MAX_DESTINATIONS {
            destinations.handle_udp(source(n), &data).unwrap();
        }
        let one_more = "10.0.0.2:1".parse().unwrap();
        let arrived = destinations.handle_udp(one_more, &data).unwrap();
        assert!(arrived.answer);
        assert_eq!(destinations.route(one_more), Route::Udp);
        assert_eq!(destinations.route(source(1)), Route::Qp(1));
    }
}
