//! Search for the program, and checks that its dynamic linker will load our library.

use nix::unistd::{AccessFlags, access, getegid, geteuid, getuid};
use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Architecture, BinaryFormat, Endianness, FileKind, Object, ReadCache, ReadRef};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Error: the program does not exist.
#[derive(Debug, Error)]
pub(crate) enum FindError {
    /// Not in any directory of `PATH`.
    #[error("{}: not found in PATH", .0.display())]
    NotInPath(PathBuf),
    /// A path without a file.
    #[error("{}: no such file", .0.display())]
    NoFile(PathBuf),
}

/// Reason why a program would not run with our library.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Execute permission is missing.
    #[error("it is not an executable file")]
    NotExecutable,
    /// For set-user-ID files the dynamic linker ignores LD_LIBRARY_PATH.
    #[error(
        "it is set-user-ID or set-group-ID, and the dynamic linker then ignores the search path; run it as its owner, or a copy without that bit"
    )]
    SetId,
    /// The file has capabilities of its own.
    #[error(
        "it has file capabilities, and the dynamic linker then ignores the search path; run it as root, or a copy without them"
    )]
    Capabilities,
    /// The interpreter of a script is missing or not executable.
    #[error("its interpreter {} is missing or not executable", .0.display())]
    NoInterpreter(PathBuf),
    /// More nested scripts than the kernel allows.
    #[error("its interpreter is a script, whose interpreter is a script, and so on")]
    TooManyScripts,
    /// The program is statically linked.
    #[error("it is statically linked, so no library can be put under it; link it dynamically")]
    Static,
    /// The program has another dynamic linker than the library.
    #[error("its dynamic linker is {}, and this library needs that of the GNU C library", .0.display())]
    OtherLinker(PathBuf),
    /// The program is for another architecture than the library.
    #[error("it is for {program}, this library for {library}", program = .0, library = env::consts::ARCH)]
    Architecture(String),
    /// Neither ELF nor a script.
    #[error("it is neither an ELF program nor a script")]
    Format,
}

/// Finds a program as a shell does.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, FindError> {
    let name = Path::new(program);
    if program.as_bytes().contains(&b'/') {
        return if name.exists() {
            Ok(name.to_owned())
        } else {
            Err(FindError::NoFile(name.to_owned()))
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let found = env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file));
    found.ok_or_else(|| FindError::NotInPath(name.to_owned()))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Most nested scripts, as in the kernel.
const MAX_SCRIPTS: usize = 5;

/// Checks that the dynamic linker of a program, or of a script's interpreter, will load our library.
pub(crate) fn check(path: &Path) -> Result<(), Refusal> {
    if !is_executable(path) {
        return Err(Refusal::NotExecutable);
    }
    let mut path = path.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        match interpreter(&path) {
            Ok(Some(interpreter)) if is_executable(&interpreter) => path = interpreter,
            Ok(Some(interpreter)) => return Err(Refusal::NoInterpreter(interpreter)),
            Ok(None) => return check_binary(&path),
            // A program may be executable without being readable; then it shows what it is by running.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::TooManyScripts)
}

/// The interpreter that a script's first line names.
fn interpreter(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut head = [0; 256];
    let length = File::open(path)?.read(&mut head)?;
    let Some(line) = head.get(..length).and_then(|head| head.strip_prefix(b"#!")) else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.split(u8::is_ascii_whitespace);
    Ok(words
        .map(OsStr::from_bytes)
        .find(|word| !word.is_empty())
        .map(PathBuf::from))
}

/// The extended attribute that file capabilities are in.
const CAPABILITIES: &str = "security.capability";

fn check_binary(path: &Path) -> Result<(), Refusal> {
    let metadata = fs::metadata(path)?;
    let mode = metadata.permissions().mode();
    let other_user = mode & 0o4000 != 0 && metadata.uid() != geteuid().as_raw();
    let other_group = mode & 0o2000 != 0 && metadata.gid() != getegid().as_raw();
    if other_user || other_group {
        return Err(Refusal::SetId);
    }
    // Capabilities have no effect for root. A file system without attributes has no capabilities.
    if !getuid().is_root() && xattr::get(path, CAPABILITIES).is_ok_and(|value| value.is_some()) {
        return Err(Refusal::Capabilities);
    }
    let data = ReadCache::new(File::open(path)?);
    check_elf(&data)
}

fn check_elf<'a, R: ReadRef<'a>>(data: R) -> Result<(), Refusal> {
    let format = |_| Refusal::Format;
    let file = object::File::parse(data).map_err(format)?;
    if file.format() != BinaryFormat::Elf {
        return Err(Refusal::Format);
    }
    if file.architecture() != own_architecture() {
        return Err(Refusal::Architecture(
            format!("{:?}", file.architecture()).to_lowercase(),
        ));
    }
    let linker = match FileKind::parse(data).map_err(format)? {
        FileKind::Elf32 => dynamic_linker::<FileHeader32<Endianness>, R>(data),
        FileKind::Elf64 => dynamic_linker::<FileHeader64<Endianness>, R>(data),
        _ => return Err(Refusal::Format),
    };
    match linker.map_err(format)? {
        None => Err(Refusal::Static),
        // musl's and others take LD_PRELOAD too, and then fail over what only the GNU C library has.
        Some(linker) if !is_gnu(&linker) => Err(Refusal::OtherLinker(linker)),
        Some(_) => Ok(()),
    }
}

/// The dynamic linker that starts the program, if one does.
fn dynamic_linker<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
    data: R,
) -> object::read::Result<Option<PathBuf>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            return Ok(Some(PathBuf::from(OsStr::from_bytes(path))));
        }
    }
    Ok(None)
}

/// Every name of the GNU C library's dynamic linker, on any architecture and in any folder, begins in one of two ways.
fn is_gnu(linker: &Path) -> bool {
    let name = linker.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so")
}

/// The architecture of this program, and so of the library built with it.
fn own_architecture() -> Architecture {
    if cfg!(target_arch = "aarch64") {
        Architecture::Aarch64
    } else {
        Architecture::X86_64
    }
}
