//! The ULPDUs of a connection as DDP segments and RDMAP messages: every header is parsed, and what has to follow from what is checked.

use std::collections::VecDeque;

use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader};
use dgiwarp_ddp::{Msn, QueueNumber, STag};
use dgiwarp_rdmap::wire::{Opcode, ReadRequest, TerminateControl};

/// Messages of one end.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Messages that are complete.
    pub(crate) messages: usize,
    /// Octets of their payload, headers of RDMAP included.
    pub(crate) octets: usize,
    /// Its Read Requests.
    requests: Vec<ReadRequest>,
    /// Its Read Responses.
    responses: Vec<Response>,
    /// Causes of its Terminates: layer, type, code.
    pub(crate) terminates: Vec<(u8, u8, u8)>,
}

#[derive(Debug)]
struct Response {
    sink: STag,
    start: u64,
    length: u64,
}

/// A message of which not all segments were seen.
#[derive(Debug, Clone, Copy)]
struct Unfinished {
    opcode: Opcode,
    stag: STag,
    start: u64,
    next: u64,
}

/// The next MSN of each queue, Sends, requests and Terminates, and the offset in its message.
#[derive(Debug)]
struct Queues([(Msn, u32); 3]);

impl Sent {
    /// Takes what one end sent apart.
    pub(crate) fn of(ulpdus: &[Vec<u8>]) -> Self {
        let mut sent = Self::default();
        let mut tagged = None;
        let mut queues = Queues([(Msn::FIRST, 0); 3]);
        for ulpdu in ulpdus {
            if Control::parse(ulpdu[0]).tagged {
                sent.take_tagged(ulpdu, &mut tagged);
            } else {
                sent.take_untagged(ulpdu, &mut queues);
            }
        }
        assert!(tagged.is_none(), "a tagged message does not end");
        assert!(queues.0.iter().all(|(_, offset)| *offset == 0));
        sent
    }

    fn take_tagged(&mut self, ulpdu: &[u8], unfinished: &mut Option<Unfinished>) {
        let (header, payload) = TaggedHeader::parse(ulpdu).unwrap();
        assert_eq!(header.control.version, DV);
        let opcode = Opcode::parse(header.rsvd_ulp).unwrap();
        assert!(matches!(opcode, Opcode::Write | Opcode::ReadResponse));
        let at = header.tagged_offset.get();
        let message = unfinished.take().unwrap_or(Unfinished {
            opcode,
            stag: header.stag,
            start: at,
            next: at,
        });
        // Segments of a message are not mixed with others, and these came in order.
        assert_eq!((message.opcode, message.stag), (opcode, header.stag));
        assert_eq!(message.next, at);
        let next = at + payload.len() as u64;
        if !header.control.last {
            *unfinished = Some(Unfinished { next, ..message });
            return;
        }
        let length = next - message.start;
        self.messages += 1;
        self.octets += usize::try_from(length).unwrap();
        if opcode == Opcode::ReadResponse {
            self.responses.push(Response {
                sink: header.stag,
                start: message.start,
                length,
            });
        }
    }

    fn take_untagged(&mut self, ulpdu: &[u8], queues: &mut Queues) {
        let (header, payload) = UntaggedHeader::parse(ulpdu).unwrap();
        assert_eq!(header.control.version, DV);
        let opcode = Opcode::parse(header.rsvd_ulp).unwrap();
        let (queue, number) = match opcode {
            Opcode::Send => (QueueNumber::SEND, 0),
            Opcode::ReadRequest => (QueueNumber::READ_REQUEST, 1),
            Opcode::Terminate => (QueueNumber::TERMINATE, 2),
            other => panic!("{other:?} is in no capture"),
        };
        assert_eq!(header.queue_number, queue, "{opcode:?}");
        let (msn, offset) = &mut queues.0[number];
        assert_eq!((header.msn, header.message_offset.get()), (*msn, *offset));
        *offset += u32::try_from(payload.len()).unwrap();
        self.octets += payload.len();
        if !header.control.last {
            return;
        }
        (*msn, *offset) = (msn.next(), 0);
        self.messages += 1;
        match number {
            1 => {
                let (request, rest) = ReadRequest::parse(payload).unwrap();
                assert!(rest.is_empty());
                self.requests.push(request);
            }
            2 => {
                let (control, _) = TerminateControl::parse(payload).unwrap();
                let cause = control.cause;
                let cause = (cause.layer, cause.error_type, cause.code);
                self.terminates.push(cause);
            }
            _ => {}
        }
    }

    /// Every Response of `other` is what the next request of ours asked for; gives how many requests have none.
    pub(crate) fn unanswered(&self, other: &Self) -> usize {
        let mut requests: VecDeque<_> = self.requests.iter().collect();
        for response in &other.responses {
            let request = requests.pop_front().expect("a Response has its request");
            let asked = (request.sink_stag, request.sink_offset.get(), request.size);
            let length = u32::try_from(response.length).unwrap();
            if length > 0 {
                assert_eq!((response.sink, response.start, length), asked);
            } else {
                assert_eq!(request.size, 0);
            }
        }
        requests.len()
    }
}
