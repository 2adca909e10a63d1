//! A second shim, for tests of what stands above and below: nothing that may protect data.
//!
//! ```text
//!   0        1          5                       n - 8
//!  +--------+----------+-----------------------+----------------+
//!  | 0x3d   | sequence | segment, scrambled    | keyed checksum |
//!  +--------+----------+-----------------------+----------------+
//! ```
//!
//! Segments are scrambled, so that they cannot leave from where they lie and are opened into memory of the shim; datagrams are
//! numbered; and the highest number of each peer is acknowledged by a datagram of the shim's own (0x39) some time later.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dgiwarp_codec::{Payload, PayloadSlice, crc};

use super::{OpenError, Opened, Overhead, format_of};
use crate::{Format, Peer, UnknownFormat};

const HEAD: usize = 5;
const TAIL: usize = 8;
/// First octets: formats 15 and 14, which are unassigned, and DV.
const DATA: u8 = 0x3d;
const ACK: u8 = 0x39;
/// Acknowledgements wait this long for more to acknowledge.
const ACK_DELAY: Duration = Duration::from_millis(5);

pub(super) const OVERHEAD: Overhead = Overhead {
    head: HEAD,
    tail: TAIL,
};

/// State of the test shim.
#[derive(Debug)]
pub struct Keyed {
    key: u64,
    /// Sequence number of the next datagram.
    next: u32,
    peers: BTreeMap<SocketAddr, PeerState>,
    /// Plain text of the latest datagram that was opened.
    opened: Vec<u8>,
    /// Acknowledgements that are due.
    acks: VecDeque<(SocketAddr, u32)>,
}

#[derive(Debug, Default)]
struct PeerState {
    /// Highest number that was received and not acknowledged, and when it is to be.
    received: Option<(u32, Instant)>,
    /// Highest number that was sent and acknowledged.
    acknowledged: Option<u32>,
}

impl Keyed {
    pub(super) fn new(key: u64) -> Self {
        Self {
            key,
            next: 0,
            peers: BTreeMap::new(),
            opened: Vec::new(),
            acks: VecDeque::new(),
        }
    }

    /// Highest sequence number that `peer` acknowledged.
    #[must_use]
    pub fn acknowledged(&self, peer: Peer) -> Option<u32> {
        let address = peer.socket_addr()?;
        self.peers.get(&address)?.acknowledged
    }

    fn check(&self, octets: &[u8]) -> [u8; TAIL] {
        let [low, high] = [0, 1].map(|half: u64| {
            let seed = crc::crc32c(&(self.key ^ half).to_be_bytes());
            crc::crc32c_append(seed, octets)
        });
        ((u64::from(high) << 32) + u64::from(low)).to_be_bytes()
    }

    fn scramble(&self, sequence: [u8; 4], segment: &mut [u8]) {
        let pad = self.key.to_be_bytes();
        for (position, octet) in segment.iter_mut().enumerate() {
            *octet ^= pad[position % 8] ^ sequence[position % 4];
        }
    }

    pub(super) fn seal(&mut self, _peer: Peer, format: Format, datagram: &mut [u8]) {
        let (octets, trailer) = datagram
            .split_last_chunk_mut::<TAIL>()
            .expect("the caller left room for the checksum");
        let sequence = self.next.to_be_bytes();
        self.next = self.next.wrapping_add(1);
        octets[0] = DATA;
        octets[1..HEAD].copy_from_slice(&sequence);
        octets[HEAD] = format.emit(octets[HEAD]);
        self.scramble(sequence, &mut octets[HEAD..]);
        *trailer = self.check(octets);
    }

    pub(super) fn open<'a, P: Payload + ?Sized>(
        &'a mut self,
        now: Instant,
        from: Peer,
        datagram: PayloadSlice<'a, P>,
    ) -> Result<Opened<'a, P>, OpenError> {
        let (covered, trailer) = datagram
            .split_last::<TAIL>()
            .filter(|(covered, _)| covered.len() >= HEAD)
            .ok_or(OpenError::TooShort(datagram.len()))?;
        self.opened.resize(covered.len(), 0);
        covered.copy(0, &mut self.opened);
        let computed = self.check(&self.opened);
        if computed != trailer {
            let [found, computed] =
                [trailer, computed].map(|[.., a, b, c, d]| u32::from_be_bytes([a, b, c, d]));
            return Err(OpenError::Mismatch { found, computed });
        }
        let [kind, a, b, c, d, ..] = self.opened[..] else {
            return Err(OpenError::TooShort(datagram.len()));
        };
        let sequence = [a, b, c, d];
        let number = u32::from_be_bytes(sequence);
        let Some(address) = from.socket_addr() else {
            return Ok(Opened::Consumed);
        };
        let peer = self.peers.entry(address).or_default();
        match kind {
            DATA => {
                let (highest, due) = peer.received.unwrap_or((number, now + ACK_DELAY));
                peer.received = Some((highest.max(number), due));
            }
            ACK => {
                peer.acknowledged = peer.acknowledged.max(Some(number));
                return Ok(Opened::Consumed);
            }
            other => return Err(UnknownFormat(other >> 2 & 0xf).into()),
        }
        let mut opened = std::mem::take(&mut self.opened);
        self.scramble(sequence, &mut opened[HEAD..]);
        self.opened = opened;
        let segment = PayloadSlice::new(&self.opened[HEAD..]);
        Ok(Opened::Decrypted(
            format_of(datagram.len(), segment)?,
            segment,
        ))
    }

    pub(super) fn has_transmit(&self) -> bool {
        !self.acks.is_empty()
    }

    pub(super) fn poll_transmit(&mut self, datagram: &mut Vec<u8>) -> Option<Peer> {
        let (address, number) = self.acks.pop_front()?;
        datagram.clear();
        datagram.push(ACK);
        datagram.extend(number.to_be_bytes());
        let check = self.check(datagram);
        datagram.extend(check);
        Some(Peer::ip(address))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let received = self.peers.values().filter_map(|state| state.received);
        received.map(|(_, due)| due).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for (address, state) in &mut self.peers {
            if let Some((number, _)) = state.received.take_if(|(_, due)| *due <= now) {
                self.acks.push_back((*address, number));
            }
        }
    }
}
