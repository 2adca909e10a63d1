//! Lifetimes of upgraded connections, by server.
//!
//! An rsocket takes longer to make than a TCP connection, so clients that make a connection for each request are slower with it. Where the last connections to a server were closed
//! soon, later ones stay the kernel's, but for one now and then that shows whether they still are.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A connection that is closed before is short. Making it has cost a fiftieth of that.
const SHORT: Duration = Duration::from_millis(50);
/// Short connections in a row after which others stay the kernel's.
const ROW: u32 = 4;
/// Time between two short connections after which they are in no row.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// Servers that are remembered.
const MAX_SERVERS: usize = 1024;

/// Upgraded connections to one server.
#[derive(Debug)]
struct Server {
    /// Short ones in a row.
    row: u32,
    /// Time when the last short one was closed.
    last: Instant,
    /// Time when the latest was made while others stayed the kernel's, and whether it is open.
    probe: Option<(Instant, bool)>,
}

/// Upgraded connections by server.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    servers: HashMap<SocketAddr, Server>,
}

impl Lifetimes {
    /// Whether a connection to a server may be upgraded now.
    pub(crate) fn allow(&mut self, to: SocketAddr, now: Instant) -> bool {
        let Some(server) = self.servers.get_mut(&to) else {
            return true;
        };
        let since = |at| now.saturating_duration_since(at);
        if server.row < ROW || since(server.last) >= FORGOTTEN {
            return true;
        }
        match server.probe {
            Some((made, _)) if since(made) < SHORT => false,
            Some((_, true)) => {
                // It is no short one.
                self.servers.remove(&to);
                true
            }
            Some((_, false)) | None => {
                server.probe = Some((now, false));
                true
            }
        }
    }

    /// A connection has been made.
    pub(crate) fn made(&mut self, to: SocketAddr) {
        if let Some(Server {
            probe: Some((_, is_open)),
            ..
        }) = self.servers.get_mut(&to)
        {
            *is_open = true;
        }
    }

    /// A connection that was made at this time is closed.
    pub(crate) fn closed(&mut self, to: SocketAddr, made: Instant, now: Instant) {
        if now.saturating_duration_since(made) >= SHORT {
            self.servers.remove(&to);
            return;
        }
        if self.servers.len() >= MAX_SERVERS && !self.servers.contains_key(&to) {
            self.servers.clear();
        }
        let server = self.servers.entry(to).or_insert(Server {
            row: 0,
            last: now,
            probe: None,
        });
        if now.saturating_duration_since(server.last) >= FORGOTTEN {
            server.row = 0;
        }
        server.row = server.row.saturating_add(1);
        server.last = now;
        if let Some((_, is_open)) = &mut server.probe {
            *is_open = false;
        }
    }
}

static LIFETIMES: Mutex<Option<Lifetimes>> = Mutex::new(None);

/// Lifetimes of the connections of this process.
pub(crate) fn lifetimes() -> MutexGuard<'static, Option<Lifetimes>> {
    LIFETIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    fn server(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// Connections for each request at one server, each as long as this. Returns how many of them were upgraded.
    fn upgraded(lifetimes: &mut Lifetimes, now: &mut Instant, count: u32, length: Duration) -> u32 {
        let mut upgraded = 0;
        for _ in 0..count {
            let is_upgraded = lifetimes.allow(server(1), *now);
            let made = *now;
            if is_upgraded {
                lifetimes.made(server(1));
                upgraded += 1;
            }
            *now += length;
            if is_upgraded {
                lifetimes.closed(server(1), made, *now);
            }
        }
        upgraded
    }

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn begin() -> (Lifetimes, Instant) {
        (Lifetimes::default(), Instant::now())
    }

    #[test]
    fn short_connections_stay_plain_but_for_one_now_and_then() {
        let (mut lifetimes, mut now) = begin();
        // Four, one of each 50 that follow, and nothing at other servers.
        assert_eq!(upgraded(&mut lifetimes, &mut now, 4 + 500, STEP), 4 + 10);
        assert!(lifetimes.allow(server(2), now));
        // A pause.
        now += FORGOTTEN;
        assert_eq!(upgraded(&mut lifetimes, &mut now, 4 + 50, STEP), 4 + 1);
    }

    #[test]
    fn long_connections_are_upgraded() {
        let (mut lifetimes, mut now) = begin();
        assert_eq!(upgraded(&mut lifetimes, &mut now, 100, SHORT), 100);
        // Rare ones too, however short.
        for _ in 0..20 {
            assert_eq!(upgraded(&mut lifetimes, &mut now, 1, STEP), 1);
            now += FORGOTTEN;
        }
        // Many at once, before any is closed.
        assert!((0..100).all(|_| lifetimes.allow(server(1), now)));
    }

    #[test]
    fn one_that_stays_open_ends_the_row() {
        let (mut lifetimes, mut now) = begin();
        assert_eq!(upgraded(&mut lifetimes, &mut now, 10, STEP), 5);
        now += SHORT;
        assert!(lifetimes.allow(server(1), now));
        lifetimes.made(server(1));
        now += SHORT - STEP;
        assert!(!lifetimes.allow(server(1), now));
        now += STEP;
        assert!((0..10).all(|_| lifetimes.allow(server(1), now)));
    }

    #[test]
    fn as_many_servers_are_remembered_as_there_is_room_for() {
        let (mut lifetimes, now) = begin();
        for port in 1..=5000 {
            lifetimes.closed(server(port), now, now);
            assert!(lifetimes.servers.len() <= MAX_SERVERS);
        }
    }
}
