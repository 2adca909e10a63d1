//! Settings of TCP connections.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Has TCP find that the peer's host is gone: after about `patience` without an acknowledgement, and after some probes without traffic.
pub(crate) fn watch(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let probe = (patience / 5).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe);
    let keepalive = keepalive.with_interval(probe).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(patience))?;
    socket.set_tcp_nodelay(true)
}

/// Whether two addresses are one host's, also where one is the other mapped to IPv6.
pub(crate) fn is_same(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}
