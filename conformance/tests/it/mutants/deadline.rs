//! Deadlines of child processes: a mutant may hang.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Kills a child process when its time is up. Dropped when the child has ended.
pub(crate) struct Deadline {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    pub(crate) fn of(process: u32, after: Duration) -> Self {
        let process = Pid::from_raw(i32::try_from(process).unwrap());
        let (over, wait) = channel();
        let thread = thread::spawn(move || {
            if wait.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                // It may have ended by itself.
                let _ = kill(process, Signal::SIGKILL);
            }
        });
        Self {
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_process_is_killed_when_its_time_is_up() {
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let deadline = Deadline::of(child.id(), Duration::from_millis(50));
    let status = child.wait().unwrap();
    drop(deadline);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(Signal::SIGKILL as i32)
    );
}
