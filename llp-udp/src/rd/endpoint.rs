//! An end: associations with any number of peers over one port (§4).

mod accept;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dgiwarp_codec::{Payload, PayloadSlice};

use super::association::{Datagram, Ended};
use super::config::{Before, Cause, Event, Lives, RdConfig, Verdict};
use super::envelope::Envelope;
use super::flow::received::Ecn;
use super::frame::{CheckedFrames, Close, CloseReason, SegmentHeader};
use super::malformed::Malformed;
use super::message::outbound::Post;
use super::path_state::PathState;
use crate::Peer;

use accept::{Former, draw};
use table::Table;

/// Answers outside associations that wait to be sent.
const ANSWERS: usize = 64;
/// Copies of a CLOSE with the last acknowledgement of an association.
const CLOSES: usize = 3;
/// Time in which peers are counted that send segments, and share the receive window.
const PERIOD: Duration = Duration::from_millis(100);

/// A datagram that was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// It breaks the layout.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// No association has its identifier.
    #[error("no association has the identifier {0:#010x}")]
    UnknownAssociation(u32),
    /// It has another epoch than its association.
    #[error("epoch {0:#010x}")]
    WrongEpoch(u32),
    /// A first datagram of an association that has ended.
    #[error("the association {0:#010x} has ended")]
    Late(u32),
    /// The peer restarted: its former association ended, and the next hello opens another.
    #[error("the peer restarted")]
    Restarted,
    /// An association of another life of the peer's, or of another kind of queue pair (§9.1).
    #[error("life {0:?}")]
    OtherLife(Option<u32>),
    /// No association, and no hello to open one.
    #[error("no hello")]
    NoHello,
    /// An answer was sent that asks for a cookie.
    #[error("the address is not validated")]
    NotValidated,
}

/// A queue pair's end of all associations.
///
/// Order of calls: [`post`](Self::post) for each message; [`handle_input`](Self::handle_input) for each datagram that arrives;
/// [`handle_timeout`](Self::handle_timeout) at or after [`poll_timeout`](Self::poll_timeout). After each of these
/// [`poll_transmit`](Self::poll_transmit) until it yields nothing, and [`poll_event`](Self::poll_event) until it yields nothing. A
/// call too many does no harm. A datagram that was made and not sent counts as lost.
#[derive(Debug)]
pub struct Endpoint {
    config: RdConfig,
    table: Table,
    /// Associations with output, in turn.
    ready: VecDeque<usize>,
    events: VecDeque<Event>,
    /// Associations that hold acknowledgements back.
    held: Vec<usize>,
    /// Datagrams outside associations.
    answers: VecDeque<(Peer, Vec<u8>)>,
    former: Former,
    /// Draws so far.
    draws: u64,
    /// No peer opens an association any more.
    refuses: bool,
    fed: Fed,
}

/// Peers that sent segments lately, counted as they send: a look at all peers would cost each message of many.
#[derive(Debug, Default)]
struct Fed {
    /// Number of the period, from 1 on.
    period: u32,
    ends: Option<Instant>,
    /// Peers in this period so far.
    peers: u32,
    /// Peers in the one before.
    before: u32,
}

impl Fed {
    /// Begins another period when this one is over.
    fn advance(&mut self, now: Instant) {
        let ended = match self.ends {
            Some(ends) if now < ends => return,
            ends => ends,
        };
        let is_next = ended.is_some_and(|ended| now < ended + PERIOD);
        *self = Self {
            period: self.period.wrapping_add(1),
            ends: Some(now + PERIOD),
            peers: 0,
            before: if is_next { self.peers } else { 0 },
        };
    }

    /// Peers that share the window.
    fn peers(&self) -> u32 {
        self.peers.max(self.before).max(1)
    }
}

impl Endpoint {
    /// An end without associations.
    #[must_use]
    pub fn new(config: RdConfig) -> Self {
        Self {
            config,
            table: Table::default(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            held: Vec::new(),
            answers: VecDeque::new(),
            former: Former::default(),
            draws: 0,
            refuses: false,
            fed: Fed::default(),
        }
    }

    /// Makes the end one without associations and with another epoch (§4.5): the former ones are closed.
    pub fn renew(&mut self, now: Instant, epoch: u32, key: [u64; 2]) {
        self.close_all(now);
        let answers = std::mem::take(&mut self.answers);
        *self = Self {
            answers,
            ..Self::new(RdConfig {
                epoch,
                key,
                ..self.config
            })
        };
    }

    /// Sets the refusals after which a message fails; `None` for no limit.
    pub const fn set_rnr_retries(&mut self, retries: Option<u32>) {
        self.config.rnr_retries = retries;
    }

    /// Sets the lives of an RC queue pair and its peer, as far as they are known (§9.1).
    pub const fn set_lives(&mut self, lives: Lives) {
        self.config.connection = Some(lives);
    }

    /// Lets no peer open an association any more, until the end is renewed.
    pub const fn stop_accepting(&mut self) {
        self.refuses = true;
    }

    /// Sets the silence after which a peer is lost.
    pub const fn set_unreachable(&mut self, unreachable: Duration) {
        self.config.unreachable = unreachable;
    }

    /// Sets the delay that peers are asked for with RNR.
    pub const fn set_rnr_delay(&mut self, delay: Duration) {
        self.config.rnr_delay = delay;
    }

    /// Number of associations.
    #[must_use]
    pub fn associations(&self) -> usize {
        self.table.len()
    }

    /// Messages to a peer that did not end.
    #[must_use]
    pub fn outstanding(&self, peer: Peer) -> usize {
        let association = self.table.by_peer(peer).and_then(|at| self.table.get(at));
        association.map_or(0, |it| it.outbound.len())
    }

    /// Whether messages wait because a peer has no receive for them, and none is on the way to another peer.
    #[must_use]
    pub fn waits_for_receives(&self) -> bool {
        let mut waits = false;
        for association in self.table.active() {
            let refused = association.outbound.refused_until().is_some();
            if !refused && !association.outbound.is_empty() {
                return false;
            }
            waits |= refused;
        }
        waits
    }

    /// Posts a message to a peer, to which datagrams have at most `datagram` octets.
    pub fn post(&mut self, now: Instant, peer: Peer, datagram: u16, post: Post) {
        let at = match self.table.find(peer) {
            Some(at) => at,
            None => self.open(now, peer),
        };
        if let Some(association) = self.table.get_mut(at) {
            association.set_datagram(&self.config, datagram);
            association.expect_from(now);
            association.outbound.post(post);
        }
        self.touch(at);
    }

    /// Opens an association with a peer that there is no message for yet.
    pub fn greet_peer(&mut self, now: Instant, peer: Peer, datagram: u16) {
        if self.table.find(peer).is_some() {
            return;
        }
        let at = self.open(now, peer);
        if let Some(association) = self.table.get_mut(at) {
            association.set_datagram(&self.config, datagram);
            association.probe();
        }
        self.touch(at);
    }

    /// Grants a peer more receives.
    pub fn grant(&mut self, peer: Peer, more: u32) {
        let Some(at) = self.table.find(peer) else {
            return;
        };
        if let Some(association) = self.table.get_mut(at) {
            association.grant(more);
        }
        self.touch(at);
    }

    /// Longest datagram on the path to a peer, in octets; `None` without an association.
    #[must_use]
    pub fn datagram(&self, peer: Peer) -> Option<u16> {
        let association = self.table.by_peer(peer).and_then(|at| self.table.get(at));
        association.map(|it| it.datagram())
    }

    /// State of the path to a peer; `None` without an association.
    #[must_use]
    pub fn path_state(&self, peer: Peer) -> Option<PathState> {
        let association = self.table.by_peer(peer).and_then(|at| self.table.get(at));
        association.map(|it| it.path_state())
    }

    /// Whether the peer owes responses to messages that it placed: then it is probed when it is silent (§6.2).
    pub fn await_responses(&mut self, peer: Peer, awaits: bool) {
        let Some(at) = self.table.find(peer) else {
            return;
        };
        if let Some(association) = self.table.get_mut(at) {
            association.awaits(awaits);
        }
        self.touch(at);
    }

    /// Refuses a message of the peer that was placed: a request that cannot be carried out (§3.6).
    pub fn refuse(&mut self, now: Instant, peer: Peer, message: u32, control: u32) {
        let Some(at) = self.table.by_peer(peer) else {
            return;
        };
        let refused = self.table.get_mut(at);
        if refused.is_some_and(|it| it.refuse(message, control)) {
            self.touch(at);
        } else {
            self.fail(now, peer);
        }
    }

    /// Ends the association with a peer, because a message failed; its other messages are flushed.
    pub fn fail(&mut self, now: Instant, peer: Peer) {
        self.end_with(now, peer, CloseReason::Failed);
    }

    /// Ends the association with a peer; its messages are flushed.
    pub fn close(&mut self, now: Instant, peer: Peer) {
        self.end_with(now, peer, CloseReason::Done);
    }

    fn end_with(&mut self, now: Instant, peer: Peer, reason: CloseReason) {
        if let Some(at) = self.table.by_peer(peer) {
            let ended = Ended {
                cause: Cause::Flushed,
                reason: Some(reason),
            };
            self.end(now, at, ended);
        }
    }

    /// Ends all associations; their messages are flushed.
    pub fn close_all(&mut self, now: Instant) {
        self.end_all_with(now, CloseReason::Done);
    }

    /// Ends all associations, as the process ends that has not closed the queue pair (§4.6).
    pub fn leave_all(&mut self, now: Instant) {
        self.end_all_with(now, CloseReason::Exited);
    }

    fn end_all_with(&mut self, now: Instant, reason: CloseReason) {
        let peers: Vec<Peer> = self.table.peers().collect();
        for peer in peers {
            self.end_with(now, peer, reason);
        }
    }

    /// Handles a datagram. `place` hands a segment of `peer` to the layer above. [`Before`] is about the messages before the segment's.
    ///
    /// # Errors
    /// [`Dropped`], for a counter.
    pub fn handle_input<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        from: Peer,
        ecn: Ecn,
        octets: PayloadSlice<'_, P>,
        place: &mut impl FnMut(Peer, &SegmentHeader, Before, PayloadSlice<'_, P>) -> Verdict,
    ) -> Result<(), Dropped> {
        let (envelope, frames) = Envelope::open(octets)?;
        // All frames are checked before one is used.
        let frames = CheckedFrames::parse(frames)?;
        let (hello, close) = (frames.hello, frames.close);
        let datagram = Datagram {
            from,
            octets: octets.len(),
            ecn,
            envelope,
            frames,
        };
        if envelope.association == 0 {
            let at = match (hello, close) {
                (Some(hello), _) => self.greet(now, &datagram, &hello)?,
                (None, Some(close)) => return self.on_unknown(now, from, &close),
                (None, None) => self.anonymous(&datagram)?,
            };
            return self.deliver(now, at, &datagram, place);
        }
        let Some(at) = self.table.by_id(envelope.association) else {
            if close.is_none() {
                self.answer_unknown(now, &datagram);
            }
            return Err(Dropped::UnknownAssociation(envelope.association));
        };
        let Some(association) = self.table.get_mut(at) else {
            return Err(Dropped::UnknownAssociation(envelope.association));
        };
        if let Some(hello) = hello.filter(|hello| hello.retry) {
            // Only while nothing of the peer is known: else it has state.
            if association.is_opening() && from == association.address {
                association.retry(&hello);
                self.touch(at);
            }
            return Ok(());
        }
        if association
            .peer_epoch
            .is_some_and(|epoch| epoch != envelope.epoch)
        {
            return Err(Dropped::WrongEpoch(envelope.epoch));
        }
        self.deliver(now, at, &datagram, place)
    }

    /// Takes note of an ICMP error that reports that nobody has the port of a datagram that was sent to an address (port unreachable, RFC 792). `quoted` is
    /// the beginning of the datagram, as the error has it. The error is a hint: the peer is probed, and lost if it stays silent (§4.6).
    pub fn handle_port_unreachable(&mut self, now: Instant, to: Peer, quoted: &[u8]) {
        let (Some(at), Ok(quoted)) = (self.table.find(to), Envelope::parse(quoted)) else {
            return;
        };
        let config = &self.config;
        let doubted = self.table.get_mut(at);
        if doubted.is_some_and(|it| it.address == to && it.doubt(config, now, &quoted)) {
            self.touch(at);
        }
    }

    fn deliver<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        at: usize,
        datagram: &Datagram<'_, P>,
        place: &mut impl FnMut(Peer, &SegmentHeader, Before, PayloadSlice<'_, P>) -> Verdict,
    ) -> Result<(), Dropped> {
        let Some(association) = self.table.get_mut(at) else {
            return Err(Dropped::NoHello);
        };
        let (key, draws) = (self.config.key, &mut self.draws);
        let (peer, before) = (association.peer, association.address);
        let was_unvalidated = association.is_unvalidated();
        let handled = association.handle(
            &self.config,
            now,
            datagram,
            || draw(key, draws),
            &mut self.events,
            &mut |header, before, segment| place(peer, header, before, segment),
        );
        let (address, unvalidated) = (association.address, association.is_unvalidated());
        let fed = association.fed == Some(now);
        if was_unvalidated && !unvalidated {
            self.table.validated();
        }
        if address != before {
            self.table.moved(at, before, address);
        }
        if let Err(ended) = handled {
            self.end(now, at, ended);
            return Ok(());
        }
        if fed {
            self.share(now, at);
        }
        self.touch(at);
        Ok(())
    }

    /// Divides the receive window among the peers that sent segments lately (§6.4).
    fn share(&mut self, now: Instant, at: usize) {
        self.fed.advance(now);
        let Some(association) = self.table.get_mut(at) else {
            return;
        };
        // Datagrams from invented addresses leave the others their shares.
        if association.fed_period != self.fed.period && !association.is_unvalidated() {
            association.fed_period = self.fed.period;
            self.fed.peers += 1;
        }
        let peers = self.fed.peers();
        association.share(self.config.window / peers, self.config.long_window / peers);
    }

    /// Appends the next datagram, if there is one, and returns where it goes. `write` writes a segment, named by its peer, the
    /// token of its message and its header.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        write: &mut impl FnMut(Peer, u64, &SegmentHeader, &mut [u8]),
    ) -> Option<Peer> {
        if let Some((to, answer)) = self.answers.pop_front() {
            out.extend(answer);
            return Some(to);
        }
        while let Some(at) = self.ready.pop_front() {
            let Some(association) = self.table.get_mut(at) else {
                continue;
            };
            association.queued = false;
            let peer = association.peer;
            let to =
                association.poll_transmit(&self.config, now, out, &mut |token, header, segment| {
                    write(peer, token, header, segment);
                });
            if to.is_some() {
                self.touch(at);
                return to;
            }
            if self.config.polls && association.holds() && !association.listed {
                association.listed = true;
                self.held.push(at);
            }
            if let Some(peer) = self.table.rest(&self.config, now, at) {
                self.events.push_back(Event::Rests { peer });
            }
            self.table.set_timer(&self.config, at);
        }
        None
    }

    /// Whether the caller asks for input again soon ([`RdConfig::polls`]). Returns whether acknowledgements that were held may leave now.
    pub fn set_polls(&mut self, polls: bool) -> bool {
        self.config.polls = polls;
        if polls || self.held.is_empty() {
            return false;
        }
        for at in std::mem::take(&mut self.held) {
            if let Some(association) = self.table.get_mut(at) {
                association.listed = false;
            }
            self.touch(at);
        }
        true
    }

    /// Whether an acknowledgement is held, of one association at least. It leaves within a millisecond, and the caller asks for output then.
    #[must_use]
    pub fn holds(&self) -> bool {
        let last = self.held.last().and_then(|at| self.table.get(*at));
        last.is_some_and(|it| it.holds())
    }

    /// The association may have output. Its timer is set behind that, by [`poll_transmit`](Self::poll_transmit).
    fn touch(&mut self, at: usize) {
        if let Some(association) = self.table.get_mut(at)
            && !association.queued
        {
            association.queued = true;
            self.ready.push_back(at);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. It may find nothing to do: a timeout that was put off keeps its time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.next_timer()
    }

    /// Handles what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(at) = self.table.take_timer(now) {
            let Some(association) = self.table.get_mut(at) else {
                continue;
            };
            match association.handle_timeout(&self.config, now) {
                Some(cause) => {
                    let reason = (cause == Cause::Flushed).then_some(CloseReason::Done);
                    self.end(now, at, Ended { cause, reason });
                }
                None => self.touch(at),
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn end(&mut self, now: Instant, at: usize, ended: Ended) {
        let Some(mut association) = self.table.remove(at) else {
            return;
        };
        if association.listed {
            self.held.retain(|it| *it != at);
        }
        association.fail(ended.cause, &mut self.events);
        self.events.push_back(Event::Ended {
            peer: association.peer,
            cause: ended.cause,
        });
        if let Some(reason) = ended.reason {
            // Nobody repeats an acknowledgement that is lost with it, an RC queue pair's peer may send nothing any more, and an ended process responds to nothing.
            let is_last = reason == CloseReason::Exited || self.config.connection.is_some();
            let copies = if is_last || association.owes_acknowledgement() {
                CLOSES
            } else {
                1
            };
            for _ in 0..copies {
                let budget = association.budget();
                let mut out = Vec::new();
                association.emit_close(&self.config, now, &Close::new(reason), &mut out);
                // An address that is not validated hears nothing beyond its share.
                if out.len() as u64 <= budget {
                    self.answers.push_back((association.address, out));
                }
            }
        }
        self.former.add(now, &association);
    }

    fn answer(&mut self, to: Peer, datagram: Vec<u8>) {
        if self.answers.len() < ANSWERS {
            self.answers.push_back((to, datagram));
        }
    }
}
