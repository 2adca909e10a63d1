//! Opening the device, and the queries on an open one.

use crate::abi::{
    COMPAT_PORT_ATTR_LEN, IBV_GID_TYPE_ROCE_V2, IBV_VALUES_MASK_RAW_CLOCK, VERBS_ABI_IS_EXTENDED,
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex, verbs_context,
};
use crate::cq::{cq_ex, queue};
use crate::device::async_event::AsyncQueue;
use crate::device::gid::{Gid, GidTable, host_gids};
use crate::device::list::{device, expect_device};
use crate::device::{at_exit, device_attr, env};
use crate::ffi::errno;
use crate::ffi::fork;
use crate::ffi::{Facade, Object, errno_value, is_fatal, load, minus_one, pointer, store};
use crate::log;
use crate::mem::{mw, rereg_mr, td};
use crate::post::posting;
use crate::qp::{create, srq};
use dgiwarp::Rnic;
use nix::errno::Errno;
use std::any::Any;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// The default partition key, full membership; there is no other.
const DEFAULT_PKEY: u16 = 0xffff;

/// One table for the process, so that every context numbers the addresses alike.
static GIDS: Mutex<GidTable> = Mutex::new(GidTable::new());

/// Keeps others away while the process forks.
pub(crate) fn hold() -> Option<Box<dyn Any>> {
    fork::held(&GIDS)
}

/// An open device.
pub(crate) struct Context {
    pub(crate) rnic: Rnic,
    pub(crate) async_events: Arc<AsyncQueue>,
}

impl Facade for Context {
    type C = verbs_context;
    const TAG: u32 = 0x6463_7478;
}

impl Context {
    fn open() -> Result<Self, Errno> {
        if is_fatal() {
            return Err(Errno::EIO);
        }
        refresh_gids()?;
        log::install();
        let rnic = Rnic::open(env::config()).map_err(|error| errno::of_create(&error))?;
        at_exit::remember(&rnic);
        fork::watch();
        Ok(Self {
            async_events: AsyncQueue::open(&rnic),
            rnic,
        })
    }

    /// There is one port, number 1.
    pub(crate) fn expect_port(&self, port: u32) -> Result<(), Errno> {
        if port == 1 {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Runs `body` on the GID table.
    pub(crate) fn with_gids<T>(&self, body: impl FnOnce(&GidTable) -> T) -> T {
        body(&GIDS.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn refresh_gids() -> Result<(), Errno> {
    let present = host_gids()?;
    GIDS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .update(present);
    Ok(())
}

/// The context behind the pointer that programs have, which points into the middle of the object.
///
/// # Safety
/// `context` is NULL or an open context that stays open for `'a`.
pub(crate) unsafe fn state<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
    // SAFETY: the caller's contract is the same.
    let outer = unsafe { outer(context) }?;
    // SAFETY: an open context of ours is embedded in an object that lives as long.
    unsafe { Object::<Context>::state(outer) }
}

/// # Safety
/// As for [`state`].
unsafe fn outer(context: *mut ibv_context) -> Result<*mut verbs_context, Errno> {
    if context.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: every context that we hand out stands at this offset in a `verbs_context`.
    Ok(unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}

pub(crate) unsafe extern "C" fn ibv_open_device(wanted: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        expect_device(wanted)?;
        let context = Context::open()?;
        let tables = tables(context.async_events.descriptor());
        let outer = Object::create(tables, context);
        // SAFETY: just created; only the address of the field is taken.
        Ok(unsafe { &raw mut (*outer).context })
    })
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let outer = unsafe { outer(context) }?;
        // SAFETY: and does not use it any more.
        unsafe { Object::<Context>::release(outer) }.map(drop)
    })
}

/// What the inline functions of `verbs.h` jump through. Operations that are absent here the header answers itself, with
/// `EOPNOTSUPP`.
fn tables(async_fd: c_int) -> verbs_context {
    // SAFETY: a struct of nullable function pointers, raw pointers and integers, for which zero is a valid value.
    let mut tables: verbs_context = unsafe { std::mem::zeroed() };
    tables.query_port = Some(query_port);
    tables.query_device_ex = Some(query_device_ex);
    tables.advise_mr = Some(rereg_mr::advise_mr);
    tables.alloc_parent_domain = Some(td::alloc_parent_domain);
    tables.alloc_td = Some(td::alloc_td);
    tables.dealloc_td = Some(td::dealloc_td);
    tables.create_srq_ex = Some(srq::create_srq_ex);
    tables.get_srq_num = Some(srq::get_srq_num);
    tables.create_cq_ex = Some(cq_ex::create_cq_ex);
    tables.query_rt_values = Some(query_rt_values);
    tables.create_qp_ex = Some(create::create_qp_ex);
    tables.sz = size_of::<verbs_context>();
    tables.context.device = device();
    tables.context.ops = operations();
    tables.context.cmd_fd = async_fd;
    tables.context.async_fd = async_fd;
    tables.context.num_comp_vectors = 1;
    tables.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    tables.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    tables
}

fn operations() -> ibv_context_ops {
    // SAFETY: a struct of nullable function pointers only.
    let mut operations: ibv_context_ops = unsafe { std::mem::zeroed() };
    operations.alloc_mw = Some(mw::alloc_mw);
    operations.bind_mw = Some(mw::bind_mw);
    operations.dealloc_mw = Some(mw::dealloc_mw);
    operations.poll_cq = Some(queue::poll_cq);
    operations.req_notify_cq = Some(queue::req_notify_cq);
    operations.post_send = Some(posting::post_send);
    operations.post_recv = Some(posting::post_recv);
    operations.post_srq_recv = Some(posting::post_srq_recv);
    operations
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        unsafe { state(context) }?;
        // SAFETY: and room for the result.
        unsafe { store(attr, device_attr::device_attr()) }
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        unsafe { state(context) }?;
        // SAFETY: NULL or a valid struct.
        let wants_more = unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0);
        if wants_more || size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program provides `size` bytes.
        unsafe { store_prefix(attr.cast(), &device_attr::device_attr_ex(), size) }
    })
}

/// Behind `ibv_query_rt_values_ex`: the clock that completions are stamped with.
unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let state = unsafe { state(context) }?;
        // SAFETY: and values, whose mask says what it wants to know.
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
    // SAFETY: as for `query_port`; callers of the exported name are compiled against the old, shorter struct.
    unsafe { query_port(context, port, attr, COMPAT_PORT_ATTR_LEN) }
}

unsafe extern "C" fn query_port(
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
        let facts =
            context.with_gids(|gids| device_attr::port_attr(gids, context.rnic.config().max_mtu));
        // SAFETY: the program provides `size` bytes.
        unsafe { store_prefix(attr.cast(), &facts, size) }
    })
}

/// Writes as much of `value` as the program has room for, and zeroes to the rest of its room: programs compiled against
/// other headers have longer or shorter structs.
///
/// # Safety
/// `to` is NULL or has `size` bytes of room.
pub(crate) unsafe fn store_prefix<T>(to: *mut u8, value: &T, size: usize) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::EINVAL);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have at least `known` bytes, and the program's memory is not ours.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), to, known) };
    // SAFETY: `known` is at most `size`.
    let rest = unsafe { to.add(known) };
    // SAFETY: the rest of the `size` bytes.
    unsafe { rest.write_bytes(0, size - known) };
    Ok(())
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
        // An empty slot has no data, which is the kernel's answer for it too.
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
        // As the kernel has it: all of the table or nothing.
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

/// Whether data of a message arrives in order: software places segments as they come, so no.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut crate::abi::ibv_qp,
    _opcode: c_uint,
    _flags: u32,
) -> c_int {
    0
}
