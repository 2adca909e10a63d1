//! Sockets of this process in a table that `dgiwarp-ss` reads: a memfd, which the first socket that listens or connects makes.
//!
//! Records change under a lock. Octets are added without: a call that moves some costs one atomic addition.

use crate::system::file::Memory;
use crate::system::{errno, kernel, rsockets};
use crate::table::{self, Face, Slot};
use dgiwarp_socket_table::{CAPACITY, Count, NAME, Record, State, Table, WORDS, Way};
use libc::{c_int, ssize_t};
use std::ffi::CString;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First word of the table; NULL while there is none.
static START: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Records that are in use.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    memory: Option<Memory>,
    /// The system has refused the memory.
    refused: bool,
    /// Descriptors of each record that was used so far; 0 is a free one.
    faces: Vec<u32>,
    free: Vec<u16>,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots {
    memory: None,
    refused: false,
    faces: Vec::new(),
    free: Vec::new(),
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

    fn take(&mut self) -> Option<Slot> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.faces.len() < usize::try_from(CAPACITY).unwrap_or(0) => {
                self.faces.push(0);
                u16::try_from(self.faces.len()).ok()?
            }
            None => return None,
        };
        *self.faces.get_mut(usize::from(number) - 1)? = 1;
        Some(Slot(number))
    }

    /// A child of fork(2) has nothing in its parent's table.
    pub(crate) fn forget(&mut self) {
        START.store(ptr::null_mut(), Ordering::Release);
        if let Some(memory) = self.memory.take() {
            memory.end();
        }
        *self = Self::default();
    }
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
        let Some(slot) = slots.take() else {
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

    fn change(self, change: impl FnOnce(Table<'static>, u32)) {
        if self.0 == 0 {
            return;
        }
        let _one_at_a_time = slots();
        if let Some(table) = table() {
            change(table, self.index());
        }
    }

    /// The socket has another descriptor.
    pub(crate) fn share(self) {
        let mut slots = slots();
        let at = usize::from(self.0).wrapping_sub(1);
        if let Some(faces) = slots.faces.get_mut(at) {
            *faces += 1;
        }
    }

    /// A descriptor of the socket is closed. With the last one the record is free.
    pub(crate) fn leave(self) {
        let mut slots = slots();
        let at = usize::from(self.0).wrapping_sub(1);
        let Some(faces) = slots.faces.get_mut(at).filter(|it| **it > 0) else {
            return;
        };
        *faces -= 1;
        if *faces == 0 {
            slots.free.push(self.0);
            if let Some(table) = table() {
                table.free(self.index());
            }
        }
    }

    /// The program has closed the socket, or ended its sending direction.
    pub(crate) fn closes(self) {
        self.change(|table, index| table.set_state(index, State::Closing));
    }

    /// A listener takes rsockets, or not.
    pub(crate) fn takes_rsockets(self, reason: Option<&str>) {
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
