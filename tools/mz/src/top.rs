//! `mz top`: the transfers of this host that run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use dgiwarp_transfer_cli::{Failed, Session, human, sessions};
use serde_json::{Value, json};

/// Clears a terminal (ECMA-48, CUP and ED).
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Order of a view.
#[derive(Debug, Clone, Copy)]
pub struct Top {
    /// Once, and not again and again.
    pub once: bool,
    /// Time between two views, over which rates are taken.
    pub interval: Duration,
    /// One JSON object a line.
    pub json: bool,
}

/// Octets of the sessions at some time, by process and descriptor.
type Octets = BTreeMap<(u32, u32), u64>;

#[expect(clippy::disallowed_methods, reason = "an edge: rates take time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a view for people, again and again"
)]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Shows the transfers of this host.
///
/// # Errors
/// [`Failed::Session`] without `/proc`.
pub fn top(order: &Top) -> Result<(), Failed> {
    let look = || sessions().map_err(|error| Failed::Session(format!("/proc: {error}")));
    let mut before = octets_of(&look()?);
    let mut since = now();
    loop {
        sleep(order.interval);
        let (found, at) = (look()?, now());
        let text = view(order, &found, &before, at - since);
        let shown = io::stdout().write_all(text.as_bytes());
        // The reader has gone, or has enough.
        if order.once || shown.and_then(|()| io::stdout().flush()).is_err() {
            return Ok(());
        }
        (before, since) = (octets_of(&found), at);
    }
}

fn octets_of(sessions: &[Session]) -> Octets {
    let octets = |it: &Session| ((it.pid, it.descriptor), it.number("octets"));
    sessions.iter().map(octets).collect()
}

/// Octets per second of a session. One that is new has all of its octets from this time.
fn rate(session: &Session, before: &Octets, time: Duration) -> u64 {
    let former = before.get(&(session.pid, session.descriptor));
    let more = session
        .number("octets")
        .saturating_sub(*former.unwrap_or(&0));
    let millis = time.as_millis().max(1);
    u64::try_from(u128::from(more) * 1000 / millis).unwrap_or(u64::MAX)
}

fn view(order: &Top, found: &[Session], before: &Octets, time: Duration) -> String {
    let mut text = String::new();
    if order.json {
        for session in found {
            let _ = writeln!(text, "{}", object(session, rate(session, before, time)));
        }
        return text;
    }
    if !order.once {
        text += CLEAR;
    }
    if found.is_empty() {
        return text + "no transfers\n";
    }
    let _ = writeln!(
        text,
        "{:>8}  {:<12} {:>24} {:>14} {:>8}  {:<10}  NAME",
        "PID", "COMMAND", "OCTETS", "PER SECOND", "TIME", "LIMIT"
    );
    for session in found {
        let command = format!("{} {}", session.text("program"), session.text("verb"));
        let octets = format!(
            "{} of {}",
            human(session.number("octets")),
            human(session.number("total"))
        );
        let seconds = session.number("seconds");
        let _ = writeln!(
            text,
            "{:>8}  {:<12} {octets:>24} {:>14} {:>8}  {:<10}  {}",
            session.pid,
            command.trim(),
            human(rate(session, before, time)),
            format!("{}:{:02}", seconds / 60, seconds % 60),
            session.text("limited_by"),
            session.text("name"),
        );
    }
    text
}

fn object(session: &Session, rate: u64) -> Value {
    let mut object = json!({ "pid": session.pid, "octets_per_second": rate });
    for name in ["octets", "total", "entries", "seconds"] {
        object[name] = session.number(name).into();
    }
    for name in ["program", "verb", "limited_by", "name"] {
        object[name] = session.text(name).into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pid: u32, octets: u64) -> Session {
        Session {
            pid,
            descriptor: 3,
            record: json!({
                "program": "mz", "verb": "send", "octets": octets, "total": 4 << 20, "seconds": 61,
                "limited_by": "peer", "name": "tree/a\u{7}b",
            }),
        }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let before = octets_of(&[session(1, 1 << 20), session(2, 5)]);
        let half = Duration::from_millis(500);
        assert_eq!(rate(&session(1, 2 << 20), &before, half), 2 << 20);
        // It is another process of this number.
        assert_eq!(rate(&session(2, 0), &before, half), 0);
        assert_eq!(rate(&session(3, 100), &before, half), 200);
        assert_eq!(rate(&session(3, 100), &before, Duration::ZERO), 100_000);
    }

    #[test]
    fn views_are_for_people_and_for_programs() {
        let mut order = Top {
            once: true,
            interval: Duration::ZERO,
            json: false,
        };
        let time = Duration::from_secs(1);
        let found = [session(1, 1 << 20)];
        let text = view(&order, &found, &Octets::new(), time);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "1 mz send 1.00 MiB of 4.00 MiB 1.00 MiB 1:01 peer tree/a?b"
        );
        assert_eq!(view(&order, &[], &Octets::new(), time), "no transfers\n");
        order.once = false;
        assert!(view(&order, &[], &Octets::new(), time).starts_with(CLEAR));
        order.json = true;
        let text = view(&order, &found, &Octets::new(), time);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["octets_per_second"], 1 << 20);
        assert_eq!(value["name"], "tree/a?b");
        assert_eq!(view(&order, &[], &Octets::new(), time), "");
    }
}
