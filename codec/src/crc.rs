//! CRC32c, the checksum of RFC 5044 §4.4, and its order of octets on the wire.
//!
//! Values are reflected, with initial value and final complement all ones: each is a complete checksum,
//! and [`crc32c_append`] extends it.

use crc_fast::{CrcAlgorithm, Digest};

/// Length in octets of a CRC on the wire.
pub const LEN: usize = 4;

/// CRC32c of `bytes`.
#[must_use]
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32c of the bytes that `crc` covers followed by `bytes`; the CRC of no bytes is 0.
#[must_use]
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if crc == 0 {
        return crc32c(bytes);
    }
    extend(crc, bytes)
}

/// Apart, so that a CRC that extends none costs what [`crc32c`] does.
#[inline(never)]
fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    low_32(digest.finalize())
}

/// Wire form of a CRC: the coefficient of x^31 is bit 0 of the first octet, so the value is sent least
/// significant octet first (RFC 5044 §4.4).
#[must_use]
#[inline]
pub fn to_wire(crc: u32) -> [u8; LEN] {
    crc.to_le_bytes()
}

/// CRC from its wire form.
#[must_use]
#[inline]
pub fn from_wire(bytes: [u8; LEN]) -> u32 {
    u32::from_le_bytes(bytes)
}

fn low_32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 3720 B.4, the vectors that RFC 5044 §4.4 refers to: data, and the CRC as sent.
    #[test]
    fn vectors_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (data, wire) in [
            (vec![0u8; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (vec![0xffu8; 32], [0x43, 0xab, 0xa8, 0x62]),
            (ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (descending, [0x5c, 0xdb, 0x3f, 0x11]),
        ] {
            assert_eq!(to_wire(crc32c(&data)), wire);
            assert_eq!(from_wire(wire), crc32c(&data));
        }
    }

    #[test]
    fn the_crc_of_nothing_is_zero() {
        assert_eq!(crc32c(&[]), 0);
        assert_eq!(crc32c_append(0, b"123456789"), 0xE306_9283);
    }

    proptest! {
        #[test]
        fn equals_an_independent_implementation(bytes: Vec<u8>) {
            prop_assert_eq!(crc32c(&bytes), ::crc32c::crc32c(&bytes));
        }

        #[test]
        fn appending_equals_one_pass(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(crc32c_append(crc32c(head), tail), crc32c(&bytes));
        }
    }
}
