//! Handing an arena over: a message with one descriptor on a Unix socket.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

#[cfg(test)]
mod tests;

/// Memory of one control message with one descriptor, aligned as the kernel's structure.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    octets: [u8; 64],
}

/// Octets of a control message with one descriptor: no second one fits.
fn control_len() -> usize {
    // SAFETY: arithmetic.
    let len = unsafe { libc::CMSG_LEN(u32::try_from(size_of::<RawFd>()).unwrap_or(4)) };
    len as usize
}

/// Place of the descriptor in a control message.
fn descriptor(control: &mut Control) -> *mut RawFd {
    let header: *const libc::cmsghdr = (&raw mut *control).cast();
    // SAFETY: arithmetic; the control message is at the beginning of `control`, which has room for its data.
    unsafe { libc::CMSG_DATA(header) }.cast()
}

/// Sends a message with a descriptor. Does not wait.
///
/// # Errors
/// Error of `sendmsg(2)`; nothing was sent.
pub fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    octets: &[u8],
    fd: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut control = Control { octets: [0; 64] };
    let mut part = libc::iovec {
        iov_base: octets.as_ptr().cast_mut().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: the kernel's structure of addresses and numbers, for which zeros are valid.
    let mut message = unsafe { zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = control_len();
    control.header = libc::cmsghdr {
        cmsg_len: control_len(),
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let place = descriptor(&mut control);
    // SAFETY: inside `control`.
    unsafe { place.write_unaligned(fd.as_raw_fd()) };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all addresses are of values that live until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Receives a message, and its descriptor if there is one. Does not wait. More descriptors than one are closed.
///
/// # Errors
/// Error of `recvmsg(2)`.
pub fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    octets: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control { octets: [0; 64] };
    let mut part = libc::iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: the kernel's structure of addresses and numbers, for which zeros are valid.
    let mut message = unsafe { zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = control_len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all addresses are of values that live until the call returns.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel wrote a control message, or left zeros.
    let header = unsafe { control.header };
    let has_one = message.msg_controllen >= control_len()
        && header.cmsg_level == libc::SOL_SOCKET
        && header.cmsg_type == libc::SCM_RIGHTS
        && header.cmsg_len == control_len();
    if !has_one {
        return Ok((received, None));
    }
    // SAFETY: inside `control`.
    let fd = unsafe { descriptor(&mut control).read_unaligned() };
    // SAFETY: the control message has one descriptor, which the kernel has opened for this process.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((received, Some(fd)))
}
