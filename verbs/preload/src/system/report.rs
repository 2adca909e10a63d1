//! Messages on standard error, and counts of connections, at level `info` of `DGIWARP_LOG`.

use crate::rules::Direction;
use crate::system::next;
use std::env;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections that became rsockets, and those that stayed the system's.
static UPGRADED: AtomicU64 = AtomicU64::new(0);
static PLAIN: AtomicU64 = AtomicU64::new(0);

/// Level of `DGIWARP_LOG`: 0 off and errors, 1 warnings, 2 more.
fn level() -> u8 {
    static LEVEL: OnceLock<u8> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let text = env::var("DGIWARP_LOG").unwrap_or_default();
        match text.to_ascii_lowercase().as_str() {
            "off" | "error" => 0,
            "info" | "debug" | "trace" => 2,
            _ => 1,
        }
    })
}

fn write(text: &str) {
    let line = format!("dgiwarp-sockets[{}]: {text}\n", std::process::id());
    // SAFETY: as many octets as the line has.
    unsafe { next::write(2, line.as_ptr().cast(), line.len()) };
}

pub(crate) fn warn(text: &str) {
    if level() > 0 {
        write(text);
    }
}

fn info(text: impl FnOnce() -> String) {
    if level() > 1 {
        write(&text());
    }
}

/// A connection became an rsocket.
pub(crate) fn upgraded(direction: Direction, peer: Option<SocketAddr>) {
    UPGRADED.fetch_add(1, Ordering::Relaxed);
    let way = match direction {
        Direction::Connect => "to",
        Direction::Listen => "from",
    };
    info(|| match peer {
        Some(peer) => format!("connection {way} {peer} upgraded"),
        None => format!("connection {way} an unknown address upgraded"),
    });
}

/// A connection stays the system's.
pub(crate) fn plain(peer: SocketAddr, reason: &str) {
    PLAIN.fetch_add(1, Ordering::Relaxed);
    info(|| format!("connection to {peer} plain: {reason}"));
}

/// A connection of a listener stays the system's.
pub(crate) fn accepted_plain() {
    PLAIN.fetch_add(1, Ordering::Relaxed);
}

/// A listener takes rsockets, or not.
pub(crate) fn listener(address: SocketAddr, reason: Option<&str>) {
    info(|| match reason {
        None => format!("listener {address} takes rsockets"),
        Some(reason) => format!("listener {address} plain: {reason}"),
    });
}

/// A UDP socket takes datagrams by a queue pair.
pub(crate) fn companion(address: SocketAddr) {
    info(|| format!("UDP socket {address} takes datagrams by a queue pair"));
}

/// Datagrams of a UDP socket go by its queue pair, the first of them now.
pub(crate) fn datagrams_upgraded(address: Option<SocketAddr>) {
    UPGRADED.fetch_add(1, Ordering::Relaxed);
    info(|| format!("datagrams of {} upgraded", text_of(address)));
}

/// A UDP socket stays the system's alone.
pub(crate) fn datagrams_plain(address: Option<SocketAddr>, reason: &str) {
    PLAIN.fetch_add(1, Ordering::Relaxed);
    info(|| format!("datagrams of {} plain: {reason}", text_of(address)));
}

fn text_of(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown address".to_owned(), |it| it.to_string())
}

/// Counts of the process, at its end.
pub(crate) extern "C" fn summary() {
    let [upgraded, plain] = [&UPGRADED, &PLAIN].map(|it| it.load(Ordering::Relaxed));
    if upgraded + plain > 0 {
        info(|| format!("{upgraded} connections upgraded, {plain} plain"));
    }
}

/// A child of fork(2) has none.
pub(crate) fn forget() {
    UPGRADED.store(0, Ordering::Relaxed);
    PLAIN.store(0, Ordering::Relaxed);
}
