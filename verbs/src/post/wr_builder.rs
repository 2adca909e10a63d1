//! Work requests between `ibv_wr_start` and `ibv_wr_complete`: `ibv_wr_post(3)`.
//!
//! The extended calls collect work requests in a list of the queue pair; `ibv_wr_complete` posts all of them or none. From
//! `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` one thread holds the list, and others wait in `ibv_wr_start`. The list
//! keeps its capacity: collecting allocates nothing once it has grown.

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV,
};
use crate::ffi::wr_lock::WrLock;
use crate::post::inline::{Filling, SLOT};
use crate::post::operation::WorkRequest;
use crate::qp::state::Service;
use dgiwarp::{
    Destination, MAX_SGE, PostError, RcOperation, RcSendWr, RdSendWr, SendWr, Sge, UcSendWr,
};
use nix::errno::Errno;
use std::ops::Range;
use std::time::Duration;

/// Operations of a service in the form of `send_ops_flags`. On datagrams, a Write is a Write-Record and a Read goes to the peer
/// of `ibv_wr_set_ud_addr`.
pub(crate) fn operations_of(service: Service) -> u64 {
    let sends = IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match service {
        Service::UnreliableConnected => sends,
        Service::UnreliableDatagram => sends | IBV_QP_EX_WITH_RDMA_READ,
        Service::XrcTarget => 0,
        // Local keys are not tied to a peer.
        Service::ReliableDatagram => {
            sends
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        }
        Service::ReliableConnected | Service::XrcInitiator => {
            sends
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | IBV_QP_EX_WITH_LOCAL_INV
                | IBV_QP_EX_WITH_BIND_MW
        }
    }
}

/// Payload of a work request, as a range of its builder's lists.
#[derive(Debug, Clone)]
enum Payload {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// A collected work request.
#[derive(Debug)]
struct Entry {
    request: WorkRequest,
    destination: Option<Destination>,
    payload: Payload,
}

/// Work requests that one thread collects.
#[derive(Debug, Default)]
pub(crate) struct WrBuilder {
    entries: Vec<Entry>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// First error of a call: nothing will be posted.
    error: Option<Errno>,
}

/// The extended calls of a queue pair.
#[derive(Debug)]
pub(crate) struct SendOps {
    /// `IBV_QP_EX_WITH_…` of the operations that the queue pair was created with.
    pub(crate) allowed: u64,
    builder: WrLock<WrBuilder>,
}

impl SendOps {
    pub(crate) fn new(allowed: u64) -> Self {
        Self {
            allowed,
            builder: WrLock::new(WrBuilder::default()),
        }
    }

    /// Waits until no other thread collects work requests. The calling thread then collects until [`complete`](Self::complete)
    /// or [`abort`](Self::abort).
    pub(crate) fn start(&self) {
        self.builder.acquire();
    }

    /// Runs `call` on the builder. The first error is kept for [`complete`](Self::complete).
    ///
    /// # Safety
    /// The thread that collects is the calling thread.
    pub(crate) unsafe fn with(&self, call: impl FnOnce(&mut WrBuilder) -> Result<(), Errno>) {
        // SAFETY: the caller's contract.
        if let Some(builder) = unsafe { self.builder.value() }
            && builder.error.is_none()
        {
            builder.error = call(builder).err();
        }
    }

    /// Runs `post` on the builder, unless a call failed, and releases it.
    ///
    /// # Safety
    /// As for [`with`](Self::with).
    pub(crate) unsafe fn complete(
        &self,
        post: impl FnOnce(&mut WrBuilder) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let builder = unsafe { self.builder.value() }.ok_or(Errno::EINVAL)?;
        let posted = builder.error.map_or(Ok(()), Err);
        let posted = posted.and_then(|()| post(builder));
        // SAFETY: the caller's contract; `builder` is not used any more.
        unsafe { self.abort() };
        posted
    }

    /// Drops the collected work requests and releases the builder.
    ///
    /// # Safety
    /// As for [`with`](Self::with).
    pub(crate) unsafe fn abort(&self) {
        // SAFETY: the caller's contract.
        if let Some(builder) = unsafe { self.builder.value() } {
            builder.clear();
        }
        // SAFETY: the caller's contract.
        unsafe { self.builder.release() };
    }
}

impl WrBuilder {
    fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// Begins a work request; more than `most` are `ENOMEM`.
    pub(crate) fn begin(&mut self, request: WorkRequest, most: u32) -> Result<(), Errno> {
        if usize::try_from(most).is_ok_and(|most| self.entries.len() >= most) {
            return Err(Errno::ENOMEM);
        }
        self.entries.push(Entry {
            request,
            destination: None,
            payload: Payload::Sges(0..0),
        });
        Ok(())
    }

    /// The work request that setters apply to: the last one begun.
    fn last(&mut self) -> Result<&mut Entry, Errno> {
        self.entries.last_mut().ok_or(Errno::EINVAL)
    }

    pub(crate) fn set_destination(&mut self, destination: Destination) -> Result<(), Errno> {
        self.last()?.destination = Some(destination);
        Ok(())
    }

    /// Sets the peer's shared receive queue.
    pub(crate) fn set_srq(&mut self, remote_srqn: u32) -> Result<(), Errno> {
        self.last()?.request.remote_srqn = remote_srqn;
        Ok(())
    }

    /// Makes a Write a Write-Record on every service.
    pub(crate) fn set_record(&mut self) -> Result<(), Errno> {
        self.last()?.request.record = true;
        Ok(())
    }

    /// Limits the time of a Read.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), Errno> {
        let last = &mut self.last()?.request;
        if !matches!(last.operation, RcOperation::Read { .. }) {
            return Err(Errno::EINVAL);
        }
        last.timeout = Some(timeout);
        Ok(())
    }

    pub(crate) fn set_sges(
        &mut self,
        sges: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Errno> {
        if sges.len() > MAX_SGE {
            return Err(Errno::EINVAL);
        }
        let start = self.sges.len();
        self.sges.extend(sges);
        let range = start..self.sges.len();
        self.last()?.payload = Payload::Sges(range);
        Ok(())
    }

    /// Copies inline data; only Sends and Writes have any.
    pub(crate) fn set_inline<'a>(
        &mut self,
        buffers: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let sends = matches!(
            self.last()?.request.operation,
            RcOperation::Send { .. }
                | RcOperation::SendImmediate { .. }
                | RcOperation::Write { .. }
        );
        let start = self.inline.len();
        for buffer in buffers {
            if self.inline.len() - start + buffer.len() > SLOT {
                return Err(Errno::EINVAL);
            }
            self.inline.extend_from_slice(buffer);
        }
        let range = start..self.inline.len();
        self.last()?.payload = Payload::Inline(range);
        sends.then_some(()).ok_or(Errno::EINVAL)
    }

    pub(crate) fn has_inline(&self) -> bool {
        !self.inline.is_empty()
    }

    /// Copies inline data into registered memory.
    pub(crate) fn register_inline(&mut self, slots: &mut Filling<'_>) -> Result<(), Errno> {
        for entry in &mut self.entries {
            if let Payload::Inline(range) = &entry.payload {
                let data = self.inline.get(range.clone()).unwrap_or_default();
                let start = self.sges.len();
                self.sges.push(slots.fill(data)?);
                entry.payload = Payload::Sges(start..start + 1);
            }
        }
        Ok(())
    }

    fn sges(&self, entry: &Entry) -> &[Sge] {
        match &entry.payload {
            Payload::Sges(range) => self.sges.get(range.clone()).unwrap_or_default(),
            Payload::Inline(_) => &[],
        }
    }

    fn inline(&self, entry: &Entry) -> &[u8] {
        match &entry.payload {
            Payload::Inline(range) => self.inline.get(range.clone()).unwrap_or_default(),
            Payload::Sges(_) => &[],
        }
    }

    /// All work requests, for a reliable connected queue pair.
    pub(crate) fn rc(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<RcSendWr<'_>, PostError>> + Clone {
        let entries = self.entries.iter();
        entries.map(|it| Ok(it.request.rc(self.sges(it), self.inline(it))))
    }

    /// All work requests, for a reliable datagram queue pair.
    pub(crate) fn rd(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<RdSendWr<'_>, PostError>> + Clone {
        self.entries.iter().map(|it| {
            let destination = it.destination.clone().ok_or(PostError::Malformed)?;
            Ok(it.request.rd(destination, self.sges(it), self.inline(it)))
        })
    }

    /// All work requests, for an unreliable connected queue pair.
    pub(crate) fn uc(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<UcSendWr<'_>, PostError>> + Clone {
        self.entries.iter().map(|it| it.request.uc(self.sges(it)))
    }

    /// All work requests, for a datagram queue pair.
    pub(crate) fn ud(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<SendWr<'_>, PostError>> + Clone {
        self.entries.iter().map(|it| {
            let destination = it.destination.clone().ok_or(PostError::Malformed)?;
            let operation = it.request.ud_operation()?;
            Ok(it.request.ud(operation, destination, self.sges(it)))
        })
    }
}
