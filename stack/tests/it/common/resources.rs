//! System resources of a process, and whether repeating something takes more and more of them.

use std::fs;
use std::time::Duration;

use super::node::SOON;
use super::{Process, now, role, sleep, wait_until};

/// Far longer than any number of cycles takes on a busy machine.
const LONG: Duration = Duration::from_secs(1000);

/// System resources of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resources {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) resident: u64,
}

impl Resources {
    pub(crate) fn now() -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            resident: pages * 4096,
        }
    }
}

/// Runs the cycles in a process of their own, and compares what it has after the first of `cycles` and after the last.
pub(crate) fn compare(test: &str, cycles: [u32; 2], mut cycle: impl FnMut(u32)) {
    if role().is_none() {
        return Process::start(test, "alone", &[]).finish(LONG);
    }
    let began = now();
    let mut number = 0;
    let [first, last] = cycles.map(|until| {
        while number < until {
            cycle(number);
            number += 1;
        }
        // The background thread may still hold the objects that were polled last.
        let mut resources = Resources::now();
        wait_until(SOON, "the process is at rest", || {
            let before = resources;
            sleep(Duration::from_millis(10));
            resources = Resources::now();
            resources.descriptors == before.descriptors && resources.threads == before.threads
        });
        resources
    });
    println!("{first:?}\n{last:?}\n{:?}", now() - began);
    // On a busy machine the background thread may hold something for longer than that.
    assert!(last.descriptors <= first.descriptors, "{first:?} {last:?}");
    assert!(last.threads <= first.threads, "{first:?} {last:?}");
    let difference = last.resident.abs_diff(first.resident);
    assert!(difference < 1 << 20, "{first:?} {last:?}");
}
