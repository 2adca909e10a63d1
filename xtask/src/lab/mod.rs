//! Two network namespaces joined by a veth pair or a [`relay`], with one command in each.
//!
//! ```text
//!  server namespace                        client namespace
//!  lab0  10.99.0.1/24, fd99::1/64  <------>  lab0  10.99.0.2/24, fd99::2/64
//!  lo    127.0.0.1, ::1                      lo    127.0.0.1, ::1
//! ```
//!
//! As root the namespaces are made directly, otherwise inside a user namespace, where the caller's commands see
//! themselves as root. Nothing has a name outside: a namespace lives as long as its holder process, and the holder
//! lives as long as the [`Namespace`] value, or the process that owns it, does. So nothing is left behind even if that
//! process is killed.
//!
//! `/sys` inside still shows the host's interfaces; `/proc/sys/net` and `/proc/net` show the namespace's own.
//!
//! ```no_run
//! use xtask::lab::{Config, Lab, Link, Side};
//! let lab = Lab::new(&Config { mtu: 1500, wire_like: true, link: Link::Veth })?;
//! let ping = lab.command(Side::Client, "ping").args(["-c1", "10.99.0.1"]).status();
//! # Ok::<(), xtask::lab::LabError>(())
//! ```

mod namespace;
pub mod options;
pub mod relay;
mod session;
mod sockets;

pub use namespace::Namespace;
pub use session::{Session, Wait};
pub use sockets::is_listening;

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use crate::clock;
use relay::Relay;

/// The interface of both ends.
pub const INTERFACE: &str = "lab0";

/// How long the link may take to come up.
const CARRIER_LIMIT: Duration = Duration::from_secs(5);

/// Why a namespace, or what was to run in it, could not be had.
#[derive(Debug, Error)]
pub enum LabError {
    /// The kernel or a sandbox refuses both plain and user namespaces. Tests skip on this.
    #[error("no network namespaces here: {reason}")]
    NoNamespaces {
        /// Error of the kernel at the last attempt.
        reason: String,
    },
    /// A program that the lab drives is not installed. Tests skip on this.
    #[error("the program `{program}` is missing (Debian package {package})")]
    MissingProgram {
        /// The program's name.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The kernel or a sandbox has no TUN devices for a relay. Tests skip on this.
    #[error("no TUN devices here: {reason}")]
    NoTun {
        /// Call that failed, and error of the kernel.
        reason: String,
    },
    /// A set-up command failed.
    #[error("`{command}` failed: {stderr}")]
    Setup {
        /// The command line.
        command: String,
        /// Its standard error.
        stderr: String,
    },
    /// A process could not be started or waited for.
    #[error("{what}: {source}")]
    Process {
        /// Which process.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server of a [`Session`] ended, or stayed silent, before the client could start.
    #[error("the server was not up: {0}")]
    ServerNotUp(String),
}

/// One of the two ends of a [`Lab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// 10.99.0.1 and fd99::1.
    Server,
    /// 10.99.0.2 and fd99::2.
    Client,
}

impl Side {
    /// The IPv4 address of this end.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 99, 0, self.host_number()))
    }

    /// The global IPv6 address of this end.
    #[must_use]
    pub const fn address6(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::new(
            0xfd99,
            0,
            0,
            0,
            0,
            0,
            0,
            self.host_number() as u16,
        ))
    }

    const fn host_number(self) -> u8 {
        match self {
            Self::Server => 1,
            Self::Client => 2,
        }
    }
}

/// Carrier of packets between the two namespaces.
#[expect(
    clippy::large_enum_variant,
    reason = "a lab has one, and a plain value is easier to write than a boxed one"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Link {
    /// A veth pair: as fast as the kernel, without faults.
    #[default]
    Veth,
    /// A TUN device at each end, and a thread of this process between them with delay, loss and other faults. Packets
    /// are always as on a wire, each on its own.
    Relay(relay::Config),
}

/// Properties of the link between the two namespaces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// MTU of both ends in bytes, 68 to 65,535 (1,280 at least if IPv6 is to work).
    pub mtu: u32,
    /// Packets as a wire would carry them: segmentation is done by the sending kernel before the link (TSO, GSO, UDP
    /// segmentation offload off), and the receiving end merges them again (GRO on).
    pub wire_like: bool,
    /// Carrier of packets.
    pub link: Link,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mtu: 1500,
            wire_like: false,
            link: Link::Veth,
        }
    }
}

/// Two namespaces joined by a link. Dropping it kills what still runs inside and removes both.
#[derive(Debug)]
pub struct Lab {
    /// Dropped before the namespaces: its interfaces vanish with it.
    relay: Option<Relay>,
    server: Namespace,
    client: Namespace,
}

impl Lab {
    /// Makes the namespaces and the link, with addresses set and interfaces up: packets pass when this returns.
    ///
    /// # Errors
    /// [`LabError::NoNamespaces`] and [`LabError::MissingProgram`] where this machine cannot do it, the others where it
    /// should have worked.
    pub fn new(config: &Config) -> Result<Self, LabError> {
        let server = Namespace::new()?;
        let client = server.sibling()?;
        let relay = match &config.link {
            Link::Veth => {
                add_veth(&server, &client, config.mtu)?;
                None
            }
            Link::Relay(relay) => Some(Relay::new(relay, &server, &client, config.mtu)?),
        };
        let lab = Self {
            relay,
            server,
            client,
        };
        for side in [Side::Server, Side::Client] {
            let namespace = lab.namespace(side);
            let (v4, v6) = (
                format!("{}/24", side.address()),
                format!("{}/64", side.address6()),
            );
            namespace.set_up("ip", &["address", "add", &v4, "brd", "+", "dev", INTERFACE])?;
            if namespace.has_ipv6() {
                // Without duplicate address detection the addresses are usable at once.
                namespace.set_up("ip", &["address", "add", &v6, "dev", INTERFACE, "nodad"])?;
            }
            if config.wire_like && lab.relay.is_none() {
                namespace.set_up(
                    "ethtool",
                    &[
                        "-K",
                        INTERFACE,
                        "tso",
                        "off",
                        "gso",
                        "off",
                        "tx-udp-segmentation",
                        "off",
                        "gro",
                        "on",
                    ],
                )?;
            }
            namespace.set_up("ip", &["link", "set", INTERFACE, "up"])?;
        }
        lab.await_carrier()?;
        Ok(lab)
    }

    /// The kernel reports a new link as up a moment after it is: programs that choose interfaces by their state must
    /// not come earlier.
    fn await_carrier(&self) -> Result<(), LabError> {
        let deadline = clock::now() + CARRIER_LIMIT;
        for side in [Side::Server, Side::Client] {
            // A TUN device has a carrier from the start, and its state stays unknown.
            let up = if self.relay.is_some() {
                "LOWER_UP"
            } else {
                " state UP "
            };
            while !self
                .namespace(side)
                .set_up("ip", &["-o", "link", "show", INTERFACE])?
                .contains(up)
            {
                if clock::now() > deadline {
                    return Err(LabError::Setup {
                        command: "ip link set up".to_owned(),
                        stderr: format!("{INTERFACE} of the {side:?} end has no carrier"),
                    });
                }
                clock::pause(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// The relay, if the link is one.
    #[must_use]
    pub const fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// The namespace of one end.
    #[must_use]
    pub const fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Server => &self.server,
            Side::Client => &self.client,
        }
    }

    /// A command that will run at one end. Its environment carries both ends' addresses as `LAB_SERVER`,
    /// `LAB_CLIENT`, and with a `6` appended the IPv6 ones.
    #[must_use]
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.namespace(side).command(program);
        for (name, side) in [("SERVER", Side::Server), ("CLIENT", Side::Client)] {
            command.env(format!("LAB_{name}"), side.address().to_string());
            command.env(format!("LAB_{name}6"), side.address6().to_string());
        }
        command
    }
}

/// Joins two namespaces by a veth pair, which is not up yet.
fn add_veth(server: &Namespace, client: &Namespace, mtu: u32) -> Result<(), LabError> {
    let (peer, mtu) = (client.holder().to_string(), mtu.to_string());
    server.set_up(
        "ip",
        &[
            "link", "add", INTERFACE, "mtu", &mtu, "type", "veth", "peer", "name", INTERFACE,
            "mtu", &mtu, "netns", &peer,
        ],
    )?;
    Ok(())
}
