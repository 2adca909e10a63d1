//! Progress of an endpoint by the runtime of its program.

use std::os::fd::{AsRawFd, RawFd};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dgiwarp_ripc::{Driver, Endpoint, Turned};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::yield_now;

/// Turns in a row before other tasks get theirs.
const TURNS: u32 = 8;

/// Has a runtime drive an endpoint, where none does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drive {
    /// The runtime that was tried has no I/O: threads of the endpoint make progress.
    has_no_io: Arc<AtomicBool>,
}

impl Drive {
    /// Begins a task that drives the endpoint, until the endpoint is closed or the runtime ends. Does nothing where there is one.
    pub(crate) fn ensure(&self, endpoint: &Endpoint, runtime: &Handle) {
        if endpoint.has_driver() || self.has_no_io.load(Ordering::Relaxed) {
            return;
        }
        match endpoint.driver() {
            Ok(Some(driver)) => {
                let has_no_io = Arc::clone(&self.has_no_io);
                runtime.spawn(async move {
                    // The runtime has no other way to report that it has no I/O.
                    let register = AssertUnwindSafe(|| register(driver));
                    match std::panic::catch_unwind(register) {
                        Ok(Ok(driver)) => drive(driver).await,
                        Ok(Err(_)) | Err(_) => has_no_io.store(true, Ordering::Relaxed),
                    }
                });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "threads of the endpoint make progress");
            }
        }
    }
}

/// A driver whose descriptor the runtime watches.
#[derive(Debug)]
struct Watched(Driver);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn register(driver: Driver) -> std::io::Result<AsyncFd<Watched>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types whose descriptor may close or change; that of a driver stays until it is \
                  dropped, which is after its registration"
    )]
    AsyncFd::with_interest(Watched(driver), Interest::READABLE)
}

async fn drive(mut driver: AsyncFd<Watched>) {
    loop {
        let mut turns = 0;
        loop {
            match driver.get_mut().0.turn() {
                Turned::Again => {
                    turns += 1;
                    if turns % TURNS == 0 {
                        yield_now().await;
                    }
                }
                Turned::Idle => break,
                Turned::Closed => return,
            }
        }
        // The runtime is woken by changes alone: what came before the readiness is cleared is found by the turn behind it.
        match driver.readable_mut().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends, and this task with it.
            Err(_) => return,
        }
    }
}
