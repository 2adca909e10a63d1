//! Associations of reliable datagrams as qlog (draft-ietf-quic-qlog-main-schema, version 0.3), which qvis and other tools for QUIC draw.
//!
//! A message is a stream of QUIC, and a SEGMENT its STREAM frame; packet numbers, acknowledgements and losses are as in QUIC. Each end of an association has
//! a file, with the datagrams that it sent and received.

mod frames;
mod view;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dgiwarp_conform::trace::{Item, What};
use dgiwarp_conform::wire::datagram::Datagram;
use dgiwarp_conform::wire::reliable::{Frame, Reliable};
use serde_json::{Value, json};

use view::View;

/// Files of one run at most.
const FILES: usize = 20_000;
/// Octets of a file that wait to be written: the files of a large capture cannot all be open at a time.
const WAITING: usize = 16 << 10;
/// Separator of JSON texts (RFC 7464).
const RECORD_SEPARATOR: u8 = 0x1e;

/// Files of all ends.
#[derive(Debug)]
pub(crate) struct Qlog {
    folder: PathBuf,
    /// By the end that has the view, and its peer.
    traces: BTreeMap<(SocketAddr, SocketAddr), Trace>,
    files: usize,
    /// Datagrams of associations that have no file any more.
    left_out: u64,
}

/// The file of one end of one association.
#[derive(Debug)]
struct Trace {
    path: PathBuf,
    /// Place among the associations of the two ends, from 1.
    number: u64,
    waiting: Vec<u8>,
    /// Time of the first event.
    begin: u64,
    view: View,
}

impl Qlog {
    /// Makes the folder, if it is not there.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| of(folder, &error))?;
        Ok(Self {
            folder: folder.to_owned(),
            traces: BTreeMap::new(),
            files: 0,
            left_out: 0,
        })
    }

    /// Takes an item, for those of its ends whose port `is_wanted`.
    pub(crate) fn take(
        &mut self,
        item: &Item<'_>,
        is_wanted: impl Fn(u16) -> bool,
    ) -> io::Result<()> {
        let What::Datagram(seen) = item.what else {
            return Ok(());
        };
        let Ok(Datagram::Reliable(datagram)) = seen.parsed else {
            return Ok(());
        };
        for (own, peer, is_own) in [(item.from, item.to, true), (item.to, item.from, false)] {
            if !is_wanted(own.port()) {
                continue;
            }
            let Some(trace) = self.trace((own, peer), item.at, datagram, is_own)? else {
                self.left_out += 1;
                continue;
            };
            let octets = seen.octets.len();
            let events = if is_own {
                trace.view.sent(item.at, octets, datagram)
            } else {
                trace.view.received(item.at, octets, datagram, seen.comment)
            };
            trace.put(item.at, events)?;
        }
        Ok(())
    }

    /// The file of an end, which is begun with its first datagram, and with the first one of another association with the same peer. `None` for one too many.
    fn trace(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        at: u64,
        datagram: &Reliable,
        is_own: bool,
    ) -> io::Result<Option<&mut Trace>> {
        let drawn = drawn(datagram);
        let mut number = 1;
        let goes_on = |trace: &mut Trace| drawn.is_none_or(|id| trace.view.belongs(id, is_own));
        if !self.traces.get_mut(&ends).is_some_and(goes_on) {
            if let Some(mut former) = self.traces.remove(&ends) {
                former.write()?;
                number = former.number + 1;
            }
            if self.files == FILES {
                return Ok(None);
            }
            self.files += 1;
            let path = self.folder.join(name(ends, number));
            let vantage = match (datagram.association, is_own) {
                (0, true) => "client",
                (0, false) => "server",
                (_, _) => "unknown",
            };
            let mut trace = Trace::begin(path, ends, at, vantage)?;
            trace.number = number;
            if let Some(id) = drawn {
                trace.view.belongs(id, is_own);
            }
            self.traces.insert(ends, trace);
        }
        Ok(self.traces.get_mut(&ends))
    }

    /// Writes all that waits, and tells how much there was.
    pub(crate) fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        for trace in self.traces.values_mut() {
            trace.write()?;
        }
        writeln!(out, "{} files in {}", self.files, self.folder.display())?;
        if self.left_out > 0 {
            writeln!(
                out,
                "more than {FILES} associations: {} datagrams are left out; --port selects some",
                self.left_out
            )?;
        }
        Ok(())
    }
}

/// The name of the file of an end.
fn name((own, peer): (SocketAddr, SocketAddr), number: u64) -> String {
    let [own, peer] = [own, peer].map(|it| format!("{}-{}", it.ip(), it.port()));
    match number {
        1 => format!("{own}-{peer}.sqlog"),
        _ => format!("{own}-{peer}-{number}.sqlog"),
    }
}

/// The identifier that the sender of a datagram drew.
fn drawn(datagram: &Reliable) -> Option<u32> {
    match datagram.frames.first() {
        Some(Frame::Hello(hello)) if !hello.retry => Some(hello.association),
        _ => None,
    }
}

/// An error with the path that it is about.
fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Nanoseconds as the milliseconds of qlog.
#[expect(clippy::cast_precision_loss, reason = "a microsecond of a day is kept")]
fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

impl Trace {
    fn begin(
        path: PathBuf,
        (own, peer): (SocketAddr, SocketAddr),
        at: u64,
        vantage: &str,
    ) -> io::Result<Self> {
        // A former file of this name is another run's.
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        made.map_err(|error| of(&path, &error))?;
        let title = format!("reliable datagrams of {own} and {peer}");
        let mut trace = Self {
            path,
            number: 1,
            waiting: Vec::new(),
            begin: at,
            view: View::default(),
        };
        trace.record(&json!({
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "title": title,
            "trace": {
                "title": title,
                "vantage_point": { "name": own.to_string(), "type": vantage },
                "common_fields": { "time_format": "relative", "reference_time": millis(at) },
            },
        }))?;
        Ok(trace)
    }

    fn put(&mut self, at: u64, events: Vec<(&'static str, Value)>) -> io::Result<()> {
        let time = millis(at.saturating_sub(self.begin));
        for (name, data) in events {
            self.record(&json!({ "time": time, "name": name, "data": data }))?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Value) -> io::Result<()> {
        self.waiting.push(RECORD_SEPARATOR);
        serde_json::to_writer(&mut self.waiting, record)?;
        self.waiting.push(b'\n');
        if self.waiting.len() < WAITING {
            return Ok(());
        }
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(&self.waiting));
        self.waiting.clear();
        written.map_err(|error| of(&self.path, &error))
    }
}
