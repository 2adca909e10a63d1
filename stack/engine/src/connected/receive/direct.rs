//! Direct placement: segments of messages go from memory that the peer shares to the program's, without a copy between.

use dgiwarp_llp_tcp_mpa::framing::bare;
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::stream::{Handled, MessageHeader};

use crate::connected::engine::RcEngine;
use crate::connected::ulp::Ulp;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;

/// The front of an FPDU whose payload may be placed directly.
#[derive(Debug, Clone, Copy)]
pub struct DirectFront {
    header: MessageHeader,
    /// Offset of the payload in the FPDU.
    pub at: usize,
    /// Octets of the payload.
    pub payload_len: usize,
    /// Octets of the FPDU.
    pub fpdu_len: usize,
}

/// Result of handling such an FPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectInput {
    /// Its segment was placed.
    Placed,
    /// So was that of an answer to this end: work requests that wait for it may leave now.
    Answered,
    /// The connection has ended.
    Ended,
    /// Nothing has happened: it is for [`handle_input`](RcEngine::handle_input).
    Other,
}

impl DirectFront {
    /// Parses the first octets of an FPDU without CRC and Markers. `None` where the whole FPDU is for
    /// [`handle_input`](RcEngine::handle_input).
    #[must_use]
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let (front, ulpdu_len) = bare::front(octets)?;
        let header = MessageHeader::parse(front, ulpdu_len)?;
        Some(Self {
            header,
            at: bare::LENGTH_LEN + header.len(),
            payload_len: ulpdu_len - header.len(),
            fpdu_len: bare::fpdu_len(ulpdu_len),
        })
    }
}

impl RcEngine {
    /// Handles an FPDU at the front of the stream, where [short input](crate::connected::CheckedEngine::takes_short_input) is taken. `payload` is where its payload lies.
    #[inline]
    pub fn handle_direct_input<P: Placeable + ?Sized>(
        &mut self,
        front: &DirectFront,
        payload: &P,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> DirectInput {
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
        let result = self
            .stream
            .handle_message_segment(&front.header, payload, &mut ulp);
        let blamed = ulp.failed;
        if result == Ok(Handled::ReceiverNotReady) {
            return DirectInput::Other;
        }
        self.counters
            .count_received(front.header.len() + front.payload_len);
        match result {
            Ok(_) if front.header.is_answer() => {
                self.complete_sends(completions);
                DirectInput::Answered
            }
            Ok(_) => DirectInput::Placed,
            Err(error) => {
                self.fail((error, blamed), tables, completions);
                DirectInput::Ended
            }
        }
    }
}
