//! Items of a message that came: inside of it, written, or offered and read.

use std::collections::VecDeque;

use dgiwarp::Access;

use super::super::inbound::{Clock, Violation};
use super::super::peer::pieces;
use super::super::state::{About, Inbound, State, Then, Unread};
use crate::engine::urgency::Urgency;
use crate::engine::windows::BadWindow;
use crate::memory::take_place;
use crate::payload::{Item, Payload};
use crate::status::Code;
use crate::wire::message::{Body, WireItem};
use crate::wire::metadata::Metadata;

impl State {
    /// Reads the offered items of a message, or has it wait until there is room for them, and delivers it.
    pub(in super::super) fn take_items(
        &mut self,
        key: u64,
        about: About,
        body: Body,
        clock: Clock,
    ) -> Result<(), Violation> {
        let offered = |item: &WireItem| match item {
            WireItem::Offered { length, .. } => Some(*length),
            WireItem::Inline(_) | WireItem::Written { .. } => None,
        };
        let lengths = body.items.iter().filter_map(offered);
        let longest = lengths.clone().max().unwrap_or(0);
        let sum = lengths.fold(0, u64::saturating_add);
        if longest > self.limits.item || sum > self.limits.reading {
            let text = format!(
                "an item of {longest} bytes is too long: at most {} are taken",
                self.limits.item
            );
            self.refuse(key, about, Code::ResourceExhausted, &text, clock);
            return Ok(());
        }
        if sum > 0 && (self.reading + sum > self.limits.reading || !self.unread.is_empty()) {
            let unread = Unread {
                connection: key,
                about,
                body,
            };
            self.unread.push(self.urgency_of(about), unread);
            // It may be more urgent than those that have no room.
            self.read_more(clock);
            return Ok(());
        }
        self.read(key, about, body, sum, clock)
    }

    /// Goes on with messages that waited for room.
    pub(in super::super) fn read_more(&mut self, clock: Clock) {
        let offered = |item: &WireItem| match item {
            WireItem::Offered { length, .. } => *length,
            WireItem::Inline(_) | WireItem::Written { .. } => 0,
        };
        while let Some(first) = self.unread.first() {
            let sum: u64 = first.body.items.iter().map(offered).sum();
            if self.reading + sum > self.limits.reading {
                return;
            }
            let Some(unread) = self.unread.pop() else {
                return;
            };
            let key = unread.connection;
            if let Err(violation) = self.read(key, unread.about, unread.body, sum, clock) {
                self.close(key, false, &violation.to_string(), clock.now);
            }
        }
    }

    fn urgency_of(&self, about: About) -> Urgency {
        let urgency = match about {
            About::Call { caller, number } => {
                let route = self.routes.get(&(caller, number));
                route.map(|it| it.urgency)
            }
            About::Reply { number, .. } => self.pending.get(&number).map(|it| it.urgency),
            About::Message { urgency, .. } => Some(urgency),
        };
        urgency.unwrap_or_default()
    }

    fn read(
        &mut self,
        key: u64,
        about: About,
        body: Body,
        sum: u64,
        clock: Clock,
    ) -> Result<(), Violation> {
        let urgency = self.urgency_of(about);
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        let takes_places = matches!(about, About::Message { .. });
        let mut payload = Payload {
            metadata: Metadata::parse(&body.metadata)?,
            items: Vec::with_capacity(body.items.len()),
        };
        let mut reads = VecDeque::new();
        let mut memory = Vec::new();
        for item in body.items {
            match item {
                WireItem::Inline(octets) => payload.items.push(Item::Short(octets)),
                WireItem::Written { window, length } => {
                    // It was checked before, and its key ends here.
                    let registered = peer.own.take(window).ok_or(BadWindow::Unknown(window))?;
                    drop(registered.mr);
                    let mut block = registered.block;
                    block.truncate(usize::try_from(length).unwrap_or(usize::MAX));
                    payload.items.push(Item::Long(block));
                }
                WireItem::Offered {
                    key: name,
                    address,
                    length,
                } => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let place = takes_places.then(|| take_place(&mut self.places, length));
                    let place = place.flatten();
                    let block = match place {
                        Some(block) => Ok(block),
                        None => self.pool.block(length),
                    };
                    let registered = block
                        .ok()
                        .and_then(|block| peer.register(block, Access::LOCAL_WRITE).ok());
                    let Some(registered) = registered else {
                        let text = "no memory for a long item";
                        self.refuse(key, about, Code::ResourceExhausted, text, clock);
                        return Ok(());
                    };
                    payload.items.push(Item::Long(registered.block.clone()));
                    reads.extend(pieces(memory.len(), length, name, address, false));
                    memory.push(registered);
                }
            }
        }
        let read = !reads.is_empty();
        let inbound = Inbound {
            about,
            payload,
            read,
        };
        if !read {
            self.deliver(key, inbound, clock);
        } else {
            self.reading += sum;
            peer.transfer(
                urgency,
                reads,
                memory,
                Then::Deliver(Box::new(inbound), sum),
            );
        }
        Ok(())
    }
}
