//! `rdma_getaddrinfo(3)`: addresses of host and service names, and the type of queue pair for them.

use crate::abi::{
    AF_IB, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE,
    RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
};
use crate::cm::addr::address;
use crate::ffi::{entry, live, load};
use libc::{addrinfo, sockaddr};
use nix::errno::Errno;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

/// Hints without any request.
fn blank() -> rdma_addrinfo {
    // SAFETY: integers and pointers, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

fn as_int(code: c_uint) -> c_int {
    c_int::try_from(code).unwrap_or(0)
}

/// Whether the name is a GID, and the answer an InfiniBand address.
fn wants_gid(hints: &rdma_addrinfo) -> bool {
    let both = RAI_FAMILY | RAI_NUMERICHOST;
    hints.ai_family == AF_IB && hints.ai_flags & both == both
}

/// Hints of getaddrinfo(3).
fn hints_of(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: integers and pointers, for which zero is a valid value.
    let mut ai: addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ai.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ai.ai_flags |= libc::AI_NUMERICHOST;
    }
    ai.ai_family = match hints.ai_family {
        AF_IB if wants_gid(hints) => libc::AF_INET6,
        // Without RAI_FAMILY and RAI_NUMERICHOST, as in rdma-core, the family of the name.
        AF_IB => libc::AF_UNSPEC,
        family => family,
    };
    let datagrams = hints.ai_qp_type == as_int(IBV_QPT_UD)
        || (hints.ai_qp_type == 0 && hints.ai_port_space == as_int(RDMA_PS_UDP));
    // One result per address: both socket types have equal port numbers, unless a service exists for one of them only.
    ai.ai_socktype = if datagrams {
        libc::SOCK_DGRAM
    } else {
        libc::SOCK_STREAM
    };
    ai
}

/// A copy that `rdma_freeaddrinfo` frees.
///
/// # Safety
/// `from` is NULL or has `length` octets.
unsafe fn copy(from: *const c_void, length: usize) -> Result<*mut c_void, Errno> {
    if from.is_null() || length == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: malloc takes any size.
    let to = unsafe { libc::malloc(length) };
    if to.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: both have `length` octets, and the new memory is unused.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), length) };
    Ok(to)
}

/// A result until the program owns it.
struct Found(*mut rdma_addrinfo);

impl Found {
    fn new(first: rdma_addrinfo) -> Result<Self, Errno> {
        // SAFETY: malloc takes any size.
        let memory = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        if memory.is_null() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: large enough, and aligned for anything.
        unsafe { memory.write(first) };
        Ok(Self(memory))
    }

    fn get(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: made by `new`, and owned by this value.
        unsafe { &mut *self.0 }
    }

    fn give(mut self) -> *mut rdma_addrinfo {
        let found = std::mem::replace(&mut self.0, ptr::null_mut());
        live::enter(found, FOUND);
        found
    }

    /// Sets the source of a passive answer, or the destination of another.
    ///
    /// # Safety
    /// `address` is NULL or has `length` octets.
    unsafe fn set(
        &mut self,
        hints: &rdma_addrinfo,
        address: *const sockaddr,
        length: u32,
    ) -> Result<(), Errno> {
        if hints.ai_flags & RAI_PASSIVE == 0 {
            // SAFETY: the caller's contract.
            unsafe { self.set_destination(address, length) }
        } else {
            // SAFETY: as above.
            unsafe { self.set_source(address, length) }
        }
    }

    /// # Safety
    /// `address` is NULL or has `length` octets.
    unsafe fn set_source(&mut self, address: *const sockaddr, length: u32) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let copied = unsafe { copy(address.cast(), usize::try_from(length).unwrap_or(0)) }?;
        self.get().ai_src_addr = copied.cast();
        self.get().ai_src_len = if copied.is_null() { 0 } else { length };
        Ok(())
    }

    /// # Safety
    /// `address` is NULL or has `length` octets.
    unsafe fn set_destination(
        &mut self,
        address: *const sockaddr,
        length: u32,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let copied = unsafe { copy(address.cast(), usize::try_from(length).unwrap_or(0)) }?;
        self.get().ai_dst_addr = copied.cast();
        self.get().ai_dst_len = if copied.is_null() { 0 } else { length };
        Ok(())
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not given away.
        unsafe { free(self.0) };
    }
}

/// # Safety
/// `list` is NULL or a list of ours that is not used any more.
unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: the caller's contract.
        let one = unsafe { list.read() };
        for part in [
            one.ai_src_addr.cast::<c_void>(),
            one.ai_dst_addr.cast(),
            one.ai_src_canonname.cast(),
            one.ai_dst_canonname.cast(),
            one.ai_route,
            one.ai_connect,
            list.cast(),
        ] {
            // SAFETY: NULL or made by malloc.
            unsafe { libc::free(part) };
        }
        list = one.ai_next;
    }
}

/// The fields that every result has.
fn described(hints: &rdma_addrinfo, family: c_int) -> rdma_addrinfo {
    let by_space = if hints.ai_port_space == as_int(RDMA_PS_UDP) {
        IBV_QPT_UD
    } else {
        IBV_QPT_RC
    };
    let qp_type = if hints.ai_qp_type == 0 {
        as_int(by_space)
    } else {
        hints.ai_qp_type
    };
    let by_type = if qp_type == as_int(IBV_QPT_UD) {
        RDMA_PS_UDP
    } else {
        RDMA_PS_TCP
    };
    let port_space = if hints.ai_port_space == 0 {
        as_int(by_type)
    } else {
        hints.ai_port_space
    };
    rdma_addrinfo {
        ai_flags: hints.ai_flags & RAI_PASSIVE,
        ai_family: family,
        ai_qp_type: qp_type,
        ai_port_space: port_space,
        ..blank()
    }
}

/// Reason of a failure: a code of `getaddrinfo(3)`, or an errno value.
enum Failure {
    Name(c_int),
    System(Errno),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// # Safety
/// `node` and `service` are NULL or C strings, and `hints` is valid.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<Found, Failure> {
    let ai_hints = hints_of(hints);
    let mut list: *mut addrinfo = ptr::null_mut();
    // SAFETY: the caller's contract, and room for the result.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const ai_hints, &raw mut list) };
    if code != 0 {
        return Err(Failure::Name(code));
    }
    // SAFETY: a successful call gives at least one answer.
    let answer = unsafe { &*list };
    let found = answered(hints, answer);
    // SAFETY: from `getaddrinfo`, and not used any more.
    unsafe { libc::freeaddrinfo(list) };
    Ok(found?)
}

fn answered(hints: &rdma_addrinfo, answer: &addrinfo) -> Result<Found, Errno> {
    if wants_gid(hints) {
        let mut found = Found::new(described(hints, AF_IB))?;
        // SAFETY: an answer of the C library.
        let name = unsafe { address::read(answer.ai_addr) }?;
        let space = u64::try_from(found.get().ai_port_space).unwrap_or(0);
        let ib = address::infiniband(name, space);
        let length = u32::try_from(size_of_val(&ib)).unwrap_or(0);
        // SAFETY: an address of ours.
        unsafe { found.set(hints, (&raw const ib).cast(), length) }?;
        return Ok(found);
    }
    let mut found = Found::new(described(hints, answer.ai_family))?;
    // SAFETY: an answer of the C library.
    unsafe { found.set(hints, answer.ai_addr, answer.ai_addrlen) }?;
    Ok(found)
}

/// # Safety
/// As for `rdma_getaddrinfo(3)`.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<Found, Failure> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(Failure::System(Errno::EINVAL));
    }
    let hints = if hints.is_null() {
        blank()
    } else {
        // SAFETY: the caller's contract.
        unsafe { load(hints) }?
    };
    let known = [0, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD].map(as_int);
    if !known.contains(&hints.ai_qp_type) {
        return Err(Failure::System(Errno::EOPNOTSUPP));
    }
    let mut found = if node.is_null() && service.is_null() {
        let mut found = Found::new(described(&hints, hints.ai_family))?;
        // SAFETY: the program's hints.
        unsafe { found.set_destination(hints.ai_dst_addr, hints.ai_dst_len) }?;
        found
    } else {
        // SAFETY: the caller's contract.
        unsafe { look_up(node, service, &hints) }?
    };
    if found.get().ai_src_addr.is_null() {
        // SAFETY: the program's hints.
        unsafe { found.set_source(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    Ok(found)
}

/// Tag of results that the program has.
const FOUND: u32 = 0x6463_6169;

/// 0, a code of `getaddrinfo(3)` where the name is the reason, or -1 with `errno`.
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes C strings, hints, or NULL.
        match unsafe { find(node, service, hints) } {
            Ok(_) if result.is_null() => {
                Errno::EINVAL.set();
                -1
            }
            Ok(found) => {
                // SAFETY: not NULL, so the program passes room for the pointer.
                unsafe { result.write(found.give()) };
                0
            }
            Err(Failure::Name(code)) => code,
            Err(Failure::System(errno)) => {
                errno.set();
                -1
            }
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    entry((), || {
        if live::leave(list, FOUND) {
            // SAFETY: made by `rdma_getaddrinfo`, and given back once.
            unsafe { free(list) };
        } else if !list.is_null() {
            Errno::EINVAL.set();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_passive_answer_is_a_source_and_another_a_destination() {
        for passive in [false, true] {
            let hints = rdma_addrinfo {
                ai_flags: RAI_NUMERICHOST | if passive { RAI_PASSIVE } else { 0 },
                ai_port_space: as_int(RDMA_PS_UDP),
                ..blank()
            };
            let mut result = ptr::null_mut();
            let (node, service) = (c"127.0.0.1".as_ptr(), c"7174".as_ptr());
            // SAFETY: C strings, hints, and room for the result.
            let code =
                unsafe { rdma_getaddrinfo(node, service, &raw const hints, &raw mut result) };
            assert_eq!(code, 0);
            // SAFETY: just made.
            let found = unsafe { &*result };
            assert_eq!(found.ai_qp_type, as_int(IBV_QPT_UD));
            let (with, without) = if passive {
                (found.ai_src_addr, found.ai_dst_addr)
            } else {
                (found.ai_dst_addr, found.ai_src_addr)
            };
            assert!(without.is_null());
            // SAFETY: an address as `getaddrinfo` gives it.
            let address = unsafe { address::read(with) }.unwrap();
            assert_eq!(address.to_string(), "127.0.0.1:7174");
            // SAFETY: made above, and not used any more.
            unsafe { rdma_freeaddrinfo(result) };
        }
    }

    #[test]
    fn a_gid_has_an_infiniband_address() {
        let hints = |flags| rdma_addrinfo {
            ai_flags: flags,
            ai_family: AF_IB,
            ai_port_space: as_int(RDMA_PS_TCP),
            ..blank()
        };
        let gid = hints(RAI_FAMILY | RAI_NUMERICHOST);
        let mut result = ptr::null_mut();
        let mut ask = |node: &CStr, hints: rdma_addrinfo| {
            let service = c"7174".as_ptr();
            // SAFETY: C strings, hints, and room for the result.
            let code = unsafe {
                rdma_getaddrinfo(node.as_ptr(), service, &raw const hints, &raw mut result)
            };
            (code, result)
        };
        let (code, found) = ask(c"::ffff:127.0.0.1", gid);
        assert_eq!(code, 0);
        // SAFETY: just made.
        let answer = unsafe { &*found };
        assert_eq!((answer.ai_family, answer.ai_dst_len), (AF_IB, 48));
        // SAFETY: the address of the answer.
        let address = unsafe { address::read_any(answer.ai_dst_addr) }.unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:7174");
        // SAFETY: made above, and not used any more.
        unsafe { rdma_freeaddrinfo(found) };
        // No GID, as it would be written.
        assert_ne!(ask(c"127.0.0.1", gid).0, 0);
        assert_eq!(ask(c"localhost", gid).0, libc::EAI_NONAME);
        // Without the flags the family is that of the name.
        let (code, found) = ask(c"127.0.0.1", hints(RAI_NUMERICHOST));
        assert_eq!(code, 0);
        // SAFETY: just made.
        assert_eq!(unsafe { &*found }.ai_family, libc::AF_INET);
        // SAFETY: made above, and not used any more.
        unsafe { rdma_freeaddrinfo(found) };
    }

    #[test]
    fn a_name_that_is_none_has_the_code_of_the_c_library() {
        let hints = rdma_addrinfo {
            ai_flags: RAI_NUMERICHOST,
            ..blank()
        };
        let mut result = ptr::null_mut();
        let node = c"not an address".as_ptr();
        // SAFETY: a C string, hints, and room for the result.
        let code =
            unsafe { rdma_getaddrinfo(node, ptr::null(), &raw const hints, &raw mut result) };
        assert_eq!(code, libc::EAI_NONAME);
    }
}
