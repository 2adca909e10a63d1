//! Servers that make a child for each connection, under `dgiwarp-run --sockets`: PostgreSQL and sshd with their clients. Their listeners are plain without a rule, and no connection is lost.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use crate::common::{have, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;
use xtask::debian;

const INFO: &[(&str, &str)] = &[("DGIWARP_LOG", "info")];
const PLAIN: &[&str] = &["plain: the program makes a child for each connection"];

/// A script of `tests/sh` in a folder that any user may write to.
fn folder(script: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sh");
    fs::copy(scripts.join(script), folder.path().join("script")).unwrap();
    folder
}

/// Server and client, both with the library, and then a client without it.
fn serve(scene: &Scene, folder: &Path, says: &'static [&'static str]) {
    let ask = "sh {program}/script ask {program} {server} {port}";
    let both = format!("--sockets {ask}");
    let ends = [
        End::server("--sockets sh {program}/script serve {program} {server} {port}")
            .program(folder)
            .environment(INFO)
            .complains(PLAIN)
            .ready(Ready::Complains(PLAIN[0]))
            .finish(Finish::Stopped),
        End::client(both.leak())
            .program(folder)
            .says(says)
            .ready(Ready::Ended),
        End::client(ask).program(folder).says(says),
    ];
    session::run(scene, Family::V4, &ends);
}

#[test]
fn postgresql_serves_pgbench() {
    let test = "sockets_postgresql";
    if !have(test, "pg_createcluster", "postgresql") {
        return;
    }
    // Its server runs as any user but root.
    let place = if nix::unistd::geteuid().is_root() {
        Place::Loopback
    } else {
        Place::Here
    };
    let Some(scene) = Scene::new(test, place) else {
        return;
    };
    let folder = folder("postgres.sh");
    serve(
        &scene,
        folder.path(),
        &["actually processed: 400/400", "100000|rows"],
    );
}

#[test]
fn sshd_serves_ssh_scp_and_rsync() {
    let test = "sockets_ssh";
    // Not in PATH of an ordinary user.
    if debian::find_program("sshd").is_none() {
        return skip(test, "sshd is missing (Debian package openssh-server)");
    }
    let programs = [("ssh", "openssh-client"), ("rsync", "rsync")];
    let Some(scene) = Scene::of(test, Place::Here, &programs) else {
        return;
    };
    let folder = folder("ssh.sh");
    let says = &["from 127.0.0.1", "/dev/pts/", "copied"];
    serve(&scene, folder.path(), says);
}
