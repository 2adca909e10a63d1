//! The relay with real TUN devices, and the kernel's ping as a stranger's program.

use std::time::Duration;

use xtask::debian::find_program;
use xtask::lab::relay::{Config as Relay, LinkConfig, Loss, Report};
use xtask::lab::{Config, LabError, Link};

use super::*;

const PERFECT: LinkConfig = LinkConfig {
    delay: Duration::ZERO,
    ..LINK
};
const LINK: LinkConfig = LinkConfig {
    rate: None,
    queue: usize::MAX,
    delay: Duration::from_millis(20),
    jitter: Duration::ZERO,
    loss: Loss::None,
    duplication: 0.0,
    reordering: xtask::lab::relay::Reordering {
        probability: 0.0,
        by: Duration::ZERO,
    },
    corruption: 0.0,
    mark: usize::MAX,
    mtu: 65_535,
};

/// A lab whose link is a relay, and with ping; or a skipped test.
fn relayed(test: &str, relay: Relay) -> Option<Lab> {
    if find_program("ping").is_none() {
        let error = LabError::MissingProgram {
            program: "ping",
            package: "iputils-ping",
        };
        skip(test, &error.to_string());
        return None;
    }
    lab(
        test,
        &Config {
            link: Link::Relay(relay),
            ..Config::default()
        },
    )
}

fn report(lab: &Lab) -> Report {
    lab.relay().expect("a relay").report().unwrap()
}

/// Pings the server and returns how many answers came, and the shortest round trip in milliseconds.
fn ping(lab: &Lab, address: &str, options: &str) -> (u64, f64) {
    let text = sh(
        lab,
        Side::Client,
        &format!("ping -q {options} {address} || true"),
    );
    let answers = text
        .split(" received")
        .next()
        .and_then(|head| head.rsplit(' ').next())
        .and_then(|word| word.parse().ok());
    let shortest = text
        .split("mdev = ")
        .nth(1)
        .and_then(|tail| tail.split('/').next())
        .and_then(|word| word.parse().ok());
    let answers = answers.unwrap_or_else(|| panic!("{text}"));
    (answers, shortest.unwrap_or(f64::NAN))
}

#[test]
fn packets_take_the_delay_and_each_is_counted() {
    const TEST: &str = "packets_take_the_delay_and_each_is_counted";
    let Some(lab) = relayed(TEST, Relay::both(LINK, 1)) else {
        return;
    };
    let link = sh(&lab, Side::Server, &format!("ip -o link show {INTERFACE}"));
    assert!(link.contains(" mtu 1500 "), "{link}");
    let mut expected = 0;
    for (address, family) in [(Side::Server.address(), 4), (Side::Server.address6(), 6)] {
        if family == 6 && !lab.namespace(Side::Server).has_ipv6() {
            continue;
        }
        let (answers, shortest) = ping(&lab, &address.to_string(), "-c 5 -i 0.01 -s 1400");
        assert_eq!(answers, 5);
        // Ping's clock has microseconds.
        assert!(shortest >= 39.99, "{shortest} ms for IPv{family}");
        expected += 5;
        for counts in [report(&lab).to_server, report(&lab).to_client] {
            assert_eq!(counts.wire.packets, expected);
            assert_eq!(counts.wire.delivered, expected);
            assert_eq!((counts.unread, counts.refused), (0, 0));
        }
    }
}

#[test]
fn lost_packets_are_those_of_the_seed() {
    const TEST: &str = "lost_packets_are_those_of_the_seed";
    let faulty = LinkConfig {
        loss: Loss::Independent(0.3),
        duplication: 0.2,
        ..PERFECT
    };
    let run = |seed| {
        let relay = Relay {
            to_server: faulty,
            to_client: PERFECT,
            seed,
        };
        let lab = relayed(TEST, relay)?;
        let (answers, _) = ping(&lab, "10.99.0.1", "-c 60 -i 0.005 -W 0.5");
        let report = report(&lab);
        assert_eq!(report.to_client.wire.lost, 0, "that direction is perfect");
        assert_eq!(report.to_server.wire.packets, 60);
        // Each copy that was delivered is answered; of the two of a duplicate the second is not counted.
        assert_eq!(answers, 60 - report.to_server.wire.lost);
        assert_eq!(
            report.to_client.wire.packets,
            report.to_server.wire.delivered
        );
        Some(report)
    };
    let (Some(first), Some(second), Some(other)) = (run(7), run(7), run(8)) else {
        return;
    };
    assert!((5..35).contains(&first.to_server.wire.lost), "{first:?}");
    assert!(first.to_server.wire.duplicated > 0, "{first:?}");
    assert_eq!(first, second);
    assert_ne!(first, other);
}

#[test]
fn corrupted_packets_fail_the_receivers_checksum() {
    const TEST: &str = "corrupted_packets_fail_the_receivers_checksum";
    let corrupting = LinkConfig {
        corruption: 1.0,
        ..PERFECT
    };
    let relay = Relay {
        to_server: corrupting,
        to_client: PERFECT,
        seed: 1,
    };
    let Some(lab) = relayed(TEST, relay) else {
        return;
    };
    let (answers, _) = ping(&lab, "10.99.0.1", "-c 20 -i 0.005 -W 0.2");
    assert_eq!(answers, 0);
    assert_eq!(report(&lab).to_server.wire.corrupted, 20);
    let table = sh(&lab, Side::Server, "grep ^Icmp: /proc/net/snmp");
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect())
        .collect();
    let column = rows[0].iter().position(|name| *name == "InCsumErrors");
    assert_eq!(rows[1][column.unwrap()], "20", "{table}");
}

#[test]
fn a_rate_holds_packets_back() {
    const TEST: &str = "a_rate_holds_packets_back";
    let slow = LinkConfig {
        // A packet of 1,028 octets each 10 ms; ping begins with 60 at once.
        rate: Some(100_000),
        queue: 20_000,
        ..PERFECT
    };
    let relay = Relay {
        to_server: slow,
        to_client: PERFECT,
        seed: 1,
    };
    let Some(lab) = relayed(TEST, relay) else {
        return;
    };
    // Ping does not wait for the last answers.
    ping(&lab, "10.99.0.1", "-c 100 -l 60 -i 0.002 -s 1000 -W 2");
    let deadline = xtask::clock::now() + Duration::from_secs(10);
    let counts = loop {
        let counts = report(&lab).to_server.wire;
        if counts.delivered + counts.overflowed == 100 {
            break counts;
        }
        assert!(xtask::clock::now() < deadline, "{counts:?}");
        xtask::clock::pause(Duration::from_millis(5));
    };
    assert!(
        counts.overflowed > 20 && counts.delivered >= 20,
        "{counts:?}"
    );
}

#[test]
fn a_relay_whose_interface_is_gone_reports_it() {
    const TEST: &str = "a_relay_whose_interface_is_gone_reports_it";
    let Some(lab) = relayed(TEST, Relay::both(PERFECT, 1)) else {
        return;
    };
    assert_eq!(ping(&lab, "10.99.0.1", "-c 1").0, 1);
    sh(&lab, Side::Server, &format!("ip link set {INTERFACE} down"));
    assert_eq!(ping(&lab, "10.99.0.1", "-c 1 -W 0.1").0, 0);
    let deadline = xtask::clock::now() + Duration::from_secs(10);
    while report(&lab).to_server.refused == 0 {
        assert!(xtask::clock::now() < deadline, "{:?}", report(&lab));
        xtask::clock::pause(Duration::from_millis(5));
    }
    assert_eq!(report(&lab).to_server.refused, 1);
    sh(&lab, Side::Server, &format!("ip link set {INTERFACE} up"));
    assert_eq!(ping(&lab, "10.99.0.1", "-c 1").0, 1);

    sh(&lab, Side::Server, &format!("ip link delete {INTERFACE}"));
    let deadline = xtask::clock::now() + Duration::from_secs(10);
    while lab.relay().unwrap().report().is_ok() {
        assert!(xtask::clock::now() < deadline, "no error");
        xtask::clock::pause(Duration::from_millis(5));
    }
}

#[test]
fn the_command_reports_counts_and_seed() {
    let arguments = "--delay 1ms --loss 0%,100% --seed 42 --wait-port 7007 -- sh -c";
    let mut words: Vec<_> = arguments.split(' ').collect();
    let server = listener(7007, "sleep 1000");
    let client = "ping -q -c 3 -i 0.01 -W 0.1 $LAB_SERVER; exit 7";
    words.extend([server.as_str(), "--", "sh", "-c", client]);
    let output = xtask_lab(&words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if has_no_lab(&stderr) || find_program("ping").is_none() {
        return skip("the_command_reports_counts_and_seed", stderr.trim());
    }
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    for line in [
        "relay: to server: 3 packets, 0 lost, 0 dropped by the queue, 0 reordered, 0 duplicated, 0 corrupted, 0 marked\n",
        "relay: to client: 3 packets, 3 lost, 0 dropped by the queue, 0 reordered, 0 duplicated, 0 corrupted, 0 marked\n",
        "relay: seed 42\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
}

#[test]
fn a_relay_works_without_root() {
    if nix::unistd::geteuid().is_root() {
        let folder = tempfile::tempdir().unwrap();
        session("a_relay_works_without_root", 7008, |arguments| {
            let arguments = [&["--delay", "1ms"], arguments].concat();
            xtask_lab_as_nobody(folder.path(), &arguments)
        });
    }
}

#[test]
fn even_sigkill_leaves_no_relay() {
    let options = ["--delay", "1ms"];
    interrupted(
        "even_sigkill_leaves_no_relay",
        7009,
        &options,
        Signal::SIGKILL,
    );
}

#[test]
fn contradictions_are_told_before_anything_is_made() {
    for (options, message) in [
        (
            "--delay 1ms --jitter 2ms",
            "error: --jitter must not be above --delay",
        ),
        ("--queue 64k", "--rate"),
        ("--loss 2", "a percentage, 0% to 100%"),
    ] {
        let words: Vec<_> = options.split(' ').chain(["--", "a", "--", "b"]).collect();
        let output = xtask_lab(&words).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
fn a_machine_without_tun_devices_is_an_error() {
    const TEST: &str = "a_machine_without_tun_devices_is_an_error";
    // A mount namespace hides the device.
    let script = format!(
        "mount -t tmpfs none /dev/net && exec {} lab --delay 1ms -- true -- true",
        env!("CARGO_BIN_EXE_xtask")
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if stderr.contains("unshare")
        || stderr.contains("mount")
        || stderr.contains("no network namespaces")
    {
        return skip(TEST, stderr.trim());
    }
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let message = "xtask: no TUN devices here: /dev/net/tun: No such file or directory\n";
    assert_eq!(stderr, message);
}
