//! The Global Routing Header that verbs programs find before a received datagram.
//!
//! A software RNIC has none on the wire. As RoCE v2 devices do, it writes the IP header that the datagram came under: for IPv4 20
//! zero octets and an IPv4 header, for IPv6 an IPv6 header (`ibv_create_ah_from_wc(3)` reads it).

use std::net::IpAddr;

/// Octets of the header.
pub(super) const GRH_LEN: u32 = 40;

const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;
/// Octets of UDP's header.
const UDP_HEADER: usize = 8;

/// The IP header of a datagram of `datagram` octets of UDP payload: of IPv4 in the last 20 octets. An IPv4 address beside one of IPv6 is mapped.
#[must_use]
pub fn ip_header(source: IpAddr, destination: IpAddr, datagram: usize) -> [u8; 40] {
    let mut grh = [0; 40];
    let udp_length = u16::try_from(datagram + UDP_HEADER).unwrap_or(u16::MAX);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = &mut grh[20..];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&udp_length.saturating_add(20).to_be_bytes());
            header[6] = 0x40; // do not fragment
            header[8] = HOP_LIMIT;
            header[9] = UDP;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let checksum = internet_checksum(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (source, destination) => {
            grh[0] = 0x60;
            grh[4..6].copy_from_slice(&udp_length.to_be_bytes());
            grh[6] = UDP;
            grh[7] = HOP_LIMIT;
            grh[8..24].copy_from_slice(&ipv6(source));
            grh[24..40].copy_from_slice(&ipv6(destination));
        }
    }
    grh
}

fn ipv6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn internet_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("two folds leave 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_image_has_a_valid_checksum() {
        let grh = ip_header([192, 0, 2, 1].into(), [198, 51, 100, 7].into(), 1000 + 22);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(internet_checksum(&grh[20..]), 0);
        assert_eq!(grh[20..24], [0x45, 0, 0x04, 0x1a]);
        assert_eq!(grh[32..36], [192, 0, 2, 1]);
        assert_eq!(grh[36..], [198, 51, 100, 7]);
    }

    #[test]
    fn an_ipv6_image_has_both_addresses() {
        let source: IpAddr = "2001:db8::1".parse().unwrap();
        let grh = ip_header(source, "2001:db8::2".parse().unwrap(), 10 + 22);
        assert_eq!((grh[0], grh[5], grh[6]), (0x60, 40, UDP));
        assert_eq!((grh[23], grh[39]), (1, 2));
    }
}
