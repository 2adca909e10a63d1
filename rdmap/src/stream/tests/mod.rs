//! A stream with a program's memory above it.

mod dgiwarp_ext;
mod ends;
mod inbound;
mod message_header;
mod requests;
mod sequences;

use std::collections::VecDeque;

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};
use dgiwarp_ddp::{STag, TaggedOffset};

use super::*;
use crate::datagram::PlaceFailed;

/// The one tagged buffer: its STag, where it begins, and its octets.
const STAG: u32 = 0x77;
const BASE: u64 = 1000;
const OCTETS: usize = 1024;
/// An STag that can be invalidated, once.
const WINDOW: u32 = 0x88;

/// Receives of given capacities, one tagged buffer, the sinks of Reads, and what became of all.
#[derive(Debug, Default)]
struct Memory {
    posted: VecDeque<usize>,
    waits: bool,
    filling: Vec<u8>,
    delivered: Vec<(Vec<u8>, Delivered)>,
    failed: Vec<StreamError>,
    tagged: Vec<u8>,
    writable: bool,
    window_is_gone: bool,
    sinks: Vec<Vec<u8>>,
    /// Reads in the order in which they completed.
    reads: Vec<usize>,
    /// Atomics with what they found.
    atomics: Vec<(usize, u64)>,
}

impl Memory {
    fn with_receives(capacities: &[usize]) -> Self {
        Self {
            posted: capacities.iter().copied().collect(),
            tagged: vec![0; OCTETS],
            writable: true,
            ..Self::default()
        }
    }

    /// Room for a Read of `length` octets; gives its number.
    fn sink(&mut self, length: u32) -> usize {
        self.sinks.push(vec![0xee; length as usize]);
        self.sinks.len() - 1
    }

    fn offset(&self, span: TaggedSpan) -> Result<usize, TaggedError> {
        if span.stag.get() != STAG {
            return Err(TaggedError::InvalidStag);
        }
        if span.start.checked_add(span.length.into()).is_none() {
            return Err(TaggedError::Wrap);
        }
        let from = usize::try_from(span.start.get()).unwrap();
        from.checked_sub(usize::try_from(BASE).unwrap())
            .filter(|from| from + span.length as usize <= self.tagged.len())
            .ok_or(TaggedError::BaseOrBounds)
    }

    fn octets(&self, span: TaggedSpan) -> &[u8] {
        let from = self.offset(span).unwrap();
        &self.tagged[from..from + span.length as usize]
    }

    fn word(&mut self, span: TaggedSpan) -> &mut [u8] {
        let from = self.offset(span).unwrap();
        &mut self.tagged[from..from + 8]
    }
}

impl TaggedBuffers for Memory {
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError> {
        self.offset(span).map(|_| ())
    }

    fn place(
        &mut self,
        stag: STag,
        start: TaggedOffset,
        payload: &[u8],
    ) -> Result<(), TaggedError> {
        let length = u32::try_from(payload.len()).unwrap();
        let from = self.offset(TaggedSpan {
            stag,
            start,
            length,
        })?;
        if !self.writable {
            return Err(TaggedError::Access);
        }
        self.tagged[from..from + payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

impl Ulp for Memory {
    type Receive = usize;
    type Request = usize;

    fn take_receive(&mut self) -> Option<usize> {
        self.posted.pop_front()
    }

    fn has_rnr_queue(&self) -> bool {
        self.waits
    }

    fn capacity(&self, receive: &usize) -> u32 {
        u32::try_from(*receive).unwrap()
    }

    fn place_untagged(
        &mut self,
        receive: &usize,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed> {
        assert_eq!(offset as usize, self.filling.len());
        self.filling.extend_from_slice(payload);
        assert!(self.filling.len() <= *receive);
        Ok(())
    }

    fn invalidate(&mut self, stag: STag) -> Result<(), TaggedError> {
        if stag.get() != WINDOW || self.window_is_gone {
            return Err(TaggedError::InvalidStag);
        }
        self.window_is_gone = true;
        Ok(())
    }

    fn deliver(&mut self, _: usize, delivered: Delivered) {
        assert_eq!(delivered.length as usize, self.filling.len());
        self.delivered
            .push((std::mem::take(&mut self.filling), delivered));
    }

    fn fail(&mut self, _: usize, error: StreamError) {
        self.failed.push(error);
    }

    fn check_source(&self, span: TaggedSpan, _: SourceUse) -> Result<(), TaggedError> {
        self.offset(span).map(|_| ())
    }

    fn place_response(
        &mut self,
        request: usize,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed> {
        let sink = &mut self.sinks[request];
        let from = offset as usize;
        // Out of bounds would panic here: nothing may reach outside of what was asked for.
        sink[from..from + payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn complete_read(&mut self, request: usize) {
        self.reads.push(request);
    }

    fn complete_atomic(&mut self, request: usize, original: u64) -> Result<(), PlaceFailed> {
        self.atomics.push((request, original));
        Ok(())
    }
}

type TestStream = Stream<usize, usize>;

fn stream() -> TestStream {
    Stream::new(Depths { ird: 2, ord: 2 })
}

/// The segments of a message, cut at `mulpdu`.
fn segments(mut message: Message, octets: &[u8], mulpdu: u16) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((header, segment)) = message.next_segment(mulpdu) {
        let from = segment.offset as usize;
        out.push([&header[..], &octets[from..from + segment.length as usize]].concat());
    }
    assert!(message.is_done());
    out
}

fn send(stream: &mut TestStream, octets: &[u8], kind: SendKind, mulpdu: u16) -> Vec<Vec<u8>> {
    let length = u32::try_from(octets.len()).unwrap();
    segments(stream.send(length, kind), octets, mulpdu)
}

/// All segments of the responses that `stream` has now.
fn answers(stream: &mut TestStream, memory: &mut Memory, mulpdu: u16) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| answer(stream, memory, mulpdu)).collect()
}

/// The next segment of a response of `stream`.
fn answer(stream: &mut TestStream, memory: &mut Memory, mulpdu: u16) -> Option<Vec<u8>> {
    Some(match stream.next_response(mulpdu)? {
        Response::ReadSegment { header, source } => {
            let octets: &[u8] = if source.length == 0 {
                &[]
            } else {
                memory.octets(source)
            };
            let ulpdu = [&header[..], octets].concat();
            stream.read_segment_sent(source.length);
            ulpdu
        }
        Response::Atomic(request) => {
            let word = memory.word(TaggedSpan {
                stag: request.stag,
                start: request.tagged_offset,
                length: 8,
            });
            let held = u64::from_ne_bytes(word.try_into().unwrap());
            word.copy_from_slice(&request.operation.apply(held).to_ne_bytes());
            stream.atomic_done(held).unwrap().to_vec()
        }
    })
}
