//! The operation × transport table: what can be measured, and beside which raw row.
//!
//! A new operation is a new line here, an endpoint that implements the traits of
//! [`crate::measure`], and an arm where endpoints are opened.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cli::SameHost;

/// The carrier of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Datagram iWARP: an unreliable datagram queue pair over UDP.
    #[default]
    Ud,
    /// iWARP: a connected queue pair over TCP.
    Rc,
    /// A reliable datagram queue pair over UDP.
    Rd,
    /// A connected queue pair whose octets go through memory that both processes share.
    RcRing,
    /// An unreliable datagram queue pair whose datagrams do.
    UdRing,
    /// A reliable datagram queue pair whose datagrams do.
    RdRing,
    /// A connected queue pair whose Writes and Reads are copied by their initiator, from and to the memory of a target that does not poll.
    RcDirect,
    /// Plain UDP sockets.
    Udp,
    /// Plain TCP sockets.
    Tcp,
    /// Plain memory that both processes share.
    Shm,
}

/// The operation on a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Send into a posted receive.
    #[default]
    Send,
    /// RDMA Write, detected by polling memory.
    Write,
    /// RDMA Write with immediate, which takes a posted receive.
    WriteImm,
    /// RDMA Write-Record: a one-sided write that leaves a validity map at the target.
    WriteRecord,
    /// RDMA Read: the client fetches from the server's memory.
    Read,
    /// Nothing: the connection alone.
    Connect,
    /// Atomic addition to 8 bytes of the server's memory.
    FetchAdd,
    /// Atomic compare and swap of 8 bytes of the server's memory.
    CompareSwap,
    /// Send to all receivers of a network.
    Broadcast,
    /// Send to the members of a multicast group.
    Multicast,
    /// The best socket code for the path.
    Raw,
    /// Trains of MTU-sized datagrams, one system call each (GSO and GRO).
    RawTrain,
    /// MTU-sized datagrams, one system call each.
    RawSingle,
}

/// The measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Ping-pong: half of the round trip.
    #[default]
    Lat,
    /// Goodput in one direction, counted at the receiver.
    Bw,
    /// Goodput in both directions at once, summed.
    Bibw,
    /// Messages per second in one direction, one post or send per message.
    Rate,
    /// Goodput in one direction while the receiver drops datagrams (`--loss`).
    Loss,
    /// Memory of a connection while nothing is sent.
    Idle,
    /// Goodput of one sender to several receivers, summed over them (`--receivers`).
    Fanout,
}

/// One line of the catalogue.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The carrier of the messages.
    pub(crate) transport: Transport,
    /// The operation on them.
    pub(crate) op: Op,
    /// The measurements that exist of it.
    pub(crate) modes: &'static [Mode],
    /// One line for `--list`.
    pub(crate) summary: &'static str,
}

/// The table of entries: transport, operation, modes, summary.
macro_rules! catalog {
    ($($transport:ident $op:ident [$($mode:ident)*] $summary:literal;)*) => {
        &[$(Entry {
            transport: Transport::$transport,
            op: Op::$op,
            modes: &[$(Mode::$mode),*],
            summary: $summary,
        }),*]
    };
}

/// All operations that can be measured.
pub(crate) const CATALOG: &[Entry] = catalog! {
    Ud Send [Lat Bw Bibw Rate Loss] "datagram iWARP Send into posted receives";
    Ud WriteRecord [Lat Bw Bibw Rate Loss] "datagram iWARP RDMA Write-Record with validity maps";
    Ud Read [Lat Bw Loss] "datagram iWARP RDMA Read, from server to client; latency is half of the time from post to completion";
    Ud Multicast [Fanout] "datagram iWARP Send to a multicast group, each receiver a process of its own";
    Ud Broadcast [Fanout] "the same to a broadcast address";
    Rd Send [Lat Bw Bibw Rate Loss] "reliable datagram Send into posted receives; with loss all of it arrives";
    Rd Write [Lat Bw Bibw Rate] "reliable datagram RDMA Write; its target polls its completion queue and the last byte";
    Rd WriteImm [Lat Bw Bibw Rate Loss] "reliable datagram RDMA Write with immediate into posted receives";
    Rc Send [Lat Bw Bibw Rate] "iWARP Send into posted receives";
    Rc Write [Lat Bw Bibw Rate] "iWARP RDMA Write; its target polls its completion queue and the last byte";
    Rc WriteImm [Lat Bw Bibw Rate] "iWARP RDMA Write with immediate into posted receives";
    Rc Read [Lat Bw] "iWARP RDMA Read, from server to client; latency is half of the time from post to completion";
    Rc FetchAdd [Lat Rate] "iWARP atomic addition to 8 bytes, beside 8 bytes to and fro; latency as of Read";
    Rc CompareSwap [Lat Rate] "iWARP atomic compare and swap of 8 bytes, all of which swap";
    UdRing Send [Lat Bw Bibw Rate] "datagrams through shared memory, where both sides are on one host (--same-host ring)";
    UdRing WriteRecord [Lat Bw Bibw Rate] "RDMA Write-Record";
    UdRing Read [Lat Bw] "RDMA Read";
    RdRing Send [Lat Bw Bibw Rate] "reliable datagrams through shared memory, where both sides are on one host (--same-host ring)";
    RdRing Write [Lat Bw Bibw Rate] "RDMA Write";
    RdRing WriteImm [Lat Bw Bibw Rate] "RDMA Write with immediate";
    RcRing Send [Lat Bw Bibw Rate] "the same operations through shared memory, where both sides are on one host (--same-host ring)";
    RcRing Write [Lat Bw Bibw Rate] "RDMA Write";
    RcRing WriteImm [Lat Bw Bibw Rate] "RDMA Write with immediate";
    RcRing Read [Lat Bw] "RDMA Read";
    RcRing FetchAdd [Lat Rate] "atomic addition";
    RcRing CompareSwap [Lat Rate] "atomic compare and swap";
    RcDirect Write [Lat] "one-sided copies within one host (--same-host direct): RDMA Write, both ends poll the last byte and nothing else";
    RcDirect Read [Lat] "RDMA Read, whose target sleeps; latency is half of the time from post to completion";
    Rc Connect [Idle] "iWARP connections that do nothing, each with a queue pair";
    Tcp Connect [Idle] "TCP connections that do nothing";
    Udp Multicast [Fanout] "UDP sockets of a multicast group, the best code for the path";
    Udp Broadcast [Fanout] "the same at a broadcast address";
    Udp Raw [Lat Bw Bibw Rate Loss] "connected UDP sockets, the best code for the path: 65000-byte datagrams on loopback, else GSO trains and GRO";
    Udp RawTrain [Lat Bw Bibw] "connected UDP sockets, GSO trains of MTU-sized datagrams and GRO";
    Udp RawSingle [Lat Bw Bibw Rate] "connected UDP sockets, one MTU-sized datagram per system call";
    Tcp Raw [Lat Bw Bibw Rate] "a TCP connection with NODELAY, one write per message";
    Shm Raw [Lat Bw Bibw Rate] "shared memory, where both sides are on one host: a ring of slots, each message copied in by one side and out by the other";
};

/// A transport with an operation, the name of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// The carrier of the messages.
    pub(crate) transport: Transport,
    /// The operation on them.
    pub(crate) op: Op,
}

impl Subject {
    /// Names a row.
    pub(crate) const fn new(transport: Transport, op: Op) -> Self {
        Self { transport, op }
    }

    /// The catalogue entry, if the pair exists.
    pub(crate) fn entry(self) -> Option<&'static Entry> {
        CATALOG
            .iter()
            .find(|entry| entry.transport == self.transport && entry.op == self.op)
    }

    /// The row of the same operation that takes this way within one host, if there is one in `mode`.
    pub(crate) fn within_host(self, way: SameHost, mode: Mode) -> Option<Self> {
        let transport = match (self.transport, way) {
            (Transport::Ud, SameHost::Ring) => Transport::UdRing,
            (Transport::Rd, SameHost::Ring) => Transport::RdRing,
            (Transport::Rc, SameHost::Ring) => Transport::RcRing,
            (Transport::Rc, SameHost::Direct) => Transport::RcDirect,
            _ => return None,
        };
        let other = Self::new(transport, self.op);
        let entry = other.entry()?;
        entry.modes.contains(&mode).then_some(other)
    }

    /// The raw row that this one is compared with in `mode`; none for the baselines themselves.
    pub(crate) fn baseline(self, mode: Mode) -> Option<Self> {
        match (self.transport, mode) {
            (
                Transport::Ud | Transport::UdRing | Transport::Rd | Transport::RdRing,
                Mode::Lat | Mode::Bw | Mode::Bibw | Mode::Loss,
            ) => Some(Self::new(Transport::Udp, Op::Raw)),
            (Transport::Ud | Transport::UdRing | Transport::Rd | Transport::RdRing, Mode::Idle)
            | (Transport::UdRing | Transport::Rd | Transport::RdRing, Mode::Fanout) => None,
            (Transport::Ud, Mode::Fanout) => Some(Self::new(Transport::Udp, self.op)),
            (Transport::Ud | Transport::UdRing | Transport::Rd | Transport::RdRing, Mode::Rate) => {
                Some(Self::new(Transport::Udp, Op::RawSingle))
            }
            // Raw TCP takes nearly nothing beside the kernel: a ratio would mean nothing.
            (Transport::Rc, Mode::Idle) => None,
            (Transport::Rc | Transport::RcRing | Transport::RcDirect, _) => {
                Some(Self::new(Transport::Tcp, Op::Raw))
            }
            (Transport::Udp | Transport::Tcp | Transport::Shm, _) => None,
        }
    }
}

/// Subjects by name.
pub(crate) mod subjects {
    use super::{Op, Subject, Transport};

    macro_rules! subjects {
        ($($name:ident = $transport:ident $op:ident;)*) => {
            $(pub(crate) const $name: Subject = Subject::new(Transport::$transport, Op::$op);)*
        };
    }

    subjects! {
        UDP_RAW = Udp Raw;
        UDP_TRAIN = Udp RawTrain;
        UDP_SINGLE = Udp RawSingle;
        RC_SEND = Rc Send;
        RC_WRITE = Rc Write;
        RC_WRITE_IMM = Rc WriteImm;
        RC_READ = Rc Read;
        RC_FETCH_ADD = Rc FetchAdd;
        RC_COMPARE_SWAP = Rc CompareSwap;
        TCP_RAW = Tcp Raw;
        UD_SEND = Ud Send;
        UD_WRITE_RECORD = Ud WriteRecord;
        UD_READ = Ud Read;
        UD_RING_SEND = UdRing Send;
        RC_RING_SEND = RcRing Send;
        RC_RING_WRITE = RcRing Write;
        RC_DIRECT_WRITE = RcDirect Write;
        RC_DIRECT_READ = RcDirect Read;
        SHM_RAW = Shm Raw;
        UD_MULTICAST = Ud Multicast;
        UD_BROADCAST = Ud Broadcast;
        RC_CONNECT = Rc Connect;
        TCP_CONNECT = Tcp Connect;
        UDP_BROADCAST = Udp Broadcast;
        UDP_MULTICAST = Udp Multicast;
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport.name(), self.op.name())
    }
}

impl Transport {
    /// Whether it is UDP underneath.
    pub(crate) const fn uses_datagrams(self) -> bool {
        match self {
            Self::Ud | Self::UdRing | Self::Rd | Self::RdRing | Self::Udp => true,
            Self::Rc | Self::RcRing | Self::RcDirect | Self::Tcp | Self::Shm => false,
        }
    }

    /// Whether it is a baseline, without queue pairs.
    pub(crate) const fn is_raw(self) -> bool {
        matches!(self, Self::Udp | Self::Tcp | Self::Shm)
    }

    /// Whether its queue pairs are reliable datagram ones.
    pub(crate) const fn is_reliable_datagram(self) -> bool {
        matches!(self, Self::Rd | Self::RdRing)
    }

    /// Whether the octets of its queue pairs go through memory that both processes share.
    pub(crate) const fn is_in_ring(self) -> bool {
        matches!(self, Self::RcRing | Self::UdRing | Self::RdRing)
    }

    /// Whether both sides have to be on one host.
    pub(crate) const fn is_within_host(self) -> bool {
        self.is_in_ring() || matches!(self, Self::RcDirect | Self::Shm)
    }

    /// The name in options, tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ud => "ud",
            Self::Rd => "rd",
            Self::Rc => "rc",
            Self::RcRing => "rc-ring",
            Self::UdRing => "ud-ring",
            Self::RdRing => "rd-ring",
            Self::RcDirect => "rc-direct",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }
}

impl Op {
    /// Whether the client fetches from the server, whose queue pair answers by itself.
    pub(crate) const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// The only message size of atomic operations.
    pub(crate) const fn only_size(self) -> Option<u64> {
        if matches!(self, Self::FetchAdd | Self::CompareSwap) {
            Some(8)
        } else {
            None
        }
    }

    /// The name in options, tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::WriteRecord => "write-record",
            Self::Read => "read",
            Self::Connect => "connect",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
            Self::Broadcast => "broadcast",
            Self::Multicast => "multicast",
            Self::Raw => "raw",
            Self::RawTrain => "raw-train",
            Self::RawSingle => "raw-single",
        }
    }
}

impl Mode {
    /// The name in options, tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
            Self::Bibw => "bibw",
            Self::Rate => "rate",
            Self::Loss => "loss",
            Self::Idle => "idle",
            Self::Fanout => "fanout",
        }
    }

    /// One line for `--list`.
    pub(crate) const fn summary(self) -> &'static str {
        match self {
            Self::Lat => "ping-pong latency, half of the round trip",
            Self::Bw => "goodput in one direction, counted at the receiver",
            Self::Bibw => "goodput in both directions at once, summed",
            Self::Rate => "messages per second in one direction, one call per message",
            Self::Loss => {
                "goodput, valid share and holes while the receiver drops datagrams (--loss)"
            }
            Self::Idle => "memory of idle connections, of each end (--size is their number)",
            Self::Fanout => "goodput to 1, 2, 3 receivers at once, summed (--receivers)",
        }
    }
}

/// The text of `--list`.
pub(crate) fn list() -> String {
    let mut text = String::from("transport  op            modes                  what\n");
    for entry in CATALOG {
        let modes: Vec<&str> = entry.modes.iter().map(|mode| mode.name()).collect();
        text.push_str(&format!(
            "{:<10} {:<13} {:<22} {}\n",
            entry.transport.name(),
            entry.op.name(),
            modes.join(","),
            entry.summary,
        ));
    }
    text.push('\n');
    let modes = [
        Mode::Lat,
        Mode::Bw,
        Mode::Bibw,
        Mode::Rate,
        Mode::Loss,
        Mode::Fanout,
        Mode::Idle,
    ];
    for mode in modes {
        text.push_str(&format!("{:<6} {}\n", mode.name(), mode.summary()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_baseline_can_itself_be_measured() {
        for entry in CATALOG {
            for &mode in entry.modes {
                let subject = Subject::new(entry.transport, entry.op);
                if let Some(baseline) = subject.baseline(mode) {
                    let raw = baseline.entry().expect("a baseline is in the catalogue");
                    assert!(raw.modes.contains(&mode), "{baseline} lacks {mode:?}");
                }
            }
        }
    }

    #[test]
    fn a_way_within_the_host_has_the_modes_of_its_entry() {
        use subjects::*;
        let direct = |subject: Subject, mode| subject.within_host(SameHost::Direct, mode);
        assert_eq!(direct(RC_WRITE, Mode::Lat), Some(RC_DIRECT_WRITE));
        assert_eq!(direct(RC_READ, Mode::Lat), Some(RC_DIRECT_READ));
        assert_eq!(direct(RC_READ, Mode::Bw), None);
        assert_eq!(direct(RC_SEND, Mode::Lat), None);
        let ring = |subject: Subject, mode| subject.within_host(SameHost::Ring, mode);
        assert_eq!(ring(UD_SEND, Mode::Rate), Some(UD_RING_SEND));
        assert_eq!(ring(UD_SEND, Mode::Loss), None);
        assert_eq!(ring(RC_CONNECT, Mode::Idle), None);
        assert_eq!(RC_SEND.within_host(SameHost::Off, Mode::Lat), None);
        for name in ["rc-direct", "shm"] {
            let transport = Transport::from_str(name, false).unwrap();
            assert!(transport.is_within_host() && !transport.is_in_ring());
            assert_eq!(transport.name(), name);
        }
    }

    #[test]
    fn list_names_every_entry() {
        let text = list();
        for entry in CATALOG {
            assert!(text.contains(entry.summary));
        }
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("ud ") || line.starts_with("rc "))
                .count(),
            12
        );
    }
}
