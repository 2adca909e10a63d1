//! Two ends over a lossless queue pair in memory, with calls at random.

use super::config::{Config, Local};
use super::machine::{Shutdown, Stream};
use super::post::{Part, Place, Post, Sent};
use crate::wire::{ByteOrder, Sge};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Address of the list of targets in each end's memory.
const TARGETS: u64 = 0x1_0000;
/// Address of the receive buffer.
const BUFFER: u64 = 0x10_0000;

/// Work request on its way.
enum Work {
    /// Octets that were copied when it was posted, as inline data are.
    Inline(Place, Vec<u8>),
    /// Octets that are read from the send buffer when it leaves.
    Buffer(Place, [usize; 3]),
    Send([u8; 4]),
}

/// One end with its memory.
struct End {
    stream: Stream,
    config: Config,
    send_buffer: Vec<u8>,
    receive_buffer: Vec<u8>,
    targets: [u8; 2 * Sge::LEN],
    /// Work requests that have not arrived.
    wire: VecDeque<Work>,
    /// Completions that were not handed in.
    completions: VecDeque<Sent>,
    /// Octets of the program that were sent, and that were received, by number: the octet at `n` is `octet(n)`.
    sent: usize,
    received: usize,
    /// Sends of the peer that have not been taken from the completion queue: they occupy receives.
    waiting: VecDeque<[u8; 4]>,
}

fn octet(n: usize) -> u8 {
    u8::try_from(n % 251).unwrap()
}

const LOCAL: Local = Local {
    targets: TARGETS,
    targets_key: 1,
    buffer: BUFFER,
    buffer_key: 2,
};

impl End {
    fn pair(configs: [Config; 2]) -> [Self; 2] {
        let [first, second] = configs.map(|config| config.in_range());
        let make = |config: Config, peer: Config| Self {
            stream: Stream::new(&config, &LOCAL, &Stream::introduction(&peer, &LOCAL).emit())
                .unwrap(),
            config,
            send_buffer: vec![0; config.most_send_octets as usize],
            receive_buffer: vec![0; config.most_receive_octets as usize],
            targets: [0; 2 * Sge::LEN],
            wire: VecDeque::new(),
            completions: VecDeque::new(),
            sent: 0,
            received: 0,
            waiting: VecDeque::new(),
        };
        [make(first, second), make(second, first)]
    }

    /// Posts a Write of the program's next octets.
    fn post(&mut self, post: &Post) {
        let octets: Vec<u8> = (0..post.octets as usize)
            .map(|n| octet(self.sent + n))
            .collect();
        self.sent += octets.len();
        let work = match post.part {
            Part::Inline => {
                assert!(post.octets <= self.config.inline);
                Work::Inline(post.to, octets)
            }
            Part::Buffer { at, first, rest } => {
                let [at, first, rest] = [at as usize, first as usize, rest as usize];
                self.send_buffer[at..at + first].copy_from_slice(&octets[..first]);
                self.send_buffer[..rest].copy_from_slice(&octets[first..]);
                Work::Buffer(post.to, [at, first, rest])
            }
        };
        self.wire.push_back(work);
        self.wire.extend(post.message.map(Work::Send));
        self.completions.extend(post.id);
    }

    fn send(&mut self, octets: usize) {
        self.read_target();
        if let Some(post) = self.stream.send(octets) {
            self.post(&post);
        }
    }

    fn read_target(&mut self) {
        if let Some(slot) = self.stream.wants_target() {
            let at = slot as usize * Sge::LEN;
            let octets = self.targets[at..].first_chunk().unwrap();
            if self.stream.handle_target(octets) {
                self.targets[at..at + Sge::LEN].fill(0);
            }
        }
    }

    fn receive(&mut self, octets: usize) {
        let mut left = octets;
        while left > 0 {
            let (at, some) = self.stream.front(0);
            let some = some.min(left);
            if some == 0 {
                break;
            }
            for (n, found) in self.receive_buffer[at..at + some].iter().enumerate() {
                assert_eq!(*found, octet(self.received + n));
            }
            self.stream.take(some);
            self.received += some;
            left -= some;
        }
        self.credits();
    }

    fn credits(&mut self) {
        while let Some(credits) = self.stream.poll_credits() {
            if let Some((to, target)) = credits.target {
                self.wire.push_back(Work::Inline(to, target.to_vec()));
            }
            self.wire.push_back(Work::Send(credits.message));
            self.completions.push_back(Sent::Control);
        }
        if let Some(message) = self.stream.poll_control() {
            self.wire.push_back(Work::Send(message));
            self.completions.push_back(Sent::Control);
        }
    }

    /// Octets of the peer's are placed.
    fn place(&mut self, to: Place, octets: &[u8]) {
        let (memory, base) = match to.key {
            1 => (&mut self.targets[..], TARGETS),
            2 => (&mut self.receive_buffer[..], BUFFER),
            other => panic!("key {other}"),
        };
        let at = usize::try_from(to.addr - base).unwrap();
        memory[at..at + octets.len()].copy_from_slice(octets);
    }

    /// Work of the peer's arrives.
    fn arrive(&mut self, from: &Self, work: Work) {
        match work {
            Work::Inline(to, octets) => self.place(to, &octets),
            Work::Buffer(to, [at, first, rest]) => {
                let octets = [&from.send_buffer[at..at + first], &from.send_buffer[..rest]];
                self.place(to, &octets.concat());
            }
            Work::Send(message) => self.waiting.push_back(message),
        }
    }

    fn poll(&mut self) {
        while let Some(message) = self.waiting.pop_front() {
            self.stream.handle_message(&message).unwrap();
        }
        self.credits();
    }

    fn complete(&mut self, count: usize) {
        for _ in 0..count {
            // A work request completes once it has left.
            if self.completions.len() > self.wire.len()
                && let Some(sent) = self.completions.pop_front()
            {
                self.stream
                    .handle_sent(Sent::from_id(sent.to_id()).unwrap());
            }
        }
        self.credits();
    }
}

#[derive(Debug, Clone)]
enum Call {
    Send(usize),
    Receive(usize),
    Deliver(usize),
    Complete(usize),
    Poll,
}

fn call() -> impl Strategy<Value = (bool, Call)> {
    let call = prop_oneof![
        4 => (1..20_000_usize).prop_map(Call::Send),
        4 => (1..200_usize).prop_map(Call::Send),
        4 => (1..20_000_usize).prop_map(Call::Receive),
        6 => (1..40_usize).prop_map(Call::Deliver),
        4 => (1..40_usize).prop_map(Call::Complete),
        2 => Just(Call::Poll),
    ];
    (any::<bool>(), call)
}

fn config() -> impl Strategy<Value = Config> {
    let order = prop_oneof![Just(ByteOrder::Little), Just(ByteOrder::Big)];
    (
        2048..9000_u32,
        2..9000_u32,
        (0..20_000_u32, 0..40_000_u32),
        16..40_u16,
        16..40_u16,
        0..128_u32,
        order,
    )
        .prop_map(
            |(
                send_octets,
                receive_octets,
                (most_send_octets, most_receive_octets),
                send_entries,
                receive_entries,
                inline,
                order,
            )| Config {
                send_octets,
                most_send_octets,
                receive_octets,
                most_receive_octets,
                send_entries,
                receive_entries,
                io_maps: 0,
                inline,
                order,
            },
        )
}

fn both(ends: &mut [End; 2], second: bool) -> (&mut End, &mut End) {
    let [first, other] = ends;
    if second {
        (other, first)
    } else {
        (first, other)
    }
}

fn deliver(from: &mut End, to: &mut End, count: usize) {
    for _ in 0..count {
        match from.wire.pop_front() {
            // Receives that the program has not posted again hold messages back, as TCP does.
            Some(Work::Send(message)) if to.waiting.len() >= to.config.receive_entries.into() => {
                from.wire.push_front(Work::Send(message));
                return;
            }
            Some(work) => to.arrive(from, work),
            None => return,
        }
    }
}

fn step(ends: &mut [End; 2], second: bool, call: &Call) {
    let (end, peer) = both(ends, second);
    match *call {
        Call::Send(octets) => end.send(octets),
        Call::Receive(octets) => end.receive(octets),
        Call::Deliver(count) => deliver(end, peer, count),
        Call::Complete(count) => end.complete(count),
        Call::Poll => end.poll(),
    }
    assert!(end.received <= peer.sent);
}

/// Everything that is on its way arrives and is received.
fn settle(ends: &mut [End; 2]) {
    for _ in 0..200 {
        for second in [false, true] {
            let (end, peer) = both(ends, second);
            deliver(end, peer, 1000);
            peer.poll();
            peer.receive(usize::MAX);
            end.complete(1000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn octets_arrive_once_and_in_order_whatever_the_calls(
        first in config(),
        second in config(),
        calls in prop::collection::vec(call(), 0..200),
    ) {
        let mut ends = End::pair([first, second]);
        for (second, call) in &calls {
            step(&mut ends, *second, call);
        }
        settle(&mut ends);
        prop_assert_eq!(ends[0].sent, ends[1].received);
        prop_assert_eq!(ends[1].sent, ends[0].received);
        // Neither end is stuck.
        for second in [false, true] {
            let (end, _) = both(&mut ends, second);
            prop_assert!(end.stream.is_quiet());
            let before = end.sent;
            end.send(1);
            prop_assert_eq!(end.sent, before + 1);
        }
        settle(&mut ends);
        let [first, second] = &mut ends;
        first.stream.shut_down(Shutdown::Write);
        second.stream.shut_down(Shutdown::Both);
        first.credits();
        second.credits();
        settle(&mut ends);
        prop_assert!(!ends[0].stream.is_connected());
        prop_assert!(ends[1].stream.is_quiet());
    }

    #[test]
    fn no_message_breaks_an_end(
        config in config(),
        words in prop::collection::vec(any::<u32>(), 0..100),
        peer: [u8; 40],
        octets in 0..30_000_usize,
    ) {
        let mut peer = peer;
        peer[0] = 1;
        let Ok(mut stream) = Stream::new(&config, &LOCAL, &peer) else {
            return Ok(());
        };
        for word in words {
            let _ = stream.handle_word(word >> (word % 32));
            let _ = stream.send(octets);
            let _ = stream.poll_credits();
            let _ = stream.poll_control();
            if let Some(target) = peer.first_chunk() {
                stream.handle_target(target);
            }
            let (at, some) = stream.front(0);
            prop_assert!(at + some <= config.in_range().most_receive_octets as usize);
            stream.take(octets);
        }
    }
}
