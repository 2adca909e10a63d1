//! Layout of an installation.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, TargetKind};

use super::{Build, credits};
use crate::workspace;

/// The library that stands in for rdma-core's.
const LIBRARY: &str = "libdgiwarp_verbs.so";
/// The names under which programs look for it.
const LIBRARY_NAMES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libefa.so.1"];
/// The library that shows programs a device below `/dev` and `/sys`.
const PATHS_LIBRARY: &str = "libdgiwarp_paths.so";
/// The library that makes rsockets of TCP sockets.
const SOCKETS_LIBRARY: &str = "libdgiwarp_sockets.so";
/// Packages whose programs are tools of the workspace, not of its users.
const NOT_FOR_USERS: [&str; 1] = ["xtask"];
/// Documents that go to `share/doc/dgiwarp`.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];
/// Folders of documents that go there whole, so that the links between documents work.
const BOOKS: [&str; 2] = ["docs", "rfc-notes"];
/// Folders that are copied as far as they exist, with the ending of the files' names, and where to.
const FOLDERS: [(&str, &str, &str); 7] = [
    ("verbs/include/infiniband", "h", "include/infiniband"),
    ("verbs/examples/c", "c", "share/doc/dgiwarp/examples"),
    ("verbs/examples/c", "h", "share/doc/dgiwarp/examples"),
    ("conformance/agent", "c", "share/doc/dgiwarp/agent"),
    ("verbs/man", "7", "share/man/man7"),
    ("tools/wireshark", "lua", "share/dgiwarp/wireshark"),
    (
        "verbs/run/src/suppressions",
        "supp",
        "share/dgiwarp/suppressions",
    ),
];

const PROGRAM_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Lays out what was built.
pub(super) fn lay_out(
    metadata: &Metadata,
    build: Build,
    tree: &Path,
) -> Result<(), Box<dyn Error>> {
    let built = metadata.target_directory.join(build.folder());
    for program in programs(metadata) {
        let to = tree.join("bin").join(&program);
        copy_stripped(built.join(&program).as_std_path(), &to, PROGRAM_MODE)?;
        // Each program writes its manual pages and completions.
        super::run(Command::new(&to).arg("--generate").arg(tree))?;
    }
    let lib = tree.join("lib/dgiwarp");
    for library in [LIBRARY, PATHS_LIBRARY, SOCKETS_LIBRARY] {
        let built = built.join(library);
        copy_stripped(built.as_std_path(), &lib.join(library), FILE_MODE)?;
    }
    for name in LIBRARY_NAMES {
        symlink(LIBRARY, lib.join(name))?;
    }
    let root = workspace::root();
    for (folder, ending, to) in FOLDERS {
        for file in files(&root.join(folder), ending)? {
            let name = file.file_name().ok_or("a file without a name")?;
            copy(&file, &tree.join(to).join(name), FILE_MODE)?;
        }
    }
    let pkgconfig = tree.join("lib/pkgconfig/dgiwarp.pc");
    // Relative to the file, so that the tree may be put anywhere.
    let text = fs::read_to_string(root.join("verbs/library/dgiwarp.pc.in"))?
        .replace("@includedir@", "${pcfiledir}/../../include")
        .replace("@libdir@", "${pcfiledir}/../dgiwarp")
        .replace("@version@", &version(metadata)?);
    write(&pkgconfig, &text)?;
    let doc = tree.join("share/doc/dgiwarp");
    for document in DOCUMENTS {
        let source = root.join(document);
        let name = source.file_name().ok_or("a document without a name")?;
        copy(&source, &doc.join(name), FILE_MODE)?;
    }
    for book in BOOKS {
        copy_folder(&root.join(book), &doc.join(book))?;
    }
    write(
        &doc.join("THIRD-PARTY.txt"),
        &credits::text(&shipped(metadata))?,
    )?;
    settle(tree)
}

/// The version that everything has.
pub(super) fn version(metadata: &Metadata) -> Result<String, Box<dyn Error>> {
    metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "dgiwarp")
        .map(|package| package.version.to_string())
        .ok_or_else(|| "the workspace has no package dgiwarp".into())
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

/// Packages whose programs and libraries are in the tree.
fn shipped(metadata: &Metadata) -> Vec<String> {
    let made = |kind: &TargetKind| matches!(kind, TargetKind::Bin | TargetKind::CDyLib);
    metadata
        .packages
        .iter()
        .filter(|package| !NOT_FOR_USERS.contains(&package.name.as_str()))
        .filter(|package| package.targets.iter().any(|it| it.kind.iter().any(made)))
        .map(|package| package.name.to_string())
        .collect()
}

/// The files with this ending in a folder, sorted; none if there is no such folder.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == ending) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    fs::set_permissions(to, PermissionsExt::from_mode(mode))?;
    Ok(())
}

/// A folder with all that is in it.
fn copy_folder(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            copy(&entry.path(), &to, FILE_MODE)?;
        }
    }
    Ok(())
}

/// Without what only debuggers read, which is most of it. The names of functions stay, for backtraces. `strip` comes with the linker.
fn copy_stripped(from: &Path, to: &Path, mode: u32) -> Result<(), Box<dyn Error>> {
    copy(from, to, mode)?;
    super::run(Command::new("strip").arg("--strip-debug").arg(to))
}

fn write(to: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::write(to, text)?;
    Ok(())
}

/// Gives files and folders the rights that they have in an installation, whatever the user's mask is.
fn settle(folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::set_permissions(folder, PermissionsExt::from_mode(PROGRAM_MODE))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            settle(&entry.path())?;
        } else if kind.is_file() {
            let runs = entry.metadata()?.permissions().mode() & 0o100 != 0;
            let mode = if runs { PROGRAM_MODE } else { FILE_MODE };
            fs::set_permissions(entry.path(), PermissionsExt::from_mode(mode))?;
        }
    }
    Ok(())
}
