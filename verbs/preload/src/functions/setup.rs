//! Calls that make, connect and close sockets.

use crate::connect;
use crate::datagrams;
use crate::listener;
use crate::process;
use crate::records::{self, Connection};
use crate::rules::Direction;
use crate::sets;
use crate::system::{address, errno, kernel, next, report, rsockets};
use crate::table::{self, Face, Udp};
use dgiwarp_memory::socket::NoCancellation;
use libc::{
    SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET, c_int, c_uint, pollfd,
    sockaddr, socklen_t,
};
use std::sync::PoisonError;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    let plain = kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC);
    let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && plain == SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if fd >= 0 && is_tcp {
        process::begin();
        records::replace(fd, Some(Face::Socket));
    }
    let is_udp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && plain == SOCK_DGRAM
        && matches!(protocol, 0 | libc::IPPROTO_UDP);
    if fd >= 0 && is_udp {
        process::begin();
        records::replace(fd, Some(Face::Udp(Udp::default())));
    }
    fd
}

/// The UDP port of a listener's number may be bound by the program, which then has it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    if matches!(table::get(fd), Some(Face::Connection { .. })) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::bind(fd, to, length) };
    if result == 0 {
        datagrams::bound(fd);
    }
    if result == 0 || errno::get() != libc::EADDRINUSE {
        return result;
    }
    let is_udp = kernel::option(fd, SOL_SOCKET, libc::SO_TYPE) == Some(SOCK_DGRAM);
    // SAFETY: the caller's address.
    let address = unsafe { address::read(to, length) }.filter(|_| is_udp);
    if !address.is_some_and(|it| listener::yield_port(it.port())) {
        return errno::fail(libc::EADDRINUSE);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::bind(fd, to, length) };
    if result == 0 {
        datagrams::bound(fd);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if matches!(table::get(fd), Some(Face::Connection { .. })) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::listen(fd, backlog) };
    if result == 0 && table::get(fd) == Some(Face::Socket) {
        let id = listener::begin(fd, backlog);
        table::replace(fd, Some(Face::Listener(id)));
        // A set that has it already waits for connections.
        let is_waited_for = sets::has(fd);
        if (is_waited_for || listener::has_served(fd))
            && let Some(queue) = listener::queue(fd, id)
            && is_waited_for
        {
            sets::add_bell(fd, queue.bell);
        }
    }
    result
}

/// The program's descriptor for an accepted rsocket.
///
/// # Safety
/// `from` and `length` are NULL or the room for an address.
unsafe fn accepted(
    listener: c_int,
    rsocket: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let domain = kernel::option(listener, SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET);
    let flags = flags & (SOCK_NONBLOCK | SOCK_CLOEXEC);
    // SAFETY: numbers only.
    let fd = unsafe { next::socket(domain, SOCK_STREAM | flags, 0) };
    if fd < 0 {
        let error = errno::get();
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
        return errno::fail(error);
    }
    rsockets::set_nonblocking(rsocket, flags & SOCK_NONBLOCK != 0);
    rsockets::be_tcp(rsocket);
    // SAFETY: room of the caller.
    let peer = address::from(|to, length| unsafe { rsockets::rgetpeername(rsocket, to, length) });
    let slot = records::upgraded(fd, rsocket, peer);
    table::connected(fd, rsocket, slot, None);
    report::upgraded(Direction::Listen, peer);
    if !from.is_null() && !length.is_null() {
        // SAFETY: the caller's room.
        unsafe { rsockets::rgetpeername(rsocket, from, length) };
    }
    fd
}

/// The state of a listener, and the work of accept(2) where it has a connection.
enum Accepting {
    Done(c_int),
    /// The listener takes no rsockets.
    Plain,
    /// It is empty, and the call waits at these descriptors for so many milliseconds at most.
    Waits([pollfd; 2], c_int),
}

/// Accepts what is there already.
///
/// # Safety
/// The contract of accept4(2).
unsafe fn accept_now(
    fd: c_int,
    id: u32,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Accepting {
    let _guard = NoCancellation::begin();
    let Some(queue) = listener::queue(fd, id) else {
        return Accepting::Plain;
    };
    sets::add_bell(fd, queue.bell);
    if let Some(rsocket) = queue.take() {
        // SAFETY: the caller's room.
        return Accepting::Done(unsafe { accepted(fd, rsocket, from, length, flags) });
    }
    let _turn = queue.turn.lock().unwrap_or_else(PoisonError::into_inner);
    let waits = !kernel::is_nonblocking(fd);
    if waits && kernel::poll(&mut [kernel::readable(fd)], 0) <= 0 {
        let fds = [kernel::readable(fd), kernel::readable(queue.bell)];
        return Accepting::Waits(fds, connect::accept_timeout(fd));
    }
    // SAFETY: the caller's arguments.
    let accepted = unsafe { next::accept4(fd, from, length, flags) };
    if accepted >= 0 {
        report::accepted_plain();
        records::plain(accepted, None, false, "the peer connected without rsockets");
    }
    Accepting::Done(accepted)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(Face::Listener(id)) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::accept4(fd, from, length, flags) };
    };
    loop {
        // SAFETY: the caller's arguments.
        match unsafe { accept_now(fd, id, from, length, flags) } {
            Accepting::Done(accepted) => return accepted,
            Accepting::Plain => {
                // SAFETY: the caller's arguments.
                let accepted = unsafe { next::accept4(fd, from, length, flags) };
                if accepted >= 0 {
                    records::plain(accepted, None, false, "the listener takes no rsockets");
                }
                return accepted;
            }
            // A cancellation point, as accept(2) is one: nothing is held here.
            Accepting::Waits(mut fds, timeout) => {
                // SAFETY: two descriptors.
                match unsafe { next::poll(fds.as_mut_ptr(), 2, timeout) } {
                    0 => return errno::fail(libc::EAGAIN),
                    -1 => return -1,
                    _ => {}
                }
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { accept4(fd, from, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    let mut plain = None;
    match table::get(fd) {
        // SAFETY: the caller's arguments.
        Some(Face::Socket) => match unsafe { connect::connect(fd, to, length) } {
            Ok(rsocket) => {
                sets::upgrade(fd, rsocket);
                return 0;
            }
            Err(reason) => plain = reason,
        },
        Some(Face::Connection { .. }) => return errno::fail(libc::EISCONN),
        _ => {}
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::connect(fd, to, length) };
    if let (0, Some(Face::Datagram { rsocket, .. })) = (result, table::get(fd)) {
        rsockets::connected(rsocket);
    }
    let begun = result == 0 || errno::get() == libc::EINPROGRESS;
    if begun && table::get(fd) == Some(Face::Socket) {
        let error = errno::get();
        match plain {
            Some((peer, reason)) => records::plain(fd, Some(peer), result != 0, reason),
            None => drop(table::replace(fd, None)),
        }
        sets::forget(fd);
        errno::set(error);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match table::get(fd) {
        Some(Face::Connection { rsocket, slot }) => {
            // SAFETY: numbers only.
            let result = unsafe { rsockets::rshutdown(rsocket, how) };
            if result == 0 && how != libc::SHUT_RD {
                slot.closes();
            }
            result
        }
        Some(Face::Plain(slot)) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::shutdown(fd, how) };
            if result == 0 && how != libc::SHUT_RD {
                slot.closes();
            }
            result
        }
        Some(Face::Parents) => errno::fail(process::refuse()),
        Some(Face::Udp(_) | Face::Datagram { .. }) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::shutdown(fd, how) };
            if result == 0 {
                datagrams::retire(fd, "a direction was shut down");
            }
            result
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { next::shutdown(fd, how) },
    }
}

/// The descriptor is about to be closed. Returns the rsocket that ends with it.
fn leave(fd: c_int) -> Option<Connection> {
    let face = table::get(fd)?;
    if !process::is_owner() {
        return None;
    }
    table::replace(fd, None);
    match face {
        Face::Socket => sets::forget(fd),
        Face::Listener(id) => {
            sets::forget(fd);
            listener::leave(id);
        }
        Face::Connection { rsocket, slot } | Face::Datagram { rsocket, slot } => {
            let mut shared = table::shared();
            let state = shared.get_mut(&rsocket)?;
            state.faces -= 1;
            if state.faces == 0 {
                let made = shared.remove(&rsocket).and_then(|it| it.made);
                drop(shared);
                sets::forget_rsocket(rsocket);
                if let Some(made) = made {
                    connect::closed(made);
                }
                return Some(Connection { rsocket, slot });
            }
        }
        Face::PollSet { poll_set, .. } => sets::close(fd, Some(poll_set)),
        Face::Plain(slot) => slot.leave(),
        Face::Parents | Face::Udp(_) | Face::ParentsDatagram => {}
    }
    None
}

fn end(connection: Option<Connection>) {
    if let Some(Connection { rsocket, slot }) = connection {
        slot.closes();
        // SAFETY: an rsocket whose last descriptor is closed.
        unsafe { rsockets::rclose(rsocket) };
        slot.leave();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if table::get(fd).is_none() {
        // SAFETY: the caller's arguments.
        return unsafe { next::close(fd) };
    }
    let ended = leave(fd);
    // SAFETY: the caller's arguments.
    let result = unsafe { next::close(fd) };
    let error = errno::get();
    end(ended);
    errno::set(error);
    result
}

fn leave_range(first: c_uint, last: c_uint) {
    for (fd, _) in table::all() {
        if (first..=last).contains(&fd.cast_unsigned()) {
            end(leave(fd));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & 4 == 0 && process::is_owner() {
        // Without CLOSE_RANGE_CLOEXEC.
        leave_range(first, last);
    }
    // SAFETY: the caller's arguments.
    unsafe { next::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0).cast_unsigned();
    // SAFETY: numbers only.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// Gives a duplicate its face.
pub(super) fn duplicated(fd: c_int, to: c_int) {
    if matches!(table::get(fd), Some(Face::Udp(_))) && to >= 0 && fd != to {
        // Both have one companion.
        datagrams::companion(fd);
    }
    let Some(face) = table::get(fd).filter(|_| to >= 0 && fd != to && process::is_owner()) else {
        return;
    };
    match face {
        Face::Listener(id) => listener::share(id),
        Face::Connection { rsocket, .. } | Face::Datagram { rsocket, .. } => {
            if let Some(shared) = table::shared().get_mut(&rsocket) {
                shared.faces += 1;
            }
        }
        Face::Plain(slot) => slot.share(),
        Face::Socket | Face::Parents | Face::Udp(_) | Face::ParentsDatagram => {}
        // The duplicate has the kernel's members.
        Face::PollSet { .. } => return,
    }
    table::replace(to, Some(face));
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let to = unsafe { next::dup(fd) };
    duplicated(fd, to);
    to
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    let ended = if fd == to { None } else { leave(to) };
    // SAFETY: the caller's arguments.
    let result = unsafe { next::dup2(fd, to) };
    duplicated(fd, result);
    let error = errno::get();
    end(ended);
    errno::set(error);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let ended = if fd == to { None } else { leave(to) };
    // SAFETY: the caller's arguments.
    let result = unsafe { next::dup3(fd, to, flags) };
    duplicated(fd, result);
    let error = errno::get();
    end(ended);
    errno::set(error);
    result
}

/// Peers of connections get what was sent, and then the end, as from the kernel.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    process::end();
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    // SAFETY: not reached.
    unsafe { libc::abort() }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: the same function by another name.
    unsafe { _exit(status) }
}
