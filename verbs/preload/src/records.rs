//! Sockets of this process in a table that `dgiwarp-ss` reads: a memfd, which the first socket that listens or connects makes.
//!
//! A call that moves octets costs one atomic addition.

use crate::system::file::Memory;
use crate::system::{errno, kernel, rsockets};
use crate::table::{self, Face, Slot};
use dgiwarp_socket_table::{CAPACITY, Count, NAME, Record, State, Table, WORDS, Way};
use libc::{c_int, ssize_t};
use std::ffi::CString;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First word of the table; NULL while there is none.
static START: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Descriptors of each record; 0 is a free one. `close(2)` may be called by a handler of a signal, and so takes no lock.
static FACES: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
const PLACES: usize = CAPACITY as usize;
/// Datagrams of the record's socket have gone by its companion.
static BY_UD: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];
/// The record is about to be free.
const ENDS: u32 = u32::MAX;
/// Place below which no record is free, as far as is known.
static LOWEST: AtomicUsize = AtomicUsize::new(0);

/// Memory of the table. Its lock is held where reasons are counted.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    memory: Option<Memory>,
    /// The system has refused the memory.
    refused: bool,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots {
    memory: None,
    refused: false,
});

pub(crate) fn slots() -> MutexGuard<'static, Slots> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn table() -> Option<Table<'static>> {
    let start = START.load(Ordering::Acquire);
    if start.is_null() {
        return None;
    }
    // SAFETY: as many words as the memory has, which is unmapped in a child of fork(2) alone, by its only thread and after `START` was cleared.
    Table::of(unsafe { std::slice::from_raw_parts(start, WORDS) })
}

impl Slots {
    /// The table, made by the first call.
    fn table(&mut self) -> Option<Table<'static>> {
        if self.refused {
            return None;
        }
        if self.memory.is_none() {
            self.memory = CString::new(NAME)
                .ok()
                .and_then(|name| Memory::new(&name, WORDS));
            let Some(memory) = &self.memory else {
                self.refused = true;
                return None;
            };
            // SAFETY: as many words, which are never unmapped in this process.
            let words = unsafe { std::slice::from_raw_parts(memory.start(), WORDS) };
            Table::begin(words, std::process::id(), kernel::seconds())?;
            START.store(memory.start(), Ordering::Release);
        }
        table()
    }

    /// A child of fork(2) has nothing in its parent's table.
    pub(crate) fn forget(&mut self) {
        START.store(ptr::null_mut(), Ordering::Release);
        if let Some(memory) = self.memory.take() {
            memory.end();
            for (faces, by_ud) in FACES.iter().zip(&BY_UD) {
                faces.store(0, Ordering::Relaxed);
                by_ud.store(false, Ordering::Relaxed);
            }
            LOWEST.store(0, Ordering::Relaxed);
        }
    }
}

/// Takes a free record.
fn take() -> Option<Slot> {
    let lowest = LOWEST.load(Ordering::Relaxed);
    let mut places = (lowest..PLACES).chain(0..lowest);
    let at = places.find(|at| {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let taken = FACES[*at].compare_exchange(0, 1, acquire, relaxed);
        taken.is_ok()
    })?;
    LOWEST.store(at + 1, Ordering::Relaxed);
    Some(Slot(u16::try_from(at + 1).ok()?))
}

/// Records a socket. Plain connections count for their reason.
fn record(record: &Record, plain: Option<(&str, u64)>) -> Slot {
    let error = errno::get();
    let mut slots = slots();
    let slot = slots.table().and_then(|table| {
        let reason = plain.map_or(0, |(reason, count)| table.reason(reason, count));
        if matches!(record.way, Way::Rc) {
            table.count_upgraded();
        }
        let Some(slot) = take() else {
            table.count_unrecorded();
            return None;
        };
        let record = Record { reason, ..*record };
        table.publish(slot.index(), &record);
        Some(slot)
    });
    drop(slots);
    errno::set(error);
    slot.unwrap_or_default()
}

/// A listening socket, of which nothing has waited for connections.
pub(crate) fn listener(fd: c_int) -> Slot {
    let listener = Record {
        state: State::Listen,
        inode: kernel::inode(fd),
        local: kernel::local(fd),
        ..Record::default()
    };
    record(&listener, Some(("nothing waits for connections", 0)))
}

/// A connection that became an rsocket.
pub(crate) fn upgraded(fd: c_int, rsocket: c_int, peer: Option<SocketAddr>) -> Slot {
    let connection = Record {
        way: Way::Rc,
        inode: kernel::inode(fd),
        local: rsockets::local(rsocket),
        peer,
        ..Record::default()
    };
    record(&connection, None)
}

/// A connection that stays the kernel's: the descriptor becomes a face that counts octets.
pub(crate) fn plain(fd: c_int, peer: Option<SocketAddr>, connects: bool, reason: &str) {
    let connection = Record {
        state: if connects {
            State::Connecting
        } else {
            State::Established
        },
        inode: kernel::inode(fd),
        local: kernel::local(fd),
        peer: peer.or_else(|| kernel::peer(fd)),
        ..Record::default()
    };
    let slot = record(&connection, Some((reason, 1)));
    replace(fd, (slot != Slot::default()).then_some(Face::Plain(slot)));
}

/// A UDP socket, with the reason why it stays the kernel's alone.
pub(crate) fn datagram(fd: c_int, plain: Option<&str>) -> Slot {
    let socket = Record {
        way: Way::Udp,
        inode: kernel::inode(fd),
        local: kernel::local(fd),
        peer: kernel::peer(fd),
        ..Record::default()
    };
    record(&socket, plain.map(|reason| (reason, 1)))
}

/// Makes a descriptor a face or none. A plain connection that had the number is gone, by a call that is not this library's.
pub(crate) fn replace(fd: c_int, face: Option<Face>) {
    if let Some(Face::Plain(stale)) = table::replace(fd, face) {
        stale.leave();
    }
}

/// The record of a plain connection.
pub(crate) fn of_plain(fd: c_int) -> Slot {
    match table::get(fd) {
        Some(Face::Plain(slot)) => slot,
        _ => Slot::default(),
    }
}

impl Slot {
    fn index(self) -> u32 {
        u32::from(self.0).wrapping_sub(1)
    }

    fn faces(self) -> Option<&'static AtomicU32> {
        FACES.get(usize::from(self.0).wrapping_sub(1))
    }

    fn by_ud(self) -> Option<&'static AtomicBool> {
        BY_UD.get(usize::from(self.0).wrapping_sub(1))
    }

    fn change(self, change: impl FnOnce(Table<'static>, u32)) {
        if self.0 != 0
            && let Some(table) = table()
        {
            change(table, self.index());
        }
    }

    /// The socket has another descriptor.
    pub(crate) fn share(self) {
        if let Some(faces) = self.faces() {
            faces.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A descriptor of the socket is closed. With the last one the record is free.
    pub(crate) fn leave(self) {
        let Some(faces) = self.faces() else { return };
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let before = faces.fetch_update(acquire, relaxed, |faces| match faces {
            0 | ENDS => None,
            1 => Some(ENDS),
            more => Some(more - 1),
        });
        if before == Ok(1) {
            self.change(Table::free);
            if let Some(by_ud) = self.by_ud() {
                by_ud.store(false, Ordering::Relaxed);
            }
            faces.store(0, Ordering::Release);
            LOWEST.fetch_min(usize::from(self.0) - 1, Ordering::Relaxed);
        }
    }

    /// The program has closed the socket, or ended its sending direction.
    pub(crate) fn closes(self) {
        self.change(|table, index| table.set_state(index, State::Closing));
    }

    /// A datagram of the socket has gone by the queue pair of its companion. Returns whether it is the first.
    #[inline]
    pub(crate) fn goes_by_ud(self) -> bool {
        let is_first = self
            .by_ud()
            .is_some_and(|it| !it.load(Ordering::Relaxed) && !it.swap(true, Ordering::Relaxed));
        if is_first {
            self.change(|table, index| {
                table.set_way(index, Way::Ud, 0);
                table.count_upgraded();
            });
        }
        is_first
    }

    /// A UDP socket is the kernel's alone from now on.
    pub(crate) fn stays_plain(self, reason: &str) {
        let _reasons = slots();
        self.change(|table, index| table.set_way(index, Way::Udp, table.reason(reason, 1)));
    }

    /// A listener takes rsockets, or not.
    pub(crate) fn takes_rsockets(self, reason: Option<&str>) {
        let _reasons = slots();
        self.change(|table, index| match reason {
            None => table.set_way(index, Way::Rsocket, 0),
            Some(reason) => table.set_way(index, Way::Tcp, table.reason(reason, 0)),
        });
    }

    /// Counts octets of a call that has succeeded.
    #[inline]
    fn add(
        self,
        result: ssize_t,
        add: impl FnOnce(Table<'static>, u32, u64) -> Count,
    ) -> Option<Count> {
        if self.0 == 0 {
            return None;
        }
        let octets = u64::try_from(result).ok().filter(|it| *it > 0)?;
        Some(add(table()?, self.index(), octets))
    }

    /// Counts the octets of a call that sends on a plain connection.
    #[inline]
    pub(crate) fn sent(self, result: ssize_t) -> ssize_t {
        self.add(result, Table::add_sent);
        result
    }

    /// Counts the octets of a call that receives on a plain connection.
    #[inline]
    pub(crate) fn received(self, result: ssize_t, flags: c_int) -> ssize_t {
        if flags & libc::MSG_PEEK == 0 {
            self.add(result, Table::add_received);
        }
        result
    }
}

/// An rsocket with its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) rsocket: c_int,
    pub(crate) slot: Slot,
}

impl Connection {
    /// Counts the octets of a call that sends.
    #[inline]
    pub(crate) fn sent(self, result: ssize_t) -> ssize_t {
        let count = self.slot.add(result, Table::add_sent);
        self.note_way(count);
        result
    }

    /// Counts the octets of a call that receives.
    #[inline]
    pub(crate) fn received(self, result: ssize_t, flags: c_int) -> ssize_t {
        if flags & libc::MSG_PEEK == 0 {
            let count = self.slot.add(result, Table::add_received);
            self.note_way(count);
        }
        result
    }

    #[inline]
    fn note_way(self, count: Option<Count>) {
        if count.is_some_and(Count::is_milestone) {
            self.ask_way();
        }
    }

    /// The device moves connections to shared memory some time after their first octets.
    #[cold]
    fn ask_way(self) {
        let Some(table) = table().filter(|it| !it.is_lane(self.slot.index())) else {
            return;
        };
        let error = errno::get();
        if rsockets::is_lane(self.rsocket) {
            table.set_lane(self.slot.index());
        }
        errno::set(error);
    }
}
