//! Deadlines and repetitions.

use std::hash::Hash;
use std::time::Instant;

use super::target::ReadKey;
use super::{ReadEnd, ReadSink, Requester, back_off};
use crate::datagram::Associations;

/// Repetitions of a chunk without a response after which the cookie is dropped: the target may have restarted with another
/// key.
const COOKIE_REPEATS: u32 = 2;

impl<K: Copy + Eq + Hash, V: Copy + Eq, R> Requester<K, V, R> {
    /// Ends Reads whose deadline has passed, and repeats requests without a response in time. Due when the timer of the associations is.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        sink: &mut impl ReadSink<R>,
        associations: &mut Associations<K, V>,
    ) {
        for slot in 0..self.reads.capacity() {
            let Some(read) = self.reads.get(slot) else {
                continue;
            };
            let (deadline, sink_stag) = (read.deadline, read.sink_stag);
            let key = ReadKey { slot, sink_stag };
            if deadline <= now {
                let errno = associations.handshake(read.target).errno;
                self.finish(key, ReadEnd::TimedOut(errno), sink, associations);
            } else {
                associations.wake_by(deadline);
                self.check_chunks(now, key, associations);
            }
        }
    }

    /// Marks the late chunks of a Read for repetition.
    fn check_chunks(&mut self, now: Instant, key: ReadKey, associations: &mut Associations<K, V>) {
        let Some(read) = self.reads.get_mut(key.slot) else {
            return;
        };
        let id = read.target;
        let target = associations.handshake_mut(id);
        let patience = target.patience();
        let mut next = None;
        let mut is_late = false;
        for chunk in read.chunks.iter_mut().filter(|chunk| !chunk.to_repeat) {
            // Targets answer in order: as long as octets of the Read arrive, later chunks are only queued there.
            let since = read
                .last_arrival
                .map_or(chunk.asked_at, |at| at.max(chunk.asked_at));
            let due = since + back_off(patience, chunk.fruitless);
            if due > now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
                continue;
            }
            is_late = true;
            chunk.to_repeat = true;
            self.repeats.push_back((key, chunk.start));
            chunk.fruitless += 1;
            if chunk.fruitless > COOKIE_REPEATS && target.cookie.is_some() {
                target.cookie = None;
                chunk.fruitless = 0;
            }
        }
        // Short Reads need no cookie, but the target sends Terminates only to validated addresses.
        if is_late {
            associations.validate(now, id);
        }
        if let Some(next) = next {
            associations.wake_by(next);
        }
    }
}
