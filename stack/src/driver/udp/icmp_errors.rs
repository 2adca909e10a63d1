//! ICMP errors about datagrams that were sent earlier, from the error queue of a socket (`IP_RECVERR` in ip(7)).
//!
//! The kernel also returns each of them from the next call on the socket, whatever that call was about. A call that returns
//! one is repeated after the error queue was read. An error queue that is not empty makes the socket ready, so it must be
//! read, or threads that sleep on the socket are woken at once.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::envelope;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

use crate::driver::udp::port::Port;
use crate::driver::udp::socket::socket_addr;

/// ICMP errors kept of one turn of work.
const MAX_ERRORS: usize = 32;
/// ICMP errors read at once: the rest stays in the queue, which makes the socket ready again.
const MAX_READ: usize = 64;
/// Octets for the control messages of one error: the error with the address of its reporter, and packet information.
const CONTROL: usize = 256;
/// Octets read of a datagram that an error is about: the envelope of a reliable datagram.
const QUOTED: usize = envelope::LEN;

/// ICMP errors of an unconnected port within [`PERIOD`] beyond which it has a flood of them.
const FLOOD: u64 = 256;
/// Time in which ICMP errors are counted.
const PERIOD: Duration = Duration::from_millis(100);
/// Time for which the kernel reports no ICMP errors of a flood.
const SILENCE: Duration = Duration::from_millis(500);

/// One ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// Destination of the datagram that caused the error.
    pub(crate) destination: Peer,
    /// `ECONNREFUSED` where nobody listens, `EHOSTUNREACH` and others of icmp(7).
    pub(crate) errno: i32,
    /// Beginning of the datagram, and octets of it that the error has.
    quoted: ([u8; QUOTED], usize),
}

impl IcmpError {
    /// The beginning of the datagram, as far as the error has it: 24 octets at most.
    pub(crate) fn quoted(&self) -> &[u8] {
        let (octets, length) = &self.quoted;
        octets.get(..*length).unwrap_or_default()
    }
}

/// ICMP errors read in one turn of work, without allocating: a send that meets one may hold registered memory.
#[derive(Debug, Default)]
pub(crate) struct IcmpErrors {
    kept: ArrayVec<IcmpError, MAX_ERRORS>,
    /// Errors read and not kept.
    lost: u64,
    /// Errors of an unconnected port.
    unconnected: u64,
}

impl IcmpErrors {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn kept(&self) -> &[IcmpError] {
        &self.kept
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads the error queue of a port. Returns the number of ICMP errors. Errors of this host's own kernel
    /// are not counted and not kept: the call that caused them returned them.
    pub(crate) fn read(&mut self, port: &Port) -> usize {
        let mut count = 0;
        for _ in 0..MAX_READ {
            match read_one(port) {
                Read::Nothing => break,
                Read::Local => {}
                Read::Icmp(icmp_error) => {
                    count += 1;
                    self.lost += u64::from(self.kept.try_push(icmp_error).is_err());
                }
            }
        }
        if port.connected_from().is_none() {
            self.unconnected += u64::try_from(count).unwrap_or(u64::MAX);
        }
        count
    }
}

/// Limits the work that ICMP errors of an unconnected port cause. Each costs several system calls, and requests with forged addresses, where nobody receives
/// the answers, cause one each.
#[derive(Debug, Default)]
pub(crate) struct IcmpLimit {
    /// Beginning of a period, and errors in it.
    period: Option<(Instant, u64)>,
    silent_until: Option<Instant>,
}

impl IcmpLimit {
    /// Counts errors. Returns whether they are a flood: the kernel is to report none for a while.
    pub(crate) fn note(&mut self, now: Instant, errors: &IcmpErrors) -> bool {
        let begun = self
            .period
            .filter(|(since, _)| now.saturating_duration_since(*since) < PERIOD);
        let (since, before) = begun.unwrap_or((now, 0));
        let count = before + errors.unconnected;
        self.period = Some((since, count));
        let flood = count > FLOOD && self.silent_until.is_none();
        if flood {
            self.silent_until = Some(now + SILENCE);
        }
        flood
    }

    /// Whether the kernel is to report errors again.
    #[inline]
    pub(crate) fn ends(&mut self, now: Instant) -> bool {
        let ends = self.silent_until.take_if(|until| *until <= now).is_some();
        if ends {
            self.period = None;
        }
        ends
    }
}

enum Read {
    /// The queue is empty.
    Nothing,
    /// An entry that is no ICMP error.
    Local,
    Icmp(IcmpError),
}

fn read_one(socket: &impl AsFd) -> Read {
    let mut control = [0; CONTROL];
    let mut quoted = [0; QUOTED];
    let mut parts = [IoSliceMut::new(&mut quoted)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_fd().as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT,
    );
    let Ok(message) = message else {
        return Read::Nothing;
    };
    let Ok(mut controls) = message.cmsgs() else {
        return Read::Local;
    };
    let error = controls.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(error)
        }
        // Packet information of the error.
        _ => None,
    });
    let (address, length) = (message.address, message.bytes);
    match (address.and_then(socket_addr), error) {
        (Some(address), Some(error)) if error.ee_origin != libc::SO_EE_ORIGIN_LOCAL => {
            Read::Icmp(IcmpError {
                destination: Peer::ip(address),
                errno: i32::try_from(error.ee_errno).unwrap_or(libc::EIO),
                quoted: (quoted, length.min(QUOTED)),
            })
        }
        (Some(_) | None, _) => Read::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::device::clock;

    fn errors(unconnected: u64) -> IcmpErrors {
        IcmpErrors {
            unconnected,
            ..IcmpErrors::default()
        }
    }

    #[test]
    fn a_flood_is_silent_for_a_while() {
        let start = clock::now();
        let mut limit = IcmpLimit::default();
        assert!(!limit.note(start, &errors(FLOOD)));
        let next = start + PERIOD;
        assert!(!limit.note(next, &errors(FLOOD)), "another period");
        assert!(!limit.ends(next), "it was not silent");
        let last = next + PERIOD - Duration::from_nanos(1);
        assert!(limit.note(last, &errors(1)));
        assert!(!limit.note(last, &errors(1)), "it is silent");
        assert!(!limit.ends(last + SILENCE - Duration::from_nanos(1)));
        assert!(limit.ends(last + SILENCE));
        assert!(!limit.ends(last + SILENCE));
        assert!(
            !limit.note(last + SILENCE, &errors(FLOOD)),
            "it begins anew"
        );
    }

    #[test]
    fn errors_of_connected_ports_do_not_count() {
        let mut limit = IcmpLimit::default();
        let connected = IcmpErrors {
            lost: 10 * FLOOD,
            ..IcmpErrors::default()
        };
        assert!(!limit.note(clock::now(), &connected));
    }
}
