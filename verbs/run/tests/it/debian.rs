//! Debian's unmodified programs on our library.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish};
use crate::common::{RUN, have, skip, succeed};
use std::process::Command;
use std::time::Duration;

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
            "active_mtu:\t\t4096 (5)",
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
fn mistakes_in_the_environment_are_named_once() {
    if have("ibv_devinfo_knobs", "ibv_devinfo", "ibverbs-utils") {
        let mut command = Command::new(RUN);
        let output = succeed(
            command
                .arg("ibv_devinfo")
                .env("DGIWARP_PERSONNA", "iwarp")
                .env("DGIWARP_PERSONA", "ib"),
        );
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            text.matches("did you mean DGIWARP_PERSONA?").count(),
            1,
            "{text}"
        );
        assert_eq!(
            text.matches("DGIWARP_PERSONA=ib is not understood").count(),
            1,
            "{text}"
        );
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

/// The two ends of a pingpong of ibverbs-utils; each counts the bytes that went both ways.
macro_rules! pingpong {
    ($program:literal) => {
        (
            $program,
            &[
                End::server(concat!($program, " -p {port}"))
                    .says(&["1000 iters in "])
                    .polls(),
                End::client(concat!($program, " -p {port} {server}")).says(&["1000 iters in "]),
            ],
        )
    };
}

type Pingpong = (&'static str, &'static [End]);
const RC: Pingpong = pingpong!("ibv_rc_pingpong");
const SRQ: Pingpong = pingpong!("ibv_srq_pingpong");
const UC: Pingpong = pingpong!("ibv_uc_pingpong");
const UD: Pingpong = pingpong!("ibv_ud_pingpong");

/// Runs pingpongs in a place with every way of waiting, messages of the given sizes, and the kinds of addresses given.
fn pingpongs(place: Place, programs: &[Pingpong], sizes: &[u32], addressing: &[&[&str]]) {
    for (program, ends) in programs {
        let test = format!("{program} {place:?}");
        if !have(&test, program, "ibverbs-utils") {
            continue;
        }
        let Some(scene) = Scene::new(&test, place) else {
            continue;
        };
        for addressing in addressing {
            for waiting in [&[][..], &["-e"], &["-c"]] {
                for size in sizes {
                    let text = size.to_string();
                    let words = [&["-s", &text], waiting, *addressing].concat();
                    let bytes = format!("{} bytes in ", u64::from(*size) * 1000 * 2);
                    for ended in session::run_with(&scene, Family::V4, ends, &words) {
                        assert!(ended.stdout.contains(&bytes), "{words:?}: {}", ended.stdout);
                    }
                }
            }
        }
    }
}

/// LIDs exist only for some addresses; where there is none, that is a reason to skip.
fn lids(test: &str) -> bool {
    let mut gids = dgiwarp_verbs::gid::GidTable::new();
    gids.update(dgiwarp_verbs::gid::host_gids().unwrap());
    if gids.lid() == 0 {
        skip(test, "the first IPv4 address of this host has no LID");
    }
    gids.lid() != 0
}

/// Messages of more than one datagram or segment, too.
#[test]
fn pingpongs_on_this_host() {
    pingpongs(Place::Here, &[UD], &[1, 1024, 4096], &[&["-g", "0"]]);
    pingpongs(
        Place::Here,
        &[RC, SRQ, UC],
        &[1, 4096, 100_000],
        &[&["-g", "0"]],
    );
}

#[test]
fn pingpongs_on_this_host_with_lids() {
    if lids("pingpongs_on_this_host_with_lids") {
        pingpongs(Place::Here, &[UD, RC, SRQ, UC], &[2048], &[&[]]);
    }
}

#[test]
fn pingpongs_of_an_ordinary_user_with_nothing_but_loopback() {
    let addressing: [&[&str]; 3] = [&["-g", "0"], &["-g", "1"], &[]];
    pingpongs(Place::Loopback, &[UD], &[2048, 4096], &addressing);
    pingpongs(Place::Loopback, &[RC, SRQ, UC], &[64], &addressing);
}

/// GID 0 is the IPv4 address, GID 1 an IPv6 one.
#[test]
fn pingpongs_of_an_ordinary_user_between_two_hosts() {
    let addressing: [&[&str]; 3] = [&["-g", "0"], &["-g", "1"], &[]];
    pingpongs(Place::Apart, &[UD], &[64, 2048, 4096], &addressing);
    pingpongs(Place::Apart, &[RC, SRQ, UC], &[64, 20_000], &addressing);
}

/// Two connections, an initiator and a target at each end; the server's numbered queue takes from both clients.
#[test]
fn xrc_pingpongs() {
    const CLIENT: End = End::client("ibv_xsrq_pingpong -p {port} {server}").says(&["success"]);
    const ENDS: &[End] = &[
        End::server("ibv_xsrq_pingpong -p {port} -c 2").says(&["success"]),
        CLIENT,
        CLIENT,
    ];
    if have("xrc_pingpongs", "ibv_xsrq_pingpong", "ibverbs-utils")
        && let Some(scene) = Scene::new("xrc_pingpongs", Place::Here)
    {
        for waiting in [&[][..], &["-e"]] {
            let words = [&["-n", "100", "-g", "0"], waiting].concat();
            session::run_with(&scene, Family::V4, ENDS, &words);
        }
    }
}

/// A killed peer ends the other end with an error of its own, at once, whoever of the two it is.
#[test]
fn a_killed_ibv_rc_pingpong_is_noticed() {
    const SERVER: End = End::server("ibv_rc_pingpong -p {port} -g 0 -n 100000000").polls();
    const CLIENT: End = End::client("ibv_rc_pingpong -p {port} -g 0 -n 100000000 {server}");
    const IN_TIME: Duration = Duration::from_secs(10);
    if !have("ibv_rc_pingpong_killed", "ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let Some(scene) = Scene::new("ibv_rc_pingpong_killed", Place::Here) else {
        return;
    };
    for milliseconds in [0, 30, 400] {
        let killed = Finish::Killed(Duration::from_millis(milliseconds));
        let fails = |end: End| end.finish(Finish::Failure).complains(&[]).limit(IN_TIME);
        // A client that died before it came leaves the server waiting for one.
        let server = if milliseconds < 400 {
            SERVER.finish(Finish::Stopped).complains(&[])
        } else {
            fails(SERVER)
        };
        for ends in [
            [SERVER.finish(killed), fails(CLIENT)],
            [server, CLIENT.finish(killed)],
        ] {
            for waiting in [&[][..], &["-e"]] {
                session::run_with(&scene, Family::V4, &ends, waiting);
            }
        }
    }
}

/// Or the scenes would prove nothing about ordinary users.
#[test]
fn programs_in_a_network_of_their_own_have_no_rights() {
    const STATUS: End = End::client("cat /proc/self/status")
        .says(&["Uid:\t65534\t65534", "CapPrm:\t0000000000000000"]);
    let test = "programs_in_a_network_of_their_own_have_no_rights";
    if !nix::unistd::geteuid().is_root() {
        skip(test, "the user of this test is an ordinary one already");
        return;
    }
    for place in [Place::Loopback, Place::Apart] {
        if let Some(scene) = Scene::new(test, place) {
            session::run(&scene, Family::V4, &[STATUS]);
        }
    }
}
