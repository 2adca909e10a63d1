//! The rules of this process.

use crate::rules::{self, Direction, Protocol, Rule, Subject};
use crate::system::report;
use std::sync::OnceLock;
use std::{env, fs};

/// Environment variable of the rules.
pub(crate) const VARIABLE: &str = "DGIWARP_SOCKETS_RULES";

/// File name of the program.
pub(crate) fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = fs::read_link("/proc/self/exe").unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    })
}

/// Whether sockets of this process may become rsockets; `None` where no rule decides.
pub(crate) fn decide(port: u16, direction: Direction, protocol: Protocol) -> Option<bool> {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let text = env::var(VARIABLE).unwrap_or_default();
        rules::parse(&text).unwrap_or_else(|wrong| {
            report::warn(&format!(
                "{VARIABLE}: {wrong:?} is no rule, and all sockets stay the system's"
            ));
            Rule::parse("off").into_iter().collect()
        })
    });
    let of = Subject {
        port,
        direction,
        protocol,
    };
    rules::decide(rules, program(), of)
}

/// Whether this program is known to make a child for each connection.
pub(crate) fn forks() -> bool {
    rules::forks(program())
}
