//! Binding an identifier to a local address.

use crate::cm::id::identifier::{Id, Inner, State, Transport};
use nix::errno::Errno;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};

/// Binds an identifier to an address, and to the device unless the address is unspecified.
pub(crate) fn bind(id: &Arc<Id>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::Idle)?;
    bind_port(&mut inner, to)?;
    if !to.ip().is_unspecified() {
        id.bind_device()?;
    }
    inner.state = State::Bound;
    id.write_addresses(&inner);
    Ok(())
}

/// The locked state of a bound identifier. An idle one is bound to the unspecified address and a port number of the system's choice.
pub(crate) fn bound(id: &Arc<Id>) -> Result<MutexGuard<'_, Inner>, Errno> {
    if id.lock().state == State::Idle {
        bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    }
    let inner = id.lock();
    inner.expect(State::Bound).map(|()| inner)
}

/// Binds a port number: the program's, or one of the system's choice for 0.
pub(super) fn bind_port(inner: &mut Inner, to: SocketAddr) -> Result<(), Errno> {
    let options = inner.options;
    let bound = match &mut inner.transport {
        Transport::Tcp(tcp) => tcp.bind(to, options)?,
        Transport::Udp(udp) => udp.bind(to, options)?,
        Transport::Closed => return Err(Errno::EINVAL),
    };
    inner.local = Some(bound);
    Ok(())
}
