//! A software RNIC in user space.
//!
//! [`Rnic`] is the device. It needs no hardware, kernel module, device node or privilege: datagram QPs
//! are UDP sockets, connected QPs are TCP connections. From it come protection domains ([`Pd`]), registered
//! memory ([`Mr`]), completion queues ([`Cq`]) and queue pairs ([`UdQp`], [`UcQp`], [`RdQp`], [`RcQp`]).
//!
//! Posting transmits in the caller's thread and [`Cq::poll`] receives in the caller's thread; a background
//! thread serves one-sided traffic, timers and full sockets while nobody polls.
//!
//! ```
//! use dgiwarp::{Access, Buffer, Config, Destination, Operation, Rnic, SendWr, UdQpAttr, WcOpcode};
//!
//! let rnic = Rnic::open(Config::default())?;
//! let pd = rnic.alloc_pd();
//! let cq = rnic.create_cq(64)?;
//!
//! // The target lets a peer write 4096 octets and keeps records of what arrived.
//! let target = pd.create_ud_qp(&UdQpAttr { record_slots: 16, ..UdQpAttr::new(&cq, &cq) })?;
//! let memory = Buffer::zeroed(4096)?;
//! let mr = pd.register(memory.region(), Access::REMOTE_WRITE)?;
//!
//! // The source writes; it needs the target's QPN, address and rkey, exchanged by whatever means.
//! let source = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
//! let message = Buffer::zeroed(1000)?;
//! message.write(0, &[7; 1000]);
//! let local = pd.register(message.region(), Access::empty())?;
//! source.post_send(&[SendWr {
//!     wr_id: 1,
//!     operation: Operation::WriteRecord { rkey: mr.rkey(), remote_addr: mr.addr(), immediate: None },
//!     destination: Destination { ah: pd.create_ah("127.0.0.1".parse()?)?, qpn: target.qpn(), qkey: 0 },
//!     sges: &[local.sge(..)],
//!     signaled: false,
//!     solicited: false,
//! }])?;
//!
//! let wc = cq.wait(std::time::Duration::from_secs(5))?.expect("a record");
//! assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::WriteRecord, 1000));
//! let record = target.record(wc.record()).expect("not released yet");
//! assert_eq!(record.ranges, [(0, 1000)]);
//! target.release_record(wc.record());
//! assert_eq!(memory.to_vec(0, 1000), [7; 1000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod api;
mod driver;

pub use api::cm::channel::{ChannelListener, ConnectionChannel};
pub use api::cm::listener::RcListener;
pub use api::cm::sidr::{
    LookupError, ServiceChannel, ServiceEvent, ServiceListener, ServiceLookup, ServicePort,
    ServiceRequest, ServiceSink,
};
#[cfg(feature = "tokio")]
pub use api::cq::async_cq::AsyncCq;
pub use api::cq::queue::{CompChannel, Cq};
pub use api::cq::watch::CqWatch;
pub use api::device::config::{Config, KNOBS, Knob, MAX_PEER_SOCKETS, SameHostMode};
pub use api::device::error::{CqError, Error};
pub use api::device::events::AsyncEvents;
pub use api::device::fault::{Fault, FaultError};
pub use api::device::rnic::{NetworkWatch, Rnic, WeakRnic};
pub use api::memory::mw::{FastMr, Mw, MwBind, next_rkey};
pub use api::memory::pd::{Mr, MrBusy, MrOptions, Pd};
pub use api::qp::ah::AddressHandle;
pub use api::qp::attr::{QpAttr, RcQpAttr, UdQpAttr};
pub use api::qp::datagram::DatagramQp;
pub use api::qp::multicast::{GroupInterface, IPV6_ALL_HOSTS};
pub use api::qp::rc::{MAX_INLINE_DATA, RcOperation, RcQp, RcSendWr};
pub use api::qp::read_map::ReadMap;
pub use api::qp::record::{RecordCompletions, RecordRef, RecordView};
pub use api::qp::srq::{Srq, SrqAttr};
pub use api::qp::uc::{DatagramConnectError, UcOperation, UcQp, UcQpAttr, UcSendWr};
pub use api::qp::ud::UdQp;
pub use api::qp::wr::{Destination, SendWr, ShortSendWr};
pub use api::rc_rd::RcRdQp;
pub use api::rd::{RdQp, RdQpAttr, RdSendWr};
pub use api::xrc::Xrcd;
pub use dgiwarp_engine::cm::oob::Pairing;
pub use dgiwarp_engine::cm::sidr::{
    MAX_PRIVATE_DATA as MAX_SERVICE_PRIVATE_DATA, RejectStatus, ServiceQp,
};
pub use dgiwarp_engine::connected::RcEnd;
pub use dgiwarp_engine::datagram::{ErrorEntry, ErrorReason};
pub use dgiwarp_engine::mr::BindError;
pub use dgiwarp_engine::types::{
    AsyncEvent, Completion, MAX_SGE, MwType, NoReceive, Operation, PostError, PostFailure,
    QpCounters, RcOptions, RecvWr, RnrLimits, Sge, ShortData, Wc, WcOpcode, WcStatus,
};
pub use dgiwarp_llp_tcp_mpa::{
    Config as MpaConfig, CrcPreference, Error as MpaError, Established,
    FrameError as MpaFrameError, Negotiation, ReadDepth as MpaReadDepth, ReadDepths, Rejection,
    Request as MpaRequest, Revision as MpaRevision, Role as MpaRole, RtrSet,
};
pub use dgiwarp_memory::{Access, Buffer, Region, RegionSlice};
pub use dgiwarp_rdmap::datagram::{DropReason, RecordHandle};
pub use dgiwarp_rdmap::wire::AtomicOperation;
pub use driver::cm::events::{ConnectError, ConnectionEvent, ConnectionSink, RcRequest};
pub use driver::device::fds::{adopt as adopt_socket, own_sockets};
pub use driver::device::library_thread::start_library_thread;
pub use driver::tcp::port::ConnectionPort;
pub use driver::tcp::socket::PortOptions;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
