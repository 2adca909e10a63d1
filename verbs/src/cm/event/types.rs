//! Events before and after they are fetched.

use crate::abi::{rdma_cm_id, rdma_conn_param, rdma_ud_param};
use crate::ffi::CPointer;
use dgiwarp::{ConnectionEvent, ServiceEvent};
use std::ffi::{c_int, c_uint, c_void};

/// `enum rdma_cm_event_type`, as far as it is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    AddrResolved,
    AddrError,
    RouteResolved,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    MulticastJoin,
    MulticastError,
    TimewaitExit,
}

impl EventType {
    pub(crate) fn code(self) -> c_uint {
        match self {
            Self::AddrResolved => 0,
            Self::AddrError => 1,
            Self::RouteResolved => 2,
            Self::ConnectRequest => 4,
            Self::ConnectResponse => 5,
            Self::ConnectError => 6,
            Self::Unreachable => 7,
            Self::Rejected => 8,
            Self::Established => 9,
            Self::Disconnected => 10,
            Self::DeviceRemoval => 11,
            Self::MulticastJoin => 12,
            Self::MulticastError => 13,
            Self::TimewaitExit => 15,
        }
    }
}

/// An event as it is raised and queued.
pub(crate) enum Raised {
    /// Type and status.
    Plain(EventType, c_int),
    /// Of a connection, or of a listener for connections.
    Connection(ConnectionEvent),
    /// Of a service ID resolution, or of a listener for them.
    Service(ServiceEvent),
    /// Of a multicast group.
    Joined(Joined),
}

/// A join: number of the group, and the program's `context`.
pub(crate) struct Joined {
    pub(crate) number: u64,
    pub(crate) context: CPointer<c_void>,
}

/// Contents of a `struct rdma_cm_event`.
pub(crate) struct CmEvent {
    pub(crate) event_type: EventType,
    /// 0, a negative errno value, or the reason of a rejection.
    pub(crate) status: c_int,
    /// The identifier of an incoming request. Other events have the identifier that they were raised for.
    pub(crate) new_id: Option<*mut rdma_cm_id>,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
}

/// Parameters of an event, without private data.
pub(crate) enum Param {
    Connection(rdma_conn_param),
    Datagram(rdma_ud_param),
}

/// Parameters of an event without a connection.
// SAFETY: integers and a pointer, for which zero is a valid value.
pub(crate) const NO_CONNECTION: rdma_conn_param = unsafe { std::mem::zeroed() };

impl CmEvent {
    pub(crate) fn new(event_type: EventType, status: c_int) -> Self {
        Self {
            event_type,
            status,
            new_id: None,
            param: Param::Connection(NO_CONNECTION),
            private_data: Vec::new(),
        }
    }
}
