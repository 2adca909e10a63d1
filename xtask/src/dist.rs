//! `cargo xtask dist`: the release build as a tree and an archive of it.
//!
//! ```text
//! dist/dgiwarp-VERSION/bin/            the programs
//!                      lib/dgiwarp/    libdgiwarp_verbs.so and the two names that programs ask for, libdgiwarp_paths.so
//!                      include/infiniband/dgiwarpdv.h
//!                      lib/pkgconfig/  dgiwarp.pc, for programs that are linked to it
//!                      share/doc/dgiwarp/
//! dist/dgiwarp-VERSION.tar.gz
//! ```
//!
//! The libraries have a private folder because they carry the names of rdma-core's.

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::{Metadata, Package, TargetKind};

use crate::workspace;

/// The library that stands in for rdma-core's.
const LIBRARY: &str = "libdgiwarp_verbs.so";
/// The names under which programs look for it.
const LIBRARY_NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// The header for what rdma-core's do not have, which includes theirs.
const HEADER: &str = "verbs/include/infiniband/dgiwarpdv.h";
/// The library that shows programs a device below `/dev` and `/sys`.
const PATHS_LIBRARY: &str = "libdgiwarp_paths.so";
/// Packages whose programs are tools of the workspace, or of its tests, not of its users.
const NOT_FOR_USERS: [&str; 2] = ["xtask", "dgiwarp-conform"];
/// What goes to `share/doc/dgiwarp`, as far as it exists.
const DOCUMENTS: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "rfc-notes/datagram-mapping.md",
    "rfc-notes/rc-extensions.md",
    "rfc-notes/rc-pairing.md",
];

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dist {
    /// The folder `dgiwarp-VERSION`.
    pub tree: PathBuf,
    /// The archive of it.
    pub archive: PathBuf,
}

/// Builds everything in release mode and writes tree and archive below `folder`, replacing an older one of this version.
///
/// # Errors
/// The build fails (cargo has said why), or a file cannot be written.
pub fn make(folder: &Path) -> Result<Dist, Box<dyn Error>> {
    let metadata = workspace::metadata()?;
    build(&metadata)?;
    let version = &package(&metadata, "dgiwarp")?.version;
    let name = format!("dgiwarp-{version}");
    let dist = Dist {
        tree: folder.join(&name),
        archive: folder.join(format!("{name}.tar.gz")),
    };
    if dist.tree.exists() {
        fs::remove_dir_all(&dist.tree)?;
    }
    lay_out(&metadata, &dist.tree)?;
    pack(folder, &name, &dist.archive)?;
    Ok(dist)
}

fn build(metadata: &Metadata) -> Result<(), Box<dyn Error>> {
    let mut command = workspace::cargo();
    // The whole workspace at once: each dependency is then built with the same features as everywhere else.
    command.args(["build", "--release", "--workspace"]);
    let status = command
        .env("CARGO_TARGET_DIR", &metadata.target_directory)
        .stdin(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err("the release build failed".into())
}

fn lay_out(metadata: &Metadata, tree: &Path) -> Result<(), Box<dyn Error>> {
    let built = metadata.target_directory.join("release");
    let bin = tree.join("bin");
    fs::create_dir_all(&bin)?;
    for program in programs(metadata) {
        fs::copy(built.join(&program), bin.join(&program))
            .map_err(|error| format!("{program}: {error}"))?;
    }
    if makes_library(metadata) {
        let lib = tree.join("lib/dgiwarp");
        fs::create_dir_all(&lib)?;
        for library in [LIBRARY, PATHS_LIBRARY] {
            fs::copy(built.join(library), lib.join(library))
                .map_err(|error| format!("{library}: {error}"))?;
        }
        for name in LIBRARY_NAMES {
            symlink(LIBRARY, lib.join(name))?;
        }
        let include = tree.join("include/infiniband");
        fs::create_dir_all(&include)?;
        let header = workspace::root().join(HEADER);
        fs::copy(header, include.join("dgiwarpdv.h"))?;
        let pkgconfig = tree.join("lib/pkgconfig");
        fs::create_dir_all(&pkgconfig)?;
        // Relative to the file, so that the tree may be put anywhere.
        let text = fs::read_to_string(workspace::root().join("verbs/dgiwarp.pc.in"))?
            .replace("@libdir@", "${pcfiledir}/../dgiwarp")
            .replace("@includedir@", "${pcfiledir}/../../include")
            .replace(
                "@version@",
                &package(metadata, "dgiwarp")?.version.to_string(),
            );
        fs::write(pkgconfig.join("dgiwarp.pc"), text)?;
    }
    let doc = tree.join("share/doc/dgiwarp");
    fs::create_dir_all(&doc)?;
    for document in DOCUMENTS {
        let source = workspace::root().join(document);
        if let (true, Some(name)) = (source.exists(), source.file_name()) {
            fs::copy(&source, doc.join(name))?;
        }
    }
    Ok(())
}

/// The programs for users, sorted.
fn programs(metadata: &Metadata) -> Vec<String> {
    let mut names: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| !NOT_FOR_USERS.contains(&package.name.as_str()))
        .flat_map(|package| &package.targets)
        .filter(|target| target.kind.contains(&TargetKind::Bin))
        .map(|target| target.name.clone())
        .collect();
    names.sort();
    names
}

/// Whether some package makes the shared library.
fn makes_library(metadata: &Metadata) -> bool {
    metadata
        .packages
        .iter()
        .flat_map(|package| &package.targets)
        .any(|target| {
            target.kind.contains(&TargetKind::CDyLib) && format!("lib{}.so", target.name) == LIBRARY
        })
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> Result<&'a Package, Box<dyn Error>> {
    metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == name)
        .ok_or_else(|| format!("the workspace has no package {name}").into())
}

/// The same tree gives the same archive: names sorted, nobody's user id, the time of the last commit.
fn pack(folder: &Path, name: &str, archive: &Path) -> Result<(), Box<dyn Error>> {
    let time = commit_time().unwrap_or_else(|| "0".to_owned());
    let status = Command::new("tar")
        .arg("--create")
        .args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u+rw,go=rX",
        ])
        .arg(format!("--mtime=@{time}"))
        .args(["--use-compress-program", "gzip --no-name"])
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(folder)
        .arg(name)
        .stdin(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("tar ended with {status}").into())
}

/// Seconds since 1970 of the last commit; `None` outside a git checkout.
fn commit_time() -> Option<String> {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(workspace::root())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && text.parse::<u64>().is_ok()).then_some(text)
}
