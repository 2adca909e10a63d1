//! Lengths of an FPDU (RFC 5044 §4.1).

/// Octets of ULPDU_Length and CRC.
pub const FPDU_OVERHEAD: u16 = 6;

/// Octets of ULPDU_Length.
pub(super) const LENGTH_LEN: usize = 2;

/// Octets of PAD after a ULPDU of `ulpdu_len` octets: they make the FPDU an integral
/// multiple of four (RFC 5044 §4.1).
pub(super) const fn pad_len(ulpdu_len: usize) -> usize {
    (4 - (LENGTH_LEN + ulpdu_len) % 4) % 4
}
