//! The protocol of a lane: positions, marks and bells (rfc-notes/same-host.md).
//!
//! Positions count octets since the lane began and never wrap. Each word has one writer, except for the two bells, which one end sets and
//! the other one takes. No word of the other end is believed: impossible ones are [`LaneCorrupt`].

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The other end has put something impossible into the lane. No octet of it may be taken any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaneCorrupt {
    /// More octets are released than were published, or fewer than before.
    #[error("{tail} octets of a lane are released, of {head} published")]
    Tail {
        /// Octets published.
        head: u64,
        /// Octets released.
        tail: u64,
    },
    /// More octets are published than there is room for, or fewer than before.
    #[error("{head} octets of a lane are published, and {tail} released, in a ring of {size}")]
    Head {
        /// Octets published.
        head: u64,
        /// Octets released.
        tail: u64,
        /// Octets of the ring.
        size: u64,
    },
    /// The ring has more octets than there are, or fewer than before.
    #[error("a ring of 2^{logarithm} octets")]
    Ring {
        /// Logarithm of the octets in use.
        logarithm: u32,
    },
    /// No whole record was published, or one that is longer than any datagram.
    #[error("a record of {octets} octets in datagrams of {stride}")]
    Record {
        /// Octets of the record.
        octets: u32,
        /// Octets of its datagrams.
        stride: u16,
    },
    /// The lane ended before octets that were published, behind octets that were not, or without the octet that follows.
    #[error("a lane ended at octet {end}, and octet {tail} is released")]
    End {
        /// Octets of the lane.
        end: u64,
        /// Octets released.
        tail: u64,
    },
}

/// Words apart from others, so that ends that use different ones do not take the cache line from each other. Two lines: processors
/// prefetch pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// Words that the producer publishes. The ring in use changes only while the lane is empty, before the next octet is published.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Published {
    /// Octets published.
    pub(super) head: AtomicU64,
    /// Logarithm of the octets of the ring in use.
    pub(super) ring: AtomicU32,
    /// Messages of the consumer that the producer has placed, of all that both carriers brought.
    pub(super) placed: AtomicU64,
}

/// Marks, each one more than its value; 0 is none.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Marks {
    /// Octets of the stream before the lane's first one.
    pub(super) start: AtomicU64,
    /// Octets of the lane, once it has ended.
    pub(super) end: AtomicU64,
    /// Octets of the other carrier before the first one behind the lane's. Written before `end`.
    pub(super) resume: AtomicU64,
}

/// Wishes of an end that sleeps: 1 asks the other end to ring, which takes it by putting 0.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bells {
    /// The consumer wants a ring when something is published.
    pub(super) armed: AtomicU32,
    /// The producer wants a ring when half of the ring is free.
    pub(super) room_wanted: AtomicU32,
}

/// State of the consumer's program, for one-sided copies.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Program {
    /// Polls in vain, modulo 2^32.
    pub(super) polls: AtomicU32,
    /// Grants that the consumer has published, modulo 2^32.
    pub(super) publications: AtomicU32,
}

/// The words of a lane, beside its ring.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Control {
    /// Written by the producer.
    pub(super) published: Line<Published>,
    /// Written by the producer.
    pub(super) marks: Line<Marks>,
    /// Octets released. Written by the consumer.
    pub(super) tail: Line<AtomicU64>,
    /// Written by both.
    pub(super) bells: Line<Bells>,
    /// Written by the consumer.
    pub(super) program: Line<Program>,
}

/// A mark as it stands in its word.
fn mark(value: u64) -> u64 {
    value.saturating_add(1)
}

/// A mark's value.
fn marked(word: u64) -> Option<u64> {
    word.checked_sub(1)
}

/// The rings of a lane: that in use, and the longest there may be, as logarithms of their octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) present: u32,
    pub(super) most: u32,
}

impl Ring {
    /// Octets in use.
    pub(super) const fn size(self) -> u64 {
        1 << self.present
    }
}

/// The producer's view of a lane.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    /// Octets published: the word is never read.
    head: u64,
    /// Octets released, as read last.
    tail: u64,
    /// Octets that did not fit in a ring that may be longer: it grows once it is empty, and nothing is published until then.
    outgrown: u64,
}

impl Producer {
    pub(super) const fn new(ring: Ring) -> Self {
        Self {
            ring,
            head: 0,
            tail: 0,
            outgrown: 0,
        }
    }

    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    pub(super) const fn size(&self) -> u64 {
        self.ring.size()
    }

    fn load_tail(&mut self, words: &Control) -> Result<(), LaneCorrupt> {
        let tail = words.tail.0.load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            let head = self.head;
            return Err(LaneCorrupt::Tail { head, tail });
        }
        self.tail = tail;
        Ok(())
    }

    /// Octets that fit, at least `wanted` if there is room for so many. 0 where the ring may [grow](Self::growth) instead.
    #[inline]
    pub(super) fn room(&mut self, words: &Control, wanted: u64) -> Result<u64, LaneCorrupt> {
        let size = self.size();
        if self.outgrown == 0 {
            let room = size - (self.head - self.tail);
            if room >= wanted {
                return Ok(room);
            }
        }
        self.load_tail(words)?;
        let room = size - (self.head - self.tail);
        if (room < wanted || self.outgrown > 0) && self.ring.present < self.ring.most {
            self.outgrown = self.outgrown.max(wanted);
            return Ok(0);
        }
        Ok(room)
    }

    /// Whether `wanted` octets fit. Where they do not, the ring stays as it is.
    #[inline]
    pub(super) fn fits(&mut self, words: &Control, wanted: u64) -> Result<bool, LaneCorrupt> {
        let size = self.size();
        if self.outgrown > 0 || wanted > size {
            return Ok(false);
        }
        if size - (self.head - self.tail) < wanted {
            self.load_tail(words)?;
        }
        Ok(size - (self.head - self.tail) >= wanted)
    }

    /// Whether the ring may be longer.
    pub(super) const fn may_grow(&self) -> bool {
        self.ring.present < self.ring.most
    }

    /// The ring to [use](Self::grow) from now on, if it is too short and empty.
    pub(super) fn growth(&self) -> Option<Ring> {
        if self.outgrown == 0 || self.tail != self.head {
            return None;
        }
        let fits = self.outgrown.next_power_of_two().trailing_zeros();
        let present = fits.max(self.ring.present + 1).min(self.ring.most);
        Some(Ring {
            present,
            ..self.ring
        })
    }

    /// Uses another ring from now on: that of [`growth`](Self::growth), or the present one for ever.
    pub(super) fn grow(&mut self, words: &Control, ring: Ring) {
        self.outgrown = 0;
        self.ring = ring;
        let word = &words.published.0.ring;
        // The next octet is published behind it.
        word.store(ring.present, Ordering::Relaxed);
    }

    /// The ring does not grow any more.
    pub(super) const fn stay(&mut self) {
        self.outgrown = 0;
        self.ring.most = self.ring.present;
    }

    /// Publishes `octets` more, which lie in the ring.
    #[inline]
    pub(super) fn publish(&mut self, words: &Control, octets: u64) {
        self.head += octets;
        words.published.0.head.store(self.head, Ordering::Release);
    }

    /// Reports that `messages` of the consumer are placed. The word is never read.
    #[inline]
    pub(super) fn report_placed(words: &Control, messages: u64) {
        words.published.0.placed.store(messages, Ordering::Release);
    }

    /// Whether the consumer is to be rung, behind what was published. It is not asked for twice.
    #[inline]
    pub(super) fn takes_bell(words: &Control) -> bool {
        // The consumer sets the bell, then checks for octets; here it is the other way round. One of both sees the other's.
        fence(Ordering::SeqCst);
        let armed = &words.bells.0.armed;
        armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::AcqRel) != 0
    }

    /// Whether half of the ring is free, or all of it where the ring is to grow.
    pub(super) fn has_room(&mut self, words: &Control) -> Result<bool, LaneCorrupt> {
        self.load_tail(words)?;
        let used = self.head - self.tail;
        let most = if self.outgrown > 0 {
            0
        } else {
            self.size() / 2
        };
        Ok(used <= most)
    }

    /// Wants a ring when there is room. Returns whether there is now: then nothing rings.
    pub(super) fn wait_for_room(&mut self, words: &Control) -> Result<bool, LaneCorrupt> {
        words.bells.0.room_wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let has_room = self.has_room(words)?;
        if has_room {
            words.bells.0.room_wanted.store(0, Ordering::Relaxed);
        }
        Ok(has_room)
    }

    /// The lane's octets follow the first `octets` of the stream.
    pub(super) fn start(words: &Control, octets: u64) {
        let start = &words.marks.0.start;
        start.store(mark(octets), Ordering::Release);
    }

    /// Ends the lane here. The stream goes on behind the first `resume` octets of the other carrier.
    pub(super) fn finish(&self, words: &Control, resume: u64) {
        let marks = &words.marks.0;
        marks.resume.store(mark(resume), Ordering::Relaxed);
        marks.end.store(mark(self.head), Ordering::Release);
    }
}

/// The consumer's view of a lane.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    /// Octets released: the word is never read.
    tail: u64,
    /// Octets published, as read last.
    head: u64,
    /// The mark of the lane's beginning, as it was found.
    start: Option<u64>,
    /// The marks of the lane's end, as they were found.
    ending: Option<Ending>,
}

/// End of a lane.
#[derive(Debug, Clone, Copy)]
struct Ending {
    /// Octets of the lane.
    end: u64,
    /// Octets of the other carrier before the first one behind the lane's.
    resume: u64,
}

impl Consumer {
    pub(super) const fn new(ring: Ring) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
            start: None,
            ending: None,
        }
    }

    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) const fn size(&self) -> u64 {
        self.ring.size()
    }

    /// Octets that were published when that was checked last, and not released.
    #[inline]
    pub(super) const fn known(&self) -> u64 {
        self.head - self.tail
    }

    /// Octets that are published and not released.
    #[inline]
    pub(super) fn available(&mut self, words: &Control) -> Result<u64, LaneCorrupt> {
        let published = &words.published.0;
        let head = published.head.load(Ordering::Acquire);
        // It is that of all octets up to `head`: the ring does not change before they are released.
        let logarithm = published.ring.load(Ordering::Relaxed);
        if logarithm != self.ring.present {
            if logarithm < self.ring.present || logarithm > self.ring.most {
                return Err(LaneCorrupt::Ring { logarithm });
            }
            self.ring.present = logarithm;
        }
        let size = self.size();
        if head < self.head || head - self.tail > size {
            let tail = self.tail;
            return Err(LaneCorrupt::Head { head, tail, size });
        }
        self.head = head;
        Ok(head - self.tail)
    }

    /// Releases `octets` more, of which nothing is read any more.
    #[inline]
    pub(super) fn release(&mut self, words: &Control, octets: u64) {
        self.tail += octets;
        words.tail.0.store(self.tail, Ordering::Release);
    }

    /// Messages of this end that the other one has placed.
    #[inline]
    pub(super) fn placed(words: &Control) -> u64 {
        words.published.0.placed.load(Ordering::Acquire)
    }

    /// Whether the producer is to be rung, behind what was released.
    #[inline]
    pub(super) fn takes_bell(&self, words: &Control) -> bool {
        fence(Ordering::SeqCst);
        let wanted = &words.bells.0.room_wanted;
        wanted.load(Ordering::Relaxed) != 0
            && self.head - self.tail <= self.size() / 2
            && wanted.swap(0, Ordering::AcqRel) != 0
    }

    /// Wants a ring when something is published from now on. Returns whether something is there now: then nothing may ring.
    pub(super) fn arm(&mut self, words: &Control) -> Result<bool, LaneCorrupt> {
        words.bells.0.armed.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.available(words)? > 0)
    }

    /// Whether a ring is wanted still.
    #[cfg(test)]
    pub(super) fn is_armed(words: &Control) -> bool {
        words.bells.0.armed.load(Ordering::Relaxed) != 0
    }

    /// Wants no ring any more. One may be under way.
    pub(super) fn disarm(words: &Control) {
        words.bells.0.armed.store(0, Ordering::Relaxed);
    }

    /// Octets of the stream before the lane's first one, once the producer uses the lane. The mark is loaded until it is there, and not again.
    #[inline]
    pub(super) fn started(&mut self, words: &Control) -> Option<u64> {
        if self.start.is_none() {
            self.start = marked(words.marks.0.start.load(Ordering::Acquire));
        }
        self.start
    }

    /// The marks of the lane's end, once they are there. They are not loaded again.
    fn ending(&mut self, words: &Control) -> Result<Option<Ending>, LaneCorrupt> {
        let marks = &words.marks.0;
        if self.ending.is_none()
            && let Some(end) = marked(marks.end.load(Ordering::Acquire))
        {
            let head = self.tail + self.available(words)?;
            let resume = marked(marks.resume.load(Ordering::Relaxed));
            let tail = self.tail;
            let resume = resume
                .filter(|_| (tail..=head).contains(&end))
                .ok_or(LaneCorrupt::End { end, tail })?;
            self.ending = Some(Ending { end, resume });
        }
        Ok(self.ending)
    }

    /// Octets of the other carrier before the first one behind the lane's, once the lane has ended.
    pub(super) fn resumes(&mut self, words: &Control) -> Result<Option<u64>, LaneCorrupt> {
        Ok(self.ending(words)?.map(|ending| ending.resume))
    }

    /// As [`resumes`](Self::resumes), once all octets of the lane are released.
    pub(super) fn finished(&mut self, words: &Control) -> Result<Option<u64>, LaneCorrupt> {
        let tail = self.tail;
        match self.ending(words)? {
            Some(Ending { end, .. }) if end < tail => Err(LaneCorrupt::End { end, tail }),
            Some(Ending { end, resume }) if end == tail => Ok(Some(resume)),
            Some(_) | None => Ok(None),
        }
    }
}
