//! Programs in C for the interface of LibRIPC: the examples of `verbs/ripc`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with the compiled program, a file of services, and the environment of its processes.
struct Program {
    folder: tempfile::TempDir,
    program: PathBuf,
    address: String,
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn libraries() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ripc"));
    program.with_file_name("deps")
}

impl Program {
    fn compile(name: &str, service: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verbs/ripc");
        let output = Command::new("gcc")
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(source.join("examples").join(name).with_extension("c"))
            .arg("-I")
            .arg(source.join("include"))
            .arg("-L")
            .arg(libraries())
            .arg("-lripc")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        let line = format!("{service} {address}\n");
        fs::write(folder.path().join("services"), line).unwrap();
        Self {
            folder,
            program,
            address,
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .env("LD_LIBRARY_PATH", libraries())
            .env("RIPC_INTERFACE", "127.0.0.1")
            .env("RIPC_SERVICES", self.folder.path().join("services"))
            .env("RIPC_LISTEN", "127.0.0.1:0");
        command
    }

    fn serve(&self, words: &[&str]) -> Killed {
        self.serve_with(words, &[])
    }

    fn serve_with(&self, words: &[&str], variables: &[(&str, &Path)]) -> Killed {
        let mut command = self.command(words);
        let server = command
            .envs(variables.iter().copied())
            .env("RIPC_LISTEN", &self.address)
            .stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut line = String::new();
        let out = server.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Killed(server)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

#[test]
fn messages_of_a_c_program_go_there_and_back() {
    // Neither the file nor the group has service 4 yet.
    let output = Program::compile("pingpong", 5).run(&["client"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let program = Program::compile("pingpong", 4);
    let _server = program.serve(&["server"]);
    for bytes in ["1", "50", "1400", "7976"] {
        let output = program.run(&["client", bytes, "200"]);
        assert!(output.status.success(), "{output:?}");
        let begin = format!("200 round trips of {bytes} bytes");
        assert!(output.stdout.starts_with(begin.as_bytes()), "{output:?}");
    }
    // With keys that fit, and with others.
    let key = |name: &str| {
        let path = program.folder.path().join(name);
        let output = super::ripc().arg("keygen").arg(&path).output().unwrap();
        (path, String::from_utf8(output.stdout).unwrap())
    };
    let ((server, server_key), (client, client_key)) = (key("server"), key("client"));
    fs::write(program.folder.path().join("clients"), &client_key).unwrap();
    let secured = Program::compile("pingpong", 4);
    let _secured = secured.serve_with(
        &["server"],
        &[
            ("RIPC_KEY", server.as_path()),
            ("RIPC_KNOWN_CLIENTS", &program.folder.path().join("clients")),
        ],
    );
    let with_keys = |file: &Path, peer: &str| {
        let mut command = secured.command(&["client", "50", "10"]);
        let command = command.env("RIPC_KEY", file).env("RIPC_PEER_KEY", peer);
        command.output().unwrap()
    };
    let output = with_keys(&client, server_key.trim());
    assert!(output.status.success(), "{output:?}");
    // Keys that are none are reported when the library is opened.
    let no_key = with_keys(&program.folder.path().join("none"), server_key.trim());
    let no_peer = with_keys(&client, "12");
    let mut command = secured.command(&["client", "50", "10"]);
    let alone = command.env("RIPC_PEER_KEY", server_key.trim()).output();
    for output in [no_key, no_peer, alone.unwrap()] {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.starts_with(b"libripc: "), "{output:?}");
    }
    // Beyond a short message.
    assert_eq!(program.run(&["client", "7977", "1"]).status.code(), Some(1));
}

#[test]
fn a_file_comes_into_the_return_buffer_or_is_read() {
    let program = Program::compile("file_get", 80);
    let file: Vec<_> = (0..2_000_000_u32)
        .map(|at| (at % 253).to_le_bytes()[0])
        .collect();
    fs::write(program.folder.path().join("file"), &file).unwrap();
    let folder = program.folder.path().to_str().unwrap().to_owned();
    let _server = program.serve(&["server", &folder]);
    for (largest, how) in [
        ("2000000", "written into the return buffer"),
        ("1999999", "read"),
    ] {
        let output = program.run(&["client", "file", largest]);
        assert!(
            output.status.success(),
            "{:?}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.stdout == file, "{largest}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text, format!("2000000 bytes, {how}\n"));
    }
    let output = program.run(&["client", "none", "10"]);
    assert_eq!(output.stderr, b"no such file\n");
}
