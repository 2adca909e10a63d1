//! Threads that do the jobs of an engine.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, panic};

use crate::carrier::Waker;

/// Threads for jobs of one kind, and where their results are.
#[derive(Debug)]
pub(super) struct Workers<J, D> {
    jobs: Option<Sender<J>>,
    pub(super) results: Receiver<D>,
    threads: Vec<JoinHandle<()>>,
    pub(super) usage: Arc<Usage>,
}

/// Time of all threads, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Usage {
    busy: AtomicU64,
    running: AtomicU64,
}

impl Usage {
    /// Time that they had jobs, and that they had or wanted a processor.
    pub(super) fn times(&self) -> (Duration, Duration) {
        let [busy, running] = [&self.busy, &self.running];
        let time = |it: &AtomicU64| Duration::from_nanos(it.load(Ordering::Relaxed));
        (time(busy), time(running))
    }

    fn add(&self, busy: Duration, running: Duration) {
        let nanos = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX);
        self.busy.fetch_add(nanos(busy), Ordering::Relaxed);
        self.running.fetch_add(nanos(running), Ordering::Relaxed);
    }
}

/// Times of the calling thread, of `proc_pid_schedstat(5)`; none where the kernel does not count them.
struct Schedule {
    file: Option<File>,
    seen: Duration,
}

impl Schedule {
    fn new() -> Self {
        let file = File::open("/proc/thread-self/schedstat").ok();
        let seen = Duration::ZERO;
        let mut schedule = Self { file, seen };
        schedule.passed();
        schedule
    }

    /// Time since the last call that the thread had or wanted a processor; `None` if that is not known.
    fn passed(&mut self) -> Option<Duration> {
        let mut octets = [0; 64];
        let count = self.file.as_ref()?.read_at(&mut octets, 0).ok()?;
        let text = std::str::from_utf8(octets.get(..count)?).ok()?;
        let mut counts = text.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(ran)), Some(Ok(waited))) = (counts.next(), counts.next()) else {
            return None;
        };
        let now = Duration::from_nanos(ran.saturating_add(waited));
        let passed = now.saturating_sub(self.seen);
        self.seen = now;
        Some(passed)
    }
}

impl<J: Send + 'static, D: Send + 'static> Workers<J, D> {
    /// Starts threads. `work` is called with a job and a scratch buffer of its thread.
    pub(super) fn start<W>(count: usize, waker: &Waker, work: &Arc<W>) -> io::Result<Self>
    where
        W: Fn(J, &mut Vec<u8>) -> Option<D> + Send + Sync + 'static,
    {
        let (jobs, todo) = channel();
        let (done, results) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let mut workers = Self {
            jobs: Some(jobs),
            results,
            threads: Vec::new(),
            usage: Arc::default(),
        };
        for _ in 0..count {
            let (todo, done) = (Arc::clone(&todo), done.clone());
            let (work, waker) = (Arc::clone(work), waker.clone());
            let usage = Arc::clone(&workers.usage);
            let body = move || serve(&todo, &done, &waker, &usage, &*work);
            let thread = thread::Builder::new().name("transfer-disk".into());
            workers.threads.push(thread.spawn(body)?);
        }
        Ok(workers)
    }

    /// Hands a job over.
    pub(super) fn submit(&self, job: J) {
        if let Some(jobs) = &self.jobs {
            // It fails only when all threads are gone.
            let _ = jobs.send(job);
        }
    }

    /// Waits until all jobs are done.
    pub(super) fn stop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                panic::resume_unwind(panic);
            }
        }
    }
}

/// Threads end behind the job that they have: one that waits for a program's input holds nobody up.
impl<J, D> Drop for Workers<J, D> {
    fn drop(&mut self) {
        self.jobs = None;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: how long jobs take is measured here"
)]
fn serve<J, D>(
    todo: &Mutex<Receiver<J>>,
    done: &Sender<D>,
    waker: &Waker,
    usage: &Usage,
    work: &dyn Fn(J, &mut Vec<u8>) -> Option<D>,
) {
    let mut scratch = Vec::new();
    let mut schedule = Schedule::new();
    loop {
        let job = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let begun = Instant::now();
        let result = work(job, &mut scratch);
        let busy = begun.elapsed();
        // Unknown, it counts as that of the processor.
        usage.add(busy, schedule.passed().unwrap_or(busy));
        if let Some(result) = result {
            if done.send(result).is_err() {
                return;
            }
            waker.wake();
        }
    }
}
