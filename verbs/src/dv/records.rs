//! Records of received Write-Records.

use super::datagram::{address_of, datagram, to_int};
use super::sized::{size_of_program, store_sized};
use crate::abi::{DGIWARPDV_RECORD_WITH_IMM, dgiwarpdv_range, dgiwarpdv_record_info, ibv_qp};
use crate::ffi::minus_one;
use dgiwarp::{DatagramQp, ReadMap, RecordHandle, RecordRef};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::slice;

/// Runs `read` on a record; `ENOENT` if it was released.
fn with_record<T>(
    qp: &DatagramQp,
    record: u64,
    read: impl FnOnce(RecordRef<'_>) -> T,
) -> Result<T, Errno> {
    let found = qp.with_record(RecordHandle::from_u64(record), read);
    found.ok_or(Errno::ENOENT)
}

pub(super) unsafe extern "C" fn dgiwarpdv_record_info(
    qp: *mut ibv_qp,
    record: u64,
    info: *mut dgiwarpdv_record_info,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes room of the size in its first field.
        let size = unsafe { size_of_program(info) }?;
        // SAFETY: and a live queue pair.
        let datagram = unsafe { datagram(qp) }?;
        let answer = with_record(datagram, record, |record| {
            let (gid, qpn, scope_id) = record.source().map(address_of).unwrap_or_default();
            dgiwarpdv_record_info {
                size,
                remote_addr: record.remote_addr(),
                rkey: record.rkey(),
                length: record.length(),
                valid: record.valid(),
                num_ranges: u32::try_from(record.ranges().len()).unwrap_or(u32::MAX),
                flags: record.immediate().map_or(0, |_| DGIWARPDV_RECORD_WITH_IMM),
                imm_data: record.immediate().unwrap_or(0).to_be(),
                gid,
                qpn,
                scope_id,
            }
        })?;
        // SAFETY: as above.
        unsafe { store_sized(info, size, &answer) }.map(|()| 0)
    })
}

/// Writes at most `max` ranges and returns the number of all.
///
/// # Safety
/// `to` points to room for `max` ranges, unless `max` is not positive.
pub(super) unsafe fn store_ranges(
    ranges: &[(u32, u32)],
    to: *mut dgiwarpdv_range,
    max: c_int,
) -> Result<c_int, Errno> {
    let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
    if max > 0 && to.is_null() {
        return Err(Errno::EINVAL);
    }
    for (at, &(start, end)) in ranges.iter().take(max).enumerate() {
        // SAFETY: `at` is below `max`.
        let slot = unsafe { to.add(at) };
        // SAFETY: the program provides `max` ranges.
        unsafe { slot.write(dgiwarpdv_range { start, end }) };
    }
    to_int(ranges.len())
}

pub(super) unsafe extern "C" fn dgiwarpdv_record_ranges(
    qp: *mut ibv_qp,
    record: u64,
    ranges: *mut dgiwarpdv_range,
    max: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live queue pair.
        let datagram = unsafe { datagram(qp) }?;
        with_record(datagram, record, |record| {
            // SAFETY: and room for the ranges.
            unsafe { store_ranges(record.ranges(), ranges, max) }
        })?
    })
}

/// A zeroed bitmap of the program.
///
/// # Safety
/// `bitmap` points to `size` octets that are not used otherwise during the call, unless `size` is 0.
unsafe fn room<'a>(bitmap: *mut c_void, size: usize) -> Result<&'a mut [u8], Errno> {
    if size == 0 {
        return Ok(&mut []);
    }
    if bitmap.is_null() {
        return Err(Errno::EINVAL);
    }
    let start = bitmap.cast::<u8>();
    // SAFETY: not NULL, so `size` octets by the caller's contract; the program need not have written them before.
    unsafe { start.write_bytes(0, size) };
    // SAFETY: just written, and not used otherwise during the call.
    Ok(unsafe { slice::from_raw_parts_mut(start, size) })
}

pub(super) unsafe extern "C" fn dgiwarpdv_record_bitmap(
    qp: *mut ibv_qp,
    record: u64,
    granule: u32,
    bitmap: *mut c_void,
    size: usize,
) -> c_int {
    minus_one(|| {
        if granule == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes room for the bitmap.
        let room = unsafe { room(bitmap, size) }?;
        // SAFETY: and a live queue pair.
        let datagram = unsafe { datagram(qp) }?;
        to_int(with_record(datagram, record, |record| {
            record.bitmap_into(granule, room)
        })?)
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_bitmap(
    length: u32,
    ranges: *const dgiwarpdv_range,
    count: c_int,
    granule: u32,
    bitmap: *mut c_void,
    size: usize,
) -> c_int {
    minus_one(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if granule == 0 || (ranges.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let ranges = if count == 0 {
            &[]
        } else {
            // SAFETY: not NULL, so the program passes `count` ranges.
            unsafe { slice::from_raw_parts(ranges, count) }
        };
        if ranges.iter().any(|it| it.start > it.end || it.end > length) {
            return Err(Errno::EINVAL);
        }
        let map = ReadMap {
            length,
            ranges: ranges.iter().map(|it| (it.start, it.end)).collect(),
        };
        // SAFETY: and room for the bitmap.
        to_int(map.bitmap_into(granule, unsafe { room(bitmap, size) }?))
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_record_release(qp: *mut ibv_qp, record: u64) -> c_int {
    minus_one(|| {
        let handle = RecordHandle::from_u64(record);
        // SAFETY: the program passes a live queue pair.
        let released = unsafe { datagram(qp) }?.release_record(handle);
        released.then_some(0).ok_or(Errno::ENOENT)
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_record_complete_now(qp: *mut ibv_qp) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live queue pair.
        unsafe { datagram(qp) }?.complete_records();
        Ok(0)
    })
}
