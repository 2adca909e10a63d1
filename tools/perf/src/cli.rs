//! The command line. Usage errors end with status 2, as clap does it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dgiwarp_cli::{Example, Program};
use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Op, Transport};
use crate::endpoint::MAX_SIZE;
use crate::machine::host::{Pin, Wait};

/// The control port, on the server.
pub(crate) const DEFAULT_PORT: u16 = 18515;

/// The receive buffer to ask the kernel for, per UDP socket.
pub(crate) const DEFAULT_RECEIVE_BUFFER: u64 = 4 << 20;

/// The largest share of datagrams that can be dropped on purpose.
const MAX_LOSS: f64 = 0.5;

/// The longest message for `programs`.
const MAX_PROGRAM_SIZE: u64 = 64 << 10;

/// Help and manual page besides the options.
pub(crate) const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-perf",
            about: "Measure everything on this machine, write ./dgiwarp-perf-report.html.",
        },
        Example {
            line: "dgiwarp-perf --quick --json -",
            about: "The same within 30 seconds, as JSON on standard output.",
        },
        Example {
            line: "dgiwarp-perf --suite --json suite.json",
            about: "Every goal in one run of a quarter of an hour, write ./dgiwarp-perf-suite.html.",
        },
        Example {
            line: "dgiwarp-perf --suite --quick --only ud-latency,rc-latency",
            about: "Some of them, in a hurry.",
        },
        Example {
            line: "dgiwarp-perf --loss 0,0.001,0.01,0.05 --size 4K,64K,1M",
            about: "The rest of messages when the receiver drops that share of the datagrams.",
        },
        Example {
            line: "dgiwarp-perf --op multicast --receivers 3",
            about: "Goodput to one, two and three processes of this machine at once.",
        },
        Example {
            line: "dgiwarp-perf --transport rc --op write --mode lat --size 1..1K",
            about: "Half round trips of RDMA Writes over TCP, beside raw TCP.",
        },
        Example {
            line: "dgiwarp-perf server --token WORD            (on one machine)\n\
                   dgiwarp-perf client HOST --token WORD --transport ud --op write-record --mode bw --size 64K,1M",
            about: "Two machines: Write-Record goodput beside raw UDP, for two message sizes.",
        },
    ],
    of_subcommands: &[
        (
            "server",
            &[
                Example {
                    line: "dgiwarp-perf server",
                    about: "Wait for clients on all addresses, until it is interrupted; print the token that they have to give.",
                },
                Example {
                    line: "dgiwarp-perf server --bind 10.0.0.1 --token WORD",
                    about: "Wait for clients of this address that give this token.",
                },
                Example {
                    line: "dgiwarp-perf server --bind ::1 --port 5001",
                    about: "Another control port; clients name it too.",
                },
            ],
        ),
        (
            "client",
            &[
                Example {
                    line: "dgiwarp-perf client HOST --token WORD",
                    about: "Measure everything against the server on HOST.",
                },
                Example {
                    line: "dgiwarp-perf client HOST --transport ud --op send --mode lat --size 64",
                    about: "One row and its raw baseline.",
                },
                Example {
                    line: "dgiwarp-perf client HOST --quick --json results.json --html report.html",
                    about: "Keep the results.",
                },
            ],
        ),
        (
            "programs",
            &[
                Example {
                    line: "dgiwarp-perf programs",
                    about: "ib_write_lat, ib_send_lat with and without -e, and ib_read_lat, beside raw TCP that spins and that sleeps.",
                },
                Example {
                    line: "dgiwarp-perf programs --size 4K --rounds 15",
                    about: "Longer messages, and steadier medians.",
                },
                Example {
                    line: "dgiwarp-perf programs --json - --pin 2,3",
                    about: "Results for other programs, from two CPUs that nobody else uses.",
                },
            ],
        ),
    ],
    sections: &[
        (
            "What is measured",
            "Latency is half of the round trip; goodput is payload counted at the receiver, in 1e9 bits per second in JSON and 1e9 bytes per second in the table. \
             Every dgiwarp row runs in turns with its raw baseline (A B A B); a ratio is the median of the ratios of neighbouring rounds.",
        ),
        (
            "Suite",
            "--suite makes its links itself: a veth pair between two network namespaces that last as long as the run, as root or in a user namespace, with ip(8) and \
             ethtool(8). ucx_perftest, fi_pingpong and perftest's programs take part if they are installed. A row that cannot be measured says why. \
             Bars that are missed do not change the exit status.",
        ),
        (
            "Exit status",
            "0 ok, 1 measurement or peer failed, 2 usage, 130 interrupted.",
        ),
    ],
    see_also: &["dgiwarp(7)", "dgiwarp-run(1)"],
    ..Program::EMPTY
};

/// Latency, bandwidth and message rate of dgiwarp beside raw sockets in the same run
#[derive(Debug, Parser)]
#[command(name = "dgiwarp-perf", version)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// Without a command: start a server on this machine and measure everything.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Measure every quantity that dgiwarp has a goal for, beside raw sockets and what else is installed, and judge it
    #[arg(long, conflicts_with_all = ["transport", "op", "mode", "size", "iters", "window", "rcvbuf", "loss", "mtu",
          "receivers", "group", "same_host", "wait", "check", "post_list", "no_autocork", "seed"])]
    pub(crate) suite: bool,

    /// Only these quantities of the suite (see --suite --list); a list or repeated
    #[arg(long, value_name = "ID", value_delimiter = ',', requires = "suite")]
    pub(crate) only: Vec<String>,

    /// Options of the run.
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Wait for clients and take part in their measurements
    Server(ServerArgs),
    /// Measure against a server
    Client(Box<ClientArgs>),
    /// Latency of perftest's own programs under dgiwarp-run, in turns with raw TCP
    Programs(ProgramsArgs),
    /// Run the groups of one place for a suite
    #[command(hide = true)]
    Part,
    /// Play many peers for a suite
    #[command(hide = true)]
    Crowd,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address to listen on [default: all]
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<IpAddr>,
    /// Control port; the data ports are chosen by the kernel
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) port: u16,
    /// Word that clients have to give (client --token) [default: one that is printed, unless only this machine can connect]
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Most memory of all endpoints together
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub(crate) memory: u64,
    /// Serve one client and end with the parent process
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramsArgs {
    /// Octets of a message
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_program_size)]
    pub(crate) size: u64,
    /// Rounds; raw TCP and each program run once in each
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Messages of each run
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(5..=10_000_000))]
    pub(crate) iters: u32,
    /// CPUs of client and server, or none [default: the first two allowed ones]
    #[arg(long, value_name = "A,B|none", value_parser = parse_pin)]
    pub(crate) pin: Option<PinPair>,
    /// The program that puts others on dgiwarp [default: dgiwarp-run beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) runner: Option<PathBuf>,
    /// Write the results as one JSON document (- = standard output, and nothing else there)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// Name or address of the server
    pub(crate) host: String,
    /// Control port of the server
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) port: u16,
    /// Word that the server has printed, or was given
    #[arg(
        long,
        value_name = "TOKEN",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) token: String,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Options of a measurement and of its reports.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Only this transport
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// Only this operation
    #[arg(long, value_enum)]
    pub(crate) op: Option<Op>,
    /// Only this mode
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Message sizes: a list (1K,64K,1M) or a range in factors of 4 (1..1M)
    #[arg(long, value_name = "SIZES", value_parser = parse_sizes)]
    pub(crate) size: Option<Sizes>,
    /// Messages per row, over all its rounds [default: as many as fit the time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: Option<u64>,
    /// Paired rounds [default: 15 and more for latency, 5 and more for streams]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Bytes in flight [default: over UDP a quarter of the receive buffer, at most 256K, and at most one
    /// datagram per KiB of it; over TCP two messages, at least 256K and at most 4M; always 4096 messages at most]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) window: Option<u64>,
    /// Receive buffer to ask the kernel for, per UDP socket; TCP's are the kernel's to size [default: 4M]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) rcvbuf: Option<u64>,
    /// Measure what is left when the receiver drops this share of the datagrams, 0 to 0.5; a list
    /// (0,0.001,0.01,0.05) or repeated
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = parse_loss)]
    pub(crate) loss: Vec<f64>,
    /// Which datagrams are dropped: the same seed drops the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Largest MTU assumed of the path of datagrams, 576 to 65536 [default: the path's own; 1500 for --loss]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65_536))]
    pub(crate) mtu: Option<u32>,
    /// Receivers of broadcast and multicast, each a process on this machine: rows for 1, 2, … so many
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) receivers: u32,
    /// Address to send to with --op broadcast or multicast [default: 127.255.255.255, 239.255.18.14]
    #[arg(long, value_name = "ADDR", requires = "op")]
    pub(crate) group: Option<Ipv4Addr>,
    /// Rows beside those of sockets, in the same rounds, where both sides are on this host: ring has one through shared memory behind each one of rc, ud and rd, and
    /// plain shared memory; direct has one-sided copies behind rc write and read; a list or repeated [default: off]
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub(crate) same_host: Vec<SameHost>,
    /// CPUs of client and server, or none [default: the first two allowed ones]
    #[arg(long, value_name = "A,B|none", value_parser = parse_pin)]
    pub(crate) pin: Option<PinPair>,
    /// How to wait for data [default: spin if each side has a CPU of its own]
    #[arg(long, value_enum)]
    pub(crate) wait: Option<Wait>,
    /// Compare the contents of everything that arrives
    #[arg(long)]
    pub(crate) check: bool,
    /// Messages that queue pairs post in one call, as a list of work requests; rate mode, up to 1 KiB each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) post_list: u32,
    /// Have queue pairs send each message at once, also where several are posted before the next poll (DGIWARP_AUTOCORK=0)
    #[arg(long)]
    pub(crate) no_autocork: bool,
    /// Fewer sizes and shorter rounds: done within 30 seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the results as one JSON document (- = standard output, and nothing else there)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a report with plots, a single file that needs no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// List what can be measured, and end
    #[arg(long)]
    pub(crate) list: bool,
}

/// Rows within this host beside those of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SameHost {
    /// None.
    Off,
    /// Octets through shared memory.
    Ring,
    /// Copies by the initiator, without the target's program.
    Direct,
}

impl RunArgs {
    /// Whether JSON goes to standard output, which then belongs to it.
    pub(crate) fn json_on_stdout(&self) -> bool {
        self.json
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
    }

    /// The CPUs of both sides.
    pub(crate) fn pins(&self) -> PinPair {
        self.pin.unwrap_or_default()
    }

    /// The time that the groups of a run without own counts share.
    pub(crate) const fn time_limit(&self) -> Duration {
        if self.quick {
            Duration::from_secs(26)
        } else {
            Duration::from_secs(205)
        }
    }
}

/// Message sizes in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

/// CPUs of the two sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinPair {
    /// The client's CPU.
    pub(crate) client: Pin,
    /// The server's CPU.
    pub(crate) server: Pin,
}

fn parse_pin(text: &str) -> Result<PinPair, String> {
    if text == "none" {
        return Ok(PinPair {
            client: Pin::None,
            server: Pin::None,
        });
    }
    let cpu = |part: &str| part.trim().parse().map(Pin::Cpu).ok();
    match text.split_once(',').map(|(a, b)| (cpu(a), cpu(b))) {
        Some((Some(client), Some(server))) => Ok(PinPair { client, server }),
        _ => Err("expected two CPU numbers such as 0,1, or none".to_owned()),
    }
}

/// A share of datagrams to drop.
fn parse_loss(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if (0.0..=MAX_LOSS).contains(&share) => Ok(share),
        _ => Err(format!(
            "expected a share of 0 to {MAX_LOSS}, such as 0.01 for one datagram in a hundred"
        )),
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        Some((at, 'g' | 'G')) => (text.get(..at), 30),
        _ => (Some(text), 0),
    };
    let bytes = digits
        .and_then(|digits| digits.parse::<u64>().ok())
        .and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if (1..=MAX_SIZE).contains(&bytes) => Ok(bytes),
        _ => Err("expected 1 to 1G bytes, such as 64, 4K or 1M".to_owned()),
    }
}

/// A size that every program sends without an answer, and raw TCP in one call.
fn parse_program_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes > MAX_PROGRAM_SIZE {
        return Err("expected at most 64K bytes".to_owned());
    }
    Ok(bytes)
}

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => sizes.push(parse_size(part)?),
            Some((first, last)) => {
                let (first, last) = (parse_size(first)?, parse_size(last)?);
                if first > last {
                    return Err("a range goes from small to large".to_owned());
                }
                let steps = std::iter::successors(Some(first), |size| size.checked_mul(4));
                sizes.extend(steps.take_while(|&size| size < last));
                sizes.push(last);
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Sizes(sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        dgiwarp_cli::command::<Cli>(&PROGRAM).debug_assert();
        for (name, examples) in PROGRAM.of_subcommands {
            assert!(examples.len() >= 3, "{name}");
        }
    }

    #[test]
    fn sizes_are_lists_and_ranges() {
        assert_eq!(
            parse_sizes("1K,64K,1M").unwrap(),
            Sizes(vec![1024, 65_536, 1 << 20])
        );
        assert_eq!(parse_sizes("1..64").unwrap(), Sizes(vec![1, 4, 16, 64]));
        assert_eq!(parse_sizes("1..100,7").unwrap().0, [1, 4, 7, 16, 64, 100]);
        assert_eq!(parse_sizes("1..1M").unwrap().0.len(), 11);
        for bad in ["", "0", "1..", "64..1", "2G", "x", "1K,", "-1"] {
            assert!(parse_sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn losses_are_lists_of_shares() {
        let parsed = |line: &str| {
            Cli::try_parse_from(std::iter::once("dgiwarp-perf").chain(line.split(' ')))
                .map(|cli| cli.run.loss)
        };
        assert_eq!(parsed("--loss 0,0.01,5e-2").unwrap(), [0.0, 0.01, 0.05]);
        assert_eq!(parsed("--loss 0.5 --loss 0").unwrap(), [0.5, 0.0]);
        for bad in ["-0.1", "0.51", "1", "NaN", "inf", "1%", "0.1,,0.2", ""] {
            assert!(parsed(&format!("--loss={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn pins_are_two_cpus_or_none() {
        assert_eq!(
            parse_pin("2,3").unwrap(),
            PinPair {
                client: Pin::Cpu(2),
                server: Pin::Cpu(3)
            }
        );
        assert_eq!(parse_pin("none").unwrap().client, Pin::None);
        assert!(parse_pin("0").is_err());
        assert!(parse_pin("0,x").is_err());
    }

    #[test]
    fn a_bare_command_line_and_both_commands_parse() {
        let bare = Cli::try_parse_from(["dgiwarp-perf", "--quick", "--json", "-"]).unwrap();
        assert!(bare.command.is_none() && bare.run.quick && bare.run.json_on_stdout());
        let client = "dgiwarp-perf client host --transport ud --op write-record --mode bw";
        let client = Cli::try_parse_from(client.split(' ')).unwrap();
        assert!(matches!(client.command, Some(Command::Client(_))));
        let server = Cli::try_parse_from(["dgiwarp-perf", "server"]).unwrap();
        let Some(Command::Server(server)) = server.command else {
            panic!("not a server");
        };
        assert_eq!(server.port, DEFAULT_PORT);
    }
}
