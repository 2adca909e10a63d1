//! Own Read Requests and atomic requests that wait for their responses.

use std::collections::VecDeque;

use dgiwarp_codec::Payload;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::wire::TaggedHeader;
use dgiwarp_ddp::{Msn, STag, TaggedOffset};

use super::{StreamError, Ulp};
use crate::wire::{AtomicOperation, AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate};

/// Range of the peer's memory that a Read reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSource {
    /// Names the peer's buffer.
    pub stag: STag,
    /// TO of the first octet.
    pub start: TaggedOffset,
    /// Octets.
    pub length: u32,
}

/// Requests without a response, oldest first. `Q` names the work request of each.
#[derive(Debug)]
pub(super) struct Requester<Q> {
    /// Requests that may be outstanding: ORD, for Reads and atomics together (RFC 7306 §5.2).
    limit: usize,
    /// MSN of the next request on queue 1.
    msn: Msn,
    reads: VecDeque<Read<Q>>,
    atomics: VecDeque<Atomic<Q>>,
}

/// A Read. Its sink STag is made for this Read alone: it is no key of the memory that is read into, and invalid once the Read is complete.
#[derive(Debug)]
struct Read<Q> {
    msn: Msn,
    sink: STag,
    length: u32,
    placed: u32,
    request: Q,
}

#[derive(Debug)]
struct Atomic<Q> {
    msn: Msn,
    request: Q,
}

impl<Q: Copy> Requester<Q> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            msn: Msn::FIRST,
            reads: VecDeque::with_capacity(limit.min(64)),
            atomics: VecDeque::new(),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.reads.len() + self.atomics.len()
    }

    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Takes credit and an MSN. RFC 5040 §6.1: outstanding requests never exceed the limit.
    fn begin(&mut self) -> Option<Msn> {
        (self.outstanding() < self.limit).then(|| self.next_msn())
    }

    fn next_msn(&mut self) -> Msn {
        let msn = self.msn;
        self.msn = msn.next();
        msn
    }

    pub(super) fn read(&mut self, source: ReadSource, request: Q) -> Option<(Msn, ReadRequest)> {
        let msn = self.begin()?;
        Some((msn, self.push_read(msn, source, request)))
    }

    /// A Read of zero octets that needs no credit.
    pub(super) fn rtr_read(&mut self, request: Q) -> (Msn, ReadRequest) {
        let nothing = ReadSource {
            stag: STag::new(0),
            start: TaggedOffset::new(0),
            length: 0,
        };
        let msn = self.next_msn();
        (msn, self.push_read(msn, nothing, request))
    }

    fn push_read(&mut self, msn: Msn, source: ReadSource, request: Q) -> ReadRequest {
        let sink = STag::new(msn.get());
        self.reads.push_back(Read {
            msn,
            sink,
            length: source.length,
            placed: 0,
            request,
        });
        ReadRequest {
            sink_stag: sink,
            sink_offset: TaggedOffset::new(0),
            size: source.length,
            source_stag: source.stag,
            source_offset: source.start,
        }
    }

    pub(super) fn atomic(
        &mut self,
        operation: AtomicOperation,
        (stag, tagged_offset): (STag, TaggedOffset),
        request: Q,
    ) -> Option<(Msn, AtomicRequest)> {
        let msn = self.begin()?;
        self.atomics.push_back(Atomic { msn, request });
        let header = AtomicRequest {
            operation,
            identifier: msn.get(),
            stag,
            tagged_offset,
        };
        Some((msn, header))
    }

    /// Handles a segment of a Read Response. RFC 5040 §5.2.2 does not require that STag, TO and length are compared with the request;
    /// they always are here, so that a response is placed only where its own request asks for octets.
    pub(super) fn handle_read_response<P, U>(
        &mut self,
        header: &TaggedHeader,
        payload: &P,
        ulp: &mut U,
    ) -> Result<(), StreamError>
    where
        P: Payload + ?Sized,
        U: Ulp<P, Request = Q>,
    {
        let Some(read) = self.reads.front_mut() else {
            return Err(TaggedError::InvalidStag.into());
        };
        // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked.
        if !payload.is_empty() {
            if header.stag != read.sink {
                return Err(TaggedError::InvalidStag.into());
            }
            let end = u32::try_from(payload.len())
                .ok()
                .and_then(|length| read.placed.checked_add(length))
                .filter(|end| *end <= read.length);
            let (Some(end), true) = (end, header.tagged_offset.get() == read.placed.into()) else {
                return Err(TaggedError::BaseOrBounds.into());
            };
            ulp.place_response(read.request, read.placed, payload)
                .map_err(|_| StreamError::LocalProtection)?;
            read.placed = end;
        }
        if header.control.last {
            if read.placed != read.length {
                return Err(StreamError::Length {
                    opcode: Opcode::ReadResponse,
                    length: read.placed,
                });
            }
            let request = read.request;
            self.reads.pop_front();
            ulp.complete_read(request);
        }
        Ok(())
    }

    /// Handles an Atomic Response.
    pub(super) fn handle_atomic_response<U: Ulp<Request = Q>>(
        &mut self,
        response: AtomicResponse,
        ulp: &mut U,
    ) -> Result<(), StreamError> {
        let Some(atomic) = self.atomics.front() else {
            return Err(UntaggedError::NoBuffer.into());
        };
        let expected = atomic.msn.get();
        if response.identifier != expected {
            return Err(StreamError::AtomicIdentifier {
                found: response.identifier,
                expected,
            });
        }
        let request = atomic.request;
        self.atomics.pop_front();
        ulp.complete_atomic(request, response.original)
            .map_err(|_| StreamError::LocalProtection)
    }

    /// The Read whose request a Terminate of the peer holds.
    pub(super) fn read_of(&self, terminate: &Terminate<'_>) -> Option<Q> {
        let blamed = terminate.read_request?;
        let read = self.reads.iter().find(|read| read.sink == blamed.sink_stag);
        read.map(|read| read.request)
    }

    /// The Read or atomic whose request has this MSN.
    pub(super) fn request_of(&self, msn: Msn) -> Option<Q> {
        let reads = self.reads.iter().map(|read| (read.msn, read.request));
        let atomics = self.atomics.iter().map(|it| (it.msn, it.request));
        reads
            .chain(atomics)
            .find_map(|(of, request)| (of == msn).then_some(request))
    }
}
