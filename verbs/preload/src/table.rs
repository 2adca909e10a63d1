//! Faces: descriptors of the program that are more than the kernel's, each by its number.
//!
//! A face is one word, so that calls on all other descriptors cost one load, and no call on data takes a lock. The verbs library below calls functions of the C
//! library too, and finds no face at its own descriptors.

use libc::{c_int, sockaddr_storage, socklen_t};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Faces of a chunk, and chunks: as many as the kernel's greatest limit of descriptors.
const CHUNK: usize = 1024;

static CHUNKS: [OnceLock<Box<[AtomicU64; CHUNK]>>; CHUNK] = [const { OnceLock::new() }; CHUNK];

/// Threads that wait at a descriptor of the kernel's, by its number.
static WAITERS: [OnceLock<Box<[AtomicU32; CHUNK]>>; CHUNK] = [const { OnceLock::new() }; CHUNK];

/// Record of a socket in the table that `dgiwarp-ss` reads ([`crate::records`]): its place, counted from 1, or 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u16);

/// A descriptor of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// A TCP socket that this process made, neither connected nor listening by this library.
    Socket,
    /// A listening TCP socket, by its number in [`crate::listener`].
    Listener(u32),
    /// A connection: its rsocket. The kernel's socket at the number is not connected.
    Connection { rsocket: c_int, slot: Slot },
    /// A connection that stayed the kernel's, whose octets are counted.
    Plain(Slot),
    /// An epoll set with its poll set of rsockets.
    PollSet {
        poll_set: c_int,
        /// It has rsockets now.
        active: bool,
    },
    /// A connection of the process that forked this one.
    Parents,
    /// A UDP socket that this process made and that has nothing beside it yet.
    Udp(Udp),
    /// A UDP socket with a companion, an rsocket.
    Datagram { rsocket: c_int, slot: Slot },
    /// A UDP socket with a companion in the process that forked this one.
    ParentsDatagram,
}

/// A UDP socket without a companion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Udp {
    /// Datagrams that it has sent, up to 255.
    pub(crate) sent: u8,
    /// The program has given it its address.
    pub(crate) is_bound: bool,
    /// A thread makes the companion.
    pub(crate) making: bool,
}

impl Face {
    fn pack(self) -> u64 {
        let number = |number: c_int| u64::from(number.cast_unsigned());
        match self {
            Self::Socket => 1 << 32,
            Self::Listener(id) => 2 << 32 | u64::from(id),
            Self::Connection { rsocket, slot } => {
                3 << 32 | u64::from(slot.0) << 41 | number(rsocket)
            }
            Self::PollSet { poll_set, active } => {
                4 << 32 | u64::from(active) << 40 | number(poll_set)
            }
            Self::Parents => 5 << 32,
            Self::Plain(slot) => 6 << 32 | u64::from(slot.0) << 41,
            Self::Udp(udp) => {
                let flags = u64::from(udp.is_bound) << 8 | u64::from(udp.making) << 9;
                7 << 32 | flags | u64::from(udp.sent)
            }
            Self::Datagram { rsocket, slot } => 8 << 32 | u64::from(slot.0) << 41 | number(rsocket),
            Self::ParentsDatagram => 9 << 32,
        }
    }

    fn unpack(word: u64) -> Option<Self> {
        let low = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        let slot = Slot(u16::try_from(word >> 41 & 0xffff).unwrap_or(0));
        Some(match word >> 32 & 0xff {
            1 => Self::Socket,
            2 => Self::Listener(low),
            3 => Self::Connection {
                rsocket: low.cast_signed(),
                slot,
            },
            4 => Self::PollSet {
                poll_set: low.cast_signed(),
                active: word >> 40 & 1 == 1,
            },
            5 => Self::Parents,
            6 => Self::Plain(slot),
            7 => Self::Udp(Udp {
                sent: low.to_le_bytes()[0],
                is_bound: low >> 8 & 1 == 1,
                making: low >> 9 & 1 == 1,
            }),
            8 => Self::Datagram {
                rsocket: low.cast_signed(),
                slot,
            },
            9 => Self::ParentsDatagram,
            _ => return None,
        })
    }
}

/// The face of a descriptor.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Face> {
    let at = usize::try_from(fd).ok()?;
    let chunk = CHUNKS.get(at / CHUNK)?.get()?;
    Face::unpack(chunk.get(at % CHUNK)?.load(Ordering::SeqCst))
}

/// Makes a descriptor a face, or none. Returns the one that it was.
pub(crate) fn replace(fd: c_int, face: Option<Face>) -> Option<Face> {
    let at = usize::try_from(fd).ok()?;
    let chunk = CHUNKS.get(at / CHUNK)?;
    if face.is_none() && chunk.get().is_none() {
        return None;
    }
    let chunk = chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK]));
    let word = face.map_or(0, Face::pack);
    Face::unpack(chunk.get(at % CHUNK)?.swap(word, Ordering::SeqCst))
}

/// Changes a face if it is still `before`.
pub(crate) fn change(fd: c_int, before: Face, after: Face) -> bool {
    let chunk = usize::try_from(fd)
        .ok()
        .and_then(|at| CHUNKS.get(at / CHUNK)?.get()?.get(at % CHUNK));
    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
    chunk.is_some_and(|word| {
        let changed = word.compare_exchange(before.pack(), after.pack(), success, failure);
        changed.is_ok()
    })
}

/// Number of threads that wait at a descriptor of the kernel's; `None` where no descriptor has the number.
pub(crate) fn waiters(fd: c_int) -> Option<&'static AtomicU32> {
    let at = usize::try_from(fd).ok()?;
    let chunk = WAITERS.get(at / CHUNK)?;
    let chunk = chunk.get_or_init(|| Box::new([const { AtomicU32::new(0) }; CHUNK]));
    chunk.get(at % CHUNK)
}

/// A child of fork(2) has none of its parent's threads.
pub(crate) fn forget_waiters() {
    let chunks = WAITERS.iter().filter_map(OnceLock::get);
    for waiters in chunks.flat_map(|chunk| chunk.iter()) {
        waiters.store(0, Ordering::SeqCst);
    }
}

/// All faces with their descriptors.
pub(crate) fn all() -> Vec<(c_int, Face)> {
    let chunks = CHUNKS.iter().enumerate();
    let chunks = chunks.filter_map(|(at, chunk)| Some((at, chunk.get()?)));
    let words = chunks.flat_map(|(at, chunk)| {
        let words = chunk.iter().enumerate();
        words.map(move |(n, word)| (at * CHUNK + n, word.load(Ordering::Acquire)))
    });
    words
        .filter_map(|(fd, word)| Some((c_int::try_from(fd).ok()?, Face::unpack(word)?)))
        .collect()
}

/// State that all faces of a connection share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Descriptors, which dup(2) has made one connection of.
    pub(crate) faces: usize,
    /// Address that the program connected to: the rsocket's peer has another port.
    pub(crate) named: Option<(sockaddr_storage, socklen_t)>,
    /// Server of a connection that this process made, and the time when.
    pub(crate) made: Option<(SocketAddr, Instant)>,
}

static SHARED: Mutex<BTreeMap<c_int, Shared>> = Mutex::new(BTreeMap::new());

/// Connections by their rsockets.
pub(crate) fn shared() -> MutexGuard<'static, BTreeMap<c_int, Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a descriptor the face of a new connection.
pub(crate) fn connected(
    fd: c_int,
    rsocket: c_int,
    slot: Slot,
    named: Option<(sockaddr_storage, socklen_t)>,
) {
    let first = Shared {
        faces: 1,
        named,
        ..Shared::default()
    };
    shared().insert(rsocket, first);
    replace(fd, Some(Face::Connection { rsocket, slot }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faces_come_back_as_they_went() {
        let fd = 1_000_000;
        assert_eq!(get(fd), None);
        assert_eq!(get(-1), None);
        let mut before = None;
        for face in [
            Face::Socket,
            Face::Listener(7),
            Face::Connection {
                rsocket: 12,
                slot: Slot(0),
            },
            Face::Connection {
                rsocket: 70_000,
                slot: Slot(4096),
            },
            Face::PollSet {
                poll_set: 9,
                active: true,
            },
            Face::PollSet {
                poll_set: 9,
                active: false,
            },
            Face::Parents,
            Face::Plain(Slot(12)),
            Face::Udp(Udp {
                sent: 255,
                is_bound: false,
                making: true,
            }),
            Face::Udp(Udp {
                sent: 7,
                is_bound: true,
                making: false,
            }),
            Face::Datagram {
                rsocket: 70_000,
                slot: Slot(4096),
            },
            Face::ParentsDatagram,
        ] {
            assert_eq!(replace(fd, Some(face)), before);
            assert_eq!(get(fd), Some(face));
            assert!(all().contains(&(fd, face)));
            before = Some(face);
        }
        let changed = Face::Plain(Slot(1));
        assert!(!change(fd, Face::Socket, changed));
        assert!(change(fd, Face::ParentsDatagram, changed));
        assert_eq!(replace(fd, None), Some(changed));
        assert_eq!(get(fd), None);
    }
}
