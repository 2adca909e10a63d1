//! Connection management: MPA connections of the API, out-of-band connections, port queries, service ID resolution.

pub(crate) mod connect;
pub(crate) mod event_connections;
pub(crate) mod events;
pub(crate) mod held;
pub(crate) mod oob_connect;
pub(crate) mod port_queries;
pub(crate) mod rd_carrier;
pub(crate) mod sidr;
pub(crate) mod timewait;
