//! `rpoll(3)` and `rselect(3)`: readiness of sockets and of other descriptors together.

use crate::ffi::poll;
use crate::rsocket::cancellation::Begin;
use crate::rsocket::edges::Interest;
use crate::rsocket::settings::Settings;
use crate::rsocket::table::Socket;
use crate::rsocket::wait::{Polling, now, readable, sleep, waker};
use libc::{POLLHUP, POLLIN, POLLOUT, c_int, fd_set, pollfd};
use nix::errno::Errno;
use std::time::{Duration, Instant};

/// A descriptor of a call: a socket of ours, or not.
struct Watched {
    socket: Option<Socket>,
}

/// poll(2) on sockets and other descriptors. A negative timeout is none. `None` where there are no sockets, and the kernel is to be asked alone.
pub(super) fn rpoll(
    fds: &mut [pollfd],
    timeout: c_int,
    begin: &mut Begin,
) -> Result<Option<usize>, Errno> {
    let watched = watched(fds);
    if watched.iter().all(|it| it.socket.is_none()) {
        return Ok(None);
    }
    wait(fds, &watched, timeout, begin).map(Some)
}

fn watched(fds: &[pollfd]) -> Vec<Watched> {
    let sockets = fds.iter().map(|it| Socket::find(it.fd));
    sockets.map(|socket| Watched { socket }).collect()
}

/// Waits until a descriptor is ready. Returns how many are.
fn wait(
    fds: &mut [pollfd],
    watched: &[Watched],
    timeout: c_int,
    begin: &mut Begin,
) -> Result<usize, Errno> {
    let settings = Settings::get();
    let start = begin.time();
    let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = wait.map(|wait| start + wait);
    let mut sockets = watched.iter().filter_map(|it| it.socket.as_ref());
    let polling_time = if sockets.any(Socket::polls) {
        settings.polling_time
    } else {
        Duration::ZERO
    };
    let mut polling = Polling::until(start + polling_time.min(wait.unwrap_or(Duration::MAX)));
    loop {
        let ready = check(fds, watched)?;
        if ready > 0 || timeout == 0 {
            return Ok(ready);
        }
        if !polling.goes_on() {
            break;
        }
    }
    loop {
        sleep_at(fds, watched, deadline, &settings)?;
        let ready = check(fds, watched)?;
        if ready > 0 || deadline.is_some_and(|it| now() >= it) {
            return Ok(ready);
        }
    }
}

/// Fills the events that are there now. Returns how many descriptors have any.
fn check(fds: &mut [pollfd], watched: &[Watched]) -> Result<usize, Errno> {
    let mut others = false;
    for (fd, watched) in fds.iter_mut().zip(watched) {
        fd.revents = 0;
        match &watched.socket {
            Some(socket) => fd.revents = socket.check(fd.events),
            None => others |= fd.fd >= 0,
        }
    }
    if others {
        let hidden: Vec<c_int> = fds.iter().map(|it| it.fd).collect();
        let found: Vec<_> = fds.iter().map(|it| it.revents).collect();
        for (fd, watched) in fds.iter_mut().zip(watched) {
            if watched.socket.is_some() {
                fd.fd = -1;
            }
        }
        let result = poll(fds, 0);
        for ((fd, watched), (number, revents)) in fds
            .iter_mut()
            .zip(watched)
            .zip(hidden.into_iter().zip(found))
        {
            fd.fd = number;
            if watched.socket.is_some() {
                fd.revents = revents;
            }
        }
        if result < 0 {
            return Err(Errno::last());
        }
    }
    Ok(fds.iter().filter(|it| it.revents != 0).count())
}

/// Sleeps until something may have happened.
fn sleep_at(
    fds: &[pollfd],
    watched: &[Watched],
    deadline: Option<Instant>,
    settings: &Settings,
) -> Result<(), Errno> {
    let pairs = || fds.iter().zip(watched);
    let sockets: Vec<_> = pairs()
        .filter_map(|(fd, watched)| Some((watched.socket.clone()?, Interest::level(fd.events))))
        .collect();
    let others = pairs()
        .filter(|(_, watched)| watched.socket.is_none())
        .map(|(fd, _)| pollfd { revents: 0, ..*fd })
        .collect();
    sleep_beside(&sockets, others, deadline, settings)
}

/// Sleeps until a socket has one of its events or another descriptor is ready, until the calling thread's waker was used, or as [`sleep`] does.
pub(super) fn sleep_beside(
    sockets: &[(Socket, Interest)],
    others: Vec<pollfd>,
    deadline: Option<Instant>,
    settings: &Settings,
) -> Result<(), Errno> {
    let waker = waker()?;
    let mut descriptors = others;
    let mut armed = 0;
    let mut ready = false;
    for (socket, interest) in sockets {
        let Ok(found) = socket.arm(*interest, waker) else {
            ready = true;
            break;
        };
        descriptors.extend(found);
        armed += 1;
    }
    descriptors.push(readable(waker));
    let slept = if ready {
        Ok(())
    } else {
        sleep(&mut descriptors, deadline, settings)
    };
    for (socket, _) in sockets.iter().take(armed) {
        socket.disarm(waker);
    }
    slept
}

/// Descriptors of a set, which is NULL or valid.
fn is_set(fd: c_int, set: *const fd_set) -> bool {
    // SAFETY: not NULL, so a set of the program, which has this descriptor's bit.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

fn clear(set: *mut fd_set) {
    if !set.is_null() {
        // SAFETY: not NULL, so a set of the program.
        unsafe { libc::FD_ZERO(set) };
    }
}

fn put(fd: c_int, set: *mut fd_set) -> usize {
    if set.is_null() {
        return 0;
    }
    // SAFETY: not NULL, so a set of the program; the descriptor came from it or from one like it.
    unsafe { libc::FD_SET(fd, set) };
    1
}

/// select(2) on sockets and other descriptors.
///
/// # Safety
/// The sets are NULL or valid.
pub(super) unsafe fn rselect(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    begin: &mut Begin,
) -> Result<usize, Errno> {
    let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(1024);
    if count < 0 || count > most {
        return Err(Errno::EINVAL);
    }
    let [reads, writes, exceptions] = sets;
    let mut fds: Vec<pollfd> = (0..count)
        .filter_map(|fd| {
            let events = [(reads, POLLIN), (writes, POLLOUT), (exceptions, 0)];
            let asked = events.iter().filter(|(set, _)| is_set(fd, *set));
            let mut asked = asked.peekable();
            asked.peek()?;
            Some(pollfd {
                fd,
                events: asked.fold(0, |all, (_, event)| all | event),
                revents: 0,
            })
        })
        .collect();
    let millis = timeout.map(|it| it.as_micros().div_ceil(1000));
    let millis = millis.map_or(-1, |it| c_int::try_from(it).unwrap_or(c_int::MAX));
    let watched = watched(&fds);
    wait(&mut fds, &watched, millis, begin)?;
    if fds.iter().any(|it| it.revents & libc::POLLNVAL != 0) {
        return Err(Errno::EBADF);
    }
    sets.into_iter().for_each(clear);
    Ok(fds
        .iter()
        .map(|it| {
            let (asked, found) = (it.events, it.revents);
            let error = found & libc::POLLERR != 0;
            let mut count = 0;
            if asked & POLLIN != 0 && (found & (POLLIN | POLLHUP) != 0 || error) {
                count += put(it.fd, reads);
            }
            if asked & POLLOUT != 0 && (found & POLLOUT != 0 || error) {
                count += put(it.fd, writes);
            }
            count
        })
        .sum())
}
