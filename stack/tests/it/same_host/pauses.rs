//! Programs that poll, do something else for a while or sleep, and poll again: a lane is parked, announced by bells and parked again at any moment,
//! and neither messages nor completions stay in it.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use dgiwarp::{RcSendWr, SameHostMode, WcStatus};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{End, LONGEST, RECEIVES, SEND, SOON, at_once, connect};
use crate::common::{self, now};

/// Messages each way.
const MESSAGES: usize = 2000;

/// Lengths of an end's messages: one, and another now and then.
const LENGTHS: [(f64, Range<usize>); 4] = [
    (0.0, 1..2),
    (1.0, 1..600),
    (0.02, 1..LONGEST),
    (0.2, 1..20_000),
];

impl End {
    fn send_octets(&self, len: usize) {
        let at = RECEIVES * LONGEST;
        let sges = [self.mr.sge(at..at + len)];
        self.qp
            .post_send(&[RcSendWr::new(1000, SEND, &sges)])
            .unwrap();
    }

    /// Answers each message, the Initiator its own answers, and has pauses and naps between polls.
    fn answer_with_pauses(&self, mut rng: ChaCha8Rng, is_first: bool) {
        let (others, range) = LENGTHS[rng.random_range(0..LENGTHS.len())].clone();
        let naps = rng.random_bool(0.5);
        let (mut sent, mut done, mut received) = (0, 0, 0);
        let mut progressed_at = now();
        let mut may_pause = true;
        while received < MESSAGES || done < MESSAGES {
            if sent < MESSAGES && sent < received + usize::from(is_first) {
                let is_other = rng.random_bool(others);
                self.send_octets(if is_other {
                    rng.random_range(range.clone())
                } else {
                    64
                });
                sent += 1;
            }
            if std::mem::take(&mut may_pause) && rng.random_bool(0.01) {
                // Shorter and longer than the background thread's ticks.
                let most = [200, 2000, 9000, 30_000][rng.random_range(0..4)];
                common::sleep(Duration::from_micros(rng.random_range(0..most)));
            }
            let wc = if naps && rng.random_bool(0.001) {
                self.cq.wait(SOON).unwrap()
            } else {
                self.cq.poll_one().unwrap()
            };
            let Some(wc) = wc else {
                assert!(
                    now() < progressed_at + SOON,
                    "{sent} sent, {done} done, {received} received"
                );
                continue;
            };
            (progressed_at, may_pause) = (now(), true);
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.wr_id == 1000 {
                done += 1;
            } else {
                self.post_recv(usize::try_from(wc.wr_id).unwrap());
                received += 1;
            }
        }
    }
}

fn rounds(count: u64) {
    let seed = std::env::var("PAUSES_SEED");
    let seed = seed.map_or_else(
        |_| getrandom::u64().expect("randomness"),
        |it| it.parse().unwrap(),
    );
    println!("PAUSES_SEED={seed}");
    for round in 0..count {
        let [client, server] = [(); 2].map(|()| End::with(at_once(SameHostMode::Ring)));
        connect(&client, &server);
        let rng = |end| ChaCha8Rng::seed_from_u64(seed.wrapping_add(2 * round + end));
        thread::scope(|scope| {
            scope.spawn(|| server.answer_with_pauses(rng(1), false));
            client.answer_with_pauses(rng(0), true);
        });
        assert!(client.lane_octets().0 > 0);
    }
}

#[test]
fn ends_that_pause_stop_nothing() {
    rounds(6);
}

#[test]
#[ignore = "two minutes"]
fn soak_ends_that_pause_stop_nothing() {
    rounds(200);
}
