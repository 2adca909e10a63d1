//! Open devices and the GID table of the process.

pub(super) mod port_events;

use crate::abi::{ibv_context, verbs_context};
use crate::device::async_queue::AsyncQueue;
use crate::device::gid::{GidTable, host_gids};
use crate::ffi::fork::ProcessTable;
use crate::ffi::{Facade, Object};
use dgiwarp::{NetworkWatch, Rnic};
use nix::errno::Errno;
use std::mem::offset_of;
use std::sync::Arc;

/// One table for the process: all contexts have the same indices.
static GIDS: ProcessTable<GidTable> = ProcessTable::inherited(GidTable::new());

/// An open device.
pub(crate) struct Context {
    pub(crate) rnic: Rnic,
    pub(crate) async_events: Arc<AsyncQueue>,
    /// Source of the port's events, where the system has one.
    pub(super) _network: Option<NetworkWatch>,
}

impl Facade for Context {
    type C = verbs_context;
    const TAG: u32 = 0x6463_7478;
}

impl Context {
    /// Checks a port number: the only port is 1.
    pub(crate) fn expect_port(&self, port: u32) -> Result<(), Errno> {
        if port == 1 {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Runs `body` on the GID table.
    pub(crate) fn with_gids<T>(&self, body: impl FnOnce(&GidTable) -> T) -> T {
        with_gids(body)
    }
}

/// Runs `body` on the GID table.
pub(crate) fn with_gids<T>(body: impl FnOnce(&GidTable) -> T) -> T {
    body(&GIDS.lock())
}

/// Updates the GID table with the present addresses of the host.
pub(crate) fn refresh_gids() -> Result<(), Errno> {
    let present = host_gids()?;
    GIDS.lock().update(present);
    Ok(())
}

/// The context behind a program's pointer, which points into the middle of the object.
///
/// # Safety
/// `context` is NULL or an open context that stays open for `'a`.
pub(crate) unsafe fn state<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
    // SAFETY: the caller's contract is the same.
    let outer = unsafe { outer(context) }?;
    // SAFETY: an open context of ours is embedded in an object that lives as long.
    unsafe { Object::<Context>::state(outer) }
}

/// Checks that a pointer is a context, be it of the parent of a forked child: for calls that need nothing of the device.
///
/// # Safety
/// `context` is NULL or an open context.
pub(crate) unsafe fn expect_any(context: *mut ibv_context) -> Result<(), Errno> {
    // SAFETY: the caller's contract is the same.
    match unsafe { state(context) } {
        Ok(_) | Err(Errno::EIO) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The object around a context.
///
/// # Safety
/// As for [`state`].
pub(crate) unsafe fn outer(context: *mut ibv_context) -> Result<*mut verbs_context, Errno> {
    if context.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: every context that programs have stands at this offset in a `verbs_context`.
    Ok(unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}
