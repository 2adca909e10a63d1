//! Bare FPDUs: without Markers, and with a CRC field that holds zero and is not checked. They stay in the memory of one host.

use dgiwarp_codec::crc;

use super::fpdu::pad_len;

/// Octets of ULPDU_Length.
pub const LENGTH_LEN: usize = super::fpdu::LENGTH_LEN;

/// Octets of the FPDU of a ULPDU of `ulpdu_len` octets.
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + behind_len(ulpdu_len)
}

/// The ULPDU_Length of a ULPDU.
///
/// # Panics
/// If the ULPDU is longer than 65,535 octets.
#[must_use]
pub fn length(ulpdu_len: usize) -> [u8; LENGTH_LEN] {
    let length = u16::try_from(ulpdu_len).expect("a ULPDU is no longer than the MULPDU");
    length.to_be_bytes()
}

/// Octets of an FPDU behind its ULPDU of `ulpdu_len` octets, pad and CRC field: 4 to 7, all zero.
#[must_use]
pub const fn behind_len(ulpdu_len: usize) -> usize {
    pad_len(ulpdu_len) + crc::LEN
}

/// The ULPDU of the first FPDU of `octets`, and octets of that FPDU. `None` if it is not there in full.
#[must_use]
pub fn first(octets: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = octets.split_first_chunk()?;
    let ulpdu_len = usize::from(u16::from_be_bytes(*length));
    let fpdu = fpdu_len(ulpdu_len);
    (fpdu <= octets.len()).then(|| (&rest[..ulpdu_len], fpdu))
}

/// The octets of the ULPDU of the first FPDU of `octets` that are there, perhaps not all, with the length of the ULPDU. `None` without a length.
#[must_use]
pub fn front(octets: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = octets.split_first_chunk()?;
    let ulpdu_len = usize::from(u16::from_be_bytes(*length));
    Some((&rest[..ulpdu_len.min(rest.len())], ulpdu_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{Deframer, Framer};

    /// The framer makes the same octets, and the deframer takes them.
    #[test]
    fn bare_fpdus_are_those_of_framer_and_deframer_without_crc() {
        for payload_len in 0..70 {
            let payload: Vec<u8> = (0..payload_len).collect();
            let mut fpdu = length(18 + payload.len()).to_vec();
            fpdu.extend_from_slice(&[7; 18]);
            fpdu.extend_from_slice(&payload);
            fpdu.resize(fpdu.len() + behind_len(18 + payload.len()), 0);
            assert_eq!(fpdu.len(), fpdu_len(18 + payload.len()));
            let mut framer = Framer::new(true, false);
            assert!(!framer.is_bare());
            framer.omit_crc();
            assert!(framer.is_bare());
            let mut made = Vec::new();
            framer.frame(&mut made, &[7; 18], payload.as_slice());
            assert_eq!(made, fpdu);
            let (ulpdu, len) = first(&fpdu).unwrap();
            assert_eq!((len, ulpdu.len()), (fpdu.len(), 18 + payload.len()));
            for cut in 0..fpdu.len() {
                assert_eq!(first(&fpdu[..cut]), None);
                let there = cut.checked_sub(LENGTH_LEN).map(|there| {
                    let there = there.min(ulpdu.len());
                    (&ulpdu[..there], ulpdu.len())
                });
                assert_eq!(front(&fpdu[..cut]), there);
            }
            let mut deframer = Deframer::new(true, false);
            assert!(!deframer.is_bare());
            deframer.omit_crc();
            assert!(deframer.is_bare());
            assert_eq!(deframer.next(&mut &fpdu[..]), Ok(Some(ulpdu)));
            let (mut part, _) = fpdu.split_at(5);
            assert_eq!(deframer.next(&mut part), Ok(None));
            assert!(!deframer.is_bare(), "an FPDU is unfinished");
        }
    }
}
