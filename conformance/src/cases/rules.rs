//! The rules of a sender, which hold for all that the device sends, whatever a case is about. One case for each rule of [`trace`](crate::trace).

use std::sync::LazyLock;

use super::{Case, Family, Level, Needs, Role};
use crate::bench::{Bench, Broken};
use crate::trace::{self, Keyword, Rule};

/// All of them; by the names of their rules.
static CASES: LazyLock<Vec<Case>> =
    LazyLock::new(|| trace::ALL.iter().map(|rule| case(rule)).collect());

pub(super) fn cases() -> Vec<Case> {
    CASES.clone()
}

fn case(rule: &'static Rule) -> Case {
    Case {
        id: rule.id,
        family: Family::Sent,
        about: rule.says,
        clauses: std::slice::from_ref(&rule.clause),
        role: Role::Initiator,
        needs: Needs::Port,
        level: match rule.keyword {
            Keyword::Must => Level::Must,
            Keyword::Should => Level::Should,
        },
        version: 1,
        may_crash: false,
        slow: false,
        run: nothing,
    }
}

/// The other cases have the device send; see `run::sent`.
fn nothing(_: &mut Bench<'_>) -> Result<(), Broken> {
    Ok(())
}
