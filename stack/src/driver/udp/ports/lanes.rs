//! Lanes to the busy peers on this host.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use dgiwarp_engine::same_host::{Answer, Meeting};
use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::lane::{LanePart, Record};

use crate::QpCounters;
use crate::driver::reactor::member::SocketIndex;
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::same_host::meeting::Refused;
use crate::driver::udp::lanes::{DatagramLanes, Polled};
use crate::driver::udp::port::Port;
use crate::driver::udp::ports::{Advice, Ports, RETIRED, Sibling};
use crate::driver::udp::socket::{ReceiveBuffer, Received};

/// The place of a peer that has invited this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invitee {
    /// Told from other peers that had a socket at its place by the number.
    At(u32),
    /// The meeting of this life is over: the peer's takes its place.
    Instead(u32),
    /// A socket is to be connected first.
    Unconnected(SocketIndex),
    Nobody,
}

impl Ports {
    /// Peers on this host are met, to share memory, after so many octets.
    pub(crate) fn share_host(&mut self, after: u64) {
        self.meets_after = Some(after);
    }

    pub(crate) const fn shares_host(&self) -> bool {
        self.meets_after.is_some()
    }

    fn sibling_mut(&mut self, index: SocketIndex) -> Option<&mut Sibling> {
        let place = usize::from(index).checked_sub(1)?;
        self.siblings.get_mut(place)?.as_mut()
    }

    fn of_life(&mut self, life: u32) -> Option<(SocketIndex, &mut Sibling)> {
        let siblings = (1..).zip(self.siblings.iter_mut());
        siblings
            .filter_map(|(index, it)| it.as_mut().map(|it| (index, it)))
            .find(|(_, it)| it.life == life)
    }

    /// The peer of a socket is invited now, or not met. Returns it, and the number of its life.
    pub(crate) fn leave_meeting(&mut self, index: SocketIndex) -> Option<(Peer, IpAddr, u32)> {
        let sibling = self.sibling_mut(index)?;
        sibling.meeting.leave();
        Some((sibling.peer, sibling.port.connected_from()?, sibling.life))
    }

    /// The peer of a life was invited.
    pub(crate) fn note_invited(&mut self, life: u32) {
        if let Some((_, sibling)) = self.of_life(life) {
            sibling.meeting.note_invited();
        }
    }

    /// A peer has invited this end.
    pub(crate) fn invited_by(&mut self, now: Instant, peer: Peer) -> Invitee {
        let number = self.main.local_addr().map_or(0, |main| main.port());
        let places = self.places;
        let mut own = self.siblings.iter_mut().flatten();
        let Some(sibling) = own.find(|it| it.peer == peer) else {
            return match self.place_for(now, peer) {
                Advice::Connect(index) if places > 0 => Invitee::Unconnected(index),
                _ => Invitee::Nobody,
            };
        };
        let ours = sibling.port.connected_from();
        let ours = ours.map(|ip| SocketAddr::new(ip, number));
        match sibling.meeting.invited(ours, peer.socket_addr()) {
            Answer::Accept => Invitee::At(sibling.life),
            Answer::AcceptInstead => Invitee::Instead(sibling.life),
            Answer::Ignore => Invitee::Nobody,
        }
    }

    /// Gives the peer of a life lanes, if there is one still. Returns the place of its socket.
    pub(crate) fn attach_lanes(
        &mut self,
        life: u32,
        ends: LaneEnds,
        starts: bool,
    ) -> Option<SocketIndex> {
        let (index, sibling) = self.of_life(life)?;
        let names = (sibling.peer, sibling.port.connected_from()?);
        sibling.meeting = Meeting::OVER;
        sibling.lanes = Some(Box::new(DatagramLanes::new(ends, starts, names)));
        Some(index)
    }

    /// Ends the lanes of a life. Returns the place of its socket.
    pub(crate) fn end_lanes(&mut self, life: u32) -> Option<SocketIndex> {
        let (index, sibling) = self.of_life(life)?;
        let lanes = sibling.lanes.as_mut()?;
        lanes.end();
        Some(index)
    }

    /// Forgets the lanes of a socket, if they are over. Returns whether they were.
    #[inline]
    pub(crate) fn forget_lanes(&mut self, index: SocketIndex) -> bool {
        let over = self
            .sibling_mut(index)
            .and_then(|sibling| sibling.lanes.take_if(|lanes| lanes.are_over()));
        let Some(lanes) = over else {
            return false;
        };
        lanes.count(self.lane_counters.get_or_insert_default());
        // The queue pair that has its port now may be met again.
        let life = self.next_life();
        if let Some(sibling) = self.sibling_mut(index) {
            sibling.life = life;
            sibling.meeting = Meeting::NEW;
        }
        true
    }

    /// A number for a peer with a socket of its own.
    pub(super) fn next_life(&mut self) -> u32 {
        self.lives = self.lives.wrapping_add(1);
        self.lives
    }

    /// The peer of a life gets no lanes.
    pub(crate) fn refuse_lanes(&mut self, life: u32, reason: &Refused) {
        if let Some((_, sibling)) = self.of_life(life) {
            sibling.meeting.failed(matches!(reason, Refused::Time));
            reason.count(self.lane_counters.get_or_insert_default());
        }
    }

    /// The socket at a place, with its lanes.
    #[inline]
    pub(crate) fn with_lanes(
        &mut self,
        index: SocketIndex,
    ) -> Option<(&mut Port, &mut DatagramLanes)> {
        let (port, lanes) = if index == RETIRED {
            let retired = self.retired.as_mut()?;
            (&mut retired.port, &mut retired.lanes)
        } else {
            let sibling = self.sibling_mut(index)?;
            (&mut sibling.port, &mut sibling.lanes)
        };
        Some((port, lanes.as_deref_mut()?))
    }

    /// Something has come over the lanes at a place.
    #[inline]
    pub(crate) fn note_used(&mut self, now: Instant, index: SocketIndex) {
        if let Some(sibling) = self.sibling_mut(index) {
            sibling.last_used = now;
        }
    }

    /// Receives at a place: from the lane, if there is one, and the socket.
    ///
    /// # Errors
    /// Error of the socket. `None` where there is no socket.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Option<std::io::Result<Received>> {
        if index > 0
            && let Some((port, lanes)) = self.with_lanes(index)
        {
            let received = lanes.receive(port, buffer);
            self.unannounced |= lanes.take_unannounced();
            return Some(received);
        }
        Some(self.get_mut(index)?.receive(buffer))
    }

    /// Receives from the lane at a place alone.
    #[inline]
    pub(crate) fn poll_lane(
        &mut self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Option<std::io::Result<Received>> {
        let (port, lanes) = self.with_lanes(index)?;
        let received = lanes.poll(port, buffer);
        self.unannounced |= lanes.take_unannounced();
        Some(received)
    }

    /// Receives from the lane at a place alone; a long record is found only, and stays there.
    #[inline]
    pub(crate) fn poll_lane_or_find(
        &mut self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Option<std::io::Result<Polled>> {
        let (port, lanes) = self.with_lanes(index)?;
        let polled = lanes.poll_or_find(port, buffer);
        self.unannounced |= lanes.take_unannounced();
        Some(polled)
    }

    /// A record that was [found](Self::poll_lane_or_find) at a place, as the result of a receive call.
    #[inline]
    pub(crate) fn received(&mut self, index: SocketIndex, record: Record) -> Option<Received> {
        let (_, lanes) = self.with_lanes(index)?;
        Some(lanes.received(record))
    }

    /// Takes the octets of a record that was [found](Self::poll_lane_or_find) at a place with `take`, and releases it.
    #[inline]
    pub(crate) fn take_found(
        &mut self,
        index: SocketIndex,
        record: Record,
        take: impl FnOnce(&LanePart<'_>),
    ) {
        if let Some((port, lanes)) = self.with_lanes(index) {
            take(&lanes.found(record));
            lanes.release_found(record, port);
        }
    }

    /// Whether datagrams are in lanes that no bell announces, to be asked once.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.unannounced)
    }

    /// Wants bells at a place from now on, or none while a thread polls. Returns whether there is a lane.
    pub(crate) fn want_bells(&mut self, index: SocketIndex, wanted: bool) -> bool {
        let Some((_, lanes)) = self.with_lanes(index) else {
            return false;
        };
        lanes.want_bells(wanted);
        self.unannounced |= lanes.take_unannounced();
        true
    }

    /// Places that have lanes, a bit each.
    pub(crate) fn lanes(&self) -> u8 {
        let siblings = (1..).zip(self.siblings.iter());
        let with = siblings.filter(|(_, it)| it.as_ref().is_some_and(|it| it.lanes.is_some()));
        let retired = self.retired.as_ref().is_some_and(|it| it.lanes.is_some());
        with.fold(u8::from(retired) << RETIRED, |all, (index, _)| {
            all | 1 << index
        })
    }

    /// Ends the lanes at all places.
    pub(crate) fn end_all_lanes(&mut self) {
        let siblings = self.siblings.iter_mut().flatten();
        for lanes in siblings.filter_map(|it| it.lanes.as_mut()) {
            lanes.end();
        }
    }

    /// Counts what the lanes at all places did, before they go.
    pub(super) fn count_lanes(&mut self) {
        let lanes = self.siblings.iter_mut().flatten();
        let gone: Vec<_> = lanes.filter_map(|it| it.lanes.take()).collect();
        for lanes in gone {
            lanes.count(self.lane_counters.get_or_insert_default());
        }
        self.count_retired();
    }

    /// As [`count_lanes`](Self::count_lanes), for those of the retired socket.
    pub(super) fn count_retired(&mut self) {
        if let Some(lanes) = self.retired.as_mut().and_then(|it| it.lanes.take()) {
            lanes.count(self.lane_counters.get_or_insert_default());
        }
    }

    /// Adds the counters of all lanes.
    pub(crate) fn add_lane_counters(&self, counters: &mut QpCounters) {
        if let Some(gone) = &self.lane_counters {
            counters.add(gone);
        }
        let siblings = self.siblings.iter().flatten();
        let retired = self.retired.iter().filter_map(|it| it.lanes.as_deref());
        for lanes in siblings.filter_map(|it| it.lanes.as_deref()).chain(retired) {
            lanes.count(counters);
        }
    }
}
