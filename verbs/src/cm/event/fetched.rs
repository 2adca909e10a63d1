//! Fetched events: `struct rdma_cm_event` until its acknowledgement.

use crate::abi::{rdma_cm_event, rdma_conn_param, rdma_event_param, rdma_ud_param};
use crate::cm::event::types::{CmEvent, Param};
use crate::cm::id::identifier::Id;
use crate::ffi::{Facade, Object};
use nix::errno::Errno;
use std::ptr;
use std::sync::Arc;

/// State behind a fetched event.
struct Fetched {
    /// Identifier that the event was raised for.
    id: Arc<Id>,
    /// Keeps the memory that the event points to.
    _private_data: Box<[u8]>,
}

impl Facade for Fetched {
    type C = rdma_cm_event;
    const TAG: u32 = 0x6463_6576;
}

/// The struct of an event that was raised for `id`.
pub(super) fn create(id: Arc<Id>, event: CmEvent) -> *mut rdma_cm_event {
    /// Octets behind every `private_data`: more than any message of InfiniBand carries.
    const READABLE: usize = 256;
    let mut private_data = event.private_data;
    let length = private_data.len();
    // On InfiniBand private data is as long as the message has room for, padded with zeroes, and programs read beyond its length.
    private_data.resize(length.max(READABLE), 0);
    let private_data = private_data.into_boxed_slice();
    let (data, data_len) = if length == 0 {
        // The context of a join is in the same field.
        let context = match event.param {
            Param::Connection(_) => ptr::null(),
            Param::Datagram(ud) => ud.private_data,
        };
        (context, 0)
    } else {
        // Startup frames carry more than the field can count.
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        (private_data.as_ptr().cast(), length)
    };
    let param = match event.param {
        Param::Connection(conn) => rdma_event_param {
            conn: rdma_conn_param {
                private_data: data,
                private_data_len: data_len,
                ..conn
            },
        },
        Param::Datagram(ud) => rdma_event_param {
            ud: rdma_ud_param {
                private_data: data,
                private_data_len: data_len,
                ..ud
            },
        },
    };
    let own = id.pointer();
    let c = rdma_cm_event {
        id: event.new_id.unwrap_or(own),
        listen_id: event.new_id.map_or(ptr::null_mut(), |_| own),
        event: event.event_type.code(),
        status: event.status,
        param,
    };
    Object::create(
        c,
        Fetched {
            id,
            _private_data: private_data,
        },
    )
}

/// Acknowledges and frees an event.
///
/// # Safety
/// `event` is NULL or an event that was fetched and not acknowledged.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let fetched = unsafe { Object::<Fetched>::release(event) }?;
    fetched.id.unacked.acknowledged(1);
    Ok(())
}
