//! Reads of honest requesters beside forged datagrams, in virtual time: receiving, answering and everything else takes the time of one
//! processor.

use super::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Time of one received datagram.
const RECEIVE: Duration = Duration::from_micros(2);
/// Time of one train sent.
const SEND: Duration = Duration::from_micros(6);
/// Time on the way, one way.
const DELAY: Duration = Duration::from_micros(40);
/// Virtual time of a run.
const RUN: Duration = Duration::from_millis(100);
/// Octets of an honest Read.
const LENGTH: usize = 4096;

/// Forged datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    EmptyReads,
    ShortReads,
    CookieRequests,
    /// All of them.
    Random,
    /// Not forged, and for somebody else: they cost their reception alone.
    WellBehaved,
}

const HOSTILE: [Flood; 4] = [
    Flood::EmptyReads,
    Flood::ShortReads,
    Flood::CookieRequests,
    Flood::Random,
];

/// Senders of a flood.
#[derive(Debug, Clone, Copy)]
enum Sources {
    One,
    Many,
}

/// Honest requesters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Honest {
    /// Four that read without end, with their cookies.
    Proved,
    /// Four at a time: each makes its cookie exchange, reads once, and goes.
    Newcomers,
    /// Four at a time: each reads 8 octets without a cookie, and goes.
    ShortNewcomers,
}

/// Epoch of everybody but the target.
const EPOCH: u32 = 7;
/// Requesters repeat what was not answered.
const REPEAT: Duration = Duration::from_millis(20);

fn seal(mut octets: Vec<u8>) -> Vec<u8> {
    let crc = dgiwarp_codec::crc::crc32c(&octets);
    octets.extend(dgiwarp_codec::crc::to_wire(crc));
    octets
}

fn cookie_request(nonce: u64) -> Vec<u8> {
    let mut octets = vec![0x49, 1, 0, 0];
    octets.extend(EPOCH.to_be_bytes());
    octets.extend(nonce.to_be_bytes());
    octets.extend([0; 16]);
    seal(octets)
}

fn read_request(cookie: Option<&[u8]>, sink: u32, size: usize, rkey: u32) -> Vec<u8> {
    let mut octets = vec![if cookie.is_some() { 0x45 } else { 0x41 }, 0x41];
    for word in [EPOCH, 1, sink, 0] {
        octets.extend(word.to_be_bytes());
    }
    octets.extend(cookie.unwrap_or_default());
    for word in [sink, 0, 0, u32::try_from(size).unwrap(), rkey, 0, 0] {
        octets.extend(word.to_be_bytes());
    }
    seal(octets)
}

fn forged(flood: Flood, rkey: u32, rng: &mut ChaCha20Rng) -> Vec<u8> {
    match flood {
        Flood::Random => {
            let kind = HOSTILE[rng.random_range(0..3)];
            forged(kind, rkey, rng)
        }
        Flood::EmptyReads | Flood::WellBehaved => read_request(None, rng.random(), 0, 0),
        Flood::ShortReads => read_request(None, rng.random(), 132, rkey),
        Flood::CookieRequests => cookie_request(rng.random()),
    }
}

/// The processor's clock, and the trains that it sent.
struct Wire {
    now: Instant,
    sent: Vec<(Instant, Peer, Vec<u8>)>,
}

impl Wire {
    fn put(&mut self, to: Peer, octets: &[u8], train: &Train) -> SendOutcome {
        self.now += SEND;
        for datagram in octets.chunks(train.datagram()) {
            self.sent.push((self.now + DELAY, to, datagram.to_vec()));
        }
        SendOutcome::Sent
    }
}

impl TransmitSink for Wire {
    fn staging(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn give_back(&mut self, _staging: Vec<u8>) {}

    fn send(&mut self, to: Peer, _: &Route, pieces: &[Piece<'_>], train: &Train) -> SendOutcome {
        match pieces {
            [Piece::Bytes(octets)] => self.put(to, octets, train),
            _ => panic!("responses are copied"),
        }
    }

    fn send_short(
        &mut self,
        to: Peer,
        _: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        self.put(to, octets, train)
    }

    fn path(&mut self, _: Peer, from: Option<IpAddr>) -> Option<Route> {
        let address = Ipv4Addr::LOCALHOST.into();
        let path = Path::new(PathKind::Network, false, 1500);
        Some(Route::new(address, 0, from, address, path))
    }
}

/// An honest requester.
struct Requester {
    at: Peer,
    cookie: Option<Vec<u8>>,
    sink: u32,
    /// Octets that arrived of the Read.
    arrived: usize,
    asked_at: Instant,
}

/// A target on one processor, honest requesters, and datagrams on the way to it.
struct World {
    target: End,
    rkey: u32,
    wire: Wire,
    arrivals: BTreeMap<(Instant, u64), (Peer, Vec<u8>)>,
    counted: u64,
    honest: Honest,
    requesters: Vec<Requester>,
    next_port: u16,
    reads: u64,
}

fn peer(address: [u8; 4], port: u16) -> Peer {
    Peer::ip(SocketAddr::from((address, port)))
}

impl World {
    fn new(start: Instant, honest: Honest) -> Self {
        let target = End::new(2);
        let region = target.buffer.region();
        let keys = target.mrs.register(region, 0, Access::REMOTE_READ, PD);
        let mut this = Self {
            target,
            rkey: keys.rkey,
            wire: Wire {
                now: start,
                sent: Vec::new(),
            },
            arrivals: BTreeMap::new(),
            counted: 0,
            honest,
            requesters: Vec::new(),
            next_port: 1,
            reads: 0,
        };
        for place in 0..4 {
            let requester = this.newcomer(start);
            this.requesters.push(requester);
            this.ask(place, start);
        }
        this
    }

    fn newcomer(&mut self, now: Instant) -> Requester {
        self.next_port += 1;
        Requester {
            at: peer([198, 51, 100, 1], self.next_port),
            cookie: None,
            sink: 0,
            arrived: 0,
            asked_at: now,
        }
    }

    fn arrive(&mut self, at: Instant, from: Peer, octets: Vec<u8>) {
        self.counted += 1;
        self.arrivals.insert((at, self.counted), (from, octets));
    }

    /// A requester sends its next segment.
    fn ask(&mut self, place: usize, now: Instant) {
        let (rkey, honest) = (self.rkey, self.honest);
        let requester = &mut self.requesters[place];
        requester.asked_at = now;
        let cookie = requester.cookie.as_deref();
        let octets = match (honest, cookie) {
            (Honest::ShortNewcomers, _) => read_request(None, requester.sink, 8, rkey),
            (_, None) => cookie_request(1),
            (_, Some(_)) => read_request(cookie, requester.sink, LENGTH, rkey),
        };
        let from = requester.at;
        self.arrive(now + DELAY, from, octets);
    }

    /// An honest requester receives.
    fn answered(&mut self, now: Instant, place: usize, octets: &[u8]) {
        let requester = &mut self.requesters[place];
        if octets[0] == 0x49 {
            requester.cookie = Some(octets[16..24].to_vec());
            return self.ask(place, now);
        }
        assert_eq!(octets[1], 0x42);
        if octets[2..6] != requester.sink.to_be_bytes() {
            return;
        }
        requester.arrived += octets.len() - 18;
        let length = match self.honest {
            Honest::ShortNewcomers => 8,
            Honest::Proved | Honest::Newcomers => LENGTH,
        };
        if requester.arrived < length {
            return;
        }
        self.reads += 1;
        match self.honest {
            Honest::Proved => {
                requester.sink += 1;
                requester.arrived = 0;
            }
            Honest::Newcomers | Honest::ShortNewcomers => {
                self.requesters[place] = self.newcomer(now);
            }
        }
        self.ask(place, now);
    }

    /// The turns that the driver gives the engine.
    fn respond(&mut self, is_busy: bool) {
        let End {
            engine, mrs, wcs, ..
        } = &mut self.target;
        let mut round = UdEngine::begin_round(is_busy);
        while let Some(budget) = engine.next_turn(&mut round, self.wire.now) {
            let began = self.wire.now;
            engine.transmit(began, budget, mrs, &mut self.wire, wcs);
            engine.end_turn(began, self.wire.now);
        }
        for (at, to, octets) in std::mem::take(&mut self.wire.sent) {
            let place = self.requesters.iter().position(|it| it.at == to);
            if let Some(place) = place {
                self.answered(at, place, &octets);
            }
        }
    }

    /// One poll of the target's program. Returns whether something was received.
    fn poll(&mut self, was_busy: bool) -> bool {
        if self.target.engine.has_unsent() {
            self.respond(was_busy);
        }
        let mut received = false;
        for _ in 0..8 {
            let now = self.wire.now;
            let Some(first) = self.arrivals.first_entry().filter(|it| it.key().0 <= now) else {
                break;
            };
            let (from, octets) = first.remove();
            received = true;
            self.wire.now += RECEIVE;
            if from.socket_addr().is_some_and(|it| it.port() == OTHERS) {
                continue;
            }
            let behind = self.target.engine.has_output();
            let arrival = Arrival {
                by_memory: false,
                from,
                to: None,
                to_group: false,
                octets: &octets[..],
                stride: octets.len(),
            };
            let End {
                engine,
                mrs,
                recv_queue,
                wcs,
                ..
            } = &mut self.target;
            let tables = Tables { mrs, recv_queue };
            engine.handle_input(self.wire.now, arrival, tables, wcs);
            if !behind && engine.has_output() {
                self.respond(was_busy);
            }
        }
        received
    }

    /// Runs until `end`, and returns the Reads that were complete.
    fn run(&mut self, end: Instant) -> u64 {
        let mut busy = false;
        while self.wire.now < end {
            busy = self.poll(busy);
            let now = self.wire.now;
            for place in 0..self.requesters.len() {
                if now > self.requesters[place].asked_at + REPEAT {
                    self.ask(place, now);
                }
            }
            let End {
                engine,
                mrs,
                recv_queue,
                wcs,
                ..
            } = &mut self.target;
            if engine.poll_timeout().is_some_and(|at| at <= now) {
                engine.handle_timeout(now, Tables { mrs, recv_queue }, wcs);
            }
            if !busy && !engine.has_unsent() {
                let next = self.arrivals.first_key_value().map(|((at, _), _)| *at);
                let next = next.into_iter().chain(engine.poll_timeout()).min();
                self.wire.now = next.unwrap_or(end).max(now);
            } else if !busy {
                self.wire.now += Duration::from_nanos(200);
            }
        }
        self.reads
    }
}

/// Port of those whose datagrams go to another QP of the processor.
const OTHERS: u16 = 9;

/// Reads that are complete beside a flood of so many datagrams per second.
fn reads_beside(flood: Flood, sources: Sources, rate: u32, honest: Honest, seed: u64) -> u64 {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let start = now();
    let mut world = World::new(start, honest);
    let datagrams = u64::from(rate) * u64::try_from(RUN.as_millis()).unwrap() / 1000;
    for _ in 0..datagrams {
        let from = match (flood, sources) {
            (Flood::WellBehaved, _) => peer([203, 0, 113, 1], OTHERS),
            (_, Sources::One) => peer([203, 0, 113, 1], 10),
            (_, Sources::Many) => peer(rng.random(), rng.random_range(10..=u16::MAX)),
        };
        let octets = forged(flood, world.rkey, &mut rng);
        let at = start + RUN.mul_f64(rng.random());
        world.arrive(at, from, octets);
    }
    world.run(start + RUN)
}

/// Beside every flood honest Reads keep half of what they have beside as many well-behaved datagrams: those that have cookies at any rate, the others
/// as long as the answers to the flood fit the part of the time that it shares with them.
#[test]
fn honest_reads_keep_half_beside_every_flood() {
    for honest in [Honest::Proved, Honest::Newcomers, Honest::ShortNewcomers] {
        for rate in [5000, 20_000, 200_000] {
            if rate > 20_000 && honest != Honest::Proved {
                continue;
            }
            for sources in [Sources::One, Sources::Many] {
                let seed = getrandom::u64().unwrap();
                let beside = reads_beside(Flood::WellBehaved, sources, rate, honest, seed);
                for flood in HOSTILE {
                    let under = reads_beside(flood, sources, rate, honest, seed);
                    println!(
                        "{honest:?} {flood:?} {sources:?} {rate}/s, seed {seed}: {under} of {beside}"
                    );
                    assert!(under * 2 >= beside, "seed {seed}");
                }
            }
        }
    }
}

/// A flood from one address takes nobody else's turn, at whatever rate.
#[test]
fn newcomers_have_their_turn_beside_one_address() {
    for honest in [Honest::Newcomers, Honest::ShortNewcomers] {
        let seed = getrandom::u64().unwrap();
        let beside = reads_beside(Flood::WellBehaved, Sources::One, 150_000, honest, seed);
        for flood in HOSTILE {
            let under = reads_beside(flood, Sources::One, 150_000, honest, seed);
            println!("{honest:?} {flood:?}, seed {seed}: {under} of {beside}");
            assert!(under * 4 >= beside, "seed {seed}");
        }
    }
}
