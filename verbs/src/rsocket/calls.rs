//! The C functions: each checks pointers, finds the socket, calls its method and converts the result.

use crate::abi::AF_IB;
use crate::cm::addr::address;
use crate::device::at_exit;
use crate::ffi::{check_memory, entry, minus_one, minus_one_making};
use crate::rsocket::cancellation::{Begin, cancellable};
use crate::rsocket::companion::socket::Companion;
use crate::rsocket::datagram::socket::DatagramSocket;
use crate::rsocket::iovec::{Vectors, many, one};
use crate::rsocket::options;
use crate::rsocket::poll;
use crate::rsocket::poll_set::{self, PollSet};
use crate::rsocket::stream::io_map::Request;
use crate::rsocket::stream::socket::StreamSocket;
use crate::rsocket::table::{self, Socket};
use crate::rsocket::wait::Waiting;
use dgiwarp_sockets::Shutdown;
use libc::{
    F_DUPFD, F_GETFD, F_GETFL, F_SETFD, F_SETFL, O_NONBLOCK, c_int, c_long, fd_set, iovec, msghdr,
    nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval,
};
use nix::errno::Errno;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::Duration;

/// Beyond rdma-core, for the preload library: a companion of the UDP socket whose descriptor is the protocol.
const DGIWARP_COMPANION: c_int = 0x6477_0003;

/// Convention of calls that return a number of octets: -1 and errno. They are cancellation points ([`cancellable`]).
fn octets(mut attempt: impl FnMut() -> Result<usize, Errno>) -> ssize_t {
    cancellable(-1, || {
        attempt().map(|count| ssize_t::try_from(count).unwrap_or(ssize_t::MAX))
    })
}

/// A call that sends or receives, between its attempts.
#[derive(Default)]
struct Call {
    flags: c_int,
    /// How the call waits, from the first attempt on.
    waiting: Option<Waiting>,
    /// Octets of earlier attempts.
    done: usize,
}

impl Call {
    fn new(flags: c_int) -> Self {
        Self {
            flags,
            ..Self::default()
        }
    }
}

/// The program's address.
///
/// # Safety
/// `pointer` is NULL or an address of `length` octets.
unsafe fn read_address(pointer: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Errno> {
    if pointer.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not NULL; every address begins with its family.
    let family = c_int::from(unsafe { (*pointer).sa_family });
    let needed = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        AF_IB => 0,
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    if usize::try_from(length).unwrap_or(0) < needed {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's contract.
    unsafe { address::read_any(pointer) }
}

/// Writes an address, cut to the program's room, and its length.
///
/// # Safety
/// The pointers are NULL or valid, and the length that of the room.
unsafe fn write_address(
    address: SocketAddr,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno::EFAULT);
    }
    let (storage, needed) = address::write(address);
    // SAFETY: not NULL, so a length.
    let room = unsafe { length.read() };
    let some = usize::try_from(room.min(needed)).unwrap_or(0);
    if !to.is_null() {
        // SAFETY: as much room as the program names, and no more than the address has.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), some);
        };
    }
    // SAFETY: as above.
    unsafe { length.write(needed) };
    Ok(())
}

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one_making(|| {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 | AF_IB => true,
            _ => return Err(Errno::ENOTSUP),
        };
        at_exit::before(table::leave);
        match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Socket::Stream(StreamSocket::new(v6)?).enter()
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Socket::Datagram(DatagramSocket::new(v6)?).enter()
            }
            (DGIWARP_COMPANION, 0..) => {
                // SAFETY: the preload library's descriptor, which stays open for the call.
                let udp = unsafe { BorrowedFd::borrow_raw(protocol) };
                Socket::Companion(Companion::new(udp)?).enter()
            }
            _ => Err(Errno::ENOTSUP),
        }
    })
}

pub(crate) unsafe extern "C" fn rbind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    minus_one_making(|| {
        let socket = Socket::get(fd)?;
        // SAFETY: the program's address.
        let to = unsafe { read_address(to, length) }?;
        match socket {
            Socket::Stream(stream) => stream.bind(to).map(|()| 0),
            Socket::Datagram(datagram) => {
                options::bind_udp(datagram.udp(), to)?;
                datagram.begin().map(|()| 0)
            }
            Socket::Companion(_) => Err(Errno::EOPNOTSUPP),
        }
    })
}

pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    minus_one_making(|| Socket::stream(fd)?.listen(backlog).map(|()| 0))
}

pub(crate) unsafe extern "C-unwind" fn raccept(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    cancellable(-1, || {
        let accepted = Socket::stream(fd)?.accept()?;
        let peer = accepted.lock().peer;
        let fd = Socket::Stream(accepted).enter()?;
        if let Some(peer) = peer
            && !from.is_null()
            && !length.is_null()
        {
            // SAFETY: the program's room.
            unsafe { write_address(peer, from, length) }?;
        }
        Ok(fd)
    })
}

pub(crate) unsafe extern "C-unwind" fn rconnect(
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    cancellable(-1, || {
        check_memory()?;
        let socket = Socket::get(fd)?;
        // SAFETY: the program's address.
        let to = unsafe { read_address(to, length) }?;
        match socket {
            Socket::Stream(stream) => stream.connect(to).map(|()| 0),
            Socket::Datagram(datagram) => datagram.connect(to).map(|()| 0),
            Socket::Companion(_) => Err(Errno::EOPNOTSUPP),
        }
    })
}

pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    minus_one(|| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::EINVAL),
        };
        Socket::stream(fd)?.shut_down(how).map(|()| 0)
    })
}

pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    minus_one(|| {
        if PollSet::close(fd) {
            return Ok(0);
        }
        let socket = Socket::remove(fd)?;
        poll_set::forget(&socket);
        match socket {
            Socket::Stream(stream) => stream.close(),
            Socket::Datagram(datagram) => datagram.close(),
            Socket::Companion(companion) => companion.close(),
        }
        Ok(0)
    })
}

impl Call {
    /// Receives into vectors. Returns the octets, and the source where the socket has one for each datagram.
    ///
    /// # Safety
    /// The vectors are valid for the call, and those of its earlier attempts.
    unsafe fn receive(
        &mut self,
        fd: c_int,
        vectors: &[iovec],
    ) -> Result<(usize, Option<SocketAddr>), Errno> {
        let flags = self.flags;
        // SAFETY: the caller's contract.
        let mut to = unsafe { Vectors::new(vectors) }?;
        match Socket::get(fd)? {
            Socket::Stream(stream) => {
                let waiting = *self.waiting.get_or_insert_with(|| stream.receiving(flags));
                to.skip(self.done);
                let connection = stream.connection()?;
                let received = connection.receive(&mut to, flags, waiting);
                self.done = to.done();
                let count = received?;
                let peer = stream.lock().peer;
                Ok((count, peer))
            }
            Socket::Datagram(datagram) => {
                let room = to.left();
                let (count, source) = datagram.receive(&mut to, flags, datagram.waiting(flags))?;
                let count = if flags & libc::MSG_TRUNC == 0 {
                    count.min(room)
                } else {
                    count
                };
                Ok((count, Some(source)))
            }
            Socket::Companion(companion) => {
                let taken = companion.receive(&mut to, flags)?;
                Ok((taken.octets, Some(taken.source)))
            }
        }
    }

    /// Sends from vectors.
    ///
    /// # Safety
    /// As for [`receive`](Self::receive).
    unsafe fn send(
        &mut self,
        fd: c_int,
        vectors: &[iovec],
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let flags = self.flags;
        // SAFETY: the caller's contract.
        let mut from = unsafe { Vectors::new(vectors) }?;
        match Socket::get(fd)? {
            Socket::Stream(_) if to.is_some() => Err(Errno::EISCONN),
            Socket::Stream(stream) => {
                let waiting = *self.waiting.get_or_insert_with(|| stream.sending(flags));
                from.skip(self.done);
                let sent = stream.connection()?.send(&mut from, waiting);
                self.done = from.done();
                sent
            }
            Socket::Datagram(datagram) => datagram.send(&mut from, to, datagram.waiting(flags)),
            Socket::Companion(companion) => companion.send(&mut from, to),
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn rrecv(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        // SAFETY: the program's buffer.
        unsafe { call.receive(fd, &[one(buffer, length)]) }.map(|(count, _)| count)
    })
}

pub(crate) unsafe extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        // SAFETY: the program's buffer.
        let (count, source) = unsafe { call.receive(fd, &[one(buffer, length)]) }?;
        if let Some(source) = source
            && !from.is_null()
        {
            // SAFETY: the program's room.
            unsafe { write_address(source, from, from_length) }?;
        }
        Ok(count)
    })
}

pub(crate) unsafe extern "C-unwind" fn rrecvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        // SAFETY: NULL, or the program's header.
        let message = unsafe { message.as_mut() }.ok_or(Errno::EFAULT)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::ENOTSUP);
        }
        // SAFETY: as many vectors as the header has.
        let vectors = unsafe { many(message.msg_iov, message.msg_iovlen) }?;
        // SAFETY: the program's vectors.
        let (count, source) = unsafe { call.receive(fd, vectors) }?;
        message.msg_flags = 0;
        message.msg_controllen = 0;
        if let Some(source) = source
            && !message.msg_name.is_null()
        {
            let name = message.msg_name.cast();
            // SAFETY: the program's room.
            unsafe { write_address(source, name, &raw mut message.msg_namelen) }?;
        }
        Ok(count)
    })
}

pub(crate) unsafe extern "C-unwind" fn rread(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { rrecv(fd, buffer, length, 0) }
}

pub(crate) unsafe extern "C-unwind" fn rreadv(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
) -> ssize_t {
    let mut call = Call::default();
    octets(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the program's vectors.
        let vectors = unsafe { many(vectors, count) }?;
        // SAFETY: as above.
        unsafe { call.receive(fd, vectors) }.map(|(count, _)| count)
    })
}

pub(crate) unsafe extern "C-unwind" fn rsend(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        // SAFETY: the program's buffer.
        unsafe { call.send(fd, &[one(buffer, length)], None) }
    })
}

pub(crate) unsafe extern "C-unwind" fn rsendto(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        let to = if to.is_null() {
            None
        } else {
            // SAFETY: the program's address.
            Some(unsafe { read_address(to, to_length) }?)
        };
        // SAFETY: the program's buffer.
        unsafe { call.send(fd, &[one(buffer, length)], to) }
    })
}

pub(crate) unsafe extern "C-unwind" fn rsendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let mut call = Call::new(flags);
    octets(|| {
        // SAFETY: NULL, or the program's header.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EFAULT)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::ENOTSUP);
        }
        let to = if message.msg_name.is_null() {
            None
        } else {
            // SAFETY: the program's address.
            Some(unsafe { read_address(message.msg_name.cast(), message.msg_namelen) }?)
        };
        // SAFETY: as many vectors as the header has.
        let vectors = unsafe { many(message.msg_iov, message.msg_iovlen) }?;
        // SAFETY: the program's vectors.
        unsafe { call.send(fd, vectors, to) }
    })
}

pub(crate) unsafe extern "C-unwind" fn rwrite(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { rsend(fd, buffer, length, 0) }
}

pub(crate) unsafe extern "C-unwind" fn rwritev(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
) -> ssize_t {
    let mut call = Call::default();
    octets(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the program's vectors.
        let vectors = unsafe { many(vectors, count) }?;
        // SAFETY: as above.
        unsafe { call.send(fd, vectors, None) }
    })
}

/// Readiness calls: where no socket is among the descriptors, the kernel's poll(2) is the cancellation point.
///
/// # Safety
/// `fds` is NULL or has `count` descriptors.
pub(crate) unsafe extern "C-unwind" fn rpoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    let array = || {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        match (fds.is_null(), count) {
            (_, 0) => Ok(&mut [][..]),
            (true, _) => Err(Errno::EFAULT),
            // SAFETY: the program's array.
            (false, count) => Ok(unsafe { std::slice::from_raw_parts_mut(fds, count) }),
        }
    };
    let mut begin = Begin::default();
    let ready = cancellable(Some(-1), || {
        let ready = poll::rpoll(array()?, timeout, &mut begin)?;
        Ok(ready.map(|it| c_int::try_from(it).unwrap_or(c_int::MAX)))
    });
    match (ready, array()) {
        (Some(ready), _) => ready,
        (None, array) => crate::ffi::poll(array.unwrap_or_default(), timeout),
    }
}

pub(crate) unsafe extern "C-unwind" fn rselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let mut begin = Begin::default();
    cancellable(-1, || {
        // SAFETY: NULL, or the program's time.
        let timeout = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let sets = [reads, writes, exceptions];
        // SAFETY: the program's sets.
        let ready = unsafe { poll::rselect(count, sets, timeout, &mut begin) }?;
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let peer = match Socket::get(fd)? {
            Socket::Stream(stream) => stream.peer_addr(),
            Socket::Datagram(datagram) => datagram.udp().peer_addr().ok(),
            Socket::Companion(_) => None,
        };
        // SAFETY: the program's room.
        unsafe { write_address(peer.ok_or(Errno::ENOTCONN)?, to, length) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let local = match Socket::get(fd)? {
            Socket::Stream(stream) => stream.local_addr(),
            Socket::Datagram(datagram) => {
                let local = datagram.udp().local_addr();
                local.map_err(|error| crate::ffi::errno::of_io(&error))?
            }
            Socket::Companion(_) => return Err(Errno::EOPNOTSUPP),
        };
        // SAFETY: the program's room.
        unsafe { write_address(local, to, length) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = Socket::get(fd)?;
        // SAFETY: the program's value.
        unsafe { options::set(&socket, level, name, value, length) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = Socket::get(fd)?;
        // SAFETY: the program's room.
        unsafe { options::get(&socket, level, name, value, length) }.map(|()| 0)
    })
}

/// fcntl(2) of a descriptor of ours, for commands without memory.
fn own_fcntl(fd: c_int, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    // SAFETY: the caller's contract; such commands have numbers only.
    match unsafe { libc::fcntl(fd, command, argument) } {
        -1 => Err(Errno::last()),
        flags => Ok(flags),
    }
}

/// `rfcntl(3)` has a variable argument, which is passed as any other.
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    minus_one(|| {
        let argument = c_int::try_from(argument & 0x7fff_ffff).unwrap_or(0);
        if PollSet::find(fd).is_ok() && matches!(command, F_GETFD | F_SETFD | F_GETFL | F_SETFL) {
            return own_fcntl(fd, command, argument);
        }
        let socket = Socket::get(fd)?;
        match command {
            F_GETFL => Ok(options::file_flags(&socket)),
            F_SETFL => {
                socket.set_nonblocking(argument & O_NONBLOCK != 0);
                options::set_file_flags(&socket, argument);
                Ok(0)
            }
            F_GETFD | F_SETFD => own_fcntl(fd, command, argument),
            F_DUPFD => match socket {
                Socket::Stream(stream) => Ok(stream.mailbox.duplicate(argument)?.into_raw_fd()),
                Socket::Datagram(_) | Socket::Companion(_) => Err(Errno::ENOTSUP),
            },
            _ => Err(Errno::ENOTSUP),
        }
    })
}

pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    entry(-1, || {
        let mapped = (|| {
            if protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
                return Err(Errno::EINVAL);
            }
            let connection = Socket::stream(fd)?.connection()?;
            let request = Request {
                buffer,
                length,
                remote: protection & libc::PROT_WRITE != 0,
                offset: (offset != -1).then(|| offset.cast_unsigned()),
            };
            // SAFETY: riomap(3): the memory stays until it is unmapped.
            unsafe { connection.map(&request) }
        })();
        match mapped {
            Ok(offset) => offset.cast_signed(),
            Err(errno) => {
                errno.set();
                -1
            }
        }
    })
}

pub(crate) unsafe extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, length: usize) -> c_int {
    minus_one(|| {
        let connection = Socket::stream(fd)?.connection()?;
        connection.unmap(buffer, length).map(|()| 0)
    })
}

pub(crate) unsafe extern "C-unwind" fn riowrite(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let mut call = Call::new(flags);
    let written = octets(|| {
        let stream = Socket::stream(fd)?;
        let waiting = *call.waiting.get_or_insert_with(|| stream.sending(flags));
        let connection = stream.connection()?;
        let vectors = [one(buffer, count)];
        // SAFETY: the program's buffer.
        let mut from = unsafe { Vectors::new(&vectors) }?;
        from.skip(call.done);
        let written = connection.write_to_map(&mut from, offset.cast_unsigned(), waiting);
        call.done = from.done();
        written
    });
    // riowrite(3) returns a number without a sign, as rdma-core declares it.
    written.cast_unsigned()
}
