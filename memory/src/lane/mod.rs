//! Lanes: octet streams through memory that two processes share, and grants of regions that each copies by itself. The specification is `rfc-notes/same-host.md`.
//!
//! [`Arena::create`] makes the memory, [`OfferedArena`] checks and maps that of another process, [`Arena::lanes`] are an end's two lanes.
//! No reference ever points into a ring: octets are copied, and the words beside it are atomic. Positions and sizes of the other process are checked;
//! impossible ones are [`LaneCorrupt`].

mod arena;
mod ends;
mod grants;
mod offer;
mod one_sided;
mod part;
mod protocol;
mod records;
mod sync;

pub use arena::{Arena, ArenaEnd, ArenaError, OfferedArena};
pub use ends::{LaneInput, LaneOutput};
pub use grants::GrantTerms;
pub use offer::{receive_with_descriptor, send_with_descriptor};
pub use one_sided::{Granted, Grants, PeerGrants};
pub use part::LanePart;
pub use protocol::LaneCorrupt;
pub use records::Record;

#[cfg(test)]
#[expect(
    clippy::duplicate_mod,
    reason = "the model checker's primitives stand in place of the real ones"
)]
mod interleavings;
#[cfg(test)]
mod tests;
