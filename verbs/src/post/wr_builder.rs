//! Preparing work requests call by call and posting them together: `ibv_wr_post(3)`.
//!
//! The builders note work requests in a list that belongs to the queue pair; `ibv_wr_complete` posts all of them or
//! none. Between `ibv_wr_start` and that, or `ibv_wr_abort`, the list is locked: other threads wait at their start. The
//! list keeps its room, so preparing allocates nothing once it was long enough.

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
};
use crate::ffi::errno;
use crate::ffi::turns::Turns;
use crate::post::inline::{Filling, SLOT};
use crate::post::posting::FLAGS;
use crate::qp::queue_pair::{Qp, Transport};
use crate::qp::state::{QpState, Service};
use dgiwarp::{
    Destination, MAX_SGE, Operation, PostError, RcOperation, RcSendWr, SendWr, Sge, UcOperation,
    UcSendWr,
};
use nix::errno::Errno;
use std::ffi::c_uint;
use std::ops::Range;
use std::time::Duration;

/// What queue pairs of a service can be asked to do, as `send_ops_flags` has it. On datagrams, a Write is a Write-Record
/// and a Read goes to the peer that `ibv_wr_set_ud_addr` names.
pub(crate) fn operations_of(service: Service) -> u64 {
    let sends = IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match service {
        Service::UnreliableConnected => sends,
        Service::UnreliableDatagram => sends | IBV_QP_EX_WITH_RDMA_READ,
        Service::ReliableConnected => {
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

/// Where the payload of a work request is, in the lists of its batch.
#[derive(Debug, Clone)]
enum Payload {
    Elements(Range<usize>),
    Inline(Range<usize>),
}

/// One work request.
#[derive(Debug)]
struct Request {
    wr_id: u64,
    flags: c_uint,
    operation: RcOperation,
    destination: Option<Destination>,
    payload: Payload,
    /// Of a Write on a connected queue pair: it leaves a record.
    record: bool,
    /// Of a Read of datagrams: the time it may take.
    timeout: Option<Duration>,
}

/// What one thread prepares.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    requests: Vec<Request>,
    elements: Vec<Sge>,
    inline: Vec<u8>,
    /// The first mistake: nothing of the batch will be posted.
    mistake: Option<Errno>,
}

/// The batches of a queue pair, one after the other.
#[derive(Debug)]
pub(crate) struct Batches {
    /// The kinds of work requests that it was made for.
    pub(crate) allowed: u64,
    turns: Turns<Batch>,
}

impl Batches {
    pub(crate) fn new(allowed: u64) -> Self {
        Self {
            allowed,
            turns: Turns::new(Batch::default()),
        }
    }

    /// Begins a batch; waits until no other thread prepares one. It is this thread's until [`post`](Self::post) or
    /// [`end`](Self::end).
    pub(crate) fn start(&self) {
        self.turns.take();
    }

    /// Goes on with the batch that this thread began. The first mistake is kept for the end.
    ///
    /// # Safety
    /// If a batch was begun, the calling thread began it.
    pub(crate) unsafe fn go_on(&self, body: impl FnOnce(&mut Batch) -> Result<(), Errno>) {
        // SAFETY: the caller's contract.
        if let Some(batch) = unsafe { self.turns.value() }
            && batch.mistake.is_none()
        {
            batch.mistake = body(batch).err();
        }
    }

    /// Posts the batch and ends it.
    ///
    /// # Safety
    /// As for [`go_on`](Self::go_on).
    pub(crate) unsafe fn post(&self, qp: &Qp) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let batch = unsafe { self.turns.value() }.ok_or(Errno::EINVAL)?;
        let posted = batch.post(qp);
        // SAFETY: the caller's contract; `batch` is not used any more.
        unsafe { self.end() };
        posted
    }

    /// Ends the batch; what was not posted is dropped.
    ///
    /// # Safety
    /// As for [`go_on`](Self::go_on).
    pub(crate) unsafe fn end(&self) {
        // SAFETY: the caller's contract.
        if let Some(batch) = unsafe { self.turns.value() } {
            batch.clear();
        }
        // SAFETY: the caller's contract.
        unsafe { self.turns.give_back() };
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.inline.clear();
        self.mistake = None;
    }

    /// Begins a work request, one of at most `most`.
    pub(crate) fn begin(
        &mut self,
        operation: RcOperation,
        (wr_id, flags): (u64, c_uint),
        most: u32,
    ) -> Result<(), Errno> {
        // Inline data has setters of its own; the flag says no more than these.
        let flags = flags & !IBV_SEND_INLINE;
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        if usize::try_from(most).is_ok_and(|most| self.requests.len() >= most) {
            return Err(Errno::ENOMEM);
        }
        self.requests.push(Request {
            wr_id,
            flags,
            operation,
            destination: None,
            payload: Payload::Elements(0..0),
            record: false,
            timeout: None,
        });
        Ok(())
    }

    /// The work request that was begun last: setters belong to it.
    fn last(&mut self) -> Result<&mut Request, Errno> {
        self.requests.last_mut().ok_or(Errno::EINVAL)
    }

    pub(crate) fn set_destination(&mut self, destination: Destination) -> Result<(), Errno> {
        self.last()?.destination = Some(destination);
        Ok(())
    }

    /// Makes a Write leave a record, whatever the service.
    pub(crate) fn set_record(&mut self) -> Result<(), Errno> {
        self.last()?.record = true;
        Ok(())
    }

    /// Limits the time of a Read.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), Errno> {
        let last = self.last()?;
        if !matches!(last.operation, RcOperation::Read { .. }) {
            return Err(Errno::EINVAL);
        }
        last.timeout = Some(timeout);
        Ok(())
    }

    pub(crate) fn set_elements(
        &mut self,
        elements: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Errno> {
        if elements.len() > MAX_SGE {
            return Err(Errno::EINVAL);
        }
        let start = self.elements.len();
        self.elements.extend(elements);
        let range = start..self.elements.len();
        self.last()?.payload = Payload::Elements(range);
        Ok(())
    }

    /// Copies what `buffers` gather; each was checked to be readable.
    pub(crate) fn set_inline<'a>(
        &mut self,
        buffers: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let sends = matches!(
            self.last()?.operation,
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

    fn elements(&self, request: &Request) -> &[Sge] {
        match &request.payload {
            Payload::Elements(range) => self.elements.get(range.clone()).unwrap_or_default(),
            Payload::Inline(_) => &[],
        }
    }

    fn inline(&self, request: &Request) -> &[u8] {
        match &request.payload {
            Payload::Inline(range) => self.inline.get(range.clone()).unwrap_or_default(),
            Payload::Elements(_) => &[],
        }
    }

    /// Puts inline data into registered memory.
    fn place_inline(&mut self, slots: &mut Filling<'_>) -> Result<(), Errno> {
        for request in &mut self.requests {
            if let Payload::Inline(range) = &request.payload {
                let data = self.inline.get(range.clone()).unwrap_or_default();
                let start = self.elements.len();
                self.elements.push(slots.fill(data)?);
                request.payload = Payload::Elements(start..start + 1);
            }
        }
        Ok(())
    }

    fn post(&mut self, qp: &Qp) -> Result<(), Errno> {
        if let Some(errno) = self.mistake {
            return Err(errno);
        }
        if !matches!(qp.state(), QpState::ReadyToSend | QpState::Error) {
            return Err(Errno::EINVAL);
        }
        let reliable = matches!(qp.qp, Transport::Rc(_));
        if reliable || self.inline.is_empty() {
            self.hand_over(qp)?;
        } else {
            qp.inline.post(&qp.pd, |slots| {
                self.place_inline(slots)?;
                self.hand_over(qp)
            })?;
        }
        if qp.state() == QpState::Error {
            qp.qp.flush();
        }
        Ok(())
    }

    fn hand_over(&self, qp: &Qp) -> Result<(), Errno> {
        let every = qp.signal_all;
        let requests = self.requests.iter();
        let posted = match &qp.qp {
            Transport::Rc(rc) => rc.post_send_all(requests.map(|it| Ok(self.reliable(it, every)))),
            Transport::Uc(uc) => uc.post_send_all(requests.map(|it| self.connected(it, every))),
            Transport::Ud(ud) => ud.post_send_all(requests.map(|it| self.datagram(it, every))),
        };
        posted.map_err(errno::of_post)
    }

    fn reliable(&self, request: &Request, every: bool) -> RcSendWr<'_> {
        RcSendWr {
            wr_id: request.wr_id,
            operation: request.operation,
            sges: self.elements(request),
            inline: self.inline(request),
            signaled: every || request.has(IBV_SEND_SIGNALED),
            solicited: request.has(IBV_SEND_SOLICITED),
            fence: request.has(IBV_SEND_FENCE),
        }
    }

    fn connected(&self, request: &Request, every: bool) -> Result<UcSendWr<'_>, PostError> {
        Ok(UcSendWr {
            wr_id: request.wr_id,
            operation: connected(request)?,
            sges: self.elements(request),
            signaled: every || request.has(IBV_SEND_SIGNALED),
            solicited: request.has(IBV_SEND_SOLICITED),
        })
    }

    fn datagram(&self, request: &Request, every: bool) -> Result<SendWr<'_>, PostError> {
        let destination = request.destination.clone();
        Ok(SendWr {
            wr_id: request.wr_id,
            operation: datagram(request)?,
            destination: destination.ok_or(PostError::Malformed)?,
            sges: self.elements(request),
            signaled: every || request.has(IBV_SEND_SIGNALED),
            solicited: request.has(IBV_SEND_SOLICITED),
        })
    }
}

impl Request {
    fn has(&self, flag: c_uint) -> bool {
        self.flags & flag != 0
    }
}

/// What a work request does on an unreliable connected queue pair.
fn connected(request: &Request) -> Result<UcOperation, PostError> {
    match request.operation {
        RcOperation::Send { invalidate: None } => Ok(UcOperation::Send { immediate: None }),
        RcOperation::SendImmediate { immediate } => Ok(UcOperation::Send {
            immediate: Some(immediate),
        }),
        RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        } if request.record => Ok(UcOperation::WriteRecord {
            rkey,
            remote_addr,
            immediate,
        }),
        RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        } => Ok(UcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        }),
        RcOperation::Send { .. }
        | RcOperation::Read { .. }
        | RcOperation::Atomic { .. }
        | RcOperation::LocalInvalidate { .. }
        | RcOperation::BindMw { .. }
        | RcOperation::RegisterMr { .. } => Err(PostError::Malformed),
    }
}

/// What a work request does on a datagram queue pair.
fn datagram(request: &Request) -> Result<Operation, PostError> {
    match request.operation {
        RcOperation::Send { invalidate: None } => Ok(Operation::Send { immediate: None }),
        RcOperation::SendImmediate { immediate } => Ok(Operation::Send {
            immediate: Some(immediate),
        }),
        RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        } => Ok(Operation::WriteRecord {
            rkey,
            remote_addr,
            immediate,
        }),
        RcOperation::Read { rkey, remote_addr } => Ok(Operation::Read {
            rkey,
            remote_addr,
            timeout: request.timeout,
        }),
        RcOperation::Send { .. }
        | RcOperation::Atomic { .. }
        | RcOperation::LocalInvalidate { .. }
        | RcOperation::BindMw { .. }
        | RcOperation::RegisterMr { .. } => Err(PostError::Malformed),
    }
}
