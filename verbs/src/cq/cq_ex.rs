//! Extended completion queues: `ibv_create_cq_ex(3)` and polling one completion at a time.

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_tm_info,
};
use crate::cq::queue::{self, Cq, CqAttr, completed};
use crate::cq::wc;
use crate::ffi::{Object, entry, load, pointer, store, thread_order};
use crate::mem::mr::domain;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use std::ffi::{c_int, c_uint};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The completion at which a polling thread is.
#[derive(Debug, Default)]
pub(crate) struct Current {
    wc: ibv_wc,
    /// Time on the device's clock.
    time: Duration,
    /// Sender of a received message, and the address of ours that it came to.
    source: Option<SocketAddr>,
    destination: Option<IpAddr>,
}

/// Behind `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the contract is the same.
    pointer(|| unsafe { create(context, init, |_| ()) })
}

/// Creates an extended completion queue, whose table `change` may change.
///
/// # Safety
/// As for `ibv_create_cq_ex(3)`.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    change: impl FnOnce(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq_ex, Errno> {
    const TIMES: u64 =
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { load(init) }?;
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 {
        0
    } else {
        attr.flags
    };
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attr.wc_flags & !(IBV_WC_STANDARD_FLAGS | TIMES) != 0
        || flags & !FLAGS != 0
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let parent = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        None
    } else {
        // SAFETY: the mask includes a live domain.
        let parent = unsafe { domain(attr.parent_domain) }?;
        if parent.parts.is_none() {
            return Err(Errno::EINVAL);
        }
        Some(parent)
    };
    let cq_attr = CqAttr {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        timestamps: attr.wc_flags & TIMES != 0,
        ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        parent,
    };
    // SAFETY: the program passes an open context, and a live channel or none.
    unsafe {
        queue::create(context, &cq_attr, |face| {
            fill(face);
            change(face);
        })
    }
}

/// Fills the table. All fields but timestamps are readable whether requested at creation or not.
fn fill(face: &mut ibv_cq_ex) {
    face.start_poll = Some(start_poll);
    face.next_poll = Some(next_poll);
    face.end_poll = Some(end_poll);
    if thread_order::is_checked() {
        face.start_poll = Some(ordered_start_poll);
        face.next_poll = Some(ordered_next_poll);
        face.end_poll = Some(ordered_end_poll);
    }
    face.read_opcode = Some(read_opcode);
    face.read_vendor_err = Some(read_vendor_err);
    face.read_byte_len = Some(read_byte_len);
    face.read_imm_data = Some(read_imm_data);
    face.read_qp_num = Some(read_qp_num);
    face.read_src_qp = Some(read_src_qp);
    face.read_wc_flags = Some(read_wc_flags);
    face.read_slid = Some(read_slid);
    face.read_sl = Some(read_sl);
    face.read_dlid_path_bits = Some(read_dlid_path_bits);
    face.read_completion_ts = Some(read_completion_ts);
    face.read_cvlan = Some(read_cvlan);
    face.read_flow_tag = Some(read_flow_tag);
    face.read_tm_info = Some(read_tm_info);
    face.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// The completion queue behind a pointer.
///
/// # Safety
/// `cq` is NULL or a live completion queue that stays alive for `'a`.
pub(crate) unsafe fn state<'a>(cq: *mut ibv_cq_ex) -> Result<&'a Cq, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Cq>>::state(cq) }.map(AsRef::as_ref)
}

/// Advances to the next completion; `ENOENT` without one.
unsafe fn step(cq: *mut ibv_cq_ex, state: &Cq) -> Result<(), Errno> {
    let found = loop {
        let polled = state.cq.poll_stamped().map_err(|_| Errno::EOVERFLOW)?;
        let Some((polled, time)) = polled else {
            break None;
        };
        // An operation that verbs do not have is passed over.
        if let Some(wc) = wc::to_c(&polled) {
            break Some(Current {
                wc,
                time,
                source: polled.source,
                destination: polled.destination,
            });
        }
    };
    state.count_poll(usize::from(found.is_some()));
    let next = found.ok_or(Errno::ENOENT)?;
    // SAFETY: the thread holds the lock, by the caller's contract.
    let current = unsafe { state.current.value() }.ok_or(Errno::EINVAL)?;
    // SAFETY: a live completion queue whose fields belong to the holder of the lock.
    let face = unsafe { cq.as_mut() }.ok_or(Errno::EINVAL)?;
    face.status = next.wc.status;
    face.wr_id = next.wc.wr_id;
    *current = next;
    Ok(())
}

/// Convention: 0 or an errno value, without setting `errno`: an empty queue is no failure.
fn outcome(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    entry(libc::EIO, || {
        body().map_or_else(|errno| errno as c_int, |()| 0)
    })
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    outcome(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { state(cq) }?;
        // SAFETY: and attributes, or NULL.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        state.current.acquire();
        // SAFETY: this thread has just acquired the lock.
        let found = unsafe { step(cq, state) };
        if found.is_err() {
            // SAFETY: as above; nothing refers to the value. The program calls `ibv_end_poll` after success only.
            unsafe { state.current.release() };
        }
        found
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    outcome(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { state(cq) }?;
        // SAFETY: this thread has started polling.
        unsafe { step(cq, state) }
    })
}

unsafe extern "C" fn ordered_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the contract is the same.
    let outcome = unsafe { start_poll(cq, attr) };
    if outcome == 0 {
        // SAFETY: the completion is that of a live completion queue.
        unsafe { completed(cq.cast()) };
    }
    outcome
}

unsafe extern "C" fn ordered_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the contract is the same.
    let outcome = unsafe { next_poll(cq) };
    if outcome == 0 {
        // SAFETY: as above.
        unsafe { completed(cq.cast()) };
    }
    outcome
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    entry((), || {
        // SAFETY: the program passes a live completion queue.
        if let Ok(state) = unsafe { state(cq) } {
            // SAFETY: this thread has started polling.
            unsafe { state.current.release() };
        }
    });
}

/// For race detectors: before the next thread that polls.
unsafe extern "C" fn ordered_end_poll(cq: *mut ibv_cq_ex) {
    thread_order::before(cq);
    // SAFETY: the contract is the same.
    unsafe { end_poll(cq) };
}

/// Reads a field of the current completion.
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Cq, &Current) -> T) -> T {
    // SAFETY: the caller's contract.
    let Ok(state) = (unsafe { state(cq) }) else {
        return T::default();
    };
    // SAFETY: the caller's contract.
    match unsafe { state.current.value() } {
        Some(current) => field(state, current),
        None => T::default(),
    }
}

/// Sender of the message whose completion is the current one, and the address of ours that it came to. `ENOENT` where the completion has none: those of sends, and
/// of connected queue pairs.
///
/// # Safety
/// `cq` is NULL or a live completion queue, and the calling thread is between starting and ending to poll.
pub(crate) unsafe fn source(cq: *mut ibv_cq_ex) -> Result<(SocketAddr, Option<IpAddr>), Errno> {
    // SAFETY: the caller's contract.
    let state = unsafe { state(cq) }?;
    // SAFETY: the caller's contract.
    let current = unsafe { state.current.value() }.ok_or(Errno::EINVAL)?;
    let source = current.source.ok_or(Errno::ENOENT)?;
    Ok((source, current.destination))
}

/// Operation of the current completion.
///
/// # Safety
/// As for [`source`].
pub(crate) unsafe fn opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the caller's contract.
    unsafe { read(cq, |_, at| at.wc.opcode) }
}

/// Functions of the table that read one field.
macro_rules! readers {
    ($($name:ident: $kind:ty = $field:expr;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            // SAFETY: the program reads between starting and ending to poll.
            entry(<$kind>::default(), || unsafe { read(cq, $field) })
        }
    )* };
}

readers! {
    read_opcode: c_uint = |_, at| at.wc.opcode;
    read_vendor_err: u32 = |_, at| at.wc.vendor_err;
    read_byte_len: u32 = |_, at| at.wc.byte_len;
    read_imm_data: u32 = |_, at| at.wc.imm_data;
    read_qp_num: u32 = |_, at| at.wc.qp_num;
    read_src_qp: u32 = |_, at| at.wc.src_qp;
    read_wc_flags: c_uint = |_, at| at.wc.wc_flags;
    read_slid: u32 = |_, at| at.wc.slid.into();
    read_sl: u8 = |_, at| at.wc.sl;
    read_dlid_path_bits: u8 = |_, at| at.wc.dlid_path_bits;
    read_completion_ts: u64 = |_, at| nanoseconds(at.time);
    read_completion_wallclock_ns: u64 = wall_clock;
    read_cvlan: u16 = |_, _| 0;
    read_flow_tag: u32 = |_, _| 0;
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    entry((), || {
        // SAFETY: the program passes room for the answer.
        let _ = unsafe { store(info, ibv_wc_tm_info::default()) };
    });
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The completion's time on the host's wall clock, in nanoseconds.
fn wall_clock(state: &Cq, at: &Current) -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::ZERO, Duration::from);
    let ago = state.rnic.time().saturating_sub(at.time);
    nanoseconds(now.saturating_sub(ago))
}
