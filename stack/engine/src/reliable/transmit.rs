//! Datagrams that leave.

use std::time::Instant;

use dgiwarp_llp_udp::Train;

use super::responder::Responder;
use super::{DatagramSink, RdEngine};
use crate::cq_ring::CompletionSink;
use crate::datagram::{SendOutcome, Transmitted};
use crate::recv_queue::Tables;

impl RdEngine {
    /// Hands datagrams to the network until none may leave, it is full, or `budget` went out.
    pub fn transmit(
        &mut self,
        now: Instant,
        budget: usize,
        tables: Tables<'_>,
        sink: &mut impl DatagramSink,
        completions: &mut impl CompletionSink,
    ) -> Transmitted {
        self.post(now, tables, completions);
        self.inbound.grant(tables.recv_queue, &mut self.endpoint);
        let outbound = &self.outbound;
        self.responder
            .find_paths(now, tables.mrs, &mut self.endpoint, |peer| {
                sink.path(peer, outbound.source(peer))
            });
        let mut budget = budget;
        while budget > 0 {
            if self.output.peer.is_none() && !self.fill(now, tables, completions) {
                return Transmitted::All;
            }
            let output = &self.output;
            let Some(peer) = output.peer else {
                return Transmitted::All;
            };
            let count = output.train.len();
            let from = self.outbound.source(peer);
            match sink.send(peer, from, &output.octets, &output.train) {
                SendOutcome::Sent => {
                    let octets = output.octets.len() as u64;
                    self.counters.count_sent(count, octets);
                }
                SendOutcome::WouldBlock => return Transmitted::Blocked,
                // They count as lost.
                SendOutcome::TooBig | SendOutcome::Failed(_) => self.counters.count_send_error(),
            }
            self.output.peer = None;
            budget = budget.saturating_sub(count);
        }
        Transmitted::Budget
    }

    /// Makes the next train: datagrams to one peer, as many as may leave now. Returns whether there is one.
    fn fill(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> bool {
        self.output.octets.clear();
        self.output.train = Train::new();
        if let Some((peer, datagram)) = self.output.next.take() {
            self.output.octets.extend(&datagram);
            self.output.train.add(datagram.len());
            self.output.peer = Some(peer);
        }
        loop {
            let Self {
                endpoint,
                outbound,
                responder,
                output,
                ..
            } = self;
            let before = output.octets.len();
            let made = endpoint.poll_transmit(
                now,
                &mut output.octets,
                &mut |peer, token, header, segment| {
                    if Responder::owns(token) {
                        responder.write(tables.mrs, token, header, segment);
                    } else {
                        outbound.write(tables.mrs, peer, token, header, segment);
                    }
                },
            );
            if self.end_broken(now, completions) {
                // Its octets are gone: the datagram is not sent, and counts as lost.
                self.output.octets.truncate(before);
                self.handle_events(now, tables, completions);
                continue;
            }
            let Some(peer) = made else {
                self.handle_events(now, tables, completions);
                return self.output.peer.is_some();
            };
            let output = &mut self.output;
            let length = output.octets.len() - before;
            if output.peer.is_none() {
                output.peer = Some(peer);
            } else if output.peer != Some(peer) || !output.train.accepts(length) {
                output.next = Some((peer, output.octets.split_off(before)));
                return true;
            }
            output.train.add(length);
            // The next one, of any length, is not made where it cannot join.
            if !output.train.accepts(output.train.datagram()) {
                return true;
            }
        }
    }
}
