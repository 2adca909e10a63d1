//! Deadlines and repetitions.

use std::hash::Hash;
use std::time::Instant;

use super::{ReadEnd, ReadSink, Requester, back_off};
use crate::datagram::read::targets::ReadKey;

/// Repetitions of a chunk without a response after which the cookie is dropped: the target may have restarted with another
/// key.
const COOKIE_REPEATS: u32 = 2;

impl<K: Copy + Eq + Hash, V: Copy + Eq + Hash, R> Requester<K, V, R> {
    /// Ends Reads whose deadline has passed, and repeats requests without a response in time.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl ReadSink<R>) {
        if self.timeout.is_none_or(|timeout| now < timeout) {
            return;
        }
        self.timeout = None;
        for slot in 0..self.reads.capacity() {
            let Some(read) = self.reads.get(slot) else {
                continue;
            };
            let (deadline, sink_stag) = (read.deadline, read.sink_stag);
            let key = ReadKey { slot, sink_stag };
            if deadline <= now {
                let errno = self.targets.get(read.target).errno;
                self.finish(key, ReadEnd::TimedOut(errno), sink);
            } else {
                self.wake_by(deadline);
                self.check_chunks(now, key);
            }
        }
        let mut next = None;
        for (_, target) in self.targets.iter_mut() {
            let Some(exchange) = target.exchange.as_mut() else {
                continue;
            };
            if target.reads == 0 {
                continue;
            }
            if exchange.due <= now {
                exchange.wanted = true;
                self.exchange_wanted = true;
            } else {
                next = Some(next.map_or(exchange.due, |next: Instant| next.min(exchange.due)));
            }
        }
        if let Some(next) = next {
            self.wake_by(next);
        }
    }

    /// Marks the late chunks of a Read for repetition.
    fn check_chunks(&mut self, now: Instant, key: ReadKey) {
        let Some(read) = self.reads.get_mut(key.slot) else {
            return;
        };
        let target = self.targets.get_mut(read.target);
        let id = read.target;
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
            self.want_cookie(now, id);
        }
        if let Some(next) = next {
            self.wake_by(next);
        }
    }
}
