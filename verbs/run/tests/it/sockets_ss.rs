//! `dgiwarp-ss` with programs under `dgiwarp-run --sockets`, and with memory that only has the name of theirs.

use crate::common::{RUN, have, skip};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use xtask::clock;

const SS: &str = env!("CARGO_BIN_EXE_dgiwarp-ss");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/ss.py");

/// Most time of a change to be seen.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(10);

/// A program of `ss.py`.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(command: &mut Command, words: &[&str]) -> Self {
        let command = command.arg(SCRIPT).args(words);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn with_rsockets(words: &[&str]) -> Self {
        Self::start(Command::new(RUN).args(["--sockets", "python3"]), words)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn step(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn pid(&self) -> u64 {
        self.child.id().into()
    }

    /// Ends it by SIGKILL.
    fn kill(mut self) -> u64 {
        let pid = self.pid();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        pid
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn ss(words: &[&str]) -> Output {
    Command::new(SS).args(words).output().unwrap()
}

fn text(octets: &[u8]) -> String {
    String::from_utf8(octets.to_vec()).unwrap()
}

/// Objects of a process; none where it has no table.
fn objects(pid: u64) -> Vec<Value> {
    let output = ss(&["--all", "--json", "-p", &pid.to_string()]);
    let expected = if output.stdout.is_empty() { 3 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{output:?}");
    let lines = text(&output.stdout);
    let all = lines.lines().map(|it| serde_json::from_str(it).unwrap());
    all.inspect(|it: &Value| assert_eq!(it["pid"], pid))
        .collect()
}

/// Sockets of a process: state, transport, octets sent and received, reason.
type Row = (String, String, u64, u64, Option<String>);

fn rows(pid: u64) -> Vec<Row> {
    let row = |it: &Value| {
        let word = |name: &str| it[name].as_str().unwrap().to_owned();
        let number = |name: &str| it[name].as_u64().unwrap();
        (
            word("state"),
            word("way"),
            number("octets_sent"),
            number("octets_received"),
            it["reason"].as_str().map(str::to_owned),
        )
    };
    let objects = objects(pid);
    let sockets = objects.iter().filter(|it| it["kind"] == "socket");
    let mut rows: Vec<_> = sockets.map(row).collect();
    rows.sort();
    rows
}

fn row(state: &str, way: &str, sent: u64, received: u64, reason: Option<&str>) -> Row {
    let reason = reason.map(str::to_owned);
    (state.to_owned(), way.to_owned(), sent, received, reason)
}

/// Waits until the sockets are these: an end counts octets just after its peer can have them.
#[track_caller]
fn comes(pid: u64, mut expected: Vec<Row>) {
    expected.sort();
    let start = clock::now();
    while rows(pid) != expected {
        assert!(
            start.elapsed() < PATIENCE,
            "{:?}, not {expected:?}",
            rows(pid)
        );
        clock::pause(TICK);
    }
}

const PEERS: &str = "the peer connected without rsockets";
const BOUND: &str = "the socket has a port already";

fn server() -> (Program, String) {
    let mut server = Program::with_rsockets(&["serve"]);
    let port = server.line();
    (server, port)
}

#[test]
fn both_ends_are_shown_with_way_octets_and_reason() {
    if !have("ss_ends", "python3", "python3") {
        return;
    }
    let (server, port) = server();
    let waits = row("LISTEN", "rsocket", 0, 0, None);
    comes(server.pid(), vec![waits.clone()]);
    let mut client = Program::with_rsockets(&["ask", &port]);
    let start = clock::now();
    let total = loop {
        let total = client.line().parse().unwrap();
        let ways: Vec<_> = rows(client.pid()).into_iter().map(|it| it.1).collect();
        if ways == ["lane", "tcp"] {
            break total;
        }
        assert!(start.elapsed() < PATIENCE, "{ways:?}");
        client.step();
    };
    let ends = |reason| {
        vec![
            row("ESTAB", "lane", total, total, None),
            row("ESTAB", "tcp", 3, 3, Some(reason)),
        ]
    };
    comes(client.pid(), ends(BOUND));
    comes(server.pid(), [vec![waits.clone()], ends(PEERS)].concat());

    // Addresses are those that the programs have.
    let of = |pid, way: &str, name: &str| {
        let objects = objects(pid);
        let socket = objects.iter().find(|it| it["way"] == way).unwrap();
        socket[name].as_str().unwrap().to_owned()
    };
    for way in ["lane", "tcp"] {
        let [theirs, ours] = [&server, &client].map(|it| it.pid());
        assert_eq!(of(theirs, way, "local"), format!("127.0.0.1:{port}"));
        assert_eq!(of(ours, way, "peer"), of(theirs, way, "local"));
        assert_eq!(of(ours, way, "local"), of(theirs, way, "peer"));
    }
    // Both, by the walk through all processes.
    let all = text(&ss(&["-a", "--json"]).stdout);
    for pid in [server.pid(), client.pid()] {
        let of_it = format!("\"pid\":{pid},");
        let sockets = if pid == server.pid() { 3 } else { 2 };
        assert_eq!(all.matches(&of_it).count(), sockets + 1, "{all}");
    }
    let counts = objects(client.pid()).pop().unwrap();
    let reason = serde_json::json!({ "reason": BOUND, "connections": 1 });
    let reasons = counts["reasons"].as_array().unwrap();
    assert!(reasons.contains(&reason), "{reasons:?}");
    let counts = ["program", "upgraded", "unrecorded"].map(|it| counts[it].to_string());
    assert_eq!(counts, ["\"python3\"", "1", "0"]);

    // A program whose memory shrinks would end by SIGBUS.
    let folder = format!("/proc/{}/fd", client.pid());
    let descriptors = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let is_table = |path: &PathBuf| {
        let link = fs::read_link(path).unwrap_or_default();
        link == Path::new("/memfd:dgiwarp-sockets (deleted)")
    };
    let tables: Vec<_> = descriptors.filter(is_table).collect();
    let file = File::options().read(true).write(true).open(&tables[0]);
    let file = file.unwrap();
    assert!(tables.len() == 1 && file.set_len(0).is_err() && file.write_at(b"x", 0).is_err());

    // Text, and what is chosen of it.
    let pid = client.pid().to_string();
    let shown = text(&ss(&["-np", &pid]).stdout);
    let [lane, tcp] = ["lane", "tcp"].map(|way| shown.contains(&format!("ESTAB  {way}")));
    assert!(
        lane && tcp && shown.contains(&format!("    1 plain: {BOUND}\n")),
        "{shown}"
    );
    let shown = text(&ss(&["--plain", "-p", &pid]).stdout);
    assert!(!shown.contains("lane") && shown.contains("tcp"), "{shown}");
    let shown = text(&ss(&["-l", "-p", &server.pid().to_string()]).stdout);
    assert!(
        shown.contains("LISTEN  rsocket") && !shown.contains("ESTAB"),
        "{shown}"
    );

    // Processes that are killed leave nothing, and the server's ends close.
    let client = client.kill();
    comes(server.pid(), vec![waits]);
    let server = server.kill();
    for pid in [client, server] {
        assert_eq!(objects(pid), Vec::<Value>::new());
        let all = text(&ss(&["-a", "--json"]).stdout);
        assert!(!all.contains(&format!("\"pid\":{pid},")), "{all}");
    }
}

/// Without shared memory, and a connection from its closed duplicate to its end.
#[test]
fn states_follow_the_program() {
    if !have("ss_states", "python3", "python3") {
        return;
    }
    let (server, port) = server();
    let mut command = Command::new(RUN);
    let command = command.env("DGIWARP_SAME_HOST", "off");
    let command = command.args(["--sockets", "python3"]);
    let mut client = Program::start(command, &["end", &port]);
    let fd: u64 = client.line().parse().unwrap();
    comes(client.pid(), vec![row("ESTAB", "rc", 0, 0, None)]);
    assert_eq!(objects(client.pid())[0]["fd"], fd);
    client.step();
    assert_eq!(client.line(), "shut");
    comes(client.pid(), vec![row("CLOSING", "rc", 0, 0, None)]);
    client.step();
    assert_eq!(client.line(), "closed");
    comes(client.pid(), vec![]);
    drop(server);
}

/// A child has no part in its parent's table, and gets one with its own first connection.
#[test]
fn a_child_has_a_table_of_its_own() {
    if !have("ss_fork", "python3", "python3") {
        return;
    }
    let (_server, port) = server();
    let mut parent = Program::with_rsockets(&["fork", &port]);
    let mut line = || parent.line();
    let mut lines = [line(), line()];
    lines.sort();
    let child: u64 = lines[0].parse().unwrap();
    assert_eq!(lines[1], "used");
    let parents = vec![
        row("ESTAB", "rc", 100, 100, None),
        row("ESTAB", "tcp", 100, 100, Some(BOUND)),
    ];
    comes(parent.pid(), parents.clone());
    assert_eq!(objects(child), Vec::<Value>::new());
    parent.step();
    assert_eq!(parent.line(), "connected");
    comes(child, vec![row("ESTAB", "rc", 7, 7, None)]);
    comes(parent.pid(), parents);
    parent.step();
}

/// A table without room counts the sockets that it lacks, and records of closed sockets are free again.
#[test]
fn a_full_table_counts_and_is_used_again() {
    let test = "ss_full";
    if !have(test, "python3", "python3") {
        return;
    }
    let mut command = Command::new(RUN);
    let command = command.env("DGIWARP_SOCKETS_RULES", "off");
    let command = command.args(["--sockets", "python3"]);
    let mut program = Program::start(command, &["fill"]);
    if program.line() == "few" {
        return skip(test, "the limit of descriptors is below 5000");
    }
    let objects_of = objects(program.pid());
    let counts = objects_of.last().unwrap();
    // Two of the records are those of listeners.
    assert_eq!(objects_of.len(), 4096 + 1);
    assert_eq!([&counts["plain"], &counts["unrecorded"]], [4100, 6]);
    program.step();
    assert_eq!(program.line(), "used again");
    let counts = objects(program.pid()).pop().unwrap();
    assert_eq!(counts["unrecorded"], 6);
    let expected = row("ESTAB", "tcp", 4, 0, Some("a rule"));
    assert!(rows(program.pid()).contains(&expected));
    program.step();
}

/// Memory of the name that is no table is reported, and text of one that has the shape controls no terminal.
#[test]
fn strangers_do_no_harm() {
    if !have("ss_strangers", "python3", "python3") {
        return;
    }
    let mut stranger = Program::start(&mut Command::new("python3"), &["forge"]);
    let pid = stranger.pid();
    for complaint in [
        Some("0 octets are too few"),
        Some("8 octets are too few"),
        Some("it is no table"),
        Some("has version 7"),
        None,
        None,
    ] {
        stranger.line();
        for words in [&["-a"][..], &["-a", "--json"], &["-p", &pid.to_string()]] {
            let output = ss(words);
            let expected = i32::from(complaint.is_some() && words[0] == "-p") * 3;
            assert_eq!(output.status.code(), Some(expected), "{output:?}");
            let of_it = format!("process {pid}: ");
            let complains = text(&output.stderr);
            let found = complains.lines().find_map(|it| it.split_once(&of_it));
            match complaint {
                Some(complaint) => assert!(found.unwrap().1.contains(complaint), "{output:?}"),
                None => assert_eq!(found, None),
            }
            let printable = |it: &u8| matches!(*it, b' '..=b'~' | b'\n');
            assert!(output.stdout.iter().all(printable), "{output:?}");
            let shown = text(&output.stdout);
            assert_eq!(shown.contains("]0;reason?"), complaint.is_none(), "{shown}");
        }
        stranger.step();
    }
}

/// Processes of others are left out, unless they are named.
#[test]
fn other_users_see_nothing() {
    let test = "ss_users";
    if !have(test, "python3", "python3") {
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        return skip(test, "it needs root to become another user");
    }
    let (server, _) = server();
    comes(server.pid(), vec![row("LISTEN", "rsocket", 0, 0, None)]);
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("dgiwarp-ss");
    fs::copy(Path::new(SS), &program).unwrap();
    let pid = server.pid().to_string();
    let nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        command.args(user).arg(&program).args(words);
        command.output().unwrap()
    };
    let output = nobody(&["--all"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    assert!(!text(&output.stdout).contains(&pid), "{output:?}");
    let output = nobody(&["-p", &pid]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        text(&output.stderr).contains("Permission denied"),
        "{output:?}"
    );
}
