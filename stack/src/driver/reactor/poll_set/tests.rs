//! Tests of poll sets, with members in memory.

use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::timers::TIMER_GRACE;
use super::*;
use crate::driver::device::clock;

/// A member in memory: its input is a number of messages behind an eventfd, its output a number of unsent ones.
#[derive(Debug)]
pub(crate) struct InMemory {
    input: EventFd,
    left: AtomicUsize,
    bells: AtomicUsize,
    received: AtomicUsize,
    unsent: AtomicUsize,
    flushed: AtomicUsize,
    timeouts: AtomicUsize,
    /// Answers that are held until a burst ends, and those that left then; none are held where this is off.
    holds: AtomicBool,
    held: AtomicUsize,
    answered: Mutex<Vec<usize>>,
    /// The last call to receive is followed by another one soon; and calls to release what waits for an answer.
    waits_for_answer: AtomicBool,
    released: AtomicUsize,
    /// A set that is armed, as by another thread, when a descriptor is wanted next.
    arms: Mutex<Option<Arc<PollSet>>>,
}

impl InMemory {
    pub(crate) fn new(unsent: usize) -> Arc<Self> {
        Arc::new(Self {
            input: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap(),
            left: AtomicUsize::new(0),
            bells: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
            unsent: AtomicUsize::new(unsent),
            flushed: AtomicUsize::new(0),
            timeouts: AtomicUsize::new(0),
            holds: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            answered: Mutex::new(Vec::new()),
            waits_for_answer: AtomicBool::new(false),
            released: AtomicUsize::new(0),
            arms: Mutex::new(None),
        })
    }

    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }

    pub(crate) fn flushed(&self) -> usize {
        self.flushed.load(Ordering::SeqCst)
    }

    pub(crate) fn timeouts(&self) -> usize {
        self.timeouts.load(Ordering::SeqCst)
    }

    pub(crate) fn deliver(&self, messages: usize) {
        self.left.fetch_add(messages, Ordering::SeqCst);
        self.input.write(1).unwrap();
    }
}

impl Member for InMemory {
    fn receive(
        &self,
        _socket: SocketIndex,
        _buffer: &mut ReceiveBuffer,
        next: NextReceive,
    ) -> Option<Received> {
        if self.bells.swap(0, Ordering::SeqCst) > 0 {
            let _ = self.input.read();
            return Some(Received::Bells);
        }
        if self.left.load(Ordering::SeqCst) == 0 {
            return Some(Received::Nothing);
        }
        let polls = next != NextReceive::Unknown;
        self.waits_for_answer.store(polls, Ordering::SeqCst);
        self.received.fetch_add(1, Ordering::SeqCst);
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = self.input.read();
        }
        if self.holds.load(Ordering::SeqCst) {
            self.held.fetch_add(1, Ordering::SeqCst);
            return Some(Received::Held);
        }
        Some(Received::Something)
    }

    fn end_burst(&self) {
        let answers = self.held.swap(0, Ordering::SeqCst);
        self.answered.lock().push(answers);
    }

    fn release_acks(&self) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }

    fn has_completions(&self) -> bool {
        false
    }

    fn with_socket(&self, _socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        if let Some(set) = self.arms.lock().take() {
            set.arming().turn(true);
        }
        with(self.input.as_fd());
        true
    }

    fn flush_unsent(&self) -> Option<bool> {
        self.flushed.fetch_add(1, Ordering::SeqCst);
        (self.unsent.fetch_sub(1, Ordering::SeqCst) > 1).then_some(false)
    }

    fn fail_overrun(&self) {}

    fn handle_timeout(&self, _now: Instant) -> Option<Instant> {
        self.timeouts.fetch_add(1, Ordering::SeqCst);
        None
    }
}

fn background_deadline(set: &PollSet) -> u64 {
    set.in_background(set.deadline())
}

fn set() -> Arc<PollSet> {
    PollSet::new(1, Arc::new(Waker::new().unwrap())).unwrap()
}

pub(crate) fn join(set: &PollSet, member: &Arc<InMemory>) -> MemberId {
    let weak: Weak<InMemory> = Arc::downgrade(member);
    let id = set.attach(weak);
    set.watch(id, 0, member.input.as_fd()).unwrap();
    id
}

#[test]
fn input_is_found_by_poller_and_background_alike() {
    for by in [By::Poller, By::Background] {
        let set = set();
        let member = InMemory::new(0);
        join(&set, &member);
        assert_eq!(set.progress(by), Some(false));
        member.deliver(20);
        let useful = (0..100).filter(|_| set.progress(by) == Some(true));
        assert_eq!(useful.count(), 3, "bursts of 8, 8 and 4");
        assert_eq!(member.received.load(Ordering::SeqCst), 20);
        assert!(!set.has_data());
    }
}

/// Answers that a member holds leave when its burst is over, whoever receives, and wherever the input is found.
#[test]
fn held_answers_leave_with_the_end_of_a_burst() {
    for by in [By::Poller, By::Background] {
        let set = set();
        let member = InMemory::new(0);
        let id = join(&set, &member);
        member.holds.store(true, Ordering::SeqCst);
        member.deliver(20);
        while set.has_data() {
            set.progress(by);
        }
        assert_eq!(*member.answered.lock(), [8, 8, 4]);
        member.left.store(2, Ordering::SeqCst);
        set.add_ready(id);
        while set.has_data() {
            set.progress(by);
        }
        assert_eq!(member.held.load(Ordering::SeqCst), 0);
        assert_eq!(member.answered.lock().iter().sum::<usize>(), 22);
    }
}

#[test]
fn more_ready_sockets_than_can_be_hot_get_equal_shares() {
    let set = set();
    let members: Vec<_> = (0..EVENTS).map(|_| InMemory::new(0)).collect();
    for member in &members {
        join(&set, member);
        member.deliver(1000);
    }
    for _ in 0..64 {
        set.progress(By::Poller);
    }
    let shares = members.iter().map(|it| it.received.load(Ordering::SeqCst));
    let (least, most) = shares.fold((usize::MAX, 0), |(least, most), share| {
        (least.min(share), most.max(share))
    });
    assert!(least > 0 && most - least <= BURST, "{least} to {most}");
}

#[test]
fn a_hot_socket_leaves_the_epoll_set_and_returns_for_sleepers() {
    let set = set();
    let member = InMemory::new(0);
    join(&set, &member);
    for _ in 0..1000 {
        member.deliver(1);
        set.progress(By::Poller);
    }
    member.deliver(1);
    assert!(!set.has_data(), "a poller tries the socket on every poll");
    set.begin_sleep();
    assert!(set.has_data());
    set.end_sleep();
}

/// A set that is armed gets no ticks: it has its sockets, whether they were parked before or are being parked.
#[test]
fn an_armed_set_has_its_hot_sockets() {
    for while_parking in [false, true] {
        let set = set();
        let member = InMemory::new(0);
        join(&set, &member);
        if while_parking {
            *member.arms.lock() = Some(Arc::clone(&set));
        }
        for _ in 0..1000 {
            member.deliver(1);
            set.progress(By::Poller);
            if set.arming().is_on() {
                break;
            }
        }
        if !while_parking {
            member.deliver(1);
            assert!(!set.has_data(), "the socket is parked");
            set.arm();
        }
        assert!(set.arming().is_on());
        member.deliver(1);
        assert!(set.has_data());
    }
}

/// The background thread receives for programs that poll a channel's descriptor, and leaves the sockets to threads that wait in the channel's calls.
#[test]
fn an_event_that_a_program_polls_for_is_raised_in_the_background() {
    let set = set();
    let member = InMemory::new(0);
    join(&set, &member);
    set.start_watching();
    for _ in 0..1000 {
        member.deliver(1);
        set.progress(By::Poller);
    }
    assert!(!set.arming().is_on(), "pollers found their data");
    set.want_event();
    assert!(set.arming().is_on());
    set.step_aside();
    assert!(set.arming().is_on(), "a poller may be about to sleep");
    set.begin_sleep();
    assert!(!set.arming().is_on());
    set.end_sleep();
    assert!(set.arming().is_on());
    set.receive_by_waiting();
    set.want_event();
    assert!(
        !set.arming().is_on(),
        "the thread waits inside next time too"
    );
    set.data_lay_there();
    set.want_event();
    assert!(set.arming().is_on(), "it does not");
}

/// A thread that posts may leave a message to the poller while another one arms the set, which gets no ticks then.
#[test]
fn arming_wakes_the_background_thread_for_what_was_left_to_the_poller() {
    let waker = Arc::new(Waker::new().unwrap());
    let set = PollSet::new(1, Arc::clone(&waker)).unwrap();
    let woken = || {
        let mut events = [EpollEvent::empty(); 2];
        let woken = waker.wait(&mut events, EpollTimeout::ZERO).unwrap().len();
        waker.acknowledge();
        woken
    };
    let member = InMemory::new(1);
    let id = join(&set, &member);
    set.add_unsent(id);
    assert_eq!(woken(), 0);
    set.arm();
    assert_eq!(woken(), 1);
    set.flush_unsent();
    set.arm();
    assert_eq!(woken(), 0);
}

#[test]
fn members_with_unsent_messages_take_turns() {
    let set = set();
    let members = [3, 1, 2].map(InMemory::new);
    for member in &members {
        set.add_unsent(join(&set, member));
    }
    for turn in 1..=3 {
        set.flush_unsent();
        let flushed = members
            .each_ref()
            .map(|it| it.flushed.load(Ordering::SeqCst));
        assert_eq!(flushed, [turn, 1, turn.min(2)]);
    }
    assert!(!set.has_unsent());
}

#[test]
fn timers_run_when_due_and_not_for_members_that_left() {
    let set = set();
    let members = [(); 2].map(|()| InMemory::new(0));
    let ids = members.each_ref().map(|member| join(&set, member));
    let past = clock::now();
    for id in ids {
        set.note_deadline(id, Some(past));
    }
    set.detach(ids[1]);
    set.run_timers();
    set.run_timers();
    let timeouts = members.map(|it| it.timeouts.load(Ordering::SeqCst));
    assert_eq!(timeouts, [1, 0]);
    assert_eq!(background_deadline(&set), u64::MAX);
}

/// The thread leaves the timers of a set that is polled to the poller, for a while.
#[test]
fn timers_of_a_polled_set_are_the_pollers() {
    let set = set();
    let member = InMemory::new(0);
    let id = join(&set, &member);
    let timeouts = || member.timeouts.load(Ordering::SeqCst);
    let past = clock::now();
    let nanos = clock::to_nanos(Some(past));
    set.arming().turn(false);
    set.note_deadline(id, Some(past + Duration::from_secs(60)));
    assert_eq!(background_deadline(&set), nanos + 60_001_000_000);
    set.note_deadline(id, Some(past));
    assert_eq!(background_deadline(&set), nanos + TIMER_GRACE);
    set.run_timers();
    assert_eq!(timeouts(), 1);
    set.note_deadline(id, Some(past));
    set.arming().turn(true);
    assert_eq!(background_deadline(&set), nanos);
    set.run_timers_in_background();
    assert_eq!(timeouts(), 2);
    set.arming().turn(false);
    set.note_deadline(id, Some(past - Duration::from_millis(2)));
    set.run_timers_in_background();
    assert_eq!(timeouts(), 3, "the poller is away");
    set.note_deadline(id, Some(past));
    assert_eq!(background_deadline(&set), nanos + TIMER_GRACE);
    set.begin_sleep();
    assert_eq!(background_deadline(&set), nanos, "the poller sleeps");
}

#[test]
fn a_number_that_is_used_again_names_the_new_member_only() {
    let set = set();
    let [old, new] = [(); 2].map(|()| InMemory::new(5));
    let left = join(&set, &old);
    set.detach(left);
    set.unwatch(old.input.as_fd());
    let id = join(&set, &new);
    assert_eq!((left.key, id.key), (0, 0));
    set.add_unsent(left);
    set.flush_unsent();
    assert_eq!(new.flushed.load(Ordering::SeqCst), 0);
}

/// Input that no descriptor announces is found by whoever sleeps on the set.
#[test]
fn a_member_with_input_in_memory_makes_the_set_readable() {
    for by in [By::Poller, By::Background] {
        let set = set();
        let member = InMemory::new(0);
        let id = join(&set, &member);
        member.left.store(20, Ordering::SeqCst);
        assert!(!set.has_data());
        set.add_ready(id);
        assert!(set.has_data());
        while set.has_data() {
            set.progress(by);
        }
        assert_eq!(member.received.load(Ordering::SeqCst), 20);
        // One that is gone is nothing to wait for.
        set.add_ready(id);
        set.detach(id);
        set.progress(by);
        assert!(!set.has_data());
    }
}

/// Output that waited for input to be received goes on before a thread sleeps, all of it.
#[test]
fn a_thread_that_waits_leaves_no_output_behind() {
    let set = set();
    let member = InMemory::new(3);
    set.add_unsent(join(&set, &member));
    set.receive_by_waiting();
    while set.has_data() {
        set.progress(By::Poller);
        set.receive_by_waiting();
    }
    assert_eq!(member.flushed.load(Ordering::SeqCst), 3);
}

/// Acknowledgements that wait for a message of the polling thread leave when it sleeps, and those of a socket that it does not try again soon do not wait.
#[test]
fn a_thread_that_waits_leaves_no_acknowledgements_behind() {
    let set = set();
    let members = [(); 2].map(|()| InMemory::new(0));
    for member in &members {
        join(&set, member);
    }
    let [hot, other] = &members;
    let receive = |member: &InMemory| {
        member.deliver(1);
        while set.progress(By::Poller) == Some(false) {}
        member.waits_for_answer.load(Ordering::SeqCst)
    };
    assert!(!receive(hot), "it may not come back");
    assert!(receive(hot));
    assert!(!receive(other));
    assert!(receive(hot));
    assert_eq!(hot.released.load(Ordering::SeqCst), 0);
    // In a call of a channel, in one of a completion queue, and in an event loop.
    set.receive_by_waiting();
    set.note_sleep();
    set.sleep_again();
    let released = members.map(|it| it.released.load(Ordering::SeqCst));
    assert_eq!(released, [3, 0]);
}

/// The background thread goes on watching a queue where bells alone woke it, and leaves one to its poller where input stays that it cannot receive.
#[test]
fn bells_are_no_sign_of_another_thread() {
    let set = set();
    let member = InMemory::new(0);
    join(&set, &member);
    member.bells.store(1, Ordering::SeqCst);
    member.input.write(1).unwrap();
    assert_eq!(set.progress(By::Background), Some(false));
    assert!(!set.has_data());
    member.input.write(1).unwrap();
    assert_eq!(set.progress(By::Background), None);
}
