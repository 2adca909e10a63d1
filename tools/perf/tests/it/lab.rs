//! Runs the real program between two network namespaces, over a link with Ethernet's MTU.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use xtask::lab::relay::{Config as Relay, LinkConfig, Loss, Reordering};
use xtask::lab::{Config, Lab, Link, Side};
use xtask::skips;

const PERF: &str = env!("CARGO_BIN_EXE_dgiwarp-perf");

/// The server at one end of a lab; it ends with the lab at the latest.
struct Server<'a> {
    lab: &'a Lab,
    process: Child,
    address: String,
}

impl<'a> Server<'a> {
    fn start(lab: &'a Lab, address: String) -> Self {
        let mut process = lab
            .command(Side::Server, PERF)
            .args(["server", "--bind", &address, "--token", "lab"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("the first line");
        assert!(line.starts_with("listening on"), "{line}");
        Self {
            lab,
            process,
            address,
        }
    }

    fn rows(&self, arguments: &str) -> Vec<Value> {
        let Output {
            status,
            stdout,
            stderr,
        } = self
            .lab
            .command(Side::Client, PERF)
            .args(["client", &self.address, "--token", "lab", "--json", "-"])
            .args(arguments.split_whitespace())
            .output()
            .expect("the client starts");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let document: Value = serde_json::from_slice(&stdout).expect("one JSON document");
        document["rows"].as_array().expect("rows").clone()
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A lab, or a skipped test where this machine has no namespaces.
fn lab(test: &str, config: &Config) -> Option<Lab> {
    skips::made(test, Lab::new(config))
}

#[test]
fn two_hosts_over_both_families() {
    let config = Config {
        mtu: 1500,
        wire_like: true,
        link: Link::Veth,
    };
    let Some(lab) = lab("two_hosts_over_both_families", &config) else {
        return;
    };
    for address in [Side::Server.address(), Side::Server.address6()] {
        if address.is_ipv6() && !lab.namespace(Side::Server).has_ipv6() {
            continue;
        }
        let server = Server::start(&lab, address.to_string());
        let rows =
            server.rows("--transport rc --mode bw --size 64,20000 --iters 200 --rounds 4 --check");
        // Raw TCP, Send, Write, Write with immediate and Read.
        assert_eq!(rows.len(), 10, "{rows:?}");
        for mode in ["lat", "bw"] {
            let rows = server.rows(&format!(
                "--transport ud --mode {mode} --size 64,20000 --iters 200 --rounds 4 --check"
            ));
            // Raw UDP, Send, Write-Record and Read.
            assert_eq!(rows.len(), 8, "{rows:?}");
            for row in &rows {
                assert!(row["loss"].as_f64() < Some(0.5), "{row}");
                assert_eq!(row["baseline"].is_string(), row["transport"] == "ud");
            }
        }
    }
}

#[test]
fn segments_are_cut_for_the_link() {
    let Some(lab) = lab("segments_are_cut_for_the_link", &Config::default()) else {
        return;
    };
    let server = Server::start(&lab, Side::Server.address().to_string());
    let rows = server.rows("--op write-record --loss 0 --size 14580 --iters 50 --rounds 1");
    let [raw, ours] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    // IPv4 and UDP leave 1472 of 1500 octets; 42 of those are header, extension and CRC.
    for (row, payload) in [(raw, 1472), (ours, 1430)] {
        let segments = 50 * 14_580u64.div_ceil(payload);
        assert_eq!(row["segments"], segments, "{row}");
        assert_eq!(row["segments_valid"], segments, "{row}");
    }
}

/// Over a network that loses, reorders, duplicates and corrupts packets, Write-Records report less than was sent, and reliable
/// datagrams arrive all and intact.
#[test]
fn datagrams_over_a_faulty_network() {
    let link = LinkConfig {
        delay: Duration::from_micros(500),
        loss: Loss::Independent(0.05),
        duplication: 0.02,
        reordering: Reordering {
            probability: 0.2,
            by: Duration::from_millis(1),
        },
        corruption: 0.02,
        ..LinkConfig::default()
    };
    let config = Config {
        link: Link::Relay(Relay::both(link, 7)),
        ..Config::default()
    };
    let Some(lab) = lab("datagrams_over_a_faulty_network", &config) else {
        return;
    };
    let server = Server::start(&lab, Side::Server.address().to_string());
    let iters = 200;
    let rows = |transport, op| {
        server.rows(&format!(
            "--transport {transport} --op {op} --mode bw --size 20000 --iters {iters} --rounds 2 --check"
        ))
    };
    let unreliable = rows("ud", "write-record");
    let row = unreliable.last().expect("rows");
    assert_eq!(row["transport"], "ud");
    let loss = row["loss"].as_f64().expect("a share");
    // 5 % of the segments are lost, 2 % of the rest corrupted; a loaded machine loses more.
    assert!(loss > 0.02, "{row}");
    let reliable = rows("rd", "send");
    let row = reliable.last().expect("rows");
    assert_eq!(row["transport"], "rd");
    assert_eq!(row["loss"], 0.0, "{row}");
    let report = lab.relay().expect("a relay").report().expect("it runs");
    for counts in [report.to_server.wire, report.to_client.wire] {
        let faults = [
            counts.lost,
            counts.duplicated,
            counts.corrupted,
            counts.reordered,
        ];
        assert!(faults.iter().all(|&fault| fault > 0), "{counts:?}");
    }
}
