//! Programs that search a device below `/dev/infiniband` and `/sys/class/infiniband`.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End};
use crate::common::{RUN, compile, have, scratch, succeed};
use std::process::Command;

#[test]
fn every_way_of_looking_finds_the_device() {
    let directory = scratch("paths");
    // _FORTIFY_SOURCE makes other calls of some functions.
    for options in [
        &["-O2", "-U_FORTIFY_SOURCE"],
        &["-O2", "-D_FORTIFY_SOURCE=2"],
    ] {
        let Some(program) = compile("paths", &directory, include_str!("../c/paths.c"), options)
        else {
            return;
        };
        let output = succeed(Command::new(RUN).arg(program).current_dir(&directory));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("ok: ").count(), 32, "{text}");
    }
}

/// Each network has its own addresses, and each program sees those of its own.
#[test]
fn the_addresses_are_those_of_the_programs_network() {
    const CAT: End = End::client(
        "cat /sys/class/infiniband/dgiwarp0/ports/1/gids/0 /sys/class/infiniband/dgiwarp0/ports/1/gid_attrs/types/0",
    );
    for (place, gid) in [
        (Place::Loopback, "0000:0000:0000:0000:0000:ffff:7f00:0001"),
        (Place::Apart, "0000:0000:0000:0000:0000:ffff:0a63:0002"),
    ] {
        if let Some(scene) = Scene::new("paths", place) {
            let ended = session::run(&scene, Family::V4, &[CAT]);
            assert_eq!(ended[0].stdout, format!("{gid}\nRoCE v2\n"));
        }
    }
}

/// Scripts change their directory and expand patterns themselves.
#[test]
fn scripts_find_the_device() {
    const SCRIPT: &str = "cd /sys/class/infiniband && echo * && cd dgiwarp0/ports && echo */state && cat 1/state && pwd -P \
        && cd ../.. && pwd -P && cd .. && pwd -P";
    const SHOWN: &str = "dgiwarp0\n1/state\n4: ACTIVE\n/sys/class/infiniband/dgiwarp0/ports\n/sys/class/infiniband\n/sys/class\n";
    for (shell, package) in [("sh", "dash"), ("bash", "bash")] {
        if have("scripts_find_the_device", shell, package) {
            let output = succeed(Command::new(RUN).args([shell, "-c", SCRIPT]));
            assert_eq!(String::from_utf8_lossy(&output.stdout), SHOWN, "{shell}");
        }
    }
}

#[test]
fn ibstatus_shows_the_port() {
    if have("ibstatus_shows_the_port", "ibstatus", "infiniband-diags") {
        let output = succeed(Command::new(RUN).arg("ibstatus"));
        let text = String::from_utf8(output.stdout).unwrap();
        for line in [
            "Infiniband device 'dgiwarp0' port 1 status:",
            "state:\t\t 4: ACTIVE",
            "link_layer:\t Ethernet",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}

/// UCX takes no device without a device node.
#[test]
fn ucx_finds_its_transports() {
    if have("ucx_info", "ucx_info", "ucx-utils") {
        let output = succeed(Command::new(RUN).args(["ucx_info", "-d"]));
        let text = String::from_utf8(output.stdout).unwrap();
        for transport in ["rc_verbs", "ud_verbs"] {
            let lines = format!("Transport: {transport}\n#         Device: dgiwarp0:1\n");
            assert!(text.contains(&lines), "{transport} is missing in\n{text}");
        }
    }
}
