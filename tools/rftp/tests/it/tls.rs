//! TLS between both programs, and its failures.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use crate::certificates::Certificates;
use crate::common::{Server, assert_equal, fail, make_tree, names, octets, output, rftp, succeed};
use crate::ftp_servers::copy_tree;

fn start(root: &std::path::Path, certificates: &Certificates, name: &str, more: &[&str]) -> Server {
    let tls = certificates.server(name);
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    Server::start(root, &[&["--write", "-v"], &tls[..], more].concat())
}

#[test]
fn trees_go_under_tls() {
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    let server = start(
        root.path(),
        &certificates,
        "server",
        &["--tls-required", "--tls-reuse"],
    );
    let tls = ["--tls", "--ca", &certificates.path("ca.pem")];
    copy_tree(&tls, &|path| server.ftp(path), root.path(), true);
    fs::remove_dir_all(root.path().join("tree")).unwrap();
    // A session's control connection, too.
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    for way in ["--active", "--tcp"] {
        let with = |rest: &[&str]| rftp(&[&tls, &[way][..], rest].concat());
        succeed(&mut with(&[tree.to_str().unwrap(), &server.url(way)]));
        assert_equal(&tree, &root.path().join(way));
        let back = here.path().join(way);
        succeed(&mut with(&[&server.url(way), back.to_str().unwrap()]));
        assert_equal(&tree, &back);
    }
}

#[test]
fn certificates_are_checked() {
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("x"), "x").unwrap();
    let here = tempfile::tempdir().unwrap();
    let to = here.path().to_str().unwrap();
    let ca = certificates.path("ca.pem");
    let own = certificates.path("own.pem");
    let server = start(root.path(), &certificates, "server", &[]);
    for url in [server.ftp("x"), server.url("x")] {
        fail(
            &mut rftp(&["--tls", "--ca", &own, &url, to]),
            "UnknownIssuer",
        );
        fail(&mut rftp(&["--tls", "--ca", "/none", &url, to]), "/none: ");
        assert!(names(here.path()).is_empty());
        succeed(&mut rftp(&["--tls", "--ca", &ca, &url, to]));
        // Without the option it is plain, as the server permits.
        succeed(&mut rftp(&[&url, to]));
        fs::remove_file(here.path().join("x")).unwrap();
    }
    let authorities = output(&mut rftp(&["--tls", &server.ftp("x"), to]));
    assert_eq!(authorities.status.code(), Some(1));
    let usage = output(&mut rftp(&["--ca", &ca, &server.ftp("x"), to]));
    assert_eq!(usage.status.code(), Some(2));
    let other = start(root.path(), &certificates, "other", &[]);
    fail(
        &mut rftp(&["--tls", "--ca", &ca, &other.ftp("x"), to]),
        "not valid for name",
    );
    // A certificate that nobody signed is trusted where it is the user's own choice.
    let single = start(root.path(), &certificates, "own", &[]);
    fail(
        &mut rftp(&["--tls", "--ca", &ca, &single.ftp("x"), to]),
        "TLS: ",
    );
    assert!(names(here.path()).is_empty());
    succeed(&mut rftp(&["--tls", "--ca", &own, &single.ftp("x"), to]));
}

#[test]
fn nothing_is_plain_where_tls_is_asked_for() {
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("x"), "x").unwrap();
    let ca = certificates.path("ca.pem");
    let plain = Server::start(root.path(), &[]);
    for url in [plain.ftp("x"), plain.url("x")] {
        fail(
            &mut rftp(&["--tls", "--ca", &ca, &url, "y"]),
            "the server has no TLS: No TLS here (502)",
        );
    }
    let server = start(root.path(), &certificates, "server", &["--tls-required"]);
    for url in [server.ftp("x"), server.url("x")] {
        fail(&mut rftp(&[&url, "y"]), "AUTH TLS first (530)");
    }
    // A server, or somebody between, that says more than its reply before TLS.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ftp://{}/x", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 Hello\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap())
            .read_line(&mut line)
            .unwrap();
        stream.write_all(b"234 Yes\r\n230 In\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    fail(
        &mut rftp(&["--tls", "--ca", &ca, &url, "y"]),
        "octets between",
    );
}

/// Commands that come in plain text with AUTH are not obeyed under TLS.
#[test]
fn commands_behind_auth_are_refused() {
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    let server = start(root.path(), &certificates, "server", &[]);
    let said = |commands: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(commands.as_bytes()).unwrap();
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    };
    let reply = said("AUTH TLS\r\nUSER ftp\r\n");
    assert!(reply.contains("421 Commands behind AUTH"), "{reply}");
    let replies = said("PROT P\r\nPBSZ 0\r\nCCC\r\nAUTH GSSAPI\r\nFEAT\r\nQUIT\r\n");
    let codes = ["220 ", "503 ", "503 ", "533 ", "504 ", "211-"];
    for (line, code) in replies.lines().zip(codes) {
        assert!(line.starts_with(code), "{replies}");
    }
    assert!(replies.contains(" AUTH TLS\r\n"), "{replies}");
}

const PYTHON: &str = r#"
import ftplib, io, re, socket, ssl, struct, sys
port, ca, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl.create_default_context(cafile=ca)
if mode == "1.2":
    context.maximum_version = ssl.TLSVersion.TLSv1_2
ftp = ftplib.FTP_TLS(context=context, timeout=30)
ftp.connect("127.0.0.1", port)
ftp.login()
def refused(command, code):
    try:
        reply = ftp.sendcmd(command)
    except ftplib.Error as error:
        reply = str(error)
    assert reply.startswith(code), (command, reply)
if mode == "reuse":
    # This client resumes no session.
    ftp.prot_p()
    try:
        ftp.nlst()
        sys.exit("passed")
    except (ftplib.Error, ssl.SSLError):
        pass
    sys.exit()
refused("RETR large", "425")
for command, code in [("AUTH TLS", "503"), ("CCC", "533"), ("PROT S", "536"), ("PBSZ 0", "200")]:
    refused(command, code)
if mode == "required":
    refused("PROT C", "534")
    refused("RPSV TCP", "229")
    refused("RRTR /", "521")
    refused("EPSV", "229"); refused("NLST", "521")
else:
    ftp.prot_c(); assert ftp.nlst() == ["large"]
ftp.prot_p()
assert ftp.nlst() == ["large"]
got = io.BytesIO(); ftp.retrbinary("RETR large", got.write); assert len(got.getvalue()) == 5000000
got.seek(0); ftp.storbinary("STOR up", got); assert ftp.size("up") == 5000000
ftp.delete("up")
# What is cut off is not whole.
data = ftp.transfercmd("STOR cut")
data.sendall(b"x" * 100000)
data.close()
try:
    ftp.voidresp()
    sys.exit("stored")
except ftplib.error_temp as error:
    assert str(error).startswith("426"), error
assert ftp.nlst() == ["large"]
# A session in plain text has an answer behind PROT C alone.
def answer():
    reply = ftp.sendcmd("RPSV TCP")
    port, token = re.search(r"\|\|\|(\d+)\|\) TOKEN=([0-9a-f]{32})", reply).groups()
    ftp.putcmd("RRTR /large")
    assert ftp.getresp().startswith("150")
    with socket.create_connection(("127.0.0.1", int(port)), 30) as stream:
        hello = struct.pack(">BBHI", 2, 0, 128, 1 << 20) + bytes.fromhex(token)
        stream.sendall(b"DG\x01\x01" + struct.pack(">II", len(hello), 0) + hello)
        try:
            return stream.recv(4)
        except ConnectionResetError:
            return b""
if mode != "required":
    ftp.prot_c()
    assert answer() == b"DG\x01\x01"
    try:
        ftp.voidresp()
        sys.exit("given")
    except ftplib.error_temp:
        pass
    ftp.prot_p()
assert answer() == b""
ftp.close()
"#;

#[test]
fn python_has_tls() {
    if xtask::debian::find_program("python3").is_none() {
        return xtask::skips::skip("python3", "it is not installed");
    }
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("large"), octets(1, 5_000_000)).unwrap();
    let script = certificates.folder().join("script.py");
    fs::write(&script, PYTHON).unwrap();
    let ca = certificates.path("ca.pem");
    for (mode, options) in [
        ("1.2", &[][..]),
        ("1.3", &[]),
        ("required", &["--tls-required"]),
        ("reuse", &["--tls-reuse"]),
    ] {
        let server = start(root.path(), &certificates, "server", options);
        let mut command = Command::new("python3");
        command
            .arg(&script)
            .args([&server.port.to_string(), &ca, mode]);
        succeed(&mut command);
        assert_eq!(names(root.path()), ["large"]);
    }
}
