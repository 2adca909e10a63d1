//! From a captured packet to the TCP segment or UDP datagram in it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, LaxNetSlice, LaxSlicedPacket, TcpOptionElement, TcpSlice, TransportSlice,
};

/// Kinds of headers that packets may begin with, by their numbers in the pcap registry.
mod link {
    pub(in crate::trace) const NULL: u32 = 0;
    pub(in crate::trace) const ETHERNET: u32 = 1;
    /// Link types that BSDs wrote for raw IP.
    pub(in crate::trace) const RAW_BSD: [u32; 2] = [12, 14];
    pub(in crate::trace) const RAW: u32 = 101;
    pub(in crate::trace) const LOOP: u32 = 108;
    pub(in crate::trace) const LINUX_SLL: u32 = 113;
    pub(in crate::trace) const IPV4: u32 = 228;
    pub(in crate::trace) const IPV6: u32 = 229;
    pub(in crate::trace) const LINUX_SLL2: u32 = 276;
}

/// A segment of TCP as it was captured.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Tcp<'a> {
    pub(in crate::trace) sequence: u32,
    pub(in crate::trace) acknowledged: Option<u32>,
    pub(in crate::trace) syn: bool,
    pub(in crate::trace) fin: bool,
    pub(in crate::trace) rst: bool,
    /// The option of the longest segment.
    pub(in crate::trace) mss: Option<u16>,
    /// Captured part of its payload.
    pub(in crate::trace) payload: &'a [u8],
}

/// Contents of a packet.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) enum Inside<'a> {
    Tcp(Tcp<'a>),
    /// A whole datagram.
    Udp {
        payload: &'a [u8],
        /// Whether IP was told not to fragment it; always so in IPv6.
        whole_only: bool,
        /// Whether the checksum was left out.
        no_checksum: bool,
    },
    /// A UDP datagram of which not everything was captured, or that came in fragments of IP.
    UdpInPart,
}

/// A packet with addresses.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Addressed<'a> {
    pub(in crate::trace) from: SocketAddr,
    pub(in crate::trace) to: SocketAddr,
    pub(in crate::trace) inside: Inside<'a>,
}

/// Takes a packet apart; `None` if it has neither TCP nor UDP in it.
pub(in crate::trace) fn parse(kind: u32, octets: &[u8]) -> Option<Addressed<'_>> {
    let sliced = slice(kind, octets)?;
    let (from, to, fragment, whole_only) = match sliced.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => (
            IpAddr::from(ip.header().source_addr()),
            IpAddr::from(ip.header().destination_addr()),
            ip.payload().fragmented,
            ip.header().dont_fragment(),
        ),
        LaxNetSlice::Ipv6(ip) => (
            IpAddr::from(ip.header().source_addr()),
            IpAddr::from(ip.header().destination_addr()),
            ip.payload().fragmented,
            true,
        ),
        LaxNetSlice::Arp(_) => return None,
    };
    let (from_port, to_port, inside) = match sliced.transport.as_ref()? {
        TransportSlice::Tcp(tcp) => (
            tcp.source_port(),
            tcp.destination_port(),
            Inside::Tcp(Tcp {
                sequence: tcp.sequence_number(),
                acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
                syn: tcp.syn(),
                fin: tcp.fin(),
                rst: tcp.rst(),
                mss: mss(tcp),
                payload: tcp.payload(),
            }),
        ),
        TransportSlice::Udp(udp) => {
            let whole = usize::from(udp.length()) == udp.slice().len();
            let inside = if fragment || !whole {
                Inside::UdpInPart
            } else {
                Inside::Udp {
                    payload: udp.payload(),
                    whole_only,
                    no_checksum: udp.checksum() == 0,
                }
            };
            (udp.source_port(), udp.destination_port(), inside)
        }
        TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_) => {
            return None;
        }
    };
    Some(Addressed {
        from: SocketAddr::new(from, from_port),
        to: SocketAddr::new(to, to_port),
        inside,
    })
}

/// The option of TCP that announces the longest segment.
fn mss(tcp: &TcpSlice<'_>) -> Option<u16> {
    tcp.options_iterator().find_map(|option| match option {
        Ok(TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
        _ => None,
    })
}

fn slice(kind: u32, octets: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let by_type =
        |number, octets| Some(LaxSlicedPacket::from_ether_type(EtherType(number), octets));
    match kind {
        link::ETHERNET => LaxSlicedPacket::from_ethernet(octets).ok(),
        link::RAW | link::IPV4 | link::IPV6 => LaxSlicedPacket::from_ip(octets).ok(),
        raw if link::RAW_BSD.contains(&raw) => LaxSlicedPacket::from_ip(octets).ok(),
        // The family's number differs between systems, IP's version does not.
        link::NULL | link::LOOP => LaxSlicedPacket::from_ip(octets.get(4..)?).ok(),
        link::LINUX_SLL => {
            let [a, b] = *octets.get(14..)?.first_chunk()?;
            by_type(u16::from_be_bytes([a, b]), octets.get(16..)?)
        }
        link::LINUX_SLL2 => {
            let [a, b] = *octets.first_chunk()?;
            by_type(u16::from_be_bytes([a, b]), octets.get(20..)?)
        }
        _ => None,
    }
}
