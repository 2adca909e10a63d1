//! The lanes of a datagram queue pair and one of its peers on this host: datagrams go through memory, and by the socket where that has no room (rfc-notes/same-host.md).

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_engine::same_host::{Carrier, ReceiveCount, SendOrder};
use dgiwarp_llp_udp::{Peer, Train};
use dgiwarp_memory::Piece;
use dgiwarp_memory::lane::{LaneCorrupt, LanePart, Record};
use dgiwarp_memory::socket::NoCancellation;

use crate::QpCounters;
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::udp::port::Port;
use crate::driver::udp::socket::{Leave, ReceiveBuffer, Received};

/// Bells that one call takes from the socket.
const BELLS: usize = 64;
/// Octets that a ring has room for after it has grown, if memory allows: about as many as are under way.
const ROOM: usize = 1 << 20;

/// Octets of the longest record that is copied out of a lane by [`poll_or_find`](DatagramLanes::poll_or_find).
const LONGEST_COPIED: u32 = 1024;

/// Result of a poll of the lane.
#[derive(Debug)]
pub(crate) enum Polled {
    /// Datagrams, in the receive buffer.
    Copied(Received),
    /// A record that is still in the lane.
    Found(Record),
}

/// The front of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, nor will there be anything to do until the peer sends.
    Nothing,
    /// A record of one datagram that is short.
    Short(Record),
    /// Something else.
    Other,
}

/// Lanes to a peer and from it.
#[derive(Debug)]
pub(crate) struct DatagramLanes {
    ends: LaneEnds,
    peer: Peer,
    /// Address of ours that the peer sends to.
    local: IpAddr,
    /// The peer reads the lane: it has mapped the arena.
    sends: bool,
    /// The peer's end is gone: nothing is sent any more, and what is in the lane is received.
    ended: bool,
    /// The peer has put something impossible into shared memory: nothing is received from it any more.
    broken: bool,
    send_order: SendOrder,
    /// Of the socket.
    receive_count: ReceiveCount,
    /// A datagram of the socket that records in the lane come before.
    held: Option<(Received, Vec<u8>)>,
    /// A thread polls the lane, and nobody sleeps: no bell is wanted.
    is_polled: bool,
    /// Datagrams are in the lane that no bell announces.
    unannounced: bool,
    octets_sent: u64,
    octets_received: u64,
    octets_placed: u64,
}

impl DatagramLanes {
    /// Lanes that begin. The end that took the arena `starts`: the other one waits for that.
    pub(crate) fn new(ends: LaneEnds, starts: bool, (peer, local): (Peer, IpAddr)) -> Self {
        if starts {
            ends.output.start(0);
        }
        Self {
            ends,
            peer,
            local,
            sends: starts,
            ended: false,
            broken: false,
            send_order: SendOrder::default(),
            receive_count: ReceiveCount::default(),
            held: None,
            is_polled: false,
            unannounced: false,
            octets_sent: 0,
            octets_received: 0,
            octets_placed: 0,
        }
    }

    /// Adds octets sent and received.
    pub(crate) fn count(&self, counters: &mut QpCounters) {
        counters.lane_octets_sent += self.octets_sent;
        counters.lane_octets_received += self.octets_received;
        counters.lane_octets_placed += self.octets_placed;
    }

    /// Ends the lanes: what was sent is received, and the peer sends by its socket from now on.
    pub(crate) fn end(&mut self) {
        if !self.ended {
            let _guard = NoCancellation::begin();
            self.ended = true;
            self.ends.output.finish(0);
            self.ends.link = None;
        }
    }

    /// Whether the lanes have ended and nothing is left of them.
    pub(crate) fn are_over(&mut self) -> bool {
        let is_empty = |lanes: &mut Self| lanes.ends.input.arm().map_or(true, |more| !more);
        self.ended && self.held.is_none() && (self.broken || is_empty(self))
    }

    #[cold]
    fn corrupt(&mut self, error: LaneCorrupt) {
        let _guard = NoCancellation::begin();
        tracing::warn!(%error, "the peer broke the shared memory of a datagram queue pair");
        self.broken = true;
        self.end();
    }

    /// Sends a train through the lane. Returns `false` where the socket has to.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: Instant,
        port: &Port,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> bool {
        if !self.may_send() {
            return false;
        }
        match self.send_order.carrier(now, || self.ends.input.placed()) {
            Carrier::Lane => {}
            Carrier::Socket => return false,
            Carrier::SocketBehindBell => {
                self.ring(port);
                return false;
            }
        }
        if !self.write(pieces, train) {
            let received = self.ends.input.placed();
            self.send_order.lane_is_full(now, received);
            return false;
        }
        self.octets_sent += train.octets() as u64;
        if self.ends.output.takes_bell() {
            self.ring(port);
        }
        true
    }

    /// The socket has taken a train.
    pub(crate) fn note_sent(&mut self, now: Instant, train: &Train) {
        self.send_order.sent_by_socket(now, train.len());
    }

    /// Whether the peer receives what is sent through the lane.
    #[inline]
    fn may_send(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let input = &mut self.ends.input;
        self.sends = self.sends || input.started().is_some();
        if self.sends && !matches!(input.resumes(), Ok(None)) {
            self.end();
        }
        self.sends && !self.ended
    }

    #[inline]
    fn write(&mut self, pieces: &[Piece<'_>], train: &Train) -> bool {
        let (Ok(octets), Ok(stride)) = (
            u32::try_from(train.octets()),
            u16::try_from(train.datagram()),
        ) else {
            return false;
        };
        let record = Record { octets, stride };
        let written = match self.ends.output.write_record(record, pieces) {
            Ok(false) => self.write_in_longer(record, pieces),
            written => written,
        };
        written.unwrap_or_else(|error| {
            self.corrupt(error);
            false
        })
    }

    /// Has the ring grow, where it may and is empty, and sends then.
    #[inline(never)]
    fn write_in_longer(
        &mut self,
        record: Record,
        pieces: &[Piece<'_>],
    ) -> Result<bool, LaneCorrupt> {
        let _guard = NoCancellation::begin();
        let LaneEnds { output, share, .. } = &mut self.ends;
        output.want_room(ROOM.max(record.octets_in_lane()))?;
        let Some(more) = output.growth() else {
            return Ok(false);
        };
        let allowed = share.grow(more);
        output.grow(allowed);
        output.write_record(record, pieces)
    }

    /// Rings: an empty datagram makes the peer's socket readable. One whose buffer is full is readable already.
    #[cold]
    fn ring(&mut self, port: &Port) {
        let rung = port.send(None, Leave::default(), &[], None);
        if rung.is_err_and(|error| error.raw_os_error() == Some(nix::libc::ECONNREFUSED)) {
            self.end();
        }
    }

    /// Tells what is next in the lane, and copies it to the front of `buffer` if it is short; it stays there until it is
    /// [released](Self::release_short).
    #[inline]
    pub(crate) fn peek_short(&mut self, buffer: &mut ReceiveBuffer) -> Next {
        if self.broken || self.ended || self.unannounced || self.held.is_some() {
            return Next::Other;
        }
        match self.ends.input.next_record(LONGEST_COPIED as usize) {
            Ok(None) => Next::Nothing,
            Ok(Some(record)) if record.octets == u32::from(record.stride) => {
                self.ends.input.peek_record(record, buffer.all_octets());
                Next::Short(record)
            }
            // A longer one, or one that is corrupt for others, too.
            Ok(Some(_)) | Err(_) => Next::Other,
        }
    }

    /// The peer, and the address of ours that it sends to.
    #[inline]
    pub(crate) const fn names(&self) -> (Peer, Option<IpAddr>) {
        (self.peer, Some(self.local))
    }

    /// Releases the record that was [peeked](Self::peek_short).
    #[inline]
    pub(crate) fn release_short(&mut self, record: Record, port: &Port) {
        self.octets_received += u64::from(record.octets);
        if self.ends.input.release_record(record) {
            self.ring(port);
        }
    }

    /// Receives from the lane, without the socket.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the lane is empty.
    #[inline]
    pub(crate) fn poll(&mut self, port: &Port, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        match self.next_record(buffer.all_octets().len()) {
            Some(record) => Ok(self.take(record, port, buffer)),
            None => self.poll_held(buffer),
        }
    }

    /// Receives from the lane, without the socket; a long record is found only, and stays there.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub(crate) fn poll_or_find(
        &mut self,
        port: &Port,
        buffer: &mut ReceiveBuffer,
    ) -> io::Result<Polled> {
        match self.next_record(buffer.all_octets().len()) {
            Some(record) if record.octets > LONGEST_COPIED => Ok(Polled::Found(record)),
            Some(record) => Ok(Polled::Copied(self.take(record, port, buffer))),
            None => self.poll_held(buffer).map(Polled::Copied),
        }
    }

    /// The octets of a record that was [found](Self::poll_or_find).
    #[inline]
    pub(crate) fn found(&self, record: Record) -> LanePart<'_> {
        self.ends.input.record_part(record)
    }

    /// Releases a record that was [found](Self::poll_or_find).
    #[inline]
    pub(crate) fn release_found(&mut self, record: Record, port: &Port) {
        self.octets_received += u64::from(record.octets);
        self.octets_placed += u64::from(record.octets);
        if self.ends.input.release_record(record) {
            self.ring(port);
        }
    }

    /// Copies a record out.
    #[inline]
    fn take(&mut self, record: Record, port: &Port, buffer: &mut ReceiveBuffer) -> Received {
        self.octets_received += u64::from(record.octets);
        if self.ends.input.take_record(record, buffer.all_octets()) {
            self.ring(port);
        }
        self.received(record)
    }

    /// A record as the result of a receive call.
    #[inline]
    pub(crate) fn received(&self, record: Record) -> Received {
        Received {
            len: record.octets as usize,
            stride: record.stride.into(),
            from: self.peer,
            to: Some(self.local),
        }
    }

    #[inline]
    fn poll_held(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        self.take_held(buffer)
            .ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    #[inline]
    fn next_record(&mut self, most: usize) -> Option<Record> {
        if self.broken {
            return None;
        }
        self.ends.input.next_record(most).unwrap_or_else(|error| {
            self.corrupt(error);
            None
        })
    }

    /// Receives from the lane, and from the socket where that is empty.
    ///
    /// # Errors
    /// Error of the socket; [`WouldBlock`](io::ErrorKind::WouldBlock) if both are empty; [`Interrupted`](io::ErrorKind::Interrupted) if they are now, and
    /// bells had made the socket readable.
    pub(crate) fn receive(
        &mut self,
        port: &mut Port,
        buffer: &mut ReceiveBuffer,
    ) -> io::Result<Received> {
        let polled = self.poll(port, buffer);
        if polled.is_ok() {
            return polled;
        }
        let mut rung = false;
        for bells in 0..BELLS {
            rung = bells > 0;
            match port.receive(buffer) {
                Ok(received) if received.len == 0 => self.count_received(0),
                Ok(received) => {
                    if rung {
                        self.arm();
                    }
                    return self.behind_records(received, port, buffer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.arm();
        let polled = self.poll(port, buffer);
        let is_empty = polled
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if is_empty && rung && !self.is_polled {
            // No other thread took the socket's input.
            return Err(io::ErrorKind::Interrupted.into());
        }
        polled
    }

    /// A datagram came by the socket: what is in the lane now was sent before it.
    fn behind_records(
        &mut self,
        received: Received,
        port: &Port,
        buffer: &mut ReceiveBuffer,
    ) -> io::Result<Received> {
        if self.next_record(usize::MAX).is_none() {
            self.count_received(datagrams(&received));
            return Ok(received);
        }
        self.held = Some((received, buffer.octets(received.len).to_vec()));
        self.unannounced = true;
        self.poll(port, buffer)
    }

    /// Counts datagrams of the socket, and reports them.
    fn count_received(&mut self, datagrams: usize) {
        if let Some(received) = self.receive_count.received(datagrams) {
            self.ends.output.report_placed(received);
        }
    }

    /// The datagram that was held, if any.
    #[inline]
    fn take_held(&mut self, buffer: &mut ReceiveBuffer) -> Option<Received> {
        let (received, octets) = self.held.take()?;
        buffer.all_octets()[..octets.len()].copy_from_slice(&octets);
        self.count_received(datagrams(&received));
        Some(received)
    }

    /// Has the peer ring, unless a thread polls.
    fn arm(&mut self) {
        // A corrupt lane is found when it is read.
        self.unannounced |=
            !self.is_polled && !self.broken && self.ends.input.arm().unwrap_or(true);
    }

    /// Whether datagrams are in the lane that no bell announces, to be asked once.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.unannounced)
    }

    /// Wants bells from now on, or none while a thread polls. Datagrams that are there are [unannounced](Self::take_unannounced).
    pub(crate) fn want_bells(&mut self, wanted: bool) {
        self.is_polled = !wanted;
        if wanted {
            self.arm();
        } else {
            self.ends.input.disarm();
        }
    }
}

/// Datagrams of a receive call.
fn datagrams(received: &Received) -> usize {
    received.len.div_ceil(received.stride.max(1))
}

impl Drop for DatagramLanes {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
