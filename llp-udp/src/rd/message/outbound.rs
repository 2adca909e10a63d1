//! Messages and segments that leave (§6), and segments that leave again.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::inbound::{MESSAGES, SEGMENTS};
use crate::rd::frame::{Placed, SegmentHeader};

/// Messages whose segments alternate.
const ALTERNATING: usize = 4;
/// Longest delay after RNR.
const MOST_RNR_DELAY: Duration = Duration::from_secs(1);
/// Least time that RNR retries of an RC queue pair take, if there are any.
const LEAST_RETRIES_TAKE: Duration = Duration::from_millis(100);

/// A message to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// The caller's name for it.
    pub token: u64,
    /// Number of its segments, at least 1.
    pub segments: u32,
    /// Octets of each segment but the last; at least 2.
    pub length: u16,
    /// Octets of the last segment, or of the one before the trailer; at least 2.
    pub last_length: u16,
    /// Octets of one more segment behind these, which `segments` counts, too; at least 2.
    pub trailer: Option<u16>,
    /// Stream in whose order it is delivered; `None` for no order.
    pub stream: Option<u16>,
    /// It consumes a posted receive.
    pub receive: bool,
}

/// A segment that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rd) struct Departure {
    pub(in crate::rd) header: SegmentHeader,
    pub(in crate::rd) token: u64,
    /// Octets.
    pub(in crate::rd) length: u16,
}

#[derive(Debug)]
struct Message {
    post: Post,
    /// Stream, or of an RC queue pair the messages with a receive that began before.
    stream: u16,
    after: u16,
    /// Segments that were sent at least once.
    begun: u32,
    /// Segments that are acknowledged.
    acked: u32,
    refusals: u32,
    /// Time of the first of these.
    refused: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    /// Waits to be sent again.
    Queued,
    /// Waits after RNR.
    Refused,
    Acked,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    message: u32,
    index: u32,
    state: State,
}

/// Why a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rd) struct RetriesExceeded {
    pub(in crate::rd) token: u64,
}

/// The sending direction of an association.
#[derive(Debug, Default)]
pub(in crate::rd) struct Outbound {
    /// One message leaves after the other; else the segments of some alternate.
    in_turn: bool,
    waiting: VecDeque<Post>,
    /// Number of the first of `messages`.
    base: u32,
    /// Messages that began; `None` once acknowledged.
    messages: VecDeque<Option<Message>>,
    /// Messages of which not all segments were sent.
    active: VecDeque<u32>,
    /// Number of the first of `segments`.
    first: u32,
    segments: VecDeque<Segment>,
    /// Segments to be sent again.
    again: VecDeque<u32>,
    /// Segments that wait after RNR.
    refused: VecDeque<u32>,
    /// Messages of which no segment leaves until then.
    parked: Vec<u32>,
    /// When they go again without credit.
    refused_until: Option<Instant>,
    /// Of each stream, its latest message and how many of it are not acknowledged.
    streams: BTreeMap<u16, (u32, u32)>,
    /// Messages with a receive that began, serial; at most one more than `credit`.
    receives: u32,
    /// Credit of receives, serial.
    credit: u32,
    /// Messages with a receive that began and did not end.
    open_receives: u32,
}

/// Numbers and credit of an association that rests.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rested {
    base: u32,
    first: u32,
    receives: u32,
    credit: u32,
}

impl From<Rested> for Outbound {
    fn from(rested: Rested) -> Self {
        Self {
            base: rested.base,
            first: rested.first,
            receives: rested.receives,
            credit: rested.credit,
            ..Self::default()
        }
    }
}

impl Outbound {
    /// Numbers to go on from, where no message is outstanding and messages alternate.
    pub(in crate::rd) const fn rest(&self) -> Rested {
        Rested {
            base: self.base,
            first: self.first,
            receives: self.receives,
            credit: self.credit,
        }
    }

    pub(in crate::rd) fn new(in_turn: bool) -> Self {
        Self {
            in_turn,
            ..Self::default()
        }
    }

    pub(in crate::rd) fn post(&mut self, post: Post) {
        self.waiting.push_back(post);
    }

    /// Whether nothing waits and nothing is in flight.
    pub(in crate::rd) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.messages.is_empty()
    }

    /// Messages that did not end.
    pub(in crate::rd) fn len(&self) -> usize {
        self.waiting.len() + self.messages.iter().flatten().count()
    }

    /// Takes all messages that did not end.
    pub(in crate::rd) fn drain(&mut self, mut each: impl FnMut(u64)) {
        let all = std::mem::take(self);
        all.messages
            .into_iter()
            .flatten()
            .for_each(|message| each(message.post.token));
        all.waiting.into_iter().for_each(|post| each(post.token));
    }

    /// Grants receives; credit never goes back.
    pub(in crate::rd) fn grant(&mut self, receives: u32) {
        let more = receives.wrapping_sub(self.credit);
        if more != 0 && more < 1 << 31 {
            self.credit = receives;
            self.release();
        }
    }

    fn release(&mut self) {
        self.refused_until = None;
        for number in std::mem::take(&mut self.parked) {
            let begun = self.message(number).map(|it| it.begun < it.post.segments);
            if begun == Some(true) {
                self.active.push_back(number);
            }
        }
        for number in std::mem::take(&mut self.refused) {
            // A copy of it may have been acknowledged meanwhile.
            if let Some(segment) = self.segment_mut(number)
                && segment.state == State::Refused
            {
                segment.state = State::Queued;
                self.again.push_back(number);
            }
        }
    }

    /// When segments go again that found no receive.
    pub(in crate::rd) const fn refused_until(&self) -> Option<Instant> {
        self.refused_until
    }

    pub(in crate::rd) fn handle_timeout(&mut self, now: Instant) {
        if self.refused_until.is_some_and(|until| until <= now) {
            self.release();
        }
    }

    fn message(&self, number: u32) -> Option<&Message> {
        let at = usize::try_from(number.wrapping_sub(self.base)).ok()?;
        self.messages.get(at)?.as_ref()
    }

    fn message_mut(&mut self, number: u32) -> Option<&mut Message> {
        let at = usize::try_from(number.wrapping_sub(self.base)).ok()?;
        self.messages.get_mut(at)?.as_mut()
    }

    fn segment_mut(&mut self, number: u32) -> Option<&mut Segment> {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok()?;
        self.segments.get_mut(at)
    }

    /// The token of an outstanding message.
    pub(in crate::rd) fn token(&self, number: u32) -> Option<u64> {
        Some(self.message(number)?.post.token)
    }

    /// The message of a segment that is not acknowledged.
    pub(in crate::rd) fn owner(&self, number: u32) -> Option<u32> {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok()?;
        Some(self.segments.get(at)?.message)
    }

    fn departure(&self, number: u32) -> Option<Departure> {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok()?;
        let segment = self.segments.get(at)?;
        let message = self.message(segment.message)?;
        Some(message.departure(number, segment))
    }

    /// Length of the segment that leaves next; `None` if none may.
    pub(in crate::rd) fn peek(&mut self) -> Option<u16> {
        while let Some(&number) = self.again.front() {
            let queued = self
                .segment_mut(number)
                .is_some_and(|segment| segment.state == State::Queued);
            match self.departure(number) {
                Some(departure) if queued => return Some(departure.length),
                Some(_) | None => {
                    self.again.pop_front();
                }
            }
        }
        if self.segments.len() >= SEGMENTS as usize {
            return None;
        }
        self.activate();
        let message = self.message(*self.active.front()?)?;
        Some(message.length(message.begun))
    }

    /// Whether messages wait for credit of receives alone.
    pub(in crate::rd) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty() && self.active.is_empty() && self.again.is_empty()
    }

    /// Whether a message waits that is beyond the credit of receives.
    pub(in crate::rd) fn is_short_of_credit(&self) -> bool {
        let beyond = self.receives.wrapping_sub(self.credit);
        self.waiting.front().is_some_and(|it| it.receive) && beyond < 1 << 31
    }

    /// Whether the segment that leaves next was sent before.
    pub(in crate::rd) fn repeats(&self) -> bool {
        !self.again.is_empty()
    }

    /// Lets further messages begin, as many as may alternate.
    fn activate(&mut self) {
        let alternating = if self.in_turn { 1 } else { ALTERNATING };
        while self.active.len() < alternating
            && self.messages.len() < MESSAGES as usize
            && !self.waiting.is_empty()
        {
            // A message beyond the credit goes alone: the receiver cannot tell it from those with credit.
            if self.is_short_of_credit() && self.open_receives > 0 {
                break;
            }
            let Some(post) = self.waiting.pop_front() else {
                break;
            };
            let stream = if self.in_turn {
                let [_, _, high, low] = self.receives.to_be_bytes();
                u16::from_be_bytes([high, low])
            } else {
                post.stream.unwrap_or(0)
            };
            if post.receive {
                self.receives = self.receives.wrapping_add(1);
                self.open_receives += 1;
            }
            let offset = u32::try_from(self.messages.len()).unwrap_or(MESSAGES);
            let number = self.base.wrapping_add(offset);
            let after = post.stream.map_or(0, |stream| self.follow(stream, number));
            self.messages.push_back(Some(Message {
                post,
                stream,
                after,
                begun: 0,
                acked: 0,
                refusals: 0,
                refused: None,
            }));
            self.active.push_back(number);
        }
    }

    /// Distance back to the message of the stream before this one, while one of them is not acknowledged.
    fn follow(&mut self, stream: u16, number: u32) -> u16 {
        match self.streams.get_mut(&stream) {
            Some((latest, outstanding)) => {
                let distance = number.wrapping_sub(*latest);
                *latest = number;
                *outstanding += 1;
                u16::try_from(distance).unwrap_or(0)
            }
            None => {
                self.streams.insert(stream, (number, 1));
                0
            }
        }
    }

    /// The segment that [`peek`](Self::peek) found.
    pub(in crate::rd) fn next(&mut self) -> Option<Departure> {
        self.peek()?;
        if let Some(number) = self.again.pop_front() {
            self.segment_mut(number)?.state = State::InFlight;
            return self.departure(number);
        }
        let number = self.active.pop_front()?;
        let offset = u32::try_from(self.segments.len()).ok()?;
        let message = self.message_mut(number)?;
        let index = message.begun;
        message.begun += 1;
        let more = message.begun < message.post.segments;
        if more {
            self.active.push_back(number);
        }
        self.segments.push_back(Segment {
            message: number,
            index,
            state: State::InFlight,
        });
        self.departure(self.first.wrapping_add(offset))
    }

    /// The oldest segment in flight goes again, for a probe. Returns whether there is one.
    pub(in crate::rd) fn probe(&mut self, number: u32) {
        if let Some(segment) = self.segment_mut(number)
            && segment.state == State::InFlight
        {
            segment.state = State::Queued;
            self.again.push_front(number);
        }
    }

    /// The segment was lost.
    pub(in crate::rd) fn on_lost(&mut self, number: u32) {
        let Some(segment) = self.segment_mut(number) else {
            return;
        };
        if segment.state != State::InFlight {
            return;
        }
        segment.state = State::Queued;
        let message = segment.message;
        if !self.parked.contains(&message) {
            self.again.push_back(number);
        } else if let Some(segment) = self.segment_mut(number) {
            segment.state = State::Refused;
            self.refused.push_back(number);
        }
    }

    /// The segment's datagram found no receive for `message`, and may go again after `delay`.
    ///
    /// # Errors
    /// [`RetriesExceeded`] after more than `retries` refusals; the message goes on until the caller ends it.
    pub(in crate::rd) fn on_refused(
        &mut self,
        now: Instant,
        number: u32,
        delay: Duration,
        retries: Option<u32>,
    ) -> Result<(), RetriesExceeded> {
        let Some(segment) = self.segment_mut(number) else {
            return Ok(());
        };
        if segment.state != State::InFlight {
            return Ok(());
        }
        segment.state = State::Refused;
        let owner = segment.message;
        // One behind a message that is not placed yet may have been refused for that one alone.
        let in_turn = self.in_turn;
        let counts = !in_turn || owner == self.base;
        self.refused.push_back(number);
        let waits = self.parked.contains(&owner);
        let Some(message) = self.message_mut(owner) else {
            return Ok(());
        };
        if !waits && counts {
            message.refusals += 1;
        }
        let refusals = message.refusals;
        let token = message.post.token;
        let since = *message.refused.get_or_insert(now);
        if let Some(retries) = retries
            && refusals > retries
            // The peer's program may have no core for a moment.
            && (!in_turn || retries == 0 || since + LEAST_RETRIES_TAKE <= now)
        {
            return Err(RetriesExceeded { token });
        }
        if !waits {
            self.parked.push(owner);
            self.active.retain(|active| *active != owner);
        }
        let factor = 1 << refusals.saturating_sub(1).min(16);
        let until = now + delay.saturating_mul(factor).min(MOST_RNR_DELAY);
        self.refused_until = Some(self.refused_until.map_or(until, |it| it.min(until)));
        Ok(())
    }

    /// The segment is placed. `done` gets the token of its message, if that was the last.
    pub(in crate::rd) fn on_acked(&mut self, number: u32, done: impl FnOnce(u64)) {
        let Some(segment) = self.segment_mut(number) else {
            return;
        };
        if segment.state == State::Acked {
            return;
        }
        segment.state = State::Acked;
        let number = segment.message;
        self.pop();
        let Some(message) = self.message_mut(number) else {
            return;
        };
        message.acked += 1;
        if message.acked < message.post.segments {
            return;
        }
        done(message.post.token);
        self.end(number);
    }

    /// Gives a message up that failed at the peer.
    pub(in crate::rd) fn abandon(&mut self, number: u32) {
        self.active.retain(|active| *active != number);
        for segment in &mut self.segments {
            if segment.message == number {
                segment.state = State::Acked;
            }
        }
        self.pop();
        self.end(number);
    }

    fn pop(&mut self) {
        while self
            .segments
            .front()
            .is_some_and(|it| it.state == State::Acked)
        {
            self.segments.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Takes a message out that ended.
    fn end(&mut self, number: u32) {
        let at = usize::try_from(number.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        let Some(message) = self.messages.get_mut(at).and_then(Option::take) else {
            return;
        };
        self.open_receives -= u32::from(message.post.receive);
        if let Some(stream) = message.post.stream
            && let Some((_, outstanding)) = self.streams.get_mut(&stream)
        {
            *outstanding -= 1;
            if *outstanding == 0 {
                self.streams.remove(&stream);
            }
        }
        while self.messages.front().is_some_and(Option::is_none) {
            self.messages.pop_front();
            self.base = self.base.wrapping_add(1);
        }
    }

    /// Segments that the peer reports as placed. Returns whether it can be so: no number ahead of those that were sent.
    pub(in crate::rd) fn on_placed(&mut self, placed: &Placed, mut done: impl FnMut(u64)) -> bool {
        let sent = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let before = placed.next.wrapping_sub(self.first);
        if before >= 1 << 31 {
            // An older report.
            return true;
        }
        if before > sent {
            return false;
        }
        for number in 0..before {
            self.on_acked(placed.next.wrapping_sub(before - number), &mut done);
        }
        let mut map = placed.map;
        while map != 0 {
            let bit = map.trailing_zeros();
            map &= map - 1;
            self.on_acked(placed.next.wrapping_add(1 + bit), &mut done);
        }
        true
    }
}

impl Message {
    const fn length(&self, index: u32) -> u16 {
        match (self.post.segments - 1 - index, self.post.trailer) {
            (0, Some(trailer)) => trailer,
            (0, None) | (1, Some(_)) => self.post.last_length,
            (_, _) => self.post.length,
        }
    }

    fn departure(&self, number: u32, segment: &Segment) -> Departure {
        Departure {
            header: SegmentHeader {
                last: segment.index + 1 == self.post.segments,
                receive: self.post.receive,
                number,
                message: segment.message,
                index: segment.index,
                stream: self.stream,
                after: self.after,
            },
            token: self.post.token,
            length: self.length(segment.index),
        }
    }
}
