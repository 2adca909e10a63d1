//! Debian's unmodified programs on our library.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as expected"
)]

mod common;

use common::{RUN, have, skip, succeed};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

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

/// Starts a server, waits until it listens, runs the client, and fails if either fails. `PREPARE` may set `CLIENT`, a
/// command that runs the client in another place; `HOST` is where it finds the server.
const PINGPONG: &str = r#"
eval "$PREPARE" || exit 1
timeout 30 "$RUN" "$PROGRAM" -p "$PORT" "$@" &
listening=$(printf ':%04X 0*:0000 0A' "$PORT")
tries=0
until cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "$listening"; do
    tries=$((tries + 1))
    if [ $tries -gt 500 ]; then echo "the server does not listen" >&2; exit 1; fi
    sleep 0.02
done
$CLIENT timeout 30 "$RUN" "$PROGRAM" -p "$PORT" "$@" "$HOST" || exit 1
wait $!
"#;

/// Polling ends take a core each: one test of them at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A pingpong between two places, each reached through a command (none: here).
struct Pingpong<'a> {
    program: &'a str,
    around: &'a [&'a str],
    /// Shell commands that come first.
    prepare: &'a str,
    host: &'a str,
}

impl Pingpong<'_> {
    const HERE: Self = Self {
        program: "ibv_ud_pingpong",
        around: &[],
        prepare: "",
        host: "127.0.0.1",
    };

    /// Runs it and checks that both ends report all iterations of messages of `size` bytes.
    fn run(&self, size: u32, arguments: &[&str]) {
        // Free when asked; the pingpong's own listening socket may reuse the address at once.
        let port = TcpListener::bind("0.0.0.0:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let words = [self.around, &["sh", "-c", PINGPONG, "pingpong"]].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["-s", &size.to_string()])
            .args(arguments);
        command
            .env("RUN", RUN)
            .env("PROGRAM", self.program)
            .env("PORT", port.to_string());
        command.env("PREPARE", self.prepare).env("HOST", self.host);
        let output = succeed(&mut command);
        let text = String::from_utf8_lossy(&output.stdout);
        // Each end counts what went both ways.
        let bytes = format!("{} bytes in ", u64::from(size) * 1000 * 2);
        for line in [bytes.as_str(), "1000 iters in "] {
            assert_eq!(
                text.matches(line).count(),
                2,
                "{arguments:?}: {line} is missing in\n{text}"
            );
        }
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }

    /// Every way of waiting, with the kinds of addresses given.
    fn run_all(&self, sizes: &[u32], addressing: &[&[&str]]) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for addressing in addressing {
            for waiting in [&[][..], &["-e"], &["-c"]] {
                for size in sizes {
                    self.run(*size, &[waiting, *addressing].concat());
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

#[test]
fn ibv_ud_pingpong_on_this_host() {
    if have("ibv_ud_pingpong", "ibv_ud_pingpong", "ibverbs-utils") {
        Pingpong::HERE.run_all(&[1, 64, 1024], &[&["-g", "0"]]);
    }
}

/// Messages of more than one datagram, too.
#[test]
fn ibv_uc_pingpong_on_this_host() {
    if have("ibv_uc_pingpong", "ibv_uc_pingpong", "ibverbs-utils") {
        let uc = Pingpong {
            program: "ibv_uc_pingpong",
            ..Pingpong::HERE
        };
        uc.run_all(&[1, 4096, 100_000], &[&["-g", "0"]]);
        if lids("ibv_uc_pingpong_lid") {
            uc.run_all(&[4096], &[&[]]);
        }
    }
}

#[test]
fn ibv_uc_pingpong_between_two_hosts() {
    if namespaces("ibv_uc_pingpong_veth") {
        let apart = Pingpong {
            program: "ibv_uc_pingpong",
            around: &UNSHARE,
            prepare: CABLE,
            host: "10.77.1.1",
        };
        apart.run_all(&[64, 20_000], &[&["-g", "0"], &["-g", "1"]]);
    }
}

/// Reliable connections, that the two ends make of nothing but exchanged numbers.
#[test]
fn ibv_rc_and_srq_pingpong_on_this_host() {
    for program in ["ibv_rc_pingpong", "ibv_srq_pingpong"] {
        if have(program, program, "ibverbs-utils") {
            let rc = Pingpong {
                program,
                ..Pingpong::HERE
            };
            rc.run_all(&[1, 4096, 100_000], &[&["-g", "0"]]);
            if lids(program) {
                rc.run_all(&[4096], &[&[]]);
            }
        }
    }
}

#[test]
fn ibv_rc_pingpong_with_nothing_but_loopback() {
    if namespaces("ibv_rc_pingpong_loopback") {
        let lonely = Pingpong {
            program: "ibv_rc_pingpong",
            around: &UNSHARE,
            prepare: "ip link set lo up",
            ..Pingpong::HERE
        };
        lonely.run_all(&[64], &[&["-g", "0"], &["-g", "1"], &[]]);
    }
}

#[test]
fn ibv_rc_and_srq_pingpong_between_two_hosts() {
    for program in ["ibv_rc_pingpong", "ibv_srq_pingpong"] {
        if namespaces(program) {
            let apart = Pingpong {
                program,
                around: &UNSHARE,
                prepare: CABLE,
                host: "10.77.1.1",
            };
            apart.run_all(&[64, 20_000], &[&["-g", "0"], &["-g", "1"], &[]]);
        }
    }
}

/// A killed peer ends the other end with an error of its own, not by a time-out of the test.
#[test]
fn a_killed_ibv_rc_pingpong_is_noticed() {
    const KILLED: &str = r#"
"$RUN" ibv_rc_pingpong -p "$PORT" -g 0 -n 100000000 "$@" >/dev/null &
server=$!
tries=0
until grep -q "$(printf ':%04X 0*:0000 0A' "$PORT")" /proc/net/tcp /proc/net/tcp6; do
    tries=$((tries + 1))
    if [ $tries -gt 500 ]; then echo "the server does not listen" >&2; exit 1; fi
    sleep 0.02
done
"$RUN" ibv_rc_pingpong -p "$PORT" -g 0 -n 100000000 "$@" 127.0.0.1 &
client=$!
sleep 1
kill -KILL $server
tries=0
while kill -0 $client 2>/dev/null; do
    tries=$((tries + 1))
    if [ $tries -gt 100 ]; then kill -KILL $client; echo "the client goes on" >&2; exit 1; fi
    sleep 0.05
done
wait $client
echo "status $?"
"#;
    if have("ibv_rc_pingpong_killed", "ibv_rc_pingpong", "ibverbs-utils") {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for waiting in [&[][..], &["-e"]] {
            let listener = TcpListener::bind("0.0.0.0:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let mut command = Command::new("sh");
            command.args(["-c", KILLED, "killed"]).args(waiting);
            let output = command
                .env("RUN", RUN)
                .env("PORT", port.to_string())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("Failed status"), "{waiting:?}: {text}");
            assert!(text.contains("status 1"), "{waiting:?}: {text}");
        }
    }
}

#[test]
fn ibv_ud_pingpong_on_this_host_with_lids() {
    if have("ibv_ud_pingpong_lid", "ibv_ud_pingpong", "ibverbs-utils")
        && lids("ibv_ud_pingpong_lid")
    {
        Pingpong::HERE.run_all(&[64, 1024], &[&[]]);
    }
}

/// An ordinary user gets a network namespace inside a user namespace.
const UNSHARE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--net"];

fn namespaces(test: &str) -> bool {
    if !have(test, "ibv_ud_pingpong", "ibverbs-utils") || !have(test, "ip", "iproute2") {
        return false;
    }
    let made = Command::new(UNSHARE[0])
        .args(&UNSHARE[1..])
        .arg("true")
        .output();
    let made = made.is_ok_and(|output| output.status.success());
    if !made {
        skip(test, "this user may not make network namespaces");
    }
    made
}

#[test]
fn ibv_ud_pingpong_with_nothing_but_loopback() {
    if namespaces("ibv_ud_pingpong_loopback") {
        let lonely = Pingpong {
            around: &UNSHARE,
            prepare: "ip link set lo up",
            ..Pingpong::HERE
        };
        lonely.run_all(&[1, 2048, 4096], &[&["-g", "0"], &["-g", "1"], &[]]);
    }
}

/// A second namespace, and between the two a virtual Ethernet cable.
const CABLE: &str = r#"
unshare --net sleep 60 &
peer=$!
trap 'kill $peer' EXIT
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
CLIENT="nsenter --target $peer --net"
ip link add here type veth peer name there netns $peer &&
ip address add 10.77.1.1/16 dev here && ip address add fd77::1/64 dev here nodad && ip link set here up &&
$CLIENT ip address add 10.77.2.2/16 dev there && $CLIENT ip address add fd77::2/64 dev there nodad &&
$CLIENT ip link set there up
"#;

#[test]
fn ibv_ud_pingpong_between_two_hosts() {
    if namespaces("ibv_ud_pingpong_veth") {
        let apart = Pingpong {
            around: &UNSHARE,
            prepare: CABLE,
            host: "10.77.1.1",
            ..Pingpong::HERE
        };
        apart.run_all(&[64, 1024], &[&["-g", "0"], &["-g", "1"], &[]]);
    }
}
