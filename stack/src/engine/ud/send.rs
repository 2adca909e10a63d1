//! The sending half: work requests become trains of datagrams.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_codec::seeded::{Bug, is_on};
use dgiwarp_codec::{Payload, crc};
use dgiwarp_ddp::{Msn, STag, Segment, Segmenter, TaggedOffset};
use dgiwarp_llp_udp::{MAX_TRAIN_OCTETS, Peer, Train, digest};
use dgiwarp_memory::RegionSlice;
use dgiwarp_memory::socket::{MAX_PIECES, Piece};
use dgiwarp_rdmap::datagram::segment::{MAX_HEADER, MAX_SEND, MAX_WRITE_RECORD, Prefix, Template};
use dgiwarp_rdmap::datagram::{Cookie, Numbers};
use dgiwarp_rdmap::wire::{Extension, Flags};

use super::epochs::Epochs;
use super::pace::Pace;
use crate::engine::cq::CompletionSink;
use crate::engine::mr::{LocalProtection, MrTable, PdId};
use crate::engine::queue::SgeList;
use crate::engine::sges::Gathered;
use crate::{AddressHandle, MAX_SGE, Operation, QpCounters, Wc, WcOpcode, WcStatus};

/// Segments with at least this much payload leave from where they lie; smaller ones are copied, because
/// gathering costs more per segment than copying so few octets.
const GATHER_FROM: u32 = 8192;

/// Room for one train.
pub(super) const STAGING: usize = MAX_TRAIN_OCTETS + 536;

/// Segments of one gathered train: each takes a header, its octets in up to `MAX_SGE` parts, and a CRC.
const MAX_GATHERED: usize = 8;

/// A posted send.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) ah: AddressHandle,
    pub(crate) peer: Peer,
    pub(crate) qkey: u32,
    pub(crate) sges: SgeList,
    pub(crate) length: u32,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// A Write-Record that makes no record: a UC Write.
    pub(crate) unrecorded: bool,
    /// Made when the first train is built, so that numbers follow the order of sending.
    pub(crate) template: Option<Prefix>,
}

/// What became of a train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The network took it, or lost it as networks do.
    Sent,
    /// The socket's buffer is full; try again when there is room.
    WouldBlock,
    /// Too large for the path, whose limit is smaller now: cut anew.
    TooBig,
    /// The network cannot take messages to this peer; the errno.
    Failed(i32),
}

/// Takes trains.
pub(crate) trait TransmitSink {
    /// Room to build a train in.
    fn staging(&mut self) -> Vec<u8>;

    /// Takes the room back.
    fn give_back(&mut self, staging: Vec<u8>);

    /// Sends `pieces`, to be cut into datagrams of `segment_size` octets where there are several.
    fn send(
        &mut self,
        peer: Peer,
        ah: &AddressHandle,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> SendOutcome;

    /// Sends `octets`, one datagram of at most 512 octets or several equal ones, to a peer that no path is known of, from an
    /// address of ours.
    fn send_short(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome;

    /// The path back to a peer that asked something of an address of ours. `None` where there is none.
    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<AddressHandle>;
}

/// How [`SendQueue::transmit`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transmitted {
    /// The queue is empty.
    All,
    /// The socket's buffer is full.
    Blocked,
    /// The budget is used up.
    Budget,
    /// The rate allows no more before this time.
    Paused(Instant),
}

/// What a QP shares with others or knows of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) mrs: &'a MrTable,
    pub(super) pd: PdId,
    pub(super) qpn: u32,
    /// Whether large segments are copied like small ones.
    pub(super) copy: bool,
}

/// Posted sends, and how far the first one is.
#[derive(Debug)]
pub(crate) struct SendQueue {
    posted: VecDeque<SendWqe>,
    /// Segments of the first message that are still to be sent.
    first: Option<Segmenter>,
    epochs: Epochs,
    numbers: Numbers<Peer>,
    msn: Msn,
    pub(super) pace: Pace,
}

/// What a train holds: how many messages end in it, and how far the next one is.
struct Loaded {
    train: Train,
    finished: usize,
    next: Option<Segmenter>,
    payload: u64,
}

impl SendQueue {
    pub(super) fn new(epochs: Epochs, numbers: Numbers<Peer>, msn: u32) -> Self {
        Self {
            posted: VecDeque::new(),
            first: None,
            epochs,
            numbers,
            msn: Msn::new(msn),
            pace: Pace::new(0),
        }
    }

    pub(super) fn push(&mut self, wqe: SendWqe) {
        self.posted.push_back(wqe);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(super) fn transmit(
        &mut self,
        context: Context<'_>,
        budget: usize,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
        counters: &mut QpCounters,
    ) -> Transmitted {
        for _ in 0..budget {
            let Some(head) = self.posted.front() else {
                return Transmitted::All;
            };
            if let Some(ready) = self.pace.ready_at(context.now) {
                return Transmitted::Paused(ready);
            }
            let limit = head.ah.limit(context.now);
            let longest = head.length.min(limit.payload(MAX_HEADER + digest::LEN));
            let sent = if longest >= GATHER_FROM && !context.copy {
                self.send_gathered(context, limit.get(), sink)
            } else {
                self.send_staged(context, limit.get(), sink)
            };
            match sent {
                Err(LocalProtection) => {
                    self.complete_first(context.qpn, WcStatus::LocalProtection, 0, completions);
                }
                Ok((loaded, SendOutcome::Sent)) => {
                    counters.count_sent(loaded.train.len(), loaded.payload);
                    self.pace.spend(context.now, loaded.train.octets());
                    for _ in 0..loaded.finished {
                        self.complete_first(context.qpn, WcStatus::Success, 0, completions);
                    }
                    self.first = loaded.next;
                }
                Ok((_, SendOutcome::WouldBlock)) => return Transmitted::Blocked,
                Ok((_, SendOutcome::TooBig)) => counters.count_resized(),
                Ok((_, SendOutcome::Failed(errno))) => {
                    counters.count_send_error();
                    self.complete_first(context.qpn, WcStatus::General, errno, completions);
                }
            }
        }
        if self.posted.is_empty() {
            Transmitted::All
        } else {
            Transmitted::Budget
        }
    }

    /// Builds a train of segments of the first message, and of following ones to the same peer as long as the
    /// lengths fit, in staging memory, and sends it.
    fn send_staged(
        &mut self,
        context: Context<'_>,
        limit: u16,
        sink: &mut impl TransmitSink,
    ) -> Result<(Loaded, SendOutcome), LocalProtection> {
        let mut staging = sink.staging();
        staging.resize(STAGING, 0);
        let loaded = self.load(context, limit, &mut staging);
        let outcome = loaded.map(|loaded| {
            let head = &self.posted[0];
            let octets = &staging[..loaded.train.octets()];
            let outcome = sink.send(head.peer, &head.ah, &[Piece::Bytes(octets)], &loaded.train);
            (loaded, outcome)
        });
        sink.give_back(staging);
        outcome
    }

    fn load(
        &mut self,
        context: Context<'_>,
        limit: u16,
        staging: &mut [u8],
    ) -> Result<Loaded, LocalProtection> {
        let mut train = Train::new();
        let mut payload = 0;
        let mut finished = 0;
        loop {
            let next = if finished == 0 {
                self.first.clone()
            } else {
                None
            };
            let Some((template, limit_payload)) = self.prepare(finished, limit, &train) else {
                return Ok(Loaded {
                    train,
                    finished,
                    next: None,
                    payload,
                });
            };
            let wqe = &self.posted[finished];
            let mut segmenter = next.unwrap_or_else(|| Segmenter::new(wqe.length));
            let header = template.length();
            let mut source = Gathered::default();
            match source.hold(context.mrs, context.pd, &wqe.sges) {
                Ok(()) => {}
                // The error belongs to this message alone; those before it go out first.
                Err(LocalProtection) if finished > 0 => {
                    return Ok(Loaded {
                        train,
                        finished,
                        next: None,
                        payload,
                    });
                }
                Err(error) => return Err(error),
            };
            while let Some(segment) = segmenter.peek(limit_payload) {
                let length = header + segment.length as usize + digest::LEN;
                if !train.accepts(length) {
                    return Ok(Loaded {
                        train,
                        finished,
                        next: Some(segmenter),
                        payload,
                    });
                }
                let start = train.octets();
                let datagram = &mut staging[start..start + length];
                stage(&template, segment, &source, datagram);
                train.add(length);
                payload += u64::from(segment.length);
                segmenter.advance(segment);
            }
            finished += 1;
        }
    }

    /// The headers of the message at `index` and the payload of its segments, if it may join the train.
    fn prepare(&mut self, index: usize, limit: u16, train: &Train) -> Option<(Prefix, u32)> {
        if let Some(wqe) = self.posted.get(index)
            && index > 0
        {
            // Decided before the message gets its number: it stands in line until then.
            let whole = MAX_HEADER + wqe.length as usize + digest::LEN;
            let follows = wqe.peer == self.posted[0].peer
                && wqe.length < GATHER_FROM
                && (whole <= usize::from(limit) || wqe.template.is_some())
                && !train.is_empty();
            if !follows {
                return None;
            }
        }
        let wqe = self.posted.get_mut(index)?;
        let template = match wqe.template {
            Some(template) if fits(&template, wqe.length, limit) => template,
            Some(_) | None => {
                let template =
                    make_template(wqe, limit, self.epochs, &mut self.numbers, &mut self.msn);
                let template = Prefix::new(template, cookie_of(wqe));
                wqe.template = Some(template);
                template
            }
        };
        let headers = template.length() + digest::LEN;
        Some((
            template,
            u32::from(limit).saturating_sub(u32::try_from(headers).ok()?),
        ))
    }

    /// Sends segments of the first message from where their octets lie.
    fn send_gathered(
        &mut self,
        context: Context<'_>,
        limit: u16,
        sink: &mut impl TransmitSink,
    ) -> Result<(Loaded, SendOutcome), LocalProtection> {
        let empty = Train::new();
        let (template, limit_payload) = self
            .prepare(0, limit, &empty)
            .expect("the first message is there");
        let wqe = &self.posted[0];
        let mut segmenter = self
            .first
            .clone()
            .unwrap_or_else(|| Segmenter::new(wqe.length));
        let mut source = Gathered::default();
        source.hold(context.mrs, context.pd, &wqe.sges)?;
        let mut train = Train::new();
        let mut payload = 0;
        let mut headers = [[0; MAX_HEADER]; MAX_GATHERED];
        let mut trailers = [[0; digest::LEN]; MAX_GATHERED];
        let mut parts: ArrayVec<(usize, RegionSlice<'_>), MAX_PIECES> = ArrayVec::new();
        let header_len = template.length();
        while let Some(segment) = segmenter.peek(limit_payload) {
            let length = header_len + segment.length as usize + digest::LEN;
            let index = train.len();
            let room = index < MAX_GATHERED
                && parts.len() + MAX_SGE + 2 * (index + 1) <= MAX_PIECES
                && train.accepts(length);
            if !room {
                break;
            }
            let header = &mut headers[index];
            template.emit(segment, header);
            let mut crc = crc::crc32c(&header[..header_len]);
            source.for_each(segment.offset, segment.length, |slice| {
                crc = Payload::crc(&slice, 0, slice.len(), crc);
                parts.push((index, slice));
            });
            trailers[index] = crc::to_wire(crc);
            train.add(length);
            payload += u64::from(segment.length);
            segmenter.advance(segment);
        }
        let mut pieces: ArrayVec<Piece<'_>, MAX_PIECES> = ArrayVec::new();
        let mut parts = parts.iter().peekable();
        for index in 0..train.len() {
            pieces.push(Piece::Bytes(&headers[index][..header_len]));
            while let Some((_, slice)) = parts.next_if(|(of, _)| *of == index) {
                pieces.push(Piece::Region(*slice));
            }
            pieces.push(Piece::Bytes(&trailers[index]));
        }
        let outcome = sink.send(wqe.peer, &wqe.ah, &pieces, &train);
        let done = segmenter.is_done();
        let loaded = Loaded {
            train,
            finished: usize::from(done),
            next: (!done).then_some(segmenter),
            payload,
        };
        Ok((loaded, outcome))
    }

    fn complete_first(
        &mut self,
        qpn: u32,
        status: WcStatus,
        errno: i32,
        completions: &mut impl CompletionSink,
    ) {
        self.first = None;
        let Some(wqe) = self.posted.pop_front() else {
            return;
        };
        // First, so that who sees the completion finds the place free.
        completions.retired();
        if wqe.signaled || status != WcStatus::Success {
            let opcode = match wqe.operation {
                Operation::Send { .. } => WcOpcode::Send,
                Operation::WriteRecord { .. } => WcOpcode::RdmaWrite,
                Operation::Read { .. } => WcOpcode::RdmaRead,
            };
            completions.sent(Wc {
                status,
                byte_len: wqe.length,
                vendor_error: errno.unsigned_abs(),
                ..Wc::new(wqe.wr_id, opcode, qpn)
            });
        }
    }

    pub(super) fn flush(&mut self, qpn: u32, completions: &mut impl CompletionSink) {
        while !self.posted.is_empty() {
            self.complete_first(qpn, WcStatus::Flushed, 0, completions);
        }
    }
}

/// Whether a work request may be posted at all.
pub(crate) fn check_length(operation: Operation, length: u32) -> bool {
    match operation {
        Operation::Send { .. } => length <= MAX_SEND,
        Operation::WriteRecord { remote_addr, .. } | Operation::Read { remote_addr, .. } => {
            length <= MAX_WRITE_RECORD && remote_addr.checked_add(length.into()).is_some()
        }
    }
}

/// Whether a message can still go as it was meant to: the path may take less than it did, and a plain Send has one
/// segment.
fn fits(template: &Prefix, length: u32, limit: u16) -> bool {
    match template.template() {
        Template::Send { .. } => {
            template.length() + length as usize + digest::LEN <= usize::from(limit)
        }
        Template::SegmentedSend { .. } | Template::WriteRecord { .. } => true,
    }
}

/// The cookie that each segment of a message carries: only memory may ask for it.
fn cookie_of(wqe: &SendWqe) -> Option<Cookie> {
    match wqe.operation {
        Operation::WriteRecord { .. } if is_on(Bug::CookieNotSent) => None,
        Operation::WriteRecord { .. } => wqe.ah.cookie(),
        Operation::Send { .. } | Operation::Read { .. } => None,
    }
}

fn make_template(
    wqe: &SendWqe,
    limit: u16,
    epochs: Epochs,
    numbers: &mut Numbers<Peer>,
    msn: &mut Msn,
) -> Template {
    let flags = |immediate: Option<u32>| {
        Flags::empty()
            .with(Flags::IMMEDIATE, immediate.is_some())
            .with(Flags::SOLICITED, wqe.solicited)
            .with(Flags::WRITE, wqe.unrecorded)
    };
    let mut extension = |immediate: Option<u32>| Extension {
        flags: flags(immediate),
        epoch: epochs.of(&wqe.ah, wqe.peer),
        number: numbers.take(wqe.peer),
        length: wqe.length,
        offset: 0,
        immediate: immediate.unwrap_or(0),
    };
    match wqe.operation {
        Operation::Send { immediate } => {
            let plain = Template::Send {
                qkey: wqe.qkey,
                msn: *msn,
                solicited: wqe.solicited,
            };
            if immediate.is_none() && fits(&Prefix::new(plain, None), wqe.length, limit) {
                *msn = msn.next();
                return plain;
            }
            Template::SegmentedSend {
                qkey: wqe.qkey,
                extension: extension(immediate),
            }
        }
        Operation::WriteRecord {
            rkey,
            remote_addr,
            immediate,
        } => Template::WriteRecord {
            stag: STag::new(rkey),
            base: TaggedOffset::new(remote_addr),
            extension: extension(immediate),
        },
        Operation::Read { .. } => unreachable!("the engine gives Reads to the requester"),
    }
}

/// Writes one datagram: header, payload, CRC. Each octet of payload is loaded once; the CRC is that of the copy.
#[inline]
fn stage(template: &Prefix, segment: Segment, source: &Gathered, datagram: &mut [u8]) {
    let header = template.emit(segment, datagram);
    let end = datagram.len() - digest::LEN;
    source.copy(segment.offset, &mut datagram[header..end]);
    let crc = crc::crc32c(&datagram[..end]);
    datagram[end..].copy_from_slice(&crc::to_wire(crc));
}
