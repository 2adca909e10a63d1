//! Programs that connect and speak HTTP/2: their calls go to services of RIPC.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dgiwarp_ripc::Endpoint;
use dgiwarp_ripc_tonic::Channel;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service as _;

use super::address::{Listener, Stream};
use super::attempt::Attempt;
use super::body::{Messages, Reported, Sizes};
use super::{HEADERS, WINDOW, is_grpc};
use crate::cli::Where;
use crate::{Failure, client};

/// Connections of programs at a time. Others wait until one ends.
const CONNECTIONS: usize = 256;
/// Calls of a connection at a time.
const CALLS: u32 = 128;
/// Octets that a client of HTTP/2 sends first.
const PREFACE: usize = 24;
/// Time for them.
const PREFACE_TIME: Duration = Duration::from_secs(10);
/// Silence after which a connection is asked for a sign of life, and the time for it.
const ALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// Pause where no connection can be accepted.
const AGAIN: Duration = Duration::from_millis(100);
/// Least time between two resolutions of a service in the group.
const RESOLVED: Duration = Duration::from_secs(1);

/// Services of RIPC that carry gRPC.
#[derive(Debug)]
pub(crate) struct Routes {
    services: Vec<Route>,
    sizes: Sizes,
}

/// A service of RIPC that carries gRPC.
#[derive(Debug)]
struct Route {
    service: String,
    endpoint: Endpoint,
    at: Where,
    channel: Attempt<Found>,
}

/// Channel to the addresses that were found.
#[derive(Debug, Clone)]
struct Found {
    channel: Channel,
    since: Instant,
    /// They are to be resolved anew.
    lost: Arc<AtomicBool>,
}

impl Routes {
    /// Routes to services whose addresses are given, or else resolved in the group when a call needs them.
    pub(crate) fn new(
        endpoint: &Endpoint,
        at: &Where,
        services: &[String],
        sizes: Sizes,
    ) -> Result<Self, Failure> {
        let route = |service: &String| {
            let channel = if at.is_given() {
                let client = client(endpoint, at, service)?;
                Attempt::made(Found::new(client.into()))
            } else {
                Attempt::default()
            };
            Ok(Route {
                service: service.clone(),
                endpoint: endpoint.clone(),
                at: at.clone(),
                channel,
            })
        };
        Ok(Self {
            services: services.iter().map(route).collect::<Result<_, Failure>>()?,
            sizes,
        })
    }

    /// The service of RIPC with the name of the gRPC service of a path, or else the first one.
    fn of(&self, path: &str) -> Option<&Route> {
        let service = path.strip_prefix('/').and_then(|it| it.split_once('/'));
        let named = |(name, _)| self.services.iter().find(|it| it.service == name);
        service.and_then(named).or_else(|| self.services.first())
    }

    async fn call(&self, request: Request<Incoming>) -> Result<Response<Body>, Status> {
        let route = self.of(request.uri().path());
        let route = route.ok_or_else(|| Status::unimplemented("no service of RIPC"))?;
        let mut found = route.found().await?;
        let sizes = self.sizes;
        let request = request.map(|body| Body::new(Messages::new(body, sizes)));
        let Ok(response) = found.channel.call(request).await;
        let unavailable = i32::from(tonic::Code::Unavailable).to_string();
        if response
            .headers()
            .get("grpc-status")
            .is_some_and(|it| *it == *unavailable)
        {
            found.lost.store(true, Ordering::Relaxed);
        }
        Ok(response)
    }

    /// The response to a request, which may be none of gRPC.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Reported> {
        let response = if request.method() == Method::POST && is_grpc(request.headers()) {
            let response = self.call(request).await;
            response.unwrap_or_else(Status::into_http)
        } else {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            response
        };
        response.map(Reported::new)
    }
}

impl Found {
    fn new(channel: Channel) -> Self {
        Self {
            channel,
            since: Instant::now(),
            lost: Arc::default(),
        }
    }
}

impl Route {
    async fn found(&self) -> Result<Found, Status> {
        let is_good = |found: &Found| {
            self.at.is_given()
                || !found.lost.load(Ordering::Relaxed)
                || found.since.elapsed() < RESOLVED
        };
        self.channel.get(is_good, self.resolve()).await
    }

    async fn resolve(&self) -> Result<Found, Status> {
        let (endpoint, at) = (self.endpoint.clone(), self.at.clone());
        let service = self.service.clone();
        let resolved = spawn_blocking(move || client(&endpoint, &at, &service)).await;
        match resolved.map_err(|error| Status::internal(error.to_string()))? {
            Ok(client) => Ok(Found::new(client.into())),
            Err(Failure::Text(text)) => Err(Status::unavailable(text)),
            Err(Failure::Status(status)) => Err(Status::unavailable(status.to_string())),
        }
    }
}

/// Takes connections and their calls.
pub(crate) async fn serve(listener: &Listener, routes: Routes) -> Infallible {
    let routes = Arc::new(routes);
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        let Ok(stream) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        let routes = Arc::clone(&routes);
        tokio::spawn(async move {
            // A connection that breaks the protocol is over, and nothing else.
            let _ = connection(stream, routes).await;
            drop(permit);
        });
    }
}

async fn connection(stream: Stream, routes: Arc<Routes>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let answer = Arc::clone(&routes).answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let windows = WINDOW * CALLS;
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        // A program that reads one stream slowly holds up no other one.
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(windows)
        .max_header_list_size(HEADERS)
        .keep_alive_interval(ALIVE.0)
        .keep_alive_timeout(ALIVE.1)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Begun::new(stream)), service)
        .await
}

/// A connection that has a limit of time for its first octets.
struct Begun {
    stream: Stream,
    missing: usize,
    end: Pin<Box<Sleep>>,
}

impl Begun {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            missing: PREFACE,
            end: Box::pin(sleep(PREFACE_TIME)),
        }
    }
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.missing > 0 && self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let come = buffer.filled().len().saturating_sub(before);
        self.missing = self.missing.saturating_sub(come);
        read
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
