//! The search on models of paths.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

/// A path, in octets a second.
#[derive(Debug, Clone, Copy)]
struct Path {
    /// Goodput of one stream, as under loss.
    stream: f64,
    /// Goodput of all.
    path: f64,
    /// Rate of the disk.
    disk: f64,
    /// Part of all that each further stream costs.
    cost: f64,
    /// Largest deviation of a moment from the mean.
    noise: f64,
}

impl Path {
    fn random(rng: &mut ChaCha8Rng) -> Self {
        Self {
            stream: rng.random_range(2e6..400e6),
            path: rng.random_range(20e6..400e6),
            disk: rng.random_range(50e6..1e9),
            cost: rng.random_range(0.0..0.03),
            noise: rng.random_range(0.0..0.2),
        }
    }

    fn goodput(&self, streams: f64) -> f64 {
        let path = self.path * (1.0 - self.cost * (streams - 1.0));
        (self.stream * streams).min(path).min(self.disk)
    }

    /// The best of all numbers of streams.
    fn best(&self) -> f64 {
        let each = [1.0, 2.0, 4.0, 8.0, 16.0].map(|it| self.goodput(it));
        each.into_iter().fold(0.0, f64::max)
    }
}

struct World {
    rng: ChaCha8Rng,
    path: Path,
    tuner: Tuner,
    now: Duration,
    octets: f64,
    /// Streams that are there, and what they reach: both follow with a delay.
    there: usize,
    reached: f64,
}

const STEP: Duration = Duration::from_millis(20);

impl World {
    fn new(mut rng: ChaCha8Rng, path: Path, streams: usize) -> Self {
        let now = Duration::from_millis(rng.random_range(0..1000));
        let tuner = Tuner::new(now, streams);
        Self {
            rng,
            path,
            tuner,
            now,
            octets: 0.0,
            there: 1,
            reached: 0.0,
        }
    }

    /// Passes time; returns the mean goodput.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a model in real numbers"
    )]
    fn run(&mut self, time: Duration) -> f64 {
        let (end, before) = (self.now + time, self.octets);
        while self.now < end {
            self.now += STEP;
            if self.there < self.tuner.wanted() && self.rng.random_ratio(1, 3) {
                self.there += 1;
            }
            let used = self.there.min(self.tuner.wanted());
            let goal = self.path.goodput(used as f64);
            // In a quarter of a second or so, as by slow start; down at once.
            self.reached = goal.min(self.reached + goal * 0.08);
            let noise = 1.0 + self.path.noise * self.rng.random_range(-1.0..1.0);
            self.octets += self.reached * noise * STEP.as_secs_f64();
            self.tuner
                .handle_progress(self.now, self.octets as u64, self.there, 16);
            assert!(
                self.tuner.poll_timeout() > self.now,
                "a timeout that has passed"
            );
        }
        (self.octets - before) / time.as_secs_f64()
    }
}

/// From any beginning the search is within a tenth of the best in ten seconds, and stays there, trials of more streams included.
#[test]
fn within_ten_seconds_of_any_beginning_goodput_is_near_the_best() {
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let path = Path::random(&mut rng);
        let begin = [1, 2, 4, 8, 16][rng.random_range(0..5)];
        let mut world = World::new(rng, path, begin);
        world.run(Duration::from_secs(10));
        let goodput = world.run(Duration::from_secs(30));
        let best = path.best();
        assert!(
            goodput > 0.9 * best,
            "seed {seed}: {path:?} from {begin}: {goodput} of {best}, {:?}",
            world.tuner
        );
    }
}

/// Streams that bring nothing are not kept, and one that is enough stays alone.
#[test]
fn streams_that_bring_nothing_do_not_stay() {
    for seed in 0..100 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let path = Path {
            stream: 1e9,
            cost: 0.01,
            noise: 0.1,
            ..Path::random(&mut rng)
        };
        let mut world = World::new(rng, path, 1);
        world.run(Duration::from_secs(20));
        assert!(world.tuner.wanted() <= 2, "seed {seed}: {:?}", world.tuner);
    }
}

/// A path that changes is searched again.
#[test]
fn a_path_that_becomes_another_is_searched_again() {
    for seed in 0..100 {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let wide = Path {
            stream: 200e6,
            path: 100e6,
            disk: 1e9,
            cost: 0.0,
            noise: 0.05,
        };
        let lossy = Path {
            stream: 10e6,
            ..wide
        };
        let mut world = World::new(rng, wide, 1);
        world.run(Duration::from_secs(8));
        world.path = lossy;
        world.run(Duration::from_secs(20));
        let goodput = world.run(Duration::from_secs(10));
        assert!(
            goodput > 0.9 * lossy.best(),
            "seed {seed}: {goodput} {:?}",
            world.tuner
        );
        // Narrow, and many streams are in each other's way.
        let narrow = Path {
            stream: 100e6,
            path: 50e6,
            cost: 0.03,
            ..wide
        };
        world.path = narrow;
        world.run(Duration::from_secs(20));
        let goodput = world.run(Duration::from_secs(10));
        assert!(
            goodput > 0.9 * narrow.best(),
            "seed {seed}: {goodput} {:?}",
            world.tuner
        );
    }
}

/// Peers that take fewer streams, streams that do not come, and times without octets.
#[test]
fn streams_that_do_not_come_hold_nothing_up() {
    let now = Duration::from_secs;
    let mut tuner = Tuner::new(now(0), 16);
    tuner.handle_progress(now(0), 0, 1, 4);
    assert_eq!(tuner.wanted(), 4);
    assert_eq!(tuner.poll_timeout(), COME);
    // They are overdue; then nothing arrives, for which no number of streams is to blame.
    for second in 2..40 {
        tuner.handle_progress(now(second), 0, 1, 4);
        assert!(tuner.poll_timeout() > now(second));
    }
    assert_eq!(tuner.wanted(), 4);
    for second in 40..44 {
        tuner.handle_progress(now(second), second * 1_000_000, 1, 4);
    }
    assert_eq!(tuner.wanted(), 2, "fewer are tried");
}
