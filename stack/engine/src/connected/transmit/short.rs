//! Short messages to memory that the peer shares: they go there from where they lie, without staging, clock and acknowledgements.

use arrayvec::ArrayVec;
use dgiwarp_llp_tcp_mpa::framing::bare;
use dgiwarp_memory::{Framed, Piece};
use dgiwarp_rdmap::stream::{Message, Peer, SendKind};

use crate::connected::engine::RcEngine;
use crate::connected::first_fpdu_probe::FirstFpduProbe;
use crate::connected::state::RcStream;
use crate::connected::transmit::send_queue::LeftMessage;
use crate::connected::wqe::{Extent, RcData, RcWork};
use crate::connected::zero_copy::StreamSink;
use crate::mr::Registration;
use crate::recv_queue::Tables;
use crate::sges::Gathered;
use crate::types::{Completion, MAX_SGE, ShortData};
use crate::xrc::Xrc;

/// Octets of the longest such message, one segment on every path whose memory both ends share.
const LONGEST: u32 = 16 << 10;
/// Octets of the MULPDU for headers.
const HEADERS: u32 = 64;
/// Octets that are short on every path: the MULPDU is at least 128.
const ALWAYS_SHORT: u32 = 128 - HEADERS;
/// Octets of the longer of the two headers.
const HEADER: usize = 18;
/// Octets before the payload: ULPDU_Length and that header.
const BEFORE: usize = bare::LENGTH_LEN + HEADER;

/// A work request for a short message whose local memory is in one place, and which waits for none before it.
#[derive(Debug, Clone, Copy)]
pub struct ShortWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub work: RcWork,
    /// Its local memory.
    pub data: ShortData<'a>,
    /// Whether it completes with a completion if it succeeds.
    pub signaled: bool,
    /// Whether the message carries the solicited event mark.
    pub solicited: bool,
}

/// The FPDU of a short message, but for its payload.
struct Frame {
    header: [u8; HEADER],
    header_len: usize,
    ulpdu_len: usize,
}

impl Frame {
    #[inline]
    fn of(message: &Message, length: u32) -> Self {
        let (header, header_len) = message.sole_header();
        Self {
            header,
            header_len,
            ulpdu_len: header_len + length as usize,
        }
    }

    /// The FPDU.
    #[inline]
    fn around<'a>(&self, payload: Piece<'a>) -> Framed<'a, BEFORE> {
        let mut front = [0; BEFORE];
        front[..bare::LENGTH_LEN].copy_from_slice(&bare::length(self.ulpdu_len));
        front[bare::LENGTH_LEN..].copy_from_slice(&self.header);
        Framed {
            front,
            front_len: bare::LENGTH_LEN + self.header_len,
            payload,
            zeroes: bare::behind_len(self.ulpdu_len),
        }
    }
}

/// Hands over an FPDU, apart from the code of messages that are handed over as they are posted.
#[inline(never)]
fn send_apart(sink: &mut impl StreamSink, framed: &Framed<'_, BEFORE>) -> bool {
    sink.send_framed(framed)
}

impl RcEngine {
    /// Whether messages may leave without all that [`make_fpdus`](Self::make_fpdus) and [`transmitted`](Self::transmitted) care for: nothing else is to
    /// leave but acknowledgements, no time is waited for, and acknowledgements are in memory. No short message changes that.
    pub(super) fn is_plain_sender(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        self.acks.in_memory
            && self.end.is_none()
            && self.sending.is_none()
            && !(self.rnr_timed_out || self.deferred_end_due || self.has_rare_notice)
            && !(self.acks.flush || self.detect_peer.timed_out)
            && !self.sq_drain.holds()
            && !self.stream.has_responses()
            && matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && !dgiwarp_ext.is_hello_due(self.is_initiator)
            && self.first_fpdu_probe != FirstFpduProbe::Idle
            && matches!(self.xrc, Xrc::None)
            && self.config.options.completion == Completion::Placed
            && self.llp.sends_bare()
    }

    /// Hands short Sends and Writes to memory that the peer shares, from the front of the send queue. Returns whether any left, and nothing else is to be
    /// done; else [`make_fpdus`](Self::make_fpdus) comes next.
    #[inline]
    pub fn send_short(&mut self, tables: Tables<'_>, sink: &mut impl StreamSink) -> bool {
        if !self.is_plain_sender() || self.stream.dgiwarp_ext().pending_acks() > 0 {
            return false;
        }
        let mut any = false;
        while self.sends.unstarted().is_some() {
            if self.send_one_short(tables, sink).is_none() {
                return false;
            }
            any = true;
        }
        any
    }

    /// The work of [`CheckedEngine::post_short`](super::CheckedEngine::post_short), for a plain sender.
    #[inline]
    pub(super) fn post_plain<'a>(
        &mut self,
        most: usize,
        next: impl Fn(usize) -> Option<ShortWr<'a>>,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
    ) -> usize {
        if self.sends.unstarted().is_some() || self.pending_end.is_some() {
            return 0;
        }
        let mut posted = 0;
        while posted < most
            && let Some(wr) = next(posted)
            && self.try_post_short(&wr, tables, sink).is_some()
        {
            posted += 1;
        }
        posted
    }

    #[inline]
    fn try_post_short(
        &mut self,
        wr: &ShortWr<'_>,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
    ) -> Option<()> {
        let length = wr.data.length()?;
        if self.is_long(length) {
            return None;
        }
        let message = self.short_message(wr.work, length, wr.solicited)?;
        let ulpdu_len = self.hand_over(&message, wr.data, length, tables, sink)?;
        let extent = self.note_short(&message, ulpdu_len, wr.signaled);
        let written = if let RcWork::Write { stag, start, .. } = wr.work {
            Some((stag, start))
        } else {
            None
        };
        let left = LeftMessage {
            wr_id: wr.wr_id,
            written,
            length,
            signaled: wr.signaled,
        };
        self.sends.push_left(left, extent);
        Some(())
    }

    /// Hands a message over from where its local memory lies. Returns the octets of its ULPDU if it was taken.
    #[inline(always)]
    fn hand_over(
        &self,
        message: &Message,
        data: ShortData<'_>,
        length: u32,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
    ) -> Option<usize> {
        let frame = Frame::of(message, length);
        let view;
        let payload = match data {
            ShortData::Inline(octets) => Piece::Bytes(octets),
            ShortData::Sge(sge) => {
                view = tables.mrs.view_local();
                Piece::Region(view.resident(self.config.pd, sge)?)
            }
        };
        sink.send_framed(&frame.around(payload))
            .then_some(frame.ulpdu_len)
    }

    /// Hands over the next message. `None` if it is another one, there is no room, or its memory is not as it should be.
    #[inline]
    fn send_one_short(&mut self, tables: Tables<'_>, sink: &mut impl StreamSink) -> Option<()> {
        let (number, wqe) = self.startable()?;
        let (work, length, signaled) = (wqe.work, wqe.length, wqe.signaled);
        if self.is_long(length) {
            return None;
        }
        let message = self.short_message(work, length, wqe.solicited)?;
        let frame = Frame::of(&message, length);
        let is_taken = match &wqe.data {
            RcData::Inline(octets) => send_apart(sink, &frame.around(Piece::Bytes(octets))),
            RcData::Sges(sges) => {
                let view = tables.mrs.view_local();
                let mut gathered: Gathered<&Registration> = Gathered::default();
                gathered.view(&view, self.config.pd, sges).ok()?;
                if gathered.is_on_demand() {
                    return None;
                }
                let mut parts: ArrayVec<Piece<'_>, MAX_SGE> = ArrayVec::new();
                gathered.for_each(0, length, |slice| parts.push(Piece::Region(slice)));
                match *parts {
                    [] => send_apart(sink, &frame.around(Piece::Bytes(&[]))),
                    [part] => send_apart(sink, &frame.around(part)),
                    _ => {
                        let frame = frame.around(Piece::Bytes(&[]));
                        let [before, _, behind] = frame.pieces();
                        let mut pieces: ArrayVec<Piece<'_>, { MAX_SGE + 2 }> = ArrayVec::new();
                        pieces.push(before);
                        pieces.extend(parts);
                        pieces.push(behind);
                        sink.send_whole(&pieces)
                    }
                }
            }
        };
        if !is_taken {
            return None;
        }
        let extent = self.note_short(&message, frame.ulpdu_len, signaled);
        self.sends.begin(Extent::default());
        self.sends.framed(number, extent);
        Some(())
    }

    /// Whether a message is too long to be a short one.
    #[inline]
    fn is_long(&self, length: u32) -> bool {
        let longest = || LONGEST.min(u32::from(self.llp.mulpdu()).saturating_sub(HEADERS));
        length > ALWAYS_SHORT && length > longest()
    }

    /// The message of a work request, if it is one that may be short.
    #[inline]
    fn short_message(&self, work: RcWork, length: u32, solicited: bool) -> Option<Message> {
        match work {
            RcWork::Send { invalidate } => {
                let kind = SendKind {
                    solicited,
                    invalidate,
                };
                Some(self.stream.next_send(length, kind))
            }
            RcWork::Write {
                stag,
                start,
                immediate: None,
            } => Some(RcStream::next_write(stag, start, length)),
            RcWork::Write { .. }
            | RcWork::SendImmediate { .. }
            | RcWork::Read { .. }
            | RcWork::Atomic { .. }
            | RcWork::Memory(_) => None,
        }
    }

    /// A short message is in the peer's memory. Returns its extent.
    #[inline]
    fn note_short(&mut self, message: &Message, ulpdu_len: usize, signaled: bool) -> Extent {
        self.stream.begin(message);
        let octets = bare::fpdu_len(ulpdu_len) as u64;
        self.made += octets;
        self.taken += octets;
        self.counters.count_sent(1, octets);
        let messages = self.stream.dgiwarp_ext().sent();
        if signaled {
            self.note_wanted(messages);
        }
        self.answer_next = true;
        Extent {
            octets: self.made,
            messages,
        }
    }
}
