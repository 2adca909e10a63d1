//! `ibv_post_send(3)`, which programs call through the context's table.

use crate::abi::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WR_SEND, ibv_qp, ibv_send_wr,
};
use crate::ffi::{Object, data_path_entry, errno, thread_order};
use crate::post::list::{BATCH, InlineData, Refused, elements, inline, post_chain};
use crate::post::operation::{WorkRequest, operation, reliable_send, send};
use crate::qp::ah::Ah;
use crate::qp::queue_pair::{self, Qp, Transport};
use crate::qp::state::QpState;
use arrayvec::ArrayVec;
use dgiwarp::{Destination, PostFailure, RcQp, RcSendWr, Sge, ShortData, ShortSendWr, UdQp};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};

/// QPN of every member of a multicast group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// Bit of a work request's Q_Key that selects the queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    data_path_entry(libc::EIO, || {
        // SAFETY: the program passes a live queue pair.
        let qp = unsafe { queue_pair::state(qp) };
        // SAFETY: and a chain of valid work requests, or NULL.
        let first = unsafe { wr.as_ref() };
        if let (Ok(qp), Some(first)) = (qp, first)
            && first.next.is_null()
            && post_alone(qp, first)
        {
            return 0;
        }
        // SAFETY: a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wrs| post_all(qp, wrs)) }
    })
}

/// Posts the only work request of a chain, the most frequent one. Where it cannot be posted so, returns `false`: [`post_all`] does, or tells why not.
#[inline]
fn post_alone(qp: &Qp, wr: &ibv_send_wr) -> bool {
    if qp.state() != QpState::ReadyToSend {
        return false;
    }
    match &qp.qp {
        Transport::Rc(rc) => post_alone_connected(qp, rc, wr),
        Transport::Ud(ud) => post_short(qp, ud, wr).unwrap_or(false),
        Transport::Uc(_) | Transport::Rd(_) | Transport::RcRd(_) | Transport::XrcTarget(_) => false,
    }
}

/// [`post_alone`] of a datagram queue pair: a Send whose octets are in one place.
#[inline]
fn post_short(qp: &Qp, ud: &UdQp, wr: &ibv_send_wr) -> Option<bool> {
    const KNOWN: c_uint = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    if wr.opcode != IBV_WR_SEND || wr.send_flags & !KNOWN != 0 {
        return None;
    }
    // SAFETY: part of a valid work request.
    let [sge] = unsafe { elements(wr.sg_list, wr.num_sge) }.ok()? else {
        return None;
    };
    let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: the element of a valid inline work request points to readable memory, which the program does not write during the call.
        ShortData::Inline(unsafe { inline(sge) }.ok()?)
    } else {
        ShortData::Sge(*sge)
    };
    // SAFETY: sends on a datagram queue pair fill this member, and all members are plain data.
    let to = unsafe { wr.wr.ud };
    // SAFETY: the program passes a live address handle.
    let ah = unsafe { Object::<Ah>::state(to.ah) }.ok()?;
    Some(ud.post_short(&ShortSendWr {
        wr_id: wr.wr_id,
        ah: &ah.handle,
        qpn: u16::try_from(to.remote_qpn).ok()?,
        qkey: qkey(qp, to.remote_qkey),
        data,
        signaled: qp.signal_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
    }))
}

/// [`post_alone`] of a connected queue pair.
#[inline]
fn post_alone_connected(qp: &Qp, rc: &RcQp, wr: &ibv_send_wr) -> bool {
    let posted = match connected(qp, wr) {
        Ok((request, Payload::Sges(sges))) => rc.post_send(&[request.rc(sges, &[])]),
        Ok((request, Payload::Inline(octets))) => rc.post_send(&[request.rc(&[], octets)]),
        Ok((_, Payload::Gather(_))) | Err(_) => return false,
    };
    if rc.is_over() {
        qp.qp.flush();
    }
    posted.is_ok()
}

/// [`post_send`] for race detectors: before the completion is polled.
pub(crate) unsafe extern "C" fn ordered_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a live queue pair, or NULL; the field never changes.
    if let Some(face) = unsafe { qp.as_ref() } {
        thread_order::before(face.send_cq);
    }
    // SAFETY: the contract is the same.
    unsafe { post_send(qp, wr, bad) }
}

fn post_all(qp: Result<&Qp, Errno>, wrs: &[&ibv_send_wr]) -> Result<(), Refused> {
    let qp = qp.map_err(|errno| (0, errno))?;
    if !qp.state().takes_sends() {
        return Err((0, Errno::EINVAL));
    }
    let posted = match &qp.qp {
        Transport::Rc(rc) => post_connected(qp, wrs, |wrs| rc.post_send(wrs)),
        Transport::RcRd(rc) => post_connected(qp, wrs, |wrs| rc.post_send(wrs)),
        Transport::Ud(_) | Transport::Uc(_) | Transport::Rd(_) | Transport::XrcTarget(_) => {
            post_each(qp, wrs)
        }
    };
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    posted
}

/// Posts to a connected queue pair, all at once but those whose inline data is in several places.
#[inline]
fn post_connected(
    qp: &Qp,
    wrs: &[&ibv_send_wr],
    post: impl Fn(&[RcSendWr<'_>]) -> Result<(), PostFailure>,
) -> Result<(), Refused> {
    let mut posted = 0;
    while posted < wrs.len() {
        let mut requests = ArrayVec::<_, BATCH>::new();
        let mut next = None;
        for wr in wrs.iter().skip(posted) {
            match connected(qp, wr) {
                Ok((request, Payload::Sges(sges))) => requests.push(request.rc(sges, &[])),
                Ok((request, Payload::Inline(octets))) => requests.push(request.rc(&[], octets)),
                Ok((request, Payload::Gather(data))) => {
                    next = Some(Ok((request, data)));
                    break;
                }
                Err(errno) => {
                    next = Some(Err(errno));
                    break;
                }
            }
        }
        if !requests.is_empty() {
            let behind = |(accepted, errno)| (posted + accepted, errno);
            let result = post(&requests);
            result.map_err(errno::of_refusal).map_err(behind)?;
            posted += requests.len();
        }
        match next {
            None => {}
            Some(Ok((request, data))) => {
                let result = post(&[request.rc(&[], data.as_slice())]);
                result.map_err(|failure| (posted, errno::of_post_failure(failure)))?;
                posted += 1;
            }
            Some(Err(errno)) => return Err((posted, errno)),
        }
    }
    Ok(())
}

/// Payload of a work request.
enum Payload<'a> {
    Sges(&'a [Sge]),
    /// Inline data in one place.
    Inline(&'a [u8]),
    /// Copied from several places.
    Gather(Box<InlineData>),
}

/// A work request of a connected queue pair.
#[inline]
fn connected<'a>(qp: &Qp, wr: &'a ibv_send_wr) -> Result<(WorkRequest, Payload<'a>), Errno> {
    let operation = operation(wr)?;
    let request = WorkRequest::new(operation, wr.wr_id, wr.send_flags, qp.signal_all)?;
    let request = request.to_srq(wr.qp_type.remote_srqn);
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return Ok((request, Payload::Sges(list)));
    }
    let payload = match list {
        [] => Payload::Inline(&[]),
        // SAFETY: the element of a valid inline work request points to readable memory, which the program does not write during the call.
        [sge] => Payload::Inline(unsafe { inline(sge) }?),
        // SAFETY: so do several.
        _ => Payload::Gather(Box::new(unsafe { InlineData::gather(list) }?)),
    };
    Ok((request, payload))
}

fn post_each(qp: &Qp, wrs: &[&ibv_send_wr]) -> Result<(), Refused> {
    for (place, wr) in wrs.iter().enumerate() {
        post_one(qp, wr).map_err(|errno| (place, errno))?;
    }
    Ok(())
}

fn post_one(qp: &Qp, wr: &ibv_send_wr) -> Result<(), Errno> {
    let request = |operation| WorkRequest::new(operation, wr.wr_id, wr.send_flags, qp.signal_all);
    match &qp.qp {
        // ibv_post_send(3): datagram queue pairs have Sends only. The members of other opcodes overlap the address.
        Transport::Ud(ud) => {
            let request = request(send(wr)?)?;
            let operation = request.ud_operation().map_err(errno::of_post)?;
            let to = destination(qp, wr)?;
            with_sges(qp, wr, |sges| {
                ud.post_send(&[request.ud(operation, to, sges)])
                    .map_err(errno::of_post_failure)
            })
        }
        Transport::Uc(uc) => {
            let request = request(operation(wr)?)?;
            with_sges(qp, wr, |sges| {
                let request = request.uc(sges).map_err(errno::of_post)?;
                uc.post_send(&[request]).map_err(errno::of_post_failure)
            })
        }
        // As with UD: address handle and remote address share their memory.
        Transport::Rd(rd) => {
            let request = request(reliable_send(wr)?)?;
            let to = destination(qp, wr)?;
            post_reliable(wr, |sges, inline| {
                rd.post_send(&[request.rd(to, sges, inline)])
            })
        }
        // An XRC target only receives, and the others are posted together.
        Transport::XrcTarget(_) | Transport::Rc(_) | Transport::RcRd(_) => Err(Errno::EINVAL),
    }
}

/// Posts with the payload's elements, or with a registered copy of inline data.
#[inline]
fn with_sges(
    qp: &Qp,
    wr: &ibv_send_wr,
    post: impl FnOnce(&[Sge]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return post(list);
    }
    // SAFETY: the elements of a valid inline work request point to readable memory.
    unsafe { with_inline_data(qp, list, post) }
}

/// Posts with a registered copy of inline data. Apart, because its copy takes 256 octets of the stack.
///
/// # Safety
/// Each element points to readable memory of its length.
#[cold]
unsafe fn with_inline_data(
    qp: &Qp,
    list: &[Sge],
    post: impl FnOnce(&[Sge]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: the caller's contract is the same.
    let data = unsafe { InlineData::gather(list) }?;
    qp.inline
        .post(&qp.pd, |slots| post(&[slots.fill(data.as_slice())?]))
}

/// Posts with the payload's elements, or with inline data, which the send queue copies.
#[inline]
fn post_reliable(
    wr: &ibv_send_wr,
    post: impl FnOnce(&[Sge], &[u8]) -> Result<(), PostFailure>,
) -> Result<(), Errno> {
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: the elements of a valid inline work request point to readable memory.
        let data = unsafe { InlineData::gather(list) }?;
        return post(&[], data.as_slice()).map_err(errno::of_post_failure);
    }
    post(list, &[]).map_err(errno::of_post_failure)
}

/// Destination of a datagram.
fn destination(qp: &Qp, wr: &ibv_send_wr) -> Result<Destination, Errno> {
    // SAFETY: sends on a datagram queue pair fill this member, and all members are plain data.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: the program passes a live address handle.
    let ah = unsafe { Object::<Ah>::state(ud.ah) }?;
    address(qp, ah, ud.remote_qpn, ud.remote_qkey)
}

/// Destination of a datagram from the parts that `struct ibv_send_wr` has.
pub(crate) fn address(qp: &Qp, ah: &Ah, qpn: u32, qkey: u32) -> Result<Destination, Errno> {
    let port = match u16::try_from(qpn) {
        Ok(port) => port,
        Err(_) if ah.handle.is_group() && qpn == MULTICAST_QPN => 0,
        Err(_) => return Err(Errno::EINVAL),
    };
    Ok(Destination {
        ah: ah.handle.clone(),
        qpn: port,
        qkey: self::qkey(qp, qkey),
    })
}

/// The Q_Key that a message carries, given that of its work request.
#[inline]
fn qkey(qp: &Qp, of_request: u32) -> u32 {
    if of_request & OWN_QKEY == 0 {
        of_request
    } else {
        qp.attributes().qkey
    }
}
