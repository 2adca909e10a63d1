//! Markers and where they stand (RFC 5044 §4.2, §4.3).

/// Octets of a Marker.
pub const MARKER_LEN: u16 = 4;
/// Distance from the first octet of a Marker to that of the next.
pub const MARKER_INTERVAL: u16 = 512;

/// FPDUPTR's two low bits are zero when sent and taken as zero when received
/// (RFC 5044 §4.2).
const POINTER_MASK: u16 = !3;

/// Position of one direction of the stream between its Markers.
///
/// The first Marker is at the first octet of full operation; the position is the distance
/// since, whatever the TCP sequence numbers are.
#[derive(Debug, Clone)]
pub(super) struct MarkerPosition {
    /// Octets to go until the first octet of the next Marker, 0 to 508; a multiple of four
    /// at the ends of Markers and FPDUs.
    until_next: u16,
    /// Octets since the present FPDU's ULPDU_Length began; 0 between FPDUs. Grows past 65,535
    /// only in FPDUs that no sender can mark (see [`Self::pointer`]).
    in_fpdu: u32,
}

impl MarkerPosition {
    /// The start of full operation: a Marker comes first.
    pub(super) const fn start() -> Self {
        Self {
            until_next: 0,
            in_fpdu: 0,
        }
    }

    /// Whether a Marker stands here.
    pub(super) const fn is_due(&self) -> bool {
        self.until_next == 0
    }

    /// Octets that fit before the next Marker.
    pub(super) fn room(&self) -> usize {
        usize::from(self.until_next)
    }

    /// The FPDUPTR of a Marker that stands here: the distance back to ULPDU_Length, or 0
    /// between FPDUs.
    pub(super) fn pointer(&self) -> u16 {
        // A ULPDU of more than 65,014 octets has Markers further from its start than sixteen
        // bits can hold. Our MULPDU excludes it when sending; when receiving the distance
        // is compared modulo 2^16.
        u16::try_from(self.in_fpdu & 0xffff).expect("masked to sixteen bits") & POINTER_MASK
    }

    /// The FPDUPTR of a received Marker.
    pub(super) const fn received_pointer(marker: [u8; MARKER_LEN as usize]) -> u16 {
        let [_, _, hi, lo] = marker;
        u16::from_be_bytes([hi, lo]) & POINTER_MASK
    }

    /// A Marker for here.
    pub(super) fn emit(&self) -> [u8; MARKER_LEN as usize] {
        let [hi, lo] = self.pointer().to_be_bytes();
        [0, 0, hi, lo]
    }

    /// Goes past the Marker that stands here.
    pub(super) fn pass_marker(&mut self) {
        debug_assert!(self.is_due(), "no marker stands here");
        self.until_next = MARKER_INTERVAL - MARKER_LEN;
        // Before the ULPDU_Length a Marker belongs to the FPDU that follows, which it does
        // not move away from.
        if self.in_fpdu > 0 {
            self.in_fpdu += u32::from(MARKER_LEN);
        }
    }

    /// Goes past octets of an FPDU, no more than [`Self::room`].
    pub(super) fn pass(&mut self, len: usize) {
        let len = u16::try_from(len).expect("no more than the room before a marker");
        debug_assert!(len <= self.until_next, "a marker stands between");
        self.until_next -= len;
        self.in_fpdu += u32::from(len);
    }

    /// The FPDU ends here.
    pub(super) fn end_fpdu(&mut self) {
        self.in_fpdu = 0;
    }
}
