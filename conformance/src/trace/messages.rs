//! Messages of one end: DDP's rules of a sender (RFC 5041) and, by opcode, RDMAP's (RFC 5040, RFC 7306).

use super::coverage::{Coverage, Whole};
use super::rdmap::Answers;
use super::{Report, rules, terminate};
use crate::wire::ddp::{Place, Segment, opcode};

/// An untagged queue of one end.
#[derive(Debug, Default)]
enum Queue {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// The next message has this number.
    Between(u32),
    /// A message of which segments are still to come.
    Inside(Untagged),
    /// A message whose beginning was not seen.
    Joined(u32),
}

#[derive(Debug)]
struct Untagged {
    msn: u32,
    rdmap: u8,
    rsvd: u32,
    segments: u64,
    coverage: Coverage,
}

/// The tagged messages of one opcode of one end. They follow one another.
#[derive(Debug, Default)]
enum Tagged {
    #[default]
    Between,
    Inside(u32, Coverage),
    /// Segments until the next L are not judged.
    Joined,
}

/// The queue of Read and Atomic Requests.
const REQUESTS: u32 = 1;

/// State of one sender.
#[derive(Debug)]
pub(super) struct Sender {
    queues: [Queue; 4],
    write: Tagged,
    response: Tagged,
    rv: Option<u8>,
    /// Its requests without an answer.
    pub(super) asks: Answers,
    /// FPDUs so far.
    pub(super) fpdus: u64,
    pub(super) terminated: bool,
}

impl Sender {
    /// An end of a new connection.
    pub(super) fn new() -> Self {
        const FIRST: u32 = 1;
        Self {
            queues: [FIRST; 4].map(Queue::Between),
            write: Tagged::Between,
            response: Tagged::Between,
            rv: None,
            asks: Answers::new(),
            fpdus: 0,
            terminated: false,
        }
    }

    /// Something of what it sent is not known.
    pub(super) fn forget(&mut self) {
        self.queues = Default::default();
        self.write = Tagged::Joined;
        self.response = Tagged::Joined;
        self.asks.forget();
        self.fpdus = self.fpdus.max(1);
    }

    /// Takes a segment; `peer` is what the other end asked for.
    pub(super) fn take(&mut self, segment: &Segment, peer: &mut Answers, report: &mut Report<'_>) {
        if self.terminated {
            return report(
                rules::RDMAP_TERMINATED,
                format!("{segment} behind the Terminate"),
            );
        }
        if !self.control(segment, report) {
            // Whatever it is, it is not what the state would make of it.
            peer.forget();
            return self.forget();
        }
        match segment.place {
            Place::Tagged { stag, to } => self.tagged(segment, stag, to, peer, report),
            Place::Untagged { rsvd, qn, msn, mo } => {
                self.untagged(segment, (rsvd, qn, msn, mo), peer, report);
            }
        }
        self.terminated |= segment.opcode() == opcode::TERMINATE;
    }

    /// The two control octets and the queue. False if the segment is none of a known message.
    fn control(&mut self, segment: &Segment, report: &mut Report<'_>) -> bool {
        if segment.ddp & 3 != 1 {
            report(rules::DDP_VERSION, format!("DV is {}", segment.ddp & 3));
            return false;
        }
        if segment.ddp & 0x3c != 0 {
            report(
                rules::DDP_RESERVED,
                format!("the octet is {:#04x}", segment.ddp),
            );
        }
        let rv = segment.rdmap >> 6;
        // RFC 5040 §4.1: 00b is that of devices of the RDMA Consortium.
        if rv > 1 || self.rv.is_some_and(|before| before != rv) {
            report(rules::RDMAP_VERSION, format!("RV is {rv}"));
        } else {
            self.rv = Some(rv);
        }
        if segment.rdmap & 0x30 != 0 {
            report(
                rules::RDMAP_RESERVED,
                format!("the octet is {:#04x}", segment.rdmap),
            );
        }
        let opcode = segment.opcode();
        let Some(queue) = queue_of(opcode) else {
            report(rules::RDMAP_OPCODE, format!("the opcode is {opcode}"));
            return false;
        };
        let (tagged, qn, rsvd) = match segment.place {
            Place::Tagged { .. } => (true, None, 0),
            Place::Untagged { qn, rsvd, .. } => (false, Some(qn), rsvd),
        };
        if tagged != queue.is_none() {
            report(
                rules::RDMAP_TAGGED,
                format!("T is {}: {segment}", u8::from(tagged)),
            );
            return false;
        }
        if qn != queue {
            report(rules::RDMAP_QUEUE, segment.to_string());
            return false;
        }
        let invalidates = matches!(opcode, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
        if rsvd != 0 && !invalidates {
            report(
                rules::RDMAP_INVALIDATE,
                format!("it is {rsvd:#x} in: {segment}"),
            );
        }
        true
    }

    fn tagged(
        &mut self,
        segment: &Segment,
        stag: u32,
        to: u64,
        peer: &mut Answers,
        report: &mut Report<'_>,
    ) {
        let is_response = segment.opcode() == opcode::READ_RESPONSE;
        let state = if is_response {
            &mut self.response
        } else {
            &mut self.write
        };
        let last = segment.is_last();
        // RFC 5041 §5.2: STag and TO of a zero-length message mean nothing.
        let empty = last && segment.payload.is_empty() && matches!(state, Tagged::Between);
        let (mut inside, mut coverage) = match std::mem::take(state) {
            Tagged::Joined => {
                if !last {
                    *state = Tagged::Joined;
                }
                return;
            }
            Tagged::Between => (stag, Coverage::default()),
            Tagged::Inside(stag, coverage) => (stag, coverage),
        };
        if inside != stag {
            let detail =
                format!("{stag:#x} in a message to {inside:#x} that has no last segment yet");
            if is_response && peer.took(inside, &coverage) {
                // It was all that was asked for.
                report(rules::DDP_LAST, detail);
            } else {
                report(rules::DDP_STAG, detail);
            }
            (inside, coverage) = (stag, Coverage::default());
        }
        coverage.add(if empty { 0 } else { to }, segment.payload.len());
        if !last {
            *state = Tagged::Inside(inside, coverage);
            return;
        }
        let fits = offsets(&coverage, None, segment, report);
        if is_response && fits {
            let (from, behind) = coverage.span();
            peer.answered((!empty).then_some((stag, from)), behind - from, report);
        } else if is_response {
            // Where its octets belong is not known: that is the finding, or there are too many places to tell.
            peer.answered_somewhere();
        }
    }

    fn untagged(
        &mut self,
        segment: &Segment,
        (rsvd, qn, msn, mo): (u32, u32, u32, u32),
        peer: &mut Answers,
        report: &mut Report<'_>,
    ) {
        let Some(state) = usize::try_from(qn)
            .ok()
            .and_then(|qn| self.queues.get_mut(qn))
        else {
            return;
        };
        let mut message = match std::mem::take(state) {
            Queue::Unknown if mo != 0 => return self.pass_over(segment, (qn, msn)),
            Queue::Joined(joined) if joined == msn => return self.pass_over(segment, (qn, msn)),
            Queue::Unknown | Queue::Joined(_) => Untagged::new(segment, msn, rsvd),
            Queue::Between(next) if next == msn => Untagged::new(segment, msn, rsvd),
            Queue::Between(next) => {
                if next.wrapping_sub(1) == msn && mo != 0 {
                    report(
                        rules::DDP_LAST,
                        format!("the message had its last segment before: {segment}"),
                    );
                    return self.pass_over(segment, (qn, msn));
                }
                report(
                    rules::DDP_MSN,
                    format!("MSN {next} would be next: {segment}"),
                );
                Untagged::new(segment, msn, rsvd)
            }
            Queue::Inside(message) if message.msn == msn => message,
            Queue::Inside(message) => {
                let detail = format!("message {} has no last segment yet: {segment}", message.msn);
                report(rules::DDP_LAST, detail);
                Untagged::new(segment, msn, rsvd)
            }
        };
        if (message.rdmap, message.rsvd) != (segment.rdmap, rsvd) {
            let detail = format!(
                "{:#04x} and {rsvd:#x} in a message that began with {:#04x} and {:#x}",
                segment.rdmap, message.rdmap, message.rsvd
            );
            report(rules::DDP_RSVD_ULP, detail);
        }
        message.segments += 1;
        message.coverage.add(mo.into(), segment.payload.len());
        if message.coverage.span().1 > 1 << 32 {
            report(rules::DDP_LENGTH, format!("octets beyond 2^32: {segment}"));
            return self.pass_over(segment, (qn, msn));
        }
        // A Terminate has room in the smallest segment, and nothing may follow it.
        let ends = segment.opcode() == opcode::TERMINATE;
        if !segment.is_last() && !ends {
            *state = Queue::Inside(message);
            return;
        }
        if !segment.is_last() {
            report(rules::DDP_LAST, format!("L is clear: {segment}"));
        }
        *state = Queue::Between(msn.wrapping_add(1));
        let fits = offsets(&message.coverage, Some(0), segment, report);
        if message.segments == 1 {
            let length = segment.payload.len() as u64;
            self.message(segment, length, peer, report);
        } else if fits {
            let length = message.coverage.span().1;
            self.message(segment, length, peer, report);
        } else {
            // Its octets are not known: the offsets are the finding.
            self.asks.forget();
            peer.forget();
        }
    }

    /// Goes on behind a segment of no known message. The peer may take one of queue 1 for a request, and answer it.
    fn pass_over(&mut self, segment: &Segment, (qn, msn): (u32, u32)) {
        if qn == REQUESTS {
            self.asks.forget();
        }
        let Some(state) = usize::try_from(qn)
            .ok()
            .and_then(|qn| self.queues.get_mut(qn))
        else {
            return;
        };
        *state = if segment.is_last() {
            Queue::Between(msn.wrapping_add(1))
        } else {
            Queue::Joined(msn)
        };
    }

    /// An untagged message of this length is complete; this was its last segment.
    fn message(
        &mut self,
        segment: &Segment,
        length: u64,
        peer: &mut Answers,
        report: &mut Report<'_>,
    ) {
        let single = u64::try_from(segment.payload.len()) == Ok(length);
        let octets = if single { &segment.payload[..] } else { &[] };
        match segment.opcode() {
            opcode::READ_REQUEST => self.asks.read(octets, length, report),
            opcode::ATOMIC_REQUEST => self.asks.atomic(octets, length, report),
            opcode::ATOMIC_RESPONSE => peer.atomic_answered(octets, length, report),
            opcode::TERMINATE => terminate::check(octets, report),
            opcode::IMMEDIATE | opcode::IMMEDIATE_SE if length != 8 => {
                report(rules::IMMEDIATE_SIZE, format!("{length} octets"));
            }
            _ => {}
        }
    }
}

impl Untagged {
    fn new(segment: &Segment, msn: u32, rsvd: u32) -> Self {
        Self {
            msn,
            rdmap: segment.rdmap,
            rsvd,
            segments: 0,
            coverage: Coverage::default(),
        }
    }
}

/// Whether the octets of a message that is complete are known to fit together; if they do not, that is reported.
fn offsets(
    coverage: &Coverage,
    begin: Option<u64>,
    segment: &Segment,
    report: &mut Report<'_>,
) -> bool {
    let (from, behind) = coverage.span();
    let whole = coverage.whole(begin);
    match whole {
        Whole::Ordered | Whole::Unknown => {}
        Whole::Disordered => report(
            rules::DDP_ORDER,
            format!("the message that ends with: {segment}"),
        ),
        Whole::Broken => report(
            rules::DDP_OFFSET,
            format!(
                "octets {from:#x} to {behind:#x} are not there once each, in the message that ends with: {segment}"
            ),
        ),
    }
    matches!(whole, Whole::Ordered | Whole::Disordered)
}

/// The queue of an opcode, or that it has none because it is tagged; `None` if there is no such opcode.
#[expect(
    clippy::option_option,
    reason = "no queue and no opcode are different things"
)]
fn queue_of(opcode: u8) -> Option<Option<u32>> {
    match opcode {
        opcode::WRITE | opcode::READ_RESPONSE => Some(None),
        opcode::SEND..=opcode::SEND_SE_INVALIDATE | opcode::IMMEDIATE | opcode::IMMEDIATE_SE => {
            Some(Some(0))
        }
        opcode::READ_REQUEST | opcode::ATOMIC_REQUEST => Some(Some(REQUESTS)),
        opcode::TERMINATE => Some(Some(2)),
        opcode::ATOMIC_RESPONSE => Some(Some(3)),
        _ => None,
    }
}
