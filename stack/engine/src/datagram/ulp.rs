//! The layer above RDMAP on a datagram QP: memory, receive queue and completions.

use std::marker::PhantomData;
use std::net::IpAddr;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::datagram::read::segment::ReadSegment;
use dgiwarp_rdmap::datagram::{
    Delivery, DropReason, Origin, PlaceFailed, Record, RecordHandle, TakeError, Ulp,
};

use super::arrival::Envelope;
use super::config::{Associations, UdConfig};
use super::errors::ErrorQueue;
use super::grh::{self, GRH_LEN};
use super::reads::Reads;
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, Use};
use crate::recv_queue::{RecvWqe, Tables};
use crate::sges::scatter;
use crate::types::{AsyncEvent, QpCounters, Wc, WcOpcode, WcStatus};

/// Gives the receiver its memory, receive queue and completions.
pub(super) struct UdUlp<'a, C> {
    config: &'a UdConfig,
    /// Octets beside the message in the datagram of a plain Send.
    around_send: usize,
    to: Option<IpAddr>,
    tables: Tables<'a>,
    completions: &'a mut C,
    pub(super) counters: &'a mut QpCounters,
    /// Segments of a train mostly go to one region. Dropped before anything is allocated.
    held: Option<(STag, Use)>,
}

impl<'a, C: CompletionSink> UdUlp<'a, C> {
    pub(super) fn new(
        (config, around_send): (&'a UdConfig, usize),
        to: Option<IpAddr>,
        tables: Tables<'a>,
        completions: &'a mut C,
        counters: &'a mut QpCounters,
    ) -> Self {
        Self {
            config,
            around_send,
            to,
            tables,
            completions,
            counters,
            held: None,
        }
    }

    /// Hands a segment to the Reads.
    pub(super) fn handle_read<P: Placeable + ?Sized>(
        &mut self,
        arrived: Envelope,
        part: ReadSegment<'_, P>,
        (reads, associations): (&mut Reads, &mut Associations),
        errors: &mut ErrorQueue,
    ) -> Result<(), DropReason> {
        // Reads may allocate, free and hold other memory.
        self.held = None;
        let (config, mrs) = (*self.config, self.tables.mrs);
        let entry = reads.handle(arrived, part, (associations, config), mrs, self.completions)?;
        if let Some(entry) = entry
            && errors.push(entry)
        {
            self.completions.event(AsyncEvent::ErrorQueue {
                qpn: config.qpn.into(),
            });
        }
        Ok(())
    }

    /// Places the IP header of a message in front of it, where the header's addresses are known.
    #[inline(never)]
    fn place_grh(&self, wqe: &RecvWqe, delivery: &Delivery<Peer>) -> Result<(), PlaceFailed> {
        let (Some(source), Some(to)) = (delivery.source.ip_addr(), self.to) else {
            return Ok(());
        };
        let datagram = self.around_send + delivery.length as usize;
        let image = grh::ip_header(source, to, datagram);
        self.scatter(wqe, 0, &image[..])
    }

    fn grh_len(&self) -> u32 {
        if self.config.grh { GRH_LEN } else { 0 }
    }

    /// Places octets at `offset` of a receive's buffers.
    fn scatter<'p, P: Placeable + ?Sized + 'p>(
        &self,
        wqe: &RecvWqe,
        offset: u32,
        octets: impl Into<PayloadSlice<'p, P>>,
    ) -> Result<(), PlaceFailed> {
        let pd = self.tables.recv_queue.pd(self.config.pd);
        scatter(self.tables.mrs, pd, &wqe.sges, offset, octets)
    }
}

/// The upper layer for segments whose payload lies in a `P`.
pub(super) struct WithPayload<'u, 'a, C, P: ?Sized> {
    ulp: &'u mut UdUlp<'a, C>,
    payload: PhantomData<fn(&P)>,
}

impl<'u, 'a, C, P: ?Sized> WithPayload<'u, 'a, C, P> {
    #[inline]
    pub(super) fn of(ulp: &'u mut UdUlp<'a, C>) -> Self {
        Self {
            ulp,
            payload: PhantomData,
        }
    }
}

impl<C: CompletionSink, P: Placeable + ?Sized> Ulp<Peer> for WithPayload<'_, '_, C, P> {
    type Receive = RecvWqe;
    type Payload = P;

    fn prepare_state(&mut self) {
        self.ulp.held = None;
    }

    fn check_write(&self, origin: Origin<Peer>, span: TaggedSpan) -> Result<(), DropReason> {
        let mrs = self.ulp.tables.mrs;
        mrs.write_record(self.ulp.config.pd, origin, span)
            .map(|_| ())
    }

    #[inline]
    fn place_write(
        &mut self,
        origin: Origin<Peer>,
        stag: STag,
        start: TaggedOffset,
        payload: PayloadSlice<'_, P>,
    ) -> Result<(), DropReason> {
        let length = u32::try_from(payload.len()).map_err(|_| DropReason::OutOfBounds)?;
        let span = TaggedSpan {
            stag,
            start,
            length,
        };
        let pd = self.ulp.config.pd;
        match &self.ulp.held {
            Some((held, registration)) if *held == stag => {
                MrTable::check_write_record(registration, pd, origin, span)?;
            }
            Some(_) | None => {
                let registration = self.ulp.tables.mrs.write_record(pd, origin, span)?;
                self.ulp.held = Some((stag, registration));
            }
        }
        let (_, registration) = self.ulp.held.as_ref().ok_or(DropReason::BadStag)?;
        let slice = registration.reached(start.get(), length, true);
        payload.place(0, &slice.ok_or(DropReason::OutOfBounds)?);
        Ok(())
    }

    #[inline(always)]
    fn take_receive(&mut self, length: u32) -> Result<RecvWqe, TakeError> {
        let with_grh = length
            .checked_add(self.ulp.grh_len())
            .ok_or(TakeError::TooShort)?;
        self.ulp
            .tables
            .recv_queue
            .take(with_grh, self.ulp.completions)
    }

    #[inline]
    fn place_untagged(
        &mut self,
        receive: &RecvWqe,
        offset: u32,
        payload: PayloadSlice<'_, P>,
    ) -> Result<(), PlaceFailed> {
        self.ulp
            .scatter(receive, offset + self.ulp.grh_len(), payload)
    }

    #[inline(always)]
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
            destination: self.ulp.to,
            solicited: delivery.solicited,
            grh: self.ulp.config.grh,
            ..Wc::new(receive.wr_id, opcode, self.ulp.config.qpn.into())
        };
        if self.ulp.config.grh
            && !delivery.written
            && self.ulp.place_grh(&receive, &delivery).is_err()
        {
            wc.status = WcStatus::LocalProtection;
        }
        self.ulp.completions.received(wc);
    }

    fn fail(&mut self, receive: RecvWqe) {
        let wc = Wc::new(receive.wr_id, WcOpcode::Recv, self.ulp.config.qpn.into());
        self.ulp
            .completions
            .received(wc.with_status(WcStatus::LocalProtection));
    }

    fn give_back(&mut self, receive: RecvWqe) {
        self.ulp.tables.recv_queue.give_back(receive);
    }

    fn deliver_record(&mut self, handle: RecordHandle, record: &Record<Peer>) {
        self.ulp.completions.received(Wc {
            byte_len: record.map.octets(),
            immediate: record.immediate,
            source: record.source.socket_addr(),
            destination: self.ulp.to,
            solicited: record.solicited,
            ..Wc::new(
                handle.to_u64(),
                WcOpcode::WriteRecord,
                self.ulp.config.qpn.into(),
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
        self.ulp.completions.segment(Wc {
            byte_len: length,
            offset,
            immediate: record.immediate,
            source: record.source.socket_addr(),
            destination: self.ulp.to,
            ..Wc::new(
                handle.to_u64(),
                WcOpcode::WriteRecordSegment,
                self.ulp.config.qpn.into(),
            )
        })
    }

    fn record_ring_full(&mut self) {
        let qpn = self.ulp.config.qpn.into();
        self.ulp
            .completions
            .event(AsyncEvent::RecordRingFull { qpn });
    }

    fn count(&mut self, reason: DropReason) {
        self.ulp.counters.count_drop(reason);
    }
}
