//! Calls of this endpoint (`rfc-notes/ripc.md`, "Calls").

use std::collections::BTreeMap;
use std::time::Duration;

/// Connections that may be lost under a call before it fails.
const RETRIES: u8 = 2;
/// Age after which a call is not sent again.
const RETRY_AGE: Duration = Duration::from_secs(60);
/// Time in which the reply to an abandoned call is awaited before its windows are withdrawn.
const ABANDONED: Duration = Duration::from_secs(5);

/// Numbers and states of the calls that are not over.
#[derive(Debug)]
pub(crate) struct Calls {
    next: u64,
    open: BTreeMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    began: Duration,
    deadline: Option<Duration>,
    idempotent: bool,
    /// Instance that it was sent to.
    sent_to: Option<u64>,
    lost: u8,
    /// Set once the program has its result: end of the wait for the reply.
    abandoned: Option<Duration>,
}

/// Whether a call may be sent to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It may, with this time left in microseconds, 0 for no limit.
    Go { timeout: u32 },
    /// It went to another instance and may have been executed there. The call is over.
    OtherInstance,
    /// Its time is over; [`Calls::expire`] reports it.
    Late,
    /// It is over already.
    Over,
}

/// Fate of a call whose connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// To be sent again once there is a connection.
    Retry,
    /// The call is over; whether it may have been executed.
    Fail { sent: bool },
    /// The program has its result already. The call is over.
    Abandoned,
}

/// Fate of a call at the instance that it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fate {
    /// The instance replied, or this endpoint found the call wrong.
    #[default]
    Replied,
    /// The instance replied that it was not executed.
    Refused,
    /// It surely was not sent: there is no connection.
    Unsent,
    /// Its connection was lost: it may have been executed.
    Lost,
}

/// Subject of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replied {
    /// A call that waits. It is over now.
    Deliver,
    /// A call whose result the program has. It is over now.
    Abandoned,
    /// None that is open.
    Unknown,
}

/// Call whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The program gets its result; if it was sent, a CANCEL follows.
    Deadline { number: u64, sent: bool },
    /// No reply came to an abandoned call: its memory is withdrawn. It is over.
    Withdraw { number: u64 },
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            open: BTreeMap::new(),
        }
    }

    /// Takes a number for a MESSAGE.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Begins a call.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        deadline: Option<Duration>,
        idempotent: bool,
    ) -> u64 {
        let number = self.number();
        let call = Call {
            began: now,
            deadline,
            idempotent,
            sent_to: None,
            lost: 0,
            abandoned: None,
        };
        self.open.insert(number, call);
        number
    }

    /// The lowest number of a call that is not over, or the next one.
    pub(crate) fn floor(&self) -> u64 {
        let lowest = self.open.first_key_value();
        lowest.map_or(self.next, |(number, _)| *number)
    }

    /// Decides whether the call is sent to `instance` now, and notes that it is.
    pub(crate) fn send(&mut self, number: u64, now: Duration, instance: u64) -> Sending {
        let Some(call) = self.open.get_mut(&number) else {
            return Sending::Over;
        };
        if call.abandoned.is_some() {
            return Sending::Over;
        }
        let other = call.sent_to.is_some_and(|other| other != instance);
        if other && !call.idempotent {
            self.open.remove(&number);
            return Sending::OtherInstance;
        }
        let timeout = match call.deadline {
            None => 0,
            Some(deadline) => {
                let left = deadline.saturating_sub(now).as_micros();
                if left == 0 {
                    return Sending::Late;
                }
                u32::try_from(left).unwrap_or(u32::MAX)
            }
        };
        call.sent_to = Some(instance);
        Sending::Go { timeout }
    }

    /// Takes the loss of the connection, or of an attempt to make one.
    pub(crate) fn lost(&mut self, number: u64, now: Duration, may_retry: bool) -> Lost {
        let Some(call) = self.open.get_mut(&number) else {
            return Lost::Abandoned;
        };
        if call.abandoned.is_some() {
            self.open.remove(&number);
            return Lost::Abandoned;
        }
        call.lost += 1;
        let in_time = call.deadline.is_none_or(|deadline| now < deadline);
        let young = now.saturating_sub(call.began) < RETRY_AGE;
        if may_retry && in_time && young && call.lost <= RETRIES {
            return Lost::Retry;
        }
        let sent = call.sent_to.is_some();
        self.open.remove(&number);
        Lost::Fail { sent }
    }

    /// Takes a reply.
    pub(crate) fn reply(&mut self, number: u64) -> Replied {
        match self.open.remove(&number) {
            None => Replied::Unknown,
            Some(call) if call.abandoned.is_some() => Replied::Abandoned,
            Some(_) => Replied::Deliver,
        }
    }

    /// Abandons a call on the program's behalf. Returns whether it was sent, so that a CANCEL is due; one that was not is over.
    pub(crate) fn cancel(&mut self, number: u64, now: Duration) -> bool {
        let Some(call) = self.open.get_mut(&number) else {
            return false;
        };
        if call.sent_to.is_none() {
            self.open.remove(&number);
            return false;
        }
        call.abandoned.get_or_insert(now + ABANDONED);
        true
    }

    /// Ends what is over at `now`.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Expired> {
        let mut expired = Vec::new();
        for (number, call) in &mut self.open {
            let number = *number;
            match call.abandoned {
                Some(until) if until <= now => expired.push(Expired::Withdraw { number }),
                Some(_) => {}
                None => {
                    if call.deadline.is_some_and(|deadline| deadline <= now) {
                        let sent = call.sent_to.is_some();
                        call.abandoned = Some(now + ABANDONED);
                        expired.push(Expired::Deadline { number, sent });
                    }
                }
            }
        }
        for over in &expired {
            match *over {
                Expired::Withdraw { number }
                | Expired::Deadline {
                    number,
                    sent: false,
                } => {
                    self.open.remove(&number);
                }
                Expired::Deadline { sent: true, .. } => {}
            }
        }
        expired
    }

    /// Time of the next call of [`expire`](Self::expire) that has an effect.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let times = self.open.values();
        times
            .filter_map(|call| call.abandoned.or(call.deadline))
            .min()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_call_is_sent_again_to_its_instance_alone() {
        let mut calls = Calls::new();
        let number = calls.begin(SECOND, Some(5 * SECOND), false);
        let timeout = 4_000_000;
        assert_eq!(calls.send(number, SECOND, 7), Sending::Go { timeout });
        assert_eq!(calls.lost(number, SECOND, true), Lost::Retry);
        let timeout = 3_000_000;
        assert_eq!(calls.send(number, 2 * SECOND, 7), Sending::Go { timeout });
        assert_eq!(calls.lost(number, SECOND, true), Lost::Retry);
        assert_eq!(calls.send(number, 2 * SECOND, 8), Sending::OtherInstance);
        assert_eq!(calls.reply(number), Replied::Unknown);
        let number = calls.begin(SECOND, None, true);
        assert_eq!(calls.send(number, SECOND, 7), Sending::Go { timeout: 0 });
        assert_eq!(calls.send(number, SECOND, 8), Sending::Go { timeout: 0 });
    }

    #[test]
    fn retries_end() {
        let mut calls = Calls::new();
        let number = calls.begin(SECOND, None, false);
        assert_eq!(calls.lost(number, SECOND, true), Lost::Retry);
        assert_eq!(calls.lost(number, SECOND, true), Lost::Retry);
        let over = Lost::Fail { sent: false };
        assert_eq!(calls.lost(number, SECOND, true), over);
        let old = calls.begin(SECOND, None, false);
        assert_eq!(calls.lost(old, 61 * SECOND, true), over);
        let late = calls.begin(SECOND, Some(2 * SECOND), false);
        assert_eq!(calls.lost(late, 2 * SECOND, true), over);
        let silent = calls.begin(SECOND, None, false);
        assert_eq!(calls.send(silent, SECOND, 7), Sending::Go { timeout: 0 });
        let sent = Lost::Fail { sent: true };
        assert_eq!(calls.lost(silent, SECOND, false), sent);
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn abandoned_calls_keep_their_number_until_the_reply() {
        let mut calls = Calls::new();
        let first = calls.begin(SECOND, Some(3 * SECOND), false);
        let second = calls.begin(SECOND, None, false);
        let unsent = calls.begin(SECOND, Some(3 * SECOND), false);
        for number in [first, second] {
            assert!(matches!(calls.send(number, SECOND, 7), Sending::Go { .. }));
        }
        assert_eq!(calls.poll_timeout(), Some(3 * SECOND));
        let expired = [(first, true), (unsent, false)];
        let expired = expired.map(|(number, sent)| Expired::Deadline { number, sent });
        assert_eq!(calls.expire(3 * SECOND), expired);
        assert_eq!(calls.send(first, 3 * SECOND, 7), Sending::Over);
        assert!(calls.cancel(second, 3 * SECOND));
        assert_eq!(calls.floor(), first);
        assert_eq!(calls.reply(first), Replied::Abandoned);
        assert_eq!(calls.floor(), second);
        assert!(calls.expire(7 * SECOND).is_empty());
        let withdraw = Expired::Withdraw { number: second };
        assert_eq!(calls.expire(8 * SECOND), [withdraw]);
        assert_eq!((calls.floor(), calls.poll_timeout()), (4, None));
        assert!(!calls.cancel(second, SECOND));
    }
}
