//! `cargo xtask dist`: the release build as a tree, an archive of it, and a Debian package.
//!
//! ```text
//! dist/dgiwarp-VERSION/bin/               the programs
//!                      include/           headers beside rdma-core's
//!                      lib/dgiwarp/       libdgiwarp_verbs.so and the two names that programs ask for, libdgiwarp_paths.so, libdgiwarp_sockets.so
//!                      lib/pkgconfig/     dgiwarp.pc, for programs that are linked to it
//!                      share/man/         manual pages
//!                      share/bash-completion/, share/zsh/, share/fish/
//!                      share/dgiwarp/suppressions/ for ThreadSanitizer and Helgrind
//!                      share/dgiwarp/wireshark/ a dissector
//!                      share/doc/dgiwarp/ documents, examples and licences
//! dist/dgiwarp-VERSION.tar.gz
//! dist/dgiwarp_VERSION_ARCHITECTURE.deb   the same below /usr
//! ```
//!
//! The libraries have a private folder because they carry the names of rdma-core's. Nothing in the tree depends on where it is put.

mod archive;
mod credits;
mod deb;
mod needs;
mod tree;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::Metadata;

use crate::debian;
use crate::groups;
use crate::workspace;

/// Files that were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dist {
    /// The folder `dgiwarp-VERSION`.
    pub tree: PathBuf,
    /// The archive of it.
    pub archive: PathBuf,
    /// The Debian package; `None` on a system without `dpkg-deb`.
    pub package: Option<PathBuf>,
}

/// The build that is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The release build of the default members of the workspace: what users get.
    Release,
    /// The libraries and programs of the test profile, compiled by the test command: for tests of the packing, which does not depend on the profile.
    Tests,
}

impl Build {
    /// The arguments of cargo.
    // All at once: each dependency is then built with the same features as everywhere else.
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["build", "--release"],
            Self::Tests => groups::TESTS_AND_PROGRAMS.arguments,
        }
    }

    /// The folder below cargo's target directory.
    const fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Tests => "debug",
        }
    }

    /// The arguments of gzip and of `dpkg-deb` for how hard they compress. Compressing the package of users takes a minute of processor
    /// time, and tests make two; the formats are equal.
    const fn compression(self) -> (&'static str, &'static str) {
        match self {
            Self::Release => ("-6", "-z6"),
            Self::Tests => ("-1", "-z0"),
        }
    }
}

/// Builds everything and writes tree, archive and package below `folder`, replacing older ones of this version.
///
/// # Errors
/// The build fails (cargo has said why), or a file cannot be written.
pub fn make(folder: &Path, build: Build) -> Result<Dist, Box<dyn Error>> {
    let metadata = workspace::metadata()?;
    compile(&metadata, build)?;
    let version = tree::version(&metadata)?;
    let name = format!("dgiwarp-{version}");
    let tree = folder.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    tree::lay_out(&metadata, build, &tree)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    archive::pack(folder, &name, &archive, build)?;
    let package = if debian::find_program("dpkg-deb").is_some() {
        Some(deb::pack(&tree, &version, folder, build)?)
    } else {
        None
    };
    Ok(Dist {
        tree,
        archive,
        package,
    })
}

/// Builds everything in release mode and lays out the tree alone, as the folder `tree`, which must not exist.
///
/// # Errors
/// As [`make`].
pub fn make_tree(tree: &Path) -> Result<(), Box<dyn Error>> {
    let metadata = workspace::metadata()?;
    compile(&metadata, Build::Release)?;
    tree::lay_out(&metadata, Build::Release, tree)
}

fn compile(metadata: &Metadata, build: Build) -> Result<(), Box<dyn Error>> {
    let status = workspace::cargo()
        .args(build.arguments())
        .env("CARGO_TARGET_DIR", &metadata.target_directory)
        .stdin(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err("the build failed".into())
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be run, or ends with another status than 0.
fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let name = command.get_program().to_owned();
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("{}: {error}", name.display()))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{} ended with {status}", name.display()).into())
}
