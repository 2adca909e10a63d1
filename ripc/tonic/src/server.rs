//! The server's end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use dgiwarp_ripc::{Block, Endpoint, Error, Item, Payload, Request, StreamReceiver, StreamSender};
use http::Response;
use tokio::runtime::Handle;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

use crate::body::{Content, Taken, Whole, take};
use crate::fields::{COMPRESSED, Fields, Parsed};
use crate::stream::{self, Requests};
use crate::{SERVICE, UNARY};

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Handler = Arc<dyn Fn(http::Request<Body>) -> Answering + Send + Sync>;

/// Services of tonic on an endpoint, in place of `tonic::transport::Server`.
#[derive(Clone, Default)]
pub struct Server {
    services: BTreeMap<&'static str, Handler>,
    fallback: Option<Handler>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("services", &self.services.keys())
            .field("fallback", &self.fallback.is_some())
            .finish()
    }
}

impl Server {
    /// No services.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a generated service, in place of another of its name.
    #[must_use]
    pub fn add_service<S, B>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = Response<B>, Error = Infallible>,
        S: NamedService + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.services.insert(S::NAME, handler(service));
        self
    }

    /// With a service for calls of all paths whose services are not added: it gets the messages as octets, each with the five octets before it that HTTP/2 has.
    #[must_use]
    pub fn with_fallback<S, B>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.fallback = Some(handler(service));
        self
    }

    /// Serves them on an endpoint, which a task of the runtime drives where its I/O is enabled, and no other does. A handler begins in that task, or on a thread of the endpoint
    /// where the task is late, and goes on in the runtime where it has to wait. It is dropped when its call is cancelled. The urgency of a call
    /// is an extension of its request, a `dgiwarp_ripc::Urgency`.
    ///
    /// # Errors
    /// As `Endpoint::serve`: the endpoint does not listen, or serves gRPC already.
    pub fn serve(self, endpoint: &Endpoint, runtime: Handle) -> Result<(), Error> {
        self.serve_as(SERVICE, endpoint, runtime)
    }

    /// As [`serve`](Self::serve), as a service of RIPC of another name or number than [`SERVICE`]: callers have to know it.
    ///
    /// # Errors
    /// As `Endpoint::serve`.
    pub fn serve_as(
        self,
        service: &str,
        endpoint: &Endpoint,
        runtime: Handle,
    ) -> Result<(), Error> {
        let services = Arc::new(self);
        endpoint.serve_async(service, runtime, move |request, reply| {
            let (services, allocate) = (Arc::clone(&services), reply.allocator());
            let streams = (reply.sender(), reply.receiver());
            async move {
                answer(&services, allocate, request, streams)
                    .await
                    .or_else(refusal)
            }
        })
    }
}

fn handler<S, B>(service: S) -> Handler
where
    S: Service<http::Request<Body>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            let Ok(()) = poll_fn(|context| service.poll_ready(context)).await;
            let Ok(response) = service.call(request).await;
            response.map(Body::new)
        })
    })
}

async fn answer(
    server: &Server,
    allocate: impl Fn(usize) -> Result<Block, Error>,
    request: Request,
    (mut sender, receiver): (Option<StreamSender>, Option<StreamReceiver>),
) -> Result<Payload, Status> {
    if request.method != UNARY {
        return Err(Status::unimplemented("no such method of RIPC here"));
    }
    let mut items = request.payload.items.into_iter();
    let fields = items.next().map_or_else(Vec::new, Item::into_vec);
    let head = Parsed::parse(&fields)?;
    let path = head.path.unwrap_or_default();
    let service = path.strip_prefix('/').and_then(|it| it.split_once('/'));
    let handler = service.and_then(|(service, _)| server.services.get(service));
    let handler = handler.or(server.fallback.as_ref());
    let handler = handler.ok_or_else(|| Status::unimplemented(format!("no {path} here")))?;
    let content = Content {
        compressed: head.compressed,
        message: items.next(),
        ..Content::default()
    };
    let body = match receiver {
        Some(receiver) => Body::new(Requests(receiver)),
        None => Body::new(Whole::new(content)?),
    };
    let mut call = http::Request::new(body);
    *call.method_mut() = http::Method::POST;
    *call.version_mut() = http::Version::HTTP_2;
    *call.headers_mut() = head.headers;
    call.extensions_mut().insert(request.urgency);
    let uri = path.parse();
    *call.uri_mut() = uri.map_err(|_| Status::internal("the path is malformed"))?;
    let (head, body) = handler(call).await.into_parts();
    let mut fields = Fields::of(&head.headers)?;
    let content = match take(allocate, body, sender.is_some()).await? {
        Taken::Whole(content) => content,
        Taken::Stream(begun) => {
            let Some(sender) = &mut sender else {
                return Err(Status::internal("a stream without its sender"));
            };
            let over = || Status::cancelled("the caller takes nothing more");
            if !sender.send(&fields.into_head()).await {
                return Err(over());
            }
            let sent = stream::send(sender, begun).await;
            stream::finish(sender).await;
            let trailers = Fields::of(&sent?.ok_or_else(over)?)?;
            return Ok(Payload::short([]).and_short(trailers.into_octets()));
        }
    };
    if content.compressed {
        fields.add(COMPRESSED, b"")?;
    }
    let trailers = Fields::of(&content.trailers)?;
    let mut payload = Payload::short(fields.into_octets()).and_short(trailers.into_octets());
    payload.items.extend(content.message);
    Ok(payload)
}

/// The reply with a status.
fn refusal(status: Status) -> Result<Payload, dgiwarp_ripc::Status> {
    let fields = Fields::of(status.into_http::<Body>().headers());
    let fields = fields.map_err(|status| ripc_status(&status))?;
    Ok(Payload::short(fields.into_octets()))
}

/// A status whose metadata is too long to be carried.
fn ripc_status(status: &Status) -> dgiwarp_ripc::Status {
    let code = match status.code() {
        Code::ResourceExhausted => dgiwarp_ripc::Code::ResourceExhausted,
        _ => dgiwarp_ripc::Code::Internal,
    };
    dgiwarp_ripc::Status::new(code, status.message())
}
