//! Segments and messages that arrive (§5): each number once, delivery behind the message before.

use std::collections::VecDeque;

use crate::rd::frame::{Placed, SegmentHeader};

/// Segment numbers ahead of the first that is not placed.
pub(in crate::rd) const SEGMENTS: u32 = 16_384;
/// Message numbers ahead of the first that is not delivered.
pub(in crate::rd) const MESSAGES: u32 = 4096;

const WORD: u32 = u64::BITS;

/// Decision about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rd) enum Arrival {
    /// It is new: it is handed to DDP.
    New,
    /// It is there already.
    Known,
    /// Its message needs it no more.
    Moot,
    /// A number beyond the windows.
    Beyond,
    /// A violation of the rules of numbers.
    Violation,
}

/// A message that not all numbers of are known to be delivered.
#[derive(Debug, Clone, Copy, Default)]
struct Message {
    /// Segments that were placed.
    placed: u32,
    /// Segments that it has; 0 until the last one arrived.
    total: u32,
    /// Fields of its segments; `None` until one arrived.
    fields: Option<(u16, u16, bool)>,
    /// Distance forward to the message that comes after this one; 0 for none.
    followed: u16,
    delivered: bool,
}

impl Message {
    const fn is_complete(&self) -> bool {
        self.total != 0 && self.placed == self.total
    }
}

/// The receiving direction of an association.
#[derive(Debug, Default)]
pub(in crate::rd) struct Inbound {
    /// The first segment that is not placed.
    next: u32,
    /// Bits of segments behind `next` by number modulo [`SEGMENTS`]; empty while there are none.
    map: Vec<u64>,
    /// Bits that are set.
    marked: u32,
    /// Number of the first message of `messages`, which is not delivered.
    base: u32,
    messages: VecDeque<Message>,
}

/// Numbers of an association that rests.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rested {
    next: u32,
    base: u32,
}

impl From<Rested> for Inbound {
    fn from(Rested { next, base }: Rested) -> Self {
        Self {
            next,
            base,
            ..Self::default()
        }
    }
}

impl Inbound {
    /// Whether nothing has arrived in part, or before its turn.
    pub(in crate::rd) fn is_empty(&self) -> bool {
        self.marked == 0 && self.messages.is_empty()
    }

    /// Numbers to go on from, where nothing has arrived in part.
    pub(in crate::rd) const fn rest(&self) -> Rested {
        Rested {
            next: self.next,
            base: self.base,
        }
    }

    /// Decides about a segment without changing anything.
    pub(in crate::rd) fn check(&self, header: &SegmentHeader) -> Arrival {
        let ahead = header.number.wrapping_sub(self.next);
        if ahead >= 1 << 31 || self.is_marked(header.number) {
            return Arrival::Known;
        }
        if ahead >= SEGMENTS {
            return Arrival::Beyond;
        }
        let distance = header.message.wrapping_sub(self.base);
        if distance >= 1 << 31 {
            return Arrival::Moot;
        }
        if distance >= MESSAGES {
            return Arrival::Beyond;
        }
        if u32::from(header.after) >= MESSAGES || header.index == u32::MAX {
            return Arrival::Violation;
        }
        if header.after != 0 && !self.may_follow(distance, header.after) {
            return Arrival::Violation;
        }
        let Some(message) = self.message(distance) else {
            return Arrival::New;
        };
        if message.delivered {
            return Arrival::Moot;
        }
        let fields = (header.stream, header.after, header.receive);
        let wrong = message.fields.is_some_and(|known| known != fields)
            || message.total != 0 && (header.last || header.index >= message.total)
            || header.last && message.placed > header.index;
        if wrong {
            Arrival::Violation
        } else {
            Arrival::New
        }
    }

    /// Whether the message at `distance` may name the one `after` before it: none else has.
    fn may_follow(&self, distance: u32, after: u16) -> bool {
        let Some(before) = distance.checked_sub(after.into()) else {
            // Delivered already.
            return true;
        };
        let followed = self.message(before).map_or(0, |message| message.followed);
        followed == 0 || followed == after
    }

    /// Messages before this one that have not begun and may need a receive before this one is delivered; 0 where the message that it comes after is
    /// delivered.
    pub(in crate::rd) fn missing_before(&self, header: &SegmentHeader) -> u32 {
        let distance = header.message.wrapping_sub(self.base);
        if self.is_behind_delivered(distance, header.after) {
            return 0;
        }
        let known = self.messages.iter().zip(0..distance);
        let has_none = |message: &Message| message.fields.is_none() && !message.delivered;
        let missing = known.filter(|(message, _)| has_none(message)).count();
        let unknown = usize::try_from(distance).unwrap_or(usize::MAX);
        let unknown = unknown.saturating_sub(self.messages.len());
        u32::try_from(missing + unknown).unwrap_or(u32::MAX)
    }

    /// Whether the message that the segment's comes after is delivered, or it comes after none.
    pub(in crate::rd) fn is_in_turn(&self, header: &SegmentHeader) -> bool {
        self.is_behind_delivered(header.message.wrapping_sub(self.base), header.after)
    }

    fn is_behind_delivered(&self, distance: u32, after: u16) -> bool {
        after == 0
            || distance
                .checked_sub(after.into())
                .is_none_or(|before| self.message(before).is_some_and(|it| it.delivered))
    }

    /// Whether a segment of this message was placed.
    pub(in crate::rd) fn has_begun(&self, message: u32) -> bool {
        self.message(message.wrapping_sub(self.base))
            .is_some_and(|message| message.fields.is_some())
    }

    fn message(&self, distance: u32) -> Option<&Message> {
        self.messages.get(usize::try_from(distance).ok()?)
    }

    fn message_mut(&mut self, distance: u32) -> Option<&mut Message> {
        let at = usize::try_from(distance).ok()?;
        if at >= self.messages.len() {
            self.messages.resize(at + 1, Message::default());
        }
        self.messages.get_mut(at)
    }

    /// Takes note of a segment that [`check`](Self::check) found moot.
    pub(in crate::rd) fn pass(&mut self, number: u32) {
        self.mark(number);
    }

    /// A segment that [`check`](Self::check) found new was placed. `deliver` gets the messages that are delivered now, by
    /// number and stream.
    pub(in crate::rd) fn place(&mut self, header: &SegmentHeader, deliver: impl FnMut(u32, u16)) {
        self.mark(header.number);
        let distance = header.message.wrapping_sub(self.base);
        if header.after != 0
            && let Some(before) = distance.checked_sub(header.after.into())
            && let Some(before) = self.message_mut(before)
        {
            before.followed = header.after;
        }
        let Some(message) = self.message_mut(distance) else {
            return;
        };
        message.fields = Some((header.stream, header.after, header.receive));
        message.placed += 1;
        if header.last {
            message.total = header.index + 1;
        }
        self.advance(distance, deliver);
    }

    /// The message failed: its segments are known from now on, this one too, and those after it go on without it.
    pub(in crate::rd) fn fail(&mut self, header: &SegmentHeader, deliver: impl FnMut(u32, u16)) {
        self.mark(header.number);
        let distance = header.message.wrapping_sub(self.base);
        let Some(message) = self.message_mut(distance) else {
            return;
        };
        message.delivered = true;
        let followed = message.followed;
        if followed != 0 {
            self.advance(distance + u32::from(followed), deliver);
        }
        self.pop();
    }

    /// Delivers the message if it is complete and its turn has come, and then those that come after it.
    fn advance(&mut self, distance: u32, mut deliver: impl FnMut(u32, u16)) {
        let mut distance = distance;
        while let Some(message) = self.message(distance) {
            let Some((stream, after, _)) = message.fields else {
                break;
            };
            if message.delivered
                || !message.is_complete()
                || !self.is_behind_delivered(distance, after)
            {
                break;
            }
            let followed = message.followed;
            if let Some(message) = self.message_mut(distance) {
                message.delivered = true;
            }
            deliver(self.base.wrapping_add(distance), stream);
            if followed == 0 {
                break;
            }
            distance += u32::from(followed);
        }
        self.pop();
    }

    fn pop(&mut self) {
        while self.messages.front().is_some_and(|it| it.delivered) {
            self.messages.pop_front();
            self.base = self.base.wrapping_add(1);
        }
    }

    /// Segments that are placed, for the peer.
    pub(in crate::rd) fn placed(&self) -> Placed {
        let mut map = 0;
        if self.marked != 0 {
            for bit in 0..WORD {
                let number = self.next.wrapping_add(1 + bit);
                if self.is_marked(number) {
                    map |= 1 << bit;
                }
            }
        }
        Placed {
            next: self.next,
            map,
        }
    }

    const fn bit(number: u32) -> (usize, u64) {
        let slot = number % SEGMENTS;
        ((slot / WORD) as usize, 1 << (slot % WORD))
    }

    fn is_marked(&self, number: u32) -> bool {
        if number.wrapping_sub(self.next) >= SEGMENTS {
            return false;
        }
        let (word, bit) = Self::bit(number);
        self.map.get(word).is_some_and(|it| it & bit != 0)
    }

    fn mark(&mut self, number: u32) {
        if number == self.next && self.marked == 0 {
            self.next = self.next.wrapping_add(1);
            return;
        }
        if self.map.is_empty() {
            self.map = vec![0; (SEGMENTS / WORD) as usize];
        }
        let (word, bit) = Self::bit(number);
        if let Some(word) = self.map.get_mut(word) {
            *word |= bit;
            self.marked += 1;
        }
        while self.is_marked(self.next) {
            let (word, bit) = Self::bit(self.next);
            if let Some(word) = self.map.get_mut(word) {
                *word &= !bit;
            }
            self.marked -= 1;
            self.next = self.next.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn single(number: u32, message: u32, after: u16) -> SegmentHeader {
        SegmentHeader {
            last: true,
            receive: false,
            number,
            message,
            index: 0,
            stream: 0,
            after,
        }
    }

    fn place(inbound: &mut Inbound, header: &SegmentHeader) -> Vec<u32> {
        assert_eq!(inbound.check(header), Arrival::New, "{header}");
        let mut delivered = Vec::new();
        inbound.place(header, |message, _| delivered.push(message));
        assert_eq!(inbound.check(header), Arrival::Known);
        delivered
    }

    #[test]
    fn order_is_that_of_the_messages_named() {
        let mut inbound = Inbound::default();
        // 0 <- 2 <- 3 in one stream, 1 without order.
        assert_eq!(place(&mut inbound, &single(3, 3, 1)), []);
        assert_eq!(inbound.missing_before(&single(2, 2, 2)), 2);
        assert_eq!(inbound.missing_before(&single(9, 9, 6)), 8);
        assert_eq!(place(&mut inbound, &single(2, 2, 2)), []);
        assert_eq!(
            inbound.placed(),
            Placed {
                next: 0,
                map: 0b110
            }
        );
        assert_eq!(place(&mut inbound, &single(1, 1, 0)), [1]);
        assert_eq!(inbound.missing_before(&single(0, 0, 0)), 0);
        assert!(!inbound.has_begun(0));
        assert_eq!(place(&mut inbound, &single(0, 0, 0)), [0, 2, 3]);
        assert_eq!(inbound.placed(), Placed { next: 4, map: 0 });
        assert!(inbound.messages.is_empty());
        assert_eq!(place(&mut inbound, &single(4, 4, 1)), [4]);
        assert_eq!(inbound.missing_before(&single(5, 5, 1)), 0);
    }

    #[test]
    fn segments_of_messages_may_alternate() {
        let mut inbound = Inbound::default();
        let segment = |number, message, index, last| SegmentHeader {
            index,
            last,
            ..single(number, message, 0)
        };
        assert_eq!(place(&mut inbound, &segment(0, 0, 0, false)), []);
        assert!(inbound.has_begun(0) && !inbound.has_begun(1));
        assert_eq!(place(&mut inbound, &segment(3, 1, 1, true)), []);
        assert_eq!(place(&mut inbound, &segment(2, 0, 1, true)), [0]);
        assert_eq!(place(&mut inbound, &segment(1, 1, 0, false)), [1]);
    }

    #[test]
    fn rules_of_numbers_are_checked() {
        let mut inbound = Inbound::default();
        let check = |inbound: &Inbound, header| inbound.check(&header);
        assert_eq!(check(&inbound, single(SEGMENTS, 0, 0)), Arrival::Beyond);
        assert_eq!(check(&inbound, single(SEGMENTS - 1, 0, 0)), Arrival::New);
        assert_eq!(check(&inbound, single(0, MESSAGES, 0)), Arrival::Beyond);
        assert_eq!(check(&inbound, single(0, MESSAGES - 1, 0)), Arrival::New);
        assert_eq!(check(&inbound, single(u32::MAX, 0, 0)), Arrival::Known);
        assert_eq!(check(&inbound, single(0, u32::MAX, 0)), Arrival::Moot);
        assert_eq!(check(&inbound, single(0, 0, 4095)), Arrival::New);
        assert_eq!(check(&inbound, single(0, 0, 4096)), Arrival::Violation);
        let endless = SegmentHeader {
            index: u32::MAX,
            ..single(0, 0, 0)
        };
        assert_eq!(check(&inbound, endless), Arrival::Violation);
        let segment = |number, index, last| SegmentHeader {
            index,
            last,
            ..single(number, 1, 1)
        };
        place(&mut inbound, &segment(5, 3, true));
        assert_eq!(check(&inbound, segment(6, 4, false)), Arrival::Violation);
        assert_eq!(check(&inbound, segment(6, 2, true)), Arrival::Violation);
        assert_eq!(check(&inbound, segment(6, 2, false)), Arrival::New);
        for wrong in [
            SegmentHeader {
                stream: 1,
                ..segment(6, 2, false)
            },
            SegmentHeader {
                after: 0,
                ..segment(6, 2, false)
            },
            SegmentHeader {
                receive: true,
                ..segment(6, 2, false)
            },
        ] {
            assert_eq!(check(&inbound, wrong), Arrival::Violation);
        }
        // Message 1 comes after 0 already.
        assert_eq!(check(&inbound, single(7, 2, 2)), Arrival::Violation);
        assert_eq!(check(&inbound, single(7, 2, 1)), Arrival::New);
        place(&mut inbound, &segment(6, 2, false));
        let other = |number, index| SegmentHeader {
            index,
            last: false,
            ..single(number, 3, 0)
        };
        place(&mut inbound, &other(8, 0));
        place(&mut inbound, &other(9, 1));
        let early = SegmentHeader {
            last: true,
            ..other(10, 1)
        };
        assert_eq!(check(&inbound, early), Arrival::Violation, "two before it");
        let end = SegmentHeader {
            last: true,
            ..other(10, 2)
        };
        assert_eq!(check(&inbound, end), Arrival::New);
    }

    #[test]
    fn a_failed_message_holds_nothing_up() {
        let mut inbound = Inbound::default();
        assert_eq!(place(&mut inbound, &single(2, 1, 1)), []);
        let first = SegmentHeader {
            last: false,
            ..single(0, 0, 0)
        };
        let mut delivered = Vec::new();
        inbound.fail(&first, |message, _| delivered.push(message));
        assert_eq!(delivered, [1]);
        assert_eq!(inbound.base, 2);
        let rest = SegmentHeader {
            index: 1,
            ..single(1, 0, 0)
        };
        assert_eq!(inbound.check(&rest), Arrival::Moot);
        inbound.pass(1);
        assert_eq!(inbound.check(&rest), Arrival::Known);
        assert_eq!(inbound.placed(), Placed { next: 3, map: 0 });
    }

    #[test]
    fn segments_of_a_failed_message_behind_others_are_moot() {
        let mut inbound = Inbound::default();
        inbound.fail(&single(3, 2, 0), |_, _| ());
        assert_eq!(inbound.base, 0);
        assert_eq!(inbound.check(&single(4, 2, 0)), Arrival::Moot);
    }

    #[test]
    fn memory_is_made_when_it_is_needed() {
        let mut inbound = Inbound::default();
        for number in 0..10 {
            place(&mut inbound, &single(number, number, 0));
        }
        assert!(inbound.map.is_empty());
        place(&mut inbound, &single(11, 11, 0));
        assert!(!inbound.map.is_empty() && !inbound.is_empty());
        place(&mut inbound, &single(10, 10, 0));
        assert!(inbound.is_empty());
        let rested = Inbound::from(inbound.rest());
        assert_eq!((rested.next, rested.base), (12, 12));
        assert_eq!(rested.map.capacity() + rested.messages.capacity(), 0);
    }

    proptest! {
        /// Numbers wrap, and the marks are the set of what was placed, however far.
        #[test]
        fn marks_are_a_set(start: u32, steps in proptest::collection::vec(0u32..200, 1..300)) {
            let mut inbound = Inbound { next: start, base: start, ..Inbound::default() };
            let mut placed = BTreeSet::new();
            for step in steps {
                let header = single(start.wrapping_add(step), start.wrapping_add(step), 0);
                let known = inbound.check(&header) == Arrival::Known;
                prop_assert_eq!(known, placed.contains(&step));
                if !known {
                    inbound.place(&header, |_, _| ());
                    placed.insert(step);
                }
            }
            let next = (0..).find(|step| !placed.contains(step)).unwrap();
            let expected = inbound.placed();
            prop_assert_eq!(expected.next, start.wrapping_add(next));
            for bit in 0..64 {
                prop_assert_eq!(expected.map >> bit & 1 == 1, placed.contains(&(next + 1 + bit)));
            }
            prop_assert_eq!(inbound.base, expected.next);
        }
    }
}
