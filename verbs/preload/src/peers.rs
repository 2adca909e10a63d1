//! Peers that take rsockets at a port.
//!
//! A plain server must receive neither MPA's startup nor a connection that is not used, so a client sends a port query first (`rfc-notes/datagram-mapping.md` §10.1), and
//! connects to the TCP port that the answer names. On this host, a port without a mark of rdma_cm is not queried.

use dgiwarp_engine::cm::ports::{Found, MARK_SLOTS, PortQuery, mark_name};
use libc::c_int;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a result holds.
const HOLDS: Duration = Duration::from_secs(60);
/// Time that an answer may take.
const PATIENCE: Duration = Duration::from_millis(60);
/// Results that are remembered.
const MAX_REMEMBERED: usize = 1024;

type Results = Option<HashMap<SocketAddr, (Instant, &'static str)>>;

static RESULTS: Mutex<Results> = Mutex::new(None);

/// Reasons for which a server is not tried for a while, by address. An answer is not remembered: the listener may have ended.
pub(crate) fn results() -> MutexGuard<'static, Results> {
    RESULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "results hold for a time")]
fn now() -> Instant {
    Instant::now()
}

/// The TCP port at which a server takes rsockets, as rsockets count it.
///
/// # Errors
/// Why none is tried.
pub(crate) fn check(to: SocketAddr) -> Result<u16, &'static str> {
    let known = results().as_ref().and_then(|it| it.get(&to)).copied();
    if let Some((until, reason)) = known
        && now() < until
    {
        return Err(reason);
    }
    if !queries() {
        return Err("DGIWARP_PORT_QUERY is 0");
    }
    let is_local = is_local(to.ip());
    if is_local && !is_marked(device_port(to.port())) {
        return Err("the port has no listener of rsockets on this host");
    }
    let result = query(to);
    if let Err(reason) = result
        && !is_local
    {
        avoid(to, reason);
    }
    result.map(|port| port.wrapping_sub(device_port(0)))
}

/// No attempt is made for a while.
pub(crate) fn avoid(to: SocketAddr, reason: &'static str) {
    let mut results = results();
    let results = results.get_or_insert_default();
    if results.len() >= MAX_REMEMBERED {
        results.clear();
    }
    results.insert(to, (now() + HOLDS, reason));
}

/// Whether an address is one of this host's: another one cannot be bound.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether ports are queried.
fn queries() -> bool {
    static QUERIES: OnceLock<bool> = OnceLock::new();
    *QUERIES.get_or_init(|| std::env::var("DGIWARP_PORT_QUERY").as_deref() != Ok("0"))
}

/// The port as the device has it.
fn device_port(port: u16) -> u16 {
    static OFFSET: OnceLock<u16> = OnceLock::new();
    let offset = OFFSET.get_or_init(|| {
        let text = std::env::var("DGIWARP_PORT_OFFSET").unwrap_or_default();
        text.parse().unwrap_or(0)
    });
    port.wrapping_add(*offset)
}

fn is_marked(port: u16) -> bool {
    let Ok(probe) = UnixDatagram::unbound() else {
        return false;
    };
    (0..MARK_SLOTS).any(|slot| {
        let name = UnixAddr::from_abstract_name(mark_name(port, slot));
        name.is_ok_and(|name| probe.connect_addr(&name).is_ok())
    })
}

/// The TCP port of a moved listener.
fn query(mut to: SocketAddr) -> Result<u16, &'static str> {
    to.set_port(device_port(to.port()));
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    let failed = |_: io::Error| "the host cannot be queried";
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(to).map_err(failed)?;
    let start = now();
    let mut query = PortQuery::new(start, transaction(), to.port());
    let mut octets = [0; 64];
    loop {
        while let Some(datagram) = query.poll_transmit() {
            if let Err(error) = socket.send(datagram)
                && error.kind() == io::ErrorKind::ConnectionRefused
            {
                query.handle_refused();
            }
        }
        match query.poll_event() {
            Some(Found::Moved(port)) => return Ok(port.get()),
            Some(Found::Here) => return Err("the host has no listener of rsockets at the port"),
            None => {}
        }
        let time = now();
        let next = query.poll_timeout().unwrap_or(start + PATIENCE);
        let wait = next.min(start + PATIENCE).saturating_duration_since(time);
        if time >= start + PATIENCE {
            return Err("the host does not answer port queries");
        }
        let wait = wait.max(Duration::from_millis(1));
        socket.set_read_timeout(Some(wait)).map_err(failed)?;
        match socket.recv(&mut octets) {
            Ok(length) => drop(query.handle_input(&octets[..length])),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                query.handle_refused();
            }
            Err(_) => query.handle_timeout(now()),
        }
    }
}

/// Random bits of a query.
fn transaction() -> u64 {
    let mut octets = [0_u8; 8];
    let none: libc::c_uint = 0;
    // SAFETY: room for eight octets.
    let _count: c_int = unsafe { libc::getrandom(octets.as_mut_ptr().cast(), 8, none) }
        .try_into()
        .unwrap_or(0);
    u64::from_ne_bytes(octets)
}
