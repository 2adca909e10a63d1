//! A stream of messages under a window, in one direction or both.
//!
//! The receiver acknowledges its position in the stream (a *credit*), on the data path. Credits are
//! cumulative positions, so a lost one costs nothing, and lost data is passed over by the
//! position of what follows. When a whole window is lost, the sender goes on after a pause.
//!
//! Where datagrams are dropped on purpose the sender also puts *marks* into the stream, small messages
//! with its position, and repeats the latest until it is acknowledged: so the measurement counts losses,
//! and not the time that both sides wait for them.

use std::time::{Duration, Instant};

use crate::endpoint::loss::Mark;
use crate::error::Result;
use crate::machine::clock;
use crate::machine::host::cpu_time;
use crate::measure::{Arrival, Flow, Geometry, Idle, RecordShape, Want, Watch};
use crate::session::control::{Datagrams, RoundReport};

/// Without a credit for this long, what is in flight counts as lost. A receiver that only lost its
/// CPU for a while must not be sent another window too soon: its buffer is still full.
const STALL: Duration = Duration::from_millis(100);

/// With marks, nothing counts as lost while some of them may still be answered.
const MARKED_STALL: Duration = Duration::from_secs(1);

/// A mark that is not answered is repeated after this long, and then after twice as long each time: it
/// was lost, or the receiver has no CPU.
const MARK_AGAIN: Duration = Duration::from_millis(2);

/// After the client's stop, a stream without loss is still read until it is quiet this long.
const LAST_STREAM_DATA: Duration = Duration::from_millis(200);

/// In both-direction mode, a side that has sent everything waits this long for the rest, where some may be lost.
const LAST_DATA: Duration = Duration::from_millis(500);

/// The work of one side in a round, in bytes of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// To send.
    pub(crate) send: u64,
    /// To expect.
    pub(crate) receive: u64,
    /// Whether the sender marks how far it is.
    pub(crate) marks: bool,
}

/// Runs one side of a round to its end: everything sent and answered, everything expected seen,
/// or the client ended it.
pub(crate) fn run<F: Flow>(
    flow: &mut F,
    task: Task,
    geometry: &Geometry,
    blocking: bool,
    watch: &mut Watch<'_>,
) -> Result<RoundReport> {
    let cpu_start = cpu_time();
    let mut sender = Sender::new(task, geometry);
    let mut receiver = Receiver::new(task, geometry);
    let want = match (task.send, task.receive) {
        (_, 0) => Want::Credit,
        (0, _) => Want::Data,
        _ => Want::Both,
    };
    let mut quiet_since: Option<Instant> = None;
    let mut stopping = false;
    while !(sender.done() && receiver.done()) {
        let length = sender.permitted();
        let mut taken = 0;
        if length > 0 {
            taken = flow.transmit(sender.sent, length)?;
            sender.sent += taken;
            if taken > 0 {
                quiet_since = None;
                if sender.uncredited {
                    watch.progress();
                }
                watch.busy()?;
                if sender.mark_due() {
                    sender.mark(flow)?;
                }
                if want == Want::Credit {
                    continue;
                }
            }
        }
        let may_wait = blocking && taken == 0;
        match flow.poll(want, may_wait)? {
            Arrival::Data { bytes, end, record } => {
                quiet_since = None;
                watch.progress();
                watch.busy()?;
                receiver.data(bytes, end);
                receiver.message(bytes, record);
                if let Some(position) = receiver.credit_due() {
                    flow.credit(position)?;
                }
            }
            Arrival::Credit(position) => {
                quiet_since = None;
                watch.progress();
                sender.credit(position);
            }
            Arrival::Other => {}
            Arrival::Nothing if taken > 0 => {}
            // Data sent before the stop has arrived by now, unless TCP still holds it.
            Arrival::Nothing if stopping && !sender.uncredited => break,
            Arrival::Nothing => match watch.idle(may_wait)? {
                Idle::Continue => {}
                Idle::Stop => {
                    stopping = true;
                    let now = clock::now();
                    if now - *quiet_since.get_or_insert(now) > LAST_STREAM_DATA {
                        break;
                    }
                }
                Idle::Checked(now) => {
                    let quiet = now - *quiet_since.get_or_insert(now);
                    if F::LOSES && quiet > if sender.marks { MARKED_STALL } else { STALL } {
                        sender.presume_lost();
                    } else if quiet > MARK_AGAIN && sender.marks {
                        sender.mark_again(flow, now)?;
                    }
                    if F::LOSES && quiet > LAST_DATA && task.send > 0 && sender.done() {
                        break;
                    }
                }
            },
        }
    }
    let mut report = receiver.report();
    let counted = flow.datagrams();
    report.datagrams = Datagrams {
        marks: counted.marks + sender.marks_sent,
        ..counted
    };
    report.footprint = flow.footprint();
    report.cpu_ns = cpu_time().saturating_sub(cpu_start);
    Ok(report)
}

/// Completes a report after a round that ended with marks: repeated marks may have
/// come after the end, or data from before it if all of them were lost.
pub(crate) fn finish<F: Flow>(flow: &mut F, report: &mut RoundReport) -> Result<()> {
    flow.settle();
    loop {
        match flow.poll(Want::Data, false)? {
            Arrival::Data { bytes, record, .. } if bytes > 0 => {
                report.received_bytes += bytes;
                count_message(report, record);
            }
            Arrival::Data { .. } | Arrival::Credit(_) | Arrival::Other => {}
            Arrival::Nothing => break,
        }
    }
    report.datagrams = flow.datagrams();
    Ok(())
}

/// A message that arrived, completely or with holes.
fn count_message(report: &mut RoundReport, record: Option<RecordShape>) {
    let holes = record.map_or(0, |record| record.holes);
    report.complete += u64::from(holes == 0);
    report.records += u64::from(record.is_some());
    report.records_with_holes += u64::from(holes > 0);
    report.holes += holes;
}

/// The sending half: what is in flight, and how much more may be.
#[derive(Debug)]
struct Sender {
    total: u64,
    chunk: u64,
    window: u64,
    sent: u64,
    acknowledged: u64,
    /// Counted bytes that will never be acknowledged, where pieces carry no position.
    written_off: u64,
    counts: bool,
    uncredited: bool,
    marks: bool,
    mark_every: u64,
    marked: u64,
    marks_sent: u64,
    repeated: Option<Instant>,
    patience: Duration,
}

impl Sender {
    fn new(task: Task, geometry: &Geometry) -> Self {
        Self {
            total: task.send,
            chunk: geometry.chunk,
            window: geometry.window,
            sent: 0,
            acknowledged: 0,
            written_off: 0,
            counts: !geometry.has_positions(),
            uncredited: geometry.window == u64::MAX,
            marks: task.marks,
            mark_every: geometry.credit_every,
            marked: 0,
            marks_sent: 0,
            repeated: None,
            patience: MARK_AGAIN,
        }
    }

    /// Whether a mark belongs behind what was sent last.
    fn mark_due(&self) -> bool {
        let unmarked = self.sent - self.marked;
        self.marks && unmarked > 0 && (unmarked >= self.mark_every || self.sent == self.total)
    }

    fn mark(&mut self, flow: &mut impl Flow) -> Result<()> {
        let mark = Mark {
            position: self.sent,
            last: self.sent == self.total,
        };
        if flow.mark(mark)? {
            self.marked = self.sent;
            self.marks_sent += 1;
        }
        Ok(())
    }

    /// Repeats the latest mark, unless that was done a moment ago.
    fn mark_again(&mut self, flow: &mut impl Flow, now: Instant) -> Result<()> {
        let lately = self.repeated.is_some_and(|last| now - last < self.patience);
        if lately || self.acknowledged == self.sent {
            return Ok(());
        }
        self.repeated = Some(now);
        self.patience *= 2;
        self.mark(flow)
    }

    /// The length of the next piece, 0 if it must wait.
    fn permitted(&self) -> u64 {
        let length = self.chunk.min(self.total - self.sent);
        let in_flight = self.sent - self.acknowledged;
        if in_flight == 0 || in_flight + length <= self.window {
            length
        } else {
            0
        }
    }

    fn credit(&mut self, position: u64) {
        let position = (position + self.written_off).min(self.sent);
        self.acknowledged = self.acknowledged.max(position);
        (self.repeated, self.patience) = (None, MARK_AGAIN);
    }

    fn presume_lost(&mut self) {
        if self.counts {
            self.written_off += self.sent - self.acknowledged;
        }
        self.acknowledged = self.sent;
    }

    fn done(&self) -> bool {
        self.sent == self.total && (self.uncredited || self.acknowledged == self.sent)
    }
}

/// The receiving half: arrivals, their times, and credits sent.
#[derive(Debug)]
struct Receiver {
    expected: u64,
    /// With marks, the last one ends the round: messages with holes come before it, and after the
    /// last message that is complete.
    marks: bool,
    ended: bool,
    credit_every: u64,
    seen: u64,
    credited: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    report: RoundReport,
}

impl Receiver {
    fn new(task: Task, geometry: &Geometry) -> Self {
        Self {
            expected: task.receive,
            marks: task.marks,
            ended: false,
            credit_every: geometry.credit_every,
            seen: 0,
            credited: 0,
            first: None,
            last: None,
            report: RoundReport::default(),
        }
    }

    fn data(&mut self, bytes: u64, end: Option<u64>) {
        if bytes == 0 && self.marks {
            self.seen = self.seen.max(end.unwrap_or(0));
            self.ended |= self.seen >= self.expected && end == Some(self.seen);
            return;
        }
        let now = clock::now();
        if self.first.is_none() {
            self.first = Some(now);
            self.report.first_bytes = bytes;
        }
        self.last = Some(now);
        self.report.received_bytes += bytes;
        self.seen = self.seen.max(end.unwrap_or(self.report.received_bytes));
    }

    fn message(&mut self, bytes: u64, record: Option<RecordShape>) {
        let mark = bytes == 0 && self.marks;
        if !mark {
            count_message(&mut self.report, record);
        }
    }

    fn credit_due(&mut self) -> Option<u64> {
        // The sender goes on marking the end until the end is acknowledged.
        let seen = match self.marks && !self.ended {
            true => self.seen.min(self.expected.saturating_sub(1)),
            false => self.seen,
        };
        let due = seen.saturating_sub(self.credited) >= self.credit_every || self.done();
        (due && seen > self.credited && self.credit_every != u64::MAX).then(|| {
            self.credited = seen;
            seen
        })
    }

    fn done(&self) -> bool {
        if self.marks && self.expected > 0 {
            self.ended
        } else {
            self.seen >= self.expected
        }
    }

    fn report(&self) -> RoundReport {
        let elapsed_ns = match (self.first, self.last) {
            (Some(first), Some(last)) => clock::nanoseconds(first, last),
            _ => 0,
        };
        RoundReport {
            elapsed_ns,
            ..self.report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(size: u64, window: u64) -> Geometry {
        Geometry::datagram(size, size, size, 8 << 20, Some(window))
    }

    fn task(send: u64) -> Task {
        Task {
            send,
            receive: 0,
            marks: true,
        }
    }

    #[test]
    fn marks_come_at_half_a_window_and_at_the_end() {
        let mut sender = Sender::new(task(250), &geometry(100, 400));
        assert!(!sender.mark_due());
        let mut due = Vec::new();
        for sent in [100, 200, 250] {
            sender.sent = sent;
            due.push(sender.mark_due());
            if sender.mark_due() {
                sender.marked = sent;
            }
        }
        assert_eq!(due, [false, true, true]);
        sender.marks = false;
        sender.marked = 0;
        assert!(!sender.mark_due());
    }

    #[test]
    fn a_mark_moves_the_position_but_is_no_data() {
        let mut receiver = Receiver::new(
            Task {
                send: 0,
                receive: 500,
                marks: true,
            },
            &geometry(100, 400),
        );
        receiver.data(0, Some(400));
        assert_eq!(receiver.credit_due(), Some(400));
        // The end of the data is not the end of the stream: messages with holes may still come.
        receiver.data(100, Some(500));
        assert_eq!((receiver.credit_due(), receiver.done()), (None, false));
        receiver.data(0, Some(500));
        receiver.message(0, None);
        assert_eq!((receiver.credit_due(), receiver.done()), (Some(500), true));
        let report = receiver.report();
        assert_eq!((report.received_bytes, report.first_bytes), (100, 100));
        assert_eq!(report.complete, 0);
    }

    #[test]
    fn the_window_closes_and_credits_open_it() {
        let mut sender = Sender::new(task(1000), &geometry(100, 250));
        for _ in 0..2 {
            assert_eq!(sender.permitted(), 100);
            sender.sent += 100;
        }
        assert_eq!(sender.permitted(), 0);
        sender.credit(100);
        assert_eq!(sender.permitted(), 100);
        // A late, smaller credit takes nothing back; one from the future is not believed.
        sender.credit(0);
        assert_eq!(sender.acknowledged, 100);
        sender.credit(9999);
        assert_eq!(sender.acknowledged, 200);
    }

    #[test]
    fn a_lost_window_does_not_end_the_stream() {
        let mut sender = Sender::new(task(400), &geometry(100, 200));
        sender.sent = 200;
        assert_eq!(sender.permitted(), 0);
        sender.presume_lost();
        assert_eq!(sender.permitted(), 100);
        sender.sent = 400;
        assert!(!sender.done());
        // The receiver's position covers what was lost before it.
        sender.credit(400);
        assert!(sender.done());
    }

    #[test]
    fn counted_streams_write_off_what_never_arrived() {
        let mut sender = Sender::new(task(8), &geometry(1, 4));
        sender.sent = 4;
        sender.credit(1);
        sender.presume_lost();
        sender.sent = 8;
        // Three of the first four were lost: the receiver has counted 1 + 4.
        sender.credit(5);
        assert!(sender.done());
    }

    #[test]
    fn credits_come_at_half_a_window_and_at_the_end() {
        let task = Task {
            send: 0,
            receive: 500,
            marks: false,
        };
        let mut receiver = Receiver::new(task, &geometry(100, 400));
        receiver.data(100, Some(100));
        assert_eq!(receiver.credit_due(), None);
        // The second piece was lost, the third covers it.
        receiver.data(100, Some(300));
        assert_eq!(receiver.credit_due(), Some(300));
        assert_eq!(receiver.credit_due(), None);
        receiver.data(100, Some(500));
        assert_eq!(receiver.credit_due(), Some(500));
        assert!(receiver.done());
        let report = receiver.report();
        assert_eq!((report.received_bytes, report.first_bytes), (300, 100));
    }
}
