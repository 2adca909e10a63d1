//! Targets of a requester: their cookies, their response times, their ready Reads.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::datagram::Cookie;

/// Most targets without an outstanding Read.
const MAX_IDLE: usize = 1024;
/// Entries checked to evict one: a new target must not cost more than a request does.
const LOOKS: usize = 8;
/// Most requests that one target queues for one requester (§7.1).
pub(super) const MAX_OPEN: u32 = 16;
/// Shortest time to wait for a response.
const MIN_RESPONSE_TIME: Duration = Duration::from_millis(20);
/// First repeat of a cookie request.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
/// Lifetime of a nonce, and so the longest time between two cookie requests.
const NONCE_LIFETIME: Duration = Duration::from_secs(1);
/// Cookie requests sent within that time.
const MAX_NONCES: usize = 8;

/// Index of a target in its table.
pub(super) type TargetId = usize;

/// Names a Read; goes stale when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadKey {
    pub(super) slot: usize,
    pub(super) sink_stag: u32,
}

/// A cookie exchange without its answer.
#[derive(Debug)]
pub(super) struct Exchange {
    sent: ArrayVec<(u64, Instant), MAX_NONCES>,
    repeat_after: Duration,
    /// Time of the next request.
    pub(super) due: Instant,
    /// A request is due.
    pub(super) wanted: bool,
}

/// A peer that is or was read from, over one local address.
#[derive(Debug)]
pub(super) struct Target<K, V> {
    pub(super) peer: K,
    pub(super) via: V,
    pub(super) cookie: Option<Cookie>,
    pub(super) exchange: Option<Exchange>,
    /// Outstanding Reads.
    pub(super) reads: u32,
    /// Requests whose responses are incomplete.
    pub(super) open: u32,
    /// [`MAX_OPEN`] requests were open; the next ones are sent when half of them are complete.
    pub(super) is_full: bool,
    /// Ready queue: Reads with octets to request, each once.
    pub(super) ready: VecDeque<ReadKey>,
    /// The target is in the round robin of the requester.
    pub(super) in_round: bool,
    /// Latest ICMP error since the latest response.
    pub(super) errno: Option<i32>,
    smoothed: Option<Duration>,
}

impl<K, V> Target<K, V> {
    /// Time to wait for a response before a repetition (as RFC 6298, without its variance).
    pub(super) fn patience(&self) -> Duration {
        self.smoothed
            .map_or(MIN_RESPONSE_TIME, |smoothed| smoothed * 3)
            .max(MIN_RESPONSE_TIME)
    }

    /// Takes a sample of the response time, unambiguous for one request.
    pub(super) fn sample(&mut self, took: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => took,
            Some(smoothed) => (smoothed * 7 + took) / 8,
        });
    }

    /// Requests a cookie, if there is none and no request was sent a moment ago.
    pub(super) fn want_cookie(&mut self, now: Instant) {
        if self.cookie.is_some() {
            return;
        }
        let exchange = self.exchange.get_or_insert_with(|| Exchange {
            sent: ArrayVec::new(),
            repeat_after: FIRST_REPEAT,
            due: now,
            wanted: true,
        });
        exchange.due = exchange.due.min(now + FIRST_REPEAT);
        exchange.wanted |= exchange.due <= now;
    }

    /// Ends the repetition of cookie requests, after the last Read of the target. A late answer is still taken.
    pub(super) fn rest(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.wanted = false;
            exchange.repeat_after = FIRST_REPEAT;
        }
    }

    /// Takes the cookie of an answer to a nonce that was sent less than a second ago.
    pub(super) fn take_answer(&mut self, now: Instant, nonce: u64, cookie: Cookie) -> bool {
        let Some(exchange) = &self.exchange else {
            return false;
        };
        let sent = exchange.sent.iter().find(|(sent, _)| *sent == nonce);
        let Some(took) = sent.map(|(_, at)| now.saturating_duration_since(*at)) else {
            return false;
        };
        if took > NONCE_LIFETIME {
            return false;
        }
        // Each request has a nonce of its own, so the time is certain even for a repeated one.
        self.sample(took);
        self.cookie = Some(cookie);
        self.exchange = None;
        self.errno = None;
        true
    }
}

impl Exchange {
    /// Counts a request as sent now.
    pub(super) fn sent(&mut self, now: Instant, nonce: u64) {
        if self.sent.is_full() {
            self.sent.remove(0);
        }
        self.sent.push((nonce, now));
        self.due = now + self.repeat_after;
        self.repeat_after = (self.repeat_after * 2).min(NONCE_LIFETIME);
        self.wanted = false;
    }
}

/// All targets, bounded by the outstanding Reads and [`MAX_IDLE`].
#[derive(Debug)]
pub(super) struct Targets<K, V> {
    entries: Slab<Target<K, V>>,
    index: FxHashMap<(K, V), TargetId>,
    hand: usize,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq + Hash> Targets<K, V> {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            index: FxHashMap::default(),
            hand: 0,
        }
    }

    pub(super) fn get(&self, id: TargetId) -> &Target<K, V> {
        &self.entries[id]
    }

    pub(super) fn get_mut(&mut self, id: TargetId) -> &mut Target<K, V> {
        &mut self.entries[id]
    }

    /// All of them; the order is that of their places.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (TargetId, &mut Target<K, V>)> {
        self.entries.iter_mut()
    }

    /// The target at `peer` over our address `via`, made if it is new.
    pub(super) fn find_or_add(&mut self, peer: K, via: V) -> TargetId {
        if let Some(id) = self.index.get(&(peer, via)) {
            return *id;
        }
        if self.entries.len() >= MAX_IDLE {
            self.forget_one();
        }
        let id = self.entries.insert(Target {
            peer,
            via,
            cookie: None,
            exchange: None,
            reads: 0,
            open: 0,
            is_full: false,
            ready: VecDeque::new(),
            in_round: false,
            errno: None,
            smoothed: None,
        });
        self.index.insert((peer, via), id);
        id
    }

    fn forget_one(&mut self) {
        for _ in 0..LOOKS {
            self.hand = (self.hand + 1) % self.entries.capacity().max(1);
            let idle = self
                .entries
                .get(self.hand)
                .is_some_and(|it| it.reads == 0 && !it.in_round);
            if idle {
                let gone = self.entries.remove(self.hand);
                self.index.remove(&(gone.peer, gone.via));
                return;
            }
        }
    }
}
