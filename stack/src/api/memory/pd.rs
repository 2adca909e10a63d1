//! Protection domains and what belongs to them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use dgiwarp_llp_udp::{Path, PathKind, Peer};

use crate::driver::udp::{multicast as groups, route};
use crate::{
    Access, AddressHandle, Error, FastMr, Mw, MwType, RcQp, RcQpAttr, Region, Rnic, Sge, Srq,
    SrqAttr, UcQp, UcQpAttr, UdQp, UdQpAttr,
};
use dgiwarp_engine::mr::{Keys, PdId, Terms, WindowsBound};
use dgiwarp_engine::types::Route;

/// How memory is registered, and which datagrams may use it.
///
/// ```
/// use dgiwarp::{Access, MrOptions};
///
/// // Memory that the members of a group may write under an STag that all of them know.
/// let options = MrOptions { well_known: Some(0x4711), ..MrOptions::new(Access::REMOTE_WRITE) };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrOptions {
    /// What peers may do with it.
    pub access: Access,
    /// Address of its first octet in the region's own address space. `None`: its address in this process.
    pub iova: Option<u64>,
    /// Takes datagrams of the queue pair with this address and port alone; others are dropped and counted as
    /// `wrong-peer`. Default: of every peer that knows the STag.
    pub only_from: Option<SocketAddr>,
    /// Takes only datagrams that carry their sender's valid cookie, which proves that the sender receives at the address it
    /// sends from ([`UdQp::prove_address`](crate::UdQp::prove_address)); others are dropped and counted as `bad-cookie`. Default no.
    pub cookie: bool,
    /// The STag to use instead of a random one. Only regions with such an STag can be written by what is sent to a
    /// group, because all members must then use the same. It is as good as public: whoever reaches the queue pair may write
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
    /// [`Error::Limit`] if the last address would wrap, [`Error::StagTaken`] if the STag chosen cannot be had.
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
        let keys = registered.map_err(|_| Error::StagTaken {
            stag: options.well_known.unwrap_or(0),
        })?;
        Ok(Mr {
            pd: self.clone(),
            keys,
            iova,
            length,
        })
    }

    /// Where the octets of a scatter/gather element lie in this process, if the element could be posted in this domain; with `write`, as
    /// one that is written to.
    #[must_use]
    pub fn locate(&self, sge: Sge, write: bool) -> Option<u64> {
        let found = self.rnic.shared.mrs.local(self.id, sge, write).ok()?;
        found.address_of(sge.addr)
    }

    /// Makes a memory window (`ibv_alloc_mw(3)`).
    #[must_use]
    pub fn alloc_mw(&self, kind: MwType) -> Mw {
        Mw::alloc(self, kind)
    }

    /// Makes a region of up to `max_len` octets that work requests register, over and over.
    #[must_use]
    pub fn alloc_mr(&self, max_len: usize) -> FastMr {
        FastMr::alloc(self, max_len)
    }

    /// Makes a datagram queue pair.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not ours, [`Error::Limit`] for sizes
    /// outside the device's limits, [`Error::System`] where descriptors are exhausted.
    pub fn create_ud_qp(&self, attr: &UdQpAttr<'_>) -> Result<UdQp, Error> {
        UdQp::create(self, attr)
    }

    /// Makes a queue pair for datagrams to and from one peer.
    ///
    /// # Errors
    /// As [`create_ud_qp`](Self::create_ud_qp).
    pub fn create_uc_qp(&self, attr: &UcQpAttr<'_>) -> Result<UcQp, Error> {
        UcQp::create(self, attr)
    }

    /// Makes a receive queue that queue pairs share (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes outside the device's.
    pub fn create_srq(&self, attr: &SrqAttr) -> Result<Srq, Error> {
        Srq::create(self, attr)
    }

    /// Makes a queue pair for one connection.
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes outside the device's.
    pub fn create_rc_qp(&self, attr: &RcQpAttr<'_>) -> Result<RcQp, Error> {
        RcQp::create(self, attr)
    }

    /// Makes an address handle to a host (`ibv_create_ah(3)`).
    ///
    /// # Errors
    /// [`Error::Route`] where there is no route to it.
    pub fn create_ah(&self, destination: IpAddr) -> Result<AddressHandle, Error> {
        self.create_ah_from(destination, 0, None)
    }

    /// Makes an address handle to a host, with the interface of a link-local address (its `scope_id`, else 0), and
    /// with the address of ours that messages shall leave from.
    ///
    /// A broadcast or multicast address makes the handle of a group: whatever the QPN, messages go to the group port
    /// ([`Config::group_port`](crate::Config::group_port)) of all that [attached](UdQp::attach_group). `scope_id` or `source` choose the interface, and
    /// the kernel's route to the group where both are missing. On the loopback interface, which has no such route, give `source`.
    ///
    /// # Errors
    /// [`Error::Route`] where there is no route to it.
    pub fn create_ah_from(
        &self,
        destination: IpAddr,
        scope_id: u32,
        source: Option<IpAddr>,
    ) -> Result<AddressHandle, Error> {
        let destination = destination.to_canonical();
        let source = source.map(|source| source.to_canonical());
        let found = if groups::is_known(destination) {
            route::look_up_group(destination, scope_id, source)
        } else {
            route::look_up(destination, scope_id)
        };
        let route = found.map_err(|source| Error::Route {
            address: destination,
            source,
        })?;
        let kind = if route::is_local(destination, route) {
            let receive_buffer = granted_receive_buffer(&self.rnic)?;
            PathKind::Loopback { receive_buffer }
        } else {
            PathKind::Network
        };
        let mtu = self.rnic.shared.background.limit_mtu(route.mtu);
        let path = Path::new(kind, destination.is_ipv6(), mtu);
        let source = source.filter(|source| !source.is_unspecified());
        // Where the kernel would choose the same source, naming it only costs. For a group it also chooses the interface, and a
        // chosen interface does not choose a loopback address.
        let source = if route.group {
            source.or_else(|| (scope_id != 0 && destination.is_ipv4()).then_some(route.source))
        } else {
            source.filter(|source| *source != route.source)
        };
        let to = Route::new(destination, scope_id, source, route.source, path);
        Ok(AddressHandle::new(if route.group {
            to.of_group()
        } else {
            to
        }))
    }
}

/// The last address of a region must not wrap.
fn check_wrap(iova: u64, length: usize) -> Result<(), Error> {
    let max = usize::try_from(u64::MAX - iova).unwrap_or(usize::MAX);
    Error::check_limit("region length", length, 0, max)
}

/// The receive buffer that sockets of this device are granted: on loopback the peer's are most likely the same. Asked once.
fn granted_receive_buffer(rnic: &Rnic) -> Result<usize, Error> {
    if let Some(granted) = rnic.shared.receive_buffer.get() {
        return Ok(*granted);
    }
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let sockets = crate::driver::udp::qp::bind(any, rnic.config())
        .or_else(|_| crate::driver::udp::qp::bind(([0, 0, 0, 0], 0).into(), rnic.config()))?;
    let granted = sockets
        .main()
        .granted_receive_buffer()
        .map_err(Error::system("cannot read a socket's receive buffer"))?;
    Ok(*rnic.shared.receive_buffer.get_or_init(|| granted))
}

/// Memory windows are bound to a region, so that it cannot be deregistered (`EBUSY` of `ibv_dereg_mr(3)`).
#[derive(Debug, thiserror::Error)]
#[error("{windows} memory windows are bound to the region")]
pub struct MrBusy {
    /// The region, still registered.
    pub mr: Mr,
    /// How many there are.
    pub windows: usize,
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

    /// Deregisters the region unless memory windows are bound to it (`ibv_dereg_mr(3)`).
    ///
    /// # Errors
    /// [`MrBusy`], which holds the region.
    pub fn deregister(self) -> Result<(), MrBusy> {
        let table = Arc::clone(&self.pd.rnic.shared.mrs);
        match table.try_deregister(self.keys) {
            Ok(()) => Ok(()),
            Err(WindowsBound(windows)) => Err(MrBusy { mr: self, windows }),
        }
    }

    /// Registers other memory, with other rights or in another protection domain, under the same keys (`ibv_rereg_mr(3)`), except for a remote key
    /// that was invalidated; restrictions do not last. Afterwards nothing reads or writes the old memory any more, unless it is part of the new.
    ///
    /// # Errors
    /// [`Error::Limit`] if the last address would wrap, [`Error::WindowsBound`] if memory windows are bound to the region. It stays as it was
    /// then.
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
        self.keys = done.map_err(|WindowsBound(windows)| Error::WindowsBound { windows })?;
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

    /// A scatter/gather element for a range of the region's octets. What reaches outside makes the work request
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
