//! Calls with streams on connections that break at any time, with restarts of either end, beside an oracle.
//!
//! A [`link`] carries messages as RC does: in order and once, as long as it lasts, whatever the network loses, repeats or holds up. Programs of both ends read slowly,
//! stop, cancel and reply early.

mod caller;
mod link;
mod server;
mod tests;

use std::collections::BTreeMap;

use dgiwarp_sim::{Address, NodeId};

use caller::Caller;
use server::Server;

/// First grant of each stream, in octets.
const WINDOW: u64 = 4096;
/// Octets of a part, at most.
const PART: usize = 1000;

/// A call: the instance of its caller and its number.
type CallId = (u64, u64);

fn address(node: usize) -> Address {
    let node = NodeId(node);
    Address { node, port: 1 }
}

/// Octet `at` of a stream.
fn octet((caller, number): CallId, up: bool, at: u64) -> u8 {
    let stream =
        (caller ^ number.rotate_left(32) ^ u64::from(up)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (stream ^ at).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 40).to_le_bytes()[0]
}

/// Octets of a stream that a program has read.
#[derive(Debug, Clone, Copy)]
struct Reader {
    call: CallId,
    up: bool,
    count: u64,
}

impl Reader {
    fn new(call: CallId, up: bool) -> Self {
        Self { call, up, count: 0 }
    }

    /// Takes the next octets. Fails where they are not those that follow, or more than a receiver keeps.
    fn read(&mut self, octets: &[u8]) -> Result<(), String> {
        if octets.len() as u64 > WINDOW {
            return Err(format!("{self:?}: {} octets were kept", octets.len()));
        }
        for it in octets {
            if *it != octet(self.call, self.up, self.count) {
                return Err(format!("{self:?}: another octet"));
            }
            self.count += 1;
        }
        Ok(())
    }
}

/// Content of a reply: the octets that were read before it, whether to the end, and those that were sent with their end, if it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Report {
    read: u64,
    whole: bool,
    sent: Option<u64>,
}

impl Report {
    fn octets(self) -> Vec<u8> {
        let sent = self.sent.map_or(u64::MAX, |it| it);
        let numbers = [self.read, self.whole.into(), sent];
        numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
    }

    fn parse(octets: &[u8]) -> Self {
        let number = |at: usize| u64::from_be_bytes(octets[at..at + 8].try_into().unwrap());
        Self {
            read: number(0),
            whole: number(8) == 1,
            sent: Some(number(16)).filter(|it| *it < u64::MAX),
        }
    }
}

/// End of a call as its program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Reply(Report),
    NotExecuted,
    MaybeExecuted,
    /// The program itself ended before.
    Crashed,
}

/// A call as its caller has it.
#[derive(Debug, Clone, Default)]
struct Called {
    idempotent: bool,
    /// Octets of the caller's stream, if it has one, and those that were given to it.
    up: Option<u64>,
    pushed: u64,
    /// Octets of the server's stream that were read, and whether it had an end of its own.
    read: u64,
    whole: bool,
    /// The caller read no more.
    stopped: bool,
    ends: Vec<Ending>,
}

/// An execution as its server has it.
#[derive(Debug, Clone, Copy)]
struct Executed {
    server: u64,
    call: CallId,
    report: Report,
}

/// Everything that happened.
#[derive(Debug, Default)]
struct History {
    calls: BTreeMap<CallId, Called>,
    executions: Vec<Executed>,
    faults: Vec<String>,
}

/// Ends of the calls of a run.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    calls: usize,
    replies: usize,
    failed: usize,
    /// Streams that were read to their end.
    whole: usize,
    octets: u64,
}

/// The rules, from the history alone.
fn judge(history: &History) -> Result<Tally, String> {
    if let Some(fault) = history.faults.first() {
        return Err(fault.clone());
    }
    let mut executions: BTreeMap<CallId, Vec<&Executed>> = BTreeMap::new();
    for executed in &history.executions {
        executions.entry(executed.call).or_default().push(executed);
    }
    for (call, executed) in &executions {
        let Some(called) = history.calls.get(call) else {
            return Err(format!("{call:?} was executed and never called"));
        };
        let mut servers: Vec<_> = executed.iter().map(|it| it.server).collect();
        servers.sort_unstable();
        servers.dedup();
        let may_repeat = called.idempotent && called.up.is_none();
        if servers.len() < executed.len() || (servers.len() > 1 && !may_repeat) {
            return Err(format!("{call:?} was executed {} times", executed.len()));
        }
        for it in executed {
            if it.report.read > called.pushed {
                return Err(format!("{call:?}: more octets came than were sent"));
            }
            if it.report.whole && called.up != Some(it.report.read) {
                return Err(format!(
                    "{call:?}: an end after {} octets of {:?}",
                    it.report.read, called.up
                ));
            }
        }
    }
    let mut tally = Tally::default();
    for (call, called) in &history.calls {
        let [end] = called.ends.as_slice() else {
            return Err(format!("{call:?} has the ends {:?}", called.ends));
        };
        let executed = executions.get(call).map(Vec::as_slice).unwrap_or_default();
        let sent = |it: &&Executed| it.report.sent == Some(called.read);
        if called.whole && !executed.iter().any(sent) {
            return Err(format!("{call:?}: an end after {} octets", called.read));
        }
        match end {
            Ending::Reply(report) => {
                if !executed.iter().any(|it| it.report == *report) {
                    return Err(format!("{call:?}: a reply of no execution"));
                }
                let is_lost = report
                    .sent
                    .is_some_and(|it| it != called.read || !called.whole);
                if is_lost && !called.stopped {
                    return Err(format!("{call:?}: {} octets, and {report:?}", called.read));
                }
                tally.replies += 1;
                tally.whole += usize::from(report.whole);
            }
            Ending::NotExecuted if !executed.is_empty() => {
                return Err(format!(
                    "{call:?} was executed, and its caller has the contrary"
                ));
            }
            Ending::NotExecuted | Ending::MaybeExecuted | Ending::Crashed => tally.failed += 1,
        }
        tally.calls += 1;
        tally.whole += usize::from(called.whole);
        tally.octets += called.read + called.pushed;
    }
    Ok(tally)
}
