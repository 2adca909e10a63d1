//! Bodies of HTTP with one gRPC message, and items of RIPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use dgiwarp_ripc::{Block, Error, Item};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use tonic::Status;
use tonic::body::Body;

/// Octets before each message of a body: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Length from which a message is put into a block at once, in octets.
const LONG: usize = 4096;
/// Octets of a long message that a body yields at a time.
const PART: usize = 1 << 20;

/// Content of a body: at most one message.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) compressed: bool,
    pub(crate) message: Option<Item>,
    pub(crate) trailers: HeaderMap,
}

/// A body as it is carried.
#[derive(Debug)]
pub(crate) enum Taken {
    Whole(Content),
    Stream(Begun),
}

/// A body that is a stream, and octets of it that have come already.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) octets: Vec<Bytes>,
    pub(crate) body: Body,
}

/// Takes all of a body whose octets are there already, and at most one message. Another is a stream; `UNIMPLEMENTED` where none is carried.
pub(crate) async fn take(
    allocate: impl Fn(usize) -> Result<Block, Error>,
    mut body: Body,
    has_streams: bool,
) -> Result<Taken, Status> {
    let mut gathered = Gathered::default();
    loop {
        let whole = gathered.is_whole();
        let next = poll_fn(|context| match Pin::new(&mut body).poll_frame(context) {
            Poll::Pending if has_streams => Poll::Ready(None),
            // A unary body has its end ready.
            Poll::Pending if whole => Poll::Ready(Some(Some(Err(stream())))),
            other => other.map(Some),
        });
        let Some(next) = next.await else {
            let octets = gathered.into_octets()?;
            return Ok(Taken::Stream(Begun { octets, body }));
        };
        let finished = match next.transpose()?.map(Frame::into_data) {
            None => gathered.finish(HeaderMap::new()),
            Some(Ok(data)) => {
                let Some(data) = gathered.add(&allocate, data)? else {
                    continue;
                };
                if !has_streams {
                    return Err(stream());
                }
                let mut octets = gathered.into_octets()?;
                octets.push(data);
                return Ok(Taken::Stream(Begun { octets, body }));
            }
            Some(Err(frame)) => gathered.finish(frame.into_trailers().unwrap_or_default()),
        };
        return finished.map(Taken::Whole);
    }
}

fn stream() -> Status {
    Status::unimplemented("the peer takes no streams: only unary calls are carried")
}

/// A message of which a part has come.
#[derive(Debug, Default)]
struct Gathered {
    prefix: BytesMut,
    compressed: bool,
    length: usize,
    message: Option<Item>,
    come: usize,
}

impl Gathered {
    fn is_whole(&self) -> bool {
        self.message.is_some() && self.come == self.length
    }

    /// Takes octets. Returns those that are more than a message.
    fn add(
        &mut self,
        allocate: &impl Fn(usize) -> Result<Block, Error>,
        mut data: Bytes,
    ) -> Result<Option<Bytes>, Status> {
        if self.message.is_none() {
            let missing = PREFIX - self.prefix.len();
            self.prefix.put(data.split_to(missing.min(data.len())));
            if self.prefix.len() < PREFIX {
                return Ok(None);
            }
            self.compressed = self.prefix.get_u8() != 0;
            self.length = usize::try_from(self.prefix.get_u32()).unwrap_or(usize::MAX);
            self.message = Some(if self.length < LONG {
                Item::Short(Vec::with_capacity(self.length))
            } else {
                let block = allocate(self.length);
                Item::Long(block.map_err(|error| Status::resource_exhausted(error.to_string()))?)
            });
        }
        if data.len() > self.length - self.come {
            return Ok(Some(data));
        }
        match &mut self.message {
            Some(Item::Short(octets)) => octets.extend_from_slice(&data),
            Some(Item::Long(block)) => block
                .write(self.come, &data)
                .map_err(|error| Status::internal(error.to_string()))?,
            None => {}
        }
        self.come += data.len();
        Ok(None)
    }

    /// The octets as they came.
    fn into_octets(self) -> Result<Vec<Bytes>, Status> {
        let Some(message) = self.message else {
            return Ok(vec![self.prefix.freeze()]);
        };
        let mut prefix = BytesMut::with_capacity(PREFIX);
        prefix.put_u8(self.compressed.into());
        prefix.put_u32(u32::try_from(self.length).unwrap_or(u32::MAX));
        let come = match message {
            Item::Short(octets) => octets,
            Item::Long(block) => {
                let mut octets = vec![0; self.come];
                let read = block.read(0, &mut octets);
                read.map_err(|error| Status::internal(error.to_string()))?;
                octets
            }
        };
        Ok(vec![prefix.freeze(), come.into()])
    }

    fn finish(self, trailers: HeaderMap) -> Result<Content, Status> {
        let is_empty = self.message.is_none() && self.prefix.is_empty();
        if !is_empty && !self.is_whole() {
            return Err(Status::internal("the body ends inside of a message"));
        }
        Ok(Content {
            compressed: self.compressed,
            message: self.message,
            trailers,
        })
    }
}

/// Body of one message and trailers.
#[derive(Debug)]
pub(crate) struct Whole {
    first: Option<Bytes>,
    rest: Option<(Block, usize)>,
    trailers: Option<HeaderMap>,
}

impl Whole {
    pub(crate) fn new(content: Content) -> Result<Self, Status> {
        let mut whole = Self {
            first: None,
            rest: None,
            trailers: (!content.trailers.is_empty()).then_some(content.trailers),
        };
        if let Some(message) = content.message {
            let length = u32::try_from(message.len());
            let length = length.map_err(|_| Status::resource_exhausted("a message of 4 GiB"))?;
            let short = if let Item::Short(octets) = &message {
                octets.as_slice()
            } else {
                &[]
            };
            let mut first = BytesMut::with_capacity(PREFIX + short.len());
            first.put_u8(content.compressed.into());
            first.put_u32(length);
            first.put(short);
            whole.first = Some(first.freeze());
            if let Item::Long(block) = message {
                whole.rest = Some((block, 0));
            }
        }
        Ok(whole)
    }

    /// The next part of a long message. Its memory is given back behind the last one.
    fn part(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((block, at)) = &mut self.rest else {
            return Ok(None);
        };
        let mut part = vec![0; PART.min(block.len() - *at)];
        let read = block.read(*at, &mut part);
        read.map_err(|error| Status::internal(error.to_string()))?;
        *at += part.len();
        if *at == block.len() {
            self.rest = None;
        }
        Ok(Some(part.into()))
    }
}

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let data = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.part(),
        };
        let frame = match data {
            Ok(Some(data)) => Some(Ok(Frame::data(data))),
            Ok(None) => self.trailers.take().map(|it| Ok(Frame::trailers(it))),
            Err(status) => Some(Err(status)),
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_none() && self.trailers.is_none()
    }
}
