//! RDMA Reads of a datagram QP: what both roles need of memory, network and completions (§6, §7.1, §7.2).

mod outbound;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{RangeMap, STag, TaggedOffset};
use dgiwarp_llp_udp::{Peer, digest};
use dgiwarp_rdmap::datagram::read::segment::{
    About, ExchangeKind, RESPONSE_HEADER, ReadSegment, TerminateReport, cookie_of, extension_of,
};
use dgiwarp_rdmap::datagram::read::{
    Limits, ReadEnd, ReadSink, ReadWork, Requester, RequesterConfig, Responder, ResponderConfig,
    cause_of,
};
use dgiwarp_rdmap::datagram::{DropReason, Origin, PlaceFailed, Secret};

use super::errors::{ErrorEntry, ErrorReason};
use super::{Arrival, SendWqe, UdConfig};
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, PdId};
use crate::sges::scatter;
use crate::types::{Operation, QpCounters, Wc, WcOpcode, WcStatus};
use outbound::Short;
pub(super) use outbound::Turn;

/// Validity maps of failed Reads that are kept.
const MAX_FAILURES: usize = 256;

/// The address of ours that something came to, or shall leave from.
pub(super) type Via = Option<IpAddr>;

/// Reads that were posted here.
pub(super) type PostedReads = Requester<Peer, Via, SendWqe>;

/// What a failed Read left.
#[derive(Debug)]
pub struct FailedRead {
    pub wr_id: u64,
    pub length: u32,
    pub map: RangeMap,
}

/// The Reads of a datagram QP, posted ones and those that peers ask for.
#[derive(Debug)]
pub(super) struct Reads {
    epoch: u32,
    default_timeout: Duration,
    /// Posted and not looked at yet.
    fresh: VecDeque<SendWqe>,
    requester: PostedReads,
    responder: Responder<Peer, Via>,
    /// Short segments on their way out.
    short: Short,
    failures: VecDeque<FailedRead>,
    responses_sent: u64,
    closed: bool,
    /// Something happened that may have made something to send. A QP without Reads looks at nothing else.
    stirred: bool,
}

/// What completions of Reads need beside the Reads themselves.
struct Finisher<'a, C> {
    mrs: &'a MrTable,
    pd: PdId,
    qpn: u32,
    failures: &'a mut VecDeque<FailedRead>,
    completions: &'a mut C,
}

impl Reads {
    pub(super) fn new(config: &UdConfig) -> Self {
        let [epoch, _, msn] = config.random.seed;
        let [a, b, c, d] = config.random.secret;
        let halves = [(a, b), (c, d)].map(|(high, low)| u64::from(high) << 32 | u64::from(low));
        let secret = Secret::new(halves);
        Self {
            epoch,
            default_timeout: config.read_timeout,
            fresh: VecDeque::new(),
            requester: Requester::new(
                RequesterConfig { epoch, secret, msn },
                Limits::of_receive_buffer(config.receive_buffer),
            ),
            responder: Responder::new(ResponderConfig {
                qpn: config.qpn.into(),
                epoch,
                secret,
                msn: msn.rotate_left(16),
            }),
            short: Short::default(),
            failures: VecDeque::new(),
            responses_sent: 0,
            closed: false,
            stirred: false,
        }
    }

    /// What other than Reads needs: cookies.
    pub(super) fn cookies(&mut self) -> &mut PostedReads {
        &mut self.requester
    }

    /// Takes over a posted Read.
    pub(super) fn accept(&mut self, wqe: SendWqe) {
        self.stirred = true;
        self.fresh.push_back(wqe);
    }

    /// Whether there may be something to send.
    #[inline]
    pub(super) fn has_transmit(&self) -> bool {
        self.stirred && self.finds_transmit()
    }

    fn finds_transmit(&self) -> bool {
        self.requester.has_transmit()
            || self.responder.has_turn()
            || self.responder.reply().is_some()
            || !self.short.is_empty()
            || !self.fresh.is_empty()
    }

    /// Whether a posted Read has not completed.
    pub(super) fn is_waiting(&self) -> bool {
        !self.requester.is_idle()
    }

    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.requester.poll_timeout()
    }

    pub(super) fn handle_timeout<C: CompletionSink>(
        &mut self,
        now: Instant,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) {
        self.stirred = true;
        let (requester, _, mut finisher) = self.split(config, mrs, completions);
        requester.handle_timeout(now, &mut finisher);
    }

    /// Ends all Reads with `Flushed`.
    pub(super) fn flush<C: CompletionSink>(
        &mut self,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) {
        while let Some(wqe) = self.fresh.pop_front() {
            complete(
                &wqe,
                config.qpn.into(),
                WcStatus::Flushed,
                (0, 0),
                completions,
            );
        }
        let (requester, _, mut finisher) = self.split(config, mrs, completions);
        requester.flush(&mut finisher);
    }

    /// The same, for a QP that goes: it answers nobody any more.
    pub(super) fn close<C: CompletionSink>(
        &mut self,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) {
        self.flush(config, mrs, completions);
        self.responder.clear();
        self.short.clear();
        self.closed = true;
    }

    /// Takes note of what the network reported of a peer.
    pub(super) fn note_error(&mut self, peer: Peer, errno: i32) {
        if !self.requester.is_idle() {
            self.requester.note_error(peer, errno);
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
    fn split<'a, C>(
        &'a mut self,
        config: UdConfig,
        mrs: &'a MrTable,
        completions: &'a mut C,
    ) -> (
        &'a mut PostedReads,
        &'a mut Responder<Peer, Via>,
        Finisher<'a, C>,
    ) {
        let finisher = Finisher {
            mrs,
            pd: config.pd,
            qpn: config.qpn.into(),
            failures: &mut self.failures,
            completions,
        };
        (&mut self.requester, &mut self.responder, finisher)
    }

    /// Handles a segment of a Read, a Terminate or a cookie. A Terminate about a message makes an entry for the error queue.
    ///
    /// # Errors
    /// The reason for which it was dropped.
    pub(super) fn handle<C: CompletionSink>(
        &mut self,
        (now, arrival, octets): (Instant, &Arrival<'_>, usize),
        segment: ReadSegment<'_>,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) -> Result<Option<ErrorEntry>, DropReason> {
        let from = arrival.from;
        let epoch = self.epoch;
        // §6: nothing that was sent to a group is answered.
        if arrival.to_group || self.closed {
            return Err(DropReason::NotWellKnown);
        }
        self.stirred = true;
        let place = (from, arrival.to);
        let (requester, responder, mut finisher) = self.split(config, mrs, completions);
        match segment {
            ReadSegment::Response {
                stag,
                tagged_offset,
                payload,
                ..
            } => {
                let at = (stag, tagged_offset);
                requester.handle_response(now, from, at, payload, &mut finisher)?;
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
            ReadSegment::Exchange(exchange) => match exchange.kind {
                ExchangeKind::Request => responder.handle_exchange(place, &exchange)?,
                ExchangeKind::Answer => requester.handle_answer(now, from, &exchange)?,
            },
            ReadSegment::Terminate(report) => match report.about {
                About::Request(_) => requester.handle_terminate(from, &report, &mut finisher)?,
                About::Message(extension) if extension.epoch == epoch => {
                    return Ok(error_entry(from, &report, extension.number));
                }
                About::Message(_) => return Err(DropReason::Unsolicited),
            },
        }
        Ok(None)
    }

    /// Whether a segment of format 1 carries its sender's valid cookie.
    pub(super) fn is_cookie_valid(&self, from: Peer, segment: &[u8]) -> bool {
        extension_of(segment).is_some_and(|extension| {
            self.responder
                .is_valid(from, extension.epoch, cookie_of(segment))
        })
    }

    /// Tells the sender of a dropped segment why, if it proved its address and the segment has an extension to tell it by.
    pub(super) fn report(
        &mut self,
        (now, arrival): (Instant, &Arrival<'_>),
        datagram: &[u8],
        reason: DropReason,
    ) {
        let Some(cause) = cause_of(reason) else {
            return;
        };
        if let Some(extension) = extension_of(datagram)
            && !arrival.to_group
            && !self.closed
        {
            let to = (arrival.from, arrival.to);
            let about = About::Message(extension);
            self.stirred = true;
            self.responder.report(now, to, datagram.len(), cause, about);
        }
    }

    /// Gives posted Reads to the requester, but for those whose memory may not be written.
    fn start<C: CompletionSink>(
        &mut self,
        now: Instant,
        config: UdConfig,
        mrs: &MrTable,
        completions: &mut C,
    ) {
        while let Some(wqe) = self.fresh.pop_front() {
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
            let work = ReadWork {
                peer: wqe.peer,
                via: wqe.route.source(),
                source_stag: STag::new(rkey),
                source_offset: TaggedOffset::new(remote_addr),
                length: wqe.length,
                segment: wqe.route.limit(now).payload(RESPONSE_HEADER + digest::LEN),
                deadline: now + timeout,
            };
            self.requester.submit(now, work, wqe);
        }
    }
}

/// What a Read Request reads.
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
    // First, so that who sees the completion finds the place free.
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

impl<C: CompletionSink> ReadSink<SendWqe> for Finisher<'_, C> {
    fn place_read(
        &mut self,
        read: &SendWqe,
        offset: u32,
        payload: &[u8],
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
