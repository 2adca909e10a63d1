//! Items of a message that is to be sent: inside of it, written or offered.

use std::collections::VecDeque;
use std::sync::Arc;

use dgiwarp::Access;

use super::super::peer::{Out, Piece, Registered, Subject, pieces};
use super::super::state::{Connection, Then};
use super::inside::short;
use crate::engine::urgency::Urgency;
use crate::engine::windows::Granted;
use crate::memory::Pool;
use crate::payload::{Item, Payload};
use crate::status::{Code, Status};
use crate::wire::message::{Body, Kind, Message, WireItem, overhead};

/// A body whose long items are written or offered.
pub(crate) struct Lowered {
    pub(crate) body: Body,
    pieces: VecDeque<Piece>,
    memory: Vec<Registered>,
}

impl Lowered {
    pub(crate) fn text(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(200)];
        Self {
            body: Body {
                items: vec![WireItem::Inline(text.into())],
                ..Body::default()
            },
            pieces: VecDeque::new(),
            memory: Vec::new(),
        }
    }

    /// Queues the message before all others of its urgency, or behind its transfer.
    pub(crate) fn send(
        self,
        peer: &mut Connection,
        number: u64,
        urgency: Urgency,
        kind: impl FnOnce(Body) -> Kind,
    ) {
        let message = Message {
            number,
            credit: 0,
            kind: kind(self.body),
        };
        if self.pieces.is_empty() {
            peer.outbox.put_back(urgency, Out::Ready(message));
        } else {
            peer.transfer(urgency, self.pieces, self.memory, Then::Post(message));
            peer.outbox.sent(urgency);
        }
    }
}

/// Makes the items of a payload those of a message: inline as far as they fit, else written into windows, else offered.
pub(crate) fn lower(
    peer: &mut Connection,
    pool: &Arc<Pool>,
    subject: Subject,
    payload: &Payload,
    windows: usize,
    granted: &mut Granted,
) -> Result<Lowered, Status> {
    let metadata = payload.metadata.emit();
    let fixed = overhead(windows, payload.items.len(), metadata.len());
    let mut room = peer.longest.saturating_sub(fixed);
    let mut lowered = Lowered {
        body: Body {
            metadata,
            ..Body::default()
        },
        pieces: VecDeque::new(),
        memory: Vec::new(),
    };
    let no_memory = |_| Status::new(Code::ResourceExhausted, "no memory for a long item");
    let no_region = |_| Status::new(Code::ResourceExhausted, "memory cannot be registered");
    for item in &payload.items {
        if peer.seals_all() {
            let octets = short(item, room)?;
            room -= octets.len();
            lowered.body.items.push(WireItem::Inline(octets));
            continue;
        }
        let block = match item {
            Item::Short(octets) if octets.len() <= room => {
                room -= octets.len();
                lowered.body.items.push(WireItem::Inline(octets.clone()));
                continue;
            }
            Item::Short(octets) => {
                let block = pool.block(octets.len()).map_err(no_memory)?;
                // It was made for them.
                let _ = block.write(0, octets);
                block
            }
            Item::Long(block) if block.is_empty() => {
                lowered.body.items.push(WireItem::Inline(Vec::new()));
                continue;
            }
            Item::Long(block) => block.clone(),
        };
        let length = block.len();
        if let Some(window) = granted.take(length as u64) {
            let memory = peer.register(block, Access::empty()).map_err(no_region)?;
            let index = lowered.memory.len();
            lowered.memory.push(memory);
            let writes = pieces(index, length, window.key, window.address, true);
            lowered.pieces.extend(writes);
            lowered.body.items.push(WireItem::Written {
                window: window.number,
                length: length as u64,
            });
        } else {
            let memory = peer
                .register(block, Access::REMOTE_READ)
                .map_err(no_region)?;
            lowered.body.items.push(WireItem::Offered {
                key: memory.mr.rkey(),
                address: memory.mr.addr(),
                length: length as u64,
            });
            peer.offers.entry(subject).or_default().push(memory);
        }
    }
    Ok(lowered)
}
