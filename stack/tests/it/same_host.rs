//! Connections within this host through shared memory: the stream moves amid load and back, in order and whole, and ends with its peer.

mod containers;
mod datagrams;
mod full;
mod limits;
mod mapped;
mod one_sided;
mod pauses;
mod short;

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use crate::common::{self, Process, now, role};
use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, RcListener, RcOperation, RcOptions, RcQp, RcQpAttr,
    RcSendWr, ReadDepths, RecvWr, Rnic, SameHostMode, Wc, WcStatus,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(60);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
const SEND: RcOperation = RcOperation::Send { invalidate: None };
/// Octets of the longest message, and receives that are posted.
const LONGEST: usize = 150_000;
const RECEIVES: usize = 8;

/// How a thread waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Polling,
    Sleeping,
}

fn config(same_host: SameHostMode) -> Config {
    let mut config = Config::default();
    config.same_host = same_host;
    config
}

/// Connections move with their first messages.
fn at_once(same_host: SameHostMode) -> Config {
    let mut config = config(same_host);
    config.same_host_after = 0;
    config
}

struct End {
    qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    rnic: Rnic,
}

impl End {
    fn new(same_host: SameHostMode) -> Self {
        Self::with(config(same_host))
    }

    fn with(config: Config) -> Self {
        Self::with_options(config, RcOptions::default())
    }

    fn with_options(config: Config, options: RcOptions) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let memory = Buffer::zeroed((RECEIVES + 1) * LONGEST).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(memory.region(), access).unwrap();
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let end = Self {
            qp,
            cq,
            memory,
            mr,
            rnic,
        };
        for slot in 0..RECEIVES {
            end.post_recv(slot);
        }
        end
    }

    fn post_recv(&self, slot: usize) {
        let sges = [self.mr.sge(slot * LONGEST..(slot + 1) * LONGEST)];
        let wr_id = slot as u64;
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    /// Sends the message with this number.
    fn send(&self, number: usize) {
        let octets = message(number);
        let at = RECEIVES * LONGEST;
        self.memory.write(at, &octets);
        let sges = [self.mr.sge(at..at + octets.len())];
        let wr = RcSendWr::new(1000, SEND, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    fn next(&self, waits: Waits) -> Wc {
        let (until, mut polls) = (now() + SOON, 0_u64);
        loop {
            let wc = match waits {
                Waits::Sleeping => self.cq.wait(SOON).unwrap(),
                Waits::Polling => self.cq.poll_one().unwrap(),
            };
            if let Some(wc) = wc {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                return wc;
            }
            assert!(now() < until, "no completion in time");
            polls += 1;
            if waits == Waits::Polling && polls % 64 == 0 {
                thread::yield_now();
            }
        }
    }

    /// Sends messages one after the other and receives as many of the peer.
    fn exchange(&self, messages: usize, waits: Waits) {
        self.exchange_until(messages, waits, || true);
    }

    /// As [`exchange`](Self::exchange), and goes on until `is_ready`. Returns how many messages there were.
    fn exchange_until(
        &self,
        messages: usize,
        waits: Waits,
        mut is_ready: impl FnMut() -> bool,
    ) -> usize {
        let mut messages = messages;
        let (mut sent, mut done, mut received) = (0, 0, 0);
        loop {
            if received >= messages && done >= messages {
                if is_ready() {
                    return messages;
                }
                messages += 1;
            }
            if sent < messages && sent == done {
                self.send(sent);
                sent += 1;
            }
            let wc = self.next(waits);
            if wc.wr_id == 1000 {
                done += 1;
                continue;
            }
            let slot = usize::try_from(wc.wr_id).unwrap();
            let expected = message(received);
            assert_eq!(wc.byte_len as usize, expected.len(), "message {received}");
            let octets = self.memory.to_vec(slot * LONGEST, expected.len());
            assert!(octets == expected, "message {received} came wrong");
            self.post_recv(slot);
            received += 1;
        }
    }

    fn lane_octets(&self) -> (u64, u64) {
        let counters = self.rnic.counters();
        (counters.lane_octets_sent, counters.lane_octets_received)
    }
}

/// Messages of all lengths, of which no two are alike.
fn message(number: usize) -> Vec<u8> {
    let len = match number % 7 {
        0 => 1,
        1 => 64,
        2 => 1500,
        3 => 40_000,
        4 => LONGEST,
        5 => 9000,
        _ => number % 5000 + 1,
    };
    (0..len)
        .map(|at| u8::try_from((at * 7 + number * 13) % 251).unwrap())
        .collect()
}

fn connect(client: &End, server: &End) {
    let mpa = MpaConfig::default();
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa.clone()).unwrap();
    let to = listener.local_addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(&server.qp, DEPTHS, b"").unwrap();
        });
        client.qp.connect(to, &mpa, b"").unwrap();
    });
}

fn both(client: &End, server: &End, messages: usize, waits: [Waits; 2]) {
    thread::scope(|scope| {
        scope.spawn(|| server.exchange(messages, waits[1]));
        client.exchange(messages, waits[0]);
    });
}

/// The stream moves to memory in the middle of it all, whichever end sleeps.
#[test]
fn messages_keep_their_order_while_the_stream_moves() {
    for waits in [
        [Waits::Polling, Waits::Polling],
        [Waits::Sleeping, Waits::Sleeping],
        [Waits::Polling, Waits::Sleeping],
        [Waits::Sleeping, Waits::Polling],
    ] {
        for config in [config, at_once] {
            let [client, server] = [(); 2].map(|()| End::with(config(SameHostMode::Ring)));
            connect(&client, &server);
            both(&client, &server, 200, waits);
            // All but the beginning.
            let (sent, received) = client.lane_octets();
            assert!(
                sent > 1_000_000 && received > 1_000_000,
                "{waits:?}: {sent} {received}"
            );
            // A notice may be under way that nobody waits for.
            common::wait_until(SOON, "octets that left arrive", || {
                let (sent, received) = client.lane_octets();
                server.lane_octets() == (received, sent)
            });
        }
    }
}

/// Payload goes from the lane to its place, once both ends have learnt that the other one polls. Threads that share their processors with many others seem to
/// sleep: then other ends try, until the machine has less to do.
#[test]
fn long_messages_are_placed_from_memory() {
    common::wait_until(5 * SOON, "octets are placed from memory", || {
        let [client, server] = [(); 2].map(|()| End::with(at_once(SameHostMode::Ring)));
        connect(&client, &server);
        both(&client, &server, 100, [Waits::Polling; 2]);
        let counters = [client, server].map(|end| end.rnic.counters());
        let are_placed = counters.iter().all(|it| it.lane_octets_placed > 100_000);
        for counters in counters {
            assert!(counters.lane_octets_placed < counters.lane_octets_received);
        }
        are_placed
    });
}

/// Programs that set nothing share memory, also with one that asks for it.
#[test]
fn connections_move_by_default() {
    let by_default = Config::default().same_host;
    for modes in [
        [by_default, by_default],
        [by_default, SameHostMode::Ring],
        [SameHostMode::Ring, by_default],
    ] {
        let [client, server] = modes.map(End::new);
        connect(&client, &server);
        both(&client, &server, 60, [Waits::Polling, Waits::Sleeping]);
        let (sent, received) = client.lane_octets();
        assert!(sent > 0 && received > 0, "{modes:?}: {sent} {received}");
    }
}

/// A connection moves once TCP has carried as much as its Initiator's setting, and not before.
#[test]
fn a_connection_with_little_traffic_takes_no_memory() {
    let mut late = config(SameHostMode::Ring);
    late.same_host_after = 1 << 30;
    for (client, server, moves) in [
        (at_once(SameHostMode::Ring), late.clone(), true),
        (late, at_once(SameHostMode::Ring), false),
    ] {
        let [client, server] = [client, server].map(End::with);
        connect(&client, &server);
        both(&client, &server, 60, [Waits::Polling; 2]);
        assert_eq!(client.lane_octets() > (0, 0), moves);
        assert_eq!(server.lane_octets() > (0, 0), moves);
    }
}

/// Faults, captures and rates are about a network: with any of them at one end, whichever it is, the connection stays on TCP.
#[test]
fn devices_that_are_about_a_network_keep_their_connections_on_it() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("same-host-{}", std::process::id()));
    let changes: [&dyn Fn(&mut Config); 3] = [
        &|config| config.fault = Some("drop=0.5".parse().unwrap()),
        &|config| config.pcap = Some(directory.clone()),
        &|config| config.max_rate = 1 << 40,
    ];
    for (number, change) in changes.iter().enumerate() {
        for end in 0..2 {
            let mut configs = [(); 2].map(|()| at_once(SameHostMode::Ring));
            change(&mut configs[end]);
            let [client, server] = configs.map(End::with);
            connect(&client, &server);
            both(&client, &server, 30, [Waits::Polling, Waits::Sleeping]);
            let carried = (client.lane_octets(), server.lane_octets());
            assert_eq!(carried, ((0, 0), (0, 0)), "change {number} of end {end}");
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
}

/// Sockets of this process at which an Initiator meets its peer.
fn meetings() -> usize {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let meeting = |line: &&str| line.contains("@dgiwarp/1/");
    let is_own = |line: &&str| {
        let inode = line.split_ascii_whitespace().nth(6).unwrap();
        names.contains(&format!("socket:[{inode}]"))
    };
    sockets.lines().filter(meeting).filter(is_own).count()
}

/// Queue pairs that go before their peers have made an offer: no meeting outlasts its Initiator.
#[test]
fn a_meeting_ends_with_its_queue_pair() {
    let test = here!("a_meeting_ends_with_its_queue_pair");
    if role().is_none() {
        return Process::start(test, "alone", &[]).finish(2 * SOON);
    }
    let mut seen = 0;
    for round in 0..60 {
        let [client, server] = [(); 2].map(|()| End::with(at_once(SameHostMode::Ring)));
        connect(&client, &server);
        if round % 3 > 0 {
            client.send(1);
        }
        let End { qp, .. } = server;
        drop(qp);
        for _ in 0..20 * (round % 3) {
            let _ = client.cq.poll_one().unwrap();
        }
        seen += meetings();
        let End { qp, rnic, .. } = client;
        drop(qp);
        assert_eq!(meetings(), 0, "round {round}");
        drop(rnic);
    }
    eprintln!("{seen} meetings were seen");
}

/// An end that has not the extension, or is set not to, stays on TCP with one that has.
#[test]
fn one_end_alone_does_not_move() {
    for modes in [
        [SameHostMode::Ring, SameHostMode::Off],
        [SameHostMode::Off, SameHostMode::Ring],
        [SameHostMode::Auto, SameHostMode::Off],
        [SameHostMode::Off, SameHostMode::Auto],
    ] {
        let [client, server] = modes.map(End::new);
        connect(&client, &server);
        both(&client, &server, 30, [Waits::Polling, Waits::Sleeping]);
        assert_eq!(
            (client.lane_octets(), server.lane_octets()),
            ((0, 0), (0, 0))
        );
    }
}

/// A queue pair is destroyed with more posted than the lane holds: everything arrives, the rest of it by TCP.
#[test]
fn the_rest_of_a_destroyed_queue_pair_arrives() {
    let [client, server] = [(); 2].map(|()| End::new(SameHostMode::Ring));
    connect(&client, &server);
    both(&client, &server, 60, [Waits::Polling, Waits::Polling]);
    assert!(client.lane_octets().0 > 0);
    // Nobody receives at the server meanwhile: it has receives, but does not poll.
    const LAST: usize = 6;
    for number in 0..LAST {
        let at = RECEIVES * LONGEST;
        client.memory.write(at, &message(4));
        let sges = [client.mr.sge(at..at + LONGEST)];
        let wr = RcSendWr::new(number as u64, SEND, &sges);
        client.qp.post_send(&[wr]).unwrap();
    }
    let End { qp, rnic, .. } = client;
    drop(qp);
    for _ in 0..LAST {
        let wc = server.next(Waits::Sleeping);
        assert_eq!(wc.byte_len as usize, LONGEST);
        let slot = usize::try_from(wc.wr_id).unwrap();
        assert!(server.memory.to_vec(slot * LONGEST, LONGEST) == message(4));
    }
    drop(rnic);
}

/// The peer process: exchanges messages for ever.
fn peer() {
    let end = End::new(SameHostMode::Ring);
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), MpaConfig::default()).unwrap();
    println!("at {}", listener.local_addr());
    let request = listener.accept(SOON).unwrap().expect("a request");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    end.exchange(usize::MAX, Waits::Polling);
}

/// The peer is killed at any moment of an exchange: what is posted ends soon, with the octets of messages that came whole.
#[test]
fn a_killed_peer_ends_the_connection() {
    if role().is_some() {
        return peer();
    }
    for (round, waits) in [Waits::Polling, Waits::Sleeping]
        .into_iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        let test = here!("a_killed_peer_ends_the_connection");
        let mut process = Process::start(test, "peer", &[]);
        let to: SocketAddr = process.tells("at ", SOON).parse().unwrap();
        let end = End::new(SameHostMode::Ring);
        end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
        // On a busy machine the ends meet later.
        let messages = end.exchange_until(40, waits, || end.lane_octets().0 > 0);
        // Amid the next messages.
        end.send(messages);
        common::sleep(Duration::from_micros(300 * round as u64));
        process.kill();
        let killed = now();
        let mut last = None;
        while last.is_none_or(|wc: Wc| wc.status == WcStatus::Success) {
            let wc = match waits {
                Waits::Sleeping => end.cq.wait(SOON).unwrap(),
                Waits::Polling => end.cq.poll_one().unwrap(),
            };
            assert!(now() < killed + SOON, "the end is not reported");
            if let Some(wc) = wc.filter(|wc| wc.wr_id < 1000 && wc.status == WcStatus::Success) {
                // Behind the end it is flushed at once.
                end.post_recv(usize::try_from(wc.wr_id).unwrap());
            }
            last = wc.or(last);
        }
        assert!(end.qp.end().is_some());
    }
}

/// Connections of the peer process that is killed, and messages of each before anything happens to it.
const CONNECTIONS: usize = 10;
const BEFORE: usize = 8;
/// Variable with the address at which the survivor listens.
const AT: &str = "DGIWARP_TEST_AT";

/// One end of an exchange that never ends, driven a step at a time.
struct Exchange {
    end: End,
    sent: usize,
    received: usize,
    over: bool,
}

impl Exchange {
    fn new(end: End) -> Self {
        end.send(0);
        Self {
            end,
            sent: 1,
            received: 0,
            over: false,
        }
    }

    /// Takes one completion, if there is one. A message that is received is whole and the next one.
    fn step(&mut self) {
        let Some(wc) = self.end.cq.poll_one().unwrap() else {
            self.over |= self.end.qp.end().is_some();
            return;
        };
        if wc.status != WcStatus::Success {
            self.over = true;
            return;
        }
        if wc.wr_id == 1000 {
            self.end.send(self.sent);
            self.sent += 1;
            return;
        }
        let slot = usize::try_from(wc.wr_id).unwrap();
        let expected = message(self.received);
        assert_eq!(wc.byte_len as usize, expected.len());
        let octets = self.end.memory.to_vec(slot * LONGEST, expected.len());
        assert!(octets == expected, "message {} came wrong", self.received);
        self.received += 1;
        self.end.post_recv(slot);
    }
}

/// Drives all exchanges until `done`.
#[track_caller]
fn drive(all: &mut [Exchange], mut done: impl FnMut(&[Exchange]) -> bool) {
    let until = now() + SOON;
    while !done(all) {
        assert!(now() < until, "the exchanges do not go on");
        for exchange in &mut *all {
            exchange.step();
        }
    }
}

fn ends(address: Option<SocketAddr>, listener: Option<&RcListener>) -> Vec<Exchange> {
    let connected = (0..CONNECTIONS).map(|_| {
        let end = End::new(SameHostMode::Ring);
        if let Some(to) = address {
            end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
        } else if let Some(listener) = listener {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(&end.qp, DEPTHS, b"").unwrap();
        }
        Exchange::new(end)
    });
    connected.collect()
}

fn listen() -> RcListener {
    RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), MpaConfig::default()).unwrap()
}

/// The peer process that is killed: connects, or is connected to, and exchanges messages on all its connections.
fn victim() {
    let to = std::env::var(AT).ok().map(|it| it.parse().unwrap());
    let mut all = match to {
        Some(to) => ends(Some(to), None),
        None => {
            let listener = listen();
            println!("at {}", listener.local_addr());
            ends(None, Some(&listener))
        }
    };
    loop {
        for exchange in &mut all {
            exchange.step();
        }
    }
}

/// Arenas that this process maps.
fn arenas() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:dgiwarp-lanes").count()
}

fn send(process: &Process, signal: Signal) {
    let id = i32::try_from(process.id()).unwrap();
    kill(Pid::from_raw(id), signal).unwrap();
}

/// Kills peer processes amid their exchanges, of which each has [`CONNECTIONS`] connections: each end is reported, no octet is wrong, nothing is left.
fn kill_peers(test: &str, rounds: u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let listener = listen();
        let initiates = round % 2 == 0;
        let variables = [(AT, listener.local_addr().to_string())];
        let variables = if initiates { &[][..] } else { &variables[..] };
        let mut process = Process::start(test, "victim", variables);
        let mut all = if initiates {
            let to = process.tells("at ", SOON).parse().unwrap();
            ends(Some(to), None)
        } else {
            ends(None, Some(&listener))
        };
        drive(&mut all, |all| all.iter().all(|it| it.received >= BEFORE));
        let in_lane = |it: &Exchange| it.end.lane_octets() > (0, 0);
        drive(&mut all, |all| all.iter().all(in_lane));
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let pause = Duration::from_micros((random >> 33) % 3000);
        let until = now() + pause;
        drive(&mut all, |_| now() >= until);
        if round % 4 == 1 {
            // A process that is stopped is not gone: nothing ends, and no call waits for it.
            send(&process, Signal::SIGSTOP);
            let until = now() + Duration::from_millis(30);
            drive(&mut all, |_| now() >= until);
            assert!(all.iter().all(|it| !it.over));
            if round % 8 == 1 {
                send(&process, Signal::SIGCONT);
                let before: Vec<usize> = all.iter().map(|it| it.received).collect();
                let moved = |(it, before): (&Exchange, &usize)| it.received > *before;
                drive(&mut all, |all| all.iter().zip(&before).all(moved));
            }
        }
        process.kill();
        let killed = now();
        drive(&mut all, |all| all.iter().all(|it| it.over));
        longest = longest.max(now() - killed);
        assert!(arenas() > 0);
        drop(all);
        let until = now() + SOON;
        while arenas() > 0 {
            assert!(now() < until, "shared memory is left");
            common::sleep(Duration::from_millis(1));
        }
    }
    // One second where the machine has nothing else to do.
    assert!(longest < SOON, "{longest:?}");
    eprintln!("an end is reported within {longest:?}");
}

/// The survivor is a process of its own, whose memory is that of these connections alone.
fn kill_from_another_process(test: &str, rounds: u64) {
    match role().as_deref() {
        Some("victim") => victim(),
        Some(_) => kill_peers(test, rounds),
        None => Process::start(test, "survivor", &[]).finish(10 * SOON),
    }
}

#[test]
fn killed_and_stopped_peers_leave_nothing_behind() {
    kill_from_another_process(here!("killed_and_stopped_peers_leave_nothing_behind"), 20);
}

#[test]
#[ignore = "1 minute"]
fn soak_killed_peers() {
    kill_from_another_process(here!("soak_killed_peers"), 100);
}
