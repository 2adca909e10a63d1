//! Output of Reads: short segments (requests, cookies, Terminates) and trains of responses.

use std::convert::Infallible;

use dgiwarp_ddp::equal;
use dgiwarp_llp_udp::{DatagramLimit, Format, PathKind, Peer, Shim, Train, TrainBuilder};
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::read::segment::{
    Layout, MAX_SHORT as LONGEST_SHORT, Outgoing, RESPONSE_HEADER, Short as ShortSegment,
    emit_response_header,
};
use dgiwarp_rdmap::datagram::read::{Class, Pending};
use dgiwarp_rdmap::datagram::{DropReason, Origin};

use super::{Reads, source_of};
use crate::cq_ring::CompletionSink;
use crate::datagram::config::{UdConfig, Via};
use crate::datagram::transmit::{Context, PeerState, STAGING, SendOutcome, TransmitSink};
use crate::types::QpCounters;

/// Short segments that leave in one call.
const MAX_SHORT: usize = 32;
/// Trains of Read Requests that leave in one turn.
const MAX_REQUEST_TRAINS: usize = 32;

/// Short segments of equal length to one peer, sealed. They stay here until the network took them.
#[derive(Debug, Default)]
pub(super) struct Short {
    /// Room for a train; its datagrams are the first octets.
    staging: Vec<u8>,
    train: Train,
    to: Option<(Peer, Via)>,
    /// The first segment of a posted Read that did not fit.
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

    /// Seals a segment. Returns `false` for one that does not fit the train.
    fn add(&mut self, to: (Peer, Via), segment: &ShortSegment, shim: &mut Shim) -> bool {
        let overhead = shim.overhead(PathKind::Network).total();
        let length = segment.octets.len();
        let fits = self.train.is_empty()
            || (self.to == Some(to)
                && self.train.len() < MAX_SHORT
                && self.train.datagram() == length + overhead);
        if !fits {
            return false;
        }
        self.staging
            .resize(MAX_SHORT * (LONGEST_SHORT + overhead), 0);
        let builder = TrainBuilder::new(shim, to.0, PathKind::Network, &mut self.staging);
        let mut builder = builder.resume(self.train);
        let Ok(()) = builder.add(format_of(segment.layout), length, |out| {
            out.copy_from_slice(&segment.octets);
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
    /// Sends the requests of posted Reads, a bounded number. Returns whether the network took all.
    pub(crate) fn transmit_requests(
        &mut self,
        context: Context<'_>,
        peers: &mut PeerState<'_>,
        config: UdConfig,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
        counters: &mut QpCounters,
    ) -> bool {
        self.start(context.now, peers, config, context.mrs, completions);
        for _ in 0..MAX_REQUEST_TRAINS {
            if self.short.train.is_empty() {
                self.load_requests(context, peers);
            }
            match self.send_short(peers, sink, counters) {
                Progress::Blocked => return false,
                Progress::Sent => {}
                Progress::Idle => {
                    self.output_possible = Class::ALL
                        .into_iter()
                        .any(|class| self.responder.has_output(class));
                    break;
                }
            }
        }
        true
    }

    /// Answers the next peer of a class: with a train of short segments, and with one of responses. Returns the octets of the latter, too.
    pub(crate) fn answer(
        &mut self,
        class: Class,
        context: Context<'_>,
        peers: &mut PeerState<'_>,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> (Progress, usize) {
        if self.short.train.is_empty() {
            self.load_replies(class, peers.shim);
        }
        let short = self.send_short(peers, sink, counters);
        if short == Progress::Blocked {
            return (Progress::Blocked, 0);
        }
        match self.respond(class, context, peers.shim, sink, counters) {
            (Progress::Idle, _) => (short, 0),
            responded @ (Progress::Sent | Progress::Blocked, _) => responded,
        }
    }

    /// Sends the train of short segments.
    fn send_short(
        &mut self,
        peers: &mut PeerState<'_>,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> Progress {
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

    fn load_requests(&mut self, context: Context<'_>, peers: &mut PeerState<'_>) {
        let (now, associations) = (context.now, &mut *peers.associations);
        loop {
            let short = &mut self.short;
            let next = short.next.take();
            let Some(next) = next.or_else(|| self.requester.poll_transmit(now, associations))
            else {
                return;
            };
            if !short.add((next.peer, next.via), &next.segment, peers.shim) {
                short.next = Some(next);
                return;
            }
        }
    }

    fn load_replies(&mut self, class: Class, shim: &mut Shim) {
        while let Some(reply) = self.responder.reply(class)
            && self
                .short
                .add((reply.peer, reply.via), &reply.segment, shim)
        {
            self.responder.replied(class);
        }
    }

    /// Sends one train of responses to the requester of a class whose turn it is, and returns its octets.
    fn respond(
        &mut self,
        class: Class,
        context: Context<'_>,
        shim: &mut Shim,
        sink: &mut impl TransmitSink,
        counters: &mut QpCounters,
    ) -> (Progress, usize) {
        let Some((peer, requests)) = self.responder.turn(class) else {
            return (Progress::Idle, 0);
        };
        let Some(first) = requests.first() else {
            return (Progress::Idle, 0);
        };
        let via = first.via;
        // A requester without a valid cookie gets no more than a few octets, which need no path.
        let path = match class {
            Class::Validated => sink.path(peer, via),
            Class::Unvalidated => None,
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
        let loaded = load(context, (peer, class), requests, mulpdu, &mut builder);
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
                self.responder.refuse(class, context.now, reason);
            }
            Ok((_, SendOutcome::WouldBlock)) => return (Progress::Blocked, 0),
            Ok((_, SendOutcome::TooBig)) if path.is_some() => counters.count_resized(),
            Ok((loaded, SendOutcome::Sent)) => {
                counters.count_sent(train.len(), loaded.payload);
                self.responses_sent += train.len() as u64;
                self.responder.commit(class, loaded.finished, loaded.partly);
            }
            // Lost for good: the requester asks again if it still wants it.
            Ok((loaded, SendOutcome::TooBig | SendOutcome::Failed(_))) => {
                counters.count_send_error();
                self.responder.commit(class, loaded.finished.max(1), 0);
            }
        }
        (Progress::Sent, train.octets())
    }
}

/// Builds a train of responses to the first requests of one peer that came to the same address of ours.
///
/// # Errors
/// Why the first request's source may not be read any more.
fn load(
    context: Context<'_>,
    to: (Peer, Class),
    requests: &[Pending<Via>],
    mulpdu: u16,
    builder: &mut TrainBuilder<'_>,
) -> Result<Loaded, DropReason> {
    let mut loaded = Loaded::default();
    let Some(first) = requests.first() else {
        return Ok(loaded);
    };
    let alike = requests.iter().take_while(|it| it.via == first.via);
    for pending in alike {
        match load_one(context, to, pending, mulpdu, builder, &mut loaded) {
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
    (peer, class): (Peer, Class),
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
            cookie_valid: class == Class::Validated,
        };
        let span = source_of(request);
        Some(context.mrs.remote_read(context.pd, origin, span)?)
    } else {
        None
    };
    let header_len = u32::try_from(RESPONSE_HEADER).unwrap_or(u32::MAX);
    let most = equal(
        request.size,
        u32::from(mulpdu).saturating_sub(header_len).max(1),
    );
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
                .reached(request.source_offset.get() + u64::from(at), length, false)
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
