//! The command line. Usage errors end with status 2, as clap does it.

mod compare;
mod list;
mod run;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use dgiwarp_cli::{Example, Program};

use crate::cases::{Family, Level, Role};
use crate::clauses;
use crate::selection::Selection;
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
                Example {
                    line: "dgiwarp-conform run --target 192.0.2.7:7174 --clause 5044-7.1 --level must --without M13",
                    about: "The MUSTs of a section, without one case.",
                },
                Example {
                    line: "dgiwarp-conform run --agent 192.0.2.7:18600 --agent [2001:db8::7]:18600 --token 5f1c… --token 77ab… --html report.html",
                    about: "Two devices, or one by IPv4 and IPv6, in one report.",
                },
                Example {
                    line: "dgiwarp-conform run --agent 10.0.0.7:18600 --token 5f1c… --data 192.0.2.7 --rdma-port 7200 --listen-port 7300",
                    about: "Control over another network than RDMA, and ports that a firewall lets through.",
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
                    line: "dgiwarp-conform list --clause 5044-7.1.2",
                    about: "The cases of one section.",
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
            "compare",
            &[
                Example {
                    line: "dgiwarp-conform compare before.json after.json",
                    about: "Cases and trials in which two runs differ.",
                },
                Example {
                    line: "dgiwarp-conform compare before.json after.json --profile siw",
                    about: "The same; what is known to vary between runs of siw is listed apart and no difference.",
                },
            ],
        ),
        (
            "agent",
            &[Example {
                line: "dgiwarp-conform agent > agent.c && cc -o agent agent.c -lrdmacm -libverbs",
                about: "The agent, to be compiled on the device and started there as ./agent -a ADDRESS.",
            }],
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
        "0 nothing that is not allowed or expected, or equal runs; 1 findings or differences; 2 usage; 3 no device, or no RDMA traffic in a file.",
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
    Run(Box<run::RunArgs>),
    /// List the cases
    List(list::ListArgs),
    /// Compare the results of two runs
    Compare(compare::CompareArgs),
    /// Check recorded traffic
    Lint(lint::Args),
    /// Show which rules of the RFCs are tested, and by what
    Clauses(clauses::cli::Args),
    /// Print the source of the agent, one C file for the device
    Agent,
}

/// Selection of cases by the command line.
#[derive(Debug, Args)]
struct Select {
    /// Only these families of cases; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    family: Vec<Family>,
    /// Only these cases, as in M02; may be repeated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    case: Vec<String>,
    /// Only cases in which the tester has this role [default: both]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Only cases about a MUST, or about a SHOULD [default: both]
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Only cases about an RFC (5044), a section (5044-7.1) or a rule (5044-7.1.2-5); may be repeated
    #[arg(long, value_name = "CLAUSE", value_delimiter = ',')]
    clause: Vec<String>,
    /// Without these cases; may be repeated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    without: Vec<String>,
}

impl Select {
    fn selection(&self) -> Result<Selection, Failed> {
        let selection = Selection {
            families: self.family.clone(),
            cases: self.case.clone(),
            role: self.role,
            level: self.level,
            clauses: self.clause.clone(),
            without: self.without.clone(),
        };
        selection.check().map_err(usage)?;
        Ok(selection)
    }
}

/// The agent's source, so that an installed tester has it with it.
const AGENT: &str = include_str!("../../agent/agent.c");

const EXIT_FINDINGS: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_NO_DEVICE: u8 = 3;

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::List(args) => list::list(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Lint(args) => lint::main(&args),
        Command::Clauses(args) => clauses::cli::main(&args).map_err(usage),
        Command::Agent => {
            quiet(std::io::stdout().write_all(AGENT.as_bytes())).map(|()| ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|(status, error)| {
        eprintln!("dgiwarp-conform: {error}");
        ExitCode::from(status)
    })
}

/// A reader that has gone is no failure.
fn quiet(printed: std::io::Result<()>) -> Result<(), Failed> {
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err((EXIT_FINDINGS, error.to_string()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Exit status and message.
type Failed = (u8, String);

fn usage(error: impl ToString) -> Failed {
    (EXIT_USAGE, error.to_string())
}

/// Writes a file of results.
fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), Failed> {
    std::fs::write(path, contents)
        .map_err(|error| (EXIT_FINDINGS, format!("{}: {error}", path.display())))
}

fn is_standard_output(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| path.as_path() == Path::new("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let parsed = |arguments: &[&str]| {
            Cli::try_parse_from(["dgiwarp-conform", "run"].iter().chain(arguments)).is_ok()
        };
        assert!(!parsed(&[]), "no device");
        assert!(!parsed(&["--agent", "a:1"]), "no token");
        assert!(!parsed(&[
            "--target", "a:1", "--agent", "b:1", "--token", "0"
        ]));
        assert!(parsed(&["--target", "a:1"]));
        assert!(parsed(&["--target", "a:1", "--target", "b:1"]));
    }
}
