//! The lower layer of a connected QP: ULPDUs go in and come out; between them is what the connection carries.

use std::time::Instant;

use dgiwarp_codec::Payload;
use dgiwarp_llp_tcp_mpa::{Connection, Error, Event, Negotiation, SendError, TcpEnd};

#[cfg(test)]
use super::tests::memory_llp::MemoryLlp;

/// A lower layer in full operation: its startup comes before there is an engine.
#[derive(Debug)]
#[cfg_attr(
    test,
    expect(clippy::large_enum_variant, reason = "tests have few engines")
)]
pub enum Llp {
    /// MPA, on the octet stream of TCP.
    Mpa(Connection),
    /// Whole ULPDUs, without framing, CRC or startup.
    #[cfg(test)]
    Memory(MemoryLlp),
}

impl From<Connection> for Llp {
    fn from(mpa: Connection) -> Self {
        Self::Mpa(mpa)
    }
}

/// End of a lower layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LlpEvent {
    /// The peer closed its half between two ULPDUs.
    PeerClosed,
    /// No ULPDU is received any more.
    Failed(Error),
}

macro_rules! each {
    ($self:expr, $llp:ident => $does:expr) => {
        match $self {
            Self::Mpa($llp) => $does,
            #[cfg(test)]
            Self::Memory($llp) => $does,
        }
    };
}

impl Llp {
    /// Outcome of the startup.
    pub(super) fn negotiation(&self) -> Option<&Negotiation> {
        each!(self, llp => llp.negotiation())
    }

    /// Takes octets from the front of `input`, and returns the next ULPDU if one is complete.
    #[inline]
    pub(super) fn handle_input<'s, 'b: 's>(
        &'s mut self,
        now: Instant,
        input: &mut &'b [u8],
    ) -> Option<&'s [u8]> {
        each!(self, llp => llp.handle_input(now, input))
    }

    /// Where the next octets of the stream go, possibly nowhere, and the octets of up to `most` that should be read behind them.
    #[inline]
    pub(super) fn input_room(&mut self, most: usize) -> (&mut [u8], usize) {
        match self {
            Self::Mpa(mpa) => match mpa.deframer() {
                Some(deframer) => {
                    let behind = deframer.good_length(most);
                    (deframer.room(), behind)
                }
                None => (&mut [], most),
            },
            #[cfg(test)]
            Self::Memory(_) => (&mut [], most),
        }
    }

    /// The first `len` octets of [`input_room`](Self::input_room) have arrived.
    #[inline]
    pub(super) fn input_placed(&mut self, len: usize) {
        match self {
            Self::Mpa(mpa) => {
                if let Some(deframer) = mpa.deframer() {
                    deframer.filled(len);
                }
            }
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Whether [`handle_input`](Self::handle_input) has a ULPDU even without input.
    #[inline]
    pub(super) fn has_complete_input(&mut self) -> bool {
        match self {
            Self::Mpa(mpa) => mpa
                .deframer()
                .is_some_and(|deframer| deframer.is_complete()),
            #[cfg(test)]
            Self::Memory(_) => false,
        }
    }

    /// Gives memory for an unfinished ULPDU. Returns it if it is not needed.
    #[inline]
    pub(super) fn lend_input(&mut self, memory: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Mpa(mpa) => match mpa.deframer() {
                Some(deframer) => deframer.lend(memory),
                None => memory,
            },
            #[cfg(test)]
            Self::Memory(_) => memory,
        }
    }

    /// Gives the memory back, if no ULPDU is unfinished.
    #[inline]
    pub(super) fn reclaim_input(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Mpa(mpa) => mpa.deframer()?.reclaim(),
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// Octets that were moved because they ended an input inside a ULPDU.
    pub(super) fn octets_kept(&self) -> u64 {
        each!(self, llp => llp.octets_kept())
    }

    /// The peer's half of the connection, or all of it, has ended.
    pub(super) fn handle_end(&mut self, now: Instant, end: TcpEnd) {
        each!(self, llp => llp.handle_end(now, end));
    }

    /// How the lower layer ended, once.
    pub(super) fn poll_event(&mut self) -> Option<LlpEvent> {
        match self {
            Self::Mpa(mpa) => loop {
                match mpa.poll_event()? {
                    Event::PeerClosed => return Some(LlpEvent::PeerClosed),
                    Event::Failed(error) => return Some(LlpEvent::Failed(error)),
                    // Events of the startup, which is over.
                    Event::Request(_) | Event::Established(_) | Event::Rejected(_) => {}
                }
            },
            #[cfg(test)]
            Self::Memory(memory) => memory.poll_event(),
        }
    }

    /// Whether a ULPDU may be sent now.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        each!(self, llp => llp.may_send())
    }

    /// The largest ULPDU that may be sent now, octets.
    #[inline]
    pub(super) fn mulpdu(&self) -> u16 {
        each!(self, llp => llp.mulpdu())
    }

    /// Sets TCP's effective maximum segment size, octets, and the MULPDU to use whatever that is, if one was chosen.
    pub(super) fn follow_path(&mut self, emss: u16, chosen: Option<u16>) {
        match self {
            Self::Mpa(mpa) => {
                mpa.set_emss(emss);
                mpa.choose_mulpdu(chosen);
            }
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// ULPDUs that are sent from now on have no checksum: they stay in the memory of one host.
    #[inline]
    pub(super) fn omit_sent_checksum(&mut self) {
        match self {
            Self::Mpa(mpa) => mpa.omit_sent_crc(),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// ULPDUs that begin from now on have no checksum.
    #[inline]
    pub(super) fn omit_received_checksum(&mut self) {
        match self {
            Self::Mpa(mpa) => mpa.omit_received_crc(),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Whether FPDUs that are sent now have neither CRC nor Markers, and none is left to transmit.
    #[inline]
    pub(super) fn sends_bare(&self) -> bool {
        match self {
            Self::Mpa(mpa) => mpa.sends_bare(),
            #[cfg(test)]
            Self::Memory(_) => false,
        }
    }

    /// Whether the next octets of the stream begin an FPDU without CRC and Markers.
    #[inline]
    pub(super) fn receives_bare(&self) -> bool {
        match self {
            Self::Mpa(mpa) => mpa.receives_bare(),
            #[cfg(test)]
            Self::Memory(_) => false,
        }
    }

    /// Sends a ULPDU, whose octets are copied, each loaded once.
    #[inline]
    pub(super) fn send_ulpdu<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
    ) -> Result<(), SendError> {
        each!(self, llp => llp.send_ulpdu(header, payload))
    }

    /// Whether payload may leave from where it lies ([`send_ulpdu_around`](Self::send_ulpdu_around)).
    #[inline]
    pub(super) fn is_zero_copy(&self) -> bool {
        each!(self, llp => llp.leaves_payload_whole())
    }

    /// Sends a ULPDU whose payload stays where it lies. Returns the octets of [`poll_transmit`](Self::poll_transmit) that come before the payload.
    /// The caller inserts the payload on the way to TCP or with [`open`](Self::open), or takes the ULPDU back.
    ///
    /// # Panics
    /// Where payload cannot leave from where it lies.
    pub(super) fn send_ulpdu_around<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
    ) -> Result<usize, SendError> {
        each!(self, llp => llp.send_ulpdu_around(header, payload))
    }

    /// Room for `len` octets behind the first `at` of [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Panics
    /// As [`send_ulpdu_around`](Self::send_ulpdu_around).
    pub(super) fn open(&mut self, at: usize, len: usize) -> &mut [u8] {
        each!(self, llp => llp.open(at, len))
    }

    /// Takes back the last ULPDUs of which TCP took nothing, so that `len` octets are left to transmit.
    ///
    /// # Panics
    /// As [`send_ulpdu_around`](Self::send_ulpdu_around).
    pub(super) fn take_back(&mut self, len: usize) {
        each!(self, llp => llp.take_back(len));
    }

    /// The octets to transmit next; empty if none are left.
    #[inline]
    pub(super) fn poll_transmit(&self, now: Instant) -> &[u8] {
        each!(self, llp => llp.poll_transmit(now))
    }

    /// Octets that are left to transmit, framing included.
    #[inline]
    pub(super) fn untransmitted(&self, now: Instant) -> usize {
        match self {
            Self::Mpa(mpa) => mpa.poll_transmit(now).len(),
            #[cfg(test)]
            Self::Memory(memory) => memory.untransmitted(),
        }
    }

    /// Whether no octets are left to transmit.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        each!(self, llp => llp.is_drained())
    }

    /// The first `len` octets of [`poll_transmit`](Self::poll_transmit) were transmitted.
    #[inline]
    pub(super) fn transmitted(&mut self, len: usize) {
        each!(self, llp => llp.transmitted(len));
    }

    /// Gives room for ULPDUs that are sent from now on. Returns room that is not needed.
    pub(super) fn lend(&mut self, room: Vec<u8>) -> Vec<u8> {
        each!(self, llp => llp.lend(room))
    }

    /// Gives the room back, if nothing is left to transmit.
    pub(super) fn reclaim(&mut self) -> Option<Vec<u8>> {
        each!(self, llp => llp.reclaim())
    }

    /// Makes room for `octets` more octets, for callers that must not allocate while they send ULPDUs.
    #[inline]
    pub(super) fn reserve(&mut self, octets: usize) {
        each!(self, llp => llp.reserve(octets));
    }
}
