//! RC QPs of rdma_cm whose messages go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2): the offer of an Initiator, and the terms.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dgiwarp_llp_tcp_mpa::DatagramTerms;
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::Lives;
use parking_lot::RwLock;

use crate::driver::device::clock;
use crate::driver::tcp::qp::{ConnectTicket, RcShared};
use crate::driver::udp::rd_qp::RdShared;
use dgiwarp_engine::mr::PdId;
use dgiwarp_engine::types::Route;

/// The peer with its path.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) route: Route,
    /// Its port is 0 where the engine learns it.
    pub(crate) peer: Peer,
    pub(crate) rq_psn: u32,
}

/// State of an RC QP on reliable datagrams beside its engine.
#[derive(Debug, Default)]
pub(crate) struct Carrier {
    pub(crate) connected: RwLock<Option<Connected>>,
    /// Messages go by datagrams: both ends of a connection of rdma_cm agreed, or the programs exchanged QPNs.
    agreed: AtomicBool,
    /// The program of this end has disconnected.
    disconnects: Arc<AtomicBool>,
}

impl Carrier {
    /// Whether messages go by datagrams.
    #[inline]
    pub(crate) fn is_agreed(&self) -> bool {
        self.agreed.load(Ordering::Acquire)
    }

    /// Messages go by datagrams from now on.
    pub(crate) fn agree(&self) {
        self.agreed.store(true, Ordering::Release);
    }

    /// The program of this end disconnects.
    pub(crate) fn disconnect(&self) {
        self.disconnects.store(true, Ordering::Release);
    }

    /// The QP is reset.
    pub(crate) fn forget(&self) {
        *self.connected.write() = None;
        self.agreed.store(false, Ordering::Release);
        self.disconnects.store(false, Ordering::Release);
    }
}

impl Carrier {
    /// Set once the program of this end has disconnected.
    pub(crate) const fn disconnects(&self) -> &Arc<AtomicBool> {
        &self.disconnects
    }
}

/// An RC QP that may be connected so that its messages go by reliable datagrams.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) rd: Arc<RdShared>,
    pub(crate) carrier: Arc<Carrier>,
    /// QP of the connection that carries events and private data.
    pub(crate) events: Arc<RcShared>,
}

/// The offer of an Initiator.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) candidate: Candidate,
    pub(crate) ticket: ConnectTicket,
    /// Number of the QP of events.
    pub(crate) qpn: u32,
    pub(crate) route: Route,
}

impl Candidate {
    /// Connects the QP as Initiator, on the terms of the Responder. Its hello leaves at once.
    pub(crate) fn open(&self, terms: DatagramTerms, route: Route, ord: u16) {
        let to = match route.destination() {
            std::net::IpAddr::V4(v4) => SocketAddr::from((v4, terms.port)),
            std::net::IpAddr::V6(v6) => {
                std::net::SocketAddrV6::new(v6, terms.port, 0, route.scope_id()).into()
            }
        };
        let peer = Peer::ip(to);
        let lives = Lives {
            own: terms.initiator_psn,
            peer: terms.responder_psn,
        };
        let local = route.source().unwrap_or_else(|| route.route_source());
        self.rd.run(|inner| {
            inner.engine.connect(peer, Some(local));
            inner.engine.set_lives(lives);
            inner.engine.set_ord(ord);
            inner.engine.greet_peer(clock::now(), &route);
            self.rd.work(inner);
        });
        self.agree(peer, route, lives.peer);
    }

    /// Connects the QP as Responder on its own terms: the hello of the Initiator is awaited.
    pub(crate) fn await_peer(&self, terms: DatagramTerms, route: Route, ord: u16) {
        let host = route.destination();
        let lives = Lives {
            own: terms.responder_psn,
            peer: terms.initiator_psn,
        };
        self.rd.run(|inner| {
            inner.engine.await_peer(host);
            inner.engine.set_lives(lives);
            inner.engine.set_ord(ord);
        });
        self.agree(Peer::ip(SocketAddr::new(host, 0)), route, lives.peer);
    }

    fn agree(&self, peer: Peer, route: Route, rq_psn: u32) {
        *self.carrier.connected.write() = Some(Connected {
            route,
            peer,
            rq_psn,
        });
        self.carrier.agree();
        self.rd.start_receiving();
    }
}

/// A QP that is to be connected.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) qp: Arc<RcShared>,
    pub(crate) ticket: ConnectTicket,
    pub(crate) qpn: u32,
    pub(crate) pd: PdId,
    pub(crate) context: u64,
    /// The QP may have its messages go by reliable datagrams.
    pub(crate) offer: Option<Box<Offer>>,
}

impl Caller {
    /// The connection carries events alone, as the Responder accepts datagrams. Returns the QP that has the messages, if the offer stands.
    pub(crate) fn accept_terms(&mut self, terms: DatagramTerms, ord: u16) -> Option<Candidate> {
        let Offer {
            candidate,
            ticket,
            qpn,
            route,
        } = *self.offer.take()?;
        candidate.open(terms, route, ord);
        (self.qp, self.ticket, self.qpn) = (Arc::clone(&candidate.events), ticket, qpn);
        Some(candidate)
    }

    /// No connection comes of this: the QPs may be connected again.
    pub(crate) fn unclaim(&self) {
        self.qp.unclaim(self.ticket);
        if let Some(offer) = &self.offer {
            offer.candidate.events.unclaim(offer.ticket);
        }
    }
}
