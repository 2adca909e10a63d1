//! Clients that break rules.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common::{Server, names, octets, rftp, succeed};

struct Client {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

impl Client {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let input = BufReader::new(stream.try_clone().unwrap());
        let mut client = Self { stream, input };
        assert!(client.line().starts_with("220 "));
        client
    }

    fn logged_in(server: &Server) -> Self {
        let mut client = Self::connect(server);
        assert!(client.ask("USER ftp").starts_with("331 "));
        assert!(client.ask("PASS x").starts_with("230 "));
        client
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.input.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, command: &str) -> String {
        self.stream
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        self.line()
    }
}

#[test]
fn rights_and_addresses_are_checked() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "f").unwrap();
    let server = Server::start(root.path(), &[]);
    let mut client = Client::connect(&server);
    for command in ["RETR file", "LIST", "PASV", "RPSV RC", "RSTR x", "CWD /"] {
        assert!(client.ask(command).starts_with("530 "), "{command}");
    }
    let mut client = Client::logged_in(&server);
    for (command, code) in [
        ("PORT 192,0,2,1,4,1", "504"),
        ("PORT 127,0,0,1,0,22", "504"),
        ("EPRT |1|192.0.2.1|1025|", "504"),
        ("EPRT |1|127.0.0.1|", "501"),
        (
            "RADR RC |1|192.0.2.1|2000| TOKEN=00000000000000000000000000000000",
            "501",
        ),
        (
            "RADR RC |1|127.0.0.1|22| TOKEN=00000000000000000000000000000000",
            "501",
        ),
        (
            "RADR RC |1|127.0.0.1|2000| TOKEN=+0000000000000000000000000000000",
            "501",
        ),
        ("RRTR file", "425"),
        ("RETR file", "425"),
        ("RETR ../file", "425"),
        ("STOR x", "550"),
        ("RSTR x", "550"),
        ("APPE x", "550"),
        ("DELE file", "550"),
        ("MKD x", "550"),
        ("REST -1", "501"),
        ("TYPE E", "504"),
        ("XYZZY", "502"),
        ("AUTH TLS", "502"),
        ("", "502"),
        ("EPSV ALL", "200"),
        ("PASV", "501"),
    ] {
        let reply = client.ask(command);
        assert!(reply.starts_with(code), "{command}: {reply}");
    }
    assert_eq!(names(root.path()), ["file"]);
    for _ in 0..2 {
        assert!(client.ask("USER eve").starts_with("331"));
        assert!(client.ask("PASS x").starts_with("530"));
    }
    assert!(client.ask("USER eve").starts_with("331"));
    assert!(client.ask("PASS x").starts_with("421"));
    assert_eq!(client.line(), "");
}

#[test]
fn files_are_hashed() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "abc").unwrap();
    let server = Server::start(root.path(), &[]);
    let mut client = Client::logged_in(&server);
    let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(client.ask("OPTS HASH"), "200 SHA-256\r\n");
    let reply = client.ask("HASH file");
    assert_eq!(reply, format!("213 SHA-256 0-2 {sha} /file\r\n"));
    assert!(client.ask("OPTS HASH MD5").starts_with("501 "));
    assert_eq!(client.ask("OPTS HASH BLAKE3"), "200 BLAKE3\r\n");
    let hash = dgiwarp_transfer::hash::block(0, true, b"abc");
    let hash: String = hash.iter().map(|it| format!("{it:02x}")).collect();
    let reply = client.ask("HASH file");
    assert_eq!(reply, format!("213 BLAKE3 0-2 {hash} /file\r\n"));
    for bad in ["HASH none", "HASH .", "HASH ../file/x"] {
        assert!(client.ask(bad).starts_with("550 "), "{bad}");
    }
}

#[test]
fn octets_that_are_no_commands_do_no_harm() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    for seed in 0..20 {
        let mut client = Client::logged_in(&server);
        let junk: Vec<_> = octets(seed, 50_000);
        client.stream.write_all(&junk).unwrap();
        client.stream.write_all(b"\r\n").unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        client.input.read_to_end(&mut replies).unwrap();
    }
    // It still serves.
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("x"), "x").unwrap();
    succeed(&mut rftp(&[
        here.path().join("x").to_str().unwrap(),
        &server.url("y"),
    ]));
    assert_eq!(names(root.path()), ["y"]);
}

#[test]
fn too_many_clients_are_sent_away() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--max-clients", "2"]);
    let first = Client::connect(&server);
    let _second = Client::connect(&server);
    let mut third = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut reply = String::new();
    third.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("421 "), "{reply}");
    drop(first);
    let end = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        if line.starts_with("220 ") {
            break;
        }
        assert!(std::time::Instant::now() < end, "{line}");
    }
}

/// A client that ends in the middle of storing by a reset leaves nothing under the name.
#[test]
fn a_store_that_is_reset_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    let mut client = Client::logged_in(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(
        client
            .ask(&format!("EPRT |1|127.0.0.1|{port}|"))
            .starts_with("200")
    );
    assert!(client.ask("STOR x").starts_with("150"));
    let (mut data, _) = listener.accept().unwrap();
    data.write_all(&octets(1, 100_000)).unwrap();
    let socket = socket2::SockRef::from(&data);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(data);
    let reply = client.line();
    // A busy server may learn of the connection and of its end at once.
    let aborted = ["425", "426"].iter().any(|code| reply.starts_with(code));
    assert!(aborted, "{reply}");
    assert!(names(root.path()).is_empty());
}
