//! `rftp cp` to and from `rftpd`.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{
    Server, assert_equal, attributes, fail, make_tree, names, octets, output, rftp, set_attribute,
    succeed,
};

#[test]
fn a_tree_goes_there_and_comes_back() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    let tree_name = tree.to_str().unwrap();
    for options in [&[][..], &["--tcp"], &["--active"], &["--tcp", "--active"]] {
        let root = tempfile::tempdir().unwrap();
        let server = Server::start(root.path(), &["--write"]);
        let with = |rest: &[&str]| rftp(&[options, rest].concat());
        succeed(&mut with(&[tree_name, &server.url("")]));
        assert_equal(&tree, &root.path().join("tree"));
        let said = succeed(&mut with(&[tree_name, &server.url("")]));
        assert!(
            said.contains("were there") && said.contains("0 B in"),
            "{said}"
        );
        let back = here.path().join("back");
        succeed(&mut with(&[&server.url("tree"), back.to_str().unwrap()]));
        assert_equal(&tree, &back);
        // Into a directory that is there.
        succeed(&mut with(&[
            &server.url("tree/a/large"),
            back.to_str().unwrap(),
        ]));
        assert_eq!(fs::read(back.join("large")).unwrap(), octets(1, 5_000_000));
        fs::remove_dir_all(&back).unwrap();
    }
}

/// Extended attributes go there, come back, and are part of what is the same; FTP has none.
#[test]
fn extended_attributes_go_there_and_come_back() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    let back = here.path().join("back");
    if !set_attribute(&tree.join("a/large"), "user.origin", b"here") {
        let test = "extended_attributes_go_there_and_come_back";
        return xtask::skips::skip(test, "the file system has no extended attributes");
    }
    assert!(set_attribute(&tree.join("a/b/7"), "user.empty", b""));
    assert!(set_attribute(&tree.join("a/b"), "user.b", b"\0"));
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    let (tree_name, url) = (tree.to_str().unwrap(), server.url(""));
    let there = root.path().join("tree");
    succeed(&mut rftp(&["--no-xattrs", tree_name, &url]));
    assert!(attributes(&there).is_empty());
    let said = succeed(&mut rftp(&[tree_name, &url]));
    assert!(said.contains("0 B in"), "{said}");
    assert_eq!(attributes(&there), attributes(&tree));
    succeed(&mut rftp(&[&server.url("tree"), back.to_str().unwrap()]));
    assert_eq!(attributes(&back), attributes(&tree));
    fs::remove_dir_all(&back).unwrap();
    succeed(&mut rftp(&[&server.ftp("tree"), back.to_str().unwrap()]));
    assert_equal(&tree, &back);
    assert!(attributes(&back).is_empty());
}

#[test]
fn one_file_gets_the_name_that_it_is_given() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(3, 100_000)).unwrap();
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    let file = file.to_str().unwrap();
    succeed(&mut rftp(&[file, &server.url("new")]));
    succeed(&mut rftp(&[file, &server.url("deep/er%20/")]));
    let other = here.path().join("other");
    fs::write(&other, "o").unwrap();
    let other = other.to_str().unwrap();
    succeed(&mut rftp(&[file, other, &server.url("both")]));
    assert_eq!(names(&root.path().join("both")), ["file", "other"]);
    assert_eq!(names(root.path()), ["both", "deep", "new"]);
    assert_eq!(names(&root.path().join("deep/er ")), ["file"]);
    assert_eq!(
        fs::read(root.path().join("both/file")).unwrap(),
        octets(3, 100_000)
    );
    // A file that changed replaces the one before.
    fs::write(file, "short").unwrap();
    succeed(&mut rftp(&[file, &server.url("new")]));
    assert_eq!(fs::read(root.path().join("new")).unwrap(), b"short");
}

#[test]
fn of_a_file_that_changed_the_change_is_sent_where_a_user_wants_it() {
    let (here, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(root.path(), &["--write"]);
    let file = here.path().join("file");
    let name = file.to_str().unwrap();
    let mut content = octets(3, 5_000_000);
    fs::write(root.path().join("file"), &content).unwrap();
    for delta in [true, false] {
        content.insert(0, 7);
        fs::write(&file, &content).unwrap();
        let options = if delta { &["--delta"][..] } else { &[] };
        let url = server.url("file");
        let put = [options, &[name, &url]].concat();
        let said = succeed(&mut rftp(&put));
        assert_eq!(said.contains("of them from old copies"), delta, "{said}");
        assert_eq!(fs::read(root.path().join("file")).unwrap(), content);
        content.insert(0, 8);
        fs::write(root.path().join("file"), &content).unwrap();
        let get = [options, &[&url, name]].concat();
        let said = succeed(&mut rftp(&get));
        assert_eq!(said.contains("of them from old copies"), delta, "{said}");
        assert_eq!(fs::read(&file).unwrap(), content);
    }
}

#[test]
fn failures_have_their_reasons() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, "f").unwrap();
    let file = file.to_str().unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("directory")).unwrap();
    symlink(here.path(), root.path().join("out")).unwrap();
    let server = Server::start(root.path(), &[]);
    fail(
        &mut rftp(&[file, &server.url("x")]),
        "Only reading is permitted",
    );
    fail(
        &mut rftp(&[&server.url("missing"), "x"]),
        "No such file or directory",
    );
    fail(
        &mut rftp(&["/missing", &server.url("x")]),
        "No such file or directory",
    );
    fail(
        &mut rftp(&[&server.url("out/file"), "x"]),
        "The name leaves the root",
    );
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    fail(&mut rftp(&[file, &format!("rftp://{unused}/x")]), "refused");
    fail(
        &mut rftp(&[file, "rftp://no-such-host.invalid/x"]),
        "no-such-host.invalid:2121",
    );
    let usage = output(&mut rftp(&[file, "x"]));
    assert_eq!(usage.status.code(), Some(2));
    let writable = Server::start(root.path(), &["--write"]);
    fail(
        &mut rftp(&[file, &writable.url("out/x")]),
        "leaves the root",
    );
    let wrong = format!("rftp://ann:no@127.0.0.1:{}/x", server.port);
    fail(&mut rftp(&[file, &wrong]), "not logged in");
    assert_eq!(names(here.path()), ["file"]);
    assert_eq!(names(root.path()), ["directory", "out"]);
}

#[test]
fn users_have_their_rights() {
    let here = tempfile::tempdir().unwrap();
    let users = here.path().join("users");
    // `secret`.
    let hash = succeed(std::process::Command::new("openssl").args(["passwd", "-6", "secret"]));
    fs::write(
        &users,
        format!("ann:{}\nbob:{}:ro\n", hash.trim(), hash.trim()),
    )
    .unwrap();
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--users", users.to_str().unwrap()]);
    let file = users.to_str().unwrap();
    let url = |user: &str| format!("rftp://{user}:secret@127.0.0.1:{}/x", server.port);
    succeed(&mut rftp(&[file, &url("ann")]));
    fail(&mut rftp(&[file, &url("bob")]), "Only reading is permitted");
    fail(&mut rftp(&[file, &url("eve")]), "not logged in");
    fail(&mut rftp(&[file, &server.url("x")]), "not logged in");
    succeed(&mut rftp(&[
        &url("bob"),
        here.path().join("copy").to_str().unwrap(),
    ]));
    assert_eq!(names(here.path()), ["copy", "users"]);
}

#[test]
fn a_full_disk_is_reported_and_leaves_no_part_of_a_file_under_its_name() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(5, 3 << 20)).unwrap();
    let small = here.path().join("small");
    fs::create_dir(&small).unwrap();
    // A disk of one mebibyte in a mount namespace of its own.
    let script = format!(
        "mount -t tmpfs -o size=1m none {0} && cd {0} && \
         {{ {1} --root . --write --listen 127.0.0.1:0 2>log & echo $! >../pid; }} && \
         for i in $(seq 100); do grep -q listening log && break; sleep 0.1; done && \
         port=$(sed -n 's/.*:\\([0-9]*\\)$/\\1/p' log | head -1); \
         {2} cp ../file rftp://127.0.0.1:$port/new; echo status $?; \
         {2} cp --tcp rftp://127.0.0.1:$port/log ../got; \
         curl -sS -T ../file ftp://127.0.0.1:$port/ftp; echo curl $?; ls -A; kill $(cat ../pid)",
        small.display(),
        env!("CARGO_BIN_EXE_rftpd"),
        env!("CARGO_BIN_EXE_rftp"),
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]);
    let run = output(&mut command);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    if said.contains("unshare") || said.contains("mount:") {
        xtask::skips::skip("a full disk", "mount namespaces are not permitted");
        return;
    }
    assert!(said.contains("no space"), "{said}");
    assert!(
        said.contains("status 1") && !said.contains("curl 0"),
        "{said}"
    );
    let listed: Vec<_> = std::str::from_utf8(&run.stdout)
        .unwrap()
        .lines()
        .rev()
        .take_while(|line| !line.starts_with("curl"))
        .collect();
    assert_eq!(listed, ["log"], "{said}");
}
