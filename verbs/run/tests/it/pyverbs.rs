//! rdma-core's own tests, which come with Debian's Python bindings: the whole API, checked by those who define it.

use crate::common::{RUN, have, scratch, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Where the package `rdma-core` or `python3-pyverbs` puts them, compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// The bindings are for the distribution's interpreter.
const PYTHON: &str = "/usr/bin/python3";

/// Features that the device does not have, in the words with which a test is skipped for it.
const ABSENT: &[&str] = &[
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

/// A feature that the device has not as an RNIC: no RFC has it.
const ABSENT_FROM_RNICS: &str = "Create XRCD is not supported";

/// Tests that an RNIC fails, each explained in the book. They fail mostly, not always: they read at once, and the octets may be there.
const NOT_OF_RNICS: &[&str] = &[
    "test_dm_remote_traffic",
    "test_mr_rereg_access",
    "test_mr_rereg_access_bad_flow",
    "test_mr_rereg_addr",
    "test_mr_rereg_pd",
    "test_mw_type1",
    "test_invalidate_mw_type1",
    "test_mw_type2",
    "test_mw_type2_invalidate_local",
    "test_mw_type2_invalidate_remote",
    "test_mw_type2_invalidate_dealloc",
    "test_qp_ex_rc_rdma_write",
    "test_qp_ex_rc_bind_mw",
    "test_qp_ex_rc_send_imm",
    "test_rdmacm_async_write",
    "test_rdmacm_async_traffic_external_qp",
    "test_odp_rc_rdma_write",
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

/// Held while tests of rdma_cm run: all of them listen at one port.
static ONE_PORT: Mutex<()> = Mutex::new(());

/// Runs the tests of some files with a persona. Returns the report and whether all passed.
fn report(name: &str, persona: &str, files: &[&str]) -> Option<(String, bool)> {
    let directory = unpacked(name)?;
    let _alone = files
        .contains(&"rdmacm")
        .then(|| ONE_PORT.lock().unwrap_or_else(PoisonError::into_inner));
    // The others are for one maker's devices, and need what only these have.
    for entry in directory.join("tests").read_dir().unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("test_mlx5") || file.starts_with("test_efa") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let mut command = Command::new("timeout");
    command
        .args(["600", RUN, PYTHON, "tests/run_tests.py", "-v"])
        .args(["--dev", "dgiwarp0", "--gid", "0"])
        .env("DGIWARP_PERSONA", persona)
        .current_dir(&directory);
    for file in files {
        command.args(["-k", &format!("tests.test_{file}.*")]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let passed = text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 2 * files.len(), "{text}");
    for line in text.lines().filter(|line| line.contains("... skipped")) {
        let of_rnics = persona == "iwarp" && line.contains(ABSENT_FROM_RNICS);
        let known = of_rnics || ABSENT.iter().any(|known| line.contains(known));
        assert!(known, "{line}");
    }
    Some((text, output.status.success()))
}

/// Runs the tests of some files. All pass, except for those about what the device does not have.
fn run(name: &str, files: &[&str]) {
    if let Some((text, success)) = report(name, "roce", files) {
        assert!(success, "{text}");
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

/// As iWARP adapter: the tests that fail need what no RNIC has, and the book gives the clause for each.
#[test]
fn an_rnic_fails_the_tests_that_the_book_explains() {
    let book = include_str!("../../../../docs/use/compatibility.md");
    for name in NOT_OF_RNICS {
        assert!(book.contains(&format!("`{name}`")), "{name}");
    }
    let files = [
        "atomic",
        "cq",
        "cq_events",
        "cqex",
        "device",
        "mr",
        "odp",
        "parent_domain",
        "pd",
        "qp",
        "qpex",
        "rdmacm",
        "relaxed_ordering",
    ];
    let Some((text, _)) = report("pyverbs_rnic", "iwarp", &files) else {
        return;
    };
    let failed = text.lines().filter_map(|line| {
        let rest = line
            .strip_prefix("FAIL: ")
            .or_else(|| line.strip_prefix("ERROR: "))?;
        rest.split_whitespace().next()
    });
    for name in failed {
        assert!(NOT_OF_RNICS.contains(&name), "{name}\n{text}");
    }
}
