//! The sockets that a poller tries first.
//!
//! Trying a socket costs a system call; a completion queue may have thousands. Sockets that delivered lately, and again soon after, are
//! tried on every poll; all others are found by a check of the queue's epoll set now and then. Where many sockets deliver in turn none is tried:
//! each would be empty until all others had delivered.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::driver::reactor::member::{Member, MemberId, SocketIndex};

/// A socket that was empty this often, while another was not, is no longer hot.
const PATIENCE: u32 = 32;

/// A socket is hot when a check finds it again among so many that checks found last.
const ACQUAINTANCES: usize = 2 * HotSockets::SIZE;

/// A socket that brought something this often is parked, if no other thread watches.
const PARK_AFTER: u32 = 64;

/// A socket of a QP.
#[derive(Debug, Clone)]
pub(crate) struct HotSocket {
    pub(crate) id: MemberId,
    pub(crate) member: Arc<dyn Member>,
    pub(crate) socket: SocketIndex,
    misses: u32,
    hits: u32,
    /// Taken out of the queue's epoll set, which else costs every datagram a call back.
    parked: bool,
    /// The member counts polls in vain.
    counts_polls: bool,
}

/// The hot sockets of a completion queue.
#[derive(Debug, Default)]
pub(crate) struct HotSockets {
    entries: Vec<HotSocket>,
    /// Sockets that the last checks of the epoll set found, the latest first.
    found: ArrayVec<(MemberId, SocketIndex), ACQUAINTANCES>,
}

impl HotSockets {
    /// Sockets tried on every poll.
    pub(crate) const SIZE: usize = 4;

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HotSocket> {
        self.entries.iter()
    }

    pub(crate) fn get(&self, position: usize) -> Option<&HotSocket> {
        self.entries.get(position)
    }

    /// The hot socket, if there is one alone.
    #[inline]
    pub(crate) fn sole(&self) -> Option<&HotSocket> {
        match &*self.entries {
            [sole] => Some(sole),
            _ => None,
        }
    }

    /// A check found input on a socket: it is hot if an earlier one did lately. The socket that was empty most often makes room, or goes if it was
    /// empty for long, and is returned if it was parked.
    pub(crate) fn found(
        &mut self,
        id: MemberId,
        member: Arc<dyn Member>,
        socket: SocketIndex,
    ) -> Option<HotSocket> {
        let known = |hot: &HotSocket| hot.id == id && hot.socket == socket;
        if self.entries.iter().any(known) {
            return None;
        }
        let again = self.is_acquainted(id, socket);
        let full = self.entries.len() == Self::SIZE;
        let coldest = (0..self.entries.len()).max_by_key(|&i| self.entries[i].misses);
        let gone = coldest
            .filter(|&i| (again && full) || self.entries[i].misses >= PATIENCE)
            .map(|i| self.entries.swap_remove(i));
        if again {
            self.entries.push(HotSocket::new(id, member, socket));
        }
        gone.filter(|hot| hot.parked)
    }

    /// A member counts polls: its first socket is hot if there is room.
    pub(crate) fn warm(&mut self, id: MemberId, member: Arc<dyn Member>) {
        let known = |hot: &&mut HotSocket| hot.id == id && hot.socket == 0;
        if let Some(hot) = self.entries.iter_mut().find(known) {
            hot.counts_polls = member.counts_polls();
        } else if self.entries.len() < Self::SIZE {
            self.entries.push(HotSocket::new(id, member, 0));
        }
    }

    /// Whether it is tried on every poll, or will be once a check finds input on it.
    pub(crate) fn is_known(&self, id: MemberId, socket: SocketIndex) -> bool {
        let mut hot = self.entries.iter();
        hot.any(|hot| hot.id == id && hot.socket == socket) || self.found.contains(&(id, socket))
    }

    /// Whether a check found this socket lately; records that one did.
    fn is_acquainted(&mut self, member: MemberId, socket: SocketIndex) -> bool {
        let again = self.found.contains(&(member, socket));
        if !again {
            self.found.truncate(ACQUAINTANCES - 1);
            self.found.insert(0, (member, socket));
        }
        again
    }

    /// Notes that a socket brought something. Returns whether it did so often enough to be parked.
    #[inline]
    pub(crate) fn hit(&mut self, position: usize) -> bool {
        let Some(hot) = self.entries.get_mut(position) else {
            return false;
        };
        hot.misses = 0;
        hot.hits = hot.hits.saturating_add(1);
        hot.hits >= PARK_AFTER && !hot.parked
    }

    /// Notes that a socket was taken out of the epoll set.
    pub(crate) fn park(&mut self, position: usize) {
        if let Some(hot) = self.entries.get_mut(position) {
            hot.parked = true;
        }
    }

    /// The parked sockets, which are not parked any more: the caller puts them back into the epoll set.
    pub(crate) fn unpark(&mut self) -> impl Iterator<Item = &HotSocket> {
        self.entries.iter_mut().filter_map(|hot| {
            hot.hits = 0;
            std::mem::take(&mut hot.parked).then_some(&*hot)
        })
    }

    /// Notes that a socket was empty. Returns it if it is not hot any more: the only one always is, for it costs
    /// nothing to try the socket that alone is used.
    #[inline]
    pub(crate) fn miss(&mut self, position: usize) -> Option<HotSocket> {
        let hot = self.entries.get_mut(position)?;
        hot.misses = hot.misses.saturating_add(1);
        let misses = hot.misses;
        if misses < PATIENCE {
            return None;
        }
        let another_is_warmer = self.entries.iter().any(|other| other.misses < misses / 2);
        another_is_warmer.then(|| self.entries.swap_remove(position))
    }

    /// Notes that the only hot socket was empty: it stays one.
    #[inline]
    pub(crate) fn miss_sole(&mut self) {
        if let Some(hot) = self.entries.first_mut() {
            hot.misses = hot.misses.saturating_add(1);
        }
    }

    /// Forgets all sockets. None may be parked.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Forgets the sockets of a QP.
    pub(crate) fn forget(&mut self, member: MemberId) {
        self.entries.retain(|hot| hot.id != member);
        self.found.retain(|(it, _)| *it != member);
    }
}

impl HotSocket {
    fn new(id: MemberId, member: Arc<dyn Member>, socket: SocketIndex) -> Self {
        let counts_polls = member.counts_polls();
        Self {
            id,
            member,
            socket,
            misses: 0,
            hits: 0,
            parked: false,
            counts_polls,
        }
    }

    /// Whether its member counts polls in vain.
    #[inline]
    pub(crate) const fn counts_polls(&self) -> bool {
        self.counts_polls
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_by_turns_are_strangers_where_there_are_many() {
        let found_again = |count: u64| {
            let mut set = HotSockets::default();
            let mut turn = || {
                let again = (0..count).map(|key| {
                    let (member, socket) = MemberId::from_token(key << 8);
                    set.is_acquainted(member, socket)
                });
                again.filter(|again| *again).count()
            };
            (turn(), turn())
        };
        assert_eq!(found_again(1), (0, 1));
        assert_eq!(found_again(8), (0, 8));
        assert_eq!(found_again(9), (0, 0));
        assert_eq!(found_again(256), (0, 0));
    }
}
