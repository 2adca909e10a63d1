//! RC queue pairs that a connection channel connects, by datagrams or TCP (`rfc-notes/reliable-datagrams.md` §9.2).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dgiwarp_llp_tcp_mpa::DatagramTerms;

use super::RcRdQp;
use crate::driver::cm::connect::Cm;
use crate::driver::cm::rd_carrier::{Caller, Candidate, Offer};
use crate::{
    ConnectError, ConnectionPort, Error, MpaConfig, Negotiation, QpAttr, RcQpAttr, RcRequest,
    ReadDepths,
};
use dgiwarp_engine::types::Route;

impl RcRdQp {
    /// Lets work requests be posted before there is a connection, as [`RcQp::open`](crate::RcQp::open). They go over TCP, and so does all else then.
    pub fn open(&self) {
        if let Some(tcp) = self.tcp() {
            tcp.open();
        }
    }

    /// Ends the connection in order, as [`RcQp::disconnect`](crate::RcQp::disconnect). By datagrams, posted work requests get up to a second to be placed; then all else is flushed.
    pub fn disconnect(&self) {
        if let Some(tcp) = self.tcp() {
            return tcp.disconnect();
        }
        self.carrier.disconnect();
        self.qp.shared.disconnect();
        // Else the end of the connection of events follows.
        if self.qp.shared.is_over()
            && let Some(events) = self.events.get()
        {
            events.disconnect();
        }
    }

    /// Our address and TCP port, once connected by a connection channel.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.tcp() {
            Some(tcp) => tcp.local_addr(),
            None => self.events.get()?.local_addr(),
        }
    }

    /// The parts with which messages go by datagrams. The queue pair of events is made now.
    fn candidate(&self) -> Result<(Candidate, u32), Error> {
        if self.events.get().is_none() {
            let pd = self.qp.pd();
            let cq = pd.rnic.create_cq(4)?;
            let attr = RcQpAttr::from(QpAttr {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_sge: 1,
                ..QpAttr::new(&cq, &cq)
            });
            let _ = self.events.set(pd.create_rc_qp(&attr)?);
        }
        let events = self.events.get().ok_or_else(Error::no_qpn)?;
        let candidate = Candidate {
            rd: Arc::clone(&self.qp.shared),
            carrier: Arc::clone(&self.carrier),
            events: Arc::clone(&events.shared),
        };
        Ok((candidate, events.qpn()))
    }

    /// The path to a host.
    fn path(&self, to: SocketAddr, from: Option<IpAddr>) -> Result<Route, Error> {
        let scope = match to {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        let ah = self.qp.pd().create_ah_from(to.ip(), scope, from)?;
        Ok(ah.route().clone())
    }

    /// Begins to connect. Datagrams are offered unless work requests were posted, or may be.
    pub(crate) fn begin_connect(
        &self,
        channel: &Cm,
        from: Option<ConnectionPort>,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        if self.carrier.is_agreed() {
            return Err(ConnectError::State);
        }
        if self.tcp.shared.is_open() {
            return self
                .tcp
                .begin_connect(channel, from, to, mpa, private_data, context);
        }
        let (candidate, qpn) = self.candidate().map_err(ConnectError::Device)?;
        let local = from.as_ref().map(|port| port.local_addr().ip());
        let route = self.path(to, local).map_err(ConnectError::Device)?;
        let ticket = self.tcp.shared.claim().ok_or(ConnectError::State)?;
        let Some(events_ticket) = candidate.events.claim() else {
            self.tcp.shared.unclaim(ticket);
            return Err(ConnectError::State);
        };
        let caller = Caller {
            qp: Arc::clone(&self.tcp.shared),
            ticket,
            qpn: self.tcp.qpn(),
            pd: self.qp.pd().id,
            context,
            offer: Some(Box::new(Offer {
                candidate,
                ticket: events_ticket,
                qpn,
                route,
            })),
        };
        let mpa = MpaConfig {
            datagrams: true,
            ..mpa.clone()
        };
        channel.connect(caller, from, to, &mpa, private_data)
    }

    /// Accepts a request, by datagrams where it offers them and no work request was posted.
    pub(crate) fn accept(
        &self,
        channel: &Cm,
        request: RcRequest,
        depths: ReadDepths,
        private_data: &[u8],
        context: u64,
    ) -> Result<Negotiation, ConnectError> {
        let peer = request.peer();
        let tcp = &self.tcp;
        if self.carrier.is_agreed() {
            return Err(ConnectError::State);
        }
        if !request.request().datagrams || tcp.shared.has_waiting() || tcp.shared.is_claimed() {
            tcp.open();
            return channel.accept_reported(&tcp.shared, peer, context, || {
                request.accept(tcp, depths, private_data)
            });
        }
        let (candidate, _) = self.candidate().map_err(ConnectError::Device)?;
        let local = request.local_addr().map(|it| it.ip());
        let route = self.path(peer, local).map_err(ConnectError::Device)?;
        let events = self.events.get().ok_or(ConnectError::State)?;
        let ticket = tcp.shared.claim().ok_or(ConnectError::State)?;
        let (initiator_psn, responder_psn) = self.draw_psns();
        let terms = DatagramTerms {
            port: self.qpn(),
            initiator_psn,
            responder_psn,
        };
        // The peer sends as soon as it has the Reply.
        let ord = request.request().agreed_ord(depths);
        candidate.await_peer(terms, route, ord);
        let accepted = channel.accept_reported(&events.shared, peer, context, || {
            let accepted = request.accept_with(events, depths, (Some(terms), private_data))?;
            channel.watch_both(context, &candidate);
            Ok(accepted)
        });
        accepted.inspect_err(|_| tcp.shared.unclaim(ticket))
    }

    /// Two PSNs of 24 bits that nobody can foresee, neither of them 0.
    fn draw_psns(&self) -> (u32, u32) {
        let (first, [second, _]) = self.qp.pd().rnic.shared.draw_identity();
        let psn = |random: u32| (random & 0x00ff_ffff).max(1);
        let second = u32::try_from(second & u64::from(u32::MAX)).unwrap_or(0);
        (psn(first), psn(second))
    }
}
