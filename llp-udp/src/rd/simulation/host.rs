//! A node with programs that post, receive and check.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dgiwarp_codec::PayloadSlice;
use dgiwarp_sim::{Address, Datagram, Network, Node};

use super::ledger::Ledger;
use super::{Order, address, address_of, peer_of};
use crate::Peer;
use crate::rd::config::{Before, Cause, Event, RdConfig, Verdict};
use crate::rd::endpoint::Endpoint;
use crate::rd::flow::received::Ecn;
use crate::rd::frame::SegmentHeader;
use crate::rd::message::outbound::Post;

/// One end and its program.
pub(super) struct End {
    pub(super) endpoint: Endpoint,
    pub(super) address: Address,
    pub(super) config: RdConfig,
    /// Messages to be posted, by time.
    orders: VecDeque<(u64, Order)>,
    /// Receives that are posted.
    pub(super) pool: u32,
    /// Receives that will be posted again, and the peer that is granted one.
    reposts: VecDeque<(Duration, Peer)>,
    /// Time that the program takes for a received message.
    pub(super) takes: Duration,
    /// Tokens of messages that began to arrive, and whether they took a receive.
    arriving: BTreeMap<(Address, u32), (u64, bool)>,
    /// Messages that the program refuses with an error.
    pub(super) refuses: Option<u64>,
    pub(super) causes: Vec<Cause>,
    pub(super) moved: Vec<Peer>,
    pub(super) rests: u32,
    /// Terminate Controls of requests that were refused behind their acknowledgement.
    pub(super) refused: Vec<u32>,
    pub(super) ended: u32,
    /// Datagrams that were dropped.
    pub(super) dropped: u32,
}

/// A node of the simulation.
pub(super) struct Host {
    origin: Instant,
    ledger: Rc<RefCell<Ledger>>,
    pub(super) ends: Vec<End>,
}

/// Octet of a message at a place.
fn pattern(token: u64, index: u32, at: usize) -> u8 {
    let mixed =
        (token << 20 ^ u64::from(index) << 3 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

/// Length of the token and index at the head of a segment.
const HEAD: usize = 12;

fn write(token: u64, index: u32, segment: &mut [u8]) {
    let (head, rest) = segment.split_at_mut(HEAD);
    head[..8].copy_from_slice(&token.to_be_bytes());
    head[8..].copy_from_slice(&index.to_be_bytes());
    for (at, octet) in rest.iter_mut().enumerate() {
        *octet = pattern(token, index, at);
    }
}

impl End {
    /// The queue pair is reset: nothing of its associations is left.
    pub(super) fn restart(&mut self) {
        self.config.epoch += 1;
        self.config.key[0] += 1;
        self.endpoint = Endpoint::new(self.config);
        self.arriving.clear();
    }

    fn place(
        &mut self,
        ledger: &mut Ledger,
        from: Peer,
        (header, before): (&SegmentHeader, Before),
        segment: &[u8],
    ) -> Verdict {
        let token = u64::from_be_bytes(segment[..8].try_into().unwrap());
        let index = u32::from_be_bytes(segment[8..HEAD].try_into().unwrap());
        let rest = segment[HEAD..].iter().enumerate();
        for (at, octet) in rest {
            assert_eq!(*octet, pattern(token, index, at), "octet {at} of {token}");
        }
        let order = ledger.order(token);
        assert_eq!(index, header.index);
        assert_eq!(address(order.to.0, order.to.1).node, self.address.node);
        if self.refuses == Some(token) {
            return Verdict::Failed(0x0100_0000);
        }
        let key = (address_of(from), header.message);
        if !self.arriving.contains_key(&key) {
            if order.receive {
                if self.pool <= before.missing {
                    return Verdict::NotReady;
                }
                self.pool -= 1;
            }
            self.arriving.insert(key, (token, order.receive));
        }
        ledger.placed(token, index, segment.len(), header.last);
        Verdict::Placed
    }

    fn on_event(&mut self, now: Duration, ledger: &mut Ledger, event: Event) {
        match event {
            Event::Completed { token, .. } => ledger.completed(token),
            Event::Failed { token, cause, .. } => {
                ledger.failed(token);
                self.causes.push(cause);
            }
            Event::Delivered {
                peer,
                message,
                stream,
            } => {
                let key = (address_of(peer), message);
                let (token, receive) = self.arriving.remove(&key).unwrap();
                ledger.delivered(token, stream);
                if receive {
                    self.reposts.push_back((now + self.takes, peer));
                }
            }
            Event::Rests { .. } => self.rests += 1,
            Event::Moved { to, .. } => self.moved.push(to),
            Event::Refused { control, .. } => self.refused.push(control),
            Event::Ended { peer, .. } => {
                self.ended += 1;
                let from = address_of(peer);
                self.arriving.retain(|(at, _), _| *at != from);
            }
        }
    }
}

impl Host {
    pub(super) fn new(origin: Instant, ledger: Rc<RefCell<Ledger>>) -> Self {
        Self {
            origin,
            ledger,
            ends: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, address: Address, config: RdConfig, pool: u32, orders: &[Order]) {
        let from = (address.node.0, address.port);
        let mut mine: Vec<_> = (0..).zip(orders.iter().copied()).collect();
        mine.retain(|(_, order)| order.from == from);
        mine.sort_by_key(|(token, order)| (order.at, *token));
        self.ends.push(End {
            endpoint: Endpoint::new(config),
            address,
            config,
            orders: mine.into(),
            pool,
            reposts: VecDeque::new(),
            takes: Duration::ZERO,
            arriving: BTreeMap::new(),
            refuses: None,
            causes: Vec::new(),
            moved: Vec::new(),
            rests: 0,
            refused: Vec::new(),
            ended: 0,
            dropped: 0,
        });
    }

    pub(super) fn at(&self, now: Duration) -> Instant {
        self.origin + now
    }

    /// Handles what is due at all ends, and sends what they have.
    pub(super) fn pump(&mut self, now: Duration, network: &mut Network) {
        let at = self.origin + now;
        let ledger = Rc::clone(&self.ledger);
        for end in &mut self.ends {
            while let Some((token, order)) = end.orders.pop_front_if(|(_, order)| order.at <= now) {
                let post = Post {
                    token,
                    segments: order.segments,
                    length: order.length,
                    last_length: order.last_length,
                    trailer: None,
                    stream: order.stream,
                    receive: order.receive,
                };
                let to = peer_of(address(order.to.0, order.to.1));
                end.endpoint.post(at, to, end.config.datagram, post);
            }
            while let Some((_, peer)) = end.reposts.pop_front_if(|(due, _)| *due <= now) {
                end.pool += 1;
                if end.config.receives > 0 {
                    end.endpoint.grant(peer, 1);
                }
            }
            if end.endpoint.poll_timeout().is_some_and(|due| due <= at) {
                end.endpoint.handle_timeout(at);
            }
            let mut out = Vec::new();
            while let Some(to) =
                end.endpoint
                    .poll_transmit(at, &mut out, &mut |_, token, header, segment| {
                        write(token, header.index, segment);
                    })
            {
                assert!(
                    out.len() <= usize::from(end.config.datagram),
                    "{}",
                    out.len()
                );
                // A datagram that is too big for the link is lost.
                let _ = network.send(now, end.address, address_of(to), &out);
                out.clear();
            }
            while let Some(event) = end.endpoint.poll_event() {
                end.on_event(now, &mut ledger.borrow_mut(), event);
            }
        }
    }
}

impl Node for Host {
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network) {
        let at = self.origin + now;
        let ledger = Rc::clone(&self.ledger);
        let end = self.ends.iter_mut().find(|end| end.address == datagram.to);
        if let Some(end) = end {
            let octets = PayloadSlice::new(&datagram.octets[..]);
            let from = peer_of(datagram.from);
            let ecn = if datagram.marked { Ecn::Ce } else { Ecn::Ect0 };
            let mut endpoint = std::mem::replace(&mut end.endpoint, Endpoint::new(end.config));
            let handled =
                endpoint.handle_input(at, from, ecn, octets, &mut |peer,
                                                                   header,
                                                                   before,
                                                                   segment: PayloadSlice<
                    '_,
                    [u8],
                >| {
                    end.place(
                        &mut ledger.borrow_mut(),
                        peer,
                        (header, before),
                        segment.octets(),
                    )
                });
            end.endpoint = endpoint;
            end.dropped += u32::from(handled.is_err());
        }
        network.recycle(datagram);
        self.pump(now, network);
    }

    fn handle_wake(&mut self, now: Duration, network: &mut Network) {
        self.pump(now, network);
    }

    fn poll_wake(&self) -> Option<Duration> {
        let ends = self.ends.iter();
        ends.filter_map(|end| {
            let timeout = end.endpoint.poll_timeout();
            let timeout = timeout.map(|at| at.saturating_duration_since(self.origin));
            let order = end.orders.front().map(|(_, order)| order.at);
            let repost = end.reposts.front().map(|(at, _)| *at);
            [timeout, order, repost].into_iter().flatten().min()
        })
        .min()
    }
}
