//! Meeting of a datagram queue pair and its busy peers on this host, and their lanes.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use dgiwarp_engine::datagram::Invited as Invitation;

use crate::driver::reactor::member::SocketIndex;
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::same_host::meeting::{Guest, Invited, Refused};
use crate::driver::udp::ports::{Invitee, RETIRED};
use crate::driver::udp::qp::{UdInner, UdShared};
use crate::driver::udp::socket::ReceiveBuffer;

/// State of a datagram queue pair beside its lock.
#[derive(Debug, Default)]
pub(crate) struct Unlocked {
    /// The queue pair itself.
    guest: OnceLock<Weak<UdShared>>,
    /// Sockets that have lanes, a bit each.
    lanes: AtomicU8,
}

/// Whether a peer is in this network namespace, without asking the kernel: strangers may send what is answered with this.
fn is_local(local: IpAddr, peer: SocketAddr) -> bool {
    let (local, peer) = (local.to_canonical(), peer.ip().to_canonical());
    local == peer || (local.is_loopback() && peer.is_loopback())
}

impl UdShared {
    /// Makes this queue pair known as one that may get lanes.
    pub(super) fn be_guest(self: &Arc<Self>) {
        let guest = Arc::downgrade(self);
        self.unlocked.guest.get_or_init(|| guest);
    }

    /// Whether the socket at a place has lanes.
    #[inline]
    pub(super) fn has_lanes(&self, index: SocketIndex) -> bool {
        self.unlocked.lanes.load(Ordering::Acquire) & (1 << index.min(7)) != 0
    }

    /// Whether any socket has lanes.
    pub(super) fn has_any_lanes(&self) -> bool {
        self.unlocked.lanes.load(Ordering::Acquire) != 0
    }

    /// Lanes have come or gone.
    pub(super) fn note_lanes(&self, inner: &UdInner) {
        let lanes = inner.ports.lanes();
        self.unlocked.lanes.store(lanes, Ordering::Release);
    }

    fn invited(&self, life: u32) -> Option<Invited> {
        let guest = self.unlocked.guest.get()?;
        let guest = Weak::<Self>::clone(guest);
        Some(Invited { guest, life })
    }

    /// Invites the peer of a socket to share memory, if it may be on this host.
    #[cold]
    pub(super) fn invite(&self, inner: &mut UdInner, index: SocketIndex) {
        let Some((peer, local, life)) = inner.ports.leave_meeting(index) else {
            return;
        };
        let main = inner.ports.main().local_addr();
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
                if inner.engine.invite(peer, token) {
                    inner.ports.note_invited(life);
                }
                self.send_output(inner);
            }
            Err(reason) => inner.ports.refuse_lanes(life, &reason),
        }
    }

    /// Answers a peer that has invited this end.
    #[cold]
    pub(super) fn answer_invitation(&self, inner: &mut UdInner, now: Instant, by: Invitation) {
        let (Some(address), Some(local)) = (by.from.socket_addr(), by.to) else {
            return;
        };
        let reach = self.background().reach(is_local(local, address));
        if !inner.ports.shares_host() || reach.is_none() {
            return;
        }
        let mut invitee = inner.ports.invited_by(now, by.from);
        if let Invitee::Unconnected(index) = invitee {
            self.connect(inner, now, index, by.from, local);
            invitee = inner.ports.invited_by(now, by.from);
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
    pub(super) fn leave_meetings(&self, life: Option<u32>) {
        if let (Some(guest), Some(meetings)) =
            (self.unlocked.guest.get(), self.background().meetings())
        {
            let guest: Weak<dyn Guest> = Weak::<Self>::clone(guest);
            meetings.cancel(&guest, life);
        }
    }

    /// Receives from the lane of a socket alone.
    #[inline]
    pub(super) fn receive_from_lane(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> bool {
        let Some(received) = inner.ports.poll_lane(index, buffer) else {
            return false;
        };
        self.took(inner, index, buffer, received)
    }

    /// Receives from the lanes of all sockets, and these.
    #[cold]
    pub(super) fn receive_unannounced(
        &self,
        inner: &mut UdInner,
        buffer: &mut ReceiveBuffer,
    ) -> bool {
        (1..=RETIRED)
            .filter(|index| self.has_lanes(*index))
            .any(|index| self.receive_locked(inner, index, buffer))
    }

    /// Forgets the lanes of a socket that is empty, if they are over.
    #[inline]
    pub(super) fn forget_ended_lanes(&self, inner: &mut UdInner, index: SocketIndex) {
        if self.has_lanes(index) && inner.ports.forget_lanes(index) {
            self.note_lanes(inner);
        }
    }

    /// Wants bells of the peer of a socket, or none while a thread polls. Returns whether there are bells.
    pub(super) fn want_bells_locked(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        wanted: bool,
    ) -> bool {
        let has_lanes = inner.ports.want_bells(index, wanted);
        self.announce(inner);
        has_lanes
    }

    /// Has the poll set come back for datagrams in lanes that no bell announces.
    #[inline]
    pub(super) fn announce(&self, inner: &mut UdInner) {
        if inner.ports.take_unannounced()
            && let Some(member) = self.member.get()
        {
            self.poll_set.add_ready(*member);
        }
    }
}

impl Guest for UdShared {
    fn keeps_link(&self) -> bool {
        true
    }

    fn attach_lanes(&self, life: u32, ends: LaneEnds, starts: bool) -> bool {
        let attached = self.run(|inner| {
            let open = self.open.load(Ordering::Relaxed);
            let index = inner
                .ports
                .attach_lanes(life, ends, starts)
                .filter(|_| open);
            self.note_lanes(inner);
            index.is_some()
        });
        // Its socket may be polled outside of the epoll set.
        if let (true, Some(member)) = (attached, self.member.get()) {
            self.poll_set.cool(*member);
        }
        attached
    }

    fn detach_lanes(&self, life: u32) {
        self.run(|inner| {
            if let Some(index) = inner.ports.end_lanes(life) {
                inner.ports.forget_lanes(index);
                self.note_lanes(inner);
            }
        });
    }

    fn refuse_lanes(&self, life: u32, reason: Refused) {
        self.run(|inner| inner.ports.refuse_lanes(life, &reason));
    }
}
