//! A peer's request becomes an identifier of its own.

use super::addr::{address, resolve};
use super::channel::EventQueue;
use super::device;
use super::event::{EventType, Told};
use super::id::{self, Id, Making, State, Transport};
use super::tcp;
use crate::ffi::CPointer;
use dgiwarp::RcRequest;
use nix::errno::Errno;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether the program has begun to deal with the request that it was told last.
///
/// Programs hand a request from the thread that fetches events to another in one place that holds one: `rping -P` does. The next one comes once the
/// program has done something with the one before, or a little later.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    since: Mutex<Option<Instant>>,
    over: Condvar,
}

impl Turns {
    /// How long a request is waited for, also on a machine that is busy.
    const AT_MOST: Duration = Duration::from_millis(50);

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "how long the program takes is real time"
    )]
    fn begin(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// The program does something with its request.
    pub(crate) fn end(&self) {
        *self.lock() = None;
        self.over.notify_all();
    }

    /// Waits for the last request's turn to end, where the program is one that waits: others do everything in one thread.
    fn wait(&self, queue: &EventQueue) {
        let mut since = self.lock();
        while let Some(left) = since.and_then(|since| Self::AT_MOST.checked_sub(since.elapsed()))
            && queue.may_wait()
        {
            (since, _) = self
                .over
                .wait_timeout(since, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the program is told. A request for which there is no memory or no device any more is refused.
pub(crate) fn tell(listener: &Arc<Id>, request: RcRequest) -> Option<Told> {
    listener.turns.wait(&listener.events());
    let mut request = Some(request);
    let told = make(listener, &mut request);
    if let (Some(request), Ok(device)) = (request, device::device()) {
        tcp::refuse(&device, request);
    }
    told.ok()
}

fn make(listener: &Arc<Id>, request: &mut Option<RcRequest>) -> Result<Told, Errno> {
    let device = device::device()?;
    let c = listener.c();
    let (waits, options) = {
        let inner = listener.lock();
        (inner.waits, inner.options)
    };
    // SAFETY: alive as long as the program asks for its events; destroying it waits for them.
    let shown = unsafe { &*c };
    let making = Making {
        channel: (!waits).then_some(CPointer(shown.channel)),
        context: shown.context,
        port_space: shown.ps,
    };
    // SAFETY: the listener's channel, from which this event comes.
    let new = unsafe { id::create(&making) }?;
    // SAFETY: just made.
    let id = Arc::clone(unsafe { id::id(new) }?);
    id.attach()?;
    let mtu = resolve::active_mtu(&id)?;
    let mut inner = id.lock();
    let arrived = request.take().ok_or(Errno::EINVAL)?;
    let program = |it| address::canonical(address::from_socket(it, device.port_offset));
    inner.local = arrived.local_addr().map(program);
    // Its port is one of the system's choice.
    inner.peer = Some(address::canonical(arrived.peer()));
    inner.options = options;
    inner.state = State::Requested;
    inner.listener = Some(Arc::clone(listener));
    let Transport::Tcp(tcp) = &mut inner.transport else {
        return Err(Errno::EINVAL);
    };
    let (param, private_data) = tcp::take_request(tcp, arrived);
    id.show(&inner);
    id.show_path(&mut inner, mtu);
    listener.turns.begin();
    Ok(Told {
        new: Some(new),
        param,
        private_data,
        ..Told::new(EventType::ConnectRequest, 0)
    })
}
