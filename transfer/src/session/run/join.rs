//! Streams that join a session.

use super::{Connection, Error, Hello, Joins, MIN_RECEIVES, RECEIVES, Role, Session, Side, Tuner};
use crate::protection::Secret;

/// Connections that are dialled for a number that is searched for, at most: the sink closes those that it does not want.
const TRIES: usize = 48;

impl Session<'_> {
    /// Takes streams that come, and dials those that are wanted.
    pub(super) fn join(&mut self, side: &mut Side) -> Result<(), Error> {
        while let Some(come) = self.joins.next() {
            let (Ok(connection), Some(number)) = (come, self.streams.next_number()) else {
                continue;
            };
            self.add(connection, number, side)?;
        }
        let Joins::Dialled { wanted, .. } = &self.joins else {
            return Ok(());
        };
        let Some(offering) = self.offering else {
            return Ok(());
        };
        let preshared = |_: &_| Secret::Preshared(offering.key);
        let secret = self.protection.as_ref().map(preshared);
        let most = usize::from(offering.streams.saturating_add(1));
        // One that is lost is dialled again, but not for ever.
        let (count, tries) = match wanted {
            Some(wanted) => {
                let count = usize::from(*wanted).min(most);
                (count, 2 * count.saturating_sub(1))
            }
            None => (self.tune(most, side)?, TRIES),
        };
        if self.streams.numbers().len() < count
            && self.dialled < tries
            && self.joins.dial(secret, self.control)
        {
            self.dialled += 1;
        }
        Ok(())
    }

    /// Searches for the number of streams; returns it. A source keeps those beyond it for later, a sink closes them.
    fn tune(&mut self, most: usize, side: &mut Side) -> Result<usize, Error> {
        let now = self.now();
        let tuner = self.tuner.get_or_insert_with(|| Tuner::new(now, 1));
        let there = self.streams.numbers().len();
        let octets = self.summary.octets - self.summary.copied;
        tuner.handle_progress(now, octets, there, most);
        let wanted = tuner.wanted();
        if self.role == Role::Source {
            self.streams.set_used(wanted);
        } else if there > wanted
            && let Some(number) = self.streams.dispensable()
        {
            self.leave(number, Error::Cancelled, side.source())?;
        }
        Ok(wanted)
    }

    fn add(&mut self, connection: Connection, number: u16, side: &mut Side) -> Result<(), Error> {
        let Some(pool) = self.pool.clone() else {
            return Ok(());
        };
        if connection.is_protected() != self.protection.is_some() {
            return Ok(());
        }
        let now = self.now();
        let mut hello = Hello {
            role: self.role,
            packs: false,
            streams: false,
            joins: true,
            deltas: false,
            encrypts: false,
            attributes: false,
            receives: RECEIVES,
            block: u32::from(number),
            token: self.offering.map_or([0; 16], |it| it.key),
        };
        let mut number = number;
        if let Some(peer) = connection.hello {
            // It names the number, and knows the key already.
            let Ok(named) = u16::try_from(peer.block) else {
                return Ok(());
            };
            if peer.role == self.role || peer.receives < MIN_RECEIVES {
                return Ok(());
            }
            number = named;
            hello.block = peer.block;
            if !self.streams.join(number, now, hello, true) {
                return Ok(());
            }
            self.streams.set_window(number, peer.receives)?;
        } else if !self.streams.join(number, now, hello, false) {
            return Ok(());
        }
        for taken in &connection.taken {
            self.streams.handle_input(number, now, *taken)?;
        }
        let mut carrier = connection.carrier;
        let window = carrier.attach(&pool)?;
        self.lines.add(number, carrier, connection.arrivals);
        if let Side::Sink { engine, .. } = side {
            engine.set_joined();
            self.streams.push_window(number, window);
        }
        Ok(())
    }
}
