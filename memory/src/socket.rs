//! The vectored socket call that sends registered bytes where they lie, and the two socket options of datagrams
//! that no safe wrapper has.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::RegionSlice;

/// Most pieces that one [`send`] takes.
pub const MAX_PIECES: usize = 64;

/// Consecutive bytes of an outgoing message.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Bytes of ours: headers, checksums, staged payload.
    Bytes(&'a [u8]),
    /// Registered bytes, sent without a copy.
    Region(RegionSlice<'a>),
}

/// Where and how a message leaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// Destination; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// Source address for this message, where the kernel would choose another.
    pub from: Option<IpAddr>,
    /// Index of the interface that it leaves through; 0 lets the kernel choose. Needs the protocol of `to` or `from` to
    /// be told, so one of them must be there.
    pub interface: u32,
    /// Routers that it may pass, and one (`IP_TTL`, `IPV6_HOPLIMIT`); `None` takes the socket's own.
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

    /// The address that stands for any of ours, of the kind of the destination; mapped for a mapped one.
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
/// What `sendmsg(2)` returns: `WouldBlock` where the socket's buffer is full, `EMSGSIZE`, `EINVAL` or
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
    if control.len > 0 {
        header.msg_control = control.bytes.0.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len;
    }
    // SAFETY: name, vector and control point to live storage of the lengths given; the vector's ranges
    // are borrowed by `pieces` for the whole call and only read.
    let sent = unsafe {
        libc::sendmsg(
            fd.as_raw_fd(),
            &raw const header,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// One contiguous message without options: the call without a message header is a good tenth of a microsecond
/// cheaper.
#[inline]
fn send_plain(fd: BorrowedFd<'_>, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
    let name = to.map(socket2::SockAddr::from);
    let (address, length) = name.as_ref().map_or((std::ptr::null(), 0), |name| {
        (name.as_ptr().cast::<libc::sockaddr>(), name.len())
    });
    // SAFETY: buffer and name are live references of the lengths given; the call only reads them.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            address,
            length,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Forbids IP fragmentation of what a datagram socket sends: too large datagrams fail with `EMSGSIZE`. `ipv4`
/// and `ipv6` tell which protocols the socket speaks; a dual-stack one speaks both.
///
/// # Errors
/// What `setsockopt(2)` returns.
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
/// What `getsockopt(2)` returns.
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

/// Room for the control messages above, aligned as `cmsghdr` wants.
#[repr(align(8))]
struct Aligned([u8; 96]);

struct Control {
    bytes: Aligned,
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
        let pieces = [Piece::Bytes(b"x"); MAX_PIECES + 1];
        let error = send(sender.as_fd(), &pieces, SendOptions::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
