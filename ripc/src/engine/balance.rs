//! Choice of the instance that a call goes to.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Time for which an instance that could not be reached is avoided, at first; it doubles with each failure.
const AVOIDED: Duration = Duration::from_millis(500);
/// Doublings of that time, at most.
const DOUBLINGS: u32 = 6;

/// How a client chooses one of the instances of its service for a call. Instances that could not be reached are avoided for 0.5 s, and for twice as long after each
/// further failure, up to 32 s; they are used where no other is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LoadBalancing {
    /// The first one that can be reached, and then always that one.
    #[default]
    PickFirst,
    /// The one with the fewest calls of this client under way.
    LeastOutstanding,
    /// Of two at random that with fewer calls of this client under way: many clients do not choose the same one at a time.
    TwoChoices,
}

/// Instances of a service, as one client sees them.
#[derive(Debug)]
pub(crate) struct Instances {
    policy: LoadBalancing,
    instances: Vec<Instance>,
    /// Instance that [`LoadBalancing::PickFirst`] uses.
    current: usize,
    random: ChaCha8Rng,
}

#[derive(Debug, Clone, Default)]
struct Instance {
    /// Calls under way.
    outstanding: usize,
    /// Times that it could not be reached since it was.
    failures: u32,
    avoided_until: Duration,
}

impl Instances {
    /// `seed` is for random choices.
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        Self {
            policy: LoadBalancing::default(),
            instances: vec![Instance::default(); count],
            current: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub(crate) fn set_policy(&mut self, policy: LoadBalancing) {
        self.policy = policy;
    }

    /// Chooses an instance that is not among `tried`, and counts a call to it; [`ended`](Self::ended) follows. `None` where all were tried.
    pub(crate) fn choose(&mut self, now: Duration, tried: &[usize]) -> Option<usize> {
        if self.policy == LoadBalancing::PickFirst
            && tried.is_empty()
            && let Some(instance) = self.instances.get_mut(self.current)
            && instance.avoided_until <= now
        {
            instance.outstanding += 1;
            return Some(self.current);
        }
        let count = self.instances.len();
        let untried = (0..count)
            .map(|it| (self.current + it) % count)
            .filter(|it| !tried.contains(it));
        let mut candidates: Vec<_> = untried.collect();
        let until = |it: usize| self.instances.get(it).map(|it| it.avoided_until);
        let usable = |it: &usize| until(*it).is_some_and(|at| at <= now);
        if candidates.iter().any(usable) {
            candidates.retain(usable);
        } else {
            // The one that is avoided for the shortest time.
            let soonest = candidates.iter().copied().min_by_key(|it| until(*it));
            candidates = soonest.into_iter().collect();
        }
        let chosen = match self.policy {
            LoadBalancing::PickFirst => candidates.first().copied(),
            LoadBalancing::LeastOutstanding => {
                let start = self.below(candidates.len());
                candidates.rotate_left(start);
                self.least(&candidates)
            }
            LoadBalancing::TwoChoices => {
                let first = self.below(candidates.len());
                candidates.rotate_left(first);
                let second = 1 + self.below(candidates.len().saturating_sub(1));
                if second < candidates.len() {
                    candidates.swap(1, second);
                }
                candidates.truncate(2);
                self.least(&candidates)
            }
        };
        if let Some(instance) = chosen.and_then(|it| self.instances.get_mut(it)) {
            instance.outstanding += 1;
        }
        chosen
    }

    /// The first of those with the fewest calls.
    fn least(&self, candidates: &[usize]) -> Option<usize> {
        let outstanding = |it: &usize| self.instances.get(*it).map(|it| it.outstanding);
        candidates.iter().copied().min_by_key(outstanding)
    }

    /// Takes the end of a call.
    pub(crate) fn ended(&mut self, at: usize) {
        if let Some(instance) = self.instances.get_mut(at) {
            instance.outstanding = instance.outstanding.saturating_sub(1);
        }
    }

    /// Takes a reply of an instance.
    pub(crate) fn reached(&mut self, at: usize) {
        if let Some(instance) = self.instances.get_mut(at) {
            instance.failures = 0;
            instance.avoided_until = Duration::ZERO;
        }
    }

    /// Takes a failure to reach an instance.
    pub(crate) fn failed(&mut self, at: usize, now: Duration) {
        let count = self.instances.len();
        let Some(instance) = self.instances.get_mut(at) else {
            return;
        };
        // Calls that fail together are one failure.
        if instance.avoided_until <= now {
            let time = AVOIDED * 2_u32.pow(instance.failures.min(DOUBLINGS));
            instance.avoided_until = now + time;
            instance.failures = instance.failures.saturating_add(1);
        }
        if self.current == at {
            self.current = (at + 1) % count;
        }
    }

    /// A number below `limit`, 0 for no limit.
    fn below(&mut self, limit: usize) -> usize {
        self.random.random_range(0..limit.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn instances(count: usize, policy: LoadBalancing) -> Instances {
        let mut instances = Instances::new(count, 7);
        instances.set_policy(policy);
        instances
    }

    #[test]
    fn the_first_is_used_until_it_fails() {
        let mut all = instances(3, LoadBalancing::PickFirst);
        for _ in 0..5 {
            assert_eq!(all.choose(NOW, &[]), Some(0));
        }
        all.failed(0, NOW);
        assert_eq!(all.choose(NOW, &[0]), Some(1));
        all.reached(1);
        // It stays where it is, also when the first one is avoided no longer.
        assert_eq!(all.choose(100 * NOW, &[]), Some(1));
        all.failed(1, 100 * NOW);
        assert_eq!(all.choose(100 * NOW, &[1]), Some(2));
        assert_eq!(all.choose(100 * NOW, &[1, 2]), Some(0));
        assert_eq!(all.choose(100 * NOW, &[1, 2, 0]), None);
        assert_eq!(Instances::new(0, 1).choose(NOW, &[]), None);
    }

    #[test]
    fn those_that_failed_are_avoided_for_longer_each_time() {
        for policy in [
            LoadBalancing::PickFirst,
            LoadBalancing::LeastOutstanding,
            LoadBalancing::TwoChoices,
        ] {
            let mut all = instances(2, policy);
            let mut now = NOW;
            for doublings in 0..9 {
                all.failed(1, now);
                // A second call that fails with the first.
                all.failed(1, now);
                let time = AVOIDED * 2_u32.pow(doublings.min(6));
                let before = now + time - Duration::from_nanos(1);
                for _ in 0..20 {
                    assert_eq!(all.choose(before, &[]), Some(0), "{policy:?}");
                }
                assert_eq!(all.choose(before, &[0]), Some(1));
                now += time;
            }
            // All are avoided: that which is for the shortest time.
            all.failed(1, now);
            all.failed(0, now);
            assert_eq!(all.choose(now, &[]), Some(0));
            all.reached(1);
            assert_eq!(all.choose(now, &[]), Some(1));
        }
    }

    #[test]
    fn calls_spread_by_what_is_under_way() {
        for policy in [LoadBalancing::LeastOutstanding, LoadBalancing::TwoChoices] {
            let mut all = instances(4, policy);
            for _ in 0..4000 {
                assert!(all.choose(NOW, &[]).is_some());
            }
            let counts: Vec<_> = all.instances.iter().map(|it| it.outstanding).collect();
            assert!(
                counts.iter().all(|it| (990..=1010).contains(it)),
                "{counts:?}"
            );
            // One that ends calls more quickly gets more of them.
            let mut all = instances(2, policy);
            let mut got = [0; 2];
            let mut slow = 0;
            for _ in 0..1000 {
                let at = all.choose(NOW, &[]).unwrap();
                got[at] += 1;
                if at == 0 {
                    all.ended(0);
                } else {
                    slow += 1;
                    if slow % 10 == 0 {
                        all.ended(1);
                    }
                }
            }
            assert!(got[0] > 900, "{policy:?} {got:?}");
        }
    }

    #[test]
    fn idle_instances_get_calls_at_random() {
        for policy in [LoadBalancing::LeastOutstanding, LoadBalancing::TwoChoices] {
            let mut all = instances(5, policy);
            let mut got = [0; 5];
            for _ in 0..5000 {
                let at = all.choose(NOW, &[]).unwrap();
                got[at] += 1;
                all.ended(at);
            }
            assert!(
                got.iter().all(|it| (800..1200).contains(it)),
                "{policy:?} {got:?}"
            );
        }
    }
}
