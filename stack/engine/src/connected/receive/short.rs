//! Short messages from memory that the peer shares: they are handled without framing, clock and acknowledgements.

use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::untagged;
use dgiwarp_llp_tcp_mpa::framing::bare;
use dgiwarp_memory::RegionSlice;
use dgiwarp_rdmap::stream::{Handled, Peer, SoleSend, carries_message};

use crate::connected::engine::RcEngine;
use crate::connected::first_fpdu_probe::FirstFpduProbe;
use crate::connected::ulp::Ulp;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::sges::place_in_one;
use crate::types::{Completion, Sge, Wc, WcOpcode};
use crate::xrc::Xrc;

/// Short messages that were handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortInput {
    /// Octets of their FPDUs. 0 where the input is for [`handle_input`](RcEngine::handle_input).
    pub octets: usize,
    /// A message waits for a receive, or the connection has ended.
    pub has_work: bool,
}

/// Sends that are received under one lock of the receive queue, at most.
const BATCH: usize = 16;

/// Octets of an FPDU of a Send before its payload.
const SOLE_FRONT: usize = bare::LENGTH_LEN + untagged::LEN;

/// An FPDU that has all of a Send.
struct Sole<'a> {
    send: SoleSend<'a>,
    /// Octets of the message.
    length: u32,
    ulpdu_len: usize,
    fpdu_len: usize,
}

/// A message that is placed, without its completion yet.
struct Received {
    wr_id: u64,
    length: u32,
    solicited: bool,
}

impl RcEngine {
    /// Whether input may be handled by [`handle_short_input`](Self::handle_short_input), if no acknowledgement is pending. Short input that leaves no work does
    /// not change that, nor do short messages that are sent.
    pub(in crate::connected) fn takes_short_input(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        self.end.is_none()
            && self.deferred_end.is_none()
            && self.rnr_queue.is_empty()
            && !self.awaits_first_message
            && matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && self.first_fpdu_probe == FirstFpduProbe::Done
            && matches!(self.xrc, Xrc::None)
            && self.config.options.completion == Completion::Placed
            && self.llp.receives_bare()
    }

    /// Handles a Send of one segment whose receive is one element at the front of `input`, memory that the peer shares: its payload is placed from where it
    /// lies. Returns the octets of its FPDU, or 0 where the input is for [`handle_short_input`](Self::handle_short_input).
    #[inline]
    pub fn handle_sole_send(
        &mut self,
        input: &RegionSlice<'_>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> usize {
        self.receive_sole_send(input, tables, completions)
            .unwrap_or(0)
    }

    #[inline]
    fn receive_sole_send(
        &mut self,
        input: &RegionSlice<'_>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<usize> {
        // The peer may change the octets at any time: the checks are of a copy.
        let front = input.first_chunk::<SOLE_FRONT>()?;
        let (length, header) = front.split_first_chunk()?;
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let fpdu_len = bare::fpdu_len(ulpdu_len);
        let payload_len = ulpdu_len.checked_sub(untagged::LEN)?;
        if fpdu_len > input.len() {
            return None;
        }
        let solicited = self.stream.sole_send_header(header.first_chunk()?)?;
        let payload = input.subslice(SOLE_FRONT, payload_len).ok()?;
        let length = u32::try_from(payload_len).ok()?;
        let queue = tables.recv_queue;
        let mut receives = queue.lock_head();
        let view = tables.mrs.view_local();
        let pd = queue.pd(self.config.pd);
        let wr_id = match receives.head(length) {
            Some((wr_id, sges)) if place_in_one(&view, pd, sges, &payload) => {
                receives.take_head();
                Some(wr_id)
            }
            Some(_) | None => None,
        };
        drop(view);
        receives.unlock(completions);
        let wr_id = wr_id?;
        self.stream.placed_sole_send();
        self.counters.count_received(ulpdu_len);
        let wc = || Wc {
            byte_len: length,
            source: Some(self.config.peer),
            solicited,
            ..Wc::new(wr_id, WcOpcode::Recv, self.config.qpn)
        };
        queue.complete_as(wc, completions);
        Some(fpdu_len)
    }

    /// Handles Sends and Writes from the front of `octets`, which come from memory that the peer shares, up to the first other FPDU.
    #[inline]
    pub fn handle_short_input(
        &mut self,
        now: impl FnOnce() -> Instant,
        octets: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> ShortInput {
        let mut handled = 0;
        loop {
            handled += self.receive_sole_sends(&octets[handled..], tables, completions);
            let Some((ulpdu, fpdu)) = bare::first(&octets[handled..]) else {
                break;
            };
            if !carries_message(ulpdu) {
                break;
            }
            let mut ulp = Ulp {
                config: &self.config,
                tables,
                completions,
                sends: &mut self.sends,
                proven: &mut self.acks.proven,
                waiter: &self.waiter,
                used: &mut self.used,
                failed: None,
            };
            let result = self.stream.handle_ulpdu(ulpdu, &mut ulp);
            let blamed = ulp.failed;
            self.counters.count_received(ulpdu.len());
            handled += fpdu;
            match result {
                Ok(Handled::Taken | Handled::SrqSelected(_)) => continue,
                Ok(Handled::ReceiverNotReady) => {
                    self.counters.count_parked();
                    self.rnr_queue.push(now(), ulpdu);
                    let waiting = self.rnr_queue.messages();
                    self.stream.dgiwarp_ext_mut().set_in_rnr_queue(waiting);
                }
                Err(error) => self.fail((error, blamed), tables, completions),
            }
            return ShortInput {
                octets: handled,
                has_work: true,
            };
        }
        ShortInput {
            octets: handled,
            has_work: false,
        }
    }

    /// Receives Sends of one segment each whose receives are one element, from the front of `octets`, up to the first other FPDU or one that cannot be placed.
    /// Returns their octets.
    #[inline]
    fn receive_sole_sends(
        &mut self,
        octets: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> usize {
        let Some(mut next) = self.first_sole(octets) else {
            return 0;
        };
        let (queue, mut handled) = (tables.recv_queue, 0);
        let pd = queue.pd(self.config.pd);
        let mut taken = ArrayVec::<Received, BATCH>::new();
        let mut receives = queue.lock_head();
        let view = tables.mrs.view_local();
        loop {
            let (send, length) = (next.send, next.length);
            let place = |sges: &[Sge]| place_in_one(&view, pd, sges, send.payload);
            let Some(wr_id) = receives.take_placed(length, place) else {
                break;
            };
            self.stream.placed_sole_send();
            self.counters.count_received(next.ulpdu_len);
            handled += next.fpdu_len;
            taken.push(Received {
                wr_id,
                length,
                solicited: send.solicited,
            });
            if taken.is_full() {
                break;
            }
            match self.first_sole(&octets[handled..]) {
                Some(sole) => next = sole,
                None => break,
            }
        }
        drop(view);
        receives.unlock(completions);
        for received in &taken {
            let wc = Wc {
                byte_len: received.length,
                source: Some(self.config.peer),
                solicited: received.solicited,
                ..Wc::new(received.wr_id, WcOpcode::Recv, self.config.qpn)
            };
            queue.complete(wc, completions);
        }
        handled
    }

    /// The first FPDU, if it has all of a Send.
    #[inline]
    fn first_sole<'a>(&self, octets: &'a [u8]) -> Option<Sole<'a>> {
        let (ulpdu, fpdu_len) = bare::first(octets)?;
        let send = self.stream.sole_send(ulpdu)?;
        Some(Sole {
            send,
            length: u32::try_from(send.payload.len()).ok()?,
            ulpdu_len: ulpdu.len(),
            fpdu_len,
        })
    }
}
