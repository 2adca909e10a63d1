//! The sockets that a poller tries first.
//!
//! Trying a socket costs a system call; a completion queue may have thousands. Those that brought something lately are tried on every
//! poll, all others are found by one look at the queue's epoll set now and then.

use super::cq::MemberId;
use super::member::Qp;
use super::udp_sockets::SocketIndex;

/// Sockets tried on every poll.
const SIZE: usize = 4;
/// A socket that was empty this often, while another was not, is no longer hot.
const PATIENCE: u32 = 32;

/// A socket of a QP.
#[derive(Debug, Clone)]
pub(super) struct Hot {
    member: MemberId,
    pub(super) qp: Qp,
    pub(super) socket: SocketIndex,
    misses: u32,
}

/// The hot sockets of a completion queue.
#[derive(Debug, Default)]
pub(super) struct HotSet {
    entries: Vec<Hot>,
}

impl HotSet {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, position: usize) -> Option<&Hot> {
        self.entries.get(position)
    }

    /// Adds a socket; the one that was empty most often makes room.
    pub(super) fn promote(&mut self, member: MemberId, qp: Qp, socket: SocketIndex) {
        let known = |hot: &Hot| hot.member == member && hot.socket == socket;
        if self.entries.iter().any(known) {
            return;
        }
        if self.entries.len() == SIZE
            && let Some(coldest) = (0..SIZE).max_by_key(|&i| self.entries[i].misses)
        {
            self.entries.swap_remove(coldest);
        }
        self.entries.push(Hot {
            member,
            qp,
            socket,
            misses: 0,
        });
    }

    pub(super) fn hit(&mut self, position: usize) {
        if let Some(hot) = self.entries.get_mut(position) {
            hot.misses = 0;
        }
    }

    /// Notes that a socket was empty. Returns whether it was taken out: the only one never is, for it costs nothing
    /// to try the socket that alone is used.
    pub(super) fn miss(&mut self, position: usize) -> bool {
        let Some(hot) = self.entries.get_mut(position) else {
            return false;
        };
        hot.misses = hot.misses.saturating_add(1);
        let misses = hot.misses;
        let another_is_warmer = self.entries.iter().any(|other| other.misses < misses / 2);
        if misses < PATIENCE || !another_is_warmer {
            return false;
        }
        self.entries.swap_remove(position);
        true
    }

    /// Forgets the sockets of a QP.
    pub(super) fn forget(&mut self, member: MemberId) {
        self.entries.retain(|hot| hot.member != member);
    }
}
