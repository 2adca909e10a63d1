use std::time::Duration;

use super::unwatched::{CALM_TICK, CALM_TICKS, FEW, IDLE_TICKS, IDLE_TICKS_OF_MANY, LOOK_EVERY};
use super::*;
use crate::driver::device::clock;
use crate::driver::reactor::poll_set::tests::{InMemory, join};
use crate::driver::reactor::poll_set::{By, SLOW_TICK};

/// A device with so many sets, none of them watched.
struct Device {
    waker: Arc<Waker>,
    live: Vec<Arc<PollSet>>,
    sets: PollSets,
    agenda: Agenda,
    now: u64,
}

impl Device {
    fn new(count: u64) -> Self {
        let waker = Arc::new(Waker::new().unwrap());
        let live: Vec<_> = (0..count)
            .map(|id| PollSet::new(id, Arc::clone(&waker)).unwrap())
            .collect();
        let sets = PollSets::default();
        for set in &live {
            assert!(sets.add(set));
            set.start_watching();
            set.sleep_again();
        }
        Self {
            waker,
            live,
            sets,
            agenda: Agenda::new(),
            now: clock::to_nanos(Some(clock::now())),
        }
    }

    fn serve(&mut self) -> bool {
        self.agenda.serve(&self.sets, &self.waker, self.now)
    }

    /// Time passes until the next tick, if there is one.
    fn serve_tick(&mut self) -> bool {
        self.agenda.take_notes(&self.sets, &self.waker, self.now);
        let next = self.agenda.next_tick();
        if next < u64::MAX {
            assert!(next > self.now);
            self.now = next;
        }
        self.serve()
    }

    fn tick(&mut self, times: usize) {
        for _ in 0..times {
            self.serve_tick();
        }
    }

    /// Ticks until all sets, which nobody polls, are watched again.
    fn ticks_until_watched(&mut self) -> u32 {
        for tick in 1..1000 {
            self.tick(1);
            if self.live.iter().all(|set| set.arming().is_on()) {
                assert_eq!(self.agenda.next_tick(), u64::MAX);
                return tick;
            }
        }
        panic!("some of {} are never watched", self.live.len());
    }
}

/// Messages that a turn left go on: at the next tick, or at once where the set gets no ticks any more.
#[test]
fn sending_goes_on_where_a_set_is_watched_again() {
    let mut device = Device::new(1);
    let set = Arc::clone(&device.live[0]);
    let member = InMemory::new(usize::MAX);
    set.add_unsent(join(&set, &member));
    let mut rounds = 0;
    loop {
        let at_once = device.serve_tick();
        assert!(set.has_unsent());
        assert_eq!(at_once, set.arming().is_on(), "after {rounds} rounds");
        if at_once {
            break;
        }
        rounds += 1;
        assert!(rounds < 1000, "the set is never watched");
    }
    assert!(device.serve());
}

/// Each one that is not watched costs a system call at each tick.
#[test]
fn many_idle_sets_are_watched_sooner_than_few() {
    let ticks = |count| Device::new(count).ticks_until_watched();
    assert_eq!(ticks(FEW as u64), IDLE_TICKS + 1);
    assert_eq!(ticks(FEW as u64 + 1), IDLE_TICKS_OF_MANY + 1);
    assert_eq!(ticks(500), IDLE_TICKS_OF_MANY + 1);
}

/// Many on which threads sleep stay as they are, and are looked at now and then: input that lies there is found.
#[test]
fn input_that_lies_at_one_of_many_is_found() {
    let mut device = Device::new(100);
    device.live.iter().for_each(|set| set.begin_sleep());
    device.tick(50);
    assert!(device.live.iter().all(|set| !set.arming().is_on()));
    let member = InMemory::new(0);
    join(&device.live[70], &member);
    member.deliver(1);
    device.tick(2 * LOOK_EVERY);
    assert_eq!(member.received(), 1);
}

/// Input wakes a thread that sleeps, in a call of a channel or on the sockets: ticks are for one that was cancelled, or turns to something else.
#[test]
fn ticks_are_rare_while_threads_sleep() {
    let mut device = Device::new(2);
    let sets = device.live.clone();
    sets[0].begin_sleep();
    sets[0].note_sleep();
    let mut interval = |before: &dyn Fn()| {
        before();
        let last = device.now;
        device.tick(1);
        Duration::from_nanos(device.now - last)
    };
    let wait = || sets[1].receive_by_waiting();
    let at_work = || {
        let _ = sets[1].progress(By::Poller);
    };
    for _ in 0..CALM_TICKS {
        assert!(interval(&wait) <= SLOW_TICK);
    }
    assert_eq!(interval(&wait), CALM_TICK);
    assert_eq!(interval(&at_work), CALM_TICK);
    assert_eq!(interval(&at_work), SLOW_TICK);
    for _ in 0..CALM_TICKS {
        assert_eq!(interval(&wait), SLOW_TICK);
    }
    assert_eq!(interval(&wait), CALM_TICK);
    // One that is registered as a sleeper, and at work.
    let _ = sets[0].progress(By::Poller);
    assert_eq!(interval(&wait), CALM_TICK);
    assert_eq!(interval(&wait), SLOW_TICK);
}

/// A set that is left to its program while others are slept on has its ticks soon.
#[test]
fn ticks_are_not_rare_for_one_that_comes_later() {
    let mut device = Device::new(2);
    device.live[0].begin_sleep();
    device.live[0].sleep_again();
    device.live[1].arm();
    device.tick(CALM_TICKS as usize + 1);
    device.live[1].sleep_again();
    device
        .agenda
        .take_notes(&device.sets, &device.waker, device.now);
    let soon = device.now + u64::try_from(SLOW_TICK.as_nanos()).unwrap();
    assert_eq!(device.agenda.next_tick(), soon);
}

/// A set that is watched notes itself for what it has to do, and the others are not touched for it.
#[test]
fn work_of_one_watched_set_is_found_among_many() {
    let mut device = Device::new(500);
    device.ticks_until_watched();
    let set = Arc::clone(&device.live[123]);
    let member = InMemory::new(3);
    let id = join(&set, &member);
    assert!(!device.serve());
    assert_eq!(member.flushed(), 0);
    set.add_unsent(id);
    assert_eq!(device.waker.noted(), [123]);
    assert!(device.serve(), "it goes on at once");
    assert!(device.serve());
    assert!(!device.serve(), "the third was the last");
    assert_eq!(member.flushed(), 3);

    // A timer that is due is run, one that is not is planned, and the earlier one counts.
    let now = clock::now();
    device.now = clock::to_nanos(Some(now));
    let hour = Duration::from_secs(3600);
    set.note_deadline(id, Some(now + hour));
    device.serve();
    assert_eq!(member.timeouts(), 0);
    let planned = |time| Some((clock::to_nanos(Some(time)), true));
    assert_eq!(device.agenda.first_timer(&device.sets), planned(now + hour));
    set.note_deadline(id, Some(now));
    device.serve();
    assert_eq!(member.timeouts(), 1);
}

/// A program that polls runs its timers itself, and the thread comes later.
#[test]
fn timers_of_polled_sets_are_put_off() {
    let mut device = Device::new(2);
    let first = clock::now() + Duration::from_secs(3600);
    let [polled, slept_on] = [0, 1].map(|at| Arc::clone(&device.live[at]));
    slept_on.begin_sleep();
    for (set, later) in [(&polled, 0), (&slept_on, 1)] {
        let id = join(set, &InMemory::new(0));
        set.note_deadline(id, Some(first + Duration::from_micros(later)));
    }
    device.serve();
    let planned = device.agenda.first_timer(&device.sets);
    let at = clock::to_nanos(Some(first + Duration::from_micros(1)));
    assert_eq!(planned, Some((at, true)));
}

/// A program may wait for events of a completion queue before it has a queue pair.
#[test]
fn a_note_before_the_set_is_known_loses_no_later_one() {
    let mut device = Device::new(0);
    let set = PollSet::new(7, Arc::clone(&device.waker)).unwrap();
    set.want_event();
    set.sleep_again();
    device.serve();
    assert!(device.sets.add(&set));
    set.start_watching();
    device.serve();
    assert_eq!(device.agenda.next_tick(), u64::MAX, "it is watched");
    set.sleep_again();
    device.serve();
    assert!(device.agenda.next_tick() < u64::MAX);
}

/// A set that is left to its program is ticked again, and one that is gone is forgotten.
#[test]
fn sets_come_and_go() {
    let mut device = Device::new(1);
    device.ticks_until_watched();
    device.live[0].sleep_again();
    device.serve();
    let first = device.agenda.next_tick();
    assert!(first < u64::MAX);
    device.now = first - 1;
    device.serve();
    assert_eq!(device.agenda.next_tick(), first, "a wakeup is no tick");
    device.live.clear();
    device.tick(1);
    assert_eq!(device.agenda.next_tick(), u64::MAX);
    assert!(device.sets.get(0).is_none());
    assert!(device.sets.live().is_empty());
}
