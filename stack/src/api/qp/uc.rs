//! Queue pairs for unreliable messages to and from one peer.
//!
//! A UC queue pair is a datagram queue pair that speaks with one peer only: the same socket, segments and engine, and an RDMA
//! Write that makes no record (`rfc-notes/datagram-mapping.md` §5.2).

use std::net::SocketAddr;
use std::ops::Deref;

use dgiwarp_llp_udp::Peer;
use parking_lot::RwLock;

use super::datagram::{DatagramQp, bind_any};
use crate::{AddressHandle, Error, Operation, Pd, PostError, PostFailure, Sge, UdQpAttr};
use dgiwarp_engine::datagram::SendWqe;
use dgiwarp_engine::recv_queue::copy_sges;
use dgiwarp_engine::types::Route;

/// Attributes of a UC queue pair: those of a UD queue pair. `qkey`, `read_timeout` and `grh` are without effect; UC Writes need no `record_slots`.
pub type UcQpAttr<'a> = UdQpAttr<'a>;

/// Operation of a send work request of a UC queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UcOperation {
    /// Send to the peer's receive queue.
    Send {
        /// 32 bits that come with the message.
        immediate: Option<u32>,
    },
    /// RDMA Write to the peer's memory. Without an immediate the peer's program gets no completion; with one it consumes a posted receive and completes there
    /// once all octets have arrived. If some are lost, nothing is reported and those that arrived stay.
    Write {
        /// The remote key of the target region.
        rkey: u32,
        /// The target address in that region's address space.
        remote_addr: u64,
        /// 32 bits that come with the peer's completion.
        immediate: Option<u32>,
    },
    /// RDMA Write-Record, for a peer that keeps records.
    WriteRecord {
        /// The remote key of the target region.
        rkey: u32,
        /// The target address in that region's address space.
        remote_addr: u64,
        /// 32 bits that come with the record.
        immediate: Option<u32>,
    },
}

/// A send work request of a UC queue pair (`ibv_send_wr`).
#[derive(Debug, Clone, Copy)]
pub struct UcSendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub operation: UcOperation,
    /// The payload, gathered in this order. It must stay unchanged until the completion.
    pub sges: &'a [Sge],
    /// Whether success makes a completion; errors always do.
    pub signaled: bool,
    /// Whether the receiver raises a solicited event, where it completes something.
    pub solicited: bool,
}

/// Why a queue pair with one peer and a UDP socket of its own, a UC queue pair or an RC one on reliable datagrams, has not got this peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramConnectError {
    /// It has a peer, which is fixed.
    #[error("the queue pair has a peer")]
    Connected,
    /// The address is not that of one host.
    #[error("the peer's address names no single host")]
    NotUnicast,
    /// The peer's address and the queue pair's socket are not of one kind.
    #[error("the peer cannot be reached from this queue pair's address")]
    AddressFamily,
}

/// The peer with its path.
#[derive(Debug)]
struct Connected {
    route: Route,
    peer: Peer,
}

/// A UC queue pair. Its QPN is the UDP port of its socket; it sends to its peer, takes messages from its peer, and drops all others'
/// (`wrong-peer`). As on InfiniBand nothing is acknowledged: beside the keys of memory, only address and port distinguish the peer from
/// others. It has no RDMA Read. Dropping it destroys it, as with a [`UdQp`](crate::UdQp).
///
/// ```
/// use dgiwarp::{Access, Buffer, Config, RecvWr, Rnic, UcOperation, UcQpAttr, UcSendWr, WcOpcode};
///
/// let rnic = Rnic::open(Config::default())?;
/// let pd = rnic.alloc_pd();
/// let cq = rnic.create_cq(64)?;
/// let source = pd.create_uc_qp(&UcQpAttr::new(&cq, &cq))?;
/// let target = pd.create_uc_qp(&UcQpAttr::new(&cq, &cq))?;
/// // Each needs the other's address and QPN, exchanged by whatever means.
/// let here = pd.create_ah("127.0.0.1".parse()?)?;
/// source.connect(&here, target.qpn())?;
/// target.connect(&here, source.qpn())?;
///
/// let memory = Buffer::zeroed(4096)?;
/// let mr = pd.register(memory.region(), Access::REMOTE_WRITE)?;
/// target.post_recv(&[RecvWr { wr_id: 7, sges: &[] }])?;
/// let message = Buffer::zeroed(1000)?;
/// message.write(0, &[7; 1000]);
/// let local = pd.register(message.region(), Access::empty())?;
/// source.post_send(&[UcSendWr {
///     wr_id: 1,
///     operation: UcOperation::Write { rkey: mr.rkey(), remote_addr: mr.addr(), immediate: Some(5) },
///     sges: &[local.sge(..)],
///     signaled: false,
///     solicited: false,
/// }])?;
///
/// let wc = cq.wait(std::time::Duration::from_secs(5))?.expect("all octets arrived");
/// assert_eq!((wc.opcode, wc.wr_id), (WcOpcode::RecvRdmaWithImmediate, 7));
/// assert_eq!((wc.byte_len, wc.immediate), (1000, Some(5)));
/// assert_eq!(memory.to_vec(0, 1000), [7; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct UcQp {
    qp: DatagramQp,
    connected: RwLock<Option<Connected>>,
}

impl Deref for UcQp {
    type Target = DatagramQp;

    #[inline]
    fn deref(&self) -> &DatagramQp {
        &self.qp
    }
}

impl UcQp {
    pub(crate) fn create(pd: &Pd, attr: &UcQpAttr<'_>) -> Result<Self, Error> {
        let attr = UdQpAttr {
            qkey: 0,
            read_timeout: None,
            grh: false,
            ..attr.clone()
        };
        Ok(Self {
            qp: DatagramQp::create_on(pd, &attr, true, || bind_any(attr.bind, pd))?,
            connected: RwLock::new(None),
        })
    }

    /// Gives the queue pair its peer: a host, at the address that the peer sends from, and the peer's QPN. Until then nothing can be posted, and what
    /// arrives is dropped. Can be done once; nothing is exchanged with the peer.
    ///
    /// # Errors
    /// [`DatagramConnectError`].
    pub fn connect(&self, ah: &AddressHandle, qpn: u16) -> Result<(), DatagramConnectError> {
        if ah.is_group() || ah.destination().is_unspecified() {
            return Err(DatagramConnectError::NotUnicast);
        }
        let peer = self
            .qp
            .peer(ah, qpn)
            .map_err(|_| DatagramConnectError::AddressFamily)?;
        let local = ah.source().unwrap_or_else(|| ah.route_source());
        if !self.qp.connect(peer, local) {
            return Err(DatagramConnectError::Connected);
        }
        let route = ah.route().clone();
        *self.connected.write() = Some(Connected { route, peer });
        Ok(())
    }

    /// The peer's address and QPN, once there is one.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.connected.read().as_ref()?.peer.socket_addr()
    }

    /// Posts sends, in order, and hands as much of them to the network as it takes now (`ibv_post_send(3)`), as
    /// [`UdQp::post_send`](crate::UdQp::post_send). Never blocks.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one: [`PostError::State`] without a peer.
    pub fn post_send(&self, wrs: &[UcSendWr<'_>]) -> Result<(), PostFailure> {
        let connected = self.connected.read();
        let Some(connected) = &*connected else {
            return Err(PostFailure {
                accepted: 0,
                source: PostError::State,
            });
        };
        self.qp
            .shared
            .post(wrs.iter().map(|wr| self.wqe(connected, wr)))
    }

    /// Posts all of the sends, in order, or none of them, as [`UdQp::post_send_all`](crate::UdQp::post_send_all).
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted: [`PostError::State`] without a peer.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<UcSendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        let connected = self.connected.read();
        let connected = connected.as_ref().ok_or(PostError::State)?;
        self.qp
            .shared
            .post_all(wrs.map(|wr| self.wqe(connected, &wr?)))
    }

    #[inline]
    fn wqe(&self, connected: &Connected, wr: &UcSendWr<'_>) -> Result<SendWqe, PostError> {
        let (operation, unrecorded) = match wr.operation {
            UcOperation::Send { immediate } => (Operation::Send { immediate }, false),
            UcOperation::Write {
                rkey,
                remote_addr,
                immediate,
            } => (write(rkey, remote_addr, immediate), true),
            UcOperation::WriteRecord {
                rkey,
                remote_addr,
                immediate,
            } => (write(rkey, remote_addr, immediate), false),
        };
        let length = self.qp.check(operation, wr.sges)?;
        Ok(SendWqe {
            wr_id: wr.wr_id,
            operation,
            route: connected.route.clone(),
            peer: connected.peer,
            qkey: 0,
            sges: copy_sges(wr.sges),
            length,
            signaled: wr.signaled,
            solicited: wr.solicited,
            unrecorded,
        })
    }

    /// Resets the queue pair as [`UdQp::reset`](crate::UdQp::reset), to one without a peer.
    pub fn reset(&self) {
        *self.connected.write() = None;
        self.qp.reset();
    }
}

fn write(rkey: u32, remote_addr: u64, immediate: Option<u32>) -> Operation {
    Operation::WriteRecord {
        rkey,
        remote_addr,
        immediate,
    }
}

/// Queue pairs with one peer, of a protection domain.
impl Pd {
    /// Makes a queue pair for datagrams to and from one peer.
    ///
    /// # Errors
    /// As [`create_ud_qp`](Self::create_ud_qp).
    pub fn create_uc_qp(&self, attr: &UcQpAttr<'_>) -> Result<UcQp, Error> {
        UcQp::create(self, attr)
    }
}
