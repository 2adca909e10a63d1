//! Debian's programs at both ends: here on our verbs library, in the guest on rdma-core's and siw.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use dgiwarp_conform::siw::{GUEST_IP, HOST_IP, Vm};
use xtask::lab::is_listening;

use super::LIMIT;

/// What both ends are run with, and what each one's output must have so many times.
struct Row {
    options: &'static str,
    says: &'static str,
    times: usize,
}

/// `-V` makes the client compare what came back with what it sent; `-v` prints it at both ends. The longest that
/// rping takes is 65535 octets, the shortest 24 or so.
const RPING: [Row; 3] = [
    Row {
        options: "-C 20 -V -v",
        says: "ping data: rdma-ping-",
        times: 20,
    },
    Row {
        options: "-C 20 -V -v -S 33",
        says: "ping data: rdma-ping-",
        times: 20,
    },
    Row {
        options: "-C 20 -V -v -S 65535",
        says: "ping data: rdma-ping-",
        times: 20,
    },
];
const PORT: u16 = 7174;

/// Why our end cannot run, if so.
fn obstacle() -> Option<&'static str> {
    xtask::debian::find_program("rping")
        .is_none()
        .then_some("rping is missing (Debian package rdmacm-utils)")
}

pub(crate) fn both_ways(vm: &Vm) {
    if let Some(reason) = obstacle() {
        return xtask::skips::skip("siw_rping", reason);
    }
    for persona in ["roce", "iwarp"] {
        for row in &RPING {
            we_connect(vm, row, persona);
            siw_connects(vm, row, persona);
        }
    }
}

fn we_connect(vm: &Vm, row: &Row, persona: &str) {
    let server = format!("rping -s -a {GUEST_IP} -p {PORT} {}", row.options);
    let server = vm.spawn(&server, LIMIT).unwrap();
    vm.wait_listening(PORT).unwrap();
    let client = start(vm, &format!("-c -a {GUEST_IP}"), row, persona);
    row.check(&outcome(client));
    row.check(&server.wait().unwrap().stdout);
}

fn siw_connects(vm: &Vm, row: &Row, persona: &str) {
    let mut server = start(vm, &format!("-s -a {HOST_IP}"), row, persona);
    while !is_listening(server.0.id(), Some(PORT)) {
        if server.0.try_wait().unwrap().is_some() {
            panic!("{}", outcome(server));
        }
        xtask::clock::pause(core::time::Duration::from_millis(5));
    }
    let client = format!("rping -c -a {HOST_IP} -p {PORT} {}", row.options);
    row.check(&vm.run(&client, LIMIT).unwrap().stdout);
    row.check(&outcome(server));
}

impl Row {
    /// rping's status says nothing about a connection that broke.
    fn check(&self, output: &str) {
        let times = output.matches(self.says).count();
        assert_eq!(times, self.times, "{}: {}", self.options, beginning(output));
    }
}

/// Starts our end in the VM's network, with the library as the dynamic linker finds it in the build's folder. It writes
/// to a file, since a pipe that nobody reads stops it.
fn start(vm: &Vm, role: &str, row: &Row, persona: &str) -> (Child, File) {
    let stdout = tempfile::tempfile().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &LIMIT.as_secs().to_string(), "rping"]);
    command
        .args(role.split(' '))
        .args(["-p", &PORT.to_string()]);
    command
        .args(row.options.split(' '))
        .env("LD_LIBRARY_PATH", libraries())
        .env("DGIWARP_PERSONA", persona)
        .env_remove("DGIWARP_TEST_SKIPS")
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().unwrap());
    let child = vm.in_network(|| command.spawn()).unwrap().unwrap();
    (child, stdout)
}

/// The folder with `libibverbs.so.1` and `librdmacm.so.1` that was laid out when `dgiwarp-verbs` was built for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap().join("dgiwarp");
    assert!(folder.join("librdmacm.so.1").is_file(), "{folder:?}");
    folder
}

/// What a program of ours wrote, when it has ended.
fn outcome((mut child, mut stdout): (Child, File)) -> String {
    let status = child.wait().unwrap();
    let mut text = String::new();
    stdout.rewind().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    assert!(status.success(), "{status}: {}", beginning(&text));
    text
}

/// As much of an output as is of use in a message.
fn beginning(text: &str) -> String {
    text.chars().take(1000).collect()
}
