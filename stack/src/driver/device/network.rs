//! Changes of the host's links and addresses, as the kernel reports them (`rtnetlink(7)`).

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use crate::driver::device::fds;
use crate::driver::reactor::waker::Task;

/// Most reports that are received at a time.
const BATCH: usize = 256;

/// Calls a function of the program's after changes. The reports' contents are not parsed: the function queries the present state.
pub(crate) struct NetworkChanges {
    socket: OwnedFd,
    changed: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for NetworkChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NetworkChanges").field(&self.socket).finish()
    }
}

impl NetworkChanges {
    pub(crate) fn new(changed: Box<dyn Fn() + Send + Sync>) -> Result<Arc<Self>, Errno> {
        /// Links, and addresses of IPv4 and IPv6.
        const GROUPS: libc::c_int =
            libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let socket = fds::adopt(socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?);
        bind(
            socket.as_raw_fd(),
            &NetlinkAddr::new(0, GROUPS.unsigned_abs()),
        )?;
        Ok(Arc::new(Self { socket, changed }))
    }

    /// Takes the reports that are there. Returns whether there were any, be they lost for want of room (`ENOBUFS`).
    fn drain(&self) -> bool {
        let mut report = [0; 64];
        let mut any = false;
        for _ in 0..BATCH {
            match recv(self.socket.as_raw_fd(), &mut report, MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => any = true,
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        any
    }
}

impl Task for NetworkChanges {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn progress(&self) {
        if self.drain() {
            (self.changed)();
        }
    }
}
