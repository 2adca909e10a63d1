//! `ibv_bind_mw(3)`.

use crate::abi::{IBV_SEND_FENCE, IBV_SEND_SIGNALED, ibv_mw, ibv_mw_bind, ibv_qp};
use crate::ffi::{Object, errno, errno_value, load};
use crate::mem::mr::Mr;
use crate::mem::mw::{Window, rights};
use crate::qp::queue_pair::{self, Transport};
use crate::qp::state::QpState;
use dgiwarp::MwBind;
use nix::errno::Errno;
use std::ffi::c_int;

/// `ibv_bind_mw`, for windows of type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { queue_pair::state(qp) }?;
        // SAFETY: and a live window.
        let window = unsafe { Object::<Window>::state(mw) }?;
        // SAFETY: and a description of the binding.
        let bind = unsafe { load(bind) }?;
        // ibv_bind_mw(3) allows UC too; windows over datagrams are not supported.
        if !matches!(state.qp, Transport::Rc(_) | Transport::RcRd(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = bind.send_flags & !IBV_SEND_FENCE;
        if flags & !IBV_SEND_SIGNALED != 0
            || !state.state().takes_sends()
            || state.state() == QpState::Error
        {
            return Err(Errno::EINVAL);
        }
        let signaled = state.signal_all || flags & IBV_SEND_SIGNALED != 0;
        let info = bind.bind_info;
        let (access, zero_based) = rights(info.mw_access_flags)?;
        let posted = if info.mr.is_null() || info.length == 0 {
            match &state.qp {
                Transport::Rc(rc) => rc.unbind_mw(&window.mw, bind.wr_id, signaled),
                Transport::RcRd(rc) => rc.unbind_mw(&window.mw, bind.wr_id, signaled),
                Transport::Ud(_)
                | Transport::Uc(_)
                | Transport::Rd(_)
                | Transport::XrcTarget(_) => return Err(Errno::EOPNOTSUPP),
            }
        } else {
            // SAFETY: not NULL, so a live region.
            unsafe { Object::<Mr>::state(info.mr) }?.with(|mr| {
                let binding = MwBind {
                    wr_id: bind.wr_id,
                    mr,
                    addr: info.addr,
                    length: info.length,
                    access,
                    zero_based,
                    signaled,
                };
                match &state.qp {
                    Transport::Rc(rc) => Ok(rc.bind_mw(&window.mw, &binding)),
                    Transport::RcRd(rc) => Ok(rc.bind_mw(&window.mw, &binding)),
                    Transport::Ud(_)
                    | Transport::Uc(_)
                    | Transport::Rd(_)
                    | Transport::XrcTarget(_) => Err(Errno::EOPNOTSUPP),
                }
            })??
        };
        let rkey = posted.map_err(errno::of_post_failure)?;
        // SAFETY: a live window; ibv_bind_mw(3) has the new key in this field.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    })
}
