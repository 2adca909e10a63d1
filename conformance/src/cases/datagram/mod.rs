//! D: the datagram mapping, with a UDP socket of the tester and a queue pair of the agent.

mod cookies;
mod groups;
mod reads;
mod records;
mod refused;
mod requester;
mod scene;
mod sends;
mod sent;
mod services;
mod sources;
mod uc;

use super::{Case, Family, agent_case};
use crate::bench::{Bench, Broken};

pub(crate) use scene::lives;

const F: Family = Family::Datagram;

/// A case of this family.
const fn datagrams(
    id: &'static str,
    about: &'static str,
    clauses: &'static [&'static str],
    run: fn(&mut Bench<'_>) -> Result<(), Broken>,
) -> Case {
    agent_case(id, F, about, clauses, run)
}

/// All of them, in order.
pub(super) fn cases() -> Vec<Case> {
    let mut all = [
        sends::CASES,
        refused::CASES,
        records::CASES,
        sources::CASES,
        cookies::CASES,
        reads::CASES,
        requester::CASES,
        sent::CASES,
        groups::CASES,
        uc::CASES,
        services::CASES,
    ]
    .concat();
    all.sort_by_key(|case| case.id);
    all
}
