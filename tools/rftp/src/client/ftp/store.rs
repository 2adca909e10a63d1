//! To a server: under a name of its own, which the file's name replaces when all is there.

use std::collections::HashSet;
use std::io::Write as _;

use dgiwarp_transfer::Source as _;
use dgiwarp_transfer::disk::TreeSource;
use dgiwarp_transfer::engine::Next;
use dgiwarp_transfer::hash;
use dgiwarp_transfer::wire::{Entry, FileKind, Status};

use super::data::broken;
use super::verify::Sum;
use super::{BLOCK, Session, Trouble, join, shown};
use crate::stream::Stream;
use crate::time;

/// Longest name of a file that its part's name has in it.
const LONG_NAME: usize = 200;

/// State of a copy to a server.
#[derive(Debug, Default)]
struct Putting {
    /// Directories that are there.
    directories: HashSet<Vec<u8>>,
    /// The server refused to change permissions.
    no_modes: bool,
}

impl Session<'_> {
    /// Sends all that a source has; an entry without a name gets this path.
    pub(super) fn put(&mut self, target: &[u8], source: &TreeSource) -> Result<(), Trouble> {
        let mut putting = Putting::default();
        loop {
            let entry = match source.next(self.files) {
                Next::Entry(entry) => entry,
                Next::Unreadable { name, text } => {
                    self.summary.failed += 1;
                    let event = dgiwarp_transfer::Event::Unreadable { name, text };
                    self.progress.note(&event);
                    continue;
                }
                Next::End => return Ok(()),
            };
            let file = self.begin(&entry);
            let path = join(target, &entry.name);
            let done = if path.iter().any(|it| matches!(it, b'\r' | b'\n')) {
                let text = format!("{}: FTP has no such names", shown(&path));
                Err(Trouble::entry(Status::Name, text))
            } else {
                match entry.kind {
                    FileKind::File => self.store(source, file, &entry, &path, &mut putting),
                    FileKind::Directory => self.make(&path, &mut putting).map(|()| Status::Stored),
                    FileKind::Link => {
                        let text = format!("{}: FTP has no symbolic links", shown(&path));
                        Err(Trouble::entry(Status::Failed, text))
                    }
                }
            };
            source.close(file);
            self.finish(file, done)?;
        }
    }

    /// Makes a directory and those above it that are missing.
    fn make(&mut self, path: &[u8], putting: &mut Putting) -> Result<(), Trouble> {
        let mut missing = vec![path.to_vec()];
        while let Some(path) = missing.last().cloned() {
            if path.is_empty() || path == b"/" || putting.directories.contains(&path) {
                missing.pop();
                continue;
            }
            if self.is_directory(&path)? {
                putting.directories.insert(path);
                missing.pop();
                continue;
            }
            let above = parent(&path).to_vec();
            let is_above =
                above.is_empty() || above == b"/" || putting.directories.contains(&above);
            if !is_above && missing.len() < 1000 && !self.is_directory(&above)? {
                missing.push(above);
                continue;
            }
            let reply = self.control.ask(&[b"MKD ", &path])?;
            if !reply.is_good() {
                return Err(Trouble::refused(&path, &reply));
            }
            putting.directories.insert(path);
            missing.pop();
        }
        Ok(())
    }

    fn store(
        &mut self,
        source: &TreeSource,
        file: u32,
        entry: &Entry,
        path: &[u8],
        putting: &mut Putting,
    ) -> Result<Status, Trouble> {
        self.make(parent(path), putting)?;
        if !self.copy.sink.rewrite
            && self.size(path)? == Some(entry.size)
            && self.modified(path)?.map(|it| it.0) == Some(entry.modified.0)
        {
            return Ok(Status::Present);
        }
        let part = part(path, entry);
        let there = self.size(&part)?.filter(|it| *it <= entry.size);
        let sent = self.send(source, file, entry, &part, there.unwrap_or(0));
        let sent = sent.and_then(|()| {
            source.check(file)?;
            self.verify(&part, entry)?;
            let there = self.size(&part)?;
            if there.is_some_and(|it| it != entry.size) {
                let text = format!("{}: the server has another length", shown(path));
                return Err(Trouble::entry(Status::Corrupt, text));
            }
            Ok(())
        });
        if let Err(Trouble::Entry(failure)) = &sent {
            // Of no use to a later run.
            let status = failure.status;
            if status != Status::Failed && status != Status::Permission {
                self.control.ask(&[b"DELE ", &part])?;
            }
        }
        sent?;
        self.dress(&part, entry, putting)?;
        let reply = self.control.ask(&[b"RNFR ", &part])?;
        if reply.code != 350 {
            return Err(Trouble::refused(&part, &reply));
        }
        let reply = self.control.ask(&[b"RNTO ", path])?;
        if !reply.is_good() {
            return Err(Trouble::refused(path, &reply));
        }
        Ok(Status::Stored)
    }

    fn size(&mut self, path: &[u8]) -> Result<Option<u64>, Trouble> {
        let reply = self.control.ask(&[b"SIZE ", path])?;
        let size = reply.text.trim().parse().ok();
        Ok(size.filter(|_| reply.code == 213))
    }

    /// Sends what is missing, `at` octets being there.
    fn send(
        &mut self,
        source: &TreeSource,
        file: u32,
        entry: &Entry,
        part: &[u8],
        mut at: u64,
    ) -> Result<(), Trouble> {
        if at < entry.size {
            at -= at % u64::from(BLOCK);
        }
        self.pass_by(source, file, entry, at)?;
        if at > 0 && at == entry.size {
            self.resumed(file, at);
            return Ok(());
        }
        let mut data = self.transfer(b"STOR", part, at)?;
        if data.is_none() {
            at = 0;
            self.sum = self.algorithm.map(Sum::new);
            data = self.transfer(b"STOR", part, 0)?;
        }
        self.resumed(file, at);
        let mut data = data.ok_or_else(|| Trouble::Lost("the server takes nothing".into()))?;
        let gave = self.give(source, file, entry, at, &mut data);
        drop(data);
        match gave {
            Ok(()) => self.end_transfer(part),
            Err(Trouble::Entry(failure)) => {
                self.control.reply()?;
                Err(failure.into())
            }
            Err(Trouble::Lost(text)) => {
                // The server's own reason is the better one.
                self.end_transfer(part)?;
                Err(Trouble::Lost(text))
            }
        }
    }

    /// Hashes octets that are at the server, where files are verified.
    fn pass_by(
        &mut self,
        source: &TreeSource,
        file: u32,
        entry: &Entry,
        end: u64,
    ) -> Result<(), Trouble> {
        self.sum = self.algorithm.map(Sum::new);
        let mut octets = vec![0; BLOCK as usize];
        let mut at = 0;
        while at < end && self.sum.is_some() {
            let count = usize::try_from(end - at).unwrap_or(usize::MAX);
            let octets = &mut octets[..count.min(BLOCK as usize)];
            source.read(file, at, octets)?;
            self.add(entry, at, octets);
            at += octets.len() as u64;
        }
        Ok(())
    }

    fn add(&mut self, entry: &Entry, at: u64, octets: &[u8]) {
        if let Some(sum) = &mut self.sum {
            let whole = entry.size <= u64::from(BLOCK);
            sum.add(octets, &hash::block(at, whole, octets));
        }
    }

    fn give(
        &mut self,
        source: &TreeSource,
        file: u32,
        entry: &Entry,
        mut at: u64,
        data: &mut Stream,
    ) -> Result<(), Trouble> {
        let mut octets = vec![0; BLOCK as usize];
        while at < entry.size {
            let count = usize::try_from(entry.size - at).unwrap_or(usize::MAX);
            let octets = &mut octets[..count.min(BLOCK as usize)];
            source.read(file, at, octets)?;
            self.add(entry, at, octets);
            let sent = data.write_all(octets);
            sent.map_err(|error| Trouble::Lost(broken(&error)))?;
            self.moved(file, octets.len());
            at += octets.len() as u64;
        }
        let ended = data.flush().and_then(|()| data.end());
        ended.map_err(|error| Trouble::Lost(broken(&error)))?;
        data.drain();
        Ok(())
    }

    /// Gives a file its time and permissions, where the server has commands for them.
    fn dress(&mut self, part: &[u8], entry: &Entry, putting: &mut Putting) -> Result<(), Trouble> {
        let stamp = time::stamp(entry.modified);
        let (stamp, _) = stamp.split_once('.').unwrap_or((&stamp, ""));
        if self.control.has("MFMT") {
            self.control
                .ask(&[b"MFMT ", stamp.as_bytes(), b" ", part])?;
        } else if self.control.has("MDTM") {
            // Many servers take a time before the name; to others it is a name that they do not have.
            self.control
                .ask(&[b"MDTM ", stamp.as_bytes(), b" ", part])?;
        }
        if !putting.no_modes {
            let mode = format!("{:o}", entry.mode & 0o777);
            let reply = self
                .control
                .ask(&[b"SITE CHMOD ", mode.as_bytes(), b" ", part])?;
            putting.no_modes = !reply.is_good();
        }
        Ok(())
    }
}

fn parent(path: &[u8]) -> &[u8] {
    let at = path.iter().rposition(|it| *it == b'/').unwrap_or(0);
    &path[..at]
}

/// Name of a file that is not whole. It is another one for each state of the source, so that no part of one is gone on with by another.
fn part(path: &[u8], entry: &Entry) -> Vec<u8> {
    let name = &path[parent(path).len()..];
    let name = name.strip_prefix(b"/").unwrap_or(name);
    let (seconds, nanoseconds) = entry.modified;
    let state = [
        &entry.size.to_be_bytes()[..],
        &seconds.to_be_bytes(),
        &nanoseconds.to_be_bytes(),
        &entry.identity,
        name,
    ];
    let hash = hash::block(0, true, &state.concat());
    let hash: String = hash[..8].iter().map(|it| format!("{it:02x}")).collect();
    let name = if name.len() > LONG_NAME {
        &b""[..]
    } else {
        name
    };
    let own = [b".", name, b".", hash.as_bytes(), b".rftp-part"].concat();
    let directory = &path[..parent(path).len()];
    let between: &[u8] = if path.contains(&b'/') { b"/" } else { b"" };
    [directory, between, &own[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::super::entry;
    use super::*;

    #[test]
    fn parts_are_beside_their_files_and_those_of_one_state() {
        let mut file = entry(FileKind::File, b"x");
        let one = part(b"/a/x", &file);
        assert!(one.starts_with(b"/a/.x.") && one.ends_with(b".rftp-part"));
        assert_eq!(one, part(b"/a/x", &file));
        let mut others = vec![one];
        for change in 0..3 {
            match change {
                0 => file.size = 1,
                1 => file.modified.1 = 1,
                _ => file.identity[15] = 1,
            }
            let other = part(b"/a/x", &file);
            assert!(!others.contains(&other));
            others.push(other);
        }
        assert!(part(b"/x", &file).starts_with(b"/.x."));
        let long = [b"/", &[b'x'; 255][..]].concat();
        assert!(part(&long, &file).len() < 100);
    }
}
