//! `rftp cp` to and from FTP servers of others, and `rftpd` as one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::certificates::Certificates;
use crate::common::{Server, assert_equal, fail, make_tree, names, octets, rftp, succeed};
use crate::foreign::{Foreign, proftpd, pyftpdlib, vsftpd};

/// A tree goes there and comes back, each time a second time for what is there already.
pub(crate) fn copy_tree(
    options: &[&str],
    url: &dyn Fn(&str) -> String,
    served: &Path,
    links: bool,
) {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    // FTP cannot make a link.
    fs::remove_file(tree.join("a/link")).unwrap();
    Foreign::touch(&tree.join("a/large"));
    let name = tree.to_str().unwrap();
    let with = |rest: &[&str]| rftp(&[options, rest].concat());
    for round in 0..2 {
        let said = succeed(&mut with(&[name, &url("")]));
        assert!(
            round == 0 || said.contains("103 were there") && said.contains("0 B in"),
            "{said}"
        );
    }
    assert_equal(&tree, &served.join("tree"));
    assert_eq!(names(served), ["tree"]);
    assert_eq!(names(&served.join("tree/a")), ["b", "large"]);
    std::os::unix::fs::symlink("large", served.join("tree/a/link")).unwrap();
    if links {
        std::os::unix::fs::symlink("large", tree.join("a/link")).unwrap();
    } else {
        // The server lists what is behind them.
        fs::copy(tree.join("a/large"), tree.join("a/link")).unwrap();
    }
    fs::write(served.join("tree/.dot"), "d").unwrap();
    fs::write(tree.join(".dot"), "d").unwrap();
    let back = here.path().join("back");
    succeed(&mut with(&[&url("tree"), back.to_str().unwrap()]));
    assert_equal(&tree, &back);
    let time = |path: &Path| {
        fs::metadata(path.join("a/large"))
            .unwrap()
            .modified()
            .unwrap()
    };
    assert_eq!(time(&tree), time(&back));
    let into = here.path().join("into/");
    fs::create_dir(&into).unwrap();
    for round in 0..2 {
        let said = succeed(&mut with(&[&url("tree"), into.to_str().unwrap()]));
        assert!(
            round == 0 || said.contains("105 were there") && said.contains("0 B in"),
            "{said}"
        );
    }
    assert_equal(&tree, &into.join("tree"));
    // One file, under a name that it is given.
    let file = tree.join("a/large");
    succeed(&mut with(&[file.to_str().unwrap(), &url("new/er%20/x y")]));
    let there = served.join("new/er /x y");
    assert_eq!(fs::read(&there).unwrap(), octets(1, 5_000_000));
    succeed(&mut with(&[
        &url("new/er%20/x%20y"),
        into.to_str().unwrap(),
    ]));
    assert_eq!(fs::read(into.join("x y")).unwrap(), octets(1, 5_000_000));
    // A file of another length replaces it.
    fs::write(&file, "short").unwrap();
    succeed(&mut with(&[file.to_str().unwrap(), &url("new/er%20/x y")]));
    assert_eq!(fs::read(&there).unwrap(), b"short");
    fail(&mut with(&[&url("none"), into.to_str().unwrap()]), "none: ");
}

#[test]
fn a_tree_goes_to_vsftpd_and_comes_back() {
    if let Some(server) = vsftpd("") {
        copy_tree(&[], &|path| server.url(path), &server.served(), true);
    }
}

#[test]
fn a_tree_goes_to_proftpd_and_comes_back() {
    if let Some(server) = proftpd("") {
        copy_tree(&[], &|path| server.url(path), &server.served(), true);
    }
}

#[test]
fn a_tree_goes_to_pyftpdlib_and_comes_back() {
    if let Some(server) = pyftpdlib("") {
        copy_tree(&[], &|path| server.url(path), &server.served(), false);
    }
}

#[test]
fn a_tree_goes_to_rftpd_by_ftp_and_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    copy_tree(&["--verify"], &|path| server.ftp(path), root.path(), true);
}

#[test]
fn trees_go_to_vsftpd_under_tls() {
    let certificates = Certificates::new();
    let both = certificates.path("server.both");
    // It wants each data connection to resume the session. Its ciphers of TLS 1.2 are old by default, so that TLS 1.3 is used.
    let tls = format!(
        "ssl_enable=YES\nallow_anon_ssl=YES\nforce_anon_logins_ssl=YES\nforce_anon_data_ssl=YES\n\
         rsa_cert_file={both}\nrsa_private_key_file={both}\n"
    );
    let ca = certificates.path("ca.pem");
    for ciphers in ["", "ssl_ciphers=HIGH\n"] {
        let Some(server) = vsftpd(&format!("{tls}{ciphers}")) else {
            return;
        };
        fail(&mut rftp(&[&server.url(""), "x"]), "must use encryption");
        let options = ["--tls", "--ca", &ca];
        copy_tree(&options, &|path| server.url(path), &server.served(), true);
    }
    // TLS from the first octet on.
    if let Some(server) = vsftpd(&format!("{tls}implicit_ssl=YES\n")) {
        let implicit = |path: &str| server.url(path).replace("ftp://", "ftps://");
        copy_tree(&["--ca", &ca], &implicit, &server.served(), true);
    }
}

#[test]
fn trees_go_to_proftpd_under_tls() {
    let certificates = Certificates::new();
    let tls = format!(
        "LoadModule mod_tls.c\nTLSEngine on\nTLSRequired on\nTLSECCertificateFile {}\nTLSECCertificateKeyFile {}\n",
        certificates.path("server.pem"),
        certificates.path("server.key")
    );
    if let Some(server) = proftpd(&tls) {
        let options = ["--tls", "--ca", &certificates.path("ca.pem")];
        copy_tree(&options, &|path| server.url(path), &server.served(), true);
    }
}

#[test]
fn trees_go_to_pyftpdlib_under_tls() {
    let certificates = Certificates::new();
    let both = certificates.path("server.both");
    let options = ["--tls", "--ca", &certificates.path("ca.pem")];
    for least in ["TLS1_2_VERSION", "TLS1_3_VERSION"] {
        let tls = format!(
            "from OpenSSL import SSL\nc = SSL.Context(SSL.TLS_SERVER_METHOD)\n\
             c.use_certificate_file({both:?}); c.use_privatekey_file({both:?})\n\
             c.set_min_proto_version(SSL.{least})\n\
             h = T\nh.certfile = {both:?}\nh.ssl_context = c\n\
             h.tls_control_required = True\nh.tls_data_required = True"
        );
        if let Some(server) = pyftpdlib(&tls) {
            copy_tree(&options, &|path| server.url(path), &server.served(), false);
        }
    }
}

const SIZE: usize = 300 << 20;

/// Waits until a file has some octets.
fn await_octets(path: &dyn Fn() -> Option<u64>, least: u64) {
    let end = Instant::now() + Duration::from_secs(100);
    while path().unwrap_or(0) < least {
        assert!(Instant::now() < end, "nothing comes");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Fetches and stores are killed, and go on.
fn interrupt(options: &[&str], url: &dyn Fn(&str) -> String, served: &Path) {
    let content = octets(3, SIZE);
    fs::write(served.join("file"), &content).unwrap();
    let here = tempfile::tempdir().unwrap();
    let to = here.path().to_str().unwrap();
    let copy = |arguments: &[&str]| {
        let mut command = rftp(&[options, arguments].concat());
        command.arg("--no-sync");
        command
    };
    let mut child = copy(&[&url("file"), to])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let journal = here.path().join(".file.rftp-journal");
    await_octets(&|| Some(fs::metadata(&journal).ok()?.len()), 1000);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!here.path().join("file").exists());
    let said = succeed(&mut copy(&[&url("file"), to]));
    assert!(said.contains("were there from an earlier run"), "{said}");
    assert_eq!(names(here.path()), ["file"]);
    assert!(fs::read(here.path().join("file")).unwrap() == content);
    // A part of a file that is another one now is not gone on with.
    fs::remove_file(here.path().join("file")).unwrap();
    let mut child = copy(&[&url("file"), to])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_octets(&|| Some(fs::metadata(&journal).ok()?.len()), 1000);
    child.kill().unwrap();
    child.wait().unwrap();
    let other = octets(4, SIZE);
    fs::write(served.join("file"), &other).unwrap();
    Foreign::touch(&served.join("file"));
    let said = succeed(&mut copy(&[&url("file"), to]));
    assert!(!said.contains("earlier run"), "{said}");
    assert!(fs::read(here.path().join("file")).unwrap() == other);
    // The other direction.
    let file = here.path().join("file");
    let mut child = copy(&[file.to_str().unwrap(), &url("up")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let part = || {
        let mut parts = names(served).into_iter();
        let part = parts.find(|it| it.starts_with(".up") || it.starts_with("..up"))?;
        Some(served.join(part))
    };
    let there = || Some(fs::metadata(part()?).ok()?.len());
    await_octets(&there, 40 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!served.join("up").exists());
    // `rftpd` gives the part its name when it finds that the client is gone.
    let end = Instant::now() + Duration::from_secs(100);
    while names(served).iter().any(|it| it.ends_with(".rftp-upload")) {
        assert!(Instant::now() < end, "the server still stores");
        thread::sleep(Duration::from_millis(5));
    }
    // It may end anywhere. Another file takes its place: the server may still write to the first one.
    let script = "cp -p \"$0\" new && truncate -s 31469625 new && mv new \"$0\"";
    let mut cut = Command::new("sh");
    cut.args(["-c", script]).arg(part().unwrap());
    succeed(cut.current_dir(served));
    let said = succeed(&mut copy(&[file.to_str().unwrap(), &url("up")]));
    assert!(said.contains("were there from an earlier run"), "{said}");
    assert!(fs::read(served.join("up")).unwrap() == other);
    assert_eq!(names(served), ["file", "up"]);
}

#[test]
fn copies_by_ftp_go_on_after_kill_9() {
    if let Some(server) = vsftpd("") {
        interrupt(&[], &|path| server.url(path), &server.served());
    }
}

#[test]
fn copies_that_go_on_are_verified() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write", "--no-sync"]);
    interrupt(&["--verify"], &|path| server.ftp(path), root.path());
}

#[test]
fn failures_of_other_servers_have_their_reasons() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("f"), "f").unwrap();
    let file = here.path().join("f");
    let file = file.to_str().unwrap();
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    fail(
        &mut rftp(&[file, &server.ftp("x")]),
        "Only reading is permitted",
    );
    let wrong = format!("ftp://ann:no@127.0.0.1:{}/x", server.port);
    fail(&mut rftp(&[file, &wrong]), "not logged in");
    fail(
        &mut rftp(&["--streams", "1", &server.ftp("x"), "x"]),
        "No such file",
    );
    let usage = rftp(&["--active", &server.ftp("x"), "x"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    // Other entries come all the same.
    let folder = here.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("new\nline"), "n").unwrap();
    fs::write(folder.join("plain"), "p").unwrap();
    std::os::unix::fs::symlink("plain", folder.join("link")).unwrap();
    let server = Server::start(root.path(), &["--write"]);
    let mut copy = rftp(&[folder.to_str().unwrap(), &server.ftp("")]);
    fail(&mut copy, "FTP has no such names");
    fail(&mut copy, "FTP has no symbolic links");
    fail(&mut copy, "2 entries failed");
    assert_eq!(names(&root.path().join("folder")), ["plain"]);
}
