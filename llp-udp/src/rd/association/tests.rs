//! One association and its peer's datagrams by hand: contents of each datagram that leaves, and the effect of each frame that arrives.

use std::net::{Ipv4Addr, SocketAddr};

use dgiwarp_codec::PayloadSlice;

use super::*;
use crate::rd::config::{Before, Cause, Verdict};
use crate::rd::congestion::tests::origin;
use crate::rd::envelope::{self, Envelope};
use crate::rd::flow::received::Ecn;
use crate::rd::frame::{Ack, CheckedFrames, Frame, Frames, SegmentHeader};
use crate::rd::message::outbound::Post;

mod arrival;
mod control;
mod departure;
mod paths;
mod rest;
mod timers;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
/// Identifiers of this end and of the peer.
const OWN: u32 = 6;
const PEERS: u32 = 5;
const EPOCH: u32 = 9;

/// Peer at a port of a host.
fn peer(host: u8, port: u16) -> Peer {
    let address = Ipv4Addr::new(192, 0, 2, host);
    Peer::ip(SocketAddr::from((address, port)))
}

/// The peer's first address.
fn first() -> Peer {
    peer(1, 1)
}

/// A message of one segment in no order.
fn single(length: u16) -> Post {
    Post {
        token: 1,
        segments: 1,
        length,
        last_length: length,
        trailer: None,
        stream: None,
        receive: false,
    }
}

fn hello(receives: u32, window: u32) -> Hello {
    Hello {
        retry: false,
        life: None,
        association: PEERS,
        credit: Credit { receives, window },
        proof: 0,
        cookie: 0,
    }
}

/// Segment of a message of one segment in no order; both have this number.
fn segment(number: u32) -> SegmentHeader {
    SegmentHeader {
        last: true,
        receive: false,
        number,
        message: number,
        index: 0,
        stream: 0,
        after: 0,
    }
}

/// A frame with that segment.
fn arriving(header: SegmentHeader) -> Frame<'static, [u8]> {
    Frame::Segment(header, PayloadSlice::new(&[7; 64]))
}

/// An acknowledgement without delay.
fn ack(first: std::ops::RangeInclusive<u64>) -> Frame<'static, [u8]> {
    Frame::Ack(Ack::new(first, 0, 0))
}

/// A datagram that left.
#[derive(Debug)]
struct Left {
    to: Peer,
    octets: usize,
    envelope: Envelope,
    frames: Vec<Frame<'static, [u8]>>,
}

impl Left {
    /// Names of the frames.
    fn kinds(&self) -> Vec<&'static str> {
        let name = |frame: &Frame<'_, [u8]>| match frame {
            Frame::Pad(_) => "PAD",
            Frame::Segment(..) => "SEGMENT",
            Frame::Ack(_) => "ACK",
            Frame::Placed(_) => "PLACED",
            Frame::Credit(_) => "CREDIT",
            Frame::NotReady(_) => "RNR",
            Frame::Error(_) => "ERROR",
            Frame::Hello(_) => "HELLO",
            Frame::Ping(_) => "PING",
            Frame::Pong(_) => "PONG",
            Frame::Close(_) => "CLOSE",
        };
        self.frames.iter().map(name).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.kinds().iter().filter(|it| **it == kind).count()
    }
}

/// An association, and a peer that sends by hand.
struct Bench {
    config: RdConfig,
    now: Instant,
    association: Association,
    events: VecDeque<Event>,
    /// Number of the peer's next datagram.
    number: u64,
    /// Decision about each segment that arrives.
    verdict: Verdict,
    placed: Vec<Before>,
}

impl Bench {
    /// An association that this end opens.
    fn opening(change: impl FnOnce(&mut RdConfig)) -> Self {
        let now = origin();
        let mut config = RdConfig::new(now, EPOCH, [1, 2]);
        change(&mut config);
        Self {
            config,
            now,
            association: Association::new(&config, now, first(), OWN, 400, 0),
            events: VecDeque::new(),
            number: 0,
            verdict: Verdict::Placed,
            placed: Vec::new(),
        }
    }

    /// An association of which both ends have the other's identifier. The peer grants receives and a window, and nothing waits.
    fn with(receives: u32, window: u32, change: impl FnOnce(&mut RdConfig)) -> Self {
        let mut bench = Self::opening(change);
        bench.receive(&[Frame::Hello(hello(receives, window))]);
        bench.receive(&[]);
        bench.association.received.acknowledge(bench.now, 1);
        bench.association.granted = bench.association.grant;
        assert_eq!(bench.kinds(), Vec::<&str>::new());
        bench
    }

    fn new() -> Self {
        Self::with(1000, 1 << 20, |_| ())
    }

    /// An association on a path of which the round-trip time is known.
    fn on_path(round: Duration) -> Self {
        let mut bench = Self::new();
        bench.association.rtt.sample(round, Duration::ZERO);
        bench
    }

    fn envelope(&mut self) -> Envelope {
        self.number += 1;
        Envelope {
            eager: false,
            hello: false,
            association: OWN,
            number: self.number - 1,
            time: 0,
            epoch: EPOCH,
        }
    }

    /// Handles a datagram of these frames.
    fn handle(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        ecn: Ecn,
        frames: &[Frame<'_, [u8]>],
    ) -> Result<(), Ended> {
        let mut octets = Vec::new();
        let hello = matches!(frames.first(), Some(Frame::Hello(_)));
        let envelope = Envelope { hello, ..*envelope };
        envelope.emit(&mut octets);
        frames.iter().for_each(|frame| frame.emit(&mut octets));
        envelope::seal(&mut octets, 0);
        let (envelope, frames) = Envelope::open::<[u8]>(PayloadSlice::new(&octets)).unwrap();
        let datagram = Datagram {
            from,
            octets: octets.len(),
            ecn,
            envelope,
            frames: CheckedFrames::parse(frames).unwrap(),
        };
        let (verdict, placed) = (self.verdict, &mut self.placed);
        let mut place = |_: &SegmentHeader, before, _: PayloadSlice<'_, [u8]>| {
            placed.push(before);
            verdict
        };
        let (config, now, events) = (&self.config, self.now, &mut self.events);
        self.association
            .handle(config, now, &datagram, || 6, events, &mut place)
    }

    /// Handles the peer's next datagram.
    fn receive(&mut self, frames: &[Frame<'_, [u8]>]) {
        self.receive_from(first(), frames);
    }

    fn receive_from(&mut self, from: Peer, frames: &[Frame<'_, [u8]>]) {
        let envelope = self.envelope();
        self.handle(from, &envelope, Ecn::NotEct, frames).unwrap();
    }

    /// Handles a datagram that is a violation, or ends the association.
    fn ends(&mut self, frames: &[Frame<'_, [u8]>]) -> Ended {
        let envelope = self.envelope();
        self.handle(first(), &envelope, Ecn::NotEct, frames)
            .unwrap_err()
    }

    fn post(&mut self, count: usize, post: Post) {
        let outbound = &mut self.association.outbound;
        (0..count).for_each(|_| outbound.post(post));
    }

    /// The next datagram that leaves now.
    fn transmit(&mut self) -> Option<Left> {
        // Datagrams are appended to those before.
        let mut out = b"before".to_vec();
        let (config, now) = (&self.config, self.now);
        let mut write = |_, _: &SegmentHeader, segment: &mut [u8]| segment.fill(7);
        let to = self
            .association
            .poll_transmit(config, now, &mut out, &mut write)?;
        let octets = out.split_off(6).leak();
        let (envelope, frames) = Envelope::open::<[u8]>(PayloadSlice::new(octets)).unwrap();
        Some(Left {
            to,
            octets: octets.len(),
            envelope,
            frames: Frames::new(frames).map(Result::unwrap).collect(),
        })
    }

    /// Names of the frames of the next datagram that leaves now; none without a datagram.
    fn kinds(&mut self) -> Vec<&'static str> {
        self.transmit().map_or_else(Vec::new, |left| left.kinds())
    }

    /// All datagrams that leave now.
    fn all(&mut self) -> Vec<Left> {
        let left: Vec<_> = std::iter::from_fn(|| self.transmit()).take(1000).collect();
        assert!(left.len() < 1000, "datagrams without end");
        left
    }

    fn timeout(&self) -> Option<Instant> {
        self.association.poll_timeout(&self.config)
    }

    /// Lets time pass until a timer is due, and handles it.
    fn expire(&mut self) -> Option<Cause> {
        self.now = self.timeout().unwrap().max(self.now);
        self.association.handle_timeout(&self.config, self.now)
    }

    /// Lets time pass, and handles what is due.
    fn pass(&mut self, time: Duration) -> Option<Cause> {
        self.now += time;
        self.association.handle_timeout(&self.config, self.now)
    }

    /// Datagrams of the path have so many octets.
    fn shorten(&mut self, datagram: u16) {
        self.association.set_datagram(&self.config, datagram);
    }
}
