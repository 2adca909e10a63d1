//! Two hosts on one cable: network namespaces inside of one.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use super::node::SOON;
use super::wait_until;

pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

fn set_up(host: u8) {
    ip("link set lo up");
    ip(&format!(
        "address add 10.78.0.{host}/24 broadcast + dev cable"
    ));
    ip(&format!("address add fd78::{host}/64 dev cable nodad"));
    ip("link set cable up");
}

/// Whether the kernel sends over the cable yet.
fn is_connected() -> bool {
    let link = Command::new("ip").args(["link", "show", "cable"]).output();
    String::from_utf8_lossy(&link.unwrap().stdout).contains("state UP")
}

/// Runs `this` with the addresses 10.78.0.1 and fd78::1, beside `other` on another host with 10.78.0.2 and fd78::2, which ends with it. For a test that runs
/// [inside](super::inside) a namespace.
pub(crate) fn on_two_hosts(other: impl FnOnce() + Send, this: impl FnOnce()) {
    let (id, is) = mpsc::channel();
    let (prepared, ready) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            id.send(gettid()).unwrap();
            ready.recv_timeout(SOON).unwrap();
            set_up(2);
            wait_until(SOON, "the cable", is_connected);
            other();
        });
        let thread = is.recv_timeout(SOON).unwrap();
        ip(&format!(
            "link add cable type veth peer name cable netns {thread}"
        ));
        set_up(1);
        prepared.send(()).unwrap();
        wait_until(SOON, "the cable", is_connected);
        this();
    });
    // The kernel takes its time to end it with the other host.
    let _gone = Command::new("ip")
        .args(["link", "delete", "cable"])
        .output();
}
