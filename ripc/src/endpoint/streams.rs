//! Streams of calls (`rfc-notes/ripc.md`, "Streams"): their parts and credit on connections.

use std::task::{Context, Poll, Waker};

use parking_lot::MutexGuard;

use super::progress::{Inner, Shared};
use super::state::State;
use super::stream::{Broken, Stream, StreamId, Streaming};
use crate::engine::call_streams::{CallStreams, Step};
use crate::engine::streams::{BadPart, Incoming, Outgoing};
use crate::engine::urgency::Urgency;
use crate::system::replace_waker;
use crate::wire::message::{Direction, Kind, STREAM_OVERHEAD, Streams};

/// Direction of the octets that this end sends.
fn outward(id: StreamId) -> Direction {
    if id.caller == 0 {
        Direction::Up
    } else {
        Direction::Down
    }
}

fn inward(id: StreamId) -> Direction {
    outward(id).opposite()
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
        let of_call = CallStreams::of_caller(connection, streams, self.limits.stream.into());
        let id = StreamId { caller: 0, number };
        self.streams.insert(id, Stream::new(of_call, urgency));
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
        if let Some(of_call) = CallStreams::of_server(connection, streams, granted, window) {
            let id = StreamId { caller, number };
            self.streams.insert(id, Stream::new(of_call, urgency));
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
        if stream.is_some_and(|it| it.of_call.may_move()) {
            self.open_theirs(connection, caller, number, streams);
        }
    }

    /// Takes the connection that a call of this endpoint goes to. Returns the streams that it has there.
    pub(crate) fn streams_on(&mut self, connection: u64, number: u64) -> Streams {
        let granted = self.peers.get(&connection).map_or(0, |it| it.stream);
        let stream = self.streams.get_mut(&StreamId { caller: 0, number });
        stream.map_or_else(Streams::default, |it| {
            it.of_call.send_on(connection, granted)
        })
    }

    /// Takes the departure of a call: its parts may follow.
    pub(crate) fn streams_sent(&mut self, number: u64) {
        if let Some(stream) = self.streams.get_mut(&StreamId { caller: 0, number }) {
            stream.of_call.opened = true;
            self.woken.extend(stream.writer.take());
        }
    }

    /// Whether a call has streams that the peer does not take.
    pub(crate) fn lacks_streams(&self, connection: u64, number: u64) -> bool {
        let stream = self.streams.get(&StreamId { caller: 0, number });
        let has = stream.is_some_and(|it| it.of_call.outgoing.is_some());
        has && self.peers.get(&connection).is_some_and(|it| it.stream == 0)
    }

    /// Whether a call of this endpoint belongs to its connection by its streams.
    pub(crate) fn is_streaming(&self, number: u64) -> bool {
        let stream = self.streams.get(&StreamId { caller: 0, number });
        stream.is_some_and(|it| it.of_call.is_bound())
    }

    /// Ends the streams of a call; octets that have come stay.
    pub(crate) fn end_streams(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.of_call.end();
            self.woken.extend(stream.reader.take());
            self.woken.extend(stream.writer.take());
        }
    }

    /// Ends the streams of peers' calls on a connection that is over; their executions are cancelled.
    pub(crate) fn break_streams(&mut self, connection: u64) {
        let theirs =
            |id: &StreamId, it: &Stream| id.caller != 0 && it.of_call.connection == connection;
        let of_it = self.streams.iter().filter(|(id, it)| theirs(id, it));
        let of_it: Vec<_> = of_it
            .map(|(id, it)| (*id, it.of_call.is_needed()))
            .collect();
        for (id, is_needed) in of_it {
            self.end_streams(id);
            if is_needed && let Some(route) = self.routes.get(&(id.caller, id.number)) {
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
        stream.of_call.part(octets, end)?;
        let incoming = stream.of_call.incoming.as_ref();
        let due = incoming.is_some_and(Incoming::is_due);
        let reader = stream.reader.take();
        self.woken.extend(reader);
        if due {
            self.queue_stream(id);
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
        stream.of_call.grant(granted, stop);
        let writer = stop.then(|| stream.writer.take()).flatten();
        self.woken.extend(writer);
        self.queue_stream(id);
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
        (stream.of_call.connection == connection).then_some((id, stream))
    }

    fn queue_stream(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.of_call.opened
            && !stream.queued
            && let Some(peer) = self.peers.get_mut(&stream.of_call.connection)
        {
            stream.queued = true;
            peer.outbox.push_stream(stream.urgency, id);
        }
    }

    /// Sends a grant or a part of a stream whose turn it is.
    pub(crate) fn flush_stream(&mut self, key: u64, id: StreamId) {
        let stream = self.streams.get_mut(&id);
        let Some(stream) = stream.filter(|it| it.of_call.connection == key) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        stream.queued = false;
        let most = peer.longest.saturating_sub(STREAM_OVERHEAD);
        let step = stream.of_call.step(most);
        let is_grant = matches!(step, Some(Step::Grant { .. }));
        let outgoing = stream.of_call.outgoing.as_ref().filter(|_| !is_grant);
        if outgoing.is_some_and(|it| it.is_flushed() || it.has_room()) {
            self.woken.extend(stream.writer.take());
        }
        if let Some(step) = step {
            let message = step.into_message(id.number, outward(id));
            // It costs nothing.
            let _ = peer.post(message, false);
            self.queue_stream(id);
        }
    }

    /// Withdraws parts that wait, of a call that gets its reply. Returns the connection that its streams were used on.
    pub(crate) fn close_theirs(&mut self, caller: u64, number: u64) -> Option<u64> {
        let id = StreamId { caller, number };
        self.end_streams(id);
        self.streams.remove(&id)?.of_call.used_on()
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
        let connection = inner.state.streams.get(&id).map(|it| it.of_call.connection);
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
            let Some(outgoing) = &mut stream.of_call.outgoing else {
                return Poll::Ready(None);
            };
            let taken = if stream.of_call.opened {
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
        let open = |it: &&mut Stream| {
            let outgoing = it.of_call.outgoing.as_ref();
            outgoing.is_some_and(|it| !it.is_over())
        };
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
            if let Some(outgoing) = stream.and_then(|it| it.of_call.outgoing.as_mut()) {
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
        let outgoing = stream.of_call.outgoing.as_ref();
        if outgoing.is_none_or(Outgoing::is_flushed) {
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
        let connection = stream.of_call.connection;
        let Some(incoming) = &mut stream.of_call.incoming else {
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
            let broken = stream.of_call.broken && id.caller != 0;
            // Nothing came, so that the call is over, and there is nothing else.
            if id.caller == 0 && !stream.of_call.is_bound() {
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
        let (connection, reader) = (stream.of_call.connection, stream.reader.take());
        if let Some(incoming) = &mut stream.of_call.incoming {
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
