//! The command line.

use std::path::{Path, PathBuf};

use clap::Parser;
use dgiwarp_cli::{Example, Program};
use dgiwarp_conform::trace::{Item, What};

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-dump traffic.pcap",
            about: "Every startup frame, FPDU and datagram, one line each, and what of it breaks a rule.",
        },
        Example {
            line: "tcpdump -i eth0 -U -w - | dgiwarp-dump -",
            about: "The same of traffic that passes now.",
        },
        Example {
            line: "dgiwarp-dump -v --port 7174 traffic.pcapng",
            about: "All fields, under the names that the RFCs have for them, of one port.",
        },
        Example {
            line: "dgiwarp-dump --findings -x traffic.pcapng",
            about: "Only what breaks a rule, with octets.",
        },
        Example {
            line: "dgiwarp-dump --json traffic.pcapng | jq 'select(.kind == \"fpdu\").fields.MSN'",
            about: "For programs: one JSON object per line.",
        },
        Example {
            line: "dgiwarp-dump --qlog drawn captures/qp-4711-50021-0123456789abcdef.pcapng",
            about: "Associations of reliable datagrams for qvis, which draws windows, round-trip times and losses over time.",
        },
    ],
    sections: &[
        (
            "Lines",
            "Time (UTC), sender and receiver, then a startup frame of MPA, an FPDU with its place in the stream, or a datagram.\n\
             CRC is good, BAD, or off where the connection uses none.\n\
             Lines that begin with ! name a rule that the line before breaks, lines with ~ what cannot be judged, because the file lacks it.",
        ),
        (
            "Exit status",
            "0 the file was read, whatever is in it; 2 usage; 3 it cannot be read.",
        ),
    ],
    see_also: &["dgiwarp(7)", "dgiwarp-conform(1)", "tcpdump(8)"],
    ..Program::EMPTY
};

/// Shows RDMA messages in recorded traffic: iWARP over TCP, and datagrams of dgiwarp.
#[derive(Debug, Parser)]
#[command(name = "dgiwarp-dump", version)]
pub(crate) struct Cli {
    /// Capture file, pcap or pcapng (- = standard input, shown as it comes)
    pub(crate) file: PathBuf,
    /// All fields, each on a line
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The octets too
    #[arg(short = 'x', long)]
    pub(crate) octets: bool,
    /// One JSON object per line, with all fields
    #[arg(long)]
    pub(crate) json: bool,
    /// qlog files of reliable datagrams into this folder, one for each end of an association
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["verbose", "octets", "json", "connection", "findings"])]
    pub(crate) qlog: Option<PathBuf>,
    /// Only what this port sends or receives; may be repeated
    #[arg(short, long, value_name = "PORT", value_delimiter = ',')]
    port: Vec<u16>,
    /// Only this TCP connection, counted from 1; may be repeated
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    connection: Vec<u64>,
    /// Only what breaks a rule or cannot be judged
    #[arg(long)]
    findings: bool,
}

impl Cli {
    /// Whether lines are wanted as soon as their packets are there.
    pub(crate) fn follows(&self) -> bool {
        self.file == Path::new("-")
    }

    /// Whether traffic of a port is wanted.
    pub(crate) fn wants_port(&self, port: u16) -> bool {
        self.port.is_empty() || self.port.contains(&port)
    }

    /// Whether an item is to be shown.
    pub(crate) fn wants(&self, item: &Item<'_>) -> bool {
        let port = self.wants_port(item.from.port()) || self.wants_port(item.to.port());
        let connection = self.connection.is_empty() || self.connection.contains(&item.connection);
        let finding = matches!(item.what, What::Finding(_) | What::Unjudged(_));
        port && connection && (finding || !self.findings)
    }
}

pub(crate) fn parse() -> Cli {
    dgiwarp_cli::parse(&PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["dgiwarp-dump", "-p", "1,2", "-vx", "-"]).unwrap();
        assert!(cli.follows() && cli.verbose && cli.octets);
        assert!(Cli::try_parse_from(["dgiwarp-dump"]).is_err());
    }
}
