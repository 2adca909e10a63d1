//! Streams of calls (`rfc-notes/ripc.md`, "Streams"): their parts and credit on connections.

use std::task::{Context, Poll, Waker};

use parking_lot::MutexGuard;

use super::progress::{Inner, Shared};
use super::state::State;
use super::stream::{Broken, Stream, StreamId, Streaming};
use crate::engine::streams::{BadPart, Incoming, Outgoing};
use crate::engine::urgency::Urgency;
use crate::system::replace_waker;
use crate::wire::message::{Direction, Kind, Message, STREAM_OVERHEAD, Streams};

/// Direction of the octets that this end sends.
fn outward(id: StreamId) -> Direction {
    if id.caller == 0 {
        Direction::Up
    } else {
        Direction::Down
    }
}

fn inward(id: StreamId) -> Direction {
    match outward(id) {
        Direction::Up => Direction::Down,
        Direction::Down => Direction::Up,
    }
}

impl State {
    /// Opens the streams of a call that was begun here.
    pub(crate) fn open_own(
        &mut self,
        connection: u64,
        number: u64,
        streams: Streams,
        urgency: Urgency,
    ) {
        let window = self.limits.stream.into();
        let id = StreamId { caller: 0, number };
        let stream = Stream {
            connection,
            urgency,
            outgoing: streams.up.then(|| Outgoing::new(0)),
            incoming: streams.down.then(|| Incoming::new(window)),
            opened: false,
            used: false,
            broken: false,
            queued: false,
            reader: None,
            writer: None,
        };
        self.streams.insert(id, stream);
    }

    /// Opens the streams of a call of a peer.
    pub(crate) fn open_theirs(
        &mut self,
        connection: u64,
        caller: u64,
        number: u64,
        streams: Streams,
    ) {
        let granted = self.peers.get(&connection).map_or(0, |it| it.stream);
        let route = self.routes.get(&(caller, number));
        let urgency = route.map(|it| it.urgency).unwrap_or_default();
        let window = self.limits.stream.into();
        let stream = Stream {
            connection,
            urgency,
            outgoing: streams.down.then(|| Outgoing::new(granted)),
            incoming: streams.up.then(|| Incoming::new(window)),
            opened: true,
            used: false,
            broken: false,
            queued: false,
            reader: None,
            writer: None,
        };
        if stream.outgoing.is_some() || stream.incoming.is_some() {
            self.streams.insert(StreamId { caller, number }, stream);
        }
    }

    /// Moves the streams of a peer's call to another connection, where they were not used.
    pub(crate) fn move_theirs(
        &mut self,
        connection: u64,
        caller: u64,
        number: u64,
        streams: Streams,
    ) {
        let stream = self.streams.get(&StreamId { caller, number });
        if stream.is_some_and(|it| !it.used && it.incoming.is_none()) {
            self.open_theirs(connection, caller, number, streams);
        }
    }

    /// Takes the connection that a call of this endpoint goes to. Returns the streams that it has there.
    pub(crate) fn streams_on(&mut self, connection: u64, number: u64) -> Streams {
        let granted = self.peers.get(&connection).map_or(0, |it| it.stream);
        let Some(stream) = self.streams.get_mut(&StreamId { caller: 0, number }) else {
            return Streams::default();
        };
        stream.connection = connection;
        if let Some(outgoing) = &mut stream.outgoing {
            outgoing.grant(granted);
        }
        Streams {
            down: granted > 0 && stream.incoming.is_some(),
            up: stream.outgoing.is_some(),
        }
    }

    /// Takes the departure of a call: its parts may follow.
    pub(crate) fn streams_sent(&mut self, number: u64) {
        if let Some(stream) = self.streams.get_mut(&StreamId { caller: 0, number }) {
            stream.opened = true;
            self.woken.extend(stream.writer.take());
        }
    }

    /// Whether a call has streams that the peer does not take.
    pub(crate) fn lacks_streams(&self, connection: u64, number: u64) -> bool {
        let stream = self.streams.get(&StreamId { caller: 0, number });
        let has = stream.is_some_and(|it| it.outgoing.is_some());
        has && self.peers.get(&connection).is_some_and(|it| it.stream == 0)
    }

    /// Whether a call of this endpoint has used its streams, and so belongs to its connection.
    pub(crate) fn is_streaming(&self, number: u64) -> bool {
        let stream = self.streams.get(&StreamId { caller: 0, number });
        stream.is_some_and(|it| it.used || it.outgoing.is_some())
    }

    /// Ends the streams of a call; octets that have come stay.
    pub(crate) fn end_streams(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            if let Some(outgoing) = &mut stream.outgoing {
                outgoing.stop();
            }
            if let Some(incoming) = &mut stream.incoming {
                stream.broken |= !incoming.has_ended();
                incoming.end();
            }
            self.woken.extend(stream.reader.take());
            self.woken.extend(stream.writer.take());
        }
    }

    /// Ends the streams of peers' calls on a connection that is over; their executions are cancelled.
    pub(crate) fn break_streams(&mut self, connection: u64) {
        let theirs = |id: &StreamId, it: &Stream| id.caller != 0 && it.connection == connection;
        let of_it = self.streams.iter().filter(|(id, it)| theirs(id, it));
        let of_it: Vec<_> = of_it
            .map(|(id, it)| (*id, it.used || it.incoming.is_some()))
            .collect();
        for (id, used) in of_it {
            self.end_streams(id);
            if used && let Some(route) = self.routes.get(&(id.caller, id.number)) {
                self.woken.extend(route.cancelled.set());
            }
        }
    }

    /// Takes a STREAM or a GRANT.
    pub(crate) fn of_stream(
        &mut self,
        connection: u64,
        number: u64,
        kind: Kind,
    ) -> Result<(), BadPart> {
        if let Kind::Stream {
            direction,
            end,
            octets,
        } = kind
        {
            self.part(connection, number, direction, &octets, end)?;
        } else if let Kind::Grant {
            direction,
            stop,
            granted,
        } = kind
        {
            self.grant(connection, number, direction, granted, stop);
        }
        Ok(())
    }

    /// Takes a part of a stream. One of a call that is over is dropped.
    fn part(
        &mut self,
        connection: u64,
        number: u64,
        direction: Direction,
        octets: &[u8],
        end: bool,
    ) -> Result<(), BadPart> {
        let Some((id, stream)) = self.stream_of(connection, number, direction, inward) else {
            return Ok(());
        };
        if let Some(incoming) = &mut stream.incoming {
            incoming.part(octets, end)?;
            stream.used = true;
            let due = incoming.is_due();
            let reader = stream.reader.take();
            self.woken.extend(reader);
            if due {
                self.queue_stream(id);
            }
        }
        Ok(())
    }

    /// Takes the credit of a stream.
    fn grant(
        &mut self,
        connection: u64,
        number: u64,
        direction: Direction,
        granted: u64,
        stop: bool,
    ) {
        let Some((id, stream)) = self.stream_of(connection, number, direction, outward) else {
            return;
        };
        if let Some(outgoing) = &mut stream.outgoing {
            outgoing.grant(granted);
            if stop {
                outgoing.stop();
                let writer = stream.writer.take();
                self.woken.extend(writer);
            }
            self.queue_stream(id);
        }
    }

    fn stream_of(
        &mut self,
        connection: u64,
        number: u64,
        direction: Direction,
        of: fn(StreamId) -> Direction,
    ) -> Option<(StreamId, &mut Stream)> {
        let instance = self.peers.get(&connection)?.instance;
        let ids = [0, instance].map(|caller| StreamId { caller, number });
        let id = ids.into_iter().find(|id| of(*id) == direction)?;
        let stream = self.streams.get_mut(&id)?;
        (stream.connection == connection).then_some((id, stream))
    }

    fn queue_stream(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.opened
            && !stream.queued
            && let Some(peer) = self.peers.get_mut(&stream.connection)
        {
            stream.queued = true;
            peer.outbox.push_stream(stream.urgency, id);
        }
    }

    /// Sends a grant or a part of a stream whose turn it is.
    pub(crate) fn flush_stream(&mut self, key: u64, id: StreamId) {
        let stream = self.streams.get_mut(&id);
        let Some(stream) = stream.filter(|it| it.connection == key) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        stream.queued = false;
        let most = peer.longest.saturating_sub(STREAM_OVERHEAD);
        // It costs nothing.
        let mut post = |kind| {
            let message = Message {
                number: id.number,
                credit: 0,
                kind,
            };
            let _ = peer.post(message, false);
        };
        let mut again = false;
        if let Some(incoming) = &mut stream.incoming
            && incoming.is_due()
        {
            let (granted, stop) = incoming.announce();
            post(Kind::Grant {
                direction: inward(id),
                stop,
                granted,
            });
            again = true;
        } else if let Some(outgoing) = &mut stream.outgoing {
            if let Some((octets, end)) = outgoing.part(most) {
                stream.used = true;
                post(Kind::Stream {
                    direction: outward(id),
                    end,
                    octets,
                });
                again = true;
            }
            if outgoing.is_flushed() || outgoing.has_room() {
                self.woken.extend(stream.writer.take());
            }
        }
        if again {
            self.queue_stream(id);
        }
    }

    /// Withdraws parts that wait, of a call that gets its reply. Returns the connection that its streams were used on.
    pub(crate) fn close_theirs(&mut self, caller: u64, number: u64) -> Option<u64> {
        let id = StreamId { caller, number };
        self.end_streams(id);
        let stream = self.streams.remove(&id).filter(|it| it.used);
        stream.map(|it| it.connection)
    }
}

impl Shared {
    /// Lets `step` change a stream, sends what is due then, and wakes tasks. Wakers that `step` replaces are dropped without the lock.
    fn with_stream<T>(
        &self,
        id: StreamId,
        step: impl FnOnce(Option<&mut Stream>, &mut Vec<Waker>) -> T,
    ) -> T {
        let mut inner: MutexGuard<'_, Inner> = self.lock();
        let mut dropped = Vec::new();
        let result = step(inner.state.streams.get_mut(&id), &mut dropped);
        let connection = inner.state.streams.get(&id).map(|it| it.connection);
        if let Some(connection) = connection {
            inner.state.queue_stream(id);
            let now = self.clock().now;
            inner.state.flush(connection, now);
        }
        self.wake(&mut inner);
        drop(inner);
        drop(dropped);
        result
    }
}

impl Streaming for Shared {
    fn poll_send(
        &self,
        id: StreamId,
        octets: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<Option<usize>> {
        self.with_stream(id, |stream, dropped| {
            let Some(stream) = stream else {
                return Poll::Ready(None);
            };
            let Some(outgoing) = &mut stream.outgoing else {
                return Poll::Ready(None);
            };
            let taken = if stream.opened {
                outgoing.push(octets)
            } else {
                (!outgoing.is_over()).then_some(0)
            };
            if taken == Some(0) && !octets.is_empty() {
                dropped.extend(replace_waker(&mut stream.writer, context.waker()));
                return Poll::Pending;
            }
            Poll::Ready(taken)
        })
    }

    fn poll_stopped(&self, id: StreamId, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        let stream = inner.state.streams.get_mut(&id);
        let open = |it: &&mut Stream| it.outgoing.as_ref().is_some_and(|it| !it.is_over());
        let Some(stream) = stream.filter(open) else {
            return Poll::Ready(());
        };
        let replaced = replace_waker(&mut stream.writer, context.waker());
        drop(inner);
        drop(replaced);
        Poll::Pending
    }

    fn finish(&self, id: StreamId) {
        self.with_stream(id, |stream, _| {
            if let Some(outgoing) = stream.and_then(|it| it.outgoing.as_mut()) {
                outgoing.finish();
            }
        });
    }

    fn poll_flush(&self, id: StreamId, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        let stream = inner.state.streams.get_mut(&id);
        let Some(stream) = stream else {
            return Poll::Ready(());
        };
        if stream.outgoing.as_ref().is_none_or(Outgoing::is_flushed) {
            return Poll::Ready(());
        }
        let replaced = replace_waker(&mut stream.writer, context.waker());
        drop(inner);
        drop(replaced);
        Poll::Pending
    }

    fn poll_receive(
        &self,
        id: StreamId,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<u8>, Broken>>> {
        let mut inner = self.lock();
        let state = &mut inner.state;
        let Some(stream) = state.streams.get_mut(&id) else {
            return Poll::Ready(Some(Err(Broken)));
        };
        let connection = stream.connection;
        let Some(incoming) = &mut stream.incoming else {
            return Poll::Ready(None);
        };
        if let Some(octets) = incoming.read() {
            if incoming.is_due() {
                state.queue_stream(id);
                state.flush(connection, self.clock().now);
                self.wake(&mut inner);
            }
            return Poll::Ready(Some(Ok(octets)));
        }
        if incoming.has_ended() {
            // The caller has the result of the call.
            let broken = stream.broken && id.caller != 0;
            // Nothing came, so that the call is over, and there is nothing else.
            if id.caller == 0 && !stream.used && stream.outgoing.is_none() {
                let removed = state.streams.remove(&id);
                drop(inner);
                drop(removed);
            }
            return Poll::Ready(broken.then_some(Err(Broken)));
        }
        let replaced = replace_waker(&mut stream.reader, context.waker());
        drop(inner);
        drop(replaced);
        Poll::Pending
    }

    fn stop(&self, id: StreamId) {
        let mut inner = self.lock();
        let state = &mut inner.state;
        let Some(stream) = state.streams.get_mut(&id) else {
            return;
        };
        let (connection, reader) = (stream.connection, stream.reader.take());
        if let Some(incoming) = &mut stream.incoming {
            incoming.stop();
            if incoming.is_due() {
                state.queue_stream(id);
                state.flush(connection, self.clock().now);
            }
        }
        // Streams of a call of this endpoint are over with their receiver.
        let removed = (id.caller == 0).then(|| {
            state.end_streams(id);
            state.streams.remove(&id)
        });
        self.wake(&mut inner);
        drop(inner);
        drop((reader, removed));
    }
}
