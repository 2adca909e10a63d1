//! Completion queues for tasks of the tokio runtime (feature `tokio`).

use std::os::fd::{AsRawFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use crate::api::cq::queue::is_readable;
use crate::{CompChannel, Cq, CqError, Error, Rnic, Wc};

/// Completions that a task takes in a row before others get their turn.
const TURN: u32 = 64;

/// A completion queue that tasks wait for. No thread stands between: the task's own thread receives.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use dgiwarp::{Access, AsyncCq, Buffer, Config, Destination, Operation, RecvWr, Rnic, SendWr, UdQpAttr};
///
/// let rnic = Rnic::open(Config::default())?;
/// let pd = rnic.alloc_pd();
/// let mut completions = AsyncCq::new(&rnic, 64)?;
/// let qp = pd.create_ud_qp(&UdQpAttr::new(completions.cq(), completions.cq()))?;
/// let memory = Buffer::zeroed(64)?;
/// let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
/// qp.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(..32)] }])?;
/// qp.post_send(&[SendWr {
///     wr_id: 2,
///     operation: Operation::Send { immediate: None },
///     destination: Destination { ah: pd.create_ah("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 },
///     sges: &[mr.sge(32..)],
///     signaled: true,
///     solicited: false,
/// }])?;
/// let both = [completions.next().await?.wr_id, completions.next().await?.wr_id];
/// assert!(both.contains(&1) && both.contains(&2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    channel: AsyncFd<Waiting>,
    taken: u32,
}

/// A channel on which the runtime sleeps for the thread that receives.
#[derive(Debug)]
struct Waiting(CompChannel);

impl AsRawFd for Waiting {
    fn as_raw_fd(&self) -> RawFd {
        self.0.begin_wait().as_raw_fd()
    }
}

impl AsyncCq {
    /// Makes a completion queue for at least `depth` completions, 1 to 2^22, with a channel of its own.
    ///
    /// # Errors
    /// As [`Rnic::create_cq`]; also [`Error::System`] where the runtime cannot watch the channel.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled, as [`AsyncFd`] does.
    pub fn new(rnic: &Rnic, depth: usize) -> Result<Self, Error> {
        let channel = rnic.create_comp_channel()?;
        let cq = rnic.create_cq_on(depth, &channel)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types whose descriptor may close or change; that of a channel stays until \
                      it is dropped, which is after its registration"
        )]
        let channel = AsyncFd::with_interest(Waiting(channel), Interest::READABLE)
            .map_err(Error::system("cannot watch a completion channel"))?;
        Ok(Self {
            cq,
            channel,
            taken: 0,
        })
    }

    /// The queue itself, to make queue pairs with.
    #[must_use]
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The next completion. Dropping the future loses none.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub async fn next(&mut self) -> Result<Wc, CqError> {
        loop {
            if self.taken >= TURN {
                self.taken = 0;
                yield_now().await;
            }
            if let Some(wc) = self.cq.poll_one()? {
                self.taken += 1;
                return Ok(wc);
            }
            self.taken = 0;
            self.cq.request_notification(false);
            if let Some(wc) = self.cq.poll_one()? {
                return Ok(wc);
            }
            self.readable().await;
            while self.channel.get_ref().0.next_event(false).is_some() {}
        }
    }

    /// Waits until the channel may have something. The runtime is woken only by changes, so earlier events are polled for.
    async fn readable(&self) {
        let channel = &self.channel.get_ref().0;
        if is_readable(channel.begin_wait()) {
            // Data that was not received: another thread is at work on its queue pair, and may need this one's core.
            return yield_now().await;
        }
        match self.channel.readable().await {
            Ok(mut guard) => {
                if !is_readable(channel.begin_wait()) {
                    guard.clear_ready();
                }
            }
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }
}
