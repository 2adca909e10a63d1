//! The time of short calls to a server that long ones keep busy, without an urgency and with one: `cargo run --release --example urgency -p dgiwarp-ripc`.
//!
//! The server has two threads. A client keeps 64 calls under way that hold a thread for 2 ms each; another one makes short calls one after the other. At first all
//! have the same urgency, then the long ones have 7 and the short ones 0, by turns.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_ripc::{
    CallOptions, Client, Code, Config, Endpoint, MethodId, Payload, Status, Urgency,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LONG: MethodId = MethodId::named("long");
const SHORT: MethodId = MethodId::named("short");
/// Long calls under way.
const UNDER_WAY: usize = 64;
/// Time for which a long call holds its thread.
const HELD: Duration = Duration::from_millis(2);
/// Short calls of a turn.
const CALLS: usize = 100;
const TURNS: usize = 3;

fn options(urgency: Urgency) -> CallOptions {
    CallOptions::timeout(Duration::from_secs(60)).and_urgency(urgency)
}

/// Times of short calls beside long ones, and the number of long ones meanwhile.
fn turn(
    short: &Client,
    long: &Client,
    urgencies: (Urgency, Urgency),
) -> Result<(Vec<Duration>, usize)> {
    let (of_short, of_long) = (options(urgencies.0), options(urgencies.1));
    let begin = || long.begin(LONG, Payload::new(), &of_long);
    let mut under_way = Vec::new();
    for _ in 0..UNDER_WAY {
        under_way.push(begin()?);
    }
    thread::scope(|scope| {
        let measured = scope.spawn(|| {
            let times = (0..CALLS).map(|_| {
                let begun = now();
                short.call(SHORT, Payload::new(), &of_short)?;
                Ok(begun.elapsed())
            });
            times.collect::<std::result::Result<Vec<_>, Status>>()
        });
        let mut done = 0;
        while !measured.is_finished() {
            under_way.remove(0).wait()?;
            done += 1;
            under_way.push(begin()?);
        }
        for call in under_way {
            call.wait()?;
        }
        let times = measured.join().map_err(|_| "the short calls failed")??;
        Ok((times, done))
    })
}

/// Holds the thread of a long call.
#[expect(clippy::disallowed_methods, reason = "work that takes long")]
fn hold() {
    thread::sleep(HELD);
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn now() -> Instant {
    Instant::now()
}

fn report(name: &str, times: &mut [Duration], long: usize) {
    times.sort_unstable();
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    let total: Duration = times.iter().sum();
    println!(
        "{name:<28} median {:8.2} ms, 99th percentile {:8.2} ms; {:5.0} long calls a second",
        at(50).as_secs_f64() * 1e3,
        at(99).as_secs_f64() * 1e3,
        long as f64 / total.as_secs_f64()
    );
}

fn main() -> Result<()> {
    let mut config = Config::listening("127.0.0.1:0".parse()?).without_group();
    config.threads = 2;
    let server = Endpoint::open(config)?;
    server.serve("work", |request| match request.method {
        LONG => {
            hold();
            Ok(Payload::new())
        }
        SHORT => Ok(Payload::new()),
        _ => Err(Status::new(Code::Unimplemented, "long, short")),
    })?;
    let address = server.local_addr().ok_or("it listens")?;
    let client = || -> Result<Client> {
        let endpoint = Endpoint::open(Config::default().without_group())?;
        Ok(endpoint.client("work".parse()?, vec![address]))
    };
    let (short, long) = (client()?, client()?);
    let ways = [
        ("all of urgency 3", (Urgency::DEFAULT, Urgency::DEFAULT)),
        ("short ones 0, long ones 7", (Urgency::MOST, Urgency::LEAST)),
    ];
    let mut sums = ways.map(|_| (Vec::new(), 0));
    for _ in 0..TURNS {
        for ((_, urgencies), (times, done)) in ways.iter().zip(&mut sums) {
            let (of_turn, long) = turn(&short, &long, *urgencies)?;
            times.extend(of_turn);
            *done += long;
        }
    }
    for ((name, _), (times, long)) in ways.iter().zip(&mut sums) {
        report(name, times, *long);
    }
    Ok(())
}
