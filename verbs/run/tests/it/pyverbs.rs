//! rdma-core's own tests, which come with Debian's Python bindings: the whole API, checked by those who define it.

use crate::common::{RUN, have, scratch, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the package `rdma-core` or `python3-pyverbs` puts them, compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// The bindings are for the distribution's interpreter.
const PYTHON: &str = "/usr/bin/python3";

/// What the device does not have, in the words with which a test is skipped for it.
const ABSENT: &[&str] = &[
    "Create XRCD is not supported",
    // Raw packets.
    "Create Raw Packet QP",
    // DMA buffers of a graphics card.
    "renderD128",
    "huge pages",
    "Importing a device is not supported",
    "Some object imports are not supported",
    // Atomic writes, which no RFC has.
    "Extended QP is not supported",
    "All gid indices populated",
];

/// Unpacks the tests; `None` skips ours.
fn unpacked(name: &str) -> Option<PathBuf> {
    if !have(name, "gzip", "gzip") {
        return None;
    }
    for (path, package) in [
        ("/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs"),
        (TESTS, "python3-pyverbs"),
    ] {
        if !Path::new(path).is_dir() {
            skip(
                name,
                &format!("{path} is missing (Debian package {package})"),
            );
            return None;
        }
    }
    let directory = scratch(name);
    let copied = Command::new("sh")
        .args(["-c", "cp -r \"$1\" . && gzip -df tests/*.gz", "sh", TESTS])
        .current_dir(&directory)
        .status()
        .unwrap();
    assert!(copied.success());
    Some(directory)
}

/// Runs the tests of some files. All pass, except for those about what the device does not have.
fn run(name: &str, files: &[&str]) {
    let Some(directory) = unpacked(name) else {
        return;
    };
    // Those are for one maker's devices, and need what only these have.
    for entry in directory.join("tests").read_dir().unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("test_mlx5") || file.starts_with("test_efa") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let mut command = Command::new("timeout");
    command
        .args(["120", RUN, PYTHON, "tests/run_tests.py", "-v"])
        .args(["--dev", "dgiwarp0", "--gid", "0"])
        .current_dir(&directory);
    for file in files {
        command.args(["-k", &format!("tests.test_{file}.*")]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let passed = text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 2 * files.len(), "{text}");
    for line in text.lines().filter(|line| line.contains("... skipped")) {
        assert!(ABSENT.iter().any(|known| line.contains(known)), "{line}");
    }
}

#[test]
fn objects_and_completions() {
    run(
        "pyverbs_objects",
        &[
            "addr",
            "cq",
            "cq_events",
            "cqex",
            "device",
            "fork",
            "mr",
            "odp",
            "parent_domain",
            "pd",
            "shared_pd",
        ],
    );
}

#[test]
fn queue_pairs() {
    run(
        "pyverbs_queue_pairs",
        &["atomic", "qp", "qpex", "relaxed_ordering"],
    );
}

#[test]
fn connections() {
    run("pyverbs_connections", &["rdmacm"]);
}
