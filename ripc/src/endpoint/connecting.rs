//! Connections that are made, taken and lost, and signs of life.

use std::sync::Arc;
use std::time::Duration;

use dgiwarp::{ConnectionEvent, RcRequest, ReadDepths};

use super::inbound::Clock;
use super::peer::Phase;
use super::progress::{NAP, Shared, TICK};
use super::state::State;
use crate::wire::VERSION;
use crate::wire::hello::{Hello, Refusal};
use crate::wire::message::Kind;

/// Silence after which a peer with calls pending is asked for a sign of life.
const PING: Duration = Duration::from_secs(1);
/// Reads and atomics under way in either direction.
const DEPTHS: ReadDepths = ReadDepths { ird: 16, ord: 16 };

impl Shared {
    /// Body of the thread that makes and takes connections, and keeps the time.
    pub(crate) fn connect(self: &Arc<Self>) {
        let channel = self.lock().state.device.channel.clone();
        while !self.lock().state.closed {
            let due = self.lock().state.calls.poll_timeout();
            let left = due.map(|at| at.saturating_sub(self.clock().now));
            let event = channel.next_event(left.map_or(NAP, |left| left.clamp(TICK, NAP)));
            let mut inner = self.lock();
            let clock = self.clock();
            if let Some(event) = event {
                inner.state.event(event, clock);
            }
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
            ConnectionEvent::Request { request, .. } => self.requested(request, now),
            ConnectionEvent::Established {
                context,
                established,
            } => {
                let Some(peer) = self.peers.get_mut(&context) else {
                    return;
                };
                if peer.target.is_some() {
                    match Hello::parse(&established.private_data) {
                        Ok(hello) if hello.version == VERSION => {
                            peer.greet(&hello, self.limits.longest);
                        }
                        Ok(_) | Err(_) => {
                            let reason = "the peer does not speak RIPC";
                            return self.close(context, false, reason, now);
                        }
                    }
                }
                peer.phase = Phase::Up;
                peer.last_heard = now;
                peer.post_pieces();
                self.flush(context, now);
            }
            ConnectionEvent::Rejected { context, rejection } => {
                let reason = match Refusal::parse(&rejection.private_data) {
                    Ok((version, Refusal::Version)) => {
                        format!("the peer speaks version {version} only")
                    }
                    Ok((_, Refusal::Malformed)) => "the peer does not take our hello".to_owned(),
                    Ok((_, Refusal::NoRoom)) => "the peer has no room for another".to_owned(),
                    Err(_) => "the peer does not speak RIPC".to_owned(),
                };
                self.close(context, false, &reason, now);
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

    fn requested(&mut self, request: RcRequest, now: Duration) {
        let hello = Hello::parse(&request.request().private_data);
        let channel = self.device.channel.clone();
        let refuse = |request, refusal: Refusal| {
            // The peer sees the end of TCP where even this fails.
            let _ = channel.reject(request, &refusal.emit());
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(crate::wire::FormatError::Version(_)) => return refuse(request, Refusal::Version),
            Err(_) => return refuse(request, Refusal::Malformed),
        };
        let known = !self.going_away && self.executions.connected(hello.instance, now);
        let key = self.new_peer(request.peer(), now);
        let (true, Ok(key)) = (known, key) else {
            if known {
                self.executions.disconnected(hello.instance, now);
            }
            return refuse(request, Refusal::NoRoom);
        };
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.greet(&hello, self.limits.longest);
        let answer = self.device.hello.emit();
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
        keys.extend(streams.map(|(_, it)| it.connection));
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
