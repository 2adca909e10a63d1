//! Meeting of a queue pair with ports and its busy peers on this host, and their lanes.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use dgiwarp_engine::datagram::Invited as Invitation;

use crate::driver::qp::core::QpCore;
use crate::driver::reactor::member::{Member, Received, SocketIndex};
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::same_host::meeting::{Guest, Invited, Refused};
use crate::driver::udp::peer_ports::PortState;
use crate::driver::udp::ports::{Invitee, RETIRED};
use crate::driver::udp::socket::ReceiveBuffer;

/// State of meetings beside the lock of their queue pair.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    /// The queue pair itself.
    guest: OnceLock<Weak<dyn Guest>>,
    /// Sockets that have lanes, a bit each.
    lanes: AtomicU8,
}

/// Whether a peer is in this network namespace, without asking the kernel: strangers may send what is answered with this.
fn is_local(local: IpAddr, peer: SocketAddr) -> bool {
    let (local, peer) = (local.to_canonical(), peer.ip().to_canonical());
    local == peer || (local.is_loopback() && peer.is_loopback())
}

impl<E: PortState> QpCore<E>
where
    Self: Member,
{
    fn state_of_meetings(&self) -> &Meetings {
        E::meetings(&self.unlocked)
    }

    /// Makes this queue pair known as one that may get lanes.
    pub(crate) fn be_guest(self: &Arc<Self>) {
        let guest: Weak<Self> = Arc::downgrade(self);
        self.state_of_meetings().guest.get_or_init(|| guest);
    }

    /// Whether the socket at a place has lanes.
    #[inline]
    pub(crate) fn has_lanes(&self, index: SocketIndex) -> bool {
        self.state_of_meetings().lanes.load(Ordering::Acquire) & (1 << index.min(7)) != 0
    }

    /// Whether any socket has lanes.
    pub(crate) fn has_any_lanes(&self) -> bool {
        self.state_of_meetings().lanes.load(Ordering::Acquire) != 0
    }

    /// Lanes have come or gone.
    pub(crate) fn note_lanes(&self, state: &mut E) {
        let lanes = state.ports().lanes();
        self.state_of_meetings()
            .lanes
            .store(lanes, Ordering::Release);
    }

    fn invited(&self, life: u32) -> Option<Invited> {
        let guest = self.state_of_meetings().guest.get()?.clone();
        Some(Invited { guest, life })
    }

    /// Invites the peer of a socket to share memory, if it may be on this host.
    #[cold]
    pub(crate) fn invite_peer(&self, state: &mut E, index: SocketIndex) {
        let Some((peer, local, life)) = state.ports().leave_meeting(index) else {
            return;
        };
        let main = state.ports().main().local_addr();
        let is_other = |it: &SocketAddr| main.is_ok_and(|main| *it != (local, main.port()).into());
        let address = peer.socket_addr().filter(is_other);
        let reach = address.and_then(|it| self.background().reach(is_local(local, it)));
        let (Some(reach), Some(invited)) = (reach, self.invited(life)) else {
            return;
        };
        let Some(same_host) = self.background().same_host() else {
            return;
        };
        match same_host.invite(invited, reach) {
            Ok(token) => {
                if state.invite(peer, token) {
                    state.ports().note_invited(life);
                }
                E::work(self, state);
            }
            Err(reason) => state.ports().refuse_lanes(life, &reason),
        }
    }

    /// Answers a peer that has invited this end.
    #[cold]
    pub(crate) fn answer_invitation(&self, state: &mut E, now: Instant, by: Invitation) {
        let (Some(address), Some(local)) = (by.from.socket_addr(), by.to) else {
            return;
        };
        let reach = self.background().reach(is_local(local, address));
        if !state.ports().shares_host() || reach.is_none() {
            return;
        }
        let mut invitee = state.ports().invited_by(now, by.from);
        if let Invitee::Unconnected(index) = invitee {
            self.connect_port(state, now, index, (by.from, local));
            E::work(self, state);
            invitee = state.ports().invited_by(now, by.from);
        }
        let life = match invitee {
            Invitee::At(life) => life,
            Invitee::Instead(life) => {
                self.leave_meetings(Some(life));
                life
            }
            Invitee::Unconnected(_) | Invitee::Nobody => return,
        };
        if let (Some(invited), Some(same_host)) =
            (self.invited(life), self.background().same_host())
        {
            same_host.accept(by.token, invited);
        }
    }

    /// Ends the meetings of this queue pair, or that of one of its peers alone.
    pub(crate) fn leave_meetings(&self, life: Option<u32>) {
        if let (Some(guest), Some(meetings)) = (
            self.state_of_meetings().guest.get(),
            self.background().meetings(),
        ) {
            meetings.cancel(guest, life);
        }
    }

    /// Receives from the lanes of all sockets, and these, until there is something.
    #[cold]
    pub(crate) fn receive_unannounced(
        &self,
        state: &mut E,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        let mut best = Received::Nothing;
        for index in (1..=RETIRED).filter(|index| self.has_lanes(*index)) {
            best = best.max(E::receive(self, state, index, buffer));
            if best > Received::Bells {
                break;
            }
        }
        best
    }

    /// Forgets the lanes of a socket that is empty, if they are over.
    #[inline]
    pub(crate) fn forget_ended_lanes(&self, state: &mut E, index: SocketIndex) {
        if self.has_lanes(index) && state.ports().forget_lanes(index) {
            self.note_lanes(state);
        }
    }

    /// Wants bells of the peer of a socket, or none while a thread polls. Returns whether there are bells.
    pub(crate) fn want_bells_at(&self, index: SocketIndex, wanted: bool) -> bool {
        self.has_lanes(index)
            && self.run(|state| {
                let has_lanes = state.ports().want_bells(index, wanted);
                self.announce(state);
                has_lanes
            })
    }

    /// Has the poll set come back for datagrams in lanes that no bell announces.
    #[inline]
    pub(crate) fn announce(&self, state: &mut E) {
        if state.ports().take_unannounced()
            && let Some(member) = self.member.get()
        {
            self.poll_set.add_ready(*member);
        }
    }
}

impl<E: PortState> Guest for QpCore<E>
where
    Self: Member,
{
    fn keeps_link(&self) -> bool {
        true
    }

    fn attach_lanes(&self, life: u32, ends: LaneEnds, starts: bool) -> bool {
        let attached = self.run(|state| {
            let open = self.open.load(Ordering::Relaxed);
            let index = state
                .ports()
                .attach_lanes(life, ends, starts)
                .filter(|_| open);
            self.note_lanes(state);
            index.is_some()
        });
        // Its socket may be polled outside of the epoll set.
        if let (true, Some(member)) = (attached, self.member.get()) {
            self.poll_set.cool(*member);
        }
        attached
    }

    fn detach_lanes(&self, life: u32) {
        self.run(|state| {
            if let Some(index) = state.ports().end_lanes(life) {
                state.ports().forget_lanes(index);
                self.note_lanes(state);
            }
        });
    }

    fn refuse_lanes(&self, life: u32, reason: Refused) {
        self.run(|state| state.ports().refuse_lanes(life, &reason));
    }
}
