//! Strangers at the server's control port: they get no memory beyond its limit, no CPU that is not its own, and hold nobody up.

use std::io::{BufRead, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

const PROTOCOL: u32 = 9;
/// Nothing here takes longer, on a machine that may have other work.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    process: Child,
    port: u16,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_dgiwarp-perf"))
            .args(["server", "--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("a line").expect("text");
        let port = first.rsplit(':').next().expect("a port");
        Self {
            process,
            port: port.parse().expect("a number"),
            lines,
        }
    }

    fn connect(&self) -> Control {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Control(BufReader::new(stream))
    }

    /// Peak of the memory that was ever in use, and the address space, KiB.
    fn memory(&self) -> [u64; 2] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the server runs");
        ["VmHWM:", "VmPeak:"].map(|name| {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
            number.expect("a line").parse().expect("a number")
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Control(BufReader<TcpStream>);

impl Control {
    fn call(&mut self, request: &Value) -> Value {
        let line = format!("{request}\n");
        self.0
            .get_mut()
            .write_all(line.as_bytes())
            .expect("a write");
        let mut reply = String::new();
        self.0.read_line(&mut reply).expect("a reply");
        serde_json::from_str(&reply).expect("a document")
    }

    fn hello(&mut self, token: &str, pin: &Value) -> Value {
        self.call(&json!({"hello": {"protocol": PROTOCOL, "pin": pin, "token": token}}))
    }

    /// Opens an endpoint for Reads of `size` octets, whose target is as long.
    fn open(&mut self, size: u64) -> Value {
        self.call(&json!({"open": {
            "subject": {"transport": "rc", "op": "read"}, "mode": "bw", "size": size, "wait": "block",
            "receive_buffer": 65_536, "check": false, "mtu": 0, "loss": 0.0, "seed": 1, "list": 1, "autocork": true,
            "group": null,
        }}))
    }
}

fn reason(reply: &Value) -> &str {
    reply["failed"].as_str().unwrap_or_default()
}

#[test]
fn a_stranger_without_the_token_is_refused() {
    let mut server = Server::start(&["--bind", "0.0.0.0"]);
    let second = server.lines.next().expect("a line").expect("text");
    let token = second.rsplit(' ').next().expect("a word").to_owned();
    for wrong in ["", "0000000000000000"] {
        let reply = server.connect().hello(wrong, &json!("none"));
        assert!(reason(&reply).contains("token"), "{reply}");
    }
    let reply = server.connect().hello(&token, &json!("none"));
    assert!(reply["hello"].is_object(), "{reply}");
    let chosen = Server::start(&["--bind", "0.0.0.0", "--token", "word"]);
    let reply = chosen.connect().hello("word", &json!("none"));
    assert!(reply["hello"].is_object(), "{reply}");
}

#[test]
fn memory_has_a_limit_over_all_endpoints() {
    const LIMIT_KIB: u64 = 64 << 10;
    let server = Server::start(&["--bind", "127.0.0.1", "--memory", "64M"]);
    let before = server.memory()[1];
    let mut control = server.connect();
    assert!(control.hello("", &json!("none"))["hello"].is_object());
    let reply = control.open(1 << 30);
    assert!(reason(&reply).contains("limit"), "{reply}");
    // Many that fit one by one.
    let mut control = server.connect();
    assert!(control.hello("", &json!("none"))["hello"].is_object());
    let refused = (0..16).map(|_| control.open(12 << 20));
    let refused = refused
        .take_while(|reply| reply["opened"].is_object())
        .count();
    assert!((1..=5).contains(&refused), "{refused}");
    let [resident, space] = server.memory();
    assert!(resident < 2 * LIMIT_KIB, "{resident} KiB resident");
    // Threads have stacks and arenas of address space.
    assert!(
        space - before < 8 * LIMIT_KIB,
        "{} KiB more",
        space - before
    );
}

#[test]
fn a_foreign_cpu_is_refused() {
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let reply = server.connect().hello("", &json!({"cpu": 1023}));
    assert!(reason(&reply).contains("CPU 1023"), "{reply}");
    let reply = server.connect().hello("", &json!("auto"));
    assert!(reply["hello"].is_object(), "{reply}");
}

/// A silent client holds the one session for seconds, whether it has said hello or not.
#[test]
fn a_silent_client_holds_nobody_up() {
    let server = Server::start(&["--bind", "127.0.0.1"]);
    let mute = server.connect();
    let mut silent = server.connect();
    assert!(silent.hello("", &json!("none"))["hello"].is_object());
    let waited = silent.0.get_ref().try_clone().expect("a descriptor");
    let limit = Some(Duration::from_secs(30));
    waited.set_read_timeout(limit).expect("a socket");
    let mut rest = String::new();
    let _ = silent.0.read_to_string(&mut rest);
    assert!(rest.contains("no answer"), "{rest:?}");
    let reply = server.connect().hello("", &json!("none"));
    assert!(reply["hello"].is_object(), "{reply}");
    drop(mute);
}
