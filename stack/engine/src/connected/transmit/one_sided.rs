//! One-sided copies: Writes and Reads of regions that the peer, on this host, has granted are done by this end alone (rfc-notes/same-host.md).

use arrayvec::ArrayVec;
use dgiwarp_memory::{Piece, RegionSlice};
use dgiwarp_rdmap::stream::Peer;

use crate::connected::engine::RcEngine;
use crate::connected::wqe::{Extent, RcData, RcSendWqe, RcWork};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::sges::Gathered;
use crate::types::{Completion, MAX_SGE};
use crate::xrc::Xrc;

/// Octets of the longest such Write. Longer ones go by the lane, where both ends copy at the same time.
const LONGEST_WRITE: u32 = 32 << 10;
/// Octets of the longest such Read.
const LONGEST_READ: u32 = 256 << 10;

/// Memory of the peer that a work request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneSidedSpan {
    /// STag.
    pub stag: u32,
    /// Tagged Offset of the first octet.
    pub start: u64,
    /// Octets.
    pub length: u32,
    /// Whether it is written; else read.
    pub write: bool,
}

/// Local memory of a one-sided copy.
#[derive(Debug)]
pub enum OneSidedData<'a> {
    /// It is written to the peer's memory.
    Write(&'a [Piece<'a>]),
    /// The peer's memory is read into it.
    Read(&'a [RegionSlice<'a>]),
}

impl OneSidedData<'_> {
    /// Octets.
    #[must_use]
    pub fn octets(&self) -> usize {
        match self {
            Self::Write(pieces) => pieces.iter().map(Piece::len).sum(),
            Self::Read(slices) => slices.iter().map(RegionSlice::len).sum(),
        }
    }
}

impl RcSendWqe {
    /// The memory of the peer that it names, if it is a Write or Read that may be done by one end alone.
    #[inline]
    fn one_sided(&self) -> Option<OneSidedSpan> {
        let (stag, start, write) = match self.work {
            RcWork::Write {
                stag,
                start,
                immediate: None,
            } => (stag, start, true),
            RcWork::Read { stag, start } => (stag, start, false),
            RcWork::Write { .. }
            | RcWork::Send { .. }
            | RcWork::SendImmediate { .. }
            | RcWork::Atomic { .. }
            | RcWork::Memory(_) => return None,
        };
        let longest = if write { LONGEST_WRITE } else { LONGEST_READ };
        (self.length <= longest).then_some(OneSidedSpan {
            stag: stag.get(),
            start: start.get(),
            length: self.length,
            write,
        })
    }
}

impl RcEngine {
    /// Whether the next work request is a Write or Read that [may](Self::next_one_sided) be done by this end alone, of those that there are.
    #[inline]
    pub fn is_next_one_sided(&self) -> bool {
        let next = self.sends.unstarted();
        next.is_some_and(|(_, wqe)| wqe.one_sided().is_some())
    }

    /// The memory of the peer that the next work request names, if it is a Write or Read that this end may do alone: nothing that was posted before it is
    /// incomplete, so that it overtakes nothing. A Write that was posted together with a Send goes with that one, which the peer wakes up for.
    #[inline]
    pub fn next_one_sided(&self) -> Option<OneSidedSpan> {
        let (number, wqe) = self.startable()?;
        let span = wqe.one_sided()?;
        let is_plain = number == self.sends.oldest()
            && !(span.write && self.has_message_last())
            && self.end.is_none()
            && self.sending.is_none()
            && matches!(self.xrc, Xrc::None)
            && self.config.options.completion == Completion::Placed
            && matches!(self.stream.dgiwarp_ext().peer(), Peer::Dgiwarp(_))
            && self.stream.dgiwarp_ext().acknowledged() == self.stream.dgiwarp_ext().sent();
        is_plain.then_some(span)
    }

    /// Whether the work request that was posted last is none that may be done by one end alone.
    #[inline]
    fn has_message_last(&self) -> bool {
        let last = self.sends.newest();
        last.is_some_and(|wqe| wqe.one_sided().is_none())
    }

    /// Has `copy` do the next work request, which [may be done](Self::next_one_sided) so, and completes it. Where its memory is not as it should be, or `copy` fails, which
    /// may leave a part of the octets copied, it is for [`make_fpdus`](Self::make_fpdus). Returns whether it is done.
    #[inline]
    pub fn do_one_sided(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
        copy: impl FnOnce(&OneSidedData<'_>) -> bool,
    ) -> bool {
        let Some((number, wqe)) = self.startable() else {
            return false;
        };
        let write = matches!(wqe.work, RcWork::Write { .. });
        let copied = match &wqe.data {
            RcData::Inline(octets) => write && copy(&OneSidedData::Write(&[Piece::Bytes(octets)])),
            RcData::Sges(sges) if write => {
                let mut gathered: Gathered = Gathered::default();
                let held = gathered.hold(tables.mrs, self.config.pd, sges);
                if held.is_err() || gathered.is_on_demand() {
                    return false;
                }
                let mut pieces: ArrayVec<Piece<'_>, MAX_SGE> = ArrayVec::new();
                gathered.for_each(0, wqe.length, |slice| pieces.push(Piece::Region(slice)));
                copy(&OneSidedData::Write(&pieces))
            }
            RcData::Sges(sges) => {
                let mut uses: ArrayVec<_, MAX_SGE> = ArrayVec::new();
                for sge in sges.iter().filter(|sge| sge.length > 0) {
                    match tables.mrs.local(self.config.pd, *sge, true) {
                        Ok(found) if !found.is_on_demand() => uses.push((found, *sge)),
                        Ok(_) | Err(_) => return false,
                    }
                }
                let mut slices: ArrayVec<RegionSlice<'_>, MAX_SGE> = ArrayVec::new();
                for (found, sge) in &uses {
                    match found.slice(sge.addr, sge.length) {
                        Some(slice) if !found.is_null() => slices.push(slice),
                        Some(_) | None => return false,
                    }
                }
                copy(&OneSidedData::Read(&slices))
            }
        };
        if !copied {
            return false;
        }
        self.sends.begin(Extent::default());
        self.sends.done(number);
        self.complete_sends(completions);
        true
    }
}
