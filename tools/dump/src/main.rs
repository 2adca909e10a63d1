//! `dgiwarp-dump`: RDMA messages in recorded traffic, one line each, for a terminal. The rules that they break are shown
//! with them.
//!
//! Everything is decoded by the tester's library ([`dgiwarp_conform::trace`]); here it becomes text.

#![forbid(unsafe_code)]

mod cli;
mod fields;
mod json;
mod qlog;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use dgiwarp_conform::trace::{FileError, Item, Reader, Trace, lint};

use cli::Cli;
use qlog::Qlog;

const EXIT_UNREADABLE: u8 = 3;

fn main() -> ExitCode {
    let cli = cli::parse();
    let done = dump(&cli, &mut io::BufWriter::new(io::stdout().lock()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone.
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dgiwarp-dump: {}: {error}", cli.file.display());
            ExitCode::from(EXIT_UNREADABLE)
        }
    }
}

fn dump(cli: &Cli, out: &mut impl Write) -> Result<(), FileError> {
    let mut reader = Reader::new(lint::open(&cli.file)?)?;
    let mut qlog = cli.qlog.as_deref().map(Qlog::new).transpose()?;
    let mut trace = Trace::new();
    let mut written = Ok(());
    let mut take = |item: &Item<'_>, out: &mut _, written: &mut io::Result<()>| {
        if written.is_ok() && cli.wants(item) {
            *written = match &mut qlog {
                None => show(cli, out, item),
                Some(qlog) => qlog.take(item, |port| cli.wants_port(port)),
            };
        }
    };
    while let Some(packet) = reader.next_packet()? {
        trace.take(&packet, &mut |item| take(item, out, &mut written));
        std::mem::replace(&mut written, Ok(()))?;
        if cli.follows() {
            out.flush()?;
        }
    }
    trace.finish(&mut |item| take(item, out, &mut written));
    written?;
    if let Some(qlog) = qlog {
        qlog.finish(out)?;
    }
    out.flush()?;
    if reader.was_cut() {
        eprintln!("dgiwarp-dump: the file ends inside of a packet");
    }
    Ok(())
}

fn show(cli: &Cli, out: &mut impl Write, item: &Item<'_>) -> io::Result<()> {
    if cli.json {
        writeln!(out, "{}", json::value(item, cli.octets))
    } else {
        text::write(out, item, cli.verbose, cli.octets)
    }
}
