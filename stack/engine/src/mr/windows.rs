//! Memory windows, and regions that work requests register (fast registration).
//!
//! Both are places for a [`Registration`] that work requests fill and empty: a window with a part of a region, and rights of its own
//! (`ibv_bind_mw(3)`, and its posted form), the other with memory that was given to it before. Their contents are found by STag like any
//! region. Emptying waits until nothing uses the memory any more, outside of all locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_memory::{Access, Region};

use super::grants::Granted;
use super::keys::{index, with_index};
use super::{Keys, Kind, MrTable, PdId, Registration, Restrictions, StreamId, Use};
use crate::types::MwType;

/// Rights that a window may give.
const WINDOW_RIGHTS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);
/// Rights that need a region with local write access.
const WRITING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// A work request on memory could not be done: `IBV_WC_MW_BIND_ERR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The key names no window, or no region for fast registration, of the queue pair's protection domain.
    #[error("the key {0:#010x} names nothing that can be bound here")]
    UnknownKey(u32),
    /// Windows of type 1 are bound by a call, those of type 2 by a posted work request.
    #[error("the window is of the other type")]
    WrongType,
    /// A window of type 2, or a region, has to be invalidated first.
    #[error("it is bound already")]
    Bound,
    /// The local key names no region of the protection domain.
    #[error("the key {0:#010x} names no region")]
    UnknownRegion(u32),
    /// The region allows no windows, or none with these rights, or no window can give them.
    #[error("the region does not allow such a window")]
    Access,
    /// The range is not all inside the region.
    #[error("the window reaches outside its region")]
    OutOfBounds,
    /// A window of type 2 has octets.
    #[error("the window has no octets")]
    Empty,
    /// No memory was given to the region before.
    #[error("the region was given no memory")]
    NotMapped,
    /// A key cannot be invalidated: it names nothing, another queue pair's window, or a window of type 1.
    #[error("the key {0:#010x} cannot be invalidated")]
    CannotInvalidate(u32),
}

/// Binding of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind {
    /// Type of the window that the request is for.
    pub kind: MwType,
    /// The window's new key.
    pub rkey: u32,
    /// Local key of the region.
    pub lkey: u32,
    /// First octet, in the region's address space.
    pub addr: u64,
    /// Octets; 0 unbinds.
    pub length: u64,
    /// Rights that the window gives.
    pub access: Access,
    /// Whether the window's own addresses begin at zero.
    pub zero_based: bool,
}

/// Number of windows that are bound to a region.
pub(super) type Windows = Arc<AtomicUsize>;

/// A place for a registration.
#[derive(Debug)]
pub(super) enum Slot {
    Window {
        kind: MwType,
        pd: PdId,
        bound: Option<Bound>,
    },
    Fast {
        pd: PdId,
        /// Index of its local keys.
        local_index: u32,
        /// Memory of the next registration, and its address.
        mapped: Option<(Region, u64)>,
        registered: Option<Keys>,
    },
    /// Index of the local keys of a region for fast registration.
    Local,
}

#[derive(Debug)]
pub(super) struct Bound {
    rkey: u32,
    /// The only connected QP that may use it.
    only_qp: Option<u32>,
    /// Count of the region that it is bound to.
    windows: Windows,
}

/// A registration that was removed from the table and may still be in use.
#[must_use]
struct Emptied {
    registration: Use,
    windows: Option<Windows>,
}

impl Emptied {
    /// Waits until it is not in use.
    fn wait(self) {
        while Arc::strong_count(&self.registration) > 1 {
            std::thread::yield_now();
        }
        if let Some(windows) = self.windows {
            windows.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl MrTable {
    /// Creates a window. Its first key names nothing yet.
    pub fn alloc_mw(&self, pd: PdId, kind: MwType) -> u32 {
        let slot = Slot::Window {
            kind,
            pd,
            bound: None,
        };
        self.alloc_slot(slot).1
    }

    /// Creates a region for fast registration. Its first keys name nothing yet.
    pub fn alloc_fast(&self, pd: PdId) -> Keys {
        let (local_index, lkey) = self.alloc_slot(Slot::Local);
        let (_, rkey) = self.alloc_slot(Slot::Fast {
            pd,
            local_index,
            mapped: None,
            registered: None,
        });
        Keys {
            lkey: with_index(index(lkey), rkey),
            rkey,
        }
    }

    fn alloc_slot(&self, slot: Slot) -> (u32, u32) {
        let mut keyring = self.keyring.lock();
        let (local, remote) = (self.local.read(), self.remote.read());
        let taken = |key: u32| local.contains_key(&key) || remote.contains_key(&key);
        let index = keyring.draw_index(taken);
        keyring.slots.insert(index, slot);
        let key = with_index(index, keyring.draw_key_part());
        (index, key)
    }

    /// Ends a window, bound or not.
    pub fn dealloc_mw(&self, rkey: u32) {
        let mut keyring = self.keyring.lock();
        let slot = keyring.slots.remove(&index(rkey));
        keyring.retire_index(index(rkey));
        let emptied = match slot {
            Some(Slot::Window { bound, .. }) => bound.and_then(|bound| self.take_window(bound)),
            Some(Slot::Fast { .. } | Slot::Local) | None => None,
        };
        drop(keyring);
        if let Some(emptied) = emptied {
            emptied.wait();
        }
    }

    /// Ends a region for fast registration, registered or not, and the windows that are bound to it.
    pub fn dealloc_fast(&self, rkey: u32) {
        let mut keyring = self.keyring.lock();
        let Some(Slot::Fast {
            local_index,
            registered,
            ..
        }) = keyring.slots.remove(&index(rkey))
        else {
            return;
        };
        keyring.slots.remove(&local_index);
        for index in [index(rkey), local_index] {
            keyring.retire_index(index);
        }
        drop(keyring);
        if let Some(keys) = registered {
            self.deregister(keys);
        }
    }

    /// Gives memory for the next registration.
    pub fn map(&self, rkey: u32, region: Region, iova: u64) {
        if let Some(Slot::Fast { mapped, .. }) = self.keyring.lock().slots.get_mut(&index(rkey)) {
            *mapped = Some((region, iova));
        }
    }

    /// Binds a window. When this returns, nothing uses the memory that it was bound to before.
    pub fn bind(&self, stream: StreamId, bind: &Bind) -> Result<(), BindError> {
        let mut keyring = self.keyring.lock();
        let unknown = BindError::UnknownKey(bind.rkey);
        let slot = keyring.slots.get_mut(&index(bind.rkey)).ok_or(unknown)?;
        let Slot::Window { kind, pd, bound } = slot else {
            return Err(unknown);
        };
        if *pd != stream.pd {
            return Err(unknown);
        }
        if *kind != bind.kind {
            return Err(BindError::WrongType);
        }
        match kind {
            MwType::One => {}
            MwType::Two if bound.is_some() => return Err(BindError::Bound),
            MwType::Two if bind.length == 0 => return Err(BindError::Empty),
            MwType::Two => {}
        }
        let next = if bind.length == 0 {
            None
        } else {
            Some(self.window_on(stream, bind)?)
        };
        let emptied = bound.take().and_then(|bound| self.take_window(bound));
        if let Some((registration, windows)) = next {
            let only_qp = registration.only_qp;
            self.remote
                .write()
                .insert(bind.rkey, Arc::new(registration));
            *bound = Some(Bound {
                rkey: bind.rkey,
                only_qp,
                windows,
            });
        }
        drop(keyring);
        if let Some(emptied) = emptied {
            emptied.wait();
        }
        Ok(())
    }

    /// The registration of a window, which the region counts: from now on the region cannot be deregistered.
    fn window_on(
        &self,
        stream: StreamId,
        bind: &Bind,
    ) -> Result<(Registration, Windows), BindError> {
        let local = self.local.read();
        let unknown = BindError::UnknownRegion(bind.lkey);
        let region = local.get(&bind.lkey).ok_or(unknown)?;
        if region.pd != stream.pd {
            return Err(unknown);
        }
        let windows = region.windows.as_ref().ok_or(BindError::Access)?;
        let needs_writing = bind.access.intersects(WRITING);
        if !WINDOW_RIGHTS.contains(bind.access)
            || (needs_writing && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(BindError::Access);
        }
        let offset = bind.addr.checked_sub(region.iova);
        let part = offset
            .and_then(|offset| usize::try_from(offset).ok())
            .zip(usize::try_from(bind.length).ok())
            .and_then(|(offset, length)| region.region.part(offset, length).ok())
            .ok_or(BindError::OutOfBounds)?;
        windows.fetch_add(1, Ordering::AcqRel);
        let registration = Registration {
            region: part,
            iova: if bind.zero_based { 0 } else { bind.addr },
            access: bind.access,
            pd: stream.pd,
            restrictions: region.restrictions,
            only_qp: match bind.kind {
                MwType::One => None,
                MwType::Two => Some(stream.qpn),
            },
            kind: Kind::Window(bind.kind),
            windows: None,
            granted: Granted::default(),
        };
        Ok((registration, Arc::clone(windows)))
    }

    fn take_window(&self, bound: Bound) -> Option<Emptied> {
        let registration = self.remote.write().remove(&bound.rkey)?;
        Some(Emptied {
            registration,
            windows: Some(bound.windows),
        })
    }

    /// Registers the memory that was given before, with the key part of `rkey` for both keys.
    pub fn register_fast(&self, pd: PdId, rkey: u32, access: Access) -> Result<(), BindError> {
        let mut keyring = self.keyring.lock();
        let unknown = BindError::UnknownKey(rkey);
        let slot = keyring.slots.get_mut(&index(rkey)).ok_or(unknown)?;
        let Slot::Fast {
            pd: its,
            local_index,
            mapped,
            registered,
        } = slot
        else {
            return Err(unknown);
        };
        if *its != pd {
            return Err(unknown);
        }
        if registered.is_some() {
            return Err(BindError::Bound);
        }
        let (region, iova) = mapped.take().ok_or(BindError::NotMapped)?;
        let registration = Arc::new(Registration {
            region,
            iova,
            access: access.with_implied(),
            pd,
            restrictions: Restrictions::default(),
            only_qp: None,
            kind: Kind::Fast,
            windows: access.contains(Access::MW_BIND).then(Windows::default),
            granted: Granted::default(),
        });
        let keys = Keys {
            lkey: with_index(*local_index, rkey),
            rkey,
        };
        *registered = Some(keys);
        let mut local = self.local.write();
        let mut remote = self.remote.write();
        local.insert(keys.lkey, Arc::clone(&registration));
        remote.insert(keys.rkey, registration);
        Ok(())
    }

    /// Whether [`invalidate`](Self::invalidate) would do now as a peer asks.
    pub fn check_invalidate(&self, stream: StreamId, stag: STag) -> Result<(), TaggedError> {
        let remote = self.remote.read();
        let found = remote.get(&stag.get()).ok_or(TaggedError::InvalidStag)?;
        found.may_be_invalidated(stream, true)
    }

    /// Takes an STag from the peers, as a peer with the right to do so asks, or (without `by_peer`) the program itself: a region's remote
    /// key, a window, or a region of fast registration with both its keys. When this returns, no peer reads or writes there any more.
    pub fn invalidate(
        &self,
        stream: StreamId,
        stag: STag,
        by_peer: bool,
    ) -> Result<(), TaggedError> {
        let key = stag.get();
        let found = self.remote.read().get(&key).cloned();
        if let Some(registration) = found
            && registration.may_be_invalidated(stream, by_peer).is_ok()
        {
            // A peer that does not end its copy keeps no other thread from its work.
            let _ = self.grantors.close(&registration.granted, key);
        }
        let mut keyring = self.keyring.lock();
        let mut local = self.local.write();
        let mut remote = self.remote.write();
        let found = remote.get(&key).ok_or(TaggedError::InvalidStag)?;
        found.may_be_invalidated(stream, by_peer)?;
        let Some(registration) = remote.remove(&key) else {
            return Err(TaggedError::InvalidStag);
        };
        let mut windows = None;
        match (registration.kind, keyring.slots.get_mut(&index(key))) {
            (Kind::Region, _) => keyring.retire(key),
            (Kind::Window(_), Some(Slot::Window { bound, .. })) => {
                windows = bound.take().map(|bound| bound.windows);
            }
            (Kind::Fast, Some(Slot::Fast { registered, .. })) => {
                if let Some(keys) = registered.take() {
                    local.remove(&keys.lkey);
                }
            }
            (Kind::Window(_) | Kind::Fast | Kind::Null, _) => {
                unreachable!("a registration has its slot")
            }
        }
        drop((keyring, local, remote));
        if registration.kind == Kind::Region {
            // The table of local keys holds it, and so do we.
            while Arc::strong_count(&registration) > 2 {
                std::thread::yield_now();
            }
        } else {
            Emptied {
                registration,
                windows,
            }
            .wait();
        }
        Ok(())
    }

    /// Empties the windows that are bound to a region.
    pub(super) fn unbind_all(&self, lkey: u32) {
        let of_region = self
            .local
            .read()
            .get(&lkey)
            .and_then(|region| region.windows.clone());
        if let Some(of_region) = of_region {
            self.unbind(|bound| Arc::ptr_eq(&bound.windows, &of_region));
        }
    }

    /// Empties the windows of a connected QP that ends: its number may be another's soon.
    pub fn close_windows_of(&self, qpn: u32) {
        self.unbind(|bound| bound.only_qp == Some(qpn));
    }

    fn unbind(&self, which: impl Fn(&Bound) -> bool) {
        let mut emptied = Vec::new();
        let mut keyring = self.keyring.lock();
        for slot in keyring.slots.values_mut() {
            if let Slot::Window { bound, .. } = slot
                && let Some(there) = bound.take_if(|bound| which(bound))
            {
                emptied.extend(self.take_window(there));
            }
        }
        drop(keyring);
        for emptied in emptied {
            emptied.wait();
        }
    }
}

#[cfg(test)]
mod tests;
