//! Groups: a socket for each that a queue pair is in.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::device::World;
use super::pair::{self, Way};

/// The group port (Datagram §8.1).
const PORT: u16 = 18_514;

fn socket(group: Ipv4Addr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // Members of a host share the port.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((group, PORT)).into())?;
    socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    Ok(socket.into())
}

/// Joins a group; `None` where that is not possible.
pub(super) fn join(world: &Arc<World>, id: u64, group: Ipv4Addr) -> Option<Value> {
    let socket = socket(group).ok()?;
    world.state().pairs.get_mut(&id)?.groups.insert(group);
    let world = Arc::clone(world);
    std::thread::spawn(move || pair::serve(&world, id, &socket, Way::Group(group)));
    Some(json!({ "ok": 1 }))
}

/// Leaves it.
pub(super) fn leave(world: &World, id: u64, group: Ipv4Addr) -> Option<Value> {
    if !world.does("groups-never-left") {
        world.state().pairs.get_mut(&id)?.groups.remove(&group);
    }
    Some(json!({ "ok": 1 }))
}
