//! The workspace as cargo describes it: its root, packages, targets, and the compiled test programs.

pub mod cross;

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::{Message, Metadata, MetadataCommand, TargetKind};

use crate::groups::{self, Name};
use crate::libtest;

/// The folder of the workspace.
///
/// # Panics
/// Never: this package lies in a folder of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    // Cargo's variable at run time holds even if the folder was moved since this was compiled.
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
    /// The module that is run alone; `None`: all of the program.
    pub module: Option<String>,
    /// The group it runs in.
    pub group: Name,
    /// The arguments that make `cargo test` run it alone.
    pub selection: String,
    /// The executable.
    pub executable: PathBuf,
    /// The package's folder: cargo starts tests there.
    pub folder: PathBuf,
    /// Paths of its tests, the ignored ones too. Empty if it does not list them (a harness of its own).
    pub tests: Vec<String>,
    /// Paths of its ignored tests.
    pub ignored: Vec<String>,
}

/// Arguments of `cargo test` for the tests of these packages, or all; with `only_unit`, those that the group `unit` needs.
///
/// # Errors
/// `cargo metadata` failed.
pub fn selection(packages: &[String], only_unit: bool) -> Result<Vec<String>, Box<dyn Error>> {
    let mut arguments: Vec<String> = packages
        .iter()
        .flat_map(|package| ["--package".to_owned(), package.clone()])
        .collect();
    if packages.is_empty() {
        arguments.push("--workspace".to_owned());
    }
    if !only_unit {
        return Ok(arguments);
    }
    let metadata = metadata()?;
    // Cargo takes a kind of target that no chosen package has for a mistake.
    let has = |kind: TargetKind| {
        let mut chosen = metadata.packages.iter().filter(|package| {
            packages.is_empty() || packages.iter().any(|name| *name == package.name.as_str())
        });
        chosen.any(|package| {
            let mut targets = package.targets.iter();
            targets.any(|target| target.kind.contains(&kind))
        })
    };
    if has(TargetKind::Lib) {
        arguments.push("--lib".to_owned());
    }
    if has(TargetKind::Bin) {
        arguments.push("--bins".to_owned());
    }
    let (package, target) = groups::UNIT_TARGET;
    if packages.is_empty() || packages.iter().any(|name| name == package) {
        arguments.extend(["--test", target].map(str::to_owned));
    }
    Ok(arguments)
}

/// Lists the test programs that `selection` names, which are compiled already.
///
/// # Errors
/// A test does not compile, or cargo cannot be run.
pub fn test_programs(selection: &[String]) -> Result<Vec<TestProgram>, Box<dyn Error>> {
    let metadata = metadata()?;
    let mut command = cargo();
    command.args([
        "test",
        "--no-run",
        "--all-features",
        "--message-format",
        "json-render-diagnostics",
    ]);
    command.args(selection);
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
            let group = groups::place(&name, &target);
            (group, format!("-p {name} --test {target}"))
        } else if is(&TargetKind::Bin) {
            (Name::Unit, format!("-p {name} --bin {target}"))
        } else {
            (Name::Unit, format!("-p {name} --lib"))
        };
        let folder = package
            .manifest_path
            .parent()
            .ok_or("a manifest without a folder")?;
        let mut program = TestProgram {
            package: name,
            target,
            module: None,
            group,
            selection,
            executable: executable.into(),
            folder: folder.into(),
            tests: Vec::new(),
            ignored: Vec::new(),
        };
        program.tests = program.list(false);
        program.ignored = program.list(true);
        if is(&TargetKind::Test) && artifact.target.src_path.ends_with(groups::SPLIT) {
            programs.extend(program.modules());
        } else {
            programs.push(program);
        }
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

    /// Whether no other program may run at the same time: its tests count or compare what others would disturb.
    #[must_use]
    pub fn runs_alone(&self) -> bool {
        self.is_listed(groups::ALONE)
    }

    /// Whether it waits nearly all of its time.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.is_listed(groups::WAITING)
    }

    /// Whether it takes much longer than others of its group.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.is_listed(groups::LONG)
    }

    fn is_listed(&self, table: &[(&str, &str)]) -> bool {
        let part = self.module.as_ref().unwrap_or(&self.target);
        table.contains(&(self.package.as_str(), part.as_str()))
    }

    /// The arguments that select what is run: nothing for a whole program, else each test of the module by its path.
    ///
    /// A filter by the module's name would also run tests of modules whose names end alike.
    #[must_use]
    pub fn arguments(&self, soak: bool) -> Vec<String> {
        let mut arguments = match (&self.module, soak) {
            (None, false) => Vec::new(),
            (None, true) => vec!["soak_".to_owned()],
            (Some(_), false) => self.tests.clone(),
            (Some(_), true) => self.soak_tests().map(str::to_owned).collect(),
        };
        if self.module.is_some() {
            arguments.push("--exact".to_owned());
        }
        if soak {
            arguments.extend(["--ignored", "--nocapture"].map(str::to_owned));
        }
        arguments
    }

    /// Paths of its long tests.
    pub fn soak_tests(&self) -> impl Iterator<Item = &str> {
        self.ignored
            .iter()
            .map(String::as_str)
            .filter(|test| libtest::short_name(test).starts_with("soak_"))
    }

    /// One program for each module at the top, and one for the tests beside them.
    #[must_use]
    pub fn modules(&self) -> Vec<Self> {
        let module_of = |test: &str| {
            let module = test.split_once("::").map(|(module, _)| module.to_owned());
            module.unwrap_or_default()
        };
        let names: BTreeSet<_> = self.tests.iter().map(|test| module_of(test)).collect();
        let part = |module: String| {
            let of_module = |tests: &[String]| {
                let mut tests = tests.to_vec();
                tests.retain(|test| module_of(test) == module);
                tests
            };
            Self {
                group: groups::place(&self.package, &module),
                selection: format!("{} {module}", self.selection).trim_end().to_owned(),
                tests: of_module(&self.tests),
                ignored: of_module(&self.ignored),
                module: Some(module),
                ..self.clone()
            }
        };
        names.into_iter().map(part).collect()
    }

    /// Asks it for the paths of its tests, or of its ignored ones.
    fn list(&self, ignored: bool) -> Vec<String> {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        if ignored {
            command.arg("--ignored");
        }
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map(|output| libtest::listed_tests(&String::from_utf8_lossy(&output.stdout)))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_tests_need_no_other_integration_test() {
        let words = |packages: &[&str]| {
            let packages: Vec<_> = packages.iter().map(|&name| name.to_owned()).collect();
            selection(&packages, true).unwrap().join(" ")
        };
        assert_eq!(words(&[]), "--workspace --lib --bins --test tasks");
        assert_eq!(words(&["dgiwarp-ddp"]), "--package dgiwarp-ddp --lib");
        assert_eq!(words(&["dgiwarp-dump"]), "--package dgiwarp-dump --bins");
        assert_eq!(selection(&[], false).unwrap(), ["--workspace"]);
    }

    fn program(tests: &[&str], ignored: &[&str]) -> TestProgram {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        TestProgram {
            package: "dgiwarp-run".into(),
            target: "it".into(),
            module: None,
            group: Name::Process,
            selection: "-p dgiwarp-run --test it".into(),
            executable: "it".into(),
            folder: ".".into(),
            tests: owned(tests),
            ignored: owned(ignored),
        }
    }

    #[test]
    fn each_test_runs_once_with_its_module() {
        let tests = [
            "run::a",
            "debian::run::a",
            "run::inner::soak_b",
            "alone",
            "rerun::a",
        ];
        let whole = program(&tests, &["run::inner::soak_b"]);
        let parts = whole.modules();
        let mut run: Vec<_> = parts.iter().flat_map(|part| part.tests.clone()).collect();
        run.sort();
        let mut all = whole.tests.clone();
        all.sort();
        assert_eq!(run, all);
        let selections: Vec<_> = parts.iter().map(|it| it.selection.as_str()).collect();
        let of = |module| format!("-p dgiwarp-run --test it {module}");
        assert_eq!(
            selections,
            [
                "-p dgiwarp-run --test it",
                &of("debian"),
                &of("rerun"),
                &of("run")
            ]
        );
        assert_eq!(parts[1].group, Name::Debian);
        assert_eq!(parts[3].group, Name::Process);
        assert_eq!(
            parts[3].arguments(false),
            ["run::a", "run::inner::soak_b", "--exact"]
        );
        assert_eq!(
            parts[3].arguments(true),
            ["run::inner::soak_b", "--exact", "--ignored", "--nocapture"]
        );
        assert_eq!(parts[2].soak_tests().count(), 0);
    }

    #[test]
    fn a_program_that_is_not_split_runs_whole() {
        let program = program(&["a"], &[]);
        assert!(program.arguments(false).is_empty());
        assert_eq!(
            program.arguments(true),
            ["soak_", "--ignored", "--nocapture"]
        );
    }

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
