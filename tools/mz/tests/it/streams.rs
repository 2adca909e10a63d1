//! Several connections of one transfer.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{Listener, fail, listing, make_tree, mz, octets, run, succeed};

#[test]
fn several_streams_carry_one_transfer() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    fs::write(tree.join("larger"), octets(9, 60_000_000)).unwrap();
    for way in [&[][..], &["--tcp"]] {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let options = [&["serve", "--read", "--code", "c", folder], way].concat();
        let server = Listener::start(&options);
        let streams = ["--streams", "4", tree.to_str().unwrap()];
        let said = succeed(&mut server.send(&[way, &streams].concat()));
        assert!(said.contains(" streams"), "{said}");
        assert_eq!(listing(here.path()), listing(there.path()));
        // And back: the end that gets the files dials.
        let back = tempfile::tempdir().unwrap();
        let get = ["get", "--code", "c", "--streams", "3", &server.host, "tree"];
        let said = succeed(mz(&get).arg(back.path()).args(way));
        assert!(said.contains(" streams"), "{said}");
        assert_eq!(listing(here.path()), listing(back.path()));
    }
}

/// The number of streams changes while a transfer runs, whichever end dials, and nothing is lost.
#[test]
fn a_number_of_streams_that_is_searched_for_loses_nothing() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    fs::write(tree.join("larger"), octets(9, 400 << 20)).unwrap();
    let there = tempfile::tempdir().unwrap();
    let folder = there.path().to_str().unwrap();
    let options = ["serve", "--tcp", "--no-sync", "--read", "--code", "c"];
    let server = Listener::start(&[&options[..], &[folder]].concat());
    // Each connection has a rate of its own, so that more of them bring more.
    let relay = Relay::slow(&server.host, 30 << 20);
    let auto = ["--tcp", "--code", "c", "--streams", "auto"];
    let tree = tree.to_str().unwrap();
    let mut command = mz(&[&["send"], &auto[..], &[tree, &relay.host]].concat());
    let said = succeed(&mut command);
    assert!(said.contains(" streams"), "{said}");
    assert_eq!(listing(here.path()), listing(there.path()));
    let back = tempfile::tempdir().unwrap();
    let mut command = mz(&[&["get", "--no-sync"], &auto[..], &[&relay.host, "tree"]].concat());
    let said = succeed(command.arg(back.path()));
    assert!(said.contains(" streams"), "{said}");
    assert_eq!(listing(here.path()), listing(back.path()));
}

/// Connections to a listener that pass through here, and how much all of them carried.
pub(crate) struct Relay {
    pub(crate) host: String,
    passing: Arc<Mutex<Vec<TcpStream>>>,
    pub(crate) octets: Arc<AtomicUsize>,
}

impl Relay {
    pub(crate) fn to(host: &str) -> Self {
        Self::slow(host, usize::MAX)
    }

    /// A relay whose connections pass so many octets a second on in each direction.
    fn slow(host: &str, rate: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            host: listener.local_addr().unwrap().to_string(),
            passing: Arc::default(),
            octets: Arc::default(),
        };
        let (passing, octets) = (Arc::clone(&relay.passing), Arc::clone(&relay.octets));
        let host = host.to_owned();
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let far = TcpStream::connect(&host).unwrap();
                let both = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                passing.lock().unwrap().extend(both);
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far, near),
                ] {
                    let octets = Arc::clone(&octets);
                    thread::spawn(move || {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            octets.fetch_add(count, Ordering::Relaxed);
                            let micros = count * 1000 / (rate / 1000);
                            thread::sleep(std::time::Duration::from_micros(micros as u64));
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        relay
    }

    /// Breaks a connection off at both ends, if it is there.
    fn cut(&self, index: usize) {
        let passing = self.passing.lock().unwrap();
        for stream in passing.iter().skip(2 * index).take(2) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits until so much has passed.
    pub(crate) fn await_octets(&self, count: usize) {
        let end = std::time::Instant::now() + crate::common::SOON;
        while self.octets.load(Ordering::Relaxed) < count {
            assert!(std::time::Instant::now() < end, "nothing passes");
            thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// The first connection is among those that break off; the last one is not.
#[test]
fn streams_that_break_off_lose_nothing() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(3, 400 << 20)).unwrap();
    for cut in [0, 1, 2] {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let server = Listener::start(&["serve", "--tcp", "--no-sync", "--code", "c", folder]);
        let relay = Relay::to(&server.host);
        let send = ["send", "--tcp", "--code", "c", "--streams", "3"];
        let mut command = mz(&[&send[..], &[file.to_str().unwrap(), &relay.host]].concat());
        let sender = thread::spawn(move || succeed(&mut command));
        relay.await_octets(60 << 20);
        relay.cut(cut);
        relay.await_octets(120 << 20);
        relay.cut((cut + 1) % 3);
        let said = sender.join().unwrap();
        assert!(said.contains("400.00 MiB in"), "{said}");
        assert_eq!(listing(here.path()), listing(there.path()));
    }
}

/// As a session of one connection ends: with an error, and what came is kept.
#[test]
fn the_last_stream_that_breaks_off_ends_the_session() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(3, 300 << 20)).unwrap();
    let there = tempfile::tempdir().unwrap();
    let folder = there.path().to_str().unwrap();
    let server = Listener::start(&["serve", "--tcp", "--no-sync", "--code", "c", folder]);
    let relay = Relay::to(&server.host);
    let send = ["send", "--tcp", "--code", "c", "--streams", "2"];
    let mut command = mz(&[&send[..], &[file.to_str().unwrap(), &relay.host]].concat());
    let sender = thread::spawn(move || fail(&mut command, "the same command goes on"));
    relay.await_octets(150 << 20);
    // Also those that are dialled anew.
    while !sender.is_finished() {
        (0..8).for_each(|index| relay.cut(index));
        thread::sleep(std::time::Duration::from_millis(1));
    }
    sender.join().unwrap();
    let again = ["send", "--tcp", "--code", "c", "--streams", "2"];
    let mut direct = mz(&[&again[..], &[file.to_str().unwrap(), &server.host]].concat());
    let end = std::time::Instant::now() + crate::common::SOON;
    let said = loop {
        let (code, said) = run(&mut direct);
        if code == Some(0) {
            break said;
        }
        // The server's end of the session before may not be over yet.
        let is_busy = said.contains("in use by another transfer");
        assert!(is_busy && std::time::Instant::now() < end, "{said}");
    };
    assert!(said.contains("were there from an earlier run"), "{said}");
    assert_eq!(listing(here.path()), listing(there.path()));
}

/// Neither a key that no session has nor the code itself lets a connection join; both count as a wrong code.
#[test]
fn a_stream_without_the_key_of_a_session_is_refused() {
    let there = tempfile::tempdir().unwrap();
    let folder = there.path().to_str().unwrap();
    let server = Listener::start(&["serve", "--tcp", "--code", "c", folder]);
    let code = dgiwarp_mz::Code::given("c").unwrap();
    for token in [[7; 16], code.files(), code.orders()] {
        let mut stream = TcpStream::connect(&server.host).unwrap();
        // HELLO of a source that joins as stream 1.
        let mut hello = b"DG\x01\x01\0\0\0\x18\0\0\0\0\x01\x04\0\x80\0\0\0\x01".to_vec();
        hello.extend(token);
        stream.write_all(&hello).unwrap();
        stream.set_read_timeout(Some(crate::common::SOON)).unwrap();
        let begun = std::time::Instant::now();
        let mut answer = Vec::new();
        // It may be reset.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
        assert!(begun.elapsed() >= std::time::Duration::from_millis(200));
    }
}
