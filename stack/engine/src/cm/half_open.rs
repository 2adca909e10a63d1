//! Half-open startups of a listener: TCP connections whose MPA Request has not arrived. Any stranger can make them, and silence costs it nothing, so
//! they have a limit; at the limit the oldest one that has had its time makes room.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// Startups of a listener.
const MAX: usize = 2048;
/// Startups of one origin, beyond which they get less time while the listener is full.
const PER_ORIGIN: usize = 256;
/// Time that every startup has before it may be evicted: the Request leaves with the end of TCP's handshake, but its host may be busy.
const GRACE: Duration = Duration::from_secs(1);
/// Grace of origins with more than [`PER_ORIGIN`] startups.
const SHORT_GRACE: Duration = Duration::from_millis(100);
/// Origins remembered from which a Request came.
const MAX_PROVED: usize = 256;

/// Addresses that one host may have at will: an IPv4 address, or a /64 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Origin(u64);

impl Origin {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u64::from(v4.to_bits())),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

/// Whether a listener may take another connection. `S` names a startup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room<S> {
    /// At once.
    Free,
    /// Once this startup is closed.
    Evict(S),
    /// At this time; earlier if a startup ends.
    At(Instant),
}

#[derive(Debug, Clone, Copy)]
struct Entry<S> {
    startup: S,
    origin: Origin,
    began: Instant,
    /// From this host, or from an origin that sent a Request before.
    preferred: bool,
}

/// Half-open startups of one listener. `S` names one.
#[derive(Debug)]
pub struct HalfOpen<S> {
    /// Oldest first.
    entries: VecDeque<Entry<S>>,
    counts: FxHashMap<Origin, usize>,
    /// The latest last.
    proved: VecDeque<Origin>,
}

impl<S> Default for HalfOpen<S> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            counts: FxHashMap::default(),
            proved: VecDeque::new(),
        }
    }
}

impl<S: Copy + Eq> HalfOpen<S> {
    /// A connection was taken.
    pub fn begin(&mut self, now: Instant, startup: S, from: IpAddr, is_local: bool) {
        let origin = Origin::of(from);
        *self.counts.entry(origin).or_default() += 1;
        self.entries.push_back(Entry {
            startup,
            origin,
            began: now,
            preferred: is_local || from.is_loopback() || self.proved.contains(&origin),
        });
    }

    /// A startup is over.
    pub fn end(&mut self, startup: S) {
        let mut entries = self.entries.iter();
        let Some(position) = entries.position(|entry| entry.startup == startup) else {
            return;
        };
        let Some(entry) = self.entries.remove(position) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&entry.origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.origin);
            }
        }
    }

    /// A Request came from this address.
    pub fn prove(&mut self, from: IpAddr) {
        let origin = Origin::of(from);
        self.proved.retain(|it| *it != origin);
        if self.proved.len() == MAX_PROVED {
            self.proved.pop_front();
        }
        self.proved.push_back(origin);
    }

    fn is_crowded(&self, entry: &Entry<S>) -> bool {
        !entry.preferred && self.counts.get(&entry.origin) > Some(&PER_ORIGIN)
    }

    /// Whether there is room for another.
    #[must_use]
    pub fn room(&self, now: Instant) -> Room<S> {
        if self.entries.len() < MAX {
            Room::Free
        } else {
            self.victim(now)
        }
    }

    /// Makes room whatever the number of startups, because descriptors are exhausted: the oldest of an origin with too many, of a stranger, or of all, that has
    /// had its time.
    #[must_use]
    pub fn victim(&self, now: Instant) -> Room<S> {
        type Rank<S> = fn(&HalfOpen<S>, &Entry<S>) -> bool;
        let ranks: [(Rank<S>, Duration); 3] = [
            (Self::is_crowded, SHORT_GRACE),
            (|_, entry| !entry.preferred, GRACE),
            (|_, _| true, GRACE),
        ];
        let mut earliest = now + GRACE;
        for (is_candidate, grace) in ranks {
            if let Some(oldest) = self.entries.iter().find(|entry| is_candidate(self, entry)) {
                let until = oldest.began + grace;
                if until <= now {
                    return Room::Evict(oldest.startup);
                }
                earliest = earliest.min(until);
            }
        }
        Room::At(earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected::tests::now;

    const HERE: [u8; 4] = [127, 0, 0, 1];
    const STRANGER: [u8; 4] = [192, 0, 2, 1];

    /// A host of its own for each number.
    fn host(network: u8, number: usize) -> IpAddr {
        let [.., high, low] = number.to_be_bytes();
        IpAddr::from([10, network, high, low])
    }

    /// An address of one /64 for each number.
    fn in_one_network(number: usize) -> IpAddr {
        let number = u16::try_from(number).unwrap();
        IpAddr::from([0x2001, 0xdb8, 0, 7, 1, 2, 3, number])
    }

    /// Takes a connection as a listener does, when there is room. Returns the startup that made it.
    fn take(
        half_open: &mut HalfOpen<usize>,
        now: &mut Instant,
        key: usize,
        from: IpAddr,
    ) -> Option<usize> {
        loop {
            match half_open.room(*now) {
                Room::Free => {
                    half_open.begin(*now, key, from, false);
                    return None;
                }
                Room::Evict(victim) => {
                    half_open.end(victim);
                    half_open.begin(*now, key, from, false);
                    return Some(victim);
                }
                Room::At(at) => {
                    assert!(at > *now && at <= *now + GRACE);
                    *now = at;
                }
            }
        }
    }

    #[test]
    fn the_oldest_silent_one_makes_room_after_its_grace() {
        let began = now();
        let (mut half_open, mut now) = (HalfOpen::default(), began);
        for key in 0..MAX {
            assert_eq!(take(&mut half_open, &mut now, key, host(0, key)), None);
        }
        assert_eq!(now, began);
        assert_eq!(take(&mut half_open, &mut now, MAX, HERE.into()), Some(0));
        assert_eq!(now, began + GRACE);
        assert_eq!(
            take(&mut half_open, &mut now, MAX + 1, HERE.into()),
            Some(1)
        );
        half_open.end(500);
        half_open.end(500);
        assert_eq!(half_open.room(now), Room::Free);
    }

    /// 1,000 silent connections, 500 more each second, all of one address: a good one waits at no time.
    #[test]
    fn a_flood_of_500_each_second_keeps_nobody_waiting() {
        for from in [HERE, STRANGER] {
            let (mut half_open, mut now) = (HalfOpen::default(), now());
            for key in 0..8000 {
                let before = now;
                take(&mut half_open, &mut now, key, from.into());
                if key >= 1000 {
                    assert_eq!(now, before, "connection {key} waited");
                    now += Duration::from_millis(2);
                } else {
                    now += Duration::from_micros(100);
                }
            }
        }
    }

    #[test]
    fn an_origin_with_too_many_pays_before_others_do() {
        let began = now();
        let (mut half_open, mut now) = (HalfOpen::default(), began);
        let good = IpAddr::from([10, 1, 1, 1]);
        assert_eq!(take(&mut half_open, &mut now, 0, good), None);
        for key in 1..MAX {
            let from = in_one_network(key);
            assert_eq!(take(&mut half_open, &mut now, key, from), None);
        }
        assert_eq!(take(&mut half_open, &mut now, MAX, good), Some(1));
        assert_eq!(now, began + SHORT_GRACE);
        // 10,000 each second get no further.
        for key in MAX..3 * MAX {
            let from = in_one_network(key);
            let before = now;
            assert!(take(&mut half_open, &mut now, 1 + key, from) > Some(0));
            assert_eq!(now, before);
            now += Duration::from_micros(100);
        }
    }

    #[test]
    fn this_host_and_proved_addresses_go_last() {
        let (mut half_open, mut now) = (HalfOpen::default(), now());
        let proved = IpAddr::from([10, 1, 1, 1]);
        half_open.prove(proved);
        half_open.prove(proved);
        take(&mut half_open, &mut now, 0, HERE.into());
        take(&mut half_open, &mut now, 1, proved);
        half_open.begin(now, 2, host(9, 9), true);
        for key in 3..MAX {
            take(&mut half_open, &mut now, key, host(2, key));
        }
        now += GRACE;
        for key in MAX..2 * MAX - 3 {
            let victim = take(&mut half_open, &mut now, key, host(3, key));
            assert!(victim >= Some(3), "{victim:?}");
            now += Duration::from_millis(1);
        }
        for address in 0..MAX_PROVED {
            half_open.prove(host(4, address));
        }
        assert!(!half_open.proved.contains(&Origin::of(proved)));
        assert!(half_open.proved.len() <= MAX_PROVED);
    }
}
