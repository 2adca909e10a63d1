//! Carrier of a queue pair's datagrams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::Piece;

use crate::Error;
#[cfg(test)]
use crate::driver::udp::memory_port::{self, MemoryPort};
use crate::driver::udp::route::{self, KernelRoute};
use crate::driver::udp::socket::{self, Leave, ReceiveBuffer, Received, UdpSocket};

/// An endpoint for datagrams, with a descriptor for readiness. Nothing blocks.
#[derive(Debug)]
pub(crate) enum Port {
    /// A UDP socket.
    Udp(UdpSocket),
    /// Datagrams in memory, for tests.
    #[cfg(test)]
    Memory(MemoryPort),
}

/// Calls a method that ports of all kinds have.
macro_rules! each {
    ($port:expr, $it:ident => $call:expr) => {
        match $port {
            Self::Udp($it) => $call,
            #[cfg(test)]
            Self::Memory($it) => $call,
        }
    };
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, it => it.as_fd())
    }
}

impl Port {
    /// A port that receives from anyone.
    pub(crate) fn bind(address: SocketAddr, receive_buffer: usize) -> Result<Self, Error> {
        UdpSocket::bind(address, receive_buffer).map(Self::Udp)
    }

    /// A second port of this number, which receives from one peer only and sends to it faster. All ports of the number must share it meanwhile.
    pub(crate) fn connect_sibling(
        &self,
        peer: SocketAddr,
        local: IpAddr,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        match self {
            Self::Udp(socket) => socket
                .connect_sibling(peer, local, receive_buffer)
                .map(Self::Udp),
            #[cfg(test)]
            Self::Memory(memory) => Ok(Self::Memory(memory.connect_sibling(peer))),
        }
    }

    /// Whether another port may have the number now.
    pub(crate) fn share_number(&self, share: bool) -> io::Result<()> {
        each!(self, it => it.share_port(share))
    }

    /// Gives up the peer of a sibling. Datagrams of others do not arrive either.
    pub(crate) fn forsake(&mut self, peer: Peer) -> io::Result<()> {
        each!(self, it => it.forsake(peer))
    }

    /// The address of ours that a sibling uses.
    #[inline]
    pub(crate) fn connected_from(&self) -> Option<IpAddr> {
        each!(self, it => it.connected_from())
    }

    /// Address and number of our end.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        each!(self, it => it.local_addr())
    }

    /// Octets that may wait to be received, with the kernel's overhead.
    pub(crate) fn granted_receive_buffer(&self) -> io::Result<usize> {
        each!(self, it => it.granted_receive_buffer())
    }

    /// Sets whether members of multicast groups on this host get our datagrams.
    pub(crate) fn set_multicast_loop(&self, on: bool) -> io::Result<()> {
        each!(self, it => it.set_multicast_loop(on))
    }

    /// Sets whether the kernel reports ICMP errors.
    pub(crate) fn report_errors(&self, report: bool) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.report_errors(report),
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Whether a train can be sent with one call.
    #[inline]
    pub(crate) fn sends_trains(&self) -> bool {
        match self {
            Self::Udp(_) => socket::can_send_trains(),
            #[cfg(test)]
            Self::Memory(_) => true,
        }
    }

    /// The route to a host.
    pub(crate) fn look_up(&self, destination: IpAddr, scope_id: u32) -> io::Result<KernelRoute> {
        match self {
            Self::Udp(_) => route::look_up(destination, scope_id),
            #[cfg(test)]
            Self::Memory(_) => Ok(KernelRoute {
                mtu: memory_port::MTU,
                source: memory_port::HOST,
                group: false,
            }),
        }
    }

    /// Receives one datagram or train.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        each!(self, it => it.receive(buffer))
    }

    /// Sends one datagram, or several of `segment_size` octets.
    #[inline(always)]
    pub(crate) fn send(
        &self,
        to: Option<SocketAddr>,
        leave: Leave,
        pieces: &[Piece<'_>],
        segment_size: Option<u16>,
    ) -> io::Result<usize> {
        each!(self, it => it.send(to, leave, pieces, segment_size))
    }
}
