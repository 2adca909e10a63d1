//! Items that have to be inside of their message, where all messages are sealed.

use super::super::peer::Peer;
use crate::payload::{Item, Payload};
use crate::status::{Code, Status};
use crate::wire::message::overhead;

/// Whether a connection can carry the items of a message: where all are sealed, they have to be inside of it.
pub(crate) fn check_inside<T>(peer: &Peer<T>, payload: &Payload) -> Result<(), Status> {
    if !peer.seals_all() {
        return Ok(());
    }
    let fixed = overhead(0, payload.items.len(), payload.metadata.emit().len());
    let room = peer.longest.saturating_sub(fixed);
    let length = payload.items.iter().map(Item::len).sum();
    if length > room {
        return Err(too_long(length));
    }
    Ok(())
}

fn too_long(length: usize) -> Status {
    let text = format!(
        "items of {length} bytes do not fit a message, and all are sealed: nothing was sent"
    );
    Status::new(Code::FailedPrecondition, text)
}

/// Octets of an item, which has to be inside of its message.
pub(crate) fn short(item: &Item, room: usize) -> Result<Vec<u8>, Status> {
    let length = item.len();
    if length > room {
        return Err(too_long(length));
    }
    Ok(match item {
        Item::Short(octets) => octets.clone(),
        Item::Long(block) => {
            let mut octets = vec![0; length];
            let _ = block.read(0, &mut octets);
            octets
        }
    })
}
