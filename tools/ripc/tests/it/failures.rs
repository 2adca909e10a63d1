//! Servers that are killed, stopped, or not there.

use std::fs;
use std::time::{Duration, Instant};

use dgiwarp_ripc::{CallOptions, Client, Code, Config, Endpoint, MethodId, Payload};
use nix::sys::signal::Signal;

use super::{SOON, Server, ripc};

const GET: MethodId = MethodId::named("get");

fn client(server: &Server) -> Client {
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    endpoint.client(
        "files".parse().unwrap(),
        vec![server.address.parse().unwrap()],
    )
}

/// A server with a file that takes a while, and a client of it that is connected.
fn started() -> (tempfile::TempDir, Server, Client) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small"), "few\n").unwrap();
    let server = Server::start(folder.path());
    let client = client(&server);
    let reply = client.call(GET, Payload::short("small"), &CallOptions::timeout(SOON));
    assert_eq!(reply.unwrap().bytes(0), b"few\n");
    (folder, server, client)
}

#[test]
fn calls_of_a_killed_server_fail_at_once() {
    let (_folder, server, client) = started();
    // It answers nothing any more, so that all of them are pending when it is killed.
    server.stop();
    let mut options = CallOptions::default();
    options.timeout = None;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            client
                .begin(GET, Payload::short("small"), &options)
                .unwrap()
        })
        .collect();
    let killed = Instant::now();
    server.signal(Signal::SIGKILL);
    for call in calls {
        let status = call.wait().unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{status}");
    }
    // Five seconds are promised; the machine may be loaded.
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed.elapsed()
    );
    let status = client.call(GET, Payload::new(), &options).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[test]
fn calls_of_a_stopped_server_end_by_their_deadline_or_by_silence() {
    let (_folder, server, client) = started();
    server.stop();
    let begun = Instant::now();
    let mut options = CallOptions::default();
    options.timeout = None;
    let endless = client
        .begin(GET, Payload::short("small"), &options)
        .unwrap();
    let short = CallOptions::timeout(Duration::from_millis(300));
    let status = client
        .call(GET, Payload::short("small"), &short)
        .unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let status = endless.wait().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    // It goes on, and serves those that connect again.
    server.signal(Signal::SIGCONT);
    let reply = client.call(GET, Payload::short("small"), &CallOptions::timeout(SOON));
    assert_eq!(reply.unwrap().bytes(0), b"few\n");
}

#[test]
fn a_server_killed_in_the_middle_of_a_long_item_gives_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = fs::File::create(folder.path().join("big")).unwrap();
    file.set_len(1 << 30).unwrap();
    let server = Server::start(folder.path());
    let client = client(&server);
    let options = CallOptions::timeout(SOON);
    let call = client.begin(GET, Payload::short("big"), &options).unwrap();
    let (_sender, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(200));
    server.signal(Signal::SIGKILL);
    let status = call.wait().unwrap_err();
    assert!(
        [Code::Unavailable, Code::Aborted].contains(&status.code),
        "{status}"
    );
}

#[test]
fn a_server_that_is_started_again_serves_on() {
    let (folder, server, client) = started();
    let address = server.address.clone();
    drop(server);
    let again = ripc()
        .args([
            "serve-files",
            "--listen",
            &address,
            "--interface",
            "127.0.0.1",
        ])
        .arg(folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let _again = Server {
        child: again,
        address,
    };
    let end = Instant::now() + SOON;
    let mut reply = client.call(GET, Payload::short("small"), &CallOptions::timeout(SOON));
    // It may not listen yet.
    while reply.is_err() && Instant::now() < end {
        reply = client.call(GET, Payload::short("small"), &CallOptions::timeout(SOON));
    }
    assert_eq!(reply.unwrap().bytes(0), b"few\n");
}

#[test]
fn wrong_addresses_fail_promptly() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let begun = Instant::now();
    let output = ripc()
        .args(["call", "--timeout", "50", "--at", &address, "files", "list"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64 + 14), "{output:?}");
    assert!(begun.elapsed() < Duration::from_secs(40));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains(&address) && text.contains("not sent"),
        "{text}"
    );
    let output = ripc()
        .args([
            "call",
            "--interface",
            "127.0.0.1",
            "--resolve",
            "0.2",
            "nobody-has-this",
            "x",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}
