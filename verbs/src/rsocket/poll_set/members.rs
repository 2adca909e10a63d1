//! The members of a poll set. A few sockets are checked one after the other on each wait, the fastest way for them; connections of many have an [`Index`].

use crate::rsocket::edges::Interest;
use crate::rsocket::poll_set::Room;
use crate::rsocket::poll_set::index::Index;
use crate::rsocket::poll_set::member::Member;
use crate::rsocket::table::Socket;
use crate::rsocket::wait::{Changes, Waiters, readable};
use libc::pollfd;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// Sockets that are checked without an index.
const FEW: usize = 8;

/// Checks of a connection before it is taken into the index: by then it is known whether its input comes through memory.
const CHECKS: u32 = 64;

/// The members of a poll set.
#[derive(Default)]
pub(super) struct Members {
    /// Sockets that are checked one after the other.
    sockets: Vec<Member>,
    /// Made for the first connection of many.
    index: Option<Index>,
    /// The kernel's set has had a member.
    pub(super) has_others: bool,
    /// The next report begins with the sockets: they and other descriptors take turns, for callers with room for few events.
    pub(super) sockets_first: bool,
    /// The next report of sockets begins with those of the index, for such callers.
    index_first: bool,
    /// Threads in `repoll_wait`.
    pub(super) waiters: Waiters,
    pub(super) closed: bool,
}

/// Descriptors to sleep at, and changes that are to ring.
type Sleep = (Vec<(Socket, Interest)>, Vec<pollfd>, Option<Arc<Changes>>);

impl Members {
    fn position(&self, socket: &Socket) -> Option<usize> {
        self.sockets.iter().position(|it| it.socket.is(socket))
    }

    fn is_indexed(&self, socket: &Socket) -> bool {
        self.index.as_ref().is_some_and(|it| it.has(socket))
    }

    pub(super) fn has(&self, socket: &Socket) -> bool {
        self.is_indexed(socket) || self.position(socket).is_some()
    }

    pub(super) fn add(&mut self, member: Member) {
        let left = match &mut self.index {
            Some(index) => index.put_back(member),
            None => Some(member),
        };
        self.sockets.extend(left);
    }

    /// A socket has another member from now on.
    pub(super) fn replace(&mut self, member: Member) {
        match &mut self.index {
            Some(index) if index.has(&member.socket) => index.replace(member),
            _ => {
                if let Some(at) = self.position(&member.socket)
                    && let Some(slot) = self.sockets.get_mut(at)
                {
                    *slot = member;
                }
            }
        }
    }

    /// Takes a socket out, which the program may put back.
    pub(super) fn withdraw(&mut self, socket: &Socket) {
        match &mut self.index {
            Some(index) if index.has(socket) => index.withdraw(socket),
            _ => drop(self.remove(socket)),
        }
    }

    /// Takes a closed socket out.
    pub(super) fn remove(&mut self, socket: &Socket) -> Option<Member> {
        let indexed = self.index.as_mut().and_then(|it| it.remove(socket));
        indexed.or_else(|| Some(self.sockets.swap_remove(self.position(socket)?)))
    }

    /// Takes all sockets out.
    pub(super) fn clear(&mut self) -> Vec<Member> {
        let mut all = std::mem::take(&mut self.sockets);
        all.extend(self.index.as_mut().map(Index::clear).unwrap_or_default());
        all
    }

    /// Whether a wait polls for a while before it sleeps.
    pub(super) fn polls(&self) -> bool {
        self.index.is_some() || self.sockets.iter().any(|it| it.socket.polls())
    }

    /// Has the index find the events of the kernel's set, once there are both.
    pub(super) fn find_others(&mut self, kernels: BorrowedFd<'_>) {
        if let Some(index) = self.index.as_mut().filter(|_| self.has_others) {
            index.add_kernels(kernels);
        }
    }

    /// Finds the connections of the index of which a check is due. Returns whether the kernel's set may have events.
    pub(super) fn look(&mut self, kernels: BorrowedFd<'_>) -> bool {
        self.move_to_index(kernels);
        let may_have = self.index.as_mut().is_none_or(Index::look);
        self.has_others && may_have
    }

    /// Moves connections that are not among few to the index.
    fn move_to_index(&mut self, kernels: BorrowedFd<'_>) {
        let indexed = self.index.as_ref().map_or(0, Index::len);
        if self.sockets.len() + indexed <= FEW {
            return;
        }
        let may_move = |member: &mut Member| member.socket.was_checked(CHECKS);
        for member in self.sockets.extract_if(.., may_move).collect::<Vec<_>>() {
            let connection = member.socket.connected();
            let connection = connection.filter(|it| !it.qp.receives_from_memory());
            if self.index.is_none() {
                self.index = Index::new().ok();
                self.find_others(kernels);
            }
            let left = match (&mut self.index, connection) {
                (Some(index), Some(connection)) => index.add(member, connection).err(),
                (None, _) | (_, None) => Some(member),
            };
            self.sockets.extend(left);
        }
    }

    /// Takes events of sockets that are there now. Returns their number.
    pub(super) fn collect(&mut self, room: &mut Room) -> usize {
        let index_first = self.index_first;
        self.index_first = !index_first;
        let mut count = 0;
        for from_index in [index_first, !index_first] {
            let room = room.get_mut(count..).unwrap_or_default();
            count += match &mut self.index {
                Some(index) if from_index => index.collect(room, &mut self.sockets),
                None if from_index => 0,
                Some(_) | None => self.collect_in_turn(room),
            };
        }
        count
    }

    fn collect_in_turn(&mut self, room: &mut Room) -> usize {
        let mut count = 0;
        let mut next = 0;
        for member in &mut self.sockets {
            let Some(place) = room.get_mut(count) else {
                break;
            };
            next += 1;
            if let Some(event) = member.check() {
                place.write(event);
                count += 1;
            }
        }
        // Sockets behind the last that there was room for come first in the next report.
        self.sockets.rotate_left(next);
        count
    }

    /// Prepares the calling thread to sleep; `None` where a check is due.
    pub(super) fn arm(&mut self, kernels: RawFd) -> Option<Sleep> {
        let mut others = Vec::new();
        let mut changes = None;
        if let Some(index) = &mut self.index {
            if !index.arm() {
                return None;
            }
            others.push(readable(index.fd()));
            changes = Some(Arc::clone(index.changes()));
        }
        let is_found = self.index.as_ref().is_some_and(Index::has_kernels);
        if self.has_others && !is_found {
            others.push(readable(kernels));
        }
        let enabled = self.sockets.iter().filter(|it| it.enabled);
        let sockets = enabled.map(Member::interest).collect();
        Some((sockets, others, changes))
    }

    /// Checks of all sockets are due, whatever their descriptors say.
    pub(super) fn check_all(&mut self) {
        if let Some(index) = &mut self.index {
            index.check_all();
        }
    }
}
