//! Read Requests and atomic requests of the peer that wait for their responses.

use std::collections::VecDeque;

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::wire::{UntaggedHeader, tagged, untagged};
use dgiwarp_ddp::{Msn, TaggedOffset};

use super::message::{Header, tagged_header};
use super::{SourceUse, StreamError, Ulp};
use crate::wire::atomic::OPERAND_LEN;
use crate::wire::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};

/// Next response to the peer's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// A segment of a Read Response: this header and the octets of `source`, copied now.
    ReadSegment {
        /// DDP header.
        header: Header,
        /// Range of the data source's buffer. A Read of zero octets has an empty one, which is not checked.
        source: TaggedSpan,
    },
    /// An atomic operation to be executed now; [`Stream::atomic_done`](super::Stream::atomic_done) makes its response.
    Atomic(AtomicRequest),
}

/// Requests in order of delivery.
#[derive(Debug)]
pub(super) struct Responder {
    /// Requests that may wait: IRD, for Reads and atomics together.
    limit: usize,
    queue: VecDeque<PendingRequest>,
    /// MSN of the next Atomic Response.
    msn: Msn,
}

/// A request that waits, with the header and length for a Terminate about it.
#[derive(Debug, Clone)]
pub(super) struct PendingRequest {
    operation: Operation,
    pub(super) header: [u8; untagged::LEN],
    pub(super) segment_length: u16,
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Read {
        request: ReadRequest,
        /// Octets sent.
        sent: u32,
        /// A segment was sent: no other message may follow before the last one.
        begun: bool,
    },
    Atomic(AtomicRequest),
}

impl PendingRequest {
    /// The Read Request for a Terminate, updated to the octets not sent (RFC 5040 §4.8).
    pub(super) fn read_request(&self) -> Option<ReadRequest> {
        match self.operation {
            Operation::Read { request, sent, .. } => request.after(sent),
            // RFC 7306 §8.1: the header of an atomic request is not sent back.
            Operation::Atomic(_) => None,
        }
    }
}

impl Responder {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            queue: VecDeque::new(),
            msn: Msn::FIRST,
        }
    }

    /// RFC 5040 §5.2.2: the queue holds IRD requests; beyond that there is no buffer for one.
    fn admit(&mut self, operation: Operation, segment: &Segment<'_>) -> Result<(), StreamError> {
        if self.queue.len() >= self.limit {
            return Err(UntaggedError::NoBuffer.into());
        }
        self.queue.push_back(PendingRequest {
            operation,
            header: segment.header.emit(),
            segment_length: segment.length,
        });
        Ok(())
    }

    pub(super) fn handle_read<U: Ulp>(
        &mut self,
        request: ReadRequest,
        segment: &Segment<'_>,
        ulp: &U,
    ) -> Result<(), StreamError> {
        let operation = Operation::Read {
            request,
            sent: 0,
            begun: false,
        };
        self.admit(operation, segment)?;
        // RFC 5040 §5.2.1: with size zero the source is not validated.
        if request.size == 0 {
            return Ok(());
        }
        ulp.check_source(source(&request, request.size), SourceUse::Read)
            .map_err(StreamError::Source)
    }

    pub(super) fn handle_atomic<U: Ulp>(
        &mut self,
        request: AtomicRequest,
        segment: &Segment<'_>,
        ulp: &U,
    ) -> Result<(), StreamError> {
        self.admit(Operation::Atomic(request), segment)?;
        ulp.check_source(operand(&request), SourceUse::Atomic)
            .map_err(StreamError::Source)?;
        if !request
            .tagged_offset
            .get()
            .is_multiple_of(OPERAND_LEN.into())
        {
            return Err(StreamError::Misaligned(request.tagged_offset));
        }
        Ok(())
    }

    /// Whether a Read Response has begun and not ended.
    pub(super) fn is_amid(&self) -> bool {
        matches!(
            self.queue.front(),
            Some(PendingRequest {
                operation: Operation::Read { begun: true, .. },
                ..
            })
        )
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The oldest request, which is answered first.
    pub(super) fn head(&self) -> Option<&PendingRequest> {
        self.queue.front()
    }

    /// The latest admitted request.
    pub(super) fn latest(&self) -> Option<&PendingRequest> {
        self.queue.back()
    }

    /// Next response, which stays the next one.
    pub(super) fn peek(&self, mulpdu: u16) -> Option<Response> {
        match self.queue.front()?.operation {
            Operation::Read { request, sent, .. } => {
                let left = request.size - sent;
                let room = u32::from(mulpdu).saturating_sub(TAGGED_LEN);
                let length = left.min(room);
                // RFC 5040 §5.2.2: STag and TO are the sink of the request. Only the requester checks them, so the TO may wrap.
                let offset = request.sink_offset.get().wrapping_add(sent.into());
                let header = tagged_header(
                    Opcode::ReadResponse,
                    request.sink_stag,
                    TaggedOffset::new(offset),
                    length == left,
                );
                let rest = request.after(sent).unwrap_or(request);
                Some(Response::ReadSegment {
                    header,
                    source: source(&rest, length),
                })
            }
            Operation::Atomic(request) => Some(Response::Atomic(request)),
        }
    }

    /// Counts the Read segment of [`peek`](Self::peek), of `length` octets, as sent.
    pub(super) fn sent(&mut self, length: u32) {
        let Some(PendingRequest {
            operation:
                Operation::Read {
                    request,
                    sent,
                    begun,
                },
            ..
        }) = self.queue.front_mut()
        else {
            return;
        };
        *sent += length;
        *begun = true;
        if *sent >= request.size {
            self.queue.pop_front();
        }
    }

    /// Takes the atomic request of [`peek`](Self::peek), which was executed, and makes its response.
    pub(super) fn atomic_done(&mut self, original: u64) -> Option<(Msn, AtomicResponse)> {
        let Operation::Atomic(request) = self.queue.front()?.operation else {
            return None;
        };
        self.queue.pop_front();
        let msn = self.msn;
        self.msn = msn.next();
        let response = AtomicResponse {
            identifier: request.identifier,
            original,
        };
        Some((msn, response))
    }

    /// Forgets the latest request, which ended the stream.
    pub(super) fn drop_latest(&mut self) {
        self.queue.pop_back();
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Octets of a tagged header.
const TAGGED_LEN: u32 = 14;
const _: () = assert!(tagged::LEN == 14);

/// Last segment of a request.
pub(super) struct Segment<'a> {
    pub(super) header: &'a UntaggedHeader,
    /// Octets of the whole segment.
    pub(super) length: u16,
}

fn source(request: &ReadRequest, length: u32) -> TaggedSpan {
    TaggedSpan {
        stag: request.source_stag,
        start: request.source_offset,
        length,
    }
}

fn operand(request: &AtomicRequest) -> TaggedSpan {
    TaggedSpan {
        stag: request.stag,
        start: request.tagged_offset,
        length: OPERAND_LEN,
    }
}
