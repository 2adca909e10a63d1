//! Service ID resolution (SIDR): which queue pair stands behind a port of rdma_cm's UDP port space, without waiting.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::api::device::statistics::Counts as _;
use crate::driver::cm::sidr::{Begin, ServiceId, SidrSessions};
use crate::driver::debug::instruments::Instruments;
use crate::driver::device::clock;
use crate::driver::udp::socket::UdpSocket;
use crate::{Error, MAX_SERVICE_PRIVATE_DATA, QpCounters, RejectStatus, Rnic, ServiceQp};
use dgiwarp_engine::cm::sidr::listener::{Asked, Listener, Question, Verdict};
use dgiwarp_engine::cm::sidr::lookup::Lookup;

/// Offers services, looks services up, and queues their events (`rdma_create_event_channel(3)`, port space `RDMA_PS_UDP`). The background thread
/// of its device makes progress; no call here waits, but [`next_event`](Self::next_event) on request. Cloning shares it; when the last clone and
/// the last listener are gone, so is everything that it had under way.
///
/// ```
/// use std::time::Duration;
/// use dgiwarp::{Config, Rnic, ServiceEvent, ServicePort, ServiceQp};
///
/// let rnic = Rnic::open(Config::default())?;
/// let channel = rnic.create_service_channel()?;
/// let second = Duration::from_secs(5);
///
/// // One program offers a service, here at a port of the system's choice.
/// let port = ServicePort::bind("127.0.0.1:0".parse()?, false)?;
/// let service = channel.listen(port, 16, 1)?;
///
/// // Another asks for it, with private data.
/// let from = ServicePort::bind("127.0.0.1:0".parse()?, false)?;
/// let lookup = channel.look_up(from, service.local_addr(), None, b"who", 2)?;
///
/// let Some(ServiceEvent::Request { context: 1, request }) = channel.next_event(second) else { panic!() };
/// assert_eq!(request.private_data(), b"who");
/// let qp = ServiceQp { qpn: 40_000, qkey: 0x0123_4567 };
/// request.accept(qp, b"me")?;
///
/// let Some(ServiceEvent::Found { context: 2, qp: found, private_data, .. }) = channel.next_event(second) else { panic!() };
/// assert_eq!((found, &private_data[..]), (qp, &b"me"[..]));
/// # drop(lookup);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServiceChannel {
    sessions: Arc<SidrSessions>,
    rnic: Rnic,
}

/// Takes the events of services at once, instead of a queue. The thread that makes progress calls it, usually the device's background
/// thread, with no lock held; while it works, that thread does nothing else, so it takes note and returns.
pub trait ServiceSink: fmt::Debug + Send + Sync {
    /// This happened.
    fn happened(&self, event: ServiceEvent);
}

/// Event of a service or a lookup (`rdma_get_cm_event(3)`). `context` is the number that the program gave it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceEvent {
    /// Somebody asks for a service.
    Request {
        /// The service's.
        context: u64,
        /// To be accepted, rejected or dropped.
        request: ServiceRequest,
    },
    /// A service was found.
    Found {
        /// The lookup's.
        context: u64,
        /// Whom it asked; the address is the one to send to.
        peer: SocketAddr,
        /// The service's queue pair.
        qp: ServiceQp,
        /// Private data of the service's program.
        private_data: Vec<u8>,
    },
    /// The service rejected the lookup.
    Rejected {
        /// The lookup's.
        context: u64,
        /// Why.
        status: RejectStatus,
        /// Private data of the service's program.
        private_data: Vec<u8>,
    },
    /// There is no answer.
    Failed {
        /// The lookup's.
        context: u64,
        /// Why.
        error: LookupError,
    },
}

/// Why a lookup got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// ICMP reports that nobody listens on the port, a third of a second after the first question still.
    #[error("nobody listens on the service's port")]
    NoService,
    /// ICMP reports that the host cannot be reached.
    #[error("the service's host cannot be reached: {0}")]
    Unreachable(io::Error),
    /// Nothing was heard for 4.5 seconds, or the service's program did not answer for a minute.
    #[error("no answer in time")]
    TimedOut,
}

/// A port was bound to offer a service at, or to ask from. Dropping it sets it free.
#[derive(Debug)]
pub struct ServicePort {
    socket: UdpSocket,
    local: SocketAddr,
}

/// A service that is offered. Dropping it ends that; questions that the program has not answered can still be answered, and until then
/// the port stays taken.
#[derive(Debug)]
pub struct ServiceListener {
    sessions: Arc<SidrSessions>,
    id: ServiceId,
    local: SocketAddr,
}

/// A lookup under way. Dropping it ends it without an event, if there was none yet.
#[derive(Debug)]
pub struct ServiceLookup {
    sessions: Arc<SidrSessions>,
    id: ServiceId,
}

/// A question for a service. Dropping it is a rejection.
#[derive(Debug)]
pub struct ServiceRequest {
    sessions: Weak<SidrSessions>,
    id: ServiceId,
    asked: Box<Asked>,
    local: Option<SocketAddr>,
    answered: bool,
}

impl ServicePort {
    /// Binds an address and UDP port, port 0 for one of the system's choice. An unspecified IPv6 address takes IPv4 as well, unless `only_v6`.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not one of this host's.
    pub fn bind(address: SocketAddr, only_v6: bool) -> Result<Self, Error> {
        let bound = UdpSocket::bind_service(address, only_v6);
        let bound = bound.and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (local, socket) = bound.map_err(|source| Error::Bind { address, source })?;
        Ok(Self { socket, local })
    }

    /// The address and port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

fn check_private_data(private_data: &[u8]) -> Result<(), Error> {
    let longest = MAX_SERVICE_PRIVATE_DATA;
    Error::check_limit("private data", private_data.len(), 0, longest)
}

impl ServiceChannel {
    pub(crate) fn new(rnic: &Rnic, sink: Option<Arc<dyn ServiceSink>>) -> Result<Self, Error> {
        let sessions = SidrSessions::new(rnic, sink)?;
        rnic.shared.statistics.begin_other(&sessions);
        rnic.shared.background.serve_task(&sessions)?;
        Ok(Self {
            sessions,
            rnic: rnic.clone(),
        })
    }

    /// The device.
    #[must_use]
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// Offers the service whose number is the port's. At most `backlog` questions, 1 to 1024, wait for the program at a time.
    ///
    /// # Errors
    /// [`Error::System`] where the system is out of memory.
    pub fn listen(
        &self,
        port: ServicePort,
        backlog: usize,
        context: u64,
    ) -> Result<ServiceListener, Error> {
        let number = port.local.port();
        self.listen_as(port, number, backlog, context)
    }

    /// Offers a service with another number than its port's. Lookups must name both
    /// ([`look_up_as`](Self::look_up_as)).
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_as(
        &self,
        port: ServicePort,
        number: u16,
        backlog: usize,
        context: u64,
    ) -> Result<ServiceListener, Error> {
        let local = port.local;
        let listener = Listener::new(number, backlog);
        let id = self.sessions.listen(self.begin(port, context), listener)?;
        Ok(ServiceListener {
            sessions: Arc::clone(&self.sessions),
            id,
            local,
        })
    }

    /// Begins to ask for the service at `to`, whose number is the port's. `asker` names a queue pair of ours to the service. The result is an
    /// event: within 5 seconds, unless the service's program takes longer to answer.
    ///
    /// # Errors
    /// [`Error::Limit`] for private data of more than [`MAX_SERVICE_PRIVATE_DATA`](crate::MAX_SERVICE_PRIVATE_DATA) octets, [`Error::Route`] where no way leads there.
    pub fn look_up(
        &self,
        from: ServicePort,
        to: SocketAddr,
        asker: Option<ServiceQp>,
        private_data: &[u8],
        context: u64,
    ) -> Result<ServiceLookup, Error> {
        self.look_up_as(from, (to, to.port()), asker, private_data, context)
    }

    /// Begins to ask for a service with another number than its port's: address and number.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub fn look_up_as(
        &self,
        from: ServicePort,
        (to, number): (SocketAddr, u16),
        asker: Option<ServiceQp>,
        private_data: &[u8],
        context: u64,
    ) -> Result<ServiceLookup, Error> {
        check_private_data(private_data)?;
        let connected = from.socket.connect_service(to);
        connected.map_err(|source| Error::Route {
            address: to.ip(),
            source,
        })?;
        let [high, low] = self.rnic.shared.draw();
        let transaction = u64::from(high) << 32 | u64::from(low);
        let lookup = Lookup::new(clock::now(), transaction, number, asker, private_data);
        let id = self
            .sessions
            .look_up(self.begin(from, context), lookup, to)?;
        // Whatever the deadline, the background thread may sleep longer.
        self.rnic.shared.background.wake();
        Ok(ServiceLookup {
            sessions: Arc::clone(&self.sessions),
            id,
        })
    }

    fn begin(&self, port: ServicePort, context: u64) -> Begin {
        let config = &self.rnic.shared.config;
        Begin {
            instruments: Instruments::faults_only(config, port.local.port().into()),
            socket: port.socket,
            context,
        }
    }

    /// Takes the oldest event. Waits at most `timeout` for it.
    #[must_use]
    pub fn next_event(&self, timeout: Duration) -> Option<ServiceEvent> {
        self.sessions.wait(clock::now().checked_add(timeout))
    }

    /// Counters of datagrams, with those that were dropped by reason. A device's sums contain it ([`Rnic::counters`]).
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.sessions.counters()
    }
}

/// Readable while [`ServiceChannel::next_event`] has one.
impl AsFd for ServiceChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sessions.event_fd()
    }
}

impl ServiceListener {
    /// The address and port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for ServiceListener {
    fn drop(&mut self) {
        self.sessions.end(self.id);
    }
}

impl Drop for ServiceLookup {
    fn drop(&mut self) {
        self.sessions.end(self.id);
    }
}

impl ServiceRequest {
    pub(crate) fn new(
        sessions: Weak<SidrSessions>,
        id: ServiceId,
        asked: Box<Asked>,
        local: Option<SocketAddr>,
    ) -> Self {
        Self {
            sessions,
            id,
            asked,
            local,
            answered: false,
        }
    }

    /// Address of the asker. The port is not that of a queue pair.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.asked.from
    }

    /// The address of ours that was asked, and the service's number.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The queue pair that the asker named.
    #[must_use]
    pub fn asker(&self) -> Option<ServiceQp> {
        self.asked.qp
    }

    /// Private data of the asker.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.asked.private_data
    }

    /// Gives the asker a queue pair.
    ///
    /// # Errors
    /// [`Error::Limit`] for private data of more than [`MAX_SERVICE_PRIVATE_DATA`](crate::MAX_SERVICE_PRIVATE_DATA) octets; the question is rejected then.
    pub fn accept(mut self, qp: ServiceQp, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data)?;
        self.answer(Verdict::Accept(qp), private_data);
        Ok(())
    }

    /// Says no.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data)?;
        self.answer(Verdict::Reject(RejectStatus::REJECTED), private_data);
        Ok(())
    }

    fn answer(&mut self, verdict: Verdict, private_data: &[u8]) {
        if let Some(sessions) = self.sessions.upgrade()
            && !std::mem::replace(&mut self.answered, true)
        {
            let question: Question = self.asked.question;
            sessions.answer(self.id, question, verdict, private_data);
        }
    }
}

impl Drop for ServiceRequest {
    fn drop(&mut self) {
        self.answer(Verdict::Reject(RejectStatus::REJECTED), &[]);
    }
}

/// Service channels of a device.
impl Rnic {
    /// Makes a channel for services: offering them and looking them up.
    ///
    /// # Errors
    /// [`Error::System`] where descriptors are exhausted.
    pub fn create_service_channel(&self) -> Result<ServiceChannel, Error> {
        ServiceChannel::new(self, None)
    }

    /// Makes a channel for services whose events go to `sink` instead of a queue.
    ///
    /// # Errors
    /// As [`create_service_channel`](Self::create_service_channel).
    pub fn create_service_channel_to(
        &self,
        sink: Arc<dyn ServiceSink>,
    ) -> Result<ServiceChannel, Error> {
        ServiceChannel::new(self, Some(sink))
    }
}
