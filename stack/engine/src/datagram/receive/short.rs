//! Short Sends from memory that the peer shares: they are placed under the lock of the receive queue, without assembly and clock.

use std::net::IpAddr;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_llp_udp::{Format, Peer};
use dgiwarp_rdmap::datagram::segment::{self, Parsed};

use super::send_datagram;
use crate::cq_ring::CompletionSink;
use crate::datagram::UdEngine;
use crate::datagram::grh::{self, GRH_LEN};
use crate::recv_queue::Tables;
use crate::sges::place_in_one_behind;
use crate::types::{Wc, WcOpcode};

impl UdEngine {
    /// Receives a datagram that came through memory of this host `from` a peer `to` an address of ours, if it has all of a Send, without immediate, whose
    /// receive has one element. Returns whether it did; else the datagram is for [`handle_input`](Self::handle_input).
    #[inline]
    pub fn receive_sole_send(
        &mut self,
        (from, to): (Peer, Option<IpAddr>),
        datagram: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> bool {
        self.try_receive_sole_send((from, to), datagram, tables, completions)
            .is_some()
    }

    #[inline]
    fn try_receive_sole_send(
        &mut self,
        (from, to): (Peer, Option<IpAddr>),
        datagram: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<()> {
        let (format, opened) = self.shim.open_stateless(PayloadSlice::new(datagram))?;
        if format != Format::Segment || self.awaits_first_message {
            return None;
        }
        let Ok(Parsed::Send {
            qkey,
            solicited,
            payload,
        }) = segment::parse(opened, false)
        else {
            return None;
        };
        if !self.receiver.takes_send(from, qkey) {
            return None;
        }
        let length = u32::try_from(payload.len()).ok()?;
        let header;
        let (before, with_grh) = if self.config.grh {
            let octets = send_datagram(&self.shim, length);
            header = grh::ip_header(from.ip_addr()?, to?, octets);
            (&header[..], length.checked_add(GRH_LEN)?)
        } else {
            (&[][..], length)
        };
        let queue = tables.recv_queue;
        let pd = queue.pd(self.config.pd);
        let mut receives = queue.lock_head();
        let view = tables.mrs.view_local();
        let wr_id = receives.take_placed(with_grh, |sges| {
            place_in_one_behind(&view, pd, sges, before, payload)
        })?;
        drop(view);
        receives.unlock(completions);
        self.counters.count_received(opened.len());
        completions.received(Wc {
            byte_len: length,
            source: from.socket_addr(),
            destination: to,
            solicited,
            grh: self.config.grh,
            ..Wc::new(wr_id, WcOpcode::Recv, self.config.qpn.into())
        });
        Some(())
    }
}
