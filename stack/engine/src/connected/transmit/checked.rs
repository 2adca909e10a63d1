//! An engine with the results of checks that short messages need again and again.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use dgiwarp_ddp::STag;
use dgiwarp_memory::{Placeable, RegionSlice};

use crate::connected::engine::RcEngine;
use crate::connected::receive::{DirectFront, DirectInput, ShortInput};
use crate::connected::transmit::short::ShortWr;
use crate::connected::zero_copy::StreamSink;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::xrc::XrcRole;

/// An engine that short messages pass without the checks that the one before has passed.
///
/// The results hold while the engine does nothing but send and receive short messages, and take acknowledgements from memory: the calls that this type has
/// itself. All others change the engine through [`DerefMut`], which voids the results.
#[derive(Debug)]
pub struct CheckedEngine {
    engine: RcEngine,
    /// The engine was a plain sender.
    sends_short: bool,
    /// It took short input.
    receives_short: bool,
    /// The peer found acknowledgements in memory, and had requested none: no notice is pending, however many messages come.
    acknowledges_in_memory: bool,
}

impl From<RcEngine> for CheckedEngine {
    fn from(engine: RcEngine) -> Self {
        Self {
            engine,
            sends_short: false,
            receives_short: false,
            acknowledges_in_memory: false,
        }
    }
}

impl Deref for CheckedEngine {
    type Target = RcEngine;

    #[inline]
    fn deref(&self) -> &RcEngine {
        &self.engine
    }
}

impl DerefMut for CheckedEngine {
    #[inline]
    fn deref_mut(&mut self) -> &mut RcEngine {
        self.void();
        &mut self.engine
    }
}

impl CheckedEngine {
    /// As [`RcEngine::with_xrc`].
    #[must_use]
    pub fn with_xrc(self, role: XrcRole) -> Self {
        self.engine.with_xrc(role).into()
    }

    #[inline]
    const fn void(&mut self) {
        self.sends_short = false;
        self.receives_short = false;
        self.acknowledges_in_memory = false;
    }

    /// Called where results are there that [`void`](Self::void) would void with its own.
    #[inline]
    fn has_pending_acks(&mut self) -> bool {
        if self.acknowledges_in_memory {
            return false;
        }
        let dgiwarp_ext = self.engine.stream.dgiwarp_ext();
        self.acknowledges_in_memory = dgiwarp_ext.acknowledges_in_memory();
        dgiwarp_ext.pending_acks() > 0
    }

    /// Posts work requests that `next` makes of numbers from 0, at most `most`, and hands their messages to memory that the peer shares, at once, until that
    /// cannot be done with one: it is [posted](RcEngine::accept) and [sent](RcEngine::make_fpdus) as all others are, and so are those behind it. Returns
    /// how many were posted.
    #[inline]
    pub fn post_short<'a>(
        &mut self,
        most: usize,
        next: impl Fn(usize) -> Option<ShortWr<'a>>,
        tables: Tables<'_>,
        sink: &mut impl StreamSink,
    ) -> usize {
        if !self.sends_short {
            self.sends_short = self.engine.is_plain_sender();
        }
        if !self.sends_short || self.has_pending_acks() {
            return 0;
        }
        self.engine.post_plain(most, next, tables, sink)
    }

    /// Whether input may be handled by [`handle_short_input`](Self::handle_short_input), and no acknowledgement is pending.
    #[inline]
    pub fn takes_short_input(&mut self) -> bool {
        if !self.receives_short {
            self.receives_short = self.engine.takes_short_input();
        }
        self.receives_short && !self.has_pending_acks()
    }

    /// As [`RcEngine::acknowledged_in_memory`].
    #[inline]
    pub fn acknowledged_in_memory(
        &mut self,
        messages: u64,
        completions: &mut impl CompletionSink,
    ) -> bool {
        self.engine.acknowledged_in_memory(messages, completions)
    }

    /// As [`RcEngine::handle_sole_send`].
    #[inline]
    pub fn handle_sole_send(
        &mut self,
        input: &RegionSlice<'_>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> usize {
        self.engine.handle_sole_send(input, tables, completions)
    }

    /// As [`RcEngine::handle_short_input`].
    #[inline]
    pub fn handle_short_input(
        &mut self,
        now: impl FnOnce() -> Instant,
        octets: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> ShortInput {
        let input = self
            .engine
            .handle_short_input(now, octets, tables, completions);
        if input.has_work {
            self.void();
        }
        input
    }

    /// As [`RcEngine::handle_direct_input`].
    #[inline]
    pub fn handle_direct_input<P: Placeable + ?Sized>(
        &mut self,
        front: &DirectFront,
        payload: &P,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> DirectInput {
        let input = self
            .engine
            .handle_direct_input(front, payload, tables, completions);
        if input != DirectInput::Placed {
            self.void();
        }
        input
    }

    /// As [`RcEngine::take_used`].
    #[inline]
    pub fn take_used(&mut self) -> Option<STag> {
        self.engine.take_used()
    }
}
