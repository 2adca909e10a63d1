//! `mz send`: files and trees to a host that waits for them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use dgiwarp_transfer::disk::{Item, TreeSource};
use dgiwarp_transfer::{CarrierError, Connection, Control, Error, Event, Options};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show};

use crate::code::Code;

/// Order of a transfer.
#[derive(Debug, Clone)]
pub struct Send {
    /// Files and trees.
    pub paths: Vec<PathBuf>,
    /// Addresses of the peer.
    pub to: Vec<SocketAddr>,
    /// The peer's code.
    pub code: Code,
    /// How data moves.
    pub carriage: Carriage,
    /// Output.
    pub show: Show,
}

/// Sends.
///
/// # Errors
/// [`Failed`].
pub fn send(order: &Send) -> Result<(), Failed> {
    // Before anything is connected: most mistakes are here.
    let mut items = Vec::new();
    for path in &order.paths {
        let item = Item::of(path, true)
            .map_err(|error| Failed::Session(format!("{}: {error}", path.display())))?;
        items.push(item);
    }
    let source = Arc::new(TreeSource::new(items));
    let control = Control::new().map_err(|error| Failed::Session(error.to_string()))?;
    let (connection, mut options) = dial(&order.carriage, &order.to, &order.code, &control)?;
    options.token = order.code.files();
    let mut progress = Progress::new(order.show, true);
    let mut note = |event: &Event| progress.note(event);
    let done = dgiwarp_transfer::send(connection, source, &options, &control, &mut note);
    let done = done.map_err(|error| refused(error, progress.events));
    progress.end(&done, None)
}

/// Connects to a peer that has the code.
pub(crate) fn dial(
    carriage: &Carriage,
    to: &[SocketAddr],
    code: &Code,
    control: &Control,
) -> Result<(Connection, Options), Failed> {
    let unknown = |error| refused(error, 0);
    carriage.dial_protected(to, &code.secret(), control, unknown)
}

/// The failure of a session. A peer that was given another code closes before it has answered.
pub(crate) fn refused(error: Error, events: u64) -> Failed {
    match error {
        Error::Carrier(CarrierError::Lost(text)) if events == 0 => Failed::Session(format!(
            "the peer did not admit this end ({text}): is the code right?"
        )),
        error => Failed::from(error),
    }
}
