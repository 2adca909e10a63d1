//! The receiving peer: reports records and what its memory holds, without knowing what the relay did.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver as Inbox, channel};
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Cq, DropReason, Mr, QpAttr, RecvWr, Rnic, UdQp, UdQpAttr, Wc, WcOpcode,
    WcStatus,
};

use super::control::{Control, Frame};
use super::plan::{CANARY, Case, GUARD, Kind, Message, SEND_LENGTH};
use super::sender::config;
use crate::common::strangers::{STRANGE, dropped};
use crate::common::{given, wait_until};

/// Receives posted in the [`Kind::Send`] case; half of them may be bound to incomplete messages.
const RECEIVES: u32 = 4;
/// More than a batch has messages.
const RECORDS: usize = 256;

struct Receiver {
    case: Case,
    cq: Cq,
    qp: UdQp,
    memory: Buffer,
    mr: Mr,
    relay: Control,
    source: Option<SocketAddr>,
    processed: u64,
    /// Sends that did not arrive whole.
    incomplete: u64,
    completions: Vec<Wc>,
    results: BufWriter<File>,
}

/// The receiver's process.
pub(crate) fn run(case: Case) {
    let rnic = Rnic::open(config()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let attr = UdQpAttr {
        bind: Some((Ipv4Addr::LOCALHOST, 0).into()),
        record_slots: RECORDS,
        ..UdQpAttr::from(QpAttr {
            max_recv_wr: usize::try_from(RECEIVES).unwrap(),
            ..QpAttr::new(&cq, &cq)
        })
    };
    let qp = pd.create_ud_qp(&attr).unwrap();
    let octets = case.memory().max(RECEIVES * SEND_LENGTH);
    let memory = Buffer::zeroed(usize::try_from(octets).unwrap()).unwrap();
    memory.write(0, &vec![CANARY; memory.len()]);
    let mr = pd.register(memory.region(), Access::REMOTE_WRITE).unwrap();
    if case.kind == Kind::Send {
        (0..RECEIVES).for_each(|index| post_recv(&qp, &mr, index.into()));
    }
    let mut relay = Control::connect(&given("RELAY_CONTROL"));
    relay.send(Frame::Receiver {
        qpn: qp.qpn().into(),
        rkey: mr.rkey().into(),
        addr: mr.addr(),
    });
    let Frame::Welcome { longest, to, .. } = relay.receive() else {
        panic!("no welcome");
    };
    let source = (Ipv4Addr::LOCALHOST, u16::try_from(to).unwrap());
    let results = BufWriter::new(File::create(given("RELAY_RESULTS")).unwrap());
    let mut receiver = Receiver {
        case,
        cq,
        qp,
        memory,
        mr,
        relay,
        source: Some(source.into()),
        processed: 0,
        incomplete: 0,
        completions: Vec::new(),
        results,
    };
    receiver.receive_all(u32::try_from(longest).unwrap());
}

fn post_recv(qp: &UdQp, mr: &Mr, index: u64) {
    let length = usize::try_from(SEND_LENGTH).unwrap();
    let start = usize::try_from(index).unwrap() * length;
    let sges = [mr.sge(start..start + length)];
    let wr = RecvWr {
        wr_id: index,
        sges: &sges,
    };
    qp.post_recv(&[wr]).unwrap();
}

impl Receiver {
    fn receive_all(&mut self, longest: u32) {
        let batches = self.case.batches(longest);
        let count = batches.len();
        // The stream is read by a thread of its own, so that this one can go on polling.
        let stream = self.relay.0.try_clone().unwrap();
        let (told, inbox) = channel();
        std::thread::spawn(move || {
            let mut relay = Control::new(stream);
            (0..count).for_each(|_| told.send(relay.receive()).unwrap());
        });
        for batch in batches {
            let millis = self.receive_batch(&inbox);
            match self.case.kind {
                Kind::Write | Kind::Nth => self.settle_writes(&batch),
                Kind::Send => self.settle_sends(&batch, millis),
            }
            self.relay.send(Frame::Settled);
        }
        self.report_dropped();
        self.results.flush().unwrap();
    }

    fn report_dropped(&mut self) {
        let counters = self.qp.counters();
        for reason in DropReason::ALL {
            let dropped = counters.dropped(*reason);
            if dropped > 0 && *reason != STRANGE {
                writeln!(self.results, "dropped {reason:?} {dropped}").unwrap();
            }
        }
    }

    /// Receives until the relay reports that it forwarded all of a batch. Returns how long the batch took.
    fn receive_batch(&mut self, inbox: &Inbox<Frame>) -> u64 {
        loop {
            self.poll();
            match inbox.try_recv() {
                Ok(Frame::Forwarded { millis }) => return millis,
                Ok(frame) => panic!("{frame:?} of the relay"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Takes completions and reports to the relay what arrived.
    fn poll(&mut self) {
        while let Some(wc) = self.cq.poll_one().unwrap() {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.source, self.source);
            self.completions.push(wc);
        }
        let counters = self.qp.counters();
        // Reassembly timeouts count messages, not segments.
        let not_segments = counters.dropped(DropReason::ReassemblyTimeout);
        let arrived = counters.segments_received + dropped(&counters) - not_segments;
        if arrived != self.processed {
            self.processed = arrived;
            self.relay.send(Frame::Progress { arrived });
        }
    }

    /// Reports records, those that were closed before this and the others, and what memory holds.
    fn settle_writes(&mut self, batch: &[Message]) {
        let early = self.completions.len();
        self.qp.complete_records();
        self.poll();
        writeln!(self.results, "batch {early} {}", self.completions.len()).unwrap();
        for wc in std::mem::take(&mut self.completions) {
            assert_eq!(wc.opcode, WcOpcode::WriteRecord);
            let record = self.qp.record(wc.record()).expect("not released");
            assert!(self.qp.release_record(wc.record()));
            assert_eq!(record.source, self.source);
            assert_eq!(record.rkey, self.mr.rkey());
            assert_eq!(
                (record.valid, record.immediate),
                (wc.byte_len, wc.immediate)
            );
            let place = record.remote_addr - self.mr.addr();
            let immediate = record.immediate.expect("every message has one");
            write!(
                self.results,
                "record {immediate} {place} {} {}",
                record.length, record.valid
            )
            .unwrap();
            self.write_ranges(&record.ranges);
        }
        for message in batch {
            let written = self.written(message);
            let Message {
                index,
                length,
                place,
            } = message;
            write!(self.results, "memory {index} {place} {length} 0").unwrap();
            self.write_ranges(&written);
        }
        self.memory.write(0, &vec![CANARY; self.memory.len()]);
    }

    fn write_ranges(&mut self, ranges: &[(u32, u32)]) {
        for (start, end) in ranges {
            write!(self.results, " {start}-{end}").unwrap();
        }
        writeln!(self.results).unwrap();
    }

    /// The octets of a message that memory holds, as ranges. All others around them must be untouched.
    fn written(&self, message: &Message) -> Vec<(u32, u32)> {
        let expected = self.case.pattern(message.index, message.length);
        let around = usize::try_from(GUARD).unwrap();
        let start = usize::try_from(message.place).unwrap() - around;
        let found = self.memory.to_vec(start, around + expected.len() + around);
        let (before, rest) = found.split_at(around);
        let (found, after) = rest.split_at(expected.len());
        let untouched = |octets: &[u8]| octets.iter().all(|octet| *octet == CANARY);
        assert!(untouched(before) && untouched(after), "around {message:?}");
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for ((at, octet), expected) in (0u32..).zip(found).zip(&expected) {
            if octet == expected {
                match ranges.last_mut() {
                    Some(last) if last.1 == at => last.1 += 1,
                    Some(_) | None => ranges.push((at, at + 1)),
                }
            } else {
                assert_eq!(*octet, CANARY, "octet {at} of {message:?} is of no message");
            }
        }
        ranges
    }

    fn settle_sends(&mut self, batch: &[Message], millis: u64) {
        // The background thread may have completed one since the last poll.
        self.poll();
        self.incomplete += u64::try_from(batch.len() - self.completions.len()).unwrap();
        writeln!(self.results, "batch {millis} {}", self.completions.len()).unwrap();
        for wc in std::mem::take(&mut self.completions) {
            assert_eq!(wc.opcode, WcOpcode::Recv);
            let message = wc.immediate.expect("every message has one");
            assert_eq!(wc.byte_len, SEND_LENGTH, "message {message}");
            let length = usize::try_from(SEND_LENGTH).unwrap();
            let start = usize::try_from(wc.wr_id).unwrap() * length;
            let received = self.memory.to_vec(start, length);
            let expected = self.case.pattern(message, SEND_LENGTH);
            assert!(received == expected, "contents of message {message}");
            writeln!(self.results, "record {message} {start} {length} {length}").unwrap();
            self.memory.write(start, &vec![CANARY; length]);
            post_recv(&self.qp, &self.mr, wc.wr_id);
        }
        // Incomplete messages are given up before the next batch: its receives must come back for those.
        // Nobody polls: the background thread has to do it.
        let given_up = || self.qp.counters().dropped(DropReason::ReassemblyTimeout);
        let what = format!("receives of {} Sends given up come back", self.incomplete);
        wait_until(Duration::from_secs(5), &what, || {
            given_up() >= self.incomplete
        });
        assert_eq!(
            given_up(),
            self.incomplete,
            "only incomplete Sends are given up"
        );
    }
}
