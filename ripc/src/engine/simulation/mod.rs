//! Callers and a server on links that lose, duplicate and reorder, with restarts of either, beside an oracle.
//!
//! A datagram is the instance that it is for, the instance that sent it, and a message, or none: a hello. One for an instance that is gone is answered
//! with a hello, as a connection that is gone ends. RC loses nothing while a connection lasts; the calls' rules have to hold on this too, where every message may be
//! lost with its connection, and come again.

mod nodes;
mod streams;
mod tests;

use std::collections::BTreeMap;

use nodes::{Caller, Ending, Party, Server};

/// Content of the right reply.
fn reply_of(caller: u64, number: u64) -> u64 {
    (caller ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Kind of a call, as its caller meant it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    idempotent: bool,
}

/// Everything that happened, in words of the world outside of the protocol.
#[derive(Debug, Default)]
struct History {
    /// By caller's instance and number: the plan, and the ends that the program got.
    calls: BTreeMap<(u64, u64), (Plan, Vec<Ending>)>,
    /// Server's instance, caller's instance, number.
    executions: Vec<(u64, u64, u64)>,
}

/// Ends of the calls of a run.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    calls: usize,
    right: usize,
    failed: usize,
    executed: usize,
}

/// The rules, from the history alone.
fn judge(history: &History) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let mut executed: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
    for (server, caller, number) in &history.executions {
        executed
            .entry((*caller, *number))
            .or_default()
            .push(*server);
    }
    for (call, servers) in &executed {
        let Some((plan, _)) = history.calls.get(call) else {
            return Err(format!("{call:?} was executed and never called"));
        };
        let mut distinct = servers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < servers.len() {
            return Err(format!("{call:?} was executed twice by one instance"));
        }
        if servers.len() > 1 && !plan.idempotent {
            return Err(format!("{call:?} was executed by {servers:?}"));
        }
    }
    for (call, (_, ends)) in &history.calls {
        tally.calls += 1;
        let was_executed = executed.contains_key(call);
        tally.executed += usize::from(was_executed);
        let [end] = ends.as_slice() else {
            return Err(format!("{call:?} has the ends {ends:?}"));
        };
        match end {
            Ending::Reply(content) => {
                if *content != reply_of(call.0, call.1) || !was_executed {
                    return Err(format!(
                        "{call:?}: reply {content}, executed {was_executed}"
                    ));
                }
                tally.right += 1;
            }
            Ending::NotExecuted if was_executed => {
                return Err(format!(
                    "{call:?} was executed, and its caller learned the contrary"
                ));
            }
            Ending::NotExecuted | Ending::MaybeExecuted | Ending::Crashed => tally.failed += 1,
        }
    }
    Ok(tally)
}
