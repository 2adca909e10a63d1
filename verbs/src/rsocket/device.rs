//! The device of all rsockets of the process.

use super::events::{Events, events};
use crate::cm::device as cm;
use crate::ffi::errno;
use crate::ffi::fork::ProcessTable;
use dgiwarp::{ConnectionChannel, MpaConfig, Pd, Rnic};
use nix::errno::Errno;
use std::mem::ManuallyDrop;
use std::process;
use std::sync::Arc;

/// Device, protection domain and connection channel.
pub(super) struct Device {
    pub(super) rnic: Rnic,
    pub(super) pd: Pd,
    pub(super) connections: ConnectionChannel,
    pub(super) mpa: MpaConfig,
    /// Difference between a socket's port number and the program's, modulo 2^16.
    pub(super) port_offset: u16,
    /// Process that opened it.
    process: u32,
}

static DEVICE: ProcessTable<Option<Arc<Device>>> = ProcessTable::new(None);

/// The device. A forked child opens its own.
pub(super) fn device() -> Result<Arc<Device>, Errno> {
    let mut device = DEVICE.lock();
    match &mut *device {
        Some(open) if open.process == process::id() => Ok(Arc::clone(open)),
        other => {
            // The child has no thread of the parent's device and may not close it.
            let _ = ManuallyDrop::new(other.take());
            let open = Arc::new(Device::open()?);
            *device = Some(Arc::clone(&open));
            Ok(open)
        }
    }
}

impl Device {
    fn open() -> Result<Self, Errno> {
        let shared = cm::device()?;
        let rnic = shared.context()?.rnic.clone();
        let sink: Arc<Events> = events();
        let connections = rnic.create_connection_channel_to(sink);
        Ok(Self {
            pd: rnic.alloc_pd(),
            connections: connections.map_err(errno::of)?,
            mpa: shared.mpa.clone(),
            port_offset: shared.port_offset,
            process: process::id(),
            rnic,
        })
    }
}
