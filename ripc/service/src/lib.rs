//! Typed services over RDMA in user space: the attribute [`service`] makes a client and a server of a trait of async methods.
//!
//! ```
//! use dgiwarp_ripc_service::{Config, Context, Endpoint, Handle, Status, service};
//!
//! /// It adds.
//! #[service]
//! pub trait Calculator {
//!     /// The sum of all.
//!     async fn add(&self, context: Context, numbers: Vec<u64>) -> Result<u64, Status>;
//! }
//!
//! struct Adder;
//!
//! impl Calculator for Adder {
//!     async fn add(&self, _: Context, numbers: Vec<u64>) -> Result<u64, Status> {
//!         Ok(numbers.iter().sum())
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
//! Adder.serve(&server, Handle::current())?;
//!
//! let endpoint = Endpoint::open(Config::default())?;
//! let calculator = CalculatorClient::new(&endpoint, vec![server.local_addr().unwrap()]);
//! assert_eq!(calculator.add(vec![1, 2, 3]).await?, 6);
//! # Ok(())
//! # }
//! ```
//!
//! Calls are those of [`dgiwarp_ripc`]: executed at most once, with a deadline (5 s by default, `with_options` has others), and a [`Status`] where they fail. Dropping the future of a call
//! cancels it, and the handler is dropped. Arguments and results are encoded by [postcard](https://postcard.jamesmunns.com), which does not describe itself: a method keeps the types that it
//! once had, and others get another method (`rfc-notes/ripc.md` in the sources, "Typed services").
//!
//! Octets of which there may be many are a [`Blob`], which moves without a copy.
//!
//! Values of peers nest at most 128 deep, and at most 65,536 elements of their sequences and maps have no octets: others are refused.

#![forbid(unsafe_code)]

mod blob;
mod bounds;
#[doc(hidden)]
pub mod generated;

use std::net::SocketAddr;
use std::time::Instant;

pub use blob::Blob;
pub use dgiwarp_ripc::{
    Block, CallOptions, Code, Config, Endpoint, Error, LoadBalancing, Metadata, MethodId, Status,
    Urgency,
};
pub use dgiwarp_ripc_macros::service;
pub use tokio::runtime::Handle;

/// Facts of a call beside its arguments, for its handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Context {
    /// Address of the caller.
    pub caller: SocketAddr,
    /// Time at which the caller has given up.
    pub deadline: Option<Instant>,
    /// Urgency that the caller has chosen.
    pub urgency: Urgency,
    /// Names and values that came with the call.
    pub metadata: Metadata,
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
