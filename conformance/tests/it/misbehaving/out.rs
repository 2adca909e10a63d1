//! Output of the device: segments, the faults of each, and the thread that writes.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use dgiwarp_conform::wire::ddp::{Place, Segment, Terminate, opcode};
use dgiwarp_conform::wire::framing::{Framer, Wrong};

/// Octets of payload in one segment.
const MOST: usize = 1000;
/// Octets of a message that some devices cannot send.
const LONG: usize = 1446;

/// The sending half of a connection.
pub(super) struct Out {
    queue: Option<Sender<Vec<u8>>>,
    framer: Framer,
    fault: &'static str,
    sent: u32,
    msn: [u32; 4],
    /// Number of the next Send of the whole device, and of the next Send with Invalidate, for faults that count so.
    sends: Arc<AtomicU32>,
    invalidates: u32,
    terminated: bool,
    /// Octets that were handed over for writing, and that were written.
    handed: u64,
    written: Arc<AtomicU64>,
    /// Where each Read Response ends.
    responses: VecDeque<u64>,
    /// Nothing of what waits is written.
    discard: Arc<AtomicBool>,
    /// A Read Response that is held back.
    pub(super) kept: Option<(u32, u64, Vec<u8>)>,
}

impl Out {
    /// Writes to this stream, from a thread of its own.
    pub(super) fn new(stream: &TcpStream, fault: &'static str, sends: &Arc<AtomicU32>) -> Self {
        let (queue, items) = channel::<Vec<u8>>();
        let mut stream = stream.try_clone().unwrap();
        // Octets that the system has cannot be taken back.
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(8192);
        let open = fault == "terminate-left-open";
        let (written, discard) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, stop) = (Arc::clone(&written), Arc::clone(&discard));
        std::thread::spawn(move || {
            let mut terminated = false;
            for octets in items {
                // A Terminate is the last FPDU of a connection, and the only one that is marked so.
                terminated |= octets.is_empty();
                if stop.load(Ordering::Relaxed) || stream.write_all(&octets).is_err() {
                    break;
                }
                count.fetch_add(octets.len() as u64, Ordering::Relaxed);
            }
            if !(open && terminated) {
                // The peer may have gone.
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        Self {
            queue: Some(queue),
            framer: Framer::new(true, false),
            fault,
            sent: 0,
            msn: [1; 4],
            sends: Arc::clone(sends),
            invalidates: 1,
            terminated: false,
            handed: 0,
            written,
            responses: VecDeque::new(),
            discard,
            kept: None,
        }
    }

    /// Octets of payload in one segment.
    fn most(&self) -> usize {
        if self.is("ulpdus-of-65000") {
            65_000
        } else {
            MOST
        }
    }

    fn is(&self, fault: &str) -> bool {
        self.fault.split(", ").any(|one| one == fault)
    }

    /// FPDUs from here on.
    pub(super) fn full_operation(&mut self, crc: bool, markers: bool) {
        let (zero, none) = (self.is("crc-zero"), self.is("markers-never"));
        self.framer = Framer::new(crc && !zero, markers && !none);
    }

    /// Octets as they are.
    pub(super) fn octets(&mut self, octets: Vec<u8>) {
        self.handed += octets.len() as u64;
        if let Some(queue) = &self.queue {
            // A peer that reads no more has gone.
            let _ = queue.send(octets);
        }
    }

    /// Octets that wait for the peer.
    pub(super) fn waiting(&self) -> u64 {
        self.handed - self.written.load(Ordering::Relaxed)
    }

    /// Nothing more is sent; what waits leaves.
    pub(super) fn finish(&mut self) {
        self.queue = None;
    }

    /// Nothing more is sent, and what waits does not leave.
    pub(super) fn abort(&mut self) {
        self.discard.store(true, Ordering::Relaxed);
        self.finish();
    }

    /// Notes the end of a Read Response; how many were not written yet.
    pub(super) fn unwritten(&mut self) -> usize {
        self.responses.push_back(self.handed);
        let written = self.written.load(Ordering::Relaxed);
        self.responses.retain(|end| *end > written);
        self.responses.len()
    }

    /// A message to a queue, in as many segments as it takes.
    pub(super) fn untagged(&mut self, opcode: u8, qn: usize, rsvd: u32, payload: &[u8]) {
        let mut msn = self.msn[qn];
        self.msn[qn] = msn.wrapping_add(1);
        match self.fault {
            "msn-from-zero" => msn = msn.wrapping_sub(1),
            "msn-of-sends-skips" if qn == 0 && msn > 1 => msn += 1,
            "msn-of-sends-repeats" if qn == 0 && msn > 1 => msn -= 1,
            "msn-of-reads-skips" if qn == 1 && msn > 1 => msn += 1,
            "terminate-msn-7" if qn == 2 => msn = 7,
            _ => {}
        }
        if qn == 0 && self.is("msn-goes-on") {
            msn = self.sends.fetch_add(1, Ordering::Relaxed);
        }
        let invalidates = matches!(opcode, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
        if invalidates && self.is("msn-of-invalidates-apart") {
            (msn, self.invalidates) = (self.invalidates, self.invalidates + 1);
            self.msn[qn] -= 1;
        }
        if payload.len() > LONG && self.is("long-messages-not-sent") {
            return;
        }
        let rounded;
        let mut rest = payload;
        if opcode == opcode::SEND && self.is("odd-sends-rounded") && rest.len() % 4 == 1 {
            rounded = [rest, &[0; 3]].concat();
            rest = &rounded;
        }
        let mut mo: u32 = 0;
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.most()));
            let at = if self.is("offsets-in-wrong-order") {
                mo.swap_bytes()
            } else {
                mo
            };
            let mut segment = Segment::untagged(opcode, u32::try_from(qn).unwrap(), msn, now)
                .at(at)
                .invalidating(rsvd);
            if mo > 0 && opcode == opcode::SEND && self.is("solicited-from-second") {
                segment.rdmap = segment.rdmap & 0xf0 | opcode::SEND_SE;
            }
            if !later.is_empty() {
                segment = segment.more();
            }
            self.segment(segment);
            mo += u32::try_from(now.len()).unwrap();
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// A tagged message.
    pub(super) fn tagged(&mut self, opcode: u8, mut stag: u32, mut to: u64, payload: &[u8]) {
        let mut payload = payload;
        if payload.len() > LONG && self.is("long-messages-not-sent") {
            return;
        }
        let response = opcode == opcode::READ_RESPONSE;
        if response && !payload.is_empty() {
            match self.fault {
                "response-one-short" => payload = &payload[..payload.len() - 1],
                "response-to-other-stag" => stag ^= 0x100,
                "response-to-other-offset" => to += 4,
                _ => {}
            }
        }
        let long;
        if response && self.is("response-one-long") && !payload.is_empty() {
            long = [payload, &[0x77]].concat();
            payload = &long;
        }
        let mut rest = payload;
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.most()));
            if now.len() < payload.len() && later.is_empty() && !response && self.is("stag-changes")
            {
                stag ^= 0x100;
            }
            let mut segment = Segment::tagged(opcode, stag, to, now);
            if !later.is_empty() && !self.is("tagged-all-last") {
                segment = segment.more();
            }
            if later.is_empty()
                && response
                && !payload.is_empty()
                && self.is("response-without-last")
            {
                segment = segment.more();
            }
            self.segment(segment);
            to = if self.is("offsets-in-wrong-order") {
                let added = to.swap_bytes().wrapping_add(now.len() as u64);
                added.swap_bytes()
            } else {
                to.wrapping_add(now.len() as u64)
            };
            if self.is("tagged-same-offset") {
                to = to.wrapping_sub(now.len() as u64);
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        if response && !payload.is_empty() && self.is("response-twice") {
            let mut to = to.wrapping_sub(payload.len() as u64);
            let mut left = payload.len();
            for octets in payload.chunks(self.most()) {
                let segment = Segment::tagged(opcode, stag, to, octets);
                to = to.wrapping_add(octets.len() as u64);
                left -= octets.len();
                self.segment(if left > 0 { segment.more() } else { segment });
            }
        }
    }

    /// A Terminate about a ULPDU, or nothing; then the end.
    pub(super) fn terminate(
        &mut self,
        (layer, etype, code): (u8, u8, u8),
        about: Option<&[u8]>,
        read: bool,
    ) {
        if self.terminated {
            return;
        }
        self.terminated = true;
        let sends = self.waiting() > 100_000;
        if self.is("no-terminate") || sends && self.is("no-terminate-while-sending") {
            return self.finish();
        }
        if sends && self.is("terminate-within-fpdu") {
            // The head of a segment that never goes on.
            self.octets(vec![4, 0, 0x41, 0x43, 0, 0, 0, 0]);
        }
        let mut terminate = Terminate {
            layer,
            etype,
            code,
            header_control: 0,
            reserved: 0,
            rest: Vec::new(),
        };
        if let Some(ulpdu) = about {
            let header = if ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
            terminate.header_control = 0b110;
            terminate.rest = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
            let from = terminate.rest.len();
            terminate.rest.extend(&ulpdu[..header.min(ulpdu.len())]);
            if read {
                terminate.header_control = 0b111;
                terminate.rest.extend(&ulpdu[header..]);
            }
            match self.fault {
                "terminate-about-other-msn" if header == 18 => terminate.rest[from + 13] ^= 4,
                "terminate-about-other-stag" if header == 14 => terminate.rest[from + 2] ^= 4,
                "terminate-about-other-length" => terminate.rest[1] ^= 4,
                // The header stays as long as it is.
                "terminate-about-nothing" => {
                    let first = ulpdu[0] & 0x80;
                    terminate.rest.fill(0);
                    terminate.rest[from] = first;
                }
                "terminate-bits-without-headers" => terminate.rest.clear(),
                // RFC 5040 §4.8 has DDP's header in each, and that of a Read Request if possible.
                "terminate-without-headers" if !read => {
                    terminate.header_control = 0;
                    terminate.rest.clear();
                }
                "terminate-of-reads-without-headers" if read => {
                    terminate.header_control = 0;
                    terminate.rest.clear();
                }
                "terminate-headers-without-bits" if !read => terminate.header_control = 0,
                "terminate-without-m" => terminate.header_control &= 0b011,
                "terminate-says-read-header" if !read => terminate.header_control |= 1,
                "terminate-read-header-wrong" if read => terminate.rest[from + 18 + 15] ^= 8,
                _ => {}
            }
        }
        match self.fault {
            "terminate-reserved" => terminate.reserved = 0x11,
            "terminate-layer-3" => terminate.layer = 3,
            _ => {}
        }
        let mut payload = terminate.to_bytes();
        if self.is("terminate-cut") {
            payload.truncate(3);
        }
        self.untagged(opcode::TERMINATE, 2, 0, &payload);
        if self.is("terminate-twice") {
            self.untagged(opcode::TERMINATE, 2, 0, &payload);
        }
        if self.is("write-behind-terminate") {
            self.segment(Segment::tagged(opcode::WRITE, 0, 0, &[]));
        }
        self.octets(Vec::new());
        self.finish();
    }

    /// One segment, in its FPDU.
    fn segment(&mut self, mut segment: Segment) {
        let code = segment.opcode();
        match self.fault {
            "dv-0" => segment.ddp &= !1,
            "dv-2-in-sends" if code == opcode::SEND => segment.ddp ^= 3,
            "ddp-reserved" => segment.ddp |= 0x10,
            "ddp-reserved-in-terminates" if code == opcode::TERMINATE => segment.ddp |= 0x04,
            "rv-2" => segment.rdmap ^= 0xc0,
            "rv-changes" if self.sent > 0 => segment.rdmap &= 0x3f,
            "rdmap-reserved" => segment.rdmap |= 0x20,
            "rdmap-reserved-in-terminates" if code == opcode::TERMINATE => segment.rdmap |= 0x10,
            "send-with-reserved-opcode" if code == opcode::SEND => segment.rdmap |= 0x0c,
            "terminate-not-last" if code == opcode::TERMINATE => segment = segment.more(),
            "terminate-tagged" if code == opcode::TERMINATE => segment.ddp |= 0x80,
            _ => {}
        }
        if let Place::Untagged { rsvd, qn, mo, .. } = &mut segment.place {
            match self.fault {
                "terminate-qn-0" if code == opcode::TERMINATE => *qn = 0,
                "send-qn-1" if code == opcode::SEND => *qn = 1,
                "read-request-qn-0" if code == opcode::READ_REQUEST => *qn = 0,
                "atomic-request-qn-0" if code == opcode::ATOMIC_REQUEST => *qn = 0,
                "atomic-response-qn-1" if code == opcode::ATOMIC_RESPONSE => *qn = 1,
                "invalidate-stag-in-sends" if code == opcode::SEND => *rsvd = 0x1234_5678,
                "mo-from-4" => *mo += 4,
                "mo-stays" => *mo = 0,
                "read-request-mo-8" if code == opcode::READ_REQUEST => *mo = 8,
                "terminate-mo-4" if code == opcode::TERMINATE => *mo = 4,
                _ => {}
            }
        }
        self.fpdu(&segment, code);
        self.sent += 1;
    }

    fn fpdu(&mut self, segment: &Segment, code: u8) {
        let mut wrong = Wrong::default();
        let bad = match self.fault {
            "crc-always" => true,
            "crc-from-second" => self.sent >= 1,
            "crc-from-fifth" => self.sent >= 4,
            "crc-of-terminates" => code == opcode::TERMINATE,
            "crc-of-responses" => code == opcode::READ_RESPONSE && !segment.payload.is_empty(),
            _ => false,
        };
        if bad && self.framer.crc {
            wrong.crc = 0x0101_0101;
        }
        match self.fault {
            "pad-has-memory" => wrong.pad = 0xa7,
            "marker-pointer" => wrong.pointer = 8,
            "marker-pointer-low-bits" => wrong.pointer = 1,
            _ => {}
        }
        let ulpdu = segment.to_bytes();
        if self.is("pad-complement") {
            wrong.pad_length = Some((2 + ulpdu.len()) % 4);
        }
        let octets = self.framer.wrong_fpdu(&ulpdu, wrong);
        self.octets(octets);
    }
}
