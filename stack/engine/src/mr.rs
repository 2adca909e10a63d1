//! Registered regions by STag.
//!
//! Keys are random numbers (RFC 5042 §6.1.1: STags must be hard to guess), one of a region for both purposes, and
//! a retired one is not given out again for a while. A region in use is held by an `Arc`; deregistration
//! takes it out of the table and waits until no use is left, so that no octet lands afterwards.
//!
//! Programs deregister memory from inside `free()`. A thread that holds a [`Use`] must therefore neither
//! allocate nor free.

mod grants;
mod keys;
mod windows;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::{Access, Region, RegionSlice};
use dgiwarp_rdmap::datagram::{DropReason, Origin};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rand_chacha::ChaCha20Rng;
use rustc_hash::FxHashMap;

use crate::types::{MwType, Sge};
use grants::{Granted, Grantors};
use keys::Keyring;
use windows::Windows;

pub use grants::{Grantor, PeerCopies, RegionTerms};
pub use keys::increment;
pub use windows::Bind;
pub use windows::BindError;

/// Number of a protection domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// Stream that uses an STag. A region belongs to all streams of its domain, a window of type 2 to one (RFC 5041 §8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId {
    /// Protection domain of its QP.
    pub pd: PdId,
    /// Number of its QP.
    pub qpn: u32,
}

/// Datagrams that may use a region, beyond its access rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Segments of this peer alone are placed.
    pub only_from: Option<Peer>,
    /// Only those with their peer's valid cookie.
    pub cookie: bool,
    /// The STag was agreed on beforehand, so that messages to a group may name it.
    pub well_known: bool,
}

impl Restrictions {
    /// Whether a datagram of this origin may use the region: §5 steps 5 and 6 of the datagram mapping.
    #[inline]
    pub fn check(&self, origin: Origin<Peer>) -> Result<(), DropReason> {
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

    /// Whether they restrict properties that only datagrams have.
    fn ask_for_datagrams(&self) -> bool {
        self.only_from.is_some() || self.cookie
    }
}

/// Terms of a registration.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Address of the first octet in the region's own address space.
    pub iova: u64,
    /// Access rights.
    pub access: Access,
    /// Protection domain.
    pub pd: PdId,
    /// The only peer whose datagrams may use it.
    pub only_from: Option<Peer>,
    /// Whether datagrams need a valid cookie.
    pub cookie: bool,
    /// The STag that the caller chose.
    pub well_known: Option<u32>,
}

/// A region was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterError {
    /// The chosen STag names another region, or is not a possible one.
    StagTaken,
    /// There is no memory for another entry of the table.
    NoMemory,
}

/// Origin of a registration, which decides how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A call of the program.
    Region,
    /// No memory: read as zeroes at every address, written to nowhere.
    Null,
    /// A work request.
    Fast,
    /// The binding of a window.
    Window(MwType),
}

/// A registered region.
#[derive(Debug)]
pub struct Registration {
    region: Region,
    /// Address of the first octet in the region's own address space.
    iova: u64,
    access: Access,
    pd: PdId,
    restrictions: Restrictions,
    /// The only connected QP that may use it.
    only_qp: Option<u32>,
    kind: Kind,
    /// Windows that are bound to it; `None` where none may be.
    windows: Option<Windows>,
    /// Grants to peers on this host.
    granted: Granted,
}

/// A region that cannot be deregistered until this is dropped.
pub type Use = Arc<Registration>;

impl Registration {
    fn new(region: Region, terms: Terms) -> Self {
        Self {
            region,
            iova: terms.iova,
            access: terms.access.with_implied(),
            pd: terms.pd,
            restrictions: Restrictions {
                only_from: terms.only_from,
                cookie: terms.cookie,
                well_known: terms.well_known.is_some(),
            },
            only_qp: None,
            kind: Kind::Region,
            windows: terms
                .access
                .contains(Access::MW_BIND)
                .then(Windows::default),
            granted: Granted::default(),
        }
    }

    #[inline]
    fn is_associated(&self, stream: StreamId) -> bool {
        self.pd == stream.pd && self.only_qp.is_none_or(|qpn| qpn == stream.qpn)
    }

    /// Whether its STag may be invalidated, as a peer asks or the program itself.
    fn may_be_invalidated(&self, stream: StreamId, by_peer: bool) -> Result<(), TaggedError> {
        if !self.is_associated(stream) {
            return Err(TaggedError::NotAssociated);
        }
        let allowed = match self.kind {
            Kind::Region | Kind::Fast => {
                !by_peer || self.access.contains(Access::REMOTE_INVALIDATE)
            }
            Kind::Window(MwType::One) | Kind::Null => false,
            Kind::Window(MwType::Two) => true,
        };
        let has_windows = self.kind == Kind::Fast && self.bound_windows() > 0;
        if !allowed || has_windows {
            return Err(TaggedError::Access);
        }
        Ok(())
    }

    /// The terms on which a connected peer may use the region by itself, if it may.
    fn terms(&self, stream: StreamId, stag: STag, denied: Access) -> Option<RegionTerms> {
        let access = (self.access & (Access::REMOTE_READ | Access::REMOTE_WRITE)) - denied;
        let is_grantable = self.kind == Kind::Region
            && self.is_associated(stream)
            && !self.restrictions.ask_for_datagrams()
            && !self.is_on_demand()
            && !access.is_empty();
        is_grantable.then(|| RegionTerms {
            stag: stag.get(),
            access,
            start: self.iova,
            length: self.region.len() as u64,
            address: self.region.address(),
            file: self.region.memory_file(),
        })
    }

    fn bound_windows(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(0, |windows| windows.load(Ordering::Acquire))
    }

    /// Offset of the octet at `addr`, if that is not below the region.
    #[inline]
    fn offset(&self, addr: u64) -> Option<usize> {
        usize::try_from(addr.checked_sub(self.iova)?).ok()
    }

    /// Address in this process of the octet at `addr`.
    pub fn address_of(&self, addr: u64) -> Option<u64> {
        self.region
            .address()
            .checked_add(addr.checked_sub(self.iova)?)
    }

    /// Whether it has no memory.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// Whether its pages come on demand.
    #[inline]
    pub fn is_on_demand(&self) -> bool {
        self.region.is_on_demand()
    }

    /// Whether `length` octets at `addr` can be read now, or written if `write`: of a region whose pages come on demand this is found out here.
    #[inline]
    pub fn reach(&self, addr: u64, length: u32, write: bool) -> bool {
        !self.region.is_on_demand() || self.reach_on_demand(addr, length, write)
    }

    #[cold]
    fn reach_on_demand(&self, addr: u64, length: u32, write: bool) -> bool {
        let inside = self.slice(addr, length).is_some();
        let range = self.offset(addr).zip(usize::try_from(length).ok());
        range.is_some_and(|(offset, length)| inside && self.region.reach(offset, length, write))
    }

    /// The octets at `addr`, if they can be read or written now.
    #[inline]
    pub fn reached(&self, addr: u64, length: u32, write: bool) -> Option<RegionSlice<'_>> {
        self.slice(addr, length)
            .filter(|_| self.reach(addr, length, write))
    }

    /// The octets at `addr`, if they are all inside.
    #[inline]
    pub fn slice(&self, addr: u64, length: u32) -> Option<RegionSlice<'_>> {
        let length = usize::try_from(length).ok()?;
        let inside = |offset| self.region.slice(offset, length).ok();
        match self.offset(addr).and_then(inside) {
            // Zeroes are alike at all addresses.
            None if self.kind == Kind::Null => inside(0),
            found => found,
        }
    }
}

/// A scatter/gather element names memory that the work request may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalProtection;

/// The keys of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Key of scatter/gather elements.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// Whether peers have a right.
fn is_remote(access: Access) -> bool {
    access.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// A region cannot be deregistered now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Memory windows are bound to it.
    #[error("{0} memory windows are bound to the region")]
    Windows(usize),
    /// A peer on this host copies from it or to it, and did not end within a second.
    #[error("a peer on this host copies from or to the region, and does not end")]
    PeerCopies,
}

impl From<PeerCopies> for Busy {
    fn from(_: PeerCopies) -> Self {
        Self::PeerCopies
    }
}

/// All registrations of a device.
#[derive(Debug)]
pub struct MrTable {
    local: RwLock<FxHashMap<u32, Use>>,
    remote: RwLock<FxHashMap<u32, Use>>,
    /// Locked before the others, where more than one is.
    keyring: Mutex<Keyring>,
    grantors: Grantors,
    /// Called with a refused key of a region without rights for peers.
    report: fn(u32),
}

impl MrTable {
    /// An empty table that draws its keys from `generator`.
    pub fn new(generator: ChaCha20Rng) -> Self {
        Self {
            local: RwLock::default(),
            remote: RwLock::default(),
            keyring: Mutex::new(Keyring::new(generator)),
            grantors: Grantors::default(),
            report: |_| (),
        }
    }

    /// Calls `report` with each refused STag that is the key of a region without rights for peers.
    #[must_use]
    pub fn reporting(self, report: fn(u32)) -> Self {
        Self { report, ..self }
    }

    /// Registers memory that any peer may use.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn register(&self, region: Region, iova: u64, access: Access, pd: PdId) -> Keys {
        let terms = Terms {
            iova,
            access,
            pd,
            only_from: None,
            cookie: false,
            well_known: None,
        };
        self.register_with(region, terms)
            .expect("no STag of its own is asked for")
    }

    /// Registers memory.
    pub fn register_with(&self, region: Region, terms: Terms) -> Result<Keys, RegisterError> {
        let registration = Arc::new(Registration::new(region, terms));
        let mut keyring = self.keyring.lock();
        let mut local = self.local.write();
        let mut remote = self.remote.write();
        let room = local.try_reserve(1).and_then(|()| remote.try_reserve(1));
        room.map_err(|_| RegisterError::NoMemory)?;
        let taken = |key: u32| local.contains_key(&key) || remote.contains_key(&key);
        // Programs that only ran on devices whose two keys are equal send peers the local one, and one that gives a private region remote rights
        // later may have sent the remote key before.
        let key = match terms.well_known {
            Some(stag) if keyring.is_usable(stag, taken) => stag,
            Some(_) => return Err(RegisterError::StagTaken),
            None => keyring.draw(taken),
        };
        local.insert(key, Arc::clone(&registration));
        remote.insert(key, registration);
        Ok(Keys {
            lkey: key,
            rkey: key,
        })
    }

    /// Registers no memory, for elements of any address and length up to that of `zeroes`: they are read as those, and octets that are
    /// placed there are discarded. Peers get no key.
    pub fn register_null(&self, zeroes: Region, pd: PdId) -> Result<Keys, RegisterError> {
        let registration = Registration {
            region: zeroes,
            // No offset is found without the check of the kind.
            iova: u64::MAX,
            access: Access::empty(),
            pd,
            restrictions: Restrictions::default(),
            only_qp: None,
            kind: Kind::Null,
            windows: None,
            granted: Granted::default(),
        };
        let mut keyring = self.keyring.lock();
        let mut local = self.local.write();
        let remote = self.remote.read();
        local.try_reserve(1).map_err(|_| RegisterError::NoMemory)?;
        let lkey = keyring.draw(|key| local.contains_key(&key) || remote.contains_key(&key));
        local.insert(lkey, Arc::new(registration));
        Ok(Keys { lkey, rkey: 0 })
    }

    /// Removes a registration, and first the windows that are bound to it. When this returns, nothing reads or writes the region any more: where a
    /// [peer copies](Busy::PeerCopies), its memory stays for ever.
    pub fn deregister(&self, keys: Keys) {
        let mut may_wait = true;
        loop {
            let removed = if may_wait {
                self.try_deregister(keys)
            } else {
                self.remove(keys)
            };
            match removed {
                Ok(()) => return,
                Err(Busy::Windows(_)) => {
                    self.unbind_all(keys.lkey);
                    // Another thread may be unbinding one of them.
                    std::thread::yield_now();
                }
                Err(Busy::PeerCopies) => {
                    let found = self.local.read().get(&keys.lkey).cloned();
                    let memory = found.map(|it| it.region.clone());
                    let _ = std::mem::ManuallyDrop::new(memory);
                    may_wait = false;
                }
            }
        }
    }

    /// Removes a registration without windows.
    pub fn try_deregister(&self, keys: Keys) -> Result<(), Busy> {
        let found = self.local.read().get(&keys.lkey).cloned();
        if let Some(registration) = &found {
            let bound = registration.bound_windows();
            if bound > 0 {
                return Err(Busy::Windows(bound));
            }
            self.grantors.close(&registration.granted, keys.rkey)?;
        }
        drop(found);
        self.remove(keys)
    }

    /// Removes a registration of which there are no grants.
    fn remove(&self, keys: Keys) -> Result<(), Busy> {
        let mut table = self.local.write();
        let bound = table.get(&keys.lkey).map_or(0, |it| it.bound_windows());
        if bound > 0 {
            return Err(Busy::Windows(bound));
        }
        let local = table.remove(&keys.lkey);
        drop(table);
        let remote = self.remote.write().remove(&keys.rkey);
        drop(remote);
        if let Some(registration) = local {
            // Uses are a few microseconds long: a copy, a checksum, one system call.
            while Arc::strong_count(&registration) > 1 {
                std::thread::yield_now();
            }
        }
        let mut keyring = self.keyring.lock();
        keyring.retire(keys.lkey);
        if keys.lkey != keys.rkey && keys.rkey != 0 {
            keyring.retire(keys.rkey);
        }
        Ok(())
    }

    /// Registers other memory under the keys of a registration, which are returned; a remote key that was invalidated is replaced, and the local
    /// one with it where peers have rights. When this returns, nothing reads or writes the memory from before, except as part of the new registration.
    pub fn reregister(&self, keys: Keys, region: Region, terms: Terms) -> Result<Keys, Busy> {
        let registration = Arc::new(Registration::new(region, terms));
        let before = self.local.read().get(&keys.lkey).cloned();
        if let Some(before) = before {
            self.grantors.close(&before.granted, keys.rkey)?;
        }
        let mut keyring = self.keyring.lock();
        let mut local = self.local.write();
        let mut remote = self.remote.write();
        let old = local.get(&keys.lkey).cloned();
        let bound = old.as_ref().map_or(0, |old| old.bound_windows());
        if bound > 0 {
            return Err(Busy::Windows(bound));
        }
        let same =
            |a: Option<&Use>, b: Option<&Use>| a.zip(b).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let is_valid = same(remote.get(&keys.rkey), old.as_ref());
        let mut new = keys;
        if !is_valid {
            // Peers do not get an invalidated key back.
            new.rkey = keyring.draw(|key| local.contains_key(&key) || remote.contains_key(&key));
            if is_remote(terms.access) {
                new.lkey = new.rkey;
                local.remove(&keys.lkey);
                keyring.retire(keys.lkey);
            }
        }
        local.insert(new.lkey, Arc::clone(&registration));
        drop(remote.insert(new.rkey, registration));
        drop((local, remote, keyring));
        if let Some(old) = old {
            while Arc::strong_count(&old) > 1 {
                std::thread::yield_now();
            }
        }
        Ok(new)
    }

    /// The region that a connected peer names, with the checks of RFC 5041 §7.1 and the right that the operation needs. A connection has
    /// neither a datagram peer's address nor a cookie, so regions restricted to these are closed to it.
    #[inline]
    pub fn remote(
        &self,
        stream: StreamId,
        span: TaggedSpan,
        right: Access,
    ) -> Result<Use, TaggedError> {
        self.remote_if(stream, span, right, |it| !it.ask_for_datagrams())
    }

    /// The region that a peer names over reliable datagrams: the checks of [`remote`](Self::remote), but a region may be this peer's alone.
    /// One that wants a cookie in each segment is closed: format 4 has none there.
    pub fn remote_of(
        &self,
        stream: StreamId,
        peer: Peer,
        span: TaggedSpan,
        right: Access,
    ) -> Result<Use, TaggedError> {
        self.remote_if(stream, span, right, |it| it.check(peer.into()).is_ok())
    }

    #[inline]
    fn remote_if(
        &self,
        stream: StreamId,
        span: TaggedSpan,
        right: Access,
        open: impl FnOnce(&Restrictions) -> bool,
    ) -> Result<Use, TaggedError> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(TaggedError::InvalidStag)?;
        if !registration.is_associated(stream) {
            return Err(TaggedError::NotAssociated);
        }
        if !registration.access.contains(right) || !open(&registration.restrictions) {
            self.denied(&registration, span);
            return Err(TaggedError::Access);
        }
        match registration.slice(span.start.get(), span.length) {
            Some(_) => Ok(registration),
            None if span.start.checked_add(span.length.into()).is_none() => Err(TaggedError::Wrap),
            None => Err(TaggedError::BaseOrBounds),
        }
    }

    /// The region that a Write-Record names, with the checks of §5 steps 3 to 7 of the datagram mapping.
    #[inline]
    pub fn write_record(
        &self,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<Use, DropReason> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(DropReason::BadStag)?;
        Self::check_write_record(&registration, pd, origin, span)
            .inspect_err(|_| self.denied(&registration, span))?;
        Ok(registration)
    }

    /// The checks of a Write-Record into a region that was found before.
    #[inline]
    pub fn check_write_record(
        registration: &Registration,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<(), DropReason> {
        if registration.pd != pd || registration.only_qp.is_some() {
            return Err(DropReason::BadPd);
        }
        if !registration.access.contains(Access::REMOTE_WRITE) {
            return Err(DropReason::NoAccess);
        }
        registration.restrictions.check(origin)?;
        registration
            .slice(span.start.get(), span.length)
            .map(|_| ())
            .ok_or(DropReason::OutOfBounds)
    }

    /// The region that a Read Request on a datagram names, with the checks of §7.1 of the datagram mapping.
    pub fn remote_read(
        &self,
        pd: PdId,
        origin: Origin<Peer>,
        span: TaggedSpan,
    ) -> Result<Use, DropReason> {
        let found = self.remote.read().get(&span.stag.get()).cloned();
        let registration = found.ok_or(DropReason::BadStag)?;
        if registration.pd != pd || registration.only_qp.is_some() {
            return Err(DropReason::BadPd);
        }
        if !registration.access.contains(Access::REMOTE_READ) {
            self.denied(&registration, span);
            return Err(DropReason::NoAccess);
        }
        registration.restrictions.check(origin)?;
        if registration.slice(span.start.get(), span.length).is_none() {
            return Err(DropReason::OutOfBounds);
        }
        Ok(registration)
    }

    /// A peer may not use a region that it named.
    #[cold]
    fn denied(&self, registration: &Registration, span: TaggedSpan) {
        if !is_remote(registration.access) {
            (self.report)(span.stag.get());
        }
    }

    /// Calls `grant` with the terms on which a connected peer may use a region by itself, if it may; and with a check that is to be true while no other thread
    /// revokes grants of that connection. `grant` allocates nothing.
    pub fn grant(
        &self,
        stream: StreamId,
        stag: STag,
        denied: Access,
        grant: impl FnOnce(&RegionTerms, &dyn Fn() -> bool),
    ) {
        let found = self.remote.read().get(&stag.get()).cloned();
        if let Some(registration) = found
            && let Some(terms) = registration.terms(stream, stag, denied)
        {
            registration.granted.begin();
            grant(&terms, &|| registration.granted.may_be());
        }
    }

    /// Has grants of a connection revoked with their regions from now on.
    pub fn add_grantor(&self, grantor: Arc<dyn Grantor>) {
        self.grantors.add(grantor);
    }

    /// The connection has no grants any more.
    pub fn remove_grantor(&self, grantor: &Arc<dyn Grantor>) {
        self.grantors.remove(grantor);
    }

    /// Changes whenever grants are revoked with their regions.
    #[inline]
    pub fn revocations(&self) -> u32 {
        self.grantors.revocations()
    }

    /// The region of a scatter/gather element.
    #[inline]
    pub fn local(&self, pd: PdId, sge: Sge, write: bool) -> Result<Use, LocalProtection> {
        self.view_local().find(pd, sge, write).cloned()
    }

    /// A view of the regions by local key.
    #[inline]
    pub fn view_local(&self) -> LocalView<'_> {
        LocalView(self.local.read())
    }
}

/// A view of the table of local keys, during which nothing in it is deregistered: for as long as it takes to copy a message. A thread that has one
/// neither allocates, frees nor waits, as with a [`Use`], and takes no second one.
#[derive(Debug)]
pub struct LocalView<'a>(RwLockReadGuard<'a, FxHashMap<u32, Use>>);

impl LocalView<'_> {
    /// The region of a scatter/gather element.
    #[inline]
    pub fn find(&self, pd: PdId, sge: Sge, write: bool) -> Result<&Use, LocalProtection> {
        let registration = self.allowed(pd, sge.lkey, write)?;
        let slice = registration.slice(sge.addr, sge.length);
        slice.map(|_| registration).ok_or(LocalProtection)
    }

    /// The region of a local key, if its octets may be read, or written if `write`.
    #[inline]
    fn allowed(&self, pd: PdId, lkey: u32, write: bool) -> Result<&Use, LocalProtection> {
        let registration = self.0.get(&lkey).ok_or(LocalProtection)?;
        let allowed = registration.pd == pd
            && (!write
                || registration.access.contains(Access::LOCAL_WRITE)
                || registration.kind == Kind::Null);
        allowed.then_some(registration).ok_or(LocalProtection)
    }

    /// The octets of a scatter/gather element that is read, if the program may and none of the region's pages come on demand.
    #[inline]
    pub fn resident(&self, pd: PdId, sge: Sge) -> Option<RegionSlice<'_>> {
        let registration = self.allowed(pd, sge.lkey, false).ok()?;
        let is_resident = !registration.is_on_demand();
        is_resident.then(|| registration.slice(sge.addr, sge.length))?
    }

    /// The place of a scatter/gather element that is written to, if the program may and none of the region's pages come on demand.
    #[inline]
    pub fn resident_sink(&self, pd: PdId, sge: Sge) -> Option<RegionSlice<'_>> {
        let registration = self.allowed(pd, sge.lkey, true).ok()?;
        let is_resident = registration.kind != Kind::Null && !registration.is_on_demand();
        is_resident.then(|| registration.slice(sge.addr, sge.length))?
    }

    /// The octets of a scatter/gather element that is read.
    #[inline]
    pub fn slice(&self, pd: PdId, sge: Sge) -> Result<RegionSlice<'_>, LocalProtection> {
        let slice = self.allowed(pd, sge.lkey, false)?;
        let slice = slice.reached(sge.addr, sge.length, false);
        slice.ok_or(LocalProtection)
    }

    /// The place of a scatter/gather element that is written to; none where octets are discarded.
    #[inline(always)]
    pub fn sink(&self, pd: PdId, sge: Sge) -> Result<Option<RegionSlice<'_>>, LocalProtection> {
        let registration = self.allowed(pd, sge.lkey, true)?;
        let slice = registration.reached(sge.addr, sge.length, true);
        let slice = slice.ok_or(LocalProtection)?;
        Ok((registration.kind != Kind::Null).then_some(slice))
    }
}

#[cfg(test)]
mod tests;
