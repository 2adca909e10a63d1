//! Marks of the TCP ports that rdma_cm has in any process of the host: another listener of rdma_cm finds such a port taken, while a port of a TCP socket
//! without a mark can be shared with it.
//!
//! A mark is a UNIX socket with an abstract name (`unix(7)`), which belongs to a network namespace as ports do and ends with its process. Without
//! UNIX sockets there are no marks.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::driver::device::fds as own_sockets;
use dgiwarp_engine::cm::ports::{MARK_SLOTS as SLOTS, mark_name};

/// Mark of a port. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PortMark {
    _socket: UnixDatagram,
    slot: u8,
}

/// Marks a port, if a mark of it is left.
pub(crate) fn place(port: u16) -> Option<PortMark> {
    (0..SLOTS).find_map(|slot| {
        let socket = UnixDatagram::bind_addr(&name(port, slot)?).ok()?;
        Some(PortMark {
            _socket: own_sockets::adopt(socket),
            slot,
        })
    })
}

/// Whether a port has a mark beside `own`.
pub(crate) fn is_marked(port: u16, own: Option<&PortMark>) -> bool {
    let Ok(probe) = UnixDatagram::unbound() else {
        return true;
    };
    let own = own.map(|own| own.slot);
    let exists = |slot| name(port, slot).is_some_and(|name| probe.connect_addr(&name).is_ok());
    (0..SLOTS).any(|slot| Some(slot) != own && exists(slot))
}

fn name(port: u16, slot: u8) -> Option<SocketAddr> {
    SocketAddr::from_abstract_name(mark_name(port, slot)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_and_removed() {
        // A port that no test binds.
        let port = 1;
        assert!(!is_marked(port, None));
        let first = place(port).unwrap();
        assert!(is_marked(port, None) && !is_marked(port, Some(&first)));
        assert!(!is_marked(port + 1, None));
        let second = place(port).unwrap();
        assert!(is_marked(port, Some(&first)));
        drop(first);
        assert!(!is_marked(port, Some(&second)));
    }
}
