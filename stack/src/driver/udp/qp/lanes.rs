//! Lanes of a datagram queue pair: receiving from them, and short messages to them.

use std::io;
use std::sync::atomic::Ordering;

use dgiwarp_engine::datagram::{Arrival, ShortSend};
use dgiwarp_llp_udp::Train;
use dgiwarp_memory::Piece;
use dgiwarp_memory::lane::Record;

use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::clock;
use crate::driver::reactor::member::{Received, SocketIndex};
use crate::driver::udp::lanes::{Next, Polled};
use crate::driver::udp::qp::{UdInner, UdShared};
use crate::driver::udp::socket::{self, ReceiveBuffer};

/// Short messages that one call receives, at most.
const SHORT_TURN: usize = 16;

impl UdShared {
    /// Receives short Sends from the lane of a socket, without all that others need. `None` where the input, or the lack of it, is for
    /// [`receive_from_lane`](Self::receive_from_lane).
    #[inline]
    pub(super) fn receive_short(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let UdInner {
            engine,
            ports,
            instruments,
            is_unready,
            ..
        } = inner;
        // Others than the engine want datagrams, or nobody does.
        if instruments.is_some() || *is_unready {
            return None;
        }
        let (port, lanes) = ports.with_lanes(index)?;
        let names = lanes.names();
        let mut received = None;
        for _ in 0..SHORT_TURN {
            match lanes.peek_short(buffer) {
                Next::Nothing => {
                    received.get_or_insert(Received::Nothing);
                    break;
                }
                Next::Other => break,
                Next::Short(record) => {
                    let octets = buffer.octets(record.octets as usize);
                    let mut completions = self.completions_to(Some(&mut *direct));
                    if !engine.receive_sole_send(names, octets, self.tables(), &mut completions) {
                        break;
                    }
                    lanes.release_short(record, port);
                    received = Some(Received::Something);
                    if direct.are_full() {
                        break;
                    }
                }
            }
        }
        if received == Some(Received::Something) {
            ports.note_used(clock::coarse(), index);
        }
        received
    }

    /// Posts a Send, and puts its datagram into the peer's lane in this thread. Returns whether it was posted; if not, it is for [`post`](Self::post).
    #[inline]
    pub(crate) fn post_short(&self, wr: &ShortSend<'_>) -> bool {
        let is_there = self.has_any_lanes()
            && !self.unsent.load(Ordering::Relaxed)
            && self.open.load(Ordering::Acquire)
            && !self.closing.load(Ordering::Acquire);
        let send = |inner: &mut UdInner| {
            if inner.instruments.is_some() {
                return false;
            }
            let now = clock::coarse();
            let UdInner { engine, ports, .. } = inner;
            let Some((port, Some(lanes))) = ports.own(now, wr.peer, wr.route.source()) else {
                return false;
            };
            let into_lane = |octets: &[u8], train: &Train| {
                lanes.send(now, port, &[Piece::Bytes(octets)], train)
            };
            let mrs = self.tables().mrs;
            engine.post_short(now, wr, mrs, &mut self.completions(), into_lane)
        };
        let work = |inner: &mut UdInner| self.work(inner);
        is_there && self.posting.post_alone(&self.exclusive, send, work)
    }

    /// Receives from the lane of a socket alone.
    #[inline]
    pub(super) fn receive_from_lane(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        // Others than the engine want datagrams, or nobody does.
        let is_plain = inner.instruments.is_none() && !inner.is_unready;
        let received: Option<io::Result<socket::Received>> = if is_plain {
            match inner.ports.poll_lane_or_find(index, buffer) {
                Some(Ok(Polled::Found(record))) => {
                    self.announce(inner);
                    self.take_found(inner, index, record);
                    return Received::Something;
                }
                Some(Ok(Polled::Copied(received))) => Some(Ok(received)),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            }
        } else {
            inner.ports.poll_lane(index, buffer)
        };
        received.map_or(Received::Nothing, |received| {
            self.took(inner, index, buffer, received)
        })
    }

    /// Gives the engine a record where it lies in the lane.
    fn take_found(&self, inner: &mut UdInner, index: SocketIndex, record: Record) {
        let now = clock::coarse();
        let Some(received) = inner.ports.received(index, record) else {
            return;
        };
        self.work_around(inner, (now, index), received, |inner| {
            let UdInner { engine, ports, .. } = inner;
            ports.take_found(index, record, |octets| {
                let arrival = Arrival {
                    from: received.from,
                    to: received.to,
                    to_group: false,
                    by_memory: true,
                    octets,
                    stride: received.stride,
                };
                engine.handle_input(now, arrival, self.tables(), &mut self.completions());
            });
        });
    }
}
