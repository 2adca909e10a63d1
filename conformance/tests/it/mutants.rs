//! The tester can fail: each mutant of `conformance/mutants` is found by the cases that stand beside it there.
//!
//! A mutant is our own stack with a fault on purpose, compiled from a copy of the workspace. `DGIWARP_MUTANTS` names the mutants to be tried, with
//! commas between, or `all`. Without it three are drawn at random; `DGIWARP_MUTANTS_SEED` repeats a draw.

mod copy;
mod deadline;
pub(crate) mod rules;
pub(crate) mod sources;
mod text;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Seek, Write};
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use copy::Copy;
use deadline::Deadline;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rules::Mutant;
use tempfile::TempDir;

use crate::device::programs::{self, Run, Server};

/// Mutants of a run without `DGIWARP_MUTANTS`.
const DRAWN: usize = 3;
/// Devices at a time. Cases spend most of their time waiting for silence.
const WORKERS: usize = 8;
/// Limit of the cases of one mutant. Its device is killed then; a case without an outcome has not found the fault.
const CASES_TIME: Duration = Duration::from_secs(60);
/// Limit of all cases against one mutant, and of the cases of several without one.
const ALL_CASES_TIME: Duration = Duration::from_secs(600);

/// One run of the tester against a device on a library.
struct Trial<'a> {
    library: &'a TempDir,
    environment: &'a [(&'a str, &'a str)],
    /// Names with commas between; `None` for all.
    cases: Option<&'a str>,
    /// Seconds that the tester waits for an answer.
    patience: &'a str,
    limit: Duration,
}

impl Trial<'_> {
    fn run(&self) -> Run {
        let library = self.library.path().to_str().unwrap();
        let mut environment = vec![("LD_LIBRARY_PATH", library)];
        environment.extend(self.environment);
        // A fault may end in a panic, whose message matters only if the test fails.
        let mut messages = tempfile::tempfile().unwrap();
        let device = programs::agent(&environment)
            .stdout(Stdio::piped())
            .stderr(messages.try_clone().unwrap())
            .spawn()
            .unwrap();
        let deadline = Deadline::of(device.id(), self.limit);
        let output = self.try_cases(&Server::of_agent(device));
        drop(deadline);
        let mut run = Run::of(output);
        messages.rewind().unwrap();
        messages.read_to_string(&mut run.stderr).unwrap();
        run
    }

    /// Runs the tester. A device that ended before it listened has no address: no case has an outcome then.
    fn try_cases(&self, device: &Option<Server>) -> Output {
        let address = device.as_ref().map(Server::address).unwrap_or_default();
        let token = device.as_ref().map(|it| &it.token[..]).unwrap_or_default();
        let mut arguments = vec!["--agent", &address, "--token", token];
        arguments.extend(["--allow-crash", "--many", "8", "--patience", self.patience]);
        if let Some(cases) = self.cases {
            arguments.extend(["--case", cases]);
        }
        let tester = programs::tester_command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _deadline = Deadline::of(tester.id(), self.limit);
        tester.wait_with_output().unwrap()
    }
}

/// Builds mutants one after the other, while workers judge the ones before. Returns the errors of builds and of `judge`.
fn try_all(
    copy: &Copy,
    mutants: &[Mutant],
    judge: impl Fn(&Mutant, &TempDir) -> Result<(), String> + Sync,
) -> Vec<String> {
    let wrong = Mutex::new(Vec::new());
    let (built, waiting) = sync_channel::<(&Mutant, TempDir)>(WORKERS);
    let waiting = Mutex::new(waiting);
    let fail = |mutant: &Mutant, reason| {
        let text = format!(
            "{} ({}, {}): {reason}",
            mutant.name, mutant.fault, mutant.clause
        );
        println!("{text}");
        wrong.lock().unwrap().push(text);
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().recv();
                    let Ok((mutant, library)) = next else { break };
                    match judge(mutant, &library) {
                        Ok(()) => println!("{}: found", mutant.name),
                        Err(reason) => fail(mutant, reason),
                    }
                }
            });
        }
        for mutant in mutants {
            match copy.build(Some(mutant)) {
                Ok(library) => built.send((mutant, library)).unwrap(),
                Err(reason) => fail(mutant, format!("no mutant: {reason}")),
            }
        }
        drop(built);
    });
    wrong.into_inner().unwrap()
}

fn environment(mutant: &Mutant) -> Vec<(&str, &str)> {
    let variables = mutant.environment.iter();
    variables
        .map(|(name, value)| (&name[..], &value[..]))
        .collect()
}

/// Whether a case with this outcome has found a fault.
fn is_found(outcome: &str) -> bool {
    matches!(outcome, "fail" | "dead")
}

/// Whether each of the cases of a mutant finds it.
fn is_found_by_its_cases(mutant: &Mutant, library: &TempDir) -> Result<(), String> {
    let run = Trial {
        library,
        environment: &environment(mutant),
        cases: Some(&mutant.cases.join(",")),
        // Most answers take a millisecond; a fault that suppresses an answer costs all of this.
        patience: "2",
        limit: CASES_TIME,
    }
    .run();
    let cases = mutant.cases.iter();
    let missed: Vec<_> = cases
        .filter(|case| !is_found(run.outcome(case)) && !run.is_found_by_rule(case))
        .map(|case| format!("{case}: {}", run.outcome(case)))
        .collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{}", missed.join(", "), run.report()))
}

/// The cases of these mutants find nothing in a copy without a fault.
fn pass_without_a_fault(copy: &Copy, mutants: &[Mutant]) {
    let library = copy.build(None).unwrap_or_else(|error| panic!("{error}"));
    let environments: BTreeSet<_> = mutants.iter().map(environment).collect();
    for environment_of_some in environments {
        let of_these = mutants
            .iter()
            .filter(|mutant| environment(mutant) == environment_of_some);
        let cases: BTreeSet<_> = of_these.flat_map(|mutant| &mutant.cases).collect();
        let cases: Vec<_> = cases.into_iter().map(String::as_str).collect();
        let run = Trial {
            library: &library,
            environment: &environment_of_some,
            cases: Some(&cases.join(",")),
            patience: "30",
            limit: ALL_CASES_TIME,
        }
        .run();
        assert_eq!(run.status, Some(0), "{}", run.report());
        for case in cases {
            assert_eq!(run.outcome(case), "pass", "{case}");
        }
    }
}

/// The mutants that the environment names, or some at random.
fn chosen() -> Vec<Mutant> {
    let all: Vec<_> = rules::all_with_files()
        .into_iter()
        .map(|(_, it)| it)
        .collect();
    match std::env::var("DGIWARP_MUTANTS") {
        Ok(names) if names == "all" => all,
        Ok(names) => {
            let one = |name: &str| {
                let found = all.iter().find(|mutant| mutant.name == name);
                let found = found.unwrap_or_else(|| panic!("no mutant has the name {name}"));
                found.clone()
            };
            names.split(',').map(one).collect()
        }
        Err(_) => {
            let seed = std::env::var("DGIWARP_MUTANTS_SEED").map_or_else(
                |_| RandomState::new().build_hasher().finish(),
                |seed| seed.parse().unwrap(),
            );
            announce("DGIWARP_MUTANTS_SEED", &seed.to_string());
            drawn(all, seed)
        }
    }
}

fn drawn(mut all: Vec<Mutant>, seed: u64) -> Vec<Mutant> {
    all.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    all.truncate(DRAWN);
    all
}

/// Prints a variable that repeats this run, past the test harness, which shows nothing of a test that passes.
fn announce(variable: &str, value: &str) {
    // A lost line of a log is no fault of a mutant.
    let _ = writeln!(std::io::stderr(), "{variable}={value}");
}

#[test]
fn drawn_mutants_are_found_by_their_cases() {
    let mutants = chosen();
    let names: Vec<_> = mutants.iter().map(|mutant| &mutant.name[..]).collect();
    announce("DGIWARP_MUTANTS", &names.join(","));
    let copy = Copy::of_the_workspace();
    pass_without_a_fault(&copy, &mutants);
    let wrong = try_all(&copy, &mutants, is_found_by_its_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All cases against each mutant, with a list of the cases that find it. The cases of its rule have to.
#[test]
#[ignore = "every mutant is compiled and tried with every case, an hour and a half"]
fn soak_every_mutant_is_found() {
    let mutants: Vec<_> = rules::all_with_files()
        .into_iter()
        .map(|(_, it)| it)
        .collect();
    let copy = Copy::of_the_workspace();
    pass_without_a_fault(&copy, &mutants);
    let wrong = try_all(&copy, &mutants, |mutant, library| {
        let run = Trial {
            library,
            environment: &environment(mutant),
            cases: None,
            patience: "5",
            limit: ALL_CASES_TIME,
        }
        .run();
        let mut found: Vec<_> = run.found().collect();
        found.sort_unstable();
        println!("{:<28} {}", mutant.name, found.join(" "));
        is_found_by_its_cases(mutant, library)
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
