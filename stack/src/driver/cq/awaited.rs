//! Poll sets of an armed completion queue.
//!
//! A program that has armed a queue may sleep until its event, so the sockets of these sets announce their input: none is taken out of its epoll set, and peers on this host ring.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::driver::reactor::poll_set::PollSet;

/// The poll sets from which completions of a queue come, while it is armed. Changed under the lock of the queue's ring.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<SmallVec<[Weak<PollSet>; 2]>>);

impl Awaited {
    /// The queue is armed, or is and has another set.
    pub(super) fn begin(&self, set: &Arc<PollSet>) {
        let mut sets = self.0.lock();
        if !sets
            .iter()
            .any(|it| std::ptr::eq(it.as_ptr(), Arc::as_ptr(set)))
        {
            set.await_event();
            sets.push(Arc::downgrade(set));
        }
    }

    /// Whether the queue is armed.
    pub(super) fn is_any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// The queue is armed no more.
    pub(super) fn end(&self) {
        for set in self.0.lock().drain(..).filter_map(|it| it.upgrade()) {
            set.await_no_event();
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::driver::cq::completion_queue::CompletionQueue;
    use crate::driver::reactor::poll_set::PollSet;
    use crate::driver::reactor::poll_set::tests::{InMemory, join};
    use crate::{Config, Rnic, Wc};

    /// Whether a busy socket of a set announces its input.
    fn announces(set: &PollSet, member: &InMemory, progress: impl Fn()) -> bool {
        for _ in 0..1000 {
            member.deliver(1);
            progress();
        }
        member.deliver(1);
        let announces = set.has_data();
        progress();
        announces
    }

    fn complete(cq: &CompletionQueue) {
        assert!(cq.push(Wc::default()));
        cq.poll_each(16, |_| {}).unwrap();
    }

    #[test]
    fn sockets_announce_their_input_until_the_event_of_an_armed_queue() {
        let rnic = Rnic::open(Config::default()).unwrap();
        let channel = rnic.create_comp_channel().unwrap();
        let [one, other] = [(); 2].map(|()| rnic.create_cq_on(16, &channel).unwrap().shared);
        // Completions of sends come to one queue, of what arrives at the other.
        one.link(&other).unwrap();
        let set: &Arc<PollSet> = other.poll_set();
        let member = InMemory::new(0);
        join(set, &member);
        let announces = || {
            announces(set, &member, || {
                let _ = other.progress();
            })
        };
        assert!(!announces(), "a channel alone waits for nothing");
        for queues in [&[&one][..], &[&other], &[&one, &other]] {
            for cq in queues {
                cq.arm(false);
                // Once is enough.
                cq.arm(false);
            }
            for cq in queues {
                assert!(announces());
                complete(cq);
            }
            assert!(!announces());
        }
        // Its input was not announced before.
        member.deliver(1);
        assert!(!set.has_data());
        one.arm(false);
        assert!(set.has_data());
    }

    #[test]
    fn a_set_that_is_linked_to_an_armed_queue_announces_its_input() {
        let rnic = Rnic::open(Config::default()).unwrap();
        let channel = rnic.create_comp_channel().unwrap();
        let [one, other] = [(); 2].map(|()| rnic.create_cq_on(16, &channel).unwrap().shared);
        let member = InMemory::new(0);
        let set = other.poll_set();
        join(set, &member);
        one.arm(false);
        one.link(&other).unwrap();
        let announces = || {
            announces(set, &member, || {
                let _ = other.progress();
            })
        };
        assert!(announces());
        // A queue that is gone waits for nothing.
        drop(one);
        assert!(!announces());
    }
}
