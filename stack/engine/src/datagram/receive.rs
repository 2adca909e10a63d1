//! The receiving half: datagrams become placed octets and completions.

mod short;

use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::wire::untagged;
use dgiwarp_llp_udp::{Format, OpenError, Opened, PathKind, Peer, Shim};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::datagram::segment::{self, PARSED, Parsed};
use dgiwarp_rdmap::datagram::{
    CookieExchange, DropReason, EXCHANGE_LEN, Invitation, Origin, Receiver,
};

use super::arrival::{Arrival, Envelope};
use super::config::{Associations, UdConfig};
use super::errors::ErrorQueue;
use super::reads::Reads;
use super::ulp::{UdUlp, WithPayload};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::{RecvWqe, Tables};
use crate::types::{QpCounters, Wc, WcOpcode, WcStatus};

/// The parts of an engine that take segments.
pub(super) struct Takers<'a> {
    pub(super) associations: &'a mut Associations,
    pub(super) receiver: &'a mut Receiver<Peer, RecvWqe>,
    pub(super) reads: &'a mut Reads,
    pub(super) errors: &'a mut ErrorQueue,
    pub(super) config: &'a UdConfig,
    pub(super) invited: &'a mut Option<Invited>,
}

/// An invitation of a peer on this host to share memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invited {
    /// The peer.
    pub from: Peer,
    /// Address of ours that it was sent to.
    pub to: Option<IpAddr>,
    /// Name of the peer's Unix socket.
    pub token: u128,
}

/// The reason for which a datagram is dropped that does not open.
pub(crate) const fn drop_reason(error: OpenError) -> DropReason {
    match error {
        OpenError::TooShort(_) => DropReason::Malformed,
        OpenError::Mismatch { .. } => DropReason::BadCrc,
        OpenError::Format(_) => DropReason::UnknownFormat,
    }
}

/// Octets of the UDP payload that a plain Send of `length` octets came in.
pub(super) fn send_datagram(shim: &Shim, length: u32) -> usize {
    untagged::LEN + length as usize + shim.overhead(PathKind::Network).total()
}

/// Handles the datagrams of one receive call. Returns why the last one that was dropped was.
#[inline]
pub(super) fn handle_input<C: CompletionSink, P: Placeable + ?Sized>(
    (shim, counters): (&mut Shim, &mut QpCounters),
    mut takers: Takers<'_>,
    (now, arrival): (Instant, &Arrival<'_, P>),
    tables: Tables<'_>,
    completions: &mut C,
) -> Option<DropReason> {
    let around = send_datagram(shim, 0);
    let config = (takers.config, around);
    let mut ulp = UdUlp::new(config, arrival.to, tables, completions, counters);
    let mut envelope = Envelope {
        now,
        origin: Origin {
            to_group: arrival.to_group,
            ..arrival.from.into()
        },
        to: arrival.to,
        datagram: 0,
    };
    let mut last = None;
    for datagram in PayloadSlice::new(arrival.octets).chunks(arrival.stride) {
        envelope.datagram = datagram.len();
        let opened = if arrival.by_memory {
            shim.open_unchecked(now, arrival.from, datagram)
        } else {
            shim.open(now, arrival.from, datagram)
        };
        let handled = match opened {
            Ok(Opened::Segment(format, segment)) => {
                takers.handle(&mut envelope, format, segment, &mut ulp)
            }
            Ok(Opened::Decrypted(format, segment)) => {
                takers.handle(&mut envelope, format, segment, &mut ulp)
            }
            Ok(Opened::Consumed) => Ok(()),
            Err(error) => Err(drop_reason(error)),
        };
        if let Err(reason) = handled {
            ulp.counters.count_drop(reason);
            last = Some(reason);
        }
    }
    last
}

impl Takers<'_> {
    /// Dispatches a datagram by its format (§1.1): the only place that does.
    #[inline]
    fn handle<C: CompletionSink, P: Placeable + ?Sized>(
        &mut self,
        envelope: &mut Envelope,
        format: Format,
        segment: PayloadSlice<'_, P>,
        ulp: &mut UdUlp<'_, C>,
    ) -> Result<(), DropReason> {
        match format {
            Format::Segment => self.handle_segment(envelope, false, segment, ulp),
            Format::Cookie => self.handle_segment(envelope, true, segment, ulp),
            Format::Exchange => self.handle_exchange(envelope, segment),
            // Service ID resolution has sockets of its own.
            Format::Sidr => return Err(DropReason::UnknownFormat),
        }?;
        ulp.counters.count_received(segment.len());
        Ok(())
    }

    fn handle_exchange<P: Payload + ?Sized>(
        &mut self,
        envelope: &Envelope,
        datagram: PayloadSlice<'_, P>,
    ) -> Result<(), DropReason> {
        // One octet more, to find those that are too long.
        let mut head = [0; EXCHANGE_LEN + 1];
        let octets = datagram.head(&mut head);
        let takes = self.receiver.takes_from(envelope.origin.peer);
        if let Some(Invitation { token }) = Invitation::parse(octets) {
            if !takes || envelope.origin.to_group {
                return Err(DropReason::WrongPeer);
            }
            *self.invited = Some(Invited {
                from: envelope.origin.peer,
                to: envelope.to,
                token,
            });
            return Ok(());
        }
        let exchange = CookieExchange::parse(octets)?;
        if !takes {
            return Err(DropReason::WrongPeer);
        }
        if self.config.connected {
            return Err(DropReason::UnexpectedOpcode);
        }
        self.reads
            .handle_exchange(*envelope, &exchange, self.associations)
    }

    #[inline]
    fn handle_segment<C: CompletionSink, P: Placeable + ?Sized>(
        &mut self,
        envelope: &mut Envelope,
        with_cookie: bool,
        segment: PayloadSlice<'_, P>,
        ulp: &mut UdUlp<'_, C>,
    ) -> Result<(), DropReason> {
        let from = envelope.origin.peer;
        envelope.origin.cookie_valid = false;
        let handled = match segment::parse(segment, with_cookie) {
            Ok(Parsed::Read(part)) if self.config.takes(&part) => {
                if self.receiver.takes_from(from) {
                    ulp.handle_read(
                        *envelope,
                        part,
                        (self.reads, self.associations),
                        self.errors,
                    )
                } else {
                    Err(DropReason::WrongPeer)
                }
            }
            Ok(ref parsed) => {
                if with_cookie {
                    let head = &mut [0; PARSED];
                    let valid = self.reads.is_cookie_valid(from, segment.head(head));
                    envelope.origin.cookie_valid = valid;
                }
                let mut ulp = WithPayload::of(ulp);
                self.receiver
                    .handle_parsed(envelope.now, &envelope.origin, parsed, &mut ulp)
            }
            Err(reason) => Err(reason),
        };
        handled.inspect_err(|&reason| {
            // A peer that proved its address may learn why: by its cookie, or because it is the one of a UC QP.
            let proven = self.config.connected && reason != DropReason::WrongPeer;
            if envelope.origin.cookie_valid || proven {
                let mut copy = [0; PARSED];
                self.reads
                    .report(*envelope, segment.head(&mut copy), reason);
            }
        })
    }
}

/// The completion of a receive that will not happen.
pub(super) fn flushed(wqe: &RecvWqe, qpn: u16) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn.into()).with_status(WcStatus::Flushed)
}
