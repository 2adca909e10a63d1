//! Work requests of a connected QP, and the queue of those that have not completed.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::wire::AtomicOperation;

use crate::cq_ring::CompletionSink;
use crate::mr::{Bind, BindError, MrTable, StreamId};
use crate::recv_queue::SgeList;
use crate::types::{Sge, Wc, WcOpcode, WcStatus};
use dgiwarp_memory::Access;

/// Most octets of inline data.
pub const MAX_INLINE: usize = 256;

/// What a posted work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RcWork {
    Send {
        invalidate: Option<STag>,
    },
    /// Between ends of our own kind only.
    SendImmediate {
        immediate: u32,
    },
    Write {
        stag: STag,
        start: TaggedOffset,
        immediate: Option<u32>,
    },
    Read {
        stag: STag,
        start: TaggedOffset,
    },
    Atomic {
        stag: STag,
        start: TaggedOffset,
        operation: AtomicOperation,
    },
    /// What the peer does not see.
    Memory(MemoryWork),
}

/// Work on our own keys, done when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryWork {
    LocalInvalidate {
        stag: STag,
    },
    /// Binds a window.
    BindMw(Bind),
    /// Registers the memory that was given to a region for that.
    RegisterMr {
        rkey: u32,
        access: Access,
    },
}

impl MemoryWork {
    pub(super) fn carry_out(self, mrs: &MrTable, stream: StreamId) -> Result<(), BindError> {
        match self {
            Self::LocalInvalidate { stag } => mrs
                .invalidate(stream, stag, false)
                .map_err(|_| BindError::CannotInvalidate(stag.get())),
            Self::BindMw(bind) => mrs.bind(stream, &bind),
            Self::RegisterMr { rkey, access } => mrs.register_fast(stream.pd, rkey, access),
        }
    }

    const fn opcode(self) -> WcOpcode {
        match self {
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            Self::BindMw(_) => WcOpcode::BindMw,
            Self::RegisterMr { .. } => WcOpcode::RegisterMr,
        }
    }
}

/// The local memory of a work request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each message"
)]
pub enum RcData {
    /// Registered.
    Sges(SgeList),
    /// Copied when it was posted.
    Inline(ArrayVec<u8, MAX_INLINE>),
}

impl RcData {
    /// Where what comes back goes.
    pub(super) fn sink(&self) -> &[Sge] {
        match self {
            Self::Sges(sges) => sges,
            Self::Inline(_) => &[],
        }
    }
}

/// A posted work request.
#[derive(Debug)]
pub struct RcSendWqe {
    pub wr_id: u64,
    pub work: RcWork,
    pub data: RcData,
    pub length: u32,
    pub signaled: bool,
    pub solicited: bool,
    /// Waits for the Reads and atomics before it.
    pub fence: bool,
}

impl RcSendWqe {
    /// Completes it.
    pub fn complete(&self, qpn: u32, status: WcStatus, completions: &mut impl CompletionSink) {
        // First, so that who sees the completion finds the place free.
        completions.retired();
        if self.signaled || status != WcStatus::Success {
            completions.sent(Wc {
                status,
                byte_len: self.length,
                ..Wc::new(self.wr_id, self.opcode(), qpn)
            });
        }
    }

    fn opcode(&self) -> WcOpcode {
        match self.work {
            RcWork::Send { .. } | RcWork::SendImmediate { .. } => WcOpcode::Send,
            RcWork::Write { .. } => WcOpcode::RdmaWrite,
            RcWork::Read { .. } => WcOpcode::RdmaRead,
            RcWork::Atomic {
                operation: AtomicOperation::FetchAdd { .. },
                ..
            } => WcOpcode::FetchAdd,
            RcWork::Atomic {
                operation: AtomicOperation::CompareSwap { .. },
                ..
            } => WcOpcode::CompareSwap,
            RcWork::Memory(work) => work.opcode(),
        }
    }
}

/// How far a work request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Posted,
    /// Some of it has become FPDUs, or a request of the peer.
    Begun,
    /// All of it has; it is complete when TCP has taken so many octets.
    Framed(u64),
    Done,
}

/// Work requests in the order in which they were posted, which is that of their completions (RFC 5040 §5.5 rule 15).
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    entries: VecDeque<Entry>,
    /// Number of the first of them. Work requests are numbered from zero as they are posted.
    first: u64,
    /// Number of the next one to begin.
    next: u64,
    /// Sends and Writes that the peer has placed as its answers to later requests prove.
    proven: u64,
}

#[derive(Debug)]
struct Entry {
    wqe: RcSendWqe,
    progress: Progress,
    /// Sends and Writes that left up to and with this one, as the stream counts them.
    messages: u64,
}

impl SendQueue {
    pub(super) fn push(&mut self, wqe: RcSendWqe) {
        self.entries.push_back(Entry {
            wqe,
            progress: Progress::Posted,
            messages: 0,
        });
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    pub(super) fn get(&self, number: u64) -> Option<&RcSendWqe> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get(index).map(|entry| &entry.wqe)
    }

    /// The next one to begin, and its number.
    pub(super) fn next(&self) -> Option<(u64, &RcSendWqe)> {
        self.get(self.next).map(|wqe| (self.next, wqe))
    }

    fn progress(&mut self, number: u64, progress: Progress) {
        if let Some(entry) = self.entry(number) {
            entry.progress = progress;
        }
    }

    /// The next one has begun, behind so many Sends and Writes.
    pub(super) fn begin(&mut self, messages: u64) {
        if let Some(entry) = self.entry(self.next) {
            entry.progress = Progress::Begun;
            entry.messages = messages;
        }
        self.next += 1;
    }

    /// All of a Send or Write is among the first `octets` octets for TCP, and the last of the first `messages` Sends and Writes.
    pub(super) fn framed(&mut self, number: u64, octets: u64, messages: u64) {
        if let Some(entry) = self.entry(number) {
            entry.progress = Progress::Framed(octets);
            entry.messages = messages;
        }
    }

    pub(super) fn done(&mut self, number: u64) {
        self.progress(number, Progress::Done);
    }

    /// The peer has answered a Read or an atomic. What left before it was placed before that.
    pub(super) fn answered(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.progress = Progress::Done;
            let messages = entry.messages;
            self.proven = self.proven.max(messages);
        }
    }

    /// Sends and Writes that the peer has placed as its answers prove.
    pub(super) const fn proven(&self) -> u64 {
        self.proven
    }

    /// The first one if it is complete: it is done, or TCP has `taken` all of it (RFC 5040 §5.5 rule 14) and it is among the first `placed`
    /// Sends and Writes.
    #[inline]
    fn complete_one(&self, taken: u64, placed: Option<u64>) -> Option<&RcSendWqe> {
        let entry = self.entries.front()?;
        let complete = match entry.progress {
            Progress::Posted | Progress::Begun => false,
            Progress::Framed(octets) => {
                octets <= taken && placed.is_none_or(|placed| entry.messages <= placed)
            }
            Progress::Done => true,
        };
        complete.then_some(&entry.wqe)
    }

    /// Completes those that are complete.
    #[inline]
    pub(super) fn complete(
        &mut self,
        taken: u64,
        placed: Option<u64>,
        qpn: u32,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(wqe) = self.complete_one(taken, placed) {
            wqe.complete(qpn, WcStatus::Success, completions);
            self.pop();
        }
    }

    /// Whether TCP has taken all of the first one and it is not complete.
    pub(super) fn awaits_placement(&self, taken: u64) -> bool {
        let first = self.entries.front();
        first.is_some_and(
            |first| matches!(first.progress, Progress::Framed(octets) if octets <= taken),
        )
    }

    /// Takes the first one, complete or not.
    pub(super) fn pop(&mut self) -> Option<RcSendWqe> {
        let Entry { wqe, .. } = self.entries.pop_front()?;
        self.first += 1;
        self.next = self.next.max(self.first);
        Some(wqe)
    }

    /// Number of the first one, if it has begun: what an error that names none is about.
    pub(super) fn oldest_begun(&self) -> Option<u64> {
        (self.next > self.first).then_some(self.first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of the first one.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AsyncEvent;

    /// What was told, in order.
    #[derive(Debug, Default)]
    struct Told(Vec<&'static str>);

    impl CompletionSink for Told {
        fn sent(&mut self, _: Wc) {
            self.0.push("sent");
        }
        fn received(&mut self, _: Wc) {}
        fn segment(&mut self, _: Wc) -> bool {
            false
        }
        fn retired(&mut self) {
            self.0.push("retired");
        }
        fn event(&mut self, _: AsyncEvent) {}
    }

    #[test]
    fn the_place_is_free_before_the_completion_can_be_seen() {
        let wqe = RcSendWqe {
            wr_id: 1,
            work: RcWork::Send { invalidate: None },
            data: RcData::Sges(SgeList::new()),
            length: 0,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let mut told = Told::default();
        wqe.complete(1, WcStatus::Success, &mut told);
        assert_eq!(told.0, ["retired", "sent"]);
    }
}
