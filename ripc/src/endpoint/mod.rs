//! Endpoints: instances of the library, which serve and call.

mod attempts;
pub(crate) mod client;
pub(crate) mod config;
mod connecting;
pub(crate) mod driver;
mod inbound;
mod items;
mod peer;
mod progress;
pub(crate) mod secure;
pub(crate) mod service;
mod state;
pub(crate) mod stream;
mod streams;
mod work_id;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dgiwarp::{Access, Buffer, ChannelListener, MpaConfig, Rnic, SrqAttr};

use self::config::Config;
use self::items::inside::check_inside;
use self::peer::Out;
use self::progress::{RECEIVES, Receives, Shared};
use self::secure::rights::Refused;
use self::service::{Handler, Incoming, Reply, Request, Service};
use self::state::{CQ_DEPTH, Device, State};
use crate::engine::urgency::Urgency;
use crate::error::Error;
use crate::memory::{Block, Pool};
use crate::names::{ServiceId, ServiceName};
use crate::payload::Payload;
use crate::resolver::group::{Announced, Responder};
use crate::security::Security;
use crate::security::token::{Token, TokenSecret};
use crate::status::{Code, Status};
use crate::system::{after, random};
use crate::wire::VERSION;
use crate::wire::hello::Hello;

/// Longest startup of a connection.
const STARTUP: Duration = Duration::from_secs(4);
/// Stack of the threads that execute calls, in octets.
const STACK: usize = 1 << 20;

/// An instance of the library: it serves services, calls those of others, and sends and takes messages. Cloning shares it. When the last clone is gone, its
/// connections end; [`close`](Self::close) lets calls end before.
#[derive(Debug, Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    instance: u64,
    listener: Option<ChannelListener>,
    responder: Option<Responder>,
    config: Config,
}

/// Destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The endpoint at this address.
    Address(SocketAddr),
    /// The endpoint from which the latest message of the service came.
    Learned,
}

impl Endpoint {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`Error::Device`] where the address cannot be listened on, [`Error::System`] without memory, threads or randomness.
    pub fn open(config: Config) -> Result<Self, Error> {
        let limits = config.limits.checked();
        let rights = config.rights()?;
        let handshake = config.security.as_ref();
        let instance = random()?.max(1);
        let rnic = Rnic::open(config.device.clone())?;
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(CQ_DEPTH)?;
        let srq = pd.create_srq(&SrqAttr {
            max_wr: RECEIVES,
            max_sge: 1,
        })?;
        let memory = Error::system("no memory for receives");
        let buffer = Buffer::zeroed(RECEIVES * limits.longest).map_err(memory)?;
        let receives = Receives {
            mr: pd.register(buffer.region(), Access::LOCAL_WRITE)?,
            buffer,
            length: limits.longest,
        };
        let channel = rnic.create_connection_channel()?;
        let mpa = MpaConfig {
            startup_timeout: STARTUP,
            ..config.device.mpa.clone()
        };
        let listen = config.listen;
        let listener = listen.map(|address| channel.listen(address, mpa.clone(), 0));
        let listener = listener.transpose()?;
        let hello = Hello {
            version: VERSION,
            handshake: handshake.is_some(),
            sealed: handshake.is_some_and(Security::seals),
            instance,
            longest: u32::try_from(limits.longest).unwrap_or(u32::MAX),
            stream: limits.stream,
            credit: limits.credit,
        };
        let pool = Pool::new(limits.pool);
        let device = Device {
            cq,
            srq,
            channel,
            mpa,
            hello,
        };
        let shared = Shared::new(
            State::new(device, limits, rights, Arc::clone(&pool)),
            receives,
        );
        spawn("ripc-helper", &shared, Shared::help)?;
        spawn("ripc-connect", &shared, Shared::connect)?;
        let mut handle = Handle {
            shared,
            pool,
            instance,
            listener,
            responder: None,
            config,
        };
        handle.respond();
        let handle = Arc::new(handle);
        Ok(Self { handle })
    }

    /// Address and port that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.handle
            .listener
            .as_ref()
            .map(ChannelListener::local_addr)
    }

    /// Random number of this endpoint, which no other has.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.handle.instance
    }

    /// The group in which it announces and resolves services.
    #[must_use]
    pub fn group(&self) -> Option<&crate::resolver::group::Group> {
        self.handle.config.group.as_ref()
    }

    /// Memory for a long item, from the pool. Its octets are unspecified until they are written.
    ///
    /// # Errors
    /// [`Error::System`] without memory.
    pub fn block(&self, length: usize) -> Result<Block, Error> {
        let memory = Error::system("no memory for a block");
        self.handle.pool.block(length).map_err(memory)
    }

    /// Serves a service: `handler` executes its calls, each at most once, on the endpoint's threads. A handler may wait and may call.
    ///
    /// # Errors
    /// [`Error::Name`] for a text that names no service, [`Error::AlreadyServed`], [`Error::DoesNotListen`], [`Error::System`] without threads.
    pub fn serve(
        &self,
        name: &str,
        handler: impl Fn(Request) -> Result<Payload, Status> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.serve_by(name, Handler::Blocking(Arc::new(handler)))
    }

    /// Serves a service whose calls may take long: `handler` returns without waiting, and the [`Reply`] is sent then or later, by any thread or task. Of calls
    /// that wait for a thread or for their reply there are at most [`Limits::waiting`](crate::Limits::waiting).
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_deferred(
        &self,
        name: &str,
        handler: impl Fn(Request, Reply) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.serve_by(name, Handler::Deferred(Arc::new(handler)))
    }

    fn serve_by(&self, name: &str, handler: Handler) -> Result<(), Error> {
        let name: ServiceName = name.parse()?;
        if self.handle.listener.is_none() {
            return Err(Error::DoesNotListen);
        }
        let shared = &self.handle.shared;
        let mut inner = shared.lock();
        if inner.state.services.contains_key(&name.id) {
            return Err(Error::AlreadyServed(name));
        }
        let first = inner.state.services.is_empty();
        let service = Service {
            name: name.clone(),
            handler,
        };
        inner.state.services.insert(name.id, service);
        drop(inner);
        if first {
            for _ in 0..self.handle.config.threads.clamp(1, 256) {
                spawn("ripc-worker", shared, Shared::work)?;
            }
        }
        self.handle.announce(name);
        Ok(())
    }

    /// Takes messages for a service from now on.
    ///
    /// # Errors
    /// [`Error::Name`] for a text that names no service, [`Error::AlreadyServed`].
    pub fn open_inbox(&self, name: &str) -> Result<ServiceId, Error> {
        let name: ServiceName = name.parse()?;
        let mut inner = self.handle.shared.lock();
        if inner.state.inboxes.contains_key(&name.id) {
            return Err(Error::AlreadyServed(name));
        }
        inner
            .state
            .inboxes
            .insert(name.id, service::Inbox::default());
        drop(inner);
        let id = name.id;
        self.handle.announce(name);
        Ok(id)
    }

    /// Gives memory for the next long items of messages that are not written into windows: each is read into the first that is long enough.
    pub fn add_place(&self, block: Block) {
        self.handle.shared.lock().state.places.push_back(block);
    }

    /// Whether it takes messages for a service.
    #[must_use]
    pub fn has_inbox(&self, service: ServiceId) -> bool {
        let inner = self.handle.shared.lock();
        inner.state.inboxes.contains_key(&service)
    }

    /// Whether it has, or makes, a connection to this address.
    #[must_use]
    pub fn has_connection(&self, address: SocketAddr) -> bool {
        let inner = self.handle.shared.lock();
        inner.state.by_target.contains_key(&address)
    }

    /// The next message for a service. `None` where none comes within `timeout`.
    #[must_use]
    pub fn receive(&self, service: ServiceId, timeout: Option<Duration>) -> Option<Incoming> {
        let deadline = timeout.and_then(after);
        self.handle.shared.wait_until(deadline, |state, clock| {
            let inbox = state.inboxes.get_mut(&service)?;
            let (key, cost, incoming) = inbox.messages.pop()?;
            if let Some(peer) = state.peers.get_mut(&key) {
                peer.credit.consume(cost);
                state.flush(key, clock.now);
            }
            Some(incoming)
        })
    }

    /// Sends a message from a service to a service. It is delivered at most once, and lost with its connection. `windows` are memory that the receiver may write
    /// long items of later messages to.
    ///
    /// # Errors
    /// `UNAVAILABLE` where there is no connection and none can be begun, `NOT_FOUND` where no message of the destination has come, `INVALID_ARGUMENT`
    /// for too many items or windows, `FAILED_PRECONDITION` for long items where all messages are [sealed](crate::Security::sealed), as far as the connection
    /// is made: else they are lost.
    pub fn send(
        &self,
        from: ServiceId,
        to: ServiceId,
        destination: Destination,
        payload: Payload,
        windows: Vec<Block>,
    ) -> Result<(), Status> {
        self.send_with(Urgency::DEFAULT, from, to, destination, payload, windows)
    }

    /// As [`send`](Self::send), with an urgency: messages of one urgency keep their order.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_with(
        &self,
        urgency: Urgency,
        from: ServiceId,
        to: ServiceId,
        destination: Destination,
        payload: Payload,
        windows: Vec<Block>,
    ) -> Result<(), Status> {
        let most = crate::wire::message::MAX_WINDOWS;
        if !payload.fits() || windows.len() > most || windows.iter().any(Block::is_empty) {
            let text = "too many items or windows, or a window without octets";
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let shared = &self.handle.shared;
        let mut inner = shared.lock();
        let now = shared.clock().now;
        let state = &mut inner.state;
        let key = match destination {
            Destination::Address(target) => state.connection_to(target, now)?,
            Destination::Learned => *state.learned.get(&to).ok_or_else(|| {
                Status::new(
                    Code::NotFound,
                    format!("no message of service {to} has come"),
                )
            })?,
        };
        let number = state.calls.number();
        if let Some(peer) = state.peers.get_mut(&key) {
            check_inside(peer, &payload)?;
            let message = Out::Message {
                number,
                to: to.number(),
                from: from.number(),
                payload: Arc::new(payload),
                windows,
            };
            peer.outbox.push(urgency, message);
        }
        state.flush(key, now);
        Ok(())
    }

    /// Octets of long items that peers have not read yet, of messages and replies: memory that a program must not change.
    #[must_use]
    pub fn offered(&self) -> usize {
        let inner = self.handle.shared.lock();
        let peers = inner.state.peers.values();
        let offers = peers.flat_map(|peer| peer.offers.values().flatten());
        offers.map(|registered| registered.block.len()).sum()
    }

    /// Waits until no message with long items waits to be written, sent or read. Returns false at the time limit.
    #[must_use]
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = after(timeout);
        let drained = self.handle.shared.wait_until(deadline, |state, _| {
            let mut peers = state.peers.values();
            let busy = peers.any(|peer| peer.is_sending() || !peer.offers.is_empty());
            (!busy).then_some(())
        });
        drained.is_some()
    }

    /// Takes no more calls, and lets those that it executes end, for at most `timeout`. Then its connections end. Returns whether all ended.
    ///
    /// Its callers learn that it goes away, and send later calls elsewhere; one that gives no sign of life is not waited for longer than
    /// [`Limits::silence`](crate::Limits::silence).
    pub fn close(&self, timeout: Duration) -> bool {
        let shared = &self.handle.shared;
        {
            let mut inner = shared.lock();
            let now = shared.clock().now;
            inner.state.going_away = true;
            let keys: Vec<_> = inner.state.peers.keys().copied().collect();
            for key in keys {
                if let Some(peer) = inner.state.peers.get_mut(&key) {
                    peer.go_away(now);
                }
                inner.state.flush(key, now);
            }
        }
        let deadline = after(timeout);
        let ended = shared.wait_until(deadline, |state, clock| {
            let silence = state.limits.silence;
            let heard = |at: Duration| clock.now.saturating_sub(at) < silence;
            let mut peers = state.peers.values();
            let sending = peers.any(|peer| {
                let waits = peer.going_away.is_some_and(heard);
                waits || peer.is_sending()
            });
            let busy = sending || state.running + state.deferred > 0 || !state.jobs.is_empty();
            (!busy).then_some(())
        });
        self.handle.end();
        ended.is_some()
    }

    /// Requires a token of this secret for each call of a service, and for messages to it. To be called before the service is served.
    ///
    /// # Errors
    /// [`Error::Name`] for a text that names no service.
    pub fn require_tokens(&self, service: &str, secret: TokenSecret) -> Result<(), Error> {
        let name: ServiceName = service.parse()?;
        let mut inner = self.shared().lock();
        inner.state.rights.secrets.insert(name.id, secret);
        Ok(())
    }

    /// Presents this token to endpoints that serve its service, from the next call on. It takes the place of an earlier one for the service.
    pub fn add_token(&self, token: Token) {
        self.shared().lock().state.rights.add_token(token);
    }

    /// Connections of peers that were refused since the last time, 64 at most: the latest.
    #[must_use]
    pub fn take_refused(&self) -> Vec<Refused> {
        let mut inner = self.shared().lock();
        std::mem::take(&mut inner.state.rights.refused).into()
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Handle {
    /// Answers queries of the group, where the endpoint listens and there is one.
    fn respond(&mut self) {
        let listener = self.listener.as_ref();
        let (Some(group), Some(listener)) = (&self.config.group, listener) else {
            return;
        };
        match Responder::start(group, self.instance, listener.local_addr()) {
            Ok(responder) => self.responder = Some(responder),
            Err(error) => tracing::warn!(%error, "services are not announced"),
        }
    }

    fn announce(&self, name: ServiceName) {
        if let Some(responder) = &self.responder {
            responder.add(Announced {
                id: name.id,
                name: name.name,
            });
        }
    }

    fn end(&self) {
        let mut inner = self.shared.lock();
        inner.state.closed = true;
        let peers = std::mem::take(&mut inner.state.peers);
        inner.state.by_qpn.clear();
        inner.state.by_target.clear();
        let numbers: Vec<_> = inner.state.pending.keys().copied().collect();
        for number in numbers {
            let status = Status::new(Code::Unavailable, "the endpoint was closed");
            inner.state.end(number, Err(status));
        }
        self.shared.wake(&mut inner);
        drop(inner);
        drop(peers);
        self.shared.wake_all();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, shared: &Arc<Shared>, body: fn(&Arc<Shared>)) -> Result<(), Error> {
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name(name.to_owned());
    let thread = thread.stack_size(STACK).spawn(move || body(&shared));
    thread
        .map(drop)
        .map_err(Error::system("no thread can be made"))
}
