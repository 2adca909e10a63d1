//! The connections of a session: control frames in order over one of them, blocks over whichever has room, and all that a lost one had not delivered over the
//! others (`rfc-notes/transfer.md` §5.3).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Link, Outgoing, Violation};
use crate::wire::{Block, Frame, Hello, Left, Window};

/// Streams of a session at most, with the first one.
pub const MAX_STREAMS: usize = 16;
/// Streams that ended and whose last frames the peer has not counted yet, at most.
const MAX_LEFT: usize = 64;

/// A frame that was sent and that the peer is not known to have taken.
#[derive(Debug)]
enum Flying {
    /// It goes again, in order, once it is known that the peer has not got it.
    Control(Frame),
    /// A count, which may come twice.
    Own(Frame),
    Block(Block),
    /// It has no meaning once its stream is gone.
    Nothing,
}

#[derive(Debug)]
struct Stream {
    link: Link,
    /// Frames since the last that the peer took.
    flying: VecDeque<Flying>,
    /// The peer's HELLO is there.
    greeted: bool,
    /// Blocks may leave: the window is there.
    open: bool,
}

/// A stream that is gone at this end.
#[derive(Debug)]
struct Gone {
    /// Frames that the peer took, as far as is known.
    taken: u32,
    flying: VecDeque<Flying>,
    /// It carried control frames.
    carried: bool,
}

/// State of all streams. Stream 0 is the first one.
#[derive(Debug)]
pub struct Streams {
    receives: u16,
    streams: BTreeMap<u16, Stream>,
    gone: BTreeMap<u16, Gone>,
    /// Highest number so far: numbers are not used twice.
    highest: u16,
    /// The stream that control frames leave on; none while it is not known which of them the peer has.
    carrying: Option<u16>,
    control: VecDeque<Frame>,
    /// Blocks that the peer did not take from a stream that is gone.
    lost: VecDeque<Block>,
    /// Streams that blocks leave on at most, the lowest ones.
    used: usize,
}

impl Streams {
    /// The first stream, with this many receives of ours; all have as many.
    #[must_use]
    pub fn new(now: Duration, receives: u16) -> Self {
        let mut streams = Self {
            receives,
            streams: BTreeMap::new(),
            gone: BTreeMap::new(),
            highest: 0,
            carrying: Some(0),
            control: VecDeque::new(),
            lost: VecDeque::new(),
            used: MAX_STREAMS,
        };
        streams.insert(0, now);
        streams
    }

    fn insert(&mut self, number: u16, now: Duration) {
        let stream = Stream {
            link: Link::new(now, self.receives),
            flying: VecDeque::new(),
            greeted: false,
            open: number == 0,
        };
        self.streams.insert(number, stream);
    }

    /// The link of a stream.
    #[must_use]
    pub fn link(&self, number: u16) -> Option<&Link> {
        self.streams.get(&number).map(|it| &it.link)
    }

    /// Numbers of the streams.
    #[must_use]
    pub fn numbers(&self) -> Vec<u16> {
        self.streams.keys().copied().collect()
    }

    /// How many streams blocks may leave on.
    #[must_use]
    pub fn open(&self) -> usize {
        self.streams.values().filter(|it| it.open).count()
    }

    /// Blocks leave on so many streams at most; the others are kept and carry none.
    pub fn set_used(&mut self, count: usize) {
        self.used = count.max(1);
    }

    /// Whether blocks may leave on a stream, when it is open.
    fn is_used(&self, number: u16) -> bool {
        let lower = self.streams.range(..number);
        let mut open = lower.filter(|(_, it)| it.open);
        open.nth(self.used - 1).is_none()
    }

    /// The highest stream that the peer has, but for one that carries control frames.
    #[must_use]
    pub fn dispensable(&self) -> Option<u16> {
        let all = self.streams.iter().rev();
        let mut others = all.filter(|(number, it)| it.greeted && self.carrying != Some(**number));
        others.next().map(|(number, _)| *number)
    }

    /// A number for another stream; `None` if they are too many.
    #[must_use]
    pub fn next_number(&self) -> Option<u16> {
        let room = self.streams.len() < MAX_STREAMS && self.gone.len() < MAX_LEFT;
        self.highest.checked_add(1).filter(|_| room)
    }

    /// Adds a stream, whose HELLO leaves first. `greeted`: the peer's came already. Returns whether the number may be used.
    pub fn join(&mut self, number: u16, now: Duration, hello: Hello, greeted: bool) -> bool {
        if self.next_number().is_none() || number <= self.highest {
            return false;
        }
        self.highest = number;
        self.insert(number, now);
        self.push_own(number, Frame::Hello(hello));
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.greeted = greeted;
        }
        true
    }

    /// Takes note of the peer's HELLO on a stream.
    ///
    /// # Errors
    /// [`Violation::Receives`]; [`Violation::Unexpected`] for a second one.
    pub fn greet(&mut self, number: u16, receives: u16) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        if std::mem::replace(&mut stream.greeted, true) {
            return Err(Violation::Unexpected(1));
        }
        stream.link.set_window(receives)
    }

    /// Sets the receives of the peer, whose HELLO came before the stream was here.
    ///
    /// # Errors
    /// [`Violation::Receives`].
    pub fn set_window(&mut self, number: u16, receives: u16) -> Result<(), Violation> {
        match self.streams.get_mut(&number) {
            Some(stream) => stream.link.set_window(receives),
            None => Ok(()),
        }
    }

    /// Blocks may leave on a stream.
    pub fn set_open(&mut self, number: u16) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.open = true;
        }
    }

    /// Blocks that left and whose frames the peer has not taken, as far as it said.
    #[must_use]
    pub fn flying_blocks(&self) -> usize {
        let flying = self.streams.values().flat_map(|it| &it.flying);
        flying.filter(|it| matches!(it, Flying::Block(_))).count()
    }

    /// Queues a control frame.
    pub fn push(&mut self, frame: Frame) {
        self.control.push_back(frame);
    }

    /// Queues a frame that belongs to one stream.
    pub fn push_own(&mut self, number: u16, frame: Frame) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.link.push(Outgoing::Frame(frame));
        }
    }

    /// Queues the window of a stream that joined.
    pub fn push_window(&mut self, number: u16, window: Window) {
        self.push_own(number, Frame::Window(window));
    }

    /// Whether no control frame waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.control.is_empty() && self.streams.values().all(|it| it.link.is_idle())
    }

    /// Takes note of a frame that came on a stream.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    pub fn handle_input(
        &mut self,
        number: u16,
        now: Duration,
        taken: u32,
    ) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        let before = stream.link.peer_taken();
        stream.link.handle_input(now, taken)?;
        for _ in 0..taken.wrapping_sub(before) {
            stream.flying.pop_front();
        }
        Ok(())
    }

    /// Octets came that are no whole frame yet.
    pub fn heard(&mut self, number: u16, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.link.heard(now);
        }
    }

    /// The next frame of a stream that may leave, with the `taken` of its header. `block` yields a block.
    pub fn poll_transmit(
        &mut self,
        number: u16,
        now: Duration,
        block: impl FnOnce() -> Option<Outgoing>,
    ) -> Option<(u32, Outgoing)> {
        let carries = self.carrying == Some(number);
        let stream = self.streams.get(&number)?;
        let has_room = stream.link.is_idle() && stream.link.has_credit();
        let is_used = has_room && stream.open && self.is_used(number);
        let stream = self.streams.get_mut(&number)?;
        let mut flying = None;
        if has_room && (stream.greeted || number == 0) {
            if carries && let Some(frame) = self.control.pop_front() {
                flying = Some(Flying::Control(frame.clone()));
                stream.link.push(Outgoing::Frame(frame));
            } else if is_used && let Some(outgoing) = block() {
                if let Outgoing::Block { block, .. } = &outgoing {
                    flying = Some(Flying::Block(*block));
                }
                stream.link.push(outgoing);
            }
        }
        let (taken, outgoing) = stream.link.poll_transmit(now)?;
        let flying = flying.unwrap_or_else(|| match &outgoing {
            Outgoing::Frame(frame @ Frame::Left(_)) => Flying::Own(frame.clone()),
            _ => Flying::Nothing,
        });
        stream.flying.push_back(flying);
        Some((taken, outgoing))
    }

    /// A stream is gone at this end, and nothing more is taken from it; returns whether the session goes on.
    pub fn leave(&mut self, number: u16) -> bool {
        if !self.streams.contains_key(&number) {
            return !self.streams.is_empty();
        }
        if self.streams.values().filter(|it| it.greeted).count() < 2 && self.is_greeted(number) {
            return false;
        }
        let Some(mut stream) = self.streams.remove(&number) else {
            return false;
        };
        // Counts that the peer may not have go again at once: its own may wait for them.
        let mut counts = Vec::new();
        for flying in &mut stream.flying {
            if let Flying::Own(_) = flying
                && let Flying::Own(frame) = std::mem::replace(flying, Flying::Nothing)
            {
                counts.push(frame);
            }
        }
        while let Some(outgoing) = stream.link.pop() {
            if let Outgoing::Frame(frame @ Frame::Left(_)) = outgoing {
                counts.push(frame);
            }
        }
        let carried = self.carrying == Some(number);
        if carried {
            self.carrying = None;
        }
        let left = Left {
            stream: number,
            taken: stream.link.taken(),
        };
        let gone = Gone {
            taken: stream.link.peer_taken(),
            flying: stream.flying,
            carried,
        };
        self.gone.insert(number, gone);
        counts.push(Frame::Left(left));
        for count in counts {
            self.tell(count);
        }
        true
    }

    /// Whether the peer's HELLO came on a stream.
    #[must_use]
    pub fn is_greeted(&self, number: u16) -> bool {
        self.streams.get(&number).is_some_and(|it| it.greeted)
    }

    /// Sends a frame on the first stream that the peer has for sure.
    fn tell(&mut self, frame: Frame) {
        let first = self.streams.iter().find(|(_, it)| it.greeted);
        if let Some(number) = first.map(|(number, _)| *number) {
            self.push_own(number, frame);
        }
    }

    /// Takes the peer's count of what it took from a stream. The caller has closed the connection before.
    ///
    /// # Errors
    /// [`Violation::Taken`] for frames that were not sent, or the last stream.
    pub fn handle_left(&mut self, left: Left) -> Result<(), Violation> {
        if left.stream > self.highest {
            // It did not get here, and does not any more.
            self.highest = left.stream;
            self.tell(Frame::Left(Left { taken: 0, ..left }));
            return Ok(());
        }
        if self.streams.contains_key(&left.stream) && !self.leave(left.stream) {
            return Err(Violation::Taken(left.taken));
        }
        let Some(mut gone) = self.gone.remove(&left.stream) else {
            // It came before.
            return Ok(());
        };
        let taken = left.taken.wrapping_sub(gone.taken);
        if taken as usize > gone.flying.len() {
            return Err(Violation::Taken(left.taken));
        }
        gone.flying.drain(..taken as usize);
        let mut control = VecDeque::new();
        for flying in gone.flying {
            match flying {
                Flying::Control(frame) => control.push_back(frame),
                Flying::Block(block) => self.lost.push_back(block),
                Flying::Own(_) | Flying::Nothing => {}
            }
        }
        control.append(&mut self.control);
        self.control = control;
        if gone.carried {
            let first = self.streams.iter().find(|(_, it)| it.greeted);
            self.carrying = first.map(|(number, _)| *number);
            return Ok(());
        }
        Ok(())
    }

    /// A block that has to be sent again.
    pub fn poll_lost(&mut self) -> Option<Block> {
        self.lost.pop_front()
    }

    /// Streams whose peer has been silent for too long.
    #[must_use]
    pub fn silent(&self, now: Duration) -> Option<u16> {
        let mut all = self.streams.iter();
        all.find(|(_, it)| it.link.is_silent(now))
            .map(|(number, _)| *number)
    }

    /// Time at which something is due though nothing comes.
    #[must_use]
    pub fn poll_timeout(&self, now: Duration) -> Duration {
        let all = self.streams.values();
        let times = all.map(|it| it.link.poll_timeout(now));
        times.min().unwrap_or(now)
    }
}
