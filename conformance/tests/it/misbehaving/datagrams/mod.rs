//! A device for datagrams, with nothing of our stack in it either: it passes the tester without a fault, and with a named one does just that.

mod device;
mod faults;
mod out;
mod pair;
mod reads;
mod service;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use dgiwarp_conform::cases::Family;
use dgiwarp_conform::run::{Done, Outcome};

use super::{each_of, findings, listing, tested_by};
use device::Device;
pub(crate) use faults::FAULTS;
use faults::OFTEN;

/// Cases that bring all faults to light: every kind of datagram, and both ends of each exchange.
const SOME: &[&str] = &["D15", "D16", "D17", "D18", "D20", "D25", "D27"];

/// Goes through the cases.
fn tested(fault: &'static str) -> Vec<Done> {
    let device = Device::start(fault);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    // TCP's discard port: nobody listens for RDMA connections.
    tested_by(at(9), Some(at(device.control)), (2, true), |case| {
        case.family == Family::Sent || SOME.contains(&case.id)
    })
}

#[test]
fn without_a_fault_nothing_is_found() {
    let all = tested("");
    assert_eq!(findings(&all).count(), 0, "{}", listing(&all));
    for case in SOME {
        let done = all.iter().find(|done| done.case.id == *case).unwrap();
        assert_eq!(done.outcome, Outcome::Pass, "{case} {}", done.reason);
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
    each_of(&often, tested);
}

#[test]
#[ignore = "a minute"]
fn soak_each_fault_is_found_and_nothing_else() {
    let names: BTreeSet<_> = FAULTS.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), FAULTS.len(), "names are used once");
    each_of(FAULTS, tested);
}
