//! Messages with no descriptor, with one, with more, and with control messages of other kinds.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

use super::*;

fn identity(fd: &OwnedFd) -> (u64, u64) {
    let file = File::from(fd.try_clone().unwrap());
    let metadata = file.metadata().unwrap();
    (metadata.dev(), metadata.ino())
}

fn temporary() -> OwnedFd {
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Descriptors of this process for a file.
fn descriptors(wanted: (u64, u64)) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let same = open.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    same.filter(|it| (it.dev(), it.ino()) == wanted).count()
}

/// Sends two descriptors in one control message.
fn send_two(socket: &UnixDatagram, fd: &OwnedFd) {
    let fds = [fd.as_raw_fd(), fd.as_raw_fd()];
    let mut control = Control { octets: [0; 64] };
    // SAFETY: arithmetic.
    let len = unsafe { libc::CMSG_LEN(8) } as usize;
    control.header = libc::cmsghdr {
        cmsg_len: len,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let place: *mut [RawFd; 2] = descriptor(&mut control).cast();
    // SAFETY: inside `control`.
    unsafe { place.write_unaligned(fds) };
    let mut part = libc::iovec {
        iov_base: b"two".as_ptr().cast_mut().cast(),
        iov_len: 3,
    };
    // SAFETY: zeros are valid.
    let mut message = unsafe { zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = len;
    // SAFETY: all addresses are of values that live until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
    assert_eq!(sent, 3);
}

#[test]
fn the_descriptor_is_that_of_the_file_and_closes_on_exec() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let fd = temporary();
    send_with_descriptor(ours.as_fd(), b"one", fd.as_fd()).unwrap();
    let mut octets = [0; 2];
    // Octets that do not fit are cut off, as by `recvmsg(2)`.
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut octets).unwrap();
    let got = got.unwrap();
    assert_eq!((len, &octets), (2, b"on"));
    assert_eq!(identity(&got), identity(&fd));
    // SAFETY: asks about an open descriptor.
    let flags = unsafe { libc::fcntl(got.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags, libc::FD_CLOEXEC);
}

/// On sockets of datagrams a message may have no octet.
#[test]
fn a_message_without_octets_has_its_descriptor() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let fd = temporary();
    send_with_descriptor(ours.as_fd(), b"", fd.as_fd()).unwrap();
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut [0; 4]).unwrap();
    assert_eq!((len, identity(&got.unwrap())), (0, identity(&fd)));
}

#[test]
fn a_second_descriptor_is_closed() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let fd = temporary();
    send_two(&ours, &fd);
    let mut octets = [0; 8];
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut octets).unwrap();
    assert_eq!(&octets[..len], b"two");
    assert_eq!(identity(got.as_ref().unwrap()), identity(&fd));
    assert_eq!(descriptors(identity(&fd)), 2);
    drop(got);
    assert_eq!(descriptors(identity(&fd)), 1);
}

/// A control message of another kind, which the kernel cuts to the length of one descriptor.
#[test]
fn credentials_are_no_descriptor() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one number.
    let set = unsafe {
        libc::setsockopt(
            theirs.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    ours.send(b"who").unwrap();
    let mut octets = [0; 8];
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut octets).unwrap();
    assert_eq!(&octets[..len], b"who");
    assert!(got.is_none());
}

#[test]
fn a_full_or_closed_socket_is_an_error() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let fd = temporary();
    let full = (0..10_000)
        .find_map(|_| send_with_descriptor(ours.as_fd(), &[0; 4096], fd.as_fd()).err())
        .unwrap();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    drop(theirs);
    let closed = send_with_descriptor(ours.as_fd(), b"one", fd.as_fd()).unwrap_err();
    assert_eq!(closed.kind(), io::ErrorKind::ConnectionRefused);
}
