//! `mz get` and `mz sync`: files of a host that serves them, and directories that become like others.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use dgiwarp_transfer::disk::{Filter, Item, Root, TreeSink, TreeSinkOptions, TreeSource};
use dgiwarp_transfer::{Control, Event, Request};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show};

use crate::code::Code;
use crate::receive::open;
use crate::send::{dial, refused};

/// A server, and how to speak with it.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its addresses.
    pub at: Vec<SocketAddr>,
    /// Its code.
    pub code: Code,
    /// How data moves.
    pub carriage: Carriage,
    /// Output.
    pub show: Show,
}

/// Order of files that are fetched.
#[derive(Debug, Clone)]
pub struct Get {
    /// Where from.
    pub from: Server,
    /// Paths beneath its directory, and what is left out.
    pub request: Request,
    /// Directory that they go to.
    pub folder: PathBuf,
    /// Handling of files that come.
    pub sink: TreeSinkOptions,
}

/// Order of a directory that becomes like one of this host.
#[derive(Debug, Clone)]
pub struct Put {
    /// Directory of this host.
    pub folder: PathBuf,
    /// Where to.
    pub to: Server,
    /// Path beneath its directory, and what is left out.
    pub request: Request,
}

/// Fetches.
///
/// # Errors
/// [`Failed`].
pub fn get(order: &Get) -> Result<(), Failed> {
    let Get { from, request, .. } = order;
    let filter = filter(request)?;
    let root = if request.dry_run {
        // It is not made.
        let opened = Root::open(&order.folder);
        let named = |error| Failed::Session(format!("{}: {error}", order.folder.display()));
        Arc::new(opened.map_err(named)?)
    } else {
        open(&order.folder)?
    };
    let mut sink = TreeSink::new(root, PathBuf::new(), order.sink);
    if request.prune {
        sink = sink.mirror(filter);
    }
    if request.dry_run {
        sink = sink.dry_run();
    }
    let sink = Arc::new(sink);
    session(from, request, |connection, options, control, note| {
        dgiwarp_transfer::receive(connection, sink, options, control, note)
    })
}

/// Makes a directory of a server like one of this host.
///
/// # Errors
/// [`Failed`].
pub fn put(order: &Put) -> Result<(), Failed> {
    let opened = Root::open(&order.folder);
    let named = |error| Failed::Session(format!("{}: {error}", order.folder.display()));
    let item = Item {
        root: Arc::new(opened.map_err(named)?),
        path: PathBuf::new(),
        name: PathBuf::new(),
    };
    let source = TreeSource::new(vec![item]).filtered(filter(&order.request)?);
    let source = Arc::new(source);
    session(
        &order.to,
        &order.request,
        |connection, options, control, note| {
            dgiwarp_transfer::send(connection, source, options, control, note)
        },
    )
}

fn filter(request: &Request) -> Result<Filter, Failed> {
    Filter::new(&request.exclude, &request.include).map_err(Failed::Usage)
}

fn session<R>(server: &Server, request: &Request, run: R) -> Result<(), Failed>
where
    R: FnOnce(
        dgiwarp_transfer::Connection,
        &dgiwarp_transfer::Options,
        &Control,
        &mut dyn FnMut(&Event),
    ) -> Result<dgiwarp_transfer::Summary, dgiwarp_transfer::Error>,
{
    let control = Control::new().map_err(Failed::of)?;
    let (connection, mut options) = dial(&server.carriage, &server.at, &server.code, &control)?;
    options.token = server.code.orders();
    options.prune = request.prune;
    let connection = connection.with_request(request).map_err(Failed::of)?;
    let mut progress = Progress::new(server.show, true);
    let mut note = |event: &Event| progress.note(event);
    let done = run(connection, &options, &control, &mut note);
    let done = done.map_err(|error| refused(error, progress.events));
    progress.end(&done, None)
}
