//! `mz recv` and `mz serve`: files and trees of peers that have the code.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use dgiwarp_transfer::disk::{Filter, Item, Root, TreeSink, TreeSinkOptions, TreeSource};
use dgiwarp_transfer::wire::{FileKind, Role};
use dgiwarp_transfer::{Control, Event, Request, Summary};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show, line};
use serde_json::json;

use crate::admission::{Admission, Admitted, Joinable};
use crate::code::Code;
use crate::place::{PORT, listen};

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
    /// Peers may fetch.
    pub read: bool,
    /// Peers may have removed what they have not.
    pub delete: bool,
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
    // It goes on for the session's further streams.
    let tokens = [order.code.files(), order.code.orders()];
    let admission = Admission::begin(port, &order.code.secret(), &tokens)?;
    let admitted = admission.next()?;
    let mut progress = Progress::new(order.show, true);
    session(order, root, admitted, &mut progress, None)
}

/// Receives files of any number of peers, side by side. It does not return by itself.
///
/// # Errors
/// [`Failed`] where it cannot begin.
pub fn serve(order: &Receive) -> Result<(), Failed> {
    let root = open(&order.folder)?;
    let (port, address) = listen(&order.carriage, order.bind, order.port)?;
    announce(order, address, "send", "PATH... ");
    let tokens = [order.code.files(), order.code.orders()];
    let slots = Slots::new(order.sessions);
    let admission = Admission::begin(port, &order.code.secret(), &tokens)?;
    loop {
        let admitted = admission.next()?;
        let slot = slots.take();
        let (order, root) = (order.clone(), Arc::clone(&root));
        let peer = admitted.peer.to_string();
        let name = peer.clone();
        let body = move || {
            let _slot = slot;
            let mut progress = Progress::new(order.show, false);
            let done = session(&order, root, admitted, &mut progress, Some(&peer));
            if let Err(failed) = done {
                eprintln!("mz: {peer}: {failed}");
            }
        };
        let spawned = thread::Builder::new().name("mz-session".into()).spawn(body);
        if let Err(error) = spawned {
            eprintln!("mz: {name}: {error}");
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

pub(crate) fn open(folder: &Path) -> Result<Arc<Root>, Failed> {
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
    admitted: Admitted,
    progress: &mut Progress,
    from: Option<&str>,
) -> Result<(), Failed> {
    let control = Control::new().map_err(Failed::of)?;
    let mut note = |event: &Event| progress.note(event);
    let done = converse(order, root, admitted, &control, &mut note);
    progress.end(&done, from)
}

/// Runs the session that a peer wants, if it is one that is permitted.
fn converse(
    order: &Receive,
    root: Arc<Root>,
    mut admitted: Admitted,
    control: &Control,
    note: &mut dyn FnMut(&Event),
) -> Result<Summary, Failed> {
    let _joinable = Joinable::begin(&mut admitted, control);
    let mut connection = admitted.connection;
    let mut options = order.carriage.options_with(admitted.peer.ip());
    options.token = admitted.token;
    if admitted.token == order.code.files() {
        let sink = Arc::new(TreeSink::new(root, PathBuf::new(), order.sink));
        let done = dgiwarp_transfer::receive(connection, sink, &options, control, note);
        return Ok(done?);
    }
    let request = connection.request(control);
    let request = request.ok_or_else(|| Failed::of("the peer has no order"))?;
    let prepared = match connection.peer_role() {
        Some(Role::Sink) => give(order, root, &request).map(Side::Give),
        _ => take(order, root, &request).map(Side::Take),
    };
    options.prune = request.prune;
    let done = match prepared {
        Ok(Side::Give(source)) => {
            dgiwarp_transfer::send(connection, source, &options, control, note)
        }
        Ok(Side::Take(sink)) => {
            dgiwarp_transfer::receive(connection, sink, &options, control, note)
        }
        Err(text) => {
            connection.refuse(&text, control);
            return Err(Failed::Session(text));
        }
    };
    Ok(done?)
}

enum Side {
    Give(Arc<TreeSource>),
    Take(Arc<TreeSink>),
}

/// Entries that a peer fetches.
fn give(order: &Receive, root: Arc<Root>, request: &Request) -> Result<Arc<TreeSource>, String> {
    if !order.read {
        return Err("reading is not permitted: mz serve --read".into());
    }
    let mut items = Vec::new();
    for path in &request.paths {
        let there = root.link_metadata(path);
        let there = there.map_err(|error| match error.raw_os_error() {
            Some(nix::libc::EXDEV) => format!("{}: leaves the directory", path.display()),
            _ => format!("{}: {error}", path.display()),
        })?;
        if request.contents && there.kind() != Some(FileKind::Directory) {
            return Err(format!("{}: not a directory", path.display()));
        }
        let name = path.file_name().filter(|_| !request.contents);
        items.push(Item {
            root: Arc::clone(&root),
            path: path.clone(),
            name: name.unwrap_or_default().into(),
        });
    }
    let filter = Filter::new(&request.exclude, &request.include)?;
    Ok(Arc::new(TreeSource::new(items).filtered(filter)))
}

/// The place for entries that a peer sends for a directory to become like it.
fn take(order: &Receive, root: Arc<Root>, request: &Request) -> Result<Arc<TreeSink>, String> {
    if request.prune && !order.delete {
        return Err("removing is not permitted: mz serve --delete".into());
    }
    let target = match &request.paths[..] {
        [] => PathBuf::new(),
        [path] => path.clone(),
        _ => return Err("more than one target".into()),
    };
    let filter = Filter::new(&request.exclude, &request.include)?;
    let mut sink = TreeSink::new(root, target, order.sink);
    if request.prune {
        sink = sink.mirror(filter);
    }
    if request.dry_run {
        sink = sink.dry_run();
    }
    Ok(Arc::new(sink))
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
