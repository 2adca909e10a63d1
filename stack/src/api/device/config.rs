//! Settings of a device, each with an environment variable for programs that are not recompiled.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::driver::same_host::names::MAX_DIRECTORY;
use crate::{
    Completion, CrcPreference, Fault, MpaConfig, MpaRevision, NoReceive, RcOptions, RtrSet,
};

/// Most connected sockets that a datagram queue pair makes for its peers: more slow down everybody, because the kernel tries all sockets of a port for
/// each datagram that arrives.
pub const MAX_PEER_SOCKETS: usize = 4;

/// A setting that can be given in the environment.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// The variable.
    pub name: &'static str,
    /// Effect, unit and range.
    pub help: &'static str,
    set: fn(&mut Config, &str) -> Option<()>,
    show: fn(&Config) -> String,
}

impl Knob {
    /// The present value.
    #[must_use]
    pub fn show(&self, config: &Config) -> String {
        (self.show)(config)
    }
}

/// All settings that can be given in the environment.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "DGIWARP_RCVBUF",
        help: "receive buffer asked of the kernel for each socket, in octets, 4096 to 1073741824; \
               0 leaves the system's default",
        set: |config, text| {
            config.receive_buffer = number(text, 0, 1 << 30)?;
            Some(())
        },
        show: |config| config.receive_buffer.to_string(),
    },
    Knob {
        name: "DGIWARP_PEER_SOCKETS",
        help: "connected sockets that a datagram queue pair makes for its busiest peers, 0 to 4",
        set: |config, text| {
            config.peer_sockets = number(text, 0, MAX_PEER_SOCKETS)?;
            Some(())
        },
        show: |config| config.peer_sockets.to_string(),
    },
    Knob {
        name: "DGIWARP_MTU",
        help: "largest MTU assumed of any path, in octets, 576 to 65536; 0 takes the routes' own",
        set: |config, text| {
            let mtu = number(text, 0, 65_536)?;
            config.max_mtu = (mtu == 0 || mtu >= 576).then_some(u32::try_from(mtu).ok()?)?;
            Some(())
        },
        show: |config| config.max_mtu.to_string(),
    },
    Knob {
        name: "DGIWARP_MULPDU",
        help: "longest ULPDU that connected queue pairs send, in octets, 128 to 64768; 0 follows the path",
        set: |config, text| {
            let mulpdu = u16::try_from(number(text, 0, 64_768)?).ok()?;
            config.mulpdu = (mulpdu == 0 || mulpdu >= 128).then_some(mulpdu)?;
            Some(())
        },
        show: |config| config.mulpdu.to_string(),
    },
    Knob {
        name: "DGIWARP_GROUP_PORT",
        help: "UDP port of all broadcast and multicast groups, 1 to 65535; the same on all hosts",
        set: |config, text| {
            config.group_port = u16::try_from(number(text, 1, 65_535)?).ok()?;
            Some(())
        },
        show: |config| config.group_port.to_string(),
    },
    Knob {
        name: "DGIWARP_PORTS",
        help: "TCP ports of connected queue pairs that programs connect by exchanged numbers, FIRST-LAST within 256 to 65534; \
               empty leaves them to the system",
        set: |config, text| {
            config.ports = match text.split_once('-') {
                None if text.is_empty() => None,
                None => return None,
                Some((first, last)) => {
                    let first = u16::try_from(number(first, 256, 65_534)?).ok()?;
                    let last = u16::try_from(number(last, 256, 65_534)?).ok()?;
                    (first <= last).then_some(Some(first..=last))?
                }
            };
            Some(())
        },
        show: |config| {
            let ports = config.ports.as_ref();
            ports.map_or_else(String::new, |it| format!("{}-{}", it.start(), it.end()))
        },
    },
    Knob {
        name: "DGIWARP_MPA_REV",
        help: "MPA revision in which rdma_cm asks for connections: 2, falling back to 1 for peers that do not know it, or 1; 1 or 2",
        set: |config, text| {
            config.mpa.revision = match number(text, 1, 2)? {
                1 => MpaRevision::One,
                _ => MpaRevision::Two,
            };
            Some(())
        },
        show: |config| config.mpa.revision.get().to_string(),
    },
    Knob {
        name: "DGIWARP_CRC",
        help: "CRCs on connections, which have them where either end wants them: auto wants them between hosts and not within this one, \
               1 everywhere, 0 nowhere; auto, 0 or 1",
        set: |config, text| {
            config.mpa.crc = match text {
                "auto" => CrcPreference::BetweenHosts,
                "1" => CrcPreference::Always,
                "0" => CrcPreference::Never,
                _ => return None,
            };
            Some(())
        },
        show: |config| {
            let word = match config.mpa.crc {
                CrcPreference::BetweenHosts => "auto",
                CrcPreference::Always => "1",
                CrcPreference::Never => "0",
            };
            word.to_owned()
        },
    },
    Knob {
        name: "DGIWARP_MARKERS",
        help: "1 has the peers of rdma_cm's connections send MPA markers; 0 or 1",
        set: |config, text| {
            config.mpa.markers = number(text, 0, 1)? == 1;
            Some(())
        },
        show: |config| u8::from(config.mpa.markers).to_string(),
    },
    Knob {
        name: "DGIWARP_RTR",
        help: "ready-to-receive indications that connections of rdma_cm offer and take: write, read or both; none asks for no peer-to-peer mode",
        set: |config, text| {
            let (write, read) = match text {
                "both" => (true, true),
                "write" => (true, false),
                "read" => (false, true),
                "none" => (false, false),
                _ => return None,
            };
            config.mpa.rtr = RtrSet {
                write,
                read,
                ..RtrSet::NONE
            };
            config.mpa.peer_to_peer = write || read;
            Some(())
        },
        show: |config| {
            let word = match (config.mpa.rtr.write, config.mpa.rtr.read) {
                (true, true) => "both",
                (true, false) => "write",
                (false, true) => "read",
                (false, false) => "none",
            };
            word.to_owned()
        },
    },
    Knob {
        name: "DGIWARP_PORT_OFFSET",
        help: "added to the TCP and UDP ports of rdma_cm at the sockets, for programs that use the same ports without it; 0 to 65535, the same at \
               both ends",
        set: |config, text| {
            config.port_offset = u16::try_from(number(text, 0, 65_535)?).ok()?;
            Some(())
        },
        show: |config| config.port_offset.to_string(),
    },
    Knob {
        name: "DGIWARP_PORT_QUERY",
        help: "1 has connections of rdma_cm query the UDP port of the same number, where listeners answer whose TCP port another socket has; 0 does \
               without; 0 or 1",
        set: |config, text| {
            config.port_queries = number(text, 0, 1)? == 1;
            Some(())
        },
        show: |config| u8::from(config.port_queries).to_string(),
    },
    Knob {
        name: "DGIWARP_RECORD_TIMEOUT_MS",
        help: "how long a Write-Record may be silent before its record is closed, in milliseconds, 1 to 60000",
        set: |config, text| {
            let millis = number(text, 1, 60_000)?;
            config.record_timeout = Duration::from_millis(u64::try_from(millis).ok()?);
            Some(())
        },
        show: |config| config.record_timeout.as_millis().to_string(),
    },
    Knob {
        name: "DGIWARP_READ_TIMEOUT_MS",
        help: "how long an RDMA Read over datagrams may take, in milliseconds, 1 to 600000",
        set: |config, text| {
            let millis = number(text, 1, 600_000)?;
            config.read_timeout = Duration::from_millis(u64::try_from(millis).ok()?);
            Some(())
        },
        show: |config| config.read_timeout.as_millis().to_string(),
    },
    Knob {
        name: "DGIWARP_CONNECTION_TIMEOUT_MS",
        help: "how long a connected peer's host may be silent before its connection is lost, in milliseconds, 1000 to 600000; 0 is for ever",
        set: |config, text| {
            let millis = number(text, 0, 600_000)?;
            let timeout = (millis == 0 || millis >= 1000).then_some(u64::try_from(millis).ok()?)?;
            config.connection_timeout = Duration::from_millis(timeout);
            Some(())
        },
        show: |config| config.connection_timeout.as_millis().to_string(),
    },
    Knob {
        name: "DGIWARP_MAX_RATE",
        help: "octets per second that each datagram queue pair sends at most, up to 1000000000000; 0 is no limit",
        set: |config, text| {
            config.max_rate = u64::try_from(number(text, 0, 1_000_000_000_000)?).ok()?;
            Some(())
        },
        show: |config| config.max_rate.to_string(),
    },
    Knob {
        name: "DGIWARP_FAULT",
        help: "faults made in received datagrams, such as drop=0.01,dup=0.01,reorder=0.05,corrupt=0.001,delay=5ms,seed=1; \
               empty for none",
        set: |config, text| {
            config.fault = match text {
                "" => None,
                text => Some(text.parse().ok()?),
            };
            Some(())
        },
        show: |config| {
            let fault = config.fault.as_ref();
            fault.map_or_else(String::new, ToString::to_string)
        },
    },
    Knob {
        name: "DGIWARP_PCAP",
        help: "directory for a capture file (pcapng) of each datagram queue pair; empty for none",
        set: |config, text| {
            config.pcap = (!text.is_empty()).then(|| PathBuf::from(text));
            Some(())
        },
        show: |config| {
            let directory = config.pcap.as_ref();
            directory.map_or_else(String::new, |path| path.display().to_string())
        },
    },
    Knob {
        name: "DGIWARP_STATS",
        help: "file for what was counted, as lines of JSON, or - for standard error; empty for none",
        set: |config, text| {
            config.stats = (!text.is_empty()).then(|| PathBuf::from(text));
            Some(())
        },
        show: |config| {
            let file = config.stats.as_ref();
            file.map_or_else(String::new, |path| path.display().to_string())
        },
    },
    Knob {
        name: "DGIWARP_SEND_COPY",
        help: "1 copies all that is sent, for programs that change buffers before their work requests complete; 0 or 1",
        set: |config, text| {
            config.send_copy = number(text, 0, 1)? == 1;
            Some(())
        },
        show: |config| u8::from(config.send_copy).to_string(),
    },
    Knob {
        name: "DGIWARP_AUTOCORK",
        help: "1 has messages that are posted back to back wait for the program's next poll, to leave together; 0 sends each at once; 0 or 1",
        set: |config, text| {
            config.autocork = number(text, 0, 1)? == 1;
            Some(())
        },
        show: |config| u8::from(config.autocork).to_string(),
    },
    Knob {
        name: "DGIWARP_HELLO",
        help: "1 greets the peers of connected queue pairs, to find out whether they are dgiwarp; 0 takes them for others; 0 or 1",
        set: |config, text| {
            config.rc.hello = number(text, 0, 1)? == 1;
            Some(())
        },
        show: |config| u8::from(config.rc.hello).to_string(),
    },
    Knob {
        name: "DGIWARP_COMPLETION",
        help: "when Sends and Writes of connected queue pairs are complete: placed (by the peer, if it is dgiwarp) or local",
        set: |config, text| {
            config.rc.completion = match text {
                "placed" => Completion::Placed,
                "local" => Completion::Local,
                _ => return None,
            };
            Some(())
        },
        show: |config| config.rc.completion.to_string(),
    },
    Knob {
        name: "DGIWARP_SAME_HOST",
        help: "connections and datagrams within this host: auto takes them through shared memory where the peer does too, and reads and writes memory of a peer that does not poll where the kernel lets it; direct asks the kernel to let peers do that; ring keeps to shared memory; off leaves all to TCP and UDP",
        set: |config, text| {
            config.same_host = match text {
                "auto" => SameHostMode::Auto,
                "ring" => SameHostMode::Ring,
                "direct" => SameHostMode::Direct,
                "off" => SameHostMode::Off,
                _ => return None,
            };
            Some(())
        },
        show: |config| {
            let word = match config.same_host {
                SameHostMode::Auto => "auto",
                SameHostMode::Ring => "ring",
                SameHostMode::Direct => "direct",
                SameHostMode::Off => "off",
            };
            word.to_owned()
        },
    },
    Knob {
        name: "DGIWARP_SAME_HOST_AFTER",
        help: "octets that a connection within this host carries over TCP, or a datagram queue pair receives of a peer, before shared memory is used, 0 to 1073741824",
        set: |config, text| {
            config.same_host_after = u64::try_from(number(text, 0, 1 << 30)?).ok()?;
            Some(())
        },
        show: |config| config.same_host_after.to_string(),
    },
    Knob {
        name: "DGIWARP_HOST_DIR",
        help: "directory that containers on one host have in common, as an absolute path of up to 64 octets, for shared memory between their networks; empty for none",
        set: |config, text| {
            let is_usable = text.starts_with('/') && text.len() <= MAX_DIRECTORY;
            if !is_usable && !text.is_empty() {
                return None;
            }
            config.host_dir = is_usable.then(|| PathBuf::from(text));
            Some(())
        },
        show: |config| {
            let directory = config.host_dir.as_ref();
            directory.map_or_else(String::new, |path| path.display().to_string())
        },
    },
    Knob {
        name: "DGIWARP_NO_RECEIVE",
        help: "what becomes of a message on a connection that finds no posted receive: wait, or terminate the connection",
        set: |config, text| {
            config.rc.no_receive = match text {
                "wait" => NoReceive::Wait,
                "terminate" => NoReceive::Terminate,
                _ => return None,
            };
            Some(())
        },
        show: |config| config.rc.no_receive.to_string(),
    },
    Knob {
        name: "DGIWARP_RECEIVE_TIMEOUT_MS",
        help: "how long a message on a connection waits for a receive, in milliseconds, 1 to 600000; 0 is no limit",
        set: |config, text| {
            let millis = u64::try_from(number(text, 0, 600_000)?).ok()?;
            config.rc.receive_timeout = (millis > 0).then_some(Duration::from_millis(millis));
            Some(())
        },
        show: |config| {
            let timeout = config.rc.receive_timeout.unwrap_or_default();
            timeout.as_millis().to_string()
        },
    },
];

/// Way of connections and datagrams whose ends are on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameHostMode {
    /// The default: shared memory as with [`Ring`](Self::Ring), and Writes and Reads of connections whose peer does not poll by copies from and to the memory of its
    /// process, where both ends have this and the kernel allows it.
    #[default]
    Auto,
    /// As [`Auto`](Self::Auto), and all processes of this one's user may trace it, so that they may copy where Yama restricts that (`PR_SET_PTRACER` of `prctl(2)`).
    Direct,
    /// Shared memory, where the peer has it too; faults, captures and limits of the rate keep the queue pairs of a device on sockets.
    Ring,
    /// TCP and UDP.
    Off,
}

/// Settings of a device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Receive buffer asked of the kernel for each socket, in octets; the kernel may grant less. 0
    /// leaves the system's default. Default 4 MiB.
    pub receive_buffer: usize,
    /// Connected sockets that a datagram queue pair makes for its busiest peers, 0 to [`MAX_PEER_SOCKETS`]: they cost the kernel a fifth less for each
    /// datagram, and a descriptor each. Default 4.
    pub peer_sockets: usize,
    /// Largest MTU assumed of any path, in octets; 0 takes the routes' own. Default 0.
    pub max_mtu: u32,
    /// Longest ULPDU that connected queue pairs send, in octets, 128 to 64,768; 0 follows the path, so that an FPDU fits a segment of TCP's
    /// (RFC 5044 §4.5). Default 0.
    pub mulpdu: u16,
    /// UDP port of all broadcast and multicast groups. It must be the same on all hosts. Default 18514.
    pub group_port: u16,
    /// TCP ports for QPs that are made to be [paired](crate::RcQpAttr::paired), within 256 to 65,534; `None`, the default, leaves
    /// them to the system. One port serves 256 QPs.
    pub ports: Option<RangeInclusive<u16>>,
    /// A record is closed when nothing was placed for this long. Default 200 ms.
    pub record_timeout: Duration,
    /// An RDMA Read over datagrams that is not complete after this long ends in error, unless its work request has another limit.
    /// Default 2 s.
    pub read_timeout: Duration,
    /// A connection is lost when the peer's host did not acknowledge anything for this long although it should have; idle peers are asked. A peer
    /// that is there but does not read may take its time. At least one second, and counted in whole seconds where nothing is on its way; zero
    /// leaves the matter to TCP, which gives up after many minutes. Default 4 s.
    pub connection_timeout: Duration,
    /// Octets per second that each datagram queue pair sends at most, unless its attributes have another limit; 0, the default, is no limit.
    pub max_rate: u64,
    /// Faults made in received datagrams, to try programs on a bad network. Default none.
    pub fault: Option<Fault>,
    /// Directory for a capture file (pcapng) of each datagram queue pair, `qp-<pid>-<qpn>-<random>.pcapng`, with every datagram sent and
    /// received; those that were dropped have a comment with the drop reason. Service ID resolution is in `services-<pid>-<random>.pcapng`. The files
    /// are new and of this user alone, and so is a directory that is made. Default none.
    pub pcap: Option<PathBuf>,
    /// File for the counters, or `-` for standard error: a line of JSON is written to its end for each queue pair that ends, and when the
    /// device is closed one with the sums. A file that is there must be a regular one of this user, with one name; others are not written. Default none.
    pub stats: Option<PathBuf>,
    /// Copies all that is sent, so that the CRC is right even if the program changes a buffer before its work request
    /// completed. Else large segments leave from where they lie; a peer that reports a wrong CRC switches this on for connected queue
    /// pairs. Default no.
    pub send_copy: bool,
    /// Messages that are posted back to back leave together: the first one at once, those behind it when the program polls next or they fill a train. Only
    /// where a program polls, and at most 4 ms later. Default yes.
    pub autocork: bool,
    /// Difference between the ports that programs name to rdma_cm and those of the sockets, which are higher, modulo 65,536. This crate only keeps it:
    /// [`ConnectionPort`](crate::ConnectionPort) and [`ConnectionChannel`](crate::ConnectionChannel) take the sockets' own. Default 0.
    pub port_offset: u16,
    /// Connections query the UDP port of the number that they are made to, at which a listener that has [moved](crate::PortOptions::may_move) answers. Default yes.
    pub port_queries: bool,
    /// MPA configuration of connections that rdma_cm makes, where its programs give none. Of it, this crate uses the preference for CRCs, on
    /// connections that exchanged numbers make, and only keeps the rest. Default peer-to-peer mode with every
    /// indication that queue pairs can send and take, or client-server mode where the peer has no other, and else the defaults of [`MpaConfig`].
    pub mpa: MpaConfig,
    /// Way of connections and datagrams whose ends are on one host. Default [`SameHostMode::Auto`].
    pub same_host: SameHostMode,
    /// Octets that a connection within this host carries over TCP, both directions together, before it moves to shared memory: one with little traffic takes
    /// no memory. The end that connects decides. For datagram queue pairs, octets that one has received of a peer. Default 4096.
    pub same_host_after: u64,
    /// Directory through which ends meet to share memory whose addresses are of different network namespaces, such as containers that have it as a volume: an absolute
    /// path of up to 64 octets. This user must be able to write to it, and it must be sticky, or belong to this user or root with nobody else who may write to it; another one is left out with a warning. Default none.
    pub host_dir: Option<PathBuf>,
    /// Options of connected queue pairs whose attributes have none.
    pub rc: RcOptions,
    /// Seed of all randomness; `None` takes it from the system. For reproducible tests only: STags and
    /// epochs can be guessed with it.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            peer_sockets: MAX_PEER_SOCKETS,
            max_mtu: 0,
            mulpdu: 0,
            group_port: 18_514,
            ports: None,
            record_timeout: Duration::from_millis(200),
            read_timeout: Duration::from_secs(2),
            connection_timeout: Duration::from_secs(4),
            max_rate: 0,
            fault: None,
            pcap: None,
            stats: None,
            send_copy: false,
            autocork: true,
            port_offset: 0,
            port_queries: true,
            mpa: MpaConfig {
                peer_to_peer: true,
                client_server_will_do: true,
                rtr: RtrSet {
                    write: true,
                    read: true,
                    ..RtrSet::NONE
                },
                ..MpaConfig::default()
            },
            same_host: SameHostMode::default(),
            same_host_after: 4096,
            host_dir: None,
            rc: RcOptions::default(),
            seed: None,
        }
    }
}

impl Config {
    /// Whether ends of connections within this host may copy from and to each other's memory alone.
    pub(crate) fn copies_one_sided(&self) -> bool {
        matches!(self.same_host, SameHostMode::Auto | SameHostMode::Direct)
    }

    /// Whether connections within this host may go through shared memory. Faults, captures and rates are about a network.
    pub(crate) fn shares_host(&self) -> bool {
        let on_network = self.fault.is_some() || self.pcap.is_some() || self.max_rate > 0;
        self.same_host != SameHostMode::Off && !on_network
    }

    /// The defaults with the settings of the environment, and one warning for each `DGIWARP_*` variable that is
    /// unknown to all of dgiwarp (`others` are the caller's names beside [`KNOBS`]) or malformed.
    #[must_use]
    pub fn from_environment(
        variables: impl IntoIterator<Item = (String, String)>,
        others: &[&str],
    ) -> (Self, Vec<String>) {
        let mut config = Self::default();
        let mut warnings = Vec::new();
        // In the order of names, so that warnings do not depend on the environment's.
        let variables: BTreeMap<_, _> = variables
            .into_iter()
            .filter(|(name, _)| name.starts_with("DGIWARP_"))
            .collect();
        for (name, value) in variables {
            let Some(knob) = KNOBS.iter().find(|knob| knob.name == name) else {
                if !others.contains(&name.as_str()) {
                    warnings.push(unknown(&name, others));
                }
                continue;
            };
            if (knob.set)(&mut config, &value).is_none() {
                warnings.push(format!(
                    "{name}={value} is not understood and ignored: {}",
                    knob.help
                ));
            }
        }
        (config, warnings)
    }
}

fn number(text: &str, min: usize, max: usize) -> Option<usize> {
    let value = text.parse().ok()?;
    (min..=max).contains(&value).then_some(value)
}

fn unknown(name: &str, others: &[&str]) -> String {
    let nearest = KNOBS
        .iter()
        .map(|knob| knob.name)
        .chain(others.iter().copied())
        .min_by_key(|known| distance(name, known));
    match nearest {
        Some(nearest) => format!("{name} is unknown and ignored; did you mean {nearest}?"),
        None => format!("{name} is unknown and ignored"),
    }
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> (Config, Vec<String>) {
        let variables = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::from_environment(variables, &["DGIWARP_PERSONA"])
    }

    #[test]
    fn the_environment_changes_settings() {
        let (config, warnings) = from(&[
            ("DGIWARP_RCVBUF", "212992"),
            ("DGIWARP_MTU", "1500"),
            ("DGIWARP_MULPDU", "9000"),
            ("DGIWARP_GROUP_PORT", "4711"),
            ("DGIWARP_RECORD_TIMEOUT_MS", "50"),
            ("DGIWARP_READ_TIMEOUT_MS", "300"),
            ("DGIWARP_CONNECTION_TIMEOUT_MS", "9000"),
            ("DGIWARP_MAX_RATE", "125000000"),
            ("DGIWARP_FAULT", "drop=0.5,seed=9"),
            ("DGIWARP_AUTOCORK", "0"),
            ("DGIWARP_HELLO", "0"),
            ("DGIWARP_COMPLETION", "local"),
            ("DGIWARP_NO_RECEIVE", "terminate"),
            ("DGIWARP_RECEIVE_TIMEOUT_MS", "70"),
            ("DGIWARP_SAME_HOST", "ring"),
            ("DGIWARP_SAME_HOST_AFTER", "70000"),
            ("DGIWARP_HOST_DIR", "/run/dgiwarp"),
            ("DGIWARP_PERSONA", "iwarp"),
            ("HOME", "/"),
        ]);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(config.receive_buffer, 212_992);
        assert_eq!(config.max_mtu, 1500);
        assert_eq!((config.mulpdu, config.group_port), (9000, 4711));
        assert_eq!(config.connection_timeout, Duration::from_secs(9));
        assert_eq!(config.max_rate, 125_000_000);
        assert!(!config.autocork);
        let same_host = (config.same_host, config.same_host_after);
        assert_eq!(same_host, (SameHostMode::Ring, 70_000));
        assert_eq!(config.host_dir, Some("/run/dgiwarp".into()));
        assert_eq!(config.record_timeout, Duration::from_millis(50));
        assert_eq!(config.read_timeout, Duration::from_millis(300));
        let rc = RcOptions {
            hello: false,
            completion: Completion::Local,
            no_receive: NoReceive::Terminate,
            receive_timeout: Some(Duration::from_millis(70)),
            outlives_peer: false,
        };
        assert_eq!(config.rc, rc);
        let fault = config.fault.unwrap();
        assert_eq!((fault.drop, fault.seed), (0.5, 9));
        assert_eq!(KNOBS[0].show(&config), "212992");
    }

    #[test]
    fn mistakes_are_named_with_the_nearest_knob() {
        let (config, warnings) = from(&[
            ("DGIWARP_RCVBUFF", "1"),
            ("DGIWARP_MTU", "100"),
            ("DGIWARP_MULPDU", "127"),
            ("DGIWARP_HOST_DIR", "run"),
        ]);
        assert_eq!(config, Config::default());
        assert!(warnings[0].contains("DGIWARP_HOST_DIR=run is not understood"));
        assert!(warnings[1].contains("DGIWARP_MTU=100 is not understood"));
        assert!(warnings[2].contains("DGIWARP_MULPDU=127 is not understood"));
        assert!(warnings[3].contains("did you mean DGIWARP_RCVBUF?"));
    }
}
