//! Client side of SIDR: a lookup, sent, repeated, and answered or given up.

use std::time::{Duration, Instant};

use dgiwarp_rdmap::datagram::DropReason;

use super::wire::{Datagram, Kind, Message};
use super::{PrivateData, RejectStatus, ServiceQp};

/// Pause before the first repeat; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time without any answer after which a lookup fails.
const SILENCE: Duration = Duration::from_millis(4500);
/// Time in which the program of a service that sends `Waiting` has to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time in which ICMP's port unreachable is ignored: programs often begin to listen at the moment of the lookup.
const DOUBT: Duration = Duration::from_millis(300);

/// Outcome of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The service's QP.
    Found(ServiceQp, PrivateData),
    /// The service rejected the lookup.
    Rejected(RejectStatus, PrivateData),
    /// No program listens on the port.
    NoService,
    /// No answer arrived in time.
    TimedOut,
}

/// One lookup.
#[derive(Debug)]
pub struct Lookup {
    transaction: u64,
    port: u16,
    datagram: Datagram,
    began: Instant,
    heard: Instant,
    repeat_at: Instant,
    pause: Duration,
    /// The datagram is to be sent.
    due: bool,
    over: bool,
    outcome: Option<Outcome>,
}

impl Lookup {
    /// A lookup of the service at `port`; `transaction` is random, so that no host off the path can answer.
    pub fn new(
        now: Instant,
        transaction: u64,
        port: u16,
        asker: Option<ServiceQp>,
        private_data: &[u8],
    ) -> Self {
        let message = Message {
            kind: Kind::Lookup(asker),
            transaction,
            port,
            private_data,
        };
        Self {
            transaction,
            port,
            datagram: message.emit(),
            began: now,
            heard: now,
            repeat_at: now + FIRST_PAUSE,
            pause: FIRST_PAUSE * 2,
            due: true,
            over: false,
            outcome: None,
        }
    }

    /// Handles a datagram from the service's address and port.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn handle_input(&mut self, now: Instant, datagram: &[u8]) -> Result<(), DropReason> {
        let message = Message::parse(datagram)?;
        let ours = message.transaction == self.transaction && message.port == self.port;
        let outcome = match message.kind {
            Kind::Lookup(_) | Kind::PortQuery | Kind::PortAnswer(_) => {
                return Err(DropReason::Unsolicited);
            }
            Kind::Answer(_) | Kind::Reject(_) | Kind::Waiting if !ours => {
                return Err(DropReason::Unsolicited);
            }
            Kind::Answer(_) | Kind::Reject(_) | Kind::Waiting if self.over => {
                return Err(DropReason::Duplicate);
            }
            Kind::Waiting => {
                self.heard = now;
                return Ok(());
            }
            Kind::Answer(qp) => Outcome::Found(qp, private_data(&message)),
            Kind::Reject(status) => Outcome::Rejected(status, private_data(&message)),
        };
        self.end(outcome);
        Ok(())
    }

    /// Handles ICMP's port unreachable.
    pub fn handle_refused(&mut self, now: Instant) {
        if !self.over && now >= self.began + DOUBT {
            self.end(Outcome::NoService);
        }
    }

    /// Repeats the lookup, or gives it up, if its time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.over {
            return;
        }
        if now >= self.deadline() {
            self.end(Outcome::TimedOut);
        } else if now >= self.repeat_at {
            self.due = true;
            self.repeat_at = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn deadline(&self) -> Instant {
        (self.heard + SILENCE).min(self.began + PATIENCE)
    }

    fn end(&mut self, outcome: Outcome) {
        self.over = true;
        self.due = false;
        self.outcome = Some(outcome);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.over).then(|| self.repeat_at.min(self.deadline()))
    }

    /// The datagram to send to the service.
    pub fn poll_transmit(&mut self) -> Option<&[u8]> {
        std::mem::take(&mut self.due).then_some(&self.datagram[..])
    }

    /// The outcome, once.
    pub fn poll_event(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }
}

fn private_data(message: &Message<'_>) -> PrivateData {
    PrivateData::try_from(message.private_data).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only use of a clock: the tests' times count from here.
    #[expect(clippy::disallowed_methods, reason = "an arbitrary start")]
    fn start() -> Instant {
        Instant::now()
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn said(kind: Kind) -> Datagram {
        let message = Message {
            kind,
            transaction: 77,
            port: 7174,
            private_data: b"hello",
        };
        message.emit()
    }

    const QP: ServiceQp = ServiceQp { qpn: 5, qkey: 6 };

    fn lookup(now: Instant) -> Lookup {
        Lookup::new(now, 77, 7174, None, b"who")
    }

    /// When the lookup is sent, in milliseconds, and when it is given up, if the service sends `heard` each second.
    fn course(heard: Option<Kind>) -> (Vec<u128>, u128) {
        let began = start();
        let mut lookup = lookup(began);
        let mut sent = Vec::new();
        let mut now = began;
        loop {
            if lookup.poll_transmit().is_some() {
                sent.push((now - began).as_millis());
                assert_eq!(lookup.poll_transmit(), None, "once");
                if let Some(kind) = heard {
                    lookup.handle_input(now, &said(kind)).unwrap();
                }
            }
            if let Some(outcome) = lookup.poll_event() {
                assert_eq!(outcome, Outcome::TimedOut);
                assert_eq!(lookup.poll_timeout(), None);
                return (sent, (now - began).as_millis());
            }
            now = lookup.poll_timeout().unwrap();
            lookup.handle_timeout(now - Duration::from_nanos(1));
            assert_eq!(lookup.poll_transmit(), None, "not before its time");
            lookup.handle_timeout(now);
        }
    }

    #[test]
    fn a_question_is_repeated_more_and_more_seldom_and_given_up_within_five_seconds() {
        let (sent, given_up) = course(None);
        assert_eq!(sent, [0, 50, 150, 350, 750, 1550, 2550, 3550]);
        assert_eq!(given_up, 4500);
    }

    #[test]
    fn a_refusal_is_believed_after_a_while() {
        let began = start();
        let mut lookup = lookup(began);
        let mut now = began;
        while lookup.poll_event().is_none() {
            assert!(lookup.poll_transmit().is_some());
            lookup.handle_refused(now);
            if lookup.poll_timeout().is_none() {
                break;
            }
            now = lookup.poll_timeout().unwrap();
            lookup.handle_timeout(now);
        }
        assert_eq!(now - began, ms(350), "the fourth time");
        assert_eq!(lookup.poll_event(), Some(Outcome::NoService));
    }

    #[test]
    fn a_service_that_says_so_is_waited_for() {
        let (sent, given_up) = course(Some(Kind::Waiting));
        assert_eq!(given_up, 60_000);
        assert!(
            sent.windows(2)
                .skip(5)
                .all(|pair| pair[1] - pair[0] == 1000)
        );
    }

    #[test]
    fn the_first_answer_counts() {
        let now = start();
        let mut lookup = lookup(now);
        lookup
            .handle_input(now + ms(3), &said(Kind::Answer(QP)))
            .unwrap();
        let hello = PrivateData::try_from(&b"hello"[..]).unwrap();
        assert_eq!(lookup.poll_event(), Some(Outcome::Found(QP, hello)));
        let again = lookup.handle_input(now, &said(Kind::Reject(RejectStatus::REJECTED)));
        assert_eq!(again, Err(DropReason::Duplicate));
        lookup.handle_timeout(now + ms(100_000));
        assert_eq!((lookup.poll_event(), lookup.poll_transmit()), (None, None));
    }

    #[test]
    fn answers_to_others_are_dropped() {
        let now = start();
        let mut lookup = lookup(now);
        let good = Message {
            kind: Kind::Answer(QP),
            transaction: 77,
            port: 7174,
            private_data: &[],
        };
        let wrong = [
            Message {
                transaction: 78,
                ..good
            },
            Message { port: 7175, ..good },
            Message {
                kind: Kind::Lookup(None),
                ..good
            },
        ];
        for message in wrong {
            let result = lookup.handle_input(now, &message.emit());
            assert_eq!(result, Err(DropReason::Unsolicited));
        }
        assert_eq!(lookup.poll_event(), None);
        lookup.handle_input(now, &good.emit()).unwrap();
        assert!(lookup.poll_event().is_some());
    }
}
