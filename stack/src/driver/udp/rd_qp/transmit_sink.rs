//! The way of trains from the engine of reliable datagrams to the ports.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_llp_udp::{Peer, Train};
use dgiwarp_memory::Piece;

use crate::driver::debug::tap::Tap;
use crate::driver::device::thread::Background;
use crate::driver::reactor::member::SocketIndex;
use crate::driver::udp::icmp_errors::IcmpErrors;
use crate::driver::udp::path_cache::PathCache;
use crate::driver::udp::ports::{Advice, Ports};
use crate::driver::udp::socket::Leave;
use crate::driver::udp::transmit::Transmission;
use dgiwarp_engine::datagram::SendOutcome;
use dgiwarp_engine::reliable::DatagramSink;
use dgiwarp_engine::types::Route;

/// Hands datagrams to the ports.
pub(super) struct RdSink<'a> {
    pub(super) ports: &'a mut Ports,
    pub(super) now: Instant,
    pub(super) tap: Option<&'a mut Tap>,
    pub(super) singly: &'a mut bool,
    /// A peer that became busy with this train.
    pub(super) connect: Option<(SocketIndex, Peer, IpAddr)>,
    pub(super) path_cache: &'a mut PathCache,
    pub(super) background: &'a Background,
    /// Errors about earlier datagrams that were met on the way.
    pub(super) icmp_errors: &'a mut IcmpErrors,
}

impl RdSink<'_> {
    /// Sends a train, or its datagrams one by one.
    fn carry(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        pieces: &[Piece<'_>],
        train: &Train,
        singly: bool,
    ) -> io::Result<usize> {
        if let Some((port, mut lanes)) = self.ports.own(self.now, peer, from) {
            if let Some(lanes) = &mut lanes
                && lanes.send(self.now, port, pieces, train)
            {
                return Ok(train.octets());
            }
            let transmission = Transmission {
                port,
                to: None,
                leave: Leave::default(),
                icmp_errors: self.icmp_errors,
            };
            let sent = transmission.carry(pieces, train, singly);
            if let (Ok(_), Some(lanes)) = (&sent, lanes) {
                lanes.note_sent(self.now, train);
            }
            return sent;
        }
        let transmission = Transmission {
            port: self.ports.main(),
            to: peer.socket_addr(),
            leave: from.into(),
            icmp_errors: self.icmp_errors,
        };
        let sent = transmission.carry(pieces, train, singly);
        if let Some(local) = from
            && sent.is_ok()
            && let Advice::Connect(index) = self.ports.note(self.now, 0, peer, 0)
        {
            self.connect = Some((index, peer, local));
        }
        sent
    }
}

impl DatagramSink for RdSink<'_> {
    fn send(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        let pieces = [Piece::Bytes(octets)];
        let singly = train.len() > 1 && (*self.singly || !self.ports.main().sends_trains());
        let mut sent = self.carry(peer, from, &pieces, train, singly);
        // The path takes no trains: as for UD queue pairs, from now on none.
        if let Err(error) = &sent
            && train.len() > 1
            && !singly
            && matches!(
                error.raw_os_error(),
                Some(nix::libc::EINVAL | nix::libc::EIO)
            )
        {
            *self.singly = true;
            sent = self.carry(peer, from, &pieces, train, true);
        }
        match sent {
            Ok(_) => {
                if self.tap.is_some() {
                    let source = |path: Route| path.route_source();
                    let local = from.or_else(|| self.path(peer, None).map(source));
                    if let (Some(tap), Some(local)) = (&mut self.tap, local) {
                        tap.sent(local, peer, &pieces, train);
                    }
                }
                SendOutcome::Sent
            }
            Err(error) => match error.raw_os_error().unwrap_or(nix::libc::EIO) {
                nix::libc::EAGAIN => SendOutcome::WouldBlock,
                // Lost on the way, as datagrams are.
                nix::libc::ENOBUFS | nix::libc::ECONNREFUSED => SendOutcome::Sent,
                nix::libc::EMSGSIZE => SendOutcome::TooBig,
                errno => SendOutcome::Failed(errno),
            },
        }
    }

    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<Route> {
        let limit = |mtu| self.background.limit_mtu(mtu);
        self.path_cache.path(peer, from, self.ports.main(), limit)
    }
}
