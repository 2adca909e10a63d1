//! Two ends in one process.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dgiwarp::{Config, Rnic};
use dgiwarp_transfer::disk::{Item, Root, TreeSink, TreeSinkOptions, TreeSource};
use dgiwarp_transfer::{
    Connection, Control, Error, Event, Options, Port, Sink, Source, Summary, receive, send,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

pub(crate) const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Tcp,
}

pub(crate) const KINDS: [Kind; 2] = [Kind::Rc, Kind::Tcp];

pub(crate) fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) fn port(kind: Kind) -> Port {
    match kind {
        Kind::Rc => Port::rc(&Rnic::open(Config::default()).unwrap(), any_port()).unwrap(),
        Kind::Tcp => Port::tcp(any_port()).unwrap(),
    }
}

pub(crate) fn dial(kind: Kind, to: SocketAddr) -> Result<Connection, Error> {
    match kind {
        Kind::Rc => Connection::rc(&Rnic::open(Config::default()).unwrap(), to),
        Kind::Tcp => Connection::tcp(to),
    }
}

pub(crate) fn small() -> Options {
    Options {
        block: 64 << 10,
        slots: 8,
        token: [9; 16],
        deltas: true,
        ..Options::default()
    }
}

pub(crate) type Ended = (Result<Summary, Error>, Result<Summary, Error>, Vec<Event>);

/// Moves; the results of source and sink, and the source's events. The sink listens.
pub(crate) fn run(
    kind: Kind,
    source: Arc<dyn Source>,
    sink: Arc<dyn Sink>,
    options: Options,
) -> Ended {
    let port = port(kind);
    let address = port.local_addr().unwrap();
    let receiving = thread::spawn(move || {
        let control = Control::new().unwrap();
        let peer = port.accept(&options.token, None, SOON, &control)?;
        receive(peer, sink, &options, &control, &mut |_| {})
    });
    let mut events = Vec::new();
    let sent = dial(kind, address).and_then(|connection| {
        let mut note = |event: &Event| events.push(event.clone());
        send(
            connection,
            source,
            &options,
            &Control::new().unwrap(),
            &mut note,
        )
    });
    (sent, receiving.join().unwrap(), events)
}

pub(crate) fn tree(path: &Path) -> Arc<TreeSource> {
    let item = Item {
        root: Arc::new(Root::open(path).unwrap()),
        path: "".into(),
        name: "".into(),
    };
    Arc::new(TreeSource::new(vec![item]))
}

pub(crate) fn place(path: &Path) -> Arc<TreeSink> {
    let root = Arc::new(Root::open(path).unwrap());
    Arc::new(TreeSink::new(root, "".into(), TreeSinkOptions::default()))
}

pub(crate) fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut octets);
    octets
}

/// A tree with what trees have.
pub(crate) fn make_tree(path: &Path) {
    fs::create_dir_all(path.join("a/b/c")).unwrap();
    fs::create_dir(path.join("empty")).unwrap();
    for (index, length) in [0, 1, 1023, 65_536, 65_537, 3_000_000]
        .into_iter()
        .enumerate()
    {
        let folder = ["", "a", "a/b", "a/b/c"][index % 4];
        fs::write(
            path.join(folder).join(format!("file {index}")),
            random(index as u64, length),
        )
        .unwrap();
    }
    for index in 0..150 {
        fs::write(
            path.join("a").join(format!("small-{index}")),
            random(index, 100),
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("../nowhere", path.join("a/link")).unwrap();
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"not utf-8 \xff");
    fs::write(path.join::<&std::ffi::OsStr>(name), "x").unwrap();
}

/// Names, kinds, modes, times and contents below a path.
pub(crate) fn listing(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if metadata.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else {
                blake3_of(&fs::read(&path).unwrap())
            };
            let times = (metadata.mtime(), metadata.mtime_nsec());
            let path = path.strip_prefix(root).unwrap();
            found.push(format!(
                "{path:?} {:o} {times:?} {content}",
                metadata.mode()
            ));
        }
    }
    found.sort();
    found
}

fn blake3_of(octets: &[u8]) -> String {
    blake3::hash(octets).to_hex().to_string()
}
