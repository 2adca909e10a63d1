//! A program that serves gRPC over HTTP/2, as a service of RIPC.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::uri::{Scheme, Uri};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use super::address::Address;
use super::attempt::Attempt;
use super::body::{Messages, Sizes, status};
use super::{HEADERS, WINDOW, is_grpc};

/// Calls under way whose octets the window of the connection has room for: those that an endpoint takes.
const CALLS: u32 = 1024;
/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A server of gRPC, and the connection to it: one for all calls, and made again where it is lost.
#[derive(Debug, Clone)]
pub(crate) struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    address: Address,
    sizes: Sizes,
    sender: Attempt<SendRequest<Body>>,
}

impl Server {
    pub(crate) fn new(address: Address, sizes: Sizes) -> Self {
        Self(Arc::new(Inner {
            address,
            sizes,
            sender: Attempt::default(),
        }))
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Status> {
        let address = &self.0.address;
        let lost = |reason: String| Status::unavailable(format!("{address}: {reason}"));
        let stream = timeout(CONNECT, address.connect()).await;
        let stream = stream.map_err(|_| lost("no connection in time".to_owned()))?;
        let stream = stream.map_err(|error| lost(error.to_string()))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * CALLS)
            .max_header_list_size(HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(error.to_string()))?;
        // Calls learn of its end.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn exchange(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let mut request = to_server(request)?;
        let mut again = true;
        let response = loop {
            let is_open = |sender: &SendRequest<Body>| !sender.is_closed();
            let mut sender = self.0.sender.get(is_open, self.connect()).await?;
            match sender.try_send_request(request).await {
                Ok(response) => break response,
                Err(mut error) => match error.take_message() {
                    // The connection ended before it took the call.
                    Some(unsent) if again => (request, again) = (unsent, false),
                    _ => return Err(status(error.error())),
                },
            }
        };
        let sizes = self.0.sizes;
        checked(response).map(|it| it.map(|body| Body::new(Messages::new(body, sizes))))
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let response = server.exchange(request).await;
            Ok(response.unwrap_or_else(Status::into_http))
        })
    }
}

/// The request as HTTP/2 has it.
fn to_server(mut request: Request<Body>) -> Result<Request<Body>, Status> {
    let path = std::mem::take(request.uri_mut())
        .into_parts()
        .path_and_query;
    let uri = Uri::builder().scheme(Scheme::HTTP).authority("localhost");
    let uri = uri.path_and_query(path.map_or_else(String::new, |it| it.to_string()));
    *request.uri_mut() = uri
        .build()
        .map_err(|error| Status::internal(error.to_string()))?;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if !is_grpc(headers) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    }
    Ok(request)
}

/// A response of gRPC; of another one, the status that its status of HTTP stands for.
fn checked(response: Response<Incoming>) -> Result<Response<Incoming>, Status> {
    let http = response.status();
    if http == StatusCode::OK && is_grpc(response.headers()) {
        return Ok(response);
    }
    let code = match http {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    };
    let text = format!("the server answered with {http}, and without gRPC");
    Err(Status::new(code, text))
}
