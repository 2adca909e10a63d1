//! FPDUs of a stream: lengths, pads, CRCs and Markers (RFC 5044 §4).

use dgiwarp_codec::crc;

/// Octets from one Marker's first to the next one's.
const DISTANCE: u64 = 512;
/// Octets of a Marker.
const MARKER: usize = 4;

/// Deliberate faults of an FPDU; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wrong {
    /// The length that the FPDU claims, instead of its own.
    pub length: Option<u16>,
    /// Mask that is XORed to the computed CRC.
    pub crc: u32,
    /// Octet of the pad, set before the CRC is computed.
    pub pad: u8,
    /// Length of the pad, instead of that to the next multiple of four; for streams without Markers.
    pub pad_length: Option<usize>,
    /// Octets added to the pointers of Markers, before the CRC is computed.
    pub pointer: u16,
    /// An octet of the finished FPDU, counted from its first, and what it is XORed with.
    pub flip: Option<(usize, u8)>,
}

/// Makes FPDUs of ULPDUs.
#[derive(Clone, Debug)]
pub struct Framer {
    /// Whether CRCs are computed; otherwise the field is zero.
    pub crc: bool,
    /// Whether the peer wants Markers.
    pub markers: bool,
    position: u64,
}

impl Framer {
    /// A framer at the first octet behind startup.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: 0,
        }
    }

    /// An FPDU with nothing wrong.
    pub fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        self.wrong_fpdu(ulpdu, Wrong::default())
    }

    /// An FPDU with something wrong.
    pub fn wrong_fpdu(&mut self, ulpdu: &[u8], wrong: Wrong) -> Vec<u8> {
        let own = u16::try_from(ulpdu.len()).unwrap_or(u16::MAX);
        let mut plain = wrong.length.unwrap_or(own).to_be_bytes().to_vec();
        plain.extend(ulpdu);
        let right = plain.len().next_multiple_of(4);
        let padded = wrong.pad_length.map_or(right, |pad| plain.len() + pad);
        plain.resize(padded, wrong.pad);
        // The plain form has everything but the CRC; Markers come between its words, and one right before the CRC belongs to it.
        let mut octets = Vec::with_capacity(plain.len() + plain.len() / 64 + 8);
        let mut start = 0;
        for (index, word) in plain.chunks(4).enumerate() {
            self.marker(&mut octets, &mut start, index == 0, wrong.pointer);
            octets.extend(word);
            self.position += word.len() as u64;
        }
        self.marker(&mut octets, &mut start, false, wrong.pointer);
        let sum = if self.crc { crc::crc32c(&octets) } else { 0 };
        octets.extend(crc::to_wire(sum ^ wrong.crc));
        self.position += 4;
        if let Some((at, with)) = wrong.flip
            && let Some(octet) = octets.get_mut(at)
        {
            *octet ^= with;
        }
        octets
    }

    /// Puts a Marker here if one is due. One before the FPDU's first octet points nowhere.
    fn marker(&mut self, octets: &mut Vec<u8>, start: &mut usize, first: bool, add: u16) {
        if !self.markers || !self.position.is_multiple_of(DISTANCE) {
            return;
        }
        let back = u16::try_from(octets.len() - *start).unwrap_or(u16::MAX);
        octets.extend([0, 0]);
        octets.extend(back.wrapping_add(add).to_be_bytes());
        self.position += 4;
        if first {
            *start = MARKER;
        }
    }
}

/// An FPDU that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// The ULPDU.
    pub ulpdu: Vec<u8>,
    /// Whether its CRC is right.
    pub crc_is_right: bool,
    /// Whether its CRC field is zero.
    pub crc_is_zero: bool,
    /// Whether its pad is zero.
    pub pad_is_zero: bool,
    /// Whether its Markers have reserved bits of zero and point to its start.
    pub markers_are_right: bool,
    /// The octets of the stream that it took, Markers included.
    pub octets: usize,
}

/// Finds FPDUs in what arrives.
#[derive(Clone, Debug)]
pub struct Deframer {
    /// Whether we asked for Markers.
    pub markers: bool,
    position: u64,
}

impl Deframer {
    /// A deframer at the first octet behind startup.
    #[must_use]
    pub fn new(markers: bool) -> Self {
        Self {
            markers,
            position: 0,
        }
    }

    /// A deframer at this position of the stream, where an FPDU begins.
    #[must_use]
    pub fn at(markers: bool, position: u64) -> Self {
        Self { markers, position }
    }

    /// The first FPDU in `octets`, if all of it is there. The caller removes its octets.
    pub fn take(&mut self, octets: &[u8]) -> Option<Fpdu> {
        let mut reader = Reader {
            octets,
            at: 0,
            position: self.position,
            markers: self.markers,
            start: 0,
            right: true,
        };
        let mut plain = reader.word(true)?.to_vec();
        let length = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
        let all = (2 + length).next_multiple_of(4);
        while plain.len() < all {
            plain.extend(reader.word(false)?);
        }
        reader.skip_marker(false)?;
        let covered = reader.at;
        let field: [u8; 4] = octets.get(covered..)?.first_chunk().copied()?;
        reader.at += 4;
        reader.position += 4;
        let (right, at) = (reader.right, reader.at);
        self.position = reader.position;
        Some(Fpdu {
            crc_is_right: crc::from_wire(field) == crc::crc32c(&octets[..covered]),
            crc_is_zero: field == [0; 4],
            pad_is_zero: plain[2 + length..].iter().all(|octet| *octet == 0),
            markers_are_right: right,
            octets: at,
            ulpdu: plain[2..2 + length].to_vec(),
        })
    }
}

struct Reader<'a> {
    octets: &'a [u8],
    at: usize,
    position: u64,
    markers: bool,
    start: usize,
    right: bool,
}

impl Reader<'_> {
    fn skip_marker(&mut self, first: bool) -> Option<()> {
        if !self.markers || !self.position.is_multiple_of(DISTANCE) {
            return Some(());
        }
        let marker: &[u8; MARKER] = self.octets.get(self.at..)?.first_chunk()?;
        let back = u16::try_from(self.at - self.start).unwrap_or(u16::MAX);
        self.right &= marker[..2] == [0, 0] && marker[2..] == back.to_be_bytes();
        self.at += MARKER;
        self.position += 4;
        if first {
            self.start = MARKER;
        }
        Some(())
    }

    fn word(&mut self, first: bool) -> Option<[u8; 4]> {
        self.skip_marker(first)?;
        let word = self.octets.get(self.at..)?.first_chunk().copied()?;
        self.at += 4;
        self.position += 4;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Send of 24 zeros with this MSN.
    fn send(msn: u8) -> Vec<u8> {
        let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn];
        ulpdu.resize(0x2a, 0);
        ulpdu
    }

    /// RFC 5044 §4.4, figures 5 and 6: the second FPDU comes behind a first one of 492 octets.
    #[test]
    fn the_figures_of_rfc_5044() {
        let mut framer = Framer::new(true, true);
        let octets = framer.fpdu(&send(1));
        assert_eq!(octets.len(), 0x34);
        assert_eq!(octets[..8], [0, 0, 0, 0, 0, 0x2a, 0x41, 0x43]);
        assert_eq!(octets[0x30..], [0x52, 0x23, 0x99, 0x83]);

        let mut framer = Framer::new(true, true);
        let first = framer.fpdu(&[0; 492 - 4 - 2 - 4]);
        assert_eq!(first.len(), 492);
        let octets = framer.fpdu(&send(2));
        assert_eq!(octets[0x14..0x18], [0, 0, 0, 0x14]);
        assert_eq!(octets[octets.len() - 4..], [0x84, 0x92, 0x58, 0x98]);
    }

    #[test]
    fn what_is_framed_is_found_again() {
        for markers in [false, true] {
            let mut framer = Framer::new(true, markers);
            let mut deframer = Deframer::new(markers);
            let mut stream = Vec::new();
            let lengths = (0..700).step_by(7).chain([5000, 0, 1, 2, 3]);
            for length in lengths.clone() {
                stream.extend(framer.fpdu(&vec![7; length]));
            }
            for length in lengths {
                let fpdu = deframer.take(&stream).unwrap();
                assert!(deframer.clone().take(&stream[..3]).is_none());
                stream.drain(..fpdu.octets);
                assert_eq!(fpdu.ulpdu.len(), length);
                assert!(fpdu.crc_is_right && fpdu.pad_is_zero && fpdu.markers_are_right);
            }
            assert!(stream.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let wrong = |wrong| {
            let mut framer = Framer::new(true, true);
            let octets = framer.wrong_fpdu(&send(1)[..39], wrong);
            Deframer::new(true).take(&octets).unwrap()
        };
        let crc = Wrong {
            crc: 1,
            ..Wrong::default()
        };
        assert!(!wrong(crc).crc_is_right);
        let pad = wrong(Wrong {
            pad: 1,
            ..Wrong::default()
        });
        assert!(pad.crc_is_right && !pad.pad_is_zero);
        let pointer = wrong(Wrong {
            pointer: 4,
            ..Wrong::default()
        });
        assert!(pointer.crc_is_right && !pointer.markers_are_right);
        let flipped = wrong(Wrong {
            flip: Some((20, 0x80)),
            ..Wrong::default()
        });
        assert!(!flipped.crc_is_right);
    }
}
