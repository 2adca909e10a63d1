//! Entry points of fuzzers: plain functions that take octets.
//!
//! Each [`Target`] drives one part of dgiwarp with whatever it is given, and panics where that part breaks a promise. The functions run under
//! `cargo fuzz`, for hours and guided by coverage, and in the test `seeded`, for seconds and on any toolchain.

#![forbid(unsafe_code)]

mod captures;
mod deframer;
#[cfg(feature = "engine")]
mod lane;
pub mod mutation;
mod parsers;
mod reliable;
mod sockets;
mod transfer;

use std::sync::OnceLock;
use std::time::Instant;

pub use captures::captures;
pub use deframer::deframer;
#[cfg(feature = "engine")]
pub use dgiwarp_ripc::fuzzing::messages as ripc;
#[cfg(feature = "engine")]
pub use dgiwarp_verbs::fuzzing::work_requests;
#[cfg(feature = "engine")]
pub use lane::lane;
pub use parsers::parsers;
pub use reliable::reliable;
pub use sockets::sockets;
pub use transfer::transfer;

/// When everything begins. An instant cannot be made otherwise, and which one it is makes no difference.
#[expect(
    clippy::disallowed_methods,
    reason = "an instant cannot be made otherwise"
)]
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Connected queue pairs under a peer that does as it likes.
#[cfg(feature = "engine")]
pub fn connection(data: &[u8]) {
    dgiwarp_engine::fuzzing::connection(start(), data);
}

/// Datagram queue pairs under peers that do as they like.
#[cfg(feature = "engine")]
pub fn datagrams(data: &[u8]) {
    dgiwarp_engine::fuzzing::datagrams(start(), data);
}

/// A function for fuzzers.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its corpus too.
    pub name: &'static str,
    /// Description of the part that it drives.
    pub about: &'static str,
    /// Octets of input that it can make use of.
    pub longest: usize,
    /// The function. Returns for every input, unless something is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "parsers",
        about: "headers and PDUs: what parses is emitted as it came",
        longest: 2048,
        run: parsers,
    },
    Target {
        name: "deframer",
        about: "MPA's receiving side: the same FPDUs, however TCP cuts the stream",
        longest: 4096,
        run: deframer,
    },
    Target {
        name: "captures",
        about: "what the conformance tester reads of others",
        longest: 4096,
        run: captures,
    },
    Target {
        name: "reliable",
        about: "reliable datagrams: an end of associations under peers that do as they like",
        longest: 2048,
        run: reliable,
    },
    Target {
        name: "sockets",
        about: "rsockets: formats, and the state machine of a stream under a peer that does as it likes",
        longest: 1024,
        run: sockets,
    },
    Target {
        name: "transfer",
        about: "transfers of files: formats, and the decisions of either end whose peer sends what it likes",
        longest: 2048,
        run: transfer,
    },
    #[cfg(feature = "engine")]
    Target {
        name: "ripc",
        about: "RIPC: formats, and the rules of an end whose peer sends what it likes",
        longest: 2048,
        run: ripc,
    },
    #[cfg(feature = "engine")]
    Target {
        name: "connection",
        about: "connected queue pairs: what programs, networks and strangers do with them",
        longest: 2048,
        run: connection,
    },
    #[cfg(feature = "engine")]
    Target {
        name: "datagrams",
        about: "datagram queue pairs: the same, with records, Reads and validity maps",
        longest: 2048,
        run: datagrams,
    },
    #[cfg(feature = "engine")]
    Target {
        name: "work_requests",
        about: "the C ABI: lists of work requests and other calls with arbitrary fields",
        longest: 2048,
        run: work_requests,
    },
    #[cfg(feature = "engine")]
    Target {
        name: "lane",
        about: "lanes of shared memory under a peer that scribbles in them",
        longest: 512,
        run: lane,
    },
];

/// The target with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
