//! RDMA Read over datagrams (§6, §7.1, §7.2), both roles, sans I/O.
//!
//! - [`segment`]: segments of Reads and Terminates;
//! - [`Requester`]: cuts posted Reads into paced chunks, requests missing octets again, and ends each Read by its deadline;
//! - [`Responder`]: queues requests within bounds, schedules their responses, and answers cookie requests and errors.
//!
//! Order of calls on a [`Requester`]: `submit` for each Read posted; `poll_transmit(now, …)` until `None`; `handle_response`
//! and `handle_terminate` for received segments; `resume` for each handshake that ends; `handle_timeout(now, …)` when that of
//! the associations was due. The [`Associations`](super::Associations) of the QP are lent to each call. On a [`Responder`]:
//! `handle_request` and `handle_exchange` for received segments; then `turn` and `commit` or `refuse` until there is none, and `reply`
//! and `replied` likewise. Spurious calls do no harm.

mod amplification;
mod requester;
mod responder;
pub mod segment;
#[cfg(test)]
mod tests;

pub use requester::{Limits, ReadEnd, ReadSink, ReadWork, Requester, RequesterConfig};
pub use responder::{Class, Pending, Responder, ResponderConfig, cause_of};
