//! Service of files: `get NAME` yields the octets of a file, `list` the names.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use dgiwarp_ripc::{Code, Endpoint, MethodId, Payload, Request, Status};
use nix::fcntl::OFlag;

use crate::keys::ServerKeys;
use crate::{Cli, Failure, report_refused};

const GET: MethodId = MethodId::named("get");
const LIST: MethodId = MethodId::named("list");
/// Octets of a file that are read at a time.
const PIECE: usize = 256 << 10;
/// Files up to this length go inside of the reply.
const SHORT: u64 = 4096;
/// Longest file.
const LONGEST: u64 = 1 << 30;

pub(crate) fn serve(
    cli: &Cli,
    folder: &Path,
    listen: SocketAddr,
    service: &str,
    keys: &ServerKeys,
) -> Result<(), Failure> {
    let folder = fs::canonicalize(folder)
        .map_err(|error| Failure::Text(format!("{}: {error}", folder.display())))?;
    let mut config = cli.config();
    config.listen = Some(listen);
    keys.apply(&mut config)?;
    let endpoint = Endpoint::open(config)?;
    let blocks = endpoint.clone();
    endpoint.serve(service, move |request| answer(&blocks, &folder, &request))?;
    if let Some(address) = endpoint.local_addr() {
        println!("{service} at {address}");
    }
    report_refused(&endpoint)
}

fn answer(endpoint: &Endpoint, folder: &Path, request: &Request) -> Result<Payload, Status> {
    match request.method {
        GET => get(endpoint, folder, &request.payload.bytes(0), request),
        LIST => list(folder),
        _ => Err(Status::new(Code::Unimplemented, "methods: get, list")),
    }
}

/// The path of a name: below the folder, without `..`, and without a symbolic link that leads out.
fn path_of(folder: &Path, name: &[u8]) -> Result<PathBuf, Status> {
    let refuse = || {
        Status::new(
            Code::InvalidArgument,
            "not the name of a file of the folder",
        )
    };
    let name = Path::new(std::str::from_utf8(name).map_err(|_| refuse())?);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.as_os_str().is_empty() || !name.components().all(plain) {
        return Err(refuse());
    }
    let path = fs::canonicalize(folder.join(name)).map_err(|error| missing(&error))?;
    if path.starts_with(folder) {
        Ok(path)
    } else {
        Err(refuse())
    }
}

fn missing(error: &std::io::Error) -> Status {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        std::io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        _ => Code::Internal,
    };
    Status::new(code, error.to_string())
}

fn get(
    endpoint: &Endpoint,
    folder: &Path,
    name: &[u8],
    request: &Request,
) -> Result<Payload, Status> {
    let path = path_of(folder, name)?;
    // A FIFO would make the thread wait for its other end.
    let options = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(&path);
    let mut file: File = options.map_err(|error| missing(&error))?;
    let metadata = file.metadata().map_err(|error| missing(&error))?;
    if !metadata.is_file() {
        return Err(Status::new(Code::InvalidArgument, "not a regular file"));
    }
    if metadata.len() > LONGEST {
        let text = format!("{} bytes, and at most {LONGEST} are served", metadata.len());
        return Err(Status::new(Code::OutOfRange, text));
    }
    if metadata.len() <= SHORT {
        let mut octets = Vec::new();
        let read = file.take(SHORT).read_to_end(&mut octets);
        read.map_err(|error| missing(&error))?;
        return Ok(Payload::short(octets));
    }
    let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    let no_memory = |_| Status::new(Code::ResourceExhausted, "no memory for the file");
    let mut block = endpoint.block(length).map_err(no_memory)?;
    let mut piece = vec![0; PIECE.min(length)];
    let mut at = 0;
    while at < length {
        if request.is_cancelled() {
            return Err(Status::new(Code::Cancelled, "cancelled"));
        }
        let most = piece.len().min(length - at);
        let read = file
            .read(&mut piece[..most])
            .map_err(|error| missing(&error))?;
        if read == 0 {
            break;
        }
        let written = block.write(at, &piece[..read]);
        written.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        at += read;
    }
    // A file that became shorter meanwhile.
    block.truncate(at);
    Ok(Payload::long(block))
}

fn list(folder: &Path) -> Result<Payload, Status> {
    let entries = fs::read_dir(folder).map_err(|error| missing(&error))?;
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let is_file = entry.metadata().is_ok_and(|it| it.is_file());
        if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(Payload::short(
        names
            .iter()
            .map(|name| format!("{name}\n"))
            .collect::<String>(),
    ))
}
