//! ULPDUs to FPDUs.

use super::fpdu::{LENGTH_LEN, pad_len};
use super::marker::MarkerPosition;
use dgiwarp_codec::{Payload, crc};

/// Octets of pads (RFC 5044 §4.1).
const PAD: [u8; 3] = [0; 3];

/// Makes the FPDUs of one direction of a connection.
#[derive(Debug, Clone)]
pub struct Framer {
    crc: bool,
    /// Present if the peer requires Markers.
    markers: Option<MarkerPosition>,
}

impl Framer {
    /// A framer at the start of full operation.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers: markers.then(MarkerPosition::start),
        }
    }

    /// FPDUs that are made from now on have no CRC: their octets stay in the memory of one host.
    pub fn omit_crc(&mut self) {
        self.crc = false;
    }

    /// Appends to `out` the FPDU whose ULPDU is `header` followed by `payload`. Each octet of
    /// the payload is loaded once.
    ///
    /// # Panics
    /// If the ULPDU is longer than 65,535 octets; the MULPDU keeps callers below.
    pub fn frame<P: Payload + ?Sized>(&mut self, out: &mut Vec<u8>, header: &[u8], payload: &P) {
        let ulpdu_len = header.len() + payload.len();
        let length = u16::try_from(ulpdu_len).expect("a ULPDU is no longer than the MULPDU");
        let (pad, _) = PAD.split_at(pad_len(ulpdu_len));
        out.reserve(LENGTH_LEN + ulpdu_len + pad.len() + crc::LEN);
        if self.leaves_payload_whole() {
            let start = out.len();
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(header);
            let at = out.len();
            out.resize(at + payload.len(), 0);
            let (_, place) = out.split_at_mut(at);
            payload.copy(0, place);
            out.extend_from_slice(pad);
            let (_, fpdu) = out.split_at(start);
            let field = self.field(|| crc::crc32c(fpdu));
            out.extend_from_slice(&field);
        } else {
            self.frame_with_markers(out, &[&length.to_be_bytes(), header], payload, pad);
        }
    }

    /// [`frame`](Self::frame) with Markers.
    fn frame_with_markers<P: Payload + ?Sized>(
        &mut self,
        out: &mut Vec<u8>,
        before: &[&[u8]],
        payload: &P,
        pad: &[u8],
    ) {
        // RFC 5044 §4.4: the CRC covers a Marker before the ULPDU_Length, Markers inside, and
        // one between PAD and CRC: all that is written from here to the CRC field.
        let mut sum = 0;
        for part in before {
            self.put(out, &mut sum, part);
        }
        self.put_payload(out, &mut sum, payload);
        self.put(out, &mut sum, pad);
        self.put_due_marker(out, &mut sum);
        let field = self.field(|| sum);
        out.extend_from_slice(&field);
        if let Some(position) = &mut self.markers {
            position.pass(field.len());
            position.end_fpdu();
        }
    }

    /// Content of the CRC field.
    #[inline]
    fn field(&self, sum: impl FnOnce() -> u32) -> [u8; crc::LEN] {
        // RFC 5044 §4.1: without CRCs the field is present and may hold anything.
        if self.crc {
            crc::to_wire(sum())
        } else {
            [0; crc::LEN]
        }
    }

    /// Whether FPDUs have neither CRC nor Markers.
    #[inline]
    pub fn is_bare(&self) -> bool {
        !self.crc && self.markers.is_none()
    }

    /// Whether the payload of an FPDU is in one piece on the wire, so that it may stay where it lies.
    pub fn leaves_payload_whole(&self) -> bool {
        self.markers.is_none()
    }

    /// Appends to `out` the octets of an FPDU beside its payload, which is read for the CRC alone. Returns
    /// where in `out` the payload belongs.
    ///
    /// # Panics
    /// As [`frame`](Self::frame), and if Markers interrupt the payload
    /// ([`leaves_payload_whole`](Self::leaves_payload_whole)).
    pub fn frame_around<P: Payload + ?Sized>(
        &mut self,
        out: &mut Vec<u8>,
        header: &[u8],
        payload: &P,
    ) -> usize {
        assert!(
            self.leaves_payload_whole(),
            "Markers stand inside the payload"
        );
        let ulpdu_len = header.len() + payload.len();
        let length = u16::try_from(ulpdu_len).expect("a ULPDU is no longer than the MULPDU");
        let (pad, _) = PAD.split_at(pad_len(ulpdu_len));
        let start = out.len();
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(header);
        let at = out.len();
        let (_, before) = out.split_at(start);
        let field = self.field(|| {
            let sum = payload.crc(0, payload.len(), crc::crc32c(before));
            crc::crc32c_append(sum, pad)
        });
        out.extend_from_slice(pad);
        out.extend_from_slice(&field);
        at
    }

    /// Appends octets of an FPDU with the Markers that stand among them.
    fn put(&mut self, out: &mut Vec<u8>, sum: &mut u32, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.put_due_marker(out, sum);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            out.extend_from_slice(now);
            *sum = crc::crc32c_append(*sum, now);
            self.pass(now.len());
            bytes = later;
        }
    }

    fn put_payload<P: Payload + ?Sized>(&mut self, out: &mut Vec<u8>, sum: &mut u32, payload: &P) {
        let mut offset = 0;
        while offset < payload.len() {
            let room = self.put_due_marker(out, sum);
            let take = room.min(payload.len() - offset);
            let at = out.len();
            out.resize(at + take, 0);
            let (_, place) = out.split_at_mut(at);
            *sum = payload.copy_crc(offset, place, *sum);
            self.pass(take);
            offset += take;
        }
    }

    /// Writes the Marker that stands here, if one does. Returns the octets that fit before
    /// the next one.
    fn put_due_marker(&mut self, out: &mut Vec<u8>, sum: &mut u32) -> usize {
        let Some(position) = &mut self.markers else {
            return usize::MAX;
        };
        if position.is_due() {
            let marker = position.emit();
            out.extend_from_slice(&marker);
            *sum = crc::crc32c_append(*sum, &marker);
            position.pass_marker();
        }
        position.room()
    }

    fn pass(&mut self, len: usize) {
        if let Some(position) = &mut self.markers {
            position.pass(len);
        }
    }
}
