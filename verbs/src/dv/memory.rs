//! Regions with restrictions, and address validation for them.

use super::sized::load_sized;
use crate::abi::{
    DGIWARPDV_MR_COOKIE, DGIWARPDV_MR_IOVA, DGIWARPDV_MR_ONLY_FROM, DGIWARPDV_MR_WELL_KNOWN,
    Milliseconds, dgiwarpdv_mr_init_attr, ibv_ah, ibv_mr, ibv_pd, ibv_qp,
};
use crate::device::gid::from_gid;
use crate::ffi::{Object, errno, pointer};
use crate::mem::mr::register;
use crate::post::send::address;
use crate::qp::ah::Ah;
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::{Access, MrOptions};
use nix::errno::Errno;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

// SAFETY: integers and pointers, for which zero is a valid value.
const FRESH: dgiwarpdv_mr_init_attr = unsafe { std::mem::zeroed() };

/// The peer that a region is restricted to.
fn peer(attr: &dgiwarpdv_mr_init_attr) -> Result<SocketAddr, Errno> {
    let port = u16::try_from(attr.peer_qpn).map_err(|_| Errno::EINVAL)?;
    let address = from_gid(attr.peer_gid);
    if address.is_unspecified() || address.is_multicast() || port == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(match address {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, attr.peer_scope_id).into(),
    })
}

/// Restrictions of the attributes; the rest are parameters of `register`.
fn options(attr: &dgiwarpdv_mr_init_attr) -> Result<MrOptions, Errno> {
    const KNOWN: u32 =
        DGIWARPDV_MR_IOVA | DGIWARPDV_MR_ONLY_FROM | DGIWARPDV_MR_COOKIE | DGIWARPDV_MR_WELL_KNOWN;
    if attr.flags & !KNOWN != 0 || attr.reserved != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let has = |flag| attr.flags & flag != 0;
    let only_from = if has(DGIWARPDV_MR_ONLY_FROM) {
        Some(peer(attr)?)
    } else {
        None
    };
    Ok(MrOptions {
        only_from,
        cookie: has(DGIWARPDV_MR_COOKIE),
        well_known: has(DGIWARPDV_MR_WELL_KNOWN).then_some(attr.well_known),
        ..MrOptions::new(Access::empty())
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_reg_mr(
    pd: *mut ibv_pd,
    attr: *const dgiwarpdv_mr_init_attr,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes attributes of the size in their first field.
        let attr = unsafe { load_sized(attr, FRESH) }?;
        let iova = if attr.flags & DGIWARPDV_MR_IOVA == 0 {
            attr.addr.addr() as u64
        } else {
            attr.iova
        };
        let (memory, options) = ((attr.addr, attr.length), options(&attr)?);
        // SAFETY: the contract is that of `ibv_reg_mr(3)`.
        unsafe { register(pd, memory, iova, attr.access, options) }
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_prove_address(
    qp: *mut ibv_qp,
    ah: *mut ibv_ah,
    qpn: u32,
    timeout: Milliseconds,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { queue_pair::state(qp) }?;
        // SAFETY: and a live address handle.
        let old = unsafe { Object::<Ah>::state(ah) }?;
        let Transport::Ud(ud) = &state.qp else {
            return Err(Errno::EOPNOTSUPP);
        };
        let to = address(state, old, qpn, 0)?;
        let timeout = Duration::from_millis(u64::try_from(timeout).map_err(|_| Errno::EINVAL)?);
        let proved = ud.prove_address(&to, timeout);
        let proved = proved.map_err(errno::of)?;
        // SAFETY: a live address handle; these fields never change.
        let face = unsafe { ptr::read(ah) };
        let made = Ah {
            handle: proved.ah,
            pd: Arc::clone(&old.pd),
        };
        Ok(Object::create(face, made))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gid::to_gid;

    #[test]
    fn what_nobody_knows_is_refused() {
        let attr = |flags| dgiwarpdv_mr_init_attr { flags, ..FRESH };
        assert_eq!(options(&attr(1 << 9)), Err(Errno::EOPNOTSUPP));
        assert_eq!(options(&attr(DGIWARPDV_MR_ONLY_FROM)), Err(Errno::EINVAL));
        let open = options(&attr(0)).unwrap();
        assert_eq!(open, MrOptions::new(Access::empty()));
    }

    #[test]
    fn the_peer_is_an_address_and_a_port() {
        let attr = dgiwarpdv_mr_init_attr {
            flags: DGIWARPDV_MR_ONLY_FROM,
            peer_gid: to_gid("192.0.2.1".parse().unwrap()),
            peer_qpn: 7,
            ..FRESH
        };
        let from = options(&attr).unwrap().only_from;
        assert_eq!(from, Some("192.0.2.1:7".parse().unwrap()));
        let elsewhere = dgiwarpdv_mr_init_attr {
            peer_qpn: 65_536,
            ..attr
        };
        assert_eq!(options(&elsewhere), Err(Errno::EINVAL));
    }
}
