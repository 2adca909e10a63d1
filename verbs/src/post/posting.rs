//! Posting work requests: the functions behind `ibv_post_send` and `ibv_post_recv`, which programs reach through the
//! context's table.

use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};
use crate::ffi::errno;
use crate::ffi::{Object, entry};
use crate::mem::mw;
use crate::post::inline::SLOT as MAX_INLINE;
use crate::qp::ah::Ah;
use crate::qp::queue_pair::{self, Qp, Transport};
use crate::qp::srq::Srq;
use crate::qp::state::QpState;
use dgiwarp::{
    AtomicOperation, Destination, MAX_SGE, Operation, RcOperation, RcQp, RcSendWr, RecvWr, SendWr,
    Sge, UcOperation, UcQp, UcSendWr, UdQp,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::slice;
use std::sync::Arc;

/// Every flag that a send may carry.
pub(crate) const FLAGS: u32 =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
/// Names all members of a multicast group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// In a work request: use the Q_Key of the queue pair instead.
const OWN_QKEY: u32 = 1 << 31;

/// Posts a chain of work requests one after the other; the first that is not accepted is reported, and none after it
/// is posted.
///
/// # Safety
/// `first` is NULL or begins a chain of valid work requests linked by what `next` returns; `bad` is NULL or room for
/// a pointer.
unsafe fn post_chain<W: Copy>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W) -> Result<(), Errno>,
) -> c_int {
    let mut at = first;
    // SAFETY: NULL, or a work request of the chain.
    while let Some(wr) = unsafe { at.as_ref() } {
        if let Err(errno) = post(wr) {
            if !bad.is_null() {
                // SAFETY: not NULL, so room for a pointer.
                unsafe { bad.write(at) };
            }
            errno.set();
            return errno as c_int;
        }
        at = next(wr);
    }
    0
}

/// The scatter/gather elements of a work request.
///
/// # Safety
/// `list` points to `count` valid elements, unless `count` is not positive.
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Errno> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= MAX_SGE)
        .ok_or(Errno::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so `count` elements by the caller's contract; nobody writes them during the call.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

/// Elements in the stack's form, kept on this function's caller's stack.
struct Elements {
    array: [Sge; MAX_SGE],
    count: usize,
}

impl Elements {
    fn of(list: &[ibv_sge]) -> Self {
        let mut array = [Sge::default(); MAX_SGE];
        for (to, from) in array.iter_mut().zip(list) {
            *to = Sge {
                addr: from.addr,
                length: from.length,
                lkey: from.lkey,
            };
        }
        Self {
            array,
            count: list.len(),
        }
    }

    fn as_slice(&self) -> &[Sge] {
        self.array.get(..self.count).unwrap_or_default()
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a live queue pair.
        let qp = unsafe { queue_pair::state(qp) };
        // SAFETY: and a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wr| post_one_recv(qp?, wr)) }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) };
        // SAFETY: and a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wr| post_one_shared(srq?, wr)) }
    })
}

fn post_one_shared(srq: &Srq, wr: &ibv_recv_wr) -> Result<(), Errno> {
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let elements = Elements::of(list);
    let request = RecvWr {
        wr_id: wr.wr_id,
        sges: elements.as_slice(),
    };
    srq.srq
        .post_recv(&[request])
        .map_err(|failure| errno::of_post(failure.source))
}

fn post_one_recv(qp: &Qp, wr: &ibv_recv_wr) -> Result<(), Errno> {
    if qp.state() == QpState::Reset {
        return Err(Errno::EINVAL);
    }
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let elements = Elements::of(list);
    let request = RecvWr {
        wr_id: wr.wr_id,
        sges: elements.as_slice(),
    };
    qp.qp
        .post_recv(request)
        .map_err(|failure| errno::of_post(failure.source))?;
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a live queue pair.
        let qp = unsafe { queue_pair::state(qp) };
        // SAFETY: and a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wr| post_one_send(qp?, wr)) }
    })
}

fn post_one_send(qp: &Qp, wr: &ibv_send_wr) -> Result<(), Errno> {
    if !matches!(qp.state(), QpState::ReadyToSend | QpState::Error) || wr.send_flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    match &qp.qp {
        Transport::Ud(ud) => {
            let (operation, to) = (datagram(wr)?, destination(qp, wr)?);
            post_gathered(qp, wr, |sges| {
                post_datagram(qp, ud, wr, (operation, to), sges)
            })?;
        }
        Transport::Uc(uc) => {
            let operation = connected(wr)?;
            post_gathered(qp, wr, |sges| post_connected(qp, uc, wr, operation, sges))?;
        }
        Transport::Rc(rc) => post_reliable(qp, rc, wr)?,
    }
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    Ok(())
}

/// Posts with the payload's elements, or with a copy of it where it is inline.
fn post_gathered(
    qp: &Qp,
    wr: &ibv_send_wr,
    post: impl FnOnce(&[Sge]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return post(Elements::of(list).as_slice());
    }
    // SAFETY: the elements of a valid inline work request point to readable memory.
    let data = unsafe { gathered(list) }?;
    qp.inline
        .post(&qp.pd, |slots| post(&[slots.fill(data.as_slice())?]))
}

/// The immediate of a work request, which programs write in network order.
fn immediate(wr: &ibv_send_wr) -> Option<u32> {
    Some(u32::from_be(wr.imm_data))
}

fn is_signaled(qp: &Qp, wr: &ibv_send_wr) -> bool {
    qp.signal_all || wr.send_flags & IBV_SEND_SIGNALED != 0
}

/// What a work request does on a datagram queue pair.
fn datagram(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    match wr.opcode {
        IBV_WR_SEND => Ok(Operation::Send { immediate: None }),
        IBV_WR_SEND_WITH_IMM => Ok(Operation::Send {
            immediate: immediate(wr),
        }),
        _ => Err(Errno::EINVAL),
    }
}

fn post_datagram(
    qp: &Qp,
    ud: &UdQp,
    wr: &ibv_send_wr,
    (operation, destination): (Operation, Destination),
    sges: &[Sge],
) -> Result<(), Errno> {
    let request = SendWr {
        wr_id: wr.wr_id,
        operation,
        destination,
        sges,
        signaled: is_signaled(qp, wr),
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
    };
    ud.post_send(&[request])
        .map_err(|failure| errno::of_post(failure.source))
}

/// What a work request does on an unreliable connected queue pair.
fn connected(wr: &ibv_send_wr) -> Result<UcOperation, Errno> {
    let write = |immediate| {
        // SAFETY: writes fill this member, and all members are plain data.
        let rdma = unsafe { wr.wr.rdma };
        UcOperation::Write {
            rkey: rdma.rkey,
            remote_addr: rdma.remote_addr,
            immediate,
        }
    };
    match wr.opcode {
        IBV_WR_SEND => Ok(UcOperation::Send { immediate: None }),
        IBV_WR_SEND_WITH_IMM => Ok(UcOperation::Send {
            immediate: immediate(wr),
        }),
        IBV_WR_RDMA_WRITE => Ok(write(None)),
        IBV_WR_RDMA_WRITE_WITH_IMM => Ok(write(immediate(wr))),
        _ => Err(Errno::EINVAL),
    }
}

fn post_connected(
    qp: &Qp,
    uc: &UcQp,
    wr: &ibv_send_wr,
    operation: UcOperation,
    sges: &[Sge],
) -> Result<(), Errno> {
    let request = UcSendWr {
        wr_id: wr.wr_id,
        operation,
        sges,
        signaled: is_signaled(qp, wr),
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
    };
    uc.post_send(&[request])
        .map_err(|failure| errno::of_post(failure.source))
}

/// What a work request does on a reliable connected queue pair.
fn reliable(wr: &ibv_send_wr) -> Result<RcOperation, Errno> {
    // SAFETY: all members are plain data; a work request that fills none of them names no remote memory.
    let rdma = unsafe { wr.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { wr.wr.atomic };
    let (rkey, remote_addr) = (rdma.rkey, rdma.remote_addr);
    let write = |immediate| RcOperation::Write {
        rkey,
        remote_addr,
        immediate,
    };
    let change = |operation| RcOperation::Atomic {
        rkey: atomic.rkey,
        remote_addr: atomic.remote_addr,
        operation,
    };
    match wr.opcode {
        IBV_WR_SEND => Ok(RcOperation::Send { invalidate: None }),
        IBV_WR_SEND_WITH_IMM => Ok(RcOperation::SendImmediate {
            immediate: u32::from_be(wr.imm_data),
        }),
        // The key and the immediate share a field; the key is in the byte order of the machine.
        IBV_WR_SEND_WITH_INV => Ok(RcOperation::Send {
            invalidate: Some(wr.imm_data),
        }),
        IBV_WR_RDMA_WRITE => Ok(write(None)),
        IBV_WR_RDMA_WRITE_WITH_IMM => Ok(write(immediate(wr))),
        IBV_WR_RDMA_READ => Ok(RcOperation::Read { rkey, remote_addr }),
        IBV_WR_ATOMIC_FETCH_AND_ADD => Ok(change(AtomicOperation::FetchAdd {
            add: atomic.compare_add,
            mask: 0,
        })),
        IBV_WR_ATOMIC_CMP_AND_SWP => Ok(change(AtomicOperation::CompareSwap {
            compare: atomic.compare_add,
            compare_mask: u64::MAX,
            swap: atomic.swap,
            swap_mask: u64::MAX,
        })),
        IBV_WR_BIND_MW => {
            // SAFETY: bindings fill this member, with a live window and region.
            unsafe {
                mw::binding(
                    wr.bind_mw.mw,
                    wr.bind_mw.rkey,
                    &raw const wr.bind_mw.bind_info,
                )
            }
        }
        IBV_WR_LOCAL_INV => Ok(RcOperation::LocalInvalidate { rkey: wr.imm_data }),
        _ => Err(Errno::EINVAL),
    }
}

fn post_reliable(qp: &Qp, rc: &RcQp, wr: &ibv_send_wr) -> Result<(), Errno> {
    let operation = reliable(wr)?;
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let is_inline = wr.send_flags & IBV_SEND_INLINE != 0;
    let copied = if is_inline {
        // SAFETY: the elements of a valid inline work request point to readable memory.
        Some(unsafe { gathered(list) }?)
    } else {
        None
    };
    let elements = Elements::of(if is_inline { &[] } else { list });
    let request = RcSendWr {
        wr_id: wr.wr_id,
        operation,
        sges: elements.as_slice(),
        inline: copied.as_ref().map_or(&[], InlineData::as_slice),
        signaled: is_signaled(qp, wr),
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
        fence: wr.send_flags & IBV_SEND_FENCE != 0,
    };
    rc.post_send(&[request])
        .map_err(|failure| errno::of_post(failure.source))
}

/// Where a datagram goes.
fn destination(qp: &Qp, wr: &ibv_send_wr) -> Result<Destination, Errno> {
    // SAFETY: sends on a datagram queue pair fill this member, and all members are plain data.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: the program passes a live address handle.
    let ah = unsafe { Object::<Ah>::state(ud.ah) }?;
    address(qp, ah, ud.remote_qpn, ud.remote_qkey)
}

/// The same from its parts, as `struct ibv_send_wr` has them.
pub(crate) fn address(qp: &Qp, ah: &Ah, qpn: u32, qkey: u32) -> Result<Destination, Errno> {
    let port = match u16::try_from(qpn) {
        Ok(port) => port,
        Err(_) if ah.handle.is_group() && qpn == MULTICAST_QPN => 0,
        Err(_) => return Err(Errno::EINVAL),
    };
    Ok(Destination {
        ah: ah.handle.clone(),
        qpn: port,
        qkey: if qkey & OWN_QKEY == 0 {
            qkey
        } else {
            qp.attributes().qkey
        },
    })
}

/// The payload of an inline work request, copied; at most [`MAX_INLINE`] bytes.
///
/// # Safety
/// Each element points to readable memory of its length.
unsafe fn gathered(list: &[ibv_sge]) -> Result<InlineData, Errno> {
    let mut data = InlineData::default();
    for sge in list {
        let start = usize::try_from(sge.addr).map_err(|_| Errno::EFAULT)?;
        let length = usize::try_from(sge.length).map_err(|_| Errno::EFAULT)?;
        if length == 0 {
            continue;
        }
        let room = data
            .bytes
            .get_mut(data.length..)
            .and_then(|rest| rest.get_mut(..length))
            .ok_or(Errno::EINVAL)?;
        let from = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: readable by the caller's contract, and `room` is ours and of the same length.
        unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), length) };
        data.length += length;
    }
    Ok(data)
}

/// A payload on the stack.
pub(crate) struct InlineData {
    bytes: [u8; MAX_INLINE],
    length: usize,
}

impl Default for InlineData {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_INLINE],
            length: 0,
        }
    }
}

impl InlineData {
    /// The bytes gathered.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
