//! Identifiers of incoming requests.

use crate::abi::rdma_cm_id;
use crate::cm::id::identifier::{Id, IdAttr, create, id};
use crate::ffi::CPointer;
use nix::errno::Errno;
use std::sync::Arc;

/// Creates the identifier of a peer's request, with the listener's channel, context and port space. Only in calls of the program.
pub(crate) fn create_for(listener: &Arc<Id>) -> Result<(*mut rdma_cm_id, Arc<Id>), Errno> {
    let synchronous = listener.lock().synchronous;
    // SAFETY: destroying an identifier waits until its events are fetched, and only calls of the program write its fields.
    let c = unsafe { &*listener.pointer() };
    let attr = IdAttr {
        channel: (!synchronous).then_some(CPointer(c.channel)),
        context: c.context,
        port_space: c.ps,
    };
    // SAFETY: the listener's channel is live.
    let new = unsafe { create(&attr) }?;
    // SAFETY: just created.
    let id = Arc::clone(unsafe { id(new) }?);
    id.bind_device()?;
    Ok((new, id))
}
