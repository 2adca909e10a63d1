//! A lower layer in memory: each call of `poll_transmit` shows one ULPDU, each input is one.

use std::collections::VecDeque;
use std::time::Instant;

use dgiwarp_codec::Payload;
use dgiwarp_llp_tcp_mpa::{Error, Negotiation, SendError, TcpEnd};

use super::super::llp::LlpEvent;

const MULPDU: u16 = 1460;

/// One end of it. ULPDUs are taken whole or not at all.
#[derive(Debug)]
#[expect(
    unnameable_types,
    reason = "tests make it, and the engine's own type holds it"
)]
pub struct MemoryLlp {
    negotiation: Negotiation,
    outgoing: VecDeque<Vec<u8>>,
    event: Option<LlpEvent>,
}

impl MemoryLlp {
    pub(super) const fn new(negotiation: Negotiation) -> Self {
        Self {
            negotiation,
            outgoing: VecDeque::new(),
            event: None,
        }
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "MPA's has one in full operation only"
    )]
    pub(in super::super) const fn negotiation(&self) -> Option<&Negotiation> {
        Some(&self.negotiation)
    }

    #[expect(clippy::unused_self, reason = "MPA keeps what is unfinished")]
    pub(in super::super) fn handle_input<'b>(
        &mut self,
        _now: Instant,
        input: &mut &'b [u8],
    ) -> Option<&'b [u8]> {
        Some(std::mem::take(input))
    }

    pub(in super::super) const fn handle_end(&mut self, _now: Instant, end: TcpEnd) {
        self.event = Some(match end {
            TcpEnd::Fin => LlpEvent::PeerClosed,
            TcpEnd::Lost => LlpEvent::Failed(Error::TcpLost),
        });
    }

    pub(in super::super) const fn poll_event(&mut self) -> Option<LlpEvent> {
        self.event.take()
    }

    #[expect(clippy::unused_self, reason = "a Responder of MPA may not send first")]
    pub(in super::super) const fn may_send(&self) -> bool {
        true
    }

    #[expect(clippy::unused_self, reason = "MPA's follows the path")]
    pub(in super::super) const fn mulpdu(&self) -> u16 {
        MULPDU
    }

    pub(in super::super) fn send_ulpdu<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
    ) -> Result<(), SendError> {
        let len = header.len() + payload.len();
        if len > usize::from(MULPDU) {
            return Err(SendError::TooLong {
                len,
                mulpdu: MULPDU,
            });
        }
        let mut ulpdu = vec![0; len];
        let (start, rest) = ulpdu.split_at_mut(header.len());
        start.copy_from_slice(header);
        payload.copy(0, rest);
        self.outgoing.push_back(ulpdu);
        Ok(())
    }

    pub(in super::super) fn poll_transmit(&self, _now: Instant) -> &[u8] {
        self.outgoing.front().map_or(&[], Vec::as_slice)
    }

    pub(in super::super) fn untransmitted(&self) -> usize {
        self.outgoing.iter().map(Vec::len).sum()
    }

    pub(in super::super) fn is_drained(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(in super::super) fn transmitted(&mut self, len: usize) {
        let taken = self.outgoing.pop_front().map_or(0, |ulpdu| ulpdu.len());
        assert_eq!(taken, len, "a ULPDU is taken whole");
    }

    #[expect(clippy::unused_self, reason = "MPA moves octets of unfinished FPDUs")]
    pub(in super::super) const fn octets_kept(&self) -> u64 {
        0
    }

    /// Every ULPDU is copied.
    #[expect(clippy::unused_self, reason = "MPA's depends on Markers")]
    pub(in super::super) const fn leaves_payload_whole(&self) -> bool {
        false
    }

    pub(in super::super) fn send_ulpdu_around<P: Payload + ?Sized>(
        &mut self,
        _header: &[u8],
        _payload: &P,
    ) -> Result<usize, SendError> {
        unreachable!("every ULPDU is copied")
    }

    pub(in super::super) fn open(&mut self, _at: usize, _len: usize) -> &mut [u8] {
        unreachable!("every ULPDU is copied")
    }

    pub(in super::super) fn take_back(&mut self, _len: usize) {
        unreachable!("every ULPDU is copied")
    }

    #[expect(clippy::unused_self, reason = "ULPDUs have memory of their own")]
    pub(in super::super) fn lend(&mut self, room: Vec<u8>) -> Vec<u8> {
        room
    }

    #[expect(clippy::unused_self, reason = "ULPDUs have memory of their own")]
    pub(in super::super) const fn reclaim(&mut self) -> Option<Vec<u8>> {
        None
    }

    #[expect(clippy::unused_self, reason = "ULPDUs have memory of their own")]
    pub(in super::super) const fn reserve(&mut self, _octets: usize) {}
}
