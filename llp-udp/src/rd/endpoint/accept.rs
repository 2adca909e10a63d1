//! Opening and accepting associations, cookies, and what is remembered of those that ended (§4.1, §4.3, §4.5).

use std::collections::{HashSet, VecDeque};
use std::hash::Hasher as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dgiwarp_codec::Payload;
use siphasher::sip::SipHasher24;

use super::{Dropped, Endpoint};
use crate::Peer;
use crate::rd::association::{Association, Datagram, Ended, time};
use crate::rd::config::Cause;
use crate::rd::envelope::{self, Envelope};
use crate::rd::frame::{Close, CloseReason, Credit, Hello};

/// Associations that ended and are remembered, and for how long.
const FORMER: usize = 4096;
const REMEMBERED: Duration = Duration::from_secs(120);
/// Purposes of the key.
const DRAW: u8 = 0;
const COOKIE: u8 = 1;

/// Identifiers and epochs of peers of associations that ended.
#[derive(Debug, Default)]
pub(super) struct Former {
    order: VecDeque<(Instant, (u32, u32))>,
    set: HashSet<(u32, u32)>,
}

impl Former {
    pub(super) fn add(&mut self, now: Instant, association: &Association) {
        let (Some(id), Some(epoch)) = (association.peer_id, association.peer_epoch) else {
            return;
        };
        if self.set.insert((id, epoch)) {
            self.order.push_back((now, (id, epoch)));
        }
        if self.order.len() > FORMER {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, key)) = self.order.pop_front() {
            self.set.remove(&key);
        }
    }

    fn contains(&mut self, now: Instant, id: u32, epoch: u32) -> bool {
        while self
            .order
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= REMEMBERED)
        {
            self.forget_first();
        }
        self.set.contains(&(id, epoch))
    }
}

/// 64 bits that nobody can foresee.
pub(super) fn draw(key: [u64; 2], draws: &mut u64) -> u64 {
    *draws += 1;
    let mut hasher = hasher(key, DRAW);
    hasher.write_u64(*draws);
    hasher.finish()
}

fn hasher([low, high]: [u64; 2], purpose: u8) -> SipHasher24 {
    let mut hasher = SipHasher24::new_with_keys(low, high);
    hasher.write_u8(purpose);
    hasher
}

impl Endpoint {
    fn draw(&mut self) -> u64 {
        draw(self.config.key, &mut self.draws)
    }

    /// The cookie of an address and the epoch of the queue pair behind it; never 0.
    fn cookie(&self, peer: Peer, epoch: u32) -> u64 {
        let mut hasher = hasher(self.config.key, COOKIE);
        hasher.write_u32(epoch);
        if let Some(address) = peer.socket_addr() {
            write_address(&mut hasher, address);
        }
        hasher.finish().max(1)
    }

    /// An identifier that no association has.
    fn identifier(&mut self) -> u32 {
        loop {
            let draw = self.draw();
            let id = u32::try_from(draw >> 32).unwrap_or(0);
            if id != 0 && self.table.by_id(id).is_none() {
                return id;
            }
        }
    }

    /// Opens an association with a peer.
    pub(super) fn open(&mut self, now: Instant, peer: Peer) -> usize {
        let (id, random) = (self.identifier(), self.draw());
        // The peer's epoch is not known: it is of use in the answer alone.
        let association = Association::new(&self.config, now, peer, id, random, 0);
        self.table.add(association)
    }

    /// The association that a hello without identifier belongs to.
    pub(super) fn greet<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_, P>,
        hello: &Hello,
    ) -> Result<usize, Dropped> {
        let (from, epoch) = (datagram.from, datagram.envelope.epoch);
        if hello.retry || hello.association == 0 {
            return Err(Dropped::NoHello);
        }
        if self.former.contains(now, hello.association, epoch) {
            return Err(Dropped::Late(hello.association));
        }
        if hello.life != self.config.connection.map(|lives| lives.peer) {
            return Err(Dropped::OtherLife(hello.life));
        }
        let proven = hello.proof == self.cookie(from, epoch);
        if let Some(at) = self.table.by_peer(from)
            && let Some(association) = self.table.get(at)
        {
            let known = association.peer_id == Some(hello.association)
                && association.peer_epoch == Some(epoch);
            if known || association.is_opening() {
                return Ok(at);
            }
            if !proven {
                self.answer_retry(now, datagram, hello);
                return Err(Dropped::NotValidated);
            }
            let ended = Ended {
                cause: Cause::Restarted,
                reason: None,
            };
            self.end(now, at, ended);
            // The layer above hears of the end first; a hello that is sent again opens the new one.
            return Err(Dropped::Restarted);
        }
        if self.refuses {
            return Err(Dropped::Late(hello.association));
        }
        if !proven && self.table.unvalidated() >= self.config.unvalidated {
            self.answer_retry(now, datagram, hello);
            return Err(Dropped::NotValidated);
        }
        let (id, random) = (self.identifier(), self.draw());
        let cookie = self.cookie(from, epoch);
        let mut association = Association::new(&self.config, now, from, id, random, cookie);
        association.accept(proven);
        Ok(self.table.add(association))
    }

    /// The association of a datagram that has neither identifier nor hello: the hello went before it.
    pub(super) fn anonymous<P: Payload + ?Sized>(
        &self,
        datagram: &Datagram<'_, P>,
    ) -> Result<usize, Dropped> {
        let at = self.table.by_peer(datagram.from).ok_or(Dropped::NoHello)?;
        let association = self.table.get(at).ok_or(Dropped::NoHello)?;
        if association.may_be_anonymous(datagram.envelope.epoch) {
            Ok(at)
        } else {
            Err(Dropped::NoHello)
        }
    }

    fn answer_retry<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_, P>,
        hello: &Hello,
    ) {
        let cookie = self.cookie(datagram.from, datagram.envelope.epoch);
        let envelope = self.envelope(now, hello.association, true);
        let retry = Hello {
            retry: true,
            life: None,
            association: 0,
            credit: Credit::default(),
            proof: 0,
            cookie,
        };
        self.answer_with(datagram.from, &envelope, |out| retry.emit(out));
    }

    /// Answers a datagram of an unknown association.
    pub(super) fn answer_unknown<P: Payload + ?Sized>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_, P>,
    ) {
        let close = Close {
            reason: CloseReason::Unknown,
            association: datagram.envelope.association,
            packet: datagram.envelope.number,
        };
        let envelope = self.envelope(now, 0, false);
        // Never longer than its cause.
        if datagram.octets >= envelope::OVERHEAD + 20 {
            self.answer_with(datagram.from, &envelope, |out| close.emit(out));
        }
    }

    fn envelope(&self, now: Instant, association: u32, hello: bool) -> Envelope {
        Envelope {
            eager: false,
            hello,
            association,
            number: 0,
            time: time(&self.config, now),
            epoch: self.config.epoch,
        }
    }

    fn answer_with(&mut self, to: Peer, envelope: &Envelope, frame: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        envelope.emit(&mut out);
        frame(&mut out);
        envelope::seal(&mut out, 0);
        self.answer(to, out);
    }

    /// A close without identifier: the peer does not have the association any more.
    pub(super) fn on_unknown(
        &mut self,
        now: Instant,
        from: Peer,
        close: &Close,
    ) -> Result<(), Dropped> {
        let unknown = Dropped::UnknownAssociation(close.association);
        let at = self.table.by_peer(from).ok_or(unknown)?;
        let association = self.table.get(at).ok_or(unknown)?;
        let valid = close.reason == CloseReason::Unknown
            && association.peer_id == Some(close.association)
            && association.address == from
            && association.is_in_flight(close.packet);
        if !valid {
            return Err(unknown);
        }
        let ended = Ended {
            cause: Cause::Restarted,
            reason: None,
        };
        self.end(now, at, ended);
        Ok(())
    }
}

fn write_address(hasher: &mut SipHasher24, address: SocketAddr) {
    hasher.write_u16(address.port());
    match address.ip() {
        IpAddr::V4(v4) => hasher.write(&v4.octets()),
        IpAddr::V6(v6) => hasher.write(&v6.octets()),
    }
}
