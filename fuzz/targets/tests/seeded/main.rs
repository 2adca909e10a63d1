//! The targets on their corpora, and on inputs made of these for a while.
//!
//! `FUZZ_SEED` makes the same inputs again, `FUZZ_SECONDS` says how long it goes on, `FUZZ_TARGET` runs one target alone, and
//! `FUZZ_INPUT` gives it the contents of one file.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod extraction;
#[cfg(feature = "engine")]
mod tap;

use std::collections::hash_map::RandomState;
use std::env;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_fuzz_targets::mutation::Mutator;
use dgiwarp_fuzz_targets::{TARGETS, Target, by_name};

/// How long inputs are made, all targets together.
const SECONDS: u64 = 20;
const THREADS: usize = 2;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(_) => panic!("{name}={text} is not understood"),
    }
}

/// The targets that are wanted.
fn targets() -> Vec<&'static Target> {
    match variable::<String>("FUZZ_TARGET") {
        Some(name) => vec![by_name(&name).unwrap_or_else(|| panic!("no target is called {name}"))],
        None => TARGETS.iter().collect(),
    }
}

fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(target.name)
}

/// The inputs of the corpus with their paths, in the order of their names.
fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus_folder(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let octets = fs::read(&path).unwrap();
            (path, octets)
        })
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "tests have a clock")]
fn now() -> Instant {
    Instant::now()
}

/// Whether the target returns for this input. The message of a panic is printed.
fn holds(target: &Target, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_ok()
}

#[test]
fn corpora_hold() {
    if let Some(path) = variable::<PathBuf>("FUZZ_INPUT") {
        let input = fs::read(&path).unwrap();
        for target in targets() {
            (target.run)(&input);
        }
        return;
    }
    for target in targets() {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (path, input) in inputs {
            assert!(holds(target, &input), "{}: {}", target.name, path.display());
        }
    }
}

/// Where an input that fails is kept.
fn save(target: &Target, input: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    fs::write(&path, input).unwrap();
    path
}

/// Runs a target on inputs made from this seed, until the time is over. Returns how many, or what to do about the one that failed.
fn run(target: &Target, seed: u64, time: Duration) -> Result<u64, String> {
    let inputs: Vec<_> = corpus(target).into_iter().map(|(_, input)| input).collect();
    let mut mutator = Mutator::new(seed, &inputs, target.longest);
    let (begin, mut done) = (now(), 0);
    // A slow machine makes fewer of them.
    while begin.elapsed() < time {
        let input = mutator.input();
        if !holds(target, &input) {
            let path = save(target, &input);
            return Err(format!(
                "target {} fails on {path}; replay with\n  FUZZ_TARGET={} FUZZ_INPUT={path} cargo test -p dgiwarp-fuzz-targets --all-features --test seeded corpora",
                target.name,
                target.name,
                path = path.display(),
            ));
        }
        done += 1;
    }
    Ok(done)
}

#[test]
fn mutations_hold() {
    let seed = variable("FUZZ_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let seconds = variable("FUZZ_SECONDS").unwrap_or(SECONDS);
    println!("FUZZ_SEED={seed}");
    let targets = targets();
    // One target alone uses one thread.
    let rounds = targets.len().div_ceil(THREADS);
    let share = Duration::from_secs(seconds) / u32::try_from(rounds).unwrap();
    let (waiting, failures) = (Mutex::new(targets), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().pop();
                    let Some(target) = next else { break };
                    match run(target, seed, share) {
                        Ok(done) => println!("{}: {done} inputs", target.name),
                        Err(failure) => failures.lock().unwrap().push(failure),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "with FUZZ_SEED={seed}: {}",
        failures.join("\n")
    );
}
