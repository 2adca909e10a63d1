//! `rftp cp`: one session for each source at a server, or one for all sources of this host.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_transfer::disk::{Item, Root, TreeSink, TreeSinkOptions, TreeSource};
use dgiwarp_transfer::{
    Connection, Control as SessionControl, Error, Event, Options, Port, Secret, Summary, receive,
    send,
};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show, Streams};

use super::control::{Control, Reply};
use super::ftp;
use super::tls::Tls;
use super::url::{Place, Scheme, Url};

/// Order of a copy.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Sources.
    pub sources: Vec<Place>,
    /// Destination.
    pub destination: Place,
    /// How data moves.
    pub carriage: Carriage,
    /// The server connects to this host for the data.
    pub active: bool,
    /// Time for a reply of a server, and for progress of an FTP server's data connection.
    pub patience: Duration,
    /// FTP servers hash each file that was copied.
    pub verify: bool,
    /// TLS of control connections, and of FTP's data connections; `None`: without.
    pub tls: Option<Tls>,
    /// Handling of files that are fetched.
    pub sink: TreeSinkOptions,
    /// Output.
    pub show: Show,
}

/// Copies.
///
/// # Errors
/// [`Failed`].
pub fn run(copy: &Copy) -> Result<(), Failed> {
    check(copy)?;
    let mut progress = Progress::new(copy.show, true);
    let here = |place: &Place| matches!(place, Place::Here(_));
    let done = match &copy.destination {
        Place::There(url) if copy.sources.iter().all(here) => put(copy, url, &mut progress),
        Place::Here(path) if !copy.sources.iter().any(here) => get(copy, path, &mut progress),
        _ => Err(Failed::Usage(
            "either all sources or the destination must be URLs, not both".into(),
        )),
    };
    progress.end(&done, None)
}

/// Refuses options that FTP servers have no use for.
fn check(copy: &Copy) -> Result<(), Failed> {
    let mut places = copy.sources.iter().chain([&copy.destination]);
    let is_ftp = places.any(|it| matches!(it, Place::There(url) if url.scheme != Scheme::Rftp));
    let Carriage {
        streams, options, ..
    } = &copy.carriage;
    if is_ftp && (copy.active || *streams != Streams::Fixed(1) || options.deltas) {
        let text = "--active, --streams and --delta are for rftp://".into();
        return Err(Failed::Usage(text));
    }
    Ok(())
}

/// Sends files of this host.
fn put(copy: &Copy, url: &Url, progress: &mut Progress) -> Result<Summary, Failed> {
    let paths = copy.sources.iter().filter_map(|place| match place {
        Place::Here(path) => Some(path),
        Place::There(_) => None,
    });
    let paths: Vec<_> = paths.collect();
    // Before anything is connected: most mistakes are here.
    for path in &paths {
        fs::symlink_metadata(path)
            .map_err(|error| Failed::Session(format!("{}: {error}", path.display())))?;
    }
    let source = |is_there: bool| {
        let into = url.is_directory() || paths.len() > 1 || is_there;
        let mut items = Vec::new();
        for path in &paths {
            let item = Item::of(path, into)
                .map_err(|error| Failed::Session(format!("{}: {error}", path.display())))?;
            items.push(item);
        }
        Ok(Arc::new(TreeSource::new(items)))
    };
    if url.scheme != Scheme::Rftp {
        return ftp::put(copy, url, source, progress);
    }
    let mut control = open(copy, url)?;
    let source = source(is_directory(&mut control, url)?)?;
    let command = [b"RSTR ", &url.path[..]].concat();
    session(copy, &mut control, &command, |connection, options, own| {
        send(connection, source, options, own, &mut |event: &Event| {
            progress.note(event)
        })
    })
}

/// Fetches files of servers.
fn get(copy: &Copy, path: &Path, progress: &mut Progress) -> Result<Summary, Failed> {
    let is_directory = path.is_dir();
    let ends = path.as_os_str().as_bytes().ends_with(b"/");
    let into = is_directory || ends || copy.sources.len() > 1;
    let named = |error: std::io::Error| Failed::Session(format!("{}: {error}", path.display()));
    if into && !is_directory {
        fs::create_dir(path).map_err(named)?;
    }
    let mut all = Summary::default();
    for place in &copy.sources {
        let Place::There(url) = place else { continue };
        let (folder, target) = if into {
            (path, PathBuf::from(url.name()))
        } else {
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            let name = path.file_name().unwrap_or_default();
            (
                parent.unwrap_or_else(|| Path::new(".")),
                PathBuf::from(name),
            )
        };
        let root = Arc::new(Root::open(folder).map_err(named)?);
        let sink = TreeSink::new(Arc::clone(&root), target.clone(), copy.sink);
        let summary = match url.scheme {
            Scheme::Rftp => fetch(copy, url, Arc::new(sink), progress)?,
            Scheme::Ftp | Scheme::Ftps => ftp::get(copy, url, &sink, &root, &target, progress)?,
        };
        all.stored += summary.stored;
        all.present += summary.present;
        all.failed += summary.failed;
        all.octets += summary.octets;
        all.copied += summary.copied;
        all.resumed += summary.resumed;
        all.repeated += summary.repeated;
        all.streams = all.streams.max(summary.streams);
    }
    Ok(all)
}

/// Fetches by a session.
fn fetch(
    copy: &Copy,
    url: &Url,
    sink: Arc<TreeSink>,
    progress: &mut Progress,
) -> Result<Summary, Failed> {
    let mut control = open(copy, url)?;
    let command = [b"RRTR ", &url.path[..]].concat();
    session(copy, &mut control, &command, |connection, options, own| {
        receive(connection, sink, options, own, &mut |event: &Event| {
            progress.note(event)
        })
    })
}

fn open(copy: &Copy, url: &Url) -> Result<Control, Failed> {
    Control::open(url, copy.patience, copy.tls.as_ref()).map_err(Failed::Session)
}

fn is_directory(control: &mut Control, url: &Url) -> Result<bool, Failed> {
    let reply = control
        .ask(&[b"MLST ", &url.path])
        .map_err(Failed::Session)?;
    Ok(reply.code == 250 && reply.text.contains("type=dir;"))
}

/// Agrees on a connection, begins with a command, and runs a session.
fn session<R>(copy: &Copy, control: &mut Control, command: &[u8], run: R) -> Result<Summary, Failed>
where
    R: FnOnce(Connection, &Options, &SessionControl) -> Result<Summary, Error>,
{
    let failed = |text: String| Failed::Session(text);
    let own = SessionControl::new().map_err(Failed::of)?;
    let kind = if copy.carriage.tcp { "TCP" } else { "RC" };
    let mut options = copy.carriage.options;
    let meeting = if copy.active {
        let local = SocketAddr::new(control.local().map_err(failed)?.ip(), 0);
        let (port, address) = copy.carriage.listen(local)?;
        getrandom::fill(&mut options.token).map_err(Failed::of)?;
        let family = if address.is_ipv4() { 1 } else { 2 };
        let (ip, number) = (address.ip(), address.port());
        let token = u128::from_be_bytes(options.token);
        let line = format!("RADR {kind} |{family}|{ip}|{number}| TOKEN={token:032x}");
        expect(control.ask(&[line.as_bytes()]).map_err(failed)?)?;
        Meeting::Accept(port)
    } else {
        let reply = expect(control.ask(&[b"RPSV ", kind.as_bytes()]).map_err(failed)?)?;
        let (port, token) = passive(&reply.text)
            .ok_or_else(|| failed(format!("not a reply to RPSV: {}", reply.text)))?;
        options.token = token;
        Meeting::Dial(SocketAddr::new(control.peer.ip(), port))
    };
    let begun = control.ask(&[command]).map_err(failed)?;
    if begun.code != 150 {
        return Err(failed(begun.text));
    }
    let connection = match meeting {
        Meeting::Accept(port) => {
            let (token, peer) = (&options.token, Some(control.peer.ip()));
            if control.is_private() {
                port.accept_protected(token, peer, CONNECT, &own)?
            } else {
                port.accept(token, peer, CONNECT, &own)?
            }
        }
        Meeting::Dial(to) => {
            let connection = copy.carriage.dial(&[to])?;
            if control.is_private() {
                connection.protected(&Secret::Preshared(options.token), &own)?
            } else {
                connection
            }
        }
    };
    options.encrypt = control.is_private();
    let summary = run(connection, &options, &own)?;
    let reply = control.reply().map_err(failed)?;
    if reply.code == 226 || summary.failed > 0 && reply.code == 451 {
        return Ok(summary);
    }
    if reply.code == 451 {
        // Entries that the other end could not read.
        let failed = summary.failed.max(1);
        eprintln!("rftp: {}", reply.text);
        return Ok(Summary { failed, ..summary });
    }
    Err(failed(reply.text))
}

/// Time for the server to connect to this host.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

enum Meeting {
    Dial(SocketAddr),
    Accept(Port),
}

fn expect(reply: Reply) -> Result<Reply, Failed> {
    if reply.is_good() {
        Ok(reply)
    } else {
        Err(Failed::Session(reply.text))
    }
}

/// Port and token of a reply to RPSV.
fn passive(text: &str) -> Option<(u16, [u8; 16])> {
    let (_, rest) = text.split_once("(|||")?;
    let (port, rest) = rest.split_once("|)")?;
    let (_, token) = rest.split_once("TOKEN=")?;
    let token = u128::from_str_radix(token.trim(), 16).ok()?;
    Some((port.parse().ok()?, token.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passive_reply_has_port_and_token() {
        let text = "Entering RDMA passive mode (|||258|) TOKEN=000102030405060708090a0b0c0d0e0f";
        let token = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(passive(text), Some((258, token)));
        assert_eq!(passive("Entering (|||258|)"), None);
    }
}
