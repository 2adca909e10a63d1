//! Copies from and to FTP servers of others (RFC 959, 2389, 2428, 3659): file after file, each over a data connection of its own.

mod data;
mod fetch;
mod listing;
mod store;
mod verify;

use std::sync::Arc;

use dgiwarp_transfer::disk::{Root, TreeSink, TreeSource};
use dgiwarp_transfer::engine::Failure;
use dgiwarp_transfer::wire::{Entry, FileKind, Status};
use dgiwarp_transfer::{Event, Summary};
use dgiwarp_transfer_cli::{Failed, Progress, Show};

use self::listing::{Facts, Kind};
use self::verify::{Algorithm, Sum};
use super::control::{Control, Reply};
use super::copy::Copy;
use super::url::Url;
use crate::time;

/// Octets that are read and written at a time, and of a block of the journal.
const BLOCK: u32 = 1 << 20;

/// A failure.
#[derive(Debug)]
enum Trouble {
    /// Of the session: the control connection is of no use any more.
    Lost(String),
    /// Of one entry.
    Entry(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Entry(failure)
    }
}

/// Of a control connection.
impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self::Lost(text)
    }
}

impl Trouble {
    fn entry(status: Status, text: impl Into<String>) -> Self {
        Self::Entry(Failure::new(status, text))
    }

    /// A refusal of the server's.
    fn refused(path: &[u8], reply: &Reply) -> Self {
        let (path, text) = (shown(path), reply);
        let status = match reply.code {
            452 | 552 => Status::NoSpace,
            550 | 553 => Status::Permission,
            _ => Status::Failed,
        };
        Self::entry(status, format!("{path}: {text}"))
    }
}

/// A copy from or to one server.
#[derive(Debug)]
struct Session<'a> {
    control: Control,
    copy: &'a Copy,
    progress: &'a mut Progress,
    /// Directory of the log-in, which paths of URLs begin at.
    base: Vec<u8>,
    /// Whether EPSV is of use.
    extended: bool,
    summary: Summary,
    files: u32,
    /// Hash that files are verified by.
    algorithm: Option<Algorithm>,
    /// Hash of the file that is copied.
    sum: Option<Sum>,
}

/// Fetches a file or tree into a sink, whose target is beneath the root.
pub(super) fn get(
    copy: &Copy,
    url: &Url,
    sink: &TreeSink,
    root: &Root,
    target: &std::path::Path,
    progress: &mut Progress,
) -> Result<Summary, Failed> {
    let mut session = Session::open(copy, url, progress)?;
    let got = session.get(url, sink, root, target);
    session.end(got)
}

/// Sends files and trees.
pub(super) fn put(
    copy: &Copy,
    url: &Url,
    source: impl FnOnce(bool) -> Result<Arc<TreeSource>, Failed>,
    progress: &mut Progress,
) -> Result<Summary, Failed> {
    let mut session = Session::open(copy, url, progress)?;
    let path = session.path(url);
    let is_there = session.is_directory(&path);
    let source = source(is_there.map_err(Failed::Session)?)?;
    let put = session.put(&path, &source);
    session.end(put)
}

/// The server's own listing of a directory.
pub(super) fn list(copy: &Copy, url: &Url) -> Result<Vec<u8>, Failed> {
    inspect(copy, url, |session, path| {
        let reply = session.control.ask(&[b"CWD ", path])?;
        if reply.code != 250 {
            return Err(Trouble::refused(path, &reply));
        }
        session.listing(b"LIST", b"")
    })
}

/// Names in a directory.
pub(super) fn names(copy: &Copy, url: &Url) -> Result<Vec<Vec<u8>>, Failed> {
    let listed = inspect(copy, url, |session, path| session.list(path))?;
    let names = listed.into_iter().map(|(_, name)| name);
    Ok(names.filter(|it| listing::is_name(it)).collect())
}

fn inspect<T>(
    copy: &Copy,
    url: &Url,
    look: impl FnOnce(&mut Session<'_>, &[u8]) -> Result<T, Trouble>,
) -> Result<T, Failed> {
    let mut progress = Progress::new(Show::default(), false);
    let mut session = Session::open(copy, url, &mut progress)?;
    let path = session.path(url);
    look(&mut session, &path).map_err(|trouble| match trouble {
        Trouble::Lost(text) | Trouble::Entry(Failure { text, .. }) => Failed::Session(text),
    })
}

/// The directory of a reply to PWD.
pub(super) fn directory(reply: &Reply) -> Option<Vec<u8>> {
    listing::directory(&reply.text).filter(|_| reply.code == 257)
}

impl<'a> Session<'a> {
    fn open(copy: &'a Copy, url: &Url, progress: &'a mut Progress) -> Result<Self, Failed> {
        let open = || -> Result<(Control, Vec<u8>), String> {
            let mut control = Control::open(url, copy.patience, copy.tls.as_ref())?;
            let reply = control.ask(&[b"TYPE I"])?;
            if !reply.is_good() {
                return Err(format!("TYPE I: {reply}"));
            }
            let reply = control.ask(&[b"PWD"])?;
            Ok((control, directory(&reply).unwrap_or_else(|| b"/".to_vec())))
        };
        let (control, base) = open().map_err(Failed::Session)?;
        let mut session = Self {
            control,
            copy,
            progress,
            base,
            extended: true,
            summary: Summary::default(),
            files: 0,
            algorithm: None,
            sum: None,
        };
        session.choose_hash().map_err(Failed::Session)?;
        Ok(session)
    }

    /// Takes leave, and turns the end of the copy into a result.
    fn end(mut self, done: Result<(), Trouble>) -> Result<Summary, Failed> {
        match done {
            Ok(()) => {
                // All is done: a server that does not reply changes nothing.
                let _ = self.control.ask(&[b"QUIT"]);
                Ok(self.summary)
            }
            Err(Trouble::Lost(text)) => Err(Failed::Session(format!(
                "{text}; the same command goes on from there"
            ))),
            Err(Trouble::Entry(failure)) => Err(Failed::Session(failure.text)),
        }
    }

    /// The path of a URL at the server: from the directory of the log-in, or, with a second `/`, from the root.
    fn path(&self, url: &Url) -> Vec<u8> {
        let below = url.path.strip_prefix(b"/").unwrap_or(&url.path);
        let below = below.strip_suffix(b"/").unwrap_or(below);
        if below.starts_with(b"/") {
            return below.to_vec();
        }
        join(&self.base, below)
    }

    fn is_directory(&mut self, path: &[u8]) -> Result<bool, String> {
        Ok(self.control.ask(&[b"CWD ", path])?.code == 250)
    }

    /// Description of a file or directory; the reply of a server that has none of this name.
    fn describe(&mut self, path: &[u8]) -> Result<Facts, Trouble> {
        let size = self.control.ask(&[b"SIZE ", path])?;
        let octets = size.text.trim().parse().ok().filter(|_| size.code == 213);
        if self.control.has("MLST") {
            let reply = self.control.ask(&[b"MLST ", path])?;
            if reply.code == 250 {
                let mut lines = reply.text.lines();
                let facts = lines.find_map(|line| listing::facts(line.trim_start().as_bytes()));
                let usable = |it: &Facts| matches!(it.kind, Kind::File | Kind::Directory);
                if let Some((mut facts, _)) = facts.filter(|(it, _)| usable(it)) {
                    // Of a link, some servers' fact is the length of its target.
                    facts.size = octets.or(facts.size);
                    return Ok(facts);
                }
            }
        }
        let Some(octets) = octets else {
            let reply = self.control.ask(&[b"CWD ", path])?;
            if reply.code == 250 {
                return Ok(Facts::of(Kind::Directory));
            }
            let reply = if size.code >= 550 { size } else { reply };
            return Err(Trouble::refused(path, &reply));
        };
        Ok(Facts {
            size: Some(octets),
            modified: self.modified(path)?,
            ..Facts::of(Kind::File)
        })
    }

    /// Time of a file's last change, of a server that has MDTM.
    fn modified(&mut self, path: &[u8]) -> Result<Option<(i64, u32)>, Trouble> {
        let reply = self.control.ask(&[b"MDTM ", path])?;
        let modified = time::parse(reply.text.trim());
        Ok(modified.filter(|_| reply.code == 213))
    }

    /// Begins an entry: its number.
    fn begin(&mut self, entry: &Entry) -> u32 {
        let file = self.files;
        self.files = self.files.wrapping_add(1);
        let entry = entry.clone();
        self.progress.note(&Event::Offered { file, entry });
        file
    }

    /// Takes note of an entry's end. A failure is that of the entry alone, but for one of the session.
    fn finish(&mut self, file: u32, done: Result<Status, Trouble>) -> Result<(), Trouble> {
        let (status, text) = match done {
            Ok(status) => (status, String::new()),
            Err(Trouble::Entry(failure)) => (failure.status, failure.text),
            Err(lost) => return Err(lost),
        };
        match status {
            Status::Stored => self.summary.stored += 1,
            Status::Present => self.summary.present += 1,
            _ => self.summary.failed += 1,
        }
        self.progress.note(&Event::Finished { file, status, text });
        Ok(())
    }

    /// Takes note of an entry that is left out.
    fn leave_out(&mut self, name: &[u8], why: &str) {
        let name = shown(name);
        let text = format!("{name}: {why}");
        self.summary.failed += 1;
        self.progress.note(&Event::Unreadable { name, text });
    }

    fn moved(&mut self, file: u32, octets: usize) {
        let octets = octets as u64;
        self.summary.octets += octets;
        self.progress.note(&Event::Placed { file, octets });
    }

    fn resumed(&mut self, file: u32, octets: u64) {
        if octets > 0 {
            self.summary.resumed += octets;
            self.progress.note(&Event::Resumed { file, octets });
        }
    }
}

fn entry(kind: FileKind, name: &[u8]) -> Entry {
    Entry {
        kind,
        mode: if kind == FileKind::Directory {
            0o755
        } else {
            0o644
        },
        modified: (0, 0),
        size: 0,
        identity: [0; 16],
        name: name.to_vec(),
        target: Vec::new(),
        attributes: None,
    }
}

/// A name in a directory, with one `/` between.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let between: &[u8] = if directory.ends_with(b"/") || directory.is_empty() || name.is_empty() {
        b""
    } else {
        b"/"
    };
    [directory, between, name].concat()
}

/// Octets for people.
fn shown(octets: &[u8]) -> String {
    let text = String::from_utf8_lossy(octets);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

/// Time of a file whose server has none.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge: the time of a file that has none else"
)]
fn now() -> (i64, u32) {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    (seconds, since.subsec_nanos())
}
