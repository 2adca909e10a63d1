//! IP and UDP headers, as the kernel made or removed them, for a [tap](crate::driver::debug::tap).

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use dgiwarp_engine::datagram::ip_header;

/// Octets of an IPv6 and a UDP header.
pub(crate) const MAX_HEADERS: usize = 40 + UDP_HEADER;

const UDP_HEADER: usize = 8;
const UDP: u8 = 17;

/// The headers of a datagram. Both addresses are of one family, or both are taken for IPv6.
pub(crate) fn headers(
    source: SocketAddr,
    destination: SocketAddr,
    payload: &[u8],
) -> ArrayVec<u8, MAX_HEADERS> {
    let udp_length = u16::try_from(payload.len() + UDP_HEADER).unwrap_or(u16::MAX);
    let mut out = ArrayVec::new();
    let mut sum = Checksum::default();
    let header = ip_header(source.ip(), destination.ip(), payload.len());
    if source.is_ipv4() && destination.is_ipv4() {
        sum.add(&header[32..]);
        out.extend(header[20..].iter().copied());
    } else {
        sum.add(&header[8..]);
        out.extend(header);
    }
    let mut udp = [0; UDP_HEADER];
    udp[0..2].copy_from_slice(&source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    // RFC 768: protocol and length once more, from the pseudo header; a sum of zero is sent as all ones.
    sum.add(&[0, UDP]);
    sum.add(&udp_length.to_be_bytes());
    sum.add(&udp);
    sum.add(payload);
    let checksum = match sum.get() {
        0 => u16::MAX,
        other => other,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    out.extend(udp);
    out
}

/// The internet checksum. All parts but the last have an even number of octets.
#[derive(Debug, Default)]
struct Checksum(u64);

impl Checksum {
    fn add(&mut self, octets: &[u8]) {
        let (pairs, odd) = octets.as_chunks::<2>();
        for pair in pairs {
            self.0 += u64::from(u16::from_be_bytes(*pair));
        }
        if let [last] = odd {
            self.0 += u64::from(u16::from_be_bytes([*last, 0]));
        }
    }

    fn get(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketHeaders;

    /// Another implementation finds addresses, ports, lengths and checksums as they should be.
    #[test]
    fn headers_are_valid() {
        for (source, destination) in [
            ("10.1.2.3:700", "192.168.255.254:18514"),
            ("[fe80::1]:1", "[ff02::1]:65535"),
            ("127.0.0.1:9", "[::1]:10"),
        ] {
            let (source, destination): (SocketAddr, SocketAddr) =
                (source.parse().unwrap(), destination.parse().unwrap());
            for payload in [&b""[..], b"odd", b"even", &[0xff; 65_000]] {
                let mut packet = headers(source, destination, payload).to_vec();
                packet.extend_from_slice(payload);
                let parsed = PacketHeaders::from_ip_slice(&packet).unwrap();
                let (net, udp) = (
                    parsed.net.unwrap(),
                    parsed.transport.unwrap().udp().unwrap(),
                );
                assert_eq!(
                    (udp.source_port, udp.destination_port),
                    (source.port(), destination.port())
                );
                let expected = match &net {
                    etherparse::NetHeaders::Ipv4(ip, _) => {
                        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                        assert_eq!(SocketAddr::from((ip.source, source.port())), source);
                        udp.calc_checksum_ipv4(ip, payload).unwrap()
                    }
                    etherparse::NetHeaders::Ipv6(ip, _) => {
                        let to = std::net::Ipv6Addr::from(ip.destination);
                        assert_eq!(to.to_canonical(), destination.ip());
                        udp.calc_checksum_ipv6(ip, payload).unwrap()
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(udp.checksum, expected);
                assert_eq!(usize::from(udp.length), payload.len() + 8);
            }
        }
    }
}
