//! The device that all identifiers of the process share.

use crate::abi::{ibv_context, ibv_pd, ibv_port_attr};
use crate::cm::event::types::Raised;
use crate::device::context::{self, Context};
use crate::device::list::device as ibv_device;
use crate::device::open::{ibv_close_device, ibv_open_device};
use crate::device::persona::{self, Persona};
use crate::device::query::ibv_query_port;
use crate::ffi::fork::ProcessTable;
use crate::ffi::{CPointer, entry, errno, live, pointer};
use crate::mem::mr::ibv_alloc_pd;
use dgiwarp::{
    ConnectionChannel, ConnectionEvent, ConnectionSink, MpaConfig, ServiceChannel, ServiceEvent,
    ServiceSink,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::process;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The context and protection domain of all identifiers (`rdma_get_devices(3)`: the contexts are shared).
pub(crate) struct Device {
    pub(crate) context: CPointer<ibv_context>,
    pub(crate) pd: CPointer<ibv_pd>,
    pub(crate) connections: ConnectionChannel,
    /// Created with the first service ID resolution or its listener.
    services: OnceLock<ServiceChannel>,
    /// Difference between a socket's port number and the program's, modulo 2^16.
    pub(crate) port_offset: u16,
    /// Configuration of connections, as far as programs do not give it.
    pub(crate) mpa: MpaConfig,
    /// Process that opened the device.
    process: u32,
}

/// Timewait of the kernel's connection manager for RoCE: twice the packet lifetime of its path records, 4.096 µs * 2^18.
const TIMEWAIT: Duration = Duration::from_millis(2147);

/// Opened at first use and never closed: programs may keep its context.
static DEVICE: ProcessTable<Option<Arc<Device>>> = ProcessTable::new(None);

/// Queues an event of the stack with the identifier of a key; set with the first identifier.
static RAISE: OnceLock<fn(u64, Raised)> = OnceLock::new();

/// Sets the function that queues events of the stack.
pub(crate) fn on_event(raise: fn(u64, Raised)) {
    let _ = RAISE.set(raise);
}

/// Receives events of the stack, in its threads and under its locks: queues them and does no more.
#[derive(Debug)]
struct Sink;

impl Sink {
    fn raise(key: u64, event: Raised) {
        if let Some(raise) = RAISE.get() {
            raise(key, event);
        }
    }
}

impl ConnectionSink for Sink {
    fn happened(&self, event: ConnectionEvent) {
        let key = match &event {
            ConnectionEvent::Request { context, .. }
            | ConnectionEvent::Established { context, .. }
            | ConnectionEvent::Rejected { context, .. }
            | ConnectionEvent::Failed { context, .. }
            | ConnectionEvent::Disconnected { context, .. }
            | ConnectionEvent::TimewaitExit { context } => *context,
            // Not an event of rdma_cm.
            _ => return,
        };
        Self::raise(key, Raised::Connection(event));
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
        Self::raise(key, Raised::Service(event));
    }
}

impl Device {
    fn open() -> Result<Self, Errno> {
        // SAFETY: the pointer is that of our device.
        let c = unsafe { ibv_open_device(ibv_device()) };
        if c.is_null() {
            return Err(Errno::last());
        }
        Self::open_on(c).inspect_err(|_| {
            // SAFETY: nobody else has this context.
            unsafe { ibv_close_device(c) };
        })
    }

    fn open_on(c: *mut ibv_context) -> Result<Self, Errno> {
        // SAFETY: just opened, and closed only where this fails.
        let rnic = &unsafe { context::state(c) }?.rnic;
        let connections = rnic
            .create_connection_channel_to(Arc::new(Sink))
            .map_err(errno::of)?;
        if persona::present() != Persona::Iwarp {
            connections.report_timewait(TIMEWAIT);
        }
        // SAFETY: an open context.
        let pd = unsafe { ibv_alloc_pd(c) };
        if pd.is_null() {
            return Err(Errno::last());
        }
        let config = rnic.config();
        Ok(Self {
            context: CPointer(c),
            pd: CPointer(pd),
            connections,
            services: OnceLock::new(),
            port_offset: config.port_offset,
            mpa: config.mpa.clone(),
            process: process::id(),
        })
    }

    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        // SAFETY: the context is never closed.
        unsafe { context::state(self.context.0) }
    }

    /// The channel of services. If two threads create it, one of the two is dropped.
    pub(crate) fn services(&self) -> Result<&ServiceChannel, Errno> {
        if let Some(services) = self.services.get() {
            return Ok(services);
        }
        let rnic = self.connections.rnic();
        let created = rnic.create_service_channel_to(Arc::new(Sink));
        let created = created.map_err(errno::of)?;
        Ok(self.services.get_or_init(|| created))
    }

    /// `enum ibv_mtu` of the port.
    pub(crate) fn active_mtu(&self) -> Result<u8, Errno> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, and room for the result.
        let status = unsafe { ibv_query_port(self.context.0, 1, &raw mut attr) };
        if status != 0 {
            return Err(Errno::from_raw(status));
        }
        u8::try_from(attr.active_mtu).map_err(|_| Errno::EINVAL)
    }
}

/// The device. A forked child opens its own.
pub(crate) fn device() -> Result<Arc<Device>, Errno> {
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

/// Tag of lists that the program has.
const LIST: u32 = 0x6463_6c73;

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let device = device()?;
        if !number.is_null() {
            // SAFETY: not NULL, so the program passes an int to write.
            unsafe { number.write(1) };
        }
        let list: Box<[*mut ibv_context; 2]> = Box::new([device.context.0, ptr::null_mut()]);
        let list = Box::into_raw(list).cast();
        live::enter(list, LIST);
        Ok(list)
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    entry((), || {
        if live::leave(list, LIST) {
            // SAFETY: a list of `rdma_get_devices`, freed once.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        } else if !list.is_null() {
            Errno::EINVAL.set();
        }
    });
}
