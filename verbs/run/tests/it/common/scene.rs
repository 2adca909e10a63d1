//! Where two programs meet: this host, a network with nothing but loopback, or two hosts with a cable between them.

use super::{RUN, have, library};
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use xtask::lab::relay::{Config as Relay, LinkConfig, Loss, Reordering};
use xtask::lab::{Config, Lab, Link, Namespace, Side};
use xtask::skips;

/// Kinds of scenes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This host as it is, as the user that runs the tests.
    Here,
    /// A fresh network namespace with only `lo`, as an ordinary user.
    Loopback,
    /// Two namespaces with a virtual cable of MTU 1500 between them, as an ordinary user.
    Apart,
    /// Two namespaces with a relay for a cable, which delays, loses, reorders, duplicates and corrupts packets.
    Faulty,
}

/// Which addresses the ends get for `{server}` and `{client}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// 127.0.0.1, or 10.99.0.1 and 10.99.0.2.
    V4,
    /// ::1, or fd99::1 and fd99::2.
    V6,
}

/// A scene that programs can be started in. Programs that still run there end with it.
#[derive(Debug)]
pub(crate) struct Scene {
    network: Network,
    /// Words before every program: how it becomes an ordinary user's, and ends with the test however that ends.
    around: Vec<String>,
    run: PathBuf,
    /// Where `run` is, if it had to be copied to where an ordinary user can read it.
    _copies: Option<TempDir>,
}

#[derive(Debug)]
enum Network {
    Here,
    Loopback(Namespace),
    Apart(Lab),
}

fn faulty() -> Config {
    let link = LinkConfig {
        delay: Duration::from_micros(500),
        jitter: Duration::from_micros(100),
        loss: Loss::Independent(0.02),
        duplication: 0.02,
        reordering: Reordering {
            probability: 0.1,
            by: Duration::from_millis(1),
        },
        corruption: 0.02,
        ..LinkConfig::default()
    };
    Config {
        link: Link::Relay(Relay::both(link, 7)),
        ..Config::default()
    }
}

/// The user that has no rights at all on Debian.
const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

impl Scene {
    /// The scene of programs from these packages; `None` skips the test.
    pub(crate) fn of(test: &str, place: Place, programs: &[(&str, &str)]) -> Option<Self> {
        let mut programs = programs.iter();
        let there = programs.all(|(program, package)| have(test, program, package));
        there.then(|| Self::new(test, place))?
    }

    /// Sets the scene; `None` skips the test, because this machine cannot.
    pub(crate) fn new(test: &str, place: Place) -> Option<Self> {
        let network = match place {
            Place::Here => Ok(Network::Here),
            Place::Loopback => Namespace::new().map(Network::Loopback),
            Place::Apart => Lab::new(&Config::default()).map(Network::Apart),
            Place::Faulty => Lab::new(&faulty()).map(Network::Apart),
        };
        let network = skips::made(test, network)?;
        let mut scene = Self {
            network,
            around: ["setpriv", "--pdeathsig=KILL"].map(String::from).to_vec(),
            run: PathBuf::from(RUN),
            _copies: None,
        };
        if place != Place::Here && nix::unistd::geteuid().is_root() {
            scene.around.extend(NOBODY.map(String::from));
            scene.make_readable();
        }
        Some(scene)
    }

    /// Copies wrapper and libraries if nobody may not read them where they are. The start of the wrapper by setpriv proves nothing: rights of root end there.
    fn make_readable(&mut self) {
        let reads = Command::new("setpriv")
            .args(NOBODY)
            .args(["test", "-r", RUN])
            .output();
        if reads.is_ok_and(|output| output.status.success()) {
            return;
        }
        let copies = tempfile::tempdir().unwrap();
        fs::set_permissions(copies.path(), Permissions::from_mode(0o755)).unwrap();
        self.run = copies.path().join("dgiwarp-run");
        let beside = |name| library().with_file_name(name);
        let more = ["libdgiwarp_paths.so", "libdgiwarp_sockets.so"].map(beside);
        for file in [PathBuf::from(RUN), library()].into_iter().chain(more) {
            fs::copy(&file, copies.path().join(file.file_name().unwrap())).unwrap();
        }
        self._copies = Some(copies);
    }

    /// Whether this scene has addresses of a family.
    pub(crate) fn has(&self, family: Family) -> bool {
        family == Family::V4
            || match &self.network {
                Network::Here => std::net::UdpSocket::bind("[::1]:0").is_ok(),
                Network::Loopback(namespace) => namespace.has_ipv6(),
                Network::Apart(lab) => lab.namespace(Side::Server).has_ipv6(),
            }
    }

    /// The address under which an end is reached.
    pub(crate) fn address(&self, side: Side, family: Family) -> IpAddr {
        match (&self.network, family) {
            (Network::Apart(_), Family::V4) => side.address(),
            (Network::Apart(_), Family::V6) => side.address6(),
            (Network::Here | Network::Loopback(_), Family::V4) => Ipv4Addr::LOCALHOST.into(),
            (Network::Here | Network::Loopback(_), Family::V6) => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// `dgiwarp-run` at one end; its arguments are up to the caller.
    pub(crate) fn dgiwarp_run(&self, side: Side) -> Command {
        let mut command = self.command(side);
        command.arg(&self.run);
        command
    }

    /// Starter of programs at one end: program and arguments come as arguments.
    pub(crate) fn command(&self, side: Side) -> Command {
        let (first, rest) = self.around.split_first().unwrap();
        let mut command = match &self.network {
            Network::Here => Command::new(first),
            Network::Loopback(namespace) => namespace.command(first),
            Network::Apart(lab) => lab.namespace(side).command(first),
        };
        command.args(rest);
        command
    }
}
