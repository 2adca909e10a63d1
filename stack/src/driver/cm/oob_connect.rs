//! Connections between QPs whose programs exchanged numbers and addresses themselves (`rfc-notes/rc-oob-connect.md`).
//!
//! A QPN made here names a TCP port of this device, and one of 256 QPs behind it. [`dgiwarp_engine::cm::oob`] decides which end
//! connects, and when; this module has the sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Connection, Event};
use dgiwarp_memory::socket::NoCancellation;
use nix::poll::PollFlags;
use parking_lot::Mutex;

use crate::api::qp::qpn::Qpn;
use crate::driver::cm::events::IncomingRequest;
use crate::driver::device::clock;
use crate::driver::reactor::waker::Task;
use crate::driver::tcp::mpa_startup::{Failure, ListenerId, MpaStartups, Outcome, StartupResult};
use crate::driver::tcp::qp::{ConnectTicket, RcShared, Startup};
use crate::driver::tcp::socket as tcp;
use crate::{Access, CrcPreference, Error, MpaConfig, ReadDepths, RtrSet, WcStatus};
use dgiwarp_engine::cm::connect::oob_config;
use dgiwarp_engine::cm::oob::{Action, Claim, Need, Pairing, Pairs, Refusal, Start, StartupId};
use dgiwarp_engine::connected::RcConfig;
use dgiwarp_engine::mr::PdId;

/// QPs behind one port.
const PER_PORT: u16 = 256;
/// QPNs of datagram QPs are below 65,536, and the last port would make QPNs that verbs programs use for groups.
const PORTS: RangeInclusive<u16> = 256..=65_534;
/// Ports tried before the reservation fails.
const TRIES: usize = 64;
/// Time for one attempt's TCP handshake and startup.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Time that posted work requests have to leave from when their QP may send, if the program takes it out of service.
const LEAVE_FOR: Duration = Duration::from_millis(500);
/// Poll interval of [`let_leave`](OobConnections::let_leave) while another thread does the work.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The out-of-band connections of all devices, with their process: a child has copies of its parent's.
static ALL: Mutex<Vec<(u32, Weak<OobConnections>)>> = Mutex::new(Vec::new());

/// The driver's state of a QP.
#[derive(Debug)]
struct Pair {
    qp: Weak<RcShared>,
    pd: PdId,
    ticket: Option<ConnectTicket>,
    /// Address of the peer that the program named.
    peer: Option<IpAddr>,
    /// Time of the change to ready-to-send.
    started: Option<Instant>,
}

#[derive(Debug)]
struct Port {
    number: u16,
    _listener: ListenerId,
    /// The index to give out next: a number is used again as late as possible.
    next: u16,
}

/// A connection whose startup is over.
#[derive(Debug)]
struct Connected {
    stream: TcpStream,
    peer: SocketAddr,
    connection: Box<Connection>,
    event: Event,
    rest: Vec<u8>,
}

#[derive(Debug, Default)]
struct Table {
    pairs: Pairs,
    ports: Vec<Port>,
    qps: BTreeMap<u32, Pair>,
    /// Requests that wait for an answer.
    incoming: BTreeMap<StartupId, IncomingRequest>,
    /// Connection of the startup whose end the engine is handling.
    connected: Option<(StartupId, Connected)>,
}

/// Out-of-band connections of a device.
#[derive(Debug)]
pub(crate) struct OobConnections {
    startups: MpaStartups,
    ports: RangeInclusive<u16>,
    crc: CrcPreference,
    table: Mutex<Table>,
}

impl OobConnections {
    /// `ports` is the range that may be used; `None` leaves the choice to the system.
    pub(crate) fn new(
        ports: Option<RangeInclusive<u16>>,
        crc: CrcPreference,
    ) -> Result<Arc<Self>, Error> {
        let new = Arc::new(Self {
            startups: MpaStartups::new()?,
            ports: ports.unwrap_or(0..=0),
            crc,
            table: Mutex::default(),
        });
        let mut all = ALL.lock();
        all.retain(|(_, connections)| connections.strong_count() > 0);
        all.push((std::process::id(), Arc::downgrade(&new)));
        drop(all);
        Ok(new)
    }

    /// Reserves a QPN for a QP that [`enter`](Self::enter) adds.
    pub(crate) fn reserve(&self) -> Result<Qpn, Error> {
        let mut table = self.table.lock();
        let known = table.ports.iter_mut().find_map(Port::take);
        if let Some(qpn) = known {
            return Ok(qpn);
        }
        table.ports.push(self.open_port()?);
        let new = table.ports.last_mut();
        new.and_then(Port::take).ok_or_else(Error::no_qpn)
    }

    /// Adds the QP of a QPN that was reserved.
    pub(crate) fn enter(&self, qpn: u32, pd: PdId, qp: &Arc<RcShared>) {
        let mut table = self.table.lock();
        let pair = Pair {
            qp: Arc::downgrade(qp),
            pd,
            ticket: None,
            peer: None,
            started: None,
        };
        table.qps.insert(qpn, pair);
        table.pairs.insert(qpn);
    }

    /// Gives a QPN back.
    pub(crate) fn forget(&self, qpn: u32) {
        let mut table = self.table.lock();
        table.pairs.remove(qpn);
        table.qps.remove(&qpn);
        self.act(&mut table);
    }

    /// Handles the reset of a QP.
    pub(crate) fn reset(&self, qpn: u32) {
        let mut table = self.table.lock();
        table.pairs.reset(qpn);
        self.act(&mut table);
    }

    fn open_port(&self) -> Result<Port, Error> {
        let tries: Box<dyn Iterator<Item = u16>> = if self.ports == (0..=0) {
            Box::new(std::iter::repeat_n(0, TRIES))
        } else {
            Box::new(self.ports.clone())
        };
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for number in tries {
            let listener = match listen(number) {
                Ok(listener) => listener,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let local = listener.local_addr();
            let number = local.map_err(Error::system("cannot listen"))?.port();
            if !PORTS.contains(&number) {
                continue;
            }
            let listener = self
                .startups
                .listen(
                    listener,
                    oob_config(ReadDepths { ird: 0, ord: 0 }, self.crc, ATTEMPT),
                    0,
                )
                .map_err(Error::system("cannot watch a socket"))?;
            return Ok(Port {
                number,
                _listener: listener,
                next: 0,
            });
        }
        Err(Error::system("cannot listen for connected QPs")(last))
    }

    /// Connects a QP, claimed with `ticket`, to the peer of `pairing`.
    pub(crate) fn pair(&self, qpn: u32, ticket: ConnectTicket, pairing: Pairing) {
        let mut table = self.table.lock();
        if let Some(pair) = table.qps.get_mut(&qpn) {
            pair.ticket = Some(ticket);
            pair.peer = Some(pairing.peer.to_canonical());
            pair.started = None;
        }
        table.pairs.pair(clock::now(), qpn, pairing);
        self.act(&mut table);
    }

    /// Handles the change of a QP to ready-to-send.
    pub(crate) fn start(&self, qpn: u32, start: Start) {
        let mut table = self.table.lock();
        let now = clock::now();
        if let Some(pair) = table.qps.get_mut(&qpn) {
            pair.started.get_or_insert(now);
        }
        table.pairs.start(now, qpn, start);
        self.act(&mut table);
    }

    /// Lets the posted work requests of a QP leave that is to be taken out of service while its connection is coming up. A NIC, which needs no connection before the
    /// first message, has sent them before any later call of its program.
    pub(crate) fn let_leave(&self, qp: &RcShared) {
        let started = self
            .table
            .lock()
            .qps
            .get(&qp.qpn)
            .and_then(|pair| pair.started);
        let Some(started) = started else {
            return;
        };
        let _guard = NoCancellation::begin();
        let deadline = started + LEAVE_FOR;
        while qp.is_coming_up() {
            let now = clock::now();
            if deadline <= now {
                return;
            }
            let until = deadline.min(now + POLL_INTERVAL);
            tcp::wait(self.work_fd(), PollFlags::POLLIN, Some(until));
            self.progress();
        }
    }

    /// Lets the posted work requests of all QPs leave, as the process ends.
    pub(crate) fn let_all_leave(&self) {
        // A signal handler may have ended the process in a thread that has the lock.
        let Some(table) = self.table.try_lock_for(LEAVE_FOR) else {
            return;
        };
        let started = table.qps.values().filter(|pair| pair.started.is_some());
        let qps: Vec<_> = started.filter_map(|pair| pair.qp.upgrade()).collect();
        drop(table);
        for qp in qps {
            self.let_leave(&qp);
        }
    }

    /// QPs whose program named a peer at this address. A caller that holds the lock of another QP may lock them: the table is not locked any more.
    fn qps_with(&self, peer: IpAddr) -> Vec<Arc<RcShared>> {
        let table = self.table.lock();
        let of_peer = table.qps.values().filter(|pair| pair.peer == Some(peer));
        of_peer.filter_map(|pair| pair.qp.upgrade()).collect()
    }

    /// Executes the engine's actions.
    fn act(&self, table: &mut Table) {
        while let Some(action) = table.pairs.poll_action() {
            match action {
                Action::Connect {
                    attempt,
                    pairing,
                    claim,
                    depths,
                } => self.connect(table, attempt, &pairing, &claim, depths),
                Action::Abandon { attempt } => self.startups.abandon(attempt.get()),
                Action::Accept {
                    request,
                    claim,
                    depths,
                } => {
                    if self.accept(table, request, &claim, depths).is_none() {
                        // The peer has gone, and will send another Request.
                        table.pairs.over(clock::now(), request, None);
                    }
                }
                Action::Refuse { request, refusal } => {
                    if let Some(incoming) = table.incoming.remove(&request) {
                        self.refuse(incoming, refusal);
                    }
                }
                Action::Drop { request } => {
                    table.incoming.remove(&request);
                    self.startups.abandon(request.get());
                }
                Action::Link { qpn, of } => {
                    let connected = table.connected.take().filter(|(id, _)| *id == of);
                    if let (Some((_, connected)), Some(pair)) = (connected, table.qps.get(&qpn)) {
                        // If the QP does not take it any more, closing it informs the peer.
                        let _ = pair.link(qpn, connected);
                    }
                }
                Action::GiveUp { qpn } => {
                    if let Some(qp) = table.qps.get(&qpn).and_then(|pair| pair.qp.upgrade()) {
                        qp.give_up(WcStatus::RetryExceeded);
                    }
                }
            }
        }
    }

    fn connect(
        &self,
        table: &mut Table,
        attempt: StartupId,
        pairing: &Pairing,
        claim: &Claim,
        depths: ReadDepths,
    ) {
        if claim.is_of_itself(pairing) {
            let looped = connect_to_itself(pairing, claim, self.crc, depths);
            self.over(table, attempt, looped);
            return;
        }
        let begun = self.startups.connect_from(
            Some(pairing.source),
            at_port(pairing),
            oob_config(depths, self.crc, ATTEMPT),
            &claim.emit(),
            attempt.get(),
        );
        if let Err(error) = begun {
            tracing::trace!(%error, "not connected yet");
            table.pairs.over(clock::now(), attempt, None);
        }
    }

    /// Handles the end of a startup.
    fn over(&self, table: &mut Table, startup: StartupId, connected: Option<Connected>) {
        let reply = connected.as_ref().map(|it| match &it.event {
            Event::Established(established) => established.private_data.clone(),
            Event::Request(_) | Event::Rejected(_) | Event::Failed(_) | Event::PeerClosed => {
                Vec::new()
            }
        });
        table.connected = connected.map(|it| (startup, it));
        table.pairs.over(clock::now(), startup, reply.as_deref());
        self.act(table);
        // Not the intended peer: closing the connection informs it.
        table.connected = None;
    }

    /// Answers a request and waits for the peer's confirmation. `None` if the answer could not be sent.
    fn accept(
        &self,
        table: &mut Table,
        request: StartupId,
        claim: &Claim,
        depths: ReadDepths,
    ) -> Option<()> {
        let IncomingRequest {
            stream,
            mut connection,
            ..
        } = table.incoming.remove(&request)?;
        connection.accept(depths, &claim.emit()).ok()?;
        let established = connection.poll_event()?;
        tcp::transmit_all(&stream, &mut connection).ok()?;
        self.startups
            .confirm(stream, connection, established, ATTEMPT, request.get())
            .ok()
    }

    fn refuse(&self, mut incoming: IncomingRequest, refusal: Refusal) {
        let depths = ReadDepths { ird: 0, ord: 0 };
        if incoming.connection.reject(depths, &refusal.emit()).is_ok()
            && tcp::transmit_all(&incoming.stream, &mut incoming.connection).is_ok()
        {
            // A peer that does not get the Reject sees the connection close.
            let _ = incoming.stream.shutdown(Shutdown::Write);
            let _ = self.startups.linger(incoming.stream);
        }
    }

    /// Handles the result of a startup at one of our ports.
    fn arrived(table: &mut Table, over: StartupResult) {
        let Outcome::Mpa {
            event: Event::Request(request),
            connection,
            stream,
            ..
        } = over.outcome
        else {
            return;
        };
        let id = table.pairs.next_id();
        let private_data = request.private_data.clone();
        let incoming = IncomingRequest {
            stream,
            peer: over.peer,
            connection,
            request,
        };
        table.incoming.insert(id, incoming);
        let Table { pairs, qps, .. } = table;
        let is_free = |qpn| {
            let qp = qps.get(&qpn).and_then(|pair| pair.qp.upgrade());
            qp.is_some_and(|qp| !qp.is_claimed())
        };
        pairs.arrived(clock::now(), id, over.peer.ip(), &private_data, is_free);
    }
}

/// Receives the messages that a host has sent to QPs of this process, and returns whether completions of theirs lie in a completion queue, or a connection with the host is coming up.
pub(crate) fn has_untaken_of(peer: IpAddr) -> bool {
    let process = std::process::id();
    let of_process = |(at, connections): &(u32, Weak<OobConnections>)| {
        (*at == process).then(|| connections.upgrade()).flatten()
    };
    let devices: Vec<_> = ALL.lock().iter().filter_map(of_process).collect();
    let qps = devices.iter().flat_map(|device| device.qps_with(peer));
    // Each of them receives.
    let untaken = qps.filter(|qp| qp.has_untaken());
    untaken.count() > 0
}

impl Task for OobConnections {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.startups.fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let pairs = self.table.lock().pairs.poll_timeout();
        pairs.into_iter().chain(self.startups.poll_timeout()).min()
    }

    fn progress(&self) {
        self.startups.progress();
        let mut table = self.table.lock();
        let table = &mut *table;
        while let Some(over) = self.startups.take() {
            if over.inbound {
                Self::arrived(table, over);
                self.act(table);
            } else {
                let startup = StartupId::new(over.context);
                let connected = established(over);
                self.over(table, startup, connected);
            }
        }
        let Table { pairs, qps, .. } = table;
        pairs.handle_timeout(clock::now(), |qpn| {
            match qps.get(&qpn).and_then(|pair| pair.qp.upgrade()) {
                None => Need::Over,
                Some(qp) if qp.is_over() => Need::Over,
                Some(qp) if qp.has_waiting() => Need::Waiting,
                Some(_) => Need::Idle,
            }
        });
        self.act(table);
    }
}

impl Pair {
    /// Links the QP with its connection.
    fn link(&self, qpn: u32, connected: Connected) -> Option<()> {
        let qp = self.qp.upgrade()?;
        let Event::Established(established) = connected.event else {
            return None;
        };
        let startup = Startup {
            send_rtr: established.send_rtr,
            rest: &connected.rest,
        };
        let config = RcConfig {
            qpn,
            pd: self.pd,
            peer: connected.peer,
            options: qp.unlocked.options,
            paired: true,
            denied: Access::empty(),
        };
        qp.link(
            self.ticket?,
            config,
            *connected.connection,
            connected.stream.into(),
            startup,
        )
        .ok()
    }
}

impl Port {
    fn take(&mut self) -> Option<Qpn> {
        let free = (0..PER_PORT).find_map(|step| {
            let index = (self.next + step) % PER_PORT;
            let qpn = u32::from(self.number) << 8 | u32::from(index);
            Qpn::take(qpn).map(|qpn| (qpn, index))
        });
        let (qpn, index) = free?;
        self.next = (index + 1) % PER_PORT;
        Some(qpn)
    }
}

fn listen(port: u16) -> io::Result<std::net::TcpListener> {
    // IPv4 peers connect to this one too.
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    tcp::listen(any).or_else(|error| match error.raw_os_error() {
        Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL) => {
            tcp::listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        _ => Err(error),
    })
}

/// Address and TCP port that the peer's QPN names.
fn at_port(pairing: &Pairing) -> SocketAddr {
    let port = u16::try_from(pairing.peer_qpn >> 8).unwrap_or(0);
    match pairing.peer {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, pairing.scope_id).into(),
    }
}

/// Connection of a startup of ours, or of a confirmed answer; `None` if it failed.
fn established(over: StartupResult) -> Option<Connected> {
    match over.outcome {
        Outcome::Mpa {
            event: event @ Event::Established(_),
            connection,
            stream,
            rest,
        } => Some(Connected {
            stream,
            peer: over.peer,
            connection,
            event,
            rest,
        }),
        Outcome::Mpa { .. } => {
            tracing::trace!("not accepted yet");
            None
        }
        Outcome::Failed(failure) => {
            match failure {
                Failure::Tcp(error) => tracing::trace!(%error, "not connected yet"),
                Failure::Mpa(error) => tracing::trace!(%error, "not connected yet"),
                Failure::Config(error) => tracing::warn!(%error, "cannot send an MPA Request"),
            }
            None
        }
    }
}

/// One TCP connection whose two ends are one socket, with a startup that needs no network.
fn connect_to_itself(
    pairing: &Pairing,
    claim: &Claim,
    crc: CrcPreference,
    depths: ReadDepths,
) -> Option<Connected> {
    let stream = match tcp::connect_to_itself(pairing.source, pairing.scope_id) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::trace!(%error, "not connected yet");
            return None;
        }
    };
    let now = clock::now();
    let config = MpaConfig {
        emss: tcp::emss(&stream).ok()?,
        one_host: true,
        rtr: RtrSet {
            write: true,
            ..RtrSet::NONE
        },
        ..oob_config(depths, crc, ATTEMPT)
    };
    let mut own = Connection::initiator(now, config.clone(), &claim.emit()).ok()?;
    let mut other = Connection::responder(now, config);
    exchange(&mut own, &mut other, now);
    other.poll_event();
    other.accept(depths, &claim.emit()).ok()?;
    exchange(&mut other, &mut own, now);
    Some(Connected {
        peer: stream.peer_addr().ok()?,
        stream,
        event: own.poll_event()?,
        connection: Box::new(own),
        rest: Vec::new(),
    })
}

/// Hands the frames of one end to the other.
fn exchange(from: &mut Connection, to: &mut Connection, now: Instant) {
    let octets = from.poll_transmit(now).to_vec();
    from.transmitted(octets.len());
    let _ = to.handle_input(now, &mut octets.as_slice());
}
