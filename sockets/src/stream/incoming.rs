//! The receiving half: receive buffer, what of it was advertised, and when credits are due.

use super::config::{Config, Local};
use super::post::{Credits, Place};
use super::violation::Violation;
use crate::wire::{ByteOrder, ConnectionData, Message, Sge};
use std::collections::VecDeque;

/// The receiving half.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Octets of the buffer that are used.
    size: u32,
    /// Octets that may be.
    most: u32,
    /// Byte order of this host, which messages are sent in.
    order: ByteOrder,
    /// Byte order of the peer, whose memory targets are written to.
    peer_order: ByteOrder,
    buffer: Place,
    /// Most messages that may wait.
    entries: u16,
    /// Octets of each message that waits; of the first, what is left. Not more than `entries`.
    messages: VecDeque<u32>,
    /// Their sum.
    buffered: u32,
    /// Offset of the first octet that waits, below `size`.
    at: u32,
    /// Octets that the peer may still write.
    granted: u32,
    /// Free octets that were not advertised.
    free: u32,
    /// Offset of the half to be advertised next.
    free_at: u32,
    /// Messages taken, modulo 2^16.
    sequence: u16,
    /// Value of `sequence` from which on credits are due.
    due: u16,
    /// The peer's list of targets.
    targets: Sge,
    /// Index of the target to be written next.
    slot: u32,
}

impl Incoming {
    pub(super) fn new(config: &Config, local: &Local, peer: &ConnectionData) -> Self {
        let half = config.receive_octets / 2;
        Self {
            size: config.receive_octets,
            most: config.most_receive_octets,
            order: config.order,
            peer_order: peer.order,
            buffer: Place {
                addr: local.buffer,
                key: local.buffer_key,
            },
            entries: config.receive_entries,
            messages: VecDeque::with_capacity(config.receive_entries.into()),
            buffered: 0,
            at: 0,
            granted: half,
            free: half,
            free_at: half,
            sequence: 0,
            due: config.receive_entries / 2,
            targets: peer.targets,
            slot: 1 % peer.targets.length.max(1),
        }
    }

    /// Takes a message of data.
    pub(super) fn arrived(&mut self, octets: u32) -> Result<(), Violation> {
        let granted = self.granted;
        if octets == 0 || octets > granted {
            return Err(Violation::Data { octets, granted });
        }
        if self.messages.len() >= self.entries.into() {
            return Err(Violation::Credit);
        }
        self.granted -= octets;
        self.buffered += octets;
        self.messages.push_back(octets);
        Ok(())
    }

    /// Takes a message without data that took a credit.
    pub(super) fn passed(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    pub(super) fn buffered(&self) -> u32 {
        self.buffered
    }

    /// Offset and number of the octets at the front that lie in one piece, from the octet `skip` on.
    pub(super) fn front(&self, skip: u32) -> (u32, u32) {
        let left = self.buffered.saturating_sub(skip);
        // Below twice the size, which is at most 2^30.
        let at = (self.at + skip.min(self.buffered)) % self.size;
        (at, left.min(self.size - at))
    }

    /// Frees octets at the front.
    pub(super) fn take(&mut self, octets: u32) {
        let octets = octets.min(self.buffered);
        self.buffered -= octets;
        self.at = (self.at + octets) % self.size;
        self.free += octets;
        let mut left = octets;
        while left > 0
            && let Some(first) = self.messages.front_mut()
        {
            let taken = left.min(*first);
            left -= taken;
            *first -= taken;
            if *first == 0 {
                self.messages.pop_front();
                self.sequence = self.sequence.wrapping_add(1);
            }
        }
    }

    /// Whether half the buffer is free, or half of the credits were used.
    pub(super) fn credits_due(&self) -> bool {
        let overdue = self.sequence.wrapping_sub(self.due) <= u16::MAX / 2;
        self.free >= self.size / 2 || overdue
    }

    /// Doubles the buffer where the peer has used up all that was advertised, and the part of it that is advertised next begins it anew: the new part comes first.
    fn grow(&mut self) {
        let is_due = self.granted == 0 && self.free_at == 0 && self.free >= self.size / 2;
        if !is_due || self.size > self.most / 2 {
            return;
        }
        // Octets that wait, if any, end where the new part begins.
        if self.at == 0 {
            self.at = self.size;
        }
        self.free_at = self.size;
        self.free += self.size;
        self.size *= 2;
    }

    pub(super) fn credits(&mut self) -> Credits {
        self.grow();
        let half = self.size / 2;
        self.due = self.sequence.wrapping_add(self.entries / 2);
        let limit = self.sequence.wrapping_add(self.entries);
        let message = self.order.octets(Message::Credits(limit.into()).emit());
        if self.free < half {
            return Credits {
                target: None,
                message,
            };
        }
        let target = Sge {
            addr: self.buffer.addr.wrapping_add(self.free_at.into()),
            key: self.buffer.key,
            length: half,
        };
        let to = Place {
            addr: self
                .targets
                .addr
                .wrapping_add(u64::from(self.slot) * Sge::LEN as u64),
            key: self.targets.key,
        };
        self.free -= half;
        self.granted += half;
        self.free_at = (self.free_at + half) % self.size;
        self.slot = (self.slot + 1) % self.targets.length.max(1);
        Credits {
            target: Some((to, target.emit(self.peer_order))),
            message,
        }
    }
}
