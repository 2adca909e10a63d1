//! Receiving from the lanes of a datagram queue pair.

use std::io;

use dgiwarp_engine::datagram::Arrival;
use dgiwarp_memory::lane::Record;

use crate::driver::device::clock;
use crate::driver::reactor::member::{Received, SocketIndex};
use crate::driver::udp::lanes::Polled;
use crate::driver::udp::qp::{UdInner, UdShared};
use crate::driver::udp::socket::{self, ReceiveBuffer};

impl UdShared {
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
