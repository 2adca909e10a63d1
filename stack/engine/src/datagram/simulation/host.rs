//! A host in the simulation: its QPs, and an application that posts, receives and releases as in its scenario.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{Path, PathKind, Peer};
use dgiwarp_rdmap::datagram::RecordHandle;
use dgiwarp_sim::{Address, Datagram, LinkConfig, Network, Node, NodeId, Rng};
use rand::{RngExt as _, SeedableRng as _};

use super::ledger::{Flaw, Kind, Ledger, Message, Offer, Piece, Target, socket_addr};
use super::memory::source;
use super::outgoing::Socket;
use super::qp::{FollowUp, Qp, Train, split};
use super::scenario::{Event, HostPlan, Scenario};
use crate::datagram::{SendWqe, Transmitted};
use crate::mr::MrTable;
use crate::recv_queue::SgeList;
use crate::types::{Operation, Route};

/// After which a socket that was full has room again.
const FULL_FOR: Duration = Duration::from_micros(50);
/// Most octets of one receive call, as with UDP_GRO.
const MOST_OCTETS: usize = 65_535;
/// Reads of more octets than this lie in the region in part when they end behind it.
const FEW: u32 = 1 << 16;
/// UDP and IPv4 headers.
const IP_HEADERS: usize = 28;

/// Something that a host does at a time.
#[derive(Debug, Clone, Copy)]
enum Action {
    Scenario(Event),
    /// Send on, of this QP.
    Transmit(usize),
    /// Of this QP post the receive of this slot.
    Receive(usize, usize),
    /// Of this QP, in this life, release this record.
    Release(usize, u32, RecordHandle),
}

struct Due {
    at: Duration,
    order: u64,
    action: Action,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One host.
pub(super) struct Host {
    id: NodeId,
    origin: Instant,
    ledger: Rc<RefCell<Ledger>>,
    rng: Rng,
    plan: HostPlan,
    mrs: MrTable,
    pub(super) qps: Vec<Qp>,
    /// To each host, by its position.
    paths: Vec<Route>,
    inbox: VecDeque<Datagram>,
    poll_at: Option<Duration>,
    agenda: BinaryHeap<Reverse<Due>>,
    next_order: u64,
    wake: Option<Duration>,
    staging: Vec<u8>,
    train: Vec<u8>,
    known: Vec<(Piece, bool, usize)>,
    /// Datagrams dropped by QPs that are closed, by reason.
    pub(super) dropped_before: Vec<u64>,
}

impl Host {
    pub(super) fn new(
        id: NodeId,
        scenario: &Scenario,
        origin: Instant,
        ledger: Rc<RefCell<Ledger>>,
    ) -> Self {
        let mut rng = Rng::seed_from_u64(scenario.seed ^ (1 + id.0 as u64) << 32);
        let plan = scenario.hosts[id.0].clone();
        let keys = rand_chacha::ChaCha20Rng::seed_from_u64(rng.random());
        let mrs = MrTable::new(keys);
        let addresses = scenario
            .addresses()
            .into_iter()
            .filter(|address| address.node == id);
        let qps: Vec<_> = addresses
            .zip(&plan.qps)
            .map(|(address, plan)| Qp::new(address, plan.clone(), &mrs, &mut rng))
            .collect();
        let paths =
            (0..scenario.hosts.len()).map(|to| path(NodeId(to), scenario.link(id, NodeId(to)).mtu));
        let mut host = Self {
            paths: paths.collect(),
            id,
            origin,
            ledger,
            rng,
            plan,
            mrs,
            qps,
            inbox: VecDeque::new(),
            poll_at: None,
            agenda: BinaryHeap::new(),
            next_order: 0,
            wake: None,
            staging: Vec::new(),
            train: Vec::new(),
            known: Vec::new(),
            dropped_before: Vec::new(),
        };
        for position in 0..host.qps.len() {
            let qp = &host.qps[position];
            host.ledger
                .borrow_mut()
                .offers
                .insert(qp.address, qp.offer());
            for slot in 0..qp.plan.receives.len() {
                host.receive_later(Duration::ZERO, position, slot);
            }
        }
        for &(at, event) in &scenario.events {
            if host.concerns(event, scenario) {
                host.at(at, Action::Scenario(event));
            }
        }
        host.next_wake();
        host
    }

    fn concerns(&self, event: Event, scenario: &Scenario) -> bool {
        let node = match event {
            Event::Post(message) => scenario.messages[message].from.node,
            Event::Mtu(from, ..) => from,
            Event::Restart(address) | Event::CompleteNow(address) => address.node,
        };
        node == self.id
    }

    fn at(&mut self, at: Duration, action: Action) {
        let order = self.next_order;
        self.next_order += 1;
        self.agenda.push(Reverse(Due { at, order, action }));
    }

    fn receive_later(&mut self, now: Duration, position: usize, slot: usize) {
        let most = self.qps[position].plan.post_delay;
        let at = now + self.rng.random_range(Duration::ZERO..=most);
        self.at(at, Action::Receive(position, slot));
    }

    fn act(&mut self, now: Duration, action: Action, network: &mut Network) {
        let at = (self.origin, now);
        match action {
            Action::Scenario(Event::Post(message)) => self.post(now, message, network),
            Action::Scenario(Event::Mtu(from, to, mtu)) => {
                let link = network.link_mut(from, to);
                let config = LinkConfig {
                    mtu,
                    ..*link.config()
                };
                link.set_config(config);
                if self.rng.random_bool(0.5) {
                    // The application resolves the route again; else it keeps the old one.
                    self.paths[to.0] = path(to, mtu);
                }
            }
            Action::Scenario(Event::Restart(address)) => {
                let position = Scenario::position(address);
                self.restart(position);
                self.follow_up(now, position);
            }
            Action::Scenario(Event::CompleteNow(address)) => {
                let position = Scenario::position(address);
                self.qps[position].complete_now(at, &self.mrs, &self.ledger);
                self.follow_up(now, position);
            }
            Action::Transmit(position) => self.transmit(now, position, network),
            Action::Receive(position, slot) => {
                self.qps[position].post_receive(slot, &mut self.rng);
            }
            Action::Release(position, life, handle) => {
                let qp = &mut self.qps[position];
                if qp.life == life {
                    qp.release(handle);
                }
            }
        }
    }

    fn restart(&mut self, position: usize) {
        let qp = &mut self.qps[position];
        self.dropped_before.extend_from_slice(qp.dropped());
        qp.restart(&self.mrs, &self.ledger, &mut self.rng);
        let mut ledger = self.ledger.borrow_mut();
        if let Some(offer) = ledger.offers.get_mut(&qp.address) {
            let used = offer.used;
            *offer = qp.offer();
            offer.used = used;
        }
    }

    fn post(&mut self, now: Duration, id: usize, network: &mut Network) {
        let mut ledger = self.ledger.borrow_mut();
        let mut message = ledger.messages[id].clone();
        let to = message.to;
        let offer = ledger.offers.get_mut(&to).expect("every QP has an offer");
        message.target = target(id, &message, offer);
        let reads = message.kind == Kind::Read && message.length > 0;
        if reads && message.flaw == Flaw::Bounds {
            // Octets inside the region are read all the same.
            let end = source().octets.len();
            message.start = usize::try_from(message.target.base).unwrap().min(end);
        }
        let qkey = match message.flaw {
            Flaw::Key => !offer.qkey,
            Flaw::None | Flaw::LocalKey | Flaw::Bounds | Flaw::Access => offer.qkey,
        };
        ledger.messages[id] = message.clone();
        drop(ledger);
        let position = Scenario::position(message.from);
        let qp = &mut self.qps[position];
        let refused = message.flaw == Flaw::LocalKey && message.length > 0;
        let (start, lkey) = if message.kind == Kind::Read {
            let (sink, lkey) = qp.allocate_sink(message.length);
            qp.post_read(id, sink, now + message.timeout, refused);
            (sink, lkey)
        } else {
            qp.outgoing.post(id, qkey);
            (message.start, qp.source_lkey)
        };
        let lkey = if message.flaw == Flaw::LocalKey {
            !lkey
        } else {
            lkey
        };
        let sges = split(start as u64, message.length, lkey, &mut self.rng);
        qp.engine.accept(SendWqe {
            wr_id: id as u64,
            operation: operation(&message),
            route: self.paths[to.node.0].clone(),
            peer: Peer::ip(socket_addr(to)),
            qkey,
            sges: SgeList::from_slice(&sges),
            length: message.length,
            signaled: message.signaled,
            solicited: message.solicited,
            unrecorded: false,
        });
        self.transmit(now, position, network);
    }

    fn transmit(&mut self, now: Duration, position: usize, network: &mut Network) {
        let qp = &mut self.qps[position];
        let mut socket = Socket {
            origin: self.origin,
            now,
            network,
            rng: &mut self.rng,
            from: qp.address,
            refusals: qp.refusals(),
            ledger: &self.ledger,
            outgoing: &mut qp.outgoing,
            reads: qp.model.reader.posted(),
            paths: &self.paths,
            scratch: &mut self.staging,
        };
        let transmitted = qp.engine.transmit(
            self.origin + now,
            self.plan.budget,
            &self.mrs,
            &mut socket,
            &mut qp.completed,
        );
        qp.compare_reads(&mut self.ledger.borrow_mut());
        qp.compare_sent(&self.ledger.borrow());
        match transmitted {
            Transmitted::All => {
                assert!(qp.outgoing.is_empty(), "the engine says that all has left");
            }
            Transmitted::Blocked => self.at(now + FULL_FOR, Action::Transmit(position)),
            Transmitted::Budget => self.at(now, Action::Transmit(position)),
            Transmitted::Paused(until) => {
                self.at(until - self.origin, Action::Transmit(position));
            }
        }
    }

    /// Sends what something received, or a timer, made to send.
    fn answer(&mut self, now: Duration, position: usize, network: &mut Network) {
        if self.qps[position].engine.has_output() {
            self.transmit(now, position, network);
        }
    }

    /// Hands what arrived to the QPs, neighbours of equal length in one call as the kernel does.
    fn poll(&mut self, now: Duration, network: &mut Network) {
        while let Some(first) = self.inbox.pop_front() {
            let (from, to, stride) = (first.from, first.to, first.octets.len());
            self.train.clear();
            self.known.clear();
            self.take(first, network);
            while let Some(next) = self.inbox.front() {
                let length = next.octets.len();
                let joins = (next.from, next.to) == (from, to)
                    && length > 0
                    && length <= stride
                    && self.train.len().is_multiple_of(stride)
                    && self.train.len() + length <= MOST_OCTETS;
                if !joins {
                    break;
                }
                if let Some(next) = self.inbox.pop_front() {
                    self.take(next, network);
                }
            }
            let position = Scenario::position(to);
            let train = Train {
                octets: &self.train,
                stride,
                known: &self.known,
            };
            let at = (self.origin, now);
            self.qps[position].arrive(at, from, &train, &self.mrs, &self.ledger);
            self.follow_up(now, position);
            self.answer(now, position, network);
        }
    }

    /// Adds a datagram to the train, and what the log has about it.
    fn take(&mut self, datagram: Datagram, network: &mut Network) {
        let arrival = network.log().arrivals()[datagram.arrival.0];
        let piece = self.ledger.borrow().piece(arrival.datagram);
        let length = datagram.octets.len();
        self.known.push((piece, arrival.corrupted, length));
        self.train.extend_from_slice(&datagram.octets);
        network.recycle(datagram);
    }

    /// Does what the application does because of completions.
    fn follow_up(&mut self, now: Duration, position: usize) {
        for follow_up in std::mem::take(&mut self.qps[position].follow_ups) {
            match follow_up {
                FollowUp::Receive(slot) => self.receive_later(now, position, slot),
                FollowUp::Release(handle) => {
                    let qp = &self.qps[position];
                    let (life, most) = (qp.life, qp.plan.release_delay);
                    let at = now + self.rng.random_range(Duration::ZERO..=most);
                    self.at(at, Action::Release(position, life, handle));
                }
            }
        }
    }

    /// When the timer of a QP runs.
    fn timer(&self, qp: &Qp) -> Option<Duration> {
        let timeout = qp.engine.poll_timeout()?;
        Some(timeout.saturating_duration_since(self.origin) + self.plan.lateness)
    }

    fn next_wake(&mut self) {
        let agenda = self.agenda.peek().map(|Reverse(due)| due.at);
        let timers = self.qps.iter().filter_map(|qp| self.timer(qp)).min();
        self.wake = [agenda, timers, self.poll_at].into_iter().flatten().min();
    }
}

/// Where a message goes, or comes from.
fn target(id: usize, message: &Message, offer: &mut Offer) -> Target {
    let behind = |octets: u64| octets - u64::from(message.length) + 1;
    match (message.kind, message.flaw) {
        (Kind::Send, _) => Target::default(),
        (Kind::Write, Flaw::Bounds) => Target {
            stag: offer.stag,
            base: offer.iova + behind(offer.octets),
        },
        (Kind::Write, flaw) => Target {
            stag: match flaw {
                Flaw::Key => !offer.stag,
                Flaw::Access => offer.read_only,
                Flaw::None | Flaw::LocalKey | Flaw::Bounds => offer.stag,
            },
            base: offer.allocate(message.length),
        },
        (Kind::Read, flaw) => Target {
            stag: match flaw {
                Flaw::Key => !offer.read_only,
                Flaw::Access => offer.stag,
                Flaw::None | Flaw::LocalKey | Flaw::Bounds => offer.read_only,
            },
            base: match flaw {
                // Each its own address, by which requests are told apart.
                Flaw::Bounds if message.length < FEW => {
                    (source().octets.len() + id * FEW as usize) as u64
                }
                Flaw::Bounds => behind(source().octets.len() as u64),
                Flaw::Access => offer.iova + message.start as u64,
                Flaw::None | Flaw::LocalKey | Flaw::Key => message.start as u64,
            },
        },
    }
}

fn operation(message: &Message) -> Operation {
    let Target {
        stag: rkey,
        base: remote_addr,
    } = message.target;
    let immediate = message.immediate;
    match message.kind {
        Kind::Send => Operation::Send { immediate },
        Kind::Write => Operation::WriteRecord {
            rkey,
            remote_addr,
            immediate,
        },
        Kind::Read => Operation::Read {
            rkey,
            remote_addr,
            timeout: Some(message.timeout),
        },
    }
}

fn path(to: NodeId, mtu: usize) -> Route {
    let mtu = u32::try_from(mtu + IP_HEADERS).unwrap();
    let address = Address { node: to, port: 0 };
    let host = socket_addr(address).ip();
    Route::new(
        host,
        0,
        None,
        host,
        Path::new(PathKind::Network, false, mtu),
    )
}

impl Node for Host {
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, _network: &mut Network) {
        self.inbox.push_back(datagram);
        if self.poll_at.is_none() {
            let most = self.plan.poll_delay;
            self.poll_at = Some(now + self.rng.random_range(Duration::ZERO..=most));
            self.next_wake();
        }
    }

    fn handle_wake(&mut self, now: Duration, network: &mut Network) {
        while let Some(Reverse(due)) = self.agenda.peek()
            && due.at <= now
        {
            let action = due.action;
            self.agenda.pop();
            self.act(now, action, network);
        }
        if self.poll_at.is_some_and(|at| at <= now) {
            self.poll_at = None;
            self.poll(now, network);
        }
        for position in 0..self.qps.len() {
            if self.timer(&self.qps[position]).is_some_and(|at| at <= now) {
                let at = (self.origin, now);
                self.qps[position].expire(at, &self.mrs, &self.ledger);
                self.follow_up(now, position);
                self.answer(now, position, network);
            }
        }
        self.next_wake();
    }

    fn poll_wake(&self) -> Option<Duration> {
        self.wake
    }
}
