//! Programs of `tests/c` under the wrapper, once with each address of this host. They print "ok" and nothing else.

use super::linked::INCLUDE;
use super::{RUN, compile, scratch, succeed};
use dgiwarp_verbs::gid::{GidTable, host_gids};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program for Debian's libraries; `None` skips the test.
pub(crate) fn compiled(name: &str, source: &str) -> Option<PathBuf> {
    let mut arguments = vec!["-Wall", INCLUDE, "-libverbs", "-lpthread"];
    // A machine may have the headers of libibverbs alone.
    if source.contains("<rdma/") {
        arguments.push("-lrdmacm");
    }
    compile(name, &scratch(name), source, &arguments)
}

/// Runs a command that prints "ok" and nothing else.
#[track_caller]
pub(crate) fn prints_ok(command: &mut Command) {
    let output = succeed(command);
    let text = |octets| String::from_utf8_lossy(octets).into_owned();
    let printed = (text(&output.stdout), text(&output.stderr));
    assert_eq!(printed, ("ok\n".into(), String::new()), "{command:?}");
}

/// Runs a program with a persona.
#[track_caller]
pub(crate) fn runs_as(persona: &str, program: &Path, arguments: &[String]) {
    let mut command = Command::new("timeout");
    command.env("DGIWARP_PERSONA", persona);
    prints_ok(command.args(["120", RUN]).arg(program).args(arguments));
}

/// Runs a program.
#[track_caller]
pub(crate) fn runs(program: &Path, arguments: &[String]) {
    runs_as("roce", program, arguments);
}

/// The GIDs of this host's addresses.
pub(crate) fn gids() -> GidTable {
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap());
    gids
}

/// Compiles a program and runs it with the index of each GID.
#[track_caller]
pub(crate) fn for_each_gid(name: &str, source: &str) {
    if let Some(program) = compiled(name, source) {
        for (index, _) in gids().iter() {
            runs(&program, &[index.to_string()]);
        }
    }
}

/// This host's addresses that need no interface beside them: all but link-local ones.
pub(crate) fn addresses() -> impl Iterator<Item = IpAddr> {
    let addresses = host_gids().unwrap().into_iter().map(|gid| gid.address);
    addresses.filter(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    })
}
