//! A stream of messages under a window, in one direction or both.
//!
//! The receiver tells how far it has seen the stream (a *credit*), on the data path. Credits are
//! cumulative positions, so a lost one costs nothing, and lost data is passed over by the
//! position of what follows. When a whole window is lost, the sender goes on after a pause.

use std::time::{Duration, Instant};

use crate::clock;
use crate::control::RoundReport;
use crate::error::Result;
use crate::host::cpu_time;
use crate::measure::{Arrival, Flow, Geometry, Idle, Want, Watch};

/// Without a credit for this long, what is in flight counts as lost. A receiver that only lost its
/// CPU for a while must not be sent another window too soon: its buffer is still full.
const STALL: Duration = Duration::from_millis(100);

/// After the client's stop, a stream without loss is still read until it is quiet this long.
const LAST_STREAM_DATA: Duration = Duration::from_millis(200);

/// In both-direction mode, a side that has sent everything waits this long for the rest.
const LAST_DATA: Duration = Duration::from_millis(500);

/// What one side has to do in a round, in bytes of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// To send.
    pub(crate) send: u64,
    /// To expect.
    pub(crate) receive: u64,
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
    let mut sender = Sender::new(task.send, geometry);
    let mut receiver = Receiver::new(task.receive, geometry);
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
                if let Some(record) = record {
                    receiver.record(record.holes);
                }
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
            // What was sent before the stop has arrived by now, unless TCP still holds it.
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
                    if quiet > STALL {
                        sender.presume_lost();
                    }
                    if quiet > LAST_DATA && task.send > 0 && sender.done() {
                        break;
                    }
                }
            },
        }
    }
    let mut report = receiver.report();
    report.cpu_ns = cpu_time().saturating_sub(cpu_start);
    Ok(report)
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
}

impl Sender {
    fn new(total: u64, geometry: &Geometry) -> Self {
        Self {
            total,
            chunk: geometry.chunk,
            window: geometry.window,
            sent: 0,
            acknowledged: 0,
            written_off: 0,
            counts: !geometry.has_positions(),
            uncredited: geometry.window == u64::MAX,
        }
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

/// The receiving half: what arrived, when, and what the sender was told.
#[derive(Debug)]
struct Receiver {
    expected: u64,
    credit_every: u64,
    seen: u64,
    credited: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    report: RoundReport,
}

impl Receiver {
    fn new(expected: u64, geometry: &Geometry) -> Self {
        Self {
            expected,
            credit_every: geometry.credit_every,
            seen: 0,
            credited: 0,
            first: None,
            last: None,
            report: RoundReport::default(),
        }
    }

    fn data(&mut self, bytes: u64, end: Option<u64>) {
        let now = clock::now();
        if self.first.is_none() {
            self.first = Some(now);
            self.report.first_bytes = bytes;
        }
        self.last = Some(now);
        self.report.received_bytes += bytes;
        self.seen = self.seen.max(end.unwrap_or(self.report.received_bytes));
    }

    fn record(&mut self, holes: u64) {
        self.report.records += 1;
        self.report.holes += holes;
        self.report.records_with_holes += u64::from(holes > 0);
    }

    fn credit_due(&mut self) -> Option<u64> {
        let due = self.seen - self.credited >= self.credit_every || self.done();
        (due && self.seen > self.credited && self.credit_every != u64::MAX).then(|| {
            self.credited = self.seen;
            self.seen
        })
    }

    fn done(&self) -> bool {
        self.seen >= self.expected
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

    #[test]
    fn the_window_closes_and_credits_open_it() {
        let mut sender = Sender::new(1000, &geometry(100, 250));
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
        let mut sender = Sender::new(400, &geometry(100, 200));
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
        let mut sender = Sender::new(8, &geometry(1, 4));
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
        let mut receiver = Receiver::new(500, &geometry(100, 400));
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
