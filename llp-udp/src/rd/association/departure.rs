//! Datagrams that leave (§6).

use std::time::Instant;

use super::{Association, Challenge, Contents, MOST_ACK_DELAY, SEGMENTS, SKIP};
use crate::Peer;
use crate::rd::config::RdConfig;
use crate::rd::envelope::{self, Envelope};
use crate::rd::frame::{
    Close, HEADER_LEN, HELLO_LEN, Hello, Ping, Pong, SEGMENT_OVERHEAD, SegmentHeader,
};

/// Octets of frames with their headers.
const ACK: usize = HEADER_LEN + 20 + 12;
const RANGE: usize = 8;
const PLACED: usize = HEADER_LEN + 12;
const CREDIT: usize = HEADER_LEN + 8;
const NOT_READY: usize = HEADER_LEN + 16;
const ERROR: usize = HEADER_LEN + 8;
const PING: usize = HEADER_LEN + 8;
const CLOSE: usize = HEADER_LEN + 16;
/// Octets of a datagram that proves an address.
pub(super) const CHALLENGE: usize = envelope::OVERHEAD + PING;
/// Ranges of an acknowledgement beside a segment, and of one alone.
const FEW_RANGES: usize = 4;
const MANY_RANGES: usize = 32;

/// Octets of a datagram with one segment of this length.
fn segment_octets(length: u16) -> u64 {
    envelope::OVERHEAD as u64 + SEGMENT_OVERHEAD as u64 + u64::from(length)
}

impl Association {
    /// Appends the next datagram, if one may leave now, and returns where it goes. `write` writes a segment, named by the
    /// token of its message and its header.
    pub(in crate::rd) fn poll_transmit(
        &mut self,
        config: &RdConfig,
        now: Instant,
        out: &mut Vec<u8>,
        write: &mut impl FnMut(u64, &SegmentHeader, &mut [u8]),
    ) -> Option<Peer> {
        if let Some(to) = self.poll_challenge(config, now, out) {
            return Some(to);
        }
        let budget = usize::try_from(self.budget()).unwrap_or(usize::MAX);
        let limit = usize::from(self.datagram).min(budget);
        let mut room = limit.checked_sub(envelope::OVERHEAD)?;
        let credit = self.credit_is_due();
        let held = credit && config.polls && self.received.hold(now + MOST_ACK_DELAY);
        let due = self.received.due().is_some_and(|due| due <= now)
            || self.received.is_held() && !config.polls
            || !self.not_ready.is_empty()
            || credit && !held;
        let urgent = due || self.errors.iter().any(|it| it.due) || !self.pongs.is_empty();
        let mut data = self.data_length(now);
        if !urgent && data.is_none() && self.probes == 0 {
            return None;
        }
        // A hello goes along where it fits; the first datagram, probes and all to an address that is not validated leave without a
        // segment rather than without a hello: one without tells the opener that it need not probe for us.
        let mut hello = !self.known;
        if hello && data.is_some_and(|it| room < HELLO_LEN + SEGMENT_OVERHEAD + usize::from(it)) {
            hello = !self.greeted || self.probes > 0 || self.unvalidated.is_some();
            data = data.filter(|_| !hello);
        }
        if hello {
            room = room.checked_sub(HELLO_LEN)?;
            self.greeted = true;
        }
        // Acknowledgements go along where they fit beside the segment; those that are due leave before it.
        let least = ACK + PLACED + CREDIT + FEW_RANGES * RANGE;
        let fits = |length: u16| room >= least + SEGMENT_OVERHEAD + usize::from(length);
        let beside = data.is_none_or(fits);
        if urgent && !(beside && self.errors.is_empty()) {
            data = None;
        }
        let start = out.len();
        self.emit_head(config, now, hello, out);
        let mut contents = Contents::default();
        // An acknowledgement that was lost is repeated by the next datagram that fits beside it, as what is sent again hints at losses.
        let repeats = self.probes > 0 || self.outbound.repeats();
        if urgent || beside && (repeats || self.received.due().is_some()) {
            let before = out.len();
            self.emit_control(now, room, data.is_some(), &mut contents, out);
            room -= out.len() - before;
        }
        // The credit that a message waits for may be lost: a PING has it repeated.
        let ping = self.probes > 0
            && data.is_none_or(|length| {
                let segment = SEGMENT_OVERHEAD + usize::from(length);
                self.outbound.is_short_of_credit() && room >= PING + segment
            });
        if ping && room >= PING {
            Ping(0).emit(out);
            room -= PING;
        }
        if let Some(length) = data {
            self.emit_segments(length, room, &mut contents, out, write);
        }
        let elicits = contents.count > 0 || contents.error.is_some() || ping || hello;
        let has_segments = contents.count > 0;
        let octets = out.len() - start + envelope::TRAILER;
        self.on_sent(now, octets, elicits.then_some(contents));
        // The window has this datagram now: whether another one may follow shows only behind it.
        let eager = has_segments && self.window_length().is_none() || self.probes > 0;
        if let Some(flags) = out.get_mut(start + 1) {
            *flags += u8::from(eager);
        }
        envelope::seal(out, start);
        if elicits {
            self.probes = self.probes.saturating_sub(1);
        }
        Some(self.address)
    }

    /// Whether credit changed so much that it does not wait for a datagram: of the receives the peer may know of less than half are left to it.
    fn credit_is_due(&self) -> bool {
        let left = |receives: u32| receives.wrapping_sub(self.taken).cast_signed();
        let (granted, known) = (left(self.grant.receives), left(self.granted.receives));
        granted > known && known < granted / 2 + granted % 2
            || self.grant.window / 2 > self.granted.window
            || self.grant.window < self.granted.window / 2
    }

    /// Octets that may be sent to the peer's address.
    pub(in crate::rd) const fn budget(&self) -> u64 {
        match self.unvalidated {
            Some((received, sent)) => (3 * received).saturating_sub(sent),
            None => u64::MAX,
        }
    }

    /// Whether an acknowledgement may be sent.
    pub(super) fn has_room(&self) -> bool {
        let octets = envelope::OVERHEAD + HELLO_LEN + ACK + PLACED;
        self.budget() >= u64::try_from(octets).unwrap_or(u64::MAX)
    }

    /// The envelope, and the hello while it is needed.
    fn emit_head(&self, config: &RdConfig, now: Instant, hello: bool, out: &mut Vec<u8>) {
        Envelope {
            eager: false,
            hello,
            association: self.peer_id.unwrap_or(0),
            number: self.recovery.next(),
            time: time(config, now),
            epoch: config.epoch,
        }
        .emit(out);
        if hello {
            Hello {
                retry: false,
                life: config.connection.map(|lives| lives.own),
                association: self.id,
                credit: self.grant,
                proof: self.proof,
                cookie: self.cookie,
            }
            .emit(out);
        }
    }

    fn on_sent(&mut self, now: Instant, octets: usize, contents: Option<Contents>) {
        let octets = u32::try_from(octets).unwrap_or(u32::MAX);
        if let Some((_, sent)) = &mut self.unvalidated {
            *sent += u64::from(octets);
        }
        if contents.is_some() {
            self.pacing.on_sent(octets.into());
            self.unanswered.get_or_insert(now);
        }
        self.recovery.on_sent(now, octets, contents);
        if self.skip.0 == 0 {
            self.recovery.skip();
            // A xorshift generator: the numbers need be no secret beyond the next acknowledgement.
            let mut state = self.skip.1;
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            self.skip = (state % SKIP, state);
        } else {
            self.skip.0 -= 1;
        }
    }

    /// Length of the next segment, if there is one and the windows have room for it.
    fn window_length(&mut self) -> Option<u16> {
        let Some(length) = self.outbound.peek() else {
            self.limited = false;
            return None;
        };
        let in_flight = self.recovery.in_flight();
        let octets = segment_octets(length);
        if self.probes > 0 {
            return Some(length);
        }
        let granted = u64::from(self.window.0).max(u64::from(self.datagram));
        if in_flight + octets > granted && in_flight > 0 {
            return None;
        }
        if in_flight + octets > self.congestion.window() {
            self.limited = true;
            return None;
        }
        Some(length)
    }

    /// Length of the segment that may leave now.
    fn data_length(&mut self, now: Instant) -> Option<u16> {
        let length = self.window_length()?;
        if self.probes > 0 {
            return Some(length);
        }
        let in_flight = self.recovery.in_flight();
        let (datagram, octets) = (u64::from(self.datagram), segment_octets(length));
        if let Some(rate) = self.congestion.pace(&self.rtt, in_flight)
            && let Some(at) = self.pacing.may_send(now, rate, datagram.max(octets))
        {
            self.limited = true;
            self.paced = Some(at);
            return None;
        }
        Some(length)
    }

    fn emit_control(
        &mut self,
        now: Instant,
        room: usize,
        with_data: bool,
        contents: &mut Contents,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let left = |out: &Vec<u8>| room.saturating_sub(out.len() - start);
        let fixed = ACK + PLACED;
        // Errors go before each acknowledgement: it may cover segments of theirs, and must not be taken for success.
        let withheld = with_data && !self.errors.is_empty();
        for open in self.errors.iter_mut().filter(|_| !with_data) {
            // Where an error has no room, an acknowledgement has none.
            if left(out) < ERROR {
                break;
            }
            open.due = false;
            open.error.emit(out);
            contents.error = Some(open.error.message);
        }
        if left(out) >= fixed && !withheld {
            let most = if with_data { FEW_RANGES } else { MANY_RANGES };
            let ranges = most.min(1 + (left(out) - fixed) / RANGE);
            if let Some((ack, whole)) = self.received.acknowledge(now, ranges) {
                contents.acknowledges = whole.then(|| ack.largest());
                ack.emit(out);
                self.inbound.placed().emit(out);
            }
        }
        if self.grant != self.granted && left(out) >= CREDIT {
            self.grant.emit(out);
            self.granted = self.grant;
        }
        if with_data {
            return;
        }
        while left(out) >= NOT_READY
            && let Some(not_ready) = self.not_ready.pop_front()
        {
            not_ready.emit(out);
        }
        let here = self
            .pongs
            .front()
            .is_some_and(|(to, _)| *to == self.address);
        if here
            && left(out) >= PING
            && let Some((_, data)) = self.pongs.pop_front()
        {
            Pong(data).emit(out);
        }
    }

    /// Appends segments, of which the first has `length` octets.
    fn emit_segments(
        &mut self,
        length: u16,
        room: usize,
        contents: &mut Contents,
        out: &mut Vec<u8>,
        write: &mut impl FnMut(u64, &SegmentHeader, &mut [u8]),
    ) {
        // The first one leaves even where its path became smaller.
        let mut room = room.max(SEGMENT_OVERHEAD + usize::from(length));
        let mut next = Some(length);
        while let Some(slot) = contents.segments.get_mut(contents.count)
            && let Some(length) = next
        {
            let octets = SEGMENT_OVERHEAD + usize::from(length);
            if octets > room {
                break;
            }
            let Some(departure) = self.outbound.next() else {
                break;
            };
            departure.header.emit(out, departure.length);
            let at = out.len();
            out.resize(at + usize::from(departure.length), 0);
            if let Some(segment) = out.get_mut(at..) {
                write(departure.token, &departure.header, segment);
            }
            *slot = departure.header.number;
            contents.count += 1;
            room -= octets;
            next = (room > SEGMENT_OVERHEAD)
                .then(|| self.outbound.peek())
                .flatten();
        }
        debug_assert!(contents.count <= SEGMENTS, "as many as there are slots");
    }

    /// A ping to an address that is to be proven, or a pong to another address than the peer's.
    fn poll_challenge(
        &mut self,
        config: &RdConfig,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Option<Peer> {
        let octets = u64::try_from(CHALLENGE).ok()?;
        if let Some((to, data)) = self.pongs.front().copied()
            && to != self.address
        {
            self.pongs.pop_front();
            self.emit_alone(config, now, out, |out| Pong(data).emit(out));
            return Some(to);
        }
        let is_due = |it: &Challenge| it.due <= now && it.tries > 0 && it.budget >= octets;
        self.challenge.filter(is_due)?;
        let pto = self.pto(config);
        let challenge = self.challenge.as_mut()?;
        challenge.tries -= 1;
        challenge.budget -= octets;
        challenge.due = now + pto;
        let challenge = *challenge;
        self.emit_alone(config, now, out, |out| Ping(challenge.data).emit(out));
        Some(challenge.address)
    }

    /// Appends a datagram of one frame that elicits nothing.
    fn emit_alone(
        &mut self,
        config: &RdConfig,
        now: Instant,
        out: &mut Vec<u8>,
        frame: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = out.len();
        self.emit_head(config, now, false, out);
        frame(out);
        envelope::seal(out, start);
        self.on_sent(now, out.len() - start, None);
    }

    /// Appends a datagram that ends the association, and acknowledges before that what arrived: the peer's messages that are placed have not failed.
    pub(in crate::rd) fn emit_close(
        &mut self,
        config: &RdConfig,
        now: Instant,
        close: &Close,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        self.emit_head(config, now, false, out);
        let budget = usize::try_from(self.budget()).unwrap_or(usize::MAX);
        let room = usize::from(self.datagram).min(budget);
        let room = room.saturating_sub(envelope::OVERHEAD + CLOSE);
        self.emit_control(now, room, false, &mut Contents::default(), out);
        close.emit(out);
        envelope::seal(out, start);
        self.on_sent(now, out.len() - start, None);
    }
}

/// The time field.
pub(in crate::rd) fn time(config: &RdConfig, now: Instant) -> u32 {
    let micros = now.saturating_duration_since(config.origin).as_micros();
    u32::try_from(micros & u128::from(u32::MAX)).unwrap_or(0)
}
