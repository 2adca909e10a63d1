//! The ports of a datagram QP: the one that its QPN names, and one each for its busiest peers.
//!
//! A connected socket saves the kernel the route look-up of every datagram. More than a few slow down everybody, because
//! the kernel tries all sockets of a port for each datagram that arrives.

mod lanes;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dgiwarp_engine::same_host::Meeting;
use dgiwarp_llp_udp::Peer;

use crate::driver::reactor::member::SocketIndex;
use crate::driver::udp::icmp_errors::{IcmpErrors, IcmpLimit};
use crate::driver::udp::lanes::DatagramLanes;
use crate::driver::udp::multicast::{HostAddresses, Members};
use crate::driver::udp::port::Port;
use crate::{Error, MAX_PEER_SOCKETS, QpCounters};
pub(crate) use lanes::Invitee;

/// Peers that are watched for becoming busy.
const CANDIDATES: usize = 8;
/// Datagrams or trains from or to one peer, more than others interrupt, that make it busy.
const BUSY_AFTER: u32 = 16;
/// A connected socket that was not used for this long may go to another peer.
const IDLE_AFTER: Duration = Duration::from_millis(100);

/// A connected socket whose place was given away is kept for at least this long: far longer than a datagram takes from its
/// look-up of a socket to the socket's queue.
const RETIRED_FOR: Duration = Duration::from_millis(20);

/// The socket that was connected to a peer until lately.
pub(crate) const RETIRED: SocketIndex = 5;

/// Receive calls of the main port after which a new socket is read whatever that one holds: more than a receive buffer of the default size has room for.
const MOST_OLDER: u32 = 1 << 12;

#[derive(Debug)]
struct Sibling {
    port: Port,
    peer: Peer,
    last_used: Instant,
    /// Told from siblings at this place before.
    life: u32,
    meeting: Meeting,
    lanes: Option<Box<DatagramLanes>>,
}

/// A port of no peer any more, with the time since when, and the lanes that it had.
#[derive(Debug)]
struct Retired {
    port: Port,
    since: Instant,
    lanes: Option<Box<DatagramLanes>>,
}

/// The ports of a QP.
#[derive(Debug)]
pub(crate) struct Ports {
    main: Port,
    siblings: [Option<Sibling>; MAX_PEER_SOCKETS],
    /// Most sockets that busy peers may have.
    places: usize,
    /// Socket of no peer any more: datagrams under way to it may still arrive.
    retired: Option<Retired>,
    candidates: [Option<(Peer, u32)>; CANDIDATES],
    hand: usize,
    receive_buffer: usize,
    /// No peer gets a socket for being busy: the QP has one peer, or making a connected socket failed once (as where ports are forwarded by
    /// a sandbox).
    stays: bool,
    hosts: HostAddresses,
    pub(crate) members: Members,
    icmp_limit: IcmpLimit,
    /// Octets from a peer on this host after which it is met, to share memory. `None` where none is.
    meets_after: Option<u64>,
    /// Numbers that were given to siblings.
    lives: u32,
    /// The latest sibling, and receive calls of the main port that come before its own: that one may hold datagrams of its peer from before.
    older: Option<(SocketIndex, u32)>,
    /// Of lanes that are gone, and of peers without any. Made for the first one.
    lane_counters: Option<Box<QpCounters>>,
    /// Datagrams are in lanes that no bell announces.
    unannounced: bool,
}

/// Advice about the socket of a peer, from its traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advice {
    /// No change.
    Stay,
    /// Connect a socket at this place, which is free or idle.
    Connect(SocketIndex),
    /// Invite the peer of the socket at this place to share memory, if it is on this host.
    Invite(SocketIndex),
}

impl Ports {
    pub(crate) fn bind(address: SocketAddr, receive_buffer: usize) -> Result<Self, Error> {
        let main = Port::bind(address, receive_buffer)?;
        Ok(Self::new(main, receive_buffer))
    }

    pub(crate) fn new(main: Port, receive_buffer: usize) -> Self {
        Self {
            main,
            siblings: [const { None }; MAX_PEER_SOCKETS],
            places: MAX_PEER_SOCKETS,
            retired: None,
            candidates: [None; CANDIDATES],
            hand: 0,
            receive_buffer,
            stays: false,
            hosts: HostAddresses::default(),
            members: Members::default(),
            icmp_limit: IcmpLimit::default(),
            meets_after: None,
            lives: 0,
            older: None,
            lane_counters: None,
            unannounced: false,
        }
    }

    /// Takes note of ICMP errors. In a flood of them the main port has no more reported for a while.
    pub(crate) fn note_icmp_errors(&mut self, now: Instant, errors: &IcmpErrors) {
        if self.icmp_limit.note(now, errors) {
            let _ = self.main.report_errors(false);
        }
    }

    /// Has ICMP errors reported again, where a flood ended that.
    #[inline]
    pub(crate) fn resume_icmp_errors(&mut self, now: Instant) {
        if self.icmp_limit.ends(now) {
            let _ = self.main.report_errors(true);
        }
    }

    /// Busy peers get at most so many sockets.
    pub(crate) fn limit_places(&mut self, places: usize) {
        self.places = places;
        self.stays |= places == 0;
    }

    /// Whether a datagram that arrived through the socket at `index` for the address `to` was sent to a group.
    #[inline]
    pub(crate) fn is_to_group(&mut self, index: SocketIndex, to: Option<IpAddr>) -> bool {
        // A connected socket is bound to an address of this host.
        (index == 0 && to.is_some_and(|to| self.hosts.is_group(to))) || Members::have(index)
    }

    pub(crate) fn main(&self) -> &Port {
        &self.main
    }

    #[inline]
    pub(crate) fn get(&self, index: SocketIndex) -> Option<&Port> {
        match usize::from(index).checked_sub(1) {
            None => Some(&self.main),
            Some(place) => match self.siblings.get(place) {
                Some(sibling) => sibling.as_ref().map(|it| &it.port),
                None if index == RETIRED => self.retired.as_ref().map(|it| &it.port),
                None => self.members.get(index),
            },
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: SocketIndex) -> Option<&mut Port> {
        match usize::from(index).checked_sub(1) {
            None => Some(&mut self.main),
            Some(place) => match self.siblings.get_mut(place) {
                Some(sibling) => sibling.as_mut().map(|it| &mut it.port),
                None if index == RETIRED => self.retired.as_mut().map(|it| &mut it.port),
                None => self.members.get_mut(index),
            },
        }
    }

    /// The socket that a peer has for itself, and the lanes. A socket that is connected from another address of ours than `from`, if that is named, does not
    /// serve.
    #[inline]
    pub(crate) fn own(
        &mut self,
        now: Instant,
        peer: Peer,
        from: Option<IpAddr>,
    ) -> Option<(&Port, Option<&mut DatagramLanes>)> {
        for sibling in &mut self.siblings {
            if let Some(it) = sibling
                && it.peer == peer
                && from.is_none_or(|from| it.port.connected_from() == Some(from))
            {
                it.last_used = now;
                return Some((&it.port, it.lanes.as_deref_mut()));
            }
        }
        None
    }

    /// Closes all sockets that peers have for themselves.
    pub(crate) fn forget_peers(&mut self) {
        self.count_lanes();
        self.siblings = [const { None }; MAX_PEER_SOCKETS];
        self.retired = None;
        self.candidates = [None; CANDIDATES];
        self.stays = self.places == 0;
    }

    /// No peer gets a socket from now on but by [`connect`](Self::connect).
    pub(crate) fn stay(&mut self) {
        self.stays = true;
    }

    /// Takes note of a datagram or train to `peer`, or one of so many octets from it, over the socket at `index`.
    #[inline]
    pub(crate) fn note(
        &mut self,
        now: Instant,
        index: SocketIndex,
        peer: Peer,
        received: usize,
    ) -> Advice {
        if let Some(place) = usize::from(index).checked_sub(1) {
            if let Some(sibling) = self.siblings.get_mut(place).and_then(Option::as_mut) {
                sibling.last_used = now;
                if sibling.meeting.received(received, self.meets_after) {
                    return Advice::Invite(index);
                }
            }
            return Advice::Stay;
        }
        if self.stays || !self.becomes_busy(peer) {
            return Advice::Stay;
        }
        self.place_for(now, peer)
    }

    /// Advice where to connect a socket for a peer.
    fn place_for(&self, now: Instant, peer: Peer) -> Advice {
        let usable = peer
            .ip_addr()
            .is_some_and(|ip| !ip.is_multicast() && !ip.is_unspecified());
        let present = self.siblings.iter().flatten().any(|it| it.peer == peer);
        let since = |at| now.saturating_duration_since(at);
        let settled = self
            .retired
            .as_ref()
            .is_none_or(|it| since(it.since) >= RETIRED_FOR);
        let mut places = self.siblings.iter().take(self.places);
        let place = places.position(|it| {
            it.as_ref()
                .is_none_or(|it| settled && since(it.last_used) >= IDLE_AFTER)
        });
        match place.and_then(|place| u8::try_from(place + 1).ok()) {
            Some(index) if usable && !present => Advice::Connect(index),
            Some(_) | None => Advice::Stay,
        }
    }

    /// Counts for `peer` and against one of the others, so that only peers with more traffic than the others become busy.
    fn becomes_busy(&mut self, peer: Peer) -> bool {
        for candidate in self.candidates.iter_mut().flatten() {
            if candidate.0 == peer {
                candidate.1 += 1;
                let busy = candidate.1 >= BUSY_AFTER;
                if busy {
                    candidate.1 = 0;
                }
                return busy;
            }
        }
        self.hand = (self.hand + 1) % CANDIDATES;
        match &mut self.candidates[self.hand] {
            Some((_, count)) if *count > 0 => *count -= 1,
            place => *place = Some((peer, 1)),
        }
        false
    }

    /// Connects a socket for a busy peer.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        index: SocketIndex,
        peer: Peer,
        local: IpAddr,
    ) -> io::Result<()> {
        let address = peer.socket_addr().ok_or(io::ErrorKind::AddrNotAvailable)?;
        // Reuse is allowed for the moment of binding only, and only to sockets of this user.
        self.share_number(true)?;
        let connected = self
            .main
            .connect_sibling(address, local, self.receive_buffer);
        self.share_number(false)?;
        self.stays |= connected.is_err();
        let sibling = Sibling {
            port: connected?,
            peer,
            last_used: now,
            life: self.next_life(),
            meeting: match self.meets_after {
                Some(_) => Meeting::NEW,
                None => Meeting::OVER,
            },
            lanes: None,
        };
        if let Some(place) = self.siblings.get_mut(usize::from(index).saturating_sub(1)) {
            *place = Some(sibling);
            self.older = Some((index, MOST_OLDER));
        }
        Ok(())
    }

    /// Whether the main port comes before the one at `index`, so that datagrams of a peer are received in their order. The caller receives from it then.
    #[inline]
    pub(crate) fn takes_older(&mut self, index: SocketIndex) -> bool {
        match &mut self.older {
            Some((behind, left)) if *behind == index && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// The main port holds nothing from before.
    #[inline]
    pub(crate) fn note_empty_main(&mut self) {
        self.older = None;
    }

    fn share_number(&self, share: bool) -> io::Result<()> {
        let mut all = std::iter::once(&self.main).chain(self.siblings());
        all.try_for_each(|port| port.share_number(share))
    }

    /// Takes the socket at a place from its peer, so that another may have the place. Nothing new arrives there; what the kernel
    /// had begun to deliver still may, so it is kept as [`RETIRED`]. The one that was kept until now is closed.
    pub(crate) fn retire(&mut self, now: Instant, index: SocketIndex) {
        let place = self.siblings.get_mut(usize::from(index).saturating_sub(1));
        if let Some(mut gone) = place.and_then(Option::take) {
            // If this fails, no route leads to the peer any more.
            let stays = gone.port.forsake(gone.peer).is_ok();
            let mut lanes = gone.lanes;
            if let Some(lanes) = &mut lanes {
                lanes.end();
            }
            self.count_retired();
            self.retired = stays.then_some(Retired {
                port: gone.port,
                since: now,
                lanes,
            });
        }
    }

    /// Closes the socket at a place, so that another may take it.
    pub(crate) fn close(&mut self, index: SocketIndex) {
        if let Some(place) = self.siblings.get_mut(usize::from(index).saturating_sub(1)) {
            *place = None;
        }
    }

    /// Indices of the sockets that datagrams may arrive at.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = SocketIndex> + use<> {
        let mut indices = [None; MAX_PEER_SOCKETS + 2];
        for (place, index) in indices.iter_mut().zip(0..=RETIRED) {
            *place = self.get(index).map(|_| index);
        }
        indices.into_iter().flatten()
    }

    /// Sockets in use beside the main one.
    pub(crate) fn siblings(&self) -> impl Iterator<Item = &Port> {
        let retired = self.retired.iter().map(|it| &it.port);
        let siblings = self.siblings.iter().flatten();
        siblings.map(|it| &it.port).chain(retired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::device::clock;
    use crate::driver::udp::memory_port::MemoryPort;
    use crate::driver::udp::socket::{ReceiveBuffer, UdpSocket};
    use dgiwarp_memory::Piece;
    use std::collections::VecDeque;
    use std::net::UdpSocket as StdSocket;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Runs something at the end of a scope, a panic's included.
    struct OnDrop<F: Fn()>(F);

    impl<F: Fn()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    fn peer(socket: &StdSocket) -> Peer {
        Peer::ip(socket.local_addr().unwrap())
    }

    fn in_memory() -> Ports {
        let [main] = MemoryPort::network();
        Ports::new(Port::Memory(main), 0)
    }

    #[test]
    fn a_busy_peer_is_advised_and_a_crowd_is_not() {
        let mut sockets = in_memory();
        let now = clock::now();
        let one = Peer::ip("127.0.0.1:5".parse().unwrap());
        let advice: Vec<_> = (0..BUSY_AFTER)
            .map(|_| sockets.note(now, 0, one, 1))
            .collect();
        assert_eq!(advice.last(), Some(&Advice::Connect(1)));
        for round in 0..200u16 {
            for port in 100..200u16 {
                let peer = Peer::ip(SocketAddr::from(([127, 0, 0, 1], port)));
                assert_eq!(sockets.note(now, 0, peer, 1), Advice::Stay, "round {round}");
            }
        }
    }

    /// Indices that busy peers get, one after another, each connected as advised.
    fn places_taken(sockets: &mut Ports) -> Vec<SocketIndex> {
        let (now, local) = (clock::now(), IpAddr::from([127, 0, 0, 1]));
        let mut taken = Vec::new();
        for port in 5..15 {
            let busy = Peer::ip((local, port).into());
            for _ in 0..BUSY_AFTER {
                if let Advice::Connect(index) = sockets.note(now, 0, busy, 1) {
                    sockets.connect(now, index, busy, local).unwrap();
                    taken.push(index);
                }
            }
        }
        taken
    }

    #[test]
    fn busy_peers_get_as_many_sockets_as_are_allowed() {
        for places in 0..=MAX_PEER_SOCKETS {
            let mut sockets = in_memory();
            sockets.limit_places(places);
            // The limit outlives the peers.
            for _ in 0..2 {
                let all: Vec<SocketIndex> = (1..).take(places).collect();
                assert_eq!(places_taken(&mut sockets), all);
                assert_eq!(sockets.siblings().count(), places);
                sockets.forget_peers();
            }
        }
    }

    /// Trains that arrived while trains were taken whole are not taken for one datagram afterwards.
    #[test]
    fn a_train_behind_many_datagrams_stays_a_train() {
        let mut sockets = Ports::bind("0.0.0.0:0".parse().unwrap(), 1 << 20).unwrap();
        let port = sockets.main().local_addr().unwrap().port();
        let local = IpAddr::from([127, 0, 0, 1]);
        let busy = UdpSocket::bind((local, 0).into(), 1 << 20).unwrap();
        let from = Peer::ip(busy.local_addr().unwrap());
        sockets.connect(clock::now(), 1, from, local).unwrap();
        let to = Some((local, port).into());
        let mut buffer = ReceiveBuffer::new();
        let own = sockets.get_mut(1).unwrap();
        assert!(own.receive(&mut buffer).is_err());
        // A run of some makes it take trains, one of many makes it stop.
        for count in [8, 256] {
            for _ in 0..count {
                busy.send(to, None, &[Piece::Bytes(b"one")], None).unwrap();
            }
            if count == 256 {
                let train = [Piece::Bytes(b"onetwosix")];
                busy.send(to, None, &train, Some(3)).unwrap();
            }
            for _ in 0..count {
                let received = own.receive(&mut buffer).unwrap();
                assert_eq!((received.len, received.stride), (3, 3));
            }
        }
        let mut octets = 0;
        let train = [Piece::Bytes(b"onetwo")];
        busy.send(to, None, &train, Some(3)).unwrap();
        while let Ok(received) = own.receive(&mut buffer) {
            assert_eq!(received.stride, 3, "{received:?}");
            octets += received.len;
        }
        assert_eq!(octets, 9 + 6);
    }

    #[test]
    fn every_place_can_be_taken() {
        let mut sockets = Ports::bind("0.0.0.0:0".parse().unwrap(), 0).unwrap();
        let port = sockets.main().local_addr().unwrap().port();
        let local = IpAddr::from([127, 0, 0, 1]);
        let mut buffer = ReceiveBuffer::new();
        let peers: Vec<_> = (1..=MAX_PEER_SOCKETS)
            .map(|index| {
                let index = u8::try_from(index).unwrap();
                let socket = StdSocket::bind("127.0.0.1:0").unwrap();
                let now = clock::now();
                sockets.connect(now, index, peer(&socket), local).unwrap();
                (index, socket)
            })
            .collect();
        for (index, socket) in &peers {
            socket.send_to(&[*index], (local, port)).unwrap();
            let own = sockets.get_mut(*index).unwrap();
            let received = own.receive(&mut buffer).unwrap();
            assert_eq!(buffer.octets(received.len), [*index]);
            assert_eq!(received.from, peer(socket));
        }
        assert!(StdSocket::bind((local, port)).is_err());
    }

    /// A connected socket gets its peer's datagrams, the main one all others, and no other socket can be
    /// bound to the port.
    #[test]
    fn a_connected_sibling_takes_over_its_peer_only() {
        let mut sockets = Ports::bind("0.0.0.0:0".parse().unwrap(), 0).unwrap();
        let port = sockets.main().local_addr().unwrap().port();
        let local = IpAddr::from([127, 0, 0, 1]);
        let busy = StdSocket::bind("127.0.0.1:0").unwrap();
        let other = StdSocket::bind("127.0.0.1:0").unwrap();
        sockets
            .connect(clock::now(), 1, peer(&busy), local)
            .unwrap();
        busy.send_to(b"busy", (local, port)).unwrap();
        other.send_to(b"other", (local, port)).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let received = sockets.get_mut(1).unwrap().receive(&mut buffer).unwrap();
        assert_eq!(buffer.octets(received.len), b"busy");
        assert_eq!((received.from, received.to), (peer(&busy), Some(local)));
        let received = sockets.get_mut(0).unwrap().receive(&mut buffer).unwrap();
        assert_eq!(buffer.octets(received.len), b"other");
        assert_eq!((received.from, received.to), (peer(&other), Some(local)));
        assert!(sockets.get_mut(0).unwrap().receive(&mut buffer).is_err());
        assert!(StdSocket::bind((local, port)).is_err());
        sockets.close(1);
        busy.send_to(b"again", (local, port)).unwrap();
        let received = sockets.get_mut(0).unwrap().receive(&mut buffer).unwrap();
        assert_eq!(buffer.octets(received.len), b"again");
    }

    /// A peer sends all the time while sockets are connected to it and given to another.
    #[test]
    fn a_socket_changes_hands_and_nothing_is_lost() {
        let mut sockets = Ports::bind("0.0.0.0:0".parse().unwrap(), 1 << 20).unwrap();
        let port = sockets.main().local_addr().unwrap().port();
        let local = IpAddr::from([127, 0, 0, 1]);
        let busy = StdSocket::bind("127.0.0.1:0").unwrap();
        let from = peer(&busy);
        let (taken, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (sent, received) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    // No more than fit.
                    if sent - taken.load(Ordering::Relaxed) < 64 {
                        busy.send_to(&sent.to_be_bytes(), (local, port)).unwrap();
                        sent += 1;
                    }
                }
                sent
            });
            // Whatever happens here, the sender must not go on for ever.
            let ending = OnDrop(|| over.store(true, Ordering::Relaxed));
            let mut buffer = ReceiveBuffer::new();
            let mut received = 0;
            let mut drain = |socket: Option<&mut Port>| {
                let Some(socket) = socket else { return };
                while let Ok(came) = socket.receive(&mut buffer) {
                    received += u64::try_from(came.len.div_ceil(8)).unwrap();
                    taken.store(received, Ordering::Relaxed);
                }
            };
            // The rule is that a socket changes hands only when the last retired one has settled. So that more of them do, each is kept for
            // its time here.
            let mut settling = VecDeque::new();
            for round in 0..2000 {
                if sockets.get(1).is_some() {
                    sockets.retire(clock::now(), 1);
                    settling.extend(sockets.retired.take());
                }
                let share = |share| {
                    settling
                        .iter()
                        .try_for_each(|it: &Retired| it.port.share_number(share))
                };
                share(true).unwrap();
                sockets.connect(clock::now(), 1, from, local).unwrap();
                share(false).unwrap();
                for _ in 0..round % 7 {
                    drain(sockets.get_mut(0));
                    drain(sockets.get_mut(1));
                }
                while settling
                    .front()
                    .is_some_and(|it| it.since.elapsed() >= RETIRED_FOR)
                {
                    drain(settling.pop_front().as_mut().map(|it| &mut it.port));
                }
            }
            drop(ending);
            let sent = sender.join().unwrap();
            for Retired { port: socket, .. } in &mut settling {
                drain(Some(socket));
            }
            drain(sockets.get_mut(0));
            drain(sockets.get_mut(1));
            (sent, received)
        });
        assert_eq!(received, sent);
    }
}
