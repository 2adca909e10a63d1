//! Received Sends (§7).

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_codec::PayloadSlice;

use super::{Delivery, Receiver, Ulp};
use crate::datagram::DropReason;
use crate::datagram::source::SourceId;
use crate::wire::{Extension, Flags};

/// Most incomplete Sends of one source.
const MAX_ASSEMBLIES_PER_SOURCE: u32 = 2;

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    #[inline]
    pub(super) fn handle_send<U: Ulp<K, Receive = R>>(
        &mut self,
        source: K,
        qkey: u32,
        solicited: bool,
        payload: PayloadSlice<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        if qkey != self.config.qkey {
            return Err(DropReason::BadQkey);
        }
        let length = u32::try_from(payload.len()).map_err(|_| DropReason::Malformed)?;
        let receive = ulp.take_receive(length)?;
        if ulp.place_untagged(&receive, 0, payload).is_err() {
            ulp.fail(receive);
            return Ok(());
        }
        let delivery = Delivery {
            source,
            length,
            immediate: None,
            solicited,
            written: false,
        };
        ulp.deliver(receive, delivery);
        Ok(())
    }

    pub(super) fn handle_segmented_send<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        from: K,
        qkey: u32,
        extension: &Extension,
        payload: PayloadSlice<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        if qkey != self.config.qkey {
            return Err(DropReason::BadQkey);
        }
        ulp.prepare_state();
        let source = self.source_of(now, from, extension)?;
        self.advance(source, extension.number, ulp);
        let position = match self.assemblies.find(source, extension.number) {
            Some(position) => position,
            None if payload.len() == extension.length as usize => {
                return self.place_whole_send(from, source, extension, payload, ulp);
            }
            None => self.open_assembly(now, source, extension, ulp)?,
        };
        let assembly = self.assemblies.get_mut(position);
        let end = extension.offset + u32::try_from(payload.len()).unwrap_or(0);
        if assembly.length != extension.length {
            return Err(DropReason::Malformed);
        }
        // A segment of several is never empty.
        if assembly.map.contains(extension.offset, end) {
            return Err(DropReason::Duplicate);
        }
        if !assembly.map.has_room(extension.offset, end) {
            return Err(DropReason::MapFull);
        }
        if ulp
            .place_untagged(&assembly.receive, extension.offset, payload)
            .is_err()
        {
            let receive = self.close_assembly(position);
            ulp.fail(receive);
            return Ok(());
        }
        assembly
            .map
            .insert(extension.offset, end)
            .map_err(|_| DropReason::MapFull)?;
        if assembly.map.octets() == extension.length {
            let receive = self.close_assembly(position);
            ulp.deliver(receive, delivery(from, extension));
        }
        Ok(())
    }

    /// A message of one segment is never incomplete, so the limits of incomplete Sends do not apply.
    fn place_whole_send<U: Ulp<K, Receive = R>>(
        &mut self,
        from: K,
        source: SourceId,
        extension: &Extension,
        payload: PayloadSlice<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let receive = ulp.take_receive(extension.length)?;
        self.sources.get_mut(source).close(extension.number);
        if ulp.place_untagged(&receive, 0, payload).is_err() {
            ulp.fail(receive);
            return Ok(());
        }
        ulp.deliver(receive, delivery(from, extension));
        Ok(())
    }

    fn open_assembly<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        source: SourceId,
        extension: &Extension,
        ulp: &mut U,
    ) -> Result<usize, DropReason> {
        self.make_room(source, extension.number, ulp);
        let full = self.assemblies.len() >= self.config.max_assemblies
            || self.sources.get(source).assemblies >= MAX_ASSEMBLIES_PER_SOURCE;
        if full {
            return Err(DropReason::ReassemblyFull);
        }
        let receive = ulp.take_receive(extension.length)?;
        self.sources.get_mut(source).assemblies += 1;
        self.wake_by(now + self.config.reassembly_timeout);
        let message = (extension.number, extension.length);
        Ok(self.assemblies.add(now, source, message, receive))
    }

    /// At the limit of incomplete Sends a newer message displaces the oldest one of its source: the missing segments
    /// of that one are probably lost, since segments of later messages have arrived. To wait for its timeout would
    /// cost every message in between. A source displaces only its own messages.
    fn make_room<U: Ulp<K, Receive = R>>(&mut self, id: SourceId, number: u32, ulp: &mut U) {
        let source = self.sources.get(id);
        let full = self.assemblies.len() >= self.config.max_assemblies;
        if source.assemblies < MAX_ASSEMBLIES_PER_SOURCE && !full {
            return;
        }
        let oldest = self
            .assemblies
            .of(id)
            .map(|(position, number)| (source.behind(number), position))
            .max();
        if let Some((behind, position)) = oldest
            && behind > source.behind(number)
        {
            let receive = self.close_assembly(position);
            ulp.give_back(receive);
            ulp.count(DropReason::ReassemblySuperseded);
        }
    }

    pub(super) fn close_assembly(&mut self, position: usize) -> R {
        let (owner, number, receive) = self.assemblies.remove(position);
        let source = self.sources.get_mut(owner);
        source.assemblies -= 1;
        source.close(number);
        receive
    }
}

/// Delivery of a complete Send with an extension.
fn delivery<K>(source: K, extension: &Extension) -> Delivery<K> {
    Delivery {
        source,
        length: extension.length,
        immediate: extension.immediate(),
        solicited: extension.flags.contains(Flags::SOLICITED),
        written: false,
    }
}
