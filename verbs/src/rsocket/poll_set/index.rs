//! The index of a poll set with many connections: an epoll set of the kernel tells which of them have input, so that a wait costs what those cost that have some.
//!
//! A connection is in the index by a watch of its completion queue, whose descriptor is readable while there is input. It is checked when that descriptor is readable; when another call
//! on the connection has changed it ([`Change`]); when the background thread has made a completion; and as long as it has an event that is reported again and again. Before a thread sleeps, the watches
//! of those connections are armed that were busy since the last sleep.

use crate::rsocket::poll_set::Room;
use crate::rsocket::poll_set::member::Member;
use crate::rsocket::stream::connection::Connection;
use crate::rsocket::table::Socket;
use crate::rsocket::wait::{Change, Changes, leave_low_numbers};
use dgiwarp::CqWatch;
use libc::epoll_event;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Connections found by one call of epoll.
const EVENTS: usize = 64;
/// Key of the descriptor of changes.
const CHANGES: u64 = u64::MAX;
/// Key of the kernel's set.
const KERNELS: u64 = u64::MAX - 1;

/// The index of a poll set.
pub(super) struct Index {
    epoll: Epoll,
    changes: Arc<Changes>,
    connections: BTreeMap<u64, Indexed>,
    /// Keys of the connections by the identity of their sockets.
    keys: BTreeMap<usize, u64>,
    next_key: u64,
    /// Connections to be checked, the one whose turn is next first.
    due: VecDeque<u64>,
    /// Connections whose watches are not armed.
    unarmed: Vec<u64>,
    /// The kernel's set is found with the index.
    has_kernels: bool,
    /// Room for keys.
    changed: Vec<u64>,
}

/// A connection in the index.
struct Indexed {
    /// `None` after `EPOLL_CTL_DEL`: programs take sockets out and put them back for each message, and a watch is dear.
    member: Option<Member>,
    /// The watch is in the epoll set.
    is_watched: bool,
    watch: CqWatch,
    told: Told,
    due: Due,
    /// The watch is armed.
    armed: bool,
}

/// A connection that tells the index of its changes.
struct Told {
    connection: Arc<Connection>,
    change: Arc<Change>,
}

/// The check of a connection that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    No,
    /// Without a receive: there is no input.
    State,
    Input,
}

impl Told {
    fn begin(connection: Arc<Connection>, changes: &Arc<Changes>, key: u64) -> Self {
        let change = Change::new(changes, key);
        connection.lock().waiters.tell(&change);
        Self { connection, change }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.connection.lock().waiters.forget(&self.change);
    }
}

impl Indexed {
    /// The event to report now, if there is one.
    fn check(&mut self, due: Due) -> Option<epoll_event> {
        self.told.change.begin_check();
        let member = self.member.as_mut()?;
        let mut data = self.told.connection.lock();
        if due == Due::Input {
            self.told.connection.advance(&mut data);
        }
        let (found, edges) = (data.readiness(member.events()), data.edges);
        drop(data);
        member.report(found, Some(edges))
    }

    fn repeats(&self) -> bool {
        self.member.as_ref().is_some_and(Member::repeats)
    }
}

/// Input of a connection, or a completion.
fn input(key: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, key)
}

/// A check of a connection is due.
fn mark(queue: &mut VecDeque<u64>, key: u64, indexed: &mut Indexed, due: Due) {
    if indexed.due == Due::No {
        queue.push_back(key);
    }
    if indexed.due != Due::Input {
        indexed.due = due;
    }
}

impl Index {
    pub(super) fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let epoll = Epoll(leave_low_numbers(epoll.0));
        let changes = Changes::new()?;
        epoll.add(&*changes, EpollEvent::new(EpollFlags::EPOLLIN, CHANGES))?;
        Ok(Self {
            epoll,
            changes,
            connections: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            due: VecDeque::new(),
            unarmed: Vec::new(),
            has_kernels: false,
            changed: Vec::new(),
        })
    }

    /// Descriptor to sleep at: readable while a check is due.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }

    pub(super) fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Takes the kernel's set in.
    pub(super) fn add_kernels(&mut self, set: BorrowedFd<'_>) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, KERNELS);
        self.has_kernels = self.has_kernels || self.epoll.add(set, event).is_ok();
    }

    /// Whether events of the kernel's set are found with the index.
    pub(super) fn has_kernels(&self) -> bool {
        self.has_kernels
    }

    /// Takes a connection in. The error is the member, where descriptors are missing.
    pub(super) fn add(
        &mut self,
        member: Member,
        connection: Arc<Connection>,
    ) -> Result<(), Member> {
        let key = self.next_key;
        let Ok(watch) = connection.watch() else {
            return Err(member);
        };
        if self.epoll.add(watch.as_fd(), input(key)).is_err() {
            return Err(member);
        }
        // Also where the connection does not come up, once.
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, key);
        let _ = self.epoll.add(connection.mail(), event);
        self.next_key += 1;
        self.keys.insert(member.socket.identity(), key);
        let indexed = Indexed {
            member: Some(member),
            is_watched: true,
            watch,
            told: Told::begin(connection, &self.changes, key),
            due: Due::Input,
            armed: false,
        };
        self.connections.insert(key, indexed);
        self.due.push_back(key);
        self.unarmed.push(key);
        Ok(())
    }

    /// Connections in the index, those that were taken out included.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether the socket has a member.
    pub(super) fn has(&self, socket: &Socket) -> bool {
        let key = self.keys.get(&socket.identity());
        key.and_then(|key| self.connections.get(key))
            .is_some_and(|it| it.member.is_some())
    }

    /// A socket of the index has another member from now on.
    pub(super) fn replace(&mut self, member: Member) {
        drop(self.put_back(member));
    }

    /// Gives a socket of the index, which may have been taken out, this member. Returns it where the socket is not in the index, or the kernel has no room for its watch.
    pub(super) fn put_back(&mut self, member: Member) -> Option<Member> {
        let Some(key) = self.keys.get(&member.socket.identity()) else {
            return Some(member);
        };
        let Some(indexed) = self.connections.get_mut(key) else {
            return Some(member);
        };
        if !indexed.is_watched {
            if self.epoll.add(indexed.watch.as_fd(), input(*key)).is_err() {
                // It is checked elsewhere, and may come anew.
                let _ = self.remove(&member.socket);
                return Some(member);
            }
            indexed.is_watched = true;
        }
        indexed.member = Some(member);
        mark(&mut self.due, *key, indexed, Due::State);
        None
    }

    /// Takes a socket out, which the program may put back.
    pub(super) fn withdraw(&mut self, socket: &Socket) {
        let key = self.keys.get(&socket.identity());
        if let Some(indexed) = key.and_then(|key| self.connections.get_mut(key)) {
            indexed.member = None;
        }
    }

    /// Takes a closed socket out, or one that is checked elsewhere.
    pub(super) fn remove(&mut self, socket: &Socket) -> Option<Member> {
        let key = self.keys.remove(&socket.identity())?;
        let indexed = self.connections.remove(&key)?;
        if indexed.is_watched {
            let _ = self.epoll.delete(indexed.watch.as_fd());
        }
        let _ = self.epoll.delete(indexed.told.connection.mail());
        self.due.retain(|it| *it != key);
        self.unarmed.retain(|it| *it != key);
        indexed.member
    }

    /// Takes all sockets out.
    pub(super) fn clear(&mut self) -> Vec<Member> {
        self.keys.clear();
        self.due.clear();
        self.unarmed.clear();
        let all = std::mem::take(&mut self.connections).into_values();
        all.filter_map(|indexed| indexed.member).collect()
    }

    /// Checks of all connections are due.
    pub(super) fn check_all(&mut self) {
        for (key, indexed) in &mut self.connections {
            mark(&mut self.due, *key, indexed, Due::Input);
        }
    }

    /// Finds the connections of which a check is due. Returns whether the kernel's set may have events.
    pub(super) fn look(&mut self) -> bool {
        let mut has_others = !self.has_kernels;
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        for event in events.iter().take(ready.unwrap_or(0)) {
            match event.data() {
                CHANGES => self.changes.settle(),
                KERNELS => has_others = true,
                key => {
                    if let Some(indexed) = self.connections.get_mut(&key) {
                        mark(&mut self.due, key, indexed, Due::Input);
                    }
                }
            }
        }
        self.changes.take(&mut self.changed);
        for key in self.changed.drain(..) {
            if let Some(indexed) = self.connections.get_mut(&key) {
                mark(&mut self.due, key, indexed, Due::State);
            }
        }
        for key in &self.unarmed {
            if let Some(indexed) = self.connections.get_mut(key)
                && indexed.member.is_some()
                && indexed.told.connection.has_completions()
            {
                mark(&mut self.due, *key, indexed, Due::Input);
            }
        }
        has_others
    }

    /// Takes events of the connections of which a check is due. Returns their number. Connections whose input comes through memory now, which no descriptor announces at as little cost, move
    /// to `leaving`.
    pub(super) fn collect(&mut self, room: &mut Room, leaving: &mut Vec<Member>) -> usize {
        let mut count = 0;
        for _ in 0..self.due.len() {
            if count == room.len() {
                break;
            }
            let Some(key) = self.due.pop_front() else {
                break;
            };
            let Some(indexed) = self.connections.get_mut(&key) else {
                continue;
            };
            let due = std::mem::replace(&mut indexed.due, Due::No);
            if due == Due::Input {
                let Some(member) = &indexed.member else {
                    // Not before it is put back, which may be soon.
                    if std::mem::take(&mut indexed.is_watched) {
                        let _ = self.epoll.delete(indexed.watch.as_fd());
                    }
                    continue;
                };
                if indexed.told.connection.qp.receives_from_memory() {
                    let socket = member.socket.clone();
                    leaving.extend(self.remove(&socket));
                    continue;
                }
                if std::mem::take(&mut indexed.armed) {
                    indexed.watch.disarm();
                    self.unarmed.push(key);
                }
            }
            let Some(event) = indexed.check(due) else {
                continue;
            };
            if let Some(place) = room.get_mut(count) {
                place.write(event);
                count += 1;
            }
            if indexed.repeats() {
                mark(&mut self.due, key, indexed, Due::State);
            }
        }
        count
    }

    /// Prepares to sleep at the index. Returns whether the calling thread may: no check is due.
    pub(super) fn arm(&mut self) -> bool {
        let due = &mut self.due;
        let connections = &mut self.connections;
        self.unarmed.retain(|key| {
            let Some(indexed) = connections.get_mut(key) else {
                return false;
            };
            if indexed.member.is_none() {
                return true;
            }
            indexed.armed = indexed.watch.arm_without_receive();
            if !indexed.armed {
                mark(due, *key, indexed, Due::Input);
            }
            !indexed.armed
        });
        self.due.is_empty()
    }
}
