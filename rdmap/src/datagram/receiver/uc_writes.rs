//! Received UC Writes (§5.2): placed, and completed by a receive only with an immediate.

use std::hash::Hash;
use std::time::Instant;

use super::writes::{check_range, place};
use super::{Delivery, Origin, Receiver, Ulp};
use crate::datagram::DropReason;
use crate::datagram::open_writes::OpenWrite;
use crate::datagram::segment::WriteSegment;
use crate::datagram::source::SourceId;
use crate::wire::{Extension, Flags};

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    #[inline]
    pub(super) fn handle_uc_write<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        origin: Origin<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let extension = &write.extension;
        // A segment of an open Write was admitted with the Write's first.
        let open = self
            .sources
            .find(origin.peer, extension.epoch)
            .and_then(|source| self.writes.find(source, extension.number));
        if let Some(position) = open {
            if self.writes.get(position).target != write.target() {
                return Err(DropReason::Malformed);
            }
            return self.place_tracked(now, origin, position, write, ulp);
        }
        let source = self.admit_write(now, origin, write, ulp)?;
        if write.is_whole() {
            // A message of one segment is closed at once, whether it is placed or dropped.
            self.sources.get_mut(source).close(extension.number);
            return self.place_last(origin, write, ulp);
        }
        if self.writes.is_full()
            && let Some(silent) = self.writes.most_silent()
        {
            self.give_up_write(silent, ulp);
        }
        let target = write.target();
        let position = self.writes.add(now, (source, extension.number), target);
        self.sources.get_mut(source).open_writes += 1;
        self.wake_by(now + self.config.record_timeout);
        self.place_tracked(now, origin, position, write, ulp)
    }

    #[inline]
    fn place_tracked<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        origin: Origin<K>,
        position: usize,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let (start, end) = write.range();
        let open = self.writes.get_mut(position);
        check_range(&open.map, (start, end))?;
        if open.map.contains(0, start) && open.map.contains(end, open.target.length) {
            let placed = self.place_last(origin, write, ulp);
            // A segment without the right to be placed leaves the message open; one without a receive closes it.
            if matches!(placed, Ok(()) | Err(DropReason::NoReceive)) {
                self.close_write(position);
            }
            return placed;
        }
        place(origin, write, ulp)?;
        open.map
            .insert(start, end)
            .map_err(|_| DropReason::MapFull)?;
        open.last_placed = now;
        self.sources.touch(now, open.owner);
        Ok(())
    }

    /// Places the segment that completes a message, and completes a receive for its immediate. The receive is taken first: without
    /// one the segment is dropped, as a Send is.
    fn place_last<U: Ulp<K, Receive = R>>(
        &mut self,
        origin: Origin<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let Extension { flags, length, .. } = write.extension;
        let Some(immediate) = write.extension.immediate() else {
            return place(origin, write, ulp);
        };
        let receive = ulp.take_receive(0)?;
        let placed = place(origin, write, ulp);
        if let Err(reason) = placed {
            ulp.give_back(receive);
            return Err(reason);
        }
        ulp.deliver(
            receive,
            Delivery {
                source: origin.peer,
                length,
                immediate: Some(immediate),
                solicited: flags.contains(Flags::SOLICITED),
                written: true,
            },
        );
        Ok(())
    }

    fn close_write(&mut self, position: usize) {
        let (owner, number) = self.writes.remove(position);
        let source = self.sources.get_mut(owner);
        source.open_writes -= 1;
        source.close(number);
    }

    /// Closes an incomplete Write.
    fn give_up_write<U: Ulp<K, Receive = R>>(&mut self, position: usize, ulp: &mut U) {
        self.close_write(position);
        ulp.count(DropReason::IncompleteWrite);
    }

    /// Closes the Writes of a source beyond the reorder window.
    pub(super) fn give_up_old_writes<U: Ulp<K, Receive = R>>(&mut self, id: SourceId, ulp: &mut U) {
        let window = self.config.reorder_window;
        loop {
            let source = self.sources.get(id);
            let is_old =
                |write: &OpenWrite| write.owner == id && source.behind(write.number) > window;
            let Some(position) = self.writes.position(is_old) else {
                return;
            };
            self.give_up_write(position, ulp);
        }
    }

    /// Closes the Writes whose time is over.
    pub(super) fn give_up_silent_writes<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        ulp: &mut U,
    ) {
        let timeout = self.config.record_timeout;
        let is_silent = |write: &OpenWrite| write.last_placed + timeout <= now;
        while let Some(position) = self.writes.position(is_silent) {
            self.give_up_write(position, ulp);
        }
    }
}
