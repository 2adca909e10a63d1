//! Writes through memory that both processes of a host map.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::driver::device::fds;
use crate::driver::udp::route;
use crate::{Buffer, RcQp, RegionSlice, Rnic};
use dgiwarp_engine::connected::OneSidedSpan;

impl Rnic {
    /// Makes memory, zeroed, for a connection with a peer at an address. Where that is one of this host's, and connections may copy alone
    /// ([`SameHostMode`](crate::SameHostMode)), the peer may map it ([`RcQp::write_mapped`]): the memory is that of a file (`memfd_create(2)`), whose descriptor is open
    /// as long as the memory is mapped, and which a child that forks off shares. Where such a file cannot be made, the memory is as any other.
    ///
    /// The memory is for that connection alone: a peer that has mapped it, and means harm, can write it behind a deregistration too.
    ///
    /// # Errors
    /// Error of `mmap(2)`, in practice `ENOMEM`.
    pub fn create_buffer_for(&self, peer: SocketAddr, len: usize) -> io::Result<Buffer> {
        let config = self.config();
        let any = match peer {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let shares = config.shares_host() && config.copies_one_sided();
        if shares && route::is_of_this_host(any, peer) {
            let made = Buffer::in_memory_file(len, fds::adopt);
            let failed = |error: &io::Error| tracing::debug!(%error, "no memory file");
            if let Ok(buffer) = made.inspect_err(failed) {
                return Ok(buffer);
            }
        }
        Buffer::zeroed(len)
    }
}

impl RcQp {
    /// Writes to a region of the peer's at once, if this process may [map](Rnic::create_buffer_for) its memory, and the peer, on this host, has granted it: after the first
    /// Write that the connection has carried. `fill` gets the memory, `length` octets, and must write all of it. Returns whether that was done; if not, as while
    /// another thread is at work on the queue pair, a [Write](crate::RcOperation::Write) is for the program to post.
    ///
    /// The octets are at the peer when this returns, so they may overtake work requests that were posted before (`IBV_ACCESS_RELAXED_ORDERING` of `ibv_reg_mr(3)`
    /// allows the same to Writes), but no message that is posted later is delivered before them. It makes no completion and takes no place in the send queue.
    pub fn write_mapped(
        &self,
        rkey: u32,
        remote_addr: u64,
        length: u32,
        fill: impl FnOnce(&RegionSlice<'_>),
    ) -> bool {
        let span = OneSidedSpan {
            stag: rkey,
            start: remote_addr,
            length,
            write: true,
        };
        self.shared.write_mapped(&span, fill)
    }
}
