//! The client's end of a control connection.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::url::Url;

/// Time for a connection, and for a reply that does not wait for a session.
const CONNECT: Duration = Duration::from_secs(4);
/// Time for a reply: the server may synchronize its disk before one.
const REPLY: Duration = Duration::from_secs(60);
/// Most octets of a line, and lines of a reply.
const LINE_LIMIT: u64 = 8192;
const LINES_LIMIT: usize = 1000;

/// A control connection, logged in.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    pub(super) peer: SocketAddr,
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

impl Control {
    /// Connects, logs in and checks that the server has sessions.
    pub(super) fn open(url: &Url) -> Result<Self, String> {
        let at = format!("{}:{}", url.host, url.port);
        let addresses = (url.host.as_str(), url.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| format!("{at}: {error}"))?;
        let mut last = format!("{at}: no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    return Self::begin(stream, url).map_err(|error| format!("{at}: {error}"));
                }
                Err(error) => last = format!("{at}: {error}"),
            }
        }
        Err(last)
    }

    fn begin(stream: TcpStream, url: &Url) -> Result<Self, String> {
        let begin = || -> io::Result<Self> {
            stream.set_read_timeout(Some(REPLY))?;
            stream.set_write_timeout(Some(REPLY))?;
            let socket = SockRef::from(&stream);
            let second = Duration::from_secs(1);
            let keepalive = TcpKeepalive::new().with_time(second);
            let keepalive = keepalive.with_interval(second).with_retries(3);
            socket.set_tcp_keepalive(&keepalive)?;
            socket.set_tcp_user_timeout(Some(CONNECT))?;
            socket.set_tcp_nodelay(true)?;
            let peer = stream.peer_addr()?;
            let input = BufReader::new(stream.try_clone()?);
            Ok(Self {
                stream,
                input,
                peer,
            })
        };
        let mut control = begin().map_err(|error| error.to_string())?;
        control.expect_greeting()?;
        let (name, password) = match &url.user {
            Some((name, password)) => (name.as_str(), password.as_str()),
            None => ("anonymous", "rftp@"),
        };
        let reply = control.ask(&[b"USER ", name.as_bytes()])?;
        let reply = match reply.code {
            331 => control.ask(&[b"PASS ", password.as_bytes()])?,
            _ => reply,
        };
        if reply.code != 230 {
            return Err(format!("not logged in: {}", reply.text));
        }
        let features = control.ask(&[b"FEAT"])?;
        if !features.text.contains("RDMA dgiwarp/1") {
            return Err("the server is no rftpd: it does not announce RDMA dgiwarp/1".into());
        }
        Ok(control)
    }

    /// This host's address and port.
    pub(super) fn local(&self) -> Result<SocketAddr, String> {
        self.stream.local_addr().map_err(|error| error.to_string())
    }

    fn expect_greeting(&mut self) -> Result<(), String> {
        let greeting = self.reply()?;
        if greeting.code == 220 {
            Ok(())
        } else {
            Err(greeting.text)
        }
    }

    /// Sends a command and waits for its reply.
    pub(super) fn ask(&mut self, command: &[&[u8]]) -> Result<Reply, String> {
        let line = [&command.concat()[..], b"\r\n"].concat();
        let sent = self.stream.write_all(&line);
        sent.map_err(|error| lost(&error))?;
        self.reply()
    }

    /// The next reply.
    pub(super) fn reply(&mut self) -> Result<Reply, String> {
        let first = self.line()?;
        let (code, rest) = split(&first).ok_or_else(|| format!("no FTP server: {first:?}"))?;
        let mut text = rest.get(1..).unwrap_or_default().to_owned();
        if rest.starts_with('-') {
            for _ in 0..LINES_LIMIT {
                let line = self.line()?;
                let is_last =
                    split(&line).is_some_and(|(it, rest)| it == code && !rest.starts_with('-'));
                text.push('\n');
                text.push_str(&line);
                if is_last {
                    return Ok(Reply { code, text });
                }
            }
            return Err("a reply without end".into());
        }
        Ok(Reply { code, text })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        let read = self
            .input
            .by_ref()
            .take(LINE_LIMIT)
            .read_until(b'\n', &mut line);
        match read {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            Err(error) => Err(lost(&error)),
        }
    }
}

fn split(line: &str) -> Option<(u16, &str)> {
    let (code, rest) = line.split_at_checked(3)?;
    Some((code.parse().ok()?, rest))
}

fn lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => "the server does not reply".into(),
        _ => format!("the control connection is lost: {error}"),
    }
}
