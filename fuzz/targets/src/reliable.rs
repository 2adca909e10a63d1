//! Reliable datagrams: an end of associations, and peers that send whatever they like.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::{
    Ack, Close, CloseReason, Credit, Frame, Frames, Hello, MessageError, NotReady, Ping, Placed,
    Pong, SegmentHeader,
};
use dgiwarp_llp_udp::rd::{
    Ecn, Endpoint, Envelope, Event, Post, RdConfig, Scope, Verdict, envelope,
};

use crate::start;

/// Peers, by the port that they send from.
const PORTS: u16 = 4;
/// Most associations whose peer is not validated.
const UNVALIDATED: usize = 2;
/// Epoch of the end.
const EPOCH: u32 = 7;
/// Octets of a segment at most.
const SEGMENT: u16 = 400;

/// Octets from and to an address.
#[derive(Debug, Default)]
struct Address {
    received: u64,
    sent: u64,
    /// It may have shown that it receives: from then on it gets what it likes.
    known: bool,
}

/// The end and what is known of it.
struct World {
    endpoint: Endpoint,
    now: Instant,
    addresses: BTreeMap<u16, Address>,
    /// Identifiers that the end drew, and the peer that it sent each to.
    identifiers: Vec<(u32, u16)>,
    /// Packet numbers that it sent.
    numbers: Vec<u64>,
    /// Tokens of posted messages, and whether they ended.
    posted: HashMap<u64, bool>,
}

/// Drives an end. Each message ends at most once, addresses that are not validated get no more than three times what they sent, and every call returns.
pub fn reliable(data: &[u8]) {
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
}

fn peer(port: u16) -> Peer {
    Peer::ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn port(peer: Peer) -> u16 {
    peer.socket_addr().map_or(0, |it| it.port())
}

impl World {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut config = RdConfig::new(start(), EPOCH, [3, 5]);
        config.unvalidated = UNVALIDATED;
        config.datagram = 512;
        config.rnr_retries = u.arbitrary::<Option<u8>>()?.map(Into::into);
        config.polls = u.arbitrary()?;
        if u.arbitrary()? {
            config.scope = Scope::Message;
        }
        Ok(Self {
            endpoint: Endpoint::new(config),
            now: start(),
            addresses: BTreeMap::new(),
            identifiers: Vec::new(),
            numbers: Vec::new(),
            posted: HashMap::new(),
        })
    }

    fn post(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let to = u.int_in_range(1..=PORTS)?;
        let token = self.posted.len() as u64;
        let post = Post {
            token,
            segments: u.int_in_range(1..=9)?,
            length: u.int_in_range(12..=SEGMENT)?,
            last_length: u.int_in_range(12..=SEGMENT)?,
            trailer: None,
            stream: u.arbitrary()?,
            receive: u.arbitrary()?,
        };
        self.posted.insert(token, false);
        self.address(to).known = true;
        self.endpoint.post(self.now, peer(to), 512, post);
        Ok(())
    }

    fn address(&mut self, port: u16) -> &mut Address {
        self.addresses.entry(port).or_default()
    }

    /// Takes everything that leaves now, and everything that is reported.
    fn pump(&mut self) {
        let mut out = Vec::new();
        let mut count = 0;
        while let Some(to) =
            self.endpoint
                .poll_transmit(self.now, &mut out, &mut |_, _, _, segment| segment.fill(1))
        {
            let datagram = std::mem::take(&mut out);
            count += 1;
            assert!(count < 2000, "output without end");
            assert!(datagram.len() <= 512, "{} octets", datagram.len());
            let (head, frames) = Envelope::open::<[u8]>(datagram[..].into()).expect("it is ours");
            self.numbers.push(head.number);
            for frame in Frames::new(frames) {
                if let Frame::Hello(hello) = frame.expect("it is ours")
                    && hello.association != 0
                {
                    let told = (hello.association, port(to));
                    self.identifiers.retain(|it| *it != told);
                    self.identifiers.push(told);
                }
            }
            let address = self.address(port(to));
            address.sent += datagram.len() as u64;
            assert!(
                address.known || address.sent <= 3 * address.received,
                "{} octets for {}",
                address.sent,
                address.received
            );
        }
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::Completed { token, .. } | Event::Failed { token, .. } = event {
                let ended = self.posted.get_mut(&token).expect("it was posted");
                assert!(
                    !std::mem::replace(ended, true),
                    "message {token} ends twice"
                );
            }
        }
    }

    /// Hands the end a datagram of a peer.
    fn receive(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let from = u.int_in_range(1..=PORTS)?;
        let mut octets = Vec::new();
        let (identifier, told) = match u.int_in_range(0..=3u8)? {
            0 => (0, None),
            1 => (u.arbitrary()?, None),
            _ => match u.choose(&self.identifiers) {
                Ok((identifier, told)) => (*identifier, Some(*told)),
                Err(_) => (0, None),
            },
        };
        // An identifier is known where the end sent it.
        if let Some(told) = told {
            self.address(told).known = true;
            self.address(from).known = true;
        }
        Envelope {
            eager: u.arbitrary()?,
            hello: u.arbitrary()?,
            association: identifier,
            number: u.int_in_range(0..=300)?,
            time: u.arbitrary()?,
            epoch: u.int_in_range(0..=2)?,
        }
        .emit(&mut octets);
        for _ in 0..u.int_in_range(0..=4u8)? {
            self.frame(u, &mut octets)?;
        }
        envelope::seal(&mut octets, 0);
        self.address(from).received += octets.len() as u64;
        let verdict = match u.int_in_range(0..=5u8)? {
            0 => Verdict::NotReady,
            1 => Verdict::Failed(u.arbitrary()?),
            _ => Verdict::Placed,
        };
        let octets = octets[..].into();
        // Whatever it is dropped for.
        let _ = self.endpoint.handle_input::<[u8]>(
            self.now,
            peer(from),
            Ecn::Ect0,
            octets,
            &mut |_, _, _, _| verdict,
        );
        assert!(self.endpoint.associations() <= usize::from(PORTS));
        Ok(())
    }

    fn frame(&self, u: &mut Unstructured<'_>, out: &mut Vec<u8>) -> Result<()> {
        let credit = Credit {
            receives: u.int_in_range(0..=40)?,
            window: u.arbitrary()?,
        };
        // Numbers that the end used, and others.
        let number = match u.choose(&self.numbers) {
            Ok(number) => *number,
            Err(_) => u.int_in_range(0..=20)?,
        };
        match u.int_in_range(0..=10u8)? {
            0 => Hello {
                retry: u.ratio(1u8, 4u8)?,
                life: if u.ratio(1u8, 8u8)? {
                    Some(u.int_in_range(0..=2)?)
                } else {
                    None
                },
                association: u.int_in_range(0..=3)?,
                credit,
                proof: u.arbitrary()?,
                cookie: u.arbitrary()?,
            }
            .emit(out),
            1 | 2 => {
                let least = number.saturating_sub(u.int_in_range(0..=5)?);
                let mut ack = Ack::new(least..=number, u.arbitrary()?, u.arbitrary()?);
                let below = least.saturating_sub(u.int_in_range(2..=9)?);
                ack.add(&(below.saturating_sub(u.int_in_range(0..=3)?)..=below));
                ack.emit(out);
            }
            3 => Placed {
                next: u.int_in_range(0..=9)?,
                map: u.arbitrary()?,
            }
            .emit(out),
            4 => credit.emit(out),
            5 => NotReady {
                packet: number,
                message: u.int_in_range(0..=9)?,
                delay: u.arbitrary()?,
            }
            .emit(out),
            6 => MessageError {
                message: u.int_in_range(0..=9)?,
                control: u.arbitrary()?,
            }
            .emit(out),
            7 => Ping(u.arbitrary()?).emit(out),
            8 => Pong(u.arbitrary()?).emit(out),
            9 => Close {
                reason: *u.choose(&[CloseReason::Done, CloseReason::Unknown])?,
                association: u.int_in_range(0..=3)?,
                packet: number,
            }
            .emit(out),
            _ => {
                let header = SegmentHeader {
                    last: u.arbitrary()?,
                    receive: u.arbitrary()?,
                    number: u.int_in_range(0..=40)?,
                    message: u.int_in_range(0..=9)?,
                    index: u.int_in_range(0..=9)?,
                    stream: u.int_in_range(0..=2)?,
                    after: u.int_in_range(0..=3)?,
                };
                let length = u.int_in_range(12..=60u16)?;
                header.emit(out, length);
                out.resize(out.len() + usize::from(length), 2);
            }
        }
        Ok(())
    }

    /// Handles what is due; timers that are due again at once would keep a thread busy.
    fn wait(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for _ in 0..20 {
            if self.endpoint.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.endpoint.handle_timeout(self.now);
            self.pump();
        }
        panic!("timers that are always due");
    }
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new(u)?;
    while !u.is_empty() {
        match u.int_in_range(0..=11u8)? {
            0 | 1 => world.post(u)?,
            2..=7 => world.receive(u)?,
            8 => {
                let to = peer(u.int_in_range(1..=PORTS)?);
                match u.int_in_range(0..=4u8)? {
                    0 => world.endpoint.grant(to, u.int_in_range(0..=9)?),
                    1 => world.endpoint.await_responses(to, u.arbitrary()?),
                    2 => {
                        let (message, control) = (u.int_in_range(0..=9)?, u.arbitrary()?);
                        world.endpoint.refuse(world.now, to, message, control);
                    }
                    3 => world.endpoint.close(world.now, to),
                    _ => world.endpoint.fail(world.now, to),
                }
            }
            9 => {
                let polls = u.arbitrary()?;
                world.endpoint.set_polls(polls);
            }
            _ => {
                let micros = 1 << u.int_in_range(0..=22u8)?;
                world.wait(micros);
            }
        }
        world.pump();
    }
    // Nothing is left behind the end of all.
    world.endpoint.close_all(world.now);
    world.pump();
    assert!(
        world.posted.values().all(|ended| *ended),
        "a message never ends"
    );
    assert_eq!(world.endpoint.associations(), 0);
    Ok(())
}
