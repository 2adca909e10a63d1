//! Sockets and processes as JSON, one object per line.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::Cli;
use crate::processes::{Process, Socket};
use crate::text::{address, state, way};

fn socket(process: &Process, socket: &Socket) -> Value {
    let Socket { record, fd } = socket;
    json!({
        "kind": "socket",
        "pid": process.pid,
        "program": process.name,
        "fd": fd,
        "state": state(record),
        "way": way(record.way),
        "local": address(record.local),
        "peer": address(record.peer),
        "octets_sent": record.sent,
        "octets_received": record.received,
        "reason": process.snapshot.reason_of(record),
    })
}

fn counts(process: &Process) -> Value {
    let snapshot = &process.snapshot;
    let reasons = snapshot.reasons.iter().filter(|it| it.count > 0);
    let reasons = reasons.map(|it| json!({ "reason": it.text, "connections": it.count }));
    json!({
        "kind": "process",
        "pid": process.pid,
        "program": process.name,
        "start": snapshot.start,
        "upgraded": snapshot.upgraded,
        "plain": snapshot.plain(),
        "reasons": reasons.collect::<Vec<_>>(),
        "unrecorded": snapshot.unrecorded,
    })
}

/// Writes the sockets that are wanted, and the counts of all processes.
pub(crate) fn write(out: &mut impl Write, cli: &Cli, processes: &[Process]) -> io::Result<()> {
    for process in processes {
        for wanted in process.sockets.iter().filter(|it| cli.wants(it)) {
            writeln!(out, "{}", socket(process, wanted))?;
        }
    }
    for process in processes {
        writeln!(out, "{}", counts(process))?;
    }
    Ok(())
}
