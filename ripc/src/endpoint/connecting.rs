//! Connections that are made, taken and lost, and signs of life.

use std::sync::Arc;
use std::time::Duration;

use dgiwarp::{ConnectionEvent, RcRequest, ReadDepths};

use super::inbound::Clock;
use super::peer::Phase;
use super::progress::{NAP, Shared, TICK};
use super::secure::rights::{Unwelcome, Welcome, greeted, rejected, welcome};
use super::state::State;
use crate::wire::hello::Refusal;
use crate::wire::message::Kind;

/// Silence after which a peer with calls pending is asked for a sign of life.
const PING: Duration = Duration::from_secs(1);
/// Reads and atomics under way in either direction.
const DEPTHS: ReadDepths = ReadDepths { ird: 16, ord: 16 };

impl Shared {
    /// Body of the thread that makes and takes connections, and keeps the time.
    pub(crate) fn connect(self: &Arc<Self>) {
        let (channel, hello, identity) = {
            let state = &self.lock().state;
            let device = &state.device;
            (
                device.channel.clone(),
                device.hello,
                state.rights.identity.clone(),
            )
        };
        while !self.lock().state.closed {
            let due = self.lock().state.calls.poll_timeout();
            let left = due.map(|at| at.saturating_sub(self.clock().now));
            let event = channel.next_event(left.map_or(NAP, |left| left.clamp(TICK, NAP)));
            // A handshake takes its time, and holds up nobody else.
            let (request, event) = match event {
                Some(ConnectionEvent::Request { request, .. }) => {
                    let data = &request.request().private_data;
                    let welcome = welcome(data, &hello, identity.as_deref());
                    (Some((request, welcome)), None)
                }
                event => (None, event),
            };
            let mut inner = self.lock();
            let clock = self.clock();
            if let Some((request, welcome)) = request {
                inner.state.requested(request, welcome, clock.now);
            }
            if let Some(event) = event {
                inner.state.event(event, clock);
            }
            inner.state.expire_unconfirmed(clock.now);
            inner.state.expire(clock.now);
            inner.state.check_life(clock.now);
            self.wake(&mut inner);
        }
    }
}

impl State {
    fn event(&mut self, event: ConnectionEvent, clock: Clock) {
        let now = clock.now;
        match event {
            ConnectionEvent::Established {
                context,
                established,
            } => {
                let Some(peer) = self.peers.get_mut(&context) else {
                    return;
                };
                if peer.target.is_some() {
                    let identity = self.rights.identity.as_deref();
                    let data = &established.private_data;
                    if let Err((code, reason)) = greeted(peer, data, &self.device.hello, identity) {
                        return self.close_as(context, false, code, reason, now);
                    }
                }
                let awaits = peer.secure.as_ref().is_some_and(|secure| secure.awaits);
                peer.phase = if awaits {
                    Phase::Unconfirmed
                } else {
                    Phase::Up
                };
                peer.last_heard = now;
                peer.post_pieces();
                self.flush(context, now);
            }
            ConnectionEvent::Rejected { context, rejection } => {
                let (code, reason) = rejected(&rejection.private_data);
                self.close_as(context, false, code, &reason, now);
            }
            ConnectionEvent::Failed {
                context,
                peer,
                error,
            } => {
                let reason = format!("no connection to {peer}: {error}");
                self.close(context, false, &reason, now);
            }
            ConnectionEvent::Disconnected { context, end } => {
                let reason = format!("the connection ended ({end:?})");
                self.close(context, true, &reason, now);
            }
            _ => {}
        }
    }

    fn requested(
        &mut self,
        request: RcRequest,
        welcome: Result<Welcome, Unwelcome>,
        now: Duration,
    ) {
        let channel = self.device.channel.clone();
        let refuse = |request, refusal: Refusal| {
            // The peer sees the end of TCP where even this fails.
            let _ = channel.reject(request, &refusal.emit());
        };
        let Welcome {
            hello,
            answer,
            secure,
        } = match welcome {
            Ok(welcome) => welcome,
            Err(reason) => {
                self.rights.note(request.peer(), &reason);
                return refuse(request, reason.refusal());
            }
        };
        let known = !self.going_away && self.executions.connected(hello.instance, now);
        let key = self.new_peer(request.peer(), now);
        let (true, Ok(key)) = (known, key) else {
            if known {
                self.executions.disconnected(hello.instance, now);
            }
            return refuse(request, Refusal::NoRoom);
        };
        self.await_confirmation(key, secure, now);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.greet(&hello, self.limits.longest);
        if let Err(error) = channel.accept_and_tell(request, &peer.qp, DEPTHS, &answer, key) {
            let reason = format!("not accepted: {error}");
            self.close(key, false, &reason, now);
        }
    }

    /// Asks silent peers with calls pending for a sign of life, and gives up those that are silent for too long.
    fn check_life(&mut self, now: Duration) {
        let pending = self.pending.values();
        let waited_for = pending.filter(|it| it.result.is_none() && !it.detached);
        let mut keys: Vec<_> = waited_for.map(|it| it.connection).collect();
        let streams = self
            .streams
            .iter()
            .filter(|(id, it)| it.is_waited_for(**id));
        keys.extend(streams.map(|(_, it)| it.of_call.connection));
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let Some(peer) = self.peers.get_mut(&key) else {
                continue;
            };
            if peer.phase != Phase::Up {
                continue;
            }
            match peer.pinged {
                Some(since)
                    if now.saturating_sub(since) + PING + 2 * NAP >= self.limits.silence =>
                {
                    self.close(key, false, "the peer is silent", now);
                }
                Some(_) => {}
                None if now.saturating_sub(peer.last_heard) >= PING => {
                    peer.pinged = Some(now);
                    peer.control(0, Kind::Ping);
                    self.flush(key, now);
                }
                None => {}
            }
        }
    }
}
