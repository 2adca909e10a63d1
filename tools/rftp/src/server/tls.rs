//! TLS of the server's end (RFC 4217).

use std::fmt;
use std::io;
use std::io::BufReader;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{HandshakeKind, ServerConfig, ServerConnection};

use super::command::Command;
use super::control::{Client, Turn};
use super::data;
use crate::stream::Stream;

/// Sessions of a client that are remembered at most; most clients have tickets instead.
const SESSIONS: usize = 16;

/// Configuration of TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Nobody logs in without TLS, and no data connection is plain.
    pub required: bool,
    /// A data connection resumes the session of its control connection, which proves that it is the same client's.
    pub reuse: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tls");
        shown.field("required", &self.required);
        shown.field("reuse", &self.reuse).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate, with those that signed it behind it, and its key from PEM files.
    ///
    /// # Errors
    /// The reason.
    pub fn new(certificate: &Path, key: &Path) -> Result<Self, String> {
        let wrong = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(certificate, &error))?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|error| wrong(certificate, &error))?;
        Ok(Self {
            config: Arc::new(config),
            required: false,
            reuse: false,
        })
    }

    /// Configuration of one control connection: with keys of tickets and a memory of sessions of its own, so that what is resumed is its own session.
    fn of_client(&self) -> io::Result<Arc<ServerConfig>> {
        let mut config = ServerConfig::clone(&self.config);
        config.ticketer = ring::Ticketer::new().map_err(io::Error::other)?;
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        Ok(Arc::new(config))
    }
}

fn begin(config: &Arc<ServerConfig>, tcp: TcpStream) -> io::Result<Stream> {
    let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    Stream::server(tls, tcp)
}

impl Client {
    pub(super) fn requires_tls(&self) -> bool {
        self.server
            .config
            .tls
            .as_ref()
            .is_some_and(|it| it.required)
    }

    /// Whether TLS has to come before a log-in.
    pub(super) fn lacks_tls(&self) -> bool {
        self.requires_tls() && !self.stream.get_ref().is_secure()
    }

    /// A data connection as PROT wants it.
    pub(super) fn protect(&self, tcp: TcpStream) -> io::Result<Stream> {
        let Some(config) = self.tls.as_ref().filter(|_| self.is_private) else {
            return Ok(Stream::Plain(tcp));
        };
        let stream = begin(config, tcp)?;
        let is_resumed = match &stream {
            Stream::Server(tls) => tls.conn.handshake_kind() == Some(HandshakeKind::Resumed),
            Stream::Plain(_) | Stream::Client(_) => false,
        };
        if is_resumed || !self.server.config.tls.as_ref().is_some_and(|it| it.reuse) {
            return Ok(stream);
        }
        Err(io::Error::other("TLS did not resume the session"))
    }

    /// AUTH, PBSZ, PROT and CCC.
    pub(super) fn secure(&mut self, command: &Command) -> io::Result<Turn> {
        let Some(tls) = self.server.config.tls.clone() else {
            self.reply(502, "No TLS here")?;
            return Ok(Turn::Next);
        };
        let is_secure = self.stream.get_ref().is_secure();
        let text = command.text().to_ascii_uppercase();
        match (command.verb.as_str(), text.as_str()) {
            ("AUTH", _) if is_secure => self.reply(503, "TLS is there")?,
            ("AUTH", "TLS" | "TLS-C") => return self.authenticate(&tls),
            ("AUTH", _) => self.reply(504, "Only TLS")?,
            ("CCC", _) => self.reply(533, "Commands stay under TLS")?,
            _ if !is_secure => self.reply(503, "AUTH TLS first")?,
            ("PBSZ", _) => self.reply(200, "PBSZ=0")?,
            ("PROT", "P") => {
                self.is_private = true;
                self.reply(200, "Data are protected")?;
            }
            ("PROT", "C") if tls.required => self.reply(534, "Only PROT P")?,
            ("PROT", "C") => {
                self.is_private = false;
                self.reply(200, "Data are plain")?;
            }
            _ => self.reply(536, "Only PROT C and P")?,
        }
        Ok(Turn::Next)
    }

    fn authenticate(&mut self, tls: &Tls) -> io::Result<Turn> {
        if !self.stream.buffer().is_empty() {
            // They came in plain text, from anybody, and would be obeyed as the client's.
            self.reply(421, "Commands behind AUTH")?;
            return Ok(Turn::End);
        }
        let tcp = self.stream.get_ref().tcp().try_clone()?;
        self.reply(234, "TLS begins")?;
        self.forget();
        let timeout = tcp.read_timeout()?;
        tcp.set_read_timeout(Some(data::CONNECT))?;
        let config = tls.of_client()?;
        let stream = begin(&config, tcp)?;
        self.tls = Some(config);
        stream.tcp().set_read_timeout(timeout)?;
        self.stream = BufReader::new(stream);
        Ok(Turn::Next)
    }
}
