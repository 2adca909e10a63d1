//! L: reliable datagrams, with a UDP socket of the tester and a queue pair of the agent.

mod association;
mod faults;
mod receiver;
mod scene;
mod sender;

use super::{Case, Family, agent_case};
use crate::bench::{Bench, Broken};

/// A case of this family.
const fn reliable(
    id: &'static str,
    about: &'static str,
    clauses: &'static [&'static str],
    run: fn(&mut Bench<'_>) -> Result<(), Broken>,
) -> Case {
    agent_case(id, Family::Reliable, about, clauses, run)
}

/// All of them, in order.
pub(super) fn cases() -> Vec<Case> {
    let mut all = [
        association::CASES,
        receiver::CASES,
        faults::CASES,
        sender::CASES,
    ]
    .concat();
    all.sort_by_key(|case| case.id);
    all
}
