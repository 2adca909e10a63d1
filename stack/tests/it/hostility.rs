//! Ten seconds of hostile datagrams, as fast as another process can send them, while a good peer goes on.
//!
//! The attacker has the STag, the Q_Key and the address. Its cost to the good peer is compared with what the same
//! number of datagrams costs that are received by another queue pair of the same program: the work of the kernel and of
//! receiving is in both, and what is left is what hostility alone does.

mod attack;
pub(crate) mod control;
mod good;
mod target;
pub(crate) mod wire;

use std::time::Duration;

use crate::common::{self, resident, role};
use attack::Attack;
use control::Client;
use dgiwarp::DropReason;
use target::{Ledger, Target};

/// How long each attack lasts; there are eleven.
const ATTACK: Duration = Duration::from_millis(920);
/// How long the same is done without hostility.
const COMPARISON: Duration = Duration::from_millis(500);
/// Memory that the attacked process may need beyond that before: 16,384 sources, and buffers that were not used before.
const GROWTH: u64 = 16 << 20;

/// All that takes part.
struct Stage {
    target: Target,
    good: Client,
    attacker: Client,
}

/// The attacker's report.
struct Sent {
    datagrams: u64,
    octets: u64,
    answered: u64,
    rate: u64,
}

impl Stage {
    fn new(test: &str) -> Self {
        let mut target = Target::new();
        let mut good = common::Process::start(test, "good", &[("TARGET", target.for_good())]);
        let port = good.tells("port ", common::node::SOON).parse().unwrap();
        let good = Client::of(good, "good");
        let attacker = Client::start(test, "attacker", &[("TARGET", target.for_attacker())]);
        target.meet(port);
        Self {
            target,
            good,
            attacker,
        }
    }

    /// Lets the attacker work, at a rate if one is given. Returns what it did and the good peer's octets per second meanwhile.
    fn attack(&mut self, attack: Attack, time: Duration, rate: u64) -> (Sent, f64) {
        let qp = match attack {
            Attack::WellBehaved => self.target.other(),
            _ => self.target.attacked(),
        };
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.attacker
            .order(&[attack.number(), qp.qpn().into(), millis, rate]);
        let mut report = None;
        let goodput = self.target.work_until(|| {
            report = self.attacker.report();
            report.is_some()
        });
        let Some([datagrams, octets, answered, micros]) = report.as_deref() else {
            panic!("{report:?}");
        };
        let sent = Sent {
            datagrams: *datagrams,
            octets: *octets,
            answered: *answered,
            rate: datagrams * 1_000_000 / micros,
        };
        (sent, goodput)
    }

    /// Stops the good peer. Returns what it sent and what came, once nothing is under way any more.
    fn pause(&mut self) -> (u64, Ledger) {
        self.good.order(&[0]);
        let mut report = None;
        self.target.work_until(|| {
            report = self.good.report();
            report.is_some()
        });
        (report.unwrap()[0], self.target.settle())
    }

    fn resume(&mut self) {
        self.good.order(&[1]);
        let good = &self.good;
        self.target.work_until(|| good.report().is_some());
    }

    /// One attack, with all datagrams accounted for. Returns the good peer's goodput as a part of that beside
    /// well-behaved datagrams at the same rate.
    fn judge(&mut self, attack: Attack, plain: f64) -> f64 {
        let (good_before, before) = self.pause();
        self.resume();
        let (sent, under_attack) = self.attack(attack, ATTACK, 0);
        let (good_after, after) = self.pause();
        self.resume();
        let came = after.datagrams() - before.datagrams();
        let sent_to_us = sent.datagrams + good_after - good_before;
        assert_eq!(
            came, sent_to_us,
            "{attack:?}: each datagram is used, dropped by reason, or found the socket full"
        );
        // A requester with a cookie may request more than it sends.
        assert!(
            attack == Attack::ReadsWithCookie || sent.answered <= 3 * sent.octets,
            "{attack:?}: {} for {}",
            sent.answered,
            sent.octets
        );
        let (_, beside_others) = self.attack(Attack::WellBehaved, COMPARISON, sent.rate);
        let share = under_attack / beside_others;
        let dropped = |reason: &DropReason| {
            let count = after.counters.dropped(*reason) - before.counters.dropped(*reason);
            (count > 0).then(|| format!("{reason} {count}"))
        };
        let dropped: Vec<_> = DropReason::ALL.iter().filter_map(dropped).collect();
        println!(
            "{attack:?}: {} datagrams/s, {} found the socket full, goodput {share:.2} of that beside others, {:.2} of that alone; {}",
            sent.rate,
            after.overruns - before.overruns,
            under_attack / plain,
            dropped.join(", "),
        );
        if let Some(reason) = sure_reason(attack) {
            let count = after.counters.dropped(reason) - before.counters.dropped(reason);
            assert!(
                count > 0,
                "{attack:?} is not what it should be: no {reason}"
            );
        }
        share
    }
}

/// A reason for which segments of an attack are surely dropped.
fn sure_reason(attack: Attack) -> Option<DropReason> {
    match attack {
        Attack::Noise => Some(DropReason::BadCrc),
        Attack::SealedNoise => Some(DropReason::UnknownFormat),
        Attack::Replay => Some(DropReason::Late),
        Attack::HugeRecords => Some(DropReason::MapFull),
        Attack::IncompleteRecordEach => Some(DropReason::RecordDropped),
        Attack::PartialSends => Some(DropReason::ReassemblyFull),
        Attack::Reads => Some(DropReason::UnvalidatedRead),
        Attack::ReadsWithCookie => Some(DropReason::ReadQueueFull),
        Attack::ManyEpochs => Some(DropReason::NoSourceSlot),
        Attack::OtherSources | Attack::RecordEach | Attack::WellBehaved => None,
    }
}

/// Part of its goodput beside well-behaved datagrams that the good peer keeps: half of what the target has for it. Requesters with a cookie are
/// answered for a quarter of a busy time, whoever they are, and well-behaved datagrams are not answered.
fn least_share(attack: Attack) -> f64 {
    match attack {
        Attack::ReadsWithCookie => 0.5 * 0.75,
        _ => 0.5,
    }
}

#[test]
fn a_good_peer_goes_on_under_every_attack() {
    let test = here!("a_good_peer_goes_on_under_every_attack");
    match role().as_deref() {
        Some("good") => return good::run(),
        Some("attacker") => return attack::run(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
    let mut stage = Stage::new(test);
    stage.target.work_for(Duration::from_millis(300));
    let plain = stage.target.work_for(Duration::from_millis(500));
    stage.attack(Attack::WellBehaved, Duration::from_millis(200), 0);
    let before = resident();
    for attack in Attack::HOSTILE {
        // Three programs share the cores, and others may take one away meanwhile: one comparison means little.
        let shares = (0..32).map(|_| stage.judge(attack, plain));
        let bound = least_share(attack);
        let kept = shares.into_iter().find(|share| *share >= bound);
        assert!(
            kept.is_some(),
            "{attack:?} takes too much from the good peer"
        );
        let after = resident();
        assert!(after < before + GROWTH, "{attack:?}: {before} -> {after}");
    }
    println!(
        "resident {before} -> {}, {plain:.0} octets/s alone",
        resident()
    );
    stage.pause();
    stage.target.check_memory();
}
