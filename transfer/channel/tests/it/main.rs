//! Channels between threads and processes, and with peers that break the protocol.

#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod strangers;

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dgiwarp::{SameHostMode, WcStatus};
use dgiwarp_channel::{Channel, Config, Error, Listener};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time that each call has.
const SOON: Duration = Duration::from_secs(60);
/// A time in which nothing comes.
const SHORT: Duration = Duration::from_millis(50);
/// Names the port of a process that a test started.
const ROLE: &str = "CHANNEL_TEST_PORT";

fn config(slots: u16, slot_size: u32) -> Config {
    let mut config = Config::default();
    config.slots = slots;
    config.slot_size = slot_size;
    config
}

/// Two ends, of which the second one listened.
fn pair(configs: [Config; 2]) -> [Channel; 2] {
    let [first, second] = configs;
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), second).unwrap();
    let to = listener.local_addr();
    let first = thread::spawn(move || Channel::connect(to, first).unwrap());
    let second = listener.accept(SOON).unwrap();
    [first.join().unwrap(), second]
}

/// Octets of a block of each length up to the slot's.
fn octets(number: usize, room: usize) -> Vec<u8> {
    let length = match number % 5 {
        0 => room,
        1 => 0,
        _ => (number * 7919) % room,
    };
    (0..length)
        .map(|at| (at * 7 + number * 13).to_le_bytes()[0])
        .collect()
}

fn produce(channel: &Channel, blocks: usize) {
    for number in 0..blocks {
        let mut slot = channel.acquire(SOON).unwrap();
        let octets = octets(number, slot.room());
        slot.write(0, &octets);
        channel.publish(slot, octets.len()).unwrap();
    }
}

fn consume(channel: &Channel, blocks: usize, room: usize) {
    for number in 0..blocks {
        let block = channel.next(SOON).unwrap().unwrap();
        assert!(block.to_vec() == octets(number, room), "block {number}");
    }
}

/// Both ends have rings of their own sizes, and write and read at a time.
#[test]
fn blocks_come_whole_and_in_order_both_ways() {
    for same_host in [SameHostMode::Ring, SameHostMode::Off] {
        for (slots, sizes) in [
            ([1, 1], [100, 5000]),
            ([3, 16], [70_000, 9]),
            ([64, 2], [1, 300_000]),
        ] {
            let configs = [0, 1].map(|end| {
                let mut config = config(slots[end], sizes[end]);
                config.device.same_host = same_host;
                config
            });
            let ends = pair(configs);
            thread::scope(|scope| {
                for (end, channel) in ends.iter().enumerate() {
                    scope.spawn(move || produce(channel, 300));
                    scope.spawn(move || consume(channel, 300, sizes[end] as usize));
                }
            });
            let [first, second] = ends;
            first.close(SOON).unwrap();
            assert!(second.next(SOON).unwrap().is_none());
            assert!(matches!(second.acquire(SOON), Err(Error::Closed)));
            second.close(SOON).unwrap();
        }
    }
}

#[test]
fn a_closed_channel_yields_its_rest_and_a_dropped_one_is_lost() {
    for closes in [true, false] {
        let [producer, consumer] = pair([config(1, 1), config(8, 100)]);
        produce(&producer, 5);
        if closes {
            producer.close(SOON).unwrap();
        } else {
            // They are there before the connection ends.
            consume(&consumer, 5, 100);
            drop(producer);
        }
        if closes {
            consume(&consumer, 5, 100);
            assert!(consumer.next(SOON).unwrap().is_none());
        } else {
            assert!(matches!(consumer.next(SOON), Err(Error::Lost(_))));
            assert!(matches!(consumer.acquire(SOON), Err(Error::Lost(_))));
            assert!(matches!(consumer.close(SOON), Err(Error::Lost(_))));
        }
    }
}

/// Readers that release while their writer closes.
#[test]
fn a_close_is_never_taken_for_a_loss() {
    for round in 0..100 {
        let [producer, consumer] = pair([config(1, 1), config(2 + round % 3, 10)]);
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..20 {
                    let slot = producer.acquire(SOON).unwrap();
                    producer.publish(slot, 1).unwrap();
                }
                producer.close(SOON).unwrap();
            });
            let mut blocks = 0;
            while let Some(block) = consumer.next(SOON).unwrap() {
                assert_eq!(block.len(), 1);
                blocks += 1;
            }
            assert_eq!(blocks, 20);
            consumer.close(SOON).unwrap();
        });
    }
}

/// A writer waits for a reader that keeps its blocks, and a slot that is released, or not used after all, lets it go on.
#[test]
fn slots_are_waited_for() {
    let [producer, consumer] = pair([config(1, 1), config(4, 100)]);
    produce(&producer, 4);
    assert!(matches!(producer.acquire(SHORT), Err(Error::TimedOut)));
    let blocks: Vec<_> = (0..4)
        .map(|_| consumer.next(SOON).unwrap().unwrap())
        .collect();
    assert!(matches!(consumer.next(SHORT), Err(Error::TimedOut)));
    assert!(matches!(producer.acquire(SHORT), Err(Error::TimedOut)));
    for (number, block) in blocks.iter().enumerate() {
        assert!(block.to_vec() == octets(number, 100));
    }
    thread::scope(|scope| {
        let slot = scope.spawn(|| producer.acquire(SOON).unwrap());
        drop(blocks);
        let slot = slot.join().unwrap();
        let rest: Vec<_> = (0..3).map(|_| producer.acquire(SOON).unwrap()).collect();
        assert!(matches!(producer.acquire(SHORT), Err(Error::TimedOut)));
        // The thread sleeps already, or will find the slot.
        let waits = scope.spawn(|| producer.acquire(SOON).unwrap().room());
        thread::park_timeout(SHORT);
        drop(slot);
        assert_eq!(waits.join().unwrap(), 100);
        drop(rest);
    });
    let slot = producer.acquire(SOON).unwrap();
    let too_long = producer.publish(slot, 101);
    assert!(matches!(
        too_long,
        Err(Error::TooLong {
            octets: 101,
            slot: 100
        })
    ));
    let [other, _far] = pair([config(1, 1), config(1, 1)]);
    let slot = other.acquire(SOON).unwrap();
    assert!(matches!(
        producer.publish(slot, 0),
        Err(Error::OtherChannel)
    ));
    // Neither slot is lost.
    other.acquire(SOON).unwrap();
    produce(&producer, 4);
    consume(&consumer, 4, 100);
}

/// The part of a process of its own: it publishes blocks until it is killed.
#[test]
fn role() {
    let Ok(to) = std::env::var(ROLE) else {
        return;
    };
    let to: SocketAddr = to.parse().unwrap();
    let channel = Channel::connect(to, config(1, 1)).unwrap();
    for number in 0_u64.. {
        let mut slot = channel.acquire(SOON).unwrap();
        slot.write(0, &number.to_be_bytes());
        channel.publish(slot, 8).unwrap();
        if number == 100 {
            println!("\n{ROLE}");
        }
    }
}

fn start(to: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, to.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_peer_is_an_error_behind_the_blocks_that_came() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), config(16, 8)).unwrap();
    let mut child = start(listener.local_addr());
    let channel = listener.accept(SOON).unwrap();
    let output = child.stdout.take().unwrap();
    let runs = thread::spawn(move || {
        let mut lines = std::io::BufReader::new(output).lines();
        lines.any(|line| line.unwrap() == ROLE)
    });
    let mut came = 0_u64;
    let mut next = || match channel.next(SOON) {
        Ok(block) => {
            assert_eq!(block.unwrap().to_vec(), came.to_be_bytes());
            came += 1;
            Ok(())
        }
        Err(error) => Err(error),
    };
    while !runs.is_finished() {
        next().unwrap();
    }
    assert!(runs.join().unwrap());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let error = loop {
        if let Err(error) = next() {
            break error;
        }
    };
    assert!(matches!(error, Error::Lost(status) if status != WcStatus::Success));
    assert!(matches!(channel.next(SOON), Err(Error::Lost(_))));
}

#[test]
fn what_cannot_be_is_said() {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    for bad in [config(0, 1), config(1025, 1), config(1, 0)] {
        assert!(matches!(
            Listener::bind(any, bad.clone()),
            Err(Error::Config(_))
        ));
        assert!(matches!(Channel::connect(any, bad), Err(Error::Config(_))));
    }
    let listener = Listener::bind(any, config(1, 1)).unwrap();
    let taken = Listener::bind(listener.local_addr(), config(1, 1));
    assert!(matches!(taken, Err(Error::Device(_))), "{taken:?}");
    assert!(matches!(listener.accept(SHORT), Err(Error::TimedOut)));
    let to = listener.local_addr();
    drop(listener);
    let refused = Channel::connect(to, config(1, 1));
    assert!(matches!(refused, Err(Error::Connect(_))), "{refused:?}");
    // Each end has its own limit of the other one's ring.
    for large in [0, 1] {
        let mut configs = [config(2, 1000), config(2, 1000)];
        configs[large].slots = 3;
        configs[1 - large].largest_ring = 2999;
        let [first, second] = configs;
        let listener = Listener::bind(any, second).unwrap();
        let to = listener.local_addr();
        let first = thread::spawn(move || Channel::connect(to, first));
        let accepted = listener.accept(SOON);
        let connected = first.join().unwrap();
        let [refuses, other] = if large == 1 {
            [connected, accepted]
        } else {
            [accepted, connected]
        };
        let error = refuses.unwrap_err();
        assert!(
            matches!(
                error,
                Error::LargeRing {
                    octets: 3000,
                    most: 2999
                }
            ),
            "{error}"
        );
        match other {
            Err(Error::Connect(_)) => assert_eq!(large, 0),
            Ok(channel) => assert!(matches!(channel.next(SOON), Err(Error::Lost(_)))),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn addresses_of_a_host_are_tried_in_order() {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let closed = Listener::bind(any, config(1, 1)).unwrap().local_addr();
    let listeners = [(); 2].map(|()| Listener::bind(any, config(1, 1)).unwrap());
    let [first, second] = listeners.each_ref().map(Listener::local_addr);
    let connects = thread::spawn(move || {
        Channel::connect_to_first([closed, first, second], &config(1, 1)).unwrap()
    });
    let accepted = listeners[0].accept(SOON).unwrap();
    let connected = connects.join().unwrap();
    assert!(matches!(listeners[1].accept(SHORT), Err(Error::TimedOut)));
    drop(accepted);
    assert!(matches!(connected.next(SOON), Err(Error::Lost(_))));
    let to = |addresses: &[SocketAddr]| {
        Channel::connect_to_first(addresses.iter().copied(), &config(1, 1)).unwrap_err()
    };
    assert!(matches!(to(&[closed, closed]), Error::Connect(_)));
    assert!(matches!(to(&[]), Error::Config(_)));
}
