//! Memory windows, and memory that work requests register.

use std::sync::atomic::{AtomicU32, Ordering};

use dgiwarp_memory::Region;

use crate::{Access, Error, Mr, MwType, Pd, PostFailure, RcQp, RcRdQp, Sge};
use dgiwarp_engine::connected::{MemoryWork, RcData, RcSendWqe, RcWork};
use dgiwarp_engine::mr::{Bind, Keys, increment};
use dgiwarp_engine::recv_queue::SgeList;

/// A memory window (`ibv_alloc_mw(3)`): a part of a region, with rights of its own, that is opened to peers and closed again by work
/// requests in the order of the send queue. The region has to be registered with [`Access::MW_BIND`]. Dropping the window closes it.
///
/// ```
/// use dgiwarp::{Access, Buffer, Config, MwType, RcOperation, Rnic, next_rkey};
///
/// let rnic = Rnic::open(Config::default())?;
/// let pd = rnic.alloc_pd();
/// let memory = Buffer::zeroed(4096)?;
/// let mr = pd.register(memory.region(), Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let mw = pd.alloc_mw(MwType::Two);
/// // Posted to a connected queue pair, this lets its peer write the second kilobyte.
/// let bind = RcOperation::BindMw {
///     rkey: next_rkey(mw.rkey()),
///     lkey: mr.lkey(),
///     addr: mr.addr() + 1024,
///     length: 1024,
///     access: Access::REMOTE_WRITE,
///     zero_based: false,
/// };
/// # let _ = bind;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mw {
    pd: Pd,
    kind: MwType,
    rkey: AtomicU32,
}

impl Mw {
    pub(crate) fn alloc(pd: &Pd, kind: MwType) -> Self {
        let rkey = pd.rnic.shared.mrs.alloc_mw(pd.id, kind);
        Self {
            pd: pd.clone(),
            kind,
            rkey: AtomicU32::new(rkey),
        }
    }

    /// Of type 1: the key of the latest binding that was posted. Of type 2: the key that it was made with; each binding may have
    /// another one with the same upper 24 bits ([`next_rkey`]).
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Acquire)
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// The key of a new binding, which becomes the window's if `post` succeeds.
    pub(crate) fn rebind<E>(&self, post: impl FnOnce(u32) -> Result<(), E>) -> Result<u32, E> {
        let (Ok(old) | Err(old)) =
            self.rkey
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |key| {
                    Some(increment(key))
                });
        let new = increment(old);
        post(new).inspect_err(|_| {
            let _ = self
                .rkey
                .compare_exchange(new, old, Ordering::AcqRel, Ordering::Acquire);
        })?;
        Ok(new)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.pd.rnic.shared.mrs.dealloc_mw(self.rkey());
    }
}

/// The key with the next consumer part, the low eight bits (`ibv_inc_rkey(3)`).
#[must_use]
pub const fn next_rkey(rkey: u32) -> u32 {
    increment(rkey)
}

/// Target of the bind of a type 1 window (`struct ibv_mw_bind`).
#[derive(Debug, Clone, Copy)]
pub struct MwBind<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The region, registered with [`Access::MW_BIND`].
    pub mr: &'a Mr,
    /// The first octet, in the region's address space.
    pub addr: u64,
    /// Octets; 0 closes the window.
    pub length: u64,
    /// Any of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`]; the latter two need a region with
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Whether peers count addresses from the window's first octet; else they use those of the region.
    pub zero_based: bool,
    /// Whether success makes a completion; errors always do.
    pub signaled: bool,
}

impl<'a> MwBind<'a> {
    /// All of a region, with a completion.
    #[must_use]
    pub fn new(wr_id: u64, mr: &'a Mr, access: Access) -> Self {
        Self {
            wr_id,
            mr,
            addr: mr.addr(),
            length: u64::try_from(mr.len()).unwrap_or(u64::MAX),
            access,
            zero_based: false,
            signaled: true,
        }
    }
}

impl RcQp {
    /// Binds a window of type 1, in the order of the send queue, and returns its new key (`ibv_bind_mw(3)`). Work requests posted behind this may send
    /// that key to the peer; the old one is dead when the binding's turn has come. A binding that cannot be ends the connection.
    ///
    /// # Errors
    /// [`PostFailure`], as [`post_send`](Self::post_send); the window keeps its key.
    pub fn bind_mw(&self, mw: &Mw, bind: &MwBind<'_>) -> Result<u32, PostFailure> {
        let to = (bind.mr.lkey(), bind.addr, bind.length, bind.access);
        self.rebind(mw, to, bind.zero_based, (bind.wr_id, bind.signaled))
    }

    /// Closes a window of type 1, in the order of the send queue, and returns its new key, which names nothing: a binding of no octets to no
    /// region.
    ///
    /// # Errors
    /// As [`bind_mw`](Self::bind_mw).
    pub fn unbind_mw(&self, mw: &Mw, wr_id: u64, signaled: bool) -> Result<u32, PostFailure> {
        self.rebind(mw, (0, 0, 0, Access::empty()), false, (wr_id, signaled))
    }

    fn rebind(
        &self,
        mw: &Mw,
        to: (u32, u64, u64, Access),
        zero_based: bool,
        completion: (u64, bool),
    ) -> Result<u32, PostFailure> {
        let post = |wqe| self.shared.post(std::iter::once(Ok(wqe)));
        rebind(mw, to, zero_based, completion, post)
    }
}

/// Windows of type 1 on reliable datagrams.
impl RcRdQp {
    /// Binds a window of type 1, as [`RcQp::bind_mw`].
    ///
    /// # Errors
    /// [`PostFailure`], as [`post_send`](Self::post_send); the window keeps its key.
    pub fn bind_mw(&self, mw: &Mw, bind: &MwBind<'_>) -> Result<u32, PostFailure> {
        let to = (bind.mr.lkey(), bind.addr, bind.length, bind.access);
        let completion = (bind.wr_id, bind.signaled);
        rebind(mw, to, bind.zero_based, completion, |wqe| {
            self.post_work(wqe)
        })
    }

    /// Closes a window of type 1, as [`RcQp::unbind_mw`].
    ///
    /// # Errors
    /// As [`bind_mw`](Self::bind_mw).
    pub fn unbind_mw(&self, mw: &Mw, wr_id: u64, signaled: bool) -> Result<u32, PostFailure> {
        let to = (0, 0, 0, Access::empty());
        rebind(mw, to, false, (wr_id, signaled), |wqe| self.post_work(wqe))
    }
}

/// Posts the binding of a window of type 1.
fn rebind(
    mw: &Mw,
    (lkey, addr, length, access): (u32, u64, u64, Access),
    zero_based: bool,
    (wr_id, signaled): (u64, bool),
    post: impl FnOnce(RcSendWqe) -> Result<(), PostFailure>,
) -> Result<u32, PostFailure> {
    mw.rebind(|rkey| {
        let work = MemoryWork::BindMw(Bind {
            kind: MwType::One,
            rkey,
            lkey,
            addr,
            length,
            access,
            zero_based,
        });
        post(RcSendWqe {
            wr_id,
            work: RcWork::Memory(work),
            data: RcData::Sges(SgeList::new()),
            length: 0,
            signaled,
            solicited: false,
            fence: false,
            remote_srqn: 0,
        })
    })
}

/// A region that work requests register (fast registration, `ib_alloc_mr` of the kernel's verbs). It is made once, given memory with
/// [`map`](Self::map), registered by a posted [`RcOperation::RegisterMr`](crate::RcOperation::RegisterMr) and invalidated by [`RcOperation::LocalInvalidate`](crate::RcOperation::LocalInvalidate), or a peer's Send with Invalidate if
/// it was registered with [`Access::REMOTE_INVALIDATE`]; then it may be mapped anew. Dropping it ends it in whatever state.
#[derive(Debug)]
pub struct FastMr {
    pd: Pd,
    first: Keys,
    max_len: usize,
}

impl FastMr {
    pub(crate) fn alloc(pd: &Pd, max_len: usize) -> Self {
        Self {
            first: pd.rnic.shared.mrs.alloc_fast(pd.id),
            pd: pd.clone(),
            max_len,
        }
    }

    /// The key that it was made with. Each registration may have another one with the same upper 24 bits ([`next_rkey`]).
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.first.rkey
    }

    /// The local key that belongs to a remote key of this region.
    #[must_use]
    pub fn lkey(&self, rkey: u32) -> u32 {
        self.first.lkey & !0xff | rkey & 0xff
    }

    /// A scatter/gather element for octets of the region, registered with `rkey`.
    #[must_use]
    pub fn sge(&self, rkey: u32, addr: u64, length: u32) -> Sge {
        Sge {
            addr,
            length,
            lkey: self.lkey(rkey),
        }
    }

    /// Most octets that it takes.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Gives memory to the next registration, addressed from `iova` on. One registration takes it; memory that is registered already stays as
    /// it is.
    ///
    /// # Errors
    /// [`Error::Limit`] if the memory is longer than [`max_len`](Self::max_len), or its last address would wrap.
    pub fn map(&self, region: Region, iova: u64) -> Result<(), Error> {
        let room = usize::try_from(u64::MAX - iova).unwrap_or(usize::MAX);
        let max = self.max_len.min(room);
        Error::check_limit("region length", region.len(), 0, max)?;
        self.pd.rnic.shared.mrs.map(self.first.rkey, region, iova);
        Ok(())
    }
}

impl Drop for FastMr {
    fn drop(&mut self) {
        self.pd.rnic.shared.mrs.dealloc_fast(self.first.rkey);
    }
}

/// Windows and fast registrations of a protection domain.
impl Pd {
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
}
