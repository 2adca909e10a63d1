//! Connections with a secret: what is legible on the wire, and peers that listen, change octets or have another secret.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dgiwarp_transfer::wire::{Frame, Hello, KeyShare, Method, Role};
use dgiwarp_transfer::{
    CarrierError, Connection, Control, Error, Options, Port, Secret, Sink, Source, Stranger,
    Summary, receive, send,
};

use crate::common::{
    KINDS, Kind, SOON, any_port, dial, listing, make_tree, place, port, random, small, tree,
};

/// Octets that would be seen.
const CONTENTS: &[u8] = b"the contents of the file are secret";
const NAME: &str = "a name that is secret";

fn code(text: &str) -> Secret {
    Secret::Password(text.into())
}

/// The sink's end of a session at a port.
fn listen(
    port: Port,
    secret: Secret,
    sink: Arc<dyn Sink>,
    options: Options,
) -> thread::JoinHandle<Result<Summary, Option<Error>>> {
    thread::spawn(move || {
        let control = Control::new().unwrap();
        let arriving = loop {
            if let Some(arriving) = port.arrive(SOON, &control).map_err(Some)? {
                break arriving;
            }
        };
        let greeted = arriving.greet_protected(&[secret], &control);
        let mut connection = greeted.map_err(|_: Stranger| None)?;
        assert!(connection.is_protected() && connection.has_token(&options.token));
        let join = connection.joinable(&control).unwrap();
        let watch = control.watch();
        let joins = thread::spawn(move || {
            let control = Control::new().unwrap();
            while watch.is_running() {
                let arrived = port.arrive(Duration::from_millis(50), &control);
                let Ok(Some(arriving)) = arrived else {
                    continue;
                };
                if let Ok(connection) = arriving.greet_protected(&[join.secret()], &control) {
                    assert!(join.is_of(&connection));
                    join.give(connection);
                }
            }
        });
        let done = receive(connection, sink, &options, &control, &mut |_| {});
        drop(control);
        joins.join().unwrap();
        done.map_err(Some)
    })
}

fn put(
    connection: Result<Connection, Error>,
    secret: &Secret,
    source: Arc<dyn Source>,
    options: &Options,
) -> Result<Summary, Error> {
    let control = Control::new().unwrap();
    let connection = connection?.protected(secret, &control)?;
    send(connection, source, options, &control, &mut |_| {})
}

fn encrypted() -> Options {
    Options {
        encrypt: true,
        ..small()
    }
}

/// A way between two ends, which hands octets on.
struct Proxy {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    /// Of the octets of the dialler, the one at `flipped` is changed.
    fn start(to: SocketAddr, flipped: Option<usize>) -> Self {
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(to).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            let answers = Arc::clone(&record);
            thread::spawn(move || carry(back.0, back.1, None, &answers));
            carry(near, far, flipped, &record);
        });
        Self { address, seen }
    }

    fn saw(&self, octets: &[u8]) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.windows(octets.len()).any(|it| it == octets)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, flipped: Option<usize>, seen: &Mutex<Vec<u8>>) {
    let mut octets = vec![0; 1 << 16];
    let mut at = 0;
    while let Ok(count) = from.read(&mut octets) {
        if count == 0 {
            break;
        }
        let octets = &mut octets[..count];
        if let Some(flipped) = flipped
            && (at..at + count).contains(&flipped)
        {
            octets[flipped - at] ^= 0x10;
        }
        at += count;
        seen.lock().unwrap().extend_from_slice(octets);
        if to.write_all(octets).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A tree with something to see.
fn make_legible(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::write(path.join(NAME), CONTENTS).unwrap();
    let mut long = random(1, 300_000);
    long[200_000..200_000 + CONTENTS.len()].copy_from_slice(CONTENTS);
    fs::write(path.join("long"), long).unwrap();
}

#[test]
fn trees_move_over_queue_pairs_and_tcp() {
    for kind in KINDS {
        let key = Secret::Preshared([3; 16]);
        for (options, secret) in [(encrypted(), code("x")), (small(), key)] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            make_tree(from.path());
            let port = port(kind);
            let at = port.local_addr().unwrap();
            let sink = listen(port, secret.clone(), place(to.path()), small());
            let further = Arc::new(move || dial(kind, at));
            let first = dial(kind, at).map(|it| it.with_streams(3, further));
            let sent = put(first, &secret, tree(from.path()), &options).unwrap();
            let received = sink.join().unwrap().unwrap();
            assert_eq!((sent.failed, sent.stored), (0, received.stored));
            assert_eq!(listing(from.path()), listing(to.path()));
        }
    }
}

#[test]
fn files_that_changed_move_as_encrypted_deltas() {
    for kind in KINDS {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut contents = random(5, 2_000_000);
        for round in 0..2 {
            contents[1_000_000 + round] ^= 1;
            fs::write(from.path().join("file"), &contents).unwrap();
            let port = port(kind);
            let at = port.local_addr().unwrap();
            let sink = listen(port, code("x"), place(to.path()), small());
            let sent = put(dial(kind, at), &code("x"), tree(from.path()), &encrypted());
            let sent = sent.unwrap();
            let received = sink.join().unwrap().unwrap();
            assert_eq!((sent.stored, sent.repeated), (received.stored, 0));
            assert_eq!(sent.copied > 1_500_000, round == 1, "{sent:?}");
            assert_eq!(fs::read(to.path().join("file")).unwrap(), contents);
        }
    }
}

#[test]
fn names_are_not_legible_and_contents_only_where_nobody_asked_for_their_encryption() {
    // The peer's wish, this end's, nobody's.
    for (own, peer) in [(true, false), (false, true), (false, false)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make_legible(from.path());
        let port = port(Kind::Tcp);
        let proxy = Proxy::start(port.local_addr().unwrap(), None);
        let wish = |encrypt| Options { encrypt, ..small() };
        let sink = listen(port, code("x"), place(to.path()), wish(peer));
        let connection = dial(Kind::Tcp, proxy.address);
        put(connection, &code("x"), tree(from.path()), &wish(own)).unwrap();
        sink.join().unwrap().unwrap();
        assert_eq!(listing(from.path()), listing(to.path()));
        assert!(!proxy.saw(NAME.as_bytes()));
        assert!(!proxy.saw(&small().token), "the token");
        assert_eq!(proxy.saw(CONTENTS), !(own || peer), "{own} {peer}");
    }
}

#[test]
fn an_octet_that_is_changed_on_the_way_is_in_no_file() {
    let from = tempfile::tempdir().unwrap();
    make_legible(from.path());
    let (mut repeated, mut ended) = (0, 0);
    // KEY_SHARE, HELLO, frames, and the blocks of the long file.
    let places = [0, 5, 20, 40, 63, 64, 70, 90, 110, 150, 300, 700];
    let blocks = (1..12).map(|it| it * 25_000);
    for (index, at) in places.into_iter().chain(blocks).enumerate() {
        let to = tempfile::tempdir().unwrap();
        let port = port(Kind::Tcp);
        let proxy = Proxy::start(port.local_addr().unwrap(), Some(at));
        let options = [encrypted(), small()][index % 2];
        let sink = listen(port, code("x"), place(to.path()), options);
        let connection = dial(Kind::Tcp, proxy.address);
        let sent = put(connection, &code("x"), tree(from.path()), &options);
        let received = sink.join().unwrap();
        if let (Ok(sent), Ok(_)) = (&sent, &received) {
            // Not all octets of a header matter: those of `reserved` fields, for one.
            assert_eq!(listing(from.path()), listing(to.path()));
            repeated += sent.repeated;
            continue;
        }
        ended += 1;
        for name in [NAME, "long"] {
            let Ok(octets) = fs::read(to.path().join(name)) else {
                continue;
            };
            assert_eq!(octets, fs::read(from.path().join(name)).unwrap(), "{at}");
        }
    }
    assert!(repeated > 0 && ended > 0, "{repeated} {ended}");
}

#[test]
fn another_secret_is_the_end_for_both() {
    let there = || tempfile::tempdir().unwrap();
    for kind in KINDS {
        let key = |octet| Secret::Preshared([octet; 16]);
        for (one, other) in [
            (code("x"), code("y")),
            (key(1), key(2)),
            (code("x"), key(1)),
        ] {
            let (from, to) = (there(), there());
            make_legible(from.path());
            let port = port(kind);
            let at = port.local_addr().unwrap();
            let sink = listen(port, one, place(to.path()), small());
            let sent = put(dial(kind, at), &other, tree(from.path()), &encrypted());
            let sent = sent.unwrap_err();
            assert!(
                matches!(sent, Error::Carrier(CarrierError::Lost(_))),
                "{sent}"
            );
            assert!(sink.join().unwrap().unwrap_err().is_none());
            assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn ends_without_protection_are_not_taken_for_others() {
    let from = tempfile::tempdir().unwrap();
    make_legible(from.path());
    for kind in KINDS {
        // A dialler without, and a listener that wants it.
        let to = tempfile::tempdir().unwrap();
        let at_port = port(kind);
        let at = at_port.local_addr().unwrap();
        let sink = listen(at_port, code("x"), place(to.path()), small());
        let control = Control::new().unwrap();
        let plain = dial(kind, at).unwrap();
        let sent = send(plain, tree(from.path()), &small(), &control, &mut |_| {});
        assert!(sent.is_err());
        assert!(sink.join().unwrap().unwrap_err().is_none());
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
        // A listener without.
        let at_port = port(kind);
        let at = at_port.local_addr().unwrap();
        let control = Control::new().unwrap();
        let cancel = control.cancel();
        let accepting = thread::spawn(move || {
            let accepted = at_port.accept(&small().token, None, SOON, &control);
            accepted.map(drop)
        });
        let sent = put(dial(kind, at), &code("x"), tree(from.path()), &small());
        assert!(matches!(sent, Err(Error::Carrier(CarrierError::Lost(_)))));
        cancel.cancel();
        assert!(matches!(accepting.join().unwrap(), Err(Error::Cancelled)));
    }
    // Encryption without a secret.
    let listener = TcpListener::bind(any_port()).unwrap();
    let plain = dial(Kind::Tcp, listener.local_addr().unwrap()).unwrap();
    let control = Control::new().unwrap();
    let source = tree(from.path());
    let sent = send(plain, source, &encrypted(), &control, &mut |_| {});
    assert!(matches!(sent, Err(Error::Option(_))));
}

/// A stranger that speaks TCP by itself: a HELLO in plain text right behind its share, so that both are read at once; and a session that was recorded.
#[test]
fn frames_behind_a_share_and_recorded_sessions_are_refused() {
    let to = tempfile::tempdir().unwrap();
    let hello = Frame::Hello(Hello {
        role: Role::Source,
        packs: true,
        streams: false,
        joins: false,
        deltas: false,
        encrypts: false,
        attributes: false,
        receives: 128,
        block: 1 << 16,
        token: small().token,
    });
    let share = Frame::KeyShare(KeyShare {
        method: Method::Preshared,
        identity: share_of(&Secret::Preshared([1; 16])),
        share: vec![0; 32],
    });
    let early = [share.emit(0), hello.emit(0)].concat();
    let from = tempfile::tempdir().unwrap();
    make_legible(from.path());
    let key = Secret::Preshared([1; 16]);
    let port_of_record = port(Kind::Tcp);
    let proxy = Proxy::start(port_of_record.local_addr().unwrap(), None);
    let there = tempfile::tempdir().unwrap();
    let sink = listen(port_of_record, key.clone(), place(there.path()), small());
    put(
        dial(Kind::Tcp, proxy.address),
        &key,
        tree(from.path()),
        &small(),
    )
    .unwrap();
    sink.join().unwrap().unwrap();
    let recorded = proxy.seen.lock().unwrap().clone();
    for octets in [early, recorded] {
        let port = port(Kind::Tcp);
        let at = port.local_addr().unwrap();
        let sink = listen(port, key.clone(), place(to.path()), small());
        let mut stream = TcpStream::connect(at).unwrap();
        let _ = stream.write_all(&octets);
        assert!(sink.join().unwrap().unwrap_err().is_none());
        stream.set_read_timeout(Some(SOON)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }
}

/// The identity on the wire, as a dialler sends it.
fn share_of(secret: &Secret) -> [u8; 16] {
    let listener = TcpListener::bind(any_port()).unwrap();
    let at = listener.local_addr().unwrap();
    let secret = secret.clone();
    let dialler = thread::spawn(move || {
        let control = Control::new().unwrap();
        let _ = Connection::tcp(at).unwrap().protected(&secret, &control);
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut octets = [0; 32];
    stream.read_exact(&mut octets).unwrap();
    drop(stream);
    dialler.join().unwrap();
    octets[16..].try_into().unwrap()
}
