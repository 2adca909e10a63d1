//! The largest ULPDU that fits an FPDU (RFC 5044 §4.5).

use crate::framing::{FPDU_OVERHEAD, MARKER_INTERVAL, MARKER_LEN};

/// Below this MPA does not shrink the MULPDU, however small the EMSS gets
/// (RFC 5044 §4.5).
pub const MULPDU_FLOOR: u16 = 128;

/// No ULPDU is longer, however large the EMSS is (RFC 5044 §3), octets.
pub const MULPDU_CEILING: u16 = 64_768;

/// The MULPDU for an effective maximum segment size of TCP, both in octets.
///
/// `markers` is whether this end has to send Markers. The result is at least
/// [`MULPDU_FLOOR`] and at most [`MULPDU_CEILING`].
pub fn mulpdu(emss: u16, markers: bool) -> u16 {
    // RFC 5044 §4.5: EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4), the middle term only
    // with Markers.
    let markers_len = if markers {
        emss.div_ceil(MARKER_INTERVAL) * MARKER_LEN
    } else {
        0
    };
    let room = emss.saturating_sub(FPDU_OVERHEAD + markers_len + emss % 4);
    room.clamp(MULPDU_FLOOR, MULPDU_CEILING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_markers() {
        assert_eq!(mulpdu(1448, false), 1442); // MTU 1500 with TCP timestamps
        assert_eq!(mulpdu(1460, false), 1454);
        assert_eq!(mulpdu(1461, false), 1454); // EMSS mod 4 is lost to alignment
        assert_eq!(mulpdu(1463, false), 1454);
        assert_eq!(mulpdu(64_772, false), 64_766);
    }

    #[test]
    fn with_markers() {
        assert_eq!(mulpdu(1448, true), 1442 - 12);
        assert_eq!(mulpdu(1024, true), 1018 - 8);
        assert_eq!(mulpdu(1028, true), 1022 - 12);
        assert_eq!(mulpdu(65_280, true), 65_274 - 512);
    }

    #[test]
    fn never_below_the_floor() {
        for emss in 0..140 {
            assert_eq!(
                mulpdu(emss, true),
                MULPDU_FLOOR.max(emss.saturating_sub(10 + emss % 4))
            );
        }
        assert_eq!(mulpdu(0, false), MULPDU_FLOOR);
    }

    #[test]
    fn never_above_the_ceiling() {
        for emss in 64_000..=u16::MAX {
            for markers in [false, true] {
                assert!(mulpdu(emss, markers) <= 64_768);
            }
        }
        assert_eq!(mulpdu(u16::MAX, false), 64_768);
        assert_eq!(mulpdu(u16::MAX, true), 64_768);
    }
}
