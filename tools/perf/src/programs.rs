//! Latencies of perftest's unmodified programs under `dgiwarp-run`, in turns with raw TCP.

pub(crate) mod perftest;
mod raw;

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::ProgramsArgs;
use crate::error::{PerfError, Result};
use crate::host::{Host, Pin, Side, Wait, allowed_cpus};
use crate::interrupt::Interrupt;
use crate::pattern::narrow;
use crate::report::json;
use crate::stats;

/// What the figure of a program is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Baseline {
    /// Half a round trip, both sides asking again and again.
    Spin,
    /// Half a round trip, both sides sleeping.
    Block,
    /// A whole one, of which one side sleeps.
    SpinAndBlock,
}

/// A program and how it is judged.
struct Subject {
    line: &'static str,
    baseline: Baseline,
}

/// What the programs do while they wait decides the baseline: `ib_write_lat` looks at memory and never calls the library, so another thread
/// has to wake up for each message, as in a read from a blocking socket. The target of `ib_read_lat` sleeps, its initiator asks.
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

/// Where both sides run.
pub(crate) struct Cpus {
    /// CPUs this process may use.
    pub(crate) allowed: Vec<usize>,
    /// The client's.
    pub(crate) client: Pin,
    /// The server's.
    pub(crate) server: Pin,
}

impl Cpus {
    /// The CPU of one side.
    pub(crate) const fn pin(&self, side: Side) -> Pin {
        match side {
            Side::Client => self.client,
            Side::Server => self.server,
        }
    }
}

/// Microseconds of each round.
#[derive(Default)]
struct Rounds {
    spin: Vec<f64>,
    block: Vec<f64>,
    programs: Vec<Vec<f64>>,
}

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

/// Runs all of it and reports.
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
    let allowed = allowed_cpus()?;
    let pins = args.pin.map(|pins| (pins.client, pins.server));
    let (client, server) = pins.unwrap_or((Pin::Auto, Pin::Auto));
    if let (Pin::Cpu(client), Pin::Cpu(server)) = (client, server) {
        host.pinned = Some((client, server));
    } else if let (Pin::Auto, [client, server, ..]) = (client, allowed.as_slice()) {
        host.pinned = Some((*client, *server));
    }
    let cpus = Cpus {
        allowed,
        client,
        server,
    };
    if host.is_busy() {
        eprintln!(
            "dgiwarp-perf: note: the machine is busy (load {:.1})",
            host.load
        );
    }
    let mut rounds = Rounds {
        programs: vec![Vec::new(); subjects.len()],
        ..Rounds::default()
    };
    let size = narrow(args.size);
    for _ in 0..args.rounds {
        for (wait, into) in [
            (Wait::Spin, &mut rounds.spin),
            (Wait::Block, &mut rounds.block),
        ] {
            interrupt.check()?;
            into.push(raw::half_round_trip(wait, size, args.iters, &cpus)?);
        }
        for (subject, into) in subjects.iter().zip(&mut rounds.programs) {
            let amount = (size, args.iters);
            into.push(perftest::latency(
                &runner,
                subject.line,
                amount,
                &cpus,
                &interrupt,
            )?);
        }
    }
    report(args, &host, &rows(&subjects, &rounds))
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

fn rows(subjects: &[&Subject], rounds: &Rounds) -> Vec<Row> {
    let raw = |name: &str, values: &[f64]| Row {
        program: name.to_owned(),
        median_us: stats::median(values),
        baseline: None,
        baseline_us: None,
        ratio: None,
        ratio_q25: None,
        ratio_q75: None,
    };
    let mut rows = vec![
        raw("raw TCP, spinning", &rounds.spin),
        raw("raw TCP, sleeping", &rounds.block),
    ];
    for (subject, values) in subjects.iter().zip(&rounds.programs) {
        let (name, baseline) = match subject.baseline {
            Baseline::Spin => ("spinning", rounds.spin.clone()),
            Baseline::Block => ("sleeping", rounds.block.clone()),
            Baseline::SpinAndBlock => {
                let both = rounds.spin.iter().zip(&rounds.block);
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
        "\nLatency in us, medians of {} rounds, {} octets\n{:<20} {:>9}  ratio [quartiles] to raw TCP",
        args.rounds, args.size, "program", "median"
    );
    for row in rows {
        let ratio = match (row.ratio, row.ratio_q25, row.ratio_q75, row.baseline) {
            (Some(ratio), Some(q25), Some(q75), Some(baseline)) => {
                format!("{ratio:.2} [{q25:.2} {q75:.2}] {baseline}")
            }
            _ => String::new(),
        };
        let median = row.median_us.unwrap_or(0.0);
        println!("{:<20} {median:>9.2}  {ratio}", row.program);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_own_baseline() {
        let rounds = Rounds {
            spin: vec![5.0, 6.0, 7.0],
            block: vec![20.0, 20.0, 20.0],
            programs: vec![vec![10.0, 12.0, 14.0], vec![50.0, 26.0, 27.0]],
        };
        let rows = rows(&[&SUBJECTS[1], &SUBJECTS[3]], &rounds);
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
