//! Connections without waiting: any number at a time, reported by events.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::driver::cm::connect::Cm;
use crate::driver::cm::port_queries::MovedListener;
use crate::driver::device::clock;
use crate::driver::tcp::mpa_startup::ListenerId;
use crate::driver::tcp::port::{ListeningPort, away};
use crate::driver::tcp::socket as tcp;
use crate::{
    ConnectError, ConnectionEvent, ConnectionPort, ConnectionSink, Error, MpaConfig, Negotiation,
    PortOptions, RcQp, RcRdQp, RcRequest, ReadDepths, Rnic,
};

/// Listens, connects, and queues events (`rdma_create_event_channel(3)`). The background thread of its device makes progress; no call
/// here waits, but [`next_event`](Self::next_event) on request. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ConnectionChannel {
    cm: Arc<Cm>,
    rnic: Rnic,
}

/// A listening TCP port of a [`ConnectionChannel`]. Dropping it closes the port and ends connections that came through it and were not yet reported.
#[derive(Debug)]
pub struct ChannelListener {
    cm: Arc<Cm>,
    id: ListenerId,
    local: SocketAddr,
    port: ListeningPort,
    moved: Mutex<Option<MovedListener>>,
}

impl ConnectionChannel {
    pub(crate) fn new(rnic: &Rnic, sink: Option<Arc<dyn ConnectionSink>>) -> Result<Self, Error> {
        let cm = Cm::new(sink, Some(rnic))?;
        rnic.shared.background.serve_task(&cm)?;
        Ok(Self {
            cm,
            rnic: rnic.clone(),
        })
    }

    /// The device.
    #[must_use]
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// Listens on an address and TCP port, port 0 for one of the system's choice. `mpa` configures this end of every connection. Of more than
    /// 2,048 connections without a request the oldest, silent for a second, are closed.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not one of this host's.
    pub fn listen(
        &self,
        address: SocketAddr,
        mpa: MpaConfig,
        context: u64,
    ) -> Result<ChannelListener, Error> {
        let port = ConnectionPort::bind(address, PortOptions::default())?;
        self.listen_on(port, mpa, tcp::BACKLOG, context)
    }

    /// Listens on a port that is bound. TCP connections beyond `backlog` that nobody has taken yet are not answered until there is room.
    ///
    /// # Errors
    /// [`Error::Bind`] where another listens on the port.
    pub fn listen_on(
        &self,
        port: ConnectionPort,
        mpa: MpaConfig,
        backlog: i32,
        context: u64,
    ) -> Result<ChannelListener, Error> {
        let address = port.local;
        let bind = |source| Error::Bind { address, source };
        let (listener, mut port) = port.listen(backlog).map_err(bind)?;
        // One that was bound to no port got one now.
        let local = match &port.moved {
            Some(_) => port.local,
            None => listener.local_addr().map_err(bind)?,
        };
        let moved = port.moved.take();
        let moved = moved.map(|moved| self.cm.answer_for(local, moved));
        let moved = moved.transpose().map_err(bind)?;
        let id = match self.cm.listen(listener, mpa, context) {
            Ok(id) => id,
            Err(error) => {
                if let Some(moved) = &moved {
                    self.cm.forget(moved);
                }
                return Err(error);
            }
        };
        Ok(ChannelListener {
            cm: Arc::clone(&self.cm),
            id,
            local,
            port,
            moved: Mutex::new(moved),
        })
    }

    /// Sets a UDP port free that a [moved](ChannelListener::move_away) listener is queried at, for a [service](crate::ServicePort) of this device, which answers
    /// for it once it is offered. Returns whether it was taken for that.
    #[must_use]
    pub fn give_up_queries(&self, port: u16) -> bool {
        self.cm.give_up_queries(port)
    }

    /// Begins to connect a QP, as MPA Initiator. The result is an event within [`MpaConfig::startup_timeout`]; TCP has at most five seconds of it
    /// to reach the peer. A peer that closes upon an enhanced request may have revision 1 only, and is asked again as
    /// [`MpaConfig::fall_back`] has it. Where nobody listens yet, TCP is asked again for a third of a second.
    ///
    /// # Errors
    /// [`ConnectError::State`] if the QP has or had a connection or one is on its way, [`ConnectError::Tcp`] where TCP fails at once.
    pub fn connect(
        &self,
        qp: &RcQp,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        self.begin(qp, None, to, mpa, private_data, context)
    }

    /// Begins to connect a QP from a port that is bound.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_from(
        &self,
        port: ConnectionPort,
        qp: &RcQp,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        self.begin(qp, Some(port), to, mpa, private_data, context)
    }

    /// Begins to connect an [`RcRdQp`] from a port that is bound, and offers datagrams.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ConnectError::Device`] where there is no route to the peer.
    pub fn connect_datagrams_from(
        &self,
        port: ConnectionPort,
        qp: &RcRdQp,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        qp.begin_connect(&self.cm, Some(port), to, mpa, private_data, context)?;
        self.rnic.shared.background.wake();
        Ok(())
    }

    /// Accepts a request on an [`RcRdQp`], and reports its establishment and its end, as
    /// [`accept_and_tell`](Self::accept_and_tell).
    ///
    /// # Errors
    /// As [`accept`](Self::accept), and [`ConnectError::Device`] where there is no route to the peer.
    pub fn accept_datagrams_and_tell(
        &self,
        request: RcRequest,
        qp: &RcRdQp,
        depths: ReadDepths,
        private_data: &[u8],
        context: u64,
    ) -> Result<Negotiation, ConnectError> {
        qp.accept(&self.cm, request, depths, private_data, context)
    }

    fn begin(
        &self,
        qp: &RcQp,
        from: Option<ConnectionPort>,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        qp.begin_connect(&self.cm, from, to, mpa, private_data, context)?;
        // Whatever the deadline, the background thread may sleep longer.
        self.rnic.shared.background.wake();
        Ok(())
    }

    /// Accepts a request on a QP, whose end will be an event with `context`.
    ///
    /// # Errors
    /// As [`RcRequest::accept`].
    pub fn accept(
        &self,
        request: RcRequest,
        qp: &RcQp,
        depths: ReadDepths,
        private_data: &[u8],
        context: u64,
    ) -> Result<Negotiation, ConnectError> {
        let negotiation = request.accept(qp, depths, private_data)?;
        self.cm.watch(&qp.shared, context);
        Ok(negotiation)
    }

    /// Accepts like [`accept`](Self::accept) and makes the establishment an event too: [`ConnectionEvent::Established`] when the QP may send. In peer-to-peer mode that is when the peer has
    /// sent its first FPDU (RFC 6581 §5), and [`ConnectionEvent::Failed`] if it ends before or sends none within five seconds; else it is at once.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_and_tell(
        &self,
        request: RcRequest,
        qp: &RcQp,
        depths: ReadDepths,
        private_data: &[u8],
        context: u64,
    ) -> Result<Negotiation, ConnectError> {
        let peer = request.peer();
        self.cm.accept_reported(&qp.shared, peer, context, || {
            request.accept(qp, depths, private_data)
        })
    }

    /// Rejects the request, with private data for the peer. TCP is closed once the peer has it.
    ///
    /// # Errors
    /// [`ConnectError`]; the request is gone then.
    pub fn reject(&self, request: RcRequest, private_data: &[u8]) -> Result<(), ConnectError> {
        let stream = request.send_reject(private_data)?;
        // The Reject frame is on its way even if this fails.
        let _ = self.cm.linger(stream);
        self.rnic.shared.background.wake();
        Ok(())
    }

    /// Gives up an attempt to connect that has not come to an end: no event of it is reported any more, and the QP may be connected again.
    pub fn cancel(&self, context: u64) {
        self.cm.cancel(context);
    }

    /// Holds the connection back that the next attempt with `context` leads to: [`ConnectionEvent::Established`] comes as soon as the peer has accepted, and nothing is sent, so that the peer has no
    /// establishment, until [`establish`](Self::establish), for two seconds at most.
    pub fn hold_establishment(&self, context: u64) {
        self.cm.held().hold(context);
    }

    /// Lets a connection go on that is [held back](Self::hold_establishment); no effect on others.
    pub fn establish(&self, context: u64) {
        self.cm.establish(context);
    }

    /// Local address of a connection that is held back; its queue pair has none yet.
    #[must_use]
    pub fn held_addr(&self, context: u64) -> Option<SocketAddr> {
        self.cm.held().local_addr(context)
    }

    /// Raises [`ConnectionEvent::TimewaitExit`] for each connection, `time` after its [`ConnectionEvent::Disconnected`], as InfiniBand's connection manager
    /// does: programs that reuse queue pairs wait for it. A queue pair here may be connected again at once. Further calls have no effect.
    pub fn report_timewait(&self, time: Duration) {
        let waker = self.rnic.shared.background.waker();
        self.cm.timewait().report(time, waker);
    }

    /// Enters timewait for a connection whose queue pair is destroyed, which ends without an event.
    pub fn enter_timewait(&self, context: u64) {
        self.cm.timewait().enter(context);
    }

    /// Takes the oldest event. Waits at most `timeout` for it.
    #[must_use]
    pub fn next_event(&self, timeout: Duration) -> Option<ConnectionEvent> {
        self.cm.wait(clock::now().checked_add(timeout))
    }
}

/// Readable while [`ConnectionChannel::next_event`] has one.
impl AsFd for ConnectionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.cm.event_fd()
    }
}

impl ChannelListener {
    /// The address and port that it is known by.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Gives the TCP port up for another socket: the listener goes on at another TCP port and answers port queries at the UDP port of the same number
    /// (`rfc-notes/datagram-mapping.md` §10.1). Connections that were begun go on.
    ///
    /// # Errors
    /// [`Error::Bind`] where that UDP port is taken.
    pub fn move_away(&self) -> Result<(), Error> {
        let mut moved = self.moved.lock();
        if moved.is_some() {
            return Ok(());
        }
        let away = || {
            let (socket, to) = away(self.local, self.port.options)?;
            let listener = tcp::listen_on(socket, self.port.backlog)?;
            let answered = self.cm.answer_for(self.local, to)?;
            if let Err(error) = self.cm.replace(self.id, listener) {
                self.cm.forget(&answered);
                return Err(error);
            }
            Ok(answered)
        };
        let address = self.local;
        let answered = away().map_err(|source| Error::Bind { address, source })?;
        *moved = Some(answered);
        Ok(())
    }
}

impl Drop for ChannelListener {
    fn drop(&mut self) {
        self.cm.unlisten(self.id);
        if let Some(moved) = self.moved.get_mut() {
            self.cm.forget(moved);
        }
    }
}

/// Connection channels of a device.
impl Rnic {
    /// Makes a channel for connections (`rdma_create_event_channel(3)`).
    ///
    /// # Errors
    /// [`Error::System`] where descriptors are exhausted.
    pub fn create_connection_channel(&self) -> Result<ConnectionChannel, Error> {
        ConnectionChannel::new(self, None)
    }

    /// Makes a channel for connections whose events go to `sink` instead of being queued.
    ///
    /// # Errors
    /// As [`create_connection_channel`](Self::create_connection_channel).
    pub fn create_connection_channel_to(
        &self,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<ConnectionChannel, Error> {
        ConnectionChannel::new(self, Some(sink))
    }
}
