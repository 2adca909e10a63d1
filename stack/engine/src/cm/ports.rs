//! Port queries (`rfc-notes/datagram-mapping.md` §10.1): the TCP port of a listener whose port number another TCP socket has.
//!
//! - [`MovedPorts`]: such listeners of a device, and the answers to queries;
//! - [`PortQuery`]: the query of an Initiator;
//! - [`PortMemory`]: ports that spoke MPA and gave no answer, for which no attempt waits.
//!
//! Order of calls of a query: `handle_input` for each datagram, `handle_refused` for ICMP's port unreachable, `handle_timeout` at `poll_timeout`, and after each
//! of these `poll_transmit` and `poll_event` until they return nothing. Spurious calls do no harm.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use dgiwarp_rdmap::datagram::DropReason;
use rustc_hash::FxHashMap;

use super::sidr::wire::{Datagram, Kind, Message};

/// Pause before the first repeat of a query; each further one is four times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Times that a query is sent.
const MOST_SENT: u32 = 4;
/// Time that an open TCP connection to another host waits for the answer.
const PATIENCE: Duration = Duration::from_millis(5);
/// Time that one to an address of this host waits, where ICMP reports a free port at once: a socket has the port.
const LOCAL_PATIENCE: Duration = Duration::from_millis(50);
/// Time in which no answer is waited for from a port that gave none and spoke MPA.
const SILENCE_HOLDS: Duration = Duration::from_secs(60);
/// Ports that are remembered.
const MAX_REMEMBERED: usize = 256;
/// Span in which at most [`ANSWERS`] queries are answered.
const SPAN: Duration = Duration::from_millis(100);
/// Answers in each [`SPAN`].
const ANSWERS: u32 = 1000;

/// Marks of one TCP port on a host: sockets at different addresses have one each.
pub const MARK_SLOTS: u8 = 8;

/// Abstract name (`unix(7)`) of a mark that a host's rdma_cm has a TCP port.
#[must_use]
pub fn mark_name(port: u16, slot: u8) -> String {
    format!("dgiwarp/rdma_cm/tcp/{port}/{slot}")
}

/// How long a TCP connection that is open is held back while its query has no answer.
#[must_use]
pub const fn patience(is_local: bool) -> Duration {
    if is_local { LOCAL_PATIENCE } else { PATIENCE }
}

/// Result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The listener has this TCP port.
    Moved(NonZeroU16),
    /// No listener has moved away from the port.
    Here,
}

/// A query for the TCP port of a listener.
#[derive(Debug)]
pub struct PortQuery {
    transaction: u64,
    port: u16,
    datagram: Datagram,
    sent: u32,
    /// The datagram is to be sent.
    due: bool,
    repeat_at: Option<Instant>,
    pause: Duration,
    over: bool,
    found: Option<Found>,
}

impl PortQuery {
    /// A query about `port`; `transaction` is random, so that no host off the path can answer.
    #[must_use]
    pub fn new(now: Instant, transaction: u64, port: u16) -> Self {
        let message = Message {
            kind: Kind::PortQuery,
            transaction,
            port,
            private_data: &[],
        };
        Self {
            transaction,
            port,
            datagram: message.emit(),
            sent: 0,
            due: true,
            repeat_at: Some(now + FIRST_PAUSE),
            pause: FIRST_PAUSE,
            over: false,
            found: None,
        }
    }

    /// Handles a datagram from the address and port that was queried.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn handle_input(&mut self, datagram: &[u8]) -> Result<(), DropReason> {
        let message = Message::parse(datagram)?;
        let Kind::PortAnswer(port) = message.kind else {
            return Err(DropReason::Unsolicited);
        };
        if message.transaction != self.transaction || message.port != self.port {
            return Err(DropReason::Unsolicited);
        }
        if self.over {
            return Err(DropReason::Duplicate);
        }
        self.end(port.map_or(Found::Here, Found::Moved));
        Ok(())
    }

    /// Handles ICMP's port unreachable.
    pub fn handle_refused(&mut self) {
        if !self.over {
            self.end(Found::Here);
        }
    }

    fn end(&mut self, found: Found) {
        self.over = true;
        self.due = false;
        self.repeat_at = None;
        self.found = Some(found);
    }

    /// Repeats the query, if its time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.due = true;
            self.pause *= 4;
            self.repeat_at = (self.sent + 1 < MOST_SENT).then(|| now + self.pause);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// The datagram to send.
    pub fn poll_transmit(&mut self) -> Option<&[u8]> {
        let due = std::mem::take(&mut self.due);
        self.sent += u32::from(due);
        due.then_some(&self.datagram[..])
    }

    /// The result, once.
    pub fn poll_event(&mut self) -> Option<Found> {
        self.found.take()
    }
}

/// Ports of peers that spoke MPA and gave no answer.
#[derive(Debug, Default)]
pub struct PortMemory {
    /// When the wait for an answer is worth while again.
    silent: FxHashMap<SocketAddr, Instant>,
}

impl PortMemory {
    /// Whether a connection to a port waits for the answer to its query.
    #[must_use]
    pub fn waits(&self, now: Instant, port: SocketAddr) -> bool {
        self.silent.get(&port).is_none_or(|until| now >= *until)
    }

    /// A port spoke MPA, and its query has no result.
    pub fn was_silent(&mut self, now: Instant, port: SocketAddr) {
        if self.silent.len() == MAX_REMEMBERED && !self.silent.contains_key(&port) {
            self.silent.clear();
        }
        self.silent.insert(port, now + SILENCE_HOLDS);
    }

    /// A connection to a port failed, or its query had a result.
    pub fn forget(&mut self, port: SocketAddr) {
        self.silent.remove(&port);
    }
}

/// Listeners of a device whose TCP port is not that of their address.
#[derive(Debug, Default)]
pub struct MovedPorts {
    /// Address that a listener is known by, and its TCP port.
    listeners: Vec<(SocketAddr, NonZeroU16)>,
    /// Beginning of the present span, and the answers in it.
    span: Option<(Instant, u32)>,
}

impl MovedPorts {
    /// A listener has moved.
    pub fn add(&mut self, named: SocketAddr, port: NonZeroU16) {
        self.listeners.push((named, port));
    }

    /// A listener is closed.
    pub fn remove(&mut self, named: SocketAddr, port: NonZeroU16) {
        self.listeners.retain(|it| *it != (named, port));
    }

    /// The answer to a datagram that arrived at UDP port `local_port`, at the address `to`; `None` if it is no query.
    ///
    /// # Errors
    /// Why a query is dropped.
    pub fn answer(
        &mut self,
        now: Instant,
        to: Option<IpAddr>,
        local_port: u16,
        datagram: &[u8],
    ) -> Option<Result<Datagram, DropReason>> {
        let message = Message::parse(datagram).ok()?;
        if message.kind != Kind::PortQuery {
            return None;
        }
        if !self.take_turn(now) {
            return Some(Err(DropReason::BacklogFull));
        }
        let found = (message.port == local_port)
            .then(|| self.find(to, local_port))
            .flatten();
        let answer = Message {
            kind: Kind::PortAnswer(found),
            ..message
        };
        Some(Ok(answer.emit()))
    }

    fn find(&self, to: Option<IpAddr>, port: u16) -> Option<NonZeroU16> {
        let to = to.map(|to| to.to_canonical());
        let takes = |named: &SocketAddr| {
            let own = named.ip().to_canonical();
            own.is_unspecified() || to == Some(own)
        };
        let mut all = self.listeners.iter();
        all.find(|(named, _)| named.port() == port && takes(named))
            .map(|(_, port)| *port)
    }

    /// Whether another query may be answered now.
    fn take_turn(&mut self, now: Instant) -> bool {
        match &mut self.span {
            Some((began, answers)) if now < *began + SPAN => {
                *answers += 1;
                *answers <= ANSWERS
            }
            span => {
                *span = Some((now, 1));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::sidr::wire::PORT_QUERY;
    use crate::connected::tests::now as start;

    const PORT: u16 = 7174;

    fn port(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn answer(transaction: u64, asked: u16, found: Option<NonZeroU16>) -> Datagram {
        let message = Message {
            kind: Kind::PortAnswer(found),
            transaction,
            port: asked,
            private_data: &[],
        };
        message.emit()
    }

    #[test]
    fn a_query_is_answered_by_no_more_octets_than_it_has() {
        let now = start();
        let mut query = PortQuery::new(now, 77, PORT);
        let asked = query.poll_transmit().unwrap().to_vec();
        let mut moved = MovedPorts::default();
        moved.add("0.0.0.0:7174".parse().unwrap(), port(40_000));
        let reply = moved.answer(now, ip("192.0.2.1"), PORT, &asked).unwrap();
        let reply = reply.unwrap();
        assert_eq!((asked.len(), reply.len()), (PORT_QUERY, PORT_QUERY));
        assert_eq!(query.handle_input(&reply), Ok(()));
        assert_eq!(query.poll_event(), Some(Found::Moved(port(40_000))));
        assert_eq!((query.poll_event(), query.poll_timeout()), (None, None));
        assert_eq!(query.handle_input(&reply), Err(DropReason::Duplicate));
        // The answer itself is not answered.
        assert!(moved.answer(now, None, PORT, &reply).is_none());
    }

    #[test]
    fn each_listener_is_found_at_its_address_and_port_only() {
        let now = start();
        let query = |port| PortQuery::new(now, 1, port).datagram;
        let mut moved = MovedPorts::default();
        let named: SocketAddr = "192.0.2.1:7174".parse().unwrap();
        moved.add(named, port(40_000));
        moved.add("[::]:7175".parse().unwrap(), port(40_001));
        let mut found = |to: &str, socket: u16, asked: u16| {
            let reply = moved.answer(now, ip(to), socket, &query(asked)).unwrap();
            match Message::parse(&reply.unwrap()).unwrap().kind {
                Kind::PortAnswer(found) => found.map(NonZeroU16::get),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(found("192.0.2.1", PORT, PORT), Some(40_000));
        assert_eq!(found("::ffff:192.0.2.1", PORT, PORT), Some(40_000));
        assert_eq!(found("192.0.2.2", PORT, PORT), None);
        assert_eq!(found("192.0.2.1", 7175, 7175), Some(40_001));
        assert_eq!(found("2001:db8::1", 7175, 7175), Some(40_001));
        // A socket answers for its own port number.
        assert_eq!(found("192.0.2.1", 7175, PORT), None);
        moved.remove(named, port(40_000));
        let reply = moved.answer(now, ip("192.0.2.1"), PORT, &query(PORT));
        let reply = reply.unwrap().unwrap();
        assert_eq!(Message::parse(&reply).unwrap().kind, Kind::PortAnswer(None));
    }

    #[test]
    fn forged_answers_are_dropped() {
        let now = start();
        let mut query = PortQuery::new(now, 77, PORT);
        let bad = port(666);
        for forged in [
            answer(78, PORT, Some(bad)),
            answer(77, PORT + 1, Some(bad)),
            PortQuery::new(now, 77, PORT).datagram,
        ] {
            assert_eq!(query.handle_input(&forged), Err(DropReason::Unsolicited));
        }
        assert!(query.handle_input(b"octets").is_err());
        assert_eq!(query.poll_event(), None);
        assert_eq!(query.handle_input(&answer(77, PORT, None)), Ok(()));
        assert_eq!(query.poll_event(), Some(Found::Here));
    }

    #[test]
    fn a_query_is_sent_four_times_and_icmp_ends_it() {
        let began = start();
        let mut query = PortQuery::new(began, 77, PORT);
        let mut sent = Vec::new();
        let mut now = began;
        loop {
            if query.poll_transmit().is_some() {
                sent.push((now - began).as_millis());
            }
            assert_eq!(query.poll_transmit(), None);
            let Some(at) = query.poll_timeout() else {
                break;
            };
            query.handle_timeout(at - Duration::from_nanos(1));
            assert_eq!(query.poll_transmit(), None);
            now = at;
            query.handle_timeout(now);
        }
        assert_eq!(sent, [0, 10, 50, 210]);
        query.handle_refused();
        assert_eq!(query.poll_event(), Some(Found::Here));
        query.handle_refused();
        assert_eq!(query.poll_event(), None);
    }

    #[test]
    fn silent_ports_are_not_waited_for_again() {
        let now = start();
        let peer: SocketAddr = "192.0.2.1:7174".parse().unwrap();
        let mut memory = PortMemory::default();
        assert!(memory.waits(now, peer));
        memory.was_silent(now, peer);
        assert!(!memory.waits(now, peer));
        assert!(memory.waits(now + SILENCE_HOLDS, peer));
        memory.forget(peer);
        assert!(memory.waits(now, peer));
        for port in 0..2000 {
            memory.was_silent(now, SocketAddr::new(peer.ip(), port));
        }
        assert!(memory.silent.len() <= MAX_REMEMBERED);
    }

    #[test]
    fn answers_have_a_rate() {
        let began = start();
        let mut moved = MovedPorts::default();
        let query = PortQuery::new(began, 1, PORT).datagram;
        let mut answered = |now| {
            let answers = (0..ANSWERS + 5).map(|_| moved.answer(now, None, PORT, &query));
            answers.filter(|it| matches!(it, Some(Ok(_)))).count()
        };
        assert_eq!(answered(began), ANSWERS as usize);
        assert_eq!(answered(began + SPAN / 2), 0);
        assert_eq!(answered(began + SPAN), ANSWERS as usize);
        assert!(patience(true) > patience(false));
    }
}
