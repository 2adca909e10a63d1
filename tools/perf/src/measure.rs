//! Interfaces of an endpoint that is measured, and the watch kept while measuring.
//!
//! The loops in [`latency`] and [`bandwidth`] are generic over the two traits here and compiled
//! once per endpoint: raw sockets and queue pairs run through the same code.

pub(crate) mod bandwidth;
pub(crate) mod latency;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::catalog::Mode;
use crate::endpoint::loss::Mark;
use crate::error::{PerfError, Result};
use crate::machine::clock;
use crate::machine::footprint::Footprint;
use crate::machine::host::Side;
use crate::machine::interrupt::Interrupt;
use crate::session::control::{Control, Datagrams, Pending, Reply};

/// A blocking receive returns after this long at the latest, to check everything else.
pub(crate) const BLOCK_SLICE: Duration = Duration::from_millis(4);

/// Nothing at all on the data path for this long is a failed measurement.
pub(crate) const QUIET_LIMIT: Duration = Duration::from_millis(2500);

/// A server whose client neither sends nor speaks for this long drops the session.
const SERVER_QUIET_LIMIT: Duration = Duration::from_secs(5);

/// Messages and pieces shorter than this carry no position of their own.
pub(crate) const HEADER_BYTES: u64 = 8;

/// The sizes both sides use on one endpoint, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Geometry {
    /// Payload of a message.
    pub(crate) size: u64,
    /// Handed over in one call (one datagram, one train, one work request).
    pub(crate) chunk: u64,
    /// Payload of one datagram.
    pub(crate) segment: u64,
    /// In flight at most; `u64::MAX` where the transport has flow control of its own.
    pub(crate) window: u64,
    /// The receiver sends its position after this many bytes.
    pub(crate) credit_every: u64,
}

/// A window given on the command line, or the default rule.
pub(crate) const DEFAULT_WINDOW_CAP: u64 = 256 * 1024;

/// The default window of a connection with large messages: four of them, but no more than this.
const CONNECTED_WINDOW_CAP: u64 = 4 << 20;

/// Messages in flight over a connection, at most.
pub(crate) const MAX_MESSAGES: u64 = 4096;

/// Room for messages in flight that have slots of their own, if not fewer than two.
const ROOM: u64 = 16 << 20;

/// Slots that both sides have at most for messages of this size.
pub(crate) fn most_in_flight(mode: Mode, size: u64) -> u64 {
    match mode {
        Mode::Lat => 1,
        _ => (ROOM / size).clamp(2, MAX_MESSAGES),
    }
}

impl Geometry {
    /// Cuts a message and sizes the window for a receive buffer of `granted` bytes.
    ///
    /// The kernel charges a datagram with more than its payload: the default window is a quarter
    /// of the buffer, at most 256 KiB, and at most one datagram per KiB of buffer. At least one
    /// chunk is always allowed, and the receiver answers at half of the window.
    pub(crate) fn datagram(
        size: u64,
        chunk: u64,
        segment: u64,
        granted: u64,
        window: Option<u64>,
    ) -> Self {
        let by_count = (granted / 1024).saturating_mul(segment);
        let window = window
            .unwrap_or_else(|| (granted / 4).min(DEFAULT_WINDOW_CAP).min(by_count))
            .max(chunk);
        Self {
            size,
            chunk,
            segment,
            window,
            credit_every: (window / 2).max(chunk),
        }
    }

    /// For a connection, which loses nothing and has flow control: the octets in flight need only keep both sides busy. At
    /// least one chunk is always allowed, and never more than [`MAX_MESSAGES`].
    pub(crate) fn connected(size: u64, chunk: u64, window: Option<u64>) -> Self {
        let default = (2 * chunk).clamp(DEFAULT_WINDOW_CAP, CONNECTED_WINDOW_CAP);
        let window = window
            .unwrap_or_else(|| default.max(2 * chunk))
            .clamp(chunk, chunk * MAX_MESSAGES);
        Self {
            size,
            chunk,
            segment: chunk,
            window,
            credit_every: (window / 2).max(chunk),
        }
    }

    /// Whether pieces carry their position; else the receiver can only count.
    pub(crate) const fn has_positions(&self) -> bool {
        self.segment >= HEADER_BYTES
    }

    /// Pieces of a whole message of this size that fit unanswered into the receive buffer.
    pub(crate) fn fits_unanswered(&self, granted: u64) -> bool {
        self.window == u64::MAX || self.size <= self.chunk || self.size <= granted / 4
    }
}

/// An endpoint that can play ping-pong with whole messages of one size.
pub(crate) trait PingPong {
    /// Whether a message can get lost; otherwise an answer is awaited without limit.
    const LOSES: bool;

    /// Sends one message that carries `sequence`, or as much of it as its size permits. While
    /// there is no room it asks `watch` whether to go on; a stop leaves the message unsent.
    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()>;

    /// The sequence of a message that has arrived completely. A blocking endpoint waits up to
    /// [`BLOCK_SLICE`].
    fn try_receive(&mut self) -> Result<Option<u64>>;
}

/// The result of [`Flow::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing yet.
    Nothing,
    /// Something that is not counted (a completion of our own, a late datagram).
    Other,
    /// Payload.
    Data {
        /// How much of it; none in a mark.
        bytes: u64,
        /// Position in the stream just behind it, where it carries one.
        end: Option<u64>,
        /// Its validity map, where the transport reports one.
        record: Option<RecordShape>,
    },
    /// The receiver has seen the stream up to here.
    Credit(u64),
}

/// The shape of a validity map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordShape {
    /// Gaps between, before and behind the valid ranges.
    pub(crate) holes: u64,
}

/// The direction that [`Flow::poll`] serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// This side only sends.
    Credit,
    /// This side only receives.
    Data,
    /// This side does both.
    Both,
}

/// An endpoint that can carry a one-way or two-way stream of messages under a window.
pub(crate) trait Flow {
    /// Whether data can get lost; otherwise a credit is awaited without limit.
    const LOSES: bool;

    /// Forgets what earlier rounds left behind.
    fn start_round(&mut self, round: u16) -> Result<()>;

    /// Hands over up to `length` bytes at `position` of the stream; how many were taken
    /// (0 = not now).
    fn transmit(&mut self, position: u64, length: u64) -> Result<u64>;

    /// Polls for data and credits. With `may_wait` a blocking endpoint waits up to
    /// [`BLOCK_SLICE`].
    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival>;

    /// Acknowledges the stream up to `position` to the sender.
    fn credit(&mut self, position: u64) -> Result<()>;

    /// Sends the receiver, behind the data, the position of this side. Where much is lost the data alone does not show it: a queue pair
    /// reports messages late or never that miss a part. The receiver's [`poll`](Self::poll) shows a
    /// mark as data without bytes, the last one after all that came before. False if there was no room.
    fn mark(&mut self, _mark: Mark) -> Result<bool> {
        Ok(false)
    }

    /// The sender ended the round: what is still incomplete stays as it is, and is shown by
    /// [`poll`](Self::poll).
    fn settle(&mut self) {}

    /// Memory of each end of this side's idle connections; zeros of anything else.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }

    /// Counts of this side's datagrams since the round started; zeros where none are kept.
    fn datagrams(&mut self) -> Datagrams {
        Datagrams::default()
    }
}

/// The result of an idle turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Nothing was checked; go on.
    Continue,
    /// Everything is well at this time.
    Checked(Instant),
    /// The client ended the round.
    Stop,
}

/// Notices, at next to no cost while data flows, that the peer, the user or the path gave up.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: &'a mut Control,
    interrupt: &'a Interrupt,
    side: Side,
    transport: &'static str,
    turns: u32,
    progressed: bool,
    quiet_since: Instant,
}

impl<'a> Watch<'a> {
    /// Empty polls between two checks of the control connection (about 0.2 ms of spinning).
    const IDLE_TURNS: u32 = 1024;
    /// Weight of an empty poll against a busy turn.
    const BUSY_COST: u32 = 64;

    /// Starts watching; the quiet time counts from now.
    pub(crate) fn new(
        control: &'a mut Control,
        interrupt: &'a Interrupt,
        side: Side,
        transport: &'static str,
    ) -> Self {
        Self {
            control,
            interrupt,
            side,
            transport,
            turns: 0,
            progressed: false,
            quiet_since: clock::now(),
        }
    }

    /// Something arrived.
    pub(crate) const fn progress(&mut self) {
        self.progressed = true;
    }

    /// Counts a turn that did something; checks now and then.
    pub(crate) fn busy(&mut self) -> Result<()> {
        self.turns += 1;
        if self.turns >= Self::IDLE_TURNS * Self::BUSY_COST {
            self.turns = 0;
            self.interrupt.check()?;
        }
        Ok(())
    }

    /// Counts a turn that found nothing; checks now and then, always after a wait.
    pub(crate) fn idle(&mut self, waited: bool) -> Result<Idle> {
        self.turns += Self::BUSY_COST;
        if !waited && self.turns < Self::IDLE_TURNS * Self::BUSY_COST {
            return Ok(Idle::Continue);
        }
        self.turns = 0;
        self.look()
    }

    fn look(&mut self) -> Result<Idle> {
        self.interrupt.check()?;
        match (self.control.pending()?, self.side) {
            (Pending::Closed, _) => return Err(PerfError::PeerGone),
            (Pending::Message, Side::Server) => return Ok(Idle::Stop),
            (Pending::Message, Side::Client) => return Err(self.failure()),
            (Pending::Nothing, _) => {}
        }
        let now = clock::now();
        if self.progressed {
            self.progressed = false;
            self.quiet_since = now;
        }
        let waited = now.saturating_duration_since(self.quiet_since);
        let limit = match self.side {
            Side::Client => QUIET_LIMIT,
            Side::Server => SERVER_QUIET_LIMIT,
        };
        if waited > limit {
            return Err(PerfError::NoData {
                transport: self.transport,
                waited,
            });
        }
        Ok(Idle::Checked(now))
    }

    /// A server sends during a round only to report a failure.
    fn failure(&mut self) -> PerfError {
        match self
            .control
            .receive::<Reply>(Duration::from_secs(1), self.interrupt)
        {
            Ok(Reply::Failed(reason)) => PerfError::PeerFailed(reason),
            Ok(other) => PerfError::Protocol(format!("unexpected {other:?}")),
            Err(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_window_is_a_quarter_of_the_buffer_up_to_256_kib() {
        let roomy = Geometry::datagram(1 << 20, 65_000, 65_000, 8 << 20, None);
        assert_eq!(roomy.window, 256 * 1024);
        assert_eq!(roomy.credit_every, 128 * 1024);
        let stock = Geometry::datagram(1 << 20, 16_384, 16_384, 212_992, None);
        assert_eq!(stock.window, 53_248);
    }

    #[test]
    fn small_messages_are_limited_by_number() {
        // A stock buffer holds 256 datagrams of 64 bytes; 208 may be under way.
        let stock = Geometry::datagram(64, 64, 64, 212_992, None);
        assert_eq!(stock.window, 208 * 64);
    }

    #[test]
    fn one_chunk_is_always_allowed() {
        let tight = Geometry::datagram(65_000, 65_000, 65_000, 212_992, None);
        assert_eq!(tight.window, 65_000);
        let asked = Geometry::datagram(1 << 20, 65_000, 65_000, 8 << 20, Some(1));
        assert_eq!(asked.window, 65_000);
    }
}
