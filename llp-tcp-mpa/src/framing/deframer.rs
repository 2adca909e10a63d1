//! FPDUs to ULPDUs.
#![deny(clippy::indexing_slicing)]

use super::fpdu::{LENGTH_LEN, pad_len};
use super::marker::{MARKER_LEN, MarkerPosition};
use crate::error::Error;
use dgiwarp_codec::crc;

/// Octets of the longest FPDU, Markers not counted: memory of this length serves for every one.
pub const LONGEST_FPDU: usize = LENGTH_LEN + 0xffff + 3 + crc::LEN;

/// Octets of an FPDU from which [`Deframer::good_length`] applies.
const LONG: usize = 4096;

/// Finds the FPDUs in one direction of a connection, however TCP cuts its stream.
///
/// An FPDU that lies whole in the input, without Markers, is handed out where it lies.
/// Otherwise its octets are gathered here, at most one FPDU's. The caller can read them to
/// their place ([`room`](Self::room)), so that only those that end one input are moved.
#[derive(Debug)]
pub struct Deframer {
    /// The present FPDU has a CRC to check.
    crc: bool,
    /// FPDUs behind the present one have none.
    omits_crc: bool,
    markers: Option<MarkerTrack>,
    gathered: Gathered,
    /// The FPDU in `gathered` is complete and has been given to the caller, whose borrow has
    /// ended when the next call begins.
    handed_out: bool,
    /// Octets of the latest long FPDU that is not the shorter last one of its message, Markers not counted.
    usual: usize,
    /// Octets that were moved to `gathered`.
    kept: u64,
}

/// Octets of the unfinished FPDU without Markers.
#[derive(Debug, Default)]
struct Gathered {
    /// May be longer than an FPDU, for memory that was lent.
    memory: Vec<u8>,
    /// How many of them have arrived; at most all, and at most the FPDU's. 0 between FPDUs.
    filled: usize,
}

impl Gathered {
    fn octets(&self) -> &[u8] {
        self.memory.get(..self.filled).unwrap_or_default()
    }

    /// The memory up to `target`, behind what has arrived.
    fn room(&mut self, target: usize) -> &mut [u8] {
        if self.memory.len() < target {
            self.memory.resize(target, 0);
        }
        self.memory.get_mut(self.filled..target).unwrap_or_default()
    }

    fn push(&mut self, octets: &[u8]) {
        let room = self.room(self.filled + octets.len());
        room.copy_from_slice(octets);
        self.filled += octets.len();
    }
}

/// State of the stream's Markers.
#[derive(Debug)]
struct MarkerTrack {
    position: MarkerPosition,
    /// The octets of a Marker that has only arrived in part; fewer than four.
    partial: Vec<u8>,
    /// CRC of the unfinished FPDU as it is on the wire, up to its CRC field.
    sum: u32,
    /// The first Marker of the unfinished FPDU that points elsewhere.
    wrong: Option<Error>,
}

/// Octets of an FPDU that is `gathered` up to some point.
struct Extent {
    /// Up to where the CRC covers.
    covered: usize,
    /// All of it.
    total: usize,
    ulpdu_len: usize,
}

impl Extent {
    fn of(fpdu: &[u8]) -> Option<Self> {
        let (length, _) = fpdu.split_first_chunk::<LENGTH_LEN>()?;
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let covered = LENGTH_LEN + ulpdu_len + pad_len(ulpdu_len);
        Some(Self {
            covered,
            total: covered + crc::LEN,
            ulpdu_len,
        })
    }
}

impl Deframer {
    /// A deframer at the start of full operation. `markers` is whether the peer sends them.
    pub fn new(crc: bool, markers: bool) -> Self {
        let markers = markers.then(|| MarkerTrack {
            position: MarkerPosition::start(),
            partial: Vec::new(),
            sum: 0,
            wrong: None,
        });
        Self {
            crc,
            omits_crc: false,
            markers,
            gathered: Gathered::default(),
            handed_out: false,
            usual: 0,
            kept: 0,
        }
    }

    /// FPDUs that begin from now on have no CRC to check. The unfinished one has.
    pub fn omit_crc(&mut self) {
        self.omits_crc = true;
    }

    /// Octets of an unfinished FPDU that have arrived, Markers not counted.
    pub fn unfinished(&self) -> usize {
        let partial = self.markers.as_ref().map_or(0, |track| track.partial.len());
        partial
            + if self.handed_out {
                0
            } else {
                self.gathered.filled
            }
    }

    /// Memory for the next octets of the stream, up to the end of the unfinished FPDU. Empty between FPDUs, before the whole
    /// ULPDU_Length, and with Markers. The caller may read into it, and reports octets with [`filled`](Self::filled).
    pub fn room(&mut self) -> &mut [u8] {
        self.forget_handed_out();
        match Extent::of(self.gathered.octets()) {
            Some(extent) if self.markers.is_none() => self.gathered.room(extent.total),
            Some(_) | None => &mut [],
        }
    }

    /// The first `len` octets of [`room`](Self::room) have arrived. With all of them [`next`](Self::next) returns a ULPDU even
    /// without input.
    pub fn filled(&mut self, len: usize) {
        let room = self.room().len();
        self.gathered.filled += len.min(room);
    }

    /// Whether an unfinished FPDU has become complete with [`filled`](Self::filled).
    pub fn is_complete(&self) -> bool {
        let octets = self.gathered.octets();
        !self.handed_out && Extent::of(octets).is_some_and(|extent| extent.total == octets.len())
    }

    /// How many octets behind [`room`](Self::room) should be read at a time, of `most`, so that they end where an FPDU does if all
    /// are as long as the usual ones.
    pub fn good_length(&self, most: usize) -> usize {
        match most.checked_div(self.usual) {
            // Moving the rest of a short FPDU is cheap.
            Some(fit) if fit > 0 && self.usual >= LONG => fit * self.usual,
            Some(_) | None => most,
        }
    }

    /// An FPDU that is a little shorter than those before is the last one of a message that was cut into equal ones.
    fn note_length(&mut self, total: usize) {
        let a_little_shorter = self.usual - self.usual / 8..self.usual;
        if !a_little_shorter.contains(&total) {
            self.usual = total;
        }
    }

    /// Octets that were moved because their FPDU was unfinished.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Uses `memory` for the next unfinished FPDU. Returns it if there is some already.
    pub fn lend(&mut self, memory: Vec<u8>) -> Vec<u8> {
        if self.gathered.memory.is_empty() {
            std::mem::replace(&mut self.gathered.memory, memory)
        } else {
            memory
        }
    }

    /// Gives the memory away, if no FPDU is unfinished.
    pub fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.forget_handed_out();
        let idle = self.gathered.filled == 0 && !self.gathered.memory.is_empty();
        idle.then(|| std::mem::take(&mut self.gathered.memory))
    }

    /// Whether the next octets begin an FPDU without CRC and Markers.
    #[inline]
    pub fn is_bare(&self) -> bool {
        let has_crc = self.crc && !self.omits_crc;
        !has_crc && self.markers.is_none() && self.unfinished() == 0
    }

    /// Whether nothing of an FPDU has arrived, nor of a Marker before it.
    fn is_between_fpdus(&self) -> bool {
        let marker = self.markers.as_ref().is_some_and(|track| track.sum != 0);
        !marker && self.unfinished() == 0
    }

    fn forget_handed_out(&mut self) {
        if self.handed_out {
            self.gathered.filled = 0;
            self.handed_out = false;
        }
    }

    /// Takes octets from the front of `input` up to the end of the next FPDU and gives its
    /// ULPDU, or takes all of `input` if the FPDU does not end in it.
    ///
    /// # Errors
    /// [`Error::Crc`] or [`Error::Marker`]; the deframer must not be used after one
    /// (RFC 5044 §8: no FPDU is delivered after an error).
    pub fn next<'s, 'b: 's>(&'s mut self, input: &mut &'b [u8]) -> Result<Option<&'s [u8]>, Error> {
        self.forget_handed_out();
        if self.omits_crc && self.is_between_fpdus() {
            self.crc = false;
        }
        if self.markers.is_some() {
            return self.next_marked(input);
        }
        if self.gathered.filled == 0
            && let Some(extent) = Extent::of(input)
            && let Some((fpdu, rest)) = input.split_at_checked(extent.total)
        {
            *input = rest;
            self.note_length(extent.total);
            return verified(fpdu, &extent, self.crc).map(Some);
        }
        self.fill(input, LENGTH_LEN);
        let Some(extent) = Extent::of(self.gathered.octets()) else {
            return Ok(None);
        };
        self.fill(input, extent.total);
        if self.gathered.filled < extent.total {
            return Ok(None);
        }
        self.handed_out = true;
        self.note_length(extent.total);
        verified(self.gathered.octets(), &extent, self.crc).map(Some)
    }

    /// Moves octets from `input` until `target` are gathered.
    fn fill(&mut self, input: &mut &[u8], target: usize) {
        let missing = target.saturating_sub(self.gathered.filled);
        let (now, later) = input.split_at(missing.min(input.len()));
        self.gathered.push(now);
        self.kept += now.len() as u64;
        *input = later;
    }

    fn next_marked(&mut self, input: &mut &[u8]) -> Result<Option<&[u8]>, Error> {
        let Some(track) = &mut self.markers else {
            return Ok(None);
        };
        loop {
            let extent = Extent::of(self.gathered.octets());
            let (target, in_sum) = match &extent {
                None => (LENGTH_LEN, true),
                Some(extent) if self.gathered.filled < extent.covered => (extent.covered, true),
                Some(extent) => (extent.total, false),
            };
            if let Some(extent) = extent
                && self.gathered.filled == extent.total
            {
                self.handed_out = true;
                track.end_fpdu(self.gathered.octets(), &extent, self.crc)?;
                return Ok(ulpdu(self.gathered.octets(), &extent));
            }
            if input.is_empty() {
                return Ok(None);
            }
            if track.position.is_due() {
                track.take_marker(input);
                continue;
            }
            let take = track
                .position
                .room()
                .min(target.saturating_sub(self.gathered.filled))
                .min(input.len());
            let (now, later) = input.split_at(take);
            self.gathered.push(now);
            self.kept += now.len() as u64;
            if in_sum && self.crc {
                track.sum = crc::crc32c_append(track.sum, now);
            }
            track.position.pass(take);
            *input = later;
        }
    }
}

impl MarkerTrack {
    /// Takes octets of the Marker that stands here; passes it once it is complete.
    fn take_marker(&mut self, input: &mut &[u8]) {
        let missing = usize::from(MARKER_LEN).saturating_sub(self.partial.len());
        let (now, later) = input.split_at(missing.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = later;
        let Some(marker) = self.partial.first_chunk() else {
            return;
        };
        let (found, expected) = (
            MarkerPosition::received_pointer(*marker),
            self.position.pointer(),
        );
        if found != expected {
            self.wrong = self.wrong.or(Some(Error::Marker { found, expected }));
        }
        // RFC 5044 §4.2, §4.4: reserved bits and the pointer's low bits count for the CRC.
        self.sum = crc::crc32c_append(self.sum, marker);
        self.partial.clear();
        self.position.pass_marker();
    }

    /// Checks the FPDU that ends here, and starts the next.
    fn end_fpdu(&mut self, fpdu: &[u8], extent: &Extent, check: bool) -> Result<(), Error> {
        let sum = core::mem::take(&mut self.sum);
        self.position.end_fpdu();
        if check {
            compare(sum, fpdu, extent)?;
        }
        // RFC 5044 §8 code 3 is for FPDUs whose CRC is valid, so it comes second.
        match self.wrong.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// The ULPDU of a complete FPDU.
fn ulpdu<'a>(fpdu: &'a [u8], extent: &Extent) -> Option<&'a [u8]> {
    fpdu.get(LENGTH_LEN..LENGTH_LEN + extent.ulpdu_len)
}

/// The ULPDU of a complete FPDU without Markers, its CRC checked if `check`.
fn verified<'a>(fpdu: &'a [u8], extent: &Extent, check: bool) -> Result<&'a [u8], Error> {
    if check {
        let (covered, _) = fpdu.split_at(extent.covered);
        compare(crc::crc32c(covered), fpdu, extent)?;
    }
    Ok(ulpdu(fpdu, extent).expect("the FPDU is complete"))
}

/// RFC 5044 §4.4: an FPDU whose CRC differs is invalid.
fn compare(calculated: u32, fpdu: &[u8], extent: &Extent) -> Result<(), Error> {
    let field = fpdu.get(extent.covered..).and_then(<[u8]>::first_chunk);
    let received = crc::from_wire(*field.expect("the FPDU is complete"));
    if received == calculated {
        Ok(())
    } else {
        Err(Error::Crc {
            received,
            calculated,
        })
    }
}
