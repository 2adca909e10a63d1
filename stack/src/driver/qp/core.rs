//! The parts that queue pairs of every kind have: exclusive access to their state, queues, and their place in the poll set.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crate::api::device::statistics::Counts;
use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::clock;
use crate::driver::device::thread::Background;
use crate::driver::qp::cork::Cork;
use crate::driver::qp::exclusive::Exclusive;
use crate::driver::qp::posting::{Completions, Posting};
use crate::driver::reactor::member::{Member, MemberId};
use crate::driver::reactor::poll_set::PollSet;
use crate::{AsyncEvent, Error, PostError, PostFailure, QpCounters};
use dgiwarp_engine::mr::MrTable;
use dgiwarp_engine::recv_queue::{RecvQueue, Tables};
use dgiwarp_engine::sq_drain::SqDrain;
use dgiwarp_memory::socket::NoCancellation;

/// State of a queue pair of one kind, behind its exclusive lock.
pub(crate) trait QpState: Debug + Send + Sized + 'static {
    /// Work request of the send queue.
    type Wqe: Debug + Send;
    /// State outside of the lock.
    type Unlocked: Debug + Send + Sync;

    /// Gives the engine a posted work request.
    fn accept(&mut self, wqe: Self::Wqe);

    /// Does the work that is pending: posted work requests leave.
    fn work(qp: &QpCore<Self>, state: &mut Self);

    /// Completions of the queue pair were lost: ends everything posted.
    fn flush_overrun(qp: &QpCore<Self>, state: &mut Self);

    /// Begins or ends a drain of the send queue.
    fn set_sq_drain(qp: &QpCore<Self>, state: &mut Self, drain: SqDrain);

    /// Messages held up until the next poll, where posts go to the network.
    fn cork(&mut self) -> Option<&mut Cork>;

    /// Counters of the queue pair.
    fn counters(&self) -> QpCounters;

    /// The error state of a connected queue pair; `None` for datagrams, whose queue pair outlives errors.
    #[inline]
    fn over(_: &Self::Unlocked) -> Option<&AtomicBool> {
        None
    }
}

/// Objects that a queue pair refers to, and its sizes.
pub(crate) struct QpParts {
    pub(crate) qpn: u32,
    pub(crate) max_send_wr: usize,
    pub(crate) recv_queue: Arc<RecvQueue>,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) mrs: Arc<MrTable>,
}

impl QpParts {
    /// The cork of its send queue.
    pub(crate) fn cork(&self) -> Cork {
        Cork::new(self.recv_cq.background().autocorks(), self.max_send_wr)
    }
}

/// A queue pair, shared by its handle, its completion queues and the background thread.
#[derive(Debug)]
pub(crate) struct QpCore<S: QpState> {
    pub(crate) qpn: u32,
    pub(crate) exclusive: Exclusive<S>,
    pub(crate) unlocked: S::Unlocked,
    pub(crate) posting: Posting<S::Wqe>,
    pub(crate) recv_queue: Arc<RecvQueue>,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) poll_set: Arc<PollSet>,
    mrs: Arc<MrTable>,
    /// Set once the poll set serves the QP.
    pub(crate) member: OnceLock<MemberId>,
    /// Something posted could not be sent yet.
    pub(crate) unsent: AtomicBool,
    /// `unsent` is due to a full socket; else other QPs had their turn.
    pub(crate) blocked: AtomicBool,
    /// Work requests may be posted.
    pub(crate) open: AtomicBool,
    /// A thread takes the QP out of service, and sends the rest of the send queue.
    pub(crate) closing: AtomicBool,
    /// Completions of the QP were lost, and it was not reset since.
    failed: AtomicBool,
}

impl<S: QpState> QpCore<S> {
    pub(crate) fn new(
        parts: QpParts,
        state: S,
        unlocked: S::Unlocked,
        open: bool,
    ) -> Result<Arc<Self>, Error> {
        parts.send_cq.link(&parts.recv_cq)?;
        parts.recv_cq.background().events().begin_qp(parts.qpn);
        Ok(Arc::new(Self {
            qpn: parts.qpn,
            exclusive: Exclusive::new(state),
            unlocked,
            posting: Posting::new(parts.max_send_wr),
            recv_queue: parts.recv_queue,
            send_cq: parts.send_cq,
            poll_set: Arc::clone(parts.recv_cq.poll_set()),
            recv_cq: parts.recv_cq,
            mrs: parts.mrs,
            member: OnceLock::new(),
            unsent: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            open: AtomicBool::new(open),
            closing: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }))
    }

    /// Has the poll set serve the QP.
    pub(crate) fn attach(self: &Arc<Self>) -> MemberId
    where
        Self: Member,
    {
        let attach = || {
            let weak: Weak<Self> = Arc::downgrade(self);
            self.recv_cq.attach(weak)
        };
        *self.member.get_or_init(attach)
    }

    /// Runs a control call on the state, behind the messages that wait for a poll.
    pub(crate) fn run<R>(&self, control: impl FnOnce(&mut S) -> R) -> R {
        let _guard = NoCancellation::begin();
        let work = |state: &mut S| S::work(self, state);
        let first = |state: &mut S| {
            if state.cork().is_some_and(|cork| cork.is_holding()) {
                S::work(self, state);
            }
            control(state)
        };
        self.exclusive.run(first, work)
    }

    /// Runs `first` unless another thread is at work.
    #[inline]
    pub(crate) fn try_run<R>(&self, first: impl FnOnce(&mut S) -> R) -> Option<R> {
        self.exclusive.try_run(first, |state| S::work(self, state))
    }

    #[inline(always)]
    pub(crate) fn work(&self, state: &mut S) {
        S::work(self, state);
    }

    /// Registered memory.
    pub(crate) const fn mrs(&self) -> &Arc<MrTable> {
        &self.mrs
    }

    pub(crate) fn background(&self) -> &Background {
        self.recv_cq.background()
    }

    #[inline]
    pub(crate) fn tables(&self) -> Tables<'_> {
        Tables {
            mrs: &self.mrs,
            recv_queue: &self.recv_queue,
        }
    }

    #[inline]
    pub(crate) fn completions(&self) -> Completions<'_, 'static, S::Wqe> {
        self.completions_to(None)
    }

    /// As [`completions`](Self::completions); one may go to `direct`.
    #[inline]
    pub(crate) fn completions_to<'a, 'd>(
        &'a self,
        direct: Option<&'a mut DirectCompletions<'d>>,
    ) -> Completions<'a, 'd, S::Wqe> {
        Completions {
            direct,
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            posting: &self.posting,
            over: S::over(&self.unlocked),
        }
    }

    /// Posts work requests and transmits them in this thread. Unless there is room for `least` of them, none is accepted. Returns how many
    /// were, and why no more.
    #[inline]
    fn post_least(
        &self,
        wqes: impl ExactSizeIterator<Item = Result<S::Wqe, PostError>>,
        least: usize,
    ) -> (usize, Result<(), PostError>) {
        if !self.open.load(Ordering::Acquire) {
            return (0, Err(PostError::State));
        }
        let work = |state: &mut S| S::work(self, state);
        let after = |state: &mut S| {
            if !self.holds(state) {
                S::work(self, state);
            }
        };
        self.posting
            .post(&self.exclusive, wqes, least, (S::accept, after), work)
    }

    /// Whether what was posted just now waits for the next poll.
    #[inline]
    fn holds(&self, state: &mut S) -> bool {
        let Some(cork) = state.cork() else {
            return false;
        };
        if !self.poll_set.is_polled() || !cork.holds(self.poll_set.arming().polls(), clock::now) {
            return false;
        }
        self.remember_unsent();
        // The poller may have become a sleeper.
        self.poll_set.is_polled()
    }

    /// Posts work requests in order, until one cannot be accepted.
    #[inline]
    pub(crate) fn post(
        &self,
        wqes: impl ExactSizeIterator<Item = Result<S::Wqe, PostError>>,
    ) -> Result<(), PostFailure> {
        let (accepted, result) = self.post_least(wqes, 1);
        result.map_err(|source| PostFailure { accepted, source })
    }

    /// Posts all work requests in order, or none. Several are made twice.
    #[inline]
    pub(crate) fn post_all(
        &self,
        wqes: impl ExactSizeIterator<Item = Result<S::Wqe, PostError>> + Clone,
    ) -> Result<(), PostError> {
        let count = wqes.len();
        if count > 1 {
            wqes.clone().try_for_each(|wqe| wqe.map(drop))?;
        }
        self.post_least(wqes, count).1
    }

    /// Has the poll set go on with sending.
    pub(crate) fn remember_unsent(&self) {
        if !self.closing.load(Ordering::Acquire)
            && !self.unsent.swap(true, Ordering::AcqRel)
            && let Some(member) = self.member.get()
        {
            self.poll_set.add_unsent(*member);
        }
    }

    /// Continues sending. If something is left, returns whether a full socket, or another thread's work, is the reason.
    pub(crate) fn continue_sending(&self) -> Option<bool> {
        if self.closing.load(Ordering::Acquire) {
            return None;
        }
        let ran = self.try_run(|state| S::work(self, state)).is_some();
        if !ran {
            // The lock's holder goes on with this. Trying again at once would only keep that thread from its core.
            self.exclusive.run_or_mark(|state| S::work(self, state));
        }
        let unsent = self.unsent.load(Ordering::Acquire);
        unsent.then(|| !ran || self.blocked.load(Ordering::Acquire))
    }

    /// Sets the timer at the poll set, if `deadline` is not the one that is `kept` already.
    pub(crate) fn set_timer(&self, kept: &mut Option<Instant>, deadline: Option<Instant>) {
        if deadline != *kept {
            *kept = deadline;
            if let Some(member) = self.member.get() {
                self.poll_set.note_deadline(*member, deadline);
            }
        }
    }

    /// Drains the send queue: what has begun ends, nothing else begins. `notify` raises an event then.
    pub(crate) fn drain_sends(&self, notify: bool) {
        let mut drain = SqDrain::Off;
        drain.begin(notify);
        self.run(|state| S::set_sq_drain(self, state, drain));
    }

    /// Ends a drain: work requests begin again.
    pub(crate) fn resume_sends(&self) {
        self.run(|state| S::set_sq_drain(self, state, SqDrain::Off));
    }

    /// Ends the QP if completions of it were lost.
    pub(crate) fn flush_overrun(&self) {
        let lost = self.send_cq.is_overrun() || self.recv_cq.is_overrun();
        if !lost || self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.run(|state| {
            // A program that destroys the QP has no use for events of it.
            if !self.closing.load(Ordering::Acquire) {
                S::flush_overrun(self, state);
                let events = self.background().events();
                events.raise(AsyncEvent::QpFatal { qpn: self.qpn });
            }
        });
    }

    /// Raises the event of a shared receive queue whose receives the QP takes no more.
    pub(crate) fn raise_last_wqe(&self) {
        if self.recv_queue.is_shared() {
            let events = self.background().events();
            events.raise(AsyncEvent::LastWqeReached { qpn: self.qpn });
        }
    }

    /// Whether completions of the QP were lost, so that it is in error until it is reset.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the QP new with `control`: posted work requests and completions that were not polled are gone.
    pub(crate) fn renew(&self, control: impl FnOnce(&mut S)) {
        self.run(|state| {
            control(state);
            self.background().events().begin_qp(self.qpn);
            self.posting.reset();
            for flag in [&self.unsent, &self.blocked, &self.failed] {
                flag.store(false, Ordering::Release);
            }
        });
        if let Some(member) = self.member.get() {
            self.poll_set.cool(*member);
        }
        self.send_cq.forget(self.qpn);
        self.recv_cq.forget(self.qpn);
    }

    /// Ends the service of the poll set, for a QP that is destroyed.
    pub(crate) fn detach(&self) {
        self.background().events().begin_qp(self.qpn);
        if let Some(member) = self.member.get() {
            self.poll_set.detach(*member);
        }
    }
}

impl<S: QpState> Counts for QpCore<S> {
    fn counters(&self) -> QpCounters {
        self.run(|state| state.counters())
    }
}
