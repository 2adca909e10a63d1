//! The client's end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dgiwarp_ripc::{
    CallOptions, Client, Drive, Endpoint, LoadBalancing, Payload, StreamCall, Urgency,
};
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;

use crate::body::{Content, Taken, Whole, take};
use crate::fields::{COMPRESSED, Fields, PATH, Parsed};
use crate::stream::{Responses, Sending, tonic_status};
use crate::{SERVICE, UNARY};

/// A channel for generated clients, in place of `tonic::transport::Channel`. Cloning shares it.
///
/// Calls need no runtime. Within a runtime of tokio whose I/O is enabled, a task drives the endpoint, and no thread stands between the network and the caller. A call goes to the first address, and to another one where no connection can be made, or where the server refuses it without executing it. Its time is that of
/// `tonic::Request::set_timeout`, for the call with its streams; without, it has no limit. Its urgency is that of the metadata `priority`, as of HTTP (RFC 9218): `u=0` to `u=7`. Dropping its future, or the stream of its response before the end, cancels it.
/// Within a runtime of tokio, the stream of a request is sent by a task; else while the program polls the call or the stream of its response.
#[derive(Debug, Clone)]
pub struct Channel {
    endpoint: Endpoint,
    client: Arc<Client>,
    room: Option<usize>,
    drive: Drive,
}

impl Channel {
    /// A channel to the services of a [`Server`](crate::Server) at these addresses.
    ///
    /// # Panics
    /// Never: the name of the service is one.
    #[must_use]
    pub fn new(endpoint: &Endpoint, addresses: Vec<SocketAddr>) -> Self {
        Self::balanced(endpoint, addresses, LoadBalancing::default())
    }

    /// A channel that chooses the address of each call in this way.
    ///
    /// # Panics
    /// Never: the name of the service is one.
    #[must_use]
    pub fn balanced(
        endpoint: &Endpoint,
        addresses: Vec<SocketAddr>,
        policy: LoadBalancing,
    ) -> Self {
        let service = SERVICE.parse().expect("the name of a service");
        endpoint.client(service, addresses).balanced(policy).into()
    }

    /// With memory of this many bytes for the message of each reply, which the server then writes without being read from. For clients with long replies of known length.
    #[must_use]
    pub fn with_room(mut self, length: usize) -> Self {
        self.room = (length > 0).then_some(length);
        self
    }

    async fn exchange(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        self.drive.ensure_here(&self.endpoint);
        let (head, body) = request.into_parts();
        let mut options = CallOptions::default();
        options.timeout = timeout(&head.headers)?;
        options.urgency = urgency(&head.headers);
        options.room.extend(self.room);
        let mut fields = Fields::default();
        fields.add(PATH, head.uri.path().as_bytes())?;
        for (name, value) in &head.headers {
            fields.add(name.as_str(), value.as_bytes())?;
        }
        let taken = take(|length| self.endpoint.block(length), body, true).await?;
        let (content, begun) = match taken {
            Taken::Whole(content) => (content, None),
            Taken::Stream(begun) => (Content::default(), Some(begun)),
        };
        if content.compressed {
            fields.add(COMPRESSED, b"")?;
        }
        let mut payload = Payload::short(fields.into_octets());
        payload.items.extend(content.message);
        let sends = begun.is_some();
        let call = self.client.open(UNARY, payload, &options, sends).await;
        let mut call = call.map_err(tonic_status)?;
        let mut sending = match (call.sender.take(), begun) {
            (Some(sender), Some(begun)) => Sending::start(sender, begun),
            _ => Sending::Over,
        };
        let reply = loop {
            match self.response(call, &mut sending).await? {
                Begun::Response(response) => return Ok(response),
                Begun::Reply(reply) => break reply,
                // Another instance may take one that was refused.
                Begun::Failed(failed, status) => {
                    let again = self.client.open_again(*failed, status).await;
                    call = again.map_err(tonic_status)?;
                }
            }
        };
        let mut items = reply.items.into_iter();
        let mut fields = || {
            let item = items.next();
            item.map_or_else(Vec::new, dgiwarp_ripc::Item::into_vec)
        };
        let head = Parsed::parse(&fields())?;
        let trailers = Parsed::parse(&fields())?.headers;
        let content = Content {
            compressed: head.compressed,
            message: items.next(),
            trailers,
        };
        let mut response = Response::new(Body::new(Whole::new(content)?));
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    /// Waits until the response of a call begins, or for the reply of one whose server sent no stream.
    async fn response(&self, mut call: StreamCall, sending: &mut Sending) -> Result<Begun, Status> {
        let mut octets = Vec::new();
        loop {
            let next = poll_fn(|context| match call.receiver.poll_receive(context) {
                Poll::Pending => sending.poll_failed(context).map(Err),
                Poll::Ready(next) => Poll::Ready(Ok(next)),
            });
            let Some(Ok(more)) = next.await? else {
                break;
            };
            octets.extend(more);
            if let Some((head, first)) = Parsed::head(&octets)? {
                let body = Responses {
                    first: Some(Bytes::copy_from_slice(first)),
                    call: Some((call.call, call.receiver)),
                    sending: std::mem::replace(sending, Sending::Over),
                };
                let mut response = Response::new(Body::new(body));
                *response.headers_mut() = head.headers;
                return Ok(Begun::Response(response));
            }
        }
        match (&mut call.call).await {
            Ok(_) if !octets.is_empty() => {
                Err(Status::internal("the stream ends inside of its headers"))
            }
            Ok(reply) => Ok(Begun::Reply(reply)),
            Err(status) => Ok(Begun::Failed(Box::new(call), status)),
        }
    }
}

/// A channel to a service of RIPC that carries gRPC, as [`Server::serve_as`](crate::Server::serve_as) serves it.
impl From<Client> for Channel {
    fn from(client: Client) -> Self {
        Self {
            endpoint: client.endpoint().clone(),
            client: Arc::new(client),
            room: None,
            drive: Drive::default(),
        }
    }
}

/// Beginning of a response.
enum Begun {
    /// Its body is the stream of the server.
    Response(Response<Body>),
    Reply(Payload),
    Failed(Box<StreamCall>, dgiwarp_ripc::Status),
}

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.clone();
        Box::pin(async move {
            let response = channel.exchange(request).await;
            Ok(response.unwrap_or_else(Status::into_http))
        })
    }
}

/// The time of a `grpc-timeout`: at most eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else {
        return Ok(None);
    };
    let parse = |text: &str| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let digits_only = digits.bytes().all(|it| it.is_ascii_digit());
        let count: u64 = (digits_only && digits.len() <= 8).then(|| digits.parse().ok())??;
        match unit {
            "H" => Some(Duration::from_secs(count * 3600)),
            "M" => Some(Duration::from_secs(count * 60)),
            "S" => Some(Duration::from_secs(count)),
            "m" => Some(Duration::from_millis(count)),
            "u" => Some(Duration::from_micros(count)),
            "n" => Some(Duration::from_nanos(count)),
            _ => None,
        }
    };
    let time = value.to_str().ok().and_then(parse);
    let malformed = || Status::invalid_argument("grpc-timeout is malformed");
    time.map(Some).ok_or_else(malformed)
}

/// The urgency of a `priority`; the default where there is none, or one of another form.
fn urgency(headers: &HeaderMap) -> Urgency {
    let values = headers.get_all("priority").into_iter();
    let members = values.filter_map(|it| it.to_str().ok());
    let members = members.flat_map(|it| it.split(','));
    let mut levels = members.filter_map(|it| it.trim().strip_prefix("u="));
    // The last one counts, without its parameters.
    let level = levels.next_back().and_then(|it| it.split(';').next());
    level
        .and_then(|it| it.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_parsed() {
        let of = |texts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for text in texts {
                headers.append("priority", http::HeaderValue::from_static(text));
            }
            urgency(&headers).level()
        };
        assert_eq!(of(&["u=0"]), 0);
        assert_eq!(of(&["i, u=7"]), 7);
        assert_eq!(of(&["u=5;x=1 , i"]), 5);
        assert_eq!(of(&["u=1", "u=2"]), 2);
        for wrong in ["", "u", "u=8", "u=-1", "u=high", "U=1", "x=1", "u=1x"] {
            assert_eq!(of(&[wrong]), 3, "{wrong}");
        }
        assert_eq!(of(&[]), 3);
    }

    #[test]
    fn timeouts_are_parsed() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", http::HeaderValue::from_static(text));
            timeout(&headers).ok().flatten()
        };
        assert_eq!(of("2S"), Some(Duration::from_secs(2)));
        assert_eq!(
            of("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        assert_eq!(of("5u"), Some(Duration::from_micros(5)));
        for wrong in ["", "S", "123456789S", "+1S", "1s", "1"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert!(timeout(&HeaderMap::new()).unwrap().is_none());
    }
}
