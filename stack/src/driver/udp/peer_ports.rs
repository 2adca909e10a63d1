//! Ports that busy peers of a queue pair have for themselves: connected, watched and given up; lanes of those on this host.

pub(crate) mod meetings;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use dgiwarp_llp_udp::Peer;

use crate::driver::qp::core::{QpCore, QpState};
use crate::driver::reactor::member::{Member, MemberId, Received, SocketIndex};
use crate::driver::udp::peer_ports::meetings::Meetings;
use crate::driver::udp::ports::{Ports, RETIRED};
use crate::driver::udp::socket::ReceiveBuffer;

/// State of a queue pair with ports.
pub(crate) trait PortState: QpState {
    fn ports(&mut self) -> &mut Ports;

    /// Its state of meetings.
    fn meetings(unlocked: &Self::Unlocked) -> &Meetings;

    /// Has the engine invite a peer to share memory. Returns whether it does.
    fn invite(&mut self, peer: Peer, token: u128) -> bool;

    /// Receives once from a port.
    fn receive(
        qp: &QpCore<Self>,
        state: &mut Self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received;

    /// Handles the queued datagrams of a port.
    fn drain(qp: &QpCore<Self>, state: &mut Self, now: Instant, index: SocketIndex);
}

impl<E: PortState> QpCore<E>
where
    Self: Member,
{
    /// Gives a busy peer a port of its own. Datagrams that an idle port at that place still holds are received first.
    pub(crate) fn connect_port(
        &self,
        state: &mut E,
        now: Instant,
        index: SocketIndex,
        (peer, local): (Peer, IpAddr),
    ) {
        let Some(member) = self.member.get().copied() else {
            return;
        };
        if state.ports().get(index).is_some() {
            self.retire_port(state, now, member, index);
        }
        let ports = state.ports();
        if ports.connect(now, index, peer, local).is_ok() {
            let watched = ports
                .get(index)
                .map(|port| self.poll_set.watch(member, index, port.as_fd()));
            if !matches!(watched, Some(Ok(()))) {
                ports.close(index);
            }
        }
        self.note_lanes(state);
    }

    /// Makes room at a place whose port was idle. Datagrams that arrive there at this moment must not be lost, so the port stays
    /// for a while, without a peer.
    fn retire_port(&self, state: &mut E, now: Instant, member: MemberId, index: SocketIndex) {
        for leaving in [RETIRED, index] {
            E::drain(self, state, now, leaving);
            if let Some(port) = state.ports().get(leaving) {
                self.poll_set.unwatch(port.as_fd());
            }
        }
        let ports = state.ports();
        ports.retire(now, index);
        if let Some(port) = ports.get(RETIRED) {
            let _ = self.poll_set.watch(member, RETIRED, port.as_fd());
        }
        E::drain(self, state, now, RETIRED);
    }

    /// Closes the ports that peers have for themselves.
    pub(crate) fn forget_peer_ports(&self, state: &mut E) {
        for port in state.ports().siblings() {
            self.poll_set.unwatch(port.as_fd());
        }
        state.ports().forget_peers();
        self.note_lanes(state);
    }
}
