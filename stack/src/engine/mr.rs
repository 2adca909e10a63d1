//! Registered regions by STag.
//!
//! Local and remote keys are different random numbers (RFC 5042 §6.1.1: STags must be hard to guess), and
//! a retired one is not given out again for a while. A region in use is held by an `Arc`; deregistration
//! takes it out of the table and waits until no use is left, so that no octet lands afterwards.
//!
//! Programs deregister memory from inside `free()`. Whoever holds a [`Use`] must therefore neither
//! allocate nor free.

use std::collections::VecDeque;
use std::sync::Arc;

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::{Access, Region, RegionSlice};
use dgiwarp_rdmap::datagram::{DropReason, Origin};
use parking_lot::{Mutex, RwLock};
use rand::Rng;
use rand_chacha::ChaCha20Rng;
use rustc_hash::FxHashMap;

use crate::Sge;

/// Retired STags that are not reused.
const QUARANTINE: usize = 4096;

/// Names a protection domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PdId(pub(crate) u32);

/// Which datagrams a region takes, beyond what its access says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// From this peer alone.
    pub(crate) only_from: Option<Peer>,
    /// Only those with their peer's valid cookie.
    pub(crate) cookie: bool,
    /// The STag was agreed on beforehand, so that what is sent to a group may name it.
    pub(crate) well_known: bool,
}

impl Restrictions {
    /// Whether a datagram of this origin may use the region: §5 steps 5 and 6 of the datagram mapping.
    #[inline]
    pub(crate) fn check(&self, origin: Origin<Peer>) -> Result<(), DropReason> {
        if self.only_from.is_some_and(|peer| peer != origin.peer) {
            return Err(DropReason::WrongPeer);
        }
        if self.cookie && !origin.cookie_valid {
            return Err(DropReason::BadCookie);
        }
        if origin.to_group && !self.well_known {
            return Err(DropReason::NotWellKnown);
        }
        Ok(())
    }

    /// Whether they ask what only a datagram can show.
    fn ask_for_datagrams(&self) -> bool {
        self.only_from.is_some() || self.cookie
    }
}

/// What memory is registered as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) iova: u64,
    pub(crate) access: Access,
    pub(crate) pd: PdId,
    pub(crate) only_from: Option<Peer>,
    pub(crate) cookie: bool,
    /// The STag that the caller chose.
    pub(crate) well_known: Option<u32>,
}

/// The STag that a caller chose names another region, or is one that none can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagTaken;

/// A registered region.
#[derive(Debug)]
pub(crate) struct Registration {
    region: Region,
    /// Address of the first octet in the region's own address space.
    iova: u64,
    access: Access,
    pd: PdId,
    restrictions: Restrictions,
}

/// A region that cannot be deregistered until this is dropped.
pub(crate) type Use = Arc<Registration>;

impl Registration {
    /// Offset of `length` octets at `addr`, if they are all inside.
    fn offset(&self, addr: u64, length: u32) -> Option<usize> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        let end = offset.checked_add(usize::try_from(length).ok()?)?;
        (end <= self.region.len()).then_some(offset)
    }

    /// The octets at `addr`.
    #[inline]
    pub(crate) fn slice(&self, addr: u64, length: u32) -> Option<RegionSlice<'_>> {
        let offset = self.offset(addr, length)?;
        self.region
            .slice(offset, usize::try_from(length).ok()?)
            .ok()
    }
}

/// A scatter/gather element names memory that the work request may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalProtection;

/// The keys of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[derive(Debug)]
struct Random {
    generator: ChaCha20Rng,
    retired: VecDeque<u32>,
}

impl Random {
    fn retire(&mut self, key: u32) {
        if self.retired.len() == QUARANTINE {
            self.retired.pop_front();
        }
        self.retired.push_back(key);
    }
}

/// All registrations of a device.
#[derive(Debug)]
pub(crate) struct MrTable {
    local: RwLock<FxHashMap<u32, Use>>,
    remote: RwLock<FxHashMap<u32, Use>>,
    random: Mutex<Random>,
}

impl MrTable {
    /// An empty table that draws its keys from `generator`.
    pub(crate) fn new(generator: ChaCha20Rng) -> Self {
        Self {
            local: RwLock::default(),
            remote: RwLock::default(),
            random: Mutex::new(Random {
                generator,
                retired: VecDeque::with_capacity(QUARANTINE),
            }),
        }
    }

    /// Registers memory that any peer may use.
    #[cfg(test)]
    pub(crate) fn register(&self, region: Region, iova: u64, access: Access, pd: PdId) -> Keys {
        let terms = Terms {
            iova,
            access,
            pd,
            only_from: None,
            cookie: false,
            well_known: None,
        };
        self.register_with(region, terms).unwrap()
    }

    pub(crate) fn register_with(&self, region: Region, terms: Terms) -> Result<Keys, StagTaken> {
        let registration = Arc::new(Registration {
            region,
            iova: terms.iova,
            access: terms.access,
            pd: terms.pd,
            restrictions: Restrictions {
                only_from: terms.only_from,
                cookie: terms.cookie,
                well_known: terms.well_known.is_some(),
            },
        });
        let mut random = self.random.lock();
        let mut local = self.local.write();
        let mut remote = self.remote.write();
        let taken = |key: u32| local.contains_key(&key) || remote.contains_key(&key);
        // 0 and all ones are what uninitialised fields and bit patterns of programs look like.
        let usable = |key: u32| key != 0 && key != u32::MAX && !taken(key);
        let mut draw = || loop {
            let key = random.generator.next_u32();
            if usable(key) && !random.retired.contains(&key) {
                return key;
            }
        };
        let rkey = match terms.well_known {
            Some(stag) if usable(stag) => stag,
            Some(_) => return Err(StagTaken),
            None => draw(),
        };
        let lkey = loop {
            let key = draw();
            if key != rkey {
                break key;
            }
        };
        local.insert(lkey, Arc::clone(&registration));
        remote.insert(rkey, registration);
        Ok(Keys { lkey, rkey })
    }

    /// Takes a registration out. When this returns, nothing reads or writes the region any more.
    pub(crate) fn deregister(&self, keys: Keys) {
        let local = self.local.write().remove(&keys.lkey);
        let remote = self.remote.write().remove(&keys.rkey);
        drop(remote);
        if let Some(registration) = local {
            // Uses are a few microseconds long: a copy, a checksum, one system call.
            while Arc::strong_count(&registration) > 1 {
                std::thread::yield_now();
            }
        }
        let mut random = self.random.lock();
        for key in [keys.lkey, keys.rkey] {
            random.retire(key);
        }
    }

    /// The region that a connected peer names, with the checks of RFC 5041 §7.1 and the right that the operation needs. A connection has
    /// neither a datagram peer's address nor a cookie, so regions restricted to these are closed to it.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: PdId,
        span: TaggedSpan,
        right: Access,
    ) -> Result<Use, TaggedError> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(TaggedError::InvalidStag)?;
        if registration.pd != pd {
            return Err(TaggedError::NotAssociated);
        }
        let allowed =
            registration.access.contains(right) && !registration.restrictions.ask_for_datagrams();
        if !allowed {
            return Err(TaggedError::Access);
        }
        match registration.offset(span.start.get(), span.length) {
            Some(_) => Ok(registration),
            None if span.start.checked_add(span.length.into()).is_none() => Err(TaggedError::Wrap),
            None => Err(TaggedError::BaseOrBounds),
        }
    }

    /// Takes an STag from the peers, as a peer with the right to do so asks, or (without `by_peer`) the program itself. When this returns,
    /// no peer reads or writes there any more.
    pub(crate) fn invalidate(
        &self,
        pd: PdId,
        stag: STag,
        by_peer: bool,
    ) -> Result<(), TaggedError> {
        let mut remote = self.remote.write();
        let found = remote.get(&stag.get()).ok_or(TaggedError::InvalidStag)?;
        if found.pd != pd {
            return Err(TaggedError::NotAssociated);
        }
        if by_peer && !found.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(TaggedError::Access);
        }
        let Some(registration) = remote.remove(&stag.get()) else {
            return Err(TaggedError::InvalidStag);
        };
        drop(remote);
        self.random.lock().retire(stag.get());
        // The table of local keys holds it, and so do we.
        while Arc::strong_count(&registration) > 2 {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The region that a Write-Record names, with the checks of §5 steps 3 to 7 of the datagram mapping.
    #[inline]
    pub(crate) fn write_record(
        &self,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<Use, DropReason> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(DropReason::BadStag)?;
        Self::check_write_record(&registration, pd, origin, span)?;
        Ok(registration)
    }

    /// The checks of a Write-Record into a region that was found before.
    #[inline]
    pub(crate) fn check_write_record(
        registration: &Registration,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<(), DropReason> {
        if registration.pd != pd {
            return Err(DropReason::BadPd);
        }
        if !registration.access.contains(Access::REMOTE_WRITE) {
            return Err(DropReason::NoAccess);
        }
        registration.restrictions.check(origin)?;
        registration
            .offset(span.start.get(), span.length)
            .map(|_| ())
            .ok_or(DropReason::OutOfBounds)
    }

    /// The region that a Read Request on a datagram names, with the checks of §7.1 of the datagram mapping.
    pub(crate) fn remote_read(
        &self,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<Use, DropReason> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(DropReason::BadStag)?;
        if registration.pd != pd {
            return Err(DropReason::BadPd);
        }
        if !registration.access.contains(Access::REMOTE_READ) {
            return Err(DropReason::NoAccess);
        }
        registration.restrictions.check(origin)?;
        if registration.offset(span.start.get(), span.length).is_none() {
            return Err(DropReason::OutOfBounds);
        }
        Ok(registration)
    }

    /// The region of a scatter/gather element.
    #[inline]
    pub(crate) fn local(&self, pd: PdId, sge: Sge, write: bool) -> Result<Use, LocalProtection> {
        let found = self.local.read().get(&sge.lkey).cloned();
        let registration = found.ok_or(LocalProtection)?;
        let allowed = registration.pd == pd
            && (!write || registration.access.contains(Access::LOCAL_WRITE))
            && registration.offset(sge.addr, sge.length).is_some();
        allowed.then_some(registration).ok_or(LocalProtection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_ddp::TaggedOffset;
    use dgiwarp_memory::Buffer;
    use rand::SeedableRng;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    const PD: PdId = PdId(1);

    fn table() -> MrTable {
        MrTable::new(ChaCha20Rng::seed_from_u64(1))
    }

    fn span(rkey: u32, start: u64, length: u32) -> TaggedSpan {
        TaggedSpan {
            stag: STag::new(rkey),
            start: TaggedOffset::new(start),
            length,
        }
    }

    #[test]
    fn a_peer_gets_only_what_was_given() {
        let table = table();
        let region = Buffer::zeroed(100).unwrap().region();
        let keys = table.register(region.clone(), 1000, Access::REMOTE_WRITE, PD);
        let check = |stag, start, length, pd| {
            table
                .remote(pd, span(stag, start, length), Access::REMOTE_WRITE)
                .map(|_| ())
        };
        assert_eq!(check(keys.rkey, 1000, 100, PD), Ok(()));
        assert_eq!(check(keys.rkey, 1100, 0, PD), Ok(()));
        for (start, length) in [(999, 1), (1000, 101), (1100, 1), (0, u32::MAX)] {
            assert_eq!(
                check(keys.rkey, start, length, PD),
                Err(TaggedError::BaseOrBounds)
            );
        }
        assert_eq!(check(keys.rkey, u64::MAX, 2, PD), Err(TaggedError::Wrap));
        assert_eq!(check(keys.lkey, 1000, 1, PD), Err(TaggedError::InvalidStag));
        assert_eq!(
            check(keys.rkey, 1000, 1, PdId(2)),
            Err(TaggedError::NotAssociated)
        );
        let local_only = table.register(region, 1000, Access::LOCAL_WRITE, PD);
        assert_eq!(
            check(local_only.rkey, 1000, 1, PD),
            Err(TaggedError::Access)
        );
    }

    /// §5: the first check that fails names the reason, and restrictions stand between access and bounds.
    #[test]
    fn restrictions_are_checked_in_the_order_of_the_specification() {
        let table = table();
        let peer = Peer::ip("192.0.2.1:7".parse().unwrap());
        let terms = Terms {
            iova: 0,
            access: Access::REMOTE_WRITE,
            pd: PD,
            only_from: Some(peer),
            cookie: true,
            well_known: None,
        };
        let region = Buffer::zeroed(8).unwrap().region();
        let keys = table.register_with(region.clone(), terms).unwrap();
        let try_from = |peer: &str, to_group, cookie_valid, length| {
            let origin = Origin {
                peer: Peer::ip(peer.parse().unwrap()),
                to_group,
                cookie_valid,
            };
            let found = table.write_record(PD, origin, span(keys.rkey, 0, length));
            found.map(|_| ())
        };
        let other_port = try_from("192.0.2.1:8", true, false, 9);
        assert_eq!(other_port, Err(DropReason::WrongPeer));
        let peer = "[::ffff:192.0.2.1]:7";
        assert_eq!(try_from(peer, true, false, 9), Err(DropReason::BadCookie));
        assert_eq!(try_from(peer, true, true, 9), Err(DropReason::NotWellKnown));
        assert_eq!(try_from(peer, false, true, 9), Err(DropReason::OutOfBounds));
        assert_eq!(try_from(peer, false, true, 8), Ok(()));
        let connected = table.remote(PD, span(keys.rkey, 0, 8), Access::REMOTE_WRITE);
        assert_eq!(connected.map(|_| ()), Err(TaggedError::Access));
    }

    #[test]
    fn a_chosen_stag_is_given_once_at_a_time() {
        let table = table();
        let region = Buffer::zeroed(8).unwrap().region();
        let choose = |stag| {
            let terms = Terms {
                iova: 0,
                access: Access::REMOTE_WRITE,
                pd: PD,
                only_from: None,
                cookie: false,
                well_known: Some(stag),
            };
            table.register_with(region.clone(), terms)
        };
        let keys = choose(0x4711).unwrap();
        assert_eq!(keys.rkey, 0x4711);
        assert_ne!(keys.lkey, 0x4711);
        for taken in [0x4711, keys.lkey, 0, u32::MAX] {
            assert_eq!(choose(taken), Err(StagTaken), "{taken:#x}");
        }
        let to_group = Origin {
            to_group: true,
            ..Peer::ip("192.0.2.1:7".parse().unwrap()).into()
        };
        let found = table.write_record(PD, to_group, span(0x4711, 0, 8));
        assert!(found.is_ok());
        drop(found);
        table.deregister(keys);
        assert!(choose(0x4711).is_ok(), "may be chosen again at once");
    }

    #[test]
    fn a_peer_invalidates_only_what_it_may_and_nothing_lands_there_afterwards() {
        let table = table();
        let region = Buffer::zeroed(8).unwrap().region();
        let all = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let keys = table.register(region.clone(), 0, all, PD);
        let stag = STag::new(keys.rkey);
        let invalidate = |pd, stag| table.invalidate(pd, stag, true);
        assert_eq!(invalidate(PdId(2), stag), Err(TaggedError::NotAssociated));
        assert_eq!(invalidate(PD, stag), Ok(()));
        assert_eq!(invalidate(PD, stag), Err(TaggedError::InvalidStag));
        let gone = table.remote(PD, span(keys.rkey, 0, 8), Access::REMOTE_WRITE);
        assert_eq!(gone.map(|_| ()), Err(TaggedError::InvalidStag));
        table.deregister(keys);

        let keys = table.register(region, 0, Access::REMOTE_WRITE, PD);
        let stag = STag::new(keys.rkey);
        assert_eq!(invalidate(PD, stag), Err(TaggedError::Access));
        assert_eq!(table.invalidate(PD, stag, false), Ok(()));
    }

    #[test]
    fn keys_are_unlike_and_not_reused_soon() {
        let table = table();
        let region = Buffer::zeroed(1).unwrap().region();
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let keys = table.register(region.clone(), 0, Access::REMOTE_WRITE, PD);
            assert!(seen.insert(keys.lkey) && seen.insert(keys.rkey));
            table.deregister(keys);
            let gone = table.remote(PD, span(keys.rkey, 0, 0), Access::REMOTE_WRITE);
            assert_eq!(gone.map(|_| ()), Err(TaggedError::InvalidStag));
        }
    }

    #[test]
    fn nothing_lands_after_deregistration() {
        let table = table();
        let buffer = Buffer::zeroed(64).unwrap();
        let stop = AtomicBool::new(false);
        for _ in 0..200 {
            let keys = table.register(buffer.region(), 0, Access::REMOTE_WRITE, PD);
            stop.store(false, Ordering::Relaxed);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Ok(held) =
                            table.remote(PD, span(keys.rkey, 0, 64), Access::REMOTE_WRITE)
                        {
                            held.slice(0, 64).unwrap().place(&[1; 64]);
                        }
                    }
                });
                table.deregister(keys);
                buffer.write(0, &[0; 64]);
                std::thread::yield_now();
                assert_eq!(buffer.to_vec(0, 64), [0; 64]);
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
}
