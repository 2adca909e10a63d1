//! Debian's unmodified programs on our library.

mod common;

use common::{RUN, have, succeed};
use std::process::Command;

/// Runs a program of ibverbs-utils under `dgiwarp-run` and returns what it printed; anything on standard error is a
/// failure, because the dynamic linker complains there about symbol versions.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = succeed(Command::new(RUN).arg(program).args(arguments));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "",
        "{program} {arguments:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn ibv_devices_lists_the_device() {
    if have("ibv_devices", "ibv_devices", "ibverbs-utils") {
        let text = run("ibv_devices", &[]);
        assert_eq!(
            text.lines()
                .filter(|line| line.trim_start().starts_with("dgiwarp0"))
                .count(),
            1,
            "{text}"
        );
    }
}

#[test]
fn ibv_devinfo_shows_device_and_port() {
    if have("ibv_devinfo", "ibv_devinfo", "ibverbs-utils") {
        let text = run("ibv_devinfo", &[]);
        for line in [
            "hca_id:\tdgiwarp0",
            "transport:\t\t\tInfiniBand (0)",
            "PORT_ACTIVE (4)",
            "link_layer:\t\tEthernet",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(
            text.contains(concat!("fw_ver:\t\t\t\t", env!("CARGO_PKG_VERSION"))),
            "{text}"
        );
        assert!(!text.contains("GID["), "{text}");
    }
}

#[test]
fn ibv_devinfo_verbose_shows_the_addresses_of_the_host() {
    if have("ibv_devinfo_v", "ibv_devinfo", "ibverbs-utils") {
        let text = run("ibv_devinfo", &["-v"]);
        let gids = dgiwarp_verbs::gid::host_gids().unwrap();
        for (index, gid) in gids.iter().enumerate() {
            let shown = match gid.address {
                std::net::IpAddr::V4(v4) => format!("::ffff:{v4}"),
                std::net::IpAddr::V6(v6) => v6.to_string(),
            };
            assert!(
                text.contains(&format!("GID[{index:3}]:\t\t{shown}, RoCE v2")),
                "{shown} is missing in\n{text}"
            );
        }
    }
}

#[test]
fn the_iwarp_persona_reports_an_rnic() {
    if have("ibv_devinfo_iwarp", "ibv_devinfo", "ibverbs-utils") {
        let output = succeed(
            Command::new(RUN)
                .arg("ibv_devinfo")
                .env("DGIWARP_PERSONA", "iwarp"),
        );
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("transport:\t\t\tiWARP (1)"), "{text}");
    }
}
