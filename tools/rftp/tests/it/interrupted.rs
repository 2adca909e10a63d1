//! `kill -9` of either end, and the same command again.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Server, names, octets, rftp, succeed};

const SIZE: usize = 600 << 20;
/// The journal is behind by at most this, with what is on its way.
const BEHIND: u64 = (64 + 40) << 20;

fn part(root: &Path) -> u64 {
    let metadata = fs::metadata(root.join(".file.rftp-journal"));
    metadata.map_or(0, |it| it.len())
}

/// Waits until blocks are noted, or the copy has ended.
fn await_journal(root: &Path, child: &mut Child) {
    let end = Instant::now() + Duration::from_secs(100);
    while part(root) < 3000 && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "no journal");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Octets that a run sent, of its summary.
fn sent(said: &str) -> u64 {
    let (_, rest) = said.split_once("rftp: ").unwrap();
    let mut words = rest.split(' ');
    let number: f64 = words.next().unwrap().parse().unwrap();
    let factor = match words.next().unwrap() {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        other => panic!("{other}: {said}"),
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive and small"
    )]
    let octets = (number * factor) as u64;
    octets
}

/// Copies after a kill; the output. A server that has not noticed yet that the client is gone still has the file.
fn copy_again(copy: impl Fn() -> Command) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let output = copy().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return said;
        }
        assert!(
            said.contains("in use by another transfer") && Instant::now() < end,
            "{said}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_copy_goes_on_after_kill_9_of_either_end() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(7, SIZE)).unwrap();
    let file = file.to_str().unwrap();
    for (kill_server, tcp) in [(false, false), (true, false), (true, true)] {
        let root = tempfile::tempdir().unwrap();
        let mut server = Server::start(root.path(), &["--write", "--no-sync"]);
        let options: &[&str] = if tcp { &["--tcp"] } else { &[] };
        let copy = |server: &Server| rftp(&[options, &[file, &server.url("")]].concat());
        let mut child = copy(&server).stderr(Stdio::piped()).spawn().unwrap();
        await_journal(root.path(), &mut child);
        let begun = Instant::now();
        if kill_server {
            server.child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(
                said.contains("gone") || said.contains("lost") || said.contains("closed"),
                "{said}"
            );
            assert!(begun.elapsed() < Duration::from_secs(30));
            server = Server::start(root.path(), &["--write", "--no-sync"]);
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!root.path().join("file").exists());
        let said = copy_again(|| copy(&server));
        assert!(said.contains("were there from an earlier run"), "{said}");
        assert!(sent(&said) < SIZE as u64, "{said}");
        assert_eq!(names(root.path()), ["file"]);
        assert_eq!(
            fs::read(root.path().join("file")).unwrap(),
            fs::read(file).unwrap()
        );
    }
}

#[test]
fn a_fetch_goes_on_after_kill_9_of_either_end() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), octets(8, SIZE)).unwrap();
    // A fetch that is whole before the kill is none that goes on.
    let interrupted =
        |kill_server| (0..50).any(|_| fetch_goes_on_after_kill_9(root.path(), kill_server));
    for kill_server in [false, true] {
        assert!(interrupted(kill_server), "each was whole before the kill");
    }
}

/// Kills an end of a fetch and fetches again. Returns whether something was left to fetch.
fn fetch_goes_on_after_kill_9(root: &Path, kill_server: bool) -> bool {
    let here = tempfile::tempdir().unwrap();
    let mut server = Server::start(root, &[]);
    let to = here.path().to_str().unwrap();
    let copy = |server: &Server| rftp(&["--no-sync", &server.url("file"), to]);
    let mut child = copy(&server).stderr(Stdio::null()).spawn().unwrap();
    await_journal(here.path(), &mut child);
    if kill_server {
        server.child.kill().unwrap();
        child.wait().unwrap();
        server = Server::start(root, &[]);
    } else {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let was_whole = here.path().join("file").exists();
    let said = succeed(&mut copy(&server));
    assert!(
        was_whole || said.contains("were there from an earlier run"),
        "{said}"
    );
    assert_eq!(names(here.path()), ["file"]);
    assert_eq!(fs::read(here.path().join("file")).unwrap(), octets(8, SIZE));
    !was_whole
}

/// Kills either end at random points, and checks each time that the next run sends what was missing and little more, and that nothing wrong is under the name.
#[test]
#[ignore = "twenty minutes"]
fn soak_kill_9_at_random_points() {
    let count: u64 = std::env::var("RFTP_KILLS").map_or(200, |it| it.parse().unwrap());
    let here = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = here.path().join("file");
    let content = octets(9, SIZE);
    fs::write(&file, &content).unwrap();
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let name = file.to_str().unwrap();
    let mut server = Server::start(root.path(), &["--write"]);
    let (mut kills, mut whole, mut most) = (0, 0, 0);
    let mut state = 88_172_645_463_325_252_u64;
    while kills < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let tcp: &[&str] = if state & 1 == 0 { &["--tcp"] } else { &[] };
        let copy = |server: &Server| rftp(&[tcp, &[name, &server.url("")]].concat());
        let mut child = copy(&server).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis((state >> 8) % 900));
        let over = child.try_wait().unwrap().is_some();
        if state & 2 == 0 {
            child.kill().unwrap();
        } else {
            server.child.kill().unwrap();
        }
        child.wait().unwrap();
        if state & 2 != 0 {
            server = Server::start(root.path(), &["--write"]);
        }
        kills += u64::from(!over);
        let path = root.path().join("file");
        if path.exists() {
            assert_eq!(fs::read(&path).unwrap(), content, "after {kills} kills");
        }
        if state & 12 == 0 || over {
            let missing = if path.exists() {
                0
            } else {
                SIZE as u64 - part(root.path()).saturating_sub(48) / 44 * (1 << 20)
            };
            let said = copy_again(|| copy(&server));
            assert!(
                sent(&said) <= missing + BEHIND,
                "{missing} were missing: {said}"
            );
            most = most.max(sent(&said).saturating_sub(missing));
            assert_eq!(names(root.path()), ["file"]);
            assert_eq!(fs::read(&path).unwrap(), content, "after {kills} kills");
            whole += 1;
            fs::remove_file(&path).unwrap();
        }
    }
    println!(
        "{kills} kills, {whole} copies brought to their end, at most {most} octets more than were missing"
    );
}
