//! Descriptors of the process that are sockets of this crate: a child that forks off has to close them, or it would keep ports, and
//! connections that its parent has closed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dgiwarp_memory::move_up;
use nix::sys::stat::fstat;

/// Number of descriptors that are recorded; higher ones stay open in children.
const KNOWN: usize = 1 << 16;

/// The inode of the socket that a descriptor was last, or 0. An entry is not taken back when the socket is closed: whatever has the
/// descriptor then has another inode.
static INODES: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
/// Entries from here on are 0.
static END: AtomicUsize = AtomicUsize::new(0);

/// Descriptors below are the program's: `select(2)` cannot take others.
const LEAST: RawFd = 1024;

/// Takes a new socket of this crate's over: gives it a high number where that is allowed, and records it.
pub fn adopt<S: Into<OwnedFd> + From<OwnedFd>>(socket: S) -> S {
    let fd = move_up(socket.into(), LEAST);
    note(&fd);
    fd.into()
}

/// Gives a descriptor that programs do not see a high number, where that is allowed: some programs take low ones alone.
pub(crate) fn leave_low_numbers(fd: OwnedFd) -> OwnedFd {
    move_up(fd, LEAST)
}

/// Records a socket.
fn note(socket: impl AsFd) {
    let fd = socket.as_fd();
    let (Ok(index), Ok(status)) = (usize::try_from(fd.as_raw_fd()), fstat(fd)) else {
        return;
    };
    if let Some(entry) = INODES.get(index) {
        entry.store(status.st_ino, Ordering::Relaxed);
        END.fetch_max(index + 1, Ordering::AcqRel);
    }
}

/// The descriptors that are or were sockets of this crate's, with the inodes of these (`fstat(2)`). A descriptor with another inode now is
/// somebody else's. For a child that forked off; it allocates nothing.
pub fn own_sockets() -> impl Iterator<Item = (RawFd, u64)> {
    let end = END.load(Ordering::Acquire);
    (0..)
        .zip(INODES.iter().take(end))
        .filter_map(|(fd, entry)| {
            let inode = entry.load(Ordering::Relaxed);
            (inode != 0).then_some((fd, inode))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn sockets_are_found_by_descriptor_and_inode() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let entry = (socket.as_raw_fd(), fstat(&socket).unwrap().st_ino);
        assert!(!own_sockets().any(|it| it == entry));
        note(&socket);
        assert!(own_sockets().any(|it| it == entry));
        let socket = adopt(socket);
        let entry = (socket.as_raw_fd(), fstat(&socket).unwrap().st_ino);
        assert!(own_sockets().any(|it| it == entry));
    }
}
