//! The Debian package: the tree below `/usr`, with what Debian wants to know of it.
//!
//! `dpkg-deb` makes it, which every Debian has. Dependencies of a package are read from its files, so that no list of them
//! gets old.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Build;
use super::archive::commit_time;
use super::needs::{self, Needs};

/// Debian's package of each shared library that we may need.
const PACKAGES: [(&str, &str); 4] = [
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("ld-linux-x86-64.so.2", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
];

const DESCRIPTION: &str = "\
Description: software RDMA network card in user space
 dgiwarp lets programs that use libibverbs and librdmacm run on any Linux
 machine or container, without RDMA hardware, kernel module, device node, root,
 capability or locked memory. It speaks iWARP over TCP, and a datagram variant
 with RDMA Write-Record, Read, broadcast and multicast over UDP.
 .
 Its libraries lie in a folder of their own and replace nobody's: dgiwarp-run
 starts a program with them, and pkg-config links one to them.
";

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: dgiwarp

Files: *
Copyright: The dgiwarp authors
License: Expat or Apache-2.0
Comment:
 Both texts are beside this file: LICENSE-MIT and LICENSE-APACHE. THIRD-PARTY.txt
 has those of the packages that are linked in.
";

/// Writes `dgiwarp_VERSION_ARCHITECTURE.deb` below `folder`.
pub(super) fn pack(
    tree: &Path,
    version: &str,
    folder: &Path,
    build: Build,
) -> Result<PathBuf, Box<dyn Error>> {
    let (_, level) = build.compression();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("Debian's name of {other} is not known").into()),
    };
    let stage = tempfile::tempdir_in(folder)?;
    // Others look into it when it is installed.
    fs::set_permissions(stage.path(), PermissionsExt::from_mode(0o755))?;
    let usr = stage.path().join("usr");
    super::run(Command::new("cp").arg("--archive").arg(tree).arg(&usr))?;
    as_debian_has_it(&usr)?;
    let control = stage.path().join("DEBIAN");
    fs::create_dir(&control)?;
    fs::write(
        control.join("control"),
        describe(version, architecture, &usr)?,
    )?;
    fs::write(control.join("md5sums"), sums(stage.path())?)?;
    let package = folder.join(format!("dgiwarp_{version}_{architecture}.deb"));
    super::run(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", level, "--build"])
            .arg(stage.path())
            .arg(&package)
            // Equal trees give equal packages.
            .env("SOURCE_DATE_EPOCH", commit_time().to_string())
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(package)
}

/// Debian's folder for zsh, its file for licences, and compressed manual pages.
fn as_debian_has_it(usr: &Path) -> Result<(), Box<dyn Error>> {
    let zsh = usr.join("share/zsh");
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions"))?;
    let doc = usr.join("share/doc/dgiwarp");
    fs::write(doc.join("copyright"), COPYRIGHT)?;
    let mut compressed = Vec::new();
    for section in fs::read_dir(usr.join("share/man"))? {
        for page in fs::read_dir(section?.path())? {
            compressed.push(page?.path());
        }
    }
    super::run(
        Command::new("gzip")
            .args(["--best", "--no-name"])
            .args(&compressed),
    )
}

fn describe(version: &str, architecture: &str, usr: &Path) -> Result<String, Box<dyn Error>> {
    let mut needs = Needs::new();
    for folder in ["bin", "lib/dgiwarp"] {
        for entry in fs::read_dir(usr.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                needs::add(&mut needs, &entry.path())?;
            }
        }
    }
    let mut text = format!(
        "Package: dgiwarp\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: The dgiwarp authors <authors@dgiwarp.invalid>\nSection: net\nPriority: optional\n"
    );
    // Writing to a String cannot fail.
    let _ = writeln!(text, "Installed-Size: {}", kibibytes(usr)?);
    let _ = writeln!(text, "Depends: {}", depends(&needs)?);
    text.push_str("Suggests: ibverbs-utils, rdmacm-utils, perftest, libibverbs-dev, librdmacm-dev, pkg-config\n");
    text.push_str(DESCRIPTION);
    Ok(text)
}

/// The field `Depends`: each package once, with the newest version that something needs.
fn depends(needs: &Needs) -> Result<String, Box<dyn Error>> {
    let mut packages = Needs::new();
    for (library, version) in needs {
        let (_, package) = PACKAGES
            .iter()
            .find(|(name, _)| name == library)
            .ok_or_else(|| format!("the Debian package of {library} is not known"))?;
        let newest = packages.entry((*package).to_owned()).or_default();
        // Versions of symbols are those of the package for the C library only.
        if *package == "libc6" && *newest < *version {
            newest.clone_from(version);
        }
    }
    let fields: Vec<_> = packages
        .iter()
        .map(|(package, version)| {
            if version.is_empty() {
                return package.clone();
            }
            let numbers: Vec<_> = version.iter().map(u32::to_string).collect();
            format!("{package} (>= {})", numbers.join("."))
        })
        .collect();
    Ok(fields.join(", "))
}

/// Size of the files below a folder in KiB, each rounded up.
fn kibibytes(folder: &Path) -> Result<u64, Box<dyn Error>> {
    let mut sum = 0;
    for file in files(folder)? {
        sum += fs::symlink_metadata(&file)?.len().div_ceil(1024);
    }
    Ok(sum)
}

/// The file `md5sums`, by which `dpkg --verify` finds what was changed.
fn sums(stage: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut names = Vec::new();
    for file in files(&stage.join("usr"))? {
        if !file.is_symlink() {
            names.push(file.strip_prefix(stage)?.to_owned());
        }
    }
    let output = Command::new("md5sum")
        .args(&names)
        .current_dir(stage)
        .output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("md5sum ended with {}", output.status).into())
}

/// Everything below a folder that is no folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_needed_once_and_as_new_as_anybody_needs_it() {
        let needs = |rows: &[(&str, &[u32])]| {
            rows.iter()
                .map(|(name, version)| ((*name).to_owned(), version.to_vec()))
                .collect::<Needs>()
        };
        let of = needs(&[
            ("libc.so.6", &[2, 34]),
            ("libgcc_s.so.1", &[4, 2, 0]),
            ("libm.so.6", &[2, 29]),
        ]);
        assert_eq!(depends(&of).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        assert!(depends(&needs(&[("libibverbs.so.1", &[])])).is_err());
    }
}
