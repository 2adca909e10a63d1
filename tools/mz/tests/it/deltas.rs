//! Files that changed, of which the receiving end has an old copy.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use crate::common::{Listener, listing, mz, octets, run, succeed};
use crate::streams::Relay;

const MIB: usize = 1 << 20;

fn serve(folder: &Path) -> Listener {
    let folder = folder.to_str().unwrap();
    Listener::start(&[
        "serve",
        "--tcp",
        "--no-sync",
        "--read",
        "--code",
        "c",
        folder,
    ])
}

fn sync(folder: &Path, host: &str, options: &[&str]) -> Command {
    let folder = folder.to_str().unwrap();
    mz(&[&["sync", "--tcp", "--code", "c", folder, host], options].concat())
}

#[test]
fn only_the_change_of_a_file_is_sent_in_both_directions() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = octets(1, 20 * MIB);
    fs::write(there.path().join("image"), &old).unwrap();
    let new = [&octets(2, 1000)[..], &old[..10 * MIB], &old[11 * MIB..]].concat();
    fs::write(here.path().join("image"), &new).unwrap();
    let server = serve(there.path());
    let relay = Relay::to(&server.host);
    let said = succeed(&mut sync(
        here.path(),
        &relay.host,
        &["--delta", "--streams", "3"],
    ));
    assert!(said.contains("of them from old copies"), "{said}");
    assert_eq!(listing(here.path()), listing(there.path()));
    let carried = relay.octets.load(Ordering::Relaxed);
    assert!(carried < MIB, "{carried} octets");
    // And back, by another address, as the source is the end that serves.
    fs::write(here.path().join("image"), &old).unwrap();
    let back = [
        "sync",
        "--tcp",
        "--code",
        "c",
        "--json",
        "--delta",
        "--from",
        &relay.host,
    ];
    let said = succeed(mz(&back).arg(here.path()));
    assert_eq!(listing(here.path()), listing(there.path()));
    assert!(!said.contains("\"copied\":0,"), "{said}");
    let carried = relay.octets.load(Ordering::Relaxed) - carried;
    assert!(carried < MIB, "{carried} octets");
    // Only where a user wants it.
    fs::write(here.path().join("image"), &old).unwrap();
    succeed(&mut sync(here.path(), &relay.host, &[]));
    assert!(relay.octets.load(Ordering::Relaxed) - carried > 19 * MIB);
    assert_eq!(listing(here.path()), listing(there.path()));
}

/// The first half of the file changed. The receiving end is killed while that comes: the second run sends what was not noted, and copies the second half.
#[test]
fn a_delta_goes_on_after_kill_9() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (octets(1, 200 * MIB), octets(2, 100 * MIB));
    fs::write(
        there.path().join("image"),
        [&octets(3, 7)[..], &second].concat(),
    )
    .unwrap();
    fs::write(here.path().join("image"), [first, second].concat()).unwrap();
    let mut server = serve(there.path());
    let relay = Relay::to(&server.host);
    let mut command = sync(here.path(), &relay.host, &["--delta"]);
    let sender = std::thread::spawn(move || run(&mut command));
    relay.await_octets(150 * MIB);
    server.kill();
    let (code, said) = sender.join().unwrap();
    assert_eq!(code, Some(1), "{said}");
    let before = fs::read(there.path().join("image")).unwrap();
    assert_eq!(before.len(), 100 * MIB + 7, "the old copy stays");
    let server = serve(there.path());
    let relay = Relay::to(&server.host);
    let said = succeed(&mut sync(here.path(), &relay.host, &["--delta"]));
    assert!(said.contains("were there from an earlier run"), "{said}");
    assert!(said.contains("of them from old copies"), "{said}");
    assert_eq!(listing(here.path()), listing(there.path()));
    let carried = relay.octets.load(Ordering::Relaxed);
    assert!(carried < (50 + 64 + 5) * MIB, "{carried} octets");
}
