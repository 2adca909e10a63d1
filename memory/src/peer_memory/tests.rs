//! Memory of this process, and of children that end or run another program.

use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::Buffer;

/// A child process that ends with the test.
struct Running(Child);

impl Running {
    fn new(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn sleeping() -> Self {
        Self::new(Command::new("sleep").arg("1000"))
    }

    /// An address at which it has memory, as `/proc/PID/maps` says.
    fn address(&self) -> u64 {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own() -> PeerMemory {
    PeerMemory::open(std::process::id()).unwrap()
}

fn octets(len: usize, salt: usize) -> Vec<u8> {
    let octet = |at: usize| u8::try_from((at + salt) % 251 + 1).unwrap();
    (0..len).map(octet).collect()
}

/// Lengths around that of the last part, and beyond a page.
const LENGTHS: [usize; 8] = [0, 1, 7, 8, 9, 64, 4096, 70_000];

#[test]
fn octets_are_written_where_they_belong() {
    let memory = own();
    for len in LENGTHS {
        for len_of_last in [0, 1, 8, 9, 100, 5000] {
            let to = Buffer::zeroed(len + len_of_last + 20).unwrap();
            let from = Buffer::zeroed(len + 3).unwrap();
            let (first, last) = (octets(len, 5), octets(len_of_last, 70));
            from.write(3, &first);
            let region = from.region();
            let pieces = [
                Piece::Bytes(&[]),
                Piece::Region(region.slice(3, len).unwrap()),
                Piece::Bytes(&last),
            ];
            assert!(memory.write(to.region().address() + 10, &pieces));
            let expected = [vec![0; 10], first, last, vec![0; 10]].concat();
            assert_eq!(to.to_vec(0, to.len()), expected, "{len}, {len_of_last}");
        }
    }
}

#[test]
fn octets_are_read_from_where_they_are() {
    let memory = own();
    for len in LENGTHS {
        let from = Buffer::zeroed(len + 20).unwrap();
        let expected = octets(len + 20, 9);
        from.write(0, &expected);
        let address = from.region().address() + 10;
        let mut bytes = vec![0; len];
        assert!(memory.read_bytes(address, &mut bytes));
        assert_eq!(bytes, expected[10..10 + len], "{len}");
        // In three slices, of which one is empty, with octets between them.
        let into = Buffer::zeroed(len + 9).unwrap();
        let region = into.region();
        let half = len / 2;
        let slices = [(2, half), (0, 0), (half + 5, len - half)];
        let slices = slices.map(|(at, len)| region.slice(at, len).unwrap());
        assert!(memory.read(address, &slices));
        let (first, second) = expected[10..10 + len].split_at(half);
        let all = [&[0; 2], first, &[0; 3], second, &[0; 4]].concat();
        assert_eq!(into.to_vec(0, len + 9), all, "{len}");
    }
}

#[test]
fn the_last_octets_are_a_part_of_their_own() {
    let from = Buffer::zeroed(70_000).unwrap();
    from.write(0, &octets(70_000, 3));
    let region = from.region();
    for (lens, expected) in [
        (&[][..], &[][..]),
        (&[0, 0], &[]),
        (&[3], &[3]),
        (&[8], &[8]),
        (&[9], &[1, 8]),
        (&[100], &[92, 8]),
        (&[3, 4], &[7]),
        (&[50, 4], &[46, 8]),
        (&[50, 1, 0, 2, 4], &[49, 8]),
        (&[50, 0, 9], &[50, 1, 8]),
        (&[70_000, 4096, 0], &[70_000, 4088, 8]),
    ] {
        let bytes = octets(70_000, 3);
        for in_regions in [false, true] {
            let pieces: Vec<_> = lens
                .iter()
                .map(|len| match in_regions {
                    false => Piece::Bytes(&bytes[..*len]),
                    true => Piece::Region(region.slice(0, *len).unwrap()),
                })
                .collect();
            let mut last = [0; LAST];
            let parts = Parts::to_write(&pieces, &mut last).unwrap();
            let cut: Vec<usize> = parts.parts[..parts.len]
                .iter()
                .map(|it| it.iov_len)
                .collect();
            assert_eq!(cut, expected, "{lens:?}");
            let all: Vec<u8> = lens
                .iter()
                .flat_map(|len| &bytes[..*len])
                .copied()
                .collect();
            let behind = &all[all.len().saturating_sub(LAST)..];
            assert_eq!(last[..behind.len()], *behind, "{lens:?}");
        }
    }
}

#[test]
fn a_copy_has_64_parts_at_most() {
    let memory = own();
    let to = Buffer::zeroed(1000).unwrap();
    let region = to.region();
    let write = |pieces: &[Piece<'_>]| memory.write(region.address(), pieces);
    let mut pieces = vec![Piece::Bytes(&[7; 2]); 64];
    assert!(write(&pieces));
    assert_eq!(to.to_vec(0, 129), [vec![7; 128], vec![0]].concat());
    pieces.push(Piece::Bytes(&[]));
    assert!(write(&pieces), "nothing is no part");
    pieces.push(Piece::Bytes(&[9; 2]));
    pieces.push(Piece::Bytes(&[9; 9]));
    assert!(!write(&pieces));
    pieces.truncate(65);
    assert_eq!(to.to_vec(0, 129), [vec![7; 128], vec![0]].concat());
    let from = Buffer::zeroed(1000).unwrap();
    let slices = vec![region.slice(500, 1).unwrap(); 66];
    assert!(memory.read(from.region().address(), &slices[..64]));
    assert!(!memory.read(from.region().address(), &slices));
}

#[test]
fn nothing_is_where_nothing_is_mapped() {
    let memory = own();
    let mut bytes = [1; 16];
    let to = Buffer::zeroed(16).unwrap();
    let region = to.region();
    let slice = region.slice(0, 16).unwrap();
    for address in [0, 4096, 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX] {
        assert!(!memory.read_bytes(address, &mut bytes), "{address:#x}");
        assert!(!memory.read(address, &[slice]), "{address:#x}");
        assert!(
            !memory.write(address, &[Piece::Bytes(&bytes)]),
            "{address:#x}"
        );
    }
    assert_eq!(bytes, [1; 16]);
}

/// A copy that reaches beyond what is mapped is none, though some octets may be copied.
#[test]
fn a_part_of_a_copy_is_no_copy() {
    let child = Running::sleeping();
    let memory = PeerMemory::open(child.0.id()).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.0.id())).unwrap();
    // Nothing is behind the stack, and nobody maps anything there.
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let (_, rest) = stack.split_once('-').unwrap();
    let end = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
    let mut bytes = [0; 16];
    assert!(memory.read_bytes(end - 16, &mut bytes));
    assert!(!memory.read_bytes(end - 15, &mut bytes));
    assert!(memory.write(end - 16, &[Piece::Bytes(&bytes)]));
    assert!(!memory.write(end - 15, &[Piece::Bytes(&bytes)]));
    let to = Buffer::zeroed(16).unwrap();
    let region = to.region();
    let halves = [0, 8].map(|at| region.slice(at, 8).unwrap());
    assert!(memory.read(end - 16, &halves) && !memory.read(end - 8, &halves));
}

#[test]
fn the_memory_of_a_process_that_ended_is_none() {
    let mut child = Running::sleeping();
    let memory = PeerMemory::open(child.0.id()).unwrap();
    let address = child.address();
    let mut bytes = [0; 8];
    assert!(memory.read_bytes(address, &mut bytes));
    assert!(memory.write(address, &[Piece::Bytes(&bytes)]));
    child.end();
    assert!(!memory.read_bytes(address, &mut bytes));
    assert!(!memory.write(address, &[Piece::Bytes(&bytes)]));
    let gone = PeerMemory::open(child.0.id()).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
}

/// Memory that was opened before is that of the program that ran then; the new program has another.
#[test]
fn the_memory_of_a_program_ends_with_it() {
    let mut command = Command::new("sh");
    command.args(["-c", "read x; exec cat"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Running::new(piped);
    let before = PeerMemory::open(child.0.id()).unwrap();
    let address = child.address();
    assert!(before.read_bytes(address, &mut [0; 8]));
    let mut input = child.0.stdin.take().unwrap();
    input.write_all(b"go\nother program\n").unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "other program\n");
    let now = child.address();
    for address in [address, now] {
        assert!(!before.read_bytes(address, &mut [0; 8]));
        assert!(!before.write(address, &[Piece::Bytes(&[0; 8])]));
    }
    assert!(own().read_bytes(line.as_ptr() as u64, &mut [0; 8]));
    let after = PeerMemory::open(child.0.id()).unwrap();
    assert!(after.read_bytes(now, &mut [0; 8]));
    assert!(!is_process_gone(child.0.id()));
}

#[test]
fn a_process_is_gone_when_it_has_ended() {
    let mut child = Running::sleeping();
    let pid = child.0.id();
    let memory = PeerMemory::open(pid).unwrap();
    let address = child.address();
    assert!(!is_process_gone(pid) && !is_process_gone(std::process::id()));
    child.0.kill().unwrap();
    // It has ended, and its parent does not know yet.
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    let flags = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: the kernel writes one structure, which is not read.
    let waited = unsafe { libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), flags) };
    assert_eq!(waited, 0);
    assert!(is_process_gone(pid));
    assert!(!memory.read_bytes(address, &mut [0; 8]));
    child.0.wait().unwrap();
    assert!(is_process_gone(pid));
    // Numbers of no process.
    assert!(!is_process_gone(0));
}

#[test]
fn a_descriptor_is_that_of_the_memory() {
    let fd = OwnedFd::from(own());
    let raw = fd.as_raw_fd();
    let memory = PeerMemory::from(fd);
    assert_eq!(memory.as_fd().as_raw_fd(), raw);
    let word = 7u64;
    let mut read = [0; 8];
    assert!(memory.read_bytes((&raw const word).addr() as u64, &mut read));
    assert_eq!(read, word.to_ne_bytes());
    // SAFETY: asks about an open descriptor.
    let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
    assert_eq!(flags, libc::FD_CLOEXEC);
}

#[test]
fn tracing_is_allowed_where_it_is_restricted() {
    let has_yama = std::path::Path::new("/proc/sys/kernel/yama").exists();
    let error = allow_tracing().err().and_then(|it| it.raw_os_error());
    assert_eq!(error, (!has_yama).then_some(libc::EINVAL));
}

/// The memory file of a part of a buffer, as a peer finds it.
fn in_memory_file(len: usize, at: usize) -> (Buffer, MemoryFile) {
    let buffer = Buffer::in_memory_file(len, |fd| fd).unwrap();
    let part = buffer.region().part(at, len - at).unwrap();
    let file = part.memory_file().unwrap();
    (buffer, file)
}

#[test]
fn a_memory_file_is_mapped_where_its_region_lies() {
    let own = std::process::id();
    for at in [0, 64, 4096, 5000] {
        let (buffer, file) = in_memory_file(20_000, at);
        assert_eq!(file.offset, at as u64);
        let mapped = PeerMemory::map(own, file, 20_000 - at).unwrap();
        assert_ne!(mapped.address(), buffer.region().address() + at as u64);
        mapped.slice(100, 5).unwrap().place(b"there");
        assert_eq!(buffer.to_vec(at + 99, 7), b"\0there\0");
        buffer.write(19_999, &[9]);
        let last = mapped.slice(20_000 - at - 1, 1).unwrap();
        assert_eq!(last.load(), 9);
        // It stays when the other mapping goes.
        drop(buffer);
        assert_eq!(last.load(), 9);
    }
    assert_eq!(Buffer::zeroed(10).unwrap().region().memory_file(), None);
}

/// A peer may name any descriptor: none that is not a memory file of this length and of a fixed size is opened, or mapped.
#[test]
fn other_files_are_not_mapped() {
    let own = std::process::id();
    let map = |file: &dyn AsRawFd, offset, len| {
        let fd = u32::try_from(file.as_raw_fd()).unwrap();
        let mapped = PeerMemory::map(own, MemoryFile { fd, offset }, len);
        mapped.map(|it| it.len()).map_err(|error| error.kind())
    };
    let refused = Err(io::ErrorKind::InvalidInput);
    let (_reader, writer) = io::pipe().unwrap();
    assert_eq!(map(&writer, 0, 1), refused);
    assert_eq!(map(&File::open("/dev/zero").unwrap(), 0, 1), refused);
    assert_eq!(map(&File::open("/proc/self/exe").unwrap(), 0, 1), refused);
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a new descriptor without another owner.
    let unsealed = unsafe { File::from_raw_fd(fd) };
    unsealed.set_len(4096).unwrap();
    assert_eq!(map(&unsealed, 0, 4096), refused);
    let sealed = crate::mapping::memory_file(c"sealed", 4096).unwrap();
    assert_eq!(map(&sealed, 0, 4096), Ok(4096));
    for (offset, len) in [(0, 4097), (4096, 1), (1, 4096), (u64::MAX, 1), (0, 0)] {
        assert_eq!(map(&sealed, offset, len), refused, "{len} at {offset}");
    }
    let missing = MemoryFile {
        fd: u32::MAX,
        offset: 0,
    };
    let error = PeerMemory::map(own, missing, 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
