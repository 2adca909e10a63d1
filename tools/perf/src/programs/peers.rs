//! Other communication libraries, by the benchmarks that come with them: UCX's `ucx_perftest`, libfabric's
//! `fi_pingpong`. Each run is two processes on the loopback interface, with a time limit: some providers hang.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::{Cpus, Side};
use crate::machine::interrupt::Interrupt;
use crate::programs::perftest::{Running, find, free_port};
use crate::run::figures::Figures;

/// How long one run may take.
const RUN: Duration = Duration::from_secs(15);
/// The longest datagram of libfabric's provider `udp`.
const LONGEST_DATAGRAM: u64 = 1 << 10;

/// A library with one of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// UCX over TCP, messages with tags.
    UcxTcp,
    /// UCX over TCP, one-sided.
    UcxTcpPut,
    /// UCX over shared memory.
    UcxShm,
    /// libfabric's connected TCP.
    FabricTcp,
    /// libfabric's reliable datagrams over TCP.
    FabricRxm,
    /// libfabric's UDP.
    FabricUdp,
    /// libfabric's reliable datagrams over UDP.
    FabricRxd,
    /// libfabric's shared memory.
    FabricShm,
}

/// All of them, those in shared memory last.
pub(crate) const PEERS: [Peer; 8] = [
    Peer::UcxTcp,
    Peer::UcxTcpPut,
    Peer::FabricTcp,
    Peer::FabricRxm,
    Peer::FabricUdp,
    Peer::FabricRxd,
    Peer::UcxShm,
    Peer::FabricShm,
];

/// The measurement of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Test {
    /// Octets of a message.
    pub(crate) size: u64,
    /// Messages.
    pub(crate) iters: u32,
    /// Goodput instead of half round trips.
    pub(crate) stream: bool,
}

/// Arguments of the benchmark of a library.
enum Library {
    /// Names of the latency and of the goodput test, and the transport.
    Ucx(&'static str, &'static str, &'static str),
    /// Provider and endpoint type.
    Fabric(&'static str, &'static str),
}

impl Peer {
    /// The name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UcxTcp => "UCX tcp",
            Self::UcxTcpPut => "UCX tcp put",
            Self::UcxShm => "UCX shm",
            Self::FabricTcp => "libfabric tcp",
            Self::FabricRxm => "libfabric tcp;rxm",
            Self::FabricUdp => "libfabric udp",
            Self::FabricRxd => "libfabric udp;rxd",
            Self::FabricShm => "libfabric shm",
        }
    }

    /// Whether it does without the network, so that it is no rival.
    pub(crate) const fn shares_memory(self) -> bool {
        matches!(self, Self::UcxShm | Self::FabricShm)
    }

    const fn library(self) -> Library {
        match self {
            Self::UcxTcp => Library::Ucx("tag_lat", "tag_bw", "tcp"),
            Self::UcxTcpPut => Library::Ucx("ucp_put_lat", "ucp_put_bw", "tcp"),
            Self::UcxShm => Library::Ucx("tag_lat", "tag_bw", "shm"),
            Self::FabricTcp => Library::Fabric("tcp", "msg"),
            Self::FabricRxm => Library::Fabric("tcp;ofi_rxm", "rdm"),
            Self::FabricUdp => Library::Fabric("udp", "dgram"),
            Self::FabricRxd => Library::Fabric("udp;ofi_rxd", "rdm"),
            Self::FabricShm => Library::Fabric("shm", "rdm"),
        }
    }

    /// Whether there is such a test: a datagram has a limit, and `fi_pingpong` has one message under way.
    pub(crate) const fn has(self, size: u64, stream: bool) -> bool {
        match self {
            Self::UcxTcp | Self::UcxTcpPut | Self::UcxShm => true,
            Self::FabricUdp => !stream && size <= LONGEST_DATAGRAM,
            Self::FabricTcp | Self::FabricRxm | Self::FabricRxd | Self::FabricShm => !stream,
        }
    }

    /// Why it cannot run here, if so.
    pub(crate) fn missing(self, test: Test) -> Option<String> {
        let (program, package) = match self.library() {
            Library::Ucx(..) => ("ucx_perftest", "ucx-utils"),
            Library::Fabric(..) => ("fi_pingpong", "libfabric-bin"),
        };
        if !self.has(test.size, test.stream) {
            return Some(format!("{program} has no such test"));
        }
        let missing = find(program).is_none();
        missing.then(|| format!("{program} is not installed (Debian: {package})"))
    }

    /// One run.
    pub(crate) fn run(self, test: Test, cpus: &Cpus, interrupt: &Interrupt) -> Result<Figures> {
        let port = free_port()?;
        let start = |side| -> Result<Running> {
            let mut command = self.command(test, side, port);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let child = cpus.start(side, || command.spawn())?;
            Running::new(child.during("start another library's benchmark")?)
        };
        let server = start(Side::Server)?;
        server.wait_until_listening(port, interrupt)?;
        let client = start(Side::Client)?;
        let printed = client.output(RUN, interrupt)?;
        let figure = match self.library() {
            Library::Ucx(..) => of_ucx(&printed, test),
            Library::Fabric(..) => of_fabric(&printed),
        };
        figure.ok_or_else(|| {
            let last = printed.lines().last().unwrap_or_default().trim();
            PerfError::PeerFailed(format!("{} printed no figure: {last}", self.name()))
        })
    }

    fn command(self, test: Test, side: Side, port: u16) -> Command {
        let (size, iters) = (test.size.to_string(), test.iters.to_string());
        let port = port.to_string();
        match self.library() {
            Library::Ucx(latency, goodput, transport) => {
                let mut command = Command::new("ucx_perftest");
                command.env("UCX_TLS", transport).args(["-p", &port]);
                if transport == "tcp" {
                    command.env("UCX_NET_DEVICES", "lo");
                }
                if side == Side::Client {
                    let name = if test.stream { goodput } else { latency };
                    let warm_up = (test.iters / 10).to_string();
                    command.args(["127.0.0.1", "-t", name, "-s", &size]);
                    command.args(["-n", &iters, "-w", &warm_up, "-f"]);
                }
                command
            }
            Library::Fabric(provider, endpoint) => {
                let mut command = Command::new("fi_pingpong");
                let its_port = match side {
                    Side::Server => "-B",
                    Side::Client => "-P",
                };
                command.args([its_port, &port, "-p", provider, "-e", endpoint]);
                command.args(["-m", "msg", "-I", &iters, "-S", &size]);
                if side == Side::Client {
                    command.arg("127.0.0.1");
                }
                command
            }
        }
    }
}

/// The last line: iterations, median, mean and overall time in µs, two of MiB/s, two of messages per second.
fn of_ucx(printed: &str, test: Test) -> Option<Figures> {
    let numbers = |line: &str| -> Option<Vec<f64>> {
        let words = line.split_ascii_whitespace();
        words.map(|word| word.parse().ok()).collect()
    };
    let found = printed.lines().rev().find_map(|line| {
        let numbers = numbers(line)?;
        (numbers.len() == 8).then_some(numbers)
    })?;
    let (&median, &rate) = (found.get(1)?, found.last()?);
    Some(match test.stream {
        false => Figures {
            us: Some(median),
            ..Figures::default()
        },
        true => Figures {
            gigabytes_s: Some(rate * f64::from(u32::try_from(test.size).ok()?) / 1e9),
            ..Figures::default()
        },
    })
}

/// Below `usec/xfer`: the mean half round trip.
fn of_fabric(printed: &str) -> Option<Figures> {
    let mut lines = printed.lines();
    let head = lines.find(|line| line.contains("usec/xfer"))?;
    let column = head
        .split_ascii_whitespace()
        .position(|word| word == "usec/xfer")?;
    let row = lines.next()?;
    let us = row.split_ascii_whitespace().nth(column)?.parse().ok()?;
    Some(Figures {
        us: Some(us),
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UCX: &str = "\
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                        5000      6.435   186.571   157.897        0.33       0.39        5360        6333
";
    const FABRIC: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
1k      2k      =2k      3.9m        0.38s     10.92      93.78       0.01
";

    fn test(size: u64, stream: bool) -> Test {
        Test {
            size,
            iters: 5000,
            stream,
        }
    }

    #[test]
    fn what_the_programs_print_is_read() {
        let latency = of_ucx(UCX, test(64, false)).unwrap();
        assert_eq!((latency.us, latency.gigabytes_s), (Some(6.435), None));
        let goodput = of_ucx(UCX, test(1 << 16, true)).unwrap();
        assert!((goodput.gigabytes_s.unwrap() - 0.415).abs() < 1e-3);
        assert_eq!(of_fabric(FABRIC).unwrap().us, Some(93.78));
        assert_eq!(of_ucx("connect() failed\n", test(64, false)), None);
        assert_eq!(of_fabric("fi_getinfo(): -61\n"), None);
    }

    #[test]
    fn what_a_library_cannot_do_is_said() {
        let missing = |peer: Peer, size, stream| peer.missing(test(size, stream));
        let no_test = Some("fi_pingpong has no such test".to_owned());
        assert_eq!(missing(Peer::FabricUdp, 4096, false), no_test);
        assert_eq!(missing(Peer::FabricTcp, 4096, true), no_test);
    }
}
