//! Raw UDP to a group: a sender, and receivers that are members of a broadcast or multicast address.
//!
//! The sender's `tx` is connected to the group. A receiver takes the payload from `rx`, which is bound to the group's address
//! and shares its port with the other receivers, and answers with credits from its `tx` to the sender's `rx`.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};

use nix::sys::socket::MsgFlags;
use socket2::{Domain, Protocol, Socket, Type};

use crate::endpoint::members::Members;
use crate::endpoint::pattern::{self, POSITION_BITS, POSITION_MASK};
use crate::endpoint::raw::datagrams::{self, Half, Pair, port, socket, transmit};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::Side;
use crate::measure::{Arrival, BLOCK_SLICE, Flow, Geometry, PingPong, Want, Watch};
use crate::session::control::{EndpointSpec, GroupSpec, Offer};

/// One side of a raw group.
#[derive(Debug)]
pub(crate) struct Group {
    pair: Pair,
    side: Side,
    members: Members,
    address: GroupSpec,
}

impl Group {
    /// Opens this side's sockets on `local`; the receivers' are members on its interface.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let address = spec.group.ok_or_else(no_group)?;
        let tx = socket(local, spec.receive_buffer)?;
        let rx = match side {
            Side::Client => socket(local, spec.receive_buffer)?,
            Side::Server => member(address, local, spec.receive_buffer)?,
        };
        let (pair, offer) = Pair::new(tx, rx, spec)?;
        let group = Self {
            pair,
            side,
            members: Members::default(),
            address,
        };
        Ok((group, offer))
    }

    /// A receiver learns where the sender is; the sender learns of one more receiver.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let (peer_tx, peer_rx) = datagrams::ports(offer)?;
        let to = match self.side {
            Side::Server => SocketAddr::new(peer, peer_rx),
            Side::Client => {
                self.members.add(peer_tx);
                self.pair
                    .tx
                    .set_broadcast(true)
                    .during("allow broadcast on a socket")?;
                SocketAddrV4::new(self.address.address, self.address.port).into()
            }
        };
        self.pair.tx.connect(to).during("connect a UDP socket")
    }

    /// Cuts messages for the path to the group.
    pub(crate) fn geometry(&self, granted: u64, window: Option<u64>) -> Result<Geometry> {
        self.pair.geometry(granted, window)
    }

    /// Prepares buffers and socket options for the agreed sizes.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        match (self.pair.configure(geometry), self.side) {
            (false, _) => Ok(()),
            (true, Side::Client) => self.pair.send_trains(&self.pair.tx),
            (true, Side::Server) => datagrams::receive_trains(&self.pair.rx),
        }
    }

    /// A credit is a stamp and the number of the receiver.
    fn poll_credit(&mut self, flags: MsgFlags) -> Result<Arrival> {
        let Some(length) = self.pair.receive(Half::Rx, flags)? else {
            return Ok(Arrival::Nothing);
        };
        let credit = self.pair.incoming.get(..length).and_then(|credit| {
            let (stamp, from) = credit.split_at_checked(pattern::STAMP)?;
            let stamp = u64::from_le_bytes(stamp.try_into().ok()?);
            Some((stamp, u16::from_le_bytes(from.try_into().ok()?)))
        });
        let Some((stamp, from)) =
            credit.filter(|(stamp, _)| stamp >> POSITION_BITS == self.pair.round)
        else {
            return Ok(Arrival::Other);
        };
        let reached = self.members.credit(from, stamp & POSITION_MASK);
        Ok(reached.map_or(Arrival::Other, Arrival::Credit))
    }
}

impl Flow for Group {
    const LOSES: bool = true;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.members.restart();
        self.pair.start_round(round, &[Half::Rx])
    }

    fn transmit(&mut self, position: u64, length: u64) -> Result<u64> {
        let taken = self.pair.transmit(position, length)?;
        Ok(if taken { length } else { 0 })
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        let flags = self.pair.flags(may_wait);
        match want {
            Want::Data => self.pair.poll_data(flags),
            Want::Credit => self.poll_credit(flags),
            Want::Both => Err(no_group()),
        }
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let stamp = (self.pair.round << POSITION_BITS) | position;
        let mut credit = [0; pattern::STAMP + 2];
        let (head, from) = credit.split_at_mut(pattern::STAMP);
        head.copy_from_slice(&stamp.to_le_bytes());
        from.copy_from_slice(&port(&self.pair.tx)?.to_le_bytes());
        // A credit the kernel has no room for is lost; the next one covers it.
        transmit(&self.pair.tx, &credit, self.pair.flags).map(|_| ())
    }
}

/// A group is not asked for ping-pong: the catalogue has no such rows.
impl PingPong for Group {
    const LOSES: bool = true;

    fn send(&mut self, _sequence: u64, _watch: &mut Watch<'_>) -> Result<()> {
        Err(no_group())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        Err(no_group())
    }
}

/// A socket that is a member of the group on the interface of `local`.
fn member(group: GroupSpec, local: IpAddr, buffer: usize) -> Result<UdpSocket> {
    let IpAddr::V4(local) = local else {
        return Err(PerfError::Usage(
            "broadcast and multicast are measured over IPv4".to_owned(),
        ));
    };
    let join = || -> std::io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_recv_buffer_size(buffer)?;
        socket.set_multicast_all_v4(false)?;
        socket.bind(&SocketAddrV4::new(group.address, group.port).into())?;
        if group.address.is_multicast() {
            socket.join_multicast_v4(&group.address, &local)?;
        }
        socket.set_read_timeout(Some(BLOCK_SLICE))?;
        Ok(socket.into())
    };
    join().during("join a group")
}

fn no_group() -> PerfError {
    PerfError::Protocol("a group carries a stream from one sender".to_owned())
}
