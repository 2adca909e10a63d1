//! `cargo xtask`: the command line of the workspace's tasks.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use xtask::groups::{self, Name};
use xtask::interrupt::Interrupt;
use xtask::lab::{Config, Lab, Session, Wait};
use xtask::runner::{self, Options};
use xtask::{conformance, dist, workspace};

/// Tasks of the dgiwarp workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every check and test, and report.
    Test(TestArgs),
    /// Run a server and a client command in two network namespaces joined by a link.
    #[command(override_usage = "cargo xtask lab [OPTIONS] -- SERVER… -- CLIENT…")]
    Lab(LabArgs),
    /// Build in release mode and lay out what is given away, below dist/.
    Dist,
    /// Print how many rules of the RFCs are tested, and how.
    #[command(disable_help_flag = true)]
    Conformance {
        /// --rfc NUMBER, --case CASE, --untested, --json: as for `dgiwarp-conform clauses`.
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS"
        )]
        options: Vec<OsString>,
    },
}

#[derive(Debug, Args)]
struct TestArgs {
    /// Run the long tests too.
    #[arg(long)]
    soak: bool,
    /// Count a test that finds something missing on this machine as failed.
    #[arg(long)]
    no_skip: bool,
    /// Never install Debian packages; only say what is missing.
    #[arg(long)]
    no_install: bool,
    /// Only the tests of this package; repeatable.
    #[arg(long, short, value_name = "PACKAGE")]
    package: Vec<String>,
    /// build, unit, process, debian, interop, soak; none: all but soak.
    #[arg(value_name = "GROUP", value_parser = group)]
    groups: Vec<Name>,
}

#[derive(Debug, Args)]
struct LabArgs {
    /// MTU of both ends of the link, in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=65_535))]
    mtu: u32,
    /// Segment before the link, as for a wire: TSO, GSO and UDP segmentation offload off, GRO on.
    #[arg(long)]
    wire_like: bool,
    /// Start the client when something listens on this TCP or UDP port; without it, on any port.
    #[arg(long, value_name = "PORT")]
    wait_port: Option<u16>,
    /// Give up when the server is not up after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Server command, then `--`, then client command. Their environment has DGIWARP_LAB_SERVER (10.99.0.1) and
    /// DGIWARP_LAB_CLIENT (10.99.0.2), and both with a 6 appended (fd99::1, fd99::2).
    #[arg(last = true, required = true, value_name = "SERVER… -- CLIENT…")]
    commands: Vec<OsString>,
}

fn group(word: &str) -> Result<Name, String> {
    groups::by_word(word).ok_or_else(|| {
        let words: Vec<_> = groups::GROUPS.iter().map(|group| group.word).collect();
        format!("the groups are {}", words.join(", "))
    })
}

/// Splits `SERVER… -- CLIENT…`; `None` if either part is missing.
fn server_and_client(commands: &[OsString]) -> Option<(&[OsString], &[OsString])> {
    let middle = commands.iter().position(|word| word == "--")?;
    let (server, rest) = commands.split_at(middle);
    let (_, client) = rest.split_first()?;
    (!server.is_empty() && !client.is_empty()).then_some((server, client))
}

fn lab(args: &LabArgs) -> Result<i32, Box<dyn Error>> {
    let Some((server, client)) = server_and_client(&args.commands) else {
        eprintln!("usage: cargo xtask lab [OPTIONS] -- SERVER… -- CLIENT…");
        return Ok(2);
    };
    let interrupt = Interrupt::install()?;
    let lab = Lab::new(&Config {
        mtu: args.mtu,
        wire_like: args.wire_like,
    })?;
    let wait = Wait {
        port: args.wait_port,
        limit: Duration::from_secs(args.wait),
    };
    Ok(Session {
        server,
        client,
        wait,
    }
    .run(&lab, &interrupt)?)
}

fn run(cli: Cli) -> Result<i32, Box<dyn Error>> {
    match cli.task {
        Task::Test(args) => runner::run(
            &Options {
                soak: args.soak,
                no_skip: args.no_skip,
                no_install: args.no_install,
                packages: args.package,
                groups: args.groups,
            },
            &Interrupt::install()?,
        ),
        Task::Lab(args) => lab(&args),
        Task::Dist => {
            let dist = dist::make(&workspace::root().join("dist"))?;
            println!("{}\n{}", dist.tree.display(), dist.archive.display());
            Ok(0)
        }
        Task::Conformance { options } => Ok(conformance::run(&options)?),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(status) => u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_two_commands_of_a_lab_are_split() {
        let cli = Cli::try_parse_from(words(
            "xtask lab --mtu 9000 -- perf server -x -- perf client --op send",
        ))
        .unwrap();
        let Task::Lab(args) = cli.task else {
            panic!("not a lab: {:?}", cli.task)
        };
        assert_eq!(args.mtu, 9000);
        let (server, client) = server_and_client(&args.commands).unwrap();
        assert_eq!(server, words("perf server -x"));
        assert_eq!(client, words("perf client --op send"));
    }

    #[test]
    fn a_lab_needs_both_commands() {
        assert!(server_and_client(&words("perf server")).is_none());
        assert!(server_and_client(&words("perf server --")).is_none());
        assert!(server_and_client(&words("-- client")).is_none());
        assert!(Cli::try_parse_from(words("xtask lab --mtu 10 -- a -- b")).is_err());
    }

    #[test]
    fn groups_are_named_by_their_word() {
        let cli = Cli::try_parse_from(words("xtask test --no-skip unit debian")).unwrap();
        let Task::Test(args) = cli.task else {
            panic!("not a test: {:?}", cli.task)
        };
        assert_eq!(args.groups, [Name::Unit, Name::Debian]);
        assert!(args.no_skip && !args.soak);
        assert!(Cli::try_parse_from(words("xtask test all")).is_err());
    }
}
