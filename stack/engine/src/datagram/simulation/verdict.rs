//! A whole run, and the outcome that follows from the log alone.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dgiwarp_ddp::{MAX_RANGES, RangeMap};
use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_sim::{Log, NodeId, Simulation};

use super::host::Host;
use super::ledger::{Flaw, Kind, Ledger, MessageId, Outcome};
use super::reads::End;
use super::scenario::{FAR, Scenario, Style};

/// After the last thing sent, arrived or posted: the longest timer, the latest a host runs it, and a held-up poll.
const REST: Duration = Duration::from_millis(300 + 3 + 20);
/// A Read that ended early leaves a timer behind, which runs once in vain: at most eight times the patience with a slow peer.
const IN_VAIN: Duration = Duration::from_secs(60);
/// No scenario lasts longer.
const LIMIT: Duration = Duration::from_secs(3600);

/// A scenario that was run to its end.
pub(super) struct Run {
    simulation: Simulation<Host>,
    ledger: Rc<RefCell<Ledger>>,
}

impl Run {
    /// Runs a scenario. Every call of an engine is compared with the oracle.
    pub(super) fn new(scenario: &Scenario, origin: Instant) -> Self {
        let ledger = Rc::new(RefCell::new(Ledger::new(scenario.messages.clone())));
        let hosts = (0..scenario.hosts.len())
            .map(|id| Host::new(NodeId(id), scenario, origin, Rc::clone(&ledger)));
        let link = |from, to| scenario.link(from, to);
        let mut simulation = Simulation::new(scenario.seed, hosts.collect(), link);
        simulation.run(LIMIT).expect("it comes to rest");
        let run = Self { simulation, ledger };
        run.check(scenario);
        run
    }

    pub(super) fn log(&self) -> &Log {
        self.simulation.network().log()
    }

    pub(super) fn ledger(&self) -> Ref<'_, Ledger> {
        self.ledger.borrow()
    }

    /// Datagrams dropped in all lives of all QPs, by reason.
    pub(super) fn dropped(&self) -> [u64; DropReason::ALL.len()] {
        let mut sums = [0; DropReason::ALL.len()];
        for host in self.simulation.nodes() {
            let before = host.dropped_before.chunks(sums.len());
            for life in before.chain(host.qps.iter().map(super::qp::Qp::dropped)) {
                for (sum, dropped) in sums.iter_mut().zip(life) {
                    *sum += dropped;
                }
            }
        }
        sums
    }

    fn check(&self, scenario: &Scenario) {
        for qp in self.simulation.nodes().iter().flat_map(|host| &host.qps) {
            qp.check_at_rest();
        }
        let last = self
            .log()
            .arrivals()
            .last()
            .map_or(Duration::ZERO, |arrival| arrival.at);
        let sent = self
            .log()
            .sent()
            .last()
            .map_or(Duration::ZERO, |sent| sent.at);
        let last = last.max(sent);
        let posted = scenario.events.last().map_or(Duration::ZERO, |(at, _)| *at);
        let delays = scenario.hosts.iter().flat_map(|host| &host.qps);
        let delay = delays.map(|qp| qp.post_delay.max(qp.release_delay)).max();
        let rest = REST + IN_VAIN + delay.unwrap_or_default();
        let now = self.simulation.now();
        assert!(
            now <= last.max(posted) + rest,
            "at rest only at {now:?}, after {last:?}"
        );
        let corrupted = self
            .log()
            .arrivals()
            .iter()
            .filter(|arrival| arrival.corrupted)
            .count();
        assert_eq!(self.dropped()[DropReason::BadCrc.index()], corrupted as u64);
        let passed = self.passed();
        let ledger = self.ledger.borrow();
        for (id, passed) in passed.iter().enumerate() {
            check_message(id, &ledger, passed, scenario.style);
        }
    }

    /// Which octets of each message arrived intact, from the log alone. `None` where that needs more ranges than a map has.
    fn passed(&self) -> Vec<Passed> {
        let ledger = self.ledger.borrow();
        let mut passed = vec![Passed::default(); ledger.messages.len()];
        for arrival in self
            .log()
            .arrivals()
            .iter()
            .filter(|arrival| !arrival.corrupted)
        {
            let piece = ledger.piece(arrival.datagram);
            if !piece.role.is_of_message() {
                continue;
            }
            let entry = &mut passed[piece.message];
            entry.any = true;
            entry.intact += 1;
            let added = entry.map.insert(piece.offset, piece.offset + piece.length);
            entry.overflowed |= added.is_err();
        }
        passed
    }
}

/// Fate of a message's datagrams in the log.
#[derive(Debug, Clone, Default)]
struct Passed {
    any: bool,
    /// Segments that arrived intact, copies included.
    intact: u32,
    map: RangeMap,
    /// More than 64 ranges: the map is not complete.
    overflowed: bool,
}

fn check_message(id: MessageId, ledger: &Ledger, passed: &Passed, style: Style) {
    let message = &ledger.messages[id];
    let whole = passed.any && passed.map.octets() == message.length;
    match &message.outcome {
        None => {}
        Some(Outcome::Delivered(times)) => {
            assert!(
                *times <= passed.intact,
                "message {id} was delivered {times} times"
            );
            assert!(
                whole || passed.overflowed,
                "message {id} was delivered, and not all arrived"
            );
        }
        Some(Outcome::Read(end, ranges)) => {
            let arrived = |&(start, end): &(u32, u32)| passed.map.contains(start, end);
            assert!(passed.overflowed || ranges.iter().all(arrived));
            let far = message.timeout >= FAR && !matches!(end, End::Flushed);
            let flawless = message.flaw == Flaw::None || message.length == 0;
            assert!(
                *end == End::Complete || !far || !flawless,
                "message {id}, a Read with time, ended {end:?}"
            );
        }
        Some(Outcome::Recorded(map)) => {
            let arrived = |&(start, end): &(u32, u32)| passed.map.contains(start, end);
            assert!(
                passed.overflowed || passed.any && map.ranges().iter().all(arrived),
                "of message {id} octets are valid that did not arrive"
            );
        }
    }
    if style != Style::Orderly || passed.overflowed || passed.map.ranges().len() == MAX_RANGES {
        return;
    }
    match (message.kind, &message.outcome) {
        (Kind::Read, outcome) => assert!(outcome.is_some(), "message {id}, a Read, ended"),
        (Kind::Send, outcome) => {
            let delivered = outcome.is_some();
            assert_eq!(
                delivered, whole,
                "message {id} arrived whole, so it is delivered"
            );
        }
        (Kind::Write, Some(Outcome::Recorded(map))) => {
            assert_eq!(
                map, &passed.map,
                "the record of message {id} has all that arrived"
            );
        }
        (Kind::Write, outcome) => {
            assert!(
                outcome.is_none() && !passed.any,
                "message {id} has a record"
            );
        }
    }
}
