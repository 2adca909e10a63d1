//! Failures: each is reported, and loses nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_transfer::disk::{Root, TreeSink, TreeSinkOptions};
use dgiwarp_transfer::engine::{Failure, Next};
use dgiwarp_transfer::wire::{Entry, FileKind, Frame, HEADER, Header, Hello, Role, Status};
use dgiwarp_transfer::{Control, Error, Event, Port, Source, Summary, receive};

use crate::common::{KINDS, Kind, SOON, any_port, dial, place, port, random, run, small, tree};

/// One file whose octets are made here, with an octet flipped once per block, a cancellation, a change, or a wrong name.
#[derive(Debug)]
struct Made {
    octets: Vec<u8>,
    name: &'static [u8],
    changed: bool,
    /// Octets after which the source stops.
    stop_at: Option<(u64, dgiwarp_transfer::Cancel)>,
}

impl Made {
    fn new(octets: Vec<u8>, name: &'static [u8]) -> Self {
        let (changed, stop_at) = (false, None);
        Self {
            octets,
            name,
            changed,
            stop_at,
        }
    }
}

impl Source for Made {
    fn next(&self, file: u32) -> Next {
        if file > 0 {
            return Next::End;
        }
        Next::Entry(Entry {
            kind: FileKind::File,
            mode: 0o640,
            modified: (5, 6),
            size: self.octets.len() as u64,
            identity: [1; 16],
            name: self.name.to_vec(),
            target: Vec::new(),
            attributes: None,
        })
    }

    fn read(&self, _: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        let start = usize::try_from(offset).unwrap();
        octets.copy_from_slice(&self.octets[start..start + octets.len()]);
        if let Some((at, cancel)) = &self.stop_at
            && offset >= *at
        {
            cancel.cancel();
        }
        Ok(())
    }

    fn check(&self, _: u32) -> Result<(), Failure> {
        if self.changed {
            return Err(Failure::new(Status::Changed, "changed while it was read"));
        }
        Ok(())
    }

    fn close(&self, _: u32) {}
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn finished(events: &[Event]) -> Vec<Status> {
    let of = |event: &Event| match event {
        Event::Finished { status, .. } => Some(*status),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Receives below `path` in a thread; the outcome, and the time from the peer's hello on.
fn receive_into(path: &Path, port: Port) -> thread::JoinHandle<(Result<Summary, Error>, Duration)> {
    let sink = place(path);
    thread::spawn(move || {
        let (options, control) = (small(), Control::new().unwrap());
        let peer = port.accept(&options.token, None, SOON, &control).unwrap();
        let begun = Instant::now();
        let received = receive(peer, sink, &options, &control, &mut |_| {});
        (received, begun.elapsed())
    })
}

/// A source that has sent its hello.
fn greet(address: SocketAddr, token: [u8; 16]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let hello = Hello {
        packs: false,
        streams: false,
        joins: false,
        deltas: false,
        encrypts: false,
        attributes: false,
        role: Role::Source,
        receives: 128,
        block: 1024,
        token,
    };
    stream.write_all(&Frame::Hello(hello).emit(0)).unwrap();
    stream
}

#[test]
fn an_interrupted_file_goes_on_where_it_was() {
    const SIZE: usize = 20 << 20;
    for kind in KINDS {
        let to = tempfile::tempdir().unwrap();
        let control = Control::new().unwrap();
        let mut source = Made::new(random(3, SIZE), b"x");
        source.stop_at = Some((SIZE as u64 / 2, control.cancel()));
        let port = port(kind);
        let address = port.local_addr().unwrap();
        let options = small();
        let receiving = receive_into(to.path(), port);
        let connection = dial(kind, address).unwrap();
        let sent = dgiwarp_transfer::send(
            connection,
            Arc::new(source),
            &options,
            &control,
            &mut |_| {},
        );
        assert!(matches!(sent, Err(Error::Cancelled)), "{sent:?}");
        let (received, _) = receiving.join().unwrap();
        assert!(matches!(received, Err(Error::Ended { .. })), "{received:?}");
        assert_eq!(
            names(to.path()),
            [".x.rftp-journal", ".x.rftp-part"],
            "{kind:?}"
        );

        let source = Made::new(random(3, SIZE), b"x");
        let (sent, received, _) = run(kind, Arc::new(source), place(to.path()), options);
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert!(sent.resumed > SIZE as u64 / 3, "{kind:?} {sent:?}");
        assert_eq!(sent.resumed + sent.octets, SIZE as u64);
        assert_eq!(received.resumed, sent.resumed);
        assert_eq!(names(to.path()), ["x"]);
        assert_eq!(fs::read(to.path().join("x")).unwrap(), random(3, SIZE));

        // Another state of the file begins anew, and the former stays until it is whole.
        let mut source = Made::new(random(4, SIZE + 1), b"x");
        source.changed = true;
        let (sent, _, events) = run(kind, Arc::new(source), place(to.path()), options);
        assert_eq!(sent.unwrap().failed, 1);
        assert_eq!(finished(&events), [Status::Changed]);
        assert_eq!(names(to.path()), ["x"]);
        assert_eq!(fs::read(to.path().join("x")).unwrap(), random(3, SIZE));
    }
}

#[test]
fn names_from_the_wire_do_not_leave_the_root() {
    let outer = tempfile::tempdir().unwrap();
    let to = outer.path().join("root");
    fs::create_dir(&to).unwrap();
    symlink(outer.path(), to.join("out")).unwrap();
    for name in [
        &b"../x"[..],
        b"/tmp/x",
        b"a/../../x",
        b"out/x",
        b"x\0y",
        b".",
    ] {
        let source = Arc::new(Made::new(vec![7; 100], name));
        let (sent, _, events) = run(Kind::Tcp, source, place(&to), small());
        assert_eq!(sent.unwrap().failed, 1, "{name:?}");
        assert!(
            matches!(finished(&events)[..], [Status::Name | Status::Failed]),
            "{events:?}"
        );
        assert_eq!(names(outer.path()), ["root"], "{name:?}");
    }
    assert_eq!(names(&to), ["out"]);
}

#[test]
fn two_writers_of_one_file_do_not_mix() {
    let to = tempfile::tempdir().unwrap();
    let first = place(to.path());
    let entry = Made::new(random(1, 200_000), b"x").next(0);
    let Next::Entry(entry) = entry else { panic!() };
    dgiwarp_transfer::Sink::begin(&*first, 0, &entry, 65_536).unwrap();
    let source = Arc::new(Made::new(random(2, 200_000), b"x"));
    let (_, _, events) = run(Kind::Rc, source, place(to.path()), small());
    assert_eq!(finished(&events), [Status::Busy]);
    drop(first);
    assert!(names(to.path()).is_empty());
}

#[test]
fn files_that_cannot_be_read_or_written_are_named() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("good"), "g").unwrap();
    nix_fifo(&from.path().join("pipe"));
    let to = tempfile::tempdir().unwrap();
    fs::create_dir(to.path().join("good")).unwrap();
    let (sent, _, events) = run(Kind::Tcp, tree(from.path()), place(to.path()), small());
    assert_eq!(sent.unwrap().failed, 2);
    let pipe = |event: &Event| matches!(event, Event::Unreadable { name, .. } if name == "pipe");
    assert!(events.iter().any(pipe), "{events:?}");
    let text =
        |event: &Event| matches!(event, Event::Finished { text, .. } if text.contains("directory"));
    assert!(events.iter().any(text), "{events:?}");
}

fn nix_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo")
        .arg(path)
        .status()
        .unwrap();
    assert!(made.success());
}

#[test]
fn the_mode_and_time_are_those_of_the_source() {
    use std::os::unix::fs::MetadataExt as _;
    let to = tempfile::tempdir().unwrap();
    let source = Arc::new(Made::new(vec![1; 10], b"deep/er/x"));
    run(Kind::Tcp, source, place(to.path()), small()).0.unwrap();
    let metadata = fs::metadata(to.path().join("deep/er/x")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o640);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (5, 6));
}

#[test]
fn a_peer_without_the_token_gets_nothing() {
    let port = port(Kind::Tcp);
    let address = port.local_addr().unwrap();
    let control = Control::new().unwrap();
    let stranger = thread::spawn(move || {
        let mut stream = greet(address, [1; 16]);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    let accepted = port.accept(&[2; 16], None, Duration::from_secs(2), &control);
    assert!(matches!(accepted, Err(Error::NoPeer)), "{accepted:?}");
    assert_eq!(stranger.join().unwrap(), b"");
}

#[test]
fn a_violation_is_answered_with_the_reason() {
    let to = tempfile::tempdir().unwrap();
    let port = port(Kind::Tcp);
    let address = port.local_addr().unwrap();
    let receiving = receive_into(to.path(), port);
    let mut stream = greet(address, small().token);
    let mut answer = vec![0; 36];
    stream.read_exact(&mut answer).unwrap();
    stream.write_all(&Frame::Finish.emit(900)).unwrap();
    stream.read_to_end(&mut answer).unwrap();
    let mut rest = &answer[..];
    let mut last = None;
    while let Some((header, more)) = rest.split_first_chunk::<HEADER>() {
        let header = Header::parse(header).unwrap();
        let (body, more) = more.split_at(header.length as usize);
        last = Some(Frame::parse(header.kind, body).unwrap());
        rest = more;
    }
    assert!(matches!(last, Some(Frame::Abort(_))), "{last:?}");
    assert!(matches!(
        receiving.join().unwrap().0,
        Err(Error::Violation(_))
    ));
}

#[test]
fn a_peer_that_closes_is_found_at_once() {
    let to = tempfile::tempdir().unwrap();
    let port = port(Kind::Tcp);
    let address = port.local_addr().unwrap();
    let receiving = receive_into(to.path(), port);
    drop(greet(address, small().token));
    let (result, after) = receiving.join().unwrap();
    assert!(matches!(result, Err(Error::Carrier(_))), "{result:?}");
    assert!(after < Duration::from_secs(20), "{after:?}");
}

#[test]
fn nobody_at_the_address_is_an_error() {
    for kind in KINDS {
        let unused = std::net::TcpListener::bind(any_port())
            .unwrap()
            .local_addr()
            .unwrap();
        let error = dial(kind, unused).unwrap_err();
        assert!(error.to_string().contains("refused"), "{kind:?}: {error}");
    }
}

#[test]
fn an_unfinished_small_file_leaves_nothing() {
    let to = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(to.path()).unwrap());
    let sink = TreeSink::new(root, "".into(), TreeSinkOptions::default());
    let Next::Entry(entry) = Made::new(random(1, 100), b"x").next(0) else {
        panic!()
    };
    dgiwarp_transfer::Sink::begin(&sink, 0, &entry, 65_536).unwrap();
    assert_eq!(names(to.path()), [".x.rftp-part"]);
    dgiwarp_transfer::Sink::abandon(&sink, 0, true);
    assert!(names(to.path()).is_empty());
}
