//! The lab with real namespaces, processes and signals.

mod relay;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use xtask::lab::{Config, INTERFACE, Lab, Link, Namespace, Side};
use xtask::skips::{self, skip};

/// A lab, or a skipped test where this machine has no namespaces.
fn lab(test: &str, config: &Config) -> Option<Lab> {
    skips::made(test, Lab::new(config))
}

fn sh(lab: &Lab, side: Side, script: &str) -> String {
    let output = lab
        .command(side, "sh")
        .args(["-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The `xtask` program with the arguments of a lab.
fn xtask_lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("lab").args(arguments);
    command
}

/// Whether these words report that this machine has no lab, or none with a relay.
fn has_no_lab(stderr: &str) -> bool {
    ["no network namespaces here", "no TUN devices here"]
        .iter()
        .any(|words| stderr.contains(words))
}

/// `xtask lab` as a user without rights, from a copy of the program where that user can reach it.
fn xtask_lab_as_nobody(folder: &Path, arguments: &[&str]) -> Command {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("xtask");
    fs::copy(env!("CARGO_BIN_EXE_xtask"), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(copy)
        .arg("lab")
        .args(arguments)
        .current_dir(folder);
    command
}

/// Processes whose command line has this word. A test puts a word of its own into the processes that must vanish.
fn processes_with(word: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(word))
        .collect()
}

fn listener(port: u16, then: &str) -> String {
    format!(
        "perl -e 'use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => \"10.99.0.1\", \
         LocalPort => {port}) or die; {then}'"
    )
}

const HELLO: &str = "my $c = $s->accept; print $c \"hello\\n\"; close $c; sleep 1000;";

fn client(port: u16) -> String {
    format!(
        "perl -e 'use IO::Socket::INET; my $c = IO::Socket::INET->new(\"$ENV{{LAB_SERVER}}:{port}\") or die; \
         print <$c>; exit 7'"
    )
}

#[test]
fn packets_pass_both_ways_over_ipv4_and_ipv6() {
    let Some(lab) = lab(
        "packets_pass_both_ways_over_ipv4_and_ipv6",
        &Config::default(),
    ) else {
        return;
    };
    let host = fs::read_link("/proc/self/ns/net").unwrap();
    let inside = sh(&lab, Side::Server, "readlink /proc/self/ns/net");
    assert_ne!(
        inside.trim(),
        host.to_str().unwrap(),
        "the command must not run in the host's network"
    );
    // Each end sends one datagram to the other and prints what it received.
    let script = |bind: &str, peer: &str| {
        format!(
            "perl -e 'use IO::Socket::IP; my $s = IO::Socket::IP->new(Proto => \"udp\", LocalHost => \"{bind}\", \
             LocalPort => 9) or die $!; alarm 5; \
             if (\"{peer}\" ne \"\") {{ my $c = IO::Socket::IP->new(Proto => \"udp\", LocalHost => \"{bind}\", \
             PeerHost => \"{peer}\", PeerPort => 9) or die $!; $c->send(\"ping\") or die $!; $c->recv(my $b, 9); \
             print $b; }} else {{ my $from = $s->recv(my $b, 9); $s->send(\"$b-pong\", 0, $from); }}'"
        )
    };
    for (server, client) in [
        (Side::Server.address(), Side::Client.address()),
        (Side::Server.address6(), Side::Client.address6()),
    ] {
        if server.is_ipv6() && !lab.namespace(Side::Server).has_ipv6() {
            continue;
        }
        for (answering, at, asking, from) in [
            (Side::Server, server, Side::Client, client),
            (Side::Client, client, Side::Server, server),
        ] {
            let mut echo = lab
                .command(answering, "sh")
                .args(["-c", &script(&at.to_string(), "")])
                .spawn()
                .unwrap();
            let holder = lab.namespace(answering).holder();
            while !xtask::lab::is_listening(holder, Some(9)) {
                assert!(echo.try_wait().unwrap().is_none(), "the echo program ended");
                std::thread::yield_now();
            }
            assert_eq!(
                sh(&lab, asking, &script(&from.to_string(), &at.to_string())),
                "ping-pong"
            );
            assert!(echo.wait().unwrap().success());
        }
    }
}

#[test]
fn the_link_is_as_configured() {
    let config = Config {
        mtu: 1400,
        wire_like: true,
        link: Link::Veth,
    };
    let Some(lab) = lab("the_link_is_as_configured", &config) else {
        return;
    };
    for side in [Side::Server, Side::Client] {
        let link = sh(&lab, side, &format!("ip -o link show {INTERFACE}"));
        assert!(
            link.contains(" mtu 1400 ") && link.contains(" state UP "),
            "{link}"
        );
        let features = sh(
            &lab,
            side,
            &format!("PATH=$PATH:/usr/sbin:/sbin ethtool -k {INTERFACE}"),
        );
        for expected in [
            "tcp-segmentation-offload: off",
            "generic-segmentation-offload: off",
            "tx-udp-segmentation: off",
            "generic-receive-offload: on",
        ] {
            assert!(features.contains(expected), "{expected} not in {features}");
        }
    }
}

#[test]
fn a_namespace_alone_has_only_loopback() {
    if lab("a_namespace_alone_has_only_loopback", &Config::default()).is_none() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let output = namespace
        .command("ip")
        .args(["-o", "link"])
        .output()
        .unwrap();
    let links = String::from_utf8(output.stdout).unwrap();
    assert_eq!(links.lines().count(), 1, "{links}");
    assert!(links.contains(": lo: ") && links.contains(",UP"), "{links}");
}

/// Runs a session and checks that the client's output and status come through and that nothing stays.
fn session(test: &str, port: u16, lab: impl FnOnce(&[&str]) -> Command) {
    let marker = format!("lab-marker-{test}");
    let server = format!(": {marker}; {} & wait", listener(port, HELLO));
    let wait = format!("--wait-port={port}");
    let client = client(port);
    let arguments = [&wait, "--", "sh", "-c", &server, "--", "sh", "-c", &client];
    let Output {
        status,
        stdout,
        stderr,
    } = lab(&arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    if has_no_lab(&stderr) {
        return skip(test, stderr.trim());
    }
    assert_eq!(status.code(), Some(7), "{stderr}");
    assert_eq!(String::from_utf8(stdout).unwrap(), "hello\n");
    assert_eq!(processes_with(&marker), Vec::<String>::new());
}

#[test]
fn a_session_ends_with_the_clients_status_and_leaves_nothing() {
    session(
        "a_session_ends_with_the_clients_status_and_leaves_nothing",
        7001,
        xtask_lab,
    );
}

#[test]
fn a_session_works_without_root() {
    // An ordinary user has just done it in the test above.
    if nix::unistd::geteuid().is_root() {
        let folder = tempfile::tempdir().unwrap();
        session("a_session_works_without_root", 7002, |arguments| {
            xtask_lab_as_nobody(folder.path(), arguments)
        });
    }
}

#[test]
fn a_server_that_never_comes_up_is_an_error() {
    for (server, message) in [
        ("exit 3", "it ended with exit status: 3"),
        ("sleep 1000", "nothing on port 7003 after 1 s"),
    ] {
        let output = xtask_lab(&[
            "--wait=1",
            "--wait-port=7003",
            "--",
            "sh",
            "-c",
            server,
            "--",
            "echo",
            "client ran",
        ])
        .output()
        .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains("no network namespaces here") {
            return skip("a_server_that_never_comes_up_is_an_error", stderr.trim());
        }
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains(message), "{stderr}");
        assert!(output.stdout.is_empty(), "the client must not start");
    }
}

/// Starts a session with an endless client, ends `xtask` with a signal, and looks for what stayed.
fn interrupted(test: &str, port: u16, options: &[&str], signal: Signal) {
    let marker = format!("lab-marker-{test}");
    let server = format!(": {marker}; {} & wait", listener(port, "sleep 1000;"));
    let endless = format!(": {marker}; echo running; setsid sleep 1000 & wait");
    let commands = ["--", "sh", "-c", &server, "--", "sh", "-c", &endless];
    let mut lab = xtask_lab(&[options, &commands].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(lab.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line.is_empty() {
        let mut stderr = String::new();
        lab.stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        assert!(has_no_lab(&stderr), "{stderr}");
        lab.wait().unwrap();
        return skip(test, stderr.trim());
    }
    assert_eq!(line, "running\n");
    let pid = Pid::from_raw(i32::try_from(lab.id()).unwrap());
    let inside = namespaces_of(&marker);
    assert_eq!(
        inside.len(),
        2,
        "one namespace for the server, one for the client"
    );
    match signal {
        // From the terminal it goes to the whole group.
        Signal::SIGINT => killpg(pid, signal).unwrap(),
        _ => kill(pid, signal).unwrap(),
    }
    let status = lab.wait().unwrap();
    if signal != Signal::SIGKILL {
        assert_eq!(status.code(), Some(128 + signal as i32));
    }
    // After SIGKILL the holders do the work, on their own time.
    let deadline = std::time::Duration::from_secs(5);
    let left = || (namespaces_of(&marker), processes_in(&inside));
    let mut now = left();
    let mut waited = std::time::Duration::ZERO;
    while now != (Vec::new(), Vec::new()) && waited < deadline {
        Command::new("sleep").arg("0.1").status().unwrap();
        waited += std::time::Duration::from_millis(100);
        now = left();
    }
    assert_eq!(
        now,
        (Vec::new(), Vec::new()),
        "processes or namespaces are left"
    );
}

/// Network namespaces of the processes whose command line has this word, apart from the test's own.
fn namespaces_of(word: &str) -> Vec<String> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let mut found: Vec<_> = fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            fs::read(path.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
        })
        .filter_map(|path| fs::read_link(path.join("ns/net")).ok())
        .filter(|namespace| *namespace != own)
        .map(|namespace| namespace.to_string_lossy().into_owned())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Processes that live in one of these namespaces.
fn processes_in(namespaces: &[String]) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            fs::read_link(path.join("ns/net"))
                .is_ok_and(|of| namespaces.iter().any(|one| of.to_str() == Some(one)))
        })
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn ctrl_c_leaves_nothing() {
    interrupted("ctrl_c_leaves_nothing", 7004, &[], Signal::SIGINT);
}

#[test]
fn termination_leaves_nothing() {
    interrupted("termination_leaves_nothing", 7005, &[], Signal::SIGTERM);
}

#[test]
fn even_sigkill_leaves_nothing() {
    interrupted("even_sigkill_leaves_nothing", 7006, &[], Signal::SIGKILL);
}
