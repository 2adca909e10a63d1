//! Streams of octets of a call, each one direction (`rfc-notes/ripc.md`, "Streams").

/// Octets that are taken from the program before they are sent, at most.
pub(crate) const PENDING: usize = 64 << 10;

/// A peer breaks the rules of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPart {
    #[error("{length} octets of a stream where {left} are granted")]
    Overdrawn { length: usize, left: u64 },
    #[error("a part behind the end of its stream")]
    BehindEnd,
}

/// Sender of a stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// At most [`PENDING`], of which those before `at` are sent.
    pending: Vec<u8>,
    at: usize,
    /// Octets sent, at most `granted`.
    sent: u64,
    granted: u64,
    end: End,
    /// The program has given octets or their end.
    used: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// The program has no more: the end follows what is pending.
    Due,
    /// It is sent, or the receiver takes nothing more.
    Over,
}

impl Outgoing {
    pub(crate) fn new(granted: u64) -> Self {
        Self {
            pending: Vec::new(),
            at: 0,
            sent: 0,
            granted,
            end: End::Open,
            used: false,
        }
    }

    /// Takes octets of the program's; returns how many. `None` where nothing is taken any more.
    pub(crate) fn push(&mut self, octets: &[u8]) -> Option<usize> {
        if self.end != End::Open {
            return None;
        }
        let room = PENDING - self.pending.len() + self.at;
        let taken = octets.get(..room).unwrap_or(octets);
        if !taken.is_empty() {
            self.used = true;
            self.pending.drain(..self.at);
            self.at = 0;
            self.pending.extend_from_slice(taken);
        }
        Some(taken.len())
    }

    /// Takes the end of the program's octets.
    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Due;
            self.used = true;
        }
    }

    /// Takes the credit of the receiver. Less than before changes nothing.
    pub(crate) fn grant(&mut self, granted: u64) {
        self.granted = self.granted.max(granted);
    }

    /// Takes the receiver's word that it takes nothing more.
    pub(crate) fn stop(&mut self) {
        self.end = End::Over;
        self.pending = Vec::new();
        self.at = 0;
    }

    /// Whether the program has given octets, or their end.
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Whether nothing is taken any more.
    pub(crate) fn is_over(&self) -> bool {
        self.end != End::Open
    }

    /// Whether all that was taken is sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.len() == self.at && self.end != End::Due
    }

    /// Whether there is room for octets of the program's.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() - self.at < PENDING
    }

    /// The next part, of at most `most` octets, and whether it is the end.
    pub(crate) fn part(&mut self, most: usize) -> Option<(Vec<u8>, bool)> {
        let left = usize::try_from(self.granted - self.sent).unwrap_or(usize::MAX);
        let waiting = self.pending.get(self.at..).unwrap_or_default();
        let length = waiting.len().min(most).min(left);
        let end = self.end == End::Due && length == waiting.len();
        if length == 0 && !end {
            return None;
        }
        let part = waiting.get(..length).unwrap_or_default().to_vec();
        self.at += length;
        self.sent += length as u64;
        if self.at == self.pending.len() {
            self.pending.clear();
            self.at = 0;
        }
        if end {
            self.end = End::Over;
        }
        Some((part, end))
    }
}

/// Receiver of a stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// At most `window` octets.
    octets: Vec<u8>,
    /// At most `announced`.
    came: u64,
    consumed: u64,
    /// First grant, in octets.
    window: u64,
    /// Credit that the sender may have.
    announced: u64,
    ended: bool,
    /// The call is over: parts that still come are dropped.
    over: bool,
    /// The program reads no more.
    stopped: bool,
    /// The sender gets to know it.
    stop_announced: bool,
}

impl Incoming {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            octets: Vec::new(),
            came: 0,
            consumed: 0,
            window,
            announced: window,
            ended: false,
            over: false,
            stopped: false,
            stop_announced: false,
        }
    }

    /// Takes a part.
    pub(crate) fn part(&mut self, octets: &[u8], end: bool) -> Result<(), BadPart> {
        if self.over {
            return Ok(());
        }
        if self.ended {
            return Err(BadPart::BehindEnd);
        }
        let (length, left) = (octets.len(), self.announced - self.came);
        if length as u64 > left {
            return Err(BadPart::Overdrawn { length, left });
        }
        self.came += length as u64;
        if !self.stopped {
            self.octets.extend_from_slice(octets);
        }
        self.ended = end;
        Ok(())
    }

    /// Takes the end of the call: nothing more comes.
    pub(crate) fn end(&mut self) {
        self.over = true;
    }

    /// All octets that have come, for the program.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        if self.octets.is_empty() {
            return None;
        }
        self.consumed += self.octets.len() as u64;
        Some(std::mem::take(&mut self.octets))
    }

    /// Whether nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended || self.over
    }

    /// Takes the program's word that it reads no more.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.octets = Vec::new();
    }

    /// Whether a grant, or the word that nothing more is taken, is due.
    pub(crate) fn is_due(&self) -> bool {
        let unannounced = self.consumed + self.window - self.announced;
        let is_due = if self.stopped {
            !self.stop_announced
        } else {
            unannounced >= self.window.div_ceil(2)
        };
        is_due && !self.has_ended()
    }

    /// The credit that is sent now, and whether nothing more is taken.
    pub(crate) fn announce(&mut self) -> (u64, bool) {
        if self.stopped {
            self.stop_announced = true;
        } else {
            self.announced = self.consumed + self.window;
        }
        (self.announced, self.stopped)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const WINDOW: u64 = 1000;

    /// A turn of one of the ends, or of the network.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push(usize),
        Send(usize),
        Deliver,
        Read,
        Grant,
        DeliverGrant,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..100_000_usize).prop_map(Step::Push),
            (1..700_usize).prop_map(Step::Send),
            Just(Step::Deliver),
            Just(Step::Read),
            Just(Step::Grant),
            Just(Step::DeliverGrant),
        ]
    }

    /// Two ends with a network that keeps the order.
    struct Ends {
        out: Outgoing,
        inc: Incoming,
        parts: VecDeque<(Vec<u8>, bool)>,
        grants: VecDeque<u64>,
        pushed: Vec<u8>,
        read: Vec<u8>,
    }

    impl Ends {
        fn new() -> Self {
            Self {
                out: Outgoing::new(WINDOW),
                inc: Incoming::new(WINDOW),
                parts: VecDeque::new(),
                grants: VecDeque::new(),
                pushed: Vec::new(),
                read: Vec::new(),
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Push(count) => {
                    let from = self.pushed.len();
                    let octets = (from..from + count).map(|at| (at % 251).to_le_bytes()[0]);
                    let octets: Vec<_> = octets.collect();
                    let taken = self.out.push(&octets).unwrap();
                    self.pushed.extend(&octets[..taken]);
                }
                Step::Send(most) => self.parts.extend(self.out.part(most)),
                Step::Deliver => {
                    if let Some((octets, end)) = self.parts.pop_front() {
                        self.inc.part(&octets, end).unwrap();
                    }
                }
                Step::Read => self.read.extend(self.inc.read().unwrap_or_default()),
                Step::Grant if self.inc.is_due() => self.grants.push_back(self.inc.announce().0),
                Step::Grant => {}
                Step::DeliverGrant => {
                    if let Some(granted) = self.grants.pop_front() {
                        self.out.grant(granted);
                    }
                }
            }
            assert!(self.out.pending.len() <= PENDING);
            let flying: usize = self.parts.iter().map(|(octets, _)| octets.len()).sum();
            assert!((flying + self.inc.octets.len()) as u64 <= WINDOW);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_memory_is_bounded(steps in proptest::collection::vec(step(), 0..400)) {
            let mut ends = Ends::new();
            for step in steps {
                ends.step(step);
            }
            ends.out.finish();
            // The end comes to a reader that goes on, whatever happened before.
            let rounds = PENDING as u64 * 2 / WINDOW * 8 + 1000;
            for _ in 0..rounds {
                for step in [Step::Send(300), Step::Deliver, Step::Read, Step::Grant, Step::DeliverGrant] {
                    ends.step(step);
                }
            }
            prop_assert!(ends.inc.has_ended());
            prop_assert!(ends.out.is_flushed());
            prop_assert_eq!(ends.read, ends.pushed);
        }
    }

    #[test]
    fn a_reader_that_reads_nothing_stops_its_sender() {
        let mut ends = Ends::new();
        ends.step(Step::Push(100_000));
        for _ in 0..100 {
            ends.step(Step::Send(300));
            ends.step(Step::Deliver);
            ends.step(Step::Grant);
            ends.step(Step::DeliverGrant);
        }
        assert_eq!(ends.inc.octets.len() as u64, WINDOW);
        assert_eq!(ends.pushed.len(), PENDING);
        assert!(ends.out.has_room());
        assert_eq!(ends.out.push(&[0; 2000]), Some(1000));
        assert_eq!(ends.out.push(&[0; 2000]), Some(0));
        assert!(!ends.out.has_room());
    }

    #[test]
    fn more_than_was_granted_and_parts_behind_the_end_are_wrong() {
        let mut inc = Incoming::new(WINDOW);
        assert_eq!(inc.part(&[1; 999], false), Ok(()));
        let over = BadPart::Overdrawn { length: 2, left: 1 };
        assert_eq!(inc.part(&[1; 2], false), Err(over));
        // Credit counts once it is announced, not once the program has read.
        assert!(inc.read().is_some());
        assert_eq!(inc.part(&[1; 2], false), Err(over));
        assert!(inc.is_due());
        assert_eq!(inc.announce(), (1999, false));
        assert!(!inc.is_due());
        assert_eq!(inc.part(&[1; 2], true), Ok(()));
        assert_eq!(inc.part(&[], true), Err(BadPart::BehindEnd));
        assert_eq!(inc.read(), Some(vec![1; 2]));
    }

    #[test]
    fn parts_of_a_call_that_is_over_are_dropped() {
        let mut inc = Incoming::new(WINDOW);
        assert_eq!(inc.part(&[1; 10], false), Ok(()));
        inc.end();
        assert!(inc.has_ended());
        assert_eq!(inc.part(&[2; 2000], false), Ok(()));
        assert_eq!(inc.part(&[], true), Ok(()));
        assert_eq!((inc.read(), inc.read()), (Some(vec![1; 10]), None));
        assert!(!inc.is_due());
    }

    #[test]
    fn a_receiver_that_stops_keeps_nothing_and_grants_nothing() {
        let (mut out, mut inc) = (Outgoing::new(WINDOW), Incoming::new(WINDOW));
        assert_eq!(out.push(&[1; 500]), Some(500));
        inc.stop();
        let (part, end) = out.part(400).unwrap();
        assert_eq!(inc.part(&part, end), Ok(()));
        assert_eq!(inc.read(), None);
        assert!(inc.is_due());
        assert_eq!(inc.announce(), (WINDOW, true));
        assert!(!inc.is_due());
        assert!(!out.is_over());
        out.stop();
        assert!(out.is_over() && out.is_flushed());
        assert_eq!((out.push(&[1]), out.part(400)), (None, None));
    }

    #[test]
    fn credit_does_not_shrink_and_an_end_needs_none() {
        let mut out = Outgoing::new(10);
        out.grant(5);
        assert_eq!(out.push(&[1; 10]), Some(10));
        assert_eq!(out.part(100), Some((vec![1; 10], false)));
        out.finish();
        assert!(!out.is_flushed());
        assert_eq!(out.part(100), Some((Vec::new(), true)));
        assert_eq!((out.part(100), out.push(&[1])), (None, None));
        assert!(out.is_flushed());
    }
}
