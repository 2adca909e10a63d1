//! Bodies between HTTP/2 and RIPC.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use http::HeaderMap;
use http_body::Frame;
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Code, Status};

/// Octets before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Limits of messages, in octets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Longest one.
    pub(crate) longest: u32,
    /// Longest one that is gathered before it is sent. A longer one is sent as it comes.
    pub(crate) gathered: u32,
}

/// Lengths of the messages in a sequence of octets.
#[derive(Debug, Default)]
struct Lengths {
    prefix: [u8; PREFIX],
    /// Octets of the prefix that have come.
    come: usize,
    /// Octets of the message that are missing.
    missing: u32,
}

impl Lengths {
    /// Takes octets. Returns the longest message that begins in them.
    fn pass(&mut self, mut octets: &[u8]) -> u32 {
        let mut longest = 0;
        while let Some((first, rest)) = octets.split_first() {
            if self.missing > 0 {
                let inside = octets
                    .len()
                    .min(self.missing.try_into().unwrap_or(usize::MAX));
                self.missing -= u32::try_from(inside).unwrap_or(self.missing);
                octets = octets.get(inside..).unwrap_or_default();
                continue;
            }
            if let Some(place) = self.prefix.get_mut(self.come) {
                *place = *first;
            }
            (self.come, octets) = (self.come + 1, rest);
            if self.come == PREFIX {
                let [_, length @ ..] = self.prefix;
                (self.come, self.missing) = (0, u32::from_be_bytes(length));
                longest = longest.max(self.missing);
            }
        }
        longest
    }
}

/// Body that came by HTTP/2, of messages up to a length. Its failures are statuses.
pub(crate) struct Messages {
    body: Incoming,
    lengths: Lengths,
    sizes: Sizes,
    /// Octets behind the pause before a long message.
    held: Option<Bytes>,
    has_paused: bool,
}

impl Messages {
    pub(crate) fn new(body: Incoming, sizes: Sizes) -> Self {
        Self {
            body,
            lengths: Lengths::default(),
            sizes,
            held: None,
            has_paused: false,
        }
    }
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(held) = this.held.take() {
            return Poll::Ready(Some(Ok(Frame::data(held))));
        }
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(status(&error)))),
            Some(Ok(frame)) => frame,
        };
        let Some(data) = frame.data_ref() else {
            return Poll::Ready(Some(Ok(frame)));
        };
        let length = this.lengths.pass(data);
        if length > this.sizes.longest {
            let text = format!(
                "a message of {length} bytes: the gateway takes {}",
                this.sizes.longest
            );
            return Poll::Ready(Some(Err(Status::resource_exhausted(text))));
        }
        if length > this.sizes.gathered && !this.has_paused {
            // A body that is not there at once goes as a stream, and nothing of it is kept.
            this.has_paused = true;
            this.held = frame.into_data().ok();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }
}

/// The status of a failure of HTTP/2, as gRPC has it.
pub(crate) fn status(error: &hyper::Error) -> Status {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(status) = error.downcast_ref::<Status>() {
            return status.clone();
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return Status::new(code(error), format!("HTTP/2: {error}"));
        }
        source = error.source();
    }
    Status::unavailable(format!("HTTP/2: {error}"))
}

fn code(error: &h2::Error) -> Code {
    if !error.is_reset() {
        return Code::Unavailable;
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// Body for HTTP/2: a failure becomes the status in its trailers.
pub(crate) struct Reported {
    body: Body,
    over: bool,
}

impl Reported {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, over: false }
    }
}

impl http_body::Body for Reported {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            Ok(frame.unwrap_or_else(|status| {
                self.over = true;
                Frame::trailers(trailers(&status))
            }))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // Of a text that is no value of a header.
        let code = i32::from(status.code()).into();
        trailers.insert("grpc-status", code);
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_found_wherever_octets_are_cut() {
        let mut octets = Vec::new();
        for length in [0_u32, 3, 70_000, 1] {
            octets.push(0);
            octets.extend(length.to_be_bytes());
            octets.extend(vec![0xff; length.try_into().unwrap()]);
        }
        for size in [1, 2, 5, 7, 100, 100_000] {
            let mut lengths = Lengths::default();
            let found = octets.chunks(size).map(|it| lengths.pass(it)).max();
            assert_eq!(found, Some(70_000), "{size}");
            assert_eq!((lengths.come, lengths.missing), (0, 0), "{size}");
        }
    }
}
