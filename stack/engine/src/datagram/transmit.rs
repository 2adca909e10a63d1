//! The sending half: work requests become trains of datagrams.

mod short;

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_ddp::{Segment, Segmenter};
use dgiwarp_llp_udp::{Format, MAX_TRAIN_OCTETS, PathKind, Peer, Shim, Train, TrainBuilder};
use dgiwarp_memory::{MAX_PIECES, Piece, RegionSlice};
use dgiwarp_rdmap::datagram::segment::{MAX_HEADER, MAX_SEND, MAX_WRITE_RECORD, Prefix};

use super::config::Associations;
use super::numbering::Numbering;
use super::pacer::Pacer;
use crate::cq_ring::CompletionSink;
use crate::mr::{LocalProtection, MrTable, PdId};
use crate::recv_queue::SgeList;
use crate::send_queue::SendQueue;
use crate::sges::{Gathered, Part, gather};
use crate::types::{MAX_SGE, Operation, QpCounters, Route, Wc, WcOpcode, WcStatus};

pub use short::ShortSend;

/// Segments with at least this much payload leave from where they lie; smaller ones are copied, because
/// gathering costs more per segment than copying so few octets.
const GATHER_FROM: u32 = 8192;

/// Room for one train.
pub(super) const STAGING: usize = MAX_TRAIN_OCTETS + 536;

/// Segments of one gathered train: each takes a header, its octets in up to `MAX_SGE` parts, and a CRC.
const MAX_GATHERED: usize = 8;

/// A posted send.
#[derive(Debug)]
pub struct SendWqe {
    /// Identifier that the completion carries.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// Route to the peer or group.
    pub route: Route,
    /// Destination.
    pub peer: Peer,
    /// Q_Key that the message carries.
    pub qkey: u32,
    /// Registered memory of the message.
    pub sges: SgeList,
    /// Octets of the message.
    pub length: u32,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether the message raises a solicited event.
    pub solicited: bool,
    /// A Write-Record that makes no record: a UC Write.
    pub unrecorded: bool,
}

/// A send in the queue.
#[derive(Debug)]
struct Posted {
    wqe: SendWqe,
    /// Headers, made when the first train is built, so that numbers follow the order of sending.
    prefix: Option<Prefix>,
}

/// Outcome of sending a train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
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
pub trait TransmitSink {
    /// Room to build a train in.
    fn staging(&mut self) -> Vec<u8>;

    /// Takes the room back.
    fn give_back(&mut self, staging: Vec<u8>);

    /// Sends `pieces`, to be cut into datagrams of `segment_size` octets where there are several.
    fn send(
        &mut self,
        peer: Peer,
        route: &Route,
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
    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<Route>;
}

/// How [`UdEngine::transmit`](super::UdEngine::transmit) ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmitted {
    /// The queue is empty.
    All,
    /// The socket's buffer is full.
    Blocked,
    /// The budget is used up.
    Budget,
    /// The rate allows no more before this time.
    Paused(Instant),
}

/// Time, memory and settings of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) mrs: &'a MrTable,
    pub(super) pd: PdId,
    pub(super) qpn: u32,
    /// Whether large segments are copied like small ones.
    pub(super) copy: bool,
}

/// The parts of an engine that have state for each peer.
pub(super) struct PeerState<'a> {
    pub(super) shim: &'a mut Shim,
    pub(super) associations: &'a mut Associations,
}

/// The sending half. Sends are framed when the network has their last octet, and complete then: there is no feedback that
/// their marks could stand for.
#[derive(Debug)]
pub(super) struct Sends {
    queue: SendQueue<Posted, (), 1>,
    /// Segments that are left of the first message, if it has begun.
    begun: Option<Segmenter>,
    numbering: Numbering,
    pub(super) pacer: Pacer,
    /// No message begins.
    held: bool,
    /// Room for the datagram of a [`ShortSend`].
    short: Vec<u8>,
}

/// Contents of a train: messages that end in it, and the progress of the next one.
#[derive(Default)]
struct Loaded {
    train: Train,
    finished: usize,
    next: Option<Segmenter>,
    payload: u64,
}

impl Sends {
    pub(super) fn new(msn: u32) -> Self {
        Self {
            queue: SendQueue::default(),
            begun: None,
            numbering: Numbering::new(msn),
            pacer: Pacer::new(0),
            held: false,
            short: Vec::new(),
        }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, wqe: SendWqe) {
        self.queue.push(Posted { wqe, prefix: None });
    }

    /// Whether a message may leave.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty() && !self.is_held()
    }

    /// Whether no message is posted, and one may begin.
    #[inline]
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.held
    }

    /// Lets no message begin (`held`), or lets them begin again.
    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether the next message may not begin.
    #[inline]
    fn is_held(&self) -> bool {
        self.held && self.begun.is_none()
    }

    /// Whether no message has begun.
    pub(super) fn is_between_messages(&self) -> bool {
        self.begun.is_none()
    }

    #[inline(always)]
    pub(super) fn transmit(
        &mut self,
        context: Context<'_>,
        peers: &mut PeerState<'_>,
        budget: usize,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
        counters: &mut QpCounters,
    ) -> Transmitted {
        for _ in 0..budget {
            let Some(Posted { wqe: head, .. }) = self.queue.oldest_wqe() else {
                return Transmitted::All;
            };
            if self.is_held() {
                return Transmitted::All;
            }
            if let Some(ready) = self.pacer.may_send(context.now, head.length) {
                return Transmitted::Paused(ready);
            }
            let lane = Lane::of(head, peers.shim, context.now);
            let longest = head.length.min(lane.payload(MAX_HEADER));
            let mut loaded = Loaded::default();
            let gathers = longest >= GATHER_FROM && !context.copy && peers.shim.gathers();
            let sent = if gathers {
                self.send_gathered(context, (peers, lane), &mut loaded, sink)
            } else {
                self.send_staged(context, (peers, lane), &mut loaded, sink)
            };
            match sent {
                Err(LocalProtection) => {
                    self.fail_first(context.qpn, (WcStatus::LocalProtection, 0), completions);
                }
                Ok(SendOutcome::Sent) => {
                    counters.count_sent(loaded.train.len(), loaded.payload);
                    self.pacer.on_sent(context.now, loaded.train.octets());
                    self.handed_over(context.qpn, loaded, completions);
                }
                Ok(SendOutcome::WouldBlock) => return Transmitted::Blocked,
                Ok(SendOutcome::TooBig) => counters.count_resized(),
                Ok(SendOutcome::Failed(errno)) => {
                    counters.count_send_error();
                    self.fail_first(context.qpn, (WcStatus::General, errno), completions);
                }
            }
        }
        if self.has_output() {
            Transmitted::Budget
        } else {
            Transmitted::All
        }
    }

    /// Builds a train of segments of the first message, and of following ones to the same peer as long as the
    /// lengths fit, in staging memory, and sends it.
    #[inline(always)]
    fn send_staged(
        &mut self,
        context: Context<'_>,
        (peers, lane): (&mut PeerState<'_>, Lane),
        loaded: &mut Loaded,
        sink: &mut impl TransmitSink,
    ) -> Result<SendOutcome, LocalProtection> {
        let mut staging = sink.staging();
        if staging.len() != STAGING {
            staging.resize(STAGING, 0);
        }
        let alone = self.load_alone(context, (peers, lane), loaded, &mut staging);
        let result =
            alone.unwrap_or_else(|| self.load(context, (peers, lane), loaded, &mut staging));
        let outcome = match (result, self.queue.oldest_wqe()) {
            (Ok(()), Some(Posted { wqe, .. })) => {
                let octets = &staging[..loaded.train.octets()];
                Ok(sink.send(wqe.peer, &wqe.route, &[Piece::Bytes(octets)], &loaded.train))
            }
            (Ok(()), None) => Ok(SendOutcome::Sent),
            (Err(error), _) => Err(error),
        };
        sink.give_back(staging);
        outcome
    }

    /// Loads the message that nothing follows, if one segment takes it: so most go, and need no train's bookkeeping.
    #[inline(always)]
    fn load_alone(
        &mut self,
        context: Context<'_>,
        (peers, lane): (&mut PeerState<'_>, Lane),
        loaded: &mut Loaded,
        staging: &mut [u8],
    ) -> Option<Result<(), LocalProtection>> {
        if self.begun.is_some() {
            return None;
        }
        let Posted { wqe, prefix } = self.queue.sole_mut()?;
        let prefix = self
            .numbering
            .prefix(prefix, wqe, lane.mulpdu, peers.associations);
        let room = lane.payload(prefix.length());
        let mut builder = TrainBuilder::new(peers.shim, lane.peer, lane.path, staging);
        let staged = stage_whole(context, wqe, (prefix, room), &mut builder)?;
        loaded.finished = 1;
        loaded.train = builder.finish();
        Some(staged.map(|(payload, _)| loaded.payload = payload))
    }

    /// Loads segments of the first message, and of following ones.
    #[inline(never)]
    fn load(
        &mut self,
        context: Context<'_>,
        (peers, lane): (&mut PeerState<'_>, Lane),
        loaded: &mut Loaded,
        staging: &mut [u8],
    ) -> Result<(), LocalProtection> {
        let mut builder = TrainBuilder::new(peers.shim, lane.peer, lane.path, staging);
        let mut begun = self.begun.clone();
        for Posted { wqe, prefix } in self.queue.unframed_mut() {
            // Decided before the message gets its number: it stands in line until then.
            let numbered = prefix.is_some();
            let ends = self.held || builder.is_empty() || !lane.takes(wqe, numbered);
            if loaded.finished > 0 && ends {
                break;
            }
            let prefix = self
                .numbering
                .prefix(prefix, wqe, lane.mulpdu, peers.associations);
            let room = lane.payload(prefix.length());
            let whole = match begun {
                None => stage_whole(context, wqe, (prefix, room), &mut builder),
                Some(_) => None,
            };
            let staged = whole.unwrap_or_else(|| {
                stage_some(context, wqe, (prefix, room), begun.take(), &mut builder)
            });
            match staged {
                Ok((payload, rest)) => {
                    loaded.payload += payload;
                    loaded.next = rest;
                }
                // The error belongs to this message alone; those before it go out first.
                Err(LocalProtection) if loaded.finished > 0 => break,
                Err(error) => return Err(error),
            }
            if loaded.next.is_some() {
                break;
            }
            loaded.finished += 1;
        }
        loaded.train = builder.finish();
        Ok(())
    }

    /// Sends segments of the first message from where their octets lie. Apart, because what it needs of the stack would be cleared for short
    /// messages too.
    #[inline(never)]
    fn send_gathered(
        &mut self,
        context: Context<'_>,
        (peers, lane): (&mut PeerState<'_>, Lane),
        loaded: &mut Loaded,
        sink: &mut impl TransmitSink,
    ) -> Result<SendOutcome, LocalProtection> {
        const HEAD: usize = Shim::GATHERED.head;
        let first = self.queue.unframed_mut().next();
        let Posted { wqe, prefix } = first.expect("the caller found one");
        let prefix = self
            .numbering
            .prefix(prefix, wqe, lane.mulpdu, peers.associations);
        let limit_payload = lane.payload(prefix.length());
        let mut segmenter = self
            .begun
            .clone()
            .unwrap_or_else(|| Segmenter::new(wqe.length));
        let mut source = Gathered::default();
        source.hold(context.mrs, context.pd, &wqe.sges)?;
        let mut train = Train::new();
        let mut payload = 0;
        let mut headers = [[0; HEAD + MAX_HEADER]; MAX_GATHERED];
        let mut trailers = [[0; Shim::GATHERED.tail]; MAX_GATHERED];
        let mut parts: ArrayVec<(usize, RegionSlice<'_>), MAX_PIECES> = ArrayVec::new();
        let header_len = HEAD + prefix.length();
        while let Some(segment) = segmenter.peek_equal(limit_payload) {
            let length = prefix.length() + segment.length as usize + Shim::GATHERED.total();
            let index = train.len();
            let room = index < MAX_GATHERED
                && parts.len() + MAX_SGE + 2 * (index + 1) <= MAX_PIECES
                && train.accepts(length);
            if !room {
                break;
            }
            match source.reach(segment.offset, segment.length) {
                Ok(()) => {}
                // Datagrams before it leave first.
                Err(_) if index > 0 => break,
                Err(error) => return Err(error),
            }
            let header = &mut headers[index];
            prefix.emit(segment, &mut header[HEAD..]);
            source.for_each(segment.offset, segment.length, |slice| {
                parts.push((index, slice));
            });
            let part = Part {
                of: &source,
                offset: segment.offset,
                length: segment.length,
            };
            let trailer = &mut trailers[index];
            peers
                .shim
                .seal_gathered(format_of(prefix), &mut header[..header_len], &part, trailer);
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
        let outcome = sink.send(wqe.peer, &wqe.route, &pieces, &train);
        let done = segmenter.is_done();
        *loaded = Loaded {
            train,
            finished: usize::from(done),
            next: (!done).then_some(segmenter),
            payload,
        };
        Ok(outcome)
    }

    /// The network has a train: messages that end in it complete, and another one may have begun.
    #[inline(always)]
    fn handed_over(&mut self, qpn: u32, loaded: Loaded, completions: &mut impl CompletionSink) {
        for _ in 0..loaded.finished {
            self.queue.complete_oldest(|posted| {
                complete(&posted.wqe, qpn, WcStatus::Success, 0, completions);
            });
        }
        self.begun = loaded.next;
        if self.begun.is_some() && self.queue.oldest_begun().is_none() {
            self.queue.begin(());
        }
    }

    /// Ends the first message, which cannot be sent.
    #[cold]
    fn fail_first(
        &mut self,
        qpn: u32,
        (status, errno): (WcStatus, i32),
        completions: &mut impl CompletionSink,
    ) {
        self.begun = None;
        self.queue.complete_oldest(|posted| {
            complete(&posted.wqe, qpn, status, errno, completions);
        });
    }

    pub(super) fn flush(&mut self, qpn: u32, completions: &mut impl CompletionSink) {
        self.begun = None;
        self.queue.flush(|_, posted| {
            complete(&posted.wqe, qpn, WcStatus::Flushed, 0, completions);
        });
    }
}

#[inline]
fn complete(
    wqe: &SendWqe,
    qpn: u32,
    status: WcStatus,
    errno: i32,
    completions: &mut impl CompletionSink,
) {
    // First, so that a thread that sees the completion finds the place free.
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

/// Destination of the first message, and the longest segment that fits its path.
#[derive(Debug, Clone, Copy)]
struct Lane {
    peer: Peer,
    path: PathKind,
    /// Octets of the longest segment.
    mulpdu: u16,
}

impl Lane {
    #[inline]
    fn of(wqe: &SendWqe, shim: &Shim, now: Instant) -> Self {
        let path = wqe.route.path_kind();
        Self {
            peer: wqe.peer,
            path,
            mulpdu: shim.mulpdu(path, wqe.route.limit(now)),
        }
    }

    /// Octets of payload in the longest segment with `headers` octets before it.
    #[inline]
    fn payload(self, headers: usize) -> u32 {
        let headers = u32::try_from(headers).unwrap_or(u32::MAX);
        u32::from(self.mulpdu).saturating_sub(headers)
    }

    /// Whether a message may join a train behind others.
    fn takes(self, wqe: &SendWqe, numbered: bool) -> bool {
        let whole = MAX_HEADER + wqe.length as usize;
        wqe.peer == self.peer
            && wqe.length < GATHER_FROM
            && (whole <= usize::from(self.mulpdu) || numbered)
    }
}

/// Octets of payload that joined a train, and the segments of the message that are left.
type Staged = (u64, Option<Segmenter>);

/// Adds a message that one segment takes to a train, if it fits. So most go, which need no list of what they consist of.
#[inline(always)]
fn stage_whole(
    context: Context<'_>,
    wqe: &SendWqe,
    (prefix, room): (&Prefix, u32),
    builder: &mut TrainBuilder<'_>,
) -> Option<Result<Staged, LocalProtection>> {
    let segment = Segmenter::new(wqe.length).peek(room)?;
    if !segment.last || !builder.accepts(prefix.length() + segment.length as usize) {
        return None;
    }
    let staged = stage(prefix, segment, builder, |dst| {
        gather(context.mrs, context.pd, &wqe.sges, dst)
    });
    Some(staged.map(|()| (segment.length.into(), None)))
}

/// Adds segments of a message to a train, as long as they fit. Apart, because what it needs of the stack would be cleared for short messages
/// too.
#[inline(never)]
fn stage_some(
    context: Context<'_>,
    wqe: &SendWqe,
    (prefix, room): (&Prefix, u32),
    begun: Option<Segmenter>,
    builder: &mut TrainBuilder<'_>,
) -> Result<Staged, LocalProtection> {
    let view = context.mrs.view_local();
    let mut source = Gathered::default();
    source.view(&view, context.pd, &wqe.sges)?;
    let mut segmenter = begun.unwrap_or_else(|| Segmenter::new(wqe.length));
    if source.is_on_demand() {
        let from = segmenter.peek_equal(room);
        let most = u32::try_from(STAGING).unwrap_or(u32::MAX);
        source.reach(from.map_or(0, |segment| segment.offset), most)?;
    }
    let mut payload = 0;
    while let Some(segment) = segmenter.peek_equal(room) {
        if !builder.accepts(prefix.length() + segment.length as usize) {
            break;
        }
        let Ok(()) = stage(prefix, segment, builder, |dst| {
            source.copy(segment.offset, dst);
            Ok::<_, Infallible>(())
        });
        payload += u64::from(segment.length);
        segmenter.advance(segment);
    }
    Ok((payload, (!segmenter.is_done()).then_some(segmenter)))
}

/// Format of a message's datagrams.
#[inline]
fn format_of(prefix: &Prefix) -> Format {
    Format::with_cookie(prefix.has_cookie())
}

/// Whether a work request may be posted at all.
#[inline]
pub fn check_length(operation: Operation, length: u32) -> bool {
    match operation {
        Operation::Send { .. } => length <= MAX_SEND,
        Operation::WriteRecord { remote_addr, .. } | Operation::Read { remote_addr, .. } => {
            length <= MAX_WRITE_RECORD && remote_addr.checked_add(length.into()).is_some()
        }
    }
}

/// Adds one segment to a train: header and payload, of which `copy` loads each octet once.
#[inline(always)]
fn stage<E>(
    prefix: &Prefix,
    segment: Segment,
    builder: &mut TrainBuilder<'_>,
    copy: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let length = prefix.length() + segment.length as usize;
    builder.add(format_of(prefix), length, |out| {
        let header = prefix.emit(segment, out);
        copy(&mut out[header..])
    })
}
