//! The device as all identifiers of the process share it.

use super::event::What;
use super::{id, udp};
use crate::abi::{ibv_context, ibv_pd};
use crate::device::context;
use crate::device::list::device as c_device;
use crate::device::open::ibv_open_device;
use crate::ffi::errno;
use crate::ffi::fork::ProcessTable;
use crate::ffi::{CPointer, entry, pointer};
use crate::mem::mr::ibv_alloc_pd;
use dgiwarp::{
    ConnectionChannel, ConnectionEvent, ConnectionSink, MpaConfig, ServiceChannel, ServiceEvent,
    ServiceSink,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::process;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// The one context and protection domain that identifiers have (`rdma_get_devices(3)`: the same contexts for all).
pub(crate) struct Device {
    pub(crate) context: CPointer<ibv_context>,
    pub(crate) pd: CPointer<ibv_pd>,
    pub(crate) connections: ConnectionChannel,
    /// Made when the first service is offered or looked up.
    services: OnceLock<ServiceChannel>,
    pub(crate) port_offset: u16,
    /// What connections want, as far as programs do not say.
    pub(crate) mpa: MpaConfig,
    process: u32,
}

/// Made at first use, and never closed: programs may hold on to its context.
static DEVICE: ProcessTable<Option<Arc<Device>>> = ProcessTable::new(None);

/// Queues what the stack tells with the identifier whose number it tells.
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
            // The stack may learn to tell more before this crate does.
            _ => return,
        };
        id::tell(key, What::Connection(event));
    }
}

impl ServiceSink for Sink {
    fn happened(&self, event: ServiceEvent) {
        udp::happened(event);
    }
}

impl Device {
    /// Who offers services and looks them up.
    pub(crate) fn services(&self) -> Result<&ServiceChannel, Errno> {
        if let Some(services) = self.services.get() {
            return Ok(services);
        }
        let made = self.connections.rnic();
        let made = made.create_service_channel_to(Arc::new(Sink));
        let made = made.map_err(errno::of)?;
        // Another thread may have been quicker; then this one is not needed.
        Ok(self.services.get_or_init(|| made))
    }

    fn open() -> Result<Self, Errno> {
        // SAFETY: the pointer is that of our device.
        let c = unsafe { ibv_open_device(c_device()) };
        if c.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: just opened.
        let pd = unsafe { ibv_alloc_pd(c) };
        if pd.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: just opened, and never closed.
        let rnic = &unsafe { context::state(c) }?.rnic;
        let connections = rnic
            .create_connection_channel_to(Arc::new(Sink))
            .map_err(errno::of)?;
        Ok(Self {
            context: CPointer(c),
            pd: CPointer(pd),
            services: OnceLock::new(),
            port_offset: rnic.config().port_offset,
            mpa: rnic.config().mpa.clone(),
            connections,
            process: process::id(),
        })
    }
}

/// The device. A forked child gets one of its own: the parent's is of no use to it.
pub(crate) fn device() -> Result<Arc<Device>, Errno> {
    let mut device = DEVICE.lock();
    match &mut *device {
        Some(open) if open.process == process::id() => Ok(Arc::clone(open)),
        other => {
            // The parent's threads are not there, so nothing of it may be ended.
            Box::leak(Box::new(other.take()));
            let open = Arc::new(Device::open()?);
            *device = Some(Arc::clone(&open));
            Ok(open)
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let device = device()?;
        if !number.is_null() {
            // SAFETY: not NULL, so the program passes an int to write.
            unsafe { number.write(1) };
        }
        let list: Box<[*mut ibv_context; 2]> = Box::new([device.context.0, ptr::null_mut()]);
        Ok(Box::into_raw(list).cast())
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    entry((), || {
        if !list.is_null() {
            // SAFETY: the program gives back what `rdma_get_devices` made, once.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
    });
}
