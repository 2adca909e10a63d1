//! Sockets as a table for people.

use std::io::{self, Write};
use std::net::SocketAddr;

use dgiwarp_socket_table::{Record, State, Way};

use crate::cli::Cli;
use crate::processes::{Process, Socket};

const COLUMNS: usize = 6;
/// Columns of numbers.
const TO_THE_RIGHT: [usize; 2] = [2, 3];

/// Name of a state, as `ss(8)` has it.
pub(crate) fn state(record: &Record) -> &'static str {
    match record.state {
        State::Listen => "LISTEN",
        // Octets prove the connection.
        State::Connecting if record.sent == 0 && record.received == 0 => "SYN-SENT",
        State::Connecting | State::Established => "ESTAB",
        State::Closing => "CLOSING",
    }
}

/// Name of a transport.
pub(crate) fn way(way: Way) -> &'static str {
    match way {
        Way::Tcp => "tcp",
        Way::Rsocket => "rsocket",
        Way::Rc => "rc",
        Way::Lane => "lane",
        Way::Udp => "udp",
        Way::Ud => "ud",
    }
}

/// An address, an IPv4 address of an IPv6 socket as such.
pub(crate) fn address(address: Option<SocketAddr>) -> Option<String> {
    let address = address?;
    let ip = address.ip().to_canonical();
    Some(if ip == address.ip() {
        address.to_string()
    } else {
        SocketAddr::new(ip, address.port()).to_string()
    })
}

fn row(process: &Process, socket: &Socket) -> [String; COLUMNS + 1] {
    let Socket { record, fd } = socket;
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let fd = or_none(fd.map(|it| it.to_string()));
    [
        state(record).to_owned(),
        way(record.way).to_owned(),
        record.received.to_string(),
        record.sent.to_string(),
        or_none(address(record.local)),
        or_none(address(record.peer)),
        match process.snapshot.reason_of(record) {
            Some(reason) => format!("{}[{}] fd {fd}: {reason}", process.name, process.pid),
            None => format!("{}[{}] fd {fd}", process.name, process.pid),
        },
    ]
}

/// Counts of a process, in a line each.
fn totals(out: &mut impl Write, process: &Process) -> io::Result<()> {
    let Process {
        pid,
        name,
        snapshot,
        ..
    } = process;
    let (upgraded, plain) = (snapshot.upgraded, snapshot.plain());
    writeln!(
        out,
        "{name}[{pid}]: {upgraded} connections upgraded, {plain} plain"
    )?;
    for reason in snapshot.reasons.iter().filter(|it| it.count > 0) {
        writeln!(out, "    {} plain: {}", reason.count, reason.text)?;
    }
    if snapshot.unrecorded > 0 {
        writeln!(
            out,
            "    {} sockets that the table has no room for",
            snapshot.unrecorded
        )?;
    }
    Ok(())
}

/// Writes the sockets that are wanted, and the counts of all processes.
pub(crate) fn write(out: &mut impl Write, cli: &Cli, processes: &[Process]) -> io::Result<()> {
    let head = ["State", "Way", "Recv", "Sent", "Local", "Peer", "Process"].map(str::to_owned);
    let mut rows = vec![head];
    for process in processes {
        let wanted = process.sockets.iter().filter(|it| cli.wants(it));
        rows.extend(wanted.map(|it| row(process, it)));
    }
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
    for row in &rows {
        for (at, width) in widths.into_iter().enumerate() {
            let cell = &row[at];
            if TO_THE_RIGHT.contains(&at) {
                write!(out, "{cell:>width$}  ")?;
            } else {
                write!(out, "{cell:<width$}  ")?;
            }
        }
        writeln!(out, "{}", row[COLUMNS])?;
    }
    for (at, process) in processes.iter().enumerate() {
        if at == 0 {
            writeln!(out)?;
        }
        totals(out, process)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_socket_table::{Reason, Snapshot};

    #[test]
    fn columns_are_aligned_and_reasons_counted() {
        let address = |text: &str| Some(text.parse().unwrap());
        let upgraded = Record {
            way: Way::Lane,
            local: address("[::ffff:127.0.0.1]:7000"),
            peer: address("127.0.0.1:41532"),
            sent: 5,
            received: 300_000,
            ..Record::default()
        };
        let plain = Record {
            state: State::Connecting,
            reason: 1,
            peer: address("[::1]:80"),
            ..Record::default()
        };
        let process = Process {
            pid: 12,
            name: "curl".to_owned(),
            sockets: vec![
                Socket {
                    record: upgraded,
                    fd: Some(7),
                },
                Socket {
                    record: plain,
                    fd: None,
                },
            ],
            snapshot: Snapshot {
                upgraded: 4,
                unrecorded: 2,
                reasons: vec![Reason {
                    text: "a rule".to_owned(),
                    count: 3,
                }],
                ..Snapshot::default()
            },
        };
        let mut out = Vec::new();
        write(&mut out, &Cli::default(), &[process]).unwrap();
        let expected = "\
State     Way     Recv  Sent  Local           Peer             Process
ESTAB     lane  300000     5  127.0.0.1:7000  127.0.0.1:41532  curl[12] fd 7
SYN-SENT  tcp        0     0  -               [::1]:80         curl[12] fd -: a rule

curl[12]: 4 connections upgraded, 3 plain
    3 plain: a rule
    2 sockets that the table has no room for
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
