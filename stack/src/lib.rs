//! A software RNIC in user space.
//!
//! [`Rnic`] is the device. It needs no hardware, kernel module, device node or privilege: datagram QPs
//! are UDP sockets, connected QPs are TCP connections. From it come protection domains ([`Pd`]), registered
//! memory ([`Mr`]), completion queues ([`Cq`]) and queue pairs ([`UdQp`], [`UcQp`], [`RcQp`]).
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

mod ah;
#[cfg(feature = "tokio")]
mod asynchronous;
mod config;
mod connections;
mod cq;
mod driver;
mod error;
mod events;
mod fault;
mod groups;
mod mw;
mod pd;
mod proof;
mod qpns;
mod rc_listener;
mod rc_qp;
mod read_map;
mod record;
mod rnic;
mod services;
mod srq;
mod statistics;
mod uc_qp;
mod ud_qp;
mod wr;

pub use ah::AddressHandle;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncCq;
pub use config::{Config, KNOBS, Knob, MAX_PEER_SOCKETS};
pub use connections::{
    ChannelListener, ConnectionChannel, ConnectionEvent, ConnectionPort, ConnectionSink,
    PortOptions,
};
pub use cq::{CompChannel, Cq};
pub use dgiwarp_engine::cm::oob::Pairing;
pub use dgiwarp_engine::cm::sidr::{
    MAX_PRIVATE_DATA as MAX_SERVICE_PRIVATE_DATA, RejectStatus, ServiceQp,
};
pub use dgiwarp_engine::connected::RcEnd;
pub use dgiwarp_engine::datagram::{ErrorEntry, ErrorReason};
pub use dgiwarp_engine::mr::BindError;
pub use dgiwarp_engine::types::{
    AsyncEvent, Completion, MAX_SGE, MwType, NoReceive, Operation, PostError, PostFailure,
    QpCounters, RcOptions, RecvWr, Sge, Wc, WcOpcode, WcStatus,
};
pub use dgiwarp_llp_tcp_mpa::{
    Config as MpaConfig, Error as MpaError, Established, FrameError as MpaFrameError, Negotiation,
    ReadDepth as MpaReadDepth, ReadDepths, Rejection, Request as MpaRequest,
    Revision as MpaRevision, Role as MpaRole, RtrSet,
};
pub use dgiwarp_memory::{Access, Buffer, Region};
pub use dgiwarp_rdmap::datagram::{DropReason, RecordHandle};
pub use dgiwarp_rdmap::wire::AtomicOperation;
pub use driver::own_sockets::own_sockets;
pub use error::{CqError, Error};
pub use events::AsyncEvents;
pub use fault::{Fault, FaultError};
pub use groups::{GroupInterface, IPV6_ALL_HOSTS};
pub use mw::{FastMr, Mw, MwBind, next_rkey};
pub use pd::{Mr, MrBusy, MrOptions, Pd};
pub use rc_listener::{RcListener, RcRequest};
pub use rc_qp::{ConnectError, MAX_INLINE_DATA, RcOperation, RcQp, RcQpAttr, RcSendWr};
pub use read_map::ReadMap;
pub use record::{RecordCompletions, RecordRef, RecordView};
pub use rnic::{Rnic, WeakRnic};
pub use services::{
    LookupError, ServiceChannel, ServiceEvent, ServiceListener, ServiceLookup, ServicePort,
    ServiceRequest, ServiceSink,
};
pub use srq::{Srq, SrqAttr};
pub use uc_qp::{UcConnectError, UcOperation, UcQp, UcQpAttr, UcSendWr};
pub use ud_qp::{UdQp, UdQpAttr};
pub use wr::{Destination, SendWr};
