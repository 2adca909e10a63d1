//! Objects of a program, each live until the end or until a step destroys it.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use arbitrary::{Result, Unstructured};
use dgiwarp::MAX_SGE;
use nix::errno::Errno;

use crate::abi::*;
use crate::cq::queue;
use crate::device::{list, open, query};
use crate::ffi::CPointer;
use crate::mem::{mr, mw};
use crate::qp::{ah, create, queue_pair, srq};

/// Octets of the program's memory.
const MEMORY: usize = 8192;
/// Offset, length and access flags of two regions: one with all rights, one with local rights.
pub(super) const REGIONS: [(usize, usize, c_uint); 2] =
    [(1024, 4096, 0x1f), (6144, 1024, IBV_ACCESS_LOCAL_WRITE)];
const GUARD_OCTET: u8 = 0x5e;
/// Q_Key of every queue pair.
pub(super) const QKEY: u32 = 0x1111_1111;
pub(super) const DEPTH: u32 = 16;
/// Checks an errno value of a call. `EIO` is a panic, or a forked process.
#[track_caller]
pub(super) fn documented(answer: c_int) {
    let known = [
        0,
        libc::EINVAL,
        libc::ENOMEM,
        libc::EOPNOTSUPP,
        libc::EBUSY,
        libc::EPERM,
        libc::EFAULT,
        libc::ENOENT,
        libc::EADDRNOTAVAIL,
        libc::ENETUNREACH,
        libc::ENODEV,
        libc::EMFILE,
    ];
    assert!(known.contains(&answer), "{}", Errno::from_raw(answer));
}

/// The device, opened once per process.
fn open() -> *mut ibv_context {
    static CONTEXT: OnceLock<CPointer<ibv_context>> = OnceLock::new();
    let open = || {
        // SAFETY: the number of devices is not requested.
        let list = unsafe { list::ibv_get_device_list(ptr::null_mut()) };
        assert!(!list.is_null());
        // SAFETY: a list ends with NULL, so it has one entry at least.
        let first = unsafe { list.read() };
        // SAFETY: a device of the list.
        let context = unsafe { open::ibv_open_device(first) };
        assert!(!context.is_null(), "{}", Errno::last());
        // SAFETY: made above.
        unsafe { list::ibv_free_device_list(list) };
        CPointer(context)
    };
    CONTEXT.get_or_init(open).0
}

/// The index of loopback's IPv4 GID, and the GID.
fn loopback(context: *mut ibv_context) -> (u8, ibv_gid) {
    let mut wanted = ibv_gid::default();
    wanted.raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    for index in 0..=u8::MAX {
        let mut gid = ibv_gid::default();
        // SAFETY: an open context, and room for a GID.
        let answer = unsafe { query::ibv_query_gid(context, 1, index.into(), &raw mut gid) };
        if answer == 0 && gid == wanted {
            return (index, gid);
        }
    }
    panic!("loopback has no GID");
}

pub(super) struct Scene {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) cqs: [*mut ibv_cq; 2],
    pub(super) srq: *mut ibv_srq,
    /// UD, UC, RC, RC with a shared receive queue: each its own peer.
    pub(super) qps: Vec<*mut ibv_qp>,
    pub(super) mrs: Vec<*mut ibv_mr>,
    pub(super) mws: Vec<*mut ibv_mw>,
    pub(super) ahs: Vec<*mut ibv_ah>,
    /// Memory of the program, used through its address only.
    memory: Box<[u8]>,
    pub(super) gid: (u8, ibv_gid),
    /// lkey and rkey of the first region.
    keys: (u32, u32),
}

impl Scene {
    pub(super) fn new() -> Self {
        let context = open();
        // SAFETY: an open context.
        let pd = unsafe { mr::ibv_alloc_pd(context) };
        let cqs = [0; 2].map(|vector| {
            // SAFETY: an open context, no channel.
            unsafe { queue::ibv_create_cq(context, 64, ptr::null_mut(), ptr::null_mut(), vector) }
        });
        let mut attr = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: DEPTH,
                max_sge: 3,
                srq_limit: 0,
            },
        };
        // SAFETY: a live domain and attributes.
        let srq = unsafe { srq::ibv_create_srq(pd, &raw mut attr) };
        assert!(!pd.is_null() && !srq.is_null() && cqs.iter().all(|cq| !cq.is_null()));
        let mut scene = Self {
            gid: loopback(context),
            context,
            pd,
            cqs,
            srq,
            qps: Vec::new(),
            mrs: Vec::new(),
            mws: Vec::new(),
            ahs: Vec::new(),
            keys: (0, 0),
            memory: vec![GUARD_OCTET; MEMORY].into_boxed_slice(),
        };
        for (offset, length, access) in REGIONS {
            scene.register(offset, length, access);
        }
        assert_eq!(scene.mrs.len(), 2);
        // SAFETY: a live region; programs read its keys.
        let lkey = unsafe { (*scene.mrs[0]).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*scene.mrs[0]).rkey };
        scene.keys = (lkey, rkey);
        scene.handle(&scene.route());
        scene.create_queue_pairs();
        scene
    }

    /// Start of the program's memory.
    pub(super) fn base(&self) -> u64 {
        self.place() as u64
    }

    fn place(&self) -> usize {
        self.memory.as_ptr().expose_provenance()
    }

    /// An address in the memory with room for `length` octets.
    pub(super) fn inside(&self, offset: u16, length: u32) -> u64 {
        let room = MEMORY - (length as usize).min(MEMORY - 1);
        self.base() + (usize::from(offset) % room) as u64
    }

    /// An address in the region with all rights, with room for `length` octets.
    pub(super) fn registered(&self, offset: u16, length: u32) -> u64 {
        let (start, room, _) = REGIONS[0];
        let room = room - (length as usize).min(room - 1);
        self.base() + (start + usize::from(offset) % room) as u64
    }

    /// lkey of the first region, which a step may have deregistered.
    pub(super) fn whole_key(&self) -> u32 {
        self.keys.0
    }

    /// rkey of the first region.
    pub(super) fn whole_remote_key(&self) -> u32 {
        self.keys.1
    }

    pub(super) fn register(&mut self, offset: usize, length: usize, access: c_uint) {
        let addr: *mut c_void = ptr::with_exposed_provenance_mut(self.place() + offset);
        // SAFETY: a live domain; memory that is not freed before the region is deregistered.
        let mr = unsafe { mr::ibv_reg_mr(self.pd, addr, length, access.cast_signed()) };
        if mr.is_null() {
            documented(Errno::last_raw());
        } else {
            self.mrs.push(mr);
        }
    }

    pub(super) fn route(&self) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: self.gid.1,
                sgid_index: self.gid.0,
                hop_limit: 64,
                ..ibv_global_route::default()
            },
            is_global: 1,
            port_num: 1,
            ..ibv_ah_attr::default()
        }
    }

    pub(super) fn handle(&mut self, attr: &ibv_ah_attr) {
        let mut attr = *attr;
        // SAFETY: a live domain and attributes.
        let ah = unsafe { ah::ibv_create_ah(self.pd, &raw mut attr) };
        if ah.is_null() {
            documented(Errno::last_raw());
        } else {
            self.ahs.push(ah);
        }
    }

    fn create_queue_pairs(&mut self) {
        // `send_ops_flags`: Sends; Sends and Writes; everything.
        let kinds = [
            (IBV_QPT_UD, 0x0c, false),
            (IBV_QPT_UC, 0x0f, false),
            (IBV_QPT_RC, 0x3ff, false),
            (IBV_QPT_RC, 0x3ff, true),
        ];
        for (kind, operations, shared) in kinds {
            let cap = ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 3,
                max_recv_sge: 3,
                max_inline_data: 64,
            };
            let mut attr = self.attributes(kind, cap, operations);
            if shared {
                attr.srq = self.srq;
            }
            // SAFETY: an open context, and attributes that name live objects.
            let qp = unsafe { create::create_qp_ex(self.context, &raw mut attr) };
            assert!(!qp.is_null(), "{}", Errno::last());
            self.connect(qp);
            self.qps.push(qp);
        }
    }

    pub(super) fn attributes(
        &self,
        kind: c_uint,
        cap: ibv_qp_cap,
        operations: u64,
    ) -> ibv_qp_init_attr_ex {
        ibv_qp_init_attr_ex {
            qp_context: ptr::null_mut(),
            send_cq: self.cqs[0],
            recv_cq: self.cqs[1],
            srq: ptr::null_mut(),
            cap,
            qp_type: kind,
            sq_sig_all: 0,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.pd,
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: ptr::null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: operations,
        }
    }

    /// Connects a queue pair to itself.
    fn connect(&self, qp: *mut ibv_qp) {
        let own = number(qp);
        for state in [1, 2, 3] {
            let (mut attr, mask) = self.transition(state, own);
            attr.dest_qp_num = own;
            // SAFETY: a live queue pair and attributes.
            let kind = unsafe { (*qp).qp_type };
            let mask = mask_of(kind, state) & mask;
            // SAFETY: a live queue pair and attributes.
            let answer = unsafe { queue_pair::ibv_modify_qp(qp, &raw mut attr, mask) };
            assert_eq!(answer, 0, "kind {kind}, state {state}");
        }
    }

    /// Attributes of a transition, and every mask bit.
    pub(super) fn transition(&self, state: c_uint, peer: u32) -> (ibv_qp_attr, c_int) {
        let attr = ibv_qp_attr {
            qp_state: state,
            path_mtu: 3,
            qkey: QKEY,
            dest_qp_num: peer,
            qp_access_flags: 0xf,
            ah_attr: self.route(),
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..ibv_qp_attr::default()
        };
        (attr, c_int::MAX)
    }

    /// Polls completions, and may arm the queue.
    pub(super) fn poll(&self, which: u8) {
        let mut wcs = [ibv_wc::default(); 8];
        let cq = self.cqs[usize::from(which & 1)];
        let count = c_int::from(which >> 1) % 9;
        // SAFETY: a live queue, and room for so many completions.
        let found = unsafe { queue::poll_cq(cq, count, wcs.as_mut_ptr()) };
        // An overrun queue returns an error.
        assert!(found <= count, "{found} of {count}");
        if which & 0x40 != 0 {
            // SAFETY: a live queue.
            documented(unsafe { queue::req_notify_cq(cq, c_int::from(which & 1)) });
        }
    }

    pub(super) fn queue_pair(&self, u: &mut Unstructured<'_>) -> Result<*mut ibv_qp> {
        u.choose(&self.qps).copied()
    }

    /// One of these, or NULL.
    pub(super) fn one_of<T>(u: &mut Unstructured<'_>, all: &[*mut T]) -> Result<*mut T> {
        if all.is_empty() || u.ratio(1u8, 16u8)? {
            return Ok(ptr::null_mut());
        }
        u.choose(all).copied()
    }

    pub(super) fn binding(&self, u: &mut Unstructured<'_>) -> Result<ibv_mw_bind_info> {
        let addr = self.inside(u.arbitrary()?, 0);
        Ok(ibv_mw_bind_info {
            mr: Self::one_of(u, &self.mrs)?,
            addr: if u.ratio(1u8, 8u8)? {
                u.arbitrary()?
            } else {
                addr
            },
            length: u64::from(u.arbitrary::<u16>()?) % 5000,
            mw_access_flags: u32::from(u.arbitrary::<u8>()?),
        })
    }

    /// A binding of no memory.
    pub(super) fn no_binding(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: ptr::null_mut(),
            addr: self.base(),
            length: 0,
            mw_access_flags: 0,
        }
    }

    /// Destroys everything, and checks the octets outside of the regions.
    pub(super) fn destroy(self) {
        for qp in self.qps {
            // SAFETY: a live queue pair, not used any more.
            assert_eq!(unsafe { queue_pair::ibv_destroy_qp(qp) }, 0);
        }
        for mw in self.mws {
            // SAFETY: a live window, not used any more.
            assert_eq!(unsafe { mw::dealloc_mw(mw) }, 0);
        }
        for mr in self.mrs {
            // SAFETY: a live region, not used any more.
            assert_eq!(unsafe { mr::ibv_dereg_mr(mr) }, 0);
        }
        for ah in self.ahs {
            // SAFETY: a live address handle, not used any more.
            assert_eq!(unsafe { ah::ibv_destroy_ah(ah) }, 0);
        }
        // SAFETY: a live queue, not used any more.
        assert_eq!(unsafe { srq::ibv_destroy_srq(self.srq) }, 0);
        for cq in self.cqs {
            // SAFETY: a live queue, not used any more.
            assert_eq!(unsafe { queue::ibv_destroy_cq(cq) }, 0);
        }
        // SAFETY: a live domain, not used any more.
        assert_eq!(unsafe { mr::ibv_dealloc_pd(self.pd) }, 0);
        let mut from = 0;
        for (offset, length, _) in REGIONS.into_iter().chain([(MEMORY, 0, 0)]) {
            let guard = self.memory.get(from..offset).unwrap_or_default();
            assert!(guard.iter().all(|octet| *octet == GUARD_OCTET));
            from = offset + length;
        }
    }
}

/// A queue pair's number.
pub(super) fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the scene's queue pairs are alive, and their numbers never change.
    unsafe { (*qp).qp_num }
}

/// Mask of a transition to a state, by type of queue pair (`ibv_modify_qp(3)`).
pub(super) fn mask_of(kind: c_uint, state: c_uint) -> c_int {
    let (ud, rc) = (kind == IBV_QPT_UD, kind == IBV_QPT_RC);
    let when = |condition: bool, mask: c_int| if condition { mask } else { 0 };
    IBV_QP_STATE
        | match state {
            1 => {
                IBV_QP_PKEY_INDEX
                    | IBV_QP_PORT
                    | when(ud, IBV_QP_QKEY)
                    | when(!ud, IBV_QP_ACCESS_FLAGS)
            }
            2 => {
                let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
                let reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                when(!ud, connected) | when(rc, reliable)
            }
            3 => {
                let reliable =
                    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                IBV_QP_SQ_PSN | when(rc, reliable)
            }
            _ => 0,
        }
}

/// A list of the maximum length, whatever its count.
pub(super) type List = [ibv_sge; MAX_SGE];
