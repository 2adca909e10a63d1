//! Memory in use, of this process and of the kernel.

use std::fs;

use serde::{Deserialize, Serialize};

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Footprint {
    /// Of this process, resident and not of files.
    pub(crate) user: u64,
    /// Of the kernel: its object caches and what TCP's buffers hold, whoever uses them.
    pub(crate) kernel: u64,
}

impl Footprint {
    /// Memory in use now; zeros where the system does not report it.
    pub(crate) fn now() -> Self {
        let page = 4096;
        let tcp = first_number(&line("/proc/net/sockstat", "TCP:"), "mem");
        let slab = first_number(&line("/proc/meminfo", "SUnreclaim:"), "SUnreclaim:");
        let anonymous = first_number(&line("/proc/self/status", "RssAnon:"), "RssAnon:");
        Self {
            user: anonymous * 1024,
            kernel: slab * 1024 + tcp * page,
        }
    }

    /// How much more this is than `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            kernel: self.kernel.saturating_sub(before.kernel),
        }
    }
}

/// The line of a file that starts so.
fn line(path: &str, start: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_default().to_owned()
}

/// The number behind a word; 0 if there is none.
fn first_number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|found| *found != word);
    words
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_words() {
        let line = "TCP: inuse 27 orphan 0 tw 31 alloc 30 mem 12";
        assert_eq!(first_number(line, "mem"), 12);
        assert_eq!(first_number("RssAnon:\t    5096 kB", "RssAnon:"), 5096);
        assert_eq!(first_number(line, "shm"), 0);
    }

    #[test]
    fn memory_that_is_written_counts_as_this_process_s() {
        let before = Footprint::now();
        assert!(before.user > 0 && before.kernel > 0);
        let written = vec![1u8; 16 << 20];
        let grown = Footprint::now().since(before);
        assert!(grown.user >= 15 << 20, "{grown:?}");
        drop(written);
    }
}
