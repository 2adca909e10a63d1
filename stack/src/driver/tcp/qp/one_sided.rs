//! One-sided copies of a connected queue pair: what the peer may do alone, and what this end does alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::tcp::lanes::Lanes;
use crate::driver::tcp::one_sided::OneSided;
use crate::driver::tcp::qp::{Link, RcInner, RcShared};
use dgiwarp_ddp::STag;
use dgiwarp_engine::connected::OneSidedSpan;
use dgiwarp_memory::RegionSlice;

impl RcShared {
    /// Does Writes and Reads at the front of the send queue without the peer, where it has granted their memory and does not poll.
    #[inline]
    pub(super) fn copy_alone(&self, link: &mut Link) {
        let Link { engine, pipe, .. } = link;
        let Some(lanes) = pipe.lanes_mut().filter(|lanes| lanes.may_copy()) else {
            return;
        };
        let own_polls = self.send_cq.polls();
        let mut completions = self.completions();
        while engine.is_next_one_sided() {
            engine.acknowledged_in_memory(lanes.placed_by_peer(), &mut completions);
            let Some(one_sided) = lanes.one_sided_mut() else {
                return;
            };
            let granted = engine
                .next_one_sided()
                .and_then(|span| one_sided.find(&span, own_polls));
            let Some(granted) = granted else {
                return;
            };
            let tables = self.tables();
            let copied = engine.do_one_sided(tables, &mut completions, |data| {
                one_sided.copy(granted, data)
            });
            if !copied {
                return;
            }
        }
    }

    /// Has `fill` write memory of the peer that both processes map. Returns whether it did.
    pub(crate) fn write_mapped(
        &self,
        span: &OneSidedSpan,
        fill: impl FnOnce(&RegionSlice<'_>),
    ) -> bool {
        let write = |inner: &mut RcInner| {
            let Some(Link { engine, pipe, .. }) = &mut inner.link else {
                return false;
            };
            if engine.end().is_some() {
                return false;
            }
            let lanes = pipe.lanes_mut().filter(|lanes| lanes.may_copy());
            let one_sided = lanes.and_then(Lanes::one_sided_mut);
            one_sided.is_some_and(|one_sided| one_sided.write_mapped(span, fill))
        };
        // Another thread that is at work keeps nobody waiting.
        self.try_run(write) == Some(true)
    }

    /// A program that polls found nothing. One that polls until its own work requests are complete may do something else then.
    #[inline]
    pub(super) fn note_poll(inner: &RcInner) {
        if let Some(link) = &inner.link
            && let Some(lanes) = link.pipe.lanes()
            && link.engine.has_completed_all()
        {
            lanes.note_poll();
        }
    }

    /// Grants the peer the region that it has used last.
    #[inline]
    pub(super) fn grant_used(&self, link: &mut Link) {
        if let Some(stag) = link.engine.take_used() {
            self.grant(link, stag);
        }
    }

    #[inline(never)]
    fn grant(&self, link: &mut Link, stag: STag) {
        let Link { engine, pipe, .. } = link;
        if let Some(one_sided) = pipe.lanes_mut().and_then(Lanes::one_sided_mut)
            && one_sided.is_new(stag, self.tables().mrs.revocations())
        {
            engine.grant(stag, self.tables(), |terms, may| {
                one_sided.grant(terms, may);
            });
            if one_sided.has_granted()
                && !self.unlocked.has_grants.swap(true, Ordering::Relaxed)
                && let Some(member) = self.member.get()
            {
                self.poll_set.count_polls(*member);
            }
        }
    }

    /// Grants of before are revoked: the rights of the peer have changed.
    pub(super) fn revoke_grants(link: &mut Link) {
        if let Some(one_sided) = link.pipe.lanes_mut().and_then(Lanes::one_sided_mut) {
            one_sided.revoke_all();
        }
    }

    /// The peer does nothing alone any more, and neither does this end: the connection is over.
    pub(super) fn end_one_sided(&self, link: &mut Link) {
        self.unlocked.has_grants.store(false, Ordering::Relaxed);
        if let Some(lanes) = link.pipe.lanes_mut() {
            lanes.end_one_sided();
        }
    }

    /// Lets both ends copy alone, if this end's settings do.
    pub(super) fn begin_one_sided(&self, link: &mut Link) {
        if let Some(lanes) = link.pipe.lanes_mut()
            && let Some(copies) = lanes.take_copy_ends()
            && self.background().copies_one_sided()
        {
            lanes.begin_one_sided(OneSided::new(copies, Arc::clone(self.mrs())));
        }
    }
}
