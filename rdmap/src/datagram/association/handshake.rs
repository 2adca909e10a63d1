//! The handshake of an association: the cookie exchange over one local address, and the times and errors of the way there.

use std::hash::Hash;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::Associations;
use super::rtt::Rtt;
use crate::datagram::read::segment::Outgoing;
use crate::datagram::{Cookie, CookieExchange, DropReason, ExchangeKind};

/// Most handshakes that nothing needs.
const MAX_IDLE: usize = 1024;
/// Entries checked to evict one: a new handshake must not cost more than a request does.
const LOOKS: usize = 8;
/// First repeat of a cookie request.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
/// Lifetime of a nonce, and so the longest time between two cookie requests.
const NONCE_LIFETIME: Duration = Duration::from_secs(1);
/// Cookie requests sent within that time.
const MAX_NONCES: usize = 8;

/// Names a handshake as long as something needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeId(pub(crate) usize);

/// A cookie exchange without its answer.
#[derive(Debug)]
struct Exchange {
    sent: ArrayVec<(u64, Instant), MAX_NONCES>,
    repeat_after: Duration,
    /// Time of the next request.
    due: Instant,
    /// A request is due.
    wanted: bool,
}

/// Validation of our address by a peer, over one local address.
#[derive(Debug)]
pub(crate) struct Handshake<K, V> {
    pub(crate) peer: K,
    pub(crate) via: V,
    pub(crate) cookie: Option<Cookie>,
    exchange: Option<Exchange>,
    /// Operations in progress that need the cookie or may need it. Without any, requests are not repeated.
    users: u32,
    /// Latest ICMP error since the latest response.
    pub(crate) errno: Option<i32>,
    pub(crate) rtt: Rtt,
}

impl<K, V> Handshake<K, V> {
    /// Takes the cookie of an answer to a nonce that was sent less than a second ago.
    fn take_answer(&mut self, now: Instant, answer: &CookieExchange) -> bool {
        let sent = self.exchange.as_ref().and_then(|exchange| {
            let mut sent = exchange.sent.iter();
            sent.find(|(nonce, _)| *nonce == answer.nonce)
        });
        let took = sent.map(|(_, at)| now.saturating_duration_since(*at));
        let Some(took) = took.filter(|took| *took <= NONCE_LIFETIME) else {
            return false;
        };
        // Each request has a nonce of its own, so the time is certain even for a repeated one.
        self.rtt.sample(took);
        self.cookie = Some(answer.cookie);
        self.exchange = None;
        self.errno = None;
        true
    }
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Associations<K, V> {
    /// The epoch of requests to single hosts.
    pub(crate) fn epoch(&self) -> u32 {
        self.config.epoch
    }

    pub(crate) fn handshake(&self, id: HandshakeId) -> &Handshake<K, V> {
        &self.handshakes[id.0]
    }

    pub(crate) fn handshake_mut(&mut self, id: HandshakeId) -> &mut Handshake<K, V> {
        &mut self.handshakes[id.0]
    }

    /// Handshakes with a peer, one for each local address.
    fn of_peer(&self, peer: K) -> impl Iterator<Item = HandshakeId> {
        let association = self.index.get(&peer).map(|id| &self.peers[*id]);
        association
            .into_iter()
            .flat_map(|it| &it.handshakes)
            .copied()
    }

    fn find(&self, peer: K, via: V) -> Option<HandshakeId> {
        self.of_peer(peer).find(|id| self.handshake(*id).via == via)
    }

    /// The handshake with `peer` over our address `via`, made if it is new. An operation uses it until [`release`](Self::release).
    pub(crate) fn hold(&mut self, peer: K, via: V) -> HandshakeId {
        let id = self.find(peer, via).unwrap_or_else(|| self.add(peer, via));
        self.handshake_mut(id).users += 1;
        id
    }

    fn add(&mut self, peer: K, via: V) -> HandshakeId {
        if self.handshakes.len() >= MAX_IDLE {
            self.evict_one();
        }
        let id = HandshakeId(self.handshakes.insert(Handshake {
            peer,
            via,
            cookie: None,
            exchange: None,
            users: 0,
            errno: None,
            rtt: Rtt::default(),
        }));
        let association = self.enter(peer);
        self.peers[association].handshakes.push(id);
        id
    }

    fn evict_one(&mut self) {
        for _ in 0..LOOKS {
            self.hand = (self.hand + 1) % self.handshakes.capacity().max(1);
            let idle = self.handshakes.get(self.hand).filter(|it| it.users == 0);
            if let Some(peer) = idle.map(|it| it.peer) {
                self.handshakes.remove(self.hand);
                let association = self.enter(peer);
                let kept = &mut self.peers[association];
                kept.handshakes.retain(|id| id.0 != self.hand);
                if kept.handshakes.is_empty() && kept.next.is_none() {
                    self.peers.remove(association);
                    self.index.remove(&peer);
                }
                return;
            }
        }
    }

    /// Ends an operation's use. After the last one, cookie requests are not repeated; a late answer is still taken.
    pub(crate) fn release(&mut self, id: HandshakeId) {
        let handshake = self.handshake_mut(id);
        handshake.users -= 1;
        if handshake.users == 0
            && let Some(exchange) = &mut handshake.exchange
        {
            exchange.wanted = false;
            exchange.repeat_after = FIRST_REPEAT;
        }
    }

    /// The cookie, where the peer has validated our address; else requests one, unless a request was sent a moment ago.
    pub(crate) fn validate(&mut self, now: Instant, id: HandshakeId) -> Option<Cookie> {
        let handshake = &mut self.handshakes[id.0];
        if handshake.cookie.is_none() {
            let exchange = handshake.exchange.get_or_insert_with(|| Exchange {
                sent: ArrayVec::new(),
                repeat_after: FIRST_REPEAT,
                due: now,
                wanted: true,
            });
            exchange.due = exchange.due.min(now + FIRST_REPEAT);
            exchange.wanted |= exchange.due <= now;
            self.request_due |= exchange.wanted;
            let due = exchange.due;
            self.wake_by(due);
        }
        self.handshakes[id.0].cookie
    }

    /// Requests a new cookie from a peer, until it arrives or [`stop_validation`](Self::stop_validation).
    pub fn begin_validation(&mut self, now: Instant, peer: K, via: V) {
        let id = self.hold(peer, via);
        self.handshake_mut(id).cookie = None;
        self.validate(now, id);
    }

    /// The cookie of a peer, if there is one.
    #[must_use]
    pub fn cookie(&self, peer: K, via: V) -> Option<Cookie> {
        self.handshake(self.find(peer, via)?).cookie
    }

    /// Stops the requests for a cookie that no operation needs.
    pub fn stop_validation(&mut self, peer: K, via: V) {
        if let Some(id) = self.find(peer, via)
            && self.handshake(id).users > 0
        {
            self.release(id);
        }
    }

    /// Notes an ICMP error of a peer, for operations that time out.
    pub fn note_error(&mut self, peer: K, errno: i32) {
        for at in 0.. {
            let Some(id) = self.of_peer(peer).nth(at) else {
                return;
            };
            self.handshake_mut(id).errno = Some(errno);
        }
    }

    /// Handles the answer to a cookie request. Operations that wait for this handshake may go on.
    ///
    /// # Errors
    /// [`DropReason::Unsolicited`] without a recent cookie request.
    pub fn handle_answer(
        &mut self,
        now: Instant,
        from: K,
        answer: &CookieExchange,
    ) -> Result<HandshakeId, DropReason> {
        let asked = self.index.get(&from).map(|id| &self.peers[*id]);
        let mut asked = asked.into_iter().flat_map(|it| &it.handshakes);
        asked
            .find(|id| {
                answer.epoch == self.config.epoch && self.handshakes[id.0].take_answer(now, answer)
            })
            .copied()
            .ok_or(DropReason::Unsolicited)
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    #[inline]
    pub fn has_transmit(&self) -> bool {
        self.request_due
    }

    /// The next cookie request, which counts as sent now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<K, V>> {
        if !self.request_due {
            return None;
        }
        let mut due = self.handshakes.iter_mut().filter_map(|(_, handshake)| {
            let exchange = handshake.exchange.as_mut().filter(|it| it.wanted)?;
            Some((handshake.peer, handshake.via, exchange))
        });
        let Some((peer, via, exchange)) = due.next() else {
            self.request_due = false;
            return None;
        };
        self.drawn += 1;
        let nonce = self.config.secret.nonce(self.drawn);
        if exchange.sent.is_full() {
            exchange.sent.remove(0);
        }
        exchange.sent.push((nonce, now));
        exchange.due = now + exchange.repeat_after;
        exchange.repeat_after = (exchange.repeat_after * 2).min(NONCE_LIFETIME);
        exchange.wanted = false;
        let due = exchange.due;
        self.wake_by(due);
        let request = CookieExchange {
            kind: ExchangeKind::Request,
            epoch: self.config.epoch,
            nonce,
            cookie: Cookie::new(0),
        };
        Some(Outgoing {
            peer,
            via,
            segment: request.emit(),
        })
    }

    /// Sets the timer, which operations in progress share with the handshakes that they use.
    pub(crate) fn wake_by(&mut self, at: Instant) {
        self.timeout = Some(self.timeout.map_or(at, |timeout| timeout.min(at)));
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    /// Repeats cookie requests without an answer in time, as long as something needs the cookie. Returns whether the timer was due, and
    /// so may be those of operations in progress.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.timeout.is_none_or(|timeout| now < timeout) {
            return false;
        }
        let needed = self.handshakes.iter_mut().filter(|(_, it)| it.users > 0);
        let mut next: Option<Instant> = None;
        for exchange in needed.filter_map(|(_, it)| it.exchange.as_mut()) {
            if exchange.due <= now {
                exchange.wanted = true;
                self.request_due = true;
            } else {
                next = Some(next.map_or(exchange.due, |next| next.min(exchange.due)));
            }
        }
        self.timeout = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{AssociationConfig, Secret};
    use crate::test_clock::origin;

    const EPOCH: u32 = 7;

    fn associations() -> Associations<u32, u8> {
        Associations::new(AssociationConfig {
            epoch: EPOCH,
            group_key: [0; 4],
            number: 0,
            secret: Secret::new([1, 2]),
        })
    }

    /// Nonce of the cookie request that is due, of which there is no other.
    fn request(associations: &mut Associations<u32, u8>, now: Instant) -> Option<u64> {
        let outgoing = associations.poll_transmit(now)?;
        assert!(associations.poll_transmit(now).is_none());
        let request = CookieExchange::parse(&outgoing.segment.octets).unwrap();
        assert_eq!(
            (request.kind, request.epoch),
            (ExchangeKind::Request, EPOCH)
        );
        Some(request.nonce)
    }

    fn answer(nonce: u64) -> CookieExchange {
        CookieExchange {
            kind: ExchangeKind::Answer,
            epoch: EPOCH,
            nonce,
            cookie: Cookie::new(nonce ^ 1),
        }
    }

    /// §6: repeated after 20, 40, 80, … ms, at most 1 s apart.
    #[test]
    fn cookie_requests_are_repeated_until_they_are_answered_or_nothing_needs_them() {
        let start = origin();
        let mut own = associations();
        own.begin_validation(start, 1, 0);
        let mut at = Vec::new();
        let mut nonces = Vec::new();
        for passed in 0..4000 {
            let now = start + Duration::from_millis(passed);
            own.handle_timeout(now);
            if let Some(nonce) = request(&mut own, now) {
                at.push(passed);
                nonces.push(nonce);
            }
        }
        assert_eq!(at, [0, 20, 60, 140, 300, 620, 1260, 2260, 3260]);
        let now = start + Duration::from_millis(4000);
        let (old, last) = (nonces[nonces.len() - 2], nonces[nonces.len() - 1]);
        let unsolicited = Err(DropReason::Unsolicited);
        assert_eq!(own.handle_answer(now, 1, &answer(old)), unsolicited);
        assert_eq!(own.handle_answer(now, 2, &answer(last)), unsolicited);
        let foreign = CookieExchange {
            epoch: EPOCH + 1,
            ..answer(last)
        };
        assert_eq!(own.handle_answer(now, 1, &foreign), unsolicited);
        assert!(own.handle_answer(now, 1, &answer(last)).is_ok());
        assert_eq!(own.cookie(1, 0), Some(Cookie::new(last ^ 1)));
        assert_eq!(own.cookie(1, 1), None);
        // Another address of ours has its own handshake; nothing is sent when the operation has stopped.
        own.begin_validation(now, 1, 1);
        assert!(request(&mut own, now).is_some());
        own.stop_validation(1, 1);
        let later = now + Duration::from_secs(10);
        own.handle_timeout(later);
        assert_eq!((request(&mut own, later), own.poll_timeout()), (None, None));
    }

    #[test]
    fn two_operations_share_an_exchange_and_the_last_one_ends_it() {
        let start = origin();
        let mut own = associations();
        own.begin_validation(start, 1, 0);
        own.begin_validation(start, 1, 0);
        assert!(request(&mut own, start).is_some());
        own.stop_validation(1, 0);
        let later = start + Duration::from_millis(20);
        own.handle_timeout(later);
        assert!(request(&mut own, later).is_some());
        own.stop_validation(1, 0);
        own.stop_validation(1, 0);
        own.handle_timeout(later + Duration::from_secs(1));
        assert!(!own.has_transmit());
    }

    #[test]
    fn idle_handshakes_are_bounded_and_those_in_use_stay() {
        let now = origin();
        let mut own = associations();
        let kept = own.hold(u32::MAX, 0);
        own.validate(now, kept);
        let nonce = request(&mut own, now).unwrap();
        own.handle_answer(now, u32::MAX, &answer(nonce)).unwrap();
        assert_eq!(own.number(u32::MAX - 1, false), (EPOCH, 0));
        for peer in 0..5000 {
            let id = own.hold(peer, 0);
            assert_eq!(own.handshake(id).peer, peer);
            own.release(id);
        }
        assert_eq!(own.handshakes.len(), MAX_IDLE);
        assert_eq!(own.peers.len(), MAX_IDLE + 1);
        assert_eq!(own.index.len(), own.peers.len());
        assert!(own.cookie(u32::MAX, 0).is_some());
        assert_eq!(own.number(u32::MAX - 1, false), (EPOCH, 1));
    }

    #[test]
    fn an_error_concerns_all_addresses_of_its_peer() {
        let mut own = associations();
        let [a, b, other] = [(1, 0), (1, 1), (2, 0)].map(|(peer, via)| own.hold(peer, via));
        own.note_error(1, 111);
        let errno = |id| own.handshake(id).errno;
        assert_eq!([a, b, other].map(errno), [Some(111), Some(111), None]);
    }
}
