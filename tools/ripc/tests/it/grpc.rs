//! Programs of Debian's grpcio in Python, on both sides of RIPC.

mod tonic_services;

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;

use super::{SOON, Server, ripc};

const ALONE: &[&str] = &["--interface", "127.0.0.1"];

/// A script of the tests, where Debian's grpcio is installed.
fn python(script: &str) -> Option<Command> {
    let python = Path::new("/usr/bin/python3");
    if !python.exists() || !Path::new("/usr/lib/python3/dist-packages/grpc").exists() {
        xtask::skips::skip("grpc", "python3-grpcio is not installed");
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/grpc");
    let mut command = Command::new(python);
    command.arg(folder.join(script));
    Some(command)
}

/// A program that serves gRPC at a path of this folder.
fn program(folder: &Path) -> Option<Server> {
    let address = format!("unix:{}", folder.join("program").display());
    Some(Server::spawn(python("server.py")?.arg(address)))
}

/// `ripc serve-grpc` for a program.
fn serve(program: &str, options: &[&str]) -> Server {
    let mut command = ripc();
    command.args(["serve-grpc", program, "--listen", "127.0.0.1:0"]);
    Server::spawn(command.args(ALONE).args(options))
}

/// `ripc gateway` at an address.
fn gateway(listen: &str, options: &[&str]) -> Server {
    let mut command = ripc();
    command.args(["gateway", "--listen", listen]);
    Server::spawn(command.args(ALONE).args(options))
}

/// Runs scenarios of the client.
fn run(address: &str, scenarios: &[&str]) {
    let mut client = python("client.py").unwrap();
    let output = client.arg(address).args(scenarios).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenarios:?}: {errors}");
}

/// Program, service of RIPC, and gateway.
struct Chain {
    folder: tempfile::TempDir,
    program: Server,
    service: Server,
    gateway: Server,
}

impl Chain {
    fn start(to_service: &[&str], to_gateway: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = program(folder.path())?;
        let service = serve(&program.address, to_service);
        let mut options = vec!["--at", &service.address];
        options.extend(to_gateway);
        let listen = format!("unix:{}", folder.path().join("gateway").display());
        let gateway = gateway(&listen, &options);
        Some(Self {
            folder,
            program,
            service,
            gateway,
        })
    }
}

/// A client that has calls under way.
struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(address: &str, scenario: &str) -> Self {
        let mut client = python("client.py").unwrap();
        let client = client.args([address, scenario]).stdout(Stdio::piped());
        let mut child = client.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self { child, lines };
        assert_eq!(client.line(), "under way");
        client
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn calls_and_streams_are_those_of_the_program() {
    let Some(chain) = Chain::start(&[], &[]) else {
        return;
    };
    run(&chain.gateway.address, &["calls", "streams"]);
    // The program alone holds the test to account.
    run(&chain.program.address, &["calls", "streams"]);
}

#[test]
fn deadlines_and_cancellation_reach_the_program() {
    let Some(chain) = Chain::start(&[], &[]) else {
        return;
    };
    run(&chain.gateway.address, &["deadlines", "cancelled"]);
}

#[test]
fn slow_readers_hold_up_their_sender_and_no_other_call() {
    let Some(chain) = Chain::start(&[], &[]) else {
        return;
    };
    run(&chain.gateway.address, &["slow", "big"]);
    for process in [&chain.gateway, &chain.service] {
        let peak = process.memory("VmHWM:");
        assert!(peak < 100 << 10, "{peak} KiB");
    }
}

#[test]
fn services_have_names_keys_and_addresses_of_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let key = key.to_str().unwrap();
    let output = ripc().args(["keygen", key]).output().unwrap();
    let public = String::from_utf8(output.stdout).unwrap();
    let Some(mut command) = python("server.py") else {
        return;
    };
    let program = Server::spawn(command.arg("127.0.0.1:0"));
    let service = serve(
        &program.address,
        &["--service", "test.Octets", "--key", key, "--seal"],
    );
    let at = ["--at", &service.address, "--peer-key", public.trim()];
    let gateway = |services: &[&str]| {
        let services = services.iter().flat_map(|it| ["--service", it]);
        let options: Vec<_> = at.into_iter().chain(services).collect();
        gateway("127.0.0.1:0", &options)
    };
    // The name of the gRPC service, or the first one.
    run(&gateway(&["grpc", "test.Octets"]).address, &["calls"]);
    run(&gateway(&["test.Octets", "grpc"]).address, &["deadlines"]);
    let other = gateway(&["grpc"]);
    let mut client = python("client.py").unwrap();
    let client = client.args([&other.address, "calls"]);
    let output = client.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("UNIMPLEMENTED"), "{errors}");
}

#[test]
fn messages_and_metadata_have_limits_at_either_end() {
    for options in [
        [&["--longest", "100000"][..], &[]],
        [&[], &["--longest", "100000"]],
    ] {
        let Some(chain) = Chain::start(options[0], options[1]) else {
            return;
        };
        let scenario = if options[0].is_empty() {
            "long_requests"
        } else {
            "long_replies"
        };
        run(&chain.gateway.address, &[scenario, "calls_again"]);
    }
}

#[test]
fn calls_end_where_the_program_or_an_end_of_ripc_is_killed() {
    for which in 0..2 {
        let Some(chain) = Chain::start(&[], &[]) else {
            return;
        };
        let mut client = Client::start(&chain.gateway.address, "lost");
        let killed = Instant::now();
        [&chain.program, &chain.service][which].signal(Signal::SIGKILL);
        assert_eq!(client.line(), "over");
        assert!(killed.elapsed() < SOON / 2, "{:?}", killed.elapsed());
        run(&chain.gateway.address, &["unavailable"]);
    }
}

#[test]
fn a_program_that_is_started_again_serves_on() {
    let Some(mut chain) = Chain::start(&[], &[]) else {
        return;
    };
    run(&chain.gateway.address, &["echo"]);
    drop(chain.program);
    run(&chain.gateway.address, &["unavailable"]);
    chain.program = program(chain.folder.path()).unwrap();
    run(&chain.gateway.address, &["echo"]);
    // And so does the service, at its address.
    let address = chain.service.address.clone();
    drop(chain.service);
    let mut command = ripc();
    command.args(["serve-grpc", &chain.program.address, "--listen", &address]);
    chain.service = Server::spawn(command.args(ALONE));
    run(&chain.gateway.address, &["echo"]);
}

#[test]
fn handlers_of_a_client_that_is_killed_are_cancelled() {
    let Some(chain) = Chain::start(&[], &[]) else {
        return;
    };
    let mut client = Client::start(&chain.gateway.address, "held");
    client.child.kill().unwrap();
    run(&chain.program.address, &["three_cancelled"]);
    // And those of a gateway.
    let _client = Client::start(&chain.gateway.address, "held");
    chain.gateway.signal(Signal::SIGKILL);
    run(&chain.program.address, &["six_cancelled"]);
}

#[test]
fn a_service_is_found_in_the_group_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };
    let name = format!("grpc-{}", std::process::id());
    let listen = format!("unix:{}", folder.path().join("gateway").display());
    let gateway = gateway(&listen, &["--service", &name, "--resolve", "1"]);
    run(&gateway.address, &["unavailable"]);
    for _ in 0..2 {
        let service = serve(&program.address, &["--service", &name]);
        run(&gateway.address, &["echo_soon"]);
        drop(service);
        run(&gateway.address, &["unavailable"]);
    }
    // At the end of the gateway its socket is gone.
    let mut gateway = gateway;
    gateway.signal(Signal::SIGTERM);
    assert!(gateway.child.wait().unwrap().success());
    assert!(!folder.path().join("gateway").exists());
}
