//! Protection domains and their regions.

use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use dgiwarp_llp_udp::Peer;

use crate::{Access, Error, Region, Rnic, Sge};
use dgiwarp_engine::mr::{Busy, Keys, PdId, RegisterError, Terms};

/// How memory is registered, and which datagrams may use it.
///
/// ```
/// use dgiwarp::{Access, MrOptions};
///
/// // Memory that the members of a group may write under an STag that all of them use.
/// let options = MrOptions { well_known: Some(0x4711), ..MrOptions::new(Access::REMOTE_WRITE) };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrOptions {
    /// Rights of peers.
    pub access: Access,
    /// Address of its first octet in the region's own address space. `None`: its address in this process.
    pub iova: Option<u64>,
    /// Takes datagrams of the queue pair with this address and port alone; others are dropped and counted as
    /// `wrong-peer`. Default: of every peer that has the STag.
    pub only_from: Option<SocketAddr>,
    /// Takes only datagrams that carry their sender's valid cookie, which proves that the sender receives at the address it
    /// sends from ([`UdQp::prove_address`](crate::UdQp::prove_address)); others are dropped and counted as `bad-cookie`. Default no.
    pub cookie: bool,
    /// The STag to use instead of a random one. Only regions with such an STag can be written by datagrams to a
    /// group, because all members must then use the same. It is as good as public: every host that reaches the queue pair may write
    /// the region, so give it memory of its own. Default none.
    pub well_known: Option<u32>,
}

impl MrOptions {
    /// No restriction, a random STag, addresses of this process.
    #[must_use]
    pub const fn new(access: Access) -> Self {
        Self {
            access,
            iova: None,
            only_from: None,
            cookie: false,
            well_known: None,
        }
    }
}

/// A protection domain (`ibv_alloc_pd(3)`): memory and queue pairs of one domain work together, and with no other.
/// Cloning shares it.
#[derive(Debug, Clone)]
pub struct Pd {
    pub(crate) rnic: Rnic,
    pub(crate) id: PdId,
}

impl Pd {
    pub(crate) fn new(rnic: Rnic, id: PdId) -> Self {
        Self { rnic, id }
    }

    /// The device.
    #[must_use]
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// Registers memory; peers address it by its address in this process (`ibv_reg_mr(3)`). Nothing is pinned.
    ///
    /// # Errors
    /// None today; the kinds of [`Error`] that limits of the device would give.
    pub fn register(&self, region: Region, access: Access) -> Result<Mr, Error> {
        self.register_with(region, MrOptions::new(access))
    }

    /// Registers memory that peers and work requests address from `iova` on (`ibv_reg_mr_iova(3)`).
    ///
    /// # Errors
    /// [`Error::Limit`] if the last address would wrap.
    pub fn register_at(&self, region: Region, iova: u64, access: Access) -> Result<Mr, Error> {
        let iova = Some(iova);
        let options = MrOptions::new(access);
        self.register_with(region, MrOptions { iova, ..options })
    }

    /// Registers memory with restrictions, or under an STag of the caller's choice. Regions restricted to a peer or to
    /// cookies take no writes over connections.
    ///
    /// # Errors
    /// [`Error::Limit`] if the last address would wrap, [`Error::StagTaken`] if the STag chosen cannot be had, [`Error::System`] with `ENOMEM` where there
    /// is no memory for the registration.
    pub fn register_with(&self, region: Region, options: MrOptions) -> Result<Mr, Error> {
        let length = region.len();
        let iova = options.iova.unwrap_or_else(|| region.address());
        check_wrap(iova, length)?;
        let terms = Terms {
            iova,
            access: options.access,
            pd: self.id,
            only_from: options.only_from.map(Peer::ip),
            cookie: options.cookie,
            well_known: options.well_known,
        };
        let registered = self.rnic.shared.mrs.register_with(region, terms);
        let keys = registered.map_err(|error| match error {
            RegisterError::StagTaken => Error::StagTaken {
                stag: options.well_known.unwrap_or(0),
            },
            RegisterError::NoMemory => Error::no_memory("memory region"),
        })?;
        Ok(Mr {
            pd: self.clone(),
            keys,
            iova,
            length,
        })
    }

    /// Makes a region without memory (`ibv_alloc_null_mr(3)`): elements that name it have any address, and up to 1 GiB. They are sent as zeroes, and
    /// octets received into them are discarded. Peers cannot name it.
    ///
    /// # Errors
    /// [`Error::System`] with `ENOMEM` where there is no memory for the registration, or no GiB of addresses for the zeroes.
    pub fn register_null(&self) -> Result<Mr, Error> {
        let no_memory = || Error::no_memory("memory region");
        let zeroes = zeroes().ok_or_else(no_memory)?;
        let registered = self.rnic.shared.mrs.register_null(zeroes, self.id);
        Ok(Mr {
            pd: self.clone(),
            keys: registered.map_err(|_| no_memory())?,
            iova: 0,
            length: usize::MAX,
        })
    }

    /// Where the octets of a scatter/gather element lie in this process, if the element could be posted in this domain; with `write`, as
    /// one that is written to.
    #[must_use]
    pub fn locate(&self, sge: Sge, write: bool) -> Option<u64> {
        let found = self.rnic.shared.mrs.local(self.id, sge, write).ok()?;
        found.address_of(sge.addr)
    }
}

/// The octets of every null region, as long as the longest message.
fn zeroes() -> Option<Region> {
    static ZEROES: Mutex<Option<Region>> = Mutex::new(None);
    let mut zeroes = ZEROES.lock().unwrap_or_else(PoisonError::into_inner);
    if zeroes.is_none() {
        *zeroes = Region::zeroes(1 << 30).ok();
    }
    zeroes.clone()
}

/// The last address of a region must not wrap.
fn check_wrap(iova: u64, length: usize) -> Result<(), Error> {
    let max = usize::try_from(u64::MAX - iova).unwrap_or(usize::MAX);
    Error::check_limit("region length", length, 0, max)
}

/// A region cannot be deregistered now (`EBUSY` of `ibv_dereg_mr(3)`): memory windows are bound to it, or a peer on this host copies from it or to it and did
/// not end within a second, since it is stopped.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct MrBusy {
    /// The region, still registered.
    pub mr: Mr,
    #[source]
    reason: Busy,
}

impl MrBusy {
    /// Memory windows that are bound to the region.
    #[must_use]
    pub fn windows(&self) -> usize {
        match self.reason {
            Busy::Windows(windows) => windows,
            Busy::PeerCopies => 0,
        }
    }
}

/// Registered memory (`ibv_mr`). Dropping it deregisters: afterwards nothing reads or writes the region any more, not through
/// memory windows either, which are closed.
#[derive(Debug)]
pub struct Mr {
    pd: Pd,
    keys: Keys,
    iova: u64,
    length: usize,
}

impl Mr {
    /// Names the region in work requests of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.keys.lkey
    }

    /// Names the region in work requests of peers: its STag.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.keys.rkey
    }

    /// Address of the first octet in the region's own address space.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Deregisters the region (`ibv_dereg_mr(3)`) unless memory windows are bound to it, or a peer on this host does not end a copy.
    ///
    /// # Errors
    /// [`MrBusy`], which holds the region.
    pub fn deregister(self) -> Result<(), MrBusy> {
        let table = Arc::clone(&self.pd.rnic.shared.mrs);
        match table.try_deregister(self.keys) {
            Ok(()) => Ok(()),
            Err(reason) => Err(MrBusy { mr: self, reason }),
        }
    }

    /// Registers other memory, with other rights or in another protection domain, under the same keys (`ibv_rereg_mr(3)`), except for a remote key
    /// that was invalidated; restrictions do not last. Afterwards nothing reads or writes the old memory any more, unless it is part of the new.
    ///
    /// # Errors
    /// [`Error::Limit`] if the last address would wrap, [`Error::WindowsBound`] if memory windows are bound to the region, [`Error::PeerCopies`] if a peer on
    /// this host does not end a copy. It stays as it was then.
    pub fn reregister(
        &mut self,
        pd: &Pd,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<(), Error> {
        let length = region.len();
        check_wrap(iova, length)?;
        let terms = Terms {
            iova,
            access,
            pd: pd.id,
            only_from: None,
            cookie: false,
            well_known: None,
        };
        let table = &self.pd.rnic.shared.mrs;
        let done = table.reregister(self.keys, region, terms);
        self.keys = done.map_err(|busy| match busy {
            Busy::Windows(windows) => Error::WindowsBound { windows },
            Busy::PeerCopies => Error::PeerCopies,
        })?;
        self.pd = pd.clone();
        self.iova = iova;
        self.length = length;
        Ok(())
    }

    /// Length in octets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the region has no octets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A scatter/gather element for a range of the region's octets. A range that reaches outside makes the work request
    /// end with a local protection error; a range longer than 2^32 - 1 is cut to that.
    #[must_use]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.length,
        };
        Sge {
            addr: self.iova.saturating_add(start as u64),
            length: u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX),
            lkey: self.keys.lkey,
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let table = Arc::clone(&self.pd.rnic.shared.mrs);
        table.deregister(self.keys);
    }
}

/// Protection domains of a device.
impl Rnic {
    /// Makes a protection domain (`ibv_alloc_pd(3)`).
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let id = PdId(self.shared.next_pd.fetch_add(1, Ordering::Relaxed));
        Pd::new(self.clone(), id)
    }
}
