//! The workspace as cargo describes it: its root, packages, targets, and the compiled test programs.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::{Message, Metadata, MetadataCommand, TargetKind};

use crate::groups::{self, Name};

/// The folder of the workspace.
///
/// # Panics
/// Never: this package lies in a folder of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    // What cargo says at run time holds even if the folder was moved since this was compiled.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = |package: &Path| {
        package
            .parent()
            .filter(|root| root.join("xtask").is_dir())
            .map(Path::to_path_buf)
    };
    root(&package)
        .or_else(|| root(Path::new(env!("CARGO_MANIFEST_DIR"))))
        .expect("xtask is a folder of the workspace")
}

/// Cargo's description of the workspace's own packages.
///
/// # Errors
/// `cargo metadata` failed.
pub fn metadata() -> Result<Metadata, cargo_metadata::Error> {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
}

/// The cargo that runs us, or the one in PATH.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A compiled test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// Its package.
    pub package: String,
    /// Its target: the library, a program, or a file under `tests/`.
    pub target: String,
    /// The group it runs in.
    pub group: Name,
    /// The arguments that make `cargo test` run it alone.
    pub selection: String,
    /// The executable.
    pub executable: PathBuf,
    /// The package's folder: cargo starts tests there.
    pub folder: PathBuf,
}

/// Lists the test programs, which are compiled already.
///
/// # Errors
/// A test does not compile, or cargo cannot be run.
pub fn test_programs(packages: &[String]) -> Result<Vec<TestProgram>, Box<dyn Error>> {
    let metadata = metadata()?;
    let mut command = cargo();
    command.args([
        "test",
        "--no-run",
        "--all-features",
        "--message-format",
        "json-render-diagnostics",
    ]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    // The warnings were shown when it was compiled.
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    let mut programs = Vec::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        let Message::CompilerArtifact(artifact) = message? else {
            continue;
        };
        let (true, Some(executable)) = (artifact.profile.test, artifact.executable) else {
            continue;
        };
        let package = metadata
            .packages
            .iter()
            .find(|package| package.id == artifact.package_id)
            .ok_or("cargo compiled a test of an unknown package")?;
        let is = |kind: &TargetKind| artifact.target.kind.contains(kind);
        let (name, target) = (package.name.to_string(), artifact.target.name.clone());
        let (group, selection) = if is(&TargetKind::Test) {
            (
                groups::place(&name, &target),
                format!("-p {name} --test {target}"),
            )
        } else if is(&TargetKind::Bin) {
            (Name::Unit, format!("-p {name} --bin {target}"))
        } else {
            (Name::Unit, format!("-p {name} --lib"))
        };
        let folder = package
            .manifest_path
            .parent()
            .ok_or("a manifest without a folder")?;
        programs.push(TestProgram {
            package: name,
            target,
            group,
            selection,
            executable: executable.into(),
            folder: folder.into(),
        });
    }
    programs.sort_by(|a, b| a.selection.cmp(&b.selection));
    Ok(programs)
}

impl TestProgram {
    /// The program with the folder and environment that `cargo test` gives it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package);
        command
    }

    /// Names of its tests, or of its ignored ones. Empty if it does not list them (a harness of its own).
    #[must_use]
    pub fn list(&self, ignored: bool) -> Vec<String> {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        if ignored {
            command.arg("--ignored");
        }
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map(|output| crate::libtest::listed_tests(&String::from_utf8_lossy(&output.stdout)))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found() {
        assert!(root().join("Cargo.toml").is_file());
        let metadata = metadata().unwrap();
        assert!(
            metadata
                .packages
                .iter()
                .any(|package| package.name.as_str() == "xtask")
        );
    }
}
