//! Addresses of sockets.

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// A number of octets as C has it.
pub(crate) fn length_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

/// The IP address of a C program; `None` for others.
///
/// # Safety
/// `address` is NULL or has `length` octets.
pub(crate) unsafe fn read(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || length < length_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: at least a family.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if length >= length_of::<sockaddr_in>() => {
            // SAFETY: as long as an IPv4 address, of any alignment.
            let it = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(it.sin_addr.s_addr);
            Some(SocketAddrV4::new(ip.into(), u16::from_be(it.sin_port)).into())
        }
        libc::AF_INET6 if length >= length_of::<sockaddr_in6>() => {
            // SAFETY: as long as an IPv6 address, of any alignment.
            let it = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let port = u16::from_be(it.sin6_port);
            let ip = it.sin6_addr.s6_addr.into();
            Some(SocketAddrV6::new(ip, port, 0, it.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The address that a function such as getsockname(2) writes.
pub(crate) fn from(
    call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    let (storage, length) = raw_from(call)?;
    // SAFETY: an address of this length.
    unsafe { read((&raw const storage).cast(), length) }
}

/// As [`from`], as C has it.
pub(crate) fn raw_from(
    call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: plain data for which zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = length_of::<sockaddr_storage>();
    let result = call((&raw mut storage).cast(), &raw mut length);
    (result == 0).then_some((storage, length.min(length_of::<sockaddr_storage>())))
}

/// A copy of an IP address with another port, which both families have at one place.
///
/// # Safety
/// `address` has `length` octets.
pub(crate) unsafe fn with_port(
    address: *const sockaddr,
    length: socklen_t,
    port: u16,
) -> sockaddr_storage {
    // SAFETY: plain data for which zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let size = usize::try_from(length.min(length_of::<sockaddr_storage>())).unwrap_or(0);
    let to = &raw mut storage;
    // SAFETY: as many octets as both have.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), to.cast::<u8>(), size) };
    // SAFETY: the storage is longer than an IPv4 address and as well aligned.
    unsafe { (*to.cast::<sockaddr_in>()).sin_port = port.to_be() };
    storage
}

/// Writes an address to the program's room, cut to it, and its length.
///
/// # Safety
/// The pointers are NULL or valid, and the length that of the room.
pub(crate) unsafe fn write(
    (storage, size): (sockaddr_storage, socklen_t),
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> bool {
    if to.is_null() || length.is_null() {
        return false;
    }
    // SAFETY: not NULL, so a length.
    let room = unsafe { length.read() };
    let some = usize::try_from(room.min(size)).unwrap_or(0);
    let from = (&raw const storage).cast::<u8>();
    // SAFETY: as much room as the program names, and no more than the address has.
    unsafe { std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), some) };
    // SAFETY: as above.
    unsafe { length.write(size) };
    true
}
