//! `cargo xtask fuzz`: long runs of the fuzz targets, with `cargo fuzz`, one after the other and at the lowest priority.
//!
//! `cargo fuzz` wants flags of the compiler that stable toolchains refuse; `RUSTC_BOOTSTRAP` makes them take them.

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::{MetadataCommand, TargetKind};

use crate::workspace;

/// Megabytes of memory that a target may take.
const MEMORY: u32 = 2048;
/// Octets of the longest inputs.
const LONGEST: u32 = 4096;
/// Seconds that one input may take.
const TIMEOUT: u32 = 20;

/// Outcome of a run of one target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    executions: u64,
    /// Edges of the program that were taken.
    coverage: u64,
}

/// Fuzzes these targets, or all if none are named, each for so many minutes. The exit status is 1 if something was found.
///
/// # Errors
/// There is no such target, `cargo fuzz` is not installed, or something does not compile.
pub fn run(names: &[String], minutes: u64) -> Result<i32, Box<dyn Error>> {
    let known = targets()?;
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("no target {unknown}; there are: {}", known.join(", ")).into());
    }
    let names = if names.is_empty() { &known } else { names };
    for name in names {
        build(name)?;
    }
    let mut found = Vec::new();
    for name in names {
        let outcome = fuzz(name, minutes)?;
        let findings = files(&place("findings").join(name))?;
        println!(
            "{name}: {} executions in {minutes} min, {} edges covered, findings: {}",
            outcome.executions,
            outcome.coverage,
            findings.len()
        );
        found.extend(findings);
    }
    for finding in &found {
        println!("found: {}", finding.display());
    }
    Ok(i32::from(!found.is_empty()))
}

fn folder() -> PathBuf {
    workspace::root().join("fuzz")
}

/// Where what grows during runs lies.
fn place(what: &str) -> PathBuf {
    folder().join("target").join(what)
}

/// The programs of the package `fuzz`.
fn targets() -> Result<Vec<String>, cargo_metadata::Error> {
    let metadata = MetadataCommand::new()
        .manifest_path(folder().join("Cargo.toml"))
        .no_deps()
        .exec()?;
    let all = metadata
        .packages
        .iter()
        .flat_map(|package| &package.targets);
    Ok(all
        .filter(|target| target.kind.contains(&TargetKind::Bin))
        .map(|target| target.name.clone())
        .collect())
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect()
}

fn cargo_fuzz(what: &str, name: &str) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "19", "cargo", "fuzz", what, name])
        .current_dir(workspace::root())
        .env("RUSTC_BOOTSTRAP", "1");
    command
}

fn build(name: &str) -> Result<(), Box<dyn Error>> {
    if cargo_fuzz("build", name).status()?.success() {
        return Ok(());
    }
    Err(format!("{name} cannot be built; is cargo-fuzz there (cargo install cargo-fuzz)?").into())
}

fn fuzz(name: &str, minutes: u64) -> Result<Outcome, Box<dyn Error>> {
    let (corpus, findings) = (place("corpus").join(name), place("findings").join(name));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&findings)?;
    let log = place(name).with_extension("log");
    println!("{name}: {minutes} min, log in {}", log.display());
    // Its last word may be a finding, which is no failure of ours.
    cargo_fuzz("run", name)
        .args([
            corpus.as_os_str(),
            seeds(name).as_os_str(),
            OsStr::new("--"),
        ])
        .arg(format!("-max_total_time={}", 60 * minutes))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-timeout={TIMEOUT}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg("-print_final_stats=1")
        .stdin(Stdio::null())
        .stderr(File::create(&log)?)
        .status()?;
    Ok(outcome(&fs::read_to_string(&log)?))
}

fn seeds(name: &str) -> PathBuf {
    folder().join("corpus").join(name)
}

/// Outcome at the end of libFuzzer's log.
fn outcome(log: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in log.lines() {
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let number = match word {
                "cov:" => &mut outcome.coverage,
                "stat::number_of_executed_units:" => &mut outcome.executions,
                _ => continue,
            };
            *number = words
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(*number);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_are_those_that_have_a_corpus() {
        let mut with_corpus: Vec<_> = files(&folder().join("corpus"))
            .unwrap()
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        with_corpus.sort();
        let mut targets = targets().unwrap();
        targets.sort();
        assert_eq!(targets, with_corpus);
    }

    #[test]
    fn a_log_tells_what_was_done() {
        let log = "#4\tNEW    cov: 898 ft: 1112 corp: 164/8033b exec/s: 21746\n\
                   #9\tREDUCE cov: 907 ft: 1121 corp: 166/8096b\n\
                   stat::number_of_executed_units: 92235\n\
                   stat::peak_rss_mb: 90\n";
        let expected = Outcome {
            executions: 92235,
            coverage: 907,
        };
        assert_eq!(outcome(log), expected);
    }
}
