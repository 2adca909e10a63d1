//! Fetching: a queued event becomes a `struct rdma_cm_event` in the program's own thread.

use crate::abi::rdma_cm_event;
use crate::cm::event::fetched;
use crate::cm::event::types::{CmEvent, Raised};
use crate::cm::id::identifier::{Queue, Queued};
use crate::cm::udp::multicast;
use crate::cm::{tcp, udp};
use nix::errno::Errno;

/// Fetches the next event of a channel; waits for one unless the program has set `O_NONBLOCK`.
pub(crate) fn fetch(queue: &Queue) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        if let Some(event) = translate(queue.next(count_fetched)?) {
            return Ok(event);
        }
    }
}

/// Fetches the next event of a channel without waiting.
pub(crate) fn try_fetch(queue: &Queue) -> Option<*mut rdma_cm_event> {
    loop {
        let event = translate(queue.try_next(count_fetched)?);
        if event.is_some() {
            return event;
        }
    }
}

/// Under the queue's lock: destroying the identifier either removes the event or waits for its acknowledgement.
fn count_fetched(queued: &Queued) {
    queued.id.unacked.fetched();
}

/// The struct of a queued event. Some events of the stack are none of the program's.
fn translate(Queued { id, event }: Queued) -> Option<*mut rdma_cm_event> {
    let translated = match event {
        Raised::Plain(event_type, status) => Some(CmEvent::new(event_type, status)),
        Raised::Connection(event) => tcp::events::translate(&id, event),
        Raised::Service(event) => udp::events::translate(&id, event),
        Raised::Joined(joined) => multicast::translate(&id, &joined),
    };
    if translated.is_none() {
        id.unacked.acknowledged(1);
    }
    translated.map(|event| fetched::create(id, event))
}
