//! Goodput of Reads in virtual time: a target that serves at a rate, a path that delays, loses and reorders responses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::datagram::Cookie;

/// Octets of payload of a response that fills an Ethernet frame.
const SEGMENT: u32 = 1454;
/// Octets that the target serves in a microsecond.
const RATE: u64 = 3000;

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A path to a target.
#[derive(Clone, Copy)]
struct Path {
    one_way: Duration,
    /// Responses lost, of 10,000.
    loss: u64,
    /// Responses late, of 10,000, by up to 20 µs.
    late: u64,
    /// Octets of messages outstanding.
    depth: usize,
    receive_buffer: usize,
    /// Octets that the target sends in a microsecond.
    rate: u64,
}

const LOCAL: Path = Path {
    one_way: Duration::from_micros(6),
    loss: 0,
    late: 0,
    depth: 256 << 10,
    receive_buffer: 4 << 20,
    rate: RATE,
};

enum Arrival {
    Request(Vec<u8>),
    Answer(CookieExchange),
    Response(STag, u32, u32),
}

/// Reads that have ended, complete.
#[derive(Default)]
struct Ends(usize);

impl ReadSink<()> for Ends {
    type Payload = [u8];

    fn place_read(
        &mut self,
        (): &(),
        _: u32,
        _: PayloadSlice<'_, [u8]>,
    ) -> Result<(), PlaceFailed> {
        Ok(())
    }

    fn finish(&mut self, (): (), end: ReadEnd, _: &mut RangeMap) {
        assert_eq!(end, ReadEnd::Complete);
        self.0 += 1;
    }
}

/// Result of a run.
struct Run {
    /// Octets in a microsecond.
    goodput: f64,
    repeats: u64,
    /// Responses with octets that were there.
    duplicates: u64,
}

struct World {
    path: Path,
    started: Instant,
    now: Instant,
    associations: Associations<char, u8>,
    requester: Requester<char, u8, ()>,
    ends: Ends,
    events: BinaryHeap<Reverse<(Instant, u64)>>,
    arrivals: Vec<Option<Arrival>>,
    /// Time at which the target has served all.
    served: Instant,
    random: u64,
    duplicates: u64,
}

impl World {
    fn new(path: Path) -> Self {
        let config = RequesterConfig {
            secret: secret(1),
            msn: 5,
            overhead: 4,
        };
        let now = origin();
        Self {
            path,
            started: now,
            now,
            associations: Associations::new(AssociationConfig {
                epoch: EPOCH,
                group_key: [0; 4],
                number: 0,
                secret: secret(1),
            }),
            requester: Requester::new(config, Limits::of_receive_buffer(path.receive_buffer)),
            ends: Ends::default(),
            events: BinaryHeap::new(),
            arrivals: Vec::new(),
            served: now,
            random: 1,
            duplicates: 0,
        }
    }

    fn put(&mut self, at: Instant, arrival: Arrival) {
        self.events.push(Reverse((at, self.arrivals.len() as u64)));
        self.arrivals.push(Some(arrival));
    }

    /// A number below 10,000 (xorshift).
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 10_000
    }

    fn transmit(&mut self) {
        while let Some(outgoing) = self
            .requester
            .poll_transmit(self.now, &mut self.associations)
        {
            let at = self.now + self.path.one_way;
            self.put(at, Arrival::Request(emit(&outgoing.segment)));
        }
    }

    fn serve(&mut self, octets: &[u8]) {
        match parse(octets).unwrap() {
            Arrived::Exchange(request) => {
                let answer = CookieExchange {
                    kind: ExchangeKind::Answer,
                    cookie: Cookie::new(7),
                    ..request
                };
                self.put(self.now + self.path.one_way, Arrival::Answer(answer));
            }
            Arrived::Segment(Parsed::Read(ReadSegment::Request { request, .. })) => {
                self.served = self.served.max(self.now);
                let start = u32::try_from(request.sink_offset.get()).unwrap();
                for at in (0..request.size).step_by(SEGMENT as usize) {
                    let length = SEGMENT.min(request.size - at);
                    let nanos = u64::from(length) * 1000 / self.path.rate;
                    self.served += Duration::from_nanos(nanos);
                    if self.draw() < self.path.loss {
                        continue;
                    }
                    let mut arrives = self.served + self.path.one_way;
                    if self.draw() < self.path.late {
                        arrives += micros(self.draw() % 20);
                    }
                    self.put(
                        arrives,
                        Arrival::Response(request.sink_stag, start + at, length),
                    );
                }
            }
            Arrived::Segment(other) => panic!("{other:?}"),
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Request(octets) => self.serve(&octets),
            Arrival::Answer(answer) => {
                // An exchange that was repeated has two answers.
                let ended = self.associations.handle_answer(self.now, TARGET, &answer);
                if let Ok(ended) = ended {
                    self.requester.resume(ended);
                }
            }
            Arrival::Response(stag, start, length) => {
                let payload = vec![0; length as usize];
                let handled = self.requester.handle_response(
                    self.now,
                    TARGET,
                    (stag, TaggedOffset::new(start.into())),
                    payload[..].into(),
                    &mut self.ends,
                    &mut self.associations,
                );
                self.duplicates += u64::from(handled.is_err());
            }
        }
    }

    fn run(mut self, length: usize, reads: usize) -> Run {
        let mut posted = 0;
        while self.ends.0 < reads {
            let depth = (self.path.depth / length).max(1);
            while posted < reads && posted - self.ends.0 < depth {
                let work = ReadWork {
                    peer: TARGET,
                    via: VIA,
                    source_stag: SOURCE,
                    source_offset: TaggedOffset::new(0),
                    length: u32::try_from(length).unwrap(),
                    segment: SEGMENT,
                    deadline: self.now + Duration::from_secs(60),
                };
                self.requester
                    .submit(self.now, work, (), &mut self.associations);
                posted += 1;
            }
            self.transmit();
            let arrival = self.events.peek().map(|Reverse((at, _))| *at);
            let timeout = self.associations.poll_timeout();
            let next = arrival.into_iter().chain(timeout).min();
            self.now = self.now.max(next.expect("something is to happen"));
            while let Some(&Reverse((at, index))) = self.events.peek()
                && at <= self.now
            {
                self.events.pop();
                let arrival = self.arrivals[usize::try_from(index).unwrap()].take();
                self.arrive(arrival.unwrap());
            }
            if self.associations.handle_timeout(self.now) {
                self.requester
                    .handle_timeout(self.now, &mut self.ends, &mut self.associations);
            }
        }
        let took = self.now - self.started;
        Run {
            goodput: (length * reads) as f64 / took.as_secs_f64() / 1e6,
            repeats: self.requester.counts().1,
            duplicates: self.duplicates,
        }
    }
}

fn run(path: Path, length: usize, reads: usize) -> Run {
    World::new(path).run(length, reads)
}

/// Goodput of `length` octets with a loss, of that without.
fn share(path: Path, loss: u64, length: usize, reads: usize) -> f64 {
    let without = run(path, length, reads);
    assert_eq!(without.repeats, 0, "nothing was lost");
    run(Path { loss, ..path }, length, reads).goodput / without.goodput
}

#[test]
fn a_hundredth_lost_costs_less_than_a_tenth() {
    for (length, reads) in [(64 << 10, 400), (1 << 20, 30)] {
        for (loss, bar) in [(10, 0.97), (100, 0.9 * 0.99), (500, 0.6)] {
            let share = share(LOCAL, loss, length, reads);
            assert!(
                share >= bar,
                "{length} octets, {loss} of 10,000 lost: {share:.3}"
            );
        }
    }
}

/// Few octets are asked for in vain, and a loss beside it is still found.
#[test]
fn a_network_that_changes_the_order_is_found_out() {
    let in_order = run(LOCAL, 64 << 10, 400).goodput;
    for (late, loss, bar, vain) in [
        (100, 0, 0.97, 40),
        (500, 0, 0.97, 100),
        (100, 100, 0.85, 200),
    ] {
        let path = Path {
            late,
            loss,
            ..LOCAL
        };
        let run = run(path, 64 << 10, 400);
        let share = run.goodput / in_order;
        assert!(
            share >= bar,
            "{late} late, {loss} lost of 10,000: {share:.3}"
        );
        assert!(run.duplicates <= vain, "{} duplicates", run.duplicates);
    }
}

/// §8: the window follows a path of 50 ms and 1 Gbit/s, as far as the receive buffer has room.
#[test]
fn a_long_path_is_filled() {
    let path = Path {
        one_way: Duration::from_millis(25),
        depth: 64 << 20,
        receive_buffer: 32 << 20,
        rate: 125,
        ..LOCAL
    };
    let reads = 600;
    let all = run(path, 1 << 20, reads);
    assert_eq!(all.repeats, 0);
    assert!(
        all.goodput >= 0.9 * 125.0,
        "{:.1} octets in a microsecond",
        all.goodput
    );
}

/// A target that answers in single octets, in any order, again and again.
#[test]
fn what_is_kept_of_lost_octets_is_bounded() {
    let mut world = World::new(LOCAL);
    let work = ReadWork {
        peer: TARGET,
        via: VIA,
        source_stag: SOURCE,
        source_offset: TaggedOffset::new(0),
        length: 60_000,
        segment: SEGMENT,
        deadline: world.now + Duration::from_secs(10),
    };
    world
        .requester
        .submit(world.now, work, (), &mut world.associations);
    let mut stag = None;
    let mut most = 0;
    for _ in 0..50_000 {
        world.now += micros(20);
        world.transmit();
        for arrival in world.arrivals.drain(..).flatten().collect::<Vec<_>>() {
            let Arrival::Request(octets) = arrival else {
                continue;
            };
            match parse(&octets).unwrap() {
                Arrived::Exchange(request) => {
                    let answer = CookieExchange {
                        kind: ExchangeKind::Answer,
                        cookie: Cookie::new(7),
                        ..request
                    };
                    world.arrive(Arrival::Answer(answer));
                }
                Arrived::Segment(Parsed::Read(ReadSegment::Request { request, .. })) => {
                    stag = Some(request.sink_stag);
                }
                Arrived::Segment(other) => panic!("{other:?}"),
            }
        }
        world.events.clear();
        if let Some(stag) = stag
            && world.draw() < 8000
        {
            let at = u32::try_from(world.draw() * 6 % 60_000).unwrap();
            world.arrive(Arrival::Response(stag, at, 1));
        }
        if world.associations.handle_timeout(world.now) {
            world
                .requester
                .handle_timeout(world.now, &mut world.ends, &mut world.associations);
        }
        most = most.max(world.requester.kept());
    }
    assert!(world.duplicates > 10_000);
    assert!((1..=200).contains(&most), "{most} requests and lost ranges");
}
