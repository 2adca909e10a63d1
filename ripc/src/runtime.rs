//! Progress of an endpoint by the runtime of its program.

use std::future::poll_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::yield_now;

use crate::endpoint::Endpoint;
use crate::endpoint::driver::{Driver, Turned};
use crate::endpoint::service::{Reply, Request};
use crate::error::Error;
use crate::pace::Pace;
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::now;

/// Turns in a row before other tasks get theirs.
const TURNS: u32 = 8;

/// Has a runtime drive an endpoint, where none does. Cloning shares what is known of the runtime.
#[derive(Debug, Clone, Default)]
pub struct Drive {
    /// The runtime that was tried has no I/O: threads of the endpoint make progress.
    has_no_io: Arc<AtomicBool>,
}

impl Drive {
    /// As [`ensure`](Self::ensure), with the runtime of this task; nothing outside of one.
    pub fn ensure_here(&self, endpoint: &Endpoint) {
        if !endpoint.has_driver()
            && let Ok(runtime) = Handle::try_current()
        {
            self.ensure(endpoint, &runtime);
        }
    }

    /// Begins a task that drives the endpoint, until the endpoint is closed or the runtime ends. Does nothing where there is one, or the runtime has no I/O:
    /// threads of the endpoint make progress then.
    pub fn ensure(&self, endpoint: &Endpoint, runtime: &Handle) {
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

impl Endpoint {
    /// Serves a service with a handler whose futures run in a runtime of tokio, which drives the endpoint where its I/O is enabled and no other does. The handler may
    /// take the streams of its call and an allocator from the [`Reply`]; the result of its future is the reply. A future is polled first where the call came in, and
    /// goes on in a task of its own where it has to wait. It is dropped when its call is cancelled.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_async<F>(
        &self,
        service: &str,
        runtime: Handle,
        handler: impl Fn(Request, &mut Reply) -> F + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Payload, Status>> + Send + 'static,
    {
        let executor = runtime.clone();
        self.serve_deferred(service, move |request, mut reply| {
            let entered = executor.enter();
            let answer = handler(request, &mut reply);
            let mut execution = Box::pin(execute(answer, reply));
            let mut context = Context::from_waker(Waker::noop());
            let first = execution.as_mut().poll(&mut context);
            drop(entered);
            if first.is_pending() {
                executor.spawn(execution);
            }
        })?;
        Drive::default().ensure(self, &runtime);
        Ok(())
    }
}

/// Replies with the result of a handler, which is dropped where its call is cancelled before.
async fn execute(answer: impl Future<Output = Result<Payload, Status>>, mut reply: Reply) {
    let result = {
        let mut answer = pin!(answer);
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Pending => reply
                .poll_cancelled(context)
                .map(|()| Err(Status::new(Code::Cancelled, "cancelled by the caller"))),
            ready => ready,
        })
        .await
    };
    reply.send(result);
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
    let mut pace = Pace::new(now());
    loop {
        let mut turns = 0;
        loop {
            let polls = pace.polls(now());
            let driver = &mut driver.get_mut().0;
            match if polls { driver.poll() } else { driver.turn() } {
                Turned::Again => {
                    pace.found();
                    turns += 1;
                    if turns % TURNS == 0 {
                        yield_now().await;
                    }
                }
                Turned::Idle if polls => yield_now().await,
                Turned::Idle => break,
                Turned::Closed => return,
            }
        }
        let asleep = now();
        // The runtime is woken by changes alone: what came before the readiness is cleared is found by the turn behind it.
        match driver.readable_mut().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends, and this task with it.
            Err(_) => return,
        }
        pace.woken(asleep, now());
    }
}
