//! One end of a stream that works through a list of operations, as an engine does.

use dgiwarp_ddp::STag;

use super::*;
use crate::wire::{AtomicOperation, ImmediateData};

/// Operation of an end on the other one's buffer and queue.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Send {
        octets: Vec<u8>,
        solicited: bool,
    },
    Write {
        at: usize,
        octets: Vec<u8>,
    },
    Read {
        at: usize,
        length: u32,
    },
    Atomic {
        at: usize,
        operation: AtomicOperation,
    },
    Immediate(u32),
}

/// An end with what it has still to do.
#[derive(Debug)]
pub(super) struct End {
    pub(super) stream: TestStream,
    pub(super) memory: Memory,
    operations: VecDeque<Operation>,
    current: Option<(Message, Vec<u8>)>,
    /// Numbers of the operations that requests stand for, by request.
    pub(super) sent: usize,
}

impl End {
    pub(super) fn new(depths: Depths, operations: &[Operation], receives: usize) -> Self {
        Self {
            stream: Stream::new(depths),
            memory: Memory::with_receives(&vec![OCTETS; receives]),
            operations: operations.iter().cloned().collect(),
            current: None,
            sent: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.operations.is_empty()
            && self.current.is_none()
            && self.stream.outstanding() == 0
            && !self.stream.has_responses()
    }

    /// The next ULPDU to leave, if one can; `answers_first` where both an answer and an operation could begin.
    pub(super) fn next_ulpdu(&mut self, mulpdu: u16, answers_first: bool) -> Option<Vec<u8>> {
        if let Some(terminate) = self.stream.take_terminate() {
            return Some(terminate.to_vec());
        }
        if self.current.is_some() {
            return self.go_on(mulpdu);
        }
        if self.stream.is_amid_response() {
            return answer(&mut self.stream, &mut self.memory, mulpdu);
        }
        if answers_first {
            answer(&mut self.stream, &mut self.memory, mulpdu).or_else(|| self.begin(mulpdu))
        } else {
            self.begin(mulpdu)
                .or_else(|| answer(&mut self.stream, &mut self.memory, mulpdu))
        }
    }

    fn go_on(&mut self, mulpdu: u16) -> Option<Vec<u8>> {
        let (message, octets) = self.current.as_mut()?;
        let (header, segment) = message.next_segment(mulpdu)?;
        let from = segment.offset as usize;
        let ulpdu = [&header[..], &octets[from..from + segment.length as usize]].concat();
        if message.is_done() {
            self.current = None;
        }
        Some(ulpdu)
    }

    fn begin(&mut self, mulpdu: u16) -> Option<Vec<u8>> {
        let length = |octets: &[u8]| u32::try_from(octets.len()).unwrap();
        let place = |at: usize| TaggedOffset::new(BASE + at as u64);
        let stag = STag::new(STAG);
        let ulpdu = match self.operations.front()?.clone() {
            Operation::Send { octets, solicited } => {
                let kind = SendKind {
                    solicited,
                    invalidate: None,
                };
                let message = self.stream.send(length(&octets), kind);
                self.current = Some((message, octets));
                self.go_on(mulpdu)
            }
            Operation::Write { at, octets } => {
                let message = self.stream.write(stag, place(at), length(&octets));
                self.current = Some((message, octets));
                self.go_on(mulpdu)
            }
            Operation::Read { at, length } => {
                let source = ReadSource {
                    stag,
                    start: place(at),
                    length,
                };
                // The number of the next sink, which is made only if there is credit.
                let request = self.stream.read(source, self.memory.sinks.len())?;
                self.memory.sink(length);
                Some(request.to_vec())
            }
            Operation::Atomic { at, operation } => {
                let number = self.sent;
                let request = self.stream.atomic(operation, (stag, place(at)), number)?;
                Some(request.to_vec())
            }
            Operation::Immediate(immediate) => {
                let data = ImmediateData {
                    immediate,
                    written: 0,
                };
                Some(self.stream.immediate(data, false).to_vec())
            }
        };
        self.operations.pop_front();
        self.sent += 1;
        ulpdu
    }
}
