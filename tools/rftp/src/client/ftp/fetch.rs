//! From a server: partial files with a journal, as every sink of files has them.

use std::collections::HashMap;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use dgiwarp_transfer::Sink as _;
use dgiwarp_transfer::disk::{Root, TreeSink};
use dgiwarp_transfer::engine::Begun;
use dgiwarp_transfer::hash;
use dgiwarp_transfer::wire::{Entry, FileKind, NAME_LIMIT, Status};
use nix::errno::Errno;

use super::data::{broken, close};
use super::listing::{self, Facts, Kind};
use super::verify::Sum;
use super::{BLOCK, Session, Trouble, entry, join, shown};
use crate::client::url::Url;
use crate::stream::Stream;

/// Directories within directories at most.
const DEPTH: usize = 128;
/// Octets of names that wait at most.
const NAMES: usize = 256 << 20;
/// Blocks after which the journal has an entry.
const NOTED: usize = 64;

/// A directory or file that is to come.
struct Waiting {
    path: Vec<u8>,
    name: Vec<u8>,
    facts: Facts,
    depth: usize,
}

/// Where files come to.
#[derive(Clone, Copy)]
struct Place<'a> {
    sink: &'a TreeSink,
    root: &'a Root,
    target: &'a Path,
}

impl Session<'_> {
    /// Fetches a file or tree.
    pub(super) fn get(
        &mut self,
        url: &Url,
        sink: &TreeSink,
        root: &Root,
        target: &Path,
    ) -> Result<(), Trouble> {
        let place = Place { sink, root, target };
        let path = self.path(url);
        let facts = if path == b"/" {
            Facts::of(Kind::Directory)
        } else {
            self.describe(&path)?
        };
        if facts.kind != Kind::Directory {
            let file = self.describe_file(&path, &facts, b"");
            return self.fetch(place, &path, file);
        }
        let mut directories = Vec::new();
        let mut octets = 0;
        let mut waiting = vec![Waiting {
            path,
            name: Vec::new(),
            facts,
            depth: 0,
        }];
        while let Some(next) = waiting.pop() {
            octets -= next.path.len().min(octets);
            match &next.facts.kind {
                Kind::Directory => {
                    let listed = self.enter(place, &next, &mut directories);
                    let listed = match listed {
                        Err(Trouble::Entry(failure)) => {
                            self.leave_out(&next.path, &failure.text);
                            continue;
                        }
                        other => other?,
                    };
                    octets += listed.iter().map(|it| it.path.len()).sum::<usize>();
                    if octets > NAMES {
                        return Err(Trouble::Lost("too many names".into()));
                    }
                    waiting.extend(listed.into_iter().rev());
                }
                Kind::File => {
                    let file = self.describe_file(&next.path, &next.facts, &next.name);
                    self.fetch(place, &next.path, file)?;
                }
                Kind::Link(to) => self.link(place, &next, to)?,
                Kind::Itself | Kind::Other => {
                    self.leave_out(&next.path, "neither file nor directory nor link");
                }
            }
        }
        // Behind all files, so that their times are right at the end.
        for directory in directories.into_iter().rev() {
            let file = self.begin(&directory);
            let done = place.sink.begin(file, &directory, BLOCK);
            self.finish(file, done.map(|_| Status::Stored).map_err(Trouble::from))?;
        }
        Ok(())
    }

    /// Makes a directory, and lists that of the server.
    fn enter(
        &mut self,
        place: Place<'_>,
        at: &Waiting,
        directories: &mut Vec<Entry>,
    ) -> Result<Vec<Waiting>, Trouble> {
        if at.depth > DEPTH || at.name.len() > NAME_LIMIT {
            return Err(Trouble::entry(Status::Name, "directories are too deep"));
        }
        let listed = self.list(&at.path)?;
        let below = Path::new(std::ffi::OsStr::from_bytes(&at.name));
        let here = place.target.join(below);
        if let Some(modified) = at.facts.modified {
            directories.push(Entry {
                modified,
                mode: at.facts.mode.unwrap_or(0o755),
                ..entry(FileKind::Directory, &at.name)
            });
        } else {
            let made = place.root.create_dirs(&here);
            made.map_err(
                |error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EXDEV => Trouble::entry(Status::Name, "the name leaves the root"),
                    _ => Trouble::entry(Status::Failed, error.to_string()),
                },
            )?;
            self.summary.stored += 1;
        }
        let mut found = Vec::new();
        for (facts, name) in listed {
            if !listing::is_name(&name) {
                self.leave_out(&name, "a name that leaves its directory");
                continue;
            }
            found.push(Waiting {
                path: join(&at.path, &name),
                name: join(&at.name, &name),
                facts,
                depth: at.depth + 1,
            });
        }
        Ok(found)
    }

    pub(super) fn list(&mut self, path: &[u8]) -> Result<Vec<(Facts, Vec<u8>)>, Trouble> {
        let strange = |line: Vec<u8>| {
            let line: String = shown(&line).chars().take(80).collect();
            let text = format!("the server's listing has no known form: {line}");
            Trouble::entry(Status::Unreadable, text)
        };
        if self.control.has("MLST") || self.control.has("MLSD") {
            let octets = self.listing(b"MLSD", path)?;
            let mut found = listing::entries(&octets, listing::machine).map_err(strange)?;
            if found
                .iter()
                .any(|(it, _)| it.kind == Kind::Link(Vec::new()))
            {
                let listed = self.list_long(path)?;
                let links = listing::entries(&listed, listing::long).unwrap_or_default();
                let links: HashMap<_, _> = links.into_iter().map(|(it, name)| (name, it)).collect();
                for (facts, name) in &mut found {
                    if facts.kind == Kind::Link(Vec::new())
                        && let Some(Kind::Link(to)) = links.get(name).map(|it| &it.kind)
                    {
                        facts.kind = Kind::Link(to.clone());
                    }
                }
            }
            return Ok(found);
        }
        let octets = self.list_long(path)?;
        listing::entries(&octets, listing::long).map_err(strange)
    }

    fn list_long(&mut self, path: &[u8]) -> Result<Vec<u8>, Trouble> {
        let reply = self.control.ask(&[b"CWD ", path])?;
        if reply.code != 250 {
            return Err(Trouble::refused(path, &reply));
        }
        // The option makes most servers list names with a dot; others have no file of its name.
        let octets = match self.listing(b"LIST -a", b"") {
            Err(Trouble::Entry(_)) => Vec::new(),
            other => other?,
        };
        if octets.is_empty() {
            return self.listing(b"LIST", b"");
        }
        Ok(octets)
    }

    fn link(&mut self, place: Place<'_>, at: &Waiting, to: &[u8]) -> Result<(), Trouble> {
        let mut link = entry(FileKind::Link, &at.name);
        link.modified = at.facts.modified.unwrap_or_else(super::now);
        link.target = to.to_vec();
        if link.name.len() + to.len() > NAME_LIMIT || to.contains(&0) || to.is_empty() {
            self.leave_out(&at.path, "a link without a usable target");
            return Ok(());
        }
        let file = self.begin(&link);
        let done = match place.sink.begin(file, &link, BLOCK) {
            Ok(Begun::Finished(status)) => Ok(status),
            Ok(Begun::Partial(_)) => Ok(Status::Stored),
            Err(failure) => Err(Trouble::from(failure)),
        };
        self.finish(file, done)
    }

    /// Description of a file for a sink. Its identity is that of the file at this server.
    fn describe_file(&mut self, path: &[u8], facts: &Facts, name: &[u8]) -> Result<Entry, Trouble> {
        let Some(size) = facts.size else {
            let text = format!("{}: the server does not give its size", shown(path));
            return Err(Trouble::entry(Status::Unreadable, text));
        };
        let modified = match facts.modified {
            Some(modified) => modified,
            // Nothing goes on, or counts as there, without a time.
            None => self.modified(path)?.unwrap_or_else(super::now),
        };
        let peer = self.control.peer.to_string();
        let is = [peer.as_bytes(), b"\0", path, b"\0", &facts.unique].concat();
        let mut file = entry(FileKind::File, name);
        let whole = hash::block(0, true, &is);
        file.identity.copy_from_slice(&whole[..16]);
        file.size = size;
        file.modified = modified;
        file.mode = facts.mode.unwrap_or(0o644) & 0o777;
        Ok(file)
    }

    fn fetch(
        &mut self,
        place: Place<'_>,
        path: &[u8],
        described: Result<Entry, Trouble>,
    ) -> Result<(), Trouble> {
        let described = match described {
            Err(Trouble::Entry(failure)) => {
                self.leave_out(path, &failure.text);
                return Ok(());
            }
            other => other?,
        };
        if described.name.len() > NAME_LIMIT {
            self.leave_out(path, "the name is too long");
            return Ok(());
        }
        let file = self.begin(&described);
        let done = self.receive(place.sink, file, path, &described);
        if let Err(trouble) = &done {
            let is_wrong = |status| matches!(status, Status::Changed | Status::Corrupt);
            let is_wrong = matches!(trouble, Trouble::Entry(it) if is_wrong(it.status));
            place.sink.abandon(file, !is_wrong);
        }
        self.finish(file, done)
    }

    fn receive(
        &mut self,
        sink: &TreeSink,
        file: u32,
        path: &[u8],
        entry: &Entry,
    ) -> Result<Status, Trouble> {
        let blocks = match sink.begin(file, entry, BLOCK)? {
            Begun::Finished(status) => return Ok(status),
            Begun::Partial(blocks) => blocks,
        };
        self.sum = self.algorithm.map(Sum::new);
        let mut count = 0;
        for (index, hash) in &blocks {
            let skip = |sum: &mut Sum| sum.skip(hash);
            if *index != count || !self.sum.as_mut().is_none_or(skip) {
                break;
            }
            count += 1;
        }
        let mut at = (count * u64::from(BLOCK)).min(entry.size);
        let was_there = at;
        if at < entry.size || at == 0 {
            let mut data = self.transfer(b"RETR", path, at)?;
            if data.is_none() {
                at = 0;
                self.sum = self.algorithm.map(Sum::new);
                data = self.transfer(b"RETR", path, 0)?;
            }
            self.resumed(file, at);
            let mut data = data.ok_or_else(|| Trouble::Lost("the server does not send".into()))?;
            let came = self.take(sink, file, path, entry, at, &mut data);
            close(data);
            let is_whole = match came {
                Err(Trouble::Entry(failure)) => {
                    // The server says that the connection broke off.
                    self.control.reply()?;
                    return Err(failure.into());
                }
                other => other?,
            };
            // The server's own reason is the better one.
            self.end_transfer(path)?;
            if !is_whole {
                return Err(changed(path, "became shorter while it was read"));
            }
        } else {
            self.resumed(file, at);
        }
        if entry.size > u64::from(BLOCK) || was_there > 0 {
            self.check(path, entry)?;
        }
        self.verify(path, entry)?;
        sink.finish(file, &[0; 32])?;
        Ok(Status::Stored)
    }

    /// Takes octets that are missing: whether all of them came.
    fn take(
        &mut self,
        sink: &TreeSink,
        file: u32,
        path: &[u8],
        entry: &Entry,
        mut at: u64,
        data: &mut Stream,
    ) -> Result<bool, Trouble> {
        let whole = entry.size <= u64::from(BLOCK);
        let mut block = vec![0; BLOCK as usize];
        let mut noted = Vec::new();
        let mut filled = 0;
        let end = loop {
            let count = match data.read(&mut block[filled..]) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // TLS without a notice of the end: the length says that it is one.
                Err(error)
                    if error.kind() == std::io::ErrorKind::UnexpectedEof
                        && at + filled as u64 == entry.size =>
                {
                    0
                }
                Err(error) => break Err(Trouble::Lost(broken(&error))),
            };
            filled += count;
            let have = at + filled as u64;
            if have > entry.size {
                break Err(changed(path, "became longer while it was read"));
            }
            if filled < block.len() && count > 0 {
                continue;
            }
            if count == 0 && have < entry.size {
                break Ok(false);
            }
            let octets = &block[..filled];
            if !octets.is_empty() {
                sink.write(file, at, octets)?;
                let hash = hash::block(at, whole, octets);
                noted.push((at / u64::from(BLOCK), hash));
                if let Some(sum) = &mut self.sum {
                    sum.add(octets, &hash);
                }
            }
            self.moved(file, filled);
            at = have;
            filled = 0;
            if noted.len() == NOTED {
                sink.sync(file, &noted)?;
                noted.clear();
            }
            if count == 0 {
                break Ok(true);
            }
        };
        // Of an end before all is there, too: the next run goes on from here.
        if !noted.is_empty() && !whole {
            sink.sync(file, &noted)?;
        }
        end
    }

    /// Checks that a file is the one that was begun.
    fn check(&mut self, path: &[u8], entry: &Entry) -> Result<(), Trouble> {
        let size = self.control.ask(&[b"SIZE ", path])?;
        let is_size = size.code != 213 || size.text.trim().parse() == Ok(entry.size);
        let time = self.modified(path)?.map(|it| it.0);
        // A file without a time has that of its copy's beginning.
        let is_time = time.is_none_or(|it| it == entry.modified.0);
        if is_size && is_time {
            return Ok(());
        }
        Err(changed(path, "changed while it was read"))
    }
}

fn changed(path: &[u8], how: &str) -> Trouble {
    Trouble::entry(Status::Changed, format!("{}: {how}", shown(path)))
}
