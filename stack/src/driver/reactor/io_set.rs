//! Sockets with a table, an epoll set and deadlines, on which one thread at a time makes progress.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::Error;
use crate::driver::device::clock;
use crate::driver::device::fds::leave_low_numbers;

/// Sockets found by one call of epoll.
const EVENTS: usize = 64;

/// Names an entry of an [`IoSet`]. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct IoId {
    generation: u32,
    key: u32,
}

/// Names no entry.
const OTHER: IoId = IoId {
    generation: u32::MAX,
    key: u32::MAX,
};

/// Reason why an entry is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Ready,
    Deadline,
}

#[derive(Debug)]
struct Slot<E> {
    entry: E,
    generation: u32,
    deadline: Option<Instant>,
    /// Events that epoll reports; `None` while the socket is not in the epoll set.
    events: Option<EpollFlags>,
}

#[derive(Debug)]
struct Table<E> {
    slots: Slab<Slot<E>>,
    deadlines: BTreeSet<(Instant, IoId)>,
    next_generation: u32,
}

/// Entries, each with a socket that is polled, and a deadline.
#[derive(Debug)]
pub(crate) struct IoSet<E> {
    epoll: Epoll,
    /// Number of entries, for a check without the lock.
    count: AtomicUsize,
    table: Mutex<Table<E>>,
}

/// The set behind its lock.
pub(crate) struct Locked<'a, E> {
    set: &'a IoSet<E>,
    table: MutexGuard<'a, Table<E>>,
}

impl<E: AsFd> IoSet<E> {
    pub(crate) fn new() -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))?;
        Ok(Self {
            epoll: Epoll(leave_low_numbers(epoll.0)),
            count: AtomicUsize::new(0),
            table: Mutex::new(Table {
                slots: Slab::new(),
                deadlines: BTreeSet::new(),
                next_generation: 0,
            }),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Makes the set readable while `other` is, too. Its owner has work then.
    pub(crate) fn poll_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, OTHER.token());
        Ok(self.epoll.add(other, event)?)
    }

    pub(crate) fn lock(&self) -> Locked<'_, E> {
        let table = self.table.lock();
        Locked { set: self, table }
    }

    /// The first deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        self.table.lock().deadlines.first().map(|(at, _)| *at)
    }

    /// Calls `drive` once for each entry whose socket is ready, and for each whose deadline has passed, which is taken off it.
    pub(crate) fn progress(&self, mut drive: impl FnMut(&mut Locked<'_, E>, IoId, Cause)) {
        if self.is_empty() {
            return;
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let mut locked = self.lock();
        for event in &events[..ready.unwrap_or(0)] {
            drive(&mut locked, IoId::from_token(event.data()), Cause::Ready);
        }
        let now = clock::now();
        let deadlines = locked.table.deadlines.iter();
        let due = deadlines.take_while(|(at, _)| *at <= now);
        let due: Vec<IoId> = due.map(|(_, id)| *id).collect();
        for id in due {
            locked.set_deadline(id, None);
            drive(&mut locked, id, Cause::Deadline);
        }
    }
}

/// Readable while [`progress`](IoSet::progress) has work, but for deadlines.
impl<E> AsFd for IoSet<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl<E: AsFd> Locked<'_, E> {
    /// Keeps an entry, which is not polled yet.
    pub(crate) fn insert(&mut self, entry: E) -> IoId {
        let table = &mut *self.table;
        let generation = table.next_generation;
        table.next_generation = generation.wrapping_add(1);
        let key = table.slots.insert(Slot {
            entry,
            generation,
            deadline: None,
            events: None,
        });
        let key = u32::try_from(key).expect("fewer entries than descriptors");
        self.count();
        IoId { generation, key }
    }

    /// Keeps an entry whose socket is polled for `events`.
    pub(crate) fn insert_watched(&mut self, entry: E, events: EpollFlags) -> io::Result<IoId> {
        let id = self.insert(entry);
        match self.watch(id, events) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.remove(id);
                Err(error)
            }
        }
    }

    /// Removes an entry. Its socket is polled no more.
    pub(crate) fn remove(&mut self, id: IoId) -> Option<E> {
        self.set_deadline(id, None);
        self.unwatch(id);
        self.slot(id)?;
        let slot = self.table.slots.remove(id.key as usize);
        self.count();
        Some(slot.entry)
    }

    fn count(&self) {
        let count = self.table.slots.len();
        self.set.count.store(count, Ordering::Release);
    }

    fn slot(&mut self, id: IoId) -> Option<&mut Slot<E>> {
        let slot = self.table.slots.get_mut(id.key as usize)?;
        (slot.generation == id.generation).then_some(slot)
    }

    pub(crate) fn get_mut(&mut self, id: IoId) -> Option<&mut E> {
        self.slot(id).map(|slot| &mut slot.entry)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (IoId, &E)> {
        self.table.slots.iter().map(|(key, slot)| {
            let id = IoId {
                generation: slot.generation,
                key: u32::try_from(key).unwrap_or(u32::MAX),
            };
            (id, &slot.entry)
        })
    }

    /// Polls the socket of an entry for `events` from now on.
    pub(crate) fn watch(&mut self, id: IoId, events: EpollFlags) -> io::Result<()> {
        let epoll = &self.set.epoll;
        let Some(slot) = self.slot(id) else {
            return Ok(());
        };
        let mut event = EpollEvent::new(events, id.token());
        match slot.events {
            None => epoll.add(&slot.entry, event)?,
            Some(before) if before != events => epoll.modify(&slot.entry, &mut event)?,
            Some(_) => {}
        }
        slot.events = Some(events);
        Ok(())
    }

    /// Ends the polling of an entry's socket. Returns whether it was polled.
    pub(crate) fn unwatch(&mut self, id: IoId) -> bool {
        let epoll = &self.set.epoll;
        if let Some(slot) = self.slot(id)
            && slot.events.take().is_some()
        {
            let _ = epoll.delete(&slot.entry);
            return true;
        }
        false
    }

    pub(crate) fn set_deadline(&mut self, id: IoId, deadline: Option<Instant>) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let before = std::mem::replace(&mut slot.deadline, deadline);
        if before != deadline {
            let deadlines = &mut self.table.deadlines;
            before.map(|at| deadlines.remove(&(at, id)));
            deadlines.extend(deadline.map(|at| (at, id)));
        }
    }
}

impl IoId {
    fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.key)
    }

    fn from_token(token: u64) -> Self {
        let [g0, g1, g2, g3, k0, k1, k2, k3] = token.to_be_bytes();
        Self {
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::EventFd;

    use super::*;

    fn driven(set: &IoSet<EventFd>) -> Vec<(IoId, Cause)> {
        let mut driven = Vec::new();
        set.progress(|_, id, cause| driven.push((id, cause)));
        driven
    }

    #[test]
    fn ready_and_late_entries_are_driven_and_removed_ones_are_not() {
        let set = IoSet::new().unwrap();
        assert!(set.is_empty() && driven(&set).is_empty());
        let ready = set.lock().insert(EventFd::from_value(1).unwrap());
        let late = set.lock().insert(EventFd::new().unwrap());
        assert!(driven(&set).is_empty());
        for id in [ready, late] {
            set.lock().watch(id, EpollFlags::EPOLLIN).unwrap();
        }
        let now = clock::now();
        set.lock()
            .set_deadline(ready, Some(now + Duration::from_secs(1000)));
        set.lock().set_deadline(late, Some(now));
        assert_eq!(set.poll_timeout(), Some(now));
        let both = [(ready, Cause::Ready), (late, Cause::Deadline)];
        assert_eq!(driven(&set), both);
        // A deadline comes once, readiness lasts.
        assert_eq!(driven(&set), both[..1]);
        assert!(set.lock().unwatch(ready));
        assert!(!set.lock().unwatch(ready), "it is not polled");
        assert!(driven(&set).is_empty());
        assert!(set.lock().remove(ready).is_some());
        assert!(set.lock().remove(ready).is_none());
        assert_eq!(set.poll_timeout(), None);
        // The place is used again, under another name.
        let next = set.lock().insert(EventFd::from_value(1).unwrap());
        assert_ne!(next, ready);
        assert!(set.lock().get_mut(ready).is_none());
        assert!(set.lock().get_mut(next).is_some());
    }

    #[test]
    fn descriptors_of_others_make_the_set_readable_and_are_no_entries() {
        let set = IoSet::<EventFd>::new().unwrap();
        let other = EventFd::new().unwrap();
        set.poll_with(other.as_fd()).unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(set.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!is_readable());
        other.write(1).unwrap();
        assert!(is_readable());
        let ready = EventFd::from_value(1).unwrap();
        let ready = set.lock().insert_watched(ready, EpollFlags::EPOLLIN);
        let ready = (ready.unwrap(), Cause::Ready);
        let known = |driven: &(IoId, Cause)| set.lock().get_mut(driven.0).is_some();
        let (entries, others): (Vec<_>, Vec<_>) = driven(&set).into_iter().partition(known);
        assert_eq!((entries, others.len()), (vec![ready], 1));
    }

    #[test]
    fn an_entry_that_cannot_be_polled_is_not_kept() {
        let set = IoSet::new().unwrap();
        // epoll_ctl(2): EPERM for a regular file.
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = set.lock().insert_watched(plain, EpollFlags::EPOLLIN);
        assert!(refused.is_err() && set.is_empty());
    }
}
