//! UDP sockets and their companions: a UD queue pair beside a UDP socket, by which datagrams of programs of one host go.
//!
//! The socket stays the kernel's with all that the program does with it. The first call that waits for datagrams, or one of the first that sends some, makes the companion; the rsockets below find
//! out which peers have one too (`rfc-notes/rsockets.md` §7). Everything else is the kernel's: datagrams of and to others, errors, and all options.

use crate::children;
use crate::policy;
use crate::process;
use crate::records::{self, Connection};
use crate::rules::{Direction, Protocol};
use crate::system::address;
use crate::system::{errno, kernel, report, rsockets};
use crate::table::{self, Face, Shared, Udp};
use dgiwarp_memory::socket::NoCancellation;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_SOCKET, c_int, sockaddr, socklen_t};
use std::env;
use std::sync::OnceLock;

/// Datagrams after which a socket that only sends has a companion.
const FIRST: u8 = 8;

/// Options that give a program something that no queue pair has, or datagrams that are not whole.
const PLAIN_OPTIONS: &[(c_int, &[c_int])] = &[
    (
        SOL_SOCKET,
        &[
            libc::SO_ATTACH_FILTER,
            libc::SO_ATTACH_BPF,
            libc::SO_BINDTODEVICE,
            libc::SO_PEEK_OFF,
            libc::SO_REUSEPORT,
            libc::SO_RXQ_OVFL,
            libc::SO_TIMESTAMP,
            libc::SO_TIMESTAMPING,
            libc::SO_TIMESTAMPNS,
            // Their numbers with times of 64 bits on all machines.
            63,
            64,
            65,
        ],
    ),
    (
        IPPROTO_IP,
        &[
            libc::IP_ORIGDSTADDR,
            libc::IP_PKTINFO,
            libc::IP_RECVERR,
            libc::IP_RECVOPTS,
            libc::IP_RECVTOS,
            libc::IP_RECVTTL,
            libc::IP_RETOPTS,
            libc::IP_TRANSPARENT,
        ],
    ),
    (
        IPPROTO_IPV6,
        &[
            libc::IPV6_ORIGDSTADDR,
            libc::IPV6_RECVERR,
            libc::IPV6_RECVHOPLIMIT,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_RECVTCLASS,
            libc::IPV6_TRANSPARENT,
        ],
    ),
    (
        IPPROTO_UDP,
        // UDP_CORK, UDP_ENCAP, UDP_SEGMENT and UDP_GRO.
        &[1, 100, 103, 104],
    ),
];

/// The companion of a socket, made by the first call; `None` where it has none.
pub(crate) fn companion(fd: c_int) -> Option<Connection> {
    loop {
        match table::get(fd)? {
            Face::Datagram { rsocket, slot } => return Some(Connection { rsocket, slot }),
            Face::ParentsDatagram => {
                children::end_companions();
                table::replace(fd, None);
                return None;
            }
            Face::Udp(Udp { making: true, .. }) => drop(kernel::poll(&mut [], 1)),
            Face::Udp(udp) if process::is_owner() => {
                let making = Face::Udp(Udp {
                    making: true,
                    ..udp
                });
                if table::change(fd, Face::Udp(udp), making) {
                    return make(fd, udp);
                }
            }
            _ => return None,
        }
    }
}

fn make(fd: c_int, udp: Udp) -> Option<Connection> {
    let error = errno::get();
    let made = allowed(fd).and_then(|()| {
        let no = "the socket has no companion";
        let bell = children::companions_bell().ok_or("descriptors are scarce")?;
        let rsocket = rsockets::companion(fd).ok_or(no)?;
        rsockets::set_bell(rsocket, bell);
        if kernel::has_descriptors(kernel::lowest_free(fd)) {
            return Ok(rsocket);
        }
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
        Err("descriptors are scarce")
    });
    let result = match made {
        Ok(rsocket) => {
            let slot = records::datagram(fd, None);
            let first = Shared {
                faces: 1,
                ..Shared::default()
            };
            table::shared().insert(rsocket, first);
            let companion = Connection { rsocket, slot };
            if udp.is_bound {
                offer(fd, companion);
            }
            table::replace(fd, Some(Face::Datagram { rsocket, slot }));
            Some(companion)
        }
        Err(reason) => {
            be_plain(fd, reason);
            None
        }
    };
    errno::set(error);
    result
}

/// Whether a socket may have a companion at all.
fn allowed(fd: c_int) -> Result<(), &'static str> {
    static SAME_HOST: OnceLock<bool> = OnceLock::new();
    let same_host = SAME_HOST.get_or_init(|| env::var("DGIWARP_SAME_HOST").as_deref() != Ok("off"));
    if !same_host {
        return Err("DGIWARP_SAME_HOST is off");
    }
    if children::use_connections() {
        return Err("a child uses a socket of its parent");
    }
    if !rsockets::are_there() {
        return Err("librdmacm.so.1 has no rsockets");
    }
    if kernel::option(fd, SOL_SOCKET, libc::SO_REUSEPORT).unwrap_or(0) != 0 {
        return Err("sockets share the port");
    }
    Ok(())
}

/// A socket that had no companion has none from now on.
fn be_plain(fd: c_int, reason: &'static str) {
    let slot = records::datagram(fd, Some(reason));
    table::replace(fd, (slot.0 != 0).then_some(Face::Plain(slot)));
    report::datagrams_plain(kernel::local(fd), reason);
}

/// The program has given a socket its address: peers find the companion, if it has one.
pub(crate) fn bound(fd: c_int) {
    match table::get(fd) {
        Some(before @ Face::Udp(udp)) => {
            let after = Face::Udp(Udp {
                is_bound: true,
                ..udp
            });
            table::change(fd, before, after);
        }
        Some(Face::Datagram { rsocket, slot }) => offer(fd, Connection { rsocket, slot }),
        _ => {}
    }
}

fn offer(fd: c_int, companion: Connection) {
    let Some(local) = kernel::local(fd) else {
        return;
    };
    let reason = if policy::decide(local.port(), Direction::Listen, Protocol::Udp) == Some(false) {
        Some("a rule")
    } else {
        let offered = kernel::without_signals(|| rsockets::offer(companion.rsocket));
        (!offered).then_some("another socket has the mark of the address")
    };
    match reason {
        None => report::companion(local),
        Some(reason) => {
            companion.slot.stays_plain(reason);
            report::datagrams_plain(Some(local), reason);
        }
    }
}

/// Looks for the companion of a destination.
///
/// # Safety
/// `to` is NULL or has `length` octets.
pub(crate) unsafe fn ask(fd: c_int, companion: Connection, to: *const sockaddr, length: socklen_t) {
    // SAFETY: the caller's contract.
    let peer = unsafe { address::read(to, length) }.or_else(|| kernel::peer(fd));
    let Some(peer) = peer else { return };
    if policy::decide(peer.port(), Direction::Connect, Protocol::Udp) == Some(false) {
        return;
    }
    // SAFETY: as above.
    kernel::without_signals(|| unsafe { rsockets::ask(companion.rsocket, to, length) });
}

/// Counts a datagram that a socket without a companion sends.
pub(crate) fn sends(fd: c_int, udp: Udp) -> Option<Connection> {
    if udp.sent >= FIRST {
        return companion(fd);
    }
    let after = Udp {
        sent: udp.sent + 1,
        ..udp
    };
    table::change(fd, Face::Udp(udp), Face::Udp(after));
    None
}

/// The program has set an option of a socket to a value.
pub(crate) fn option_set(fd: c_int, level: c_int, name: c_int, is_on: bool) {
    let asks_for_more = is_on
        && PLAIN_OPTIONS
            .iter()
            .any(|(it, names)| *it == level && names.contains(&name));
    if asks_for_more {
        retire(fd, "an option of the socket");
    }
}

/// The socket is the kernel's from now on.
pub(crate) fn retire(fd: c_int, reason: &'static str) {
    match table::get(fd) {
        Some(before @ Face::Udp(udp)) => {
            let making = Face::Udp(Udp {
                making: true,
                ..udp
            });
            if !udp.making && table::change(fd, before, making) {
                be_plain(fd, reason);
            }
        }
        Some(Face::Datagram { rsocket, slot }) => {
            rsockets::retire(rsocket);
            slot.stays_plain(reason);
            report::datagrams_plain(kernel::local(fd), reason);
        }
        _ => {}
    }
}

/// Octets of the first datagram that has come by a companion.
pub(crate) fn first(companion: c_int) -> Option<c_int> {
    let _guard = NoCancellation::begin();
    let flags = libc::MSG_PEEK;
    // SAFETY: no room.
    let octets = unsafe { rsockets::rrecv(companion, std::ptr::null_mut(), 0, flags) };
    c_int::try_from(octets).ok().filter(|it| *it >= 0)
}
