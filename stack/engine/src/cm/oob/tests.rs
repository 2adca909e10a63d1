use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha20Rng;

use super::*;

const LOW: u32 = 0x0080_0002;
const HIGH: u32 = 0x0090_0001;

#[expect(clippy::disallowed_methods, reason = "some instant to begin with")]
fn clock() -> Instant {
    Instant::now()
}

fn here() -> IpAddr {
    "192.0.2.1".parse().unwrap()
}

fn pairing(peer_qpn: u32, rq_psn: u32) -> Pairing {
    Pairing {
        peer: here(),
        scope_id: 0,
        peer_qpn,
        source: here(),
        rq_psn,
        ird: 4,
    }
}

fn start(sq_psn: u32, patience: Option<Duration>) -> Start {
    Start {
        sq_psn,
        ord: 8,
        patience,
    }
}

/// The Responder of a pair, told of its peer or not.
fn responder(now: Instant, told: bool) -> Pairs {
    let mut pairs = Pairs::default();
    pairs.insert(HIGH);
    if told {
        pairs.pair(now, HIGH, pairing(LOW, 5));
        pairs.start(now, HIGH, start(6, None));
    }
    pairs
}

/// The claim of the Initiator of that pair.
fn asks() -> Claim {
    pairing(HIGH, 6).claim(LOW, Some(5))
}

fn actions(pairs: &mut Pairs) -> Vec<Action> {
    std::iter::from_fn(|| pairs.poll_action()).collect()
}

fn arrive(pairs: &mut Pairs, now: Instant, claim: &Claim) -> StartupId {
    let request = pairs.next_id();
    pairs.arrived(now, request, here(), &claim.emit(), |_| true);
    request
}

fn refusal(of: &[Action]) -> Option<Refusal> {
    match of {
        [Action::Refuse { refusal, .. }] => Some(*refusal),
        _ => None,
    }
}

#[test]
fn strangers_are_refused_each_with_the_reason() {
    let now = clock();
    let mut pairs = responder(now, true);
    let unknown = Claim {
        dest_qpn: HIGH + 1,
        ..asks()
    };
    arrive(&mut pairs, now, &unknown);
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Unknown));
    let other_life = pairing(HIGH, 7).claim(LOW, Some(5));
    arrive(&mut pairs, now, &other_life);
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Mismatch));
    let request = pairs.next_id();
    pairs.arrived(
        now,
        request,
        "192.0.2.9".parse().unwrap(),
        &asks().emit(),
        |_| true,
    );
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Mismatch));
    pairs.arrived(now, request, here(), b"who", |_| true);
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Unknown));
    // One that is connected otherwise.
    let mut pairs = responder(now, false);
    pairs.arrived(now, request, here(), &asks().emit(), |_| false);
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Taken));
    assert_eq!(pairs.poll_timeout(), None);
}

#[test]
fn a_request_waits_for_its_queue_pair_to_be_told() {
    let now = clock();
    let mut pairs = responder(now, false);
    let first = arrive(&mut pairs, now, &asks());
    assert_eq!(actions(&mut pairs), []);
    let second = arrive(&mut pairs, now, &asks());
    assert_eq!(actions(&mut pairs), [Action::Drop { request: first }]);
    pairs.pair(now, HIGH, pairing(LOW, 5));
    let [
        Action::Accept {
            request, depths, ..
        },
    ] = actions(&mut pairs)[..]
    else {
        panic!("accepted");
    };
    assert_eq!((request, depths), (second, ReadDepths { ird: 4, ord: 128 }));
    // In vain: half a minute, and not more than 256 at a time.
    let mut pairs = responder(now, false);
    for qpn in 0..256 {
        arrive(&mut pairs, now, &Claim { qpn, ..asks() });
    }
    assert_eq!(actions(&mut pairs), []);
    arrive(&mut pairs, now, &asks());
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Unknown));
    assert_eq!(pairs.poll_timeout(), Some(now + HOLD_FOR));
    pairs.handle_timeout(now + HOLD_FOR, |_| Need::Idle);
    assert_eq!(actions(&mut pairs).len(), 256);
    pairs.pair(now, HIGH, pairing(LOW, 5));
    assert_eq!(actions(&mut pairs), []);
}

#[test]
fn an_acceptance_is_final_only_when_the_peer_agrees() {
    let now = clock();
    let mut pairs = responder(now, true);
    for _ in 0..3 {
        let request = arrive(&mut pairs, now, &asks());
        assert!(
            matches!(actions(&mut pairs)[..], [Action::Accept { request: it, .. }] if it == request)
        );
        // The Initiator closed: it did not get the answer, or refused it.
        pairs.over(now, request, None);
        assert_eq!(actions(&mut pairs), []);
    }
    let first = arrive(&mut pairs, now, &asks());
    let second = arrive(&mut pairs, now, &asks());
    let done = actions(&mut pairs);
    assert!(
        matches!(done[..], [Action::Accept { .. }, Action::Drop { request }, Action::Accept { .. }] if request == first)
    );
    pairs.over(now, first, Some(b""));
    assert_eq!(actions(&mut pairs), [], "dropped before");
    pairs.over(now, second, Some(b""));
    let link = Action::Link {
        qpn: HIGH,
        of: second,
    };
    assert_eq!(actions(&mut pairs), [link]);
    arrive(&mut pairs, now, &asks());
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Taken));
}

#[test]
fn an_initiator_tries_again_with_longer_pauses_and_checks_the_answer() {
    let mut now = clock();
    let mut pairs = Pairs::default();
    pairs.insert(LOW);
    pairs.pair(now, LOW, pairing(HIGH, 6));
    assert_eq!(pairs.poll_timeout(), Some(now));
    pairs.start(now, LOW, start(5, None));
    assert_eq!(pairs.poll_timeout(), Some(now), "its PSN is known");
    let mut pauses = Vec::new();
    for round in 0..9 {
        pairs.handle_timeout(now, |_| Need::Waiting);
        let [Action::Connect { attempt, claim, .. }] = actions(&mut pairs)[..] else {
            panic!("round {round}");
        };
        assert_eq!(claim, asks());
        // A Reply of another life is none.
        let wrong = pairing(LOW, 5).claim(HIGH, Some(7)).emit();
        pairs.over(now, attempt, (round % 2 == 0).then_some(&wrong[..]));
        let next = pairs.poll_timeout().unwrap();
        pauses.push((next - now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500, 500, 500]);
    pairs.handle_timeout(now, |_| Need::Waiting);
    let [Action::Connect { attempt, .. }] = actions(&mut pairs)[..] else {
        panic!("the last one");
    };
    let right = pairing(LOW, 5).claim(HIGH, Some(6)).emit();
    pairs.over(now, attempt, Some(&right));
    let link = Action::Link {
        qpn: LOW,
        of: attempt,
    };
    assert_eq!(actions(&mut pairs), [link]);
    assert_eq!(pairs.poll_timeout(), None);
}

/// The end that only receives never has a PSN of its own messages: the peer's is enough.
#[test]
fn an_initiator_that_may_not_send_connects_at_once() {
    let now = clock();
    let mut low = Pairs::default();
    low.insert(LOW);
    low.pair(now, LOW, pairing(HIGH, 6));
    assert_eq!(low.poll_timeout(), Some(now));
    low.handle_timeout(now, |_| Need::Idle);
    let [Action::Connect { claim, .. }] = actions(&mut low)[..] else {
        panic!("connects");
    };
    let mut high = responder(now, true);
    let request = arrive(&mut high, now, &claim);
    assert!(
        matches!(actions(&mut high)[..], [Action::Accept { request: it, .. }] if it == request)
    );
    // A Request for another life of the Responder.
    let mut high = responder(now, true);
    arrive(&mut high, now, &pairing(HIGH, 7).claim(LOW, None));
    assert_eq!(refusal(&actions(&mut high)), Some(Refusal::Mismatch));
}

/// A Request without a PSN that arrives behind the one that replaced it: the Initiator is connected by the latter.
#[test]
fn a_replaced_request_that_comes_late_ends_nothing() {
    let now = clock();
    let mut high = responder(now, true);
    let request = arrive(&mut high, now, &asks());
    assert!(
        matches!(actions(&mut high)[..], [Action::Accept { request: it, .. }] if it == request)
    );
    let late = arrive(&mut high, now, &pairing(HIGH, 6).claim(LOW, None));
    assert!(
        matches!(actions(&mut high)[..], [Action::Refuse { request: it, refusal: Refusal::Mismatch }] if it == late)
    );
    high.over(now, request, Some(b""));
    assert!(matches!(actions(&mut high)[..], [Action::Link { qpn: HIGH, of }] if of == request));
    // Once the first attempt has ended, a Request without a PSN counts.
    let mut high = responder(now, true);
    let request = arrive(&mut high, now, &asks());
    high.over(now, request, None);
    actions(&mut high);
    arrive(&mut high, now, &pairing(HIGH, 6).claim(LOW, None));
    assert!(matches!(actions(&mut high)[..], [Action::Accept { .. }]));
}

/// Two ends that may not send have nothing to transmit: the Request waits for the first PSN, whose ever it is.
#[test]
fn without_any_psn_a_request_waits_and_goes_again_with_one() {
    let now = clock();
    let mut low = Pairs::default();
    low.insert(LOW);
    low.pair(now, LOW, pairing(HIGH, 6));
    low.handle_timeout(now, |_| Need::Idle);
    let [Action::Connect { attempt, claim, .. }] = actions(&mut low)[..] else {
        panic!("connects");
    };
    let paired = |psn| {
        let mut high = responder(now, false);
        high.pair(now, HIGH, pairing(LOW, psn));
        high
    };
    let mut high = paired(5);
    let request = arrive(&mut high, now, &claim);
    assert_eq!(actions(&mut high), []);
    high.start(now, HIGH, start(6, None));
    assert!(
        matches!(actions(&mut high)[..], [Action::Accept { request: it, .. }] if it == request)
    );
    // An earlier life of the Responder.
    let mut high = paired(5);
    arrive(&mut high, now, &claim);
    high.start(now, HIGH, start(7, None));
    assert_eq!(refusal(&actions(&mut high)), Some(Refusal::Mismatch));
    // The Initiator's PSN comes first.
    low.start(now, LOW, start(5, None));
    assert_eq!(low.poll_timeout(), Some(now));
    low.handle_timeout(now, |_| Need::Waiting);
    let done = actions(&mut low);
    let [
        Action::Abandon { attempt: gone },
        Action::Connect { claim, .. },
    ] = done[..]
    else {
        panic!("{done:?}");
    };
    assert_eq!((gone, claim), (attempt, asks()));
    let mut high = paired(5);
    arrive(&mut high, now, &claim);
    assert!(matches!(actions(&mut high)[..], [Action::Accept { .. }]));
}

#[test]
fn patience_counts_from_the_first_work_request() {
    let mut now = clock();
    let mut pairs = responder(now, false);
    pairs.pair(now, HIGH, pairing(LOW, 5));
    pairs.start(now, HIGH, start(6, Some(Duration::from_secs(3))));
    let mut look = |pairs: &mut Pairs, need| {
        now = pairs.poll_timeout().unwrap().max(now);
        pairs.handle_timeout(now, |_| need);
        (now, actions(pairs))
    };
    for _ in 0..20 {
        assert_eq!(look(&mut pairs, Need::Idle).1, []);
    }
    let (since, _) = look(&mut pairs, Need::Waiting);
    loop {
        let (at, done) = look(&mut pairs, Need::Waiting);
        assert!(at <= since + Duration::from_secs(3));
        if !done.is_empty() {
            assert_eq!(
                (at - since, done),
                (Duration::from_secs(3), vec![Action::GiveUp { qpn: HIGH }])
            );
            break;
        }
    }
    assert_eq!(pairs.poll_timeout(), None);
}

#[test]
fn what_is_under_way_ends_with_its_queue_pair() {
    let now = clock();
    let mut pairs = Pairs::default();
    for end in [Pairs::remove, Pairs::reset] {
        for qpn in [LOW, HIGH] {
            pairs.insert(qpn);
        }
        pairs.pair(now, LOW, pairing(HIGH, 6));
        pairs.start(now, LOW, start(5, None));
        pairs.handle_timeout(now, |_| Need::Idle);
        let [Action::Connect { attempt, .. }] = actions(&mut pairs)[..] else {
            panic!("connects");
        };
        pairs.pair(now, HIGH, pairing(LOW, 5));
        let request = arrive(&mut pairs, now, &asks());
        actions(&mut pairs);
        end(&mut pairs, LOW);
        assert_eq!(actions(&mut pairs), [Action::Abandon { attempt }]);
        end(&mut pairs, HIGH);
        assert_eq!(actions(&mut pairs), [Action::Drop { request }]);
        pairs.over(now, attempt, Some(&asks().emit()));
        pairs.over(now, request, Some(b""));
        assert_eq!(actions(&mut pairs), []);
        assert_eq!(pairs.poll_timeout(), None);
    }
    // The queue pair failed meanwhile, or its program put it into the error state.
    pairs.pair(now, LOW, pairing(HIGH, 6));
    pairs.start(now, LOW, start(5, None));
    pairs.handle_timeout(now, |_| Need::Over);
    assert_eq!((actions(&mut pairs), pairs.poll_timeout()), (vec![], None));
}

#[test]
fn one_that_is_its_own_peer_asks_itself() {
    let now = clock();
    let mut pairs = Pairs::default();
    pairs.insert(LOW);
    pairs.pair(now, LOW, pairing(LOW, 5));
    pairs.start(now, LOW, start(5, None));
    pairs.handle_timeout(now, |_| Need::Idle);
    let [
        Action::Connect {
            attempt,
            claim,
            pairing,
            ..
        },
    ] = actions(&mut pairs)[..]
    else {
        panic!("connects");
    };
    assert!(claim.is_of_itself(&pairing));
    arrive(&mut pairs, now, &claim);
    assert_eq!(refusal(&actions(&mut pairs)), Some(Refusal::Mismatch));
    pairs.over(now, attempt, Some(&claim.emit()));
    assert!(matches!(
        actions(&mut pairs)[..],
        [Action::Link { qpn: LOW, .. }]
    ));
}

/// Something that reaches an end.
#[derive(Debug, Clone, Copy)]
enum Event {
    Request {
        connection: usize,
    },
    Reply {
        connection: usize,
        claim: Option<Claim>,
    },
    First {
        connection: usize,
    },
    Closed {
        connection: usize,
    },
    Told {
        end: usize,
    },
    Started {
        end: usize,
        life: u32,
    },
}

/// A TCP connection from the first end to the second.
#[derive(Debug)]
struct Connection {
    attempt: StartupId,
    claim: Claim,
    request: Option<StartupId>,
    /// The lives that the ends were in when they agreed to it.
    lives: [u32; 2],
}

/// Two devices with one QP each, whose programs start over a few times.
struct World {
    rng: ChaCha20Rng,
    now: Instant,
    pairs: [Pairs; 2],
    /// Number that each program drew last, and its idea of the other's.
    lives: [u32; 2],
    linked: [Option<usize>; 2],
    events: BTreeMap<(Instant, u64), Event>,
    next: u64,
    connections: Vec<Connection>,
    loss: f64,
    /// The end whose program never sends; 2 for none.
    only_receives: usize,
}

impl World {
    fn later(&mut self, millis: u64, event: Event) {
        let after = Duration::from_millis(self.rng.random_range(0..=millis));
        self.next += 1;
        self.events.insert((self.now + after, self.next), event);
    }

    /// On the way to the other end, or lost, which both ends find out.
    fn send(&mut self, event: Event, connection: usize) {
        if self.rng.random_bool(self.loss) {
            self.later(3_000, Event::Closed { connection });
        } else {
            self.later(30, event);
        }
    }

    fn execute(&mut self, end: usize) {
        while let Some(action) = self.pairs[end].poll_action() {
            match action {
                Action::Connect { attempt, claim, .. } => {
                    let connection = self.connections.len();
                    self.connections.push(Connection {
                        attempt,
                        claim,
                        request: None,
                        lives: self.lives,
                    });
                    self.send(Event::Request { connection }, connection);
                }
                Action::Abandon { attempt } => {
                    let of = |it: &Connection| it.attempt == attempt;
                    let connection = self.connections.iter().rposition(of).unwrap();
                    self.later(5, Event::Closed { connection });
                }
                Action::Accept { request, claim, .. } => {
                    let connection = self.of(request);
                    self.connections[connection].lives[1] = self.lives[1];
                    let claim = Some(claim);
                    self.send(Event::Reply { connection, claim }, connection);
                }
                Action::Refuse { request, .. } | Action::Drop { request } => {
                    let connection = self.of(request);
                    self.later(
                        5,
                        Event::Reply {
                            connection,
                            claim: None,
                        },
                    );
                }
                Action::Link { qpn, of } => {
                    assert_eq!(qpn, [LOW, HIGH][end]);
                    let connection = match end {
                        0 => self
                            .connections
                            .iter()
                            .rposition(|it| it.attempt == of)
                            .unwrap(),
                        _ => self.of(of),
                    };
                    assert_eq!(self.connections[connection].lives, self.lives);
                    assert_eq!(self.linked[end].replace(connection), None);
                    if end == 0 {
                        self.later(30, Event::First { connection });
                    }
                }
                Action::GiveUp { .. } => panic!("nobody is impatient"),
            }
        }
    }

    fn of(&self, request: StartupId) -> usize {
        let of = |it: &Connection| it.request == Some(request);
        self.connections.iter().rposition(of).unwrap()
    }

    /// A program starts over: its QP is new, and it tells the other program what it drew.
    fn tell(&mut self, end: usize) {
        let (qpn, peer) = ([LOW, HIGH][end], [HIGH, LOW][end]);
        let (now, [low, high]) = (self.now, self.lives);
        let (own, other) = if end == 0 { (low, high) } else { (high, low) };
        self.linked[end] = None;
        self.pairs[end].reset(qpn);
        self.pairs[end].pair(now, qpn, pairing(peer, other));
        let may_send = end != self.only_receives;
        match self.rng.random_range(0..3) {
            _ if !may_send => {}
            0 => self.pairs[end].start(now, qpn, start(own, None)),
            _ => self.later(400, Event::Started { end, life: own }),
        }
    }

    fn step(&mut self, at: Instant) {
        self.now = at;
        for end in 0..2 {
            self.pairs[end].handle_timeout(at, |_| Need::Waiting);
            self.execute(end);
        }
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= at
        {
            let event = entry.remove();
            match event {
                Event::Request { connection } => {
                    let request = self.pairs[1].next_id();
                    let it = &mut self.connections[connection];
                    it.request = Some(request);
                    let octets = it.claim.emit();
                    self.pairs[1].arrived(at, request, here(), &octets, |_| true);
                }
                Event::Reply { connection, claim } => {
                    let attempt = self.connections[connection].attempt;
                    let octets = claim.map(|claim| claim.emit());
                    let reply = octets.as_ref().map(|octets| &octets[..]);
                    self.pairs[0].over(at, attempt, reply);
                    self.execute(0);
                    if claim.is_some() && self.linked[0] != Some(connection) {
                        self.later(5, Event::Closed { connection });
                    }
                }
                Event::First { connection } => {
                    let request = self.connections[connection].request.unwrap();
                    self.pairs[1].over(at, request, Some(b""));
                }
                Event::Closed { connection } => {
                    let it = &self.connections[connection];
                    let (attempt, request) = (it.attempt, it.request);
                    self.pairs[0].over(at, attempt, None);
                    if let Some(request) = request {
                        self.pairs[1].over(at, request, None);
                    }
                }
                Event::Told { end } => self.tell(end),
                Event::Started { end, life } if life == self.lives[end] => {
                    self.pairs[end].start(at, [LOW, HIGH][end], start(life, None));
                }
                Event::Started { .. } => {}
            }
            for end in 0..2 {
                self.execute(end);
            }
        }
    }
}

proptest! {
    /// Whatever is lost and whoever starts over in whatever order, in the end the two are connected by one connection, of their last lives.
    #[test]
    fn they_find_each_other(seed: u64, loss in 0.0..0.6f64, restarts in 0..4u32, only_receives in 0..3usize) {
        let mut world = World {
            rng: ChaCha20Rng::seed_from_u64(seed),
            now: clock(),
            pairs: [Pairs::default(), Pairs::default()],
            lives: [100, 200],
            linked: [None; 2],
            events: BTreeMap::new(),
            next: 0,
            connections: Vec::new(),
            loss,
            only_receives,
        };
        world.pairs[0].insert(LOW);
        world.pairs[1].insert(HIGH);
        for life in 0..=restarts {
            world.lives = [100 + life, 200 + life];
            // The programs agree first; then each tells its QP, in either order.
            for end in 0..2 {
                world.linked[end] = None;
                world.pairs[end].reset([LOW, HIGH][end]);
                world.execute(end);
                world.later(400, Event::Told { end });
            }
            let until = world.now + Duration::from_secs(if life == restarts { 120 } else { 1 });
            loop {
                let timers = world.pairs.iter().filter_map(Pairs::poll_timeout);
                let events = world.events.keys().next().map(|(at, _)| *at);
                match timers.chain(events).min() {
                    Some(next) if next <= until => world.step(next.max(world.now)),
                    Some(_) | None => break,
                }
            }
            world.now = until;
        }
        prop_assert!(world.linked[0].is_some());
        prop_assert_eq!(world.linked[0], world.linked[1]);
    }
}
