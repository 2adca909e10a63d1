//! Runs perftest's own programs by `dgiwarp-perf programs`. Latencies are not judged here.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use xtask::skips::skip;

const PERF: &str = env!("CARGO_BIN_EXE_dgiwarp-perf");

#[test]
fn every_program_has_a_figure_and_a_ratio() {
    const NAME: &str = "every_program_has_a_figure_and_a_ratio";
    if !Path::new("/usr/bin/ib_send_lat").exists() {
        return skip(NAME, "perftest is not installed");
    }
    if !Path::new(PERF).with_file_name("dgiwarp-run").exists() {
        return skip(NAME, "dgiwarp-run is not built: cargo build -p dgiwarp-run");
    }
    let output = Command::new(PERF)
        .args(["programs", "--rounds", "1", "--iters", "50", "--json", "-"])
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], 1);
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["program"].as_str()).collect();
    let expected = [
        "raw TCP, spinning",
        "raw TCP, sleeping",
        "ib_write_lat",
        "ib_send_lat",
        "ib_send_lat -e",
        "ib_read_lat",
    ];
    assert_eq!(names, expected.map(Some));
    for row in rows {
        assert!(row["median_us"].as_f64().unwrap() > 0.0, "{row}");
        let compared = row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0);
        assert_eq!(compared, row["baseline"].is_string(), "{row}");
    }
}

#[test]
fn a_runner_that_runs_nothing_is_an_error_in_one_line() {
    if !Path::new("/usr/bin/ib_send_lat").exists() {
        return skip(
            "a_runner_that_runs_nothing_is_an_error_in_one_line",
            "perftest is not installed",
        );
    }
    let output = Command::new(PERF)
        .args(["programs", "--rounds", "1", "--iters", "50"])
        .args(["--runner", "/nonexistent/dgiwarp-run"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().last().unwrap();
    assert!(
        last.starts_with("dgiwarp-perf: start a program"),
        "{complaint}"
    );
    assert!(output.stdout.is_empty());
}
