//! Counters of the queue pairs of a device: sums, and lines for a file.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use dgiwarp_rdmap::datagram::DropReason;
use parking_lot::Mutex;
use slab::Slab;

use crate::QpCounters;
use crate::driver::debug::own_file;

/// Something that counts.
pub(crate) trait Counts: Send + Sync {
    /// Counters so far.
    fn counters(&self) -> QpCounters;
}

/// A queue pair, as a line names it.
#[derive(Debug, Clone, Copy)]
struct Name {
    kind: &'static str,
    qpn: u32,
}

/// The counters of a device.
pub(crate) struct Statistics {
    file: Option<PathBuf>,
    queue_pairs: Mutex<QueuePairs>,
}

/// A queue pair that lives.
type Named = (Name, Arc<dyn Counts>);

#[derive(Default)]
struct QueuePairs {
    live: Slab<(Name, Weak<dyn Counts>)>,
    /// Number of destroyed queue pairs, and their counters.
    gone: u64,
    of_gone: QpCounters,
    /// Objects with counters that are no queue pairs.
    others: Vec<Weak<dyn Counts>>,
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statistics").finish_non_exhaustive()
    }
}

/// A queue pair's entry; it ends with [`end`](Self::end).
#[derive(Debug)]
pub(crate) struct Entry {
    key: usize,
}

impl Statistics {
    /// Lines go to the end of `file`, or to standard error if that is `-`.
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self {
            file,
            queue_pairs: Mutex::default(),
        }
    }

    /// A queue pair begins.
    pub(crate) fn begin(
        &self,
        kind: &'static str,
        qpn: u32,
        of: &Arc<impl Counts + 'static>,
    ) -> Entry {
        let of = Arc::downgrade(of);
        let entry: (Name, Weak<dyn Counts>) = (Name { kind, qpn }, of);
        Entry {
            key: self.queue_pairs.lock().live.insert(entry),
        }
    }

    /// Something that is no queue pair counts from now on, into the sums alone; it ends with [`end_other`](Self::end_other).
    pub(crate) fn begin_other(&self, of: &Arc<impl Counts + 'static>) {
        let of = Arc::downgrade(of);
        self.queue_pairs.lock().others.push(of);
    }

    /// It ends with these counters.
    pub(crate) fn end_other(&self, counters: &QpCounters) {
        let mut queue_pairs = self.queue_pairs.lock();
        queue_pairs.others.retain(|of| of.strong_count() > 0);
        queue_pairs.of_gone.add(counters);
    }

    /// A queue pair ends with these counters.
    pub(crate) fn end(&self, entry: &Entry, counters: &QpCounters) {
        let mut queue_pairs = self.queue_pairs.lock();
        let Some((name, _)) = queue_pairs.live.try_remove(entry.key) else {
            return;
        };
        queue_pairs.gone += 1;
        queue_pairs.of_gone.add(counters);
        drop(queue_pairs);
        if self.file.is_some() {
            self.write(&line(Some(name), 1, counters));
        }
    }

    /// The sums over all queue pairs that are and were, and how many they are.
    pub(crate) fn sum(&self) -> (u64, QpCounters) {
        let (live, mut count, mut sum) = self.snapshot();
        for (_, of) in live {
            count += 1;
            sum.add(&of.counters());
        }
        (count, sum)
    }

    /// Live queue pairs, the number of destroyed ones, and their counters. A queue pair is locked after this table was unlocked.
    /// Counters of objects that are no queue pairs are with those of destroyed ones.
    fn snapshot(&self) -> (Vec<Named>, u64, QpCounters) {
        let queue_pairs = self.queue_pairs.lock();
        let live = queue_pairs.live.iter();
        let live = live.filter_map(|(_, (name, of))| Some((*name, of.upgrade()?)));
        let live = live.collect();
        let others = queue_pairs.others.iter().filter_map(Weak::upgrade);
        let others: Vec<_> = others.collect();
        let (gone, mut sum) = (queue_pairs.gone, queue_pairs.of_gone.clone());
        drop(queue_pairs);
        for other in others {
            sum.add(&other.counters());
        }
        (live, gone, sum)
    }

    /// Writes a line for each queue pair that lives, and one for the device.
    pub(crate) fn write_all(&self) {
        if self.file.is_none() {
            return;
        }
        let (live, mut count, mut sum) = self.snapshot();
        let mut lines = String::new();
        for (name, of) in live {
            let counters = of.counters();
            lines.push_str(&line(Some(name), 1, &counters));
            count += 1;
            sum.add(&counters);
        }
        lines.push_str(&line(None, count, &sum));
        self.write(&lines);
    }

    /// Several processes may share a file: a call writes whole lines at its end.
    fn write(&self, lines: &str) {
        let Some(path) = &self.file else {
            return;
        };
        let written = if path == Path::new("-") {
            io::stderr().write_all(lines.as_bytes())
        } else {
            own_file::append_to(path).and_then(|mut file| file.write_all(lines.as_bytes()))
        };
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot write statistics");
        }
    }
}

/// One line of JSON. Names need no escape, and values are numbers.
fn line(name: Option<Name>, queue_pairs: u64, counters: &QpCounters) -> String {
    let mut line = String::from("{");
    // Writing to a String cannot fail.
    let _ = match name {
        Some(Name { kind, qpn }) => write!(line, "\"queue_pair\":{qpn},\"kind\":\"{kind}\""),
        None => write!(line, "\"queue_pairs\":{queue_pairs}"),
    };
    let _ = write!(line, ",\"pid\":{}", std::process::id());
    for (name, count) in counters.iter() {
        let _ = write!(line, ",\"{name}\":{count}");
    }
    line.push_str(",\"dropped\":{");
    let drops = DropReason::ALL
        .iter()
        .filter(|reason| counters.dropped(**reason) > 0);
    for (index, reason) in drops.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(line, "{comma}\"{reason}\":{}", counters.dropped(*reason));
    }
    line.push_str("}}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(QpCounters);

    impl Counts for Fixed {
        fn counters(&self) -> QpCounters {
            self.0.clone()
        }
    }

    fn counted(segments: usize) -> Arc<Fixed> {
        let mut counters = QpCounters::default();
        counters.count_sent(segments, 8);
        counters.count_drop(DropReason::Late);
        Arc::new(Fixed(counters))
    }

    #[test]
    fn sums_are_of_those_that_live_and_those_that_are_gone() {
        let statistics = Statistics::new(None);
        let (first, second) = (counted(1), counted(2));
        let entry = statistics.begin("ud", 7, &first);
        statistics.begin("rc", 8, &second);
        assert_eq!(statistics.sum().1.segments_sent, 3);
        statistics.end(&entry, &first.counters());
        drop(first);
        let (count, sum) = statistics.sum();
        assert_eq!(
            (count, sum.segments_sent, sum.dropped(DropReason::Late)),
            (2, 3, 2)
        );
    }

    #[test]
    fn a_line_is_json() {
        let text = line(Some(Name { kind: "ud", qpn: 7 }), 1, &counted(3).0);
        assert!(
            text.starts_with("{\"queue_pair\":7,\"kind\":\"ud\",\"pid\":"),
            "{text}"
        );
        assert!(
            text.contains(",\"segments_sent\":3,\"octets_sent\":8,"),
            "{text}"
        );
        assert!(text.ends_with(",\"dropped\":{\"late\":1}}\n"), "{text}");
    }
}
