//! Vectored send of registered bytes where they lie, and the two socket options of datagrams without a safe
//! wrapper.

mod cancellation;

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

pub use cancellation::NoCancellation;

use crate::{MAX_PIECES, Piece};

/// Flags of every send. The system calls are made without libc's functions, which prepare for a cancellation of the thread: a send that never
/// blocks is no cancellation point.
const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Destination and options of one message.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// Destination; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// Source address for this message, where the kernel would choose another.
    pub from: Option<IpAddr>,
    /// Index of the outgoing interface; 0 leaves the choice to the kernel. Its address family is that of `to` or `from`,
    /// of which one must be given.
    pub interface: u32,
    /// Hop limit (`IP_TTL`, `IPV6_HOPLIMIT`): routers on the way, plus one; `None` takes the socket's.
    pub hop_limit: Option<u8>,
    /// Cut the message into datagrams of this many bytes, the last may be shorter (`UDP_SEGMENT`).
    pub segment_size: Option<u16>,
}

impl SendOptions {
    fn control(&self) -> Control {
        let mut control = Control::default();
        if let Some(size) = self.segment_size {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
        let from = self
            .from
            .or_else(|| (self.interface != 0).then_some(self.any_source()));
        match from {
            Some(IpAddr::V4(address)) => {
                // struct in_pktinfo: interface index (0 any), local address, destination (ignored).
                let mut info = [0; 12];
                info[..4].copy_from_slice(&self.interface.to_ne_bytes());
                info[4..8].copy_from_slice(&address.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            Some(IpAddr::V6(address)) => {
                // struct in6_pktinfo: address, interface index (0 any).
                let mut info = [0; 20];
                info[..16].copy_from_slice(&address.octets());
                info[16..].copy_from_slice(&self.interface.to_ne_bytes());
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
        if let Some(limit) = self.hop_limit {
            let value = libc::c_int::from(limit).to_ne_bytes();
            // A mapped destination leaves as IPv4, whatever the socket is.
            let ipv4 = self
                .to
                .map(|to| to.ip().to_canonical())
                .is_some_and(|to| to.is_ipv4());
            if ipv4 {
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &value);
            } else {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &value);
            }
        }
        control
    }

    /// Unspecified address of the destination's family; mapped for a mapped destination.
    fn any_source(&self) -> IpAddr {
        match self.to {
            Some(SocketAddr::V6(to)) if to.ip().to_ipv4_mapped().is_some() => {
                Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into()
            }
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            Some(SocketAddr::V4(_)) | None => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Sends `pieces` as one message on a non-blocking socket and returns the number of bytes taken.
///
/// # Errors
/// Errors of `sendmsg(2)`: `WouldBlock` where the socket's buffer is full, `EMSGSIZE`, `EINVAL` or
/// `EIO` where the path does not take the size or the segmentation. `EINVAL` also for more than
/// [`MAX_PIECES`] pieces.
#[inline(always)]
pub fn send(fd: BorrowedFd<'_>, pieces: &[Piece<'_>], options: SendOptions) -> io::Result<usize> {
    let plain = options.from.is_none()
        && options.segment_size.is_none()
        && options.interface == 0
        && options.hop_limit.is_none();
    if let ([Piece::Bytes(bytes)], true) = (pieces, plain) {
        return send_plain(fd, bytes, options.to);
    }
    send_message(fd, pieces, &options)
}

#[inline(never)]
fn send_message(
    fd: BorrowedFd<'_>,
    pieces: &[Piece<'_>],
    options: &SendOptions,
) -> io::Result<usize> {
    if pieces.len() > MAX_PIECES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut vector = [const { mem::MaybeUninit::<libc::iovec>::uninit() }; MAX_PIECES];
    for (slot, piece) in vector.iter_mut().zip(pieces) {
        let (base, len) = match piece {
            Piece::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            Piece::Region(slice) => (slice.as_ptr(), slice.len()),
        };
        slot.write(libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: len,
        });
    }
    let name = options.to.map(socket2::SockAddr::from);
    let control = options.control();
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(name) = &name {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
    }
    header.msg_iov = vector.as_mut_ptr().cast();
    header.msg_iovlen = pieces.len();
    // Without control messages their length is 0, and the kernel reads none.
    header.msg_control = control.bytes.0.as_ptr().cast_mut().cast();
    header.msg_controllen = control.len;
    // SAFETY: name, vector and control point to live storage of the lengths given; the vector's ranges
    // are borrowed by `pieces` for the whole call and only read.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmsg,
            fd.as_raw_fd(),
            &raw const header,
            SEND_FLAGS,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends one contiguous message without options: `sendto` is 0.1 µs cheaper than `sendmsg`.
#[inline]
fn send_plain(fd: BorrowedFd<'_>, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
    let name = to.map(socket2::SockAddr::from);
    let (address, length) = name.as_ref().map_or((std::ptr::null(), 0), |name| {
        (name.as_ptr().cast::<libc::sockaddr>(), name.len())
    });
    // SAFETY: buffer and name are live references of the lengths given; the call only reads them.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            SEND_FLAGS,
            address,
            length,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Forbids IP fragmentation of what a datagram socket sends: too large datagrams fail with `EMSGSIZE`. `ipv4`
/// and `ipv6` are the protocols of the socket; a dual-stack socket has both.
///
/// # Errors
/// Errors of `setsockopt(2)`.
pub fn forbid_fragmentation(fd: BorrowedFd<'_>, ipv4: bool, ipv6: bool) -> io::Result<()> {
    if ipv4 {
        set_option(
            fd,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        )?;
    }
    if ipv6 {
        set_option(
            fd,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )?;
    }
    Ok(())
}

/// The MTU, in octets, of the route that a connected IPv6 socket uses.
///
/// # Errors
/// Errors of `getsockopt(2)`.
pub fn ipv6_route_mtu(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut mtu: libc::c_int = 0;
    let mut length: libc::socklen_t = 4;
    // SAFETY: value and length point to an int and its size.
    let status = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU,
            (&raw mut mtu).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(mtu).map_err(io::Error::other)
}

fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value is an int of 4 bytes that lives through the call.
    let status =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Memory of the control messages, aligned as `cmsghdr` requires.
#[repr(align(8))]
struct Aligned([u8; 96]);

/// Control messages of one `sendmsg(2)`.
struct Control {
    bytes: Aligned,
    /// Bytes in use.
    len: usize,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            bytes: Aligned([0; 96]),
            len: 0,
        }
    }
}

impl Control {
    /// Appends one control message. On Linux `cmsghdr` is the length (a machine word), level and type.
    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let total = HEADER + data.len();
        let start = self.len;
        let out = &mut self.bytes.0[start..start + total.next_multiple_of(8)];
        let (length, rest) = out.split_at_mut(size_of::<usize>());
        length.copy_from_slice(&total.to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        rest[8..8 + data.len()].copy_from_slice(data);
        self.len = start + total.next_multiple_of(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn header_region_and_trailer_leave_as_one_datagram() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let buffer = Buffer::zeroed(4096).unwrap();
        buffer.write(10, b"registered");
        let region = buffer.region();
        let pieces = [
            Piece::Bytes(b"<"),
            Piece::Region(region.slice(10, 10).unwrap()),
            Piece::Bytes(b">"),
        ];
        let options = SendOptions {
            to: Some(receiver.local_addr().unwrap()),
            from: Some([127, 0, 0, 1].into()),
            ..SendOptions::default()
        };
        assert_eq!(send(sender.as_fd(), &pieces, options).unwrap(), 12);
        let mut out = [0; 64];
        let (len, from) = receiver.recv_from(&mut out).unwrap();
        assert_eq!(&out[..len], b"<registered>");
        assert_eq!(from, sender.local_addr().unwrap());
    }

    #[test]
    fn a_train_arrives_as_datagrams() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let options = SendOptions {
            segment_size: Some(4),
            ..SendOptions::default()
        };
        assert_eq!(
            send(sender.as_fd(), &[Piece::Bytes(b"aaaabbbbcc")], options).unwrap(),
            10
        );
        let mut out = [0; 64];
        for expected in [&b"aaaa"[..], b"bbbb", b"cc"] {
            let len = receiver.recv(&mut out).unwrap();
            assert_eq!(&out[..len], expected);
        }
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(sender.local_addr().unwrap()).unwrap();
        let pieces = [Piece::Bytes(b"x"); MAX_PIECES + 1];
        let error = send(sender.as_fd(), &pieces, SendOptions::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let most = &pieces[..MAX_PIECES];
        let sent = send(sender.as_fd(), most, SendOptions::default()).unwrap();
        assert_eq!(sent, MAX_PIECES);
    }

    #[test]
    fn a_full_socket_does_not_block_its_sender() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_receiver, _) = listener.accept().unwrap();
        let octets = vec![0; 65_536];
        let one = [Piece::Bytes(&octets)];
        let two = [Piece::Bytes(&octets), Piece::Bytes(&octets)];
        for pieces in [&one[..], &two] {
            let full = loop {
                if let Err(error) = send(sender.as_fd(), pieces, SendOptions::default()) {
                    break error;
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn no_option_is_lost_on_one_piece() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        let plain = SendOptions {
            to: Some(receiver.local_addr().unwrap()),
            ..SendOptions::default()
        };
        let sent = |options| send(sender.as_fd(), &[Piece::Bytes(b"octets")], options);
        assert_eq!(sent(plain).unwrap(), 6);
        let mut out = [0; 64];
        let (len, _) = receiver.recv_from(&mut out).unwrap();
        assert_eq!(&out[..len], b"octets");
        let from = SendOptions {
            from: Some([127, 0, 0, 7].into()),
            ..plain
        };
        assert_eq!(sent(from).unwrap(), 6);
        let (_, source) = receiver.recv_from(&mut out).unwrap();
        assert_eq!(source.ip(), IpAddr::from([127, 0, 0, 7]));
        // Values that the kernel refuses.
        let interface = SendOptions {
            interface: 0x7fff_0000,
            ..plain
        };
        assert!(sent(interface).is_err());
        let hop_limit = SendOptions {
            hop_limit: Some(0),
            ..plain
        };
        assert!(sent(hop_limit).is_err());
    }

    /// A control message as Linux has it: length, level, type, data, padding.
    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let total = 16 + data.len();
        let mut bytes = total.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(total.next_multiple_of(8), 0);
        bytes
    }

    #[track_caller]
    fn check(options: SendOptions, expected: &[Vec<u8>]) {
        let control = options.control();
        assert_eq!(&control.bytes.0[..control.len], expected.concat());
    }

    #[test]
    fn control_messages_are_those_of_the_kernel() {
        let options = SendOptions::default();
        check(options, &[]);
        let v4 = SendOptions {
            to: Some("10.0.0.1:5".parse().unwrap()),
            interface: 3,
            hop_limit: Some(7),
            segment_size: Some(1400),
            ..options
        };
        let segment = message(libc::SOL_UDP, libc::UDP_SEGMENT, &1400u16.to_ne_bytes());
        let mut info = [0; 12];
        info[0] = 3;
        let hops = 7i32.to_ne_bytes();
        let any = message(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        let limit = message(libc::IPPROTO_IP, libc::IP_TTL, &hops);
        check(v4, &[segment, any, limit.clone()]);
        info = [0, 0, 0, 0, 10, 9, 8, 7, 0, 0, 0, 0];
        let from = SendOptions {
            from: Some([10, 9, 8, 7].into()),
            ..options
        };
        check(from, &[message(libc::IPPROTO_IP, libc::IP_PKTINFO, &info)]);
        let address: Ipv6Addr = "fe80::9".parse().unwrap();
        let mut info = [0; 20];
        info[..16].copy_from_slice(&address.octets());
        info[16] = 2;
        let v6 = SendOptions {
            to: Some("[fe80::1]:5".parse().unwrap()),
            from: Some(address.into()),
            interface: 2,
            hop_limit: Some(7),
            ..options
        };
        let from = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        let limit_6 = message(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
        check(v6, &[from, limit_6]);
        info[..16].fill(0);
        let any = SendOptions {
            from: None,
            hop_limit: None,
            ..v6
        };
        check(
            any,
            &[message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)],
        );
        info[10..12].fill(0xff);
        let mapped = SendOptions {
            to: Some("[::ffff:10.0.0.1]:5".parse().unwrap()),
            hop_limit: Some(7),
            ..any
        };
        let from = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        check(mapped, &[from, limit]);
    }

    fn option(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        let mut value: libc::c_int = -1;
        let mut length: libc::socklen_t = 4;
        // SAFETY: value and length point to an int and its size.
        let status = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                level,
                name,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        assert_eq!(status, 0);
        value
    }

    #[test]
    fn fragmentation_is_forbidden_for_the_protocols_of_the_socket() {
        let v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
        let discovery = |fd| option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        let before = discovery(v4.as_fd());
        assert_ne!(before, libc::IP_PMTUDISC_DO);
        forbid_fragmentation(v4.as_fd(), false, false).unwrap();
        assert_eq!(discovery(v4.as_fd()), before);
        forbid_fragmentation(v4.as_fd(), true, false).unwrap();
        assert_eq!(discovery(v4.as_fd()), libc::IP_PMTUDISC_DO);
        assert!(forbid_fragmentation(v4.as_fd(), false, true).is_err());
        assert!(ipv6_route_mtu(v4.as_fd()).is_err());
        // Kernels without IPv6 have no such sockets.
        let Ok(v6) = UdpSocket::bind("[::1]:0") else {
            return;
        };
        let discovery = |fd| option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);
        forbid_fragmentation(v6.as_fd(), false, true).unwrap();
        assert_eq!(discovery(v6.as_fd()), libc::IPV6_PMTUDISC_DO);
        v6.connect(v6.local_addr().unwrap()).unwrap();
        let mtu = ipv6_route_mtu(v6.as_fd()).unwrap();
        let expected = option(v6.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU);
        assert_eq!(i32::try_from(mtu), Ok(expected));
        assert!(mtu >= 1280);
    }
}
