//! Short messages from memory that the peer shares: they are handled without framing, clock and acknowledgements.

use std::time::Instant;

use dgiwarp_llp_tcp_mpa::framing::bare;
use dgiwarp_rdmap::stream::{Handled, Peer, carries_message};

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

impl RcEngine {
    /// Whether input may be handled by [`handle_short_input`](Self::handle_short_input), and no acknowledgement is pending.
    #[inline]
    pub fn takes_short_input(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        self.end.is_none()
            && self.deferred_end.is_none()
            && self.rnr_queue.is_empty()
            && !self.awaits_first_message
            && matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && dgiwarp_ext.pending_acks() == 0
            && self.first_fpdu_probe == FirstFpduProbe::Done
            && matches!(self.xrc, Xrc::None)
            && self.config.options.completion == Completion::Placed
            && self.llp.receives_bare()
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
        while let Some((ulpdu, fpdu)) = bare::first(&octets[handled..]) {
            if self.receive_sole(ulpdu, tables, completions) {
                handled += fpdu;
                continue;
            }
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
    /// Receives a Send of one segment whose receive is one element. Where the ULPDU is another one, or this fails, nothing is done and `false` returned.
    #[inline]
    fn receive_sole(
        &mut self,
        ulpdu: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let (config, queue) = (&self.config, tables.recv_queue);
        let Some(send) = self.stream.sole_send(ulpdu) else {
            return false;
        };
        let Ok(length) = u32::try_from(send.payload.len()) else {
            return false;
        };
        let pd = queue.pd(config.pd);
        let place = |sges: &[Sge]| place_in_one(tables.mrs, pd, sges, send.payload);
        let Some(wr_id) = queue.take_placed(length, completions, place) else {
            return false;
        };
        self.stream.placed_sole_send();
        self.counters.count_received(ulpdu.len());
        let wc = Wc {
            byte_len: length,
            source: Some(config.peer),
            solicited: send.solicited,
            ..Wc::new(wr_id, WcOpcode::Recv, config.qpn)
        };
        queue.complete(wc, completions);
        true
    }
}
