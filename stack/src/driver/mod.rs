//! Sockets, time, pollers and the background thread. Nothing here decides anything about the protocol.
//!
//! - [`udp_socket`], [`udp_sockets`], [`route`]: sockets and what the kernel knows of paths;
//! - [`serialized`]: one engine, many threads, no hand-off;
//! - [`ud`]: a datagram QP's engine with its sockets;
//! - [`rc`], [`stream_sink`], [`tcp`]: a connected QP's engine with its TCP connection, and the startup on it;
//! - [`pairing`]: connections between QPs whose programs exchanged numbers themselves;
//! - [`services`]: services and the lookups of services;
//! - [`instruments`], [`fault`], [`tap`] ([`pcapng`], [`ip`]): what stands between sockets and engine when somebody asked for it;
//! - [`seeded`]: bugs on purpose, in builds for tests;
//! - [`posting`]: work requests on their way from posting threads to an engine;
//! - [`member`]: a QP of either transport, as a completion queue sees it;
//! - [`answers`]: paths back to those who read from us;
//! - [`cq`]: a completion queue, and receiving on behalf of who polls it; [`turns`], its members that wait for something;
//! - [`background`]: the thread that makes progress while nobody polls, and [`watch`], how it learns where it need not.

mod answers;
pub(crate) mod background;
pub(crate) mod clock;
pub(crate) mod cm;
pub(crate) mod cq;
mod departures;
pub(crate) mod fault;
pub(crate) mod groups;
mod hot_set;
pub(crate) mod instruments;
mod ip;
mod member;
mod notices;
pub(crate) mod own_sockets;
pub(crate) mod pairing;
mod partners;
mod pcapng;
mod posting;
pub(crate) mod rc;
pub(crate) mod route;
pub(crate) mod seeded;
pub(crate) mod serialized;
#[cfg(test)]
mod serialized_tests;
pub(crate) mod services;
pub(crate) mod staging;
pub(crate) mod startups;
mod stream_sink;
mod tap;
pub(crate) mod tcp;
mod timers;
mod turns;
pub(crate) mod ud;
pub(crate) mod udp_socket;
mod udp_sockets;
mod watch;
mod watchdog;
mod way;
mod way_down;

/// What [`serialized`] is made of.
mod sync {
    pub(super) use parking_lot::{Mutex, MutexGuard};
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}
