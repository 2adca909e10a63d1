//! The device: its list and names, contexts and queries, attributes, GIDs, asynchronous events and settings.

pub(crate) mod async_event;
pub(crate) mod async_queue;
pub(crate) mod at_exit;
pub(crate) mod context;
pub(crate) mod device_attr;
pub(crate) mod env;
pub mod gid;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod open;
pub mod persona;
pub(crate) mod query;
pub mod sysfs;
