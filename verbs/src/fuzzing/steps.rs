//! Steps of a program that change, query, create and destroy objects.

use std::ffi::c_int;
use std::ptr;

use arbitrary::{Result, Unstructured};
use nix::errno::Errno;

use super::scene::{DEPTH, REGIONS, Scene, documented, mask_of, number};
use crate::abi::*;
use crate::cq::queue;
use crate::mem::{mr, mw, rereg_mr};
use crate::post::bind_mw;
use crate::qp::{create, mcast, queue_pair, srq};

/// Objects of one kind that a scene has at most.
const MOST: usize = 6;

impl Scene {
    /// `ibv_modify_qp` with nearly valid attributes.
    pub(super) fn change_state(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp = self.queue_pair(u)?;
        let state = u.int_in_range(0..=8)?;
        let peer = if u.ratio(3u8, 4u8)? {
            number(qp)
        } else {
            u.arbitrary()?
        };
        let (mut attr, _) = self.transition(state, peer);
        // SAFETY: a live queue pair; its kind never changes.
        let kind = unsafe { (*qp).qp_type };
        let mut mask = mask_of(kind, state);
        if u.ratio(1u8, 4u8)? {
            mask ^= 1 << u.int_in_range(0..=21)?;
        }
        if u.ratio(1u8, 4u8)? {
            attr.ah_attr.grh.sgid_index = u.arbitrary()?;
            attr.path_mtu = u.arbitrary()?;
            attr.port_num = u.arbitrary()?;
            attr.qp_access_flags = u.arbitrary()?;
            attr.max_rd_atomic = u.arbitrary()?;
        }
        // SAFETY: a live queue pair and attributes.
        documented(unsafe { queue_pair::ibv_modify_qp(qp, &raw mut attr, mask) });
        Ok(())
    }

    /// Allocates, binds or deallocates a window.
    pub(super) fn window(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=3u8)? {
            0 if self.mws.len() < MOST => {
                // SAFETY: a live domain.
                let mw = unsafe { mw::alloc_mw(self.pd, u.int_in_range(0..=3)?) };
                if mw.is_null() {
                    documented(Errno::last_raw());
                } else {
                    self.mws.push(mw);
                }
            }
            1 if !self.mws.is_empty() => {
                let mw = self.mws.swap_remove(u.choose_index(self.mws.len())?);
                // SAFETY: a live window, not used any more.
                documented(unsafe { mw::dealloc_mw(mw) });
            }
            _ => {
                let (qp, mw) = (self.queue_pair(u)?, Self::one_of(u, &self.mws)?);
                let mut bind = ibv_mw_bind {
                    wr_id: u.arbitrary()?,
                    send_flags: u.arbitrary()?,
                    bind_info: self.binding(u)?,
                };
                // SAFETY: a live queue pair, a live window or NULL, and a description that names a live region or none.
                documented(unsafe { bind_mw::bind_mw(qp, mw, &raw mut bind) });
            }
        }
        Ok(())
    }

    /// Registers, reregisters or deregisters a region.
    pub(super) fn region(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let index = u.choose_index(REGIONS.len())?;
        let (offset, length, access) = REGIONS[index];
        match u.int_in_range(0..=2u8)? {
            0 if self.mrs.len() < MOST => {
                let length = usize::from(u.arbitrary::<u16>()?) % length + 1;
                let access = access & u32::from(u.arbitrary::<u8>()?);
                self.register(offset, length, access);
            }
            1 if !self.mrs.is_empty() => {
                let index = u.choose_index(self.mrs.len())?;
                let mr = self.mrs[index];
                // SAFETY: a live region.
                let answer = unsafe { mr::ibv_dereg_mr(mr) };
                documented(answer);
                // A region with bound windows stays.
                if answer == 0 {
                    self.mrs.swap_remove(index);
                }
            }
            _ => {
                let mr = Self::one_of(u, &self.mrs)?;
                if !mr.is_null() {
                    // SAFETY: a live region whose domain and place stay.
                    let answer = unsafe {
                        rereg_mr::ibv_rereg_mr(
                            mr,
                            IBV_REREG_MR_CHANGE_ACCESS,
                            ptr::null_mut(),
                            ptr::null_mut(),
                            0,
                            (access & u32::from(u.arbitrary::<u8>()?)).cast_signed(),
                        )
                    };
                    // Positive codes report a changed region (ibv_rereg_mr(3)).
                    assert!((-4..=4).contains(&answer) || answer > 0, "{answer}");
                }
            }
        }
        Ok(())
    }

    /// Rare calls.
    pub(super) fn other(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=6u8)? {
            0 if self.ahs.len() < MOST => {
                let mut attr = self.route();
                attr.grh.sgid_index = u.arbitrary()?;
                attr.is_global = u.arbitrary()?;
                attr.grh.dgid.raw[15] = u.arbitrary()?;
                self.handle(&attr);
            }
            1 => {
                let cqe = c_int::from(u.arbitrary::<i16>()?);
                // SAFETY: a live queue.
                documented(unsafe { queue::ibv_resize_cq(self.cqs[0], cqe) });
            }
            2 => {
                let mut attr = ibv_srq_attr {
                    max_wr: u.arbitrary()?,
                    max_sge: 3,
                    srq_limit: u32::from(u.arbitrary::<u8>()?),
                };
                let mask = u.int_in_range(0..=3)?;
                // SAFETY: a live queue and attributes.
                documented(unsafe { srq::ibv_modify_srq(self.srq, &raw mut attr, mask) });
            }
            3 => self.query(u)?,
            4 => {
                let qp = self.queue_pair(u)?;
                let mut gid = self.gid.1;
                gid.raw[12] = u.arbitrary()?;
                // SAFETY: a live queue pair and a GID.
                documented(unsafe { mcast::ibv_attach_mcast(qp, &raw const gid, 0) });
            }
            _ => self.create_another(u)?,
        }
        Ok(())
    }

    fn query(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp = self.queue_pair(u)?;
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        // SAFETY: a live queue pair, and room for both answers.
        let answer =
            unsafe { queue_pair::ibv_query_qp(qp, &raw mut attr, c_int::MAX, &raw mut init) };
        assert_eq!(answer, 0);
        assert!(attr.qp_state <= 6 && init.cap.max_send_wr >= DEPTH);
        Ok(())
    }

    /// Creates and destroys a queue pair with arbitrary sizes.
    fn create_another(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let size = |u: &mut Unstructured<'_>| {
            let small = u32::from(u.arbitrary::<u8>()?);
            Ok(if u.ratio(1u8, 8u8)? {
                u.arbitrary()?
            } else {
                small
            })
        };
        let cap = ibv_qp_cap {
            max_send_wr: size(u)?,
            max_recv_wr: size(u)?,
            max_send_sge: size(u)?,
            max_recv_sge: size(u)?,
            max_inline_data: size(u)?,
        };
        let mut attr = self.attributes(u.int_in_range(0..=9)?, cap, u.arbitrary()?);
        attr.create_flags = u32::from(u.arbitrary::<u8>()?);
        attr.comp_mask ^= u.arbitrary::<u32>()? & IBV_QP_INIT_ATTR_CREATE_FLAGS;
        // SAFETY: an open context, and attributes that name live objects.
        let qp = unsafe { create::create_qp_ex(self.context, &raw mut attr) };
        if qp.is_null() {
            documented(Errno::last_raw());
        } else {
            // SAFETY: a live queue pair, not used any more.
            assert_eq!(unsafe { queue_pair::ibv_destroy_qp(qp) }, 0);
        }
        Ok(())
    }
}
