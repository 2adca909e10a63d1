//! Latencies of perftest's unmodified programs under `dgiwarp-run`, in turns with raw TCP.

pub(crate) mod peers;
pub(crate) mod perftest;
pub(crate) mod threads;

use std::path::PathBuf;
use std::time::Duration;

use comfy_table::CellAlignment::{Left, Right};
use serde::Serialize;

use crate::cli::ProgramsArgs;
use crate::error::{PerfError, Result};
use crate::machine::host::{Cpus, Host, Wait};
use crate::machine::interrupt::Interrupt;
use crate::report::{json, table};
use crate::run::figures::Series;
use crate::run::group::{Group, Kind, Member};
use crate::run::{Bench, Limits};
use crate::session::client::Session;
use crate::stats;

/// The raw TCP that a program is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Baseline {
    /// Half a round trip, both sides spinning.
    Spin,
    /// Half a round trip, both sides sleeping.
    Block,
    /// A whole one, of which one side sleeps.
    SpinAndBlock,
}

/// A program with its baseline.
struct Subject {
    line: &'static str,
    baseline: Baseline,
}

/// The wait of a program decides its baseline: `ib_write_lat` polls memory and never calls the library, so another
/// thread wakes up for each message, as in a read from a blocking socket. The target of `ib_read_lat` sleeps, its
/// initiator polls.
const SUBJECTS: [Subject; 4] = [
    Subject {
        line: "ib_write_lat",
        baseline: Baseline::Block,
    },
    Subject {
        line: "ib_send_lat",
        baseline: Baseline::Spin,
    },
    Subject {
        line: "ib_send_lat -e",
        baseline: Baseline::Block,
    },
    Subject {
        line: "ib_read_lat",
        baseline: Baseline::SpinAndBlock,
    },
];

/// Names of the raw rows, spinning and sleeping.
const RAW: [(&str, Wait); 2] = [
    ("raw TCP, spinning", Wait::Spin),
    ("raw TCP, sleeping", Wait::Block),
];

#[derive(Serialize)]
struct Row {
    program: String,
    median_us: Option<f64>,
    baseline: Option<&'static str>,
    baseline_us: Option<f64>,
    ratio: Option<f64>,
    ratio_q25: Option<f64>,
    ratio_q75: Option<f64>,
}

/// The JSON document, schema 1.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    version: &'static str,
    host: &'a Host,
    size: u64,
    rounds: u32,
    iters: u32,
    rows: &'a [Row],
}

/// Runs all programs that are installed, and reports.
pub(crate) fn run(args: &ProgramsArgs) -> Result<()> {
    let mut host = Host::read();
    let interrupt = Interrupt::install()?;
    let runner = runner(args.runner.as_ref())?;
    let subjects: Vec<&Subject> = SUBJECTS.iter().filter(|it| is_installed(it)).collect();
    if subjects.is_empty() {
        return Err(PerfError::Usage(
            "no program of perftest is installed (Debian: apt install perftest)".to_owned(),
        ));
    }
    let cpus = Cpus::new(args.pin.unwrap_or_default())?;
    host.pinned = cpus.pinned();
    if host.is_busy() {
        eprintln!(
            "dgiwarp-perf: note: the machine is busy (load {:.1})",
            host.load
        );
    }
    let mut bench = Bench {
        session: Session::new(interrupt),
        pinned: host.pinned,
        cpus,
        wait: Wait::Spin,
        runner: Some(runner),
        lenient: false,
    };
    let measured = bench.measure(&group(args, &subjects), Limits::default());
    measured.result?;
    report(args, &host, &rows(&subjects, &measured.series))
}

/// Raw TCP that spins, raw TCP that sleeps, and the programs, once each in every round.
fn group(args: &ProgramsArgs, subjects: &[&Subject]) -> Group {
    let (size, iters) = (args.size, args.iters);
    let raw = RAW.map(|(key, wait)| Member {
        key: key.to_owned(),
        kind: Kind::Threads { wait, size, iters },
    });
    let program = |subject: &&Subject| Member {
        key: subject.line.to_owned(),
        kind: Kind::Program {
            line: subject.line.to_owned(),
            size,
            iters,
        },
    };
    Group {
        name: "programs".to_owned(),
        rounds: args.rounds,
        round_time: Duration::ZERO,
        iters: None,
        more_rounds: 0,
        repeats: 0,
        members: raw
            .into_iter()
            .chain(subjects.iter().map(program))
            .collect(),
    }
}

/// The program that puts others on our libraries: as given, beside this one, or where a shell finds it.
pub(crate) fn runner(given: Option<&PathBuf>) -> Result<PathBuf> {
    const NAME: &str = "dgiwarp-run";
    let beside = || {
        let own = std::env::current_exe().ok()?;
        let path = own.parent()?.join(NAME);
        path.is_file().then_some(path)
    };
    given
        .cloned()
        .or_else(beside)
        .or_else(|| perftest::find(NAME))
        .ok_or_else(|| {
            PerfError::Usage(
                "dgiwarp-run is neither here nor in PATH: name it by --runner".to_owned(),
            )
        })
}

fn is_installed(subject: &Subject) -> bool {
    let name = subject.line.split(' ').next().unwrap_or_default();
    let found = perftest::find(name).is_some();
    if !found {
        eprintln!("dgiwarp-perf: note: {name} is not installed");
    }
    found
}

fn rows(subjects: &[&Subject], series: &[Series]) -> Vec<Row> {
    let values: Vec<Vec<f64>> = series
        .iter()
        .map(|one| one.figures.iter().flatten().filter_map(|it| it.us))
        .map(Iterator::collect)
        .collect();
    let [spin, block, programs @ ..] = values.as_slice() else {
        return Vec::new();
    };
    let raw = |name: &str, values: &[f64]| Row {
        program: name.to_owned(),
        median_us: stats::median(values),
        baseline: None,
        baseline_us: None,
        ratio: None,
        ratio_q25: None,
        ratio_q75: None,
    };
    let mut rows: Vec<Row> = RAW
        .iter()
        .zip([spin, block])
        .map(|((name, _), values)| raw(name, values))
        .collect();
    for (subject, values) in subjects.iter().zip(programs) {
        let (name, baseline) = match subject.baseline {
            Baseline::Spin => ("spinning", spin.clone()),
            Baseline::Block => ("sleeping", block.clone()),
            Baseline::SpinAndBlock => {
                let both = spin.iter().zip(block);
                ("both", both.map(|(spin, block)| spin + block).collect())
            }
        };
        let ratio = stats::paired_ratio(values, &baseline);
        rows.push(Row {
            baseline: Some(name),
            baseline_us: stats::median(&baseline),
            ratio: ratio.map(|it| it.median),
            ratio_q25: ratio.map(|it| it.q25),
            ratio_q75: ratio.map(|it| it.q75),
            ..raw(subject.line, values)
        });
    }
    rows
}

fn report(args: &ProgramsArgs, host: &Host, rows: &[Row]) -> Result<()> {
    if let Some(path) = &args.json {
        let document = Document {
            schema: 1,
            version: env!("CARGO_PKG_VERSION"),
            host,
            size: args.size,
            rounds: args.rounds,
            iters: args.iters,
            rows,
        };
        json::write(&document, path)?;
        if path.as_os_str() == "-" {
            return Ok(());
        }
    }
    println!(
        "\nLatency in us, medians of {} rounds, {} octets",
        args.rounds, args.size
    );
    let columns = [
        ("program", Left, 20),
        ("median", Right, 7),
        ("ratio [quartiles] to raw TCP", Left, 0),
    ];
    let cells = rows.iter().map(|row| {
        let ratios = row.ratio.zip(row.ratio_q25).zip(row.ratio_q75);
        let ratios = ratios.map(|((ratio, q25), q75)| [q25, ratio, q75]);
        [
            row.program.clone(),
            format!("{:.2}", row.median_us.unwrap_or(0.0)),
            table::comparison(ratios, row.baseline),
        ]
    });
    print!("{}", table::aligned(&columns, true, cells));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::figures::Figures;

    #[test]
    fn each_program_has_its_own_baseline() {
        let rounds = [
            [5.0, 6.0, 7.0],
            [20.0, 20.0, 20.0],
            [10.0, 12.0, 14.0],
            [50.0, 26.0, 27.0],
        ];
        let series = rounds.map(|rounds| Series {
            figures: rounds.map(|us| Some(Figures::time(us))).to_vec(),
            ..Series::default()
        });
        let rows = rows(&[&SUBJECTS[1], &SUBJECTS[3]], &series);
        let figures: Vec<_> = rows
            .iter()
            .map(|it| (it.median_us, it.baseline_us))
            .collect();
        assert_eq!(
            figures,
            [
                (Some(6.0), None),
                (Some(20.0), None),
                (Some(12.0), Some(6.0)),
                (Some(27.0), Some(26.0))
            ]
        );
        assert_eq!((rows[2].ratio, rows[3].ratio), (Some(2.0), Some(1.0)));
    }
}
