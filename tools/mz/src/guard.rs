//! Peers that guess: a wrong code costs a delay that grows, and an address has few connections whose code is not known yet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Connections of one address that may wait for their code, or for the answer to a wrong one.
const PENDING: u32 = 8;
/// Connections of all addresses.
const ALL_PENDING: u32 = 64;
/// Addresses with wrong codes that are remembered.
const ADDRESSES: usize = 1024;
/// Delay of the first wrong code; each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// Doublings at most: 8 s.
const DOUBLINGS: u32 = 5;

/// Counts of all addresses. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    pending: BTreeMap<IpAddr, u32>,
    wrong: BTreeMap<IpAddr, u32>,
}

/// A connection whose code is not known yet.
#[derive(Debug)]
pub(crate) struct Pending {
    guard: Guard,
    address: IpAddr,
}

impl Guard {
    /// Admits a connection to the check of its code; `None` for one too many.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Pending> {
        let address = host(address);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = counts.pending.values().sum();
        let own = counts.pending.entry(address).or_default();
        if *own >= PENDING || all >= ALL_PENDING {
            return None;
        }
        *own += 1;
        let guard = self.clone();
        Some(Pending { guard, address })
    }
}

impl Pending {
    /// Notes a wrong code; returns the time after which the peer may notice.
    pub(crate) fn wrong(&self) -> Duration {
        let counts = &self.guard.counts;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.wrong.len() >= ADDRESSES && !counts.wrong.contains_key(&self.address) {
            return FIRST_DELAY * (1 << DOUBLINGS);
        }
        let wrong = counts.wrong.entry(self.address).or_default();
        let delay = FIRST_DELAY * (1 << (*wrong).min(DOUBLINGS));
        *wrong = wrong.saturating_add(1);
        delay
    }

    /// Notes a right code: earlier ones were mistakes.
    pub(crate) fn right(&self) {
        let counts = &self.guard.counts;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.wrong.remove(&self.address);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let counts = &self.guard.counts;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.pending.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.pending.remove(&self.address);
            }
        }
    }
}

/// Address of a host, or of the IPv6 network that one host usually has.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guesser_waits_longer_each_time_and_nobody_else_does() {
        let guard = Guard::default();
        let address = "192.0.2.1".parse().unwrap();
        let guess = guard.admit(address).unwrap();
        let delays: Vec<_> = (0..8).map(|_| guess.wrong().as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
        let other = guard.admit("192.0.2.2".parse().unwrap()).unwrap();
        assert_eq!(other.wrong(), FIRST_DELAY);
        guess.right();
        assert_eq!(guess.wrong(), FIRST_DELAY);
        // Addresses beyond those that are remembered wait as long as the worst.
        for index in 0..2000_u32 {
            let address = IpAddr::from((0x0a00_0000 + index).to_be_bytes());
            guard.admit(address).unwrap().wrong();
        }
        let late = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
        assert_eq!(late.wrong().as_secs(), 8);
    }

    #[test]
    fn connections_without_a_code_are_few() {
        let guard = Guard::default();
        let network = |index: u16| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, index));
        let mut held: Vec<_> = (0..PENDING)
            .map(|index| guard.admit(network(u16::try_from(index).unwrap())).unwrap())
            .collect();
        assert!(guard.admit(network(99)).is_none());
        for index in 0_u8..56 {
            held.push(guard.admit(IpAddr::from([192, 0, 2, index])).unwrap());
        }
        assert!(guard.admit(IpAddr::from([198, 51, 100, 1])).is_none());
        held.clear();
        assert!(guard.admit(network(99)).is_some());
    }
}
