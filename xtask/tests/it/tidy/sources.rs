//! Rules about single source files and manifests.

use std::fs;

use cargo_metadata::{Package, Target, TargetKind};
use xtask::groups::{PLACES, SPLIT};
use xtask::workspace;

use super::assert_none;
use super::tree::{self, File};

/// Packages that may contain unsafe code.
const UNSAFE_PACKAGES: [&str; 6] = [
    "dgiwarp-libchannel",
    "dgiwarp-libripc",
    "dgiwarp-memory",
    "dgiwarp-paths",
    "dgiwarp-preload",
    "dgiwarp-verbs",
];

/// The longest a file may be, in lines.
const LONGEST: usize = 800;
/// Files that are longer, each with the reason.
const LONGER: &[(&str, &str)] = &[];

/// Source folders of protocol code: no I/O, thread, clock or environment may be named there.
const SANS_IO_FOLDERS: [&str; 8] = [
    "codec/src",
    "ddp/src",
    "rdmap/src",
    "llp-udp/src",
    "llp-tcp-mpa/src",
    "ripc/src/engine",
    "ripc/src/wire",
    "stack/engine/src",
];

/// Ways to the outside world in the standard library.
const IO_NAMES: [&str; 8] = [
    "std::net::Udp",
    "std::net::Tcp",
    "std::thread",
    "std::env",
    "std::fs",
    "std::process",
    "Instant::now",
    "SystemTime::now",
];

// Put together here, so that this file does not find itself.
const STUBS: [&str; 2] = [concat!("to", "do!("), concat!("unimple", "mented!(")];
const IGNORE: &str = concat!("#[ig", "nore");
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/bash_", "jobs"),
];

/// Places of lines for which `wrong` holds, as `path:line: text`.
fn lines(files: &[File], wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            if wrong(line) {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    found
}

#[test]
fn every_crate_root_forbids_unsafe_code() {
    let metadata = workspace::metadata().unwrap();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        for target in &package.targets {
            let root = target.kind.iter().any(|kind| {
                matches!(
                    kind,
                    TargetKind::Lib | TargetKind::Bin | TargetKind::RLib | TargetKind::CDyLib
                )
            });
            let text = fs::read_to_string(&target.src_path).unwrap();
            if root && !UNSAFE_PACKAGES.contains(&package.name.as_str()) && !forbids_unsafe(&text) {
                wrong.push(target.src_path.to_string());
            }
        }
    }
    assert_none("crate roots without #![forbid(unsafe_code)]", &wrong);
}

/// Whether the attribute stands at the head of the file, before the first item.
fn forbids_unsafe(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .take_while(|line| line.is_empty() || line.starts_with("//") || line.starts_with("#!"))
        .any(|line| line == "#![forbid(unsafe_code)]")
}

#[test]
fn every_package_takes_the_workspace_lints() {
    let metadata = workspace::metadata().unwrap();
    let wrong: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| !takes_lints(&fs::read_to_string(&package.manifest_path).unwrap()))
        .map(|package| package.manifest_path.to_string())
        .collect();
    assert_none("manifests without [lints] workspace = true", &wrong);
}

fn takes_lints(manifest: &str) -> bool {
    let mut lines = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .skip(1);
    lines.next() == Some("workspace = true")
}

#[test]
fn shared_libraries_are_nothing_else() {
    let metadata = workspace::metadata().unwrap();
    let mut libraries = 0;
    let mut wrong = Vec::new();
    for target in metadata.packages.iter().flat_map(|one| &one.targets) {
        if target.kind.contains(&TargetKind::CDyLib) {
            libraries += 1;
            if target.kind.len() > 1 {
                wrong.push(target.src_path.to_string());
            }
        }
    }
    assert!(libraries > 0);
    assert_none(
        "shared libraries that are Rust libraries too: cargo would not optimize them across crates",
        &wrong,
    );
}

#[test]
fn no_file_is_too_long() {
    let mut wrong: Vec<_> = tree::rust_files()
        .iter()
        .map(|file| (file.path.as_str(), file.text.lines().count()))
        .filter(|(path, length)| *length > LONGEST && !LONGER.iter().any(|(long, _)| long == path))
        .map(|(path, length)| format!("{path}: {length} lines"))
        .collect();
    for (path, reason) in LONGER {
        let length =
            fs::read_to_string(workspace::root().join(path)).map_or(0, |text| text.lines().count());
        if length <= LONGEST || reason.is_empty() {
            wrong.push(format!("{path} needs no place in the list of longer files"));
        }
    }
    assert_none(
        "files over 800 lines (what is the second module called?)",
        &wrong,
    );
}

#[test]
fn nothing_is_left_for_later() {
    let wrong = lines(&tree::rust_files(), |line| {
        STUBS.iter().any(|stub| line.contains(stub))
    });
    assert_none("stubs", &wrong);
}

#[test]
fn ignored_tests_are_long_runs_and_say_so() {
    let mut wrong = Vec::new();
    for file in tree::rust_files() {
        wrong.extend(wrong_ignores(&file));
    }
    assert_none(
        "ignored tests without a reason, or not named soak_…",
        &wrong,
    );
}

fn wrong_ignores(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    let lines: Vec<_> = file.text.lines().map(str::trim).collect();
    for (at, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with(IGNORE))
    {
        let name = lines[at..]
            .iter()
            .find_map(|line| line.split_once("fn ").map(|(_, name)| name));
        let soak = name.is_some_and(|name| name.starts_with("soak_"));
        let reason = line
            .split_once(" = \"")
            .is_some_and(|(_, reason)| !reason.starts_with('"'));
        if !soak || !reason {
            wrong.push(format!("{}:{}: {line}", file.path, at + 1));
        }
    }
    wrong
}

#[test]
fn no_file_knows_one_machine() {
    let wrong = lines(&tree::files(), names_a_machine_path);
    assert_none("paths of one machine", &wrong);
}

/// Whether one of the paths stands in the line as the start of a path, not as the middle of another.
fn names_a_machine_path(line: &str) -> bool {
    MACHINE_PATHS.iter().any(|path| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | ')'))
        })
    })
}

#[test]
fn protocol_code_does_no_io() {
    let sources: Vec<_> = tree::rust_files()
        .into_iter()
        .filter(|file| {
            SANS_IO_FOLDERS.iter().any(|folder| file.is_in(folder))
                && !file.path.ends_with("tests.rs")
                && !file.path.contains("/test_")
                && !file.path.contains("/tests/")
        })
        .map(|mut file| {
            // Tests stand at the bottom of a file, and may do what they like.
            if let Some(tests) = file.text.find("#[cfg(test)]") {
                file.text.truncate(tests);
            }
            file
        })
        .collect();
    let wrong = lines(&sources, does_io);
    assert_none(
        "I/O, threads, clock or environment in protocol code",
        &wrong,
    );
}

fn does_io(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Waiting for another thread to leave a region is no thread of the engine's own.
    let code = code.replace("std::thread::yield_now", "");
    IO_NAMES.iter().any(|name| code.contains(name))
}

#[test]
fn every_test_with_a_place_exists() {
    let metadata = workspace::metadata().unwrap();
    let exists = |package: &Package, part: &str| {
        package.targets.iter().any(|target| {
            let module = target.src_path.with_file_name(format!("{part}.rs"));
            target.kind.contains(&TargetKind::Test)
                && (target.name == part || target.src_path.ends_with(SPLIT) && module.is_file())
        })
    };
    let wrong: Vec<_> = PLACES
        .iter()
        .filter(|(package, part, _)| {
            !metadata
                .packages
                .iter()
                .any(|one| one.name.as_str() == *package && exists(one, part))
        })
        .map(|(package, part, _)| format!("{package}: {part}"))
        .collect();
    assert_none(
        "integration tests named in xtask/src/groups.rs that do not exist",
        &wrong,
    );
}

#[test]
fn integration_tests_of_a_package_are_one_program() {
    let metadata = workspace::metadata().unwrap();
    let tests = |package: &Package| {
        let is_test = |target: &&Target| target.kind.contains(&TargetKind::Test);
        package.targets.iter().filter(is_test).count()
    };
    let wrong: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| tests(package) > 1)
        .map(|package| format!("{}: {}", package.name, tests(package)))
        .collect();
    assert_none("packages with several test targets", &wrong);
}

#[test]
fn the_rules_see_what_they_forbid() {
    let file = |text: &str| File {
        path: "x.rs".into(),
        text: text.into(),
    };
    assert!(forbids_unsafe(
        "//! Doc.\n\n#![forbid(unsafe_code)]\nuse x;\n"
    ));
    assert!(!forbids_unsafe(
        "//! Doc.\nuse x;\n#![forbid(unsafe_code)]\n"
    ));
    assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n"));
    assert!(takes_lints("[package]\n\n[lints]\nworkspace = true\n"));
    assert!(!takes_lints("[package]\nworkspace = true\n[lints]\n"));
    let ignored = |rest: &str| wrong_ignores(&file(&format!("#[test]\n{IGNORE}{rest}")));
    assert_eq!(ignored(" = \"an hour\"]\nfn soak_x() {}").len(), 0);
    assert_eq!(ignored("]\nfn soak_x() {}").len(), 1);
    assert_eq!(ignored(" = \"flaky\"]\nfn x() {}").len(), 1);
    assert!(does_io("let t = Instant::now(); // why"));
    assert!(!does_io("// Instant::now is the driver's"));
    assert!(!does_io("    std::thread::yield_now();"));
    assert!(does_io("use std::thread;"));
    assert!(names_a_machine_path(concat!("let p = \"/wo", "rk/main\";")));
    assert!(names_a_machine_path(concat!("HOME=/ro", "ot/.cache")));
    assert!(!names_a_machine_path(concat!("target/wo", "rk/x")));
    assert_eq!(lines(&[file("a\nb\n")], |line| line == "b"), ["x.rs:2: b"]);
}
