//! Queue pairs of UDP sockets of one host (§7): names of marks, and the messages through them.

use dgiwarp_codec::{Truncated, split_header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First octets of a message.
const TAG: u32 = 0x5544_5031;

/// Octets that are no message of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRoute {
    /// They end early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// They do not begin with the tag of this version.
    #[error("tag {0:#010x}")]
    Tag(u32),
    /// A port or a queue pair has number 0.
    #[error("a number is 0")]
    Zero,
}

/// Abstract name (`unix(7)`) of the mark of a UDP socket: its address, and that of its peer where it is connected.
#[must_use]
pub fn mark_name(local: SocketAddr, peer: Option<SocketAddr>) -> String {
    let local = canonical(local);
    match peer {
        Some(peer) => format!("dgiwarp/udp/{local}/{}", canonical(peer)),
        None => format!("dgiwarp/udp/{local}"),
    }
}

/// Names that the mark of the socket may have which takes datagrams from one address to another, in the order in which UDP prefers sockets.
#[must_use]
pub fn mark_names(from: SocketAddr, to: SocketAddr) -> Vec<String> {
    let port = to.port();
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let mut names = vec![mark_name(to, Some(from)), mark_name(to, None)];
    if canonical(to).is_ipv4() {
        names.push(mark_name(any4, None));
    }
    names.push(mark_name(any6, None));
    names
}

/// The address without scope and flow, IPv4 where it is mapped.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Request of the socket that sends datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteRequest {
    /// Address that datagrams are sent to.
    pub to: SocketAddr,
    /// Address that they come from.
    pub from: SocketAddr,
    /// Number of the sender's queue pair.
    pub qpn: u16,
}

impl RouteRequest {
    /// Length of the message.
    pub const LEN: usize = 42;

    /// Reads a message.
    ///
    /// # Errors
    /// [`MalformedRoute`].
    pub fn parse(octets: &[u8]) -> Result<Self, MalformedRoute> {
        let (tag, rest) = split_header::<4>(octets)?;
        check(*tag)?;
        let (to, rest) = address(rest)?;
        let (from, rest) = address(rest)?;
        let (qpn, _) = split_header::<2>(rest)?;
        let qpn = u16::from_be_bytes(*qpn);
        if [to.port(), from.port(), qpn].contains(&0) {
            return Err(MalformedRoute::Zero);
        }
        Ok(Self { to, from, qpn })
    }

    /// The message.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..4].copy_from_slice(&TAG.to_be_bytes());
        octets[4..22].copy_from_slice(&octets_of(self.to));
        octets[22..40].copy_from_slice(&octets_of(self.from));
        octets[40..].copy_from_slice(&self.qpn.to_be_bytes());
        octets
    }
}

/// Answer of the socket that has the mark: its queue pair, if it takes datagrams there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteAnswer {
    /// Number of the queue pair; `None` is a refusal.
    pub qpn: Option<u16>,
    /// Address that its datagrams to the other end come from.
    pub source: SocketAddr,
}

impl RouteAnswer {
    /// Length of the message.
    pub const LEN: usize = 24;

    /// Reads a message.
    ///
    /// # Errors
    /// [`MalformedRoute`].
    pub fn parse(octets: &[u8]) -> Result<Self, MalformedRoute> {
        let (tag, rest) = split_header::<4>(octets)?;
        check(*tag)?;
        let (source, rest) = address(rest)?;
        let (qpn, _) = split_header::<2>(rest)?;
        let qpn = u16::from_be_bytes(*qpn);
        let qpn = (qpn != 0).then_some(qpn);
        Ok(Self { qpn, source })
    }

    /// The message.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..4].copy_from_slice(&TAG.to_be_bytes());
        octets[4..22].copy_from_slice(&octets_of(self.source));
        octets[22..].copy_from_slice(&self.qpn.unwrap_or(0).to_be_bytes());
        octets
    }
}

fn check(tag: [u8; 4]) -> Result<(), MalformedRoute> {
    match u32::from_be_bytes(tag) {
        TAG => Ok(()),
        other => Err(MalformedRoute::Tag(other)),
    }
}

fn octets_of(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut octets = [0; 18];
    octets[..16].copy_from_slice(&ip.octets());
    octets[16..].copy_from_slice(&address.port().to_be_bytes());
    octets
}

fn address(octets: &[u8]) -> Result<(SocketAddr, &[u8]), Truncated> {
    let (ip, rest) = split_header::<16>(octets)?;
    let (port, rest) = split_header::<2>(rest)?;
    let ip = IpAddr::from(*ip).to_canonical();
    Ok((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_as_they_went(
            v6: bool, to: [u8; 16], from: [u8; 4], ports in (1..=u16::MAX, 1..=u16::MAX), qpn in 1..=u16::MAX
        ) {
            let ip = if v6 { IpAddr::from(to).to_canonical() } else { IpAddr::from([to[0], to[1], to[2], to[3]]) };
            let request = RouteRequest {
                to: (ip, ports.0).into(),
                from: (from, ports.1).into(),
                qpn,
            };
            prop_assert_eq!(RouteRequest::parse(&request.emit()), Ok(request));
            for qpn in [None, Some(qpn)] {
                let answer = RouteAnswer { qpn, source: request.to };
                prop_assert_eq!(RouteAnswer::parse(&answer.emit()), Ok(answer));
            }
        }

        #[test]
        fn any_octets_parse_or_are_named(octets: Vec<u8>) {
            if let Err(error) = RouteRequest::parse(&octets) {
                prop_assert!(!error.to_string().is_empty());
            }
            if let Err(error) = RouteAnswer::parse(&octets) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn names_are_short_enough_for_unix_sockets(to: [u8; 16], from: [u8; 16], ports: (u16, u16)) {
            let (to, from) = ((to, ports.0).into(), (from, ports.1).into());
            for name in mark_names(from, to) {
                prop_assert!(name.len() <= 107, "{}", name);
            }
        }
    }

    #[test]
    fn a_connected_socket_comes_before_a_bound_one() {
        let (from, to) = (
            "127.0.0.1:9".parse().unwrap(),
            "[::ffff:127.0.0.2]:53".parse().unwrap(),
        );
        assert_eq!(
            mark_names(from, to),
            [
                "dgiwarp/udp/127.0.0.2:53/127.0.0.1:9",
                "dgiwarp/udp/127.0.0.2:53",
                "dgiwarp/udp/0.0.0.0:53",
                "dgiwarp/udp/[::]:53"
            ]
        );
    }

    #[test]
    fn numbers_of_zero_are_refused() {
        let request = RouteRequest {
            to: "127.0.0.1:7".parse().unwrap(),
            from: "127.0.0.1:8".parse().unwrap(),
            qpn: 9,
        };
        for at in [20, 38, 40] {
            let mut octets = request.emit();
            octets[at..at + 2].fill(0);
            assert_eq!(RouteRequest::parse(&octets), Err(MalformedRoute::Zero));
        }
        assert_eq!(RouteRequest::parse(&[0; 42]), Err(MalformedRoute::Tag(0)));
        assert_eq!(
            RouteAnswer::parse(&[1; 24]),
            Err(MalformedRoute::Tag(0x0101_0101))
        );
    }
}
