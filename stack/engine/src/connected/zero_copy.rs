//! Zero copy: large segments leave from registered memory; only headers and CRCs are made here.
//!
//! Where TCP takes part of an FPDU, the rest of that one is copied, since its length is promised already and the program may deregister the
//! memory. FPDUs that TCP took nothing of are taken back and made again.

use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_ddp::Segment;
use dgiwarp_memory::{Framed, MAX_PIECES, Piece, RegionSlice};
use dgiwarp_rdmap::stream::Message;

use super::end::RcEnd;
use super::engine::RcEngine;
use super::state::{Batch, MOST, Sending};
use super::wqe::RcData;
use crate::cq_ring::CompletionSink;
use crate::mr::LocalProtection;
use crate::recv_queue::Tables;
use crate::sges::{Gathered, Part};

/// Segments with at least this much payload, octets, leave without a copy; copying smaller ones costs less than gathering them.
const GATHER_FROM: u32 = 8192;
/// Octets of an FPDU beside its payload: length, header, pad and CRC.
const AROUND: usize = 32;

/// Takes octets for TCP.
pub trait StreamSink {
    /// Hands over `pieces`, in this order.
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken;

    /// Hands over all `pieces` or none, and returns whether it did. Only memory that the peer shares takes any.
    fn send_whole(&mut self, _pieces: &[Piece<'_>]) -> bool {
        false
    }

    /// Hands over a payload and the octets around it, as [`send_whole`](Self::send_whole) does its pieces.
    #[inline]
    fn send_framed<const FRONT: usize>(&mut self, framed: &Framed<'_, FRONT>) -> bool {
        self.send_whole(&framed.pieces())
    }
}

/// Result of handing octets to TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// TCP took this many.
    Octets(usize),
    /// Its buffer is full.
    WouldBlock,
    /// The connection is lost.
    Lost,
}

/// An FPDU whose payload is not copied. Offsets are in the octets that are left to transmit, without payload.
struct Fpdu {
    /// The message before this segment.
    before: Message,
    segment: Segment,
    /// Offset of its first octet.
    start: usize,
    /// Offset where its payload belongs.
    at: usize,
    /// Offset behind its last octet.
    end: usize,
}

impl Fpdu {
    fn octets(&self) -> usize {
        self.end - self.start + self.segment.length as usize
    }
}

/// FPDUs on their way, with their message.
struct Train {
    message: Message,
    fpdus: ArrayVec<Fpdu, MOST>,
}

impl RcEngine {
    /// Whether the next segment leaves without a copy, with [`send_zero_copy`](Self::send_zero_copy).
    #[inline]
    pub(super) fn is_next_zero_copy(&self) -> bool {
        let sending = self.sending.as_ref();
        sending.is_some_and(|sending| !self.copies && self.is_zero_copy(sending))
    }

    /// Whether the next segment of a message leaves without a copy, unless all are copied.
    #[inline]
    fn is_zero_copy(&self, sending: &Sending) -> bool {
        let large = |message: &Message| {
            let next = message.peek(self.llp.mulpdu());
            next.is_some_and(|segment| segment.length >= GATHER_FROM)
        };
        large(&sending.message)
            && self.llp.is_zero_copy()
            && self
                .sends
                .get(sending.number)
                .is_some_and(|wqe| matches!(wqe.data, RcData::Sges(_)))
    }

    /// Sends the octets that wait for TCP and large segments of the message that has begun. `None` if no segment could be sent: none is large, or
    /// the connection has ended, or is about to.
    pub fn send_zero_copy(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
        completions: &mut impl CompletionSink,
    ) -> Option<Taken> {
        if !self.is_next_zero_copy() {
            return None;
        }
        let Sending { number, message } = self.sending.take()?;
        let has_begun = message.has_begun();
        let train = Train {
            message,
            fpdus: ArrayVec::new(),
        };
        match self.send_train(now, number, train, tables, sink) {
            Ok((message, taken)) => {
                if message.is_done() {
                    self.end_message(now, number);
                } else {
                    self.sending = Some(Sending { number, message });
                }
                self.note_sent(now);
                self.complete_sends(completions);
                Some(taken)
            }
            Err(LocalProtection) => {
                let (end, blamed) = (RcEnd::LocalProtection, Some(number));
                if has_begun {
                    self.finish(end, blamed, tables, completions);
                } else {
                    self.end_in_order(end, blamed, tables, completions);
                }
                None
            }
        }
    }

    fn send_train(
        &mut self,
        now: Instant,
        number: u64,
        mut train: Train,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
    ) -> Result<(Message, Taken), LocalProtection> {
        // Room is made before memory is held: nothing may be allocated while it is.
        let mulpdu = usize::from(self.llp.mulpdu());
        self.llp.reserve(MOST * AROUND + mulpdu);
        let Some(RcData::Sges(sges)) = self.sends.get(number).map(|wqe| &wqe.data) else {
            return Ok((train.message, Taken::WouldBlock));
        };
        let mut gathered = Gathered::default();
        gathered.hold(tables.mrs, self.config.pd, sges)?;
        let mut slices: ArrayVec<(usize, RegionSlice<'_>), MAX_PIECES> = ArrayVec::new();
        while train.fpdus.len() < self.batch.0 {
            let before = train.message.clone();
            let index = train.fpdus.len();
            let Some((header, segment)) = train.message.next_segment(self.llp.mulpdu()) else {
                break;
            };
            match gathered.reach(segment.offset, segment.length) {
                Ok(()) => {}
                // FPDUs before it leave first.
                Err(_) if index > 0 => {
                    train.message = before;
                    break;
                }
                Err(error) => return Err(error),
            }
            let mut parts = 0;
            gathered.for_each(segment.offset, segment.length, |_| parts += 1);
            // A header before each FPDU's slices, and the last one's CRC.
            let fits = slices.len() + parts + index + 2 <= MAX_PIECES;
            if segment.length < GATHER_FROM || !fits {
                train.message = before;
                break;
            }
            gathered.for_each(segment.offset, segment.length, |slice| {
                slices.push((index, slice));
            });
            let part = Part {
                of: &gathered,
                offset: segment.offset,
                length: segment.length,
            };
            let start = self.llp.untransmitted(now);
            let at = self
                .llp
                .send_ulpdu_around(&header, &part)
                .expect("MPA may send, and the segment is no longer than the MULPDU");
            train.fpdus.push(Fpdu {
                before,
                segment,
                start,
                at,
                end: self.llp.untransmitted(now),
            });
        }
        let taken = sink.send(&interleave(
            self.llp.poll_transmit(now),
            &train.fpdus,
            &slices,
        ));
        let octets = match taken {
            Taken::Octets(octets) => octets,
            Taken::WouldBlock | Taken::Lost => 0,
        };
        Ok((self.account(train, octets, &gathered), taken))
    }

    /// Accounts for the `taken` octets of a train, and of those before it. Returns the message without the segments that left.
    fn account(&mut self, train: Train, taken: usize, gathered: &Gathered) -> Message {
        let Train { message, fpdus } = train;
        let mut payload_taken = 0;
        // Offset of the present one, payload included.
        let mut start = fpdus.first().map_or(0, |fpdu| fpdu.start);
        let mut kept = 0;
        let mut octets = 0;
        let mut whole = true;
        for fpdu in &fpdus {
            if taken <= start {
                break;
            }
            let length = fpdu.segment.length;
            let before = taken - start;
            let head = fpdu.at - fpdu.start;
            let theirs = before.saturating_sub(head).min(length as usize);
            let rest = length as usize - theirs;
            if rest > 0 {
                whole = false;
                self.llp.take_back(fpdu.end);
                let offset = fpdu.segment.offset + (length - u32::try_from(rest).unwrap_or(length));
                gathered.copy(offset, self.llp.open(fpdu.at, rest));
                self.counters.octets_staged += rest as u64;
            }
            payload_taken += theirs;
            kept += 1;
            octets += fpdu.octets() as u64;
            start += fpdu.octets();
        }
        self.made += octets;
        self.taken += taken as u64;
        self.counters.count_sent(kept, octets);
        let again = fpdus.get(kept);
        if let (Some(fpdu), true) = (again, whole) {
            self.llp.take_back(fpdu.start);
        }
        self.batch = match again {
            None if whole => Batch((self.batch.0 * 2).min(MOST)),
            Some(_) | None => Batch(1),
        };
        self.llp.transmitted(taken - payload_taken);
        again.map_or(message, |fpdu| fpdu.before.clone())
    }
}

/// The octets of a train in their order on the wire.
fn interleave<'a>(
    octets: &'a [u8],
    fpdus: &[Fpdu],
    slices: &[(usize, RegionSlice<'a>)],
) -> ArrayVec<Piece<'a>, MAX_PIECES> {
    let mut pieces = ArrayVec::new();
    let mut slices = slices.iter().peekable();
    let mut from = 0;
    for (index, fpdu) in fpdus.iter().enumerate() {
        pieces.push(Piece::Bytes(&octets[from..fpdu.at]));
        from = fpdu.at;
        while let Some((_, slice)) = slices.next_if(|(of, _)| *of == index) {
            pieces.push(Piece::Region(*slice));
        }
    }
    pieces.push(Piece::Bytes(&octets[from..]));
    pieces
}
