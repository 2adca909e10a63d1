//! `dgiwarp-conform lint`: the findings of a capture file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::{FileError, Item, Keyword, Reader, Trace, What};
use crate::wire::hex;

/// Findings of one rule in one connection that are shown; the others are counted.
const SHOWN: u64 = 10;
/// Pairs of rule and connection that are told apart.
const TOLD_APART: usize = 100_000;

const EXIT_FINDINGS: u8 = 1;
const EXIT_NOTHING: u8 = 3;

/// Checks recorded traffic against the rules of a sender.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Capture file, pcap or pcapng (- = standard input)
    file: PathBuf,
    /// As one JSON document
    #[arg(long)]
    json: bool,
    /// Show every finding, not only the first ten of a rule in a connection
    #[arg(long)]
    all: bool,
}

/// Result of a file.
#[derive(Debug, Default)]
pub struct Summary {
    shown: BTreeMap<(u64, &'static str), u64>,
    counts: BTreeMap<&'static str, (u64, Keyword, &'static str)>,
    /// FPDUs.
    pub fpdus: u64,
    /// Datagrams of the mapping to UDP.
    pub datagrams: u64,
    /// Startup frames.
    pub startups: u64,
    /// Places where something could not be judged.
    pub unjudged: u64,
    /// Findings by a MUST.
    pub failures: u64,
    /// Findings by a SHOULD.
    pub deviations: u64,
}

impl Summary {
    /// Counts an item, and says whether it is one to show.
    pub fn take(&mut self, item: &Item<'_>, all: bool) -> bool {
        match item.what {
            What::Startup { .. } => self.startups += 1,
            What::Fpdu(_) => self.fpdus += 1,
            What::Datagram(_) => self.datagrams += 1,
            What::Unjudged(_) => {
                self.unjudged += 1;
                return true;
            }
            What::Finding(finding) => {
                let rule = finding.rule;
                match rule.keyword {
                    Keyword::Must => self.failures += 1,
                    Keyword::Should => self.deviations += 1,
                }
                let count = self.counts.entry(rule.id);
                count.or_insert((0, rule.keyword, rule.clause)).0 += 1;
                let key = (item.connection, rule.id);
                if self.shown.len() >= TOLD_APART && !self.shown.contains_key(&key) {
                    return all;
                }
                let shown = self.shown.entry(key).or_insert(0);
                *shown += 1;
                return all || *shown <= SHOWN;
            }
        }
        false
    }

    fn is_empty(&self) -> bool {
        self.startups + self.fpdus + self.datagrams == 0
    }
}

/// Runs it.
///
/// # Errors
///
/// If the file cannot be read, with what to say of it.
pub fn main(args: &Args) -> Result<ExitCode, (u8, String)> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = open(&args.file).and_then(|input| lint(input, args, &mut out));
    let flushed = out.flush();
    let summary = match (done, flushed) {
        (Ok(summary), Ok(())) => summary,
        (Err(FileError::Io(error)), _) | (_, Err(error)) => {
            // The reader of the output has gone.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Ok(ExitCode::SUCCESS);
            }
            return Err((EXIT_NOTHING, format!("{}: {error}", args.file.display())));
        }
        (Err(error), _) => return Err((EXIT_NOTHING, format!("{}: {error}", args.file.display()))),
    };
    if summary.is_empty() {
        let file = args.file.display();
        return Err((EXIT_NOTHING, format!("{file}: no RDMA traffic was found")));
    }
    Ok(if summary.failures > 0 {
        ExitCode::from(EXIT_FINDINGS)
    } else {
        ExitCode::SUCCESS
    })
}

/// A capture file, or standard input.
///
/// # Errors
///
/// If there is none, or it is not readable.
pub fn open(file: &Path) -> Result<Box<dyn Read>, FileError> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(BufReader::with_capacity(
        1 << 18,
        File::open(file)?,
    )))
}

fn lint(input: impl Read, args: &Args, out: &mut impl Write) -> Result<Summary, FileError> {
    let mut reader = Reader::new(input)?;
    let mut trace = Trace::new();
    let mut summary = Summary::default();
    let mut written = Ok(());
    let mut findings = Vec::new();
    let mut sink = |item: &Item<'_>| {
        if !summary.take(item, args.all) || written.is_err() {
            return;
        }
        if args.json {
            findings.extend(value(item));
        } else {
            written = text(out, item);
        }
    };
    while let Some(packet) = reader.next_packet()? {
        trace.take(&packet, &mut sink);
    }
    trace.finish(&mut sink);
    written?;
    let packets = reader.packets();
    if args.json {
        let (connections, iwarp) = trace.connections();
        let counts: serde_json::Map<_, _> = (summary.counts.iter())
            .map(|(id, (count, ..))| ((*id).to_owned(), (*count).into()))
            .collect();
        let document = json!({
            "tester": concat!("dgiwarp-conform ", env!("CARGO_PKG_VERSION")),
            "file": args.file.display().to_string(),
            "packets": packets,
            "cut": reader.was_cut(),
            "connections": { "tcp": connections, "iwarp": iwarp },
            "fpdus": summary.fpdus,
            "datagrams": summary.datagrams,
            "unjudged": summary.unjudged,
            "rules": counts,
            "items": findings,
        });
        writeln!(out, "{document:#}")?;
    } else {
        overview(out, &summary, &trace, packets)?;
        if reader.was_cut() {
            writeln!(out, "The file ends inside of a packet.")?;
        }
    }
    Ok(summary)
}

fn overview(
    out: &mut impl Write,
    summary: &Summary,
    trace: &Trace,
    packets: u64,
) -> io::Result<()> {
    if !summary.counts.is_empty() {
        writeln!(out)?;
    }
    for (id, (count, keyword, clause)) in &summary.counts {
        writeln!(out, "{count:>8} {id} ({keyword}, {clause})")?;
    }
    let (connections, iwarp) = trace.connections();
    writeln!(
        out,
        "{packets} packets, {iwarp} iWARP connections of {connections} by TCP, {} FPDUs, {} datagrams: {} findings, {} deviations, {} places not judged",
        summary.fpdus, summary.datagrams, summary.failures, summary.deviations, summary.unjudged
    )
}

fn text(out: &mut impl Write, item: &Item<'_>) -> io::Result<()> {
    let Item {
        packet, from, to, ..
    } = item;
    match item.what {
        What::Finding(finding) => {
            let rule = finding.rule;
            let word = match rule.keyword {
                Keyword::Must => "FAIL",
                Keyword::Should => "deviates",
            };
            writeln!(
                out,
                "{word} {} {}: {} ({})\n    packet {packet}, {from} to {to}: {}\n    {}",
                rule.id,
                rule.clause,
                rule.says,
                rule.keyword,
                finding.detail,
                hex(&finding.octets, 96),
            )
        }
        What::Unjudged(why) => writeln!(out, "not judged: packet {packet}, {from} to {to}: {why}"),
        What::Startup { .. } | What::Fpdu(_) | What::Datagram(_) => Ok(()),
    }
}

fn value(item: &Item<'_>) -> Option<Value> {
    let mut value = json!({
        "packet": item.packet,
        "at_ns": item.at,
        "connection": item.connection,
        "from": item.from.to_string(),
        "to": item.to.to_string(),
    });
    match item.what {
        What::Finding(finding) => {
            value["rule"] = finding.rule.id.into();
            value["clause"] = finding.rule.clause.into();
            value["keyword"] = finding.rule.keyword.to_string().into();
            value["detail"] = finding.detail.as_str().into();
            value["octets"] = hex(&finding.octets, 96).into();
        }
        What::Unjudged(why) => value["unjudged"] = why.to_string().into(),
        What::Startup { .. } | What::Fpdu(_) | What::Datagram(_) => return None,
    }
    Some(value)
}
