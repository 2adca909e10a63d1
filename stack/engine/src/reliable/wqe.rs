//! A posted work request, and the octets of its segments.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::Post;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_rdmap::wire::{
    AtomicRequest, ImmediateData, Opcode, ReadRequest, atomic, read_request,
};

use super::segment::{self, AROUND, IMMEDIATE, REQUESTS, TAGGED, UNTAGGED};
use crate::connected::{RcData, RcSendWqe, RcWork};
use crate::mr::{LocalProtection, MrTable, PdId};
use crate::sges::Gathered;
use crate::types::Route;

/// The stream of all messages of a QP to one peer.
const STREAM: u16 = 0;

/// A posted work request.
#[derive(Debug)]
pub struct RdSendWqe {
    /// The work request, as a connected QP has it. Operations on local keys are none of a reliable datagram QP's.
    pub send: RcSendWqe,
    /// Destination.
    pub peer: Peer,
    /// Route to it.
    pub route: Route,
    /// Q_Key that a Send carries.
    pub qkey: u32,
}

impl RdSendWqe {
    /// Writes a segment: its header, and its octets as they are in memory now. `number` names a request in its response; `payload` octets are in each
    /// segment but the last.
    pub(super) fn write(
        &self,
        (mrs, pd): (&MrTable, PdId),
        (number, payload): (u32, u32),
        header: &SegmentHeader,
        segment: &mut [u8],
    ) -> Result<(), LocalProtection> {
        let send = &self.send;
        let immediate = match send.work {
            RcWork::SendImmediate { immediate } => Some(immediate),
            RcWork::Write { immediate, .. } => immediate,
            RcWork::Send { .. }
            | RcWork::Read { .. }
            | RcWork::Atomic { .. }
            | RcWork::Memory(_) => None,
        };
        if let Some(immediate) = immediate.filter(|_| header.last) {
            let data = ImmediateData {
                immediate,
                written: send.length,
            };
            put(
                segment,
                &segment::immediate(header.message, send.solicited, data),
            );
            return Ok(());
        }
        let offset = header.index * payload;
        let place = (REQUESTS, header.message);
        // The last segment of its data; one of Immediate Data follows.
        let ends = match immediate {
            Some(_) => send.length <= offset.saturating_add(payload),
            None => header.last,
        };
        let octets = match send.work {
            RcWork::Send { invalidate } => {
                let opcode = match (invalidate, send.solicited) {
                    (None, false) => Opcode::Send,
                    (None, true) => Opcode::SendSolicited,
                    (Some(_), false) => Opcode::SendInvalidate,
                    (Some(_), true) => Opcode::SendSolicitedInvalidate,
                };
                let word = invalidate.map_or(self.qkey, STag::get);
                put(
                    segment,
                    &segment::send(opcode, header.message, ends, offset, word),
                )
            }
            // The mark of a solicited event is that of the Immediate Data.
            RcWork::SendImmediate { .. } => {
                let head = segment::send(Opcode::Send, header.message, ends, offset, self.qkey);
                put(segment, &head)
            }
            RcWork::Write { stag, start, .. } => {
                let to = TaggedOffset::new(start.get().wrapping_add(offset.into()));
                put(segment, &segment::tagged(Opcode::Write, stag, to, ends))
            }
            RcWork::Read { stag, start } => {
                let head = segment::untagged(Opcode::ReadRequest, place, true, 0, 0);
                let request = ReadRequest {
                    sink_stag: STag::new(number),
                    sink_offset: TaggedOffset::new(0),
                    size: send.length,
                    source_stag: stag,
                    source_offset: start,
                };
                put(put(segment, &head), &request.emit());
                return Ok(());
            }
            RcWork::Atomic {
                stag,
                start,
                operation,
            } => {
                let head = segment::untagged(Opcode::AtomicRequest, place, true, 0, 0);
                let request = AtomicRequest {
                    operation,
                    identifier: number,
                    stag,
                    tagged_offset: start,
                };
                put(put(segment, &head), &request.emit());
                return Ok(());
            }
            RcWork::Memory(_) => return Ok(()),
        };
        if octets.is_empty() {
            return Ok(());
        }
        copy(mrs, pd, &send.data, offset, octets)
    }
}

/// Octets of the header of each segment but one of Immediate Data.
pub(super) fn header_of(work: RcWork) -> u32 {
    match work {
        RcWork::Write { .. } => TAGGED.into(),
        RcWork::Send { .. }
        | RcWork::SendImmediate { .. }
        | RcWork::Read { .. }
        | RcWork::Atomic { .. }
        | RcWork::Memory(_) => UNTAGGED.into(),
    }
}

/// The segments of a message.
pub(super) fn cut(token: u64, send: &RcSendWqe, datagram: u16) -> Post {
    let (header, immediate, receive) = match send.work {
        RcWork::Send { .. } => (UNTAGGED, false, true),
        RcWork::SendImmediate { .. } => (UNTAGGED, true, true),
        RcWork::Write { immediate, .. } => (TAGGED, immediate.is_some(), immediate.is_some()),
        RcWork::Read { .. } => return single(token, read_request::LEN),
        RcWork::Atomic { .. } | RcWork::Memory(_) => return single(token, atomic::REQUEST_LEN),
    };
    let payload = datagram.saturating_sub(AROUND + header).max(1);
    let segments = send.length.div_ceil(payload.into()).max(1);
    let last = send.length - (segments - 1) * u32::from(payload);
    Post {
        token,
        segments: segments + u32::from(immediate),
        length: header + payload,
        last_length: header + u16::try_from(last).unwrap_or(payload),
        trailer: immediate.then_some(IMMEDIATE),
        stream: Some(STREAM),
        receive,
    }
}

/// A request.
fn single(token: u64, length: usize) -> Post {
    let length = UNTAGGED + u16::try_from(length).unwrap_or(0);
    Post {
        token,
        segments: 1,
        length,
        last_length: length,
        trailer: None,
        stream: Some(STREAM),
        receive: false,
    }
}

/// Writes octets at the beginning, and returns the place behind them.
fn put<'s>(segment: &'s mut [u8], octets: &[u8]) -> &'s mut [u8] {
    match segment.split_at_mut_checked(octets.len()) {
        Some((head, rest)) => {
            head.copy_from_slice(octets);
            rest
        }
        None => &mut [],
    }
}

/// Whether the memory of a message is registered, with the right to write there if `write`.
pub(super) fn check(
    mrs: &MrTable,
    pd: PdId,
    data: &RcData,
    write: bool,
) -> Result<(), LocalProtection> {
    let RcData::Sges(sges) = data else {
        return Ok(());
    };
    let view = mrs.view_local();
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        view.find(pd, *sge, write)?;
    }
    Ok(())
}

/// Copies octets of a message.
fn copy(
    mrs: &MrTable,
    pd: PdId,
    data: &RcData,
    offset: u32,
    octets: &mut [u8],
) -> Result<(), LocalProtection> {
    let sges = match data {
        RcData::Sges(sges) => sges,
        RcData::Inline(data) => {
            let from = data.get(offset as usize..).unwrap_or_default();
            let from = from.get(..octets.len()).ok_or(LocalProtection)?;
            octets.copy_from_slice(from);
            return Ok(());
        }
    };
    let view = mrs.view_local();
    let mut source = Gathered::default();
    let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
    source.view(&view, pd, sges)?;
    source.reach(offset, length)?;
    source.copy_ahead(offset, octets);
    Ok(())
}
