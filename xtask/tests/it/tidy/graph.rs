//! The dependency graph of the workspace, and the outside packages that protocol code must not see.

use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, Package};
use xtask::workspace;

use super::{assert_none, tree};

/// Packages of the workspace that each package may use. `sim` is for tests and the lab alone, and so is everything of `xtask`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("dgiwarp-codec", &[]),
    ("dgiwarp-memory", &["dgiwarp-codec"]),
    ("dgiwarp-ddp", &["dgiwarp-codec"]),
    ("dgiwarp-rdmap", &["dgiwarp-codec", "dgiwarp-ddp"]),
    ("dgiwarp-llp-udp", &["dgiwarp-codec"]),
    ("dgiwarp-llp-tcp-mpa", &["dgiwarp-codec"]),
    ("dgiwarp-sim", &[]),
    ("dgiwarp-sockets", &["dgiwarp-codec"]),
    ("dgiwarp-socket-table", &[]),
    (
        "dgiwarp-engine",
        &[
            "dgiwarp-codec",
            "dgiwarp-ddp",
            "dgiwarp-llp-tcp-mpa",
            "dgiwarp-llp-udp",
            "dgiwarp-memory",
            "dgiwarp-rdmap",
        ],
    ),
    (
        "dgiwarp",
        &[
            "dgiwarp-codec",
            "dgiwarp-ddp",
            "dgiwarp-engine",
            "dgiwarp-llp-tcp-mpa",
            "dgiwarp-llp-udp",
            "dgiwarp-memory",
            "dgiwarp-rdmap",
        ],
    ),
    ("dgiwarp-ripc", &["dgiwarp", "dgiwarp-codec"]),
    ("dgiwarp-ripc-macros", &[]),
    (
        "dgiwarp-ripc-service",
        &["dgiwarp-ripc", "dgiwarp-ripc-macros"],
    ),
    ("dgiwarp-ripc-tonic", &["dgiwarp-ripc"]),
    (
        "dgiwarp-ripc-tool",
        &[
            "dgiwarp",
            "dgiwarp-cli",
            "dgiwarp-ripc",
            "dgiwarp-ripc-tonic",
        ],
    ),
    ("dgiwarp-libripc", &["dgiwarp", "dgiwarp-ripc"]),
    ("dgiwarp-paths", &[]),
    (
        "dgiwarp-preload",
        &["dgiwarp-engine", "dgiwarp-memory", "dgiwarp-socket-table"],
    ),
    ("dgiwarp-cli", &[]),
    (
        "dgiwarp-verbs",
        &["dgiwarp", "dgiwarp-memory", "dgiwarp-sockets"],
    ),
    ("dgiwarp-verbs-library", &["dgiwarp-verbs"]),
    (
        "dgiwarp-run",
        &[
            "dgiwarp-cli",
            "dgiwarp-paths",
            "dgiwarp-preload",
            "dgiwarp-socket-table",
            "dgiwarp-verbs",
            "dgiwarp-verbs-library",
        ],
    ),
    ("dgiwarp-perf", &["dgiwarp", "dgiwarp-cli"]),
    ("dgiwarp-transfer", &["dgiwarp", "dgiwarp-codec"]),
    ("dgiwarp-channel", &["dgiwarp"]),
    ("dgiwarp-libchannel", &["dgiwarp", "dgiwarp-channel"]),
    ("dgiwarp-transfer-cli", &["dgiwarp", "dgiwarp-transfer"]),
    (
        "dgiwarp-mz",
        &["dgiwarp-cli", "dgiwarp-transfer", "dgiwarp-transfer-cli"],
    ),
    (
        "dgiwarp-rftp",
        &[
            "dgiwarp",
            "dgiwarp-cli",
            "dgiwarp-transfer",
            "dgiwarp-transfer-cli",
        ],
    ),
    // It shows what the tester decodes, and so sees traffic as a stranger to the stack does.
    ("dgiwarp-dump", &["dgiwarp-cli", "dgiwarp-conform"]),
    ("dgiwarp-conform", &["dgiwarp-cli", "dgiwarp-codec"]),
    (
        "dgiwarp-fuzz-targets",
        &[
            "dgiwarp-engine",
            "dgiwarp-codec",
            "dgiwarp-conform",
            "dgiwarp-ddp",
            "dgiwarp-llp-tcp-mpa",
            "dgiwarp-llp-udp",
            "dgiwarp-memory",
            "dgiwarp-rdmap",
            "dgiwarp-ripc",
            "dgiwarp-socket-table",
            "dgiwarp-sockets",
            "dgiwarp-transfer",
            "dgiwarp-verbs",
        ],
    ),
    ("dgiwarp-benches", &[]),
    // The link of a lab with faults is the simulation's, on a real clock.
    ("xtask", &["dgiwarp-sim"]),
];

/// Packages that tests may use in addition: the simulator and the lab, for any package.
const TESTS_MAY_USE: &[&str] = &["dgiwarp-sim", "xtask"];

/// And these packages' tests, these packages: the tester meets the stack only across a network, and each protocol in what others sent.
const TESTS_OF_MAY_USE: &[(&str, &[&str])] = &[
    (
        "dgiwarp-conform",
        &[
            "dgiwarp",
            "dgiwarp-ddp",
            "dgiwarp-llp-tcp-mpa",
            "dgiwarp-rdmap",
            "dgiwarp-verbs-library",
        ],
    ),
    // Its tests show traffic of the device.
    ("dgiwarp-dump", &["dgiwarp"]),
    // Its corpora come from taps of the device.
    ("dgiwarp-fuzz-targets", &["dgiwarp"]),
    // Its benchmark has typed services beside gRPC.
    ("dgiwarp-ripc-tonic", &["dgiwarp-ripc-service"]),
    // Its benchmarks are all that it is.
    (
        "dgiwarp-benches",
        &[
            "dgiwarp",
            "dgiwarp-codec",
            "dgiwarp-ddp",
            "dgiwarp-engine",
            "dgiwarp-llp-udp",
            "dgiwarp-memory",
            "dgiwarp-rdmap",
        ],
    ),
    // Programs in C run on it.
    ("dgiwarp-ripc-tool", &["dgiwarp-libripc"]),
    ("dgiwarp-mz", &["dgiwarp-channel", "dgiwarp-libchannel"]),
    // A C program's peer that uses the Rust API.
    ("dgiwarp-run", &["dgiwarp"]),
];

/// Packages without I/O, and what of the outside world would give them some.
const SANS_IO: &[&str] = &[
    "dgiwarp-codec",
    "dgiwarp-ddp",
    "dgiwarp-engine",
    "dgiwarp-llp-tcp-mpa",
    "dgiwarp-llp-udp",
    "dgiwarp-rdmap",
    "dgiwarp-sim",
    "dgiwarp-sockets",
    "dgiwarp-socket-table",
];
const IO_PACKAGES: &[&str] = &["getrandom", "libc", "mio", "nix", "socket2", "tokio"];

/// Packages that open sockets.
const SOCKETS: &[&str] = &["mio", "nix", "socket2", "tokio"];

fn violations(metadata: &Metadata) -> Vec<String> {
    metadata
        .packages
        .iter()
        .flat_map(|package| edges(metadata, package))
        .collect()
}

fn edges(metadata: &Metadata, package: &Package) -> Vec<String> {
    let name = package.name.as_str();
    let Some((_, allowed)) = MAY_USE.iter().find(|(of, _)| *of == name) else {
        return vec![format!(
            "{name} has no place in the graph: add it to MAY_USE"
        )];
    };
    let in_tests = TESTS_OF_MAY_USE
        .iter()
        .find(|(of, _)| *of == name)
        .map_or(&[][..], |(_, uses)| uses);
    let ours = |dependency: &str| {
        metadata
            .packages
            .iter()
            .any(|package| package.name.as_str() == dependency)
    };
    package
        .dependencies
        .iter()
        .filter_map(|dependency| {
            let used = dependency.name.as_str();
            let in_test = dependency.kind == DependencyKind::Development;
            let fine = if ours(used) {
                allowed.contains(&used)
                    || in_test && (TESTS_MAY_USE.contains(&used) || in_tests.contains(&used))
            } else {
                in_test || !(SANS_IO.contains(&name) && IO_PACKAGES.contains(&used))
            };
            (!fine).then(|| format!("{name} must not use {used} ({})", dependency.kind))
        })
        .collect()
}

#[test]
fn packages_use_only_what_they_may() {
    assert_none(
        "dependencies against the graph of ARCHITECTURE.md",
        &violations(&workspace::metadata().unwrap()),
    );
}

/// The engine's dependencies with the features that it asks for: those that the driver adds in a build of the workspace do not count.
#[test]
fn nothing_behind_the_engine_opens_a_socket() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "dgiwarp-engine"])
        .current_dir(workspace::root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let packages = || tree.lines().filter_map(|line| line.split(' ').next());
    assert!(
        packages().any(|package| package == "dgiwarp-memory"),
        "{tree}"
    );
    let sockets: Vec<_> = packages()
        .filter(|package| SOCKETS.contains(package))
        .collect();
    assert!(sockets.is_empty(), "the engine depends on {sockets:?}");
}

/// Dependencies that no source names: cargo builds them for the libraries and programs that they are.
const BUILT_ONLY: &[(&str, &str)] = &[
    ("dgiwarp-conform", "dgiwarp-verbs-library"),
    ("dgiwarp-mz", "dgiwarp-libchannel"),
    ("dgiwarp-ripc-tool", "dgiwarp-libripc"),
    ("dgiwarp-run", "dgiwarp-paths"),
    ("dgiwarp-run", "dgiwarp-preload"),
    ("dgiwarp-run", "dgiwarp-verbs-library"),
];

#[test]
fn every_dependency_is_used() {
    let metadata = workspace::metadata().unwrap();
    let folder = |package: &Package| package.manifest_path.parent().unwrap().to_owned();
    let files = tree::rust_files();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let inner: Vec<_> = metadata.packages.iter().map(folder).collect();
        let inner: Vec<_> = inner
            .iter()
            .filter(|other| **other != folder(package) && other.starts_with(folder(package)))
            .collect();
        let text: String = files
            .iter()
            .filter(|file| {
                let path = metadata.workspace_root.join(&file.path);
                path.starts_with(folder(package))
                    && !inner.iter().any(|other| path.starts_with(other))
            })
            .map(|file| file.text.as_str())
            .collect();
        for dependency in &package.dependencies {
            let edge = (package.name.as_str(), dependency.name.as_str());
            if !BUILT_ONLY.contains(&edge) && !names(&text, &dependency.name.replace('-', "_")) {
                wrong.push(format!("{} does not use {}", edge.0, edge.1));
            }
        }
    }
    assert_none("dependencies that no source names", &wrong);
}

/// Whether the crate is named in code: in a path, an import, or the attribute of a derive.
fn names(text: &str, krate: &str) -> bool {
    let code = text.lines().filter(|line| !line.trim().starts_with("//"));
    code.flat_map(|line| {
        line.match_indices(krate)
            .map(move |(at, _)| (&line[..at], &line[at + krate.len()..]))
    })
    .any(|(before, after)| {
        let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        edge(before.chars().next_back()) && edge(after.chars().next())
    })
}

#[test]
fn the_graph_has_no_cycle_and_no_package_twice() {
    for (name, uses) in MAY_USE {
        assert_eq!(
            MAY_USE.iter().filter(|(other, _)| other == name).count(),
            1,
            "{name}"
        );
        for used in *uses {
            let (_, back) = MAY_USE.iter().find(|(other, _)| other == used).unwrap();
            assert!(!back.contains(name), "{name} and {used} use each other");
        }
    }
}

#[test]
fn a_wrong_edge_is_seen() {
    let mut metadata = workspace::metadata().unwrap();
    let stack = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "dgiwarp")
        .unwrap();
    let mut to_ddp = stack
        .dependencies
        .iter()
        .find(|dependency| dependency.name == "dgiwarp-ddp")
        .unwrap()
        .clone();
    let mut to_nix = stack
        .dependencies
        .iter()
        .find(|dependency| dependency.name == "nix")
        .unwrap()
        .clone();
    to_ddp.kind = DependencyKind::Normal;
    to_nix.kind = DependencyKind::Normal;
    let codec = metadata
        .packages
        .iter_mut()
        .find(|package| package.name.as_str() == "dgiwarp-codec")
        .unwrap();
    codec.dependencies = vec![to_ddp.clone(), to_nix.clone()];
    to_ddp.kind = DependencyKind::Development;
    to_nix.kind = DependencyKind::Development;
    codec.dependencies.extend([to_ddp, to_nix]);
    assert_eq!(
        edges(
            &metadata,
            metadata
                .packages
                .iter()
                .find(|package| package.name.as_str() == "dgiwarp-codec")
                .unwrap()
        ),
        [
            "dgiwarp-codec must not use dgiwarp-ddp (normal)",
            "dgiwarp-codec must not use nix (normal)",
            "dgiwarp-codec must not use dgiwarp-ddp (dev)",
        ]
    );
}
