//! Lines of a control connection.

use std::io::{self, BufRead, Read as _};

/// Most octets of a line.
const LINE_LIMIT: u64 = 8192;
/// Telnet's IAC (RFC 854): two octets that clients put before ABOR.
const IAC: u8 = 255;

/// A command: its name in capitals, and the rest of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) verb: String,
    pub(super) argument: Vec<u8>,
}

impl Command {
    /// Reads one; `None` at the end. A line that is too long, or none, is an empty command.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = Vec::new();
        from.by_ref()
            .take(LINE_LIMIT)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.len() as u64 == LINE_LIMIT && !line.ends_with(b"\n") {
            // The rest, without keeping it.
            loop {
                let mut rest = Vec::new();
                from.by_ref()
                    .take(LINE_LIMIT)
                    .read_until(b'\n', &mut rest)?;
                if rest.is_empty() || rest.ends_with(b"\n") {
                    return Ok(Some(Self::parse(b"")));
                }
            }
        }
        Ok(Some(Self::parse(&line)))
    }

    fn parse(line: &[u8]) -> Self {
        let mut line = line;
        while let [IAC, _, rest @ ..] = line {
            line = rest;
        }
        while let [rest @ .., b'\r' | b'\n'] = line {
            line = rest;
        }
        let end = line.iter().position(|it| *it == b' ').unwrap_or(line.len());
        let (verb, argument) = line.split_at(end);
        Self {
            verb: String::from_utf8_lossy(verb).to_ascii_uppercase(),
            argument: argument.get(1..).unwrap_or_default().to_vec(),
        }
    }

    /// The argument, where it is text.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.argument)
            .unwrap_or_default()
            .trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands() {
        let long = [vec![b'x'; 20_000], b"\r\nNOOP\r\n".to_vec()].concat();
        let mut input = [
            &b"user  a b \r\n\xff\xf4\xff\xf2abor\r\n\xff\r\n"[..],
            &long,
            b"QUIT",
        ]
        .concat();
        input.push(b'\n');
        let mut input = &input[..];
        let mut next = || {
            let command = Command::read(&mut input).unwrap()?;
            Some((command.verb, String::from_utf8(command.argument).unwrap()))
        };
        let line = |verb: &str, argument: &str| Some((verb.to_owned(), argument.to_owned()));
        assert_eq!(next(), line("USER", " a b "));
        assert_eq!(next(), line("ABOR", ""));
        assert_eq!(next().unwrap().1, "");
        assert_eq!(next(), line("", ""));
        assert_eq!(next(), line("NOOP", ""));
        assert_eq!(next(), line("QUIT", ""));
        assert_eq!(next(), None);
    }
}
