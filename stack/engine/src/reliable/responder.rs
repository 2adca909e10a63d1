//! Read Requests and atomic requests of peers, carried out in their turn, and the responses to them.

use dgiwarp_ddp::TaggedOffset;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Endpoint, Post, Verdict};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::{AtomicRequest, AtomicResponse, Opcode, ReadRequest, atomic};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Instant;

use super::config::RdQpConfig;
use super::outbound::longest;
use super::segment::{self, AROUND, RESPONSES, Request, TAGGED, UNTAGGED, refuse};
use crate::connected::update;
use crate::mr::{MrTable, StreamId, Use};
use crate::types::Route;

/// Requests of one peer whose responses it has not acknowledged (§7).
pub(super) const MOST_REQUESTS: usize = 32;
/// Tokens of responses have this bit; those of posted work requests do not.
const RESPONSE: u64 = 1 << 63;

/// A request whose turn has not come.
#[derive(Debug)]
struct Waiting {
    message: u32,
    request: Request,
}

/// Requests of one peer.
#[derive(Debug, Default)]
struct Source {
    waiting: Vec<Waiting>,
    /// The path back, once it is known.
    path: Option<Path>,
    /// Reads whose turn has come, and which wait for the path.
    due: VecDeque<u32>,
    /// Responses that are not acknowledged.
    responses: usize,
}

#[derive(Debug)]
enum Body {
    /// Octets of the region, read when they leave, so many in each segment.
    Read { request: ReadRequest, payload: u32 },
    /// The result, kept until it is acknowledged.
    Atomic(AtomicResponse),
}

/// A response that is not acknowledged.
#[derive(Debug)]
struct Response {
    peer: Peer,
    /// Message of its request.
    message: u32,
    is_broken: bool,
    body: Body,
}

/// The path back to a peer that asks.
#[derive(Debug)]
enum Path {
    Known(Route),
    /// As long datagrams as the association has.
    Unknown,
}

/// A response that cannot be written, because its memory is not registered any more, or has no pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Broken {
    pub(super) peer: Peer,
    /// Message of its request.
    pub(super) request: u32,
    /// It could not be written before.
    pub(super) again: bool,
}

/// The target of the peers' requests.
#[derive(Debug)]
pub(super) struct Responder {
    stream: StreamId,
    /// Longest datagram between hosts, in octets.
    network: u16,
    peers: FxHashMap<Peer, Source>,
    /// Peers with Reads that wait for the path.
    pathless: Vec<Peer>,
    responses: FxHashMap<u64, Response>,
    next: u64,
    /// A response whose memory is gone.
    broken: Option<Broken>,
    /// Message of a request that could not be carried out in its turn.
    refused: Option<(u32, u32)>,
    /// Rights that peers have not.
    denied: Access,
}

impl Responder {
    pub(super) fn new(config: RdQpConfig) -> Self {
        Self {
            stream: config.stream(),
            network: config.rd.datagram,
            peers: FxHashMap::default(),
            pathless: Vec::new(),
            responses: FxHashMap::default(),
            next: RESPONSE,
            broken: None,
            refused: None,
            denied: config.denied,
        }
    }

    /// Whether a token is that of a response.
    pub(super) const fn owns(token: u64) -> bool {
        token & RESPONSE != 0
    }

    /// Takes a request, which waits for its turn.
    pub(super) fn take(
        &mut self,
        peer: Peer,
        header: &SegmentHeader,
        request: Request,
        mrs: &MrTable,
    ) -> Verdict {
        if let Err(error) = self.find(peer, request, mrs) {
            return refuse(error);
        }
        let from = self.peers.entry(peer).or_default();
        if from.waiting.len() + from.responses >= MOST_REQUESTS {
            return Verdict::NotReady;
        }
        from.waiting.push(Waiting {
            message: header.message,
            request,
        });
        Verdict::Placed
    }

    /// The region of a request, if the peer may use it so. `None` for a Read of nothing, whose source is not checked (RFC 5040 §5.2.1).
    fn find(
        &self,
        peer: Peer,
        request: Request,
        mrs: &MrTable,
    ) -> Result<Option<Use>, StreamError> {
        let (span, right) = match request {
            Request::Read(ReadRequest { size: 0, .. }) => return Ok(None),
            Request::Read(read) => (source(&read), Access::REMOTE_READ),
            Request::Atomic(atomic) => (operand(&atomic), Access::REMOTE_ATOMIC),
        };
        let found = mrs.remote_of(self.stream, peer, span, right);
        let found = found.map_err(StreamError::Source)?;
        if self.denied.contains(right) {
            return Err(StreamError::Source(TaggedError::Access));
        }
        let aligned = span.start.get().is_multiple_of(atomic::OPERAND_LEN.into());
        if matches!(request, Request::Atomic(_)) && !aligned {
            return Err(StreamError::Misaligned(span.start));
        }
        Ok(Some(found))
    }

    /// Carries out a request whose turn has come.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        (peer, message): (Peer, u32),
        mrs: &MrTable,
        endpoint: &mut Endpoint,
    ) -> bool {
        let Some(from) = self.peers.get_mut(&peer) else {
            return false;
        };
        let Some(at) = from.waiting.iter().position(|it| it.message == message) else {
            return false;
        };
        // Atomics take one segment on any path.
        if from.path.is_none() && matches!(from.waiting[at].request, Request::Read(_)) {
            if from.due.is_empty() {
                self.pathless.push(peer);
            }
            from.due.push_back(message);
            return true;
        }
        let request = from.waiting.remove(at).request;
        let Some(datagram) = endpoint.datagram(peer) else {
            // The association has ended meanwhile.
            return true;
        };
        let datagram = match &from.path {
            Some(Path::Known(route)) => longest(route, now, self.network),
            Some(Path::Unknown) | None => datagram,
        };
        match self.carry_out(peer, request, datagram, mrs) {
            Ok((body, mut post)) => {
                post.token = self.next;
                self.next += 1;
                let response = Response {
                    peer,
                    message,
                    is_broken: false,
                    body,
                };
                self.responses.insert(post.token, response);
                if let Some(from) = self.peers.get_mut(&peer) {
                    from.responses += 1;
                }
                endpoint.post(now, peer, datagram, post);
            }
            Err(error) => {
                let control = segment::control_of(error);
                self.refused = Some((message, control));
                endpoint.refuse(now, peer, message, control);
            }
        }
        true
    }

    /// Carries out the Reads that waited for a path, as `path` finds it.
    #[inline]
    pub(super) fn find_paths(
        &mut self,
        now: Instant,
        mrs: &MrTable,
        endpoint: &mut Endpoint,
        path: impl FnMut(Peer) -> Option<Route>,
    ) {
        if !self.pathless.is_empty() {
            self.carry_out_due(now, mrs, endpoint, path);
        }
    }

    #[cold]
    fn carry_out_due(
        &mut self,
        now: Instant,
        mrs: &MrTable,
        endpoint: &mut Endpoint,
        mut path: impl FnMut(Peer) -> Option<Route>,
    ) {
        for peer in std::mem::take(&mut self.pathless) {
            let Some(from) = self.peers.get_mut(&peer) else {
                continue;
            };
            from.path = Some(path(peer).map_or(Path::Unknown, Path::Known));
            for message in std::mem::take(&mut from.due) {
                self.deliver(now, (peer, message), mrs, endpoint);
            }
        }
    }

    fn carry_out(
        &self,
        peer: Peer,
        request: Request,
        datagram: u16,
        mrs: &MrTable,
    ) -> Result<(Body, Post), StreamError> {
        // The memory may have gone since the request came.
        let found = self.find(peer, request, mrs)?;
        Ok(match request {
            Request::Read(request) => {
                let payload = datagram.saturating_sub(AROUND + TAGGED).max(1);
                let segments = request.size.div_ceil(payload.into()).max(1);
                let last = request.size - (segments - 1) * u32::from(payload);
                let post = Post {
                    segments,
                    length: TAGGED + payload,
                    last_length: TAGGED + u16::try_from(last).unwrap_or(payload),
                    ..SINGLE
                };
                let payload = payload.into();
                (Body::Read { request, payload }, post)
            }
            Request::Atomic(request) => {
                let found = found.ok_or(StreamError::Source(TaggedError::InvalidStag))?;
                let start = request.tagged_offset.get();
                let slice = found.reached(start, atomic::OPERAND_LEN, true);
                let slice = slice.ok_or(StreamError::Source(TaggedError::BaseOrBounds))?;
                // The region may be at an odd place of its own address space: nothing atomic can be done there.
                let original = update(&slice, &request);
                let original = original.map_err(|_| StreamError::Source(TaggedError::Access))?;
                let response = AtomicResponse {
                    identifier: request.identifier,
                    original,
                };
                (Body::Atomic(response), SINGLE)
            }
        })
    }

    /// Writes a segment of a response.
    pub(super) fn write(
        &mut self,
        mrs: &MrTable,
        token: u64,
        header: &SegmentHeader,
        segment: &mut [u8],
    ) {
        let Some(response) = self.responses.get_mut(&token) else {
            return;
        };
        let peer = response.peer;
        match response.body {
            Body::Atomic(response) => {
                let place = (RESPONSES, header.message);
                let head = segment::untagged(Opcode::AtomicResponse, place, true, 0, 0);
                put(segment, &head, &response.emit());
            }
            Body::Read { request, payload } => {
                let done = header.index * payload;
                // Only the requester checks STag and TO of the sink, so the TO may wrap.
                let to = request.sink_offset.get().wrapping_add(done.into());
                let to = TaggedOffset::new(to);
                let head =
                    segment::tagged(Opcode::ReadResponse, request.sink_stag, to, header.last);
                put(segment, &head, &[]);
                let Some(octets) = segment.get_mut(head.len()..).filter(|it| !it.is_empty()) else {
                    return;
                };
                let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
                let start = request.source_offset.get().wrapping_add(done.into());
                let span = TaggedSpan {
                    stag: request.source_stag,
                    start: TaggedOffset::new(start),
                    length,
                };
                let found = mrs.remote_of(self.stream, peer, span, Access::REMOTE_READ);
                let slice = found.as_ref().ok();
                let slice = slice.and_then(|found| found.reached(start, length, false));
                match slice {
                    Some(slice) => slice.copy_to(octets),
                    None => {
                        self.broken = Some(Broken {
                            peer,
                            request: response.message,
                            again: std::mem::replace(&mut response.is_broken, true),
                        });
                    }
                }
            }
        }
    }

    /// The response that could not be written.
    pub(super) const fn take_broken(&mut self) -> Option<Broken> {
        self.broken.take()
    }

    /// Message of a request that was refused in its turn, and Terminate Control.
    pub(super) const fn take_refused(&mut self) -> Option<(u32, u32)> {
        self.refused.take()
    }

    pub(super) const fn deny(&mut self, denied: Access) {
        self.denied = denied;
    }

    /// A response ended.
    pub(super) fn done(&mut self, token: u64) {
        let ended = self.responses.remove(&token);
        if let Some(from) = ended.and_then(|it| self.peers.get_mut(&it.peer)) {
            from.responses -= 1;
        }
    }

    /// The association with a peer ended, and its responses with it.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.peers.remove(&peer);
    }
}

/// A response of one segment, in no order.
const SINGLE: Post = Post {
    token: 0,
    segments: 1,
    length: UNTAGGED,
    last_length: UNTAGGED + 12,
    trailer: None,
    stream: None,
    receive: false,
};
const _: () = assert!(atomic::RESPONSE_LEN == 12);

/// Writes a header and what follows it.
fn put(segment: &mut [u8], head: &[u8], body: &[u8]) {
    if let Some((first, rest)) = segment.split_at_mut_checked(head.len()) {
        first.copy_from_slice(head);
        if let Some(rest) = rest.get_mut(..body.len()) {
            rest.copy_from_slice(body);
        }
    }
}

const fn source(request: &ReadRequest) -> TaggedSpan {
    TaggedSpan {
        stag: request.source_stag,
        start: request.source_offset,
        length: request.size,
    }
}

const fn operand(request: &AtomicRequest) -> TaggedSpan {
    TaggedSpan {
        stag: request.stag,
        start: request.tagged_offset,
        length: atomic::OPERAND_LEN,
    }
}
