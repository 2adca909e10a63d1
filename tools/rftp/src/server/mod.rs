//! The server: a thread for each client.

mod command;
mod control;
mod data;
mod files;
mod list;
mod sessions;
mod tls;
mod users;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use dgiwarp::Rnic;
use dgiwarp_transfer::disk::Root;
use dgiwarp_transfer::{Options, rc_config};

pub use tls::Tls;
pub use users::{User, Users};

/// Configuration of a server.
#[derive(Debug)]
pub struct Config {
    /// Users and their rights.
    pub users: Users,
    /// Ports for data connections; `None`: of the system's choice.
    pub passive_ports: Option<RangeInclusive<u16>>,
    /// Clients at a time.
    pub max_clients: usize,
    /// TLS; `None`: there is none.
    pub tls: Option<Tls>,
    /// Sizes of RDMA and TCP sessions.
    pub options: Options,
    /// Whether data is synchronized to the disk.
    pub durable: bool,
    /// Whether commands are logged.
    pub verbose: bool,
}

/// A server of one root.
#[derive(Debug)]
pub struct Server {
    config: Config,
    root: Arc<Root>,
    rnic: OnceLock<Rnic>,
    clients: AtomicUsize,
}

impl Server {
    /// A server of a directory.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub fn new(root: &Path, config: Config) -> io::Result<Arc<Self>> {
        let root = Arc::new(Root::open(root)?);
        let (rnic, clients) = (OnceLock::new(), AtomicUsize::new(0));
        Ok(Arc::new(Self {
            config,
            root,
            rnic,
            clients,
        }))
    }

    /// Serves a listener's clients until the process ends.
    ///
    /// # Errors
    /// The listener is broken.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        loop {
            match listener.accept() {
                Ok((stream, peer)) => self.take(stream, peer),
                // Of one client, or a lack that passes.
                Err(error) => {
                    self.log(None, &format!("cannot accept a client: {error}"));
                    if error.raw_os_error() == Some(nix::errno::Errno::EBADF as i32) {
                        return Err(error);
                    }
                    data::pause();
                }
            }
        }
    }

    fn take(self: &Arc<Self>, mut stream: TcpStream, peer: SocketAddr) {
        if self.clients.fetch_add(1, Ordering::Relaxed) >= self.config.max_clients {
            self.clients.fetch_sub(1, Ordering::Relaxed);
            // The socket's buffer takes one line.
            let _ = stream.write_all(b"421 Too many clients\r\n");
            return;
        }
        let server = Arc::clone(self);
        let serve = move || {
            let ended = control::serve(&server, stream, peer);
            if let Err(error) = ended {
                server.log(Some(peer), &format!("connection lost: {error}"));
            }
            server.clients.fetch_sub(1, Ordering::Relaxed);
        };
        let spawned = thread::Builder::new()
            .name("rftpd-client".into())
            .spawn(serve);
        if let Err(error) = spawned {
            self.clients.fetch_sub(1, Ordering::Relaxed);
            self.log(Some(peer), &format!("no thread for a client: {error}"));
        }
    }

    /// The device, opened for the first session that needs it.
    fn rnic(&self) -> Result<Rnic, dgiwarp::Error> {
        if let Some(rnic) = self.rnic.get() {
            return Ok(rnic.clone());
        }
        let rnic = Rnic::open(rc_config())?;
        Ok(self.rnic.get_or_init(|| rnic).clone())
    }

    fn log(&self, peer: Option<SocketAddr>, text: &str) {
        if self.config.verbose {
            let peer = peer.map(|it| format!("{it}: ")).unwrap_or_default();
            eprintln!("rftpd: {peer}{text}");
        }
    }
}
