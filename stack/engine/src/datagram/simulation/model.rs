//! The receiving half once more, as plainly as in the specification: what must be placed, completed and counted.
//!
//! It sees arrivals only as the link's log has them (which datagram, whether corrupted), never their octets, and has what each datagram
//! carried from the sender's side. Sections are those of `rfc-notes/datagram-mapping.md`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_sim::Address;

use super::ledger::{Flaw, Kind, Ledger, Message, MessageId, Piece, Role, SentAs};
use super::memory::Memory;
use super::reads::Reader;

const CLOSED_WINDOW: u32 = 1024;
const REORDER_WINDOW: u32 = 64;
const MOST_RANGES: usize = 64;
const ASSEMBLIES_PER_SOURCE: usize = 2;
const REASSEMBLY_TIMEOUT: Duration = Duration::from_millis(200);
const CRC: u64 = 4;

/// Configuration of the QP.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) record_slots: usize,
    pub(super) record_timeout: Duration,
    pub(super) receives: usize,
    /// Octets before each received message.
    pub(super) headroom: u32,
    /// Reports of segments that one poll takes; `None` where none are asked for.
    pub(super) reports: Option<usize>,
}

/// A region that peers may name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    pub(super) stag: u32,
    pub(super) iova: u64,
    pub(super) octets: u64,
    pub(super) writable: bool,
}

/// A receive that the application posted: where in the receive memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) start: usize,
    pub(super) length: u32,
}

/// A completion that must come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expected {
    Receive {
        receive: Receive,
        message: MessageId,
    },
    Record {
        message: MessageId,
        ranges: Vec<(u32, u32)>,
    },
    Segment(Piece),
}

/// The memory of a QP.
pub(super) struct Placement<'a> {
    pub(super) target: &'a mut Memory,
    pub(super) receives: &'a mut Memory,
    pub(super) sinks: &'a mut Memory,
}

type SourceKey = (Address, u32);

#[derive(Debug)]
struct Source {
    highest: u32,
    closed: HashSet<u32>,
}

/// A message of which something was placed and not all.
#[derive(Debug)]
struct Open {
    source: SourceKey,
    number: u32,
    message: MessageId,
    ranges: Vec<(u32, u32)>,
    /// Of a record the last placement, of a Send the first.
    since: Duration,
    receive: Option<Receive>,
}

/// One QP's receiving half.
#[derive(Debug)]
pub(super) struct Model {
    limits: Limits,
    pub(super) regions: Vec<Region>,
    sources: HashMap<SourceKey, Source>,
    records: Vec<Open>,
    /// Records delivered and not yet released.
    held: usize,
    sends: Vec<Open>,
    posted: VecDeque<Receive>,
    pub(super) expected: Vec<Expected>,
    /// Whether the application was told that no record slot is free, and times that it must be told now.
    told_of_full_ring: bool,
    pub(super) ring_full: usize,
    pub(super) dropped: [u64; DropReason::ALL.len()],
    pub(super) segments: u64,
    pub(super) octets: u64,
    pub(super) reader: Reader,
    /// Requests for responses and cookies that arrived, and cookies: what is made of them is not foretold.
    pub(super) unforetold: u64,
}

/// Outcome of a segment.
type Handled = Result<(), DropReason>;

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            regions: Vec::new(),
            sources: HashMap::new(),
            records: Vec::new(),
            held: 0,
            sends: Vec::new(),
            posted: VecDeque::new(),
            expected: Vec::new(),
            told_of_full_ring: false,
            ring_full: 0,
            dropped: [0; DropReason::ALL.len()],
            segments: 0,
            octets: 0,
            reader: Reader::default(),
            unforetold: 0,
        }
    }

    /// A datagram of `length` octets arrived.
    pub(super) fn arrive(
        &mut self,
        now: Duration,
        (piece, corrupted, length): (Piece, bool, usize),
        ledger: &Ledger,
        memory: &mut Placement<'_>,
    ) {
        let handled = if corrupted {
            Err(DropReason::BadCrc)
        } else {
            match piece.role {
                Role::Plain => self.plain_send(piece, &ledger.messages[piece.message], memory),
                Role::Numbered => match ledger.messages[piece.message].kind {
                    Kind::Send => self.segmented_send(now, piece, ledger, memory),
                    Kind::Write => self.write_record(now, piece, ledger, memory),
                    Kind::Read => unreachable!("no Read has an extension"),
                },
                Role::Response => self.reader.respond(piece, ledger, memory.sinks),
                Role::Terminate => self.reader.terminate(piece.message),
                Role::Stray => Err(DropReason::BadStag),
                Role::Asking { .. } | Role::Answer => {
                    self.unforetold += 1;
                    return;
                }
            }
        };
        match handled {
            Ok(()) => {
                self.segments += 1;
                self.octets += length as u64 - CRC;
            }
            Err(reason) => self.count(reason),
        }
    }

    fn count(&mut self, reason: DropReason) {
        self.dropped[reason.index()] += 1;
    }

    /// §7, first paragraph.
    fn plain_send(
        &mut self,
        piece: Piece,
        message: &Message,
        memory: &mut Placement<'_>,
    ) -> Handled {
        if message.flaw == Flaw::Key {
            return Err(DropReason::BadQkey);
        }
        let receive = self.take(message.length)?;
        self.place_received(receive, piece, message, memory);
        self.expected.push(Expected::Receive {
            receive,
            message: piece.message,
        });
        Ok(())
    }

    fn take(&mut self, length: u32) -> Result<Receive, DropReason> {
        let head = self.posted.front().ok_or(DropReason::NoReceive)?;
        if head.length < length + self.limits.headroom {
            return Err(DropReason::ReceiveTooShort);
        }
        self.posted.pop_front().ok_or(DropReason::NoReceive)
    }

    fn place_received(
        &self,
        receive: Receive,
        piece: Piece,
        message: &Message,
        memory: &mut Placement<'_>,
    ) {
        let offset = (self.limits.headroom + piece.offset) as usize;
        memory
            .receives
            .expect(receive.start + offset, octets(message, piece));
    }

    /// §7, steps 1 to 3.
    fn segmented_send(
        &mut self,
        now: Duration,
        piece: Piece,
        ledger: &Ledger,
        memory: &mut Placement<'_>,
    ) -> Handled {
        let message = &ledger.messages[piece.message];
        if message.flaw == Flaw::Key {
            return Err(DropReason::BadQkey);
        }
        let (source, number) = self.source_of(message)?;
        self.advance(source, number);
        let is_it = |open: &Open| open.source == source && open.number == number;
        let mut position = self.sends.iter().position(is_it);
        if position.is_none() {
            let whole = piece.length == message.length;
            if !whole {
                self.make_room(source, number)?;
            }
            let receive = self.take(message.length)?;
            self.sends.push(Open {
                source,
                number,
                message: piece.message,
                ranges: Vec::new(),
                since: now,
                receive: Some(receive),
            });
            position = Some(self.sends.len() - 1);
        }
        let position = position.expect("it is open now");
        let open = &mut self.sends[position];
        add(&mut open.ranges, piece)?;
        let receive = open.receive.expect("an open Send has a receive");
        let complete = octets_in(&open.ranges) == message.length;
        self.place_received(receive, piece, message, memory);
        if complete {
            self.sends.swap_remove(position);
            self.close(source, number);
            self.expected.push(Expected::Receive {
                receive,
                message: piece.message,
            });
        }
        Ok(())
    }

    /// §7 step 2: room for another incomplete Send, if need be that of the oldest of the same source.
    fn make_room(&mut self, key: SourceKey, number: u32) -> Handled {
        let is_full = |sends: &[Open], receives: usize| {
            let of_source = sends.iter().filter(|open| open.source == key);
            of_source.count() >= ASSEMBLIES_PER_SOURCE || sends.len() >= (receives / 2).clamp(1, 64)
        };
        if !is_full(&self.sends, self.limits.receives) {
            return Ok(());
        }
        let highest = self.sources[&key].highest;
        let mut of_source: Vec<_> = self
            .sends
            .iter()
            .filter(|open| open.source == key)
            .collect();
        of_source.sort_by_key(|open| highest.wrapping_sub(open.number));
        let oldest = of_source.last().map(|open| open.number);
        let Some(oldest) = oldest.filter(|oldest| behind(*oldest, number).is_none()) else {
            return Err(DropReason::ReassemblyFull);
        };
        let is_oldest = |open: &Open| open.source == key && open.number == oldest;
        self.give_up(self.sends.iter().position(is_oldest).expect("it is there"));
        self.count(DropReason::ReassemblySuperseded);
        if is_full(&self.sends, self.limits.receives) {
            return Err(DropReason::ReassemblyFull);
        }
        Ok(())
    }

    /// Closes an incomplete Send; its receive goes back to the head of the queue.
    fn give_up(&mut self, position: usize) {
        let open = self.sends.swap_remove(position);
        self.close(open.source, open.number);
        self.posted
            .push_front(open.receive.expect("an open Send has a receive"));
    }

    /// §4: the source of a message, unless the message is late.
    fn source_of(&mut self, message: &Message) -> Result<(SourceKey, u32), DropReason> {
        let Some(SentAs::Numbered { epoch, number }) = message.sent_as else {
            unreachable!("only plain Sends have no number");
        };
        let key = (message.from, epoch);
        let source = self.sources.entry(key).or_insert_with(|| Source {
            highest: number,
            closed: HashSet::new(),
        });
        let late = match behind(source.highest, number) {
            None => false,
            Some(behind) => {
                behind >= CLOSED_WINDOW
                    || source.closed.contains(&number)
                    || message.kind == Kind::Write && behind > REORDER_WINDOW
            }
        };
        if late {
            return Err(DropReason::Late);
        }
        Ok((key, number))
    }

    /// §4 rule 1.
    fn advance(&mut self, key: SourceKey, number: u32) {
        let source = self.sources.get_mut(&key).expect("the source is known");
        if behind(source.highest, number).is_some() {
            return;
        }
        source.highest = number;
        self.close_records(|open| {
            open.source == key && behind(number, open.number).is_some_and(|n| n > REORDER_WINDOW)
        });
    }

    fn close(&mut self, key: SourceKey, number: u32) {
        let source = self.sources.get_mut(&key).expect("the source is known");
        source.closed.insert(number);
    }

    fn close_records(&mut self, which: impl Fn(&Open) -> bool) {
        while let Some(position) = self.records.iter().position(&which) {
            let open = self.records.swap_remove(position);
            self.close(open.source, open.number);
            self.held += 1;
            self.expected.push(Expected::Record {
                message: open.message,
                ranges: open.ranges,
            });
        }
    }

    /// §5, steps 2 to 10.
    fn write_record(
        &mut self,
        now: Duration,
        piece: Piece,
        ledger: &Ledger,
        memory: &mut Placement<'_>,
    ) -> Handled {
        let message = &ledger.messages[piece.message];
        if self.limits.record_slots == 0 {
            return Err(DropReason::WriteRecordOff);
        }
        let start = self.check_region(message)?;
        let (source, number) = self.source_of(message)?;
        self.advance(source, number);
        let is_it = |open: &Open| open.source == source && open.number == number;
        let whole = piece.length == message.length;
        let mut position = self.records.iter().position(is_it);
        let slots = self.limits.record_slots;
        let may_begin = whole || self.records.len() < slots - slots / 4;
        if position.is_none() && may_begin && self.records.len() + self.held < slots {
            self.records.push(Open {
                source,
                number,
                message: piece.message,
                ranges: Vec::new(),
                since: now,
                receive: None,
            });
            position = Some(self.records.len() - 1);
        }
        match position {
            Some(position) => {
                let open = &mut self.records[position];
                add(&mut open.ranges, piece)?;
                open.since = now;
            }
            None => {
                self.count(DropReason::RecordDropped);
                self.ring_full += usize::from(!self.told_of_full_ring);
                self.told_of_full_ring = true;
            }
        }
        let at = start + piece.offset as usize;
        memory.target.expect(at, octets(message, piece));
        if position.is_some() {
            self.report(piece);
        }
        let complete = position.is_some_and(|position| {
            whole || octets_in(&self.records[position].ranges) == message.length
        });
        if complete {
            self.close_records(is_it);
        }
        Ok(())
    }

    /// §5: each placed segment is reported where that is asked for, as long as there is room.
    fn report(&mut self, piece: Piece) {
        let Some(room) = self.limits.reports else {
            return;
        };
        let is_report = |one: &&Expected| matches!(one, Expected::Segment(_));
        if self.expected.iter().filter(is_report).count() < room {
            self.expected.push(Expected::Segment(piece));
        } else {
            self.count(DropReason::SegmentUnreported);
        }
    }

    /// §5, steps 3 to 7. Returns where in the region the message starts.
    fn check_region(&self, message: &Message) -> Result<usize, DropReason> {
        let target = message.target;
        let region = self
            .regions
            .iter()
            .find(|region| region.stag == target.stag);
        let region = region.ok_or(DropReason::BadStag)?;
        if !region.writable {
            return Err(DropReason::NoAccess);
        }
        let start = target.base.checked_sub(region.iova);
        start
            .filter(|start| start + u64::from(message.length) <= region.octets)
            .map(|start| usize::try_from(start).unwrap())
            .ok_or(DropReason::OutOfBounds)
    }

    /// The application posts a receive.
    pub(super) fn post(&mut self, receive: Receive) {
        self.posted.push_back(receive);
    }

    /// The application releases a record.
    pub(super) fn release(&mut self) {
        self.held -= 1;
        self.told_of_full_ring = false;
    }

    /// The application wants all records now.
    pub(super) fn complete_now(&mut self) {
        self.close_records(|_| true);
    }

    /// When something must happen though nothing arrives.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let record_timeout = self.limits.record_timeout;
        let records = self.records.iter().map(|open| open.since + record_timeout);
        let sends = self
            .sends
            .iter()
            .map(|open| open.since + REASSEMBLY_TIMEOUT);
        let reads = self.reader.next_deadline();
        records.chain(sends).chain(reads).min()
    }

    /// The engine's timers ran. Returns the receives that went back to the queue.
    pub(super) fn expire(&mut self, now: Duration) -> usize {
        let record_timeout = self.limits.record_timeout;
        self.reader.expire(now);
        self.close_records(|open| open.since + record_timeout <= now);
        let mut returned = 0;
        let is_over = |open: &Open| open.since + REASSEMBLY_TIMEOUT <= now;
        while let Some(position) = self.sends.iter().position(is_over) {
            self.give_up(position);
            self.count(DropReason::ReassemblyTimeout);
            returned += 1;
        }
        returned
    }

    /// Of several receives that went back at once, the specification leaves the order open: takes the order of `actual`.
    pub(super) fn adopt_order(&mut self, returned: usize, actual: &[u64]) {
        let wanted = &actual[..returned.min(actual.len())];
        let head: Vec<Receive> = self.posted.drain(..returned).collect();
        for wr_id in wanted.iter().rev() {
            let receive = head.iter().find(|receive| receive.wr_id == *wr_id);
            self.posted
                .push_front(*receive.expect("a receive that went back is at the head"));
        }
    }

    /// The receives in the queue, from the head.
    pub(super) fn posted(&self) -> impl Iterator<Item = u64> + '_ {
        self.posted.iter().map(|receive| receive.wr_id)
    }

    /// The receives that are in the queue or bound to incomplete Sends.
    pub(super) fn unfinished_receives(&self) -> Vec<u64> {
        let bound = self.sends.iter().filter_map(|open| open.receive);
        bound
            .map(|receive| receive.wr_id)
            .chain(self.posted())
            .collect()
    }

    /// Whether nothing is open.
    pub(super) fn is_at_rest(&self) -> bool {
        self.records.is_empty() && self.sends.is_empty() && self.next_expiry().is_none()
    }
}

/// How far `number` is behind `highest`; `None` if it is newer (§3: half the range ahead is).
fn behind(highest: u32, number: u32) -> Option<u32> {
    let behind = highest.wrapping_sub(number);
    (behind <= 1 << 31).then_some(behind)
}

fn octets(message: &Message, piece: Piece) -> &'static [u8] {
    &message.octets()[piece.offset as usize..(piece.offset + piece.length) as usize]
}

pub(super) fn octets_in(ranges: &[(u32, u32)]) -> u32 {
    ranges.iter().map(|(start, end)| end - start).sum()
}

/// §4 last rule and §5 step 9: adds a segment's octets, unless they are all there or need a 65th range.
pub(super) fn add(ranges: &mut Vec<(u32, u32)>, piece: Piece) -> Handled {
    let (mut start, mut end) = (piece.offset, piece.offset + piece.length);
    if start == end {
        return Ok(());
    }
    if ranges
        .iter()
        .any(|range| range.0 <= start && end <= range.1)
    {
        return Err(DropReason::Duplicate);
    }
    let touches = |range: &(u32, u32)| range.0 <= end && start <= range.1;
    let (first, last) = (
        ranges.iter().position(touches),
        ranges.iter().rposition(touches),
    );
    let (Some(first), Some(last)) = (first, last) else {
        if ranges.len() == MOST_RANGES {
            return Err(DropReason::MapFull);
        }
        ranges.push((start, end));
        ranges.sort_unstable();
        return Ok(());
    };
    start = start.min(ranges[first].0);
    end = end.max(ranges[last].1);
    ranges.splice(first..=last, [(start, end)]);
    Ok(())
}
