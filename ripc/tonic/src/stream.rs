//! Bodies of HTTP that are streams, and streams of RIPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use dgiwarp_ripc::{PendingCall, StreamReceiver, StreamSender};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::body::Begun;
use crate::fields::Parsed;

/// Sends a body. Returns its trailers; `None` where the receiver takes nothing more.
pub(crate) async fn send(
    sender: &mut StreamSender,
    begun: Begun,
) -> Result<Option<HeaderMap>, Status> {
    let Begun { octets, mut body } = begun;
    for octets in octets {
        if !sender.send(&octets).await {
            return Ok(None);
        }
    }
    loop {
        // The receiver may stop while the program has nothing to send.
        let frame = poll_fn(|context| {
            if sender.poll_stopped(context).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(context).map(Some)
        });
        let Some(frame) = frame.await else {
            return Ok(None);
        };
        match frame.transpose()?.map(Frame::into_data) {
            None => return Ok(Some(HeaderMap::new())),
            Some(Ok(data)) => {
                if !sender.send(&data).await {
                    return Ok(None);
                }
            }
            Some(Err(frame)) => return Ok(Some(frame.into_trailers().unwrap_or_default())),
        }
    }
}

/// Ends a stream, and waits until all of it is sent.
pub(crate) async fn finish(sender: &mut StreamSender) {
    sender.finish();
    poll_fn(|context| sender.poll_flush(context)).await;
}

/// Sending of the body of a request.
pub(crate) enum Sending {
    /// In the runtime of the program.
    Task(JoinHandle<Result<(), Status>>),
    /// Without a runtime: while the program polls the call or the body of its response.
    Polled(Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>),
    Over,
}

impl Sending {
    pub(crate) fn start(mut sender: StreamSender, begun: Begun) -> Self {
        let sending = async move {
            send(&mut sender, begun).await?;
            finish(&mut sender).await;
            Ok(())
        };
        match Handle::try_current() {
            Ok(runtime) => Self::Task(runtime.spawn(sending)),
            Err(_) => Self::Polled(Box::pin(sending)),
        }
    }

    /// Ready with the failure of the body.
    pub(crate) fn poll_failed(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let ended = match self {
            Self::Task(task) => Pin::new(task)
                .poll(context)
                .map(|it| it.unwrap_or_else(|error| Err(Status::internal(error.to_string())))),
            Self::Polled(sending) => sending.as_mut().poll(context),
            Self::Over => return Poll::Pending,
        };
        match ended {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => {
                *self = Self::Over;
                ended.map_or_else(Poll::Ready, |()| Poll::Pending)
            }
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}

/// Body of a request at the server.
pub(crate) struct Requests(pub(crate) StreamReceiver);

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let received = self.0.poll_receive(context);
        received.map(|it| {
            it.map(|octets| {
                let octets = octets.map_err(|broken| Status::cancelled(broken.to_string()));
                octets.map(|octets| Frame::data(octets.into()))
            })
        })
    }
}

/// Body of a response at the client. Dropping it before its end cancels the call.
pub(crate) struct Responses {
    pub(crate) first: Option<Bytes>,
    /// `None` behind the end.
    pub(crate) call: Option<(PendingCall, StreamReceiver)>,
    pub(crate) sending: Sending,
}

impl Responses {
    fn poll_call(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame<Bytes>, Status>> {
        let Some((call, receiver)) = &mut self.call else {
            return Poll::Pending;
        };
        if let Some(Ok(octets)) = std::task::ready!(receiver.poll_receive(context)) {
            return Poll::Ready(Ok(Frame::data(octets.into())));
        }
        let reply = std::task::ready!(Pin::new(call).poll(context));
        self.call = None;
        Poll::Ready(reply.map_err(tonic_status).and_then(|reply| {
            if reply.items.len() > 2 {
                return Err(Status::internal("a message beside a stream"));
            }
            let mut trailers = HeaderMap::new();
            for item in reply.items {
                trailers.extend(Parsed::parse(&item.into_vec())?.headers);
            }
            Ok(Frame::trailers(trailers))
        }))
    }
}

impl http_body::Body for Responses {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.call.is_none() {
            return Poll::Ready(None);
        }
        if let Some(first) = this.first.take().filter(|it| !it.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let ready = this.poll_call(context);
        if ready.is_pending()
            && let Poll::Ready(status) = this.sending.poll_failed(context)
        {
            this.call = None;
            return Poll::Ready(Some(Err(status)));
        }
        if this.call.is_none() {
            this.sending = Sending::Over;
        }
        ready.map(Some)
    }
}

/// The status of a call that RIPC has ended.
pub(crate) fn tonic_status(status: dgiwarp_ripc::Status) -> Status {
    Status::new(Code::from(i32::from(status.code.number())), status.text)
}
