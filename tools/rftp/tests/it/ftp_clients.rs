//! Debian's FTP clients, and Python's, against `rftpd`.

use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::debian::find_program;

use crate::certificates::Certificates;
use crate::common::{Server, assert_equal, make_tree, names, octets, output, succeed};

/// A served tree, a folder of this host with a file to store.
struct Place {
    root: tempfile::TempDir,
    here: tempfile::TempDir,
    server: Server,
}

fn place() -> Place {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("tree")).unwrap();
    make_tree(&root.path().join("tree"));
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("up"), octets(20, 3_000_000)).unwrap();
    let server = Server::start(root.path(), &["--write", "-v"]);
    Place { root, here, server }
}

impl Place {
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        succeed(
            Command::new(program)
                .args(arguments)
                .current_dir(self.here.path())
                .env("HOME", self.here.path()),
        )
    }

    fn stored(&self, name: &str) {
        let stored = fs::read(self.root.path().join(name)).unwrap();
        assert!(
            stored == octets(20, 3_000_000),
            "{name}: {} octets",
            stored.len()
        );
    }
}

fn is_missing(program: &str) -> bool {
    if find_program(program).is_some() {
        return false;
    }
    xtask::skips::skip(program, "it is not installed");
    true
}

#[test]
fn curl() {
    if is_missing("curl") {
        return;
    }
    let place = place();
    let large = octets(1, 5_000_000);
    place.run(
        "curl",
        &["-sS", "-o", "large", &place.server.ftp("tree/a/large")],
    );
    assert_eq!(fs::read(place.here.path().join("large")).unwrap(), large);
    // Goes on in the middle, by REST.
    fs::write(place.here.path().join("large"), &large[..1_000_000]).unwrap();
    place.run(
        "curl",
        &[
            "-sS",
            "-C",
            "-",
            "-o",
            "large",
            &place.server.ftp("tree/a/large"),
        ],
    );
    assert_eq!(fs::read(place.here.path().join("large")).unwrap(), large);
    for (option, name) in [
        ("--ftp-pasv", "p"),
        ("--disable-epsv", "q"),
        ("--ftp-create-dirs", "new/dir/r"),
    ] {
        place.run(
            "curl",
            &["-sS", option, "-T", "up", &place.server.ftp(name)],
        );
        place.stored(name);
    }
    place.run(
        "curl",
        &["-sS", "-P", "-", "-T", "up", &place.server.ftp("active")],
    );
    place.stored("active");
    // Goes on with storing, by APPE.
    fs::write(
        place.root.path().join("half"),
        &octets(20, 3_000_000)[..999],
    )
    .unwrap();
    place.run(
        "curl",
        &["-sS", "-C", "-", "-T", "up", &place.server.ftp("half")],
    );
    place.stored("half");
    let listed = place.run("curl", &["-sS", &place.server.ftp("tree/a/")]);
    assert!(
        listed.contains("link -> large") && listed.contains("5000000"),
        "{listed}"
    );
    let listed = place.run("curl", &["-sS", "-l", &place.server.ftp("tree/a/b/")]);
    assert!(listed.contains("ä ö%"), "{listed}");
    place.run(
        "curl",
        &[
            "-sS",
            "-Q",
            "RNFR p",
            "-Q",
            "RNTO s",
            "-Q",
            "DELE q",
            "-Q",
            "MKD d",
            "-Q",
            "RMD d",
            &place.server.ftp(""),
        ],
    );
    place.stored("s");
    assert_eq!(
        names(place.root.path()),
        ["active", "half", "new", "s", "tree"]
    );
    let head = place.run("curl", &["-sSI", &place.server.ftp("tree/a/large")]);
    assert!(
        head.contains("Content-Length: 5000000") && head.contains("Last-Modified: "),
        "{head}"
    );
}

#[test]
fn lftp() {
    if is_missing("lftp") {
        return;
    }
    let place = place();
    let script = "set net:timeout 20; set net:max-retries 2; mirror tree copy; mirror -R copy back; put up; cat tree/nothing; \
        mv up up2; mkdir -p x/y; rmdir x/y; chmod 600 up2; cls -l tree; du tree; exit";
    let url = place.server.ftp("");
    let run = output(
        Command::new("lftp")
            .args([&url, "-e", script])
            .current_dir(place.here.path())
            .env("HOME", place.here.path())
            // Other names than ASCII's are none to it otherwise.
            .env("LC_ALL", "C.UTF-8"),
    );
    let said = String::from_utf8_lossy(&run.stderr);
    place.stored("up2");
    let tree = place.root.path().join("tree");
    // lftp keeps links; a link cannot be stored by FTP.
    assert_equal(&tree, &place.here.path().join("copy"));
    let back = fs::read(place.root.path().join("back/a/large")).unwrap();
    assert_eq!(back, octets(1, 5_000_000), "{said}");
    assert_eq!(names(&place.root.path().join("back/a/b")).len(), 101);
    assert!(place.root.path().join("x").is_dir());
}

#[test]
fn curl_and_lftp_under_tls() {
    let certificates = Certificates::new();
    let place = place();
    let tls = certificates.server("server");
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    let ca = certificates.path("ca.pem");
    for more in ["--tls-required", "--tls-reuse"] {
        let server = Server::start(place.root.path(), &[&["--write", more], &tls[..]].concat());
        if !is_missing("curl") {
            let options = ["-sS", "--ssl-reqd", "--cacert", &ca];
            let get = ["-o", "large", &server.ftp("tree/a/large")];
            place.run("curl", &[&options, &get[..]].concat());
            let got = fs::read(place.here.path().join("large")).unwrap();
            assert_eq!(got, octets(1, 5_000_000));
            let put = ["-T", "up", &server.ftp("c")];
            place.run("curl", &[&options, &put[..]].concat());
            place.stored("c");
        }
        if !is_missing("lftp") {
            let script = format!(
                "set ssl:ca-file {ca}; set ftp:ssl-force yes; set ftp:ssl-allow-anonymous yes; set ftp:ssl-protect-data yes; \
                 set ftp:ssl-protect-list yes; set net:max-retries 2; set net:timeout 20; \
                 open 127.0.0.1:{}; mirror tree/a/b mirrored{more}; put up -o l; exit",
                server.port
            );
            place.run("lftp", &["-c", &script]);
            place.stored("l");
            assert_eq!(
                names(&place.here.path().join(format!("mirrored{more}"))).len(),
                101
            );
        }
    }
}

#[test]
fn tnftp() {
    if is_missing("tnftp") {
        return;
    }
    let place = place();
    place.run("tnftp", &["-o", "large", &place.server.ftp("tree/a/large")]);
    assert_eq!(
        fs::read(place.here.path().join("large")).unwrap(),
        octets(1, 5_000_000)
    );
    place.run("tnftp", &["-u", &place.server.ftp("stored"), "up"]);
    place.stored("stored");
    let script = format!(
        "printf 'open 127.0.0.1 {}\\nuser anonymous x\\nbinary\\nprompt\\ncd tree/a/b\\nmget 1*\\nls\\nbye\\n' | tnftp -n",
        place.server.port
    );
    place.run("sh", &["-c", &script]);
    let got = names(place.here.path())
        .iter()
        .filter(|it| it.starts_with('1'))
        .count();
    assert_eq!(got, 11);
}

#[test]
fn wget() {
    if is_missing("wget") {
        return;
    }
    let place = place();
    place.run(
        "wget",
        &[
            "-q",
            "-r",
            "-nH",
            "--no-parent",
            &place.server.ftp("tree/a/"),
        ],
    );
    assert_eq!(
        fs::read(place.here.path().join("tree/a/large")).unwrap(),
        octets(1, 5_000_000)
    );
    assert_eq!(names(&place.here.path().join("tree/a/b")).len(), 101);
    fs::write(
        place.here.path().join("large"),
        &octets(1, 5_000_000)[..1_234_567],
    )
    .unwrap();
    place.run("wget", &["-q", "-c", &place.server.ftp("tree/a/large")]);
    assert_eq!(
        fs::read(place.here.path().join("large")).unwrap(),
        octets(1, 5_000_000)
    );
}

const PYTHON: &str = r#"
import ftplib, io, sys
ftp = ftplib.FTP(timeout=30)
ftp.connect("127.0.0.1", int(sys.argv[1]))
ftp.login()
assert "MLST" in ftp.sendcmd("FEAT")
ftp.cwd("tree/a"); assert ftp.pwd() == "/tree/a"
got = io.BytesIO(); ftp.retrbinary("RETR large", got.write); assert len(got.getvalue()) == 5000000
got = io.BytesIO(); ftp.retrbinary("RETR large", got.write, rest=4999990); assert len(got.getvalue()) == 10
assert ftp.size("large") == 5000000
facts = dict(ftp.mlsd("b")); assert facts["1"]["size"] == "300" and facts["ä ö%"]["type"] == "file", facts
assert sorted(ftp.nlst()) == ["b", "large", "link"], ftp.nlst()
for active in (False, True):
    ftp.set_pasv(not active)
    ftp.storbinary("STOR /new", io.BytesIO(b"0123456789")); assert ftp.size("/new") == 10
    ftp.storbinary("STOR /new", io.BytesIO(b"xy"), rest=8)
    got = io.BytesIO(); ftp.retrbinary("RETR /new", got.write); assert got.getvalue() == b"01234567xy"
    ftp.storbinary("APPE /new", io.BytesIO(b"!")); assert ftp.size("/new") == 11
ftp.mkd("/d\"ir"); ftp.rename("/new", '/d"ir/new'); ftp.cwd('/d"ir'); assert ftp.pwd() == '/d"ir', ftp.pwd()
ftp.delete("new"); ftp.cwd("/"); ftp.rmd('d"ir')
for command in ("RETR tree", "RETR ../../etc/passwd", "CWD tree/a/large", "DELE none", "SIZE tree", "RNTO x", "STOR tree"):
    ftp.voidcmd("TYPE I")
    try:
        ftp.voidcmd(command)
        sys.exit("passed: " + command)
    except ftplib.error_perm:
        pass
ftp.quit()
"#;

#[test]
fn python() {
    if is_missing("python3") {
        return;
    }
    let place = place();
    let script = place.here.path().join("script.py");
    fs::write(&script, PYTHON).unwrap();
    place.run(
        "python3",
        &[script.to_str().unwrap(), &place.server.port.to_string()],
    );
    assert_eq!(names(place.root.path()), ["tree"]);
    assert!(Path::new("/etc/passwd").exists());
}
