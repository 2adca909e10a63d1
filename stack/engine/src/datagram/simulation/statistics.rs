//! Contents of a number of runs: to print, and to check that they were no easy ones.

use std::fmt;

use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_sim::Fate;

use super::ledger::{Kind, Outcome};
use super::reads::End;
use super::verdict::Run;

/// Messages of this many segments count as long.
const LONG: usize = 16;

/// Sums over runs.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    pub(super) runs: u64,
    pub(super) messages: u64,
    pub(super) long_messages: u64,
    pub(super) segments: u64,
    pub(super) lost: u64,
    pub(super) corrupted: u64,
    pub(super) too_big: u64,
    pub(super) delivered: u64,
    pub(super) whole_records: u64,
    pub(super) partial_records: u64,
    pub(super) whole_reads: u64,
    pub(super) failed_reads: u64,
    pub(super) dropped: [u64; DropReason::ALL.len()],
}

impl Statistics {
    pub(super) fn add(&mut self, run: &Run) {
        let log = run.log();
        self.runs += 1;
        self.segments += log.sent().len() as u64;
        self.lost += (log.count(Fate::Lost) + log.count(Fate::Overflowed)) as u64;
        self.corrupted += log.arrivals().iter().filter(|one| one.corrupted).count() as u64;
        let ledger = run.ledger();
        self.too_big += ledger.too_big;
        let mut segments = vec![0; ledger.messages.len()];
        for piece in ledger
            .pieces()
            .iter()
            .filter(|piece| piece.role.is_of_message())
        {
            segments[piece.message] += 1;
        }
        for (message, segments) in ledger.messages.iter().zip(segments) {
            self.messages += u64::from(segments > 0);
            self.long_messages += u64::from(segments >= LONG);
            match &message.outcome {
                None => {}
                Some(Outcome::Read(end, _)) => {
                    self.whole_reads += u64::from(*end == End::Complete);
                    self.failed_reads += u64::from(*end != End::Complete);
                }
                Some(Outcome::Delivered(times)) => self.delivered += u64::from(*times),
                Some(Outcome::Recorded(map)) => {
                    debug_assert_eq!(message.kind, Kind::Write);
                    let whole = map.octets() == message.length;
                    self.whole_records += u64::from(whole);
                    self.partial_records += u64::from(!whole);
                }
            }
        }
        for (sum, dropped) in self.dropped.iter_mut().zip(run.dropped()) {
            *sum += dropped;
        }
    }

    /// Enough messages are long that loss leaves holes.
    pub(super) fn check(&self) {
        assert!(
            self.long_messages * 4 >= self.messages,
            "a quarter of the messages are long"
        );
    }

    /// How often segments were dropped for a reason.
    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            messages,
            long_messages,
            segments,
            lost,
            corrupted,
            too_big,
            delivered,
            whole_records,
            partial_records,
            whole_reads,
            failed_reads,
            dropped: _,
        } = self;
        write!(
            f,
            "{runs} runs, {messages} messages ({long_messages} of {LONG} segments or more), {segments} segments, {lost} lost, \
             {corrupted} corrupted, {too_big} trains too big, {delivered} Sends delivered, {whole_records} whole and \
             {partial_records} partial records, {whole_reads} Reads complete and {failed_reads} not; dropped:"
        )?;
        for reason in DropReason::ALL {
            if self.dropped(*reason) > 0 {
                write!(f, " {reason} {}", self.dropped(*reason))?;
            }
        }
        Ok(())
    }
}
