//! Scatter/gather lists: the registered memory of one message, whatever carries it.

use std::ops::Deref;

use arrayvec::ArrayVec;
use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_memory::{Placeable, RegionSlice};
use dgiwarp_rdmap::datagram::PlaceFailed;

use super::mr::{LocalProtection, LocalView, MrTable, PdId, Registration, Use};
use super::recv_queue::SgeList;
use crate::types::{MAX_SGE, Sge};

/// Least octets of a segment whose successor's memory is prefetched: shorter ones are whole messages for the most part.
const LONG: u32 = 1024;

/// The registered memory of a message, held while segments of it are built and sent: by uses of the regions, which may last for a system
/// call, or by a view of their table, which costs less. It is large: filled where it stands, and not moved.
#[derive(Debug)]
pub(super) struct Gathered<R = Use> {
    parts: ArrayVec<(R, u64, u32), MAX_SGE>,
}

impl<R> Default for Gathered<R> {
    fn default() -> Self {
        Self {
            parts: ArrayVec::new(),
        }
    }
}

impl Gathered {
    /// Holds the memory of these elements, too.
    #[inline]
    pub(super) fn hold(
        &mut self,
        mrs: &MrTable,
        pd: PdId,
        sges: &SgeList,
    ) -> Result<(), LocalProtection> {
        self.hold_with(sges, |sge| mrs.local(pd, sge, false))
    }
}

impl<'a> Gathered<&'a Registration> {
    /// Shows the memory of these elements, too.
    #[inline]
    pub(super) fn view(
        &mut self,
        view: &'a LocalView<'_>,
        pd: PdId,
        sges: &SgeList,
    ) -> Result<(), LocalProtection> {
        self.hold_with(sges, |sge| Ok(&**view.find(pd, sge, false)?))
    }
}

impl<R: Deref<Target = Registration>> Gathered<R> {
    #[inline]
    fn hold_with(
        &mut self,
        sges: &SgeList,
        find: impl Fn(Sge) -> Result<R, LocalProtection>,
    ) -> Result<(), LocalProtection> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.parts.push((find(*sge)?, sge.addr, sge.length));
        }
        Ok(())
    }

    /// Whether pages of a region come on demand.
    #[inline]
    pub(super) fn is_on_demand(&self) -> bool {
        self.parts.iter().any(|(it, ..)| it.is_on_demand())
    }

    /// Checks that `length` octets at `offset` of the message can be read now, where pages come on demand.
    #[inline]
    pub(super) fn reach(&self, offset: u32, length: u32) -> Result<(), LocalProtection> {
        if self.is_on_demand() {
            self.reach_on_demand(offset, length)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn reach_on_demand(&self, offset: u32, length: u32) -> Result<(), LocalProtection> {
        let mut skip = offset;
        let mut left = length;
        for (registration, addr, part) in &self.parts {
            let take = part.saturating_sub(skip).min(left);
            if take > 0 && !registration.reach(addr + u64::from(skip), take, false) {
                return Err(LocalProtection);
            }
            skip = skip.saturating_sub(*part);
            left -= take;
        }
        Ok(())
    }

    /// Calls `each` with the parts of `length` octets at `offset` of the message.
    #[inline]
    pub(super) fn for_each<'a>(
        &'a self,
        offset: u32,
        length: u32,
        mut each: impl FnMut(RegionSlice<'a>),
    ) {
        let mut skip = offset;
        let mut left = length;
        for (registration, addr, part) in &self.parts {
            if skip >= *part {
                skip -= part;
                continue;
            }
            let take = (part - skip).min(left);
            if take == 0 {
                return;
            }
            let slice = registration
                .slice(addr.wrapping_add(u64::from(skip)), take)
                .expect("the element was checked when it was gathered");
            each(slice);
            skip = 0;
            left -= take;
        }
    }

    /// Copies a segment's octets of the message, and has the processor load those of the next one: the release of a view waits for the copy.
    #[inline]
    pub(super) fn copy_ahead(&self, offset: u32, dst: &mut [u8]) {
        self.copy(offset, dst);
        let length = u32::try_from(dst.len()).unwrap_or(u32::MAX);
        if length >= LONG {
            let next = offset.saturating_add(length);
            self.for_each(next, length, |slice| slice.prefetch(false));
        }
    }

    #[inline]
    pub(super) fn copy(&self, offset: u32, dst: &mut [u8]) {
        let length = u32::try_from(dst.len()).expect("a segment is no longer than 64 KiB");
        let mut at = 0;
        self.for_each(offset, length, |slice| {
            let end = at + slice.len();
            slice.copy_to(&mut dst[at..end]);
            at = end;
        });
    }
}

/// Some octets of a message, for a lower layer that copies and checksums them.
#[derive(Debug)]
pub(super) struct Part<'a, R = Use> {
    pub(super) of: &'a Gathered<R>,
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl<R: Deref<Target = Registration>> Payload for Part<'_, R> {
    #[inline]
    fn len(&self) -> usize {
        self.length as usize
    }

    #[inline]
    fn copy(&self, offset: usize, dst: &mut [u8]) {
        let (offset, _) = self.range(offset, dst.len());
        self.of.copy(offset, dst);
    }

    fn crc(&self, offset: usize, length: usize, mut crc: u32) -> u32 {
        let (offset, length) = self.range(offset, length);
        self.of.for_each(offset, length, |slice| {
            crc = Payload::crc(&slice, 0, slice.len(), crc);
        });
        crc
    }
}

impl<R: Deref<Target = Registration>> Part<'_, R> {
    /// A range of the part as one of the message.
    #[inline]
    fn range(&self, offset: usize, length: usize) -> (u32, u32) {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.len());
        assert!(inside, "the lower layer cuts inside the part");
        let narrow = |n| u32::try_from(n).expect("no more than the part's length");
        (self.offset + narrow(offset), narrow(length))
    }
}

/// Copies a whole message into `dst`, which has its length.
#[inline]
pub(super) fn gather(
    mrs: &MrTable,
    pd: PdId,
    sges: &SgeList,
    dst: &mut [u8],
) -> Result<(), LocalProtection> {
    let view = mrs.view_local();
    let mut rest = dst;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let slice = view.slice(pd, *sge)?;
        let (now, later) = rest.split_at_mut(slice.len());
        slice.copy_to(now);
        rest = later;
    }
    Ok(())
}

/// Place of `length` octets in one element, if they fit it and its pages do not come on demand.
#[inline(always)]
fn sole_sink<'v>(
    view: &'v LocalView<'_>,
    pd: PdId,
    sges: &[Sge],
    length: usize,
) -> Option<RegionSlice<'v>> {
    let ([sge], Ok(length)) = (sges, u32::try_from(length)) else {
        return None;
    };
    if length > sge.length {
        return None;
    }
    view.resident_sink(pd, Sge { length, ..*sge })
}

/// Places octets in one element, if they fit it and its pages do not come on demand. Returns whether they did.
#[inline(always)]
pub(super) fn place_in_one<P: Placeable + ?Sized>(
    view: &LocalView<'_>,
    pd: PdId,
    sges: &[Sge],
    octets: &P,
) -> bool {
    let Some(slice) = sole_sink(view, pd, sges, octets.len()) else {
        return false;
    };
    dgiwarp_memory::guard(|| octets.place(0, &slice));
    true
}

/// As [`place_in_one`], of a payload behind a header.
#[inline]
pub(super) fn place_in_one_behind(
    view: &LocalView<'_>,
    pd: PdId,
    sges: &[Sge],
    header: &[u8],
    payload: PayloadSlice<'_, [u8]>,
) -> bool {
    let Some(slice) = sole_sink(view, pd, sges, header.len() + payload.len()) else {
        return false;
    };
    let parts = (
        slice.subslice(0, header.len()),
        slice.subslice(header.len(), payload.len()),
    );
    let (Ok(front), Ok(behind)) = parts else {
        return false;
    };
    dgiwarp_memory::guard(|| {
        if !header.is_empty() {
            front.place(header);
        }
        payload.place(0, &behind);
    });
    true
}

/// Places octets at `offset` of the buffers of a receive, a Read or an atomic operation.
#[inline]
pub(super) fn scatter<'a, P: Placeable + ?Sized + 'a>(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u32,
    payload: impl Into<PayloadSlice<'a, P>>,
) -> Result<(), PlaceFailed> {
    let payload = payload.into();
    let view = mrs.view_local();
    // The usual case.
    if let ([sge], Ok(length)) = (sges, u32::try_from(payload.len()))
        && length > 0
        && length <= sge.length.saturating_sub(offset)
    {
        let part = Sge {
            addr: sge.addr.wrapping_add(u64::from(offset)),
            length,
            lkey: sge.lkey,
        };
        let placed = place(&view, pd, part, payload);
        if length >= LONG {
            prefetch_sink(&view, pd, *sge, (offset + length, length));
        }
        return placed;
    }
    scatter_to_several(&view, pd, sges, offset, payload)
}

/// Has the processor load the place of the next segment: the release of a view waits for the stores before it, and these for their cache lines.
#[inline]
fn prefetch_sink(view: &LocalView<'_>, pd: PdId, sge: Sge, (offset, length): (u32, u32)) {
    let next = Sge {
        addr: sge.addr.wrapping_add(u64::from(offset)),
        length: sge.length.saturating_sub(offset).min(length),
        lkey: sge.lkey,
    };
    if let Some(slice) = view.resident_sink(pd, next) {
        slice.prefetch(true);
    }
}

/// Places the octets that an element has room for.
#[inline]
fn place<P: Placeable + ?Sized>(
    view: &LocalView<'_>,
    pd: PdId,
    sge: Sge,
    payload: PayloadSlice<'_, P>,
) -> Result<(), PlaceFailed> {
    if let Some(slice) = view.sink(pd, sge).map_err(|_| PlaceFailed)? {
        dgiwarp_memory::guard(|| payload.place(0, &slice));
    }
    Ok(())
}

fn scatter_to_several<P: Placeable + ?Sized>(
    view: &LocalView<'_>,
    pd: PdId,
    sges: &[Sge],
    offset: u32,
    payload: PayloadSlice<'_, P>,
) -> Result<(), PlaceFailed> {
    let mut skip = offset;
    let mut rest = payload;
    for sge in sges {
        if rest.is_empty() {
            return Ok(());
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let room = (sge.length - skip) as usize;
        let now = room.min(rest.len());
        let part = Sge {
            addr: sge.addr.wrapping_add(u64::from(skip)),
            length: u32::try_from(now).map_err(|_| PlaceFailed)?,
            lkey: sge.lkey,
        };
        place(view, pd, part, rest)?;
        skip = 0;
        rest = rest.after(now).ok_or(PlaceFailed)?;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(PlaceFailed)
    }
}
