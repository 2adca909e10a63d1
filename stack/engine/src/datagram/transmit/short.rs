//! Short Sends to memory that the peer shares: they go there when they are posted, without an entry of the send queue.

use std::convert::Infallible;
use std::time::Instant;

use dgiwarp_ddp::Segmenter;
use dgiwarp_ddp::wire::untagged;
use dgiwarp_llp_udp::{Peer, Shim, Train, TrainBuilder};
use dgiwarp_rdmap::datagram::segment::Prefix;

use super::stage;
use crate::cq_ring::CompletionSink;
use crate::datagram::UdEngine;
use crate::mr::MrTable;
use crate::types::{Route, ShortData, Wc, WcOpcode};

/// Octets of the longest such message.
const LONGEST: u32 = 1024;
/// Octets of the longest datagram.
const DATAGRAM: usize = untagged::LEN + LONGEST as usize + Shim::GATHERED.total();

/// A Send without immediate whose octets are in one place.
#[derive(Debug, Clone, Copy)]
pub struct ShortSend<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The peer, no group.
    pub peer: Peer,
    /// Route to the peer.
    pub route: &'a Route,
    /// Q_Key that the message carries.
    pub qkey: u32,
    /// Octets of the message.
    pub data: ShortData<'a>,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether the message raises a solicited event.
    pub solicited: bool,
}

impl UdEngine {
    /// Posts a Send, and gives its datagram to `send`, which returns whether it took it: into memory that the peer shares. Where that cannot be, nothing is
    /// done and `false` returned: it is [posted](Self::accept) and [sent](Self::transmit) as all others are.
    #[inline]
    pub fn post_short(
        &mut self,
        now: Instant,
        wr: &ShortSend<'_>,
        mrs: &MrTable,
        completions: &mut impl CompletionSink,
        send: impl FnOnce(&[u8], &Train) -> bool,
    ) -> bool {
        let is_next = self.send.is_idle() && !self.send.pacer.is_limited() && !self.has_output();
        is_next
            && self
                .try_post_short(now, wr, mrs, completions, send)
                .is_some()
    }

    #[inline]
    fn try_post_short(
        &mut self,
        now: Instant,
        wr: &ShortSend<'_>,
        mrs: &MrTable,
        completions: &mut impl CompletionSink,
        send: impl FnOnce(&[u8], &Train) -> bool,
    ) -> Option<()> {
        let length = wr.data.length().filter(|length| *length <= LONGEST)?;
        let path = wr.route.path_kind();
        let room = self.shim.mulpdu(path, wr.route.limit(now));
        let ulpdu_len = untagged::LEN + length as usize;
        if ulpdu_len > usize::from(room) || !self.shim.gathers() {
            return None;
        }
        let segment = Segmenter::new(length).peek(length)?;
        let prefix = Prefix::new(self.send.numbering.next_send(wr.qkey, wr.solicited), None);
        let staging = &mut self.send.short;
        if staging.len() != DATAGRAM {
            staging.resize(DATAGRAM, 0);
        }
        let mut builder = TrainBuilder::new(&mut self.shim, wr.peer, path, staging);
        match wr.data {
            ShortData::Inline(octets) => {
                let Ok(()) = stage(&prefix, segment, &mut builder, |dst| {
                    dst.copy_from_slice(octets);
                    Ok::<_, Infallible>(())
                });
            }
            ShortData::Sge(sge) => {
                let view = mrs.view_local();
                let slice = view.resident(self.config.pd, sge)?;
                let Ok(()) = stage(&prefix, segment, &mut builder, |dst| {
                    slice.copy_to(dst);
                    Ok::<_, Infallible>(())
                });
            }
        }
        let train = builder.finish();
        if !send(&self.send.short[..train.octets()], &train) {
            return None;
        }
        self.send.numbering.took_send();
        self.counters.count_sent(1, length.into());
        // First, so that a thread that sees the completion finds the place free.
        completions.retired();
        if wr.signaled {
            completions.sent(Wc {
                byte_len: length,
                ..Wc::new(wr.wr_id, WcOpcode::Send, self.config.qpn.into())
            });
        }
        Some(())
    }
}
