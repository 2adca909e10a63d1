//! Threads that do the jobs of an engine.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::{io, panic};

use crate::carrier::Waker;

/// Threads for jobs of one kind, and where their results are.
#[derive(Debug)]
pub(super) struct Workers<J, D> {
    jobs: Option<Sender<J>>,
    pub(super) results: Receiver<D>,
    threads: Vec<JoinHandle<()>>,
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
        };
        for _ in 0..count {
            let (todo, done) = (Arc::clone(&todo), done.clone());
            let (work, waker) = (Arc::clone(work), waker.clone());
            let body = move || serve(&todo, &done, &waker, &*work);
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

fn serve<J, D>(
    todo: &Mutex<Receiver<J>>,
    done: &Sender<D>,
    waker: &Waker,
    work: &dyn Fn(J, &mut Vec<u8>) -> Option<D>,
) {
    let mut scratch = Vec::new();
    loop {
        let job = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if let Some(result) = work(job, &mut scratch) {
            if done.send(result).is_err() {
                return;
            }
            waker.wake();
        }
    }
}
