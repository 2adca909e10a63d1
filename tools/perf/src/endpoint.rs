//! One endpoint of either kind, and its measurements. The only place that names them all.

pub(crate) mod idle;
pub(crate) mod loss;
pub(crate) mod members;
pub(crate) mod ours;
pub(crate) mod pattern;
pub(crate) mod raw;

use std::net::IpAddr;

use crate::catalog::{Mode, Subject, Transport};
use crate::endpoint::idle::Idle;
use crate::endpoint::ours::fetch::{Fetches, RcRequester, UdRequester};
use crate::endpoint::ours::idle::RcConnections;
use crate::endpoint::ours::rc::Rc;
use crate::endpoint::ours::ud::Ud;
use crate::endpoint::raw::group::Group;
use crate::endpoint::raw::idle::TcpConnections;
use crate::endpoint::raw::shm::Shm;
use crate::endpoint::raw::tcp::Tcp;
use crate::endpoint::raw::udp::Udp;
use crate::error::{PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::machine::interrupt::Interrupt;
use crate::measure::bandwidth::{self, Task};
use crate::measure::latency::{self, PingOutcome};
use crate::measure::{Flow, Geometry, Watch};
use crate::session::control::{Control, EndpointSpec, Offer, RoundReport};

/// The largest message: what one tagged offset range and one `--size` may cover here.
pub(crate) const MAX_SIZE: u64 = 1 << 30;

/// Rounds after which a row through shared memory has moved there.
const ROUNDS_TO_MEET: u16 = 5;

/// The largest message posted in lists.
const MAX_LISTED: u64 = 1024;

/// Whether messages can be posted in lists.
pub(crate) fn can_list(subject: Subject, mode: Mode, size: u64) -> bool {
    let posts = !subject.transport.is_raw() && !subject.op.fetches();
    posts && mode == Mode::Rate && size <= MAX_LISTED
}

#[derive(Debug)]
enum Kind {
    Udp(Box<Udp>),
    Group(Box<Group>),
    Tcp(Tcp),
    Shm(Box<Shm>),
    Ud(Box<Ud>),
    Rc(Box<Rc>),
    UdFetches(Box<Fetches<UdRequester>>),
    RcFetches(Box<Fetches<RcRequester>>),
    RcIdle(Box<Idle<RcConnections>>),
    TcpIdle(Box<Idle<TcpConnections>>),
}

/// One side of something to measure.
#[derive(Debug)]
pub(crate) struct Endpoint {
    kind: Kind,
    spec: EndpointSpec,
    side: Side,
    granted: u64,
    geometry: Option<Geometry>,
    round: u16,
    sequence: u64,
}

/// Runs the same code on whichever endpoint it is, compiled for each.
macro_rules! each {
    ($kind:expr, $endpoint:ident => $body:expr) => {
        match $kind {
            Kind::Udp($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::Group($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::Tcp($endpoint) => $body,
            Kind::Shm($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::Ud($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::Rc($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::UdFetches($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::RcFetches($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::RcIdle($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
            Kind::TcpIdle($endpoint) => {
                let $endpoint = &mut **$endpoint;
                $body
            }
        }
    };
}

impl Endpoint {
    /// Opens this side's half on the local address `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let allowed = spec.subject.entry().map_or(&[][..], |entry| entry.modes);
        if !allowed.contains(&spec.mode) {
            return Err(PerfError::Usage(format!(
                "{} has no mode {} (see --list)",
                spec.subject,
                spec.mode.name()
            )));
        }
        if spec.list > 1 && !can_list(spec.subject, spec.mode, spec.size) {
            return Err(PerfError::Protocol(format!("impossible {spec:?}")));
        }
        if (spec.mode == Mode::Fanout) != spec.group.is_some() {
            return Err(PerfError::Protocol(format!("impossible {spec:?}")));
        }
        if !(1..=MAX_SIZE).contains(&spec.size) {
            return Err(PerfError::Usage(format!(
                "a size of {} bytes is outside of 1 to {MAX_SIZE}",
                spec.size
            )));
        }
        if spec
            .subject
            .op
            .only_size()
            .is_some_and(|only| only != spec.size)
        {
            return Err(PerfError::Usage(format!(
                "{} has no messages of {} bytes",
                spec.subject, spec.size
            )));
        }
        let (kind, offer) = match spec.subject.transport {
            Transport::Udp if spec.group.is_some() => {
                let (group, offer) = Group::open(spec, local, side)?;
                (Kind::Group(Box::new(group)), offer)
            }
            Transport::Udp => {
                let (udp, offer) = Udp::open(spec, local, side)?;
                (Kind::Udp(Box::new(udp)), offer)
            }
            Transport::Tcp if spec.mode == Mode::Idle => {
                let (idle, offer) = Idle::open(spec, local, side)?;
                (Kind::TcpIdle(Box::new(idle)), offer)
            }
            Transport::Rc if spec.mode == Mode::Idle => {
                let (idle, offer) = Idle::open(spec, local, side)?;
                (Kind::RcIdle(Box::new(idle)), offer)
            }
            Transport::Tcp => {
                let (tcp, offer) = Tcp::open(spec, local, side)?;
                (Kind::Tcp(tcp), offer)
            }
            Transport::Shm => {
                let (shm, offer) = Shm::open(spec, local, side)?;
                (Kind::Shm(Box::new(shm)), offer)
            }
            Transport::Ud | Transport::UdRing if spec.subject.op.fetches() => {
                let (fetches, offer) = Fetches::open(spec, local, side)?;
                (Kind::UdFetches(Box::new(fetches)), offer)
            }
            Transport::Rc | Transport::RcRing | Transport::RcDirect
                if spec.subject.op.fetches() =>
            {
                let (fetches, offer) = Fetches::open(spec, local, side)?;
                (Kind::RcFetches(Box::new(fetches)), offer)
            }
            Transport::Rd
            | Transport::RdRing
            | Transport::Rc
            | Transport::RcRing
            | Transport::RcDirect => {
                let (rc, offer) = Rc::open(spec, local, side)?;
                (Kind::Rc(Box::new(rc)), offer)
            }
            Transport::Ud | Transport::UdRing => {
                let (ud, offer) = Ud::open(spec, local, side)?;
                (Kind::Ud(Box::new(ud)), offer)
            }
        };
        let endpoint = Self {
            kind,
            spec: spec.clone(),
            side,
            granted: offer.receive_buffer,
            geometry: None,
            round: 0,
            sequence: 0,
        };
        Ok((endpoint, offer))
    }

    /// Connects to the peer's half; the sender to a group, to each receiver's.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        // Both directions must fit into the smaller of the two receive buffers.
        self.granted = self.granted.min(offer.receive_buffer);
        match &mut self.kind {
            Kind::Udp(udp) => udp.connect(peer, offer),
            Kind::Group(group) => group.connect(peer, offer),
            Kind::Tcp(tcp) => tcp.connect(peer, offer),
            Kind::Shm(shm) => shm.connect(peer, offer),
            Kind::Ud(ud) => ud.connect(peer, offer),
            Kind::Rc(rc) => rc.connect(peer, offer),
            Kind::UdFetches(fetches) => fetches.connect(peer, offer),
            Kind::RcFetches(fetches) => fetches.connect(peer, offer),
            Kind::RcIdle(idle) => idle.connect(peer, offer),
            Kind::TcpIdle(idle) => idle.connect(peer, offer),
        }
    }

    /// The client's choice of sizes, once connected.
    pub(crate) fn choose_geometry(&self, window: Option<u64>) -> Result<Geometry> {
        match &self.kind {
            Kind::Udp(udp) => udp.geometry(self.granted, window),
            Kind::Group(group) => group.geometry(self.granted, window),
            Kind::Tcp(tcp) => Ok(tcp.geometry(window)),
            Kind::Shm(shm) => Ok(shm.geometry(window)),
            Kind::Rc(rc) => Ok(rc.geometry(window)),
            Kind::Ud(ud) => ud.geometry(self.granted, window),
            Kind::UdFetches(fetches) => Ok(fetches.geometry(window)),
            Kind::RcFetches(fetches) => Ok(fetches.geometry(window)),
            Kind::RcIdle(idle) => Ok(idle.geometry()),
            Kind::TcpIdle(idle) => Ok(idle.geometry()),
        }
    }

    /// Whether a ping of this size can arrive without flow control.
    pub(crate) fn can_ping(&self, geometry: &Geometry) -> bool {
        geometry.fits_unanswered(self.granted)
    }

    /// The smaller of both sides' receive buffers.
    pub(crate) const fn granted(&self) -> u64 {
        self.granted
    }

    /// Prepares for the agreed sizes.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        let sane = (1..=MAX_SIZE).contains(&geometry.chunk)
            && (1..=geometry.chunk).contains(&geometry.segment)
            && geometry.size == self.spec.size;
        if !sane {
            return Err(PerfError::Protocol(format!(
                "impossible sizes {geometry:?}"
            )));
        }
        self.geometry = Some(*geometry);
        each!(&mut self.kind, endpoint => endpoint.configure(geometry))
    }

    /// The client's side of a latency round.
    pub(crate) fn ping(
        &mut self,
        messages: u64,
        control: &mut Control,
        interrupt: &Interrupt,
    ) -> Result<PingOutcome> {
        let transport = self.spec.subject.transport.name();
        let blocking = self.spec.wait == Wait::Block;
        let mut watch = Watch::new(control, interrupt, self.side, transport);
        let (first, size) = (self.sequence, self.spec.size);
        self.sequence += messages;
        each!(&mut self.kind, endpoint =>
            latency::ping(endpoint, first, messages, size, blocking, &mut watch))
    }

    /// Takes part in a round as the spec's mode demands: the server's side of all modes, and
    /// the client's side of the streaming ones.
    pub(crate) fn round(
        &mut self,
        messages: u64,
        control: &mut Control,
        interrupt: &Interrupt,
    ) -> Result<RoundReport> {
        let Some(geometry) = self.geometry else {
            return Err(PerfError::Protocol("a round before sizes".to_owned()));
        };
        let transport = self.spec.subject.transport.name();
        let blocking = self.spec.wait == Wait::Block || self.target_sleeps();
        let mut watch = Watch::new(control, interrupt, self.side, transport);
        let bytes = messages.saturating_mul(geometry.size);
        let fetches = self.spec.subject.op.fetches();
        let marks = self.spec.mode == Mode::Loss && self.is_lossy();
        let task = match (self.spec.mode, self.side) {
            (Mode::Lat, _) => {
                each!(&mut self.kind, endpoint =>
                    latency::pong(endpoint, blocking, &mut watch))?;
                return Ok(RoundReport::default());
            }
            (Mode::Idle, _) => Task {
                send: 0,
                receive: 0,
                marks,
            },
            // The fetching client requests and receives; the server answers until the client is done.
            (_, Side::Client) if fetches => Task {
                send: bytes,
                receive: bytes,
                marks,
            },
            (Mode::Bibw, _) => Task {
                send: bytes,
                receive: bytes,
                marks,
            },
            (Mode::Bw | Mode::Rate | Mode::Loss | Mode::Fanout, Side::Client) => Task {
                send: bytes,
                receive: 0,
                marks,
            },
            (Mode::Bw | Mode::Rate | Mode::Loss | Mode::Fanout, Side::Server) => Task {
                send: 0,
                receive: bytes,
                marks,
            },
        };
        each!(&mut self.kind, endpoint =>
            bandwidth::run(endpoint, task, &geometry, blocking, &mut watch))
    }

    /// Completes the report of a round that the client has ended.
    pub(crate) fn finish(&mut self, report: &mut RoundReport) -> Result<()> {
        if self.spec.mode != Mode::Loss || !self.is_lossy() {
            return Ok(());
        }
        each!(&mut self.kind, endpoint => bandwidth::finish(endpoint, report))
    }

    /// Whether this side is the target of Reads that need nothing of it.
    fn target_sleeps(&self) -> bool {
        let Subject { transport, op } = self.spec.subject;
        self.side == Side::Server && transport == Transport::RcDirect && op.fetches()
    }

    /// Whether messages may get lost for good, so that the sender marks how far it is.
    const fn is_lossy(&self) -> bool {
        !self.spec.subject.op.fetches() && !self.spec.subject.transport.is_reliable_datagram()
    }

    /// Gets ready for the next round, on both sides before either starts.
    pub(crate) fn start_round(&mut self) -> Result<()> {
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        let transport = self.spec.subject.transport;
        if round > ROUNDS_TO_MEET && (transport.is_in_ring() || transport == Transport::RcDirect) {
            let counters = match &self.kind {
                Kind::Rc(rc) => rc.counters(),
                Kind::RcFetches(fetches) => fetches.counters(),
                Kind::Ud(ud) => ud.counters(),
                Kind::UdFetches(fetches) => fetches.counters(),
                _ => dgiwarp::QpCounters::default(),
            };
            if transport.is_in_ring() && counters.lane_octets_sent == 0 {
                return Err(PerfError::Apart(counters.to_string()));
            }
            // A target of Reads initiates nothing.
            let initiates = self.side == Side::Client || !self.spec.subject.op.fetches();
            if transport == Transport::RcDirect && initiates && counters.one_sided_operations == 0 {
                return Err(PerfError::TwoSided(counters.to_string()));
            }
        }
        each!(&mut self.kind, endpoint => endpoint.start_round(round))
    }
}
