//! When a program is told that its peer ended the connection.
//!
//! A NIC acknowledges what it placed without its program, so that a Send is complete long before the peer's program can have seen the message and
//! closed. Here a program that had no core for a while finds the acknowledgement and the end together. One that looks at its events before its
//! completions would take the queue pair down, and with it the completions that it never saw. So it is told of the end once it has taken those that
//! came before, or has had its time for that.

use std::time::{Duration, Instant};

use crate::driver::tcp::qp::{Link, RcInner, RcShared};
use crate::{ConnectError, ConnectionEvent};
use dgiwarp_engine::connected::RcEnd;

/// The first look at whether the completions were taken. Each pause is twice as long as the one before: the end is told at most twice as late as
/// it could be, and a program that takes none costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// After this one the end is told anyway, 1,023 ms in all: more than a busy machine keeps a program from its core.
const LAST_PAUSE: Duration = Duration::from_millis(512);

impl RcShared {
    /// Tells the program of the connection's end, unless it is told, or has completions to take before.
    pub(crate) fn tell(&self, inner: &mut RcInner, end: RcEnd, now: Instant) {
        let Some(link) = &mut inner.link else {
            return;
        };
        if inner.listener.is_none() {
            return;
        }
        let waits = end.comes_behind_completions() && link.parting.is_none();
        let untaken = || {
            let mut queues = [&self.send_cq, &self.recv_cq].into_iter();
            queues.any(|cq| cq.has_success_of(self.qpn))
        };
        if !waits || link.telling.is_due(now, untaken) {
            link.telling = Telling::default();
            push(inner, end);
        }
    }

    /// The QP goes: an end that the program was to be told of is told now. There are no completions to be taken any more.
    pub(crate) fn tell_untold(inner: &mut RcInner) {
        let untold = |link: &Link| link.telling.deadline().and_then(|_| link.engine.end());
        if let Some(end) = inner.link.as_ref().and_then(untold) {
            push(inner, end);
        }
    }
}

/// Tells whoever listens, once.
fn push(inner: &mut RcInner, end: RcEnd) {
    let Some((queue, context)) = inner.listener.take() else {
        return;
    };
    queue.push(match inner.beginning.take() {
        Some(beginning) => ConnectionEvent::Failed {
            context,
            peer: beginning.peer,
            error: ConnectError::Mpa(dgiwarp_llp_tcp_mpa::Error::ClosedInStartup),
        },
        None => ConnectionEvent::Disconnected { context, end },
    });
}

/// An end that the program is not told of yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Telling {
    /// When to look next, and how long after the look before.
    next: Option<(Instant, Duration)>,
}

impl Telling {
    /// When [`is_due`](Self::is_due) has to be asked again.
    pub(crate) fn deadline(self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// Whether to tell now; `untaken` finds out whether completions from before the end lie in a queue.
    fn is_due(&mut self, now: Instant, untaken: impl FnOnce() -> bool) -> bool {
        let pause = match self.next {
            None => FIRST_PAUSE,
            Some((at, _)) if now < at => return false,
            Some((_, pause)) => pause * 2,
        };
        if pause > LAST_PAUSE || !untaken() {
            self.next = None;
            return true;
        }
        self.next = Some((now + pause, pause));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::device::clock;

    #[test]
    fn a_program_that_took_everything_is_told_at_once() {
        let mut telling = Telling::default();
        assert!(telling.is_due(clock::now(), || false));
        assert_eq!(telling.deadline(), None);
    }

    #[test]
    fn the_end_waits_for_completions_to_be_taken() {
        let (mut telling, now) = (Telling::default(), clock::now());
        assert!(!telling.is_due(now, || true));
        let next = telling.deadline().unwrap();
        assert_eq!(next, now + FIRST_PAUSE);
        let early = next - Duration::from_nanos(1);
        assert!(!telling.is_due(early, || panic!("it is not the time to look")));
        assert!(telling.is_due(next, || false));
        assert_eq!(telling.deadline(), None);
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let (mut telling, began) = (Telling::default(), clock::now());
        let mut now = began;
        let mut looks = 0;
        while !telling.is_due(now, || {
            looks += 1;
            true
        }) {
            now = telling.deadline().unwrap();
        }
        assert_eq!(looks, 10);
        assert_eq!(now - began, Duration::from_millis(1023));
    }
}
