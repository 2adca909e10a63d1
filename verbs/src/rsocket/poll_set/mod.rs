//! Poll sets, `repoll_create(3)`, `repoll_ctl(3)` and `repoll_wait(3)`: epoll(7) on sockets and on other descriptors together.
//!
//! The descriptor of a set is that of an epoll set of the kernel, which has the descriptors that are no sockets as its members. The sockets are beside
//! it ([`members`]). A wait checks them, then sleeps at them and at the kernel's set.

mod index;
mod member;
mod members;

use crate::ffi::fork::ProcessTable;
use crate::ffi::{minus_one, minus_one_making};
use crate::rsocket::cancellation::{Begin, cancellable};
use crate::rsocket::poll::sleep_beside;
use crate::rsocket::poll_set::member::Member;
use crate::rsocket::poll_set::members::Members;
use crate::rsocket::settings::Settings;
use crate::rsocket::table::Socket;
use crate::rsocket::wait::{Polling, now, waker};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, c_int, epoll_event};
use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sets of the process by their descriptors.
static SETS: ProcessTable<BTreeMap<RawFd, Arc<PollSet>>> = ProcessTable::new(BTreeMap::new());

/// A poll set.
pub(super) struct PollSet {
    /// Epoll set of the descriptors that are no sockets.
    kernel: OwnedFd,
    members: Mutex<Members>,
}

/// Room for events in the program's memory.
type Room = [MaybeUninit<epoll_event>];

/// Takes a closed socket out of all sets.
pub(super) fn forget(socket: &Socket) {
    let sets: Vec<_> = SETS.lock().values().cloned().collect();
    for set in sets {
        set.remove(socket);
    }
}

impl PollSet {
    /// The set with a descriptor.
    pub(super) fn find(fd: c_int) -> Result<Arc<Self>, Errno> {
        SETS.lock().get(&fd).cloned().ok_or(Errno::EINVAL)
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock()
    }

    /// Ends the set with a descriptor, and the waits for its events. `false` where there is none.
    pub(super) fn close(fd: c_int) -> bool {
        let Some(set) = SETS.lock().remove(&fd) else {
            return false;
        };
        let mut members = set.lock();
        members.closed = true;
        members.waiters.wake();
        let sockets = members.clear();
        drop(members);
        drop(sockets);
        true
    }

    fn remove(&self, socket: &Socket) {
        let mut members = self.lock();
        let member = members.remove(socket);
        members.waiters.wake();
        drop(members);
        drop(member);
    }

    /// Adds, changes or takes out a member.
    fn control(
        &self,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        let Some(socket) = Socket::find(fd) else {
            return self.control_other(operation, fd, event);
        };
        let mut members = self.lock();
        match (operation, members.has(&socket)) {
            (EPOLL_CTL_ADD, true) => return Err(Errno::EEXIST),
            (EPOLL_CTL_ADD, false) => {
                let member = Member::new(socket, event.ok_or(Errno::EFAULT)?);
                // Closed by another thread meanwhile, which found it in no set.
                if !member.is_at(fd) {
                    return Err(Errno::EBADF);
                }
                members.add(member);
            }
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, false) => return Err(Errno::ENOENT),
            (EPOLL_CTL_MOD, true) => {
                members.replace(Member::new(socket, event.ok_or(Errno::EFAULT)?));
            }
            (EPOLL_CTL_DEL, true) => members.withdraw(&socket),
            _ => return Err(Errno::EINVAL),
        }
        // Threads that wait have an older list of sockets.
        members.waiters.wake();
        Ok(())
    }

    fn control_other(
        &self,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        // The kernel would report a set within a set, but none of its sockets.
        if SETS.lock().contains_key(&fd) {
            return Err(Errno::EINVAL);
        }
        let mut event = event;
        let event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let set = self.kernel.as_raw_fd();
        // SAFETY: epoll_ctl(2) with NULL or an event of ours.
        let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, set, operation, fd, event) };
        if result != 0 {
            return Err(Errno::last());
        }
        let mut members = self.lock();
        if !members.has_others {
            members.has_others = true;
            members.find_others(self.kernel.as_fd());
            members.waiters.wake();
        }
        Ok(())
    }

    /// Takes events that are there now. Returns their number.
    fn collect(&self, room: &mut Room) -> Result<usize, Errno> {
        let mut members = self.lock();
        let sockets_first = members.sockets_first;
        members.sockets_first = !sockets_first;
        let others = members.look(self.kernel.as_fd());
        let mut count = 0;
        if sockets_first {
            count = members.collect(room);
        }
        if others {
            match self.collect_others(room.get_mut(count..).unwrap_or_default()) {
                Ok(more) => count += more,
                Err(errno) if count == 0 => return Err(errno),
                Err(_) => {}
            }
        }
        if !sockets_first {
            count += members.collect(room.get_mut(count..).unwrap_or_default());
        }
        Ok(count)
    }

    fn collect_others(&self, room: &mut Room) -> Result<usize, Errno> {
        if room.is_empty() {
            return Ok(0);
        }
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        let (set, at) = (self.kernel.as_raw_fd(), room.as_mut_ptr());
        let no_mask: *const libc::sigset_t = ptr::null();
        // SAFETY: epoll_pwait(2) without a signal mask and with room for as many events.
        let count = unsafe { libc::syscall(libc::SYS_epoll_pwait, set, at, most, 0, no_mask, 0) };
        usize::try_from(count).map_err(|_| Errno::last())
    }

    /// Waits for events of members. A negative timeout is none. No event is the end of the time or of the set.
    fn wait(&self, room: &mut Room, timeout: c_int, begin: &mut Begin) -> Result<usize, Errno> {
        let settings = Settings::get();
        let start = begin.time();
        let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = wait.map(|wait| start + wait);
        let polling_time = if self.lock().polls() {
            settings.polling_time
        } else {
            Duration::ZERO
        };
        let mut polling = Polling::until(start + polling_time.min(wait.unwrap_or(Duration::MAX)));
        loop {
            let count = self.collect(room)?;
            if count > 0 || timeout == 0 {
                return Ok(count);
            }
            if !polling.goes_on() {
                break;
            }
        }
        loop {
            let since = now();
            let slept = self.sleep(deadline, &settings);
            let count = self.collect(room)?;
            if count > 0 {
                return Ok(count);
            }
            let mut members = self.lock();
            // A long sleep, also one that the caller limits to that.
            if now() >= since + settings.wake_up_interval / 2 {
                members.check_all();
            }
            slept?;
            if members.closed || deadline.is_some_and(|it| now() >= it) {
                return Ok(0);
            }
        }
    }

    /// Sleeps until a member may have an event, or the members are others.
    fn sleep(&self, deadline: Option<Instant>, settings: &Settings) -> Result<(), Errno> {
        let waker = waker()?;
        let (sockets, others, changes) = {
            let mut members = self.lock();
            if members.closed {
                return Ok(());
            }
            let Some((sockets, others, changes)) = members.arm(self.kernel.as_raw_fd()) else {
                return Ok(());
            };
            members.waiters.add(waker);
            (sockets, others, changes)
        };
        // A change from now on rings; one of before is checked first.
        let slept = if changes.as_ref().is_none_or(|it| it.begin_sleep()) {
            sleep_beside(&sockets, others, deadline, settings)
        } else {
            Ok(())
        };
        if let Some(changes) = changes {
            changes.end_sleep();
        }
        self.lock().waiters.remove(waker);
        slept
    }
}

pub(crate) extern "C" fn repoll_create(flags: c_int) -> c_int {
    minus_one_making(|| {
        // rdma-core ignores others, the size that epoll_create(2) takes among them.
        let flags = flags & libc::EPOLL_CLOEXEC;
        // SAFETY: epoll_create1(2), a number only.
        let fd = unsafe { libc::syscall(libc::SYS_epoll_create1, flags) };
        let fd = match RawFd::try_from(fd) {
            Ok(fd) if fd >= 0 => fd,
            _ => return Err(Errno::last()),
        };
        let set = PollSet {
            // SAFETY: just made, and nobody else's.
            kernel: unsafe { OwnedFd::from_raw_fd(fd) },
            members: Mutex::default(),
        };
        SETS.lock().insert(fd, Arc::new(set));
        Ok(fd)
    })
}

pub(crate) unsafe extern "C" fn repoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    minus_one(|| {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        if fd == set {
            return Err(Errno::EINVAL);
        }
        let set = PollSet::find(set)?;
        // SAFETY: NULL, or the program's event.
        let event = unsafe { event.as_ref() }.copied();
        set.control(operation, fd, event).map(|()| 0)
    })
}

pub(crate) unsafe extern "C-unwind" fn repoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let mut begin = Begin::default();
    cancellable(-1, || {
        let set = PollSet::find(set)?;
        let most = match usize::try_from(most) {
            Ok(most) if most > 0 => most,
            _ => return Err(Errno::EINVAL),
        };
        if events.is_null() {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the program's array.
        let room = unsafe { std::slice::from_raw_parts_mut(events.cast(), most) };
        let count = set.wait(room, timeout, &mut begin)?;
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}
