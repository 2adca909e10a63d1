//! Memory, receive queue and completions of a QP, as its stream uses them.

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::datagram::PlaceFailed;
use dgiwarp_rdmap::stream::{Delivered, SourceUse, StreamError};

use super::state::RcConfig;
use super::transmit::send_queue::SendQueue;
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, Use};
use crate::recv_queue::{RecvWqe, Tables, WeakWaiter};
use crate::sges::scatter;
use crate::types::{NoReceive, Wc, WcOpcode, WcStatus};
use dgiwarp_memory::{Access, Placeable};

/// Failed completion of a receive.
pub(super) fn failed_receive(wqe: &RecvWqe, qpn: u32, status: WcStatus) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn).with_status(status)
}

/// The region that a request of the peer reads or changes.
pub(super) fn source(
    mrs: &MrTable,
    config: &RcConfig,
    span: TaggedSpan,
    purpose: SourceUse,
) -> Result<Use, TaggedError> {
    let right = match purpose {
        SourceUse::Read => Access::REMOTE_READ,
        SourceUse::Atomic => Access::REMOTE_ATOMIC,
    };
    remote(mrs, config, span, right)
}

/// The region that the peer names, if key and QP give it the right.
#[inline]
fn remote(
    mrs: &MrTable,
    config: &RcConfig,
    span: TaggedSpan,
    right: Access,
) -> Result<Use, TaggedError> {
    let found = mrs.remote(config.stream(), span, right)?;
    if config.denied.contains(right) {
        return Err(TaggedError::Access);
    }
    Ok(found)
}

pub(super) struct Ulp<'a, C> {
    pub(super) config: &'a RcConfig,
    pub(super) tables: Tables<'a>,
    pub(super) completions: &'a mut C,
    pub(super) sends: &'a mut SendQueue,
    /// Sends and Writes that the peer has placed as its answers to later requests prove.
    pub(super) proven: &'a mut u64,
    pub(super) waiter: &'a WeakWaiter,
    /// The STag of the last Write that was placed.
    pub(super) used: &'a mut Option<STag>,
    /// A Read or atomic whose own memory could not be written.
    pub(super) failed: Option<u64>,
}

impl<C> Ulp<'_, C> {
    /// The peer has answered a Read or an atomic, and so has placed all Sends and Writes that left before.
    fn answered(&mut self, number: u64) {
        if let Some(extent) = self.sends.done(number) {
            *self.proven = (*self.proven).max(extent.messages);
        }
    }

    fn place_answer<P: Placeable + ?Sized>(
        &mut self,
        number: u64,
        offset: u32,
        payload: &P,
    ) -> Result<(), PlaceFailed> {
        let (mrs, pd) = (self.tables.mrs, self.config.pd);
        let wqe = self.sends.get(number).ok_or(PlaceFailed)?;
        let placed = scatter(mrs, pd, wqe.data.sink(), offset, PayloadSlice::new(payload));
        if placed.is_err() {
            self.failed = Some(number);
        }
        placed
    }
}

impl<C> Ulp<'_, C> {
    /// Whether messages without a posted receive wait.
    fn waits_for_receives(&self) -> bool {
        // Nothing is ever posted to a queue without capacity.
        self.config.options.no_receive == NoReceive::Wait && self.tables.recv_queue.capacity() > 0
    }
}

impl<C: CompletionSink, P: Placeable + ?Sized> TaggedBuffers<P> for Ulp<'_, C> {
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError> {
        let right = Access::REMOTE_WRITE;
        remote(self.tables.mrs, self.config, span, right).map(|_| ())
    }

    #[inline]
    fn place(&mut self, stag: STag, start: TaggedOffset, payload: &P) -> Result<(), TaggedError> {
        let length = u32::try_from(payload.len()).map_err(|_| TaggedError::BaseOrBounds)?;
        let span = TaggedSpan {
            stag,
            start,
            length,
        };
        let right = Access::REMOTE_WRITE;
        let region = remote(self.tables.mrs, self.config, span, right)?;
        let slice = region
            .reached(start.get(), length, true)
            .ok_or(TaggedError::BaseOrBounds)?;
        payload.place(0, &slice);
        *self.used = Some(stag);
        Ok(())
    }
}

impl<C: CompletionSink, P: Placeable + ?Sized> dgiwarp_rdmap::stream::Ulp<P> for Ulp<'_, C> {
    type Receive = RecvWqe;
    type Request = u64;

    fn take_receive(&mut self) -> Option<RecvWqe> {
        // The length of a Send is known with its last segment only, so any receive will do here.
        let queue = self.tables.recv_queue;
        if self.waits_for_receives() {
            queue.take_or_wait(self.completions, self.waiter)
        } else {
            queue.take(0, self.completions).ok()
        }
    }

    fn has_rnr_queue(&self) -> bool {
        self.waits_for_receives()
    }

    fn capacity(&self, receive: &RecvWqe) -> u32 {
        receive.length
    }

    fn place_untagged(
        &mut self,
        receive: &RecvWqe,
        offset: u32,
        payload: &P,
    ) -> Result<(), PlaceFailed> {
        let pd = self.tables.recv_queue.pd(self.config.pd);
        scatter(
            self.tables.mrs,
            pd,
            &receive.sges,
            offset,
            PayloadSlice::new(payload),
        )
    }

    fn invalidate(&mut self, stag: STag) -> Result<(), TaggedError> {
        self.tables.mrs.invalidate(self.config.stream(), stag, true)
    }

    fn deliver(&mut self, receive: RecvWqe, delivered: Delivered) {
        // Verbs take Immediate Data for the end of a Write.
        let (opcode, byte_len, immediate) = match delivered.immediate {
            Some(data) => (
                WcOpcode::RecvRdmaWithImmediate,
                data.written,
                Some(data.immediate),
            ),
            None => (WcOpcode::Recv, delivered.length, delivered.attached),
        };
        let wc = Wc {
            byte_len,
            immediate,
            invalidated: delivered.invalidated.map(STag::get),
            source: Some(self.config.peer),
            solicited: delivered.solicited,
            ..Wc::new(receive.wr_id, opcode, self.config.qpn)
        };
        self.tables.recv_queue.complete(wc, self.completions);
    }

    fn fail(&mut self, receive: RecvWqe, error: StreamError) {
        let status = match error {
            StreamError::LocalProtection => WcStatus::LocalProtection,
            StreamError::Untagged(_) => WcStatus::LocalLength,
            StreamError::Truncated(_)
            | StreamError::Control(_)
            | StreamError::UnexpectedOpcode(_)
            | StreamError::Length { .. }
            | StreamError::Written { .. }
            | StreamError::Tagged(_)
            | StreamError::Source(_)
            | StreamError::CannotInvalidate(_)
            | StreamError::Misaligned(_)
            | StreamError::AtomicCode(_)
            | StreamError::AtomicIdentifier { .. }
            | StreamError::Llp(_)
            | StreamError::Terminated(_) => WcStatus::RemoteOperation,
        };
        let wc = failed_receive(&receive, self.config.qpn, status);
        self.tables.recv_queue.complete(wc, self.completions);
    }

    fn check_source(&self, span: TaggedSpan, purpose: SourceUse) -> Result<(), TaggedError> {
        source(self.tables.mrs, self.config, span, purpose).map(|_| ())
    }

    fn place_response(
        &mut self,
        request: u64,
        offset: u32,
        payload: &P,
    ) -> Result<(), PlaceFailed> {
        self.place_answer(request, offset, payload)
    }

    fn complete_read(&mut self, request: u64) {
        self.answered(request);
    }

    fn complete_atomic(&mut self, request: u64, original: u64) -> Result<(), PlaceFailed> {
        // The verbs give the value in the byte order of the machine.
        self.place_answer(request, 0, &original.to_ne_bytes()[..])?;
        self.answered(request);
        Ok(())
    }
}
