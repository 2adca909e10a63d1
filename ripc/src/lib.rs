//! Services, messages and calls over RDMA in user space.
//!
//! An [`Endpoint`] serves services, calls those of other endpoints, and sends and takes messages without a reply. Each call is executed at most once, ends by its
//! deadline, and has a [`Status`]. Payloads are [`Item`]s: short ones travel inside of a message; long ones are [`Block`]s of memory, which the peer's device writes
//! or reads without a copy at either end. A protocol of its own (`rfc-notes/ripc.md` in the sources) runs on RC queue pairs of the software RNIC `dgiwarp`.
//!
//! ```
//! use dgiwarp_ripc::{CallOptions, Code, Config, Endpoint, MethodId, Payload, Status};
//!
//! const ADD: MethodId = MethodId::named("add");
//!
//! let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
//! server.serve("calculator", |request| match request.method {
//!     ADD => Ok(Payload::short([request.payload.bytes(0).iter().sum::<u8>()])),
//!     _ => Err(Status::new(Code::Unimplemented, "it can only add")),
//! })?;
//!
//! let client = Endpoint::open(Config::default())?;
//! let address = server.local_addr().expect("it listens");
//! let calculator = client.client("calculator".parse()?, vec![address]);
//! let sum = calculator.call(ADD, Payload::short([1, 2, 3]), &CallOptions::default())?;
//! assert_eq!(sum.bytes(0), [6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A long reply needs no copy either: with [`CallOptions::and_room`] the server writes it to memory of the caller's.

#![forbid(unsafe_code)]

mod endpoint;
mod engine;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod memory;
mod names;
#[cfg(feature = "tokio")]
mod pace;
mod payload;
mod resolver;
#[cfg(feature = "tokio")]
mod runtime;
mod security;
mod status;
mod system;
mod wire;

pub use dgiwarp::Region;
pub use endpoint::client::{CallOptions, Client, PendingCall, StreamCall};
pub use endpoint::config::{Config, Limits};
pub use endpoint::driver::{Driver, Turned};
pub use endpoint::secure::rights::Refused;
pub use endpoint::service::{Incoming, Reply, Request};
pub use endpoint::stream::{Broken, StreamReceiver, StreamSender};
pub use endpoint::{Destination, Endpoint};
pub use engine::balance::LoadBalancing;
pub use engine::urgency::{Urgency, UrgencyError};
pub use error::Error;
pub use memory::{Block, OutOfBounds};
pub use names::{MethodId, NameError, ServiceId, ServiceName};
pub use payload::{Item, Payload};
pub use resolver::StaticFile;
pub use resolver::group::{Found, Group};
#[cfg(feature = "tokio")]
pub use runtime::Drive;
pub use security::Security;
pub use security::keys::{KeyError, PrivateKey, PublicKey};
pub use security::token::{Permission, Token, TokenSecret};
pub use status::{Code, Status};
pub use wire::metadata::Metadata;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
