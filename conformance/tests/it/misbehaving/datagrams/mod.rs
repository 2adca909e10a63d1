//! A device for datagrams, with nothing of our stack in it either: it passes the tester without a fault, and with a named one does just that.

mod device;
mod faults;
mod groups;
mod map;
mod out;
mod pair;
mod reads;
mod records;
mod sends;
mod service;

use std::net::SocketAddr;

use dgiwarp_conform::cases::Family;
use dgiwarp_conform::run::{Done, Outcome};

use super::{asked_for, each_of, findings, listing, tested_by};
use device::Device;
pub(crate) use faults::FAULTS;
use faults::OFTEN;

/// Cases of the short run: every kind of datagram, and both ends of each exchange.
const SOME: &[&str] = &["D15", "D16", "D17", "D18", "D20", "D25", "D27"];

/// Goes through these cases.
fn tested(fault: &'static str, chosen: impl Fn(&str) -> bool) -> Vec<Done> {
    let device = Device::start(fault);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    // TCP's discard port: nobody listens for RDMA connections.
    tested_by(at(9), Some(at(device.control)), (2, true), |case| {
        case.family == Family::Sent || case.family == Family::Datagram && chosen(case.id)
    })
}

#[test]
fn without_a_fault_nothing_is_found() {
    let all = tested("", |_| true);
    assert_eq!(findings(&all).count(), 0, "{}", listing(&all));
    let cases = || {
        all.iter()
            .filter(|done| done.case.family == Family::Datagram)
    };
    assert_eq!(cases().count(), 27);
    for done in cases() {
        // Some hosts have no groups.
        let skipped = done.case.id == "D22" && done.outcome == Outcome::Skipped;
        let passed = done.outcome == Outcome::Pass || skipped;
        assert!(passed, "{} {}", done.case.id, done.reason);
    }
}

#[test]
fn a_fault_is_found_and_nothing_else() {
    let often: Vec<_> = FAULTS
        .iter()
        .filter(|(name, _)| OFTEN.contains(name))
        .copied()
        .collect();
    assert_eq!(often.len(), OFTEN.len(), "names that are in the table");
    // Cases of other faults that take their time are for the long run.
    each_of(&often, |fault| {
        let own = FAULTS.iter().find(|(name, _)| *name == fault);
        tested(fault, |id| {
            SOME.contains(&id) || own.is_some_and(|(_, findings)| findings.contains(&id))
        })
    });
}

#[test]
#[ignore = "some minutes, of waiting"]
fn soak_each_fault_is_found_and_nothing_else() {
    let faults: Vec<_> = asked_for(FAULTS).into_iter().copied().collect();
    each_of(&faults, |fault| tested(fault, |_| true));
}
