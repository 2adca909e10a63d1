//! The sending half: send buffer, credits, targets.

use super::config::Config;
use super::post::{MAP_OCTETS, Part, Place, Post, Sent};
use crate::wire::{ByteOrder, ConnectionData, IoMap, MAX_VALUE, Message, Sge};

/// Entries of the send queue that a Write with its message takes.
const ENTRIES: u16 = 2;

/// Octets of a short message, which is no more than a sixteenth of the send buffer.
const LONGEST_SHORT: u32 = 8 << 10;

/// Octets of the send buffer, no more than half of it, that are in use while messages make no completion.
const MOST_UNSIGNALED: u32 = 64 << 10;

/// Messages of data fewer than the peer's credits that are sent at once: control messages need receives of the peer's too.
const RESERVE: u16 = 4;

/// The sending half.
#[derive(Debug)]
pub(super) struct Outgoing {
    size: u32,
    inline: u32,
    order: ByteOrder,
    /// Offset of the first octet of the send buffer to be used next, below `size`.
    at: u32,
    /// Free octets of the send buffer.
    free: u32,
    /// Free entries of the send queue.
    entries: u16,
    /// Entries of the send queue.
    queue: u16,
    /// Octets of the send buffer and entries of the send queue of messages that make no completion: the next completion of a message frees them.
    unsignaled: (u32, u16),
    /// Messages of data sent, modulo 2^16.
    sequence: u16,
    /// Sequence number that the peer gives no credit for.
    limit: u16,
    /// Credits of the peer's that are kept for control messages.
    reserve: u16,
    /// The rest of the target in use.
    target: Sge,
    /// Index of the next target in the list.
    slot: u32,
    /// The peer's list of I/O maps.
    maps: Place,
    map_slots: u16,
}

impl Outgoing {
    pub(super) fn new(config: &Config, peer: &ConnectionData) -> Self {
        Self {
            size: config.most_send_octets,
            inline: config.inline,
            order: config.order,
            at: 0,
            free: config.most_send_octets,
            entries: config.send_entries,
            queue: config.send_entries,
            unsignaled: (0, 0),
            sequence: 0,
            limit: peer.credits,
            reserve: if peer.credits >= 4 * RESERVE {
                RESERVE
            } else {
                0
            },
            target: peer.buffer,
            slot: 1,
            maps: Place {
                addr: peer
                    .targets
                    .addr
                    .wrapping_add(u64::from(peer.targets.length) * Sge::LEN as u64),
                key: peer.targets.key,
            },
            map_slots: peer.io_maps.unwrap_or(0),
        }
    }

    /// Slot of the list of targets to be read, if the target in use has ended.
    pub(super) fn wants_target(&self) -> Option<u32> {
        (self.target.length == 0).then_some(self.slot)
    }

    /// Takes a target that was read from its slot. One without octets was not written yet.
    pub(super) fn take_target(&mut self, octets: &[u8; Sge::LEN]) -> bool {
        let target = Sge::parse(octets, self.order);
        if target.length == 0 {
            return false;
        }
        self.target = target;
        self.slot = (self.slot + 1) % Config::TARGETS;
        true
    }

    pub(super) fn take_credits(&mut self, limit: u32) {
        let [_, _, high, low] = limit.to_be_bytes();
        self.limit = u16::from_be_bytes([high, low]);
    }

    fn credits(&self) -> u16 {
        let credits = self.limit.wrapping_sub(self.sequence);
        credits.saturating_sub(self.reserve)
    }

    pub(super) fn can_send(&self) -> bool {
        self.has_room() && self.credits() > 0 && !self.fills_target()
    }

    /// Whether all of the room at the peer is used.
    pub(super) fn fills_target(&self) -> bool {
        self.target.length == 0
    }

    fn has_room(&self) -> bool {
        self.entries >= ENTRIES && self.free >= Config::LOW_WATER
    }

    /// Takes room for up to `octets` from the send buffer.
    fn part(&mut self, octets: u32) -> Part {
        self.free -= octets;
        if octets <= self.inline {
            return Part::Inline;
        }
        let at = self.at;
        let first = octets.min(self.size - at);
        let rest = octets - first;
        self.at = if rest > 0 {
            rest
        } else {
            (at + first) % self.size
        };
        Part::Buffer { at, first, rest }
    }

    /// The completion that a message of so many octets makes, whose room is taken already. Short ones make none while little room is used: each costs an
    /// acknowledgement of the peer's.
    fn completion(&mut self, octets: u32) -> Option<Sent> {
        let (before, entries) = self.unsignaled;
        let (octets_in_all, entries) = (before + octets, entries + ENTRIES);
        let is_short = octets <= LONGEST_SHORT.min(self.size / 16);
        let used = self.size - self.free;
        let is_room_left = self.has_room() && used <= MOST_UNSIGNALED.min(self.size / 2);
        if is_short && is_room_left && self.entries >= self.queue / 2 {
            self.unsignaled = (octets_in_all, entries);
            return None;
        }
        self.unsignaled = (0, 0);
        Some(Sent::Message {
            octets: octets_in_all,
            entries,
        })
    }

    pub(super) fn send(&mut self, octets: usize) -> Option<Post> {
        if octets == 0 || !self.can_send() {
            return None;
        }
        let most = self.free.min(self.target.length).min(MAX_VALUE);
        let octets = u32::try_from(octets).unwrap_or(most).min(most);
        self.entries -= ENTRIES;
        self.sequence = self.sequence.wrapping_add(1);
        let to = Place {
            addr: self.target.addr,
            key: self.target.key,
        };
        self.target.addr = to.addr.wrapping_add(octets.into());
        self.target.length -= octets;
        Some(Post {
            part: self.part(octets),
            octets,
            to,
            message: Some(self.order.octets(Message::Data(octets).emit())),
            id: self.completion(octets),
        })
    }

    pub(super) fn map_slots(&self) -> u16 {
        self.map_slots
    }

    /// Announces an I/O map. It takes a credit, as data do.
    pub(super) fn announce(&mut self, index: u16) -> Option<Post> {
        if index >= self.map_slots || !self.can_send() {
            return None;
        }
        self.entries -= ENTRIES;
        self.sequence = self.sequence.wrapping_add(1);
        Some(Post {
            part: self.part(MAP_OCTETS),
            octets: MAP_OCTETS,
            to: Place {
                addr: self
                    .maps
                    .addr
                    .wrapping_add(u64::from(index) * IoMap::LEN as u64),
                key: self.maps.key,
            },
            message: Some(self.order.octets(Message::IoMap(index.into()).emit())),
            id: self.completion(MAP_OCTETS),
        })
    }

    /// Writes to an I/O map of the peer's.
    pub(super) fn write(&mut self, map: &IoMap, offset: u64, octets: usize) -> Option<Post> {
        let left = map.left_at(offset);
        if octets == 0 || left == 0 || !self.has_room() {
            return None;
        }
        let most = u32::try_from(left)
            .unwrap_or(u32::MAX)
            .min(self.free)
            .min(MAX_VALUE);
        let octets = u32::try_from(octets).unwrap_or(most).min(most);
        self.entries -= 1;
        Some(Post {
            part: self.part(octets),
            octets,
            to: Place {
                addr: map.sge.addr.wrapping_add(offset - map.offset),
                key: map.sge.key,
            },
            message: None,
            id: Some(Sent::Write(octets)),
        })
    }

    pub(super) fn message(&self, message: Message) -> [u8; 4] {
        self.order.octets(message.emit())
    }

    pub(super) fn completed(&mut self, octets: u32, entries: u16) {
        self.free = self.free.saturating_add(octets).min(self.size);
        if self.free == self.size {
            // A program that sends little uses the same memory again.
            self.at = 0;
        }
        self.entries = self.entries.saturating_add(entries);
    }
}
