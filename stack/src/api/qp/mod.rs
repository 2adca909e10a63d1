//! Queue pairs, their work requests, address handles, groups, records and QPNs.

mod address_validation;
pub(crate) mod ah;
pub(crate) mod attr;
pub(crate) mod datagram;
pub(crate) mod multicast;
pub(crate) mod qpn;
pub(crate) mod rc;
pub(crate) mod read_map;
pub(crate) mod record;
pub(crate) mod srq;
pub(crate) mod uc;
pub(crate) mod ud;
pub(crate) mod wr;
