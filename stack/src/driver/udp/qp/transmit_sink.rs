//! The way of trains and short segments from the engine to the ports.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_llp_udp::{Peer, Train};
use dgiwarp_memory::Piece;

use crate::driver::debug::tap::Tap;
use crate::driver::qp::staging;
use crate::driver::reactor::member::SocketIndex;
use crate::driver::udp::icmp_errors::IcmpErrors;
use crate::driver::udp::path_cache::PathCache;
use crate::driver::udp::ports::{Advice, Ports};
use crate::driver::udp::qp::UdShared;
use crate::driver::udp::route as routes;
use crate::driver::udp::socket::Leave;
use crate::driver::udp::transmit::Transmission;
use dgiwarp_engine::datagram::{SendOutcome, TransmitSink};
use dgiwarp_engine::types::Route;

/// Hands trains to the ports of a QP.
pub(crate) struct PortSink<'a> {
    pub(crate) qp: &'a UdShared,
    pub(crate) ports: &'a mut Ports,
    pub(crate) path_cache: &'a mut PathCache,
    pub(crate) now: Instant,
    /// A peer that became busy with this train.
    pub(crate) connect: Option<(SocketIndex, Peer, IpAddr)>,
    /// ICMP errors about earlier trains.
    pub(crate) icmp_errors: &'a mut IcmpErrors,
    pub(crate) tap: Option<&'a mut Tap>,
}

impl TransmitSink for PortSink<'_> {
    fn staging(&mut self) -> Vec<u8> {
        staging::take()
    }

    fn give_back(&mut self, staging: Vec<u8>) {
        staging::put_back(staging);
    }

    #[inline(always)]
    fn send(
        &mut self,
        peer: Peer,
        route: &Route,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> SendOutcome {
        let singly = train.len() > 1 && (route.sends_singly() || !self.ports.main().sends_trains());
        let Some((port, mut lanes)) = self.ports.own(self.now, peer, route.source()) else {
            return self.send_openly(peer, route, pieces, train, singly);
        };
        if let Some(lanes) = &mut lanes
            && lanes.send(self.now, port, pieces, train)
        {
            return SendOutcome::Sent;
        }
        let transmission = Transmission {
            port,
            to: None,
            leave: Leave::default(),
            icmp_errors: self.icmp_errors,
        };
        let result = transmission.carry(pieces, train, singly);
        if let (Ok(_), Some(lanes)) = (&result, lanes) {
            lanes.note_sent(self.now, train);
        }
        self.sent(result, peer, route, pieces, train)
    }

    fn send_short(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        let pieces = [Piece::Bytes(octets)];
        let (to, leave) = match self.ports.own(self.now, peer, from) {
            Some((port, Some(lanes))) => {
                if lanes.send(self.now, port, &pieces, train) {
                    return SendOutcome::Sent;
                }
                // It is rarely refused; a few too many are not waited for long.
                lanes.note_sent(self.now, train);
                (None, None)
            }
            Some((_, None)) => (None, None),
            None => (peer.socket_addr(), from),
        };
        let port = match self.ports.own(self.now, peer, from) {
            Some((port, _)) => port,
            None => self.ports.main(),
        };
        let mut transmission = Transmission {
            port,
            to,
            leave: leave.into(),
            icmp_errors: self.icmp_errors,
        };
        let mut result = if train.len() == 1 || port.sends_trains() {
            transmission.send(&pieces, train.segment_size())
        } else {
            transmission.send_singly(&pieces, train)
        };
        if let Err(error) = &result
            && train.len() > 1
            && matches!(
                error.raw_os_error(),
                Some(nix::libc::EINVAL | nix::libc::EIO | nix::libc::EMSGSIZE)
            )
        {
            // A device that cannot cut trains.
            result = transmission.send_singly(&pieces, train);
        }
        let connected_from = port.connected_from();
        if result.is_ok() && self.tap.is_some() {
            let local = from
                .or(connected_from)
                .or_else(|| self.path(peer, None).map(|path| path.route_source()));
            if let (Some(tap), Some(local)) = (&mut self.tap, local) {
                tap.sent(local, peer, &pieces, train);
            }
        }
        match result.map_err(|error| error.raw_os_error().unwrap_or(nix::libc::EIO)) {
            Ok(_) | Err(nix::libc::ENOBUFS | nix::libc::ECONNREFUSED) => SendOutcome::Sent,
            Err(nix::libc::EAGAIN) => SendOutcome::WouldBlock,
            Err(errno) => SendOutcome::Failed(errno),
        }
    }

    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<Route> {
        self.path_cache
            .path(peer, from, self.ports.main(), |mtu| self.qp.mtu(mtu))
    }
}

impl PortSink<'_> {
    /// Sends to a peer without a port of its own.
    #[inline(never)]
    fn send_openly(
        &mut self,
        peer: Peer,
        route: &Route,
        pieces: &[Piece<'_>],
        train: &Train,
        singly: bool,
    ) -> SendOutcome {
        let transmission = Transmission {
            port: self.ports.main(),
            to: peer.socket_addr(),
            leave: Leave::of(route),
            icmp_errors: self.icmp_errors,
        };
        let result = transmission.carry(pieces, train, singly);
        let outcome = self.sent(result, peer, route, pieces, train);
        if !route.is_group()
            && outcome == SendOutcome::Sent
            && let Advice::Connect(index) = self.ports.note(self.now, 0, peer, 0)
        {
            let local = route.source().unwrap_or_else(|| route.route_source());
            self.connect = Some((index, peer, local));
        }
        outcome
    }

    /// Outcome of a train's transmission; a sent train goes to the tap.
    #[inline]
    fn sent(
        &mut self,
        result: io::Result<usize>,
        peer: Peer,
        route: &Route,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> SendOutcome {
        let outcome = match result {
            Ok(_) => SendOutcome::Sent,
            Err(error) => self.judge(&error, route, train),
        };
        if let Some(tap) = &mut self.tap
            && outcome == SendOutcome::Sent
        {
            let local = route.source().unwrap_or_else(|| route.route_source());
            tap.sent(local, peer, pieces, train);
        }
        outcome
    }

    /// Outcome of a train whose transmission failed with `error`.
    #[cold]
    fn judge(&self, error: &io::Error, route: &Route, train: &Train) -> SendOutcome {
        let errno = error.raw_os_error().unwrap_or(nix::libc::EIO);
        match errno {
            nix::libc::EAGAIN => SendOutcome::WouldBlock,
            // As a full queue of the device: datagrams are lost on the way all the time.
            nix::libc::ENOBUFS | nix::libc::ECONNREFUSED => SendOutcome::Sent,
            nix::libc::EMSGSIZE => self.too_big(route, train, errno),
            nix::libc::EINVAL | nix::libc::EIO if train.len() > 1 && !route.sends_singly() => {
                // The device cannot cut trains, or the path got smaller than the segment.
                route.send_singly();
                SendOutcome::TooBig
            }
            nix::libc::EINVAL => self.too_big(route, train, errno),
            _ => SendOutcome::Failed(errno),
        }
    }

    fn too_big(&self, route: &Route, train: &Train, errno: i32) -> SendOutcome {
        let Ok(kernel) = routes::look_up_again(route) else {
            return SendOutcome::Failed(errno);
        };
        let size = u16::try_from(train.datagram()).unwrap_or(u16::MAX);
        if route.handle_too_big(self.now, size, self.qp.mtu(kernel.mtu)) {
            SendOutcome::TooBig
        } else {
            SendOutcome::Failed(errno)
        }
    }
}

impl UdShared {
    fn mtu(&self, of_route: u32) -> u32 {
        self.recv_cq.background().limit_mtu(of_route)
    }
}
