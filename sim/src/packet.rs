//! IP packets as far as a link changes them: one flipped bit, and a mark of ECN.

use rand::RngExt as _;

use crate::Rng;

/// Octets of the header of IPv6 without extensions (RFC 8200).
const IPV6_HEADER: usize = 40;
/// ECN field in the last two bits of the traffic class (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Octets of the IP header, 0 for other packets.
fn header_length(packet: &[u8]) -> usize {
    match packet.first().map(|first| (first >> 4, first & 0xf)) {
        Some((4, words)) => usize::from(words) * 4,
        Some((6, _)) => IPV6_HEADER,
        _ => 0,
    }
}

/// Flips one bit behind the IP header, where there is anything. One flipped bit fails the Internet checksum of any
/// transport, two may not (RFC 1071), and no checksum covers the flow label of IPv6.
pub(crate) fn corrupt(packet: &mut [u8], rng: &mut Rng) {
    if packet.is_empty() {
        return;
    }
    let header = header_length(packet);
    let start = if header < packet.len() { header } else { 0 };
    let bit = rng.random_range(start * 8..packet.len() * 8);
    packet[bit / 8] ^= 1 << (bit % 8);
}

/// Marks a packet of an ECN-capable transport as one that experienced congestion. Returns whether it is one.
pub(crate) fn mark(packet: &mut [u8]) -> bool {
    let header = header_length(packet);
    if packet.len() < header.max(20) {
        return false;
    }
    match packet[0] >> 4 {
        4 if packet[1] & CONGESTION_EXPERIENCED != 0 && header >= 20 => {
            packet[1] |= CONGESTION_EXPERIENCED;
            packet[10..12].fill(0);
            let sum = checksum(&packet[..header]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        6 if packet[1] >> 4 & CONGESTION_EXPERIENCED != 0 => {
            packet[1] |= CONGESTION_EXPERIENCED << 4;
            true
        }
        _ => false,
    }
}

/// RFC 1071.
fn checksum(octets: &[u8]) -> u16 {
    let words = octets
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)));
    let mut sum: u32 = words.sum();
    while let Ok(high @ 1..) = u16::try_from(sum >> 16) {
        sum = (sum & 0xffff) + u32::from(high);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    /// Header of an IPv4 packet with ECT(0) and a valid checksum, and eight octets behind it.
    fn ipv4(tos: u8) -> Vec<u8> {
        let mut packet = vec![
            0x45, tos, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2,
        ];
        let sum = checksum(&packet).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend([0; 8]);
        packet
    }

    fn ipv6(class: u8) -> Vec<u8> {
        let mut packet = vec![0; 48];
        packet[0] = 0x60 | class >> 4;
        packet[1] = class << 4;
        packet
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        // The example of RFC 1071.
        let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&octets), !0xddf2);
        assert_eq!(checksum(&ipv4(2)[..20]), 0);
    }

    #[test]
    fn one_bit_behind_the_header_changes() {
        let mut rng = Rng::seed_from_u64(1);
        for (clean, header) in [
            (ipv4(0), 20),
            (ipv6(0), 40),
            (vec![0; 3], 0),
            (ipv4(0)[..20].to_vec(), 0),
        ] {
            let mut seen = vec![0u8; clean.len()];
            for _ in 0..2000 {
                let mut packet = clean.clone();
                corrupt(&mut packet, &mut rng);
                let flips = packet.iter().zip(&clean).map(|(a, b)| (a ^ b).count_ones());
                assert_eq!(flips.sum::<u32>(), 1);
                for ((seen, a), b) in seen.iter_mut().zip(&packet).zip(&clean) {
                    *seen |= a ^ b;
                }
            }
            assert!(seen[..header].iter().all(|&bits| bits == 0), "{seen:?}");
            assert!(seen[header..].iter().all(|&bits| bits == 0xff), "{seen:?}");
        }
        corrupt(&mut [], &mut rng);
    }

    #[test]
    fn marks_are_for_capable_transports_alone() {
        for ecn in [1, 2, 3] {
            let (mut four, mut six) = (ipv4(0xb8 | ecn), ipv6(0xb8 | ecn));
            assert!(mark(&mut four) && mark(&mut six));
            assert_eq!((four, six), (ipv4(0xbb), ipv6(0xbb)));
        }
        let (mut four, mut six) = (ipv4(0xb8), ipv6(0xb8));
        assert!(!mark(&mut four) && !mark(&mut six));
        assert_eq!((four, six), (ipv4(0xb8), ipv6(0xb8)));
    }

    #[test]
    fn any_octets_do_no_harm() {
        let mut rng = Rng::seed_from_u64(2);
        for length in 0..70 {
            for first in 0..=255 {
                let mut packet = vec![0xff; length];
                if let Some(octet) = packet.first_mut() {
                    *octet = first;
                }
                mark(&mut packet);
                corrupt(&mut packet, &mut rng);
                assert_eq!(packet.len(), length);
            }
        }
    }
}
