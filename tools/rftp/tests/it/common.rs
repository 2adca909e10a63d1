//! A server, and trees.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) use dgiwarp_transfer_cli::testing::{
    attributes, fail, names, octets, output, set_attribute, succeed,
};

/// A running `rftpd`.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(root: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rftpd"))
            .arg("--root")
            .arg(root)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let (_, port) = first.rsplit_once(':').unwrap();
        let port = port.parse().unwrap();
        // Shown with a test that fails, and so that the pipe never fills.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| println!("{line}"))
        });
        Self { child, port }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("rftp://127.0.0.1:{}/{path}", self.port)
    }

    pub(crate) fn ftp(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn rftp(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rftp"));
    command.arg("cp").args(arguments);
    command
}

/// A tree that any FTP client can name.
pub(crate) fn make_tree(path: &Path) {
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::create_dir(path.join("empty")).unwrap();
    fs::write(path.join("nothing"), "").unwrap();
    fs::write(path.join("a/large"), octets(1, 5_000_000)).unwrap();
    fs::write(path.join("a/b/ä ö%"), octets(2, 70_000)).unwrap();
    for index in 0..100 {
        fs::write(path.join(format!("a/b/{index}")), octets(index, 300)).unwrap();
    }
    std::os::unix::fs::symlink("large", path.join("a/link")).unwrap();
}

/// `diff -r` finds nothing.
#[track_caller]
pub(crate) fn assert_equal(one: &Path, other: &Path) {
    succeed(
        Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(one)
            .arg(other),
    );
}
