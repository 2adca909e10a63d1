//! The packages that users get from a registry: complete, small, described, and without what only this tree has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::Package;
use xtask::workspace;

/// Compressed octets of the largest package.
const LARGEST: u64 = 300 << 10;
/// Lines of a README. The tester's README is its manual.
const README_LINES: usize = 40;
const MANUAL: &str = "dgiwarp-conform";

fn published() -> Vec<Package> {
    let mut packages = workspace::metadata().unwrap().packages;
    packages.retain(|package| package.publish.is_none());
    packages
}

/// `cargo package` of all of them, which needs no registry: each is there for those that depend on it.
fn package(build_folder: &Path) -> Command {
    let mut command = workspace::cargo();
    command.args(["package", "--offline", "--allow-dirty", "--target-dir"]);
    command.arg(build_folder);
    for package in published() {
        command.args(["--package", package.name.as_str()]);
    }
    command
}

fn build_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[track_caller]
fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn packages_have_their_sources_and_nothing_else() {
    let folder = build_folder("packages");
    succeed(package(&folder).arg("--no-verify"));
    for package in published() {
        let file = format!("package/{}-{}.crate", package.name, package.version);
        let file = folder.join(file);
        let length = fs::metadata(&file).unwrap().len();
        assert!(length < LARGEST, "{}: {length} octets", package.name);
        let list = Command::new("tar").arg("-tf").arg(&file).output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        let top = format!("{}-{}/", package.name, package.version);
        let files: Vec<_> = list
            .lines()
            .map(|line| line.strip_prefix(&top).unwrap())
            .collect();
        assert!(files.contains(&"README.md"), "{}: {list}", package.name);
        assert!(
            files.iter().any(|file| file.starts_with("src/")),
            "{}: {list}",
            package.name
        );
        for own in ["tests/", "benches/", "proptest-regressions/", "captures/"] {
            assert!(
                !files.iter().any(|file| file.starts_with(own)),
                "{}: {list}",
                package.name
            );
        }
    }
}

#[test]
fn packages_are_described() {
    for package in published() {
        let name = package.name.as_str();
        assert!(package.description.is_some(), "{name}");
        assert!((1..=5).contains(&package.keywords.len()), "{name}");
        assert!(!package.categories.is_empty(), "{name}");
        assert!(package.rust_version.is_some(), "{name}");
        assert!(package.license.is_some(), "{name}");
        let readme = package.readme().expect("a README");
        let text = fs::read_to_string(readme).unwrap();
        assert!(
            name == MANUAL || text.lines().count() <= README_LINES,
            "{name}"
        );
        assert!(name == MANUAL || text.starts_with(&format!("# {name}\n")));
    }
}

/// Every package of the tree that a published one needs is published.
#[test]
fn packages_depend_on_packages() {
    let published = published();
    let ours = workspace::metadata().unwrap().packages;
    for package in &published {
        for dependency in &package.dependencies {
            let of = |packages: &[Package]| packages.iter().any(|it| *it.name == dependency.name);
            // Cargo leaves out dependencies of tests that have no version.
            let left_out = dependency.req.comparators.is_empty();
            assert!(
                !of(&ours) || of(&published) || left_out,
                "{} needs {}",
                package.name,
                dependency.name
            );
        }
    }
}

#[test]
#[ignore = "ten minutes"]
fn soak_packages_build_from_their_files() {
    succeed(&mut package(&build_folder("built-packages")));
}
