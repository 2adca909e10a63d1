//! A whole run, and what the log alone says about its outcome.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dgiwarp_ddp::{MAX_RANGES, RangeMap};
use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_sim::{Log, NodeId, Simulation};

use super::host::Host;
use super::ledger::{Kind, Ledger, MessageId, Outcome};
use super::scenario::{Scenario, Style};

/// After the last arrival and the last posting: the longest timer, the latest a host runs it, and a held-up poll.
const REST: Duration = Duration::from_millis(200 + 3 + 20);
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

    /// What was dropped in all lives of all QPs, by reason.
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
        let posted = scenario.events.last().map_or(Duration::ZERO, |(at, _)| *at);
        let delays = scenario.hosts.iter().flat_map(|host| &host.qps);
        let delay = delays.map(|qp| qp.post_delay.max(qp.release_delay)).max();
        let rest = REST + delay.unwrap_or_default();
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
            let entry = &mut passed[piece.message];
            entry.any = true;
            entry.intact += 1;
            let added = entry.map.insert(piece.offset, piece.offset + piece.length);
            entry.overflowed |= added.is_err();
        }
        passed
    }
}

/// What the log says of a message.
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
