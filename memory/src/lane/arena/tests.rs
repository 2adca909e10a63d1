//! Sizes and seals of files, errors of the kernel, and mappings that end.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use std::os::fd::FromRawFd;

use super::*;

/// `MADV_POPULATE_WRITE` and `MADV_DONTFORK`, as a filter compares them.
const POPULATE: u32 = libc::MADV_POPULATE_WRITE.unsigned_abs();
const DONTFORK: u32 = libc::MADV_DONTFORK.unsigned_abs();

/// A file in memory with a length and seals.
fn file(octets: usize, seals: libc::c_int) -> File {
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor without another owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(octets as u64).unwrap();
    // SAFETY: a call on an open descriptor.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// Octets that a refused size names.
fn refused_size(file: &File) -> Option<u64> {
    match OfferedArena::check(file.as_fd()) {
        Err(ArenaError::Size { octets, .. }) => Some(octets),
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_file_has_the_length_of_an_arena() {
    let longest = octets_of(1 << 20);
    assert_eq!(longest, 8192 + (2 << 20));
    for octets in [8192, longest] {
        assert_eq!(refused_size(&file(octets, SEALS)), None, "{octets}");
    }
    for octets in [0, 8191, longest + 1] {
        let refused = refused_size(&file(octets, SEALS));
        assert_eq!(refused, Some(octets as u64));
    }
    let (arena, fd) = Arena::create(14).unwrap();
    assert_eq!(arena.octets(), 8192 + (2 << 14));
    assert_eq!(length(fd.as_fd()).unwrap(), arena.octets() as u64);
    assert_eq!(Arena::create(12).unwrap().0.octets(), Arena::FIRST_OCTETS);
    assert_eq!(Arena::FIRST_OCTETS, 16 << 10);
}

#[test]
fn a_file_has_all_seals() {
    for missing in [
        libc::F_SEAL_SHRINK,
        libc::F_SEAL_GROW,
        libc::F_SEAL_SEAL,
        SEALS,
    ] {
        let seals = SEALS & !missing;
        let file = file(Arena::FIRST_OCTETS, seals);
        let refused = OfferedArena::check(file.as_fd());
        assert!(matches!(refused, Err(ArenaError::Seals(it)) if it == seals));
    }
    // One more does no harm.
    let more = file(Arena::FIRST_OCTETS, SEALS | libc::F_SEAL_FUTURE_WRITE);
    assert!(OfferedArena::check(more.as_fd()).is_ok());
    let other = File::open("/dev/null").unwrap();
    let refused = OfferedArena::check(other.as_fd());
    assert!(
        matches!(refused, Err(ArenaError::System(error)) if error.raw_os_error() == Some(libc::EINVAL))
    );
}

#[test]
fn a_file_without_the_head_of_an_arena_is_refused() {
    let file = file(Arena::FIRST_OCTETS, SEALS);
    let opened = OfferedArena::check(file.as_fd()).unwrap().open();
    let zero = matches!(
        opened,
        Err(ArenaError::Version {
            magic: 0,
            version: 0
        })
    );
    assert!(zero);
}

#[test]
fn memory_is_taken_inside_of_the_mapping() {
    let file = file(3 * PAGE, SEALS);
    let shared = Shared::map(file.as_fd(), 3 * PAGE).unwrap();
    let taken = || file.metadata().unwrap().blocks() * 512;
    assert_eq!(taken(), 0);
    shared.populate(shared.at(PAGE), 2 * PAGE).unwrap();
    assert_eq!(taken(), 2 * PAGE as u64);
    for (offset, octets) in [(PAGE, 2 * PAGE + 1), (2 * PAGE, 2 * PAGE), (0, 4 * PAGE)] {
        let beyond = AssertUnwindSafe(|| shared.populate(shared.at(offset), octets));
        assert!(catch_unwind(beyond).is_err(), "{octets} at {offset}");
    }
    assert!(catch_unwind(AssertUnwindSafe(|| shared.at(3 * PAGE))).is_err());
    shared.at(3 * PAGE - 1);
}

/// Mappings of a file in this process.
fn mappings(file: &File) -> usize {
    let inode = format!(" {} ", file.metadata().unwrap().ino());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let ours = |line: &&str| line.contains("memfd:dgiwarp-lanes") && line.contains(&inode);
    maps.lines().filter(ours).count()
}

#[test]
fn the_mapping_ends_with_its_last_lane() {
    let (arena, fd) = Arena::create(12).unwrap();
    let file = File::from(fd);
    let (output, input) = arena.lanes(ArenaEnd::Maker);
    assert_eq!(mappings(&file), 1);
    drop(output);
    assert_eq!(mappings(&file), 1);
    drop(input);
    assert_eq!(mappings(&file), 0);
}

/// Has a filter answer a system call of this thread with `errno`, where its third argument is `argument`, if one is given.
fn answer(call: libc::c_long, argument: Option<u32>, errno: i32) {
    let statement = |code, (jt, jf), k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(call).unwrap();
    let mut filter = vec![statement(0x20, (0, 0), 0)];
    match argument {
        // The third argument stands at octet 32 of the call's data.
        Some(argument) => filter.extend([
            statement(0x15, (0, 3), number),
            statement(0x20, (0, 0), 32),
            statement(0x15, (0, 1), argument),
        ]),
        None => filter.push(statement(0x15, (0, 1), number)),
    }
    let errno = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    filter.extend([
        statement(0x06, (0, 0), errno),
        statement(0x06, (0, 0), libc::SECCOMP_RET_ALLOW),
    ]);
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a flag of this thread.
    let kept = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(kept, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(filtered, 0, "{}", io::Error::last_os_error());
}

/// Error of making an arena where the kernel answers so.
fn made(call: libc::c_long, argument: Option<u32>, errno: i32) -> Option<i32> {
    let made = thread::spawn(move || {
        answer(call, argument, errno);
        Arena::create(12).err()
    });
    made.join().unwrap().and_then(|it| it.raw_os_error())
}

#[test]
fn each_error_of_the_kernel_is_that_of_the_arena() {
    for (call, argument) in [
        (libc::SYS_memfd_create, None),
        (libc::SYS_ftruncate, None),
        (libc::SYS_fcntl, None),
        (libc::SYS_prlimit64, None),
        (libc::SYS_madvise, Some(POPULATE)),
        (libc::SYS_madvise, Some(DONTFORK)),
    ] {
        assert_eq!(made(call, argument, libc::EPERM), Some(libc::EPERM));
    }
    // Kernels before 5.14 take memory when it is used.
    assert_eq!(made(libc::SYS_madvise, Some(POPULATE), libc::EINVAL), None);
    assert_eq!(
        made(libc::SYS_madvise, Some(POPULATE), libc::ENOMEM),
        Some(libc::ENOMEM)
    );
    let measured = thread::spawn(|| {
        let (_, fd) = Arena::create(12).unwrap();
        answer(libc::SYS_newfstatat, None, libc::EPERM);
        answer(libc::SYS_fstat, None, libc::EPERM);
        length(fd.as_fd()).map_err(|error| error.raw_os_error())
    });
    assert_eq!(measured.join().unwrap(), Err(Some(libc::EPERM)));
}

/// Exit status of a forked process that calls `check` with a limit on its files.
fn with_longest_file(octets: usize, check: fn() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `setrlimit`, `check` and `_exit`; glibc's allocator serves a child of a process with threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let limit = libc::rlimit {
            rlim_cur: octets as u64,
            rlim_max: octets as u64,
        };
        // SAFETY: as above.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let status = if limited == 0 { check() } else { 255 };
        // SAFETY: as above.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

/// An arena beyond `RLIMIT_FSIZE` is an error, not the signal that `ftruncate(2)` raises.
#[test]
fn an_arena_beyond_the_longest_file_is_an_error() {
    let check = || match Arena::create(12) {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(255),
    };
    assert_eq!(with_longest_file(Arena::FIRST_OCTETS, check), 0);
    assert_eq!(
        with_longest_file(Arena::FIRST_OCTETS - 1, check),
        libc::EFBIG
    );
    assert_eq!(with_longest_file(Arena::FIRST_OCTETS + 1, check), 0);
}
