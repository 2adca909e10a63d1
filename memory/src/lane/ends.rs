//! The two ends of a lane: octets are copied in at one and out at the other.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::arena::Shared;
use super::protocol::{Consumer, Control, LaneCorrupt, Producer, Ring};
use crate::piece::MOST_ZEROES;
use crate::{Framed, Piece, RegionSlice};

/// Octets that are published, or released, while the rest of a long copy goes on.
const CHUNK: usize = 16 << 10;

/// A lane's memory.
pub(super) struct Memory {
    words: NonNull<Control>,
    ring: NonNull<u8>,
    ring_sizes: Ring,
    shared: Arc<Shared>,
}

// SAFETY: the addresses are inside the mapping, which is held; all accesses are atomic operations and raw copies.
unsafe impl Send for Memory {}

impl Memory {
    pub(super) const fn new(
        shared: Arc<Shared>,
        words: NonNull<Control>,
        ring: NonNull<u8>,
        ring_sizes: Ring,
    ) -> Self {
        Self {
            words,
            ring,
            ring_sizes,
            shared,
        }
    }

    fn words(&self) -> &Control {
        // SAFETY: aligned words inside the mapping, which is held. They are atomic: the other process may change them.
        unsafe { self.words.as_ref() }
    }

    /// Cuts octets of a ring of `size` octets into the parts before and behind its end. Calls `each` with the address of each, its offset in
    /// the cut octets and its length.
    #[inline]
    fn parts(&self, place: Place, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let size = place.size;
        assert!(
            len as u64 <= size && size <= 1 << self.ring_sizes.most,
            "the protocol leaves no more room"
        );
        #[expect(clippy::cast_possible_truncation, reason = "less than the ring's size")]
        let (at, size) = ((place.position & (size - 1)) as usize, size as usize);
        let first = len.min(size - at);
        // SAFETY: `at` is inside the ring.
        each(unsafe { self.ring.add(at) }.as_ptr(), 0, first);
        if first < len {
            each(self.ring.as_ptr(), first, len - first);
        }
    }

    /// `len` octets at a place, if the ring has them in one piece.
    #[inline]
    fn unbroken(&self, place: Place, len: usize) -> Option<Room<'_>> {
        let (to, room) = self.until_end(place);
        (len <= room).then_some(Room {
            to,
            left: len,
            memory: PhantomData,
        })
    }

    /// The octet at a place, and how many the ring has from it on to its end.
    #[inline]
    fn until_end(&self, place: Place) -> (NonNull<u8>, usize) {
        assert!(
            place.size <= 1 << self.ring_sizes.most,
            "the ring in use is no longer than its memory"
        );
        #[expect(clippy::cast_possible_truncation, reason = "less than the ring's size")]
        let (at, size) = (
            (place.position & (place.size - 1)) as usize,
            place.size as usize,
        );
        // SAFETY: `at` is inside the ring.
        (unsafe { self.ring.add(at) }, size - at)
    }

    /// Writes pieces one behind the other.
    #[inline(never)]
    fn put_all(&self, mut place: Place, pieces: &[Piece<'_>]) {
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.put(place, bytes),
                Piece::Region(slice) => self.put_region(place, slice),
            }
            place = place.behind(piece.len());
        }
    }

    fn put(&self, place: Place, octets: &[u8]) {
        self.parts(place, octets.len(), |to, at, len| {
            let from = octets[at..at + len].as_ptr();
            // SAFETY: `len` octets are there, and `parts` keeps within the ring, which no reference reaches.
            unsafe { ptr::copy_nonoverlapping(from, to, len) };
        });
    }

    fn put_region(&self, place: Place, slice: &RegionSlice<'_>) {
        if slice.is_on_demand() {
            slice.for_each_chunk(|at, octets| self.put(place.behind(at), octets));
            return;
        }
        self.parts(place, slice.len(), |to, at, len| {
            let part = slice.subslice(at, len).expect("a part of the slice");
            // SAFETY: as in `put`.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), to, len) };
        });
    }

    #[inline]
    fn get(&self, place: Place, octets: &mut [u8]) {
        if let Some(room) = self.unbroken(place, octets.len()) {
            // SAFETY: as in `put`. Octets that the other process changes meanwhile are of either value.
            unsafe {
                ptr::copy_nonoverlapping(room.to.as_ptr(), octets.as_mut_ptr(), octets.len())
            };
            return;
        }
        self.parts(place, octets.len(), |from, at, len| {
            let to = octets[at..at + len].as_mut_ptr();
            // SAFETY: as in `put`. Octets that the other process changes meanwhile are of either value.
            unsafe { ptr::copy_nonoverlapping(from, to, len) };
        });
    }
}

/// Octets of a ring in one piece that are to be written from the first on.
struct Room<'a> {
    to: NonNull<u8>,
    left: usize,
    memory: PhantomData<&'a Memory>,
}

impl Room<'_> {
    #[inline(always)]
    fn put_piece(&mut self, piece: &Piece<'_>) {
        match piece {
            Piece::Bytes(octets) => self.put_octets(octets),
            Piece::Region(slice) if slice.is_on_demand() => self.put_on_demand(slice),
            // SAFETY: registered memory, which is not the ring.
            Piece::Region(slice) => unsafe { self.put(slice.as_ptr(), slice.len()) },
        }
    }

    /// Writes octets around a payload in two copies of fixed length, and the payload over their excess.
    #[inline(always)]
    fn put_framed<const FRONT: usize>(mut self, framed: &Framed<'_, FRONT>) {
        assert!(
            FRONT.max(MOST_ZEROES) <= self.left
                && framed.front_len <= FRONT
                && framed.zeroes <= MOST_ZEROES
                && framed.octets() == self.left,
            "the octets that were asked for"
        );
        // SAFETY: the last of the octets that are left.
        let end = unsafe { self.to.add(self.left - MOST_ZEROES) };
        // SAFETY: so many octets are there, which no reference reaches.
        unsafe { end.cast::<[u8; MOST_ZEROES]>().write_unaligned([0; _]) };
        // SAFETY: as many are left.
        unsafe { self.to.cast::<[u8; FRONT]>().write_unaligned(framed.front) };
        // SAFETY: within the octets that are left.
        self.to = unsafe { self.to.add(framed.front_len) };
        self.left -= framed.front_len;
        self.put_piece(&framed.payload);
    }

    #[inline(always)]
    fn put_octets(&mut self, octets: &[u8]) {
        // SAFETY: no reference reaches the ring.
        unsafe { self.put(octets.as_ptr(), octets.len()) };
    }

    #[cold]
    fn put_on_demand(&mut self, slice: &RegionSlice<'_>) {
        slice.for_each_chunk(|_, octets| self.put_octets(octets));
    }

    /// Writes `len` octets at `from`.
    ///
    /// # Safety
    /// They can be read, and are outside of the ring.
    #[inline(always)]
    unsafe fn put(&mut self, from: *const u8, len: usize) {
        assert!(
            len <= self.left,
            "pieces have the length that was asked for"
        );
        // SAFETY: the caller's contract; as many octets are left of the ring, which no reference reaches.
        unsafe { ptr::copy_nonoverlapping(from, self.to.as_ptr(), len) };
        // SAFETY: within the octets that are left, or behind the last one.
        self.to = unsafe { self.to.add(len) };
        self.left -= len;
    }
}

/// A position in a ring of `size` octets.
#[derive(Debug, Clone, Copy)]
struct Place {
    position: u64,
    /// A power of two.
    size: u64,
}

impl Place {
    const fn behind(self, octets: usize) -> Self {
        Self {
            position: self.position + octets as u64,
            ..self
        }
    }
}

/// The sending end of a lane.
pub struct LaneOutput {
    memory: Memory,
    producer: Producer,
}

/// The receiving end of a lane.
pub struct LaneInput {
    memory: Memory,
    consumer: Consumer,
}

impl fmt::Debug for LaneOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.producer.fmt(f)
    }
}

impl fmt::Debug for LaneInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.consumer.fmt(f)
    }
}

impl LaneOutput {
    pub(super) fn new(memory: Memory) -> Self {
        let producer = Producer::new(memory.ring_sizes);
        Self { memory, producer }
    }

    /// Copies as many octets of `pieces` as there is room for into the lane. Returns their number; 0 also where the ring may [grow](Self::growth).
    /// [`takes_bell`](Self::takes_bell) comes next.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was sent.
    #[inline]
    pub fn write(&mut self, pieces: &[Piece<'_>]) -> Result<usize, LaneCorrupt> {
        let wanted: usize = pieces.iter().map(Piece::len).sum();
        let words = self.memory.words();
        let room = self.producer.room(words, wanted as u64)?;
        let taken = wanted.min(usize::try_from(room).unwrap_or(usize::MAX));
        let mut left = taken;
        let mut unpublished = 0;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() && left > 0 {
                let len = (piece.len() - at).min(left).min(CHUNK - unpublished);
                let place = Place {
                    position: self.producer.head() + unpublished as u64,
                    size: self.producer.size(),
                };
                match piece {
                    Piece::Bytes(bytes) => self.memory.put(place, &bytes[at..at + len]),
                    Piece::Region(slice) => {
                        let part = slice.subslice(at, len).expect("a part of the piece");
                        self.memory.put_region(place, &part);
                    }
                }
                at += len;
                left -= len;
                unpublished += len;
                if unpublished == CHUNK {
                    self.producer.publish(words, CHUNK as u64);
                    unpublished = 0;
                }
            }
        }
        if unpublished > 0 {
            self.producer.publish(words, unpublished as u64);
        }
        Ok(taken)
    }

    /// Copies all octets of `pieces` into the lane, or none where there is no room for them now. Returns their number if it did.
    /// [`takes_bell`](Self::takes_bell) comes next.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was sent.
    #[inline]
    pub fn write_whole(&mut self, pieces: &[Piece<'_>]) -> Result<Option<usize>, LaneCorrupt> {
        let wanted: usize = pieces.iter().map(Piece::len).sum();
        let is_taken = self.write_whole_behind(&[], pieces, wanted)?;
        Ok(is_taken.then_some(wanted))
    }

    /// Copies a header, and `pieces` of `octets` in all behind it, into the lane, or nothing.
    #[inline]
    pub(super) fn write_whole_behind(
        &mut self,
        header: &[u8],
        pieces: &[Piece<'_>],
        octets: usize,
    ) -> Result<bool, LaneCorrupt> {
        let wanted = header.len() + octets;
        let words = self.memory.words();
        if !self.producer.fits(words, wanted as u64)? {
            return Ok(false);
        }
        let mut place = Place {
            position: self.producer.head(),
            size: self.producer.size(),
        };
        if let Some(mut room) = self.memory.unbroken(place, wanted) {
            if !header.is_empty() {
                room.put_octets(header);
            }
            for piece in pieces {
                room.put_piece(piece);
            }
        } else {
            if !header.is_empty() {
                self.memory.put(place, header);
                place = place.behind(header.len());
            }
            self.memory.put_all(place, pieces);
        }
        self.producer.publish(words, wanted as u64);
        Ok(true)
    }

    /// Copies a payload and the octets around it into the lane, as [`write_whole`](Self::write_whole) does its pieces.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was sent.
    #[inline(always)]
    pub fn write_framed<const FRONT: usize>(
        &mut self,
        framed: &Framed<'_, FRONT>,
    ) -> Result<Option<usize>, LaneCorrupt> {
        let wanted = framed.octets();
        let words = self.memory.words();
        if !self.producer.fits(words, wanted as u64)? {
            return Ok(None);
        }
        let place = Place {
            position: self.producer.head(),
            size: self.producer.size(),
        };
        match self.memory.unbroken(place, wanted) {
            Some(room) if wanted >= FRONT.max(MOST_ZEROES) => room.put_framed(framed),
            Some(_) | None => self.memory.put_all(place, &framed.pieces()),
        }
        self.producer.publish(words, wanted as u64);
        Ok(Some(wanted))
    }

    /// Reports to the other end that `messages` of it are placed, of all that came since the connection began.
    #[inline]
    pub fn report_placed(&self, messages: u64) {
        Producer::report_placed(self.memory.words(), messages);
    }

    /// Whether the receiving end sleeps and is to be rung now. The wish is taken.
    #[inline]
    #[must_use]
    pub fn takes_bell(&self) -> bool {
        Producer::takes_bell(self.memory.words())
    }

    /// Wants room for `octets` at once: where they do not fit, the ring may [grow](Self::growth) once it is empty, and nothing is sent until then.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    pub fn want_room(&mut self, octets: usize) -> Result<(), LaneCorrupt> {
        let words = self.memory.words();
        self.producer.room(words, octets as u64).map(|_| ())
    }

    /// Whether the ring may be longer.
    #[must_use]
    pub const fn may_grow(&self) -> bool {
        self.producer.may_grow()
    }

    /// More octets of memory that the ring takes if it [grows](Self::grow). `None` if it is long enough, or not empty.
    #[must_use]
    pub fn growth(&self) -> Option<usize> {
        let growth = self.producer.growth()?.size() - self.producer.size();
        usize::try_from(growth).ok()
    }

    /// Takes more memory, so that more fits, if that is `allowed`. Where it is not, or there is none, the ring stays as it is for ever. Returns
    /// whether it has grown.
    pub fn grow(&mut self, allowed: bool) -> bool {
        let grown = self.producer.growth().filter(|ring| {
            let memory = &self.memory;
            let len = usize::try_from(ring.size()).unwrap_or(usize::MAX);
            allowed && memory.shared.populate(memory.ring, len).is_ok()
        });
        match grown {
            Some(ring) => self.producer.grow(self.memory.words(), ring),
            None => self.producer.stay(),
        }
        grown.is_some()
    }

    /// Whether half of the ring is free, or all of it where the ring is to grow.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, LaneCorrupt> {
        self.producer.has_room(self.memory.words())
    }

    /// The lane is full: has the receiving end ring when it [has room](Self::has_room). Returns whether that is so already: then nothing rings.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    pub fn wait_for_room(&mut self) -> Result<bool, LaneCorrupt> {
        self.producer.wait_for_room(self.memory.words())
    }

    /// Begins the lane: its octets follow the first `octets` of the stream.
    pub fn start(&self, octets: u64) {
        Producer::start(self.memory.words(), octets);
    }

    /// Ends the lane: behind its octets the stream goes on behind the first `resume` octets of the other carrier.
    pub fn finish(&self, resume: u64) {
        self.producer.finish(self.memory.words(), resume);
    }
}

impl LaneInput {
    pub(super) fn new(memory: Memory) -> Self {
        let consumer = Consumer::new(memory.ring_sizes);
        Self { memory, consumer }
    }

    /// Copies octets out of the lane, as many as there are and fit. Returns their number, and whether the sending end is to be rung.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was copied.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<(usize, bool), LaneCorrupt> {
        let words = self.memory.words();
        let available = self.consumer.available(words)?;
        let taken = into
            .len()
            .min(usize::try_from(available).unwrap_or(usize::MAX));
        if taken == 0 {
            return Ok((0, false));
        }
        for part in into[..taken].chunks_mut(CHUNK) {
            let place = Place {
                position: self.consumer.tail(),
                size: self.consumer.size(),
            };
            self.memory.get(place, part);
            self.consumer.release(words, part.len() as u64);
        }
        Ok((taken, self.consumer.takes_bell(words)))
    }

    /// Octets that are in the lane.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    #[inline]
    pub fn available(&mut self) -> Result<usize, LaneCorrupt> {
        let available = self.consumer.available(self.memory.words())?;
        Ok(usize::try_from(available).unwrap_or(usize::MAX))
    }

    /// Octets of the ring in use.
    #[inline]
    pub(super) const fn ring_size(&self) -> u64 {
        self.consumer.size()
    }

    /// `len` octets behind the first `at` of those that are known to be in the lane, up to the end of the ring and from its beginning on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(super) fn slices(&self, at: usize, len: usize) -> [RegionSlice<'_>; 2] {
        let is_there = at
            .checked_add(len)
            .is_some_and(|end| end as u64 <= self.consumer.known());
        assert!(is_there, "no more than the lane holds");
        let place = Place {
            position: self.consumer.tail(),
            size: self.consumer.size(),
        };
        let mut found = 0;
        // SAFETY: no octet, and of memory that is held.
        let mut slices = [unsafe { RegionSlice::from_raw(self.memory.ring, 0) }; 2];
        self.memory.parts(place.behind(at), len, |from, _, len| {
            let from = NonNull::new(from).expect("an address in the ring");
            // SAFETY: `parts` keeps within the ring, which no reference reaches, and whose mapping is held longer than `self` is borrowed.
            slices[found] = unsafe { RegionSlice::from_raw(from, len) };
            found += 1;
        });
        slices
    }

    /// The first octets that are [available](Self::available), up to the end of the ring, where they lie until they are [released](Self::release).
    #[inline]
    #[must_use]
    pub fn front(&self) -> RegionSlice<'_> {
        let place = Place {
            position: self.consumer.tail(),
            size: self.consumer.size(),
        };
        let (first, room) = self.memory.until_end(place);
        let known = usize::try_from(self.consumer.known()).unwrap_or(usize::MAX);
        // SAFETY: so many octets of the ring, which no reference reaches, and whose mapping is held longer than `self` is borrowed.
        unsafe { RegionSlice::from_raw(first, known.min(room)) }
    }

    /// Copies octets that are in the lane, behind the first `at` of them, which stay there.
    #[inline]
    pub(super) fn copy_out(&self, at: usize, into: &mut [u8]) {
        let place = Place {
            position: self.consumer.tail(),
            size: self.consumer.size(),
        };
        self.memory.get(place.behind(at), into);
    }

    /// Copies octets out of the lane, as many as there are and fit, which stay there until they are [released](Self::release). Returns their number.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was copied.
    #[inline]
    pub fn peek(&mut self, into: &mut [u8]) -> Result<usize, LaneCorrupt> {
        let taken = into.len().min(self.available()?);
        self.copy_out(0, &mut into[..taken]);
        Ok(taken)
    }

    /// Releases `octets` that were [peeked](Self::peek). Returns whether the sending end is to be rung.
    ///
    /// # Panics
    /// If these are more than there are.
    #[inline]
    pub fn release(&mut self, octets: usize) -> bool {
        let words = self.memory.words();
        assert!(
            octets as u64 <= self.consumer.known(),
            "no more than were peeked"
        );
        self.consumer.release(words, octets as u64);
        self.consumer.takes_bell(words)
    }

    /// Messages of this end that the other one has placed, as it reports.
    #[inline]
    #[must_use]
    pub fn placed(&self) -> u64 {
        Consumer::placed(self.memory.words())
    }

    /// Has the sending end ring when something arrives from now on. Returns whether something is there already: then nothing may ring.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    pub fn arm(&mut self) -> Result<bool, LaneCorrupt> {
        self.consumer.arm(self.memory.words())
    }

    /// Whether the sending end is to ring. It is not once it did, or is about to.
    #[cfg(test)]
    pub(super) fn is_armed(&self) -> bool {
        Consumer::is_armed(self.memory.words())
    }

    /// Has the sending end ring no more. It may be about to.
    pub fn disarm(&self) {
        Consumer::disarm(self.memory.words());
    }

    /// Octets of the stream before the lane's, once the sending end uses the lane.
    #[inline]
    #[must_use]
    pub fn started(&mut self) -> Option<u64> {
        self.consumer.started(self.memory.words())
    }

    /// Octets of the other carrier before those behind the lane's, once the lane has ended. Octets of it may be left.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    pub fn resumes(&mut self) -> Result<Option<u64>, LaneCorrupt> {
        self.consumer.resumes(self.memory.words())
    }

    /// Octets of the other carrier before those behind the lane's, once all octets of the lane were read.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    pub fn finished(&mut self) -> Result<Option<u64>, LaneCorrupt> {
        self.consumer.finished(self.memory.words())
    }
}
