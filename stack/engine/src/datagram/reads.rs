//! RDMA Reads of a datagram QP: what both roles need of memory, network and completions (§6, §7.1, §7.2).

mod outbound;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{RangeMap, STag, TaggedOffset};
use dgiwarp_llp_udp::{PathKind, Peer, Shim};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::datagram::read::segment::{
    About, RESPONSE_HEADER, ReadSegment, TerminateReport, cookie_of, extension_of,
};
use dgiwarp_rdmap::datagram::read::{
    Class, Limits, ReadEnd, ReadSink, ReadWork, Requester, RequesterConfig, Responder,
    ResponderConfig, cause_of,
};
use dgiwarp_rdmap::datagram::{CookieExchange, DropReason, ExchangeKind, Origin, PlaceFailed};

use super::arrival::Envelope;
use super::config::{Associations, UdConfig, Via};
use super::errors::{ErrorEntry, ErrorReason};
use super::transmit::{PeerState, SendWqe};
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, PdId};
use crate::sges::scatter;
use crate::types::{Operation, QpCounters, Wc, WcOpcode, WcStatus};
pub(super) use outbound::Progress;
use outbound::Short;

/// Validity maps of failed Reads that are kept.
const MAX_FAILURES: usize = 256;

/// Reads that were posted here.
type PostedReads = Requester<Peer, Via, SendWqe>;

/// A Read that failed.
#[derive(Debug)]
pub struct FailedRead {
    /// Identifier of its work request.
    pub wr_id: u64,
    /// Octets that were to be read.
    pub length: u32,
    /// Octets that are valid.
    pub map: RangeMap,
}

/// The Reads of a datagram QP, posted ones and those that peers ask for.
#[derive(Debug)]
pub(super) struct Reads {
    epoch: u32,
    default_timeout: Duration,
    /// Posted, and not handed to the requester yet.
    unstarted: VecDeque<SendWqe>,
    requester: PostedReads,
    responder: Responder<Peer, Via>,
    /// Short segments on their way out.
    short: Short,
    failures: VecDeque<FailedRead>,
    responses_sent: u64,
    closed: bool,
    /// No posted Read begins.
    held: bool,
    /// An event since the last idle transmission may have made output. A QP without Reads checks nothing else.
    output_possible: bool,
}

/// Context of completions of Reads, beside the Reads themselves.
struct Finisher<'a, C, P: ?Sized> {
    mrs: &'a MrTable,
    pd: PdId,
    qpn: u32,
    failures: &'a mut VecDeque<FailedRead>,
    completions: &'a mut C,
    payload: PhantomData<fn(&P)>,
}

impl Reads {
    pub(super) fn new(config: &UdConfig, shim: &Shim) -> Self {
        let overhead = shim.overhead(PathKind::Network).total();
        let [epoch, _, msn] = config.random.seed;
        let secret = config.secret();
        Self {
            epoch,
            default_timeout: config.read_timeout,
            unstarted: VecDeque::new(),
            requester: Requester::new(
                RequesterConfig {
                    secret,
                    msn,
                    overhead,
                },
                Limits::of_receive_buffer(config.receive_buffer),
            ),
            responder: Responder::new(ResponderConfig {
                qpn: config.qpn.into(),
                epoch,
                secret,
                msn: msn.rotate_left(16),
                overhead,
            }),
            short: Short::default(),
            failures: VecDeque::new(),
            responses_sent: 0,
            closed: false,
            held: false,
            output_possible: false,
        }
    }

    /// A handshake may have begun.
    pub(super) fn wake(&mut self) {
        self.output_possible = true;
    }

    /// Takes over a posted Read.
    pub(super) fn accept(&mut self, wqe: SendWqe) {
        self.output_possible = true;
        self.unstarted.push_back(wqe);
    }

    /// Lets no posted Read begin (`held`), or lets them begin again.
    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
        self.output_possible = true;
    }

    /// Whether Reads that were posted here may have something to send.
    #[inline]
    pub(super) fn has_output(&self, associations: &Associations) -> bool {
        self.output_possible
            && (self.requester.has_transmit()
                || associations.has_transmit()
                || !self.short.is_empty()
                || (!self.unstarted.is_empty() && !self.held))
    }

    /// Whether peers of a class may have something to be answered.
    #[inline]
    pub(super) fn responses_have_output(&self, class: Class) -> bool {
        self.output_possible && self.responder.has_output(class)
    }

    /// Whether a posted Read has not completed.
    pub(super) fn is_waiting(&self) -> bool {
        !self.requester.is_idle()
    }

    pub(super) fn handle_timeout<C: CompletionSink>(
        &mut self,
        now: Instant,
        (associations, config): (&mut Associations, UdConfig),
        mrs: &MrTable,
        completions: &mut C,
    ) {
        self.output_possible = true;
        let (requester, _, mut finisher) = self.split::<_, [u8]>(config, mrs, completions);
        if associations.handle_timeout(now) {
            requester.handle_timeout(now, &mut finisher, associations);
        }
    }

    /// Ends all Reads with `Flushed`, in the order in which they were posted.
    pub(super) fn flush<C: CompletionSink>(
        &mut self,
        (associations, config): (&mut Associations, UdConfig),
        mrs: &MrTable,
        completions: &mut C,
    ) {
        let (requester, _, mut finisher) = self.split::<_, [u8]>(config, mrs, completions);
        requester.flush(&mut finisher, associations);
        // Posted behind those that the requester has.
        while let Some(wqe) = self.unstarted.pop_front() {
            let status = WcStatus::Flushed;
            complete(&wqe, config.qpn.into(), status, (0, 0), completions);
        }
    }

    /// Ends all Reads of a QP that is destroyed: it answers no peer any more.
    pub(super) fn close<C: CompletionSink>(
        &mut self,
        reads: (&mut Associations, UdConfig),
        mrs: &MrTable,
        completions: &mut C,
    ) {
        self.flush(reads, mrs, completions);
        self.responder.clear();
        self.short.clear();
        self.closed = true;
    }

    /// Takes note of what the network reported of a peer.
    pub(super) fn note_error(&self, peer: Peer, errno: i32, associations: &mut Associations) {
        if !self.requester.is_idle() {
            associations.note_error(peer, errno);
        }
    }

    pub(super) fn take_failure(&mut self, wr_id: u64) -> Option<FailedRead> {
        let position = self.failures.iter().rposition(|it| it.wr_id == wr_id)?;
        self.failures.remove(position)
    }

    pub(super) fn count_into(&self, counters: &mut QpCounters) {
        let (requests, repeats, timed_out) = self.requester.counts();
        counters.read_requests_sent = requests;
        counters.read_repeats = repeats;
        counters.reads_timed_out = timed_out;
        counters.read_responses_sent = self.responses_sent;
    }

    /// The roles, and what the requester completes Reads with.
    fn split<'a, C, P: ?Sized>(
        &'a mut self,
        config: UdConfig,
        mrs: &'a MrTable,
        completions: &'a mut C,
    ) -> (
        &'a mut PostedReads,
        &'a mut Responder<Peer, Via>,
        Finisher<'a, C, P>,
    ) {
        let finisher = Finisher {
            mrs,
            pd: config.pd,
            qpn: config.qpn.into(),
            failures: &mut self.failures,
            completions,
            payload: PhantomData,
        };
        (&mut self.requester, &mut self.responder, finisher)
    }

    /// Whether nothing that is sent to an address is answered or placed: a group's (§6), or of a QP that is closed.
    fn check_answered(&self, arrived: Envelope) -> Result<(), DropReason> {
        if arrived.origin.to_group || self.closed {
            return Err(DropReason::NotWellKnown);
        }
        Ok(())
    }

    /// Handles a cookie exchange.
    ///
    /// # Errors
    /// The reason for which it was dropped.
    pub(super) fn handle_exchange(
        &mut self,
        arrived: Envelope,
        exchange: &CookieExchange,
        associations: &mut Associations,
    ) -> Result<(), DropReason> {
        self.check_answered(arrived)?;
        self.output_possible = true;
        let (from, to) = (arrived.origin.peer, arrived.to);
        match exchange.kind {
            ExchangeKind::Request => self.responder.handle_exchange((from, to), exchange),
            ExchangeKind::Answer => {
                let ended = associations.handle_answer(arrived.now, from, exchange)?;
                self.requester.resume(ended);
                Ok(())
            }
        }
    }

    /// Handles a segment of a Read, or a Terminate. A Terminate about a message makes an entry for the error queue.
    ///
    /// # Errors
    /// The reason for which it was dropped.
    pub(super) fn handle<C: CompletionSink, P: Placeable + ?Sized>(
        &mut self,
        arrived: Envelope,
        segment: ReadSegment<'_, P>,
        (associations, config): (&mut Associations, UdConfig),
        mrs: &MrTable,
        completions: &mut C,
    ) -> Result<Option<ErrorEntry>, DropReason> {
        let Envelope {
            now,
            origin: Origin { peer: from, .. },
            to,
            datagram: octets,
        } = arrived;
        let epoch = self.epoch;
        self.check_answered(arrived)?;
        self.output_possible = true;
        let place = (from, to);
        let (requester, responder, mut finisher) = self.split(config, mrs, completions);
        match segment {
            ReadSegment::Response {
                stag,
                tagged_offset,
                payload,
                ..
            } => {
                let at = (stag, tagged_offset);
                requester.handle_response(now, from, at, payload, &mut finisher, associations)?;
            }
            ReadSegment::Request {
                epoch,
                cookie,
                request,
            } => {
                let check = |request: &_, cookie_valid| {
                    let origin = Origin {
                        peer: from,
                        to_group: false,
                        cookie_valid,
                    };
                    mrs.remote_read(config.pd, origin, source_of(request))
                        .map(|_| ())
                };
                responder.handle_request(now, place, (epoch, cookie), request, octets, check)?;
            }
            ReadSegment::Terminate(report) => match report.about {
                About::Request(_) => {
                    requester.handle_terminate(from, &report, &mut finisher, associations)?
                }
                About::Message(extension) if extension.epoch == epoch => {
                    return Ok(error_entry(from, &report, extension.number));
                }
                About::Message(_) => return Err(DropReason::Unsolicited),
            },
        }
        Ok(None)
    }

    /// Whether a segment of format 1 carries its sender's valid cookie.
    pub(super) fn is_cookie_valid(&self, from: Peer, head: &[u8]) -> bool {
        extension_of(head).is_some_and(|extension| {
            self.responder
                .is_valid(from, extension.epoch, cookie_of(head))
        })
    }

    /// Reports the cause to the sender of a dropped segment, if its address is validated and the segment has an extension that identifies it.
    pub(super) fn report(&mut self, arrived: Envelope, head: &[u8], reason: DropReason) {
        let Some(cause) = cause_of(reason) else {
            return;
        };
        if let Some(extension) = extension_of(head)
            && !arrived.origin.to_group
            && !self.closed
        {
            let to = (arrived.origin.peer, arrived.to);
            let about = About::Message(extension);
            self.output_possible = true;
            self.responder
                .report(arrived.now, to, arrived.datagram, cause, about);
        }
    }

    /// Gives posted Reads to the requester, but for those whose memory may not be written.
    fn start<C: CompletionSink>(
        &mut self,
        now: Instant,
        peers: &mut PeerState<'_>,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) {
        if self.held {
            return;
        }
        while let Some(wqe) = self.unstarted.pop_front() {
            let Operation::Read {
                rkey,
                remote_addr,
                timeout,
            } = wqe.operation
            else {
                continue;
            };
            let mut sges = wqe.sges.iter().filter(|sge| sge.length > 0);
            if sges.any(|sge| mrs.local(config.pd, *sge, true).is_err()) {
                let status = WcStatus::LocalProtection;
                complete(&wqe, config.qpn.into(), status, (0, 0), completions);
                continue;
            }
            let timeout = timeout.unwrap_or(self.default_timeout);
            let mulpdu = peers
                .shim
                .mulpdu(wqe.route.path_kind(), wqe.route.limit(now));
            let work = ReadWork {
                peer: wqe.peer,
                via: wqe.route.source(),
                source_stag: STag::new(rkey),
                source_offset: TaggedOffset::new(remote_addr),
                length: wqe.length,
                segment: u32::try_from(usize::from(mulpdu).saturating_sub(RESPONSE_HEADER))
                    .unwrap_or(0),
                deadline: now + timeout,
            };
            self.requester.submit(now, work, wqe, peers.associations);
        }
    }
}

/// Source of a Read Request.
fn source_of(request: &dgiwarp_rdmap::wire::ReadRequest) -> TaggedSpan {
    TaggedSpan {
        stag: request.source_stag,
        start: request.source_offset,
        length: request.size,
    }
}

fn error_entry(from: Peer, report: &TerminateReport, number: u32) -> Option<ErrorEntry> {
    Some(ErrorEntry {
        peer: from.socket_addr()?,
        message: Some(number),
        reason: ErrorReason::Terminate {
            layer: report.cause.layer,
            error_type: report.cause.error_type,
            code: report.cause.code,
        },
    })
}

fn complete(
    wqe: &SendWqe,
    qpn: u32,
    status: WcStatus,
    (valid, vendor_error): (u32, u32),
    completions: &mut impl CompletionSink,
) {
    // First, so that a thread that sees the completion finds the place free.
    completions.retired();
    if wqe.signaled || status != WcStatus::Success {
        completions.sent(Wc {
            status,
            byte_len: valid,
            vendor_error,
            ..Wc::new(wqe.wr_id, WcOpcode::RdmaRead, qpn)
        });
    }
}

impl<C: CompletionSink, P: Placeable + ?Sized> ReadSink<SendWqe> for Finisher<'_, C, P> {
    type Payload = P;

    fn place_read(
        &mut self,
        read: &SendWqe,
        offset: u32,
        payload: PayloadSlice<'_, P>,
    ) -> Result<(), PlaceFailed> {
        scatter(self.mrs, self.pd, &read.sges, offset, payload)
    }

    fn finish(&mut self, read: SendWqe, end: ReadEnd, map: &mut RangeMap) {
        let (status, errno) = match end {
            ReadEnd::Complete => (WcStatus::Success, None),
            ReadEnd::TimedOut(errno) => (WcStatus::ResponseTimeout, errno),
            ReadEnd::Refused(cause) if cause.is_protection() => (WcStatus::RemoteAccess, None),
            ReadEnd::Refused(_) => (WcStatus::RemoteInvalidRequest, None),
            ReadEnd::LocalProtection => (WcStatus::LocalProtection, None),
            ReadEnd::Flushed => (WcStatus::Flushed, None),
        };
        let counts = (map.octets(), errno.unwrap_or(0).unsigned_abs());
        if status != WcStatus::Success {
            if self.failures.len() >= MAX_FAILURES {
                self.failures.pop_front();
            }
            self.failures.push_back(FailedRead {
                wr_id: read.wr_id,
                length: read.length,
                map: std::mem::take(map),
            });
        }
        complete(&read, self.qpn, status, counts, self.completions);
    }
}
