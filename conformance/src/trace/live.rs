//! Rules of a sender for a conversation of the tester's own: its octets are all there, so only what the device sent is judged.

use std::net::SocketAddr;

use super::capture::packet::Tcp;
use super::connection::Connection;
use super::datagram::{Datagrams, Route};
use super::{Finding, Item, Out, What, rules};
use crate::recording::{Conversation, Way};

/// Index of the tester's end, and of the device's.
const OURS: usize = 0;
const THEIRS: usize = 1;

/// Findings about the device in these conversations, in order; each with the number of its conversation, from 1.
#[must_use]
pub fn judge(conversations: &[Conversation]) -> Vec<(u64, Finding)> {
    let mut found = Vec::new();
    let mut datagrams = Datagrams::default();
    for (number, conversation) in (1..).zip(conversations) {
        if conversation.datagrams {
            datagrams_of(&mut datagrams, number, conversation, &mut found);
        } else {
            connection(number, conversation, &mut found);
        }
    }
    found
}

fn connection(number: u64, conversation: &Conversation, found: &mut Vec<(u64, Finding)>) {
    let ends = [conversation.ours, conversation.theirs];
    let mut sink = |item: &Item<'_>| {
        if let What::Finding(finding) = item.what
            && item.from == ends[THEIRS]
        {
            found.push((number, finding.clone()));
        }
    };
    let mut out = Out {
        packet: 0,
        at: 0,
        ends,
        connection: number,
        sink: &mut sink,
    };
    let mut connection = Connection::new(number);
    let initiator = if conversation.we_connected {
        OURS
    } else {
        THEIRS
    };
    for (way, acknowledged) in [(initiator, None), (1 - initiator, Some(1))] {
        let syn = Tcp {
            sequence: 0,
            acknowledged,
            syn: true,
            fin: false,
            rst: false,
            mss: None,
            payload: &[],
        };
        connection.take(way, &syn, &mut out);
    }
    let mut next = [1_u32; 2];
    let mut over = [false; 2];
    for piece in &conversation.pieces {
        let (way, acknowledged) = match piece.way {
            Way::Sent => (OURS, next[THEIRS]),
            // The device may have had all that was sent before.
            Way::Received => (THEIRS, next[OURS]),
        };
        if over[way] {
            continue;
        }
        over[way] = piece.octets.is_empty();
        let segment = Tcp {
            sequence: next[way],
            acknowledged: Some(acknowledged),
            syn: false,
            fin: piece.octets.is_empty(),
            rst: false,
            mss: None,
            payload: &piece.octets,
        };
        connection.take(way, &segment, &mut out);
        let length = u32::try_from(piece.octets.len()).unwrap_or(0);
        next[way] = next[way].wrapping_add(length);
    }
    connection.finish(&mut out);
    if let Some(time) = conversation.left_open {
        let detail = format!("TCP was open still {} ms later", time.as_millis());
        out.finding(THEIRS, rules::TERMINATE_END, detail, &[]);
    }
}

fn datagrams_of(
    datagrams: &mut Datagrams,
    number: u64,
    conversation: &Conversation,
    found: &mut Vec<(u64, Finding)>,
) {
    datagrams.expect(conversation.theirs);
    for piece in &conversation.pieces {
        let (from, to): (SocketAddr, SocketAddr) = match piece.way {
            Way::Sent => (conversation.ours, conversation.theirs),
            Way::Received => (conversation.theirs, conversation.ours),
        };
        // The tester's socket does not say how a datagram was sent.
        let route = Route {
            from,
            to,
            whole_only: true,
            no_checksum: false,
        };
        datagrams.take(route, &piece.octets, None, &mut |seen, broken| {
            if piece.way == Way::Sent {
                return;
            }
            for (rule, detail) in broken {
                let octets = seen.octets.iter().take(super::EVIDENCE).copied().collect();
                found.push((
                    number,
                    Finding {
                        rule,
                        detail,
                        octets,
                    },
                ));
            }
        });
    }
}
