//! `cargo xtask`: the command line of the workspace's tasks.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use xtask::dist::{self, Build};
use xtask::groups::{self, Name};
use xtask::install::{self, Place};
use xtask::interrupt::Interrupt;
use xtask::lab::options::RelayArgs;
use xtask::lab::{Config, Lab, Session, Wait};
use xtask::runner::{self, Options};
use xtask::{conformance, fuzz, pictures, workspace};

const EXAMPLES: &str = "\
Examples:
  cargo xtask test
      Every check and test.
  cargo xtask test unit -p dgiwarp-ddp
      The short round for one package.
  cargo xtask lab -- target/release/dgiwarp-perf server --token lab -- target/release/dgiwarp-perf client 10.99.0.1 --token lab
      Measure between two network namespaces.
  cargo xtask install --prefix ~/.local
      Install for this user alone.";

const TEST_EXAMPLES: &str = "\
Examples:
  cargo xtask test
      All groups but soak.
  cargo xtask test unit -p dgiwarp-ddp
      The short round for one package.
  cargo xtask test --soak --no-skip
      Everything, and what cannot run here counts as failed.";

const LAB_EXAMPLES: &str = "\
Examples:
  cargo xtask lab -- ping -c 1 10.99.0.2 -- ping -c 1 10.99.0.1
      See that the two reach each other.
  cargo xtask lab --mtu 9000 --wait-port 18515 -- target/release/dgiwarp-perf server --token lab -- target/release/dgiwarp-perf client 10.99.0.1 --token lab
      Measure over a link of another MTU.
  cargo xtask lab --delay 25ms --loss 1% --rate 1gbit --wait-port 18515 -- target/release/dgiwarp-perf server --token lab -- target/release/dgiwarp-perf client 10.99.0.1 --token lab --transport rd --mode bw
      Over a long link that loses packets.
  cargo xtask lab --wait-port 7471 -- target/release/dgiwarp-run rdma_server -- target/release/dgiwarp-run rdma_client -s 10.99.0.1
      Two verbs programs on two hosts.";

const DIST_EXAMPLES: &str = "\
Examples:
  cargo xtask dist
      Print the paths of tree, archive and Debian package.
  cargo xtask dist && tar -C ~ -xf dist/dgiwarp-*.tar.gz
      The tree works wherever it is put.
  cargo xtask dist && sudo apt-get install ./dist/dgiwarp_*.deb
      Install it as a package.";

const INSTALL_EXAMPLES: &str = "\
Examples:
  cargo xtask install --prefix ~/.local
      For this user; programs are found if ~/.local/bin is in PATH.
  sudo env PATH=$PATH cargo xtask install
      For everybody, in /usr/local.
  DESTDIR=stage cargo xtask install --prefix /usr
      Below another root, to make a package of it.";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  cargo xtask uninstall --prefix ~/.local
      What install put there, and nothing else.
  sudo env PATH=$PATH cargo xtask uninstall
      From /usr/local.
  DESTDIR=stage cargo xtask uninstall --prefix /usr
      From below another root.";

const CONFORMANCE_EXAMPLES: &str = "\
Examples:
  cargo xtask conformance
      How many rules there are, and how many are tested.
  cargo xtask conformance --rfc 5044
      One RFC's.
  cargo xtask conformance --untested
      The rules that nothing tests yet.";

const PICTURES_EXAMPLES: &str = "\
Examples:
  cargo xtask pictures
      Draw what changed.
  cargo xtask pictures --check
      Only name the pictures that are not fresh.
  cargo xtask pictures && rsvg-convert docs/pictures/ud-send.svg -o ud-send.png
      See one as PNG.";

const FUZZ_EXAMPLES: &str = "\
Examples:
  cargo xtask fuzz
      Every target for an hour.
  cargo xtask fuzz --minutes 5 deframer
      One of them, for a while.
  cargo xtask fuzz --minutes 600 connection datagrams
      Over night.";

/// Tasks of the dgiwarp workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every check and test, and report.
    #[command(after_help = TEST_EXAMPLES)]
    Test(TestArgs),
    /// Run a server and a client command in two network namespaces joined by a link.
    #[command(override_usage = "cargo xtask lab [OPTIONS] -- SERVER… -- CLIENT…", after_help = LAB_EXAMPLES)]
    Lab(Box<LabArgs>),
    /// Build in release mode and lay out what is given away, below dist/: a tree, an archive of it, a Debian package.
    #[command(after_help = DIST_EXAMPLES)]
    Dist,
    /// Print how many rules of the RFCs are tested, and how.
    #[command(disable_help_flag = true, after_help = CONFORMANCE_EXAMPLES)]
    Conformance {
        /// --rfc NUMBER, --case CASE, --untested, --json: as for `dgiwarp-conform clauses`.
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS"
        )]
        options: Vec<OsString>,
    },
    /// Draw the pictures of the documents: SVG from the text files in docs/pictures.
    #[command(after_help = PICTURES_EXAMPLES)]
    Pictures {
        /// Write nothing; fail if a picture is not fresh.
        #[arg(long)]
        check: bool,
    },
    /// Run the fuzz targets with `cargo fuzz`, one after the other, and say what was found.
    #[command(after_help = FUZZ_EXAMPLES)]
    Fuzz {
        /// Minutes for each target.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// The targets; none: all.
        #[arg(value_name = "TARGET")]
        targets: Vec<String>,
    },
    /// Build in release mode and install. DESTDIR in the environment goes before the prefix.
    #[command(after_help = INSTALL_EXAMPLES)]
    Install(PlaceArgs),
    /// Remove what `install` installed.
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall(PlaceArgs),
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
    /// Test programs that run at a time, but for some that run alone.
    #[arg(long, short, value_name = "N", default_value_t = runner::JOBS, value_parser = jobs)]
    jobs: usize,
    /// Only the tests of this package; repeatable.
    #[arg(long, short, value_name = "PACKAGE")]
    package: Vec<String>,
    /// build, unit, process, debian, interop, soak; none: all but soak.
    #[arg(value_name = "GROUP", value_parser = group)]
    groups: Vec<Name>,
}

#[derive(Debug, Args)]
struct PlaceArgs {
    /// Folder above bin, lib and share.
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local")]
    prefix: PathBuf,
}

impl PlaceArgs {
    fn place(&self) -> Result<Place, Box<dyn Error>> {
        // Installations name no file by a path that depends on where the command was given.
        let prefix = std::path::absolute(&self.prefix)?;
        Ok(Place::new(&prefix, install::destdir().as_deref())?)
    }
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
    #[command(flatten)]
    relay: RelayArgs,
    /// Server command, then `--`, then client command. Their environment has LAB_SERVER (10.99.0.1) and
    /// LAB_CLIENT (10.99.0.2), and both with a 6 appended (fd99::1, fd99::2).
    #[arg(last = true, required = true, value_name = "SERVER… -- CLIENT…")]
    commands: Vec<OsString>,
}

fn jobs(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(jobs) if (1..=64).contains(&jobs) => Ok(jobs),
        Ok(_) | Err(_) => Err("a number from 1 to 64".to_owned()),
    }
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
    let link = match args.relay.link() {
        Ok(link) => link,
        Err(contradiction) => {
            eprintln!("error: {contradiction}");
            return Ok(2);
        }
    };
    let interrupt = Interrupt::install()?;
    let lab = Lab::new(&Config {
        mtu: args.mtu,
        wire_like: args.wire_like,
        link,
    })?;
    let wait = Wait {
        port: args.wait_port,
        limit: Duration::from_secs(args.wait),
    };
    let session = Session {
        server,
        client,
        wait,
    };
    let status = session.run(&lab, &interrupt);
    if let Some(relay) = lab.relay() {
        let report = relay.report()?;
        eprintln!("relay: to server: {}", report.to_server);
        eprintln!("relay: to client: {}", report.to_client);
        eprintln!("relay: seed {}", relay.seed());
    }
    Ok(status?)
}

fn run(cli: Cli) -> Result<i32, Box<dyn Error>> {
    match cli.task {
        Task::Test(args) => runner::run(
            &Options {
                soak: args.soak,
                no_skip: args.no_skip,
                no_install: args.no_install,
                jobs: args.jobs,
                packages: args.package,
                groups: args.groups,
            },
            &Interrupt::install()?,
        ),
        Task::Lab(args) => lab(&args),
        Task::Dist => {
            let dist = dist::make(&workspace::root().join("dist"), Build::Release)?;
            println!("{}\n{}", dist.tree.display(), dist.archive.display());
            match dist.package {
                Some(package) => println!("{}", package.display()),
                None => eprintln!("no Debian package: there is no dpkg-deb here"),
            }
            Ok(0)
        }
        Task::Install(args) => {
            let place = args.place()?;
            place.check()?;
            let scratch = tempfile::tempdir()?;
            let tree = scratch.path().join("tree");
            dist::make_tree(&tree)?;
            let count = place.install(&tree)?;
            let bin = place.root().join("bin");
            println!(
                "{count} files installed; the programs are in {}",
                bin.display()
            );
            Ok(0)
        }
        Task::Uninstall(args) => {
            let place = args.place()?;
            let count = place.uninstall()?;
            println!("{count} files removed from {}", place.root().display());
            Ok(0)
        }
        Task::Fuzz { minutes, targets } => fuzz::run(&targets, minutes),
        Task::Pictures { check } => {
            let mut status = 0;
            for picture in pictures::all(&workspace::root().join(pictures::FOLDER))? {
                if picture.is_fresh() {
                    continue;
                }
                println!("{}", picture.path.display());
                if check {
                    status = 1;
                } else {
                    picture.write()?;
                }
            }
            Ok(status)
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
    use clap::CommandFactory;

    #[test]
    fn every_task_has_examples_and_a_version() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        command.build();
        for task in command
            .get_subcommands()
            .filter(|it| it.get_name() != "help")
        {
            let help = task.get_after_help().map(ToString::to_string);
            let examples = help.map_or(0, |help| help.matches("\n  ").count());
            // Each is a line and what it does.
            assert!(examples >= 6, "{}", task.get_name());
            assert!(task.get_version().is_some(), "{}", task.get_name());
        }
    }

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
