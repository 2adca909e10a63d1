//! The command line. Usage errors end with status 2, as clap does it.

use std::io::{IsTerminal, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dgiwarp_cli::{Example, Program};

use crate::agent::Agent;
use crate::bench::Settings;
use crate::cases::{self, Family, Role};
use crate::clauses;
use crate::peer::Patience;
use crate::profile::Profile;
use crate::report::{self, Subject};
use crate::run::{self, Done, Outcome, Plan};
use crate::trace::lint;

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-conform run --target 192.0.2.7:7174",
            about: "Everything that can be tried of any port that accepts iWARP, such as that of `rping -s -P`.",
        },
        Example {
            line: "dgiwarp-conform run --agent 192.0.2.7:18600 --token 5f1c… --junit report.xml --pcap findings/",
            about: "Everything, with the help of the agent that runs on the device.",
        },
        Example {
            line: "dgiwarp-conform run --target 192.0.2.7:7174 --profile siw --family startup --json -",
            about: "MPA's startup of a Linux siw: only what is not known of it fails.",
        },
        Example {
            line: "dgiwarp-conform list",
            about: "The cases, with the clauses that they test.",
        },
        Example {
            line: "dgiwarp-conform clauses --rfc 5044 --untested",
            about: "The rules of an RFC that no case tests, and why.",
        },
    ],
    of_subcommands: &[
        (
            "run",
            &[
                Example {
                    line: "dgiwarp-conform run --target 192.0.2.7:7174",
                    about: "What can be tried of any port that accepts iWARP.",
                },
                Example {
                    line: "dgiwarp-conform run --target 192.0.2.7:7174 --case M02,M03 --pcap findings/",
                    about: "Two cases, and the packets of what they find.",
                },
                Example {
                    line: "dgiwarp-conform run --target 192.0.2.7:7174 --revision 1 --json results.json",
                    about: "A device of MPA revision 1.",
                },
            ],
        ),
        (
            "list",
            &[
                Example {
                    line: "dgiwarp-conform list",
                    about: "Each case, with the clauses that it tests.",
                },
                Example {
                    line: "dgiwarp-conform list --json",
                    about: "The same for programs.",
                },
                Example {
                    line: "dgiwarp-conform list | grep 5044",
                    about: "The cases of one RFC.",
                },
            ],
        ),
        (
            "lint",
            &[
                Example {
                    line: "dgiwarp-conform lint traffic.pcapng",
                    about: "What in recorded traffic breaks a rule of a sender, and which rule.",
                },
                Example {
                    line: "tcpdump -i eth0 -w - tcp port 7174 | dgiwarp-conform lint --json -",
                    about: "The same of traffic that passes now, for programs.",
                },
            ],
        ),
        (
            "clauses",
            &[
                Example {
                    line: "dgiwarp-conform clauses",
                    about: "How many rules each RFC has, and how many are tested.",
                },
                Example {
                    line: "dgiwarp-conform clauses --rfc 5044 --untested",
                    about: "The rules of an RFC that no case tests, and why.",
                },
                Example {
                    line: "dgiwarp-conform clauses --case M02",
                    about: "The rules that a case is about.",
                },
            ],
        ),
    ],
    sections: &[(
        "Exit status",
        "0 nothing that is not allowed or expected, 1 findings, 2 usage, 3 no device, or no RDMA traffic in a file.",
    )],
    see_also: &["dgiwarp(7)", "dgiwarp-run(1)"],
    ..Program::EMPTY
};

/// Does a device speak iWARP as RFC 5040, 5041, 5044, 6581 and 7306 say?
#[derive(Debug, Parser)]
#[command(name = "dgiwarp-conform", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Test a device
    Run(Box<RunArgs>),
    /// List the cases
    List(ListArgs),
    /// Check recorded traffic
    Lint(lint::Args),
    /// Show which rules of the RFCs are tested, and by what
    Clauses(clauses::cli::Args),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("device_address").required(true).args(["target", "agent"])))]
struct RunArgs {
    /// A port of the device that accepts RDMA connections
    #[arg(long, value_name = "HOST:PORT")]
    target: Option<String>,
    /// The control port of the agent on the device
    #[arg(long, value_name = "HOST:PORT", requires = "token")]
    agent: Option<String>,
    /// The token that the agent printed
    #[arg(long, value_name = "HEX")]
    token: Option<String>,
    /// Only these families of cases; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    family: Vec<Family>,
    /// Only these cases, as in M02; may be repeated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    case: Vec<String>,
    /// Only cases in which the tester has this role [default: both]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Expected failures: siw, or a file
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Run cases too that are known to crash devices, or the hosts they are in
    #[arg(long)]
    allow_crash: bool,
    /// Run cases too that take a minute or more
    #[arg(long)]
    slow: bool,
    /// The MPA revision of good Requests; a device of revision 1 has no enhanced startup
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    revision: u8,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// How many connections cases make that make many
    #[arg(long, value_name = "N", default_value_t = 40)]
    many: u32,
    /// Seed of the patterns of loss; equal numbers make equal ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Description of the device, for the report
    #[arg(long, value_name = "TEXT", default_value = "")]
    device: String,
    /// Write the results as one JSON document (- = standard output, and nothing else there)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a packet file of every case that found something into this folder
    #[arg(long, value_name = "FOLDER")]
    pcap: Option<PathBuf>,
}

const EXIT_FINDINGS: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_NO_DEVICE: u8 = 3;

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let done = match cli.command {
        Command::Run(args) => run(&args),
        Command::List(args) => quiet(list(&args))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| (EXIT_FINDINGS, error.to_string())),
        Command::Lint(args) => lint::main(&args),
        Command::Clauses(args) => clauses::cli::main(&args).map_err(usage),
    };
    done.unwrap_or_else(|(status, error)| {
        eprintln!("dgiwarp-conform: {error}");
        ExitCode::from(status)
    })
}

/// A reader that has gone is no failure.
fn quiet(printed: std::io::Result<()>) -> std::io::Result<()> {
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

fn list(args: &ListArgs) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<_> = cases::all()
            .iter()
            .map(|case| serde_json::json!({ "case": case.id, "about": case.about, "clauses": case.clauses }))
            .collect();
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        for case in cases::all() {
            writeln!(
                out,
                "{:<5}{} ({})",
                case.id,
                case.about,
                case.clauses.join(", ")
            )?;
        }
    }
    Ok(())
}

type Failed = (u8, String);

fn usage(error: impl ToString) -> Failed {
    (EXIT_USAGE, error.to_string())
}

fn no_device(error: impl ToString) -> Failed {
    (EXIT_NO_DEVICE, error.to_string())
}

fn resolve(name: &str) -> Result<SocketAddr, Failed> {
    let mut found = name
        .to_socket_addrs()
        .map_err(|error| usage(format!("{name}: {error}")))?;
    found
        .next()
        .ok_or_else(|| usage(format!("{name} has no address")))
}

fn run(args: &RunArgs) -> Result<ExitCode, Failed> {
    if let Some(unknown) = args
        .case
        .iter()
        .find(|id| !cases::all().iter().any(|case| case.id == id.as_str()))
    {
        return Err(usage(format!("there is no case {unknown}")));
    }
    let profile = args
        .profile
        .as_deref()
        .map(Profile::load)
        .transpose()
        .map_err(usage)?;
    let (agent, target) = meet(args)?;
    let mut plan = Plan {
        settings: Settings {
            target,
            revision: args.revision,
            patience: Patience {
                answer: Duration::from_secs(args.patience),
                ..Patience::default()
            },
            many: args.many,
            seed: args.seed,
        },
        families: args.family.clone(),
        cases: args.case.clone(),
        role: args.role,
        allow_crash: args.allow_crash,
        slow: args.slow,
        profile,
    };
    let subject = Subject {
        target: target.to_string(),
        device: args.device.clone(),
    };
    let of = run::selected(&plan).len();
    let terminal = std::io::stderr().is_terminal();
    let mut number = 0;
    let all = run::run(&mut plan, agent, &mut |done| {
        number += 1;
        if terminal {
            eprintln!("[{number}/{of}] {}", report::line(done));
        }
    });
    write_reports(args, &subject, &all).map_err(|error| (EXIT_FINDINGS, error.to_string()))?;
    let reached = all.iter().any(|done| {
        !matches!(
            done.outcome,
            Outcome::Broken | Outcome::Dead | Outcome::Skipped
        )
    });
    Ok(if !all.iter().any(|done| done.outcome.is_bad()) {
        ExitCode::SUCCESS
    } else if reached {
        ExitCode::from(EXIT_FINDINGS)
    } else {
        ExitCode::from(EXIT_NO_DEVICE)
    })
}

/// The agent, if one is given, and the port to test.
fn meet(args: &RunArgs) -> Result<(Option<Agent>, SocketAddr), Failed> {
    let Some(name) = &args.agent else {
        let target = resolve(args.target.as_deref().unwrap_or_default())?;
        return Ok((None, target));
    };
    let control = resolve(name)?;
    let token = args.token.as_deref().unwrap_or_default();
    let mut agent = Agent::connect(control, token).map_err(no_device)?;
    let port = agent.listen().map_err(no_device)?;
    Ok((Some(agent), SocketAddr::new(control.ip(), port)))
}

fn write_reports(args: &RunArgs, subject: &Subject, all: &[Done]) -> std::io::Result<()> {
    let json = report::json(subject, all);
    match &args.json {
        Some(path) if path.as_path() == Path::new("-") => {
            quiet(writeln!(std::io::stdout(), "{json:#}"))?;
        }
        Some(path) => std::fs::write(path, format!("{json:#}\n"))?,
        None => {}
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        quiet(write!(std::io::stdout(), "{}", report::text(subject, all)))?;
    }
    if let Some(path) = &args.junit {
        std::fs::write(path, report::junit(subject, all))?;
    }
    if let Some(folder) = &args.pcap {
        std::fs::create_dir_all(folder)?;
        for done in all.iter().filter(|done| done.outcome >= Outcome::Deviates) {
            std::fs::write(
                folder.join(format!("{}.pcapng", done.case.id)),
                report::pcapng(done),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(
            Cli::try_parse_from(["dgiwarp-conform", "run"]).is_err(),
            "no device"
        );
        assert!(
            Cli::try_parse_from(["dgiwarp-conform", "run", "--agent", "a:1"]).is_err(),
            "no token"
        );
        assert!(Cli::try_parse_from(["dgiwarp-conform", "run", "--target", "a:1"]).is_ok());
    }
}
