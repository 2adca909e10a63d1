//! The protocols of a lane and of grants under a model checker: every interleaving of its two ends with a few preemptions.

#[expect(
    dead_code,
    unreachable_pub,
    reason = "a second copy, of which only the model is a user"
)]
#[path = "protocol.rs"]
mod protocol;

#[expect(
    unreachable_pub,
    reason = "a second copy, of which only the model is a user"
)]
#[allow(
    dead_code,
    reason = "grants as they are read are no part of the model; an expectation is not met by them"
)]
#[path = "grants.rs"]
mod grants;

/// The words of a lane, made of the model checker's atomics.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use crate::MemoryFile;
use grants::{GrantPage, GrantTerms, GrantWords};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use protocol::{Bells, Consumer, Control, Line, Marks, Producer, Program, Published, Ring};

/// Preemptions of one execution; more take minutes.
const PREEMPTIONS: usize = 3;
/// A ring of two octets.
const TWO: Ring = Ring {
    present: 1,
    most: 1,
};
/// A ring of one octet, that may have two.
const ONE: Ring = Ring {
    present: 0,
    most: 1,
};

/// A lane whose octets are cells, and the bells that were rung.
struct Lane {
    words: Control,
    ring: [AtomicU32; 2],
    /// Rings for the consumer, and for the producer.
    rung: [AtomicU32; 2],
}

fn lane(armed: u32) -> Lane {
    Lane {
        words: Control {
            published: Line(Published {
                head: AtomicU64::new(0),
                ring: AtomicU32::new(TWO.present),
                placed: AtomicU64::new(0),
            }),
            marks: Line(Marks {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                resume: AtomicU64::new(0),
            }),
            tail: Line(AtomicU64::new(0)),
            bells: Line(Bells {
                armed: AtomicU32::new(armed),
                room_wanted: AtomicU32::new(0),
            }),
            program: Line(Program {
                polls: AtomicU32::new(0),
                publications: AtomicU32::new(0),
            }),
        },
        ring: [AtomicU32::new(0), AtomicU32::new(0)],
        rung: [AtomicU32::new(0), AtomicU32::new(0)],
    }
}

impl Lane {
    fn cell(&self, position: u64, size: u64) -> &AtomicU32 {
        &self.ring[usize::from(position % size == 1)]
    }

    /// Publishes one octet, if there is room.
    fn send(&self, producer: &mut Producer, octet: u32) -> bool {
        if producer.room(&self.words, 1).expect("the peer is honest") == 0 {
            return false;
        }
        self.cell(producer.head(), producer.size())
            .store(octet, Ordering::Relaxed);
        producer.publish(&self.words, 1);
        if Producer::takes_bell(&self.words) {
            self.rung[0].fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// Takes one octet, if there is one.
    fn receive(&self, consumer: &mut Consumer) -> Option<u32> {
        let available = consumer.available(&self.words).expect("the peer is honest");
        if available == 0 {
            return None;
        }
        let place = self.cell(consumer.tail(), consumer.size());
        let octet = place.load(Ordering::Relaxed);
        consumer.release(&self.words, 1);
        if consumer.takes_bell(&self.words) {
            self.rung[1].fetch_add(1, Ordering::SeqCst);
        }
        Some(octet)
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Published octets are seen whole and in order, and a place is written again only after it was released.
#[test]
fn octets_arrive_whole_and_in_order() {
    check(|| {
        let lane = Arc::new(lane(0));
        let theirs = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(TWO);
            let mut sent = 0;
            for octet in 1..=3 {
                if !theirs.send(&mut producer, octet) {
                    break;
                }
                sent = octet;
            }
            (producer, sent)
        });
        let mut consumer = Consumer::new(TWO);
        let mut expected = 1;
        for _ in 0..2 {
            if let Some(octet) = lane.receive(&mut consumer) {
                assert_eq!(octet, expected);
                expected += 1;
            }
        }
        let (mut producer, sent) = sender.join().expect("no thread panics");
        // The rest, when nothing runs beside it.
        for octet in sent + 1..=3 {
            while !lane.send(&mut producer, octet) {
                assert_eq!(lane.receive(&mut consumer), Some(expected));
                expected += 1;
            }
        }
        while let Some(octet) = lane.receive(&mut consumer) {
            assert_eq!(octet, expected);
            expected += 1;
        }
        assert_eq!(expected, 4);
    });
}

/// Octets before and behind the growth of a ring are read from their places in it.
#[test]
fn a_ring_grows_between_its_octets() {
    check(|| {
        let lane = Arc::new(lane(0));
        let word = &lane.words.published.0.ring;
        word.store(ONE.present, Ordering::Relaxed);
        let theirs = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(ONE);
            let mut sent = 0;
            // The first octets fit; for two at a time the ring is too short.
            for (wanted, octet) in [(1, 1), (2, 2), (1, 3)] {
                let room = producer.room(&theirs.words, wanted);
                let mut room = room.expect("the peer is honest");
                if let Some(ring) = producer.growth() {
                    producer.grow(&theirs.words, ring);
                    room = producer.size();
                }
                if room == 0 {
                    break;
                }
                assert!(theirs.send(&mut producer, octet));
                sent = octet;
            }
            sent
        });
        let mut consumer = Consumer::new(ONE);
        let mut expected = 1;
        for _ in 0..2 {
            if let Some(octet) = lane.receive(&mut consumer) {
                assert_eq!(octet, expected);
                expected += 1;
            }
        }
        let sent = sender.join().expect("no thread panics");
        while let Some(octet) = lane.receive(&mut consumer) {
            assert_eq!(octet, expected);
            expected += 1;
        }
        assert_eq!(expected, sent + 1);
    });
}

/// A consumer that found nothing, armed its bell and found nothing again is rung for what is published.
#[test]
fn no_consumer_sleeps_beside_octets() {
    check(|| {
        let lane = Arc::new(lane(0));
        let theirs = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            assert!(theirs.send(&mut Producer::new(TWO), 1));
        });
        let mut consumer = Consumer::new(TWO);
        let sleeps = lane.receive(&mut consumer).is_none()
            && !consumer.arm(&lane.words).expect("the peer is honest");
        sender.join().expect("no thread panics");
        if sleeps {
            assert_eq!(lane.rung[0].load(Ordering::SeqCst), 1);
        }
    });
}

/// A producer that found no room and waits for it is rung once there is.
#[test]
fn no_producer_sleeps_beside_room() {
    check(|| {
        let lane = Arc::new(lane(0));
        let mut producer = Producer::new(TWO);
        assert!(lane.send(&mut producer, 1) && lane.send(&mut producer, 2));
        let theirs = Arc::clone(&lane);
        let receiver = thread::spawn(move || {
            let mut consumer = Consumer::new(TWO);
            assert_eq!(theirs.receive(&mut consumer), Some(1));
            assert_eq!(theirs.receive(&mut consumer), Some(2));
        });
        let sleeps = !lane.send(&mut producer, 3)
            && !producer
                .wait_for_room(&lane.words)
                .expect("the peer is honest");
        receiver.join().expect("no thread panics");
        if sleeps {
            assert_eq!(lane.rung[1].load(Ordering::SeqCst), 1);
        }
    });
}

/// A consumer that sees the end of a lane has released every octet before it.
#[test]
fn nothing_is_behind_the_end() {
    check(|| {
        let lane = Arc::new(lane(0));
        let theirs = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            Producer::start(&theirs.words, 70);
            let mut producer = Producer::new(TWO);
            assert!(theirs.send(&mut producer, 1));
            producer.finish(&theirs.words, 75);
        });
        let mut consumer = Consumer::new(TWO);
        let first = lane.receive(&mut consumer);
        let finished = consumer.finished(&lane.words).expect("the peer is honest");
        if finished.is_some() {
            assert_eq!((first, finished), (Some(1), Some(75)));
        }
        if first.is_some() {
            assert_eq!(consumer.started(&lane.words), Some(70));
        }
        sender.join().expect("no thread panics");
    });
}

/// The words of a granting end and of a copying end, and the memory that was granted.
struct Copying {
    grants: GrantPage,
    copies: GrantPage,
    /// 1 until the memory goes.
    is_there: AtomicU32,
    memory: UnsafeCell<()>,
}

// SAFETY: the cell has nothing; the model checker finds accesses to it that nothing orders.
unsafe impl Send for Copying {}
// SAFETY: as above.
unsafe impl Sync for Copying {}

fn page() -> GrantPage {
    GrantPage {
        copying: Line(AtomicU32::new(0)),
        proof: Line(AtomicU64::new(0)),
        grants: std::array::from_fn(|_| GrantWords::default()),
    }
}

/// Terms of which each is the same number.
fn terms(number: u32) -> GrantTerms {
    GrantTerms {
        stag: number,
        read: number % 2 == 1,
        write: number.is_multiple_of(2),
        start: number.into(),
        length: number.into(),
        address: number.into(),
        file: Some(MemoryFile {
            fd: number,
            offset: number.into(),
        }),
    }
}

impl Copying {
    fn new() -> Arc<Self> {
        let copying = Self {
            grants: page(),
            copies: page(),
            is_there: AtomicU32::new(1),
            memory: UnsafeCell::new(()),
        };
        copying.grants.grants[0].publish(&terms(1));
        Arc::new(copying)
    }

    /// Copies once, if the grant that was read holds.
    fn copy(&self, generation: u32) {
        if self.copies.begin_copy(&self.grants, 0, generation) {
            assert_eq!(self.is_there.load(Ordering::Relaxed), 1);
            self.memory.with(|_| ());
            self.copies.end_copy();
        }
    }

    /// Revokes the grant. Its memory goes if no copy is under way.
    fn free(&self) {
        self.grants.grants[0].revoke();
        if !self.copies.copies_with(0) {
            self.memory.with_mut(|_| ());
            self.is_there.store(0, Ordering::Relaxed);
        }
    }
}

/// Memory of which the grant is revoked goes behind the copies that are under way, and none begins.
#[test]
fn no_copy_goes_on_when_its_memory_is_gone() {
    check(|| {
        let copying = Copying::new();
        let theirs = Arc::clone(&copying);
        let copier = thread::spawn(move || {
            // The grant was read before.
            theirs.copy(1);
            theirs.copy(1);
        });
        copying.free();
        copier.join().expect("no thread panics");
    });
}

/// Terms that are read are those of one grant, and of its generation, while another one takes its place.
#[test]
fn terms_are_those_of_one_grant() {
    check(|| {
        let copying = Copying::new();
        let theirs = Arc::clone(&copying);
        let granting = thread::spawn(move || {
            let words = &theirs.grants.grants[0];
            words.revoke();
            words.publish(&terms(2));
        });
        if let Some((generation, read)) = copying.grants.grants[0].read() {
            let number = if generation == 1 { 1 } else { 2 };
            assert_eq!((generation, read), (2 * number - 1, terms(number)));
        }
        granting.join().expect("no thread panics");
        let read = copying.grants.grants[0].read();
        assert_eq!(read, Some((3, terms(2))));
    });
}
