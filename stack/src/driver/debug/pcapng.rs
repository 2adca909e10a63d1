//! Blocks of a capture file (draft-ietf-opsawg-pcapng), as far as a [tap](crate::driver::debug::tap) writes them.
//!
//! The crates for this format are unfinished in their present version or years old, and allocate for each
//! packet; a writer of three blocks is shorter than their use.

use std::time::Duration;

/// Packets begin with the IP header.
const LINKTYPE_RAW: u16 = 101;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const EPB_FLAGS: u16 = 2;
const IF_NAME: u16 = 2;
const SHB_USER_APPLICATION: u16 = 4;
const IF_TIMESTAMP_RESOLUTION: u16 = 9;
/// Timestamps count nanoseconds, 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Octets that a packet's block has beside the packet, its padding and the text of its comment.
pub(crate) const PACKET_OVERHEAD: usize = 12 + 20 + 4 + 8 + 4;

/// Which way a packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// Begins a section with one interface. A file may have several sections one after the other.
pub(crate) fn section(out: &mut Vec<u8>, application: &str, interface: &str) {
    block(out, SECTION_HEADER, |out| {
        put32(out, BYTE_ORDER_MAGIC);
        put16(out, 1);
        put16(out, 0);
        // The length of the section is not given.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, SHB_USER_APPLICATION, application.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
    block(out, INTERFACE_DESCRIPTION, |out| {
        put16(out, LINKTYPE_RAW);
        put16(out, 0);
        // No packet is cut short.
        put32(out, 0);
        option(out, IF_NAME, interface.as_bytes());
        option(out, IF_TIMESTAMP_RESOLUTION, &[NANOSECONDS]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// A packet: its headers and payload, its time, and a comment.
pub(crate) fn packet(
    out: &mut Vec<u8>,
    at: Duration,
    direction: Direction,
    (headers, payload): (&[u8], &[u8]),
    comment: Option<&str>,
) {
    let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    let [low, high] = halves(nanos);
    let length = u32::try_from(headers.len() + payload.len()).unwrap_or(u32::MAX);
    block(out, ENHANCED_PACKET, |out| {
        for word in [0, high, low, length, length] {
            put32(out, word);
        }
        out.extend_from_slice(headers);
        out.extend_from_slice(payload);
        pad(out, headers.len() + payload.len());
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        option(out, EPB_FLAGS, &flags.to_le_bytes());
        if let Some(comment) = comment {
            option(out, COMMENT, comment.as_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// The length stands before and after the body.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let length = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX);
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    put32(out, length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    put16(out, code);
    put16(out, u16::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// Fills up to 32 bits.
fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&[0; 3][..length.next_multiple_of(4) - length]);
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block by its octets, as the format's figures draw it.
    #[test]
    fn a_packet_is_the_block_of_the_format() {
        let mut out = Vec::new();
        let at = Duration::from_nanos(0x0000_0001_0000_0002);
        packet(
            &mut out,
            at,
            Direction::Outbound,
            (b"he", b"pay"),
            Some("why"),
        );
        let expected: &[&[u8]] = &[
            &[6, 0, 0, 0, 60, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0],
            &[5, 0, 0, 0, 5, 0, 0, 0],
            b"hepay\0\0\0",
            &[2, 0, 4, 0, 2, 0, 0, 0],
            &[1, 0, 3, 0],
            b"why\0",
            &[0, 0, 0, 0],
            &[60, 0, 0, 0],
        ];
        assert_eq!(out, expected.concat());
        assert!(out.len() <= PACKET_OVERHEAD + 8 + 8);
    }

    #[test]
    fn a_section_says_what_follows() {
        let mut out = Vec::new();
        section(&mut out, "dgiwarp", "qp 7");
        assert_eq!(out[..4], SECTION_HEADER.to_le_bytes());
        let first = usize::try_from(u32::from_le_bytes(out[4..8].try_into().unwrap())).unwrap();
        assert_eq!(out[first..first + 4], INTERFACE_DESCRIPTION.to_le_bytes());
        assert_eq!(out[first + 8..first + 10], LINKTYPE_RAW.to_le_bytes());
        assert_eq!(out.len() % 4, 0);
    }
}
