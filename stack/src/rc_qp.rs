//! Connected queue pairs: iWARP over TCP.
//!
//! The order is that of rdma_cm: make the queue pair, post receives, then connect or accept. Connecting and accepting wait in the
//! calling thread, bounded by [`MpaConfig::startup_timeout`]; afterwards nothing waits.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_llp_tcp_mpa::{ConfigError, Connection, Event, RtrSet};

use crate::driver::clock;
use crate::driver::rc::{RcShared, Startup};
use crate::driver::tcp::{self, Started};
use crate::engine::queue::{RecvQueue, copy_sges, total_length};
use crate::engine::rc::{RcConfig, RcEnd, RcSendWqe};
use crate::{
    Cq, Error, Established, MAX_SGE, MpaConfig, MpaRequest, Negotiation, Pd, PostError,
    PostFailure, QpCounters, ReadDepths, RecvWr, Rejection, Sge, Srq,
};

/// Most work requests of a queue.
const MAX_WR: usize = 1 << 16;
/// The RTR indication that this end can send, and receive without a trace.
const RTR: RtrSet = RtrSet {
    write: true,
    ..RtrSet::NONE
};

/// What a connected queue pair shall be (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
pub struct RcQpAttr<'a> {
    /// Where completions of posted sends go.
    pub send_cq: &'a Cq,
    /// Where completions of receives go.
    pub recv_cq: &'a Cq,
    /// Sends outstanding at most, 1 to 65,536. Default 256.
    pub max_send_wr: usize,
    /// Receives posted at most, 1 to 65,536. Default 256.
    pub max_recv_wr: usize,
    /// Scatter/gather elements per work request, 1 to [`MAX_SGE`]. Default 4.
    pub max_sge: usize,
    /// A queue to take receives from instead of one of this QP's own; then `max_recv_wr` does not count, and receives are posted there.
    /// Default none.
    pub srq: Option<&'a Srq>,
}

impl<'a> RcQpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_sge: 4,
            srq: None,
        }
    }
}

/// A Send of a connected QP.
#[derive(Debug, Clone, Copy)]
pub struct RcSendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The payload, gathered in this order. It must stay unchanged until the completion.
    pub sges: &'a [Sge],
    /// Whether success makes a completion; errors always do.
    pub signaled: bool,
    /// Whether the receiver raises a solicited event.
    pub solicited: bool,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// TCP could not connect, or was lost.
    #[error("TCP: {0}")]
    Tcp(#[from] io::Error),
    /// The MPA startup failed.
    #[error(transparent)]
    Mpa(dgiwarp_llp_tcp_mpa::Error),
    /// The peer said no.
    #[error("the peer rejected the connection")]
    Rejected(Rejection),
    /// Our own request or answer cannot be said.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The queue pair has or had a connection.
    #[error("the queue pair is or was connected")]
    State,
    /// The device could not take the connection over.
    #[error(transparent)]
    Device(Error),
}

/// A connected queue pair. Dropping it closes the connection: sends that TCP has not taken get up to a second, the peer up to two for
/// closing its half.
#[derive(Debug)]
pub struct RcQp {
    shared: Arc<RcShared>,
    pd: Pd,
    qpn: u32,
    max_sge: usize,
}

impl RcQp {
    pub(crate) fn create(pd: &Pd, attr: &RcQpAttr<'_>) -> Result<Self, Error> {
        for (what, value, max) in [
            ("max_send_wr", attr.max_send_wr, MAX_WR),
            ("max_recv_wr", attr.max_recv_wr, MAX_WR),
            ("max_sge", attr.max_sge, MAX_SGE),
        ] {
            if !(1..=max).contains(&value) {
                return Err(Error::Limit {
                    what,
                    value,
                    min: 1,
                    max,
                });
            }
        }
        let rnic = &pd.rnic.shared;
        let shared = RcShared::new(
            Arc::clone(&attr.send_cq.shared),
            Arc::clone(&attr.recv_cq.shared),
            Arc::clone(&rnic.mrs),
            attr.max_send_wr,
            match attr.srq {
                Some(srq) => Arc::clone(&srq.queue),
                None => Arc::new(RecvQueue::new(attr.max_recv_wr, attr.max_sge)),
            },
        );
        Ok(Self {
            shared,
            pd: pd.clone(),
            qpn: rnic.next_rc_qpn(),
            max_sge: attr.max_sge,
        })
    }

    /// Our number for it.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Connects to a listener, as MPA Initiator. [`MpaConfig::emss`] is replaced by what TCP finds, and
    /// [`MpaConfig::rtr`] by a zero-length Write.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair may then be used for another attempt.
    pub fn connect(
        &self,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
    ) -> Result<Established, ConnectError> {
        if self.shared.is_connected() {
            return Err(ConnectError::State);
        }
        let stream = tcp::connect(to, mpa.startup_timeout)?;
        let config = MpaConfig {
            emss: tcp::emss(&stream)?,
            rtr: RTR,
            ..mpa.clone()
        };
        let mut connection = Connection::initiator(clock::now(), config, private_data)?;
        let Started { event, rest } = tcp::start(&stream, &mut connection)?;
        match event {
            Event::Established(established) => {
                let startup = Startup {
                    send_rtr: established.send_rtr.is_some(),
                    rest: &rest,
                };
                self.link(to, connection, stream, startup)?;
                Ok(established)
            }
            Event::Rejected(rejection) => Err(ConnectError::Rejected(rejection)),
            Event::Failed(error) => Err(ConnectError::Mpa(error)),
            Event::Request(_) | Event::PeerClosed => {
                unreachable!("not events of an Initiator's startup")
            }
        }
    }

    fn link(
        &self,
        peer: SocketAddr,
        connection: Connection,
        stream: TcpStream,
        startup: Startup<'_>,
    ) -> Result<(), ConnectError> {
        let config = RcConfig {
            qpn: self.qpn,
            pd: self.pd.id,
            peer,
        };
        self.shared
            .link(config, connection, stream, startup)
            .map_err(ConnectError::Device)
    }

    /// Posts Sends, in order, and hands as much of them to TCP as it takes now (`ibv_post_send(3)`). Never blocks. Those of the side
    /// that accepted leave once the other side has sent something.
    ///
    /// # Errors
    /// [`PostFailure`] tells how many were accepted, and why the next one was not.
    pub fn post_send(&self, wrs: &[RcSendWr<'_>]) -> Result<(), PostFailure> {
        let wqes = wrs.iter().map(|wr| self.wqe(wr));
        let (accepted, result) = self.shared.post(wqes);
        result.map_err(|source| PostFailure { accepted, source })
    }

    fn wqe(&self, wr: &RcSendWr<'_>) -> Result<RcSendWqe, PostError> {
        let sges = copy_sges(wr.sges, self.max_sge)?;
        let length = total_length(&sges)?;
        Ok(RcSendWqe {
            wr_id: wr.wr_id,
            sges,
            length,
            signaled: wr.signaled,
            solicited: wr.solicited,
        })
    }

    /// Posts receives, in order (`ibv_post_recv(3)`); best before connecting, since a Send that finds none ends the connection.
    ///
    /// # Errors
    /// [`PostFailure`] tells how many were accepted, and why the next one was not.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        self.shared.recv_queue.post_own(wrs)
    }

    /// Closes the connection gracefully. Everything still posted completes with `Flushed`.
    pub fn disconnect(&self) {
        self.shared.disconnect();
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn end(&self) -> Option<RcEnd> {
        self.shared.end()
    }

    /// Our address and TCP port, once connected.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.local_addr()
    }

    /// What the queue pair counted.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.shared.counters()
    }
}

impl Drop for RcQp {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Waits for connections on a TCP port.
#[derive(Debug)]
pub struct RcListener {
    listener: TcpListener,
    mpa: MpaConfig,
}

impl RcListener {
    /// Listens on an address and TCP port, port 0 for one of the system's choice. `mpa` is what this end wants of every connection.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not one of this host's.
    pub fn bind(address: SocketAddr, mpa: MpaConfig) -> Result<Self, Error> {
        let listener = tcp::listen(address).map_err(|source| Error::Bind { address, source })?;
        Ok(Self { listener, mpa })
    }

    /// The address and port that it listens on.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel does not tell.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.listener
            .local_addr()
            .map_err(Error::system("cannot read a socket's address"))
    }

    /// The next request for a connection; `None` if nobody connects within `timeout`. One that connects without a proper request is
    /// an error within [`MpaConfig::startup_timeout`]; the listener goes on.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn accept(&self, timeout: Duration) -> Result<Option<RcRequest>, ConnectError> {
        let deadline = clock::now() + timeout;
        let Some((stream, peer)) = tcp::accept(&self.listener, deadline)? else {
            return Ok(None);
        };
        let config = MpaConfig {
            emss: tcp::emss(&stream)?,
            rtr: RTR,
            ..self.mpa.clone()
        };
        let mut connection = Connection::responder(clock::now(), config);
        let Started { mut event, rest } = tcp::start(&stream, &mut connection)?;
        if !rest.is_empty() {
            // Nothing may follow a Request before its answer; MPA says so.
            let _ = connection.handle_input(clock::now(), &mut rest.as_slice());
            event = connection.poll_event().unwrap_or(event);
        }
        match event {
            Event::Request(request) => Ok(Some(RcRequest {
                stream,
                peer,
                connection,
                request,
            })),
            Event::Failed(error) => Err(ConnectError::Mpa(error)),
            Event::Established(_) | Event::Rejected(_) | Event::PeerClosed => {
                unreachable!("not events of a Responder before its answer")
            }
        }
    }
}

/// A peer that asks for a connection. Dropping it closes TCP without an answer.
#[derive(Debug)]
pub struct RcRequest {
    stream: TcpStream,
    peer: SocketAddr,
    connection: Connection,
    request: MpaRequest,
}

impl RcRequest {
    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the request says.
    #[must_use]
    pub fn request(&self) -> &MpaRequest {
        &self.request
    }

    /// Accepts on a queue pair, as MPA Responder.
    ///
    /// # Errors
    /// [`ConnectError`]; the request is gone then.
    pub fn accept(
        mut self,
        qp: &RcQp,
        depths: ReadDepths,
        private_data: &[u8],
    ) -> Result<Negotiation, ConnectError> {
        if qp.shared.is_connected() {
            return Err(ConnectError::State);
        }
        self.connection.accept(depths, private_data)?;
        let Some(Event::Established(established)) = self.connection.poll_event() else {
            unreachable!("accepting begins full operation");
        };
        // The receives are in place before the peer can know: it may send as soon as it has the Reply.
        tcp::transmit_all(&self.stream, &mut self.connection)?;
        qp.link(self.peer, self.connection, self.stream, Startup::default())?;
        Ok(established.negotiation)
    }

    /// Says no, with private data for the peer.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.connection
            .reject(ReadDepths { ird: 0, ord: 0 }, private_data)?;
        Ok(tcp::transmit_all(&self.stream, &mut self.connection)?)
    }
}
