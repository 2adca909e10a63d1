//! `riomap(3)`, `riounmap(3)`, `riowrite(3)`: memory of the program that the peer writes to directly.

use crate::ffi::errno;
use crate::mem::mr::mapped;
use crate::rsocket::iovec::{Vectors, one};
use crate::rsocket::stream::connection::{Connection, Data};
use crate::rsocket::stream::data::partial;
use crate::rsocket::stream::maps::Map;
use crate::rsocket::stream::tcp::Sending;
use crate::rsocket::wait::Waiting;
use dgiwarp::Access;
use dgiwarp_sockets::wire::{IoMap, Sge};
use nix::errno::Errno;
use std::ffi::c_void;

/// Parameters of a mapping.
pub(in crate::rsocket) struct Request {
    pub(in crate::rsocket) buffer: *mut c_void,
    pub(in crate::rsocket) length: usize,
    /// The peer may write to it.
    pub(in crate::rsocket) remote: bool,
    /// `None`: the buffer's address.
    pub(in crate::rsocket) offset: Option<u64>,
}

impl Connection {
    /// Maps memory. The peer gets the mapping with the next octets that are sent.
    ///
    /// # Safety
    /// The memory stays mapped, and is no Rust code's, until it is unmapped or the socket closed.
    pub(in crate::rsocket) unsafe fn map(&self, request: &Request) -> Result<u64, Errno> {
        let access = if request.remote {
            Access::LOCAL_WRITE | Access::REMOTE_WRITE
        } else {
            Access::LOCAL_WRITE
        };
        u32::try_from(request.length).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the caller's contract.
        let region = unsafe { mapped(request.buffer, request.length, access) }?;
        let mut data = self.lock();
        let slots = data.stream.as_ref().map_or(0, |stream| stream.map_slots());
        let slot = match request.remote {
            true => Some(data.maps.free_slot(slots).ok_or(Errno::ENOMEM)?),
            false => None,
        };
        let mr = self.qp.pd().register(region, access).map_err(errno::of)?;
        let offset = request.offset.unwrap_or_else(|| mr.addr());
        data.maps.maps.push(Map {
            buffer: request.buffer.addr(),
            length: request.length,
            offset,
            mr,
            slot,
            announced: false,
        });
        Ok(offset)
    }

    /// Ends a mapping. Writes of the peer end the connection from now on.
    pub(in crate::rsocket) fn unmap(
        &self,
        buffer: *mut c_void,
        length: usize,
    ) -> Result<(), Errno> {
        let mut data = self.lock();
        let is_it = |map: &Map| map.buffer == buffer.addr() && map.length == length;
        let at = data.maps.maps.iter().position(is_it);
        let map = data.maps.maps.remove(at.ok_or(Errno::EINVAL)?);
        drop(data);
        drop(map);
        Ok(())
    }

    /// Sends mappings that the peer has not got.
    pub(in crate::rsocket) fn announce_maps(&self, waiting: Waiting) -> Result<(), Errno> {
        loop {
            let mut data = self.lock();
            let Some(pending) = data.maps.pending() else {
                return Ok(());
            };
            self.advance(&mut data);
            if let Sending::Fails(errno) = data.sending(false) {
                return Err(errno);
            }
            let Data { stream, maps, .. } = &mut *data;
            let map = maps.maps.get_mut(pending).ok_or(Errno::EINVAL)?;
            let (Some(stream), Some(slot)) = (stream.as_mut(), map.slot) else {
                return Err(Errno::ENOTCONN);
            };
            if let Some(post) = stream.announce(slot) {
                let octets = stream.map_octets(&IoMap {
                    offset: map.offset,
                    sge: Sge {
                        addr: map.mr.addr(),
                        key: map.mr.rkey(),
                        length: u32::try_from(map.length).unwrap_or(u32::MAX),
                    },
                });
                map.announced = true;
                let vector = [one(octets.as_ptr().cast(), octets.len())];
                // SAFETY: octets of this function.
                let mut from = unsafe { Vectors::new(&vector) }?;
                self.post_from(&post, &mut from)?;
                continue;
            }
            drop(data);
            waiting.wait(self, Data::can_send)?;
        }
    }

    /// Writes octets to memory that the peer has mapped, from `offset` on.
    pub(in crate::rsocket) fn write_to_map(
        &self,
        from: &mut Vectors<'_>,
        offset: u64,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        self.announce_maps(waiting)?;
        while from.left() > 0 {
            let done = from.done();
            let mut data = self.lock();
            self.advance(&mut data);
            if let Sending::Fails(errno) = data.sending(false) {
                return partial(done, errno);
            }
            let at = offset.wrapping_add(u64::try_from(done).unwrap_or(0));
            // Outside of every map nothing is written, as rdma-core has it.
            let Some(map) = self.find_map(at) else {
                return Ok(done);
            };
            let most = from.left().min(1 << 16);
            let post = data
                .stream
                .as_mut()
                .filter(|stream| stream.can_send())
                .and_then(|stream| stream.write(&map, at, most));
            if let Some(post) = post {
                self.post_from(&post, from)?;
                continue;
            }
            drop(data);
            if let Err(errno) = waiting.wait(self, Data::can_send) {
                return partial(done, errno);
            }
        }
        Ok(from.all())
    }
}
