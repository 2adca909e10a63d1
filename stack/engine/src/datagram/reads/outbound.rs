//! Output of Reads: short segments (requests, cookies, Terminates) and trains of responses.

use std::convert::Infallible;

use dgiwarp_llp_udp::{DatagramLimit, Format, PathKind, Peer, Shim, Train, TrainBuilder};
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::read::Pending;
use dgiwarp_rdmap::datagram::read::segment::{
    Layout, MAX_SHORT as LONGEST_SHORT, Outgoing, RESPONSE_HEADER, emit_response_header,
};
use dgiwarp_rdmap::datagram::{DropReason, Origin};

use super::{Reads, source_of};
use crate::cq_ring::CompletionSink;
use crate::datagram::config::{UdConfig, Via};
use crate::datagram::transmit::{Context, PeerState, STAGING, SendOutcome, TransmitSink};
use crate::types::QpCounters;

/// Short segments that leave in one call.
const MAX_SHORT: usize = 32;

/// Short segments of equal length to one peer, sealed. They stay here until the network took them.
#[derive(Debug, Default)]
pub(super) struct Short {
    /// Room for a train; its datagrams are the first octets.
    staging: Vec<u8>,
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
        self.train = Train::new();
        self.to = None;
    }

    /// Seals a segment. One that does not fit is kept for the next train; then `false`.
    fn add(&mut self, outgoing: Outgoing<Peer, Via>, shim: &mut Shim) -> bool {
        let overhead = shim.overhead(PathKind::Network).total();
        let length = outgoing.segment.octets.len();
        let to = (outgoing.peer, outgoing.via);
        let fits = self.train.is_empty()
            || (self.to == Some(to)
                && self.train.len() < MAX_SHORT
                && self.train.datagram() == length + overhead);
        if !fits {
            self.next = Some(outgoing);
            return false;
        }
        self.staging
            .resize(MAX_SHORT * (LONGEST_SHORT + overhead), 0);
        let builder = TrainBuilder::new(shim, to.0, PathKind::Network, &mut self.staging);
        let mut builder = builder.resume(self.train);
        let Ok(()) = builder.add(format_of(outgoing.segment.layout), length, |out| {
            out.copy_from_slice(&outgoing.segment.octets);
            Ok::<_, Infallible>(())
        });
        self.train = builder.finish();
        self.to = Some(to);
        true
    }

    fn octets(&self) -> &[u8] {
        &self.staging[..self.train.octets()]
    }
}

/// The format of a short segment's datagram.
fn format_of(layout: Layout) -> Format {
    match layout {
        Layout::Plain => Format::Segment,
        Layout::WithCookie => Format::Cookie,
        Layout::Exchange => Format::Exchange,
    }
}

/// Result of one turn of the Reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to send.
    Idle,
    /// Something was sent, or given up.
    Sent,
    /// The socket's buffer is full.
    Blocked,
}

/// Contents of a train of responses.
#[derive(Debug, Default)]
struct Loaded {
    /// Requests that are answered whole.
    finished: usize,
    /// Octets that answer the next request.
    partly: u32,
    /// Octets of payload.
    payload: u64,
}

impl Reads {
    /// Sends up to a train of short segments, and one train of responses. Without `responses`, peers are not answered.
    pub(crate) fn transmit(
        &mut self,
        context: Context<'_>,
        peers: &mut PeerState<'_>,
        (config, responses): (UdConfig, bool),
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
        counters: &mut QpCounters,
    ) -> Progress {
        self.start(context.now, peers, config, context.mrs, completions);
        let short = self.transmit_short(context, (peers, responses), sink, counters);
        if short == Progress::Blocked {
            return Progress::Blocked;
        }
        if !responses {
            self.output_possible = short == Progress::Sent || self.responder.has_output();
            return short;
        }
        match self.respond(context, peers.shim, sink, counters) {
            Progress::Idle => {
                self.output_possible = short == Progress::Sent;
                short
            }
            progress @ (Progress::Sent | Progress::Blocked) => progress,
        }
    }

    fn transmit_short(
        &mut self,
        context: Context<'_>,
        (peers, responses): (&mut PeerState<'_>, bool),
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> Progress {
        if self.short.train.is_empty() {
            self.load_short(context, peers, responses);
        }
        let Some((peer, via)) = self.short.to else {
            return Progress::Idle;
        };
        match sink.send_short(peer, via, self.short.octets(), &self.short.train) {
            SendOutcome::WouldBlock => return Progress::Blocked,
            SendOutcome::Sent => counters.count_sent(self.short.train.len(), 0),
            // Requests are repeated like lost ones; the errno is reported when the Read times out.
            SendOutcome::Failed(errno) => {
                counters.count_send_error();
                self.note_error(peer, errno, peers.associations);
            }
            SendOutcome::TooBig => counters.count_send_error(),
        }
        self.short.forget();
        Progress::Sent
    }

    fn load_short(&mut self, context: Context<'_>, peers: &mut PeerState<'_>, responses: bool) {
        let (now, associations) = (context.now, &mut *peers.associations);
        loop {
            let next = self
                .short
                .next
                .take()
                .or_else(|| self.requester.poll_transmit(now, associations))
                .or_else(|| responses.then(|| self.next_reply()).flatten());
            let Some(next) = next else {
                return;
            };
            if !self.short.add(next, peers.shim) {
                return;
            }
        }
    }

    fn next_reply(&mut self) -> Option<Outgoing<Peer, Via>> {
        let reply = self.responder.reply()?.clone();
        self.responder.replied();
        Some(reply)
    }

    /// Sends one train of responses to the requester whose turn it is.
    fn respond(
        &mut self,
        context: Context<'_>,
        shim: &mut Shim,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> Progress {
        let Some((peer, requests)) = self.responder.turn() else {
            return Progress::Idle;
        };
        let Some(first) = requests.first() else {
            return Progress::Idle;
        };
        let (via, validated) = (first.via, first.validated);
        // A requester without a valid cookie gets no more than a few octets, which need no path.
        let path = if validated {
            sink.path(peer, via)
        } else {
            None
        };
        let (kind, limit) = path
            .as_ref()
            .map_or((PathKind::Network, DatagramLimit::SMALLEST), |path| {
                (path.path_kind(), path.limit(context.now))
            });
        let mulpdu = shim.mulpdu(kind, limit);
        let mut staging = sink.staging();
        staging.resize(STAGING, 0);
        let mut builder = TrainBuilder::new(shim, peer, kind, &mut staging);
        let loaded = load(context, peer, requests, mulpdu, &mut builder);
        let train = builder.finish();
        let outcome = loaded.map(|loaded| {
            let octets = &staging[..train.octets()];
            let outcome = match &path {
                Some(path) => sink.send(peer, path, &[Piece::Bytes(octets)], &train),
                None => sink.send_short(peer, via, octets, &train),
            };
            (loaded, outcome)
        });
        sink.give_back(staging);
        match outcome {
            Err(reason) => {
                counters.count_drop(reason);
                self.responder.refuse(context.now, reason);
            }
            Ok((_, SendOutcome::WouldBlock)) => return Progress::Blocked,
            Ok((_, SendOutcome::TooBig)) if path.is_some() => counters.count_resized(),
            Ok((loaded, SendOutcome::Sent)) => {
                counters.count_sent(train.len(), loaded.payload);
                self.responses_sent += train.len() as u64;
                self.responder.commit(loaded.finished, loaded.partly);
            }
            // Lost for good: the requester asks again if it still wants it.
            Ok((loaded, SendOutcome::TooBig | SendOutcome::Failed(_))) => {
                counters.count_send_error();
                self.responder.commit(loaded.finished.max(1), 0);
            }
        }
        Progress::Sent
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
    mulpdu: u16,
    builder: &mut TrainBuilder<'_>,
) -> Result<Loaded, DropReason> {
    let mut loaded = Loaded::default();
    let Some(first) = requests.first() else {
        return Ok(loaded);
    };
    let alike = requests
        .iter()
        .take_while(|it| it.via == first.via && it.validated == first.validated);
    for pending in alike {
        match load_one(context, peer, pending, mulpdu, builder, &mut loaded) {
            Ok(true) => loaded.finished += 1,
            Ok(false) => break,
            // The datagrams before it leave first.
            Err(_) if loaded.finished > 0 => break,
            Err(reason) => return Err(reason),
        }
    }
    Ok(loaded)
}

/// Adds segments that answer a request. Returns whether it is answered whole.
///
/// The payload is copied, and the copy is sealed: the program may write its memory meanwhile.
fn load_one(
    context: Context<'_>,
    peer: Peer,
    pending: &Pending<Via>,
    mulpdu: u16,
    builder: &mut TrainBuilder<'_>,
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
    let header_len = u32::try_from(RESPONSE_HEADER).unwrap_or(u32::MAX);
    let most = u32::from(mulpdu).saturating_sub(header_len).max(1);
    let mut at = 0;
    loop {
        let length = (request.size - at).min(most);
        let segment = RESPONSE_HEADER + length as usize;
        if !builder.accepts(segment) {
            loaded.partly = at;
            return Ok(false);
        }
        let offset = request
            .sink_offset
            .checked_add(at.into())
            .ok_or(DropReason::Malformed)?;
        let is_last = at + length == request.size;
        builder.add(Format::Segment, segment, |out| {
            let header = emit_response_header(request.sink_stag, offset, is_last);
            out[..RESPONSE_HEADER].copy_from_slice(&header);
            let Some(source) = &source else {
                return Ok::<(), DropReason>(());
            };
            source
                .slice(request.source_offset.get() + u64::from(at), length)
                .ok_or(DropReason::OutOfBounds)?
                .copy_to(&mut out[RESPONSE_HEADER..]);
            Ok(())
        })?;
        loaded.payload += u64::from(length);
        at += length;
        if is_last {
            return Ok(true);
        }
    }
}
