//! Records of the sessions that run, for `mz top`.
//!
//! A record is one JSON object in a memory file (memfd_create(2)) of the session's process, which any process of the same user finds beneath `/proc`. It goes with its process, whatever ends
//! that.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;

/// Name of the memory files.
const NAME: &str = "dgiwarp-transfer";
/// Octets of a record; a shorter one has spaces behind it.
const LENGTH: usize = 1024;
/// Time between two writes.
const INTERVAL: Duration = Duration::from_millis(200);

/// The record of a session of this process.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    due: Option<Instant>,
}

impl Record {
    /// `None` where the system has no descriptor for it: the session goes on without.
    pub(crate) fn new() -> Option<Self> {
        let file = memfd_create(NAME, MFdFlags::MFD_CLOEXEC).ok()?;
        Some(Self {
            file: file.into(),
            due: None,
        })
    }

    /// Whether a new record is to be written.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Writes the record. One that is too long is left out.
    pub(crate) fn put(&mut self, now: Instant, record: &Value) {
        self.due = now.checked_add(INTERVAL);
        let mut octets = record.to_string().into_bytes();
        if octets.len() <= LENGTH {
            octets.resize(LENGTH, b' ');
            // Memory may be short; the next one may find some.
            let _ = self.file.write_all_at(&octets, 0);
        }
    }
}

/// A session that runs.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its process.
    pub pid: u32,
    /// Place among the descriptors of that.
    pub descriptor: u32,
    /// Fields that its process wrote.
    pub record: Value,
}

impl Session {
    /// A number of the record; 0 where it has none.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.record[name].as_u64().unwrap_or(0)
    }

    /// A text of the record, without control characters, which another user's process may have put there.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let text = self.record[name].as_str().unwrap_or_default();
        let plain = |it: char| if it.is_control() { '?' } else { it };
        text.chars().map(plain).collect()
    }
}

/// The sessions of all processes whose descriptors this user may see, by process and descriptor.
///
/// # Errors
/// `/proc` cannot be read.
pub fn sessions() -> io::Result<Vec<Session>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let Some(pid) = number(&process.file_name()) else {
            continue;
        };
        // It may be another user's, or gone.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for entry in descriptors.flatten() {
            let path = entry.path();
            if let Some(descriptor) = number(&entry.file_name())
                && is_record(&path)
                && let Some(record) = read(&path)
            {
                found.push(Session {
                    pid,
                    descriptor,
                    record,
                });
            }
        }
    }
    found.sort_by_key(|it| (it.pid, it.descriptor));
    Ok(found)
}

fn number(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

fn is_record(path: &Path) -> bool {
    let target = fs::read_link(path).unwrap_or_default();
    target.as_os_str() == format!("/memfd:{NAME} (deleted)").as_str()
}

/// The record of a memory file; `None` where there is none yet, or it is just being written.
fn read(path: &Path) -> Option<Value> {
    let file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut octets = Vec::new();
    file.take(LENGTH as u64).read_to_end(&mut octets).ok()?;
    let record: Value = serde_json::from_slice(&octets).ok()?;
    record.is_object().then_some(record)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_this_test(name: &str) -> Vec<Session> {
        let mut sessions = sessions().unwrap();
        sessions.retain(|it| it.pid == std::process::id() && it.text("test") == name);
        sessions
    }

    #[expect(clippy::disallowed_methods, reason = "any instant serves")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_record_is_found_until_it_goes() {
        let mut record = Record::new().unwrap();
        assert!(of_this_test("found").is_empty());
        let begin = now();
        assert!(record.is_due(begin));
        record.put(
            begin,
            &json!({ "test": "found", "name": "x".repeat(900), "octets": 5 }),
        );
        assert!(!record.is_due(begin) && record.is_due(begin + INTERVAL));
        // A shorter one leaves nothing of the longer one.
        record.put(begin, &json!({ "test": "found", "octets": 7 }));
        // One that is too long changes nothing.
        record.put(
            begin,
            &json!({ "test": "found", "name": "x".repeat(LENGTH) }),
        );
        let sessions = of_this_test("found");
        assert_eq!(sessions.len(), 1);
        assert_eq!(sessions[0].number("octets"), 7);
        assert_eq!(sessions[0].number("nothing"), 0);
        drop(record);
        assert!(of_this_test("found").is_empty());
    }

    #[test]
    fn strange_records_do_no_harm() {
        for octets in [&b"{"[..], b"[1]", b"", &[0xff; 2 * LENGTH]] {
            let record = Record::new().unwrap();
            record.file.write_all_at(octets, 0).unwrap();
            assert!(of_this_test("").is_empty());
        }
        let mut record = Record::new().unwrap();
        let value = json!({ "test": "strange", "name": "a\u{1b}[2Jb\n", "octets": -1 });
        record.put(now(), &value);
        let sessions = of_this_test("strange");
        assert_eq!(sessions[0].text("name"), "a?[2Jb?");
        assert_eq!(sessions[0].number("octets"), 0);
    }
}
