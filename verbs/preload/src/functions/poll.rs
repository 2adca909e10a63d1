//! Readiness of several descriptors: poll(2) and select(2).

use crate::datagrams;
use crate::listener;
use crate::sets;
use crate::system::{errno, kernel, next, rsockets};
use crate::table::{self, Face};
use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_int,
    fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr;

/// Runs a function under a mask of signals, which is NULL or a set.
///
/// # Safety
/// `mask` is NULL or a set.
pub(super) unsafe fn masked<T>(mask: *const sigset_t, body: impl FnOnce() -> T) -> T {
    if mask.is_null() {
        return body();
    }
    // SAFETY: plain data for which zero is a valid value.
    let mut before: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before) };
    let result = body();
    let error = errno::get();
    // SAFETY: the set of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    errno::set(error);
    result
}

/// Milliseconds of a time, rounded up; -1 for NULL.
///
/// # Safety
/// `time` is NULL or a time.
pub(super) unsafe fn millis(time: *const timespec) -> Result<c_int, c_int> {
    // SAFETY: the caller's contract.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Ok(-1);
    };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    let part = (time.tv_nsec + 999_999) / 1_000_000;
    let all = time.tv_sec.saturating_mul(1000).saturating_add(part);
    Ok(c_int::try_from(all).unwrap_or(c_int::MAX))
}

/// Whether a face has more than the kernel's readiness.
fn has_more(fd: c_int) -> bool {
    matches!(
        table::get(fd),
        Some(
            Face::Listener(_)
                | Face::Connection { .. }
                | Face::Udp(_)
                | Face::Datagram { .. }
                | Face::ParentsDatagram
        )
    )
}

thread_local! {
    /// Descriptors of calls that wait; a cancelled thread leaves its own here until it ends.
    static WAITING: RefCell<Vec<Expanded>> = const { RefCell::new(Vec::new()) };
}

/// Descriptors of a call, with rsockets in place of faces, and behind them the queues of listeners and the companions of UDP sockets.
#[derive(Default)]
struct Expanded {
    fds: Vec<pollfd>,
    /// Socket of each of these, by position.
    sockets: Vec<usize>,
    has_rsockets: bool,
}

impl Expanded {
    fn new(fds: &[pollfd]) -> Self {
        let mut expanded = Self {
            fds: fds.to_vec(),
            sockets: Vec::new(),
            has_rsockets: false,
        };
        for (at, fd) in fds.iter().enumerate() {
            match table::get(fd.fd) {
                Some(Face::Connection { rsocket, .. }) => {
                    expanded.has_rsockets = true;
                    expanded.fds[at] = pollfd {
                        fd: rsocket,
                        events: to_rsockets(fd.events),
                        revents: 0,
                    };
                }
                Some(Face::Listener(id)) if fd.events & (POLLIN | POLLRDNORM) != 0 => {
                    if let Some(queue) = listener::queue(fd.fd, id) {
                        sets::add_bell(fd.fd, queue.bell);
                        expanded.fds.push(kernel::readable(queue.bell));
                        expanded.sockets.push(at);
                    }
                }
                Some(Face::Udp(_) | Face::Datagram { .. } | Face::ParentsDatagram)
                    if fd.events & (POLLIN | POLLRDNORM) != 0 =>
                {
                    if let Some(companion) = datagrams::companion(fd.fd) {
                        expanded.has_rsockets = true;
                        expanded.fds.push(kernel::readable(companion.rsocket));
                        expanded.sockets.push(at);
                    }
                }
                _ => {}
            }
        }
        expanded
    }

    /// Waits as poll(2) does, as a cancellation point: no frame has a destructor meanwhile. Returns its result.
    fn wait(mut self, timeout: c_int) -> (c_int, Self) {
        let (at, has_rsockets) = (self.fds.as_mut_ptr(), self.has_rsockets);
        let count = nfds_t::try_from(self.fds.len()).unwrap_or(0);
        let kept = ManuallyDrop::new(self.leave());
        let result = if has_rsockets {
            // SAFETY: as many as the vector has, which stays as it is.
            unsafe { rsockets::rpoll(at, count, timeout) }
        } else {
            // SAFETY: as above.
            unsafe { next::poll(at, count, timeout) }
        };
        let error = errno::get();
        let kept = ManuallyDrop::into_inner(kept);
        let waited = kept.or_else(|| WAITING.with_borrow_mut(Vec::pop));
        errno::set(error);
        (result, waited.unwrap_or_default())
    }

    /// Leaves the descriptors with the thread. Returns them where it takes none: in destructors at its end, and in a signal handler that interrupts this.
    fn leave(self) -> Option<Self> {
        let mut kept = Some(self);
        let _ = WAITING.try_with(|waiting| {
            if let Ok(mut waiting) = waiting.try_borrow_mut() {
                waiting.extend(kept.take());
            }
        });
        kept
    }

    /// Writes the events to the program's descriptors. Returns how many have any.
    fn fold(&self, fds: &mut [pollfd]) -> c_int {
        for (to, from) in fds.iter_mut().zip(&self.fds) {
            to.revents = if to.fd == from.fd {
                from.revents
            } else {
                from_rsockets(to.events, from.revents)
            };
        }
        let behind = self.fds.get(fds.len()..).unwrap_or_default();
        for (at, beside) in self.sockets.iter().zip(behind) {
            if beside.revents != 0 {
                let socket = &mut fds[*at];
                socket.revents |= socket.events & (POLLIN | POLLRDNORM);
            }
        }
        let ready = fds.iter().filter(|it| it.revents != 0).count();
        c_int::try_from(ready).unwrap_or(c_int::MAX)
    }
}

fn to_rsockets(events: i16) -> i16 {
    let mut asked = events & (POLLIN | POLLOUT | POLLRDHUP);
    if events & POLLRDNORM != 0 {
        asked |= POLLIN;
    }
    if events & POLLWRNORM != 0 {
        asked |= POLLOUT;
    }
    asked
}

fn from_rsockets(asked: i16, found: i16) -> i16 {
    let mut events = found & (POLLERR | POLLHUP | POLLNVAL | asked);
    if found & POLLIN != 0 {
        events |= asked & POLLRDNORM;
    }
    if found & POLLOUT != 0 {
        events |= asked & POLLWRNORM;
    }
    events
}

/// poll(2) on descriptors with faces among them.
///
/// # Safety
/// `fds` has `count` descriptors.
unsafe fn wait_for_faces(fds: *mut pollfd, count: usize, timeout: c_int) -> c_int {
    // SAFETY: the caller's array.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count) };
    let (result, expanded) = Expanded::new(fds).wait(timeout);
    if result < 0 {
        return result;
    }
    expanded.fold(fds)
}

/// Length of the program's array, if one of its descriptors has more than the kernel's readiness.
///
/// # Safety
/// `fds` has `count` descriptors.
unsafe fn with_faces(fds: *mut pollfd, count: nfds_t) -> Option<usize> {
    let count = usize::try_from(count).ok().filter(|it| *it > 0)?;
    if fds.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    let fds = unsafe { std::slice::from_raw_parts(fds, count) };
    fds.iter().any(|it| has_more(it.fd)).then_some(count)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's array.
    match unsafe { with_faces(fds, count) } {
        // SAFETY: the caller's arguments.
        None => unsafe { next::poll(fds, count, timeout) },
        // SAFETY: as above.
        Some(count) => unsafe { wait_for_faces(fds, count, timeout) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's array.
    let Some(length) = (unsafe { with_faces(fds, count) }) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::ppoll(fds, count, timeout, mask) };
    };
    // SAFETY: the caller's time.
    match unsafe { millis(timeout) } {
        Ok(timeout) => {
            // SAFETY: the caller's array.
            let wait = || unsafe { wait_for_faces(fds, length, timeout) };
            // SAFETY: the caller's mask.
            unsafe { masked(mask, wait) }
        }
        Err(error) => errno::fail(error),
    }
}

/// Ends the process, as fortified functions do whose array is too small.
fn check(count: nfds_t, room: size_t) {
    let most = room / size_of::<pollfd>();
    if usize::try_from(count).is_ok_and(|count| count > most) {
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the caller's arguments.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the caller's arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// Sets of select(2): each NULL or valid.
struct Selected {
    sets: [*mut fd_set; 3],
    fds: Vec<pollfd>,
}

impl Selected {
    /// Descriptors of the sets.
    ///
    /// # Safety
    /// The sets are NULL or valid.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(1024);
        // SAFETY: a set of the program, which has this descriptor's bit.
        let is_in = |fd, set: *mut fd_set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
        let mut fds = Vec::new();
        for fd in 0..count.clamp(0, most) {
            let mut events = 0;
            for (set, event) in sets.iter().zip([POLLIN, POLLOUT, POLLPRI]) {
                if is_in(fd, *set) {
                    events |= event;
                }
            }
            if events != 0 {
                fds.push(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        Self { sets, fds }
    }

    /// Whether one of them is a face with more than the kernel's readiness.
    fn has_faces(&self) -> bool {
        self.fds.iter().any(|it| has_more(it.fd))
    }

    /// Writes the events that were found to the sets. Returns how many are set.
    fn finish(&self) -> c_int {
        if self.fds.iter().any(|it| it.revents & POLLNVAL != 0) {
            return errno::fail(libc::EBADF);
        }
        // SAFETY: sets of the program.
        unsafe { clear(self.sets) };
        let mut ready = 0;
        // POLLIN_SET, POLLOUT_SET and POLLEX_SET of the kernel.
        let found = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
        let asked = [POLLIN, POLLOUT, POLLPRI];
        for fd in &self.fds {
            for ((set, asked), found) in self.sets.iter().zip(asked).zip(found) {
                if fd.events & asked != 0 && fd.revents & found != 0 {
                    // SAFETY: a set of the program, which had this descriptor.
                    unsafe { libc::FD_SET(fd.fd, *set) };
                    ready += 1;
                }
            }
        }
        ready
    }
}

/// # Safety
/// The sets are NULL or valid.
unsafe fn clear(sets: [*mut fd_set; 3]) {
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        // SAFETY: a set of the caller.
        unsafe { libc::FD_ZERO(set) };
    }
}

/// select(2) on sets with faces, which stay as they are meanwhile.
///
/// # Safety
/// The sets are NULL or valid.
unsafe fn select_faces(count: c_int, sets: [*mut fd_set; 3], timeout: c_int) -> c_int {
    // SAFETY: the caller's sets.
    let expanded = Expanded::new(&unsafe { Selected::new(count, sets) }.fds);
    let (result, expanded) = expanded.wait(timeout);
    if result <= 0 {
        if result == 0 {
            // SAFETY: the caller's sets.
            unsafe { clear(sets) };
        }
        return result;
    }
    // SAFETY: the caller's sets.
    let mut selected = unsafe { Selected::new(count, sets) };
    expanded.fold(&mut selected.fds);
    selected.finish()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [reads, writes, exceptions];
    // SAFETY: the caller's sets.
    if !unsafe { Selected::new(count, sets) }.has_faces() {
        // SAFETY: the caller's arguments.
        return unsafe { next::select(count, reads, writes, exceptions, timeout) };
    }
    // SAFETY: NULL, or the caller's time.
    let time = unsafe { timeout.as_ref() }.map(|it| timespec {
        tv_sec: it.tv_sec,
        tv_nsec: it.tv_usec.saturating_mul(1000),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: NULL, or a time.
    match unsafe { millis(time) } {
        // SAFETY: the caller's sets.
        Ok(timeout) => unsafe { select_faces(count, sets, timeout) },
        Err(error) => errno::fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [reads, writes, exceptions];
    // SAFETY: the caller's sets.
    if !unsafe { Selected::new(count, sets) }.has_faces() {
        // SAFETY: the caller's arguments.
        return unsafe { next::pselect(count, reads, writes, exceptions, timeout, mask) };
    }
    // SAFETY: the caller's time.
    match unsafe { millis(timeout) } {
        Ok(timeout) => {
            // SAFETY: the caller's sets.
            let wait = || unsafe { select_faces(count, sets, timeout) };
            // SAFETY: the caller's mask.
            unsafe { masked(mask, wait) }
        }
        Err(error) => errno::fail(error),
    }
}
