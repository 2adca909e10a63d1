//! The programs of these tests: devices on our library, and the tester.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use xtask::lab::is_listening;

const LOCALHOST: &str = "127.0.0.1";

/// A device. Dropping it ends it.
pub(crate) struct Server {
    child: Child,
    host: &'static str,
    port: u16,
    /// Token of an agent; empty for other programs.
    pub(crate) token: String,
}

impl Server {
    /// Debian's rping, which takes any number of connections.
    pub(crate) fn rping(environment: &[(&str, &str)]) -> Self {
        let port = free_port();
        let child = on_our_library("rping")
            .args(["-s", "-P", "-a", "127.0.0.1", "-p", &port.to_string()])
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            host: LOCALHOST,
            port,
            token: String::new(),
        };
        while !is_listening(server.child.id(), Some(port)) {
            assert!(server.child.try_wait().unwrap().is_none(), "rping ended");
            xtask::clock::pause(core::time::Duration::from_millis(5));
        }
        server
    }

    /// The agent, compiled here.
    pub(crate) fn agent(environment: &[(&str, &str)]) -> Self {
        let child = agent(environment).stdout(Stdio::piped()).spawn().unwrap();
        Self::of_agent(child).expect("the agent ends")
    }

    /// The agent at another loopback address.
    pub(crate) fn agent_at(host: &'static str) -> Self {
        // The later option counts.
        let child = agent(&[])
            .args(["-a", host])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self::of_agent(child).expect("the agent ends");
        server.host = host;
        server
    }

    /// An agent whose standard output is a pipe, when it listens. `None` if it ends before.
    pub(crate) fn of_agent(mut child: Child) -> Option<Self> {
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut server = Self {
            child,
            host: LOCALHOST,
            port: 0,
            token: String::new(),
        };
        let mut word = |key: &str| {
            let line = lines.next()?.ok()?;
            Some(line.strip_prefix(key)?.trim().to_owned())
        };
        server.port = word("port")?.parse().ok()?;
        server.token = word("token")?;
        Some(server)
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent on our library, compiled once per test program.
pub(crate) fn agent(environment: &[(&str, &str)]) -> Command {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let new = tempfile::NamedTempFile::new_in(folder)
            .unwrap()
            .into_temp_path();
        let headers = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../verbs/include");
        compile(&new, &[headers]);
        // A process that runs the earlier file keeps it.
        let program = folder.join("conform-agent");
        new.persist(&program).unwrap();
        program
    });
    let mut command = on_our_library(PROGRAM.to_str().unwrap());
    command.args(["-a", "127.0.0.1", "-1"]);
    command.envs(environment.iter().copied());
    command
}

/// Compiles the agent.
pub(crate) fn compile(program: &Path, options: &[&str]) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/agent/agent.c");
    let cc = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(program)
        .args(options)
        .args([source, "-lrdmacm", "-libverbs"])
        .status();
    assert!(cc.unwrap().success(), "the agent does not compile");
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A program with the library as the dynamic linker finds it in the folder that was laid out when `dgiwarp-verbs-library` was built
/// for this test.
fn on_our_library(program: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let folder: PathBuf = test.ancestors().nth(2).unwrap().join("dgiwarp");
    assert!(folder.join("librdmacm.so.1").is_file(), "{folder:?}");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).stdin(Stdio::null());
    command
}

/// A run of the tester.
pub(crate) struct Run {
    pub(crate) status: Option<i32>,
    json: Value,
    pub(crate) stderr: String,
}

/// Runs the tester with its JSON on standard output. Devices on a loaded machine may take their time.
pub(crate) fn tester(arguments: &[&str]) -> Run {
    let mut command = tester_command(arguments);
    if !arguments.contains(&"--patience") {
        command.args(["--patience", "30"]);
    }
    Run::of(command.output().unwrap())
}

/// The tester with its JSON on standard output.
pub(crate) fn tester_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dgiwarp-conform"));
    command.args(["run", "--json", "-"]).args(arguments);
    command.stdin(Stdio::null());
    command
}

impl Run {
    /// The run that ended with this output. One that was killed has no outcomes.
    pub(crate) fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Whether a rule of a sender was broken in this case, which decides nothing else then.
    pub(crate) fn is_found_by_rule(&self, case: &str) -> bool {
        let one = self.cases().find(|one| one["case"] == case);
        one.is_some_and(|one| {
            let reason = one["reason"].as_str().unwrap_or_default();
            one["outcome"] == "inconclusive" && reason.starts_with("see ")
        })
    }

    /// Outcome of a case.
    pub(crate) fn outcome(&self, case: &str) -> &str {
        self.cases()
            .find(|one| one["case"] == case)
            .and_then(|one| one["outcome"].as_str())
            .unwrap_or("not run")
    }

    /// The cases that found something, with what became of them unless they failed.
    pub(crate) fn found(&self) -> impl Iterator<Item = String> {
        self.cases().filter_map(|one| {
            let (case, outcome) = (one["case"].as_str()?, one["outcome"].as_str()?);
            match outcome {
                "pass" | "skipped" => None,
                "fail" => Some(case.to_owned()),
                other => Some(format!("{case}({other})")),
            }
        })
    }

    fn cases(&self) -> impl Iterator<Item = &Value> {
        self.json["cases"].as_array().into_iter().flatten()
    }

    /// All that did not pass, for a failure's message.
    pub(crate) fn report(&self) -> String {
        let bad: Vec<_> = self
            .cases()
            .filter(|one| one["outcome"] != "pass" && one["outcome"] != "skipped")
            .map(|one| {
                let mut one = one.clone();
                if let Some(trials) = one["trials"].as_array_mut() {
                    trials.retain(|trial| trial["pass"] == false);
                }
                format!("{one:#}")
            })
            .collect();
        format!("{}\n{}", self.stderr, bad.join("\n"))
    }
}
