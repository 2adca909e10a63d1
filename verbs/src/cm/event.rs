//! From what happened to the `struct rdma_cm_event` that tells it.

use super::channel::{EventQueue, Happening};
use super::id::Id;
use super::multicast::{self, Joined};
use super::{tcp, udp};
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_param, rdma_ud_param};
use crate::ffi::{Facade, Object};
use dgiwarp::{ConnectionEvent, ServiceEvent};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

/// `enum rdma_cm_event_type`.
#[allow(dead_code, reason = "datagram services and groups use the others")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    MulticastJoin,
    MulticastError,
}

impl EventType {
    fn code(self) -> c_uint {
        match self {
            Self::AddrResolved => 0,
            Self::AddrError => 1,
            Self::RouteResolved => 2,
            Self::RouteError => 3,
            Self::ConnectRequest => 4,
            Self::ConnectResponse => 5,
            Self::ConnectError => 6,
            Self::Unreachable => 7,
            Self::Rejected => 8,
            Self::Established => 9,
            Self::Disconnected => 10,
            Self::MulticastJoin => 12,
            Self::MulticastError => 13,
        }
    }
}

/// What happened, as it is queued.
pub(crate) enum What {
    /// Nothing more is to be said.
    Plain(EventType, c_int),
    /// To a connection, or to a listener.
    Connection(ConnectionEvent),
    /// To a service, or to the lookup of one.
    Service(ServiceEvent),
    /// A group was joined.
    Joined(Joined),
}

/// What the program is told.
pub(crate) struct Told {
    pub(crate) event: EventType,
    /// 0, a negative errno value, or a reason for a rejection.
    pub(crate) status: c_int,
    /// The identifier, if it is another than the one it happened to: a new one that came from a listener.
    pub(crate) new: Option<*mut rdma_cm_id>,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
}

/// What it is told of the peer. Private data is added.
#[allow(dead_code, reason = "datagram services use the other")]
pub(crate) enum Param {
    Connection(rdma_conn_param),
    Datagram(rdma_ud_param),
}

/// Parameters that say nothing.
pub(crate) const NO_CONNECTION: rdma_conn_param = rdma_conn_param {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

impl Told {
    pub(crate) fn new(event: EventType, status: c_int) -> Self {
        Self {
            event,
            status,
            new: None,
            param: Param::Connection(NO_CONNECTION),
            private_data: Vec::new(),
        }
    }
}

/// Behind an event that was fetched and not acknowledged.
struct Fetched {
    /// Whom its acknowledgement counts for.
    id: Arc<Id>,
    _private_data: Box<[u8]>,
}

impl Facade for Fetched {
    type C = rdma_cm_event;
    const TAG: u32 = 0x6463_6576;
}

/// The next event of a channel.
pub(crate) fn fetch(queue: &EventQueue) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        if let Some(event) = tell(queue.next()?) {
            return Ok(event);
        }
    }
}

/// The same without waiting.
pub(crate) fn try_fetch(queue: &EventQueue) -> Option<*mut rdma_cm_event> {
    loop {
        let event = tell(queue.try_next()?);
        if event.is_some() {
            return event;
        }
    }
}

/// What a program is told of something that happened, if it is told of it.
fn tell(Happening { id, what }: Happening) -> Option<*mut rdma_cm_event> {
    let told = match what {
        What::Plain(event, status) => Some(Told::new(event, status)),
        What::Connection(event) => tcp::tell(&id, event),
        What::Service(event) => udp::tell(&id, event),
        What::Joined(joined) => multicast::tell(&id, &joined),
    };
    if told.is_none() {
        id.note_acknowledged();
    }
    told.map(|told| make(id, told))
}

fn make(id: Arc<Id>, told: Told) -> *mut rdma_cm_event {
    /// More than any message of InfiniBand carries.
    const READABLE: usize = 256;
    let mut private_data = told.private_data;
    let said = private_data.len();
    // On InfiniBand private data comes with all that the message had room for, zero where nothing was said, and programs look beyond what was.
    private_data.resize(said.max(READABLE), 0);
    let private_data = private_data.into_boxed_slice();
    let (data, data_len) = if said == 0 {
        // The context of a join stands in the same place.
        let context = match told.param {
            Param::Connection(_) => ptr::null(),
            Param::Datagram(ud) => ud.private_data,
        };
        (context, 0)
    } else {
        // Startup frames carry more than the C struct can say.
        let len = u8::try_from(said).unwrap_or(u8::MAX);
        (private_data.as_ptr().cast(), len)
    };
    let param = match told.param {
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
    let own = id.c();
    let c = rdma_cm_event {
        id: told.new.unwrap_or(own),
        listen_id: if told.new.is_some() {
            own
        } else {
            ptr::null_mut()
        },
        event: told.event.code(),
        status: told.status,
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

/// The program is done with an event.
///
/// # Safety
/// `event` is NULL or an event that was fetched and not acknowledged.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let fetched = unsafe { Object::<Fetched>::release(event) }?;
    fetched.id.note_acknowledged();
    Ok(())
}
