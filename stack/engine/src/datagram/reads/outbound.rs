//! What Reads send: short segments (requests, cookies, Terminates) and trains of responses.

use dgiwarp_codec::crc;
use dgiwarp_llp_udp::{Peer, Train, digest};
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::read::segment::{RESPONSE_HEADER, emit_response_header};
use dgiwarp_rdmap::datagram::read::{Outgoing, Pending};
use dgiwarp_rdmap::datagram::{DropReason, Origin};

use super::{Reads, Via, source_of};
use crate::cq_ring::CompletionSink;
use crate::datagram::transmit::{Context, STAGING};
use crate::datagram::{SendOutcome, TransmitSink, UdConfig};
use crate::types::QpCounters;

/// Short segments that leave in one call.
const MAX_SHORT: usize = 32;
/// A datagram that every path takes (§8), for peers that a path is not looked up for.
const SMALLEST_LIMIT: u16 = 512;

/// Short segments of equal length to one peer, complete with their CRCs. They stay here until the network took them.
#[derive(Debug, Default)]
pub(super) struct Short {
    octets: Vec<u8>,
    train: Train,
    to: Option<(Peer, Via)>,
    /// The first one that did not fit.
    next: Option<Outgoing<Peer, Via>>,
}

impl Short {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.train.is_empty() && self.next.is_none()
    }

    pub(super) fn clear(&mut self) {
        self.forget();
        self.next = None;
    }

    fn forget(&mut self) {
        self.octets.clear();
        self.train = Train::new();
        self.to = None;
    }

    /// Adds a segment. One that does not fit is kept for the next train; then `false`.
    fn add(&mut self, outgoing: Outgoing<Peer, Via>) -> bool {
        let length = outgoing.segment.len() + digest::LEN;
        let to = (outgoing.peer, outgoing.via);
        let fits = self.train.is_empty()
            || (self.to == Some(to)
                && self.train.len() < MAX_SHORT
                && self.train.datagram() == length);
        if !fits {
            self.next = Some(outgoing);
            return false;
        }
        self.octets.extend_from_slice(&outgoing.segment);
        let crc = crc::crc32c(&outgoing.segment);
        self.octets.extend_from_slice(&crc::to_wire(crc));
        self.train.add(length);
        self.to = Some(to);
        true
    }
}

/// What one turn of the Reads did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::datagram) enum Turn {
    /// There was nothing to send.
    Idle,
    /// Something was sent, or given up.
    Sent,
    /// The socket's buffer is full.
    Blocked,
}

/// A train of responses: how many requests are answered whole, and how much of the next one.
#[derive(Debug, Default)]
struct Loaded {
    train: Train,
    finished: usize,
    partly: u32,
    payload: u64,
}

impl Reads {
    /// Sends the short segments that there are, up to a train of them, and one train of responses.
    pub(in crate::datagram) fn transmit(
        &mut self,
        context: Context<'_>,
        config: UdConfig,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
        counters: &mut QpCounters,
    ) -> Turn {
        self.start(context.now, config, context.mrs, completions);
        let short = self.transmit_short(context, sink, counters);
        if short == Turn::Blocked {
            return Turn::Blocked;
        }
        match self.respond(context, sink, counters) {
            Turn::Idle => {
                self.stirred = short == Turn::Sent;
                short
            }
            turn @ (Turn::Sent | Turn::Blocked) => turn,
        }
    }

    fn transmit_short(
        &mut self,
        context: Context<'_>,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> Turn {
        if self.short.train.is_empty() {
            self.load_short(context);
        }
        let Some((peer, via)) = self.short.to else {
            return Turn::Idle;
        };
        match sink.send_short(peer, via, &self.short.octets, &self.short.train) {
            SendOutcome::WouldBlock => return Turn::Blocked,
            SendOutcome::Sent => counters.count_sent(self.short.train.len(), 0),
            // They are asked for again like lost ones; what the network says shows when the Read times out.
            SendOutcome::Failed(errno) => {
                counters.count_send_error();
                self.note_error(peer, errno);
            }
            SendOutcome::TooBig => counters.count_send_error(),
        }
        self.short.forget();
        Turn::Sent
    }

    fn load_short(&mut self, context: Context<'_>) {
        loop {
            let next = self
                .short
                .next
                .take()
                .or_else(|| self.requester.poll_transmit(context.now))
                .or_else(|| self.next_reply());
            let Some(next) = next else {
                return;
            };
            if !self.short.add(next) {
                return;
            }
        }
    }

    fn next_reply(&mut self) -> Option<Outgoing<Peer, Via>> {
        let reply = self.responder.reply()?;
        let outgoing = Outgoing {
            peer: reply.peer,
            via: reply.via,
            segment: reply.segment.clone(),
        };
        self.responder.replied();
        Some(outgoing)
    }

    /// Sends one train of responses to the requester whose turn it is.
    fn respond(
        &mut self,
        context: Context<'_>,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> Turn {
        let Some((peer, requests)) = self.responder.turn() else {
            return Turn::Idle;
        };
        let Some(first) = requests.first() else {
            return Turn::Idle;
        };
        let (via, validated) = (first.via, first.validated);
        // Whoever did not prove its address gets no more than a few octets, which need no path.
        let path = if validated {
            sink.path(peer, via)
        } else {
            None
        };
        let limit = path
            .as_ref()
            .map_or(SMALLEST_LIMIT, |path| path.limit(context.now).get());
        let mut staging = sink.staging();
        staging.resize(STAGING, 0);
        let loaded = load(context, peer, requests, limit, &mut staging);
        let outcome = loaded.map(|loaded| {
            let octets = &staging[..loaded.train.octets()];
            let outcome = match &path {
                Some(path) => sink.send(peer, path, &[Piece::Bytes(octets)], &loaded.train),
                None => sink.send_short(peer, via, octets, &loaded.train),
            };
            (loaded, outcome)
        });
        sink.give_back(staging);
        match outcome {
            Err(reason) => {
                counters.count_drop(reason);
                self.responder.refuse(context.now, reason);
            }
            Ok((_, SendOutcome::WouldBlock)) => return Turn::Blocked,
            Ok((_, SendOutcome::TooBig)) if path.is_some() => counters.count_resized(),
            Ok((loaded, SendOutcome::Sent)) => {
                counters.count_sent(loaded.train.len(), loaded.payload);
                self.responses_sent += loaded.train.len() as u64;
                self.responder.commit(loaded.finished, loaded.partly);
            }
            // Lost for good: the requester asks again if it still wants it.
            Ok((loaded, SendOutcome::TooBig | SendOutcome::Failed(_))) => {
                counters.count_send_error();
                self.responder.commit(loaded.finished.max(1), 0);
            }
        }
        Turn::Sent
    }
}

/// Builds a train of responses to the first requests of one peer that came to the same address of ours.
///
/// # Errors
/// Why the first request's source may not be read any more.
fn load(
    context: Context<'_>,
    peer: Peer,
    requests: &[Pending<Via>],
    limit: u16,
    staging: &mut [u8],
) -> Result<Loaded, DropReason> {
    let mut loaded = Loaded::default();
    let Some(first) = requests.first() else {
        return Ok(loaded);
    };
    let alike = requests
        .iter()
        .take_while(|it| it.via == first.via && it.validated == first.validated);
    for pending in alike {
        match load_one(context, peer, pending, limit, staging, &mut loaded) {
            Ok(true) => loaded.finished += 1,
            Ok(false) => break,
            // Those before it go out first.
            Err(_) if loaded.finished > 0 => break,
            Err(reason) => return Err(reason),
        }
    }
    Ok(loaded)
}

/// Adds segments that answer a request. Returns whether it is answered whole.
///
/// The payload is copied and the CRC that of the copy: the program may write its memory meanwhile.
fn load_one(
    context: Context<'_>,
    peer: Peer,
    pending: &Pending<Via>,
    limit: u16,
    staging: &mut [u8],
    loaded: &mut Loaded,
) -> Result<bool, DropReason> {
    let request = &pending.request;
    // RFC 5040 §5.2.1: of an empty Read neither STag nor TO are looked at.
    let source = if request.size > 0 {
        let origin = Origin {
            peer,
            to_group: false,
            cookie_valid: pending.validated,
        };
        let span = source_of(request);
        Some(context.mrs.remote_read(context.pd, origin, span)?)
    } else {
        None
    };
    let overhead = RESPONSE_HEADER + digest::LEN;
    let most = u32::from(limit) - u32::try_from(overhead).unwrap_or(0);
    let mut at = 0;
    loop {
        let length = (request.size - at).min(most);
        let datagram = overhead + length as usize;
        if !loaded.train.accepts(datagram) {
            loaded.partly = at;
            return Ok(false);
        }
        let start = loaded.train.octets();
        let out = &mut staging[start..start + datagram];
        let offset = request
            .sink_offset
            .checked_add(at.into())
            .ok_or(DropReason::Malformed)?;
        let is_last = at + length == request.size;
        let header = emit_response_header(request.sink_stag, offset, is_last);
        out[..RESPONSE_HEADER].copy_from_slice(&header);
        let end = datagram - digest::LEN;
        if let Some(source) = &source {
            source
                .slice(request.source_offset.get() + u64::from(at), length)
                .ok_or(DropReason::OutOfBounds)?
                .copy_to(&mut out[RESPONSE_HEADER..end]);
        }
        let crc = crc::crc32c(&out[..end]);
        out[end..].copy_from_slice(&crc::to_wire(crc));
        loaded.train.add(datagram);
        loaded.payload += u64::from(length);
        at += length;
        if is_last {
            return Ok(true);
        }
    }
}
