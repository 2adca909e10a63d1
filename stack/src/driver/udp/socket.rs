//! One UDP socket: creation, receiving and sending.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::Piece;
use dgiwarp_memory::socket::{self, SendOptions};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, getsockopt, recv, recvfrom, recvmsg,
    setsockopt, sockopt,
};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::driver::device::{clock, fds as own_sockets};
use crate::driver::qp::staging::MidPage;
use dgiwarp_engine::types::Route;

use crate::Error;

/// Source and hop limit of datagrams, where the kernel would choose others.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Leave {
    /// Source address; `None` for the kernel's choice.
    pub(crate) from: Option<IpAddr>,
    /// Index of the interface, 0 for the kernel's choice.
    pub(crate) interface: u32,
    /// The hop limit.
    pub(crate) hop_limit: Option<u8>,
}

impl Leave {
    /// Source and hop limit of a route, for a socket that is not connected.
    #[inline]
    pub(crate) fn of(route: &Route) -> Self {
        match route.hop_limit() {
            None => route.source().into(),
            Some(hop_limit) => Self {
                from: route.source(),
                interface: route.scope_id(),
                hop_limit: (hop_limit != Route::GROUP_HOP_LIMIT).then_some(hop_limit),
            },
        }
    }
}

impl From<Option<IpAddr>> for Leave {
    fn from(from: Option<IpAddr>) -> Self {
        Self {
            from,
            ..Self::default()
        }
    }
}

/// Room for the largest datagram, or a train of them.
const RECEIVE_BUFFER: usize = 65_536;
/// Room for the control messages of one receive call: packet information and segment size.
const CONTROL: usize = 128;

/// Buffer for received datagrams, one per poller. Its memory comes with the first receive call: pollers of connections alone make none.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    octets: Option<MidPage>,
    control: [u8; CONTROL],
}

impl ReceiveBuffer {
    pub(crate) fn new() -> Self {
        Self {
            octets: None,
            control: [0; CONTROL],
        }
    }

    pub(crate) fn octets(&self, len: usize) -> &[u8] {
        self.octets.as_ref().map_or(&[], |octets| &octets[..len])
    }

    /// All of the buffer, to be filled.
    pub(super) fn all_octets(&mut self) -> &mut [u8] {
        Self::memory(&mut self.octets)
    }

    #[inline]
    fn memory(octets: &mut Option<MidPage>) -> &mut MidPage {
        octets.get_or_insert_with(|| MidPage::zeroed(RECEIVE_BUFFER))
    }

    #[cfg(test)]
    pub(super) fn fill(&mut self, octets: &[u8]) {
        Self::memory(&mut self.octets)[..octets.len()].copy_from_slice(octets);
    }
}

/// Datagram or train that a receive call put into the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) stride: usize,
    /// The sender.
    pub(crate) from: Peer,
    /// The address of ours that it was sent to.
    pub(crate) to: Option<IpAddr>,
}

/// Receives in a row, with no empty one between, after which a connected socket takes trains whole.
const RUN: u32 = 8;
/// Single datagrams in a row after which it takes single ones again, as soon as its queue is empty.
const SINGLES: u32 = 256;

/// A UDP socket of a QP.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    socket: Socket,
    ipv6: bool,
    /// On a connected socket, the address of ours that it uses.
    connected: Option<IpAddr>,
    origin: Origin,
    receive_mode: ReceiveMode,
}

/// Source of received datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Each names its source.
    Named,
    /// Each names its source: the socket was connected to this peer, but datagrams from before may still be queued, until the
    /// socket was found empty after this time.
    Settling(Peer, Instant),
    /// All are from this peer, so none needs to name it.
    Sole(Peer),
}

/// Far longer than a datagram takes from its look-up of a socket to the socket's queue.
const SETTLE_FOR: Duration = Duration::from_millis(20);

/// How a socket receives. Taking trains whole needs the long form of the receive call, which costs each single datagram
/// a good tenth of a microsecond; a connected socket therefore starts with the short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiveMode {
    /// One datagram a call; how many calls in a row brought one.
    Single(u32),
    /// Trains (`UDP_GRO`); how many calls in a row brought a single datagram.
    Trains(u32),
}

impl UdpSocket {
    /// A socket that receives from anyone. Never with a reuse option: that would let another process take
    /// the traffic.
    pub(crate) fn bind(address: SocketAddr, receive_buffer: usize) -> Result<Self, Error> {
        let bound = Self::try_bind(address, receive_buffer);
        bound.map_err(|source| match source.raw_os_error() {
            Some(libc_emfile) if libc_emfile == nix::libc::EMFILE => Error::System {
                what: "cannot make a socket",
                source,
            },
            Some(_) | None => Error::Bind { address, source },
        })
    }

    fn try_bind(address: SocketAddr, receive_buffer: usize) -> io::Result<Self> {
        let this = Self::unbound(address, receive_buffer)?;
        if address.is_ipv6() {
            this.socket.set_only_v6(!address.ip().is_unspecified())?;
            setsockopt(&this.socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        // A dual-stack socket reports IPv4 traffic the IPv4 way only if asked; IPv6 packet information covers it.
        if address.is_ipv4() {
            setsockopt(&this.socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        this.socket.set_broadcast(true)?;
        this.socket.bind(&address.into())?;
        Ok(this)
    }

    /// A socket for service ID resolution. ICMP errors are reported once the socket is connected.
    pub(crate) fn bind_service(address: SocketAddr, only_v6: bool) -> io::Result<Self> {
        let this = Self::unbound(address, 0)?;
        if address.is_ipv6() {
            let dual = address.ip().is_unspecified() && !only_v6;
            this.socket.set_only_v6(!dual)?;
            setsockopt(&this.socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&this.socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        this.report_errors(false)?;
        this.socket.bind(&address.into())?;
        Ok(this)
    }

    /// Connects the socket to the address that the lookup asks, so that others' datagrams are not received.
    pub(crate) fn connect_service(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(&self.in_family(peer).into())?;
        self.report_errors(true)
    }

    /// Discards the ICMP errors that failed a call or would fail the next one.
    pub(crate) fn forget_errors(&self) {
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let read = || recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut [], None, flags);
        while read().is_ok() {}
        let _ = self.socket.take_error();
    }

    /// Sets whether the kernel reports ICMP errors, which fail the next call.
    pub(crate) fn report_errors(&self, report: bool) -> io::Result<()> {
        if self.ipv6 {
            setsockopt(&self.socket, sockopt::Ipv6RecvErr, &report)?;
        }
        // An IPv6 socket may refuse it: then it carries no IPv4.
        let of_ipv4 = setsockopt(&self.socket, sockopt::Ipv4RecvErr, &report);
        if self.ipv6 { Ok(()) } else { Ok(of_ipv4?) }
    }

    /// A socket that receives datagrams to a group and its port, on one interface or, with index 0, on that which
    /// the kernel chooses. Others may be bound there too, and all get each datagram.
    pub(crate) fn join(
        group: IpAddr,
        port: u16,
        interface: u32,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let address: SocketAddr = match group {
            IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, interface).into(),
        };
        let this = Self::unbound(address, receive_buffer)?;
        this.socket.set_reuse_address(true)?;
        let device = NonZeroU32::new(interface);
        match group {
            IpAddr::V4(v4) => {
                setsockopt(&this.socket, sockopt::Ipv4PacketInfo, &true)?;
                this.socket.set_multicast_all_v4(false)?;
                if v4.is_multicast() {
                    this.socket.bind(&address.into())?;
                    this.socket
                        .join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(interface))?;
                } else {
                    if device.is_some() {
                        this.socket.bind_device_by_index_v4(device)?;
                    }
                    this.socket.bind(&address.into())?;
                }
            }
            IpAddr::V6(v6) => {
                this.socket.set_only_v6(true)?;
                setsockopt(&this.socket, sockopt::Ipv6RecvPacketInfo, &true)?;
                this.socket.set_multicast_all_v6(false)?;
                // Membership alone does not keep an IPv6 socket to one interface.
                if device.is_some() {
                    this.socket.bind_device_by_index_v6(device)?;
                }
                this.socket.bind(&address.into())?;
                this.socket.join_multicast_v6(&v6, interface)?;
            }
        }
        Ok(this)
    }

    fn unbound(address: SocketAddr, receive_buffer: usize) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        let socket = own_sockets::adopt(socket);
        socket.set_nonblocking(true)?;
        if receive_buffer > 0 {
            socket.set_recv_buffer_size(receive_buffer)?;
            socket.set_send_buffer_size(receive_buffer)?;
        }
        let dual = address.is_ipv6() && address.ip().is_unspecified();
        socket::forbid_fragmentation(socket.as_fd(), address.is_ipv4() || dual, address.is_ipv6())?;
        // Kernels without it deliver datagrams one by one.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        if address.is_ipv4() || dual {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
        }
        if address.is_ipv6() {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
        }
        Ok(Self {
            socket,
            ipv6: address.is_ipv6(),
            connected: None,
            origin: Origin::Named,
            receive_mode: ReceiveMode::Trains(0),
        })
    }

    /// Sets `IP_MULTICAST_LOOP`: whether members of multicast groups on this host get our datagrams.
    pub(crate) fn set_multicast_loop(&self, on: bool) -> io::Result<()> {
        if self.ipv6 {
            self.socket.set_multicast_loop_v6(on)?;
        }
        // An IPv6 socket may refuse it: then it carries no IPv4.
        let of_ipv4 = self.socket.set_multicast_loop_v4(on);
        if self.ipv6 { Ok(()) } else { of_ipv4 }
    }

    /// Sets `SO_REUSEPORT`: whether another socket of this user may be bound to the port now.
    pub(crate) fn share_port(&self, share: bool) -> io::Result<()> {
        self.socket.set_reuse_port(share)
    }

    /// A second socket on the same port that receives from one peer only, and sends to it faster. All sockets of the port
    /// must share it meanwhile.
    ///
    /// Between its binding and its connection it also gets datagrams of others, so the peer is not taken for the source.
    pub(crate) fn connect_sibling(
        &self,
        peer: SocketAddr,
        local: IpAddr,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let port = self.local_addr()?.port();
        let local_address = match (local, peer) {
            (IpAddr::V6(v6), SocketAddr::V6(peer)) => {
                SocketAddrV6::new(v6, port, 0, peer.scope_id()).into()
            }
            (local, _) => SocketAddr::new(local, port),
        };
        let mut sibling = Self::unbound(local_address, receive_buffer)?;
        sibling.take_singles();
        sibling.share_port(true)?;
        sibling.socket.bind(&local_address.into())?;
        sibling.socket.connect(&peer.into())?;
        sibling.share_port(false)?;
        sibling.connected = Some(local);
        sibling.origin = Origin::Settling(Peer::ip(peer), clock::now() + SETTLE_FOR);
        Ok(sibling)
    }

    /// Gives up the peer of a connected socket, without letting in anybody else's datagrams: it is connected to a port of the
    /// peer's host that sends none.
    pub(crate) fn forsake(&mut self, peer: Peer) -> io::Result<()> {
        /// Discard and tcpmux: no queue pair has them.
        const SILENT: [u16; 2] = [9, 1];
        let mut address = peer.socket_addr().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let silent = SILENT.into_iter().find(|port| *port != address.port());
        address.set_port(silent.unwrap_or_default());
        self.origin = Origin::Named;
        self.socket.connect(&address.into())
    }

    /// On a connected socket, the address of ours that it uses.
    #[inline]
    pub(crate) fn connected_from(&self) -> Option<IpAddr> {
        self.connected
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// The receive buffer that the kernel granted, in octets, its own overhead included.
    pub(crate) fn granted_receive_buffer(&self) -> io::Result<usize> {
        Ok(getsockopt(&self.socket, sockopt::RcvBuf)?)
    }

    /// Receives one datagram or train.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        match (self.receive_mode, self.connected) {
            (ReceiveMode::Single(run), Some(local)) => {
                let result = self.receive_single(buffer, local);
                let run = if result.is_ok() { run + 1 } else { 0 };
                self.receive_mode = ReceiveMode::Single(run);
                if let (Err(_), Origin::Settling(peer, until)) = (&result, self.origin)
                    && clock::coarse() >= until
                {
                    self.origin = Origin::Sole(peer);
                }
                if run >= RUN {
                    let _ = setsockopt(&self.socket, sockopt::UdpGroSegment, &true);
                    self.receive_mode = ReceiveMode::Trains(0);
                }
                result
            }
            (ReceiveMode::Trains(singles), connected) => {
                let result = self.receive_train(buffer);
                match &result {
                    Ok(received) => {
                        let single = received.stride >= received.len;
                        self.receive_mode =
                            ReceiveMode::Trains(if single { singles + 1 } else { 0 });
                    }
                    Err(_) if singles >= SINGLES && connected.is_some() => self.take_singles(),
                    Err(_) => {}
                }
                result
            }
            (ReceiveMode::Single(_), None) => self.receive_train(buffer),
        }
    }

    /// Lets the kernel cut trains from now on. Trains that arrived before would come in one piece and without their segment
    /// size, so this is for a socket that holds none.
    fn take_singles(&mut self) {
        if setsockopt(&self.socket, sockopt::UdpGroSegment, &false).is_err() {
            return;
        }
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if recv(self.socket.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN) {
            self.receive_mode = ReceiveMode::Single(0);
        } else {
            let _ = setsockopt(&self.socket, sockopt::UdpGroSegment, &true);
            self.receive_mode = ReceiveMode::Trains(0);
        }
    }

    #[inline]
    fn receive_single(&self, buffer: &mut ReceiveBuffer, to: IpAddr) -> io::Result<Received> {
        let fd = self.socket.as_raw_fd();
        let (len, from) = match self.origin {
            Origin::Sole(peer) => (recv(fd, buffer.all_octets(), MsgFlags::MSG_DONTWAIT)?, peer),
            Origin::Named | Origin::Settling(..) => {
                let (len, from) = recvfrom::<SockaddrStorage>(fd, buffer.all_octets())?;
                (len, source(from)?)
            }
        };
        Ok(Received {
            len,
            stride: len,
            from,
            to: Some(to),
        })
    }

    #[inline]
    fn receive_train(&self, buffer: &mut ReceiveBuffer) -> io::Result<Received> {
        let mut slices = [IoSliceMut::new(ReceiveBuffer::memory(&mut buffer.octets))];
        let message = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut slices,
            Some(&mut buffer.control),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let len = message.bytes;
        let mut stride = len;
        let mut to = self.connected;
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::UdpGroSegments(size) => {
                    stride = usize::try_from(size).unwrap_or(len);
                }
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    to = Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    let address = std::net::Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    to = Some(address.to_canonical());
                }
                // No other control message was requested.
                _ => {}
            }
        }
        let from = source(message.address)?;
        Ok(Received {
            len,
            stride,
            from,
            to,
        })
    }

    /// Sends one datagram, or several of `segment_size` octets.
    #[inline(always)]
    pub(crate) fn send(
        &self,
        to: Option<SocketAddr>,
        leave: impl Into<Leave>,
        pieces: &[Piece<'_>],
        segment_size: Option<u16>,
    ) -> io::Result<usize> {
        let leave = leave.into();
        let options = SendOptions {
            to: to.map(|to| self.in_family(to)),
            from: leave.from.map(|from| self.source_in_family(from)),
            interface: leave.interface,
            hop_limit: leave.hop_limit,
            segment_size,
        };
        socket::send(self.socket.as_fd(), pieces, options)
    }

    /// An IPv4 destination as a dual-stack socket wants it.
    #[inline]
    fn in_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.ipv6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            SocketAddr::V4(_) | SocketAddr::V6(_) => address,
        }
    }

    #[inline]
    fn source_in_family(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) if self.ipv6 => v4.to_ipv6_mapped().into(),
            IpAddr::V4(_) | IpAddr::V6(_) => address,
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The source that the kernel gives with a datagram.
fn source(address: Option<SockaddrStorage>) -> io::Result<Peer> {
    let address = address.and_then(socket_addr);
    Ok(Peer::ip(address.ok_or(io::ErrorKind::InvalidData)?))
}

pub(crate) fn socket_addr(storage: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    storage
        .as_sockaddr_in6()
        .map(|v6| SocketAddrV6::from(*v6).into())
}

/// Whether the kernel cuts trains into datagrams. Found once, by sending one to ourselves.
pub(crate) fn can_send_trains() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| probe_trains().unwrap_or(false))
}

fn probe_trains() -> io::Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = UdpSocket::try_bind(address, 0)?;
    let sent = socket.send(
        Some(socket.local_addr()?),
        None,
        &[Piece::Bytes(&[0; 3])],
        Some(2),
    );
    Ok(sent.is_ok_and(|octets| octets == 3))
}
