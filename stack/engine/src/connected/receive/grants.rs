//! Grants to a peer on this host, of the regions that it uses (rfc-notes/same-host.md).

use dgiwarp_ddp::STag;

use crate::connected::engine::RcEngine;
use crate::mr::RegionTerms;
use crate::recv_queue::Tables;

impl RcEngine {
    /// The STag that the peer has used last in a Write or Read, once: its region may be [granted](Self::grant).
    #[inline]
    pub fn take_used(&mut self) -> Option<STag> {
        self.used.take()
    }

    /// Calls `grant` with the terms on which the peer may use a region by itself, if it may, as [`MrTable::grant`](crate::mr::MrTable::grant) does.
    pub fn grant(
        &self,
        stag: STag,
        tables: Tables<'_>,
        grant: impl FnOnce(&RegionTerms, &dyn Fn() -> bool),
    ) {
        let config = &self.config;
        if self.end.is_none() {
            let stream = config.stream();
            tables.mrs.grant(stream, stag, config.denied, grant);
        }
    }
}
