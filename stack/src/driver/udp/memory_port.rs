//! Datagrams in memory: queue pairs of one process reach each other by them, without a network.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::Piece;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::driver::tcp::memory_pipe::gather;
use crate::driver::udp::socket::{Leave, ReceiveBuffer, Received};

/// Datagrams that wait at a port at most.
const ROOM: usize = 64;
/// MTU of all routes.
pub(super) const MTU: u32 = 1 << 16;
/// The one host.
pub(super) const HOST: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Datagrams that wait at a port, each with the number of its source.
#[derive(Debug)]
struct Inbox {
    queue: Mutex<VecDeque<(u16, Vec<u8>)>>,
    /// Readable while the queue is not empty.
    readable: EventFd,
}

/// Number of a port, and that of its peer if it receives from one only.
type Name = (u16, Option<u16>);

/// An endpoint in memory.
#[derive(Debug)]
pub(crate) struct MemoryPort {
    network: Arc<Mutex<HashMap<Name, Arc<Inbox>>>>,
    name: Name,
    inbox: Arc<Inbox>,
}

impl MemoryPort {
    /// Ports of a network of their own, numbered from 1 on.
    pub(crate) fn network<const N: usize>() -> [Self; N] {
        let network = Arc::default();
        std::array::from_fn(|at| Self::open(&network, (u16::try_from(at + 1).unwrap(), None)))
    }

    fn open(network: &Arc<Mutex<HashMap<Name, Arc<Inbox>>>>, name: Name) -> Self {
        let inbox = Arc::new(Inbox {
            queue: Mutex::default(),
            readable: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap(),
        });
        network.lock().insert(name, Arc::clone(&inbox));
        Self {
            network: Arc::clone(network),
            name,
            inbox,
        }
    }

    fn leave_network(&self) {
        let mut network = self.network.lock();
        if network
            .get(&self.name)
            .is_some_and(|it| Arc::ptr_eq(it, &self.inbox))
        {
            network.remove(&self.name);
        }
    }

    pub(super) fn connect_sibling(&self, peer: SocketAddr) -> Self {
        Self::open(&self.network, (self.name.0, Some(peer.port())))
    }

    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "as a UDP socket has it"
    )]
    pub(super) fn share_port(&self, _share: bool) -> io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a UDP socket has it")]
    pub(super) fn forsake(&mut self, _peer: Peer) -> io::Result<()> {
        self.leave_network();
        Ok(())
    }

    pub(super) fn connected_from(&self) -> Option<IpAddr> {
        self.name.1.map(|_| HOST)
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a UDP socket has it")]
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((HOST, self.name.0).into())
    }

    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "as a UDP socket has it"
    )]
    pub(super) fn granted_receive_buffer(&self) -> io::Result<usize> {
        Ok(ROOM << 16)
    }

    #[expect(clippy::unused_self, reason = "as a UDP socket has it")]
    pub(super) fn set_multicast_loop(&self, _on: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn receive(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        let mut queue = self.inbox.queue.lock();
        let Some((source, octets)) = queue.pop_front() else {
            return Err(io::Error::from_raw_os_error(nix::libc::EAGAIN));
        };
        if queue.is_empty() {
            let _ = self.inbox.readable.read();
        }
        buffer.fill(&octets);
        Ok(Received {
            len: octets.len(),
            stride: octets.len(),
            from: Peer::ip((HOST, source).into()),
            to: Some(HOST),
        })
    }

    /// Datagrams to a number that no port has are lost.
    pub(super) fn send(
        &self,
        to: Option<SocketAddr>,
        _leave: Leave,
        pieces: &[Piece<'_>],
        segment_size: Option<u16>,
    ) -> io::Result<usize> {
        let (number, peer) = self.name;
        let to = to.map(|to| to.port()).or(peer).unwrap();
        let octets = gather(pieces);
        let network = self.network.lock();
        let own = network.get(&(to, Some(number)));
        if let Some(inbox) = own.or_else(|| network.get(&(to, None))) {
            let mut queue = inbox.queue.lock();
            if queue.len() >= ROOM {
                return Err(io::Error::from_raw_os_error(nix::libc::EAGAIN));
            }
            let size = segment_size.map_or(octets.len(), usize::from);
            if octets.is_empty() {
                queue.push_back((number, Vec::new()));
            }
            let datagrams = octets.chunks(size.max(1));
            queue.extend(datagrams.map(|it| (number, it.to_vec())));
            let _ = inbox.readable.write(1);
        }
        Ok(octets.len())
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.leave_network();
    }
}

impl AsFd for MemoryPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.readable.as_fd()
    }
}
