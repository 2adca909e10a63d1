//! Streams of calls, as programs have them.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::engine::call_streams::CallStreams;
use crate::engine::urgency::Urgency;

/// Name of the streams of a call: the instance of its caller, 0 for this endpoint, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamId {
    pub(crate) caller: u64,
    pub(crate) number: u64,
}

/// Streams of one call.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) of_call: CallStreams,
    /// Urgency of the call.
    pub(crate) urgency: Urgency,
    /// It is in its connection's queue of streams.
    pub(crate) queued: bool,
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
}

impl Stream {
    pub(crate) fn new(of_call: CallStreams, urgency: Urgency) -> Self {
        Self {
            of_call,
            urgency,
            queued: false,
            reader: None,
            writer: None,
        }
    }

    /// Whether its connection has to give signs of life for it.
    pub(crate) fn is_waited_for(&self, id: StreamId) -> bool {
        id.caller != 0 && self.of_call.is_needed()
    }
}

/// Operations of programs on streams.
pub(crate) trait Streaming: fmt::Debug + Send + Sync {
    fn poll_send(
        &self,
        id: StreamId,
        octets: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<Option<usize>>;
    fn poll_stopped(&self, id: StreamId, context: &mut Context<'_>) -> Poll<()>;
    fn finish(&self, id: StreamId);
    fn poll_flush(&self, id: StreamId, context: &mut Context<'_>) -> Poll<()>;
    fn poll_receive(
        &self,
        id: StreamId,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<u8>, Broken>>>;
    fn stop(&self, id: StreamId);
}

/// The call of a stream is over, and the stream had not ended before: the result of the call has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call is over before the end of its stream")]
pub struct Broken;

/// Sending end of a stream of a call. Octets wait in it until the receiver grants credit: 64 KiB of them at most. Dropping it does not end the stream; its call does.
#[derive(Debug)]
pub struct StreamSender {
    pub(crate) executor: Arc<dyn Streaming>,
    pub(crate) id: StreamId,
}

/// Receiving end of a stream of a call. Dropping it has the sender stop.
#[derive(Debug)]
pub struct StreamReceiver {
    pub(crate) executor: Arc<dyn Streaming>,
    pub(crate) id: StreamId,
    /// The program has the end.
    pub(crate) ended: bool,
}

impl StreamSender {
    /// Gives octets; returns how many are taken. `None` where nothing is taken any more: the receiver has stopped, or the call is over. The task of the latest poll
    /// of the sender is woken.
    pub fn poll_send(&mut self, octets: &[u8], context: &mut Context<'_>) -> Poll<Option<usize>> {
        self.executor.poll_send(self.id, octets, context)
    }

    /// Ready once nothing is taken any more: the receiver has stopped, or the call is over.
    pub fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.executor.poll_stopped(self.id, context)
    }

    /// Sends all of them. Returns false where not all are taken.
    pub async fn send(&mut self, mut octets: &[u8]) -> bool {
        while !octets.is_empty() {
            let sent = std::future::poll_fn(|context| self.poll_send(octets, context)).await;
            let Some(sent) = sent else {
                return false;
            };
            octets = octets.get(sent..).unwrap_or_default();
        }
        true
    }

    /// Ends the stream behind the octets that were given.
    pub fn finish(&mut self) {
        self.executor.finish(self.id);
    }

    /// Ready once all is sent, with the end where there is one. A reply discards what is not.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.executor.poll_flush(self.id, context)
    }
}

impl StreamReceiver {
    /// The next octets, at least one; `None` at the end. At the caller's the end comes with the result of the call, at the latest. The task of the latest poll of the
    /// receiver is woken.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<u8>, Broken>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let received = self.executor.poll_receive(self.id, context);
        self.ended = matches!(received, Poll::Ready(None));
        received
    }

    /// The next octets, as [`poll_receive`](Self::poll_receive).
    ///
    /// # Errors
    /// [`Broken`].
    pub async fn receive(&mut self) -> Option<Result<Vec<u8>, Broken>> {
        std::future::poll_fn(|context| self.poll_receive(context)).await
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        self.executor.stop(self.id);
    }
}
