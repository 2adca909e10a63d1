//! A capture file as the streams of its TCP connections.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Both directions of a TCP connection. The initiator is the end that connected.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) from_initiator: Vec<u8>,
    pub(crate) from_responder: Vec<u8>,
}

/// One direction while it is put together.
#[derive(Debug)]
struct Direction {
    /// Sequence number of the first octet.
    first: u32,
    /// Payloads by their distance from the first octet.
    pieces: BTreeMap<u32, Vec<u8>>,
}

impl Direction {
    fn assemble(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (&at, piece) in &self.pieces {
            let at = usize::try_from(at).unwrap();
            assert!(
                at <= bytes.len(),
                "octets {} to {at} were not captured",
                bytes.len()
            );
            let known = (bytes.len() - at).min(piece.len());
            assert_eq!(
                bytes[at..at + known],
                piece[..known],
                "a retransmission differs"
            );
            bytes.extend_from_slice(&piece[known..]);
        }
        bytes
    }
}

/// The connections of a file in the order of their SYNs.
pub(crate) fn streams(path: &Path) -> Vec<Stream> {
    let file = std::fs::read(path).unwrap();
    let mut order = Vec::new();
    let mut directions = BTreeMap::<(SocketAddr, SocketAddr), Direction>::new();
    for packet in packets(&file) {
        let sliced = SlicedPacket::from_ethernet(packet).unwrap();
        let (from, to) = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => (
                IpAddr::from(ip.header().source_addr()),
                IpAddr::from(ip.header().destination_addr()),
            ),
            Some(NetSlice::Ipv6(ip)) => (
                IpAddr::from(ip.header().source_addr()),
                IpAddr::from(ip.header().destination_addr()),
            ),
            _ => continue,
        };
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            continue;
        };
        let key = (
            SocketAddr::new(from, tcp.source_port()),
            SocketAddr::new(to, tcp.destination_port()),
        );
        if tcp.syn() {
            let first = tcp.sequence_number().wrapping_add(1);
            directions.insert(
                key,
                Direction {
                    first,
                    pieces: BTreeMap::new(),
                },
            );
            if !tcp.ack() {
                order.push(key);
            }
            continue;
        }
        if !tcp.payload().is_empty() {
            let direction = directions.get_mut(&key).expect("the SYN was captured");
            let at = tcp.sequence_number().wrapping_sub(direction.first);
            direction
                .pieces
                .entry(at)
                .or_insert_with(|| tcp.payload().to_vec());
        }
    }
    let side = |key| {
        directions
            .get(&key)
            .map(Direction::assemble)
            .unwrap_or_default()
    };
    order
        .into_iter()
        .map(|(client, server)| Stream {
            from_initiator: side((client, server)),
            from_responder: side((server, client)),
        })
        .collect()
}

/// The packets of a classic pcap file, little endian, link type Ethernet.
fn packets(file: &[u8]) -> Vec<&[u8]> {
    const FILE_HEADER: usize = 24;
    const PACKET_HEADER: usize = 16;
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(file, 0), 0xa1b2_c3d4, "a pcap file");
    assert_eq!(word(file, 20), 1, "of Ethernet");
    let mut packets = Vec::new();
    let mut rest = &file[FILE_HEADER..];
    while !rest.is_empty() {
        let (header, data) = rest.split_at(PACKET_HEADER);
        let (captured, original) = (word(header, 8), word(header, 12));
        assert_eq!(captured, original, "packets are whole");
        let (packet, later) = data.split_at(usize::try_from(captured).unwrap());
        packets.push(packet);
        rest = later;
    }
    packets
}
