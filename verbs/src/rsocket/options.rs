//! `rsetsockopt(3)`, `rgetsockopt(3)`, and flags of descriptors.

use crate::ffi::load;
use crate::rsocket::companion::exchange;
use crate::rsocket::companion::socket::Companion;
use crate::rsocket::settings::send_octets;
use crate::rsocket::stream::keepalive;
use crate::rsocket::stream::socket::StreamSocket;
use crate::rsocket::table::Socket;
use dgiwarp_sockets::wire::{scale_of, slots_of};
use libc::{
    IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ACCEPTCONN, SO_DOMAIN, SO_ERROR, SO_KEEPALIVE,
    SO_LINGER, SO_OOBINLINE, SO_PROTOCOL, SO_RCVBUF, SO_RCVTIMEO, SO_REUSEADDR, SO_SNDBUF,
    SO_SNDTIMEO, SO_TYPE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_MAXSEG,
    TCP_NODELAY, c_int, linger, socklen_t, timeval,
};
use nix::errno::Errno;
use std::ffi::c_void;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Level of the options of rsockets.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;
/// Beyond rdma-core, for the preload library of TCP sockets: whether octets of a stream have gone by shared memory.
const DGIWARP_LANE: c_int = 0x6477_0001;
/// Likewise: ends and errors of a connection are those of TCP.
const DGIWARP_TCP: c_int = 0x6477_0002;
/// Likewise, of companions of UDP sockets: they are marked.
const DGIWARP_OFFER: c_int = 0x6477_0004;
/// A companion of this destination is looked for; a number is the peer of a connected socket.
const DGIWARP_ASK: c_int = 0x6477_0005;
/// The socket was connected, or is no more.
const DGIWARP_CONNECTED: c_int = 0x6477_0006;
/// The socket is the kernel's from now on.
const DGIWARP_RETIRE: c_int = 0x6477_0007;
/// All companions of the process end once this descriptor is readable.
const DGIWARP_BELL: c_int = 0x6477_0008;

/// Most entries of a queue.
const MAX_ENTRIES: u32 = 0xfffe;

/// Binds a UDP socket.
pub(super) fn bind_udp(udp: &UdpSocket, to: SocketAddr) -> Result<(), Errno> {
    let (storage, length) = crate::cm::addr::address::write(to);
    // SAFETY: an address of this length.
    let result = unsafe { libc::bind(udp.as_raw_fd(), (&raw const storage).cast(), length) };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

pub(super) fn file_flags(socket: &Socket) -> c_int {
    match socket {
        Socket::Stream(stream) => stream.lock().options.file_flags,
        Socket::Datagram(datagram) => datagram.lock().file_flags,
        Socket::Companion(_) => 0,
    }
}

pub(super) fn set_file_flags(socket: &Socket, flags: c_int) {
    match socket {
        Socket::Stream(stream) => stream.lock().options.file_flags = flags,
        Socket::Datagram(datagram) => datagram.lock().file_flags = flags,
        Socket::Companion(_) => {}
    }
}

/// Sets an option.
///
/// # Safety
/// `value` is NULL or has `length` octets.
pub(super) unsafe fn set(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    let size = usize::try_from(length).unwrap_or(0);
    if value.is_null() {
        return Err(Errno::EFAULT);
    }
    if size < size_of::<c_int>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as many octets as a number has.
    let number = unsafe { load(value.cast::<c_int>()) }?;
    let asked = u32::try_from(number).unwrap_or(0);
    match (socket, level) {
        (Socket::Datagram(datagram), SOL_RDMA) => {
            if datagram.has_memory() {
                return Err(Errno::EINVAL);
            }
            let mut state = datagram.lock();
            set_size(&mut state.sizes, name, asked)
        }
        (Socket::Datagram(datagram), _) => {
            let fd = datagram.udp().as_raw_fd();
            // SAFETY: the program's value.
            if unsafe { libc::setsockopt(fd, level, name, value, length) } != 0 {
                return Err(Errno::last());
            }
            if level == SOL_SOCKET && !datagram.has_memory() {
                let mut state = datagram.lock();
                match name {
                    SO_RCVBUF => state.sizes.receive_octets = asked.saturating_mul(2),
                    SO_SNDBUF => state.sizes.send_octets = send_octets(asked.saturating_mul(2)),
                    _ => {}
                }
            }
            Ok(())
        }
        (Socket::Companion(companion), SOL_RDMA) => {
            let to = if size > size_of::<c_int>() {
                // SAFETY: the preload library's address.
                Some(unsafe { crate::cm::addr::address::read(value.cast()) }?)
            } else {
                None
            };
            change(companion, name, number, to)
        }
        (Socket::Companion(_), _) => Err(Errno::ENOTSUP),
        (Socket::Stream(stream), SOL_RDMA) if name == DGIWARP_TCP => stream.be_tcp(),
        (Socket::Stream(stream), SOL_RDMA) => {
            let mut state = stream.lock();
            if state.has_memory() {
                return Err(Errno::EINVAL);
            }
            set_size(&mut state.options.sizes, name, asked)
        }
        (Socket::Stream(_), SOL_SOCKET) if name == SO_LINGER && size < size_of::<linger>() => {
            Err(Errno::EINVAL)
        }
        (Socket::Stream(stream), SOL_SOCKET) if matches!(name, SO_RCVTIMEO | SO_SNDTIMEO) => {
            if size < size_of::<timeval>() {
                return Err(Errno::EINVAL);
            }
            // SAFETY: as many octets as a time has.
            let time = unsafe { load(value.cast::<timeval>()) }?;
            let millis = time.tv_sec.saturating_mul(1000) + (time.tv_usec + 999) / 1000;
            let millis = u32::try_from(millis).unwrap_or(u32::MAX);
            let to = match name {
                SO_RCVTIMEO => &stream.receive_millis,
                _ => &stream.send_millis,
            };
            to.store(millis, Ordering::Relaxed);
            Ok(())
        }
        (Socket::Stream(stream), SOL_SOCKET) => set_socket(stream, name, number),
        (Socket::Stream(stream), IPPROTO_TCP) => set_tcp(stream, name, number),
        (Socket::Stream(stream), IPPROTO_IPV6) if name == IPV6_V6ONLY => {
            let mut state = stream.lock();
            if state.is_bound() {
                return Err(Errno::EINVAL);
            }
            state.options.only_v6 = number != 0;
            Ok(())
        }
        (Socket::Stream(_), _) => Err(Errno::ENOTSUP),
    }
}

/// An option of a companion.
fn change(
    companion: &Companion,
    name: c_int,
    number: c_int,
    to: Option<SocketAddr>,
) -> Result<(), Errno> {
    match name {
        DGIWARP_OFFER => companion.offer(),
        DGIWARP_ASK => companion.ask(to),
        DGIWARP_CONNECTED => {
            companion.connected();
            Ok(())
        }
        DGIWARP_RETIRE => {
            companion.retire();
            Ok(())
        }
        DGIWARP_BELL => {
            exchange::set_bell(number);
            Ok(())
        }
        _ => Err(Errno::ENOTSUP),
    }
}

/// An option of level `SOL_RDMA`.
fn set_size(sizes: &mut dgiwarp_sockets::Config, name: c_int, asked: u32) -> Result<(), Errno> {
    let short = u16::try_from(asked.min(MAX_ENTRIES)).unwrap_or(u16::MAX);
    match name {
        RDMA_SQSIZE => sizes.send_entries = short,
        RDMA_RQSIZE => sizes.receive_entries = short,
        RDMA_INLINE => sizes.inline = short.into(),
        RDMA_IOMAPSIZE => sizes.io_maps = slots_of(scale_of(short)),
        // Routes are the system's.
        RDMA_ROUTE => {}
        _ => return Err(Errno::ENOTSUP),
    }
    Ok(())
}

fn set_socket(stream: &Arc<StreamSocket>, name: c_int, number: c_int) -> Result<(), Errno> {
    let asked = u32::try_from(number).unwrap_or(0);
    let on = number != 0;
    let mut state = stream.lock();
    let has_memory = state.has_memory();
    let options = &mut state.options;
    match name {
        SO_REUSEADDR => options.reuse = on,
        SO_RCVBUF if !has_memory => {
            let octets = asked.saturating_mul(2);
            options.sizes.receive_octets = octets;
            options.sizes.most_receive_octets = octets;
        }
        SO_SNDBUF if !has_memory => {
            let octets = send_octets(asked.saturating_mul(2));
            options.sizes.send_octets = octets;
            options.sizes.most_send_octets = octets;
        }
        SO_RCVBUF | SO_SNDBUF => {}
        SO_LINGER => options.lingers = on,
        SO_OOBINLINE => options.oob_inline = on,
        SO_KEEPALIVE => {
            options.keep_alive = on;
            if on && options.keep_alive_seconds == 0 {
                options.keep_alive_seconds = keepalive::default_seconds();
            }
            drop(state);
            if on {
                return stream.keep_alive();
            }
            keepalive::end(stream.mailbox.key);
        }
        _ => return Err(Errno::ENOTSUP),
    }
    Ok(())
}

fn set_tcp(stream: &Arc<StreamSocket>, name: c_int, number: c_int) -> Result<(), Errno> {
    let mut state = stream.lock();
    match name {
        // Without meaning: TCP below has its own.
        TCP_KEEPCNT | TCP_KEEPINTVL | TCP_MAXSEG => {}
        TCP_NODELAY => state.options.no_delay = number != 0,
        TCP_KEEPIDLE => {
            let seconds = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
            if seconds == 0 {
                return Err(Errno::EINVAL);
            }
            state.options.keep_alive_seconds = seconds;
            let runs = state.options.keep_alive;
            drop(state);
            if runs {
                return stream.keep_alive();
            }
        }
        _ => return Err(Errno::ENOTSUP),
    }
    Ok(())
}

/// Reads an option.
///
/// # Safety
/// The pointers are NULL or valid, and the length that of the room.
pub(super) unsafe fn get(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if value.is_null() || length.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not NULL, so a length.
    let room = usize::try_from(unsafe { length.read() }).unwrap_or(0);
    let write = |octets: &[u8]| {
        let some = octets.len().min(room);
        // SAFETY: as much room as the program names.
        unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), value.cast(), some) };
        let written = socklen_t::try_from(some).unwrap_or(0);
        // SAFETY: as above.
        unsafe { length.write(written) };
    };
    if level == SOL_RDMA && name == RDMA_ROUTE {
        // No path records: routes are the system's.
        write(&[]);
        return Ok(());
    }
    match socket {
        Socket::Datagram(datagram) if level != SOL_RDMA => {
            let fd = datagram.udp().as_raw_fd();
            // SAFETY: the program's room.
            match unsafe { libc::getsockopt(fd, level, name, value, length) } {
                0 => Ok(()),
                _ => Err(Errno::last()),
            }
        }
        Socket::Companion(companion) if level == SOL_RDMA && name == DGIWARP_LANE => {
            write(&c_int::from(companion.is_lane()).to_ne_bytes());
            Ok(())
        }
        Socket::Companion(_) => Err(Errno::ENOTSUP),
        Socket::Datagram(datagram) => {
            let sizes = datagram.lock().sizes;
            write(&size(&sizes, name).ok_or(Errno::ENOTSUP)?.to_ne_bytes());
            Ok(())
        }
        Socket::Stream(stream) if level == SOL_SOCKET && name == SO_LINGER => {
            let lingers = c_int::from(stream.lock().options.lingers);
            let octets = [lingers.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
            write(&octets);
            Ok(())
        }
        Socket::Stream(stream) => {
            let number = number(stream, level, name).ok_or(Errno::ENOTSUP)?;
            write(&number.to_ne_bytes());
            Ok(())
        }
    }
}

fn size(sizes: &dgiwarp_sockets::Config, name: c_int) -> Option<c_int> {
    Some(match name {
        RDMA_SQSIZE => sizes.send_entries.into(),
        RDMA_RQSIZE => sizes.receive_entries.into(),
        RDMA_INLINE => c_int::try_from(sizes.inline).unwrap_or(c_int::MAX),
        RDMA_IOMAPSIZE => sizes.io_maps.into(),
        _ => return None,
    })
}

/// The value of an option that is a number.
fn number(stream: &StreamSocket, level: c_int, name: c_int) -> Option<c_int> {
    let sizes = stream.sizes();
    let octets = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    if level == SOL_SOCKET && name == SO_ERROR {
        // A result that was not fetched yet counts.
        let _ = stream.finish_connect();
        let error = stream.lock().error.take();
        let error = error.or_else(|| stream.connected()?.lock().take_error());
        return Some(error.map_or(0, |errno| errno as c_int));
    }
    if level == SOL_RDMA && name == DGIWARP_LANE {
        let counters = stream.connected()?.qp.counters();
        let octets = counters.lane_octets_sent | counters.lane_octets_received;
        return Some((octets != 0).into());
    }
    let state = stream.lock();
    let options = &state.options;
    Some(match (level, name) {
        (SOL_SOCKET, SO_REUSEADDR) => options.reuse.into(),
        (SOL_SOCKET, SO_KEEPALIVE) => options.keep_alive.into(),
        (SOL_SOCKET, SO_OOBINLINE) => options.oob_inline.into(),
        (SOL_SOCKET, SO_RCVBUF) => octets(sizes.receive_octets),
        (SOL_SOCKET, SO_SNDBUF) => octets(sizes.send_octets),
        // Beyond rdma-core: programs ask for these of any socket.
        (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM,
        (SOL_SOCKET, SO_PROTOCOL) => IPPROTO_TCP,
        (SOL_SOCKET, SO_DOMAIN) if options.v6 => libc::AF_INET6,
        (SOL_SOCKET, SO_DOMAIN) => libc::AF_INET,
        (SOL_SOCKET, SO_ACCEPTCONN) => state.listens().into(),
        (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL) => 1,
        (IPPROTO_TCP, TCP_KEEPIDLE) => octets(options.keep_alive_seconds),
        (IPPROTO_TCP, TCP_NODELAY) => options.no_delay.into(),
        (IPPROTO_TCP, TCP_MAXSEG) => 2048,
        (IPPROTO_IPV6, IPV6_V6ONLY) => options.only_v6.into(),
        (SOL_RDMA, _) => return size(&sizes, name),
        _ => return None,
    })
}
