//! Connections that become rsockets as they are made.

use crate::lifetimes::lifetimes;
use crate::peers;
use crate::policy;
use crate::records;
use crate::rules::{Direction, Protocol};
use crate::system::address::{self, length_of};
use crate::system::kernel;
use crate::system::rsockets;
use crate::system::{errno, report};
use crate::table;
use dgiwarp_memory::socket::NoCancellation;
use libc::{POLLERR, POLLHUP, POLLOUT, SOL_SOCKET, c_int, sockaddr, socklen_t, timeval};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Longest attempt, after which the connection is the kernel's.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connection that is to be the kernel's: the peer, and the reason.
pub(crate) type Plain = (SocketAddr, &'static str);

/// Connects a socket of the program by an rsocket.
///
/// # Errors
/// It is to be the kernel's; `None` where that connects to no port either.
///
/// # Safety
/// `to` is NULL or has `length` octets.
pub(crate) unsafe fn connect(
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<c_int, Option<Plain>> {
    let _guard = NoCancellation::begin();
    // SAFETY: the caller's contract.
    let peer = unsafe { address::read(to, length) };
    let peer = peer.filter(|it| it.port() != 0).ok_or(None)?;
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    // SAFETY: as above.
    match unsafe { attempt(fd, peer, to, length) } {
        Ok(rsocket) => {
            // SAFETY: as above.
            let named = unsafe { address::with_port(to, length, peer.port()) };
            let length = length.min(length_of::<libc::sockaddr_storage>());
            let slot = records::upgraded(fd, rsocket, Some(peer));
            table::connected(fd, rsocket, slot, Some((named, length)));
            let made = now();
            if let Some(state) = table::shared().get_mut(&rsocket) {
                state.made = Some((peer, made));
            }
            lifetimes().get_or_insert_default().made(peer);
            take_timeouts(fd, rsocket);
            report::upgraded(Direction::Connect, Some(peer));
            Ok(rsocket)
        }
        Err(reason) => {
            report::plain(peer, reason);
            Err(Some((peer, reason)))
        }
    }
}

/// # Safety
/// As for [`connect`].
unsafe fn attempt(
    fd: c_int,
    peer: SocketAddr,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<c_int, &'static str> {
    let rule = policy::decide(peer.port(), Direction::Connect, Protocol::Tcp);
    if rule == Some(false) {
        return Err("a rule");
    }
    let mut lifetimes = lifetimes();
    if rule.is_none() && !lifetimes.get_or_insert_default().allow(peer, now()) {
        return Err("connections to the server were short");
    }
    drop(lifetimes);
    if kernel::local(fd).is_none_or(|it| it.port() != 0) {
        return Err("the socket has a port already");
    }
    if !rsockets::are_there() {
        return Err("librdmacm.so.1 has no rsockets");
    }
    let port = peers::check(unspecified_is_local(peer))?;
    // SAFETY: the program's address.
    let to = unsafe { address::with_port(to, length, port) };
    let length = length.min(length_of::<libc::sockaddr_storage>());
    let domain = if length >= length_of::<libc::sockaddr_in6>() && peer_is_v6(fd) {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    // SAFETY: numbers only.
    let rsocket = unsafe { rsockets::rsocket(domain, libc::SOCK_STREAM, 0) };
    if rsocket < 0 {
        return Err("the device makes no rsockets");
    }
    if !kernel::has_descriptors(rsocket) {
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
        return Err("descriptors are scarce");
    }
    rsockets::set_nonblocking(rsocket, true);
    // SAFETY: an address of this length.
    let begun = unsafe { rsockets::rconnect(rsocket, (&raw const to).cast(), length) } == 0
        || errno::get() == libc::EINPROGRESS;
    let result = if begun {
        wait(rsocket)
    } else {
        Err("the attempt failed at once")
    };
    if let Err(reason) = result {
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
        peers::avoid(peer, reason);
        return Err(reason);
    }
    rsockets::set_nonblocking(rsocket, kernel::is_nonblocking(fd));
    rsockets::be_tcp(rsocket);
    Ok(rsocket)
}

fn unspecified_is_local(mut peer: SocketAddr) -> SocketAddr {
    if peer.ip().is_unspecified() {
        peer.set_ip(match peer.ip() {
            IpAddr::V4(_) => [127, 0, 0, 1].into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    peer
}

fn peer_is_v6(fd: c_int) -> bool {
    kernel::option(fd, SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6)
}

#[expect(clippy::disallowed_methods, reason = "the attempt has a deadline")]
fn now() -> Instant {
    Instant::now()
}

/// A connection that this process made is closed.
pub(crate) fn closed((peer, made): (SocketAddr, Instant)) {
    let mut lifetimes = lifetimes();
    lifetimes.get_or_insert_default().closed(peer, made, now());
}

/// Waits for the result of an attempt.
fn wait(rsocket: c_int) -> Result<(), &'static str> {
    let deadline = now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(now());
        let left = c_int::try_from(left.as_millis()).unwrap_or(0);
        match rsockets::poll_one(rsocket, POLLOUT, left) {
            Some(0) => return Err("the peer does not answer"),
            // A connection that the server has closed since has none.
            Some(events)
                if events & (POLLERR | POLLHUP) != 0 && rsockets::take_error(rsocket) != 0 =>
            {
                return Err("the peer has no rsockets");
            }
            Some(_) => return Ok(()),
            // A signal.
            None if left > 0 => {}
            None => return Err("the peer does not answer"),
        }
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO` as the kernel's socket has it.
fn timeout(fd: c_int, name: c_int) -> timeval {
    let mut time = timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut length = length_of::<timeval>();
    let value = (&raw mut time).cast();
    // SAFETY: room for a time, and its length.
    unsafe { crate::system::next::getsockopt(fd, SOL_SOCKET, name, value, &raw mut length) };
    time
}

/// Takes over the times that calls on a connection wait at most.
pub(crate) fn take_timeouts(fd: c_int, rsocket: c_int) {
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let time = timeout(fd, name);
        let value = (&raw const time).cast();
        // SAFETY: a time, and its length.
        unsafe { rsockets::rsetsockopt(rsocket, SOL_SOCKET, name, value, length_of::<timeval>()) };
    }
}

/// Milliseconds that accept(2) waits at most; negative is for ever.
pub(crate) fn accept_timeout(fd: c_int) -> c_int {
    let time = timeout(fd, libc::SO_RCVTIMEO);
    let micros = time.tv_sec.saturating_mul(1_000_000) + time.tv_usec;
    match c_int::try_from(micros.saturating_add(999) / 1000) {
        Ok(0) => -1,
        Ok(millis) => millis,
        Err(_) => c_int::MAX,
    }
}
