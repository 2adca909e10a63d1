//! Address handles.

use crate::abi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};
use crate::device::context;
use crate::device::context::Context;
use crate::device::gid::{GidTable, from_gid, to_gid};
use crate::ffi::{Facade, Object, errno, errno_value, load, minus_one, pointer, store};
use crate::mem::mr::{Pd, context_of, domain};
use dgiwarp::AddressHandle;
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes in front of every received UD message.
pub(crate) const GRH_LEN: usize = size_of::<ibv_grh>();

/// Address of a peer or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) address: IpAddr,
    /// Interface index of link-local addresses and groups, else 0.
    pub(crate) scope: u32,
    /// Source address; `None` leaves the choice to the kernel.
    source: Option<IpAddr>,
}

/// An address handle.
pub(crate) struct Ah {
    pub(crate) handle: AddressHandle,
    pub(crate) pd: Arc<Pd>,
}

impl Facade for Ah {
    type C = ibv_ah;
    const TAG: u32 = 0x6470_6861;
}

/// Resolves the attributes of an address handle.
///
/// A GID is an IP address. A LID is an address in the port's own /16: programs without GIDs exchange LIDs.
fn resolve(attr: &ibv_ah_attr, gids: &GidTable) -> Result<Destination, Errno> {
    if attr.port_num != 1 {
        return Err(Errno::EINVAL);
    }
    if attr.is_global == 0 {
        let address = gids.resolve_lid(attr.dlid).ok_or(Errno::EINVAL)?;
        return Ok(Destination {
            address,
            scope: 0,
            source: None,
        });
    }
    let source = gids.get(attr.grh.sgid_index.into()).ok_or(Errno::EINVAL)?;
    let address = from_gid(attr.grh.dgid);
    if address.is_unspecified() {
        return Err(Errno::EINVAL);
    }
    let scope = match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => source.ifindex,
        IpAddr::V4(_) | IpAddr::V6(_) => 0,
    };
    let source = Some(source.address).filter(|source| source.is_ipv4() == address.is_ipv4());
    Ok(Destination {
        address,
        scope,
        source,
    })
}

/// Address of the peer of a reliable connected queue pair, and our address that the peer has: that of the source GID,
/// or of the port's LID.
pub(crate) fn ends(context: &Context, attr: &ibv_ah_attr) -> Result<(Destination, IpAddr), Errno> {
    context.with_gids(|gids| {
        let to = resolve(attr, gids)?;
        let source = to.source.or_else(|| gids.lid_address().map(IpAddr::V4));
        Ok((to, source.ok_or(Errno::EINVAL)?))
    })
}

/// The address handle for attributes.
pub(crate) fn handle(
    context: &Context,
    domain: &Pd,
    attr: &ibv_ah_attr,
) -> Result<AddressHandle, Errno> {
    let to = context.with_gids(|gids| resolve(attr, gids))?;
    let handle = domain.pd.create_ah_from(to.address, to.scope, to.source);
    let handle = handle.map_err(errno::of)?;
    // The hop limit applies to groups only, whose default does not pass routers.
    match attr.grh.hop_limit {
        1.. if attr.is_global != 0 && handle.is_group() => {
            Ok(handle.with_hop_limit(attr.grh.hop_limit))
        }
        _ => Ok(handle),
    }
}

pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        // SAFETY: as above.
        let context = unsafe { context_of(pd) }?;
        // SAFETY: the program passes valid attributes.
        let attr = unsafe { load(attr) }?;
        let handle = handle(context, &domain, &attr)?;
        Ok(Object::create(
            ibv_ah {
                // SAFETY: as above; this field never changes.
                context: unsafe { (*pd).context },
                pd,
                handle: 0,
            },
            Ah { handle, pd: domain },
        ))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the program passes a live address handle and does not use it any more.
    errno_value(|| unsafe { Object::<Ah>::release(ah) }.map(drop))
}

/// Source and destination in the 40 bytes in front of a received message: an IPv6 header, or 20 unused bytes and an
/// IPv4 header. The version fields differ.
fn grh_addresses(grh: &[u8; GRH_LEN]) -> Result<(IpAddr, IpAddr), Errno> {
    let v4 = |at: usize| {
        Some(IpAddr::from(
            <[u8; 4]>::try_from(grh.get(at..at + 4)?).ok()?,
        ))
    };
    let v6 = |at: usize| {
        Some(IpAddr::from(
            <[u8; 16]>::try_from(grh.get(at..at + 16)?).ok()?,
        ))
    };
    let found = match (grh[0] >> 4, grh[20]) {
        (6, _) => v6(8).zip(v6(24)),
        (_, 0x45) => v4(32).zip(v4(36)),
        (_, _) => None,
    };
    found.ok_or(Errno::EINVAL)
}

/// Attributes of an address handle for the sender of a message.
fn reply_attr(wc: &ibv_wc, grh: &[u8; GRH_LEN], gids: &GidTable) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: 1,
        ..Default::default()
    };
    if wc.wc_flags & IBV_WC_GRH != 0 {
        let (source, destination) = grh_addresses(grh)?;
        let index = gids
            .iter()
            .find(|(_, gid)| gid.address == destination)
            // Every address of 127.0.0.0/8 is this host's, and one of them has a GID.
            .or_else(|| {
                let mut gids = gids.iter();
                gids.find(|(_, gid)| destination.is_loopback() && gid.address.is_loopback())
            })
            .map(|(index, _)| index);
        let sgid_index = u8::try_from(index.ok_or(Errno::EINVAL)?).map_err(|_| Errno::EINVAL)?;
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: to_gid(source),
            flow_label: 0,
            sgid_index,
            hop_limit: 0xff,
            traffic_class: 0,
        };
    }
    Ok(attr)
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { context::state(context) }?;
        context.expect_port(port.into())?;
        // SAFETY: the program passes a completion.
        let wc = unsafe { load(wc) }?;
        // SAFETY: and the 40 bytes in front of the datagram, anywhere in a buffer: bytes need no alignment.
        let grh = unsafe { load(grh.cast::<[u8; GRH_LEN]>()) }?;
        let reply = context.with_gids(|gids| reply_attr(&wc, &grh, gids))?;
        // SAFETY: and room for the result.
        unsafe { store(attr, reply) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        unsafe { domain(pd) }?;
        // SAFETY: its first field never changes.
        let context = unsafe { (*pd).context };
        // SAFETY: the pointers are the program's, as that function wants them.
        let status = unsafe { ibv_init_ah_from_wc(context, port, wc, grh, &raw mut attr) };
        if status != 0 {
            return Err(Errno::last());
        }
        // SAFETY: a live protection domain and attributes of ours.
        Ok(unsafe { ibv_create_ah(pd, &raw mut attr) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gid::Gid;

    fn table() -> GidTable {
        let gid = |address: &str, ifindex, loopback| Gid {
            address: address.parse().unwrap(),
            ifindex,
            interface: String::new(),
            loopback,
        };
        let mut table = GidTable::new();
        table.update(vec![
            gid("192.0.2.2", 2, false),
            gid("fe80::2", 2, false),
            gid("127.0.0.1", 1, true),
        ]);
        table
    }

    fn global(address: &str, sgid_index: u8) -> ibv_ah_attr {
        let dgid = to_gid(address.parse().unwrap());
        let grh = ibv_global_route {
            dgid,
            sgid_index,
            ..Default::default()
        };
        ibv_ah_attr {
            grh,
            is_global: 1,
            port_num: 1,
            ..Default::default()
        }
    }

    fn destination(address: &str, scope: u32, source: Option<&str>) -> Result<Destination, Errno> {
        let source = source.map(|source| source.parse().unwrap());
        Ok(Destination {
            address: address.parse().unwrap(),
            scope,
            source,
        })
    }

    #[test]
    fn gids_lead_to_their_address_and_link_local_ones_through_the_source_interface() {
        assert_eq!(
            resolve(&global("198.51.100.7", 0), &table()),
            destination("198.51.100.7", 0, Some("192.0.2.2"))
        );
        assert_eq!(
            resolve(&global("fe80::9", 1), &table()),
            destination("fe80::9", 2, Some("fe80::2"))
        );
        assert_eq!(
            resolve(&global("fd00::9", 0), &table()),
            destination("fd00::9", 0, None)
        );
    }

    #[test]
    fn lids_lead_into_the_ports_own_sixteen_bit_prefix() {
        let attr = ibv_ah_attr {
            dlid: 0x0309,
            port_num: 1,
            ..Default::default()
        };
        assert_eq!(resolve(&attr, &table()), destination("192.0.3.9", 0, None));
    }

    #[test]
    fn attributes_that_lead_nowhere_are_refused() {
        let no_lid = ibv_ah_attr {
            port_num: 1,
            ..Default::default()
        };
        let no_port = ibv_ah_attr {
            port_num: 2,
            ..global("192.0.2.3", 0)
        };
        for attr in [no_lid, no_port, global("::", 0), global("192.0.2.3", 3)] {
            assert_eq!(resolve(&attr, &table()), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn a_group_is_reached_through_the_interface_of_the_source() {
        assert_eq!(
            resolve(&global("239.1.2.3", 0), &table()),
            destination("239.1.2.3", 0, Some("192.0.2.2"))
        );
    }

    #[test]
    fn both_forms_of_the_header_lead_back_to_the_sender() {
        let wc = ibv_wc {
            wc_flags: IBV_WC_GRH,
            ..Default::default()
        };
        let mut grh = [0; GRH_LEN];
        grh[20] = 0x45;
        grh[32..36].copy_from_slice(&[198, 51, 100, 7]);
        grh[36..40].copy_from_slice(&[127, 0, 0, 1]);
        let attr = reply_attr(&wc, &grh, &table()).unwrap();
        assert_eq!((attr.is_global, attr.grh.sgid_index), (1, 2));
        assert_eq!(
            resolve(&attr, &table()),
            destination("198.51.100.7", 0, Some("127.0.0.1"))
        );

        grh[36..40].copy_from_slice(&[127, 0, 0, 9]);
        let attr = reply_attr(&wc, &grh, &table()).unwrap();
        assert_eq!(attr.grh.sgid_index, 2, "its interface");

        let mut grh = [0; GRH_LEN];
        grh[0] = 0x60;
        grh[8..24].copy_from_slice(&to_gid("fe80::7".parse().unwrap()).raw);
        grh[24..40].copy_from_slice(&to_gid("fe80::2".parse().unwrap()).raw);
        let attr = reply_attr(&wc, &grh, &table()).unwrap();
        assert_eq!(
            resolve(&attr, &table()),
            destination("fe80::7", 2, Some("fe80::2"))
        );

        assert_eq!(
            reply_attr(&wc, &[0; GRH_LEN], &table()).err(),
            Some(Errno::EINVAL)
        );
    }

    #[test]
    fn without_a_header_the_lid_leads_back() {
        let wc = ibv_wc {
            slid: 0x0203,
            ..Default::default()
        };
        let attr = reply_attr(&wc, &[0; GRH_LEN], &table()).unwrap();
        assert_eq!(resolve(&attr, &table()), destination("192.0.2.3", 0, None));
    }
}
