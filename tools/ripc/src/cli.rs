//! The command line.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dgiwarp_cli::{Example, Program};
use dgiwarp_ripc::{Config, Endpoint, Error, Group, MethodId, Urgency};

use crate::Failure;
use crate::gateway::{Gateway, ServeGrpc};
use crate::keys::{CallerKeys, Keygen, NewToken, ServerKeys};

/// Method of pings: no service is expected to have it.
pub(crate) const PING: MethodId = MethodId::named("ripc-ping");

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "ripc serve-files /srv/files",
            about: "Serves the files of a folder, under the name files, and prints its address.",
        },
        Example {
            line: "ripc list",
            about: "Services of all endpoints in the group that answer within a second.",
        },
        Example {
            line: "ripc call files get big.bin --room 100M > big.bin",
            about: "A file, written by RDMA into 100 MiB of the caller's.",
        },
        Example {
            line: "ripc ping --at 10.0.0.1:7000 files",
            about: "Round trips of empty calls.",
        },
        Example {
            line: "ripc gateway --listen unix:/run/user/1000/ripc.sock",
            about: "A socket for gRPC programs of any language, whose calls go to the service grpc of the group.",
        },
        Example {
            line: "ripc serve-grpc unix:/run/greeter.sock --listen 10.0.0.1:7000",
            about: "A gRPC server of any language, as the service grpc.",
        },
        Example {
            line: "ripc keygen server.key",
            about: "A private key in a new file, and its public key on standard output.",
        },
        Example {
            line: "ripc token --secret files.secret files get list --valid 3600",
            about: "A token for two methods of a service, for an hour.",
        },
        Example {
            line: "ripc bench",
            about: "Round trips of messages and calls beside those of TCP sockets, and the time of long items, on this machine.",
        },
    ],
    sections: &[
        (
            "Services and methods",
            "A service is a name, or a number from 1 to 65535. A method is a name, or a number with # before it: #7.\n\
             Where neither --at nor --file is given, the service is resolved in the group.",
        ),
        (
            "Keys and tokens",
            "A server with --key takes connections from callers alone that have its public key (--peer-key); with --known-clients, from those alone whose keys (--key) are in the file. \
             With --secret, calls need a --token of that secret.\n\
             Files of private keys, token secrets and tokens have mode 0600: others are refused. Connections that a server refuses are reported on its standard error.\n\
             Without --seal, the handshake proves who made a connection, and nothing of it is encrypted.",
        ),
        (
            "gRPC",
            "A program connects to the gateway as to a server of gRPC without TLS: its channel has the address of --listen. A socket of a path is for its owner alone. \
             All calls of the group's endpoints are of the service grpc, unless serve-grpc gave another name.\n\
             Streams are carried as fast as their reader reads. A call ends with UNAVAILABLE where the server is not there or is lost, and with RESOURCE_EXHAUSTED for a message over --longest or more than 16 KiB of metadata.",
        ),
        (
            "Exit status",
            "0 success; 1 another failure; 2 usage; 64 and the code of a call that failed, as 68 for a deadline, 71 for a caller without the right, 78 for a server that is not there or 80 for keys or tokens that do not fit.",
        ),
    ],
    see_also: &["dgiwarp(7)"],
    ..Program::EMPTY
};

/// Calls, measures and serves services of RIPC over RDMA in user space.
#[derive(Debug, Parser)]
#[command(name = "ripc", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Multicast group and UDP port of the resolver
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS:PORT",
        default_value = "239.255.71.82:15510"
    )]
    pub(crate) group: SocketAddrV4,
    /// Address of the one interface that the group is used on; otherwise all
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) interface: Option<Ipv4Addr>,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// Endpoint of a service.
#[derive(Debug, Clone, Args)]
pub(crate) struct Where {
    /// Address and port; may be repeated, and the next one is used where the first is not there
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) at: Vec<SocketAddr>,
    /// File with lines of a service and its addresses
    #[arg(long, value_name = "FILE", conflicts_with = "at")]
    pub(crate) file: Option<PathBuf>,
    /// Seconds in which the group has to answer
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) resolve: Duration,
    #[command(flatten)]
    pub(crate) keys: CallerKeys,
}

impl Where {
    /// Whether the addresses are given, and not to be resolved in the group.
    pub(crate) fn is_given(&self) -> bool {
        !self.at.is_empty() || self.file.is_some()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// List the services of the group: name, address, instance
    List {
        /// Seconds to wait for answers
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        time: Duration,
    },
    /// Call a method and write the items of its reply
    Call {
        #[command(flatten)]
        at: Where,
        /// Service
        service: String,
        /// Method
        method: String,
        /// The one item of the request (- = standard input)
        argument: Option<String>,
        /// Memory for a long item of the reply, in bytes, or with K, M or G
        #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
        room: usize,
        /// Seconds that the call may take
        #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
        timeout: Duration,
        /// Urgency, 0 the most urgent to 7: a busy server begins more urgent calls first
        #[arg(long, value_name = "LEVEL", default_value_t)]
        urgency: Urgency,
    },
    /// Measure round trips of empty calls
    Ping {
        #[command(flatten)]
        at: Where,
        /// Service
        service: String,
        /// Calls
        #[arg(short, long, default_value = "4")]
        count: u32,
        /// Seconds between two calls
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,
        /// Urgency, 0 the most urgent to 7
        #[arg(long, value_name = "LEVEL", default_value_t)]
        urgency: Urgency,
    },
    /// Serve the files of a folder: methods get and list
    ServeFiles {
        /// Folder
        folder: PathBuf,
        /// Address and port to listen on
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:0")]
        listen: SocketAddr,
        /// Name of the service
        #[arg(long, default_value = "files")]
        service: String,
        #[command(flatten)]
        keys: ServerKeys,
    },
    /// Take gRPC calls of programs by HTTP/2, and make them by RIPC
    Gateway(Gateway),
    /// Serve the gRPC services of a program that speaks HTTP/2
    ServeGrpc(ServeGrpc),
    /// Make a private key, or a token secret
    Keygen(Keygen),
    /// Make a token
    Token(NewToken),
    /// Measure messages, calls and long items, beside TCP sockets
    Bench(Bench),
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Round trips of each row
    #[arg(long, default_value = "10000")]
    pub(crate) rounds: u32,
    /// Bytes of the messages; may be repeated
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "50,300,600,1150,1400"
    )]
    pub(crate) size: Vec<usize>,
    /// Bytes of the long items, with K, M or G; 0 leaves them out
    #[arg(long, value_name = "BYTES", default_value = "100M", value_parser = bytes)]
    pub(crate) long: usize,
    /// Measure calls with a handshake and with sealed messages, by turns with plain ones
    #[arg(long)]
    pub(crate) handshake: bool,
    /// Internal: run the server of the measurement
    #[arg(long, hide = true)]
    pub(crate) server: bool,
}

impl Cli {
    /// An endpoint that calls nobody.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        Endpoint::open(self.config())
    }

    /// An endpoint that calls with these keys and tokens.
    pub(crate) fn caller(&self, keys: &CallerKeys) -> Result<Endpoint, Failure> {
        let mut config = self.config();
        keys.apply(&mut config)?;
        Ok(Endpoint::open(config)?)
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        let mut group = Group::default();
        group.address = self.group;
        group.interface = self.interface;
        config.group = Some(group);
        config.device = device();
        config
    }
}

/// The device with the settings of the environment.
pub(crate) fn device() -> dgiwarp::Config {
    let (device, warnings) = dgiwarp::Config::from_environment(std::env::vars(), &[]);
    for warning in warnings {
        eprintln!("ripc: {warning}");
    }
    device
}

pub(crate) fn parse() -> Cli {
    dgiwarp_cli::parse(&PROGRAM)
}

/// The method of a name, or of a number behind `#`.
pub(crate) fn method(text: &str) -> MethodId {
    let number = text.strip_prefix('#').and_then(|it| it.parse().ok());
    number.map_or_else(|| MethodId::named(text), MethodId::new)
}

/// Waits.
pub(crate) fn pause(time: Duration) {
    let (_sender, never) = mpsc::channel::<()>();
    let _ = never.recv_timeout(time);
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(_) | None => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "not a number of bytes")?;
    number
        .checked_mul(1 << shift)
        .filter(|it| *it <= 1 << 30)
        .ok_or_else(|| "at most 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes("100M"), Ok(100 << 20));
        assert_eq!(bytes("7"), Ok(7));
        assert!(bytes("2G").is_err() && bytes("M").is_err() && bytes("-1").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("x").is_err());
        assert_eq!(method("#7"), MethodId::new(7));
        assert_eq!(method("get"), MethodId::named("get"));
    }
}
