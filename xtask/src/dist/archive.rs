//! The archive, and the time that everything in archives has.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Build;
use crate::workspace;

/// Equal trees give equal archives: names sorted, nobody's user id, the time of the last commit.
pub(super) fn pack(
    folder: &Path,
    name: &str,
    archive: &Path,
    build: Build,
) -> Result<(), Box<dyn Error>> {
    let (level, _) = build.compression();
    super::run(
        Command::new("tar")
            .arg("--create")
            .args([
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--mode=u+rw,go=rX",
            ])
            .arg(format!("--mtime=@{}", commit_time()))
            .arg(format!("--use-compress-program=gzip --no-name {level}"))
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(folder)
            .arg(name),
    )
}

/// Seconds since 1970 of the last commit; 0 outside a git checkout.
pub(super) fn commit_time() -> u64 {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(workspace::root())
        .stderr(Stdio::null())
        .output();
    output
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}
