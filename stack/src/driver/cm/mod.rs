//! Connection management: MPA connections of the API, out-of-band connections, service ID resolution.

pub(crate) mod connect;
pub(crate) mod events;
pub(crate) mod oob_connect;
pub(crate) mod sidr;
