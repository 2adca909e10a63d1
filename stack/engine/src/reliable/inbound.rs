//! Segments that arrive, the receives that their messages take, and the credit that peers have for them.

use std::net::IpAddr;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::wire::{UntaggedHeader, control::DV, untagged};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Endpoint, Verdict};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::wire::{Cause, ControlError, Opcode, TerminateControl};
use rustc_hash::{FxHashMap, FxHashSet};

use super::RdQpConfig;
use crate::cq_ring::CompletionSink;
use crate::mr::PdId;
use crate::recv_queue::{RecvQueue, RecvWqe, Tables};
use crate::sges::scatter;
use crate::types::{Wc, WcOpcode, WcStatus};

/// Receives that one peer may have for itself before it needs them.
const MOST_CREDIT: usize = 32;

/// DDP finds a message longer than its buffer (RFC 5041 §7.2).
const TOO_LONG: Cause = Cause {
    layer: 1,
    error_type: 2,
    code: 0x05,
};
/// Another queue than that of Sends.
const BAD_QUEUE: Cause = Cause {
    layer: 1,
    error_type: 2,
    code: 0x01,
};
/// Another MSN than the message's number gives.
const BAD_MSN: Cause = Cause {
    layer: 1,
    error_type: 2,
    code: 0x03,
};
/// Another DDP version.
const DDP_VERSION: Cause = Cause {
    layer: 1,
    error_type: 2,
    code: 0x06,
};

/// A message that took a receive and is not delivered.
#[derive(Debug)]
struct Arriving {
    message: u32,
    wqe: RecvWqe,
    /// Octets that were placed.
    octets: u32,
    /// Octets of the message; `None` until its last segment arrived.
    length: Option<u32>,
    solicited: bool,
    to: Option<IpAddr>,
}

/// Messages and credit of one peer.
#[derive(Debug, Default)]
struct Source {
    arriving: Vec<Arriving>,
    /// Receives that it was granted and did not take.
    credit: usize,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Inbound {
    qpn: u32,
    pd: PdId,
    qkey: u32,
    peers: FxHashMap<Peer, Source>,
    /// Credit of all peers: so many receives are kept for them.
    reserved: usize,
    /// Peers with little credit.
    hungry: FxHashSet<Peer>,
}

impl Inbound {
    pub(super) fn new(config: RdQpConfig) -> Self {
        Self {
            qpn: config.qpn.into(),
            pd: config.pd,
            qkey: config.qkey,
            peers: FxHashMap::default(),
            reserved: 0,
            hungry: FxHashSet::default(),
        }
    }

    /// Places a segment.
    pub(super) fn place<P: Placeable + ?Sized>(
        &mut self,
        peer: Peer,
        header: &SegmentHeader,
        segment: PayloadSlice<'_, P>,
        to: Option<IpAddr>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Verdict {
        let parsed = self.parse(header, segment);
        let from = self.peers.entry(peer).or_default();
        let begun = from
            .arriving
            .iter()
            .position(|it| it.message == header.message);
        let at = match (begun, parsed) {
            (Some(at), Ok(_)) => at,
            (Some(at), Err(cause)) => {
                let arriving = from.arriving.swap_remove(at);
                completions.received(failed(&arriving.wqe, self.qpn, WcStatus::RemoteOperation));
                return refuse(cause);
            }
            (None, parsed) => {
                if from.credit == 0 && header.receive && tables.recv_queue.len() <= self.reserved {
                    self.hungry.insert(peer);
                    return Verdict::NotReady;
                }
                let taken = match parsed {
                    Ok(_) => match tables.recv_queue.take(0, completions) {
                        Ok(wqe) => Ok(wqe),
                        Err(_) => {
                            self.hungry.insert(peer);
                            return Verdict::NotReady;
                        }
                    },
                    Err(cause) => Err(cause),
                };
                if header.receive && from.credit > 0 {
                    from.credit -= 1;
                    self.reserved -= 1;
                }
                if from.credit <= MOST_CREDIT / 2 {
                    self.hungry.insert(peer);
                }
                match taken {
                    Ok(wqe) => from.arriving.push(Arriving {
                        message: header.message,
                        wqe,
                        octets: 0,
                        length: None,
                        solicited: false,
                        to,
                    }),
                    Err(cause) => return refuse(cause),
                }
                from.arriving.len() - 1
            }
        };
        let Ok((untagged, solicited, payload)) = parsed else {
            return refuse(Cause::UNSPECIFIED_OPERATION);
        };
        let Some(arriving) = from.arriving.get_mut(at) else {
            return refuse(Cause::UNSPECIFIED_OPERATION);
        };
        let offset = untagged.message_offset.get();
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let end = offset.checked_add(length);
        let placed = match end {
            Some(end) if end <= arriving.wqe.length => {
                let pd = tables.recv_queue.pd(self.pd);
                scatter(tables.mrs, pd, &arriving.wqe.sges, offset, payload)
                    .map_err(|_| (WcStatus::LocalProtection, Cause::UNSPECIFIED_OPERATION))
            }
            Some(_) | None => Err((WcStatus::LocalLength, TOO_LONG)),
        };
        if let Err((status, cause)) = placed {
            let arriving = from.arriving.swap_remove(at);
            completions.received(failed(&arriving.wqe, self.qpn, status));
            return refuse(cause);
        }
        arriving.octets = arriving.octets.saturating_add(length);
        arriving.solicited |= solicited;
        if header.last {
            arriving.length = end;
        }
        Verdict::Placed
    }

    /// The header of a Send's segment, whether it raises a solicited event, and its octets.
    fn parse<'p, P: Placeable + ?Sized>(
        &self,
        header: &SegmentHeader,
        segment: PayloadSlice<'p, P>,
    ) -> Result<(UntaggedHeader, bool, PayloadSlice<'p, P>), Cause> {
        let head = segment.head::<{ untagged::LEN }>();
        let untagged = UntaggedHeader::parse(head.octets());
        let (untagged, _) = untagged.map_err(|_| Cause::UNSPECIFIED_OPERATION)?;
        let payload = segment
            .after(untagged::LEN)
            .ok_or(Cause::UNSPECIFIED_OPERATION)?;
        if untagged.control.version != DV {
            return Err(DDP_VERSION);
        }
        if untagged.control.tagged {
            return Err(Cause::UNEXPECTED_OPCODE);
        }
        let solicited = match Opcode::parse(untagged.rsvd_ulp) {
            Ok(Opcode::Send) => false,
            Ok(Opcode::SendSolicited) => true,
            Err(ControlError::Version(_)) => return Err(Cause::VERSION),
            Ok(_) | Err(ControlError::Opcode(_)) => return Err(Cause::UNEXPECTED_OPCODE),
        };
        if !header.receive || untagged.control.last != header.last {
            return Err(Cause::UNSPECIFIED_OPERATION);
        }
        if untagged.queue_number.get() != 0 {
            return Err(BAD_QUEUE);
        }
        if untagged.msn.get() != header.message.wrapping_add(1) {
            return Err(BAD_MSN);
        }
        if untagged.rsvd_ulp_word != self.qkey {
            return Err(Cause::ACCESS);
        }
        Ok((untagged, solicited, payload))
    }

    /// A message is there, and its turn has come.
    pub(super) fn deliver(
        &mut self,
        peer: Peer,
        message: u32,
        completions: &mut impl CompletionSink,
    ) {
        let Some(from) = self.peers.get_mut(&peer) else {
            return;
        };
        let Some(at) = from.arriving.iter().position(|it| it.message == message) else {
            return;
        };
        let arrived = from.arriving.swap_remove(at);
        if arrived.length != Some(arrived.octets) {
            // Its segments overlap, or leave a gap.
            let status = WcStatus::RemoteOperation;
            completions.received(failed(&arrived.wqe, self.qpn, status));
            return;
        }
        completions.received(Wc {
            byte_len: arrived.octets,
            source: peer.socket_addr(),
            destination: arrived.to,
            solicited: arrived.solicited,
            ..Wc::new(arrived.wqe.wr_id, WcOpcode::Recv, self.qpn)
        });
    }

    /// The association with a peer ended: receives of messages that are not delivered go back, and its credit is void.
    pub(super) fn forget(&mut self, peer: Peer, receives: &RecvQueue) {
        self.hungry.remove(&peer);
        let Some(from) = self.peers.remove(&peer) else {
            return;
        };
        self.reserved -= from.credit;
        for arriving in from.arriving.into_iter().rev() {
            receives.give_back(arriving.wqe);
        }
    }

    /// Whether peers may be granted more when receives are posted.
    pub(super) fn wants_receives(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// Grants receives that are posted and kept for nobody. Half of these stay for messages without credit, so that none waits for a
    /// peer that does not use its credit. Receives that QPs share are granted to none.
    pub(super) fn grant(&mut self, receives: &RecvQueue, endpoint: &mut Endpoint) {
        if self.hungry.is_empty() || receives.is_shared() {
            return;
        }
        let mut free = receives.len().saturating_sub(self.reserved);
        let Self {
            hungry,
            peers,
            reserved,
            ..
        } = self;
        hungry.retain(|peer| {
            let Some(from) = peers.get_mut(peer) else {
                return false;
            };
            let wanted = MOST_CREDIT.saturating_sub(from.credit);
            let more = wanted.min(free / 2);
            if more == 0 {
                return wanted > 0;
            }
            endpoint.grant(*peer, u32::try_from(more).unwrap_or(0));
            from.credit += more;
            *reserved += more;
            free -= more;
            from.credit <= MOST_CREDIT / 2
        });
    }
}

fn refuse(cause: Cause) -> Verdict {
    let control = TerminateControl {
        cause,
        length_valid: false,
        ddp_header: false,
        rdma_header: false,
    };
    Verdict::Failed(u32::from_be_bytes(control.emit()))
}

fn failed(wqe: &RecvWqe, qpn: u32, status: WcStatus) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn).with_status(status)
}

/// The completion of a receive that will not happen.
pub(super) fn flushed(wqe: &RecvWqe, qpn: u16) -> Wc {
    failed(wqe, qpn.into(), WcStatus::Flushed)
}
