//! Written messages: admission and placement that Write-Records (§5) and UC Writes (§5.2) share.

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_ddp::RangeMap;
use dgiwarp_ddp::placement::TaggedSpan;

use super::{Origin, Receiver, Ulp};
use crate::datagram::DropReason;
use crate::datagram::segment::WriteSegment;
use crate::datagram::source::{SourceId, Standing};

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    /// Admits a segment of a message that is not open: the checks of §5 steps 3 to 7 and of the late-segment window. They come
    /// before any state is made, and cover the whole message, so that nothing promises octets outside the region; placement
    /// repeats them for its own octets. Older messages are closed where the number leaves them too far behind.
    #[inline]
    pub(super) fn admit_write<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        origin: Origin<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<SourceId, DropReason> {
        let extension = &write.extension;
        let span = TaggedSpan {
            stag: write.stag,
            start: write.base,
            length: extension.length,
        };
        ulp.check_write(origin, span)?;
        ulp.prepare_state();
        let source = self.source_of(now, origin.peer, extension)?;
        if let Standing::Open(behind) = self.sources.get(source).standing(extension.number)
            && behind > self.config.reorder_window
        {
            return Err(DropReason::Late);
        }
        self.advance(source, extension.number, ulp);
        Ok(source)
    }
}

/// Checks that octets of a message are new, and that its map has room for them. A segment of several is never empty.
#[inline]
pub(super) fn check_range(map: &RangeMap, (start, end): (u32, u32)) -> Result<(), DropReason> {
    if map.contains(start, end) {
        return Err(DropReason::Duplicate);
    }
    if !map.has_room(start, end) {
        return Err(DropReason::MapFull);
    }
    Ok(())
}

/// Places the octets of a segment.
///
/// # Errors
/// The reason for which nothing was placed.
#[inline]
pub(super) fn place<K, U: Ulp<K>>(
    origin: Origin<K>,
    write: &WriteSegment<'_, U::Payload>,
    ulp: &mut U,
) -> Result<(), DropReason> {
    ulp.place_write(origin, write.stag, write.tagged_offset, write.payload)
}
