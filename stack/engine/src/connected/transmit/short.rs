//! Short messages to memory that the peer shares: they go there from where they lie, without staging, clock and acknowledgements.

use arrayvec::ArrayVec;
use dgiwarp_llp_tcp_mpa::framing::bare;
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::stream::{Peer, SendKind};

use crate::connected::engine::RcEngine;
use crate::connected::first_fpdu_probe::FirstFpduProbe;
use crate::connected::state::RcStream;
use crate::connected::wqe::{Extent, RcData, RcWork};
use crate::connected::zero_copy::StreamSink;
use crate::mr::Registration;
use crate::recv_queue::Tables;
use crate::sges::Gathered;
use crate::types::{Completion, MAX_SGE};
use crate::xrc::Xrc;

/// Octets of the longest such message, one segment on every path whose memory both ends share.
const LONGEST: u32 = 16 << 10;
/// Octets before the payload: ULPDU_Length and the longer of the two headers.
const BEFORE: usize = 2 + 18;

impl RcEngine {
    /// Whether messages may leave without all that [`make_fpdus`](Self::make_fpdus) and [`transmitted`](Self::transmitted) care for: nothing else is to
    /// leave, no time is waited for, and acknowledgements are in memory.
    #[inline]
    fn is_plain_sender(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        self.acks.in_memory
            && self.end.is_none()
            && self.sending.is_none()
            && !(self.rnr_timed_out || self.deferred_end_due || self.has_rare_notice)
            && !(self.acks.flush || self.detect_peer.timed_out)
            && !self.sq_drain.holds()
            && !self.stream.has_responses()
            && matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && dgiwarp_ext.pending_acks() == 0
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
        if !self.is_plain_sender() {
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

    /// Hands over the next message. `None` if it is another one, there is no room, or its memory is not as it should be.
    #[inline]
    fn send_one_short(&mut self, tables: Tables<'_>, sink: &mut impl StreamSink) -> Option<()> {
        let (number, wqe) = self.startable()?;
        let (work, length, signaled) = (wqe.work, wqe.length, wqe.signaled);
        let mulpdu = self.llp.mulpdu();
        if length > LONGEST.min(u32::from(mulpdu).saturating_sub(64)) {
            return None;
        }
        let mut message = match work {
            RcWork::Send { invalidate } => {
                let kind = SendKind {
                    solicited: wqe.solicited,
                    invalidate,
                };
                self.stream.next_send(length, kind)
            }
            RcWork::Write {
                stag,
                start,
                immediate: None,
            } => RcStream::next_write(stag, start, length),
            RcWork::Write { .. }
            | RcWork::SendImmediate { .. }
            | RcWork::Read { .. }
            | RcWork::Atomic { .. }
            | RcWork::Memory(_) => return None,
        };
        let (header, _) = message.next_segment(mulpdu)?;
        let payload_len = length as usize;
        let ulpdu_len = header.len() + payload_len;
        let mut before = [0; BEFORE];
        before[..2].copy_from_slice(&bare::length(ulpdu_len));
        before[2..2 + header.len()].copy_from_slice(&header);
        let before = Piece::Bytes(&before[..2 + header.len()]);
        let behind = Piece::Bytes(bare::behind(ulpdu_len));
        let is_taken = match &wqe.data {
            RcData::Inline(octets) => sink.send_whole(&[before, Piece::Bytes(octets), behind]),
            RcData::Sges(sges) => {
                let view = tables.mrs.view_local();
                let mut gathered: Gathered<&Registration> = Gathered::default();
                gathered.view(&view, self.config.pd, sges).ok()?;
                if gathered.is_on_demand() {
                    return None;
                }
                let mut pieces: ArrayVec<Piece<'_>, { MAX_SGE + 2 }> = ArrayVec::new();
                pieces.push(before);
                gathered.for_each(0, length, |slice| pieces.push(Piece::Region(slice)));
                pieces.push(behind);
                sink.send_whole(&pieces)
            }
        };
        if !is_taken {
            return None;
        }
        self.stream.begin(&message);
        let octets = bare::fpdu_len(ulpdu_len);
        self.made += octets as u64;
        self.taken += octets as u64;
        self.counters.count_sent(1, octets as u64);
        let messages = self.stream.dgiwarp_ext().sent();
        if signaled {
            self.note_wanted(messages);
        }
        self.answer_next = true;
        self.sends.begin(Extent::default());
        let extent = Extent {
            octets: self.made,
            messages,
        };
        self.sends.framed(number, extent);
        Some(())
    }
}
