//! Service side of SIDR: each lookup reaches the program once, and repeats get its answer again.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dgiwarp_rdmap::datagram::DropReason;

use super::wire::{Datagram, Kind, Message};
use super::{PrivateData, RejectStatus, ServiceQp};

/// Most lookups that wait for the program, whatever its backlog.
pub const MAX_BACKLOG: usize = 1024;
/// Answers that are kept for repeats.
const ANSWERS: usize = 1024;
/// Time that an answer is kept: several times a client's longest pause.
const MEMORY: Duration = Duration::from_secs(10);

/// Identifies a lookup: the client's address, and its transaction number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    from: SocketAddr,
    transaction: u64,
}

/// A lookup for the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Identifies the lookup.
    pub question: Question,
    /// Address of the client.
    pub from: SocketAddr,
    /// Local address that the lookup was received on.
    pub to: Option<IpAddr>,
    /// The client's QP, if the lookup names one.
    pub qp: Option<ServiceQp>,
    /// Private data of the lookup.
    pub private_data: PrivateData,
}

/// Answer of the program.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// The service's QP.
    Accept(ServiceQp),
    /// No QP.
    Reject(RejectStatus),
}

/// A datagram to a client.
#[derive(Debug)]
pub struct Reply {
    /// Address of the client.
    pub to: SocketAddr,
    /// Local address that it leaves from.
    pub from: Option<IpAddr>,
    /// The datagram.
    pub datagram: Datagram,
}

#[derive(Debug)]
struct Entry {
    to: Option<IpAddr>,
    /// `None` until the program has answered.
    answer: Option<Box<Datagram>>,
}

/// A service that listens.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    backlog: usize,
    entries: BTreeMap<Question, Entry>,
    /// Lookups without an answer.
    waiting: usize,
    /// Lookups with an answer, by age.
    answered: VecDeque<(Instant, Question)>,
    asked: VecDeque<Asked>,
    /// At most one: no call causes more, and a client repeats a lookup whose reply was not sent.
    reply: Option<Reply>,
    open: bool,
}

impl Listener {
    /// A service at `port`. At most `backlog` lookups, 1 to [`MAX_BACKLOG`], wait for the program.
    pub fn new(port: u16, backlog: usize) -> Self {
        Self {
            port,
            backlog: backlog.clamp(1, MAX_BACKLOG),
            entries: BTreeMap::new(),
            waiting: 0,
            answered: VecDeque::new(),
            asked: VecDeque::new(),
            reply: None,
            open: true,
        }
    }

    /// The service's number.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Handles a datagram.
    ///
    /// # Errors
    /// Why it was dropped; [`DropReason::Duplicate`] also for a repeat, which is answered like the first.
    pub fn handle_input(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let message = Message::parse(datagram)?;
        let Kind::Lookup(qp) = message.kind else {
            return Err(DropReason::Unsolicited);
        };
        self.forget(now);
        let transaction = message.transaction;
        let question = Question { from, transaction };
        let say = |kind| Message {
            kind,
            private_data: &[],
            ..message
        };
        if let Some(entry) = self.entries.get(&question) {
            let datagram = match &entry.answer {
                Some(answer) => (**answer).clone(),
                None => say(Kind::Waiting).emit(),
            };
            let from = entry.to;
            self.reply(question, from, datagram);
            return Err(DropReason::Duplicate);
        }
        if message.port != self.port || !self.open {
            let no = say(Kind::Reject(RejectStatus::NO_SERVICE));
            self.reply(question, to, no.emit());
            return Ok(());
        }
        if self.waiting >= self.backlog {
            return Err(DropReason::BacklogFull);
        }
        self.entries.insert(question, Entry { to, answer: None });
        self.waiting += 1;
        self.asked.push_back(Asked {
            question,
            from,
            to,
            qp,
            private_data: PrivateData::try_from(message.private_data).unwrap_or_default(),
        });
        Ok(())
    }

    fn reply(&mut self, question: Question, from: Option<IpAddr>, datagram: Datagram) {
        self.reply = Some(Reply {
            to: question.from,
            from,
            datagram,
        });
    }

    /// The program answers a lookup, once.
    pub fn answer(
        &mut self,
        now: Instant,
        question: Question,
        verdict: Verdict,
        private_data: &[u8],
    ) {
        let Some(entry) = self.entries.get_mut(&question) else {
            return;
        };
        if entry.answer.is_some() {
            return;
        }
        let message = Message {
            kind: match verdict {
                Verdict::Accept(qp) => Kind::Answer(qp),
                Verdict::Reject(status) => Kind::Reject(status),
            },
            transaction: question.transaction,
            port: self.port,
            private_data,
        };
        let datagram = message.emit();
        let from = entry.to;
        entry.answer = Some(Box::new(datagram.clone()));
        self.waiting -= 1;
        self.answered.push_back((now, question));
        self.forget(now);
        self.reply(question, from, datagram);
    }

    /// Removes answers that no client will ask for again, and those beyond the capacity.
    fn forget(&mut self, now: Instant) {
        while let Some((since, question)) = self.answered.front()
            && (now >= *since + MEMORY || self.answered.len() > ANSWERS)
        {
            self.entries.remove(question);
            self.answered.pop_front();
        }
    }

    /// Accepts no more lookups. Waiting lookups can be answered.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Whether the service is closed and no lookup waits.
    pub fn is_over(&self) -> bool {
        !self.open && self.waiting == 0
    }

    /// Removes old answers.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.forget(now);
    }

    /// When the oldest answer is to be removed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.answered.front().map(|(since, _)| *since + MEMORY)
    }

    /// The datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Reply> {
        self.reply.take()
    }

    /// The next lookup for the program.
    pub fn poll_event(&mut self) -> Option<Asked> {
        self.asked.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 7174;
    const QP: ServiceQp = ServiceQp {
        qpn: 40_000,
        qkey: 0x0123_4567,
    };

    /// The only reading of a clock: the tests' times count from here.
    #[expect(clippy::disallowed_methods, reason = "an arbitrary start")]
    fn start() -> Instant {
        Instant::now()
    }

    fn asker(number: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 1000 + number))
    }

    fn question(transaction: u64) -> Datagram {
        let message = Message {
            kind: Kind::Lookup(None),
            transaction,
            port: PORT,
            private_data: b"who",
        };
        message.emit()
    }

    fn kind(reply: &Reply) -> Kind {
        Message::parse(&reply.datagram).unwrap().kind
    }

    #[test]
    fn the_program_is_asked_once_and_repeats_get_what_it_said() {
        let now = start();
        let mut listener = Listener::new(PORT, 5);
        let to = Some(IpAddr::from([192, 0, 2, 2]));
        assert_eq!(
            listener.handle_input(now, asker(1), to, &question(9)),
            Ok(())
        );
        let asked = listener.poll_event().unwrap();
        assert_eq!(asked.private_data[..], b"who"[..]);
        assert!(
            listener.poll_transmit().is_none(),
            "the program has not said"
        );

        let again = listener.handle_input(now, asker(1), to, &question(9));
        assert_eq!(again, Err(DropReason::Duplicate));
        assert!(listener.poll_event().is_none(), "once");
        assert_eq!(kind(&listener.poll_transmit().unwrap()), Kind::Waiting);

        listener.answer(now, asked.question, Verdict::Accept(QP), b"me");
        let first = listener.poll_transmit().unwrap();
        assert_eq!(kind(&first), Kind::Answer(QP));
        assert_eq!((first.to, first.from), (asker(1), to));
        let _ = listener.handle_input(now, asker(1), to, &question(9));
        let repeat = listener.poll_transmit().unwrap();
        assert_eq!((repeat.datagram, repeat.from), (first.datagram, to));

        // An answer is final.
        let no = Verdict::Reject(RejectStatus::REJECTED);
        listener.answer(now, asked.question, no, b"");
        assert!(listener.poll_transmit().is_none());
    }

    #[test]
    fn questions_beyond_the_backlog_are_dropped_until_there_is_room() {
        let now = start();
        let mut listener = Listener::new(PORT, 2);
        for number in 0..2 {
            assert_eq!(
                listener.handle_input(now, asker(number), None, &question(1)),
                Ok(())
            );
        }
        let third =
            |listener: &mut Listener| listener.handle_input(now, asker(2), None, &question(1));
        assert_eq!(third(&mut listener), Err(DropReason::BacklogFull));
        let asked = listener.poll_event().unwrap();
        listener.answer(now, asked.question, Verdict::Accept(QP), b"");
        assert_eq!(third(&mut listener), Ok(()));
    }

    #[test]
    fn answers_are_forgotten_by_age_and_number() {
        let now = start();
        let mut listener = Listener::new(PORT, 1);
        for number in 0..=u64::try_from(ANSWERS).unwrap() {
            listener
                .handle_input(now, asker(1), None, &question(number))
                .unwrap();
            let asked = listener.poll_event().unwrap();
            listener.answer(now, asked.question, Verdict::Accept(QP), b"");
        }
        assert_eq!(
            (listener.entries.len(), listener.answered.len()),
            (ANSWERS, ANSWERS)
        );
        let known = listener.handle_input(now, asker(1), None, &question(1));
        assert_eq!(known, Err(DropReason::Duplicate));
        let oldest = listener.handle_input(now, asker(1), None, &question(0));
        assert_eq!(oldest, Ok(()), "there was no room for it");
        let due = listener.poll_timeout().unwrap();
        listener.handle_timeout(due);
        assert_eq!((listener.entries.len(), listener.answered.len()), (1, 0));
        assert_eq!(listener.poll_timeout(), None);
    }

    #[test]
    fn what_nobody_serves_is_rejected_and_open_questions_survive_the_listener() {
        let now = start();
        let mut listener = Listener::new(PORT, 5);
        let none = Kind::Reject(RejectStatus::NO_SERVICE);
        let other = Message {
            kind: Kind::Lookup(None),
            transaction: 1,
            port: PORT + 1,
            private_data: &[],
        };
        assert_eq!(
            listener.handle_input(now, asker(1), None, &other.emit()),
            Ok(())
        );
        assert_eq!(kind(&listener.poll_transmit().unwrap()), none);

        listener
            .handle_input(now, asker(1), None, &question(9))
            .unwrap();
        let asked = listener.poll_event().unwrap();
        listener.close();
        assert!(!listener.is_over());
        listener
            .handle_input(now, asker(2), None, &question(9))
            .unwrap();
        assert_eq!(kind(&listener.poll_transmit().unwrap()), none);
        listener.answer(now, asked.question, Verdict::Accept(QP), b"");
        assert_eq!(kind(&listener.poll_transmit().unwrap()), Kind::Answer(QP));
        assert!(listener.is_over());
        assert!(listener.poll_event().is_none());
    }

    #[test]
    fn what_is_no_question_is_dropped() {
        let now = start();
        let mut listener = Listener::new(PORT, 5);
        for kind in [
            Kind::Waiting,
            Kind::Answer(QP),
            Kind::Reject(RejectStatus::REJECTED),
        ] {
            let message = Message {
                kind,
                transaction: 1,
                port: PORT,
                private_data: &[],
            };
            let result = listener.handle_input(now, asker(1), None, &message.emit());
            assert_eq!(result, Err(DropReason::Unsolicited));
        }
        assert!(listener.poll_transmit().is_none() && listener.poll_event().is_none());
    }
}
