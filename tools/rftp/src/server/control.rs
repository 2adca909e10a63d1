//! One client: its commands and their replies (RFC 959, 2389, 2428, 3659, 4217).

use std::io::{self, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_transfer::disk::Metadata;
use dgiwarp_transfer::wire::FileKind;
use nix::errno::Errno;

use super::command::Command;
use super::data::{self, Data};
use super::list::{self, Form};
use super::sessions::Meeting;
use super::{Server, User};
use crate::path::{resolve, shown};
use crate::stream::Stream;
use crate::{tcp, time};

/// Time without a command after which a client is sent away.
const IDLE: Duration = Duration::from_secs(300);
/// Wrong passwords after which it is.
const MAX_FAILURES: u32 = 3;

const FEATURES: &str = " EPRT\r\n EPSV\r\n MDTM\r\n MFMT\r\n \
    MLST type*;size*;modify*;perm*;UNIX.mode*;unique*;\r\n REST STREAM\r\n SIZE\r\n TVFS\r\n UTF8\r\n RDMA dgiwarp/1\r\n RDMA protected\r\n211 End\r\n";
/// Features of a server with TLS beside them.
const TLS_FEATURES: &str = " AUTH TLS\r\n PBSZ\r\n PROT\r\n";

/// State of one client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) server: Arc<Server>,
    pub(super) stream: BufReader<Stream>,
    /// TLS of this client, once it is there.
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
    /// Data connections are under TLS.
    pub(super) is_private: bool,
    pub(super) local: IpAddr,
    pub(super) peer: SocketAddr,
    name: Option<String>,
    pub(super) user: Option<User>,
    failures: u32,
    directory: PathBuf,
    data: Data,
    epsv_only: bool,
    restart: u64,
    rename_from: Option<PathBuf>,
    /// HASH is BLAKE3 instead of SHA-256.
    pub(super) is_blake3: bool,
    pub(super) meeting: Option<Meeting>,
}

/// Whether the client goes on.
pub(super) enum Turn {
    Next,
    End,
}

/// Serves a client until it leaves.
pub(super) fn serve(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    tcp::watch(&stream, data::GONE)?;
    let mut client = Client {
        server: Arc::clone(server),
        local: stream.local_addr()?.ip().to_canonical(),
        stream: BufReader::new(Stream::Plain(stream)),
        tls: None,
        is_private: false,
        peer,
        name: None,
        user: None,
        failures: 0,
        directory: PathBuf::new(),
        data: Data::None,
        epsv_only: false,
        restart: 0,
        rename_from: None,
        is_blake3: false,
        meeting: None,
    };
    client.reply(220, "rftpd (dgiwarp)")?;
    loop {
        let command = match Command::read(&mut client.stream) {
            Ok(Some(command)) => command,
            Ok(None) => return Ok(()),
            // TLS without a notice of the end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return client.reply(421, "Nothing came for five minutes");
            }
            Err(error) => return Err(error),
        };
        if server.config.verbose {
            let argument = match command.verb.as_str() {
                "PASS" => "***".into(),
                _ => String::from_utf8_lossy(&command.argument)
                    .escape_debug()
                    .to_string(),
            };
            server.log(Some(peer), &format!("{} {argument}", command.verb));
        }
        match client.obey(&command)? {
            Turn::Next => {}
            Turn::End => return Ok(()),
        }
    }
}

impl Client {
    pub(super) fn reply(&mut self, code: u16, text: &str) -> io::Result<()> {
        let text: String = text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        self.send(format!("{code} {text}\r\n").as_bytes())
    }

    fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(octets)?;
        stream.flush()
    }

    /// Nobody is logged in any more, and nothing is begun.
    pub(super) fn forget(&mut self) {
        (self.name, self.user) = (None, None);
        (self.data, self.meeting) = (Data::None, None);
        self.directory = PathBuf::new();
    }

    fn reply_path(&mut self, code: u16, path: &Path, text: &str) -> io::Result<()> {
        let mut out = format!("{code} \"").into_bytes();
        for octet in list::clean(Path::new(std::ffi::OsStr::new("/")).join(path).as_os_str()) {
            out.push(octet);
            if octet == b'"' {
                out.push(octet);
            }
        }
        out.extend(format!("\" {text}\r\n").as_bytes());
        self.send(&out)
    }

    /// Replies to a failure of the file system.
    pub(super) fn fail(&mut self, error: &io::Error) -> io::Result<()> {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => self.reply(452, "No space left"),
            Errno::EFBIG => self.reply(552, "The file would be too large"),
            Errno::EXDEV => self.reply(550, "The name leaves the root"),
            Errno::ENOENT => self.reply(550, "No such file or directory"),
            Errno::EISDIR => self.reply(550, "Is a directory"),
            _ => self.reply(550, &error.to_string()),
        }
    }

    fn path(&self, command: &Command) -> PathBuf {
        self.resolve(&command.argument)
    }

    pub(super) fn resolve(&self, name: &[u8]) -> PathBuf {
        resolve(&self.directory, name)
    }

    fn may_write(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.may_write)
    }

    fn obey(&mut self, command: &Command) -> io::Result<Turn> {
        // A restart and the first half of a renaming count for the next command alone.
        let restart = std::mem::take(&mut self.restart);
        let rename_from = self.rename_from.take();
        match command.verb.as_str() {
            "USER" if self.lacks_tls() => self.reply(530, "AUTH TLS first")?,
            "USER" => {
                self.user = None;
                self.name = Some(command.text().to_owned());
                self.reply(331, "Password, please")?;
            }
            "PASS" => return self.log_in(command),
            "QUIT" => {
                self.reply(221, "Goodbye")?;
                return Ok(Turn::End);
            }
            "FEAT" => {
                let has_tls = self.server.config.tls.is_some();
                let more = if has_tls { TLS_FEATURES } else { "" };
                let hashes = self.hashes();
                let text = format!("211-Features:\r\n{more}{hashes}{FEATURES}");
                self.send(text.as_bytes())?;
            }
            "SYST" => self.reply(215, "UNIX Type: L8")?,
            "NOOP" => self.reply(200, "Yes")?,
            "OPTS" if command.text().to_ascii_uppercase().starts_with("UTF8") => {
                self.reply(200, "Names are octets")?;
            }
            "AUTH" | "PBSZ" | "PROT" | "CCC" => return self.secure(command),
            "OPTS" if command.text().to_ascii_uppercase().starts_with("HASH") => {
                self.choose_hash(command)?;
            }
            _ if self.user.is_none() => self.reply(530, "Log in first")?,
            "REST" => match command.text().parse() {
                Ok(offset) => {
                    self.restart = offset;
                    self.reply(350, &format!("Restarting at {offset}"))?;
                }
                Err(_) => self.reply(501, "Not a number of octets")?,
            },
            "RNFR" => {
                let path = self.path(command);
                match self.server.root.link_metadata(&path) {
                    Ok(_) => {
                        self.rename_from = Some(path);
                        self.reply(350, "And its new name")?;
                    }
                    Err(error) => self.fail(&error)?,
                }
            }
            "RNTO" => match rename_from {
                Some(from) => {
                    let to = self.path(command);
                    self.change(|client| client.server.root.rename(&from, &to))?;
                }
                None => self.reply(503, "RNFR first")?,
            },
            "RETR" => self.retrieve(command, restart)?,
            "STOR" => self.store(command, restart)?,
            "APPE" => self.append(command)?,
            "PASV" | "EPSV" | "PORT" | "EPRT" => self.agree(command)?,
            "LIST" | "NLST" | "MLSD" => self.list(command)?,
            "RPSV" | "RADR" | "RSTR" | "RRTR" => self.session(command)?,
            _ => self.small(command)?,
        }
        Ok(Turn::Next)
    }

    fn log_in(&mut self, command: &Command) -> io::Result<Turn> {
        let Some(name) = self.name.take() else {
            self.reply(503, "USER first")?;
            return Ok(Turn::Next);
        };
        self.user = self.server.config.users.check(&name, command.text());
        if self.user.is_some() {
            self.reply(230, "Welcome")?;
            return Ok(Turn::Next);
        }
        self.failures += 1;
        if self.failures >= MAX_FAILURES {
            self.reply(421, "Too many wrong passwords")?;
            return Ok(Turn::End);
        }
        self.reply(530, "Wrong name or password")?;
        Ok(Turn::Next)
    }

    /// Commands without data connection.
    fn small(&mut self, command: &Command) -> io::Result<()> {
        let path = self.path(command);
        let server = Arc::clone(&self.server);
        let root = &server.root;
        match command.verb.as_str() {
            "TYPE" => match command.text().to_ascii_uppercase().as_str() {
                "I" | "L 8" | "A" | "A N" => self.reply(200, "Octets are not converted"),
                _ => self.reply(504, "Only I and A"),
            },
            "MODE" if command.text().eq_ignore_ascii_case("S") => self.reply(200, "Stream"),
            "STRU" if command.text().eq_ignore_ascii_case("F") => self.reply(200, "File"),
            "MODE" | "STRU" => self.reply(504, "Only stream and file"),
            "ALLO" | "ACCT" => self.reply(202, "Not needed"),
            "ABOR" => self.reply(226, "Nothing is on its way"),
            "HELP" | "STAT" if command.argument.is_empty() => self.reply(211, "rftpd (dgiwarp)"),
            "PWD" | "XPWD" => {
                let directory = self.directory.clone();
                self.reply_path(257, &directory, "is the directory")
            }
            "CWD" | "XCWD" | "CDUP" | "XCUP" => {
                let up = command.verb.ends_with("UP");
                let path = if up {
                    resolve(&self.directory, b"..")
                } else {
                    path
                };
                match root.list_check(&path) {
                    Ok(()) => {
                        self.directory = path;
                        self.reply(250, "Yes")
                    }
                    Err(error) => self.fail(&error),
                }
            }
            "SIZE" => match root.metadata(&path) {
                Ok(it) if it.kind() == Some(FileKind::File) => {
                    self.reply(213, &it.size().to_string())
                }
                Ok(_) => self.reply(550, "Not a file"),
                Err(error) => self.fail(&error),
            },
            "MDTM" => match root.metadata(&path) {
                Ok(it) => self.reply(213, &time::stamp(it.modified())),
                Err(error) => self.fail(&error),
            },
            "MLST" => match root.metadata(&path) {
                Ok(it) => self.facts(&path, &it),
                Err(error) => self.fail(&error),
            },
            "MFMT" => self.date(command),
            "SITE" => self.site(command),
            "HASH" => self.hash(command),
            "DELE" => self.change(|client| client.server.root.remove_file(&path)),
            "RMD" | "XRMD" => self.change(|client| client.server.root.remove_dir(&path)),
            "MKD" | "XMKD" => {
                if !self.may_write() {
                    return self.reply(550, "Only reading is permitted");
                }
                match root.create_dir(&path) {
                    Ok(()) => self.reply_path(257, &path, "is there"),
                    Err(error) => self.fail(&error),
                }
            }
            _ => self.reply(502, "Not a command of this server"),
        }
    }

    fn facts(&mut self, path: &Path, metadata: &Metadata) -> io::Result<()> {
        let facts = list::facts(metadata, None, self.may_write());
        let mut out = format!("250-Facts\r\n {facts} ").into_bytes();
        let shown = shown(path);
        out.extend(list::clean(std::os::unix::ffi::OsStrExt::from_bytes(
            &shown[..],
        )));
        out.extend(b"\r\n250 End\r\n");
        self.send(&out)
    }

    /// Changes something, with the right to.
    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.may_write() {
            return self.reply(550, "Only reading is permitted");
        }
        match change(self) {
            Ok(()) => self.reply(250, "Done"),
            Err(error) => self.fail(&error),
        }
    }

    fn agree(&mut self, command: &Command) -> io::Result<()> {
        self.data = Data::None;
        let text = command.text().to_owned();
        let active = match command.verb.as_str() {
            "PORT" => Some(data::parse_port(&text)),
            "EPRT" => Some(data::parse_eprt(&text)),
            _ => None,
        };
        if self.epsv_only && command.verb != "EPSV" {
            return self.reply(501, "EPSV ALL was agreed on");
        }
        if let Some(address) = active {
            return match address {
                // RFC 2577: no bounce.
                Some(it) if tcp::is_same(it.ip(), self.peer.ip()) && it.port() >= 1024 => {
                    self.data = Data::Active(it);
                    self.reply(200, "Agreed")
                }
                Some(_) => self.reply(504, "Not your own address, or a port below 1024"),
                None => self.reply(501, "Not an address"),
            };
        }
        if command.verb == "EPSV" && text.eq_ignore_ascii_case("ALL") {
            self.epsv_only = true;
            return self.reply(200, "EPSV only");
        }
        let ports = self.server.config.passive_ports.clone();
        let listener = match data::listen(self.local, ports.as_ref()) {
            Ok(listener) => listener,
            Err(error) => return self.reply(425, &format!("No port: {error}")),
        };
        let address = listener.local_addr()?;
        if command.verb == "EPSV" {
            let port = address.port();
            self.reply(229, &format!("Entering extended passive mode (|||{port}|)"))?;
        } else {
            let Some(address) = data::pasv(address) else {
                return self.reply(425, "Use EPSV");
            };
            self.reply(227, &format!("Entering passive mode ({address})"))?;
        }
        self.data = Data::Passive(listener);
        Ok(())
    }

    /// Opens the data connection; a failure has its reply.
    pub(super) fn open_data(&mut self, text: &str) -> io::Result<Result<Stream, (u16, String)>> {
        if let Data::None = self.data {
            return Ok(Err((425, "PASV or EPSV first".into())));
        }
        if !self.is_private && self.requires_tls() {
            return Ok(Err((521, "PROT P first".into())));
        }
        self.reply(150, text)?;
        let opened = std::mem::take(&mut self.data).open(self.peer.ip());
        let opened = opened.and_then(|tcp| self.protect(tcp));
        Ok(opened.map_err(|error| (425, format!("No data connection: {error}"))))
    }

    /// Opens the data connection, with the replies of failures.
    pub(super) fn open(&mut self, text: &str) -> io::Result<Option<Stream>> {
        match self.open_data(text)? {
            Ok(stream) => Ok(Some(stream)),
            Err((code, text)) => {
                self.reply(code, &text)?;
                Ok(None)
            }
        }
    }

    fn list(&mut self, command: &Command) -> io::Result<()> {
        let form = match command.verb.as_str() {
            "LIST" => Form::Long,
            "NLST" => Form::Names,
            _ => Form::Facts,
        };
        let mut argument = &command.argument[..];
        // Options of `ls`, which many clients send.
        while form != Form::Facts && argument.starts_with(b"-") {
            let end = argument.iter().position(|it| *it == b' ');
            argument = end.map_or(&[][..], |end| &argument[end + 1..]);
        }
        let path = resolve(&self.directory, argument);
        let mut out = Vec::new();
        let root = &self.server.root;
        if let Err(error) = list::write(root, &path, form, self.may_write(), &mut out) {
            return self.fail(&error);
        }
        let Some(mut stream) = self.open("Here it is")? else {
            return Ok(());
        };
        let sent = stream.write_all(&out).and_then(|()| stream.end());
        drop(stream);
        self.ended(&sent)
    }

    pub(super) fn ended(&mut self, moved: &io::Result<()>) -> io::Result<()> {
        match moved {
            Ok(()) => self.reply(226, "Done"),
            Err(error) => self.reply(426, &format!("The data connection is lost: {error}")),
        }
    }

    pub(super) fn resolved(&self, command: &Command) -> PathBuf {
        self.path(command)
    }

    pub(super) fn writes(&self) -> bool {
        self.may_write()
    }
}
