//! The sockets that a poller tries first.
//!
//! Trying a socket costs a system call; a completion queue may have thousands. Those that brought something lately are tried on every
//! poll, all others are found by one look at the queue's epoll set now and then.

use super::cq::MemberId;
use super::member::Qp;
use super::udp_sockets::SocketIndex;

/// A socket that was empty this often, while another was not, is no longer hot.
const PATIENCE: u32 = 32;

/// A socket that brought something this often is parked, if no other thread watches.
const PARK_AFTER: u32 = 64;

/// A socket of a QP.
#[derive(Debug, Clone)]
pub(super) struct Hot {
    pub(super) member: MemberId,
    pub(super) qp: Qp,
    pub(super) socket: SocketIndex,
    misses: u32,
    hits: u32,
    /// Taken out of the queue's epoll set, which else costs every datagram a call back.
    parked: bool,
}

/// The hot sockets of a completion queue.
#[derive(Debug, Default)]
pub(super) struct HotSet {
    entries: Vec<Hot>,
}

impl HotSet {
    /// Sockets tried on every poll.
    pub(super) const SIZE: usize = 4;

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, position: usize) -> Option<&Hot> {
        self.entries.get(position)
    }

    /// Adds a socket. The one that was empty most often makes room and is returned if it was parked.
    pub(super) fn promote(&mut self, member: MemberId, qp: Qp, socket: SocketIndex) -> Option<Hot> {
        let known = |hot: &Hot| hot.member == member && hot.socket == socket;
        if self.entries.iter().any(known) {
            return None;
        }
        let mut parked = None;
        if self.entries.len() == Self::SIZE
            && let Some(coldest) = (0..Self::SIZE).max_by_key(|&i| self.entries[i].misses)
        {
            parked = Some(self.entries.swap_remove(coldest)).filter(|hot| hot.parked);
        }
        self.entries.push(Hot {
            member,
            qp,
            socket,
            misses: 0,
            hits: 0,
            parked: false,
        });
        parked
    }

    /// Notes that a socket brought something. Returns whether it did so often enough to be parked.
    #[inline]
    pub(super) fn hit(&mut self, position: usize) -> bool {
        let Some(hot) = self.entries.get_mut(position) else {
            return false;
        };
        hot.misses = 0;
        hot.hits = hot.hits.saturating_add(1);
        hot.hits >= PARK_AFTER && !hot.parked
    }

    /// Notes that a socket was taken out of the epoll set.
    pub(super) fn park(&mut self, position: usize) {
        if let Some(hot) = self.entries.get_mut(position) {
            hot.parked = true;
        }
    }

    /// The parked sockets, which are not parked any more: the caller puts them back into the epoll set.
    pub(super) fn unpark(&mut self) -> impl Iterator<Item = &Hot> {
        self.entries.iter_mut().filter_map(|hot| {
            hot.hits = 0;
            std::mem::take(&mut hot.parked).then_some(&*hot)
        })
    }

    /// Notes that a socket was empty. Returns it if it is not hot any more: the only one always is, for it costs
    /// nothing to try the socket that alone is used.
    #[inline]
    pub(super) fn miss(&mut self, position: usize) -> Option<Hot> {
        let hot = self.entries.get_mut(position)?;
        hot.misses = hot.misses.saturating_add(1);
        let misses = hot.misses;
        if misses < PATIENCE {
            return None;
        }
        let another_is_warmer = self.entries.iter().any(|other| other.misses < misses / 2);
        another_is_warmer.then(|| self.entries.swap_remove(position))
    }

    /// Forgets all sockets. None may be parked.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Forgets the sockets of a QP.
    pub(super) fn forget(&mut self, member: MemberId) {
        self.entries.retain(|hot| hot.member != member);
    }
}

impl Hot {
    pub(super) fn is_parked(&self) -> bool {
        self.parked
    }
}
