//! Datagrams of other tests: attempts to connect query the UDP port with the number of a listener's TCP port, and any socket
//! of a test that runs meanwhile may have that UDP port.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use dgiwarp::{DropReason, QpCounters};

use super::crc32c;

/// Reason for which a datagram queue pair drops a port query.
pub(crate) const STRANGE: DropReason = DropReason::UnknownFormat;

/// Datagrams that a queue pair dropped, but for those of strangers.
pub(crate) fn dropped(counters: &QpCounters) -> u64 {
    counters.dropped_in_all() - counters.dropped(STRANGE)
}

/// A port query of transaction 0 (`rfc-notes/datagram-mapping.md` §10.1).
pub(crate) fn port_query(port: u16) -> Vec<u8> {
    let mut datagram = vec![0; 24];
    datagram[..2].copy_from_slice(&[0x4d, 5]);
    datagram[12..14].copy_from_slice(&port.to_be_bytes());
    datagram.extend(crc32c(&datagram).to_le_bytes());
    datagram
}

/// Whether a datagram is a port query.
pub(crate) fn is_port_query(datagram: &[u8]) -> bool {
    datagram.len() == 28 && datagram.starts_with(&[0x4d, 5])
}

/// A socket that takes no datagrams, and whose port nobody else gets: the network refuses all that is sent there.
pub(crate) fn nobody(address: IpAddr) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let name = socket.local_addr().unwrap();
    // It takes datagrams of its peer alone, which it is itself.
    socket.connect(name).unwrap();
    (socket, name)
}
