//! The command line.

use clap::Parser;
use dgiwarp_cli::{Example, Program};
use dgiwarp_socket_table::{State, Way};

use crate::processes::Socket;

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-ss",
            about: "Connections of all processes that the user may look at, and how many of each stayed plain, and why.",
        },
        Example {
            line: "dgiwarp-ss -l",
            about: "Listening sockets, and whether they take rsockets.",
        },
        Example {
            line: "dgiwarp-ss -a -p 4711 --plain",
            about: "Sockets of one process that are the system's, with the reason.",
        },
        Example {
            line: "dgiwarp-ss --json | jq 'select(.kind == \"socket\" and .way == \"tcp\").reason'",
            about: "For programs: one JSON object per line.",
        },
    ],
    sections: &[
        (
            "Columns",
            "State: LISTEN, SYN-SENT (a plain connection that the program has begun and not used), ESTAB, CLOSING (closed by the program, or its sending direction is).\n\
             Way: lane (rsocket, shared memory of one host), rc (rsocket, iWARP over TCP), rsocket (a listener that takes them), tcp (the system's); of UDP sockets lane or ud (with a queue pair, as far as peers have one), udp (the system's).\n\
             Recv, Sent: octets that the program has received and sent.\n\
             Process: name, process number, descriptor (- where it is closed); then the reason of a socket that is the system's.",
        ),
        (
            "Exit status",
            "0, also where there is nothing to show; 2 usage; 3 a process of -p is not there, has no such sockets, or is another user's.",
        ),
    ],
    see_also: &["dgiwarp-run(1)", "dgiwarp(7)", "ss(8)"],
    ..Program::EMPTY
};

/// Show the sockets of programs that run under dgiwarp-run --sockets
#[derive(Debug, Default, Parser)]
#[command(name = "dgiwarp-ss", version)]
pub(crate) struct Cli {
    /// Listening sockets alone
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Listening sockets and connections; without it, connections
    #[arg(short, long)]
    pub(crate) all: bool,
    /// For users of ss: addresses and ports are always numbers
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// Only this process; may be repeated
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pub(crate) pid: Vec<u32>,
    /// Only sockets that are the system's
    #[arg(long)]
    pub(crate) plain: bool,
    /// One JSON object per line: sockets, then processes with their counts
    #[arg(long)]
    pub(crate) json: bool,
}

impl Cli {
    /// Whether a socket is to be shown.
    pub(crate) fn wants(&self, socket: &Socket) -> bool {
        let listens = socket.record.state == State::Listen;
        let kind = self.all || listens == self.listening;
        kind && (!self.plain || matches!(socket.record.way, Way::Tcp | Way::Udp))
    }
}

pub(crate) fn parse() -> Cli {
    dgiwarp_cli::parse(&PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use dgiwarp_socket_table::Record;

    #[test]
    fn the_command_line_is_consistent_and_chooses_sockets() {
        Cli::command().debug_assert();
        let of = |state, way| Socket {
            record: Record {
                state,
                way,
                ..Record::default()
            },
            fd: None,
        };
        let sockets = [
            of(State::Listen, Way::Rsocket),
            of(State::Listen, Way::Tcp),
            of(State::Established, Way::Lane),
            of(State::Closing, Way::Tcp),
        ];
        for (words, wanted) in [
            (&[][..], [false, false, true, true]),
            (&["-l"], [true, true, false, false]),
            (&["-an"], [true, true, true, true]),
            (&["--plain"], [false, false, false, true]),
            (&["-l", "--plain"], [false, true, false, false]),
        ] {
            let words = ["dgiwarp-ss"].iter().chain(words);
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(sockets.each_ref().map(|it| cli.wants(it)), wanted);
        }
        let cli = Cli::try_parse_from(["dgiwarp-ss", "-p", "1,2", "-p3", "--json"]).unwrap();
        assert_eq!(cli.pid, [1, 2, 3]);
        assert!(Cli::try_parse_from(["dgiwarp-ss", "-la"]).is_err());
    }
}
