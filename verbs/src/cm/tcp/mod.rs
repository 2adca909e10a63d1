//! Port space TCP: iWARP connections (RFC 5044, RFC 6581).

pub(crate) mod connect;
pub(crate) mod depths;
pub(crate) mod events;
pub(crate) mod qp;
pub(crate) mod state;
