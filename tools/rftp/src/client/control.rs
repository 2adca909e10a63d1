//! The client's end of a control connection.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::tls::{self, Tls};
use super::url::{Scheme, Url};
use crate::stream::Stream;
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
    input: BufReader<Stream>,
    pub(super) peer: SocketAddr,
    /// TLS and the host's name, where data connections are under it, too.
    secure: Option<(Tls, String)>,
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

/// A connection that did not come up.
struct Unopened {
    text: String,
    /// The server has no version of TLS that was offered.
    is_version: bool,
}

impl From<String> for Unopened {
    fn from(text: String) -> Self {
        let is_version = false;
        Self { text, is_version }
    }
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
    pub(super) fn open(url: &Url, patience: Duration, tls: Option<&Tls>) -> Result<Self, String> {
        let at = format!("{}:{}", url.host, url.port);
        let addresses = (url.host.as_str(), url.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| format!("{at}: {error}"))?;
        let mut last = format!("{at}: no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    let begun = Self::agree(stream, &address, url, patience, tls);
                    return begun.map_err(|error| format!("{at}: {error}"));
                }
                Err(error) => last = format!("{at}: {error}"),
            }
        }
        Err(last)
    }

    /// Begins with TLS 1.2 where data connections are to resume its session, with a later one where the server has no other.
    fn agree(
        stream: TcpStream,
        address: &SocketAddr,
        url: &Url,
        patience: Duration,
        tls: Option<&Tls>,
    ) -> Result<Self, String> {
        let Some(tls) = tls.filter(|_| url.scheme != Scheme::Rftp) else {
            return Self::begin(stream, url, patience, tls).map_err(|it| it.text);
        };
        match Self::begin(stream, url, patience, Some(&tls.repeatable())) {
            Err(unopened) if unopened.is_version => {
                let stream = TcpStream::connect_timeout(address, CONNECT);
                let stream = stream.map_err(|error| error.to_string())?;
                Self::begin(stream, url, patience, Some(tls)).map_err(|it| it.text)
            }
            other => other.map_err(|it| it.text),
        }
    }

    fn begin(
        stream: TcpStream,
        url: &Url,
        patience: Duration,
        tls: Option<&Tls>,
    ) -> Result<Self, Unopened> {
        let begin = || -> io::Result<Self> {
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            let gone = match url.scheme {
                Scheme::Rftp => GONE,
                Scheme::Ftp | Scheme::Ftps => patience,
            };
            tcp::watch(&stream, gone)?;
            let peer = stream.peer_addr()?;
            let input = BufReader::new(Stream::Plain(stream));
            Ok(Self {
                input,
                peer,
                secure: None,
                features: Vec::new(),
                patience,
            })
        };
        let mut control = begin().map_err(|error| error.to_string())?;
        let is_implicit = url.scheme == Scheme::Ftps;
        if let Some(tls) = tls.filter(|_| is_implicit) {
            control.encrypt(tls, &url.host)?;
        }
        control.expect_greeting()?;
        if let Some(tls) = tls.filter(|_| !is_implicit) {
            let reply = control.ask(&[b"AUTH TLS"])?;
            if reply.code != 234 {
                return Err(format!("the server has no TLS: {reply}").into());
            }
            control.encrypt(tls, &url.host)?;
        }
        control.log_in(url)?;
        if let Some(tls) = tls.filter(|_| url.scheme != Scheme::Rftp) {
            control.protect(tls, &url.host)?;
        }
        let features = control.ask(&[b"FEAT"])?;
        if features.code == 211 {
            let lines = features.text.lines();
            control.features = lines.map(|it| it.trim().to_owned()).collect();
        }
        if url.scheme == Scheme::Rftp && !control.has("RDMA dgiwarp/1") {
            let text = "the server is no rftpd: it does not announce RDMA dgiwarp/1";
            return Err(text.to_owned().into());
        }
        if let Some(tls) = tls.filter(|_| url.scheme == Scheme::Rftp) {
            if !control.has("RDMA protected") {
                return Err("the server cannot encrypt data".to_owned().into());
            }
            control.protect(tls, &url.host)?;
        }
        Ok(control)
    }

    /// Goes on under TLS.
    fn encrypt(&mut self, tls: &Tls, host: &str) -> Result<(), Unopened> {
        if !self.input.buffer().is_empty() {
            // They came in plain text, from anybody, and would be believed as the server's.
            return Err("octets between the reply to AUTH and TLS".to_owned().into());
        }
        let tcp = self.input.get_ref().tcp().try_clone();
        let tcp = tcp.map_err(|error| error.to_string())?;
        let stream = Stream::client(tls.connection(host)?, tcp);
        let stream = stream.map_err(|error| Unopened {
            text: tls::failed(&error),
            is_version: tls::is_version(&error),
        });
        self.input = BufReader::new(stream?);
        Ok(())
    }

    /// Whether data are encrypted.
    pub(super) fn is_private(&self) -> bool {
        self.secure.is_some()
    }

    /// Data are encrypted from now on: those of FTP by TLS, those of sessions with keys of their tokens.
    fn protect(&mut self, tls: &Tls, host: &str) -> Result<(), String> {
        for command in [&b"PBSZ 0"[..], b"PROT P"] {
            let reply = self.ask(&[command])?;
            if !reply.is_good() {
                return Err(format!("data cannot be under TLS: {reply}"));
            }
        }
        self.secure = Some((tls.clone(), host.to_owned()));
        Ok(())
    }

    /// A data connection, under TLS if that was agreed on.
    pub(super) fn data(&self, tcp: TcpStream) -> Result<Stream, String> {
        let Some((tls, host)) = &self.secure else {
            return Ok(Stream::Plain(tcp));
        };
        let stream = Stream::client(tls.connection(host)?, tcp);
        stream.map_err(|error| tls::failed(&error))
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

    /// Whether a feature's list of words, `a;b*;c`, has one of this name.
    pub(super) fn has_among(&self, feature: &str, name: &str) -> bool {
        self.features.iter().any(|line| {
            let (begins, words) = line.split_once(' ').unwrap_or_default();
            let mut words = words.split(';').map(|it| it.trim().trim_end_matches('*'));
            begins.eq_ignore_ascii_case(feature) && words.any(|it| it.eq_ignore_ascii_case(name))
        })
    }

    /// This host's address and port.
    pub(super) fn local(&self) -> Result<SocketAddr, String> {
        let local = self.input.get_ref().tcp().local_addr();
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
        let stream = self.input.get_mut();
        let sent = stream.write_all(&line).and_then(|()| stream.flush());
        sent.map_err(|error| lost(&error))?;
        self.reply()
    }

    /// As [`ask`](Self::ask), for a command that takes the server so many seconds longer.
    pub(super) fn ask_long(&mut self, command: &[&[u8]], seconds: u64) -> Result<Reply, String> {
        let patience = self.patience + Duration::from_secs(seconds);
        let set = |control: &Self, time| {
            let set = control.input.get_ref().tcp().set_read_timeout(Some(time));
            set.map_err(|error| lost(&error))
        };
        set(self, patience)?;
        let reply = self.ask(command);
        set(self, self.patience)?;
        reply
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
