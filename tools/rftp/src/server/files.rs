//! Files of a client: RETR, STOR, APPE, HASH, MFMT and SITE CHMOD.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dgiwarp_transfer::hash::BlockHasher;
use dgiwarp_transfer::wire::FileKind;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use super::command::Command;
use super::control::Client;
use crate::path::shown;
use crate::stream::Stream;
use crate::time;

/// Suffix of a file that an FTP client is storing.
const UPLOAD: &str = ".rftp-upload";

impl Client {
    pub(super) fn retrieve(&mut self, command: &Command, restart: u64) -> io::Result<()> {
        let opened = self.server.root.open_file(&self.resolved(command));
        let opened = opened.and_then(|(mut file, metadata)| {
            file.seek(SeekFrom::Start(restart))?;
            Ok((file, metadata))
        });
        let (mut file, metadata) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.fail(&error),
        };
        if restart > metadata.size() {
            return self.reply(554, "The file is shorter");
        }
        let left = metadata.size() - restart;
        let Some(mut stream) = self.open(&format!("{left} octets"))? else {
            return Ok(());
        };
        let sent = match &mut stream {
            // The kernel copies, where it can.
            Stream::Plain(tcp) => io::copy(&mut file, tcp).map(drop),
            secure => copy(&mut file, secure),
        };
        let sent = sent.and_then(|()| stream.end());
        drop(stream);
        self.ended(&sent)
    }

    /// A new file gets its name when all of it came; one that is gone on with (REST) is written in place, as its client asks.
    pub(super) fn store(&mut self, command: &Command, restart: u64) -> io::Result<()> {
        if !self.writes() {
            return self.reply(550, "Only reading is permitted");
        }
        let path = self.resolved(command);
        if restart > 0 {
            return self.write_in_place(&path, Some(restart));
        }
        let Some(name) = path.file_name() else {
            return self.reply(550, "Is a directory");
        };
        if self
            .server
            .root
            .metadata(&path)
            .is_ok_and(|it| it.kind() == Some(FileKind::Directory))
        {
            return self.reply(550, "Is a directory");
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(UPLOAD);
        let hidden = path.with_file_name(hidden);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match self.server.root.open_at(&hidden, flags, 0o666) {
            Ok(file) => file,
            Err(error) => return self.fail(&error),
        };
        if file.try_lock().is_err() {
            return self.reply(450, "Another client stores this file");
        }
        let moved = file.set_len(0).and_then(|()| self.take(&file));
        let root = Arc::clone(&self.server.root);
        match moved {
            Ok(None) => match self
                .settle(&file)
                .and_then(|()| root.rename(&hidden, &path))
            {
                Ok(()) => self.reply(226, "Stored"),
                Err(error) => {
                    let _ = root.remove_file(&hidden);
                    self.fail(&error)
                }
            },
            Ok(Some((code, text))) => {
                let _ = root.remove_file(&hidden);
                self.reply(code, &text)
            }
            Err(error) => {
                let _ = root.remove_file(&hidden);
                self.lost(&error)
            }
        }
    }

    pub(super) fn append(&mut self, command: &Command) -> io::Result<()> {
        if !self.writes() {
            return self.reply(550, "Only reading is permitted");
        }
        let path = self.resolved(command);
        self.write_in_place(&path, None)
    }

    /// Writes at an offset, or at the end.
    fn write_in_place(&mut self, path: &Path, offset: Option<u64>) -> io::Result<()> {
        let create = if offset.is_none() {
            OFlag::O_CREAT
        } else {
            OFlag::empty()
        };
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | create;
        let opened = self
            .server
            .root
            .open_at(path, flags, 0o666)
            .and_then(|mut file| {
                let metadata = file.metadata()?;
                if !metadata.is_file() {
                    return Err(Errno::EISDIR.into());
                }
                let at = offset.unwrap_or(metadata.len());
                if at > metadata.len() {
                    return Err(Errno::EINVAL.into());
                }
                file.set_len(at)?;
                file.seek(SeekFrom::Start(at))?;
                Ok(file)
            });
        let file = match opened {
            Ok(file) => file,
            Err(error) => return self.fail(&error),
        };
        match self.take(&file) {
            Ok(None) => match self.settle(&file) {
                Ok(()) => self.reply(226, "Stored"),
                Err(error) => self.fail(&error),
            },
            Ok(Some((code, text))) => self.reply(code, &text),
            Err(error) => self.lost(&error),
        }
    }

    fn settle(&self, file: &File) -> io::Result<()> {
        if self.server.config.durable {
            file.sync_data()?;
        }
        Ok(())
    }

    /// Receives to a file. Without a data connection: the reply.
    fn take(&mut self, mut file: &File) -> io::Result<Option<(u16, String)>> {
        let mut stream = match self.open_data("Send it")? {
            Ok(stream) => stream,
            Err(reply) => return Ok(Some(reply)),
        };
        let mut octets = vec![0; 256 << 10];
        loop {
            match stream.read(&mut octets) {
                Ok(0) => {
                    // Some clients wait for it; others are gone.
                    let _ = stream.end();
                    return Ok(None);
                }
                Ok(count) => file.write_all(&octets[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Replies to a failure in the middle of storing: of the file system, or of the data connection.
    fn lost(&mut self, error: &io::Error) -> io::Result<()> {
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => self.fail(error),
            _ => self.ended(&Err(io::Error::new(error.kind(), error.to_string()))),
        }
    }

    /// `MFMT time path`: a file's time (draft-somers-ftp-mfxx).
    pub(super) fn date(&mut self, command: &Command) -> io::Result<()> {
        let (stamp, name) = split(&command.argument);
        let Some(time) = time::parse(&String::from_utf8_lossy(stamp)).and_then(since) else {
            return self.reply(501, "MFMT YYYYMMDDHHMMSS path");
        };
        let path = self.resolve(name);
        if !self.writes() {
            return self.reply(550, "Only reading is permitted");
        }
        let opened = self.server.root.open_file(&path);
        match opened.and_then(|(file, _)| file.set_modified(time)) {
            Ok(()) => {
                let stamp = String::from_utf8_lossy(stamp).into_owned();
                let path = String::from_utf8_lossy(&shown(&path)).into_owned();
                self.reply(213, &format!("Modify={stamp}; {path}"))
            }
            Err(error) => self.fail(&error),
        }
    }

    /// The feature HASH, with a `*` behind the hash that is chosen.
    pub(super) fn hashes(&self) -> &'static str {
        if self.is_blake3 {
            " HASH SHA-256;BLAKE3*\r\n"
        } else {
            " HASH SHA-256*;BLAKE3\r\n"
        }
    }

    /// `OPTS HASH [name]`.
    pub(super) fn choose_hash(&mut self, command: &Command) -> io::Result<()> {
        let (_, name) = split(&command.argument);
        match &name.to_ascii_uppercase()[..] {
            b"" => {}
            b"SHA-256" => self.is_blake3 = false,
            b"BLAKE3" => self.is_blake3 = true,
            _ => return self.reply(501, "SHA-256 or BLAKE3"),
        }
        let name = if self.is_blake3 { "BLAKE3" } else { "SHA-256" };
        self.reply(200, name)
    }

    /// `HASH path` (draft-bryan-ftp-hash).
    pub(super) fn hash(&mut self, command: &Command) -> io::Result<()> {
        let path = self.resolved(command);
        let opened = self.server.root.open_file(&path);
        let hashed = opened.and_then(|(mut file, _)| {
            if self.is_blake3 {
                let mut hasher = BlockHasher::new(0, true);
                let count = feed(&mut file, |octets| hasher.update(octets))?;
                Ok(("BLAKE3", count, hasher.finish().to_vec()))
            } else {
                let mut hasher = Sha256::new();
                let count = feed(&mut file, |octets| hasher.update(octets))?;
                Ok(("SHA-256", count, hasher.finalize().to_vec()))
            }
        });
        match hashed {
            Ok((name, count, hash)) => {
                let hash: String = hash.iter().map(|it| format!("{it:02x}")).collect();
                let path = String::from_utf8_lossy(&shown(&path)).into_owned();
                let last = count.saturating_sub(1);
                self.reply(213, &format!("{name} 0-{last} {hash} {path}"))
            }
            Err(error) => self.fail(&error),
        }
    }

    /// `SITE CHMOD mode path`.
    pub(super) fn site(&mut self, command: &Command) -> io::Result<()> {
        let (verb, rest) = split(&command.argument);
        let (mode, name) = split(rest);
        let mode = u32::from_str_radix(&String::from_utf8_lossy(mode), 8);
        let (true, Ok(mode)) = (verb.eq_ignore_ascii_case(b"CHMOD"), mode) else {
            return self.reply(504, "Only SITE CHMOD mode path");
        };
        let path = self.resolve(name);
        let permissions = std::fs::Permissions::from_mode(mode & 0o777);
        self.change(|client| {
            let (file, _) = client.server.root.open_file(&path)?;
            file.set_permissions(permissions)
        })
    }
}

/// Reads to the end: how many octets there were.
fn feed(from: &mut File, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut octets = vec![0; 256 << 10];
    let mut all = 0;
    loop {
        match from.read(&mut octets) {
            Ok(0) => return Ok(all),
            Ok(count) => {
                take(&octets[..count]);
                all += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies by pieces that fill many records of TLS.
fn copy(from: &mut File, to: &mut Stream) -> io::Result<()> {
    let mut octets = vec![0; 256 << 10];
    loop {
        match from.read(&mut octets) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&octets[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The first word and what is behind it.
fn split(argument: &[u8]) -> (&[u8], &[u8]) {
    let end = argument.iter().position(|it| *it == b' ');
    let (word, rest) = argument.split_at(end.unwrap_or(argument.len()));
    (word, rest.get(1..).unwrap_or_default())
}

fn since((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    at?.checked_add(Duration::from_nanos(nanoseconds.into()))
}
