//! Processes with a table of sockets, as `/proc` shows them. Names and contents are those of any program, and are trusted in nothing.

use dgiwarp_socket_table::{Malformed, NAME, OCTETS, Record, Snapshot, State, printable};
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Copies of a table until all its records are whole.
const ATTEMPTS: usize = 5;

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) snapshot: Snapshot,
}

/// One of its sockets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) record: Record,
    /// Its lowest descriptor; `None` if the program has closed it.
    pub(crate) fd: Option<u32>,
}

/// A process that cannot be shown.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) pid: u32,
    pub(crate) reason: String,
}

/// All processes with a table that this user may look at.
pub(crate) fn all() -> (Vec<Process>, Vec<Failure>) {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for pid in pids {
        match read(pid) {
            Ok(process) => found.extend(process),
            // Processes of other users, and those that have just ended.
            Err(Unreadable::Descriptors(_)) => {}
            Err(Unreadable::Table(reason)) => failures.push(Failure { pid, reason }),
        }
    }
    (found, failures)
}

/// These processes.
pub(crate) fn of(pids: &[u32]) -> (Vec<Process>, Vec<Failure>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for &pid in pids {
        let reason = match read(pid) {
            Ok(Some(process)) => {
                found.push(process);
                continue;
            }
            Ok(None) => "it has no sockets of dgiwarp-run --sockets".to_owned(),
            Err(Unreadable::Descriptors(error)) => error.to_string(),
            Err(Unreadable::Table(reason)) => reason,
        };
        failures.push(Failure { pid, reason });
    }
    (found, failures)
}

/// Why a process is not shown.
enum Unreadable {
    Descriptors(io::Error),
    Table(String),
}

/// Descriptors of a process.
#[derive(Default)]
struct Descriptors {
    tables: Vec<PathBuf>,
    /// The lowest one of each socket, by inode number.
    sockets: BTreeMap<u64, u32>,
}

impl Descriptors {
    fn add(&mut self, fd: u32, path: PathBuf, link: &Path) {
        let table = format!("/memfd:{NAME} (deleted)");
        if link.as_os_str().as_bytes() == table.as_bytes() {
            self.tables.push(path);
        } else if let Some(inode) = inode(link) {
            let lowest = self.sockets.entry(inode).or_insert(fd);
            *lowest = fd.min(*lowest);
        }
    }
}

fn inode(link: &Path) -> Option<u64> {
    let number = link.to_str()?.strip_prefix("socket:[")?;
    number.strip_suffix(']')?.parse().ok()
}

fn descriptors(pid: u32) -> io::Result<Descriptors> {
    let mut found = Descriptors::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let number = |name: OsString| name.to_str()?.parse().ok();
        // It may have been closed meanwhile.
        if let (Some(fd), Ok(link)) = (number(entry.file_name()), fs::read_link(entry.path())) {
            found.add(fd, entry.path(), &link);
        }
    }
    Ok(found)
}

/// A process with its sockets; `None` for one without a table.
fn read(pid: u32) -> Result<Option<Process>, Unreadable> {
    let Descriptors { tables, sockets } = descriptors(pid).map_err(Unreadable::Descriptors)?;
    let mut reason = None;
    for path in tables {
        match snapshot(&path) {
            // A child that has its parent's.
            Ok(snapshot) if !is_of(&snapshot, pid) => {}
            Ok(snapshot) => {
                return Ok(Some(Process {
                    pid,
                    name: name(pid),
                    sockets: present(&snapshot.records, &sockets),
                    snapshot,
                }));
            }
            Err(error) => reason = Some(error.to_string()),
        }
    }
    // The process may have ended since.
    match reason.filter(|_| Path::new(&format!("/proc/{pid}")).exists()) {
        Some(reason) => Err(Unreadable::Table(reason)),
        None => Ok(None),
    }
}

/// Whether the table is the process's own, by its number in its own namespace.
fn is_of(snapshot: &Snapshot, pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = status.lines().find_map(|it| it.strip_prefix("NSpid:"));
    let own = own.and_then(|it| it.split_ascii_whitespace().next_back()?.parse().ok());
    own.unwrap_or_else(|| u64::from(pid)) == snapshot.pid
}

fn name(pid: u32) -> String {
    let octets = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(octets.trim_ascii_end())
}

/// Sockets that have a descriptor, or are being closed. Others were closed beside the library, such as by `fclose(3)`.
fn present(records: &[Record], descriptors: &BTreeMap<u64, u32>) -> Vec<Socket> {
    let with_fd = records.iter().map(|record| Socket {
        record: *record,
        fd: descriptors.get(&record.inode).copied(),
    });
    with_fd
        .filter(|it| it.fd.is_some() || it.record.state == State::Closing)
        .collect()
}

fn open(path: &Path) -> io::Result<File> {
    // A name is no proof: neither a FIFO nor a terminal may be waited for.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no file"))
    }
}

/// The octets of a file, as many as a table has at most.
fn copy(file: &File) -> io::Result<Vec<u8>> {
    let mut octets = vec![0; OCTETS];
    let mut length = 0;
    while length < octets.len() {
        match file.read_at(&mut octets[length..], length as u64)? {
            0 => break,
            some => length += some,
        }
    }
    octets.truncate(length);
    Ok(octets)
}

fn snapshot(path: &Path) -> io::Result<Snapshot> {
    let file = open(path)?;
    let malformed = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut before = copy(&file)?;
    for attempt in 1.. {
        let (octets, after) = (copy(&file)?, copy(&file)?);
        let snapshot = Snapshot::parse(&before, &octets, &after).map_err(malformed)?;
        if snapshot.changing == 0 || attempt == ATTEMPTS {
            return Ok(snapshot);
        }
        before = after;
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_apart_by_their_links() {
        let mut found = Descriptors::default();
        for (fd, link) in [
            (9, "socket:[71]"),
            (5, "socket:[71]"),
            (6, "socket:[x]"),
            (7, "/memfd:dgiwarp-sockets (deleted)"),
            (8, "/memfd:dgiwarp-sockets"),
            (3, "/tmp/memfd:dgiwarp-sockets (deleted)"),
        ] {
            found.add(fd, PathBuf::from(fd.to_string()), Path::new(link));
        }
        assert_eq!(found.tables, [Path::new("7")]);
        assert_eq!(found.sockets, [(71, 5)].into());
    }

    /// A record whose descriptor is gone is of a socket that is closed, unless it is being closed now.
    #[test]
    fn sockets_without_descriptors_are_left_out() {
        let of = |inode, state| Record {
            inode,
            state,
            ..Record::default()
        };
        let records = [
            of(1, State::Established),
            of(2, State::Established),
            of(3, State::Closing),
        ];
        let found = present(&records, &[(1, 4)].into());
        let found: Vec<_> = found.iter().map(|it| (it.record.inode, it.fd)).collect();
        assert_eq!(found, [(1, Some(4)), (3, None)]);
    }
}
