//! Writes of an RC QP, which are placed in their order whatever order their segments arrive in (§9.1): programs poll their last octets.

use std::collections::VecDeque;
use std::net::IpAddr;

use dgiwarp_codec::{Payload as _, PayloadSlice};
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Before, Verdict};
use dgiwarp_memory::Placeable;

use super::inbound::Inbound;
use super::segment::Part;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;

/// Memory of the segments that are held, in octets. Others are not accepted, and come again.
const MOST: usize = 32 << 20;
/// Memory of a segment beside its octets.
const BESIDE: usize = size_of::<Early>() + 32;

/// A segment of a Write that came before one that is to be placed first.
#[derive(Debug)]
struct Early {
    header: SegmentHeader,
    to: Option<IpAddr>,
    stag: STag,
    start: TaggedOffset,
    ends: bool,
    octets: Vec<u8>,
}

impl Early {
    const fn memory(&self) -> usize {
        BESIDE + self.octets.len()
    }
}

/// Order of the segments of Writes.
#[derive(Debug, Default)]
pub(super) struct WriteOrder {
    /// Message whose segments are placed, and the index of the next of these. None of an earlier message is held.
    head: (u32, u32),
    /// Segments that are held, in their order.
    held: VecDeque<Early>,
    octets: usize,
    /// Message of the peer's that failed: nothing behind it is taken.
    pub(super) refused: Option<u32>,
    /// Message that failed when its segment was placed late, and Terminate Control, for its sender.
    failed: Option<(u32, u32)>,
}

impl WriteOrder {
    /// Position of a segment in the order.
    const fn position(&self, header: &SegmentHeader) -> (u32, u32) {
        (header.message.wrapping_sub(self.head.0), header.index)
    }

    /// Whether the segment is placed next. Segments of messages before its own are placed where the latter is `in_turn`.
    #[inline]
    const fn is_next(&self, header: &SegmentHeader, in_turn: bool) -> bool {
        let next = if header.message == self.head.0 {
            self.head.1
        } else {
            0
        };
        in_turn && header.index == next
    }

    #[inline]
    const fn note(&mut self, header: &SegmentHeader) {
        self.head = (header.message, header.index.wrapping_add(1));
    }

    /// Keeps a segment.
    fn hold(&mut self, early: Early) {
        let position = self.position(&early.header);
        let at = self
            .held
            .partition_point(|it| self.position(&it.header) < position);
        self.octets += early.memory();
        self.held.insert(at, early);
    }

    /// Takes the first segment out if `which` holds for it.
    fn take(&mut self, which: impl FnOnce(&Self, &SegmentHeader) -> bool) -> Option<Early> {
        let first = self.held.front()?;
        if !which(self, &first.header) {
            return None;
        }
        let first = self.held.pop_front()?;
        self.octets -= first.memory();
        Some(first)
    }

    /// A message of the peer failed here.
    pub(super) fn refuse(&mut self, message: u32) {
        if self.refused.is_none_or(|it| is_before(message, it)) {
            self.refused = Some(message);
        }
    }

    /// Forgets what is held.
    pub(super) fn clear(&mut self) {
        self.held = VecDeque::new();
        self.octets = 0;
    }

    /// Message that failed late, and Terminate Control.
    pub(super) const fn take_failed(&mut self) -> Option<(u32, u32)> {
        self.failed.take()
    }
}

impl WriteOrder {
    /// Places a segment of a message when its turn has come; one of a Write is held before. Other segments have places of their own.
    pub(super) fn arrive<P: Placeable + ?Sized>(
        &mut self,
        inbound: &mut Inbound,
        source: (Peer, Option<IpAddr>),
        (header, before): (&SegmentHeader, Before),
        part: Part<'_, P>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Verdict {
        let segment = (header, before.missing);
        let Part::Write {
            stag,
            start,
            ends,
            payload,
        } = part
        else {
            return inbound.place(source, segment, Ok(part), tables, completions);
        };
        if before.delivered && !self.held.is_empty() {
            let earlier = |_: &Self, it: &SegmentHeader| is_before(it.message, header.message);
            self.release(inbound, source.0, earlier, tables, completions);
            if self.refused.is_some() {
                return Verdict::Placed;
            }
        }
        if self.is_next(header, before.delivered) {
            let verdict = inbound.place(source, segment, Ok(part), tables, completions);
            if verdict != Verdict::NotReady {
                self.note(header);
            }
            if verdict == Verdict::Placed && !self.held.is_empty() {
                let follows = |order: &Self, it: &SegmentHeader| order.is_follower(it);
                self.release(inbound, source.0, follows, tables, completions);
            }
            return verdict;
        }
        if self.octets + BESIDE + payload.len() > MOST {
            return Verdict::NoRoom;
        }
        if !inbound.reserve(source, segment, tables, completions) {
            return Verdict::NotReady;
        }
        let mut octets = vec![0; payload.len()];
        payload.copy(0, &mut octets);
        self.hold(Early {
            header: *header,
            to: source.1,
            stag,
            start,
            ends,
            octets,
        });
        Verdict::Placed
    }

    /// Places what is held of a message that is delivered, and of those before it. Returns whether none of it failed.
    pub(super) fn release_delivered(
        &mut self,
        inbound: &mut Inbound,
        (peer, message): (Peer, u32),
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> bool {
        if !self.held.is_empty() {
            let due = |_: &Self, it: &SegmentHeader| !is_before(message, it.message);
            self.release(inbound, peer, due, tables, completions);
        }
        self.refused != Some(message)
    }

    /// Places segments that are held, in order, as long as `which` holds.
    #[cold]
    fn release(
        &mut self,
        inbound: &mut Inbound,
        peer: Peer,
        which: impl Fn(&Self, &SegmentHeader) -> bool,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(early) = self.take(&which) {
            let header = &early.header;
            // Nothing of a message that failed is placed, nor of those behind it.
            if self
                .refused
                .is_some_and(|it| !is_before(header.message, it))
            {
                continue;
            }
            let part = Part::Write {
                stag: early.stag,
                start: early.start,
                ends: early.ends,
                payload: PayloadSlice::new(&early.octets[..]),
            };
            let source = (peer, early.to);
            let verdict = inbound.place(source, (header, 0), Ok(part), tables, completions);
            self.note(header);
            if let Verdict::Failed(control) = verdict {
                self.refuse(header.message);
                self.failed = Some((header.message, control));
            }
        }
    }
}

impl WriteOrder {
    /// Whether the segment is the next one of the message that is being placed.
    fn is_follower(&self, header: &SegmentHeader) -> bool {
        (header.message, header.index) == self.head
    }
}

/// Serial order.
pub(super) const fn is_before(first: u32, second: u32) -> bool {
    let distance = second.wrapping_sub(first);
    distance != 0 && distance < 1 << 31
}
