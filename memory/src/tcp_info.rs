//! State of a TCP connection (`TCP_INFO` of `tcp(7)`), for which no safe wrapper exists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Octets of `struct tcp_info` up to the last field used.
const LEN: usize = 148;
const PROBES: usize = 3;
const UNACKED: usize = 24;
const LAST_ACK_RECEIVED: usize = 56;
const NOT_SENT: usize = 144;

/// Progress of a TCP connection with the octets that it has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpProgress {
    /// TCP segments without a TCP acknowledgement.
    pub unacknowledged: u32,
    /// Octets that did not leave yet: the peer's window is closed, or the congestion window is full.
    pub unsent: u32,
    /// Window or keepalive probes without an answer.
    pub probes: u8,
    /// Time since the last TCP acknowledgement.
    pub since_acknowledgement: Duration,
}

/// Reads the state of a connection from the kernel.
///
/// # Errors
/// Errors of `getsockopt(2)`, for a socket that is no TCP socket.
pub fn tcp_progress(socket: BorrowedFd<'_>) -> io::Result<TcpProgress> {
    let mut info = [0u8; LEN];
    let mut length = libc::socklen_t::try_from(LEN).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` octets, which `info` has.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |at: usize| {
        let octets = info[at..].first_chunk().copied();
        octets.map_or(0, u32::from_ne_bytes)
    };
    Ok(TcpProgress {
        unacknowledged: word(UNACKED),
        unsent: word(NOT_SENT),
        probes: info[PROBES],
        since_acknowledgement: Duration::from_millis(word(LAST_ACK_RECEIVED).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd as _;

    #[test]
    fn a_peer_that_does_not_read_closes_its_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(len) = sender.write(&[0; 65_536]) {
            sent += len;
        }
        // Whatever is still on its way is acknowledged at once here, and the rest cannot leave.
        let closed = loop {
            let progress = tcp_progress(sender.as_fd()).unwrap();
            if progress.unacknowledged == 0 {
                break progress;
            }
        };
        assert!(closed.unsent > 0, "{closed:?}");
        assert!(closed.since_acknowledgement < Duration::from_secs(60));
        receiver.set_nonblocking(true).unwrap();
        let mut buffer = [0; 65_536];
        while sent > 0 {
            if let Ok(len) = receiver.read(&mut buffer) {
                sent -= len;
            }
        }
        let idle = loop {
            let progress = tcp_progress(sender.as_fd()).unwrap();
            if progress.unsent == 0 && progress.unacknowledged == 0 {
                break progress;
            }
        };
        assert_eq!(idle.probes, 0);
    }

    #[test]
    fn other_sockets_have_no_such_thing() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_progress(socket.as_fd()).is_err());
    }
}
