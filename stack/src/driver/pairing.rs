//! Connections between QPs whose programs exchanged numbers and addresses themselves (`rfc-notes/rc-pairing.md`).
//!
//! A QPN made here names a TCP port of this device, and one of 256 QPs behind it. One end of a pair connects there, again and again until it
//! gets through; the other end's port is answered by the background thread, which lets nobody in but the peer that the QP was told of.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::Event;
use parking_lot::Mutex;

use super::background::Connecting;
use super::cm::Asked;
use super::rc::{Claimed, RcShared, Startup};
use super::startups::{Failure, ListenerId, Outcome, Over, Startups};
use super::{clock, tcp};
use crate::engine::mr::PdId;
use crate::engine::pairing::{Claim, Pairing, Refusal};
use crate::engine::rc::RcConfig;
use crate::qpns::Qpn;
use crate::{Error, MpaConfig, ReadDepths, WcStatus};

/// QPs behind one port.
const PER_PORT: u16 = 256;
/// QPNs of datagram QPs are below 65,536, and the last port would make QPNs that verbs programs use for groups.
const PORTS: RangeInclusive<u16> = 256..=65_534;
/// Ports tried before there is none.
const TRIES: usize = 64;
/// First pause before connecting again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A QP that could connect waits this long for the PSN of its own messages, which says more certainly who it is.
const WAIT_FOR_PSN: Duration = Duration::from_millis(100);
/// How long a request waits for its QP to be told of the peer.
const HOLD_FOR: Duration = Duration::from_secs(30);
/// Requests that wait so.
const MAX_HELD: usize = 256;
/// Time for one attempt's TCP handshake and startup.
const ATTEMPT: Duration = Duration::from_secs(10);

/// What is known of a QP that may send (`ibv_modify_qp(3)` to ready-to-send).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Number of the first packet, 24 bits.
    pub(crate) sq_psn: u32,
    /// Reads and atomics outstanding at most.
    pub(crate) ord: u16,
    /// How long work requests wait for the connection; `None` for ever.
    pub(crate) patience: Option<Duration>,
}

#[derive(Debug)]
enum Stage {
    /// Nothing is known of the peer.
    Made,
    /// The connection is on its way.
    Pending(Pending),
    /// It is there, or was, or came to nothing.
    Over,
}

#[derive(Debug)]
struct Pending {
    claimed: Claimed,
    pairing: Pairing,
    start: Option<Start>,
    /// Whether an attempt is under way.
    trying: bool,
    /// When to try, or to look, next.
    due: Instant,
    pause: Duration,
    /// When work requests that wait have waited long enough.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Pair {
    qp: Weak<RcShared>,
    pd: PdId,
    stage: Stage,
}

#[derive(Debug)]
struct Port {
    number: u16,
    _listener: ListenerId,
    /// The index to give out next: a number is used again as late as possible.
    next: u16,
}

/// A request whose QP does not know its peer yet.
#[derive(Debug)]
struct Held {
    asked: Asked,
    claim: Claim,
    until: Instant,
}

#[derive(Debug, Default)]
struct Table {
    ports: Vec<Port>,
    pairs: BTreeMap<u32, Pair>,
    /// Those of them whose connection is on its way.
    pending: BTreeSet<u32>,
    held: Vec<Held>,
}

/// The pairs of a device.
#[derive(Debug)]
pub(crate) struct Pairings {
    startups: Startups,
    ports: RangeInclusive<u16>,
    table: Mutex<Table>,
}

impl Pairings {
    /// `ports` are those that may be used; `None` leaves it to the system.
    pub(crate) fn new(ports: Option<RangeInclusive<u16>>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            startups: Startups::new()?,
            ports: ports.unwrap_or(0..=0),
            table: Mutex::default(),
        }))
    }

    /// Takes a QPN for a QP that [`enter`](Self::enter) will name.
    pub(crate) fn reserve(&self, pd: PdId) -> Result<Qpn, Error> {
        let mut table = self.table.lock();
        let table = &mut *table;
        let known = table.ports.iter_mut().find_map(Port::take);
        let qpn = match known {
            Some(qpn) => qpn,
            None => {
                table.ports.push(self.open_port()?);
                let new = table.ports.last_mut();
                new.and_then(Port::take).ok_or_else(Error::no_qpn)?
            }
        };
        table.pairs.insert(
            qpn.get(),
            Pair {
                qp: Weak::new(),
                pd,
                stage: Stage::Made,
            },
        );
        Ok(qpn)
    }

    /// Names the QP of a QPN that was reserved.
    pub(crate) fn enter(&self, qpn: u32, qp: &Arc<RcShared>) {
        if let Some(pair) = self.table.lock().pairs.get_mut(&qpn) {
            pair.qp = Arc::downgrade(qp);
        }
    }

    /// The QP is new again.
    pub(crate) fn reset(&self, qpn: u32) {
        let mut table = self.table.lock();
        table.pending.remove(&qpn);
        if let Some(pair) = table.pairs.get_mut(&qpn) {
            pair.stage = Stage::Made;
        }
    }

    /// Gives a QPN back.
    pub(crate) fn forget(&self, qpn: u32) {
        let mut table = self.table.lock();
        table.pairs.remove(&qpn);
        table.pending.remove(&qpn);
        // Their peers hear of it when TCP closes, and try again.
        table.held.retain(|held| held.claim.dest_qpn != qpn);
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
                .listen(listener, mpa(ReadDepths { ird: 0, ord: 0 }), 0)
                .map_err(Error::system("cannot watch a socket"))?;
            return Ok(Port {
                number,
                _listener: listener,
                next: 0,
            });
        }
        Err(Error::system("cannot listen for connected QPs")(last))
    }

    /// A QP that was claimed for this was told of its peer.
    pub(crate) fn pair(&self, qpn: u32, claimed: Claimed, pairing: Pairing) {
        let now = clock::now();
        let mut table = self.table.lock();
        let Some(pair) = table.pairs.get_mut(&qpn) else {
            return;
        };
        pair.stage = Stage::Pending(Pending {
            claimed,
            pairing,
            start: None,
            trying: false,
            due: now + WAIT_FOR_PSN,
            pause: FIRST_PAUSE,
            deadline: None,
        });
        table.pending.insert(qpn);
        let (waiting, others) = std::mem::take(&mut table.held)
            .into_iter()
            .partition(|held| held.claim.dest_qpn == qpn);
        table.held = others;
        for Held { asked, claim, .. } in waiting {
            // The peer may have given up since.
            if !has_ended(&asked.stream) {
                decide(&mut table, asked, claim);
            }
        }
    }

    /// The QP may send.
    pub(crate) fn start(&self, qpn: u32, start: Start) {
        let mut table = self.table.lock();
        if let Some(Pair {
            stage: Stage::Pending(pending),
            ..
        }) = table.pairs.get_mut(&qpn)
        {
            if pending.start.is_none() {
                pending.due = clock::now();
            }
            pending.start = Some(start);
        }
    }

    fn called(&self, table: &mut Table, over: Over) {
        let Ok(qpn) = u32::try_from(over.context) else {
            return;
        };
        let Some(pair) = table.pairs.get_mut(&qpn) else {
            return;
        };
        let (Stage::Pending(pending), Some(qp)) = (&mut pair.stage, pair.qp.upgrade()) else {
            return;
        };
        pending.trying = false;
        pending.due = clock::now() + pending.pause;
        pending.pause = (pending.pause * 2).min(LONGEST_PAUSE);
        let Outcome::Mpa {
            event: Event::Established(established),
            connection,
            stream,
            rest,
        } = over.outcome
        else {
            // Nobody listens yet, or the peer does not know us yet: another time.
            trace_failure(qpn, &over.outcome);
            return;
        };
        let sq_psn = pending.start.map(|start| start.sq_psn);
        let is_peer = Claim::parse(&established.private_data)
            .is_some_and(|claim| pending.pairing.matches(&claim, qpn, sq_psn));
        if !is_peer {
            return;
        }
        let startup = Startup {
            send_rtr: established.send_rtr,
            rest: &rest,
        };
        let config = RcConfig {
            qpn,
            pd: pair.pd,
            peer: over.peer,
            options: qp.options,
            paired: true,
        };
        let claimed = pending.claimed;
        if qp
            .link(claimed, config, *connection, stream, startup)
            .is_ok()
        {
            pair.stage = Stage::Over;
        }
    }

    /// Does for one QP what is due.
    fn look_after(&self, qpn: u32, pair: &mut Pair, now: Instant) {
        let (Stage::Pending(pending), Some(qp)) = (&mut pair.stage, pair.qp.upgrade()) else {
            return;
        };
        if pending.due > now {
            return;
        }
        if qp.is_over() {
            pair.stage = Stage::Over;
            return;
        }
        let patience = pending.start.and_then(|start| start.patience);
        if let Some(patience) = patience
            && qp.has_waiting()
        {
            let deadline = *pending.deadline.get_or_insert(now + patience);
            if deadline <= now {
                qp.give_up(WcStatus::RetryExceeded);
                pair.stage = Stage::Over;
                return;
            }
        }
        pending.due = now + pending.pause;
        let pairing = pending.pairing;
        if pairing.initiates(qpn) && !pending.trying {
            let claim = pairing.claim(qpn, pending.start.map(|start| start.sq_psn));
            let depths = ReadDepths {
                ird: pairing.ird,
                ord: ord(pending.start),
            };
            let attempt = self.startups.connect_from(
                Some(pairing.source),
                at_port(&pairing),
                mpa(depths),
                &claim.emit(),
                qpn.into(),
            );
            pending.trying = attempt.is_ok();
        } else {
            pending.pause = LONGEST_PAUSE;
        }
    }
}

impl Connecting for Pairings {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.startups.fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let table = self.table.lock();
        let pending = table.pending.iter().filter_map(|qpn| table.pairs.get(qpn));
        let pairs = pending.filter_map(|pair| match &pair.stage {
            Stage::Pending(pending) => Some(pending.due),
            Stage::Made | Stage::Over => None,
        });
        let held = table.held.iter().map(|held| held.until);
        let startups = self.startups.poll_timeout();
        pairs.chain(held).chain(startups).min()
    }

    fn progress(&self) {
        self.startups.progress();
        let mut table = self.table.lock();
        while let Some(over) = self.startups.take() {
            if over.inbound {
                arrived(&mut table, over);
            } else {
                self.called(&mut table, over);
            }
        }
        let now = clock::now();
        table.held.retain_mut(|held| {
            let waits = held.until > now;
            if !waits {
                refuse(&mut held.asked, Refusal::Unknown);
            }
            waits
        });
        let Table { pairs, pending, .. } = &mut *table;
        pending.retain(|qpn| {
            let Some(pair) = pairs.get_mut(qpn) else {
                return false;
            };
            self.look_after(*qpn, pair, now);
            matches!(pair.stage, Stage::Pending(_))
        });
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

/// What both ends want of their connection: either may send first.
fn mpa(depths: ReadDepths) -> MpaConfig {
    MpaConfig {
        depths,
        peer_to_peer: true,
        startup_timeout: ATTEMPT,
        ..MpaConfig::default()
    }
}

/// Reads of ours at a time, where the QP may send; else as many as the peer takes.
fn ord(start: Option<Start>) -> u16 {
    const MAX: u16 = 128;
    start.map_or(MAX, |start| start.ord)
}

fn listen(port: u16) -> io::Result<std::net::TcpListener> {
    // IPv4 peers come to this one too.
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    tcp::listen(any).or_else(|error| match error.raw_os_error() {
        Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL) => {
            tcp::listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        _ => Err(error),
    })
}

/// Where the peer's QPN says that it listens.
fn at_port(pairing: &Pairing) -> SocketAddr {
    let port = u16::try_from(pairing.peer_qpn >> 8).unwrap_or(0);
    match pairing.peer {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, pairing.scope_id).into(),
    }
}

/// Somebody came to one of our ports.
fn arrived(table: &mut Table, over: Over) {
    let Outcome::Mpa {
        event: Event::Request(request),
        connection,
        stream,
        ..
    } = over.outcome
    else {
        return;
    };
    let claim = Claim::parse(&request.private_data);
    let mut asked = Asked {
        stream,
        peer: over.peer,
        connection,
        request,
    };
    match claim {
        // Nobody else has the address that the claim names.
        Some(claim) if claim.address() == asked.peer.ip().to_canonical() => {
            decide(table, asked, claim);
        }
        Some(_) => refuse(&mut asked, Refusal::Mismatch),
        None => refuse(&mut asked, Refusal::Unknown),
    }
}

fn decide(table: &mut Table, mut asked: Asked, claim: Claim) {
    let qpn = claim.dest_qpn;
    let Some(pair) = table.pairs.get_mut(&qpn) else {
        return refuse(&mut asked, Refusal::Unknown);
    };
    match &pair.stage {
        Stage::Over => refuse(&mut asked, Refusal::Taken),
        // It was connected otherwise.
        Stage::Made if pair.qp.upgrade().is_none_or(|qp| qp.is_claimed()) => {
            refuse(&mut asked, Refusal::Taken);
        }
        Stage::Made => {
            if table.held.len() >= MAX_HELD {
                return refuse(&mut asked, Refusal::Unknown);
            }
            // Whoever asks again has given up what it asked before.
            table
                .held
                .retain(|held| held.claim.qpn != claim.qpn || held.claim.dest_qpn != qpn);
            table.held.push(Held {
                asked,
                claim,
                until: clock::now() + HOLD_FOR,
            });
        }
        Stage::Pending(pending) => {
            let sq_psn = pending.start.map(|start| start.sq_psn);
            let pairing = pending.pairing;
            if pairing.initiates(qpn) || !pairing.matches(&claim, qpn, sq_psn) {
                return refuse(&mut asked, Refusal::Mismatch);
            }
            let Some(qp) = pair.qp.upgrade() else {
                return refuse(&mut asked, Refusal::Unknown);
            };
            let depths = ReadDepths {
                ird: pairing.ird,
                ord: ord(pending.start),
            };
            let own = pairing.claim(qpn, sq_psn);
            let claimed = pending.claimed;
            if accept((&qp, claimed), (qpn, pair.pd), asked, depths, &own).is_some() {
                pair.stage = Stage::Over;
            }
        }
    }
}

/// Accepts for a QP. `None` if that came to nothing; the peer tries again.
fn accept(
    (qp, claimed): (&Arc<RcShared>, Claimed),
    (qpn, pd): (u32, PdId),
    asked: Asked,
    depths: ReadDepths,
    claim: &Claim,
) -> Option<()> {
    let Asked {
        stream,
        peer,
        mut connection,
        ..
    } = asked;
    connection.accept(depths, &claim.emit()).ok()?;
    // Its event says what is known.
    let _ = connection.poll_event();
    tcp::transmit_all(&stream, &mut connection).ok()?;
    let config = RcConfig {
        qpn,
        pd,
        peer,
        options: qp.options,
        paired: true,
    };
    qp.link(claimed, config, *connection, stream, Startup::default())
        .ok()
}

/// Whether the peer has closed a connection on which nothing is to come before our answer.
fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

fn refuse(asked: &mut Asked, refusal: Refusal) {
    let depths = ReadDepths { ird: 0, ord: 0 };
    if asked.connection.reject(depths, &refusal.emit()).is_ok() {
        // A peer that does not get it sees the connection close.
        let _ = tcp::transmit_all(&asked.stream, &mut asked.connection);
    }
}

fn trace_failure(qpn: u32, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(Failure::Tcp(error)) => tracing::trace!(qpn, %error, "not connected yet"),
        Outcome::Failed(Failure::Mpa(error)) => tracing::trace!(qpn, %error, "not connected yet"),
        Outcome::Failed(Failure::Config(error)) => tracing::warn!(qpn, %error, "cannot be asked"),
        Outcome::Mpa { .. } => tracing::trace!(qpn, "not accepted yet"),
    }
}
