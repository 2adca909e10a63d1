//! Transmission: work requests and responses become FPDUs.

mod checked;
mod one_sided;
pub(super) mod send_queue;
mod short;

pub use checked::CheckedEngine;
pub use one_sided::{OneSidedData, OneSidedSpan};
pub use short::ShortWr;

use std::time::Instant;

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_memory::{AtomicError, RegionSlice};
use dgiwarp_rdmap::stream::{DgiwarpExt, Message, Peer, ReadSource, Response, SendKind, SourceUse};
use dgiwarp_rdmap::wire::{AtomicRequest, ImmediateData};

use super::end::RcEnd;
use super::engine::RcEngine;
use super::llp::Llp;
use super::state::Sending;
use super::ulp;
use super::wqe::{Extent, RcData, RcSendWqe, RcWork};
use crate::cq_ring::CompletionSink;
use crate::mr::{LocalProtection, Registration};
use crate::recv_queue::Tables;
use crate::sges::{Gathered, Part};

/// Octets of FPDUs that wait for TCP before no more are made.
pub(super) const WINDOW: usize = 64 << 10;

/// Octets of an FPDU to a dgiwarp peer, at most. A stream of FPDUs of 1,448 octets has 0.65 of the goodput of these; longer ones gained nothing.
const LONG_FPDU: u16 = 16 * 1024;

/// Octets that wait for TCP from which on responses wait for their turn; less than the window, so that work requests have one.
const EARLY: usize = 16 * 1024;
/// Octets of an FPDU beside its payload, with room to spare: headers, pad, CRC and a few Markers.
const OVERHEAD: usize = 256;

/// Most octets of FPDUs that wait for TCP: the window, and the FPDU that exceeds it.
pub const ROOM: usize = WINDOW + (66 << 10);

/// A message of at most this many octets is one segment on any path, so that its MULPDU need not be checked.
const UNCUT: u32 = 256;

/// Why no more FPDUs are made.
pub(super) enum Stop {
    /// No work request or response may begin.
    Idle,
    /// The next segment leaves without a copy.
    ZeroCopy,
    /// The connection is over; with the number of the work request that is the reason.
    Ended(RcEnd, Option<u64>),
    /// As above, in the middle of its message, so that nothing else may leave before the end.
    Broken(RcEnd, u64),
}

impl RcEngine {
    /// Makes FPDUs of posted work requests and of answers to the peer's requests, until there are no more, enough of them wait for TCP, or
    /// the next one is for [`send_zero_copy`](Self::send_zero_copy).
    pub fn make_fpdus(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.end.is_some() {
            if !self.dormant {
                self.flush_sends(None, completions);
            } else {
                self.go_on_dormant(now, tables, completions);
            }
            return;
        }
        if self.rnr_timed_out {
            self.refuse_rnr(tables, completions);
            return;
        }
        if self.deferred_end_due {
            self.handle_deferred_end(now, tables, completions);
            if self.end.is_some() {
                return;
            }
        }
        self.end_detection_timeout();
        self.send_due_hello(now);
        if self.has_rare_notice {
            self.send_rare_notices(now);
        }
        while if self.llp.may_send() {
            self.llp.untransmitted(now) < WINDOW
        } else {
            self.may_begin_memory_work()
        } {
            match self.make_next(now, tables) {
                Ok(()) => {}
                Err(Stop::Idle | Stop::ZeroCopy) => break,
                Err(Stop::Ended(end, blamed)) => {
                    self.end_in_order(end, blamed, tables, completions);
                    if self.end.is_some() {
                        return;
                    }
                }
                Err(Stop::Broken(end, blamed)) => {
                    self.finish(end, Some(blamed), tables, completions);
                    return;
                }
            }
        }
        self.begin_immediate_deadline(now);
        self.begin_answer_deadline(now);
        // An invalidation is done when its turn has come.
        self.complete_sends(completions);
        if self.is_end_due() {
            self.end_pending(tables, completions);
        }
    }

    /// Makes responses as their requests arrive, while few octets wait: a Read returns the octets from before the messages behind it, as it does
    /// on InfiniBand, where a responder carries out requests in order. iWARP leaves that open (RFC 5040 §5.5), and so do larger Reads here.
    pub(super) fn answer_early(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while self.stream.has_responses()
            && self.sending.is_none()
            && self.end.is_none()
            && self.llp.may_send()
            && self.llp.untransmitted(now) < EARLY
        {
            // The peer takes an end whose first message is another for a plain one.
            self.send_due_hello(now);
            if !self.stream.is_amid_response() {
                self.send_ack(now, true);
            }
            // A work request is next, however many requests the peer sends.
            self.answer_next = false;
            match self.answer(now, tables) {
                Ok(()) => {}
                Err(Stop::Idle | Stop::ZeroCopy) => return,
                Err(Stop::Ended(end, blamed)) => self.finish(end, blamed, tables, completions),
                Err(Stop::Broken(end, blamed)) => {
                    self.finish(end, Some(blamed), tables, completions);
                }
            }
        }
    }

    /// Sets TCP's effective maximum segment size, octets, and the MULPDU to use whatever that is, if one was chosen. FPDUs to a dgiwarp peer fill several
    /// segments (`rfc-notes/rc-extensions.md`, "Long FPDUs").
    pub fn follow_path(&mut self, emss: u16, chosen: Option<u16>) {
        let segments = match self.stream.dgiwarp_ext().peer() {
            Peer::Dgiwarp(_) => (LONG_FPDU / emss.max(1)).max(1),
            Peer::Unknown | Peer::Plain => 1,
        };
        self.llp.follow_path(emss.saturating_mul(segments), chosen);
    }

    /// Whether a message waits that may be longer than a MULPDU.
    pub fn may_cut(&self) -> bool {
        let next = self.sends.unstarted();
        self.is_amid()
            || self.stream.has_responses()
            || next.is_some_and(|(_, wqe)| wqe.length > UNCUT)
    }

    /// Whether a work request or answer could become FPDUs, or be done, now.
    pub fn can_make(&self) -> bool {
        if self.is_end_due() {
            true
        } else if self.llp.may_send() {
            self.sending.is_some()
                || self.stream.has_responses()
                || self.may_begin()
                || self.has_notice()
        } else {
            self.may_begin_memory_work()
        }
    }

    /// Segments of two messages are never mixed; where both a work request and an answer may begin, they take turns.
    fn make_next(&mut self, now: Instant, tables: Tables<'_>) -> Result<(), Stop> {
        if self.sending.is_some() {
            return self.go_on(now, tables);
        }
        if !self.stream.is_amid_response() && self.llp.may_send() {
            let others = self.stream.has_responses() || self.may_begin();
            self.send_ack(now, others);
        }
        let answer = self.stream.has_responses()
            && (self.stream.is_amid_response() || self.answer_next || !self.may_begin());
        if answer {
            self.answer_next = false;
            self.answer(now, tables)
        } else {
            self.answer_next = true;
            self.begin(now, tables)
        }
    }

    /// Whether the next work request may begin: Reads and atomics need credit, and a fence waits for all of them (RFC 5040 §5.5 rule 12).
    #[inline]
    pub(super) fn may_begin(&self) -> bool {
        self.startable().is_some()
    }

    /// Whether posted work requests wait for the peer's first FPDUs: those of a Responder (RFC 5044 §7.1.2), and those that depend on the kind of peer.
    pub fn awaits_first_fpdus(&self) -> bool {
        self.end.is_none()
            && !self.sq_drain.holds()
            && self.sends.unstarted().is_some()
            && !(self.llp.may_send() && self.is_peer_detected())
    }

    /// The next work request, if it [may begin](Self::may_begin), with its number.
    #[inline]
    pub(super) fn startable(&self) -> Option<(u64, &RcSendWqe)> {
        if self.sq_drain.holds() || self.pending_end.is_some() {
            return None;
        }
        let (number, wqe) = self.sends.unstarted()?;
        let outstanding = self.stream.outstanding();
        let credit = match wqe.work {
            RcWork::Send { .. } | RcWork::Write { .. } | RcWork::Memory(_) => true,
            RcWork::SendImmediate { .. } => self.is_peer_detected(),
            // Without any credit ever it begins in order to fail.
            RcWork::Read { .. } | RcWork::Atomic { .. } => {
                let limit = self.stream.request_limit();
                limit == 0 || outstanding < limit
            }
        };
        let may = credit
            && (!wqe.fence || outstanding == 0)
            && (!self.xrc.is_initiator() || self.may_begin_at_target(wqe, outstanding));
        may.then_some((number, wqe))
    }

    /// Whether an XRC initiator may begin this work request. The peer takes the protection domain of a Read or atomic from the queue that was
    /// named last, so that another one is named once none is outstanding.
    fn may_begin_at_target(&self, wqe: &RcSendWqe, outstanding: usize) -> bool {
        matches!(wqe.work, RcWork::Memory(_))
            || self.is_peer_detected()
                && (outstanding == 0 || !self.xrc.needs_notice(wqe.remote_srqn))
    }

    /// Names the peer's shared receive queue that the next request is for, unless the one before was for it too.
    fn name_srq(&mut self, now: Instant, number: u64, srqn: u32) -> Result<(), Stop> {
        if !self.stream.dgiwarp_ext().peer_is_xrc_target() {
            return Err(Stop::Ended(RcEnd::NoXrcTarget, Some(number)));
        }
        if self.xrc.needs_notice(srqn) {
            self.put(now, &DgiwarpExt::srq_number(srqn), &[]);
            self.xrc.name(srqn);
        }
        Ok(())
    }

    /// Whether the next work request is one on local keys, which need not wait until this end may send.
    fn may_begin_memory_work(&self) -> bool {
        let next = self.startable();
        next.is_some_and(|(_, wqe)| matches!(wqe.work, RcWork::Memory(_)))
    }

    fn begin(&mut self, now: Instant, tables: Tables<'_>) -> Result<(), Stop> {
        let Some((number, wqe)) = self.startable() else {
            return Err(Stop::Idle);
        };
        let no_reads = Stop::Ended(RcEnd::NoReads, Some(number));
        let (work, length, solicited) = (wqe.work, wqe.length, wqe.solicited);
        let (srqn, signaled) = (wqe.remote_srqn, wqe.signaled);
        self.sends.begin(Extent {
            octets: 0,
            messages: self.stream.dgiwarp_ext().sent(),
        });
        if self.xrc.is_initiator() && !matches!(work, RcWork::Memory(_)) {
            self.name_srq(now, number, srqn)?;
        }
        match work {
            RcWork::Send { invalidate } => {
                let kind = SendKind {
                    solicited,
                    invalidate,
                };
                let message = self.stream.send(length, kind);
                self.sending = Some(Sending { number, message });
                self.go_on(now, tables)
            }
            RcWork::SendImmediate { immediate } => {
                if !self.peer_takes_immediates() {
                    return Err(Stop::Ended(RcEnd::NoImmediates, Some(number)));
                }
                self.put(now, &DgiwarpExt::immediate(immediate), &[]);
                let kind = SendKind {
                    solicited,
                    invalidate: None,
                };
                let message = self.stream.send(length, kind);
                self.sending = Some(Sending { number, message });
                self.go_on(now, tables)
            }
            RcWork::Write { stag, start, .. } => {
                let message = self.stream.write(stag, start, length);
                self.sending = Some(Sending { number, message });
                self.go_on(now, tables)
            }
            RcWork::Read { stag, start } => {
                let source = ReadSource {
                    stag,
                    start,
                    length,
                };
                let ulpdu = self.stream.read(source, number).ok_or(no_reads)?;
                self.put(now, &ulpdu, &[]);
                Ok(())
            }
            RcWork::Atomic {
                stag,
                start,
                operation,
            } => {
                let at = (stag, start);
                let ulpdu = self.stream.atomic(operation, at, number).ok_or(no_reads)?;
                self.put(now, &ulpdu, &[]);
                Ok(())
            }
            RcWork::Memory(work) => {
                let done = work.carry_out(tables.mrs, self.config.stream());
                done.map_err(|error| Stop::Ended(RcEnd::Bind(error), Some(number)))?;
                self.sends.done(number);
                if signaled {
                    // Its completion comes behind those of the messages before it.
                    self.note_wanted(self.stream.dgiwarp_ext().sent());
                }
                Ok(())
            }
        }
    }

    /// Sends a ULPDU that lies ready. It is short, or a part of a message that was cut to the MULPDU.
    pub(super) fn put(&mut self, now: Instant, header: &[u8], payload: &[u8]) {
        let before = self.llp.untransmitted(now);
        self.llp
            .send_ulpdu(header, payload)
            .expect("MPA may send, and RDMAP's own messages are shorter than the least MULPDU");
        let octets = (self.llp.untransmitted(now) - before) as u64;
        self.made += octets;
        self.counters.count_sent(1, octets);
    }

    /// Makes FPDUs of segments of the message that has begun, until it ends or enough octets wait.
    fn go_on(&mut self, now: Instant, tables: Tables<'_>) -> Result<(), Stop> {
        if self.is_next_zero_copy() {
            return Err(Stop::ZeroCopy);
        }
        let Some(Sending {
            number,
            mut message,
        }) = self.sending.take()
        else {
            return Err(Stop::Idle);
        };
        let Some(wqe) = self.sends.get(number) else {
            return Err(Stop::Idle);
        };
        let length = wqe.length;
        let before = self.llp.untransmitted(now);
        let framed = match &wqe.data {
            RcData::Inline(octets) => Ok(frame_inline(&mut message, octets, &mut self.llp, now)),
            RcData::Sges(sges) => {
                // Room is made before memory is held: nothing may be allocated while it is.
                reserve(&mut self.llp, length);
                let view = tables.mrs.view_local();
                let mut gathered = Gathered::default();
                gathered
                    .view(&view, self.config.pd, sges)
                    .and_then(|()| frame(&mut message, &gathered, &mut self.llp, now))
            }
        };
        let octets = (self.llp.untransmitted(now) - before) as u64;
        self.made += octets;
        match framed {
            Ok(Framed { segments, payload }) => {
                self.counters.count_sent(segments, octets);
                self.counters.octets_staged += payload;
            }
            Err(LocalProtection) => {
                return Err(if message.has_begun() {
                    Stop::Broken(RcEnd::LocalProtection, number)
                } else {
                    Stop::Ended(RcEnd::LocalProtection, Some(number))
                });
            }
        }
        if message.is_done() {
            self.end_message(now, number);
        } else {
            self.sending = Some(Sending { number, message });
        }
        Ok(())
    }

    /// All segments of a Send or Write are FPDUs now.
    pub(super) fn end_message(&mut self, now: Instant, number: u64) {
        let Some(wqe) = self.sends.get(number) else {
            return;
        };
        let (work, length, solicited) = (wqe.work, wqe.length, wqe.solicited);
        let signaled = wqe.signaled;
        if let RcWork::Write {
            immediate: Some(immediate),
            ..
        } = work
        {
            let data = ImmediateData {
                immediate,
                written: length,
            };
            let ulpdu = self.stream.immediate(data, solicited);
            self.put(now, &ulpdu, &[]);
        }
        let messages = self.stream.dgiwarp_ext().sent();
        if signaled {
            self.note_wanted(messages);
        }
        let octets = self.made;
        self.sends.framed(number, Extent { octets, messages });
    }

    /// Makes an FPDU of what is due next in answer to the peer's requests.
    fn answer(&mut self, now: Instant, tables: Tables<'_>) -> Result<(), Stop> {
        let answered = match self.stream.next_response(self.llp.mulpdu()) {
            None => return Err(Stop::Idle),
            Some(Response::ReadSegment { header, source }) => {
                self.answer_read(now, &header, source, tables)
            }
            Some(Response::Atomic(request)) => self.answer_atomic(now, &request, tables),
        };
        answered.map_err(|error| Stop::Ended(RcEnd::Stream(self.stream.fail_response(error)), None))
    }

    /// A segment of a Read Response. Its octets are copied: the program may write there meanwhile, and the CRC must be that of what leaves.
    fn answer_read(
        &mut self,
        now: Instant,
        header: &[u8],
        source: TaggedSpan,
        tables: Tables<'_>,
    ) -> Result<(), TaggedError> {
        if source.length == 0 {
            self.put(now, header, &[]);
        } else {
            reserve(&mut self.llp, source.length);
            let registration = ulp::source(tables.mrs, &self.config, source, SourceUse::Read)?;
            let slice = registration
                .reached(source.start.get(), source.length, false)
                .ok_or(TaggedError::BaseOrBounds)?;
            let before = self.llp.untransmitted(now);
            send_slice(&mut self.llp, header, &slice);
            let octets = (self.llp.untransmitted(now) - before) as u64;
            self.made += octets;
            self.counters.count_sent(1, octets);
            self.counters.octets_staged += u64::from(source.length);
        }
        self.used = Some(source.stag);
        self.stream.read_segment_sent(source.length);
        Ok(())
    }

    fn answer_atomic(
        &mut self,
        now: Instant,
        request: &AtomicRequest,
        tables: Tables<'_>,
    ) -> Result<(), TaggedError> {
        let span = TaggedSpan {
            stag: request.stag,
            start: request.tagged_offset,
            length: 8,
        };
        let registration = ulp::source(tables.mrs, &self.config, span, SourceUse::Atomic)?;
        let slice = registration
            .reached(span.start.get(), span.length, true)
            .ok_or(TaggedError::BaseOrBounds)?;
        // The offset is aligned; the region may be at an odd place of its own address space, which is no fault of the peer's, but then
        // nothing atomic can be done there.
        let original = update(&slice, request).map_err(|_| TaggedError::Access)?;
        drop(registration);
        if let Some(ulpdu) = self.stream.atomic_done(original) {
            self.put(now, &ulpdu, &[]);
        }
        Ok(())
    }
}

/// Carries out an atomic operation; returns the value from before. Masked ones are repeated until no other write came in between.
pub(crate) fn update(slice: &RegionSlice<'_>, request: &AtomicRequest) -> Result<u64, AtomicError> {
    let mut held = slice.fetch_add(0)?;
    loop {
        let found = slice.compare_swap(held, request.operation.apply(held))?;
        if found == held {
            return Ok(held);
        }
        held = found;
    }
}

/// Makes room for the FPDUs of as much of `length` octets as the window takes.
fn reserve(llp: &mut Llp, length: u32) {
    let mulpdu = usize::from(llp.mulpdu());
    let room = (length as usize).min(WINDOW) + mulpdu;
    llp.reserve(room + room / mulpdu * OVERHEAD + OVERHEAD);
}

fn send_slice(llp: &mut Llp, header: &[u8], slice: &RegionSlice<'_>) {
    llp.send_ulpdu(header, slice)
        .expect("MPA may send, and the segment is no longer than the MULPDU");
}

/// Segments that were framed.
#[derive(Default)]
struct Framed {
    segments: usize,
    /// Octets of their payload.
    payload: u64,
}

/// Makes FPDUs of segments of `message`, until it is done, enough octets wait, or octets cannot be read any more: an error of the first segment here.
fn frame(
    message: &mut Message,
    gathered: &Gathered<&Registration>,
    llp: &mut Llp,
    now: Instant,
) -> Result<Framed, LocalProtection> {
    let mut framed = Framed::default();
    let mulpdu = llp.mulpdu();
    let on_demand = gathered.is_on_demand();
    while !message.is_done() && llp.untransmitted(now) < WINDOW {
        if on_demand && let Some(next) = message.peek(mulpdu) {
            match gathered.reach(next.offset, next.length) {
                Ok(()) => {}
                Err(_) if framed.segments > 0 => break,
                Err(error) => return Err(error),
            }
        }
        let Some((header, segment)) = message.next_segment(mulpdu) else {
            break;
        };
        let part = Part {
            of: gathered,
            offset: segment.offset,
            length: segment.length,
        };
        llp.send_ulpdu(&header, &part)
            .expect("MPA may send, and the segment is no longer than the MULPDU");
        framed.segments += 1;
        framed.payload += u64::from(segment.length);
    }
    Ok(framed)
}

/// Makes FPDUs of segments of inline data.
fn frame_inline(message: &mut Message, octets: &[u8], llp: &mut Llp, now: Instant) -> Framed {
    let mut framed = Framed::default();
    let mulpdu = llp.mulpdu();
    while !message.is_done() && llp.untransmitted(now) < WINDOW {
        let Some((header, segment)) = message.next_segment(mulpdu) else {
            break;
        };
        let from = segment.offset as usize;
        llp.send_ulpdu(&header, &octets[from..from + segment.length as usize])
            .expect("MPA may send, and the segment is no longer than the MULPDU");
        framed.segments += 1;
        framed.payload += u64::from(segment.length);
    }
    framed
}
