//! Beginnings of FPDUs behind octets that are missing, and behind a pad of another length (RFC 5044 §4).
//!
//! With CRCs a beginning is where a header can be and a CRC is right. Without, it is where lengths lead from one header that can be to the next, until that cannot
//! be by chance.

use dgiwarp_codec::crc;

use crate::wire::ddp::{Place, Segment, opcode};
use crate::wire::framing::{Deframer, Fpdu};

/// Octets of an FPDU's length.
const LENGTH: usize = 2;
/// Octets of an FPDU's CRC.
const CRC: usize = 4;
/// Octets by which a header's queue can be told: length, two control octets, RsvdULP, QN.
const KNOWN_HEADER: usize = 12;
/// The longest pad that is looked for.
const LONGEST_PAD: usize = 8;
/// A queue number of 32 bits that fits its opcode; a tagged header has 12 bits that have to fit.
const UNTAGGED_WEIGHT: u32 = 3;
const TAGGED_WEIGHT: u32 = 1;
/// Weight of headers, each where the one before says, that are not there by chance.
const ENOUGH_WEIGHT: u32 = 4;

/// The first FPDU, if all of it is there; looks no further than needed if it is not.
pub(in crate::trace) fn whole(deframer: &mut Deframer, octets: &[u8]) -> Option<Fpdu> {
    if !deframer.markers {
        let [a, b] = *octets.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([a, b]));
        if octets.len() < (LENGTH + length).next_multiple_of(4) + CRC {
            return None;
        }
    }
    deframer.take(octets)
}

/// How the beginning of an FPDU is searched for.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Search {
    /// Position of the first octet in MPA's stream, if it is known.
    pub(in crate::trace) position: Option<u64>,
    /// Whether the receiver asked for Markers.
    pub(in crate::trace) markers: bool,
    /// Whether CRCs are in use.
    pub(in crate::trace) crc: bool,
}

impl Search {
    /// Distance of the first beginning of an FPDU, and the deframer that goes on there.
    pub(in crate::trace) fn find(self, octets: &[u8]) -> Option<(usize, Deframer)> {
        // FPDUs and Markers have lengths of whole words.
        let (first, step) = match self.position {
            Some(at) => (usize::try_from(at.wrapping_neg() % 4).unwrap_or(0), 4),
            None => (0, 1),
        };
        for at in (first..octets.len()).step_by(step) {
            let here = self.position.map(|begin| begin + at as u64);
            let markers = self.markers.then_some(here).flatten();
            let candidate = octets.get(at..)?;
            if !can_begin(candidate, markers) {
                continue;
            }
            let deframer = Deframer::at(markers.is_some(), here.unwrap_or(0));
            let found = if self.crc {
                whole(&mut deframer.clone(), candidate).is_some_and(|fpdu| fpdu.crc_is_right)
            } else {
                is_chain(deframer.clone(), candidate)
            };
            if found {
                return Some((at, deframer));
            }
        }
        None
    }
}

/// Whether lengths lead from header to header, of more weight than chance gives.
fn is_chain(mut deframer: Deframer, mut octets: &[u8]) -> bool {
    let mut weight = 0;
    while weight < ENOUGH_WEIGHT {
        let Some(fpdu) = whole(&mut deframer, octets) else {
            return false;
        };
        let Some(segment) = Segment::parse(&fpdu.ulpdu).filter(|_| fpdu.markers_are_right) else {
            return false;
        };
        if !is_known(&segment) {
            return false;
        }
        weight += match segment.place {
            Place::Tagged { .. } => TAGGED_WEIGHT,
            Place::Untagged { .. } => UNTAGGED_WEIGHT,
        };
        octets = octets.get(fpdu.octets..).unwrap_or(&[]);
    }
    true
}

/// Whether control octets and queue are those of a message that RDMAP has.
pub(in crate::trace) fn is_known(segment: &Segment) -> bool {
    let tagged = matches!(segment.place, Place::Tagged { .. });
    let queue = match segment.place {
        Place::Tagged { .. } => None,
        Place::Untagged { qn, .. } => Some(qn),
    };
    can_be(segment.ddp, segment.rdmap, tagged) && queue == queue_of(segment.opcode())
}

fn queue_of(opcode: u8) -> Option<u32> {
    match opcode {
        opcode::SEND..=opcode::SEND_SE_INVALIDATE | opcode::IMMEDIATE | opcode::IMMEDIATE_SE => {
            Some(0)
        }
        opcode::READ_REQUEST | opcode::ATOMIC_REQUEST => Some(1),
        opcode::TERMINATE => Some(2),
        opcode::ATOMIC_RESPONSE => Some(3),
        _ => None,
    }
}

fn can_be(ddp: u8, rdmap: u8, tagged: bool) -> bool {
    let opcode = rdmap & 0x0f;
    ddp & 0x3f == 1
        && rdmap & 0xb0 == 0
        && opcode <= opcode::ATOMIC_RESPONSE
        && tagged == matches!(opcode, opcode::WRITE | opcode::READ_RESPONSE)
}

/// Whether octets can be the beginning of an FPDU; `position` is that of the first where there are Markers.
fn can_begin(octets: &[u8], position: Option<u64>) -> bool {
    const DISTANCE: u64 = 512;
    let at = match position {
        Some(position) if position.is_multiple_of(DISTANCE) => 4,
        _ => 0,
    };
    let Some([a, b, ddp, rdmap]) = octets.get(at..).and_then(|rest| rest.first_chunk()) else {
        return false;
    };
    let tagged = ddp & 0x80 != 0;
    u16::from_be_bytes([*a, *b]) >= if tagged { 14 } else { 18 } && can_be(*ddp, *rdmap, tagged)
}

/// Whether an FPDU without Markers can begin here; `None` if too little is there.
fn begins(octets: &[u8]) -> Option<bool> {
    let header: &[u8; KNOWN_HEADER] = octets.first_chunk()?;
    if !can_begin(octets, None) {
        return Some(false);
    }
    let [_, _, ddp, rdmap, _, _, _, _, queue @ ..] = *header;
    let tagged = ddp & 0x80 != 0;
    Some(tagged || Some(u32::from_be_bytes(queue)) == queue_of(rdmap & 0x0f))
}

/// Whether an FPDU without Markers begins here whose header may have other versions or reserved bits: then those are wrong, and not the place.
fn begins_with_any_version(octets: &[u8]) -> bool {
    let Some(header) = octets.first_chunk::<KNOWN_HEADER>() else {
        return false;
    };
    let mut header = *header;
    header[LENGTH] = header[LENGTH] & 0xc0 | 1;
    header[LENGTH + 1] = header[LENGTH + 1] & 0x0f | 0x40;
    begins(&header) == Some(true)
}

/// Octets of an FPDU without Markers that has a ULPDU and a pad of these lengths.
pub(in crate::trace) fn octets(ulpdu: usize, pad: usize) -> usize {
    LENGTH + ulpdu + pad + CRC
}

/// Length of the pad behind an FPDU without CRC and Markers, if it is not what it has to be: no FPDU can begin behind the right pad, and one can behind just one other.
/// `before` are the octets of the FPDU as its length says, `behind` those that follow.
pub(in crate::trace) fn other_pad(before: &[u8], behind: &[u8]) -> Option<usize> {
    begins(behind)?;
    // A header whose queue alone is wrong, or that does not go on, is no pad.
    if can_begin(behind, None) || begins_with_any_version(behind) {
        return None;
    }
    let [a, b] = *before.first_chunk()?;
    let length = LENGTH + usize::from(u16::from_be_bytes([a, b]));
    let octets = [
        before.get(length..)?,
        behind.get(..2 * KNOWN_HEADER).unwrap_or(behind),
    ]
    .concat();
    let right = before.len().checked_sub(length + CRC)?;
    let mut fits = (0..=LONGEST_PAD).filter(|pad| {
        *pad != right && begins(octets.get(pad + CRC..).unwrap_or(&[])) == Some(true)
    });
    let pad = fits.next()?;
    fits.next().is_none().then_some(pad)
}

/// Whether an FPDU without Markers and with a right CRC stands at the beginning.
pub(in crate::trace) fn is_unmarked(octets: &[u8]) -> bool {
    whole(&mut Deframer::new(false), octets).is_some_and(|fpdu| fpdu.crc_is_right)
}

/// The FPDU at the beginning, which has a pad of this length and a right CRC.
pub(in crate::trace) fn padded(buffer: &[u8], pad: usize) -> Option<Fpdu> {
    let [a, b] = *buffer.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([a, b]));
    Some(Fpdu {
        ulpdu: buffer.get(LENGTH..LENGTH + length)?.to_vec(),
        crc_is_right: true,
        crc_is_zero: false,
        pad_is_zero: true,
        markers_are_right: true,
        octets: octets(length, pad),
    })
}

/// Length of the pad of an FPDU without Markers whose CRC is right behind another pad than there has to be.
pub(in crate::trace) fn padded_otherwise(octets: &[u8]) -> Option<usize> {
    let [a, b] = *octets.first_chunk()?;
    let length = LENGTH + usize::from(u16::from_be_bytes([a, b]));
    (0..=LONGEST_PAD).find(|pad| {
        let covered = octets.get(..length + pad).unwrap_or(&[]);
        let field = octets
            .get(length + pad..)
            .and_then(|rest| rest.first_chunk());
        field.is_some_and(|field| crc::from_wire(*field) == crc::crc32c(covered))
    })
}
