//! The channel: work requests and completions, and threads that wait for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dgiwarp::{Buffer, Cq, Mr, RcOperation, RcQp, RcSendWr, RecvWr, Wc, WcOpcode, WcStatus};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::block::{Block, Slot};
use crate::config::Config;
use crate::connect::SENDS;
use crate::error::Error;
use crate::ring::{IncomingRing, OutgoingRing};
use crate::wire::{Announce, Kind, MOST_RELEASED, NOTICE_LEN, Notice};

/// Sends under way at most: each has a Write before it.
const UNDER_WAY: usize = SENDS / 2 - 2;

/// Sleep without a time limit, after which the thread sleeps again.
const LONG: Duration = Duration::from_secs(3600);

/// A channel to a peer. Any number of threads may use it at a time.
///
/// Dropped without [`close`](Self::close), it is lost for the peer.
#[derive(Debug)]
pub struct Channel {
    shared: Arc<Shared>,
}

/// Memory of a channel.
pub(crate) struct Memory {
    /// This end's ring.
    pub(crate) ring: (Buffer, Mr),
    /// This end's copy of the peer's ring.
    pub(crate) copies: (Buffer, Mr),
    /// Receives of notices.
    pub(crate) notices: (Buffer, Mr),
}

#[derive(Debug)]
pub(crate) struct Shared {
    // Before the memory that it uses.
    qp: RcQp,
    cq: Cq,
    pub(crate) ring: Buffer,
    _ring_mr: Mr,
    pub(crate) copies: Buffer,
    copies_mr: Mr,
    notices: Buffer,
    notices_mr: Mr,
    pub(crate) peer: Announce,
    pub(crate) slot_size: u32,
    spin: Duration,
    state: Mutex<State>,
    /// A completion was handled, or the thread that waits for completions goes.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    outgoing: OutgoingRing,
    incoming: IncomingRing,
    /// Sends that are not complete.
    under_way: usize,
    /// Octets of the last notice, whose memory the next one takes.
    notice: Vec<u8>,
    /// A thread waits for completions; others wait for it.
    waits: bool,
    over: Option<Over>,
}

/// Why nothing comes any more.
#[derive(Debug, Clone, Copy)]
enum Over {
    Closed,
    Lost(WcStatus),
    Violation(&'static str),
}

impl From<Over> for Error {
    fn from(over: Over) -> Self {
        match over {
            Over::Closed => Self::Closed,
            Over::Lost(status) => Self::Lost(status),
            Over::Violation(why) => Self::Violation(why),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "an edge: calls have time limits")]
fn now() -> Instant {
    Instant::now()
}

impl Channel {
    pub(crate) fn new(qp: RcQp, cq: Cq, memory: Memory, config: &Config, peer: Announce) -> Self {
        let Memory {
            ring: (ring, ring_mr),
            copies: (copies, copies_mr),
            notices: (notices, notices_mr),
        } = memory;
        let state = State {
            outgoing: OutgoingRing::new(peer.slots),
            incoming: IncomingRing::new(config.slots, config.slot_size),
            under_way: 0,
            notice: Vec::with_capacity(NOTICE_LEN),
            waits: false,
            over: None,
        };
        Self {
            shared: Arc::new(Shared {
                qp,
                cq,
                ring,
                _ring_mr: ring_mr,
                copies,
                copies_mr,
                notices,
                notices_mr,
                peer,
                slot_size: config.slot_size,
                spin: config.spin,
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
        }
    }

    /// Sends a notice without contents.
    pub(crate) fn greet(&self) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        self.shared.send(&mut state, Kind::Release)
    }

    /// A free slot for a block; waits until the peer has released one.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Closed`], [`Error::Lost`] and [`Error::Violation`] where the channel is over.
    pub fn acquire(&self, timeout: Duration) -> Result<Slot, Error> {
        let index = self.shared.wait_for(timeout, |state| {
            if let Some(over) = state.over {
                return Some(Err(over.into()));
            }
            state.outgoing.acquire().map(Ok)
        })?;
        Ok(Slot {
            shared: Arc::clone(&self.shared),
            index,
            published: false,
        })
    }

    /// Sends the first `length` octets of a slot as a block. Returns at once, unless very many blocks are under way.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::OtherChannel`]: the slot is free again. [`Error::Closed`], [`Error::Lost`], [`Error::Violation`] and [`Error::Post`] where the
    /// channel is over.
    pub fn publish(&self, mut slot: Slot, length: usize) -> Result<(), Error> {
        let shared = &self.shared;
        if !Arc::ptr_eq(shared, &slot.shared) {
            return Err(Error::OtherChannel);
        }
        let too_long = Error::TooLong {
            octets: length,
            slot: slot.room(),
        };
        let Some(length) = u32::try_from(length)
            .ok()
            .filter(|it| *it <= shared.peer.slot_size)
        else {
            return Err(too_long);
        };
        // Without a limit: the peer's transport acknowledges, or the connection is lost.
        shared.wait_for(Duration::MAX, |state| match state.over {
            Some(over) => Some(Err(over.into())),
            None => (state.under_way < UNDER_WAY).then_some(Ok(())),
        })?;
        let mut state = shared.state.lock();
        slot.published = true;
        state.outgoing.publish(slot.index);
        let kind = Kind::Block {
            slot: slot.index,
            length,
        };
        shared
            .send(&mut state, kind)
            .map_err(|error| match state.over {
                Some(over) => over.into(),
                None => error,
            })
    }

    /// The next block of the peer; waits for it. `None` once the peer has closed the channel and all blocks were taken.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Lost`] and [`Error::Violation`] once all blocks that came before were taken.
    pub fn next(&self, timeout: Duration) -> Result<Option<Block>, Error> {
        let next = self.shared.wait_for(timeout, |state| {
            let next = state.incoming.take();
            match (next, state.over) {
                (Some(next), _) => Some(Ok(Some(next))),
                (None, Some(Over::Closed)) => Some(Ok(None)),
                (None, Some(over)) => Some(Err(over.into())),
                (None, None) => None,
            }
        })?;
        Ok(next.map(|(index, length)| Block {
            shared: Arc::clone(&self.shared),
            index,
            length,
        }))
    }

    /// Closes the channel: waits until all blocks are placed at the peer, whose [`next`](Self::next) then yields them and after them `None`. Blocks of the peer that were not
    /// taken are lost.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Lost`] and [`Error::Violation`]: blocks may be missing. None where the peer closed it first.
    pub fn close(self, timeout: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let sent = {
            let mut state = shared.state.lock();
            match state.over {
                Some(Over::Closed) => return Ok(()),
                Some(over) => return Err(over.into()),
                None => shared.send(&mut state, Kind::End),
            }
        };
        sent?;
        shared.wait_for(timeout, |state| match state.over {
            Some(Over::Closed) => Some(Ok(())),
            _ if state.under_way == 0 => Some(Ok(())),
            Some(over) => Some(Err(over.into())),
            None => None,
        })
    }
}

impl Shared {
    /// Sends a notice, and before it the block that it is about.
    fn send(&self, state: &mut State, kind: Kind) -> Result<(), Error> {
        let mut notice = std::mem::take(&mut state.notice);
        notice.clear();
        let released = state.incoming.take_released(MOST_RELEASED);
        Notice::emit(kind, released, &mut notice);
        let send = RcSendWr {
            inline: &notice,
            ..RcSendWr::send(0, &[])
        };
        let posted = match kind {
            Kind::Block { slot, length } => {
                let at = u64::from(slot) * u64::from(self.peer.slot_size);
                // It is within the copy, which has a length of the machine's.
                let from = usize::from(slot) * self.peer.slot_size as usize;
                let sges = [self.copies_mr.sge(from..from + length as usize)];
                let operation = RcOperation::Write {
                    rkey: self.peer.stag,
                    remote_addr: self.peer.offset.wrapping_add(at),
                    immediate: None,
                };
                let write = RcSendWr {
                    signaled: false,
                    ..RcSendWr::new(0, operation, &sges)
                };
                self.qp.post_send(&[write, send])
            }
            Kind::Release | Kind::End => self.qp.post_send(&[send]),
        };
        state.notice = notice;
        // The reason for which the connection is over is in the completion queue, perhaps behind blocks and the peer's end.
        posted?;
        state.under_way += 1;
        Ok(())
    }

    /// Sends a notice of released slots, or of none. While very many Sends are under way, the slots wait.
    fn tell(&self, state: &mut State) {
        if state.over.is_none() && state.under_way < UNDER_WAY {
            // A connection that is lost shows in the next call.
            let _ = self.send(state, Kind::Release);
        }
    }

    /// Waits until `done` is something, handling completions.
    fn wait_for<T>(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&mut State) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = now().checked_add(timeout);
        let mut state = self.state.lock();
        loop {
            if let Some(result) = done(&mut state) {
                return result;
            }
            // Completions that are there count, whatever the time.
            if !state.waits && self.handle_all(&mut state) {
                continue;
            }
            if state.incoming.release_is_due(true) {
                self.tell(&mut state);
            }
            let left = deadline.map(|it| it.saturating_duration_since(now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            if state.waits {
                match deadline {
                    Some(deadline) => {
                        self.changed.wait_until(&mut state, deadline);
                    }
                    None => self.changed.wait(&mut state),
                }
                continue;
            }
            state.waits = true;
            let came = MutexGuard::unlocked(&mut state, || self.completion(left.unwrap_or(LONG)));
            state.waits = false;
            // Another thread waits from now on, or has what it waited for.
            self.changed.notify_all();
            if let Some(wc) = came? {
                self.handle(&mut state, &wc);
                self.handle_all(&mut state);
            }
        }
    }

    /// The next completion: polls for a while, and sleeps then.
    fn completion(&self, timeout: Duration) -> Result<Option<Wc>, Error> {
        let spin = self.spin.min(timeout);
        let begin = now();
        loop {
            if let Some(wc) = self.cq.poll_one()? {
                return Ok(Some(wc));
            }
            if now().saturating_duration_since(begin) >= spin {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(self.cq.wait(timeout - spin)?)
    }

    /// Handles completions that are there. Returns whether there were some.
    fn handle_all(&self, state: &mut State) -> bool {
        let mut some = false;
        loop {
            match self.cq.poll_one() {
                Ok(Some(wc)) => {
                    self.handle(state, &wc);
                    some = true;
                }
                Ok(None) => break,
                Err(_) => {
                    state.over.get_or_insert(Over::Lost(WcStatus::Flushed));
                    break;
                }
            }
        }
        some
    }

    fn handle(&self, state: &mut State, wc: &Wc) {
        if wc.status != WcStatus::Success {
            state.over.get_or_insert(Over::Lost(wc.status));
            return;
        }
        if wc.opcode != WcOpcode::Recv {
            state.under_way = state.under_way.saturating_sub(1);
            return;
        }
        if let Err(why) = self.handle_notice(state, wc) {
            state.over.get_or_insert(Over::Violation(why));
            self.qp.flush();
        }
    }

    fn handle_notice(&self, state: &mut State, wc: &Wc) -> Result<(), &'static str> {
        let place = usize::try_from(wc.wr_id).unwrap_or(0);
        let at = place * NOTICE_LEN;
        let mut octets = [0; NOTICE_LEN];
        let octets = octets
            .get_mut(..wc.byte_len as usize)
            .ok_or("a notice of too many octets")?;
        self.notices.read(at, octets);
        // Copied and free again before it is looked at.
        let sges = [self.notices_mr.sge(at..at + NOTICE_LEN)];
        // The queue pair refuses no receive that it had; behind the end nothing comes.
        let _ = self.qp.post_recv(&[RecvWr {
            wr_id: wc.wr_id,
            sges: &sges,
        }]);
        let notice = Notice::parse(octets).map_err(|it| it.0)?;
        for slot in notice.released() {
            state.outgoing.on_released(slot).map_err(|it| it.0)?;
        }
        match notice.kind {
            Kind::Release => {}
            Kind::Block { slot, length } => {
                state.incoming.on_block(slot, length).map_err(|it| it.0)?;
            }
            Kind::End => {
                state.over.get_or_insert(Over::Closed);
            }
        }
        Ok(())
    }

    /// A slot was not used.
    pub(crate) fn abandon(&self, slot: u16) {
        let mut state = self.state.lock();
        state.outgoing.abandon(slot);
        self.changed.notify_all();
        // The thread that waits for completions may wait for the slot: the completion of a notice wakes it.
        if state.waits {
            self.tell(&mut state);
        }
    }

    /// The program needs a block no longer.
    pub(crate) fn release(&self, slot: u16) {
        let mut state = self.state.lock();
        state.incoming.release(slot);
        if state.incoming.release_is_due(false) {
            self.tell(&mut state);
        }
    }
}
