//! Files that changed, of which the sink has an old copy: octets that it has are not sent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dgiwarp_transfer::disk::TreeSink;
use dgiwarp_transfer::engine::{Begun, Failure};
use dgiwarp_transfer::wire::Entry;
use dgiwarp_transfer::{Control, Options, Sink, Summary, receive, send};

use crate::common::{KINDS, Kind, SOON, dial, listing, place, port, random, run, small, tree};

const MIB: usize = 1 << 20;

/// Passes one connection on, and counts its octets in both directions.
fn counted(to: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let octets = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&octets);
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        for (mut from, mut to) in [(near, far), back] {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    count.fetch_add(read as u64, Ordering::Relaxed);
                    if to.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    (address, octets)
}

/// Moves a tree; the source's summary, and all octets on the wire.
fn move_counted(from: &Path, sink: Arc<dyn Sink>, ends: [Options; 2]) -> (Summary, u64) {
    let port = port(Kind::Tcp);
    let (address, octets) = counted(port.local_addr().unwrap());
    let [ours, theirs] = ends;
    let receiving = thread::spawn(move || {
        let control = Control::new().unwrap();
        let peer = port.accept(&theirs.token, None, SOON, &control).unwrap();
        receive(peer, sink, &theirs, &control, &mut |_| {}).unwrap()
    });
    let connection = dial(Kind::Tcp, address).unwrap();
    let control = Control::new().unwrap();
    let sent = send(connection, tree(from), &ours, &control, &mut |_| {}).unwrap();
    let received = receiving.join().unwrap();
    assert_eq!(
        (sent.octets, sent.copied),
        (received.octets, received.copied)
    );
    assert_eq!(sent.failed, 0);
    (sent, octets.load(Ordering::Relaxed))
}

#[test]
fn a_change_costs_little_more_than_itself() {
    const SIZE: usize = 64 * MIB;
    let old = random(1, SIZE);
    let scattered = {
        // One page in a hundred.
        let mut octets = old.clone();
        for page in (0..SIZE / 4096).step_by(100) {
            let at = (page * 7919 % (SIZE / 4096)) * 4096;
            octets[at..at + 4096].copy_from_slice(&random(page as u64 + 2, 4096));
        }
        octets
    };
    let front = [random(2, 5000), old.clone()].concat();
    let behind = [old.clone(), random(2, 5000)].concat();
    let cut = [&old[..MIB / 3], &old[MIB / 2..SIZE / 2 + 77]].concat();
    let options = Options {
        block: 1 << 20,
        ..small()
    };
    for (name, new, percent) in [
        ("scattered", scattered, 2.5),
        ("front", front, 0.5),
        ("behind", behind, 0.5),
        ("cut", cut, 0.5),
    ] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("x"), &new).unwrap();
        fs::write(to.path().join("x"), &old).unwrap();
        let (sent, octets) = move_counted(from.path(), place(to.path()), [options; 2]);
        assert_eq!(listing(from.path()), listing(to.path()), "{name}");
        assert_eq!(sent.octets, new.len() as u64, "{name}");
        let most = SIZE as f64 * percent / 100.0;
        assert!((octets as f64) < most, "{name}: {octets} octets, {sent:?}");
        assert!(sent.copied < sent.octets && sent.octets - sent.copied < octets);
    }
}

/// As a peer of before, or a user who wants that.
#[test]
fn an_end_without_deltas_sends_and_gets_the_whole_file() {
    let whole = Options {
        deltas: false,
        ..small()
    };
    for ends in [[small(), whole], [whole, small()]] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut octets = random(1, 4 * MIB);
        fs::write(to.path().join("x"), &octets).unwrap();
        // Another size: times of files are coarse.
        octets.push(1);
        fs::write(from.path().join("x"), &octets).unwrap();
        let (sent, wire) = move_counted(from.path(), place(to.path()), ends);
        assert_eq!(listing(from.path()), listing(to.path()));
        assert_eq!((sent.octets, sent.copied), (4 * MIB as u64 + 1, 0));
        assert!(wire > 4 * MIB as u64);
    }
}

/// A sink whose old copy changes when the first block is written.
#[derive(Debug)]
struct Changing {
    sink: Arc<TreeSink>,
    old: PathBuf,
    to: Vec<u8>,
    is_changed: AtomicBool,
}

impl Sink for Changing {
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        self.sink.begin(file, entry, block)
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        if !self.is_changed.swap(true, Ordering::SeqCst) {
            fs::write(&self.old, &self.to).unwrap();
        }
        self.sink.write(file, offset, octets)
    }

    fn old_copy(&self, file: u32) -> Option<u64> {
        self.sink.old_copy(file)
    }

    fn read_old_copy(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        self.sink.read_old_copy(file, offset, octets)
    }

    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        self.sink.sync(file, blocks)
    }

    fn finish(&self, file: u32, root: &[u8; 32]) -> Result<(), Failure> {
        self.sink.finish(file, root)
    }

    fn abandon(&self, file: u32, keep: bool) {
        self.sink.abandon(file, keep);
    }
}

#[test]
fn blocks_of_an_old_copy_that_changed_meanwhile_come_whole() {
    const SIZE: usize = 8 * MIB;
    let new = random(1, SIZE);
    // Shorter, longer, and with other octets.
    let others = [Vec::new(), random(2, SIZE), random(3, 2 * SIZE)];
    for (kind, to) in KINDS.into_iter().cycle().zip(others) {
        let (from, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("x"), &new).unwrap();
        let old = there.path().join("x");
        fs::write(&old, [&b"before"[..], &new].concat()).unwrap();
        let is_changed = AtomicBool::new(false);
        let sink = Changing {
            sink: place(there.path()),
            old: old.clone(),
            to,
            is_changed,
        };
        let (sent, received, _) = run(kind, tree(from.path()), Arc::new(sink), small());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert_eq!(fs::read(&old).unwrap(), new);
        assert_eq!(sent.octets, SIZE as u64);
        assert!(sent.repeated > 10 && sent.failed == 0, "{sent:?}");
        assert_eq!(sent.copied, received.copied);
        assert!(sent.copied < SIZE as u64 / 2, "{sent:?}");
    }
}
