//! Sends and Writes that arrive, the receives that they take, and the credit that peers have for these.

mod peer_queue;

use std::net::IpAddr;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Endpoint, Verdict};
use dgiwarp_memory::{Access, Placeable};
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::ImmediateData;
use rustc_hash::FxHashMap;

use self::peer_queue::PeerQueue;
use super::config::RdQpConfig;
use super::segment::{Part, refuse};
use super::turns::Turns;
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, StreamId};
use crate::recv_queue::{RecvQueue, RecvWqe, Tables};
use crate::sges::scatter;
use crate::types::{Wc, WcOpcode, WcStatus};

/// Receives that one peer may have for itself before it needs them.
const MOST_CREDIT: usize = 32;

/// A message that took a receive and is not delivered.
#[derive(Debug)]
struct Arriving {
    message: u32,
    wqe: RecvWqe,
    /// Operation by its segments; `None` before the first.
    opcode: Option<WcOpcode>,
    /// Octets that were placed.
    octets: u32,
    /// Octets of a Send; `None` until its last segment arrived.
    length: Option<u32>,
    /// The last segment of a Write arrived.
    ended: bool,
    immediate: Option<ImmediateData>,
    invalidate: Option<STag>,
    solicited: bool,
    to: Option<IpAddr>,
    /// Number of the message among those of an RC QP that take receives.
    turn: u16,
    /// It failed; the receive of an RC QP ends behind those before it.
    failed: Option<WcStatus>,
}

impl Arriving {
    const fn new(message: u32, wqe: RecvWqe, to: Option<IpAddr>) -> Self {
        Self {
            message,
            wqe,
            opcode: None,
            octets: 0,
            length: None,
            ended: false,
            immediate: None,
            invalidate: None,
            solicited: false,
            to,
            turn: 0,
            failed: None,
        }
    }

    fn place<P: Placeable + ?Sized>(
        &mut self,
        (stream, peer): (StreamId, Peer),
        part: Part<'_, P>,
        tables: Tables<'_>,
    ) -> Result<(), StreamError> {
        let opcode = match part {
            Part::Send { .. } => WcOpcode::Recv,
            Part::Write { .. } => WcOpcode::RecvRdmaWithImmediate,
            Part::Immediate { data, solicited } => {
                self.immediate = Some(data);
                self.solicited |= solicited;
                return Ok(());
            }
        };
        // No message is a Send in part, and a Write.
        if *self.opcode.get_or_insert(opcode) != opcode {
            return Err(StreamError::Truncated(0));
        }
        let octets = match part {
            Part::Send {
                offset,
                invalidate,
                solicited,
                ends,
                payload,
                ..
            } => {
                let octets = length(payload);
                let end = offset.checked_add(octets);
                let end = end.filter(|end| *end <= self.wqe.length);
                let end = end.ok_or(UntaggedError::TooLong)?;
                let pd = tables.recv_queue.pd(stream.pd);
                scatter(tables.mrs, pd, &self.wqe.sges, offset, payload)
                    .map_err(|_| StreamError::LocalProtection)?;
                if ends {
                    self.length = Some(end);
                }
                self.solicited |= solicited;
                self.invalidate = invalidate;
                octets
            }
            Part::Write {
                stag,
                start,
                ends,
                payload,
            } => {
                write((stream, peer), (stag, start), payload, tables.mrs)?;
                self.ended |= ends;
                length(payload)
            }
            Part::Immediate { .. } => 0,
        };
        self.octets = self
            .octets
            .checked_add(octets)
            .ok_or(UntaggedError::TooLong)?;
        Ok(())
    }

    /// Whether no segments overlap, none is missing, and the immediate is that of this message.
    fn is_whole(&self) -> bool {
        let data = match self.opcode {
            Some(WcOpcode::Recv) => self.length == Some(self.octets),
            Some(_) => self.ended && self.immediate.is_some(),
            None => false,
        };
        data && self.immediate.is_none_or(|it| it.written == self.octets)
    }
}

/// Messages and credit of one peer.
#[derive(Debug, Default)]
struct Source {
    arriving: Vec<Arriving>,
    /// Of an RC QP.
    turns: Turns,
    /// Receives that it was granted and did not take; the queue counts them, too.
    credit: usize,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Inbound {
    stream: StreamId,
    qkey: u32,
    /// Peers may not write, whatever their keys grant.
    no_writes: bool,
    /// Completions name no source: there is one peer.
    is_connected: bool,
    peers: FxHashMap<Peer, Source>,
    /// Peers with little credit.
    hungry: PeerQueue,
    /// Peers with messages that found no receive: credit has these sent again at once.
    refused: PeerQueue,
}

impl Inbound {
    pub(super) fn new(config: RdQpConfig) -> Self {
        Self {
            stream: config.stream(),
            qkey: config.qkey,
            no_writes: config.denied.contains(Access::REMOTE_WRITE),
            is_connected: config.rd.connection.is_some(),
            peers: FxHashMap::default(),
            hungry: PeerQueue::default(),
            refused: PeerQueue::default(),
        }
    }

    /// Places a segment, or refuses its message for the error in it. A message takes a receive only where `before` more are posted, for those before it that may
    /// need them: it never holds the last one that a message before it waits for (§5.3).
    pub(super) fn place<P: Placeable + ?Sized>(
        &mut self,
        (peer, to): (Peer, Option<IpAddr>),
        (header, before): (&SegmentHeader, u32),
        part: Result<Part<'_, P>, StreamError>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Verdict {
        let part = part.and_then(|part| self.check(part, tables.mrs));
        if !header.receive {
            let placed = part.and_then(|part| match part {
                Part::Write {
                    stag,
                    start,
                    payload,
                    ..
                } => write((self.stream, peer), (stag, start), payload, tables.mrs),
                // The parser wants a receive with these.
                Part::Send { .. } | Part::Immediate { .. } => Err(StreamError::Truncated(0)),
            });
            return placed.map_or_else(refuse, |_| Verdict::Placed);
        }
        let (stream, is_connected) = (self.stream, self.is_connected);
        let begun = self.begin(
            (peer, to),
            (header, before),
            part.is_ok(),
            tables,
            completions,
        );
        let Some((from, at)) = begun else {
            return Verdict::NotReady;
        };
        let placed = part.and_then(|part| match from.arriving.get_mut(at) {
            Some(arriving) => arriving.place((stream, peer), part, tables),
            None => Ok(()),
        });
        let Err(error) = placed else {
            return Verdict::Placed;
        };
        let arriving = from.arriving.get(at).map(|it| it.message) == Some(header.message);
        if arriving {
            let status = if error == StreamError::Untagged(UntaggedError::TooLong) {
                WcStatus::LocalLength
            } else if error == StreamError::LocalProtection {
                WcStatus::LocalProtection
            } else {
                WcStatus::RemoteOperation
            };
            if is_connected {
                from.arriving[at].failed = Some(status);
            } else {
                let arriving = from.arriving.swap_remove(at);
                completions.received(failed(&arriving.wqe, stream.qpn, status));
            }
        }
        refuse(error)
    }

    /// Takes the receive of a message whose segment is placed later. Returns whether it has one, or needs none.
    pub(super) fn reserve(
        &mut self,
        source: (Peer, Option<IpAddr>),
        (header, before): (&SegmentHeader, u32),
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let segment = (header, before);
        !header.receive
            || self
                .begin(source, segment, true, tables, completions)
                .is_some()
    }

    /// Messages of the peer, and the place among them of one that takes a receive: it has one already, or takes it now. `None` where there is none for it. Of a
    /// message whose first segment is in error it takes none, unless the queue pair is an RC one's.
    fn begin(
        &mut self,
        (peer, to): (Peer, Option<IpAddr>),
        (header, before): (&SegmentHeader, u32),
        is_ok: bool,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<(&mut Source, usize)> {
        let from = self.peers.entry(peer).or_default();
        let begun = from
            .arriving
            .iter()
            .position(|it| it.message == header.message);
        let at = match begun {
            Some(at) => at,
            None => {
                let queue = tables.recv_queue;
                let taken = if self.is_connected {
                    from.turns.take(header.stream, queue, completions).map(Some)
                } else if queue.len() <= usize::try_from(before).unwrap_or(usize::MAX) {
                    None
                } else if is_ok {
                    queue.take(0, completions).ok().map(Some)
                } else {
                    Some(None)
                };
                let Some(taken) = taken else {
                    self.hungry.push(peer);
                    self.refused.push(peer);
                    return None;
                };
                if from.credit > 0 {
                    from.credit -= 1;
                    queue.redeem(1);
                }
                if from.credit <= MOST_CREDIT / 2 {
                    self.hungry.push(peer);
                }
                if let Some(wqe) = taken {
                    from.arriving.push(Arriving {
                        turn: header.stream,
                        ..Arriving::new(header.message, wqe, to)
                    });
                }
                from.arriving.len().saturating_sub(1)
            }
        };
        Some((from, at))
    }

    /// Checks the rights of a segment that needs no place.
    fn check<'p, P: Placeable + ?Sized>(
        &self,
        part: Part<'p, P>,
        mrs: &MrTable,
    ) -> Result<Part<'p, P>, StreamError> {
        match &part {
            Part::Send {
                qkey: Some(qkey), ..
            } if *qkey != self.qkey => Err(StreamError::Source(TaggedError::Access)),
            Part::Send {
                invalidate: Some(stag),
                ..
            } => {
                let possible = mrs.check_invalidate(self.stream, *stag);
                possible.map_err(|_| StreamError::CannotInvalidate(*stag))?;
                Ok(part)
            }
            // RFC 5040 §5.1: with no octets the buffer is not checked.
            Part::Write { payload, .. } if self.no_writes && length(*payload) > 0 => {
                Err(TaggedError::Access.into())
            }
            Part::Send { .. } | Part::Write { .. } | Part::Immediate { .. } => Ok(part),
        }
    }

    /// A message is there, and its turn has come. Returns whether it took a receive.
    pub(super) fn deliver(
        &mut self,
        peer: Peer,
        message: u32,
        mrs: &MrTable,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let Some(from) = self.peers.get_mut(&peer) else {
            return false;
        };
        let Some(at) = from.arriving.iter().position(|it| it.message == message) else {
            return false;
        };
        let arrived = from.arriving.swap_remove(at);
        let invalidated = match arrived.invalidate {
            Some(stag) => mrs.invalidate(self.stream, stag, true),
            None => Ok(()),
        };
        if !arrived.is_whole() || invalidated.is_err() {
            let status = WcStatus::RemoteOperation;
            completions.received(failed(&arrived.wqe, self.stream.qpn, status));
            return true;
        }
        let opcode = arrived.opcode.unwrap_or(WcOpcode::Recv);
        completions.received(Wc {
            byte_len: arrived.octets,
            immediate: arrived.immediate.map(|it| it.immediate),
            invalidated: arrived.invalidate.map(STag::get),
            source: peer.socket_addr().filter(|_| !self.is_connected),
            destination: arrived.to.filter(|_| !self.is_connected),
            solicited: arrived.solicited,
            ..Wc::new(arrived.wqe.wr_id, opcode, self.stream.qpn)
        });
        true
    }

    /// Gives memory back that is kept for messages of a peer.
    pub(super) fn shrink(&mut self, peer: Peer) {
        if let Some(from) = self.peers.get_mut(&peer) {
            from.arriving.shrink_to_fit();
        }
    }

    /// Messages of a peer that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self, peer: Peer) -> usize {
        self.peers.get(&peer).map_or(0, |it| it.arriving.capacity())
    }

    /// The association with a peer ended: receives of messages that are not delivered go back, and its credit is void.
    pub(super) fn forget(&mut self, peer: Peer, receives: &RecvQueue) {
        self.hungry.remove(peer);
        self.refused.remove(peer);
        let Some(from) = self.peers.remove(&peer) else {
            return;
        };
        receives.redeem(from.credit);
        if self.is_connected {
            let arriving = from.arriving.into_iter().map(|it| (it.turn, it.wqe));
            let mut taken: Vec<_> = arriving
                .map(|(turn, wqe)| (from.turns.place(turn), wqe))
                .collect();
            let places: Vec<_> = from
                .turns
                .ahead()
                .map(|turn| from.turns.place(turn))
                .collect();
            let ahead = from.turns.into_ahead().into_iter().map(|(_, wqe)| wqe);
            taken.extend(places.into_iter().zip(ahead));
            taken.sort_by_key(|(place, _)| *place);
            for (_, wqe) in taken.into_iter().rev() {
                receives.give_back(wqe);
            }
            return;
        }
        for arriving in from.arriving.into_iter().rev() {
            receives.give_back(arriving.wqe);
        }
    }

    /// The receives of an RC QP whose messages failed end.
    pub(super) fn end_failed(&mut self, peer: Peer, completions: &mut impl CompletionSink) {
        let Some(from) = self.peers.get_mut(&peer) else {
            return;
        };
        let qpn = self.stream.qpn;
        from.arriving.retain(|arriving| {
            if let Some(status) = arriving.failed {
                completions.received(failed(&arriving.wqe, qpn, status));
            }
            arriving.failed.is_none()
        });
    }

    pub(super) const fn deny(&mut self, denied: Access) {
        self.no_writes = denied.contains(Access::REMOTE_WRITE);
    }

    pub(super) const fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// All associations are gone, and nothing of their messages is delivered.
    pub(super) fn forget_all(&mut self, receives: &RecvQueue) {
        self.hungry.clear();
        self.refused.clear();
        let peers: Vec<Peer> = self.peers.keys().copied().collect();
        for peer in peers {
            self.forget(peer, receives);
        }
    }

    /// Whether peers may be granted more when receives are posted.
    pub(super) fn is_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// Whether messages of peers found no receive, and go again once one is posted.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Grants receives that are posted and promised to nobody, half of these to each peer in turn. Credit lets several messages be under way; whether these find
    /// receives is decided when they arrive, so that no peer waits for one that does not use its credit.
    ///
    /// However many peers wait, no more are looked at than get something.
    pub(super) fn grant(&mut self, receives: &RecvQueue, endpoint: &mut Endpoint) {
        if !self.refused.is_empty() {
            self.grant_refused(receives, endpoint);
        }
        if self.hungry.is_empty() {
            return;
        }
        let mut free = receives.unpromised();
        for _ in 0..self.hungry.len() {
            let half = free / 2;
            if half == 0 {
                return;
            }
            let Some(peer) = self.hungry.pop() else {
                return;
            };
            let Some(from) = self.peers.get_mut(&peer) else {
                continue;
            };
            let more = MOST_CREDIT.saturating_sub(from.credit).min(half);
            if more == 0 {
                continue;
            }
            endpoint.grant(peer, u32::try_from(more).unwrap_or(0));
            from.credit += more;
            receives.promise(more);
            free -= more;
            if from.credit <= MOST_CREDIT / 2 {
                self.hungry.push(peer);
            }
        }
    }

    /// Grants peers one receive each whose messages found none, as many as are posted, promised or not.
    fn grant_refused(&mut self, receives: &RecvQueue, endpoint: &mut Endpoint) {
        let mut posted = receives.len();
        while posted > 0
            && let Some(peer) = self.refused.pop()
        {
            let Some(from) = self.peers.get_mut(&peer) else {
                continue;
            };
            // Beyond, the delay of RNR decides: credit cannot be taken back.
            if from.credit < 2 * MOST_CREDIT {
                posted -= 1;
                endpoint.grant(peer, 1);
                from.credit += 1;
                receives.promise(1);
            }
        }
    }
}

/// Places a segment of a Write.
fn write<P: Placeable + ?Sized>(
    (stream, peer): (StreamId, Peer),
    (stag, start): (STag, TaggedOffset),
    payload: PayloadSlice<'_, P>,
    mrs: &MrTable,
) -> Result<(), StreamError> {
    let length = length(payload);
    let span = TaggedSpan {
        stag,
        start,
        length,
    };
    // RFC 5040 §5.1: with no octets the buffer is not checked.
    if length == 0 {
        return Ok(());
    }
    let found = mrs.remote_of(stream, peer, span, Access::REMOTE_WRITE)?;
    let place = found.reached(start.get(), length, true);
    let place = place.ok_or(TaggedError::BaseOrBounds)?;
    payload.place(0, &place);
    Ok(())
}

fn length<P: Placeable + ?Sized>(payload: PayloadSlice<'_, P>) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}

fn failed(wqe: &RecvWqe, qpn: u32, status: WcStatus) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn).with_status(status)
}

/// The completion of a receive that will not happen.
pub(super) fn flushed(wqe: &RecvWqe, qpn: u16) -> Wc {
    failed(wqe, qpn.into(), WcStatus::Flushed)
}
