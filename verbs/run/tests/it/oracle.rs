//! Random scripts of socket calls, on plain sockets and on upgraded connections: results and readiness are the kernel's.
//!
//! A failure names its seed and the shortest script that still fails. `DGIWARP_ORACLE_SEED=N cargo test -p dgiwarp-run --test it oracle` runs that seed alone,
//! `DGIWARP_ORACLE_SCRIPT='begin 1 0; c send 0 5 0'` a script.

mod model;
mod script;
mod worker;

use crate::common::{compile, scratch};
use model::{Call, Model};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use script::{Script, scripts};
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;
use worker::Pair;
use xtask::clock;

/// Time after which a difference of readiness lasts.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest time that plain sockets delay small segments.
const DELAY: Duration = Duration::from_millis(100);
/// Shorter patience while a script is made shorter.
const SHORT_PATIENCE: Duration = Duration::from_millis(300);
/// Time from the begin of a call that waits to the call it waits for.
const HEAD_START: Duration = Duration::from_micros(500);

/// Calls whose results change nothing: they are repeated until the two ways agree.
const OBSERVES: [&str; 5] = ["poll", "select", "state", "sockname", "peername"];

/// The two pairs of workers.
struct Oracle {
    program: PathBuf,
    plain: Pair,
    upgraded: Pair,
    patience: Duration,
    model: Model,
    log: String,
}

impl Oracle {
    fn start(test: &str) -> Option<Self> {
        let source = include_str!("../c/script.c");
        let program = compile(
            test,
            &scratch(test),
            source,
            &["-Wall", "-Wextra", "-Werror"],
        )?;
        Some(Self {
            plain: Pair::start(&program, false),
            upgraded: Pair::start(&program, true),
            program,
            patience: PATIENCE,
            model: Model::new([false; 2]),
            log: String::new(),
        })
    }

    /// Makes a call that changes nothing until both results agree, or for some time.
    fn observe(&mut self, end: usize, call: &str) -> [String; 2] {
        let start = clock::now();
        let mut plain = self.plain.call(end, call);
        loop {
            let upgraded = self.upgraded.call(end, call);
            if upgraded == plain || start.elapsed() > self.patience {
                return [plain, upgraded];
            }
            clock::pause(Duration::from_micros(200));
            plain = self.plain.call(end, call);
        }
    }

    fn compare(&mut self, what: &str, [plain, upgraded]: [String; 2]) -> Result<(), String> {
        let _ = writeln!(self.log, "{what}: {plain}");
        if plain == upgraded {
            return Ok(());
        }
        Err(format!(
            "{}... of TCP, but {upgraded}",
            std::mem::take(&mut self.log)
        ))
    }

    /// Waits until the effects of all calls have come to both ends.
    fn settle(&mut self) -> Result<(), String> {
        let start = clock::now();
        loop {
            for pair in [&mut self.plain, &mut self.upgraded] {
                for end in [0, 1] {
                    pair.end(end).begin("state 0");
                }
            }
            let of = |pair: &mut Pair| [0, 1].map(|end| pair.end(end).end());
            let states = [&mut self.plain, &mut self.upgraded].map(of);
            let have_come = self.model.have_come(&states[0]) || start.elapsed() > DELAY;
            if have_come && states[0] == states[1] || start.elapsed() > self.patience {
                return self.compare("  state", states.map(|it| it.join(", ")));
            }
            clock::pause(Duration::from_micros(100));
        }
    }

    fn run_two(&mut self, line: &str, first: &Call<'_>, second: &Call<'_>) -> Result<(), String> {
        let mut found = Vec::new();
        for pair in [&mut self.plain, &mut self.upgraded] {
            pair.end(first.end).begin(&format!("!{}", first.text));
            clock::pause(HEAD_START);
            let second = pair.call(second.end, second.text);
            let first = pair.end(first.end).end();
            found.push([pair.named(&first), second]);
        }
        self.model.note(second, &found[0][1]);
        self.model.note(first, &found[0][0]);
        let found = [0, 1].map(|at| found[at].join(" & "));
        self.compare(line, found)
    }

    /// Makes a call both ways.
    fn run_call(&mut self, line: &str) -> Result<(), String> {
        if let Some((first, second)) = line.split_once(" & ") {
            self.settle()?;
            let (first, second) = (Call::parse(first), Call::parse(second));
            if self.model.allows_both(&first, &second) {
                self.run_two(line, &first, &second)?;
            }
            return Ok(());
        }
        let at_once = line.starts_with('~');
        let call = Call::parse(line.trim_start_matches('~'));
        if !self.model.allows(&call) {
            return Ok(());
        }
        let observes = OBSERVES.contains(&call.name);
        if !at_once || !(observes || self.model.may_be_at_once(&call)) {
            self.settle()?;
        }
        let results = if observes {
            self.observe(call.end, call.text)
        } else {
            let plain = self.plain.call(call.end, call.text);
            if plain == "waits" {
                return Ok(());
            }
            [plain, self.upgraded.call(call.end, call.text)]
        };
        self.model.note(&call, &results[0]);
        self.compare(line, results)
    }

    /// Runs a script. A difference is an error that has all calls before it.
    fn run(&mut self, script: &Script) -> Result<(), String> {
        self.log.clear();
        self.model = Model::new([!script.waits, script.flags & 0o4000 != 0]);
        let plain = self.plain.connect(script.waits, script.flags).unwrap();
        let mut attempts = 0;
        let upgraded = loop {
            if let Some(connected) = self.upgraded.connect(script.waits, script.flags) {
                break connected;
            }
            // A connection that takes too long is plain, on a loaded machine, and so are the next ones to its port.
            attempts += 1;
            assert!(attempts < 3, "connections are not upgraded");
            self.upgraded = Pair::start(&self.program, true);
        };
        let connected = [plain, upgraded].map(|it| it.join(", "));
        self.compare("begin", connected)?;
        for call in &script.calls {
            self.run_call(call)?;
        }
        self.settle()
    }
}

/// The script of a seed, and shorter ones.
fn script_of(seed: u64) -> impl ValueTree<Value = Script> {
    let mut octets = [0; 32];
    octets[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &octets);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    scripts().new_tree(&mut runner).unwrap()
}

/// Runs the script of a seed, and shorter ones after a difference.
fn check(test: &str, oracle: &mut Oracle, seed: u64) -> Result<(), String> {
    let mut tree = script_of(seed);
    let Err(mut difference) = oracle.run(&tree.current()) else {
        return Ok(());
    };
    let mut shortest = tree.current();
    let start = clock::now();
    // Both pairs begin anew: a call may have ended one of them.
    let again = |oracle: &mut Oracle| *oracle = Oracle::start(test).unwrap();
    again(oracle);
    oracle.patience = SHORT_PATIENCE;
    let mut goes_on = tree.simplify();
    while goes_on && start.elapsed() < Duration::from_secs(60) {
        goes_on = match oracle.run(&tree.current()) {
            Ok(()) => tree.complicate(),
            Err(found) => {
                (difference, shortest) = (found, tree.current());
                if difference.contains("hangs") || difference.contains("ended: ") {
                    again(oracle);
                    oracle.patience = SHORT_PATIENCE;
                }
                tree.simplify()
            }
        };
    }
    Err(format!("seed {seed}: {shortest}\n{difference}"))
}

/// Runs scripts of as many seeds, from the first on.
fn check_some(test: &str, count: u64, first: u64) {
    let Some(mut oracle) = Oracle::start(test) else {
        return;
    };
    if let Ok(seed) = std::env::var("DGIWARP_ORACLE_SEED") {
        check(test, &mut oracle, seed.parse().unwrap()).unwrap_or_else(|it| panic!("{it}"));
        return;
    }
    let start = clock::now();
    for seed in (0..count).map(|n| first.wrapping_add(n)) {
        check(test, &mut oracle, seed).unwrap_or_else(|it| panic!("{it}"));
    }
    println!("{count} scripts in {:?}", start.elapsed());
}

/// Differences that random scripts have found.
const FOUND: &[&str] = &[
    // A receive of no octets waits, and that of read(2) does not.
    "begin 0 0; c recv 0 0 0; c read 0 0; c readv 0 0 0 0; s send 0 3 0; c recv 0 0 0; c read 0 5",
    // MSG_WAITALL ends with SO_RCVTIMEO.
    "begin 1 0; c rcvtimeo 0 20; c recv 0 9 0; s send 0 5 0; c recv 0 9 258; c recv 0 9 256; c recv 0 9 256",
    "begin 1 0; c rcvtimeo 0 20; c recv 0 0 0; s send 0 5 0; c recv 0 9 0",
    // Messages without octets, as those after the end, are messages of recvmmsg(2) and sendmmsg(2).
    "begin 1 0; c sendmany 0 0 5 0; s recvmany 0 0 5 64; c shutdown 0 1; s recvmany 0 9 9 64; s recvmany 0 9 9 65536",
    "begin 1 0; c close 0; s send 0 1 0; s recvmany 0 0 0 64; s recvmany 0 0 0 64",
    // MSG_TRUNC drops octets.
    "begin 1 0; c send 0 9 0; s recv 0 4 34; s recv 0 4 32; s recvmsg 0 2 2 32; s recv 0 4 0",
    // A send of no octets reports the end.
    "begin 1 0; c shutdown 0 1; c send 0 0 0; c send 0 0 16384; c write 0 0; c writev 0 0 0 0",
    // Hang-up is the end of both directions, also before the octets that came.
    "begin 1 0; s send 0 5 0; c shutdown 0 2; c recv 0 5 0; s shutdown 0 2",
    // The peer's end is no hang-up, and the first send after it is lost.
    "begin 1 0; c send 0 5 0; c close 0; s send 0 0 0; s send 0 5 0; s send 0 5 0; s getopt 0 1 4; s recv 0 9 0; s recv 0 9 0",
    "begin 1 0; s close 0; c send 0 5 0; c getopt 0 1 4; c getopt 0 1 4; c send 0 5 0; c recv 0 9 0",
    // Connections neither listen nor bind.
    "begin 1 0; c listenon 0; s bind 0; c send 0 5 0; s recv 0 5 0",
    // An end that has received and sent a FIN has no connection.
    "begin 1 0; s shutdown 0 1; c shutdown 0 1; c peername 0; s peername 0; c shutdown 0 1; c recv 0 5 0",
    // Octets that come are no edge of a member without EPOLLIN.
    "begin 0 0; c ctl 0 1 2147491844 0; c wait 0 1 0; s send 0 1 0; c wait 0 1 0; c state 0",
    // They are one of a member with EPOLLPRI.
    "begin 0 2048; c ctl 0 1 2147483654 0; c wait 0 1 0; s splicein 0 1 0; c wait 0 1 0; c state 0",
    // Octets that cannot be sent stay in the pipe.
    "begin 1 0; s splicein 0 0 0; s shutdown 0 1; s splicein 0 100 0; s splicein 0 0 1",
];

#[test]
fn scripts_that_differed_have_the_results_of_tcp() {
    let Some(mut oracle) = Oracle::start("oracle_found") else {
        return;
    };
    let own = std::env::var("DGIWARP_ORACLE_SCRIPT");
    let found = own
        .as_ref()
        .map_or_else(|_| FOUND.to_vec(), |it| vec![it.as_str()]);
    for script in found {
        let difference = oracle.run(&Script::parse(script)).err();
        let difference = difference.map(|it| format!("{script}\n{it}"));
        assert!(difference.is_none(), "{}", difference.unwrap_or_default());
    }
}

/// Scripts of the same seeds each time. The soak draws its seeds.
#[test]
fn random_scripts_have_the_results_of_tcp() {
    check_some("oracle", 300, 0);
}

#[test]
#[ignore = "takes half an hour"]
fn soak_random_scripts_have_the_results_of_tcp() {
    let count = std::env::var("DGIWARP_ORACLE_COUNT");
    let count = count.map_or(100_000, |it| it.parse().unwrap());
    let first = RandomState::new().build_hasher().finish();
    check_some("oracle_soak", count, first);
}
