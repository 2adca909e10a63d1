//! The client's end of a control connection.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::url::{Scheme, Url};
use crate::tcp;

/// Time for a connection to come up.
pub(super) const CONNECT: Duration = Duration::from_secs(4);
/// Time without an acknowledgement after which the host of a server that has sessions is gone.
const GONE: Duration = Duration::from_secs(4);
/// Most octets of a line, and lines of a reply.
const LINE_LIMIT: u64 = 8192;
const LINES_LIMIT: usize = 1000;

/// A control connection, logged in.
#[derive(Debug)]
pub(super) struct Control {
    input: BufReader<TcpStream>,
    pub(super) peer: SocketAddr,
    features: Vec<String>,
    /// Time for a reply.
    pub(super) patience: Duration,
}

/// A reply: its code, and its text with all lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) text: String,
}

impl Reply {
    pub(super) fn is_good(&self) -> bool {
        (200..400).contains(&self.code)
    }
}

/// A reply for people, in one line, without characters that a terminal obeys.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let text: String = self.text.chars().take(300).map(plain).collect();
        write!(f, "{text} ({})", self.code)
    }
}

impl Control {
    /// Connects and logs in. The server replies within `patience` to each command.
    pub(super) fn open(url: &Url, patience: Duration) -> Result<Self, String> {
        let at = format!("{}:{}", url.host, url.port);
        let addresses = (url.host.as_str(), url.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| format!("{at}: {error}"))?;
        let mut last = format!("{at}: no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    let begun = Self::begin(stream, url, patience);
                    return begun.map_err(|error| format!("{at}: {error}"));
                }
                Err(error) => last = format!("{at}: {error}"),
            }
        }
        Err(last)
    }

    fn begin(stream: TcpStream, url: &Url, patience: Duration) -> Result<Self, String> {
        let begin = || -> io::Result<Self> {
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            let gone = match url.scheme {
                Scheme::Rftp => GONE,
                Scheme::Ftp => patience,
            };
            tcp::watch(&stream, gone)?;
            let peer = stream.peer_addr()?;
            let input = BufReader::new(stream);
            Ok(Self {
                input,
                peer,
                features: Vec::new(),
                patience,
            })
        };
        let mut control = begin().map_err(|error| error.to_string())?;
        control.expect_greeting()?;
        control.log_in(url)?;
        let features = control.ask(&[b"FEAT"])?;
        if features.code == 211 {
            let lines = features.text.lines();
            control.features = lines.map(|it| it.trim().to_owned()).collect();
        }
        if url.scheme == Scheme::Rftp && !control.has("RDMA dgiwarp/1") {
            return Err("the server is no rftpd: it does not announce RDMA dgiwarp/1".into());
        }
        Ok(control)
    }

    fn log_in(&mut self, url: &Url) -> Result<(), String> {
        let (name, password) = match &url.user {
            Some((name, password)) => (name.as_str(), password.as_str()),
            None => ("anonymous", "rftp@"),
        };
        let reply = self.ask(&[b"USER ", name.as_bytes()])?;
        let reply = match reply.code {
            331 => self.ask(&[b"PASS ", password.as_bytes()])?,
            _ => reply,
        };
        // 202: a password was not needed.
        if matches!(reply.code, 230 | 202) {
            Ok(())
        } else {
            Err(format!("not logged in: {reply}"))
        }
    }

    /// Whether the server announces a feature: a line of its reply to FEAT is this, or begins with it and a space.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|line| {
            let (begins, rest) = line.split_at_checked(feature.len()).unwrap_or_default();
            begins.eq_ignore_ascii_case(feature) && (rest.is_empty() || rest.starts_with(' '))
        })
    }

    /// This host's address and port.
    pub(super) fn local(&self) -> Result<SocketAddr, String> {
        let local = self.input.get_ref().local_addr();
        local.map_err(|error| error.to_string())
    }

    fn expect_greeting(&mut self) -> Result<(), String> {
        let mut greeting = self.reply()?;
        // 120: the server is ready in some minutes.
        if greeting.code == 120 {
            greeting = self.reply()?;
        }
        if greeting.code == 220 {
            Ok(())
        } else {
            Err(greeting.to_string())
        }
    }

    /// Sends a command and waits for its reply. One that the server closes the connection after is a failure.
    pub(super) fn ask(&mut self, command: &[&[u8]]) -> Result<Reply, String> {
        let command = command.concat();
        if command.iter().any(|it| matches!(it, b'\r' | b'\n' | 0)) {
            return Err("a command with the end of a line in it".into());
        }
        let line = [&command[..], b"\r\n"].concat();
        let sent = self.input.get_mut().write_all(&line);
        sent.map_err(|error| lost(&error))?;
        self.reply()
    }

    /// The next reply.
    pub(super) fn reply(&mut self) -> Result<Reply, String> {
        let first = self.line()?;
        let (code, rest) = split(&first).ok_or_else(|| format!("no FTP server: {first:.80?}"))?;
        let mut text = rest.get(1..).unwrap_or_default().to_owned();
        if rest.starts_with('-') {
            let mut is_whole = false;
            for _ in 0..LINES_LIMIT {
                let line = self.line()?;
                is_whole =
                    split(&line).is_some_and(|(it, rest)| it == code && !rest.starts_with('-'));
                text.push('\n');
                text.push_str(&line);
                if is_whole {
                    break;
                }
            }
            if !is_whole {
                return Err("a reply without end".into());
            }
        }
        let reply = Reply { code, text };
        if code == 421 {
            return Err(format!("the server closes the connection: {reply}"));
        }
        Ok(reply)
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        let mut input = self.input.by_ref().take(LINE_LIMIT);
        match input.read_until(b'\n', &mut line) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) if line.len() as u64 == LINE_LIMIT && !line.ends_with(b"\n") => {
                Err(format!("a line of more than {LINE_LIMIT} octets"))
            }
            Ok(_) => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            Err(error) => Err(lost(&error)),
        }
    }
}

fn split(line: &str) -> Option<(u16, &str)> {
    let (code, rest) = line.split_at_checked(3)?;
    let is_code = code.bytes().all(|it| it.is_ascii_digit());
    let code = code.parse().ok().filter(|_| is_code)?;
    (rest.is_empty() || rest.starts_with([' ', '-'])).then_some((code, rest))
}

fn lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => "the server does not reply".into(),
        _ => format!("the control connection is lost: {error}"),
    }
}
