//! Datagrams that arrive (§4.2, §5).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dgiwarp_codec::{Payload, PayloadSlice};

use super::{Association, Challenge, Contents, ERRORS, LARGEST, NOT_READY, OpenError, PONGS};
use crate::Peer;
use crate::rd::config::{Before, Cause, Event, RdConfig, Scope, Verdict};
use crate::rd::congestion::Delivered;
use crate::rd::envelope::Envelope;
use crate::rd::flow::received::Ecn;
use crate::rd::flow::recovery::Left;
use crate::rd::frame::{
    Ack, CheckedFrames, CloseReason, Frame, Hello, MessageError, NotReady, Placed, SegmentHeader,
};
use crate::rd::message::inbound::Arrival;

/// Pings to an address that is to be proven.
const CHALLENGES: u32 = 3;

/// The association ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rd) struct Ended {
    /// For its messages.
    pub(in crate::rd) cause: Cause,
    /// For the peer, if it is to be told.
    pub(in crate::rd) reason: Option<CloseReason>,
}

const VIOLATION: Ended = Ended {
    cause: Cause::Violation,
    reason: Some(CloseReason::Violation),
};

/// A datagram whose frames are all well-formed.
#[derive(Debug)]
pub(in crate::rd) struct Datagram<'a, P: Payload + ?Sized> {
    pub(in crate::rd) from: Peer,
    pub(in crate::rd) octets: usize,
    pub(in crate::rd) ecn: Ecn,
    pub(in crate::rd) envelope: Envelope,
    pub(in crate::rd) frames: CheckedFrames<'a, P>,
}

/// Fate of a datagram's segments.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    /// Some segment was not accepted: the datagram is not acknowledged.
    unaccepted: bool,
    elicits: bool,
    at_once: bool,
    /// A message has its last segment there, and the caller may answer it.
    ends: bool,
}

impl Association {
    /// Handles a datagram of this association. `place` hands a segment to the layer above. `draw` is for a challenge.
    ///
    /// # Errors
    /// [`Ended`]: the association is over.
    pub(in crate::rd) fn handle<P: Payload + ?Sized>(
        &mut self,
        config: &RdConfig,
        now: Instant,
        datagram: &Datagram<'_, P>,
        draw: impl FnOnce() -> u64,
        events: &mut VecDeque<Event>,
        place: &mut impl FnMut(&SegmentHeader, Before, PayloadSlice<'_, P>) -> Verdict,
    ) -> Result<(), Ended> {
        let envelope = &datagram.envelope;
        if envelope.number > LARGEST {
            return Err(VIOLATION);
        }
        self.on_address(datagram);
        if self.received.contains(envelope.number) {
            return Ok(());
        }
        self.heard = now;
        self.unanswered = None;
        self.doubted = None;
        let octets = u16::try_from(datagram.octets).unwrap_or(u16::MAX);
        self.longest = self.longest.max(octets);
        self.confirmed |= !envelope.hello && envelope.association == self.id;
        let number = Some(envelope.number);
        let newest = self.received.largest().max(number) == number;
        if newest && datagram.from != self.address && self.unvalidated.is_none() {
            self.challenge(now, datagram, draw());
        }
        let mut fate = Fate {
            at_once: envelope.eager || datagram.ecn == Ecn::Ce,
            ..Fate::default()
        };
        let mut layer = (events, place);
        for frame in &datagram.frames.first {
            self.on_frame(config, now, datagram, frame, &mut fate, &mut layer)?;
        }
        for frame in datagram.frames.rest() {
            self.on_frame(config, now, datagram, &frame, &mut fate, &mut layer)?;
        }
        if self.fed == Some(now) {
            let grant = self.grant.window;
            self.tuning.on_arrival(now, octets.into(), grant, &self.rtt);
        }
        self.received.count(datagram.ecn);
        if !fate.unaccepted {
            let delay = self.ack_delay();
            // Most likely the next one comes as late.
            let is_late = self.received.arrived().is_some_and(|it| it + delay < now);
            let expected = self.received.add(now, envelope.number, envelope.time);
            if fate.elicits {
                let at_once = fate.at_once || !expected || is_late;
                let hold = (config.polls && fate.ends).then_some(super::MOST_ACK_DELAY);
                self.received.elicited(now, delay, (at_once, hold));
            }
        }
        Ok(())
    }

    fn on_frame<P: Payload + ?Sized>(
        &mut self,
        config: &RdConfig,
        now: Instant,
        datagram: &Datagram<'_, P>,
        frame: &Frame<'_, P>,
        fate: &mut Fate,
        (events, place): &mut (
            &mut VecDeque<Event>,
            &mut impl FnMut(&SegmentHeader, Before, PayloadSlice<'_, P>) -> Verdict,
        ),
    ) -> Result<(), Ended> {
        let envelope = &datagram.envelope;
        fate.elicits |= frame.elicits_ack();
        match frame {
            Frame::Segment(header, segment) => {
                let arrived =
                    self.on_segment(config, envelope.number, header, *segment, events, place)?;
                fate.unaccepted |= !arrived;
                fate.ends |= header.last;
                self.fed = Some(now);
            }
            Frame::Ack(ack) => self.on_ack(config, now, ack, events)?,
            Frame::Placed(placed) => self.on_placed(placed, events)?,
            Frame::Credit(credit) if self.window.1 <= envelope.number => {
                self.window = (credit.window, envelope.number);
                self.outbound.grant(credit.receives);
            }
            Frame::NotReady(not_ready) => self.on_not_ready(config, now, not_ready, events)?,
            Frame::Error(error) => self.on_error(config, *error, events)?,
            Frame::Hello(hello) => {
                self.on_hello(envelope, hello);
                fate.at_once = true;
            }
            Frame::Ping(ping) => {
                if ping.0 != 0 && self.pongs.len() < PONGS {
                    self.pongs.push_back((datagram.from, ping.0));
                }
                fate.at_once = true;
                // A credit that was lost is repeated.
                self.granted.receives = self.grant.receives.wrapping_sub(1);
            }
            Frame::Pong(pong) => self.on_pong(config, now, datagram.from, pong.0, events),
            Frame::Close(close) => {
                return Err(Ended {
                    cause: Cause::Closed(close.reason),
                    reason: None,
                });
            }
            Frame::Credit(_) | Frame::Pad(_) => {}
        }
        Ok(())
    }

    /// A datagram with our identifier proves the address that we sent to; others give room for an answer.
    fn on_address<P: Payload + ?Sized>(&mut self, datagram: &Datagram<'_, P>) {
        if datagram.envelope.association == self.id && datagram.from == self.address {
            self.known = true;
            self.unvalidated = None;
        }
        let octets = u64::try_from(datagram.octets).unwrap_or(0);
        if let Some((received, _)) = &mut self.unvalidated {
            *received += octets;
        }
        if let Some(challenge) = &mut self.challenge
            && challenge.address == datagram.from
        {
            challenge.budget += 3 * octets;
        }
    }

    fn challenge<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_, P>,
        random: u64,
    ) {
        let address = datagram.from;
        if self.challenge.is_some_and(|it| it.address == address) {
            return;
        }
        let octets = u64::try_from(datagram.octets).unwrap_or(0);
        self.challenge = Some(Challenge {
            address,
            data: random | 1,
            tries: CHALLENGES,
            due: now,
            budget: 3 * octets,
        });
    }

    fn on_pong(
        &mut self,
        config: &RdConfig,
        now: Instant,
        from: Peer,
        data: u64,
        events: &mut VecDeque<Event>,
    ) {
        let proven = |it: &mut Challenge| it.address == from && it.data == data;
        if self.challenge.take_if(proven).is_none() {
            return;
        }
        if self.address.ip_addr() != from.ip_addr() {
            self.renew_path(config, now);
        }
        self.address = from;
        events.push_back(Event::Moved {
            peer: self.peer,
            to: from,
        });
    }

    /// Another path: its window and round-trip time are not known.
    fn renew_path(&mut self, config: &RdConfig, now: Instant) {
        self.rtt = super::Rtt::new(config.initial_rtt);
        self.congestion = super::Congestion::new(config.algorithm, self.datagram.into());
        self.pacing = super::Pacing::new(now);
        self.tuning = super::Tuning::default();
        self.backoff = 0;
    }

    fn on_hello(&mut self, envelope: &Envelope, hello: &Hello) {
        if self.peer_id.is_none() && !hello.retry {
            self.peer_id = Some(hello.association);
            self.peer_epoch = Some(envelope.epoch);
            self.window = (hello.credit.window, envelope.number);
            self.outbound.grant(hello.credit.receives);
        }
        if hello.cookie != 0 {
            self.proof = hello.cookie;
        }
    }

    /// Returns whether the segment was accepted.
    fn on_segment<P: Payload + ?Sized>(
        &mut self,
        config: &RdConfig,
        packet: u64,
        header: &SegmentHeader,
        segment: PayloadSlice<'_, P>,
        events: &mut VecDeque<Event>,
        place: &mut impl FnMut(&SegmentHeader, Before, PayloadSlice<'_, P>) -> Verdict,
    ) -> Result<bool, Ended> {
        match self.inbound.check(header) {
            Arrival::New => {}
            Arrival::Known => return Ok(true),
            Arrival::Moot => {
                self.inbound.pass(header.number);
                return Ok(true);
            }
            Arrival::Beyond => return Ok(false),
            Arrival::Violation => return Err(VIOLATION),
        }
        let takes = header.receive && !self.inbound.has_begun(header.message);
        let beyond = self.taken == self.grant.receives;
        let before = Before {
            missing: if takes {
                self.inbound.missing_before(header)
            } else {
                0
            },
            delivered: self.inbound.is_in_turn(header),
        };
        let verdict = if beyond && before.missing > 0 {
            Verdict::NotReady
        } else {
            place(header, before, segment)
        };
        let peer = self.peer;
        let mut deliver = |message, stream| {
            events.push_back(Event::Delivered {
                peer,
                message,
                stream,
            });
        };
        match verdict {
            Verdict::Placed => {
                self.inbound.place(header, &mut deliver);
                if takes {
                    self.taken = self.taken.wrapping_add(1);
                    if beyond {
                        self.grant.receives = self.taken;
                    }
                }
                Ok(true)
            }
            Verdict::NoRoom => Ok(false),
            Verdict::NotReady => {
                if self.not_ready.len() == NOT_READY {
                    self.not_ready.pop_front();
                }
                let delay = u32::try_from(config.rnr_delay.as_micros()).unwrap_or(u32::MAX);
                self.not_ready.push_back(NotReady {
                    packet,
                    message: header.message,
                    delay,
                });
                Ok(false)
            }
            Verdict::Failed(control) => {
                if self.errors.len() == ERRORS {
                    return Ok(false);
                }
                // Its sender counts it, too.
                if takes {
                    self.taken = self.taken.wrapping_add(1);
                    if beyond {
                        self.grant.receives = self.taken;
                    }
                }
                self.errors.push_back(OpenError {
                    error: MessageError {
                        message: header.message,
                        control,
                    },
                    due: true,
                });
                self.inbound.fail(header, &mut deliver);
                Ok(true)
            }
        }
    }

    fn on_ack(
        &mut self,
        config: &RdConfig,
        now: Instant,
        ack: &Ack,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Ended> {
        let (peer, outbound, errors) = (self.peer, &mut self.outbound, &mut self.errors);
        let received = &mut self.received;
        let mut octets = 0;
        let mut latest: Option<Instant> = None;
        let acked = self.recovery.on_ack(now, ack, |left: Left<Contents>| {
            octets += u64::from(left.octets);
            latest = latest.max(Some(left.at));
            if let Some(largest) = left.contents.acknowledges {
                received.on_known(largest);
            }
            for number in left.contents.segments() {
                outbound.on_acked(number, |token| {
                    events.push_back(Event::Completed { peer, token });
                });
            }
            let latest = |message| errors.iter().position(|it| it.error.message == message);
            if let Some(latest) = left.contents.error.and_then(latest) {
                errors.drain(..=latest);
            }
        });
        let acked = acked.map_err(|_| VIOLATION)?;
        if let Some(sample) = acked.sample {
            // With much in flight, a peer that had no core for a while may be as slow again.
            let most = if self.recovery.in_flight() <= super::FEW {
                Duration::MAX
            } else {
                super::MOST_ACK_DELAY
            };
            let delay = Duration::from_micros(ack.delay.into()).min(most);
            self.rtt.sample(sample, delay);
        }
        if acked.round {
            self.rtt.end_round();
        }
        let Some(sent) = latest else { return Ok(()) };
        self.backoff = 0;
        self.probes = 0;
        let delivered = Delivered {
            octets,
            sent,
            limited: self.limited,
            round: acked.round,
            sample: acked.sample,
        };
        self.congestion.on_ack(now, &delivered, &self.rtt);
        if let Some(counts) = ack.ecn {
            let more = counts.ce.wrapping_sub(self.counts.ce);
            if more != 0 && more < 1 << 31 {
                self.congestion.on_mark(now, sent);
            }
            self.counts = counts;
        }
        self.detect_losses(config, now);
        Ok(())
    }

    fn on_placed(&mut self, placed: &Placed, events: &mut VecDeque<Event>) -> Result<(), Ended> {
        let peer = self.peer;
        let possible = self.outbound.on_placed(placed, |token| {
            events.push_back(Event::Completed { peer, token });
        });
        possible.then_some(()).ok_or(VIOLATION)
    }

    fn on_not_ready(
        &mut self,
        config: &RdConfig,
        now: Instant,
        not_ready: &NotReady,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Ended> {
        let Some(contents) = self.recovery.withdraw(not_ready.packet) else {
            return Ok(());
        };
        self.backoff = 0;
        self.resend_error(contents.error);
        let delay = Duration::from_micros(not_ready.delay.into());
        for number in contents.segments() {
            // Segments of other messages shared the datagram: they go again at once.
            if self.outbound.owner(number) != Some(not_ready.message) {
                self.outbound.on_lost(number);
                continue;
            }
            let refused = self
                .outbound
                .on_refused(now, number, delay, config.rnr_retries);
            if let Err(exceeded) = refused {
                let failed = (not_ready.message, exceeded.token);
                return self.fail_message(config, failed, Cause::RnrRetries, events);
            }
        }
        Ok(())
    }

    fn on_error(
        &mut self,
        config: &RdConfig,
        error: MessageError,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Ended> {
        let Some(token) = self.outbound.token(error.message) else {
            // A request may be refused behind its acknowledgement.
            events.push_back(Event::Refused {
                peer: self.peer,
                message: error.message,
                control: error.control,
            });
            return Ok(());
        };
        let cause = Cause::Remote(error.control);
        self.fail_message(config, (error.message, token), cause, events)
    }

    /// One message fails for a cause of its own.
    fn fail_message(
        &mut self,
        config: &RdConfig,
        (message, token): (u32, u64),
        cause: Cause,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Ended> {
        match config.scope {
            Scope::Peer => self.end_message(token, cause, events),
            Scope::Message => {
                self.outbound.abandon(message);
                let peer = self.peer;
                events.push_back(Event::Failed { peer, token, cause });
                Ok(())
            }
        }
    }

    /// One message fails for a cause of its own, and with it the association.
    fn end_message(
        &mut self,
        token: u64,
        cause: Cause,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Ended> {
        let peer = self.peer;
        self.outbound.drain(|other| {
            let cause = if other == token {
                cause
            } else {
                Cause::Flushed
            };
            events.push_back(Event::Failed {
                peer,
                token: other,
                cause,
            });
        });
        Err(Ended {
            cause: Cause::Flushed,
            reason: Some(CloseReason::Failed),
        })
    }
}
