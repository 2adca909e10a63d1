//! SRD queue pairs: reliable datagram queue pairs.

use super::sized::load_attr;
use crate::abi::{
    EFADV_QP_DRIVER_TYPE_SRD, IBV_QP_INIT_ATTR_PD, IBV_QPT_DRIVER, efadv_qp_init_attr, ibv_context,
    ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::device::context;
use crate::ffi::{load, pointer};
use crate::qp::create::create_extended;
use crate::qp::datagram_attr::{DatagramAttr, ReliableAttr};
use crate::qp::rc_transport;
use nix::errno::Errno;

/// Attributes of an SRD queue pair, whose `qp_type` has to be that of drivers.
fn srd(qp_type: u32, driver_qp_type: u32) -> Result<DatagramAttr, Errno> {
    if qp_type != IBV_QPT_DRIVER {
        return Err(Errno::EINVAL);
    }
    if driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(DatagramAttr {
        reliable: Some(ReliableAttr { unreachable: None }),
        ..DatagramAttr::default()
    })
}

pub(super) unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    efa: *const efadv_qp_init_attr,
    inlen: u32,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes an open context.
        unsafe { context::state(context) }?;
        // SAFETY: and `inlen` bytes of attributes.
        let attr = unsafe { load_attr(efa, inlen) }?;
        if attr.comp_mask != 0 || attr.reserved != [0; 4] {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the struct begins with the plain one.
        let plain = unsafe { load(init.cast::<ibv_qp_init_attr>()) }?;
        let datagram = srd(plain.qp_type, attr.driver_qp_type)?;
        // SAFETY: the contract is that of `ibv_create_qp_ex(3)`.
        unsafe { create_extended(init, (&datagram, rc_transport::present())) }
    })
}

pub(super) unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    driver_qp_type: u32,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes valid attributes.
        let plain = unsafe { load(init) }?;
        let datagram = srd(plain.qp_type, driver_qp_type)?;
        // SAFETY: integers and raw pointers, for which zero is a valid value.
        let mut extended: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        // SAFETY: the extended struct begins with the plain one.
        unsafe { (&raw mut extended).cast::<ibv_qp_init_attr>().write(plain) };
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        // SAFETY: the program passes a live protection domain; the pointers in the attributes are live objects.
        let qp =
            unsafe { create_extended(&raw mut extended, (&datagram, rc_transport::present())) }?;
        // SAFETY: `ibv_create_qp(3)` writes the sizes granted into the program's struct.
        unsafe { (*init).cap = extended.cap };
        Ok(qp)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_QPT_UD;

    #[test]
    fn only_srd_is_a_type_of_drivers() {
        assert!(
            srd(IBV_QPT_DRIVER, EFADV_QP_DRIVER_TYPE_SRD).is_ok_and(|attr| attr.reliable.is_some())
        );
        assert_eq!(
            srd(IBV_QPT_UD, EFADV_QP_DRIVER_TYPE_SRD),
            Err(Errno::EINVAL)
        );
        assert_eq!(srd(IBV_QPT_DRIVER, 1), Err(Errno::EOPNOTSUPP));
    }
}
