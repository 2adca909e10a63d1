//! Posted Sends: their segments when these leave, and their completions in the order of the posts to each peer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_codec::crc;
use dgiwarp_ddp::wire::{Control, UntaggedHeader, control::DV, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Cause, Endpoint, Post};
use dgiwarp_rdmap::wire::{Cause as Terminated, Opcode};
use rustc_hash::FxHashMap;

use super::{AROUND, RdQpConfig, SEND_HEADER};
use crate::connected::terminated;
use crate::cq_ring::CompletionSink;
use crate::datagram::SendWqe;
use crate::mr::{LocalProtection, MrTable, PdId};
use crate::recv_queue::Tables;
use crate::sges::Gathered;
use crate::types::{Wc, WcOpcode, WcStatus};

/// The stream of all messages of a QP to one peer.
const STREAM: u16 = 0;

/// End of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is placed at the peer.
    Placed,
    /// It never left.
    Unsent(WcStatus),
    /// It failed, and with it the association.
    Failed(WcStatus),
}

impl Outcome {
    /// The outcome of a failure (§9).
    pub(super) fn of(cause: Cause) -> Self {
        Self::Failed(match cause {
            Cause::Unreachable => WcStatus::RetryExceeded,
            Cause::RnrRetries => WcStatus::RnrRetryExceeded,
            Cause::Flushed => WcStatus::Flushed,
            Cause::Restarted | Cause::Violation | Cause::Closed(_) => WcStatus::RemoteOperation,
            Cause::Remote(control) => {
                let [layer_and_type, code, _, _] = control.to_be_bytes();
                terminated(Terminated {
                    layer: layer_and_type >> 4,
                    error_type: layer_and_type & 0x0f,
                    code,
                })
            }
        })
    }

    const fn status(self) -> WcStatus {
        match self {
            Self::Placed => WcStatus::Success,
            Self::Unsent(status) | Self::Failed(status) => status,
        }
    }
}

/// A Send that has not completed.
#[derive(Debug)]
struct Posted {
    wqe: SendWqe,
    /// Octets of the message in each segment but the last.
    payload: u32,
    outcome: Option<Outcome>,
}

/// A peer with Sends, or whose datagrams came to a certain address.
#[derive(Debug, Default)]
struct Target {
    /// Sends to it, in the order of their posts.
    tokens: VecDeque<u64>,
    /// Address of ours that datagrams leave from; `None` for the kernel's choice.
    from: Option<IpAddr>,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Outbound {
    qpn: u32,
    pd: PdId,
    datagram: u16,
    fresh: VecDeque<SendWqe>,
    posted: FxHashMap<u64, Posted>,
    next: u64,
    peers: FxHashMap<Peer, Target>,
    /// A message whose memory is gone, and its peer.
    broken: Option<(Peer, u64)>,
}

impl Outbound {
    pub(super) fn new(config: RdQpConfig) -> Self {
        Self {
            qpn: config.qpn.into(),
            pd: config.pd,
            datagram: config.rd.datagram,
            fresh: VecDeque::new(),
            posted: FxHashMap::default(),
            next: 0,
            peers: FxHashMap::default(),
            broken: None,
        }
    }

    pub(super) fn accept(&mut self, wqe: SendWqe) {
        self.fresh.push_back(wqe);
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.posted.len()
    }

    /// The address of ours that datagrams to a peer leave from.
    pub(super) fn source(&self, peer: Peer) -> Option<IpAddr> {
        self.peers.get(&peer)?.from
    }

    /// A segment of the peer came to this address of ours.
    pub(super) fn note_address(&mut self, peer: Peer, to: Option<IpAddr>) {
        let known = self.peers.entry(peer).or_default();
        if known.from.is_none() {
            known.from = to;
        }
    }

    /// Gives the associations what was accepted.
    pub(super) fn post(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        endpoint: &mut Endpoint,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(wqe) = self.fresh.pop_front() {
            let (peer, token) = (wqe.peer, self.next);
            self.next += 1;
            let datagram = wqe.route.limit(now).get().min(self.datagram);
            let payload = datagram.saturating_sub(AROUND).max(1);
            let segments = wqe.length.div_ceil(payload.into()).max(1);
            let last = wqe.length - (segments - 1) * u32::from(payload);
            let protected = check(tables.mrs, self.pd, &wqe);
            let to = self.peers.entry(peer).or_default();
            to.from = wqe.route.source().or(to.from);
            to.tokens.push_back(token);
            let posted = Posted {
                wqe,
                payload: payload.into(),
                outcome: None,
            };
            self.posted.insert(token, posted);
            if protected.is_err() {
                let outcome = Outcome::Unsent(WcStatus::LocalProtection);
                self.end(peer, token, outcome, completions);
                continue;
            }
            let post = Post {
                token,
                segments,
                length: SEND_HEADER + payload,
                last_length: SEND_HEADER + u16::try_from(last).unwrap_or(payload),
                stream: Some(STREAM),
                receive: true,
            };
            endpoint.post(now, peer, datagram, post);
        }
    }

    /// Writes a segment: its header, and its octets as they are in memory now.
    pub(super) fn write(
        &mut self,
        mrs: &MrTable,
        peer: Peer,
        token: u64,
        header: &SegmentHeader,
        segment: &mut [u8],
    ) {
        let Some(Posted { wqe, payload, .. }) = self.posted.get(&token) else {
            return;
        };
        let Some((head, octets)) = segment.split_at_mut_checked(untagged::LEN) else {
            return;
        };
        let opcode = if wqe.solicited {
            Opcode::SendSolicited
        } else {
            Opcode::Send
        };
        let offset = header.index * payload;
        let untagged = UntaggedHeader {
            control: Control {
                tagged: false,
                last: header.last,
                format: 0,
                version: DV,
            },
            rsvd_ulp: opcode.emit(),
            rsvd_ulp_word: wqe.qkey,
            queue_number: QueueNumber::new(0),
            msn: Msn::new(header.message.wrapping_add(1)),
            message_offset: MessageOffset::new(offset),
        };
        head.copy_from_slice(&untagged.emit());
        if octets.is_empty() {
            return;
        }
        let view = mrs.view_local();
        let mut source = Gathered::default();
        let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        let viewed = source
            .view(&view, self.pd, &wqe.sges)
            .and_then(|()| source.reach(offset, length));
        match viewed {
            Ok(()) => source.copy(offset, octets),
            Err(LocalProtection) => self.broken = Some((peer, token)),
        }
    }

    /// The message that could not be written, because its memory is not registered any more.
    pub(super) fn take_broken(&mut self) -> Option<(Peer, u64)> {
        self.broken.take()
    }

    /// The message fails for its memory, whatever its association says.
    pub(super) fn break_off(&mut self, token: u64) {
        if let Some(posted) = self.posted.get_mut(&token) {
            posted.outcome = Some(Outcome::Failed(WcStatus::LocalProtection));
        }
    }

    /// A message ended. It completes, and those behind it that ended before, when all before it completed.
    pub(super) fn end(
        &mut self,
        peer: Peer,
        token: u64,
        outcome: Outcome,
        completions: &mut impl CompletionSink,
    ) {
        if let Some(posted) = self.posted.get_mut(&token) {
            posted.outcome.get_or_insert(outcome);
        }
        let Some(to) = self.peers.get_mut(&peer) else {
            return;
        };
        let mut failed = false;
        while let Some(first) = to.tokens.front() {
            let Some(outcome) = self.posted.get(first).and_then(|it| it.outcome) else {
                break;
            };
            let status = match outcome {
                // It is placed, but nobody knows whether it will be delivered: one before it is not there.
                Outcome::Placed if failed => WcStatus::Flushed,
                outcome => outcome.status(),
            };
            failed |= matches!(outcome, Outcome::Failed(_));
            if let Some(posted) = self.posted.remove(first) {
                complete(&posted.wqe, self.qpn, status, completions);
            }
            to.tokens.pop_front();
        }
    }

    /// The association with a peer ended.
    pub(super) fn forget(&mut self, peer: Peer) {
        if let Some(to) = self.peers.get(&peer)
            && to.tokens.is_empty()
        {
            self.peers.remove(&peer);
        }
    }

    /// Ends what never reached an association.
    pub(super) fn flush(&mut self, completions: &mut impl CompletionSink) {
        for wqe in std::mem::take(&mut self.fresh) {
            complete(&wqe, self.qpn, WcStatus::Flushed, completions);
        }
    }
}

/// Whether the memory of a message is registered.
fn check(mrs: &MrTable, pd: PdId, wqe: &SendWqe) -> Result<(), LocalProtection> {
    let view = mrs.view_local();
    Gathered::default().view(&view, pd, &wqe.sges)
}

fn complete(wqe: &SendWqe, qpn: u32, status: WcStatus, completions: &mut impl CompletionSink) {
    // First, so that a thread that sees the completion finds the place free.
    completions.retired();
    if wqe.signaled || status != WcStatus::Success {
        completions.sent(Wc {
            status,
            byte_len: wqe.length,
            ..Wc::new(wqe.wr_id, WcOpcode::Send, qpn)
        });
    }
}

const _: () = assert!(AROUND as usize == 24 + 4 + 16 + crc::LEN + untagged::LEN);
