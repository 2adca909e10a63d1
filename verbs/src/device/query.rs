//! Queries of an open device: attributes, ports, GIDs, partition keys, clock.

use crate::abi::{
    COMPAT_PORT_ATTR_LEN, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_ROCE_V2,
    IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_port_attr, ibv_qp, ibv_query_device_ex_input, ibv_values_ex,
};
use crate::device::context::{expect_any, refresh_gids, state};
use crate::device::device_attr;
use crate::device::gid::{Gid, GidTable};
use crate::ffi::{errno_value, load, minus_one, store, store_prefix};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};

/// The default partition key, full membership; there is no other.
const DEFAULT_PKEY: u16 = 0xffff;

/// Whether the device recognizes dgiwarp peers.
///
/// # Safety
/// `context` is NULL or an open context.
unsafe fn has_hello(context: *mut ibv_context) -> bool {
    // SAFETY: the caller's contract is the same.
    unsafe { state(context) }.map_or(true, |context| context.rnic.config().rc.hello)
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        unsafe { expect_any(context) }?;
        // SAFETY: as above.
        let has_hello = unsafe { has_hello(context) };
        // SAFETY: and room for the result.
        unsafe { store(attr, device_attr::device_attr(has_hello)) }
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        unsafe { expect_any(context) }?;
        // SAFETY: NULL or a valid struct.
        let wants_more = unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0);
        if wants_more || size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as above.
        let has_hello = unsafe { has_hello(context) };
        let attrs = device_attr::device_attr_ex(has_hello);
        // SAFETY: the program provides `size` bytes.
        unsafe { store_prefix(attr.cast(), &attrs, size) }
    })
}

/// `ibv_query_rt_values_ex`: the clock of completion timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let state = unsafe { state(context) }?;
        // SAFETY: and values with a mask of requested fields.
        let wanted = unsafe { load(values) }?.comp_mask;
        let time = state.rnic.time();
        let answer = ibv_values_ex {
            comp_mask: wanted & IBV_VALUES_MASK_RAW_CLOCK,
            raw_clock: libc::timespec {
                tv_sec: libc::time_t::try_from(time.as_secs()).map_err(|_| Errno::EOVERFLOW)?,
                tv_nsec: time.subsec_nanos().into(),
            },
        };
        // SAFETY: the program passes room for the answer.
        unsafe { store(values, answer) }
    })
}

pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as for `query_port`. Callers of the exported name have the old, shorter struct.
    unsafe { query_port(context, port, attr, COMPAT_PORT_ATTR_LEN) }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { state(context) }?;
        context.expect_port(port.into())?;
        refresh_gids()?;
        let facts = context.with_gids(device_attr::port_attr);
        // SAFETY: the program provides `size` bytes.
        unsafe { store_prefix(attr.cast(), &facts, size) }
    })
}

fn entry_of(index: usize, gid: &Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid.raw(),
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: gid.ifindex,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { state(context) }?;
        context.expect_port(port.into())?;
        let index = usize::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = context.with_gids(|gids| {
            if index < gids.len() {
                Ok(gids.get(index).map_or_else(ibv_gid::default, Gid::raw))
            } else {
                Err(Errno::EINVAL)
            }
        })?;
        // SAFETY: the program passes room for the result.
        unsafe { store(gid, found) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { state(context) }?;
        context.expect_port(port)?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let index = usize::try_from(index).map_err(|_| Errno::EINVAL)?;
        // As in the kernel, an empty slot is ENODATA.
        let found = context
            .with_gids(|gids| gids.get(index).map(|gid| entry_of(index, gid)))
            .ok_or(Errno::ENODATA)?;
        // SAFETY: the program provides `size` bytes.
        unsafe { store_prefix(entry.cast(), &found, size) }
    })
}

/// Returns the number of entries written, or a negative errno value.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut written = 0_usize;
    let status = errno_value(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { state(context) }?;
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(Errno::EINVAL);
        }
        let found: Vec<_> = context.with_gids(|gids| {
            gids.iter()
                .map(|(index, gid)| entry_of(index, gid))
                .collect()
        });
        // As in the kernel, the whole table or nothing.
        if found.len() > max_entries {
            return Err(Errno::EINVAL);
        }
        for entry in &found {
            // SAFETY: the program provides `max_entries` times `size` bytes, and `written` is below `max_entries`.
            let to = unsafe { entries.byte_add(written * size) };
            // SAFETY: `size` bytes from there on are the program's.
            unsafe { store_prefix(to.cast(), entry, size) }?;
            written += 1;
        }
        Ok(())
    });
    if status == 0 {
        isize::try_from(written).unwrap_or(isize::MAX)
    } else {
        isize::try_from(-status).unwrap_or(-1)
    }
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        unsafe { state(context) }?.expect_port(port.into())?;
        if index != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes room for the result.
        unsafe { store(pkey, DEFAULT_PKEY.to_be()) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        unsafe { state(context) }?.expect_port(port.into())?;
        if pkey == DEFAULT_PKEY.to_be() {
            Ok(0)
        } else {
            Err(Errno::EINVAL)
        }
    })
}

/// No guarantee that the data of a message arrives in order: segments are placed as they come.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// `IBV_GID_TYPE_SYSFS_ROCE_V2` for every index in the table.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { state(context) }?;
        context.expect_port(port.into())?;
        let length = context.with_gids(GidTable::len);
        if !usize::try_from(index).is_ok_and(|index| index < length) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes room for the result.
        unsafe { store(gid_type, IBV_GID_TYPE_SYSFS_ROCE_V2) }.map(|()| 0)
    })
}
