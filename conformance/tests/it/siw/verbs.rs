//! Debian's programs at both ends: here on our verbs library, in the guest on rdma-core's and siw.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dgiwarp_conform::siw::{GUEST_IP, HOST_IP, Output, Vm};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::lab::is_listening;

/// Two ends that poll have to share the guest's slow cores with this machine's.
const LIMIT: Duration = Duration::from_secs(90);

/// Two ends of a program: their command lines, in which `{peer}` is the server's address and `{port}` a port, and what each
/// one's output must have so many times.
pub(super) struct Row {
    pub(super) server: &'static str,
    pub(super) client: &'static str,
    pub(super) says: &'static str,
    pub(super) times: usize,
    /// Whether the first message is the client's. A Responder must not send before the Initiator has (RFC 5044 §7.1.2),
    /// and siw, other than ourselves, sends nothing by itself when it connects: a server that begins waits for ever.
    pub(super) client_begins: bool,
    /// Whether our end connects too.
    pub(super) we_connect: bool,
}

/// The personas differ in what they expect of a peer of their own kind, which siw is not.
const PERSONAS: [(&str, &[&[Row]]); 2] = [
    ("roce", &[&ROWS, &RSOCKETS]),
    (
        "iwarp",
        &[ROWS.split_at(1).0, &PERFTEST, RSOCKETS.split_at(1).0],
    ),
];

/// rping with `-V` compares what came back with what it sent, with `-v` it prints it at both ends; the longest that it
/// takes is 65535 octets, the shortest 24 or so.
const ROWS: [Row; 5] = [
    Row {
        server: "rping -s -a {peer} -p {port} -C 20 -V -v",
        client: "rping -c -a {peer} -p {port} -C 20 -V -v",
        says: "ping data: rdma-ping-",
        times: 20,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "rping -s -a {peer} -p {port} -C 20 -V -v -S 33",
        client: "rping -c -a {peer} -p {port} -C 20 -V -v -S 33",
        says: "ping data: rdma-ping-",
        times: 20,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "rping -s -a {peer} -p {port} -C 20 -V -v -S 65535",
        client: "rping -c -a {peer} -p {port} -C 20 -V -v -S 65535",
        says: "ping data: rdma-ping-",
        times: 20,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "ucmatose -b {peer} -p {port} -c 5 -C 10 -S 3000",
        client: "ucmatose -s {peer} -p {port} -c 5 -C 10 -S 3000",
        says: "return status 0",
        times: 1,
        client_begins: false,
        we_connect: true,
    },
    Row {
        server: "rdma_server -s {peer} -p {port}",
        client: "rdma_client -s {peer} -p {port}",
        says: " end 0",
        times: 1,
        client_begins: true,
        we_connect: true,
    },
];

macro_rules! perftest {
    ($program:literal, $options:literal, $table:literal) => {
        Row {
            server: concat!($program, " -F -R -p {port} ", $options),
            client: concat!($program, " -F -R -p {port} {peer} ", $options),
            says: $table,
            times: 1,
            client_begins: true,
            we_connect: true,
        }
    };
}

/// The line of a table that perftest ends with: size and iterations. Between two RNICs its `ib_send_bw` has the receiver
/// write to the sender how much it received, between others not; both ends must know that they are RNICs. Without `-F` an end
/// fails whose clock's rate it could not measure, as on a busy machine.
const PERFTEST: [Row; 6] = [
    perftest!("ib_send_lat", "-n 30 -s 2", " 2       30 "),
    perftest!("ib_send_lat", "-n 30 -s 5000", " 5000    30 "),
    perftest!("ib_write_bw", "-n 30 -s 65536", " 65536      30 "),
    perftest!("ib_read_bw", "-n 30 -s 65536", " 65536      30 "),
    perftest!("ib_send_bw", "-n 30 -s 65536", " 65536      30 "),
    Row {
        client_begins: false,
        ..perftest!("ib_write_lat", "-n 30 -s 64", " 64      30 ")
    },
];

macro_rules! rsockets {
    ($server:literal, $client:literal, $options:literal) => {
        Row {
            server: concat!($server, " -p {port} ", $options),
            client: concat!($client, " -s {peer} -p {port} ", $options),
            says: "custom",
            times: 1,
            client_begins: true,
            we_connect: true,
        }
    };
}

/// Rdma-core's rsockets. With siw as the server, the row with the many octets was seen to end with a reset of TCP before the client had the last of them, so
/// the server of that row is ours.
const RSOCKETS: [Row; 4] = [
    rsockets!(
        "rstream -b {peer}",
        "rstream",
        "-S 1000 -C 50 -I 2 -T b -T v"
    ),
    rsockets!("rstream -b {peer}", "rstream", "-S 64 -C 1 -I 300 -T b"),
    Row {
        we_connect: false,
        ..rsockets!(
            "rstream -b {peer}",
            "rstream",
            "-S 300000 -C 10 -I 2 -T b -T v"
        )
    },
    rsockets!("riostream", "riostream", "-S 10000 -C 20 -I 1 -T v"),
];

/// Message of perftest whose second connection came before the server listened for it.
const EARLY: &str = "Unexpected CM event bl blka 8";
const PORT: u16 = 7174;

/// Why our ends cannot run, if so.
pub(super) fn obstacle() -> Option<&'static str> {
    let missing = |program| xtask::debian::find_program(program).is_none();
    if missing("rping") {
        Some("rping is missing (Debian package rdmacm-utils)")
    } else if missing("ib_send_lat") {
        Some("ib_send_lat is missing (Debian package perftest)")
    } else {
        None
    }
}

pub(crate) fn both_ways(vm: &Vm) {
    if let Some(reason) = obstacle() {
        return xtask::skips::skip("siw_verbs", reason);
    }
    for (persona, groups) in PERSONAS {
        for row in groups.iter().copied().flatten() {
            run(vm, row, persona, "");
        }
    }
}

/// Runs a row with either end as server. `before` is put before the guest's command line.
pub(super) fn run(vm: &Vm, row: &Row, persona: &str, before: &str) {
    if row.we_connect {
        repeated(row, || we_connect(vm, row, persona, before));
    }
    if row.client_begins {
        repeated(row, || siw_connects(vm, row, persona, before));
    }
}

/// How often a client may come before its listener.
const EARLIEST: usize = 4;

/// Both ends, and once more if the client came before its listener, which is nobody's fault.
fn repeated(row: &Row, session: impl Fn() -> Result<(), Early>) {
    for _ in 0..EARLIEST {
        if let Ok(()) = session() {
            return;
        }
        eprintln!("REPEATED: came before its listener: {}", row.client);
    }
    session().unwrap();
}

/// A client that came before its listener.
#[derive(Debug)]
struct Early;

fn we_connect(vm: &Vm, row: &Row, persona: &str, before: &str) -> Result<(), Early> {
    let line = |line: &str| filled_in(line, GUEST_IP);
    let server = format!("{before}{}", line(row.server));
    let server = vm.spawn(&server, LIMIT).unwrap();
    vm.wait_listening(PORT).unwrap();
    let client = outcome(start(vm, &line(row.client), persona))?;
    row.check(&client);
    row.check(&all(&server.wait().unwrap()));
    Ok(())
}

fn siw_connects(vm: &Vm, row: &Row, persona: &str, before: &str) -> Result<(), Early> {
    let line = |line: &str| filled_in(line, HOST_IP);
    let mut server = start(vm, &line(row.server), persona);
    while !is_listening(server.child.id(), Some(PORT)) {
        if server.child.try_wait().unwrap().is_some() {
            panic!("{:?}", outcome(server));
        }
        xtask::clock::pause(Duration::from_millis(5));
    }
    let client = format!("{before}{}", line(row.client));
    let client = vm.run(&client, LIMIT).unwrap();
    if client.stderr.contains(EARLY) {
        return Err(Early);
    }
    row.check(&all(&client));
    row.check(&outcome(server)?);
    Ok(())
}

/// Both outputs of a guest's command: an error tells why the expected line is missing.
fn all(output: &Output) -> String {
    format!("{}{}", output.stdout, output.stderr)
}

fn filled_in(line: &str, server: Ipv4Addr) -> String {
    line.replace("{peer}", &server.to_string())
        .replace("{port}", &PORT.to_string())
}

impl Row {
    /// rping's status says nothing about a connection that broke.
    fn check(&self, output: &str) {
        let times = output.matches(self.says).count();
        assert_eq!(times, self.times, "{}: {}", self.client, beginning(output));
    }
}

/// Starts our end in the VM's network, with the library as the dynamic linker finds it in the build's folder. It writes
/// to a file, since a pipe that nobody reads stops it.
fn start(vm: &Vm, line: &str, persona: &str) -> Ours {
    let stdout = tempfile::tempfile().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &LIMIT.as_secs().to_string()]);
    command
        .args(line.split(' '))
        .env("LD_LIBRARY_PATH", libraries())
        .env("DGIWARP_PERSONA", persona)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().unwrap())
        .stderr(stdout.try_clone().unwrap());
    let child = vm.in_network(|| command.spawn()).unwrap().unwrap();
    Ours { child, stdout }
}

/// A running program of ours, below `timeout`, and what it writes.
#[derive(Debug)]
struct Ours {
    child: Child,
    stdout: File,
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SIGTERM, which `timeout` hands on.
            let process = Pid::from_raw(self.child.id().cast_signed());
            let _gone = kill(process, Signal::SIGTERM);
            let _status = self.child.wait();
        }
    }
}

/// The folder with `libibverbs.so.1` and `librdmacm.so.1` that was laid out when `dgiwarp-verbs-library` was built for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap().join("dgiwarp");
    assert!(folder.join("librdmacm.so.1").is_file(), "{folder:?}");
    folder
}

/// Output of a program of ours that has ended.
fn outcome(mut ours: Ours) -> Result<String, Early> {
    let status = ours.child.wait().unwrap();
    let mut text = String::new();
    ours.stdout.rewind().unwrap();
    ours.stdout.read_to_string(&mut text).unwrap();
    if text.contains(EARLY) {
        return Err(Early);
    }
    assert!(status.success(), "{status}: {}", beginning(&text));
    Ok(text)
}

/// As much of an output as is of use in a message.
fn beginning(text: &str) -> String {
    text.chars().take(3000).collect()
}
