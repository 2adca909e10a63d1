//! Urgency of calls and messages, and the turns of entries that wait (`rfc-notes/ripc.md`, "Urgency").

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Levels of urgency.
const LEVELS: usize = 8;
/// Entries of other levels after which the next entry of a level is overdue.
const PASSED: u8 = 16;

/// Urgency of a call or message, as in RFC 9218: 0 is the most urgent level, 7 the least, and 3 that of calls without a choice.
///
/// Of calls, replies, messages and parts of streams that wait at an end, more urgent ones go first, and so do more urgent calls that wait for a thread; one that waits
/// is passed by a bounded number of others. A server that has too many calls refuses the least urgent ones first. In order, more urgent levels come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

/// A number or text that is no urgency: not 0 to 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an urgency is 0, the most urgent, to 7")]
pub struct UrgencyError;

impl Urgency {
    /// Level 0, the most urgent.
    pub const MOST: Self = Self(0);
    /// Level 3.
    pub const DEFAULT: Self = Self(3);
    /// Level 7, the least urgent.
    pub const LEAST: Self = Self(7);

    /// The urgency of a level.
    ///
    /// # Errors
    /// [`UrgencyError`] for a level over 7.
    pub const fn new(level: u8) -> Result<Self, UrgencyError> {
        if level <= Self::LEAST.0 {
            Ok(Self(level))
        } else {
            Err(UrgencyError)
        }
    }

    /// The level, 0 to 7.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }

    /// The three bits of a message, 0 of the default; others are ignored.
    pub(crate) const fn of_wire(bits: u8) -> Self {
        Self((bits & Self::LEAST.0) ^ Self::DEFAULT.0)
    }

    pub(crate) const fn to_wire(self) -> u8 {
        self.0 ^ Self::DEFAULT.0
    }

    /// Whether it leaves a part of credit and room to more urgent ones: it is less urgent than the default.
    pub(crate) fn is_background(self) -> bool {
        self > Self::DEFAULT
    }

    fn all() -> impl DoubleEndedIterator<Item = Self> {
        (Self::MOST.0..=Self::LEAST.0).map(Self)
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Urgency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Urgency {
    type Err = UrgencyError;

    fn from_str(text: &str) -> Result<Self, UrgencyError> {
        match text.as_bytes() {
            [digit @ b'0'..=b'7'] => Ok(Self(digit - b'0')),
            _ => Err(UrgencyError),
        }
    }
}

/// One value for each level.
#[derive(Debug)]
struct Levels<T>([T; LEVELS]);

impl<T> Levels<T> {
    fn get(&self, urgency: Urgency) -> &T {
        &self.0[usize::from(urgency.0) % LEVELS]
    }

    fn get_mut(&mut self, urgency: Urgency) -> &mut T {
        &mut self.0[usize::from(urgency.0) % LEVELS]
    }
}

/// Some of the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Set(u8);

impl Set {
    fn of(urgencies: impl Iterator<Item = Urgency>) -> Self {
        Self(urgencies.fold(0, |set, it| set | (1 << it.0)))
    }

    fn has(self, urgency: Urgency) -> bool {
        self.0 & (1 << urgency.0) != 0
    }
}

/// Turns of the levels: the most urgent one that has an entry, but one that was passed by [`PASSED`] entries of others is overdue, and before those that are not.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Entries of other levels that were taken since the last one of this level, while one of it waited.
    passed: Levels<u8>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            passed: Levels([0; LEVELS]),
        }
    }

    /// The level whose turn it is, of those that `may` go.
    fn next(&self, may: impl Fn(Urgency) -> bool) -> Option<Urgency> {
        let candidates = || Urgency::all().filter(|it| may(*it));
        let overdue = candidates().filter(|it| self.is_overdue(*it));
        let longest = overdue.max_by_key(|it| (self.passed.get(*it), Reverse(*it)));
        longest.or_else(|| candidates().next())
    }

    /// The entry whose turn it is, of entries with their urgency that go or do not: the first of its urgency. It counts as taken.
    pub(crate) fn choose(
        &mut self,
        entries: impl Iterator<Item = (Urgency, bool)> + Clone,
    ) -> Option<usize> {
        let going = entries.clone().filter(|(_, goes)| *goes);
        let waiting = Set::of(going.map(|(urgency, _)| urgency));
        let urgency = self.next(|it| waiting.has(it))?;
        self.taken(urgency, |it| waiting.has(it));
        entries
            .into_iter()
            .position(|(of, goes)| goes && of == urgency)
    }

    fn is_overdue(&self, urgency: Urgency) -> bool {
        *self.passed.get(urgency) >= PASSED
    }

    /// Takes the turn of a level. `waits`: it has an entry now.
    fn taken(&mut self, urgency: Urgency, waits: impl Fn(Urgency) -> bool) {
        for level in Urgency::all() {
            let passed = self.passed.get_mut(level);
            let is_passed = level != urgency && waits(level);
            *passed = if is_passed {
                passed.saturating_add(1)
            } else {
                0
            };
        }
    }
}

/// Entries by urgency; those of one keep their order.
#[derive(Debug)]
struct Classes<T> {
    levels: Levels<VecDeque<T>>,
}

impl<T> Classes<T> {
    fn new() -> Self {
        Self {
            levels: Levels(std::array::from_fn(|_| VecDeque::new())),
        }
    }

    fn has(&self, urgency: Urgency) -> bool {
        !self.levels.get(urgency).is_empty()
    }

    fn len(&self) -> usize {
        self.levels.0.iter().map(VecDeque::len).sum()
    }

    fn of(&mut self, urgency: Urgency) -> &mut VecDeque<T> {
        self.levels.get_mut(urgency)
    }
}

/// Entries that are taken by turns.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    classes: Classes<T>,
    turns: Turns,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            classes: Classes::new(),
            turns: Turns::new(),
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries of an urgency.
    pub(crate) fn count(&self, urgency: Urgency) -> usize {
        self.classes.levels.get(urgency).len()
    }

    pub(crate) fn push(&mut self, urgency: Urgency, entry: T) {
        self.classes.of(urgency).push_back(entry);
    }

    /// The entry whose turn it is, which stays.
    pub(crate) fn first(&self) -> Option<&T> {
        let urgency = self.turns.next(|it| self.classes.has(it))?;
        self.classes.levels.get(urgency).front()
    }

    /// Takes the entry whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let urgency = self.turns.next(|it| self.classes.has(it))?;
        let entry = self.classes.of(urgency).pop_front();
        self.turns.taken(urgency, |it| self.classes.has(it));
        entry
    }

    /// Takes out the newest entry of an urgency.
    pub(crate) fn pop_newest(&mut self, urgency: Urgency) -> Option<T> {
        self.classes.of(urgency).pop_back()
    }

    /// Takes out all entries that are `chosen`.
    pub(crate) fn remove(&mut self, chosen: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for entries in &mut self.classes.levels.0 {
            if entries.iter().any(&chosen) {
                let all = std::mem::take(entries).into_iter();
                let (out, kept): (Vec<_>, Vec<_>) = all.partition(&chosen);
                removed.extend(out);
                *entries = kept.into();
            }
        }
        removed
    }
}

/// Messages and streams of a connection that wait to be sent, with turns in common. Of one urgency, messages and parts of streams alternate, and messages keep
/// their order.
#[derive(Debug)]
pub(crate) struct Outbox<M, S> {
    messages: Classes<M>,
    streams: Classes<S>,
    turns: Turns,
    /// The next one of an urgency that has both is a part of a stream.
    after_message: bool,
}

/// An entry of an [`Outbox`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next<M, S> {
    /// [`Outbox::put_back`] or [`Outbox::sent`] follows. `leaves`: it leaves a part of the credit to others.
    Message {
        urgency: Urgency,
        leaves: bool,
        message: M,
    },
    Stream(S),
}

impl<M, S> Outbox<M, S> {
    pub(crate) fn new() -> Self {
        Self {
            messages: Classes::new(),
            streams: Classes::new(),
            turns: Turns::new(),
            after_message: false,
        }
    }

    /// Whether no message waits.
    pub(crate) fn is_without_messages(&self) -> bool {
        self.messages.len() == 0
    }

    pub(crate) fn push(&mut self, urgency: Urgency, message: M) {
        self.messages.of(urgency).push_back(message);
    }

    pub(crate) fn push_stream(&mut self, urgency: Urgency, stream: S) {
        self.streams.of(urgency).push_back(stream);
    }

    /// Puts a message before the others of its urgency. It does not count as one that went.
    pub(crate) fn put_back(&mut self, urgency: Urgency, message: M) {
        self.messages.of(urgency).push_front(message);
        self.after_message = false;
    }

    /// Takes the departure of a message.
    pub(crate) fn sent(&mut self, urgency: Urgency) {
        self.after_message = true;
        self.take(urgency);
    }

    fn take(&mut self, urgency: Urgency) {
        let waits = |it| self.messages.has(it) || self.streams.has(it);
        self.turns.taken(urgency, waits);
    }

    /// Takes the entry whose turn it is, of the streams alone where messages are `blocked`: the first of them waits for credit.
    pub(crate) fn next(&mut self, blocked: bool) -> Option<Next<M, S>> {
        let has_message = |it| !blocked && self.messages.has(it);
        let has_stream = |it| self.streams.has(it);
        let urgency = self.turns.next(|it| has_message(it) || has_stream(it))?;
        if has_message(urgency) && !(self.after_message && has_stream(urgency)) {
            let message = self.messages.of(urgency).pop_front()?;
            let leaves = urgency.is_background() && !self.turns.is_overdue(urgency);
            return Some(Next::Message {
                urgency,
                leaves,
                message,
            });
        }
        let stream = self.streams.of(urgency).pop_front()?;
        self.after_message = false;
        self.take(urgency);
        Some(Next::Stream(stream))
    }
}

/// Fate of a call that comes to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Take,
    /// The newest call of this urgency that waits is refused in its place.
    Displace(Urgency),
    Refuse,
}

/// Decides about a call where `limit` may wait or be under way, `busy` are under way, and so many of each urgency wait.
pub(crate) fn admit(
    urgency: Urgency,
    limit: usize,
    busy: usize,
    waiting: impl Fn(Urgency) -> usize,
) -> Admission {
    let room = if urgency.is_background() {
        limit - limit / 4
    } else {
        limit
    };
    let all = busy + Urgency::all().map(&waiting).sum::<usize>();
    if all < room {
        return Admission::Take;
    }
    let least = Urgency::all().rev().find(|it| waiting(*it) > 0);
    match least {
        Some(least) if least > urgency => Admission::Displace(least),
        Some(_) | None => Admission::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn level(level: u8) -> Urgency {
        Urgency(level)
    }

    fn urgency() -> impl Strategy<Value = Urgency> {
        (0..8_u8).prop_map(Urgency)
    }

    #[test]
    fn levels_have_texts_and_bits() {
        for number in 0..8 {
            let urgency = Urgency::new(number).unwrap();
            assert_eq!(urgency.level(), number);
            assert_eq!(urgency.to_string().parse(), Ok(urgency));
            assert_eq!(Urgency::of_wire(urgency.to_wire()), urgency);
            // Bits beside the three change nothing.
            assert_eq!(Urgency::of_wire(urgency.to_wire() | 0xf8), urgency);
        }
        assert_eq!(Urgency::default().to_wire(), 0);
        assert_eq!(Urgency::new(8), Err(UrgencyError));
        for wrong in ["", "8", "-1", "03", "+3", "3 "] {
            assert_eq!(wrong.parse::<Urgency>(), Err(UrgencyError), "{wrong}");
        }
        assert!(Urgency::MOST < Urgency::DEFAULT && Urgency::DEFAULT < Urgency::LEAST);
    }

    #[test]
    fn sets_have_their_levels() {
        let set = Set::of([level(7), level(0), level(7)].into_iter());
        let members: Vec<_> = (0..8).filter(|it| set.has(level(*it))).collect();
        assert_eq!(members, [0, 7]);
    }

    #[test]
    fn more_urgent_ones_go_first_and_those_of_one_urgency_in_order() {
        let mut queue = Queue::default();
        for (urgency, entry) in [(7, 'a'), (3, 'b'), (7, 'c'), (0, 'd'), (3, 'e')] {
            queue.push(level(urgency), entry);
        }
        assert_eq!(queue.first(), Some(&'d'));
        let order: String = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, "dbeac");
        assert!(queue.is_empty() && queue.first().is_none());
    }

    #[test]
    fn one_that_waits_is_passed_by_sixteen() {
        let mut queue = Queue::default();
        queue.push(Urgency::LEAST, 7);
        let mut passed = 0;
        loop {
            queue.push(Urgency::MOST, 0);
            queue.push(Urgency::MOST, 0);
            if queue.pop() == Some(7) {
                break;
            }
            passed += 1;
        }
        assert_eq!(passed, PASSED);
        // The count begins again with the next one.
        queue.push(Urgency::LEAST, 7);
        for _ in 0..PASSED {
            assert_eq!(queue.pop(), Some(0));
        }
        assert_eq!(queue.pop(), Some(7));
    }

    proptest! {
        #[test]
        fn nothing_is_passed_by_more_than_its_bound(pushes in proptest::collection::vec((urgency(), 0..3_usize), 1..600)) {
            let mut queue = Queue::default();
            // Entries of other urgencies that have passed the first of each.
            let mut passed = [0_usize; LEVELS];
            let (mut pushed, mut popped) = (vec![Vec::new(); LEVELS], vec![Vec::new(); LEVELS]);
            for (number, (urgency, pops)) in pushes.into_iter().enumerate() {
                queue.push(urgency, (urgency, number));
                pushed[usize::from(urgency.level())].push(number);
                for _ in 0..pops {
                    let first = queue.first().copied();
                    let taken = queue.pop();
                    prop_assert_eq!(first, taken);
                    let Some((urgency, number)) = taken else { break };
                    let at = usize::from(urgency.level());
                    popped[at].push(number);
                    for (other, count) in passed.iter_mut().enumerate() {
                        let waits = pushed[other].len() > popped[other].len();
                        *count = if other != at && waits { *count + 1 } else { 0 };
                        prop_assert!(*count < usize::from(PASSED) + LEVELS, "{other}: {count}");
                    }
                }
            }
            while let Some((urgency, number)) = queue.pop() {
                popped[usize::from(urgency.level())].push(number);
            }
            prop_assert_eq!(pushed, popped);
        }
    }

    #[test]
    fn of_entries_the_first_of_an_urgency_goes() {
        let mut turns = Turns::new();
        let entries = [(7, true), (3, false), (3, true), (3, true), (0, false)];
        let entries = entries.map(|(urgency, goes)| (level(urgency), goes));
        for _ in 0..PASSED {
            assert_eq!(turns.choose(entries.into_iter()), Some(2));
        }
        assert_eq!(turns.choose(entries.into_iter()), Some(0));
        assert_eq!(turns.choose(entries.into_iter()), Some(2));
        assert_eq!(turns.choose(entries[4..].iter().copied()), None);
    }

    #[test]
    fn entries_are_taken_out() {
        let mut queue = Queue::default();
        for entry in 0..10_u8 {
            queue.push(level(entry % 2), entry);
        }
        assert_eq!(queue.count(level(1)), 5);
        assert_eq!(queue.remove(|it| *it == 4 || *it == 7), [4, 7]);
        assert_eq!(queue.pop_newest(level(1)), Some(9));
        assert_eq!(queue.pop_newest(level(5)), None);
        assert_eq!(queue.len(), 7);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 2, 6, 8, 1, 3, 5]);
    }

    /// The next message, and its urgency; whether it leaves credit to others.
    fn message(outbox: &mut Outbox<char, char>) -> Option<(u8, char, bool)> {
        match outbox.next(false)? {
            Next::Message {
                urgency,
                leaves,
                message,
            } => Some((urgency.level(), message, leaves)),
            Next::Stream(_) => None,
        }
    }

    /// Takes and sends everything; messages are letters, streams digits.
    fn drain(outbox: &mut Outbox<char, char>) -> String {
        let next = || match outbox.next(false)? {
            Next::Message {
                urgency, message, ..
            } => {
                outbox.sent(urgency);
                Some(message)
            }
            Next::Stream(stream) => Some(stream),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn messages_and_streams_of_one_urgency_alternate() {
        let mut outbox = Outbox::new();
        for message in ['a', 'b', 'c'] {
            outbox.push(Urgency::DEFAULT, message);
        }
        for stream in ['1', '2'] {
            outbox.push_stream(Urgency::DEFAULT, stream);
        }
        outbox.push(Urgency::LEAST, 'z');
        outbox.push_stream(Urgency::MOST, '0');
        assert_eq!(drain(&mut outbox), "0a1b2cz");
        assert!(outbox.is_without_messages());
    }

    #[test]
    fn a_message_without_credit_holds_up_messages_and_no_streams() {
        let mut outbox = Outbox::new();
        outbox.push(level(5), 'a');
        outbox.push(level(5), 'b');
        outbox.push_stream(level(6), '1');
        outbox.push_stream(level(6), '2');
        assert_eq!(message(&mut outbox), Some((5, 'a', true)));
        outbox.put_back(level(5), 'a');
        assert_eq!(outbox.next(true), Some(Next::Stream('1')));
        assert!(!outbox.is_without_messages());
        // A more urgent one that came meanwhile goes before it.
        outbox.push(level(0), 'c');
        assert_eq!(drain(&mut outbox), "cab2");
    }

    #[test]
    fn a_message_that_is_put_back_stays_overdue() {
        let mut outbox = Outbox::new();
        outbox.push(Urgency::LEAST, 'z');
        for _ in 0..PASSED {
            outbox.push(Urgency::MOST, 'a');
            assert_eq!(message(&mut outbox), Some((0, 'a', false)));
            outbox.sent(Urgency::MOST);
        }
        for _ in 0..3 {
            outbox.push(Urgency::MOST, 'a');
            // It takes of the credit that it had left to others.
            assert_eq!(message(&mut outbox), Some((7, 'z', false)));
            outbox.put_back(Urgency::LEAST, 'z');
        }
        assert_eq!(drain(&mut outbox), "zaaa");
    }

    #[test]
    fn the_least_urgent_calls_are_refused_first() {
        let of = |urgency, busy, waiting: &[(u8, usize)]| {
            admit(level(urgency), 8, busy, |it| {
                let found = waiting.iter().find(|(of, _)| level(*of) == it);
                found.map_or(0, |(_, count)| *count)
            })
        };
        assert_eq!(of(3, 7, &[]), Admission::Take);
        assert_eq!(of(3, 8, &[]), Admission::Refuse);
        assert_eq!(of(0, 8, &[]), Admission::Refuse);
        // A quarter is not for those that are less urgent than the default.
        assert_eq!(of(4, 5, &[]), Admission::Take);
        assert_eq!(of(4, 6, &[]), Admission::Refuse);
        assert_eq!(of(7, 2, &[(3, 4)]), Admission::Refuse);
        // The least urgent one that waits makes room.
        assert_eq!(
            of(3, 4, &[(3, 1), (5, 1), (7, 2)]),
            Admission::Displace(level(7))
        );
        assert_eq!(of(5, 4, &[(3, 2), (7, 1)]), Admission::Displace(level(7)));
        assert_eq!(of(5, 4, &[(3, 2), (5, 2)]), Admission::Refuse);
        assert_eq!(of(0, 7, &[(1, 1)]), Admission::Displace(level(1)));
        assert_eq!(of(1, 7, &[(1, 1)]), Admission::Refuse);
        // Where one may wait, it may be of any urgency.
        assert_eq!(admit(level(7), 1, 0, |_| 0), Admission::Take);
    }
}
