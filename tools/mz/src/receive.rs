//! `mz recv` and `mz serve`: files and trees of peers that have the code.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use dgiwarp_transfer::disk::{Root, TreeSink, TreeSinkOptions};
use dgiwarp_transfer::{Arriving, Cancel, Connection, Control, Event, Port};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show, line};
use serde_json::json;

use crate::code::Code;
use crate::guard::{Guard, Pending};
use crate::place::{PORT, listen};

/// Time after which a listener checks whether it is still wanted.
const TURN: Duration = Duration::from_millis(200);
/// A moment for a lack of descriptors to pass.
const PAUSE: Duration = Duration::from_millis(20);

/// Order of an end that listens.
#[derive(Debug, Clone)]
pub struct Receive {
    /// Directory that the entries go to.
    pub folder: PathBuf,
    /// Address to listen at; all of this host without one.
    pub bind: Option<SocketAddr>,
    /// Port at all addresses.
    pub port: u16,
    /// The code that admits a peer.
    pub code: Code,
    /// Handling of files that come.
    pub sink: TreeSinkOptions,
    /// How data moves.
    pub carriage: Carriage,
    /// Sessions at a time.
    pub sessions: usize,
    /// Output.
    pub show: Show,
}

/// Waits for one peer and receives its files.
///
/// # Errors
/// [`Failed`].
pub fn receive(order: &Receive) -> Result<(), Failed> {
    let root = open(&order.folder)?;
    let (port, address) = listen(&order.carriage, order.bind, order.port)?;
    announce(order, address, "send", "PATH... ");
    let token = order.code.files();
    let (connection, _) = admit(port, token)?;
    let mut progress = Progress::new(order.show, true);
    session(order, root, connection, token, &mut progress, None)
}

/// Receives files of any number of peers, side by side. It does not return by itself.
///
/// # Errors
/// [`Failed`] where it cannot begin.
pub fn serve(order: &Receive) -> Result<(), Failed> {
    let root = open(&order.folder)?;
    let (port, address) = listen(&order.carriage, order.bind, order.port)?;
    announce(order, address, "send", "PATH... ");
    let token = order.code.files();
    let slots = Slots::new(order.sessions);
    let admission = Admission::begin(port, token)?;
    loop {
        let (connection, peer) = admission.next()?;
        let slot = slots.take();
        let (order, root) = (order.clone(), Arc::clone(&root));
        let body = move || {
            let _slot = slot;
            let mut progress = Progress::new(order.show, false);
            let peer = peer.to_string();
            let done = session(&order, root, connection, token, &mut progress, Some(&peer));
            if let Err(failed) = done {
                eprintln!("mz: {peer}: {failed}");
            }
        };
        let spawned = thread::Builder::new().name("mz-session".into()).spawn(body);
        if let Err(error) = spawned {
            eprintln!("mz: {peer}: {error}");
        }
    }
}

/// Sessions that may begin. A peer beyond them waits for one to end.
#[derive(Debug)]
struct Slots {
    give: SyncSender<()>,
    take: Receiver<()>,
}

/// The right to one session.
#[derive(Debug)]
struct Slot(SyncSender<()>);

impl Slots {
    fn new(count: usize) -> Self {
        let (give, take) = sync_channel(count);
        for _ in 0..count {
            // There is room for all of them.
            let _ = give.send(());
        }
        Self { give, take }
    }

    fn take(&self) -> Slot {
        // It has a sender of its own, and so does not end.
        let _ = self.take.recv();
        Slot(self.give.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

fn open(folder: &Path) -> Result<Arc<Root>, Failed> {
    let named = |error: std::io::Error| Failed::Session(format!("{}: {error}", folder.display()));
    if let Err(error) = std::fs::create_dir(folder)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(named(error));
    }
    Ok(Arc::new(Root::open(folder).map_err(named)?))
}

fn session(
    order: &Receive,
    root: Arc<Root>,
    connection: Connection,
    token: [u8; 16],
    progress: &mut Progress,
    from: Option<&str>,
) -> Result<(), Failed> {
    let sink = Arc::new(TreeSink::new(root, PathBuf::new(), order.sink));
    let control = Control::new().map_err(|error| Failed::Session(error.to_string()))?;
    let mut options = order.carriage.options;
    options.token = token;
    let mut note = |event: &Event| progress.note(event);
    let done = dgiwarp_transfer::receive(connection, sink, &options, &control, &mut note);
    progress.end(&done.map_err(Failed::from), from)
}

/// Shows where this end listens, and the command for the other one.
pub(crate) fn announce(order: &Receive, address: SocketAddr, command: &str, paths: &str) {
    let Receive { code, show, .. } = order;
    if show.json {
        line(
            &json!({"event": "listening", "address": address.to_string(), "code": code.to_string()}),
        );
        return;
    }
    let name = nix::unistd::gethostname().unwrap_or_default();
    let mut host = if address.ip().is_unspecified() {
        name.display().to_string()
    } else {
        address.ip().to_string()
    };
    if address.port() != PORT {
        if host.contains(':') {
            host = format!("[{host}]");
        }
        host += &format!(":{}", address.port());
    }
    let tcp = if order.carriage.tcp { "--tcp " } else { "" };
    eprintln!("mz: listening at {address}, code {code}");
    eprintln!("mz: at the other end: mz {command} {tcp}--code {code} {paths}{host}");
}

/// Waits for one peer that has the token.
pub(crate) fn admit(port: Port, token: [u8; 16]) -> Result<(Connection, SocketAddr), Failed> {
    Admission::begin(port, token)?.next()
}

/// Peers that come: each shows its code in a thread of its own, so that one that is silent or guesses holds nobody up.
#[derive(Debug)]
struct Admission {
    admitted: Receiver<(Connection, SocketAddr)>,
    cancel: Cancel,
}

impl Admission {
    fn begin(port: Port, token: [u8; 16]) -> Result<Self, Failed> {
        let broken = |error: std::io::Error| Failed::Session(error.to_string());
        let control = Control::new().map_err(broken)?;
        let cancel = control.cancel();
        let (report, admitted) = sync_channel(0);
        let body = move || {
            let guard = Guard::default();
            while !control.is_cancelled() {
                match port.arrive(TURN, &control) {
                    Ok(Some(arriving)) => check(arriving, token, &guard, &report),
                    Ok(None) => {}
                    // One peer that broke off, or a lack of descriptors.
                    Err(_) => delay(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new().name("mz-listen".into());
        thread.spawn(body).map_err(broken)?;
        Ok(Self { admitted, cancel })
    }

    fn next(&self) -> Result<(Connection, SocketAddr), Failed> {
        let admitted = self.admitted.recv();
        admitted.map_err(|_| Failed::Session("nobody listens any more".into()))
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn check(
    arriving: Arriving,
    token: [u8; 16],
    guard: &Guard,
    report: &SyncSender<(Connection, SocketAddr)>,
) {
    let peer = arriving.peer();
    let Some(pending) = guard.admit(peer.ip()) else {
        return;
    };
    let report = report.clone();
    let body = move || {
        if let Some(connection) = greet(arriving, token, &pending) {
            // The program may be at its end.
            let _ = report.send((connection, peer));
        }
    };
    // Without threads the peer is sent away.
    let _ = thread::Builder::new().name("mz-code".into()).spawn(body);
}

/// The connection of a peer that shows the token. Others get the delay first.
fn greet(arriving: Arriving, token: [u8; 16], pending: &Pending) -> Option<Connection> {
    let control = Control::new().ok()?;
    let connection = arriving.greet(&control)?;
    if connection.has_token(&token) {
        pending.right();
        return Some(connection);
    }
    delay(pending.wrong());
    None
}

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: the wait is a guesser's punishment"
)]
fn delay(time: Duration) {
    thread::sleep(time);
}
