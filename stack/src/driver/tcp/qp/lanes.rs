//! Lanes of a connection within this host: meeting its peer, and being polled.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::QpCounters;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::clock;
use crate::driver::reactor::member::{NextReceive, Received};
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::same_host::meeting::{Guest, Invited, Refused};
use crate::driver::tcp::lanes::{Lanes, SHORT};
use crate::driver::tcp::pipe::Pipe;
use crate::driver::tcp::qp::{From, Link, RcInner, RcShared};
use dgiwarp_engine::connected::{CheckedEngine, DirectFront, DirectInput, RcWork, ShortWr};
use dgiwarp_engine::cq_ring::CompletionSink;
use dgiwarp_memory::socket::NoCancellation;

/// Octets that leave next go by memory, or did: the engine follows.
#[inline]
pub(super) fn follow_output(pipe: &Pipe, engine: &mut CheckedEngine) {
    if let Some(lanes) = pipe.lanes() {
        if lanes.have_carried_output() {
            engine.sends_by_memory();
        }
        engine.take_acks_from_memory(lanes.are_polled());
    }
}

/// Octets that came last came by memory, or those before: the engine follows, and has the acknowledgements that are there.
#[inline]
pub(super) fn follow_input(
    pipe: &Pipe,
    engine: &mut CheckedEngine,
    completions: &mut impl CompletionSink,
) {
    if let Some(lanes) = pipe.lanes() {
        if lanes.have_carried_input() {
            engine.receives_by_memory();
        }
        engine.acknowledged_in_memory(lanes.placed_by_peer(), completions);
    }
}

/// Octets of long messages that one call takes.
const DIRECT_TURN: usize = 256 << 10;

impl Link {
    /// Counters of the engine and of the lanes.
    pub(super) fn counters(&self) -> QpCounters {
        let mut counters = self.engine.counters();
        self.pipe.count_lanes(&mut counters);
        if let Some(reason) = &self.lane_refusal {
            reason.count(&mut counters);
        }
        counters
    }
}

impl RcShared {
    /// The carrier is full: sending goes on when it has room.
    pub(super) fn wait_for_room(&self, link: &Link) {
        self.blocked.store(true, Ordering::Release);
        self.remember_unsent();
        // A lane's peer rings when there is room.
        if !link.pipe.sends_by_lane() {
            self.background().waker().watch_writable(link.pipe.as_fd());
        }
    }

    /// Goes on with meeting the peer: the Initiator invites it, the Responder answers.
    #[cold]
    pub(super) fn meet(&self, link: &mut Link) {
        if !link.engine.may_meet() || link.engine.end().is_some() {
            return;
        }
        let initiates = link.engine.is_initiator();
        let token = link.engine.take_token();
        let is_due = if initiates {
            let after = self.background().shares_host_after();
            after.is_some_and(|after| link.pipe.tcp_octets() >= after)
        } else {
            token.is_some()
        };
        if !is_due {
            return;
        }
        let (Some(reach), Some(guest), Some(same_host)) = (
            link.reach.take(),
            self.unlocked.guest.get(),
            self.background().same_host(),
        ) else {
            return;
        };
        let invited = Invited {
            guest: Weak::<Self>::clone(guest),
            life: self.unlocked.life.load(Ordering::Acquire),
        };
        match token {
            Some(token) => same_host.accept(token, invited),
            None => match same_host.invite(invited, reach) {
                Ok(token) => {
                    link.invites = true;
                    link.engine.send_token(token);
                }
                Err(reason) => link.lane_refusal = Some(reason),
            },
        }
    }

    /// The connection is over: a peer that it waits for comes too late.
    pub(super) fn leave_meeting(&self, link: &Link) {
        if link.invites
            && let (Some(guest), Some(same_host)) =
                (self.unlocked.guest.get(), self.background().same_host())
        {
            let guest: Weak<dyn Guest> = Weak::<Self>::clone(guest);
            same_host.cancel(&guest, None);
        }
    }

    /// Makes this queue pair known as one that may get lanes.
    pub(super) fn be_guest(self: &Arc<Self>) {
        let guest: Weak<Self> = Arc::downgrade(self);
        self.unlocked.guest.get_or_init(|| guest);
    }

    /// The stream arrives by a lane: its descriptor announces that at most, and polls go to memory.
    #[inline]
    pub(super) fn note_lane(&self, link: &mut Link) {
        if link.pipe.receives_by_lane() {
            self.note_lane_input(link);
        }
        if link.pipe.take_unannounced()
            && let Some(member) = self.member.get()
        {
            self.poll_set.add_ready(*member);
        }
    }

    fn note_lane_input(&self, link: &mut Link) {
        let Some(member) = self.member.get() else {
            return;
        };
        if !self.unlocked.in_lane.load(Ordering::Relaxed) {
            self.unlocked.in_lane.store(true, Ordering::Release);
            self.poll_set.move_input(*member, link.pipe.as_fd());
        }
    }

    /// Sends short messages by the lane, without all that others need. Returns whether some left, and nothing else is to be done.
    #[inline]
    pub(super) fn send_short(&self, link: &mut Link) -> bool {
        self.may_send_short(link) && link.engine.send_short(self.tables(), &mut link.pipe)
    }

    /// Whether a lane carries the peer's stream.
    pub(crate) fn receives_from_memory(&self) -> bool {
        self.unlocked.in_lane.load(Ordering::Acquire)
    }

    #[inline]
    fn may_send_short(&self, link: &Link) -> bool {
        link.pipe.lanes().is_some_and(Lanes::are_polled)
            && link.graceful_close.is_none()
            && !link.tcp_close.has_begun()
            && !self.unsent.load(Ordering::Relaxed)
    }

    /// Posts work requests that `next` makes of numbers from 0, at most `wanted`, and sends their short messages by the lane in this thread, until one is another or
    /// there is no room. Returns how many; the others are for [`post`](Self::post).
    #[inline]
    pub(crate) fn post_short<'a>(
        &self,
        wanted: usize,
        next: impl Fn(usize) -> Option<ShortWr<'a>>,
    ) -> usize {
        let is_there = self.unlocked.in_lane.load(Ordering::Acquire)
            && !self.unsent.load(Ordering::Relaxed)
            && self.open.load(Ordering::Acquire)
            && !self.unlocked.receive_posted.load(Ordering::Acquire);
        if !is_there {
            return 0;
        }
        let send = |inner: &mut RcInner, most| {
            let Some(link) = inner.link.as_mut().filter(|it| self.may_send_short(it)) else {
                return 0;
            };
            let may_copy = link.pipe.lanes().is_some_and(Lanes::may_copy);
            let next = |number| {
                next(number).filter(|wr| !(may_copy && matches!(wr.work, RcWork::Write { .. })))
            };
            (link.engine).post_short(most, next, self.tables(), &mut link.pipe)
        };
        let work = |inner: &mut RcInner| self.work_apart(inner);
        self.posting.post_ahead(&self.exclusive, wanted, send, work)
    }

    /// [`work`](Self::work), apart from the code of short messages, which seldom make any.
    #[cold]
    #[inline(never)]
    fn work_apart(&self, inner: &mut RcInner) {
        self.work(inner);
    }

    /// Receives once from TCP, which is tried on every poll.
    // Called in the place of a return: after a system call the processor cannot predict returns.
    #[inline(never)]
    pub(super) fn receive_hot_socket(&self, next: NextReceive) -> Option<Received> {
        self.try_run(|inner| {
            let _guard = NoCancellation::begin();
            self.receive_once(inner, next, From::Memory)
        })
    }

    /// Receives once from the lane.
    #[inline(always)]
    pub(super) fn receive_from_lane(
        &self,
        next: NextReceive,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let receive = |inner: &mut RcInner| match self.receive_short(inner, direct) {
            Some(received) => received,
            None => self.receive_others(inner, next),
        };
        let work = |inner: &mut RcInner| self.work_apart(inner);
        self.exclusive.try_run(receive, work)
    }

    /// Receives what is not short.
    #[inline(never)]
    fn receive_others(&self, inner: &mut RcInner, next: NextReceive) -> Received {
        let _guard = NoCancellation::begin();
        self.receive_once(inner, next, From::Memory)
    }

    /// Receives a short message, and acknowledgements, from the lane, without all that others need. `None` where the input, or the lack of it, is for
    /// [`receive_once`](Self::receive_once).
    #[inline]
    fn receive_short(
        &self,
        inner: &mut RcInner,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let link = inner.link.as_mut()?;
        let is_plain = !(link.paused || link.reach.is_some() || link.tcp_close.has_begun())
            && link.graceful_close.is_none()
            && inner.pending_established.is_none()
            && link.engine.takes_short_input();
        let Link { engine, pipe, .. } = link;
        let lanes = pipe.lanes_mut().filter(|_| is_plain)?;
        let available = lanes.available()?;
        let mut completions = self.completions_to(Some(direct));
        // Behind the octets: a message comes behind the acknowledgements that its sender made before.
        let acknowledged = engine.acknowledged_in_memory(lanes.placed_by_peer(), &mut completions);
        if engine.is_end_due() {
            self.work_apart(inner);
            return Some(Received::Something);
        }
        if available == 0 {
            return Some(acknowledged.into());
        }
        if available <= SHORT {
            let taken = engine.handle_sole_send(&lanes.front(), self.tables(), &mut completions);
            if taken > 0 {
                lanes.report_placed(engine.placed());
                lanes.release_placed(taken);
                if taken < available {
                    self.receive_several(inner, true, direct);
                }
                return Some(Received::Something);
            }
        }
        self.receive_several(inner, acknowledged, direct)
    }

    /// Receives all short messages that the lane has, or long ones. `acknowledged`, or `None`: as [`receive_short`](Self::receive_short) has it.
    #[inline(never)]
    fn receive_several(
        &self,
        inner: &mut RcInner,
        acknowledged: bool,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let link = inner.link.as_mut()?;
        let Link { engine, pipe, .. } = link;
        let lanes = pipe.lanes_mut()?;
        let len = lanes.peek()?;
        let octets = lanes.peeked(len);
        let mut completions = self.completions_to(Some(direct));
        let input = engine.handle_short_input(clock::now, octets, self.tables(), &mut completions);
        if input.octets == 0 {
            return match self.receive_direct(inner, len, direct) {
                Some(Received::Nothing) if acknowledged => Some(Received::Something),
                received => received,
            };
        }
        lanes.report_placed(engine.placed());
        lanes.release(input.octets);
        self.grant_used(link);
        if input.has_work {
            self.pause_or_go_on(link);
            self.work_apart(inner);
        }
        Some(Received::Something)
    }

    /// Receives long messages from the lane, of which the first `peeked` octets are peeked, straight to the program's memory. `None` where the
    /// input is for [`receive_once`](Self::receive_once).
    fn receive_direct(
        &self,
        inner: &mut RcInner,
        mut peeked: usize,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let Link { engine, pipe, .. } = inner.link.as_mut()?;
        let lanes = pipe.lanes_mut()?;
        let (mut taken, mut answered) = (0, false);
        while let Some(front) = DirectFront::parse(lanes.peeked(peeked)) {
            match lanes.holds(front.fpdu_len) {
                Some(true) => {}
                Some(false) if taken == 0 => return Some(Received::Nothing),
                None if taken == 0 => return None,
                Some(false) | None => break,
            }
            let payload = lanes.part(front.at, front.payload_len);
            let mut completions = self.completions_to(Some(direct));
            match engine.handle_direct_input(&front, &payload, self.tables(), &mut completions) {
                DirectInput::Placed => {}
                DirectInput::Answered => answered = true,
                DirectInput::Ended => {
                    lanes.release(front.fpdu_len);
                    self.work_apart(inner);
                    return Some(Received::Something);
                }
                DirectInput::Other => break,
            }
            lanes.report_placed(engine.placed());
            lanes.release_placed(front.fpdu_len);
            taken += front.fpdu_len;
            if taken >= DIRECT_TURN {
                break;
            }
            peeked = lanes.peek_front().unwrap_or(0);
        }
        if let Some(link) = &mut inner.link {
            self.grant_used(link);
        }
        if answered {
            self.work_apart(inner);
        }
        (taken > 0).then_some(Received::Something)
    }

    /// Exchanges numbers of placed messages with the peer, where memory is shared.
    #[inline]
    pub(super) fn exchange_placed(&self, link: &mut Link) {
        let Link { engine, pipe, .. } = link;
        if let Some(lanes) = pipe.lanes() {
            engine.take_acks_from_memory(lanes.are_polled());
            lanes.report_placed(engine.placed());
            engine.acknowledged_in_memory(lanes.placed_by_peer(), &mut self.completions());
        }
    }

    /// Wants bells, or none while a thread polls. Returns whether there are bells.
    pub(super) fn want_bells_locked(&self, inner: &mut RcInner, wanted: bool) -> bool {
        let Some(link) = &mut inner.link else {
            return false;
        };
        if !link.pipe.receives_by_lane() {
            return false;
        }
        link.pipe.want_bells(wanted, link.paused);
        self.exchange_placed(link);
        self.note_lane(link);
        if wanted {
            // Acknowledgements in memory ring nobody: those that are missing still are requested now.
            self.work(inner);
        }
        true
    }
}

impl Guest for RcShared {
    fn keeps_link(&self) -> bool {
        false
    }

    fn attach_lanes(&self, life: u32, ends: LaneEnds, starts: bool) -> bool {
        self.run(|inner| {
            let lives = life == self.unlocked.life.load(Ordering::Acquire);
            let Some(link) = &mut inner.link else {
                return false;
            };
            if !lives || link.engine.end().is_some() || link.tcp_close.has_begun() {
                return false;
            }
            link.invites = false;
            link.pipe.attach(ends, starts);
            self.begin_one_sided(link);
            self.work(inner);
            true
        })
    }

    fn detach_lanes(&self, life: u32) {
        self.run(|inner| {
            if life == self.unlocked.life.load(Ordering::Acquire)
                && let Some(link) = &mut inner.link
            {
                link.pipe.detach();
            }
        });
    }

    fn refuse_lanes(&self, life: u32, reason: Refused) {
        self.run(|inner| {
            if life == self.unlocked.life.load(Ordering::Acquire)
                && let Some(link) = &mut inner.link
            {
                link.invites = false;
                link.lane_refusal = Some(reason);
            }
        });
    }
}
