//! Messages that wait for a poll leave, whatever the program does next. Each kind of queue pair runs these with its own ends.

use std::time::Duration;

use nix::poll::{PollTimeout, poll};

use crate::Wc;
use crate::driver::device::clock;
use crate::driver::qp::core::{QpCore, QpState};
use crate::driver::reactor::member::Member;
use crate::driver::reactor::poll_set::By;

const LONG: Duration = Duration::from_secs(30);
/// Posts in a row.
const BURST: usize = 8;

/// One end of two, as the tests need it.
pub(crate) struct Corked<'a, S: QpState> {
    pub(crate) core: &'a QpCore<S>,
    /// Posts a message that is to arrive.
    pub(crate) post: &'a dyn Fn(),
    /// Waits for a message at the other end, without a poll of this one.
    pub(crate) arrive: &'a dyn Fn(),
    /// Has this end receive a message that the other one sends, by polling alone.
    pub(crate) receive: &'a dyn Fn(),
    /// Destroys this end.
    pub(crate) close: &'a dyn Fn(),
}

impl<S: QpState> Corked<'_, S>
where
    QpCore<S>: Member,
{
    fn is_holding(&self) -> bool {
        let held = |state: &mut S| state.cork().is_some_and(|cork| cork.is_holding());
        self.core.exclusive.run(held, |_| {})
    }

    /// Posts messages until some of them wait for a poll.
    fn hold(&self) {
        let deadline = clock::now() + LONG;
        loop {
            assert!(clock::now() < deadline, "no message ever waits");
            while !self.core.poll_set.is_polled() {
                (self.receive)();
            }
            self.core.poll_set.progress(By::Poller);
            for _ in 0..BURST {
                (self.post)();
            }
            if self.is_holding() {
                return;
            }
            for _ in 0..BURST {
                (self.arrive)();
            }
            self.take_completions();
        }
    }

    /// Takes completions, which would overrun their queue where many messages are posted before one waits.
    fn take_completions(&self) {
        let mut completions = [Wc::default(); 2 * BURST];
        while self.core.send_cq.poll(&mut completions).unwrap() > 0 {}
    }

    /// Whether `event` has the messages leave that wait, at once. Now and then the background thread has them in hand at that moment, and they leave a
    /// moment later.
    fn leave_by(&self, name: &str, event: impl Fn()) {
        let leaves = || {
            self.hold();
            event();
            let left = !self.is_holding();
            for _ in 0..BURST {
                (self.arrive)();
            }
            left
        };
        assert!((0..3).any(|_| leaves()), "they wait after {name}");
    }

    /// The process ends while another thread works, which has the messages in hand then.
    fn leave_process_behind_another(&self) {
        let left = self.core.exclusive.run(
            |_| {
                (self.post)();
                self.core.leave_process(false)
            },
            |state| self.core.work(state),
        );
        assert!(!left, "they are lost with the other thread");
        (self.arrive)();
    }

    /// Tries everything that may follow, and at last the end of the process, or destruction.
    pub(crate) fn check(&self, leaves_process: bool) {
        let set = &self.core.poll_set;
        self.leave_by("a poll", || {
            set.progress(By::Poller);
        });
        self.leave_by("a control call", || self.core.run(|_| ()));
        self.leave_by("arming for an event", || set.want_event());
        self.leave_by("a wait for an event", || {
            set.receive_by_waiting();
            set.data_lay_there();
        });
        self.leave_by("a sleep", || {
            self.core.recv_cq.sleep(Some(clock::now()));
        });
        // The background thread has them leave.
        self.hold();
        let deadline = clock::now() + LONG;
        while self.is_holding() {
            assert!(clock::now() < deadline, "they wait for ever");
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
        for _ in 0..BURST {
            (self.arrive)();
        }
        self.leave_process_behind_another();
        self.hold();
        if leaves_process {
            self.core.leave_process(false);
        } else {
            (self.close)();
        }
        for _ in 0..BURST {
            (self.arrive)();
        }
    }
}
