//! Channels of the stack, whose events are queued with the identifiers they concern.

use crate::cm::device::Device;
use crate::cm::event::types::Raised;
use crate::cm::id::identifier::raise;
use crate::ffi::errno;
use dgiwarp::{
    ConnectionChannel, ConnectionEvent, ConnectionSink, ServiceChannel, ServiceEvent, ServiceSink,
};
use nix::errno::Errno;
use std::sync::{Arc, OnceLock};

/// Receives events of the stack, in its threads and under its locks: queues them and does no more.
#[derive(Debug)]
struct Sink;

impl ConnectionSink for Sink {
    fn happened(&self, event: ConnectionEvent) {
        let key = match &event {
            ConnectionEvent::Request { context, .. }
            | ConnectionEvent::Established { context, .. }
            | ConnectionEvent::Rejected { context, .. }
            | ConnectionEvent::Failed { context, .. }
            | ConnectionEvent::Disconnected { context, .. } => *context,
            // Not an event of rdma_cm.
            _ => return,
        };
        raise(key, Raised::Connection(event));
    }
}

impl ServiceSink for Sink {
    fn happened(&self, event: ServiceEvent) {
        let key = match &event {
            ServiceEvent::Request { context, .. }
            | ServiceEvent::Found { context, .. }
            | ServiceEvent::Rejected { context, .. }
            | ServiceEvent::Failed { context, .. } => *context,
            // Not an event of rdma_cm.
            _ => return,
        };
        raise(key, Raised::Service(event));
    }
}

/// The value of a cell, created if there is none. If two threads create it, one of the two is dropped.
fn get_or_create<T>(
    cell: &OnceLock<T>,
    create: impl FnOnce() -> Result<T, dgiwarp::Error>,
) -> Result<&T, Errno> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let created = create().map_err(errno::of)?;
    Ok(cell.get_or_init(|| created))
}

impl Device {
    pub(crate) fn connections(&self) -> Result<&ConnectionChannel, Errno> {
        let rnic = &self.context()?.rnic;
        get_or_create(&self.connections, || {
            rnic.create_connection_channel_to(Arc::new(Sink))
        })
    }

    pub(crate) fn services(&self) -> Result<&ServiceChannel, Errno> {
        let rnic = &self.context()?.rnic;
        get_or_create(&self.services, || {
            rnic.create_service_channel_to(Arc::new(Sink))
        })
    }
}
