//! gRPC calls of `tonic` over RIPC, unary and with streams: generated clients and servers change their transport, not their code.
//!
//! A [`Channel`] is what a generated client is made of, and a [`Server`] serves generated services on an endpoint. Messages travel inside of RIPC's
//! messages, or as long items by RDMA; streams in parts, as fast as their receiver reads. The wire is specified in `rfc-notes/ripc.md`
//! of the sources, "gRPC".

#![forbid(unsafe_code)]

mod body;
mod channel;
mod fields;
mod server;
mod stream;

pub use channel::Channel;
pub use server::Server;

/// RIPC service that carries the gRPC services of an endpoint.
pub const SERVICE: &str = "grpc";

/// Method of [`SERVICE`] for all calls.
const UNARY: dgiwarp_ripc::MethodId = dgiwarp_ripc::MethodId::named("unary");

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
