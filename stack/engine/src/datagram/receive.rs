//! The receiving half: datagrams become placed octets and completions.

use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_udp::{Peer, digest};
use dgiwarp_rdmap::datagram::format;
use dgiwarp_rdmap::datagram::read::segment::ReadSegment;
use dgiwarp_rdmap::datagram::segment::{self, Parsed};
use dgiwarp_rdmap::datagram::{
    Delivery, DropReason, Origin, PlaceFailed, Receiver, Record, RecordHandle, TakeError, Ulp,
};

use super::UdConfig;
use super::errors::ErrorQueue;
use super::grh::{self, GRH_LEN};
use super::reads::Reads;
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, Use};
use crate::recv_queue::{RecvWqe, Tables};
use crate::sges::scatter;
use crate::types::{AsyncEvent, QpCounters, Wc, WcOpcode, WcStatus};

/// What one receive call brought.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Who sent it.
    pub from: Peer,
    /// The address of ours that it was sent to.
    pub to: Option<IpAddr>,
    /// Whether that is a group's: such datagrams are never answered (§6).
    pub to_group: bool,
    /// One datagram, or several of equal length and a last one.
    pub octets: &'a [u8],
    /// That length.
    pub stride: usize,
}

impl<'a> Arrival<'a> {
    /// The datagrams, each as if it had come alone.
    pub fn each(self) -> impl Iterator<Item = Self> + 'a {
        self.octets
            .chunks(self.stride.max(1))
            .map(move |octets| Self {
                octets,
                stride: octets.len(),
                ..self
            })
    }
}

/// The parts of an engine that take what arrives.
pub(super) struct Intake<'a> {
    pub(super) receiver: &'a mut Receiver<Peer, RecvWqe>,
    pub(super) reads: &'a mut Reads,
    pub(super) errors: &'a mut ErrorQueue,
    pub(super) counters: &'a mut QpCounters,
    pub(super) config: UdConfig,
}

/// Handles what one receive call brought. Returns why the last datagram that was dropped was.
#[inline]
pub(super) fn handle_input<C: CompletionSink>(
    intake: Intake<'_>,
    (now, arrival): (Instant, Arrival<'_>),
    tables: Tables<'_>,
    completions: &mut C,
) -> Option<DropReason> {
    let Intake {
        receiver,
        reads,
        errors,
        counters,
        config,
    } = intake;
    let mut last = None;
    let mut ulp = UdUlp::new(config, arrival.to, tables, completions, counters);
    let mut origin = Origin {
        peer: arrival.from,
        to_group: arrival.to_group,
        cookie_valid: false,
    };
    for datagram in arrival.octets.chunks(arrival.stride.max(1)) {
        let has_cookie = format::has_cookie(datagram);
        let handled = digest::check(datagram)
            .map_err(|error| match error {
                digest::DigestError::TooShort(_) => DropReason::Malformed,
                digest::DigestError::Mismatch { .. } => DropReason::BadCrc,
            })
            .and_then(|octets| {
                match segment::parse(octets)? {
                    Parsed::Read(part) if config.takes(&part) => {
                        if !receiver.hears(arrival.from) {
                            return Err(DropReason::WrongPeer);
                        }
                        let arrived = (now, &arrival, datagram.len());
                        ulp.handle_read(arrived, part, reads, errors)?;
                    }
                    parsed => {
                        origin.cookie_valid =
                            has_cookie && reads.is_cookie_valid(arrival.from, octets);
                        receiver.handle_parsed(now, origin, parsed, &mut ulp)?;
                    }
                }
                ulp.counters.count_received(octets.len());
                Ok(())
            });
        if let Err(reason) = handled {
            ulp.counters.count_drop(reason);
            last = Some(reason);
            // A peer that proved where it is may learn why: by its cookie, or because it is the one of a UC QP.
            let proven = config.connected && reason != DropReason::WrongPeer;
            if (has_cookie && origin.cookie_valid) || proven {
                reads.report((now, &arrival), datagram, reason);
            }
        }
    }
    last
}

/// The completion of a receive that will not happen.
pub(super) fn flushed(wqe: &RecvWqe, qpn: u16) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn.into()).with_status(WcStatus::Flushed)
}

/// Gives the receiver its memory, receive queue and completions.
pub(super) struct UdUlp<'a, C> {
    config: UdConfig,
    to: Option<IpAddr>,
    tables: Tables<'a>,
    completions: &'a mut C,
    counters: &'a mut QpCounters,
    /// Segments of a train mostly go to one region. Dropped before anything is allocated.
    held: Option<(STag, Use)>,
}

impl<'a, C: CompletionSink> UdUlp<'a, C> {
    pub(super) fn new(
        config: UdConfig,
        to: Option<IpAddr>,
        tables: Tables<'a>,
        completions: &'a mut C,
        counters: &'a mut QpCounters,
    ) -> Self {
        Self {
            config,
            to,
            tables,
            completions,
            counters,
            held: None,
        }
    }

    /// Hands a segment to the Reads.
    fn handle_read(
        &mut self,
        arrived: (Instant, &Arrival<'_>, usize),
        part: ReadSegment<'_>,
        reads: &mut Reads,
        errors: &mut ErrorQueue,
    ) -> Result<(), DropReason> {
        // Reads may allocate, free and hold other memory.
        self.held = None;
        let (config, mrs) = (self.config, self.tables.mrs);
        let entry = reads.handle(arrived, part, config, mrs, self.completions)?;
        if let Some(entry) = entry
            && errors.push(entry)
        {
            self.completions.event(AsyncEvent::ErrorQueue {
                qpn: config.qpn.into(),
            });
        }
        Ok(())
    }

    fn grh_len(&self) -> u32 {
        if self.config.grh { GRH_LEN } else { 0 }
    }

    /// Places octets at `offset` of a receive's buffers.
    fn scatter(&self, wqe: &RecvWqe, offset: u32, octets: &[u8]) -> Result<(), PlaceFailed> {
        let pd = self.tables.recv_queue.pd(self.config.pd);
        scatter(self.tables.mrs, pd, &wqe.sges, offset, octets)
    }
}

impl<C: CompletionSink> Ulp<Peer> for UdUlp<'_, C> {
    type Receive = RecvWqe;

    fn prepare_state(&mut self) {
        self.held = None;
    }

    fn check_write(&self, origin: Origin<Peer>, span: TaggedSpan) -> Result<(), DropReason> {
        let mrs = self.tables.mrs;
        mrs.write_record(self.config.pd, origin, span).map(|_| ())
    }

    #[inline]
    fn place_write(
        &mut self,
        origin: Origin<Peer>,
        stag: STag,
        start: TaggedOffset,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let length = u32::try_from(payload.len()).map_err(|_| DropReason::OutOfBounds)?;
        let span = TaggedSpan {
            stag,
            start,
            length,
        };
        let pd = self.config.pd;
        match &self.held {
            Some((held, registration)) if *held == stag => {
                MrTable::check_write_record(registration, pd, origin, span)?;
            }
            Some(_) | None => {
                let registration = self.tables.mrs.write_record(pd, origin, span)?;
                self.held = Some((stag, registration));
            }
        }
        let (_, registration) = self.held.as_ref().ok_or(DropReason::BadStag)?;
        registration
            .slice(start.get(), length)
            .ok_or(DropReason::OutOfBounds)?
            .place(payload);
        Ok(())
    }

    fn take_receive(&mut self, length: u32) -> Result<RecvWqe, TakeError> {
        let with_grh = length
            .checked_add(self.grh_len())
            .ok_or(TakeError::TooShort)?;
        self.tables.recv_queue.take(with_grh, self.completions)
    }

    fn place_untagged(
        &mut self,
        receive: &RecvWqe,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed> {
        self.scatter(receive, offset + self.grh_len(), payload)
    }

    fn deliver(&mut self, receive: RecvWqe, delivery: Delivery<Peer>) {
        let opcode = if delivery.written {
            WcOpcode::RecvRdmaWithImmediate
        } else {
            WcOpcode::Recv
        };
        let mut wc = Wc {
            byte_len: delivery.length,
            immediate: delivery.immediate,
            source: delivery.source.socket_addr(),
            destination: self.to,
            solicited: delivery.solicited,
            grh: self.config.grh,
            ..Wc::new(receive.wr_id, opcode, self.config.qpn.into())
        };
        if self.config.grh
            && !delivery.written
            && let (Some(source), Some(to)) = (delivery.source.ip_addr(), self.to)
        {
            let image = grh::image(source, to, delivery.length as usize);
            if self.scatter(&receive, 0, &image).is_err() {
                wc.status = WcStatus::LocalProtection;
            }
        }
        self.completions.received(wc);
    }

    fn fail(&mut self, receive: RecvWqe) {
        let wc = Wc::new(receive.wr_id, WcOpcode::Recv, self.config.qpn.into());
        self.completions
            .received(wc.with_status(WcStatus::LocalProtection));
    }

    fn give_back(&mut self, receive: RecvWqe) {
        self.tables.recv_queue.give_back(receive);
    }

    fn deliver_record(&mut self, handle: RecordHandle, record: &Record<Peer>) {
        self.completions.received(Wc {
            byte_len: record.map.octets(),
            immediate: record.immediate,
            source: record.source.socket_addr(),
            destination: self.to,
            solicited: record.solicited,
            ..Wc::new(
                handle.to_u64(),
                WcOpcode::WriteRecord,
                self.config.qpn.into(),
            )
        });
    }

    fn deliver_segment(
        &mut self,
        handle: RecordHandle,
        record: &Record<Peer>,
        offset: u32,
        length: u32,
    ) -> bool {
        self.completions.segment(Wc {
            byte_len: length,
            offset,
            immediate: record.immediate,
            source: record.source.socket_addr(),
            destination: self.to,
            ..Wc::new(
                handle.to_u64(),
                WcOpcode::WriteRecordSegment,
                self.config.qpn.into(),
            )
        })
    }

    fn record_ring_full(&mut self) {
        let qpn = self.config.qpn.into();
        self.completions.event(AsyncEvent::RecordRingFull { qpn });
    }

    fn count(&mut self, reason: DropReason) {
        self.counters.count_drop(reason);
    }
}
