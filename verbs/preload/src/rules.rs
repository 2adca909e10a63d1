//! Rules of `DGIWARP_SOCKETS_RULES`: which sockets may become rsockets.
//!
//! A rule is `on` or `off` with conditions behind colons, `off:program=sshd:port=22:direction=listen`; rules are separated by commas or blanks. The first whose conditions all
//! hold decides, and without one sockets may.

use std::ops::RangeInclusive;

/// Which end of connections a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Connect,
    Listen,
}

/// Protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// Socket that rules decide about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Port of the server, or of the end that datagrams go to.
    pub(crate) port: u16,
    pub(crate) direction: Direction,
    pub(crate) protocol: Protocol,
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    on: bool,
    program: Option<String>,
    ports: Option<RangeInclusive<u16>>,
    direction: Option<Direction>,
    protocol: Option<Protocol>,
}

impl Rule {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let on = match parts.next()? {
            "on" => true,
            "off" => false,
            _ => return None,
        };
        let mut rule = Self {
            on,
            program: None,
            ports: None,
            direction: None,
            protocol: None,
        };
        for part in parts {
            match part.split_once('=')? {
                ("program", name) => rule.program = Some(name.to_owned()),
                ("port", ports) => {
                    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                    rule.ports = Some(first.parse().ok()?..=last.parse().ok()?);
                }
                ("direction", "connect") => rule.direction = Some(Direction::Connect),
                ("direction", "listen") => rule.direction = Some(Direction::Listen),
                ("protocol", "tcp") => rule.protocol = Some(Protocol::Tcp),
                ("protocol", "udp") => rule.protocol = Some(Protocol::Udp),
                _ => return None,
            }
        }
        Some(rule)
    }

    fn holds(&self, program: &str, of: Subject) -> bool {
        self.program.as_ref().is_none_or(|it| it == program)
            && self.ports.as_ref().is_none_or(|it| it.contains(&of.port))
            && self.direction.is_none_or(|it| it == of.direction)
            && self.protocol.is_none_or(|it| it == of.protocol)
    }
}

/// Servers that make a child for each connection, which has it from then on.
const FORKING: &[&str] = &[
    "dropbear",
    "exim4",
    "git-daemon",
    "inetd",
    "netserver",
    "postgres",
    "proftpd",
    "pure-ftpd",
    "qperf",
    "rsync",
    "sendmail",
    "smbd",
    "sshd",
    "svnserve",
    "tcpserver",
    "vsftpd",
    "xinetd",
];

/// Whether a program is known as a server that makes a child for each connection: without a rule its listeners take no rsockets, which are good for one process.
pub(crate) fn forks(program: &str) -> bool {
    FORKING.contains(&program)
}

/// The rules of a text.
///
/// # Errors
/// The first that is none.
pub(crate) fn parse(text: &str) -> Result<Vec<Rule>, &str> {
    let rules = text.split([',', ' ', '\n']).filter(|it| !it.is_empty());
    rules.map(|it| Rule::parse(it).ok_or(it)).collect()
}

/// Whether sockets may become rsockets; `None` where no rule decides.
pub(crate) fn decide(rules: &[Rule], program: &str, of: Subject) -> Option<bool> {
    let rule = rules.iter().find(|it| it.holds(program, of));
    rule.map(|it| it.on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_holds_decides() {
        let rules = parse("on:port=80,off:program=sshd off:port=1-1023:direction=listen").unwrap();
        for (program, port, direction, allowed) in [
            ("sshd", 80, Direction::Listen, Some(true)),
            ("sshd", 22, Direction::Connect, Some(false)),
            ("nginx", 443, Direction::Listen, Some(false)),
            ("nginx", 443, Direction::Connect, None),
            ("nginx", 1024, Direction::Listen, None),
        ] {
            let of = Subject {
                port,
                direction,
                protocol: Protocol::Tcp,
            };
            let decided = decide(&rules, program, of);
            assert_eq!(decided, allowed, "{program} {of:?}");
            assert_eq!(decide(&[], program, of), None);
        }
    }

    #[test]
    fn servers_that_make_children_are_known() {
        assert!(forks("sshd"));
        assert!(forks("postgres"));
        assert!(!forks("nginx"));
        assert!(!forks("ssh"));
    }

    #[test]
    fn protocols_have_rules_of_their_own() {
        let rules = parse("off:protocol=udp:port=53,on:protocol=tcp").unwrap();
        for (port, protocol, allowed) in [
            (53, Protocol::Udp, Some(false)),
            (53, Protocol::Tcp, Some(true)),
            (54, Protocol::Udp, None),
        ] {
            let of = Subject {
                port,
                direction: Direction::Connect,
                protocol,
            };
            assert_eq!(decide(&rules, "x", of), allowed, "{of:?}");
        }
    }

    #[test]
    fn other_text_is_no_rule() {
        for text in [
            "maybe",
            "off:",
            "off:port",
            "off:port=x",
            "off:port=1-70000",
            "off:direction=both",
            "off:protocol=sctp",
            "off:host=x",
        ] {
            assert_eq!(parse(text), Err(text));
        }
        assert_eq!(parse(" , "), Ok(vec![]));
    }
}
